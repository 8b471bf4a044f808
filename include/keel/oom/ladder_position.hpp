// Where a run stands on its oom::ladder: which rungs it took, what they ask of a step, and which one comes next or back.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <keel/config/config.hpp>
#include <keel/core/error.hpp>
#include <keel/policy/attention.hpp>
#include <keel/policy/oom.hpp>
#include <keel/policy/recompute.hpp>
#include <optional>
#include <string>
#include <vector>

namespace keel::inline KEEL_MODE {

/// What the recipe, and the rungs that were taken, ask of a step.
struct memory_settings {
  std::int64_t pieces = 1;  ///< into which each micro-batch is cut
  recompute_kind recompute = recompute_kind::none;
  attention_kind attention = attention_kind::automatic;
  bool offload = false;     ///< of the optimizer's state
  bool quantized = false;   ///< the frozen base of the model's adapters
  std::int64_t length = 0;  ///< tokens a row; 0: all
  friend bool operator==(memory_settings const&, memory_settings const&) = default;
};

class ladder_position {
 public:
  explicit ladder_position(config const& recipe)
      : ladder_(recipe.oom),
        begin_{.recompute = recipe.recompute.kind,
               // The fused kernels have no second derivative.
               .attention = recipe.attention.kind == attention_kind::automatic && recipe.model.inner_gradients
                                ? attention_kind::math
                                : recipe.attention.kind,
               .offload = recipe.offload.kind == offload::kind::optimizer} {
    fold();
  }

  memory_settings const& relief() const { return relief_; }
  /// Rungs that were taken and not released.
  std::size_t taken() const { return taken_.size(); }

  /// Takes the next rung that still frees something; give_up where none is left. `max_pieces`: into how many a micro-batch can
  /// be cut at all. A rung that changes the experiment is for runs that have not begun, and passed over after the first of
  /// `updates` (O07). `can_take(index)` says whether a rung can do anything here, and may do it: it is asked for each rung once
  /// its turn has come.
  template <class CanTake>
  oom::rung_kind take_next(std::int64_t max_pieces, std::int64_t updates, CanTake const& can_take) {
    for (int index = first_candidate(); index < ladder_.count; ++index) {
      auto const& rung = ladder_.rungs[index];
      if (rung.kind == oom::rung_kind::give_up) break;
      if (rung.disturbance == oom::disturbance::semantic && updates > 0) continue;
      if (!would_free_memory(rung, max_pieces) || !can_take(index)) continue;
      push(rung);
      updates_since_change_ = 0;
      // Given back too early, and here it is again.
      if (released_ == static_cast<std::int64_t>(rung.kind)) patience_ = std::min<std::int64_t>(2 * patience_, 1 << 20);
      released_ = -1;
      return rung.kind;
    }
    return oom::rung_kind::give_up;
  }

  /// An update took place without trouble. Gives the last rung back where the recipe says that it was long enough.
  std::optional<oom::rung_kind> updated();

  /// By what the rungs do and not by their places, so that a run may be resumed with another ladder. Throws checkpoint_error
  /// (E05) for a number of updates that no run counts.
  template <class Archive>
  void visit(Archive& archive) {
    archive("taken", taken_);
    archive("arguments", arguments_);
    archive("calm", updates_since_change_);
    archive("patience", patience_);
    archive("given_back", released_);
    // A damaged checkpoint must not become rungs that there are not.
    auto const is_rung = [](std::int64_t kind) {
      return kind > static_cast<std::int64_t>(oom::rung_kind::none) &&
             kind <= static_cast<std::int64_t>(oom::rung_kind::custom);
    };
    arguments_.resize(taken_.size());
    for (std::size_t i = taken_.size(); i-- > 0;) {
      if (is_rung(taken_[i])) continue;
      taken_.erase(taken_.begin() + static_cast<std::ptrdiff_t>(i));
      arguments_.erase(arguments_.begin() + static_cast<std::ptrdiff_t>(i));
    }
    patience_ = std::clamp<std::int64_t>(patience_, 1, 1 << 20);
    if (updates_since_change_ < 0 || updates_since_change_ > std::int64_t{1} << 62)
      throw checkpoint_error("E05", "the checkpoint counts " + std::to_string(updates_since_change_) +
                                        " updates since the ladder's last change. Take an older checkpoint, and look at the "
                                        "disk.");
    fold();
  }

 private:
  /// The rung that was taken last, because halving may come again, or the one after it.
  int first_candidate() const;

  bool would_free_memory(oom::rung_settings const& rung, std::int64_t max_pieces) const;

  static std::int64_t argument_of(oom::rung_settings const& rung) {
    if (rung.kind == oom::rung_kind::enable_recompute) return static_cast<std::int64_t>(rung.recompute);
    return rung.kind == oom::rung_kind::shorten_sequence ? rung.length : 0;
  }
  void push(oom::rung_settings const& rung);

  void fold();

  oom::settings ladder_;
  memory_settings begin_;
  memory_settings relief_;
  std::vector<std::int64_t> taken_;        ///< kinds of rungs, in their order
  std::vector<std::int64_t> arguments_;    ///< the mode or length of each
  std::int64_t updates_since_change_ = 0;  ///< updates without trouble since the last change
  std::int64_t patience_ = 1;              ///< doubles where a rung that was released is taken again
  std::int64_t released_ = -1;             ///< the kind of the rung that was released last
};

/// As it is typed, for people.
char const* to_string(oom::rung_kind kind);

}  // namespace keel::inline KEEL_MODE

#ifndef KEEL_COMPILED
#include <keel/oom/ladder_position.ipp>
#endif
