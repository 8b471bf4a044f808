// Copies memory with non-temporal stores. A large copy through the caches would read every target line before overwriting it,
// and evict training's data.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>
#include <keel/libtorch/mode.hpp>
#endif

namespace keel::detail::inline KEEL_MODE {

#if defined(__x86_64__) && defined(__GNUC__)
__attribute__((target("avx"))) inline void stream_blocks(char* to, char const* from, std::size_t count) {
  for (std::size_t at = 0; at < count; at += 128) {
    for (std::size_t part = 0; part < 128; part += 32) {
      __m256i const value = _mm256_loadu_si256(reinterpret_cast<__m256i const*>(from + at + part));
      _mm256_stream_si256(reinterpret_cast<__m256i*>(to + at + part), value);
    }
  }
  // Non-temporal stores are not ordered with other stores without a fence.
  _mm_sfence();
}
#endif

/// The ranges must not overlap.
inline void stream_copy(char* to, char const* from, std::size_t count) {
#if defined(__x86_64__) && defined(__GNUC__)
  static bool const has_avx = __builtin_cpu_supports("avx") != 0;
  if (has_avx && count >= 4096) {
    std::size_t const head = (32 - reinterpret_cast<std::uintptr_t>(to) % 32) % 32;
    std::size_t const body = (count - head) / 128 * 128;
    std::memcpy(to, from, head);
    stream_blocks(to + head, from + head, body);
    std::memcpy(to + head + body, from + head + body, count - head - body);
    return;
  }
#endif
  std::memcpy(to, from, count);
}

}  // namespace keel::detail::inline KEEL_MODE
