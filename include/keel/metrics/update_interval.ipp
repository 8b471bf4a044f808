// The bodies of update_interval.hpp.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <keel/checkpoint/checksum.hpp>
#include <keel/metrics/update_interval.hpp>
#include <limits>
#include <utility>

#include <keel/libtorch/detail/body_begin.inc>

namespace keel::detail::inline KEEL_MODE {

/// The score farther from 0; one that is not a number is farthest, and stays.
KEEL_BODY void take_farther(std::optional<double>& held, std::optional<double> const& one) {
  if (!one || (held && std::isnan(*held))) return;
  if (!held || !(std::abs(*one) <= std::abs(*held))) held = one;
}

}  // namespace keel::detail::inline KEEL_MODE

namespace keel::inline KEEL_MODE {

KEEL_BODY void update_interval::own_value::add(double one) {
  bool const is_first = count++ == 0;
  switch (how) {
    case over_updates::mean:
    case over_updates::sum:
      value += one;
      break;
    // A NaN stays: it is what a person must see.
    case over_updates::min:
      if (is_first || !(value <= one)) value = std::isnan(value) && !is_first ? value : one;
      break;
    case over_updates::max:
      if (is_first || !(value >= one)) value = std::isnan(value) && !is_first ? value : one;
      break;
    case over_updates::last:
      value = one;
      break;
  }
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
  detail::take_farther(loss_zscore_, one.loss_zscore);
  detail::take_farther(gradient_norm_zscore_, one.gradient_norm_zscore);
  batch_ = checksum_with(batch_, one.batch);
  tokens_ += one.tokens;
  milliseconds_ += one.milliseconds;
  times_ += one.times;
  auto const tokens = static_cast<double>(one.tokens);
  if (one.padding) padding_ += *one.padding * tokens;
  if (one.ignored_labels) ignored_labels_ += *one.ignored_labels * tokens;
  if (one.mfu) utilised_ += *one.mfu * one.milliseconds;
  if (one.memory) {
    reserved_ = std::max(reserved_, one.memory->reserved);
    for (std::size_t i = 0; i < peaks_.size(); ++i) peaks_[i] = std::max(peaks_[i], one.memory->peaks[i]);
    between_ = std::max(between_, one.memory->between);
  }
  for (reduced_value const& value : own) {
    auto const held =
        std::find_if(own_.begin(), own_.end(), [&](own_value const& other) { return other.name == value.name(); });
    own_value& to = held != own_.end() ? *held : own_.emplace_back(own_value{value.name(), value.over(), 0.0, 0});
    to.add(value.value());
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
  line.loss_zscore = loss_zscore_;
  line.gradient_norm_zscore = gradient_norm_zscore_;
  line.batch = batch_;
  line.tokens = tokens_;
  line.milliseconds = milliseconds_;
  line.times = times_;
  auto const share = [&](double sum) { return tokens_ > 0 ? sum / static_cast<double>(tokens_) : 0.0; };
  if (line.padding || padding_ > 0.0) line.padding = share(padding_);
  if (line.ignored_labels || ignored_labels_ > 0.0) line.ignored_labels = share(ignored_labels_);
  line.mfu.reset();
  if (utilised_ > 0.0 && milliseconds_ > 0.0) line.mfu = utilised_ / milliseconds_;
  line.skipped_because = skipped_because_;
  if (line.memory) {
    line.memory->peaks = peaks_;
    line.memory->reserved = reserved_;
    line.memory->between = between_;
  }
  line.own.clear();
  for (own_value const& value : own_) line.own.emplace_back(value.name, value.reduced());
  *this = {};
  return line;
}

}  // namespace keel::inline KEEL_MODE

#include <keel/libtorch/detail/body_end.inc>
