// The best checkpoint so far, by a loss: smaller is better. It takes what is finite and agreed and nothing else: a NaN compared
// with the best may be taken for the best (E05), and ranks that judge their own loss keep different checkpoints (E04).
#pragma once

#include <cstdint>
#include <keel/collective/agreed.hpp>
#include <keel/step/finite.hpp>
#include <optional>

namespace keel {

class best_so_far {
 public:
  /// True if this loss is the best until now.
  bool offer(agreed<finite<double>> const& loss, std::int64_t update) {
    if (has_one_ && !(loss.value().value() < loss_)) return false;
    has_one_ = true;
    loss_ = loss.value().value();
    update_ = update;
    return true;
  }
  /// Nothing is no best.
  bool offer(std::optional<agreed<finite<double>>> const& loss, std::int64_t update) { return loss && offer(*loss, update); }
  /// Refused: E04 if only this rank knows it, E05 if nobody looked at it.
  template <class Raw>
  bool offer(Raw const&, std::int64_t) {
    if constexpr (std::same_as<Raw, finite<double>>) {
      detail::refuse_call<rule::E04, Raw>();
    } else {
      detail::refuse_call<rule::E05, Raw>();
    }
    return false;
  }

  bool has_one() const { return has_one_; }
  double loss() const { return loss_; }
  std::int64_t update() const { return update_; }

  template <class Archive>
  void visit(Archive& archive) {
    archive("has_one", has_one_);
    archive("loss", loss_);
    archive("update", update_);
  }

 private:
  bool has_one_ = false;
  double loss_ = 0.0;
  std::int64_t update_ = 0;
};

}  // namespace keel
