// Definitions for update_interval.hpp.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <keel/checkpoint/checksum.hpp>
#include <keel/metrics/update_interval.hpp>
#include <limits>
#include <utility>

#include <keel/libtorch/detail/body_begin.inc>

namespace keel::inline KEEL_MODE {

KEEL_BODY void update_interval::reduction_over_updates::add(double one, double with_weight, over_updates how) {
  bool const is_first = weight == 0.0;
  // Written so that a NaN is taken and kept, because it must remain visible.
  auto const take_if = [&](bool is_further) {
    if (is_first || (is_further && !std::isnan(value))) value = one;
  };
  switch (how) {
    case over_updates::mean:
      value += one * with_weight;
      break;
    case over_updates::sum:
      value += one;
      break;
    case over_updates::min:
      take_if(!(value <= one));
      break;
    case over_updates::max:
      take_if(!(value >= one));
      break;
    case over_updates::farthest:
      take_if(!(std::abs(one) <= std::abs(value)));
      break;
    case over_updates::last:
      value = one;
      break;
  }
  weight += with_weight;
}

KEEL_BODY std::optional<double> update_interval::reduction_over_updates::result(over_updates how) const {
  if (!(weight > 0.0)) return std::nullopt;
  return how == over_updates::mean ? value / weight : value;
}

KEEL_BODY std::optional<update_metrics> update_interval::add(update_metrics const& one, std::vector<reduced_value> const& own,
                                                             std::int64_t every) {
  if (every <= 1 && count_ == 0) {
    update_metrics line = one;
    line.own.clear();
    for (reduced_value const& value : own) line.own.emplace_back(value.name(), value.value());
    return line;
  }
  if (count_ == 0) {
    after_update_ = one.update - one.applied;
    after_attempt_ = one.attempt - 1;
  }
  last_ = one;
  ++count_;
  if (one.skipped_because.empty()) {
    ++applied_;
    loss_ += one.loss;
    gradient_norm_ += one.gradient_norm;
    if (one.clipped) ++clipped_;
  } else {
    skipped_because_ = one.skipped_because;
  }
  batch_ = checksum_with(batch_, one.batch);
  tokens_ += one.tokens;
  milliseconds_ += one.milliseconds;
  times_ += one.times;
  one.measured.for_each([&]<class Metric>(Metric metric, std::optional<double> const& value) {
    if (value) measured_[metric].add(*value, Metric::weight(one.tokens, one.milliseconds), Metric::over_updates);
  });
  if (one.memory) {
    reserved_ = std::max(reserved_, one.memory->reserved);
    for (std::size_t i = 0; i < peaks_.size(); ++i) peaks_[i] = std::max(peaks_[i], one.memory->peaks[i]);
    between_ = std::max(between_, one.memory->between);
  }
  for (reduced_value const& value : own) {
    auto const held =
        std::find_if(own_.begin(), own_.end(), [&](own_value const& other) { return other.name == value.name(); });
    own_value& to = held != own_.end() ? *held : own_.emplace_back(own_value{value.name(), value.over(), {}});
    to.values.add(value.value(), 1.0, to.how);
  }
  return count_ >= every ? take() : std::nullopt;
}

KEEL_BODY std::optional<update_metrics> update_interval::take() {
  if (count_ == 0) return std::nullopt;
  update_metrics line = std::exchange(last_, {});
  auto const mean = [&](double sum) {
    return applied_ > 0 ? sum / static_cast<double>(applied_) : std::numeric_limits<double>::quiet_NaN();
  };
  line.updates = count_;
  line.applied = applied_;
  line.loss = mean(loss_);
  line.gradient_norm = mean(gradient_norm_);
  line.clipped = clipped_ > 0;
  line.clip_fraction = applied_ > 0 ? static_cast<double>(clipped_) / static_cast<double>(applied_) : 0.0;
  line.batch = batch_;
  line.tokens = tokens_;
  line.milliseconds = milliseconds_;
  line.times = times_;
  measured_.for_each([&]<class Metric>(Metric metric, reduction_over_updates const& all) {
    line.measured[metric] = all.result(Metric::over_updates);
  });
  line.skipped_because = skipped_because_;
  if (line.memory) {
    line.memory->peaks = peaks_;
    line.memory->reserved = reserved_;
    line.memory->between = between_;
  }
  line.own.clear();
  for (own_value const& value : own_) {
    if (auto const reduced = value.values.result(value.how)) line.own.emplace_back(value.name, *reduced);
  }
  *this = {};
  return line;
}

}  // namespace keel::inline KEEL_MODE

#include <keel/libtorch/detail/body_end.inc>
