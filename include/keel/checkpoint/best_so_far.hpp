// Tracks the best checkpoints by a number for which smaller, or larger, is better. Accepts only finite numbers that all ranks
// agree on. A comparison with NaN may select it as the best (E30), and ranks that use local numbers keep different checkpoints
// (E29).
#pragma once

#include <algorithm>
#include <cstdint>
#include <keel/collective/agreed.hpp>
#include <keel/core/finite.hpp>
#include <optional>
#include <vector>

namespace keel::inline KEEL_MODE {

/// The order of two numbers.
struct better {
  bool larger = false;     ///< larger is better; otherwise smaller is
  double min_delta = 0.0;  ///< the absolute difference by which a number must be better
  /// Returns true if `candidate` is better than `than`.
  bool operator()(double candidate, double than) const {
    return larger ? candidate > than + min_delta : candidate < than - min_delta;
  }
};

/// Remembers the updates with the best numbers. All ranks must offer the same numbers.
class best_so_far {
 public:
  /// An offered number.
  struct entry {
    std::int64_t update;  ///< the update that the number belongs to
    double value;         ///< the number
    friend bool operator==(entry const&, entry const&) = default;
  };

  /// Keeps the best `most` numbers; `most` must be at least 1.
  explicit best_so_far(better order = {}, std::int64_t most = 1) : order_(order), most_(static_cast<std::size_t>(most)) {}

  /// Offers a number. Returns true if it is the best so far.
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
  /// As above; an empty optional is ignored and returns false.
  bool offer(std::optional<agreed<finite<double>>> const& number, std::int64_t update) {
    return number && offer(*number, update);
  }
  /// Does not compile: E29 for a number of this rank only, E30 for an unchecked number.
  template <class Raw>
  bool offer(Raw const&, std::int64_t) {
    if constexpr (std::same_as<Raw, finite<double>>) {
      detail::reject_call<rule::E29, Raw>();
    } else {
      detail::reject_call<rule::E30, Raw>();
    }
    return false;
  }

  /// Returns true once a number was offered.
  bool has_one() const { return !entries_.empty(); }
  /// Returns the best number, or 0 if there is none.
  double loss() const { return has_one() ? entries_.front().value : 0.0; }
  /// Returns the update of the best number, or 0 if there is none.
  std::int64_t update() const { return has_one() ? entries_.front().update : 0; }
  /// Returns the kept numbers, best first.
  std::vector<entry> const& entries() const { return entries_; }

  /// Removes the entries for which `is_gone(update)` is true. Returns their updates.
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
