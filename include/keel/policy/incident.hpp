// incident: what becomes of an update that is not finite, beside what keel::nonfinite does with it.
//   trace<N>         the default is trace<3>: the update runs again from what it began with, under a watch of every operation, and the error,
//                    the record and the outcome name the operation, the keel::unit and the rows in which the first such value arose.
//   keep<N>          the same, and the run directory gets what shows the update again: its batch, random state, parameters and optimizer
//                    state, for trainer::replay and for options.resume_from. The newest N stay.
//   off              nothing of an update is kept, and nothing runs again.
// Of non-finite updates in a row the first is looked into, and N of them in a process. What a trace needs in every update is the state of
// the random generators, and of several micro-batches handles to all of them; a loss function that cannot be copied is traced without
// accumulation alone. An overflow of a dynamic loss scale is one when the scale is at its minimum.
// Left out: a trace of spikes, in which no operation is at fault.
#pragma once

#include <keel/policy/slot.hpp>

namespace keel::slot {
struct incident;
}

namespace keel::incident {

enum class kind : unsigned char { off, trace, keep };

struct settings {
  incident::kind kind = kind::trace;
  long long most = 3;  ///< incidents of a process, and in a run directory
  friend constexpr bool operator==(settings const&, settings const&) = default;
};

template <long long Most = 3>
struct trace : fills<slot::incident> {
  static constexpr settings configured{kind::trace, Most};
};
template <long long Most = 3>
struct keep : fills<slot::incident> {
  static constexpr settings configured{kind::keep, Most};
};
struct off : fills<slot::incident> {
  static constexpr settings configured{kind::off, 0};
};

}  // namespace keel::incident

namespace keel {

struct slot::incident : slot_description {
  using settings = keel::incident::settings;
  using default_policy = keel::incident::trace<3>;
  static constexpr char const* name = "incident";
  static constexpr char const* given_twice = "D30";
  static constexpr policy_list<settings, 3> policies() {
    using keel::incident::kind;
    return {{{"trace", {}, " most ", "most"}, {"keep", {.kind = kind::keep}, " most ", "most"}, {"off", {kind::off, 0}}}};
  }
  static constexpr void fields(auto& s, auto& field) { field.number("most", s.most); }
};

}  // namespace keel
