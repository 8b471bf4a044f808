// batch_guard: whether a trainer checks each batch before it trains on it.
//   on            the default: detects non-finite values, inputs and labels with different numbers of rows, labels that are all masked,
//                 repeated rows and batches, and labels that equal the inputs.
//   check<O..>    also detects negative ids and labels, and checks the data against its options: vocabulary<N> and classes<N> (an id or
//                 label outside ends the run before it reaches a device), padding<ID> (its fraction is recorded as a metric), longest<N>
//                 (tokens per row), ignored<ID> (the ignored label, -100).
//   drop<O..>     as check, but rows with a non-finite value are removed from their batch, whose loss is then computed over the others.
//                 Also removes rows from batches on a device, which synchronizes with it. For data that is known to contain a few bad
//                 windows.
//   off           for batches that are expensive to check, or intentionally unusual.
// Otherwise only batches in host memory are checked, because checking one on a device would synchronize with it.
// Left out: repairing values, which would hide what is wrong with the data.
#pragma once

#include <keel/policy/slot.hpp>

namespace keel::slot {
struct batch_guard;
}

namespace keel::batch_guard {

enum class kind : unsigned char { on, check, off, drop };

struct settings {
  batch_guard::kind kind = kind::on;
  long long vocabulary = 0;  ///< input ids are below this; 0: not known
  long long classes = 0;     ///< labels are below this; 0: not known
  long long longest = 0;     ///< tokens per row; 0: not known
  long long padding = -1;    ///< the id that pads a row; -1: not known
  long long ignored = -100;  ///< the label that losses ignore, as in LibTorch's cross_entropy
  friend constexpr bool operator==(settings const&, settings const&) = default;
};

/// True if the policy checks more than the default does.
constexpr bool is_extended(settings const& s) { return s.kind == kind::check || s.kind == kind::drop; }

template <class Option>
concept option = option_of<Option, settings>;

template <long long Ids>
struct vocabulary : sets<&settings::vocabulary, Ids> {};
template <long long Labels>
struct classes : sets<&settings::classes, Labels> {};
template <long long Tokens>
struct longest : sets<&settings::longest, Tokens> {};
template <long long Id>
struct padding : sets<&settings::padding, Id> {};
template <long long Label>
struct ignored : sets<&settings::ignored, Label> {};

struct on : fills<slot::batch_guard> {
  static constexpr settings configured{};
};
struct off : fills<slot::batch_guard> {
  static constexpr settings configured{.kind = kind::off};
};
template <option... Options>
struct check : configures<slot::batch_guard, settings{.kind = kind::check}, Options...> {};
template <option... Options>
struct drop : configures<slot::batch_guard, settings{.kind = kind::drop}, Options...> {};

}  // namespace keel::batch_guard

namespace keel {

struct slot::batch_guard : slot_description {
  using settings = keel::batch_guard::settings;
  using default_policy = keel::batch_guard::on;
  static constexpr char const* name = "batch_guard";
  static constexpr char const* given_twice = "D29";
  static constexpr policy_list<settings, 4> policies() {
    using keel::batch_guard::kind;
    return {
        {{"on", {}}, {"check", {.kind = kind::check}, "*"}, {"drop", {.kind = kind::drop}, "*"}, {"off", {.kind = kind::off}}}};
  }
  static constexpr void fields(auto& s, auto& field) {
    field.number("vocabulary", s.vocabulary);
    field.number("classes", s.classes);
    field.number("longest", s.longest);
    field.number("padding", s.padding);
    field.number("ignored", s.ignored);
  }
};

}  // namespace keel
