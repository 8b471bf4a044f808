// Where a run stands on its oom::ladder, and which rung comes next.
#pragma once

#include <cstdint>
#include <keel/policy/oom.hpp>
#include <keel/policy/recompute.hpp>

namespace keel {

class ladder_position {
 public:
  /// `recompute`: what the recipe does from the beginning.
  explicit ladder_position(oom::settings const& ladder, recompute_kind recompute = recompute_kind::none)
      : ladder_(ladder), recompute_(recompute) {}

  /// Into how many pieces each micro-batch is cut.
  std::int64_t pieces() const { return pieces_; }

  recompute_kind recompute() const { return recompute_; }

  /// Takes the next rung that still frees something for micro-batches of up to `rows` rows; give_up where none is left. A rung
  /// that changes the experiment is for runs that have not begun, and passed over after the first of `updates`.
  oom::rung_kind climb(std::int64_t rows, std::int64_t updates) {
    for (; rung_ < ladder_.count; ++rung_) {
      auto const kind = ladder_.rungs[rung_].kind;
      bool const semantic = ladder_.rungs[rung_].disturbance == oom::disturbance::semantic;
      if (semantic && updates == 0) return ladder_.rungs[rung_++].kind;
      if (kind == oom::rung_kind::give_up) break;
      if (kind == oom::rung_kind::halve_micro_batch && pieces_ < rows) {
        pieces_ *= 2;
        return kind;
      }
      if (kind == oom::rung_kind::enable_recompute && recompute_ != ladder_.rungs[rung_].recompute) {
        recompute_ = ladder_.rungs[rung_++].recompute;
        return kind;
      }
    }
    return oom::rung_kind::give_up;
  }

  template <class Archive>
  void visit(Archive& archive) {
    archive("rung", rung_);
    archive("pieces", pieces_);
    auto recompute = static_cast<std::int64_t>(recompute_);
    archive("recompute", recompute);
    bool const known = recompute >= 0 && recompute <= static_cast<std::int64_t>(recompute_kind::non_reentrant);
    recompute_ = known ? static_cast<recompute_kind>(recompute) : recompute_kind::none;
    // A damaged checkpoint must become neither a division by zero nor an index outside the ladder.
    if (pieces_ < 1) pieces_ = 1;
    if (rung_ < 0) rung_ = 0;
  }

 private:
  oom::settings ladder_;
  std::int64_t rung_ = 0;
  std::int64_t pieces_ = 1;
  recompute_kind recompute_;
};

/// As it is typed, for people.
inline char const* to_string(oom::rung_kind kind) {
  switch (kind) {
    case oom::rung_kind::halve_micro_batch:
      return "halve_micro_batch";
    case oom::rung_kind::enable_recompute:
      return "enable_recompute";
    default:
      return "give_up";
  }
}

}  // namespace keel
