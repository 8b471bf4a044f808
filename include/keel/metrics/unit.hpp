// Units of metrics: types with a display name. Define your own as such a struct.
#pragma once

#include <concepts>
#include <keel/libtorch/mode.hpp>

namespace keel::inline KEEL_MODE {

namespace units {
/// A plain number, such as a loss or a norm.
struct one {
  static constexpr char const* name = "";
};
/// A fraction of 1.
struct share {
  static constexpr char const* name = "of 1";
};
/// Standard deviations.
struct deviations {
  static constexpr char const* name = "standard deviations";
};
/// Optimizer updates.
struct updates {
  static constexpr char const* name = "updates";
};
/// Passes over the data.
struct epochs {
  static constexpr char const* name = "epochs";
};
/// Tokens, or rows if a batch does not consist of token ids.
struct tokens {
  static constexpr char const* name = "tokens";
};
/// Tokens or rows per second.
struct tokens_per_second {
  static constexpr char const* name = "tokens/s";
};
/// Wall-clock time.
struct seconds {
  static constexpr char const* name = "s";
};
/// Bytes of memory.
struct bytes {
  static constexpr char const* name = "bytes";
};
/// 1e9 bytes.
struct gigabytes {
  static constexpr char const* name = "GB";
};
/// Temperature of a device.
struct degrees {
  static constexpr char const* name = "degrees Celsius";
};
}  // namespace units

/// A type with `static constexpr char const* name`.
template <class Type>
concept unit_of_measure = requires {
  { Type::name } -> std::convertible_to<char const*>;
};

}  // namespace keel::inline KEEL_MODE
