// XXH3, 64 bits, as it is written into manifests: `xxhsum -H3 FILE` prints the same. It finds damage, not malice.
// Yann Collet, xxHash, https://github.com/Cyan4973/xxHash
#pragma once

#include <xxhash.h>

#include <cstdio>
#include <memory>
#include <new>
#include <string>
#include <string_view>

namespace keel {

class checksum {
 public:
  checksum() : state_(XXH3_createState()) {
    if (!state_) throw std::bad_alloc();
    XXH3_64bits_reset(state_.get());
  }
  void add(char const* bytes, std::size_t count) { XXH3_64bits_update(state_.get(), bytes, count); }
  /// 16 hexadecimal digits.
  std::string digest() const {
    char digits[17];
    std::snprintf(digits, sizeof digits, "%016llx", static_cast<unsigned long long>(XXH3_64bits_digest(state_.get())));
    return digits;
  }

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

}  // namespace keel
