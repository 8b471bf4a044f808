// What a metric is measured in: a type with the name to show. A unit of your own is such a struct, too.
#pragma once

#include <concepts>
#include <keel/libtorch/mode.hpp>

namespace keel::inline KEEL_MODE {

namespace units {
/// A plain number, such as a loss or a norm.
struct one {
  static constexpr char const* name = "";
};
struct share {
  static constexpr char const* name = "of 1";
};
struct updates {
  static constexpr char const* name = "updates";
};
struct epochs {
  static constexpr char const* name = "epochs";
};
/// Rows, where a batch is not made of token ids.
struct tokens {
  static constexpr char const* name = "tokens";
};
struct tokens_per_second {
  static constexpr char const* name = "tokens/s";
};
struct seconds {
  static constexpr char const* name = "s";
};
struct bytes {
  static constexpr char const* name = "bytes";
};
/// 1e9 bytes.
struct gigabytes {
  static constexpr char const* name = "GB";
};
struct degrees {
  static constexpr char const* name = "degrees Celsius";
};
}  // namespace units

template <class Type>
concept unit_of_measure = requires {
  { Type::name } -> std::convertible_to<char const*>;
};

}  // namespace keel::inline KEEL_MODE
