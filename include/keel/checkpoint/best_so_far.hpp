// The best checkpoints so far, by a number of which smaller is better, or larger. It takes what is finite and agreed and
// nothing else: a NaN compared with the best may be taken for the best (E30), and ranks that judge their own number keep
// different checkpoints (E29).
#pragma once

#include <algorithm>
#include <cstdint>
#include <keel/collective/agreed.hpp>
#include <keel/core/finite.hpp>
#include <optional>
#include <vector>

namespace keel::inline KEEL_MODE {

/// How two numbers compare.
struct better {
  bool larger = false;     ///< is better
  double min_delta = 0.0;  ///< by which a number must be better to count, as a difference
  /// True if `candidate` is the better one.
  bool operator()(double candidate, double than) const {
    return larger ? candidate > than + min_delta : candidate < than - min_delta;
  }
};

/// Remembers which updates had the best numbers. All ranks offer the same ones.
class best_so_far {
 public:
  /// A number that was offered.
  struct entry {
    std::int64_t update;  ///< that it is of
    double value;         ///< the number
    friend bool operator==(entry const&, entry const&) = default;
  };

  /// Remembers `most` of them, at least one.
  explicit best_so_far(better order = {}, std::int64_t most = 1) : order_(order), most_(static_cast<std::size_t>(most)) {}

  /// True if this number is the best until now.
  bool offer(agreed<finite<double>> const& number, std::int64_t update) {
    double const value = number.value().value();
    auto const place =
        std::find_if(entries_.begin(), entries_.end(), [&](entry const& one) { return order_(value, one.value); });
    bool const is_best = place == entries_.begin();
    if (place == entries_.end() && entries_.size() >= most_) return false;
    entries_.insert(place, {update, value});
    if (entries_.size() > most_) entries_.pop_back();
    return is_best;
  }
  /// Nothing is not a best.
  bool offer(std::optional<agreed<finite<double>>> const& number, std::int64_t update) {
    return number && offer(*number, update);
  }
  /// Rejected: E29 if only this rank knows it, E30 if it was not checked.
  template <class Raw>
  bool offer(Raw const&, std::int64_t) {
    if constexpr (std::same_as<Raw, finite<double>>) {
      detail::reject_call<rule::E29, Raw>();
    } else {
      detail::reject_call<rule::E30, Raw>();
    }
    return false;
  }

  /// True once a number was offered.
  bool has_one() const { return !entries_.empty(); }
  /// The best number.
  double loss() const { return has_one() ? entries_.front().value : 0.0; }
  /// The update of the best number.
  std::int64_t update() const { return has_one() ? entries_.front().update : 0; }
  /// The best first.
  std::vector<entry> const& entries() const { return entries_; }

  /// Removes those for which `is_gone(update)`, and returns their updates.
  template <class IsGone>
  std::vector<std::int64_t> forget(IsGone const& is_gone) {
    std::vector<std::int64_t> forgotten;
    std::erase_if(entries_, [&](entry const& one) {
      if (!is_gone(one.update)) return false;
      forgotten.push_back(one.update);
      return true;
    });
    return forgotten;
  }

  template <class Archive>
  void visit(Archive& archive) {
    bool has = has_one();
    double first_value = loss();
    std::int64_t first_update = update();
    std::vector<double> values;
    std::vector<std::int64_t> updates;
    for (std::size_t i = 1; i < entries_.size(); ++i) {
      values.push_back(entries_[i].value);
      updates.push_back(entries_[i].update);
    }
    archive("has_one", has);
    archive("loss", first_value);
    archive("update", first_update);
    archive.optional_field("next_losses", values);
    archive.optional_field("next_updates", updates);
    if constexpr (requires { Archive::reads; }) {
      entries_.clear();
      if (has) entries_.push_back({first_update, first_value});
      for (std::size_t i = 0; i < std::min(values.size(), updates.size()) && entries_.size() < most_; ++i)
        entries_.push_back({updates[i], values[i]});
    }
  }

 private:
  better order_;
  std::size_t most_;
  std::vector<entry> entries_;
};

}  // namespace keel::inline KEEL_MODE
