// Definitions for slowdown.hpp.
#pragma once

#include <algorithm>
#include <keel/metrics/console.hpp>
#include <keel/metrics/slowdown.hpp>

#include <keel/libtorch/detail/body_begin.inc>

namespace keel::inline KEEL_MODE {

KEEL_BODY std::string describe(slowdown const& found) {
  std::string const where = !found.phase                        ? "outside of all phases, as in a hook"
                            : *found.phase == run_phase::data   ? "waiting for data"
                            : *found.phase == run_phase::update ? "in the optimizer step"
                                                                : std::string("in the ") + to_string(*found.phase) + " pass";
  return detail::formatted("an update takes %.1f ms where it took %.1f; most of the added time is spent ", found.now,
                           found.before) +
         where;
}

KEEL_BODY slowdown_watch::level slowdown_watch::level_now() const {
  level now;
  std::vector<double> values;
  values.reserve(last_.size());
  auto const median = [&](auto const& value_of) {
    values.clear();
    for (update const& one : last_) values.push_back(value_of(one));
    auto const middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
    std::nth_element(values.begin(), middle, values.end());
    return *middle;
  };
  now.milliseconds = median([](update const& one) { return one.milliseconds; });
  now.per_token = median([](update const& one) { return one.per_token; });
  for (std::size_t phase = 0; phase < run_phases; ++phase)
    now.mean.spent[phase] = median([&](update const& one) { return one.times.spent[phase]; });
  now.mean.total = now.milliseconds;
  return now;
}

KEEL_BODY std::optional<slowdown> slowdown_watch::add(phase_times const& times, std::int64_t tokens) {
  if (++seen_ <= left_out) return std::nullopt;
  double const taken = times.training();
  update const one{taken, tokens > 0 ? taken / static_cast<double>(tokens) : taken, times, tokens};
  if (last_.size() < length) {
    last_.push_back(one);
  } else {
    last_[next_] = one;
  }
  next_ = (next_ + 1) % length;
  // Checking once per quarter of the window is cheap and finds every lasting slowdown.
  if (last_.size() < length || next_ % (length / 4) != 0) return std::nullopt;
  level const now = level_now();
  if (!fastest_ || now.per_token < fastest_->per_token) {
    fastest_ = now;
    return std::nullopt;
  }
  if (now.per_token < factor * fastest_->per_token || now.milliseconds < fastest_->milliseconds + least) return std::nullopt;
  slowdown found{fastest_->milliseconds, now.milliseconds};
  double most = 0.0;
  double known = 0.0;
  for (run_phase const phase : {run_phase::data, run_phase::forward, run_phase::backward, run_phase::update}) {
    double const more = now.mean.of(phase) - fastest_->mean.of(phase);
    known += more;
    if (more > most) {
      most = more;
      found.phase = phase;
    }
  }
  if (now.milliseconds - fastest_->milliseconds - known > most) found.phase.reset();
  // From now on this is the reference.
  fastest_ = now;
  return found;
}

}  // namespace keel::inline KEEL_MODE

#include <keel/libtorch/detail/body_end.inc>
