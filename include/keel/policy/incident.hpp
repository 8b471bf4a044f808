// incident: how the cause of a non-finite update is investigated, in addition to the response of keel::nonfinite.
//   trace<N>         the default is trace<3>: runs the update again from its initial state while every operation is observed. The error,
//                    the record and the outcome then name the operation, the keel::unit and the rows in which the first non-finite value
//                    arose.
//   keep<N>          also writes what is needed to reproduce the update into the run directory: its batch, random state, parameters and
//                    optimizer state, for trainer::replay and options.resume_from. Keeps the newest N.
//   off              keeps nothing of an update and runs nothing again.
// Of consecutive non-finite updates only the first is investigated, and at most N per process. A trace needs the state of the random
// generators of every update and, under accumulation, handles to all of its micro-batches. A loss function that cannot be copied is only
// traced without accumulation. An overflow of a dynamic loss scale is only an incident if the scale is at its minimum.
// Left out: a trace of spikes, which no single operation causes.
#pragma once

#include <keel/policy/slot.hpp>

namespace keel::slot {
struct incident;
}

namespace keel::incident {

enum class kind : unsigned char { off, trace, keep };

struct settings {
  incident::kind kind = kind::trace;
  long long most = 3;  ///< maximum number of incidents per process, and in a run directory
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
