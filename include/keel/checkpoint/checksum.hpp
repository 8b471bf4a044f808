// XXH3 checksums with 64 bits, as stored in manifests: `xxhsum -H3 FILE` prints the same. They detect damage, not tampering.
// Yann Collet, xxHash, https://github.com/Cyan4973/xxHash
#pragma once

#include <xxhash.h>

#include <cstdint>
#include <cstdio>
#include <keel/libtorch/mode.hpp>
#include <memory>
#include <new>
#include <string>
#include <string_view>

namespace keel::inline KEEL_MODE {

/// Formats a checksum as 16 hexadecimal digits.
inline std::string in_hexadecimal(std::uint64_t checksum) {
  char digits[17];
  std::snprintf(digits, sizeof digits, "%016llx", static_cast<unsigned long long>(checksum));
  return digits;
}

/// Extends the checksum `so_far` of a sequence by the checksum `one`; 0 means none and is ignored.
inline std::uint64_t checksum_with(std::uint64_t so_far, std::uint64_t one) {
  return one == 0 ? so_far : XXH3_64bits_withSeed(&one, sizeof one, so_far);
}

class checksum {
 public:
  checksum() : state_(XXH3_createState()) {
    if (!state_) throw std::bad_alloc();
    XXH3_64bits_reset(state_.get());
  }
  void add(char const* bytes, std::size_t count) { XXH3_64bits_update(state_.get(), bytes, count); }
  /// Returns the checksum as 16 hexadecimal digits.
  std::string digest() const { return in_hexadecimal(XXH3_64bits_digest(state_.get())); }

 private:
  struct free_state {
    void operator()(XXH3_state_t* of) const { XXH3_freeState(of); }
  };
  std::unique_ptr<XXH3_state_t, free_state> state_;
};

inline std::string checksum_of(std::string_view bytes) {
  checksum of;
  of.add(bytes.data(), bytes.size());
  return of.digest();
}

}  // namespace keel::inline KEEL_MODE
