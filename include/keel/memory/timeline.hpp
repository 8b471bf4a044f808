// Tracks memory over the updates of a run: the highest peak and its phase, and whether memory grows.
//   flat        neither of the following.
//   staircase   the memory held at the end of updates rises again and again: tensors are kept. A leak, in every update or only
//               every two thousand, as at an evaluation, a save or the end of an epoch.
//   slope       the memory held is constant, but ever more is reserved from the system: fragmentation.
// Checkpoints contain the samples, so that a run that is resumed every day is judged over weeks. On the CPU the reserved memory
// is the resident size of the process, so growth of the program's own memory is a slope too.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <keel/libtorch/mode.hpp>
#include <keel/memory/phase_watch.hpp>
#include <vector>

namespace keel::memory::inline KEEL_MODE {

/// Growth over the updates: `staircase` is a leak of tensors, `slope` a growth of reserved memory beyond them (fragmentation).
enum class growth : unsigned char { unknown, flat, staircase, slope };

/// Returns "unknown", "flat", "staircase" or "slope".
char const* to_string(growth found);

/// The memory of a run's updates, and a verdict on its growth.
class timeline {
 public:
  /// Number of samples that a verdict uses, at each scale.
  static constexpr std::size_t length = 256;

  /// Adds the usage of an update; `update`: number of applied updates.
  void add(std::int64_t update, usage const& of);

  /// The highest peak in bytes; 0 before the first update.
  std::int64_t peak() const { return peak_; }
  /// The update with the highest peak.
  std::int64_t peak_update() const { return peak_update_; }
  /// The phase of the highest peak.
  phase peak_phase() const { return peak_phase_; }

  /// Returns the verdict of the finest scale that shows growth.
  growth judge() const;

  template <class Archive>
  void visit(Archive& archive) {
    visit_one(archive, "held", last_.held);
    visit_one(archive, "reserved", last_.reserved);
    char const* const names[scale_count] = {"each_update", "each_8_updates", "each_64_updates"};
    for (std::size_t i = 0; i < scale_count; ++i) visit_one(archive, names[i], scales_[i]);
    if constexpr (requires { Archive::reads; }) {
      loaded_ = last_.held > 0;
      skipped_ = loaded_ ? warm_up : 0;
    }
  }

 private:
  static constexpr std::size_t stretches = 8;
  static constexpr std::size_t scale_count = 3;
  static constexpr std::int64_t page = 4096;
  static constexpr std::int64_t warm_up = 64;  ///< updates in which a new process fills its caches
  struct sample {
    std::int64_t held = 0;
    std::int64_t reserved = 0;
  };

  /// Visits a field that checkpoints of older keel versions lack.
  template <class Archive, class Field>
  static void visit_one(Archive& archive, char const* name, Field& field) {
    if constexpr (requires { archive.optional_field(name, field); }) {
      archive.optional_field(name, field);
    } else {
      archive(name, field);
    }
  }

  /// The last samples at one scale. Each sample is the minimum over a fixed number of updates. A leak is visible at a scale
  /// whose stretches are longer than the distance between two steps of its staircase.
  class scale {
   public:
    void push(sample const& next) {
      recent_.push_back(next);
      if (recent_.size() > length) recent_.pop_front();
      judged_ = look();
    }
    /// Returns true at every eighth sample and sets `least` to the minimum of the eight, which is a sample of the next scale.
    bool close(sample& least) {
      open_ = filled_ == 0
                  ? recent_.back()
                  : sample{std::min(open_.held, recent_.back().held), std::min(open_.reserved, recent_.back().reserved)};
      if (++filled_ < stretches) return false;
      filled_ = 0;
      least = open_;
      return true;
    }
    growth judge() const { return judged_; }
    /// Adds `by` to all samples, to compare them with those of another process.
    void shift(sample const& by) {
      for (sample* const one : all()) {
        one->held += by.held;
        one->reserved += by.reserved;
      }
    }

    template <class Archive>
    void visit(Archive& archive) {
      std::vector<std::int64_t> held, reserved;
      for (sample const& one : recent_) {
        held.push_back(one.held);
        reserved.push_back(one.reserved);
      }
      archive("held", held);
      archive("reserved", reserved);
      archive("open_held", open_.held);
      archive("open_reserved", open_.reserved);
      archive("filled", filled_);
      if constexpr (requires { Archive::reads; }) {
        recent_.clear();
        for (std::size_t i = 0; i < std::min({held.size(), reserved.size(), length}); ++i)
          recent_.push_back({held[i], reserved[i]});
        filled_ = recent_.empty() ? 0 : filled_ % stretches;
        judged_ = look();
      }
    }

   private:
    std::vector<sample*> all() {
      std::vector<sample*> found{&open_};
      for (sample& one : recent_) found.push_back(&one);
      return found;
    }

    /// Compares the minima of eight stretches, so that single peaks have no effect. Eight random numbers are ascending in one
    /// case of forty thousand.
    growth look() const {
      if (recent_.size() < 2 * stretches) return growth::unknown;
      if (rises([](sample const& one) { return one.held; }, page)) return growth::staircase;
      std::int64_t const first = recent_.front().reserved;
      if (rises([](sample const& one) { return one.reserved - one.held; }, std::max(page, first / 100))) return growth::slope;
      return growth::flat;
    }

    /// True if the minimum rises from each stretch to the next, by at least `at_least` in total, and does not level off.
    template <class Value>
    bool rises(Value const& value, std::int64_t at_least) const {
      std::int64_t first = 0;
      std::int64_t middle = 0;
      std::int64_t before = 0;
      for (std::size_t i = 0; i < stretches; ++i) {
        auto const begin = recent_.begin() + static_cast<std::ptrdiff_t>(i * recent_.size() / stretches);
        auto const end = recent_.begin() + static_cast<std::ptrdiff_t>((i + 1) * recent_.size() / stretches);
        auto const least =
            value(*std::min_element(begin, end, [&](auto const& a, auto const& b) { return value(a) < value(b); }));
        if (i == 0) {
          first = least;
        } else if (least <= before) {
          return false;
        }
        if (i == stretches / 2) middle = least;
        before = least;
      }
      return before - first >= at_least && 4 * (before - middle) >= before - first;
    }

    std::deque<sample> recent_;
    sample open_;  ///< minimum of the samples since the last one of the next scale
    std::uint64_t filled_ = 0;
    growth judged_ = growth::unknown;
  };

  /// Aligns the samples of the previous process with this one, whose initial memory differs; only growth matters.
  void go_on_from(sample const& now) {
    for (scale& one : scales_) one.shift({now.held - last_.held, now.reserved - last_.reserved});
    loaded_ = false;
  }

  std::int64_t peak_ = 0;
  std::int64_t peak_update_ = 0;
  phase peak_phase_ = phase::forward;
  sample last_;
  bool loaded_ = false;                    ///< loaded from a checkpoint of a process that may have held another amount
  std::int64_t skipped_ = 0;               ///< updates of the new process skipped so far
  std::array<scale, scale_count> scales_;  ///< with a sample per update, per eight, and per sixty-four
};

}  // namespace keel::memory::inline KEEL_MODE

#ifndef KEEL_COMPILED
#include <keel/memory/timeline.ipp>
#endif
