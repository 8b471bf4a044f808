// nonfinite: what happens when the loss or a gradient is NaN or infinite. In every case the parameters, the optimizer's
// state and the schedule stay as they were before the step, and the outcome says why.
//   raise            the default: the first one ends the run with nonfinite_error; raise_with<rank_local> on one rank alone.
//   warn<N>          skips the update and says so on the console each time; N in a row end the run.
//   skip<N>          skips the update and only counts it; N in a row end the run.
//   rollback<N,..>   after N in a row goes back to a checkpoint, changes something (N10), and goes on; a bounded number of
//                    times (N11).
// Options of rollback: skip_data (default), lower_lr (half of it), reseed, change_nothing, attempts<N>. Option of all:
// rank_local, which leaves the decision to each rank alone and so is for a world of one (N01, N02). Left out: a skip without an
// end (N06), and clipping a NaN away, which writes it into every gradient (G08).
#pragma once

#include <keel/policy/slot.hpp>

namespace keel::nonfinite {

enum class kind : unsigned char { raise, warn, skip, rollback };
/// What lower_lr multiplies the learning rate by, once a rollback.
inline constexpr double lowered_by = 0.5;

enum class change : unsigned char { nothing, skip_data, lower_lr, reseed };

struct settings {
  nonfinite::kind kind = kind::raise;
  long long limit = 1;                         ///< the run ends or rolls back at this many non-finite updates in a row
  nonfinite::change change = change::nothing;  ///< what a rollback changes
  long long attempts = 0;                      ///< rollbacks in one run
  bool agreed = true;                          ///< all ranks take the same branch
  friend constexpr bool operator==(settings const&, settings const&) = default;
};

template <class Option>
concept option = option_of<Option, settings>;

struct rank_local {
  static constexpr void apply(settings& to) { to.agreed = false; }
};
struct skip_data {
  static constexpr void apply(settings& to) { to.change = change::skip_data; }
};
struct lower_lr {
  static constexpr void apply(settings& to) { to.change = change::lower_lr; }
};
struct reseed {
  static constexpr void apply(settings& to) { to.change = change::reseed; }
};
struct change_nothing {
  static constexpr void apply(settings& to) { to.change = change::nothing; }
};
template <long long Count>
struct attempts {
  static constexpr void apply(settings& to) { to.attempts = Count; }
};

template <option... Options>
struct raise_with : fills<slot::nonfinite> {
  static constexpr settings configured = with_options<settings, Options...>({});
  static constexpr bool options_agree = keel::options_agree<settings, Options...>({});
};
using raise = raise_with<>;
template <long long InARow, option... Options>
struct warn : fills<slot::nonfinite> {
  static constexpr settings start{.kind = kind::warn, .limit = InARow};
  static constexpr settings configured = with_options<settings, Options...>(start);
  static constexpr bool options_agree = keel::options_agree<settings, Options...>(start);
};
template <long long InARow, option... Options>
struct skip : fills<slot::nonfinite> {
  static constexpr settings start{.kind = kind::skip, .limit = InARow};
  static constexpr settings configured = with_options<settings, Options...>(start);
  static constexpr bool options_agree = keel::options_agree<settings, Options...>(start);
};
template <long long InARow, option... Options>
struct rollback : fills<slot::nonfinite> {
  static constexpr settings start{.kind = kind::rollback, .limit = InARow, .change = change::skip_data, .attempts = 3};
  static constexpr settings configured = with_options<settings, Options...>(start);
  static constexpr bool options_agree = keel::options_agree<settings, Options...>(start);
};

}  // namespace keel::nonfinite

namespace keel {
template <>
struct settings_of<slot::nonfinite> {
  using type = nonfinite::settings;
};
template <>
struct default_policy<slot::nonfinite> {
  using type = nonfinite::raise;
};
}  // namespace keel
