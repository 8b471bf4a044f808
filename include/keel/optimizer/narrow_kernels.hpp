// bf16 and fp16 support in the sweeps. The vector kernels work in fp32, so a narrow tensor is converted block by block in the
// core's cache; memory is still read and written once.
#pragma once

#include <c10/core/ScalarType.h>

#include <algorithm>
#include <cstdint>
#include <keel/optimizer/chunks.hpp>
#include <keel/optimizer/operands.hpp>
#include <keel/optimizer/vector_kernels.hpp>

namespace keel::detail::inline KEEL_MODE {

/// Elements per fp32 block.
inline constexpr std::int64_t narrow_block = 1024;

template <class Narrow>
void widen_plain(Narrow const* from, float* to, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) to[i] = static_cast<float>(from[i]);
}
template <class Narrow>
void narrow_plain(float const* from, Narrow* to, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) to[i] = static_cast<Narrow>(from[i]);
}

#if defined(__x86_64__) && defined(__GNUC__)

inline bool has_half_conversions() { return has_avx2() && __builtin_cpu_supports("f16c"); }

__attribute__((target("avx2"))) inline void widen_avx2(c10::BFloat16 const* from, float* to, std::int64_t count) {
  std::int64_t i = 0;
  for (; i + 8 <= count; i += 8) {
    read_ahead(from + i);
    __m128i const bits = _mm_loadu_si128(reinterpret_cast<__m128i const*>(from + i));
    _mm256_storeu_ps(to + i, _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16)));
  }
  widen_plain(from + i, to + i, count - i);
}

__attribute__((target("avx2"))) inline void narrow_avx2(float const* from, c10::BFloat16* to, std::int64_t count) {
  __m256i const nan = _mm256_set1_epi32(0x7fc0);
  __m256i const below_half = _mm256_set1_epi32(0x7fff);
  __m256i const one = _mm256_set1_epi32(1);
  std::int64_t i = 0;
  for (; i + 8 <= count; i += 8) {
    read_ahead(to + i);
    __m256 const value = _mm256_loadu_ps(from + i);
    __m256i const bits = _mm256_castps_si256(value);
    // Round to nearest, ties to even.
    __m256i const odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), one);
    __m256i const rounded = _mm256_srli_epi32(_mm256_add_epi32(bits, _mm256_add_epi32(below_half, odd)), 16);
    __m256i const is_nan = _mm256_castps_si256(_mm256_cmp_ps(value, value, _CMP_UNORD_Q));
    __m256i const wide = _mm256_blendv_epi8(rounded, nan, is_nan);
    __m128i const narrow = _mm_packus_epi32(_mm256_castsi256_si128(wide), _mm256_extracti128_si256(wide, 1));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to + i), narrow);
  }
  narrow_plain(from + i, to + i, count - i);
}

__attribute__((target("avx2,f16c"))) inline void widen_avx2(c10::Half const* from, float* to, std::int64_t count) {
  std::int64_t i = 0;
  for (; i + 8 <= count; i += 8) {
    read_ahead(from + i);
    _mm256_storeu_ps(to + i, _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<__m128i const*>(from + i))));
  }
  widen_plain(from + i, to + i, count - i);
}

__attribute__((target("avx2,f16c"))) inline void narrow_avx2(float const* from, c10::Half* to, std::int64_t count) {
  std::int64_t i = 0;
  for (; i + 8 <= count; i += 8) {
    read_ahead(to + i);
    __m128i const narrow = _mm256_cvtps_ph(_mm256_loadu_ps(from + i), _MM_FROUND_TO_NEAREST_INT);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to + i), narrow);
  }
  narrow_plain(from + i, to + i, count - i);
}

template <class Narrow>
void widen(Narrow const* from, float* to, std::int64_t count) {
  if (has_half_conversions()) return widen_avx2(from, to, count);
  widen_plain(from, to, count);
}
template <class Narrow>
void narrow(float const* from, Narrow* to, std::int64_t count) {
  if (has_half_conversions()) return narrow_avx2(from, to, count);
  narrow_plain(from, to, count);
}

#else

template <class Narrow>
void widen(Narrow const* from, float* to, std::int64_t count) {
  widen_plain(from, to, count);
}
template <class Narrow>
void narrow(float const* from, Narrow* to, std::int64_t count) {
  narrow_plain(from, to, count);
}

#endif

template <class Narrow>
double sum_of_squares_narrow(Narrow const* values, std::int64_t count) {
  float block[narrow_block];
  double sum = 0.0;
  for (std::int64_t begin = 0; begin < count; begin += narrow_block) {
    std::int64_t const length = std::min(narrow_block, count - begin);
    widen(values + begin, block, length);
    sum += sum_of_squares_fp32(block, length);
  }
  return sum;
}

template <class Kernel>
void operands::run(chunk const& piece, Kernel const& kernel) const {
  switch (type) {
    case at::kBFloat16:
      return run_narrow<c10::BFloat16>(piece, kernel);
    case at::kHalf:
      return run_narrow<c10::Half>(piece, kernel);
    default:
      return kernel(worked + piece.begin, static_cast<float const*>(gradient) + piece.begin, piece.begin, piece.count);
  }
}

template <class Narrow, class Kernel>
void operands::run_narrow(chunk const& piece, Kernel const& kernel) const {
  float block[narrow_block];
  std::int64_t const end = piece.begin + piece.count;
  for (std::int64_t begin = piece.begin; begin < end; begin += narrow_block) {
    std::int64_t const count = std::min(narrow_block, end - begin);
    float const* wide = block;
    if (gradient_type == at::kFloat) {
      wide = static_cast<float const*>(gradient) + begin;
    } else {
      widen(static_cast<Narrow const*>(gradient) + begin, block, count);
    }
    kernel(worked + begin, wide, begin, count);
    narrow(worked + begin, static_cast<Narrow*>(narrow_parameter) + begin, count);
  }
}

}  // namespace keel::detail::inline KEEL_MODE
