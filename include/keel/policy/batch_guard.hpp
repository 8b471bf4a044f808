// batch_guard: whether a trainer looks at each batch before it trains on it.
//   on            the default: values that are not finite, rows of inputs and labels that do not match, labels that are all masked, rows
//                 and batches that repeat, labels equal to the inputs.
//   check<O..>    that, ids and labels below 0, and what its options say of the data: vocabulary<N> and classes<N> (ids and labels outside end the run, before a
//                 device sees them), padding<ID> (its share is a metric), longest<N> tokens of a row, ignored<ID> of labels (-100).
//   drop<O..>     check, and rows with a value that is not finite are left out of their batch, whose loss is then that of the others. Also
//                 of a batch on a device, for which the host then waits. For data of which a few windows are known to be bad.
//   off           for batches whose every look costs, or that are odd on purpose.
// A batch is looked at where it is in the host's memory; one that is on a device already is not, because the host would wait for it.
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
  long long vocabulary = 0;  ///< ids of inputs are below; 0: not known
  long long classes = 0;     ///< labels are below; 0: not known
  long long longest = 0;     ///< tokens of a row; 0: not known
  long long padding = -1;    ///< the id that fills a row; -1: not known
  long long ignored = -100;  ///< the label that counts for nothing, as LibTorch's cross_entropy has it
  friend constexpr bool operator==(settings const&, settings const&) = default;
};

/// Looks at more than the default does.
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
