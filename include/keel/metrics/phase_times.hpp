// Measures the phases of an update: data, forward, backward, update, saving and evaluating. On a GPU the times of data, forward
// and backward are the host's, which only launches kernels. Remaining device time appears in the phase in which the host next
// synchronizes.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <keel/core/time_source.hpp>
#include <keel/libtorch/mode.hpp>
#include <optional>
#include <utility>

namespace keel::inline KEEL_MODE {

/// A phase of a run.
enum class run_phase : unsigned char {
  data,  ///< from the end of a micro-batch to the next one; in a custom loop all code between two calls
  forward,
  backward,
  update,
  saving,
  evaluating
};
/// The number of phases.
inline constexpr std::size_t run_phases = 6;

/// Returns the phase's name, such as "data".
inline char const* to_string(run_phase which) {
  constexpr char const* names[] = {"data", "forward", "backward", "update", "saving", "evaluating"};
  return names[static_cast<std::size_t>(which)];
}

/// Wall-clock times in milliseconds.
struct phase_times {
  std::array<double, run_phases> spent{};  ///< the time of each phase
  double total = 0.0;  ///< from the end of the previous update to the end of this one, including time outside of any phase

  /// Returns the time of one phase.
  double of(run_phase which) const { return spent[static_cast<std::size_t>(which)]; }
  /// Returns the phase's share of the total time, or 0 if the total is 0.
  double share(run_phase which) const { return total > 0.0 ? of(which) / total : 0.0; }
  /// Returns the time without saves and evaluations.
  double training() const { return total - of(run_phase::saving) - of(run_phase::evaluating); }
  template <class Archive>
  void visit(Archive& archive) {
    archive("spent", spent);
    archive("total", total);
  }
  /// Adds the times of other updates.
  phase_times& operator+=(phase_times const& other) {
    for (std::size_t i = 0; i < run_phases; ++i) spent[i] += other.spent[i];
    total += other.total;
    return *this;
  }
};

/// Receives every phase, as the profiler does.
class phase_listener {
 public:
  virtual void phase_began(run_phase which) = 0;
  virtual void phase_ended(run_phase which) = 0;

 protected:
  ~phase_listener() = default;
};

/// Measures phases. A nested phase suspends the outer one.
class phase_clock {
 public:
  /// `time` must outlive this object.
  explicit phase_clock(time_source const& time = real_time()) : time_(&time), taken_(time.now()) {}
  phase_clock(phase_clock const&) = delete;
  phase_clock& operator=(phase_clock const&) = delete;

  /// Switches to another clock, which must outlive this object.
  void use(time_source const& time) {
    time_ = &time;
    restart();
  }
  /// Discards the time so far.
  void restart() {
    stop();
    times_ = {};
    taken_ = time_->now();
  }
  void enter(run_phase next) {
    auto const now = time_->now();
    close(now);
    now_ = next;
    shown_.store(static_cast<int>(next), std::memory_order_relaxed);
    since_ = now;
    if (listener_ != nullptr) listener_->phase_began(next);
  }
  void stop() {
    if (now_) close(time_->now());
  }
  /// Returns the times since the last call. An open phase continues.
  phase_times take() {
    auto const now = time_->now();
    if (now_) {
      add(*now_, now);
      since_ = now;
    }
    times_.total = milliseconds(now - taken_);
    taken_ = now;
    return std::exchange(times_, {});
  }
  std::optional<run_phase> now() const { return now_; }
  /// Returns the current phase. Thread-safe.
  std::optional<run_phase> shown() const {
    int const which = shown_.load(std::memory_order_relaxed);
    return which < 0 ? std::nullopt : std::optional(static_cast<run_phase>(which));
  }
  /// Sets the listener, which must outlive this object; nullptr removes it.
  void listen(phase_listener* listener) { listener_ = listener; }

  /// Enters a phase for its lifetime, then returns to the previous phase.
  class scope {
   public:
    scope(phase_clock& clock, run_phase phase) : clock_(clock), outer_(clock.now()) { clock_.enter(phase); }
    scope(scope const&) = delete;
    scope& operator=(scope const&) = delete;
    ~scope() { outer_ ? clock_.enter(*outer_) : clock_.stop(); }

   private:
    phase_clock& clock_;
    std::optional<run_phase> outer_;
  };

  /// Excludes its lifetime from all updates and phases, so that the cost of measuring is not counted.
  class left_out {
   public:
    explicit left_out(phase_clock& clock) : clock_(clock), began_(clock.time_->now()) {}
    left_out(left_out const&) = delete;
    left_out& operator=(left_out const&) = delete;
    ~left_out() {
      auto const passed = clock_.time_->now() - began_;
      clock_.taken_ += passed;
      clock_.since_ += passed;
    }

   private:
    phase_clock& clock_;
    time_source::time_point began_;
  };

  /// Enters a phase on destruction.
  struct afterwards {
    phase_clock& clock;
    run_phase phase;
    ~afterwards() { clock.enter(phase); }
  };

 private:
  using time_point = time_source::time_point;
  static double milliseconds(time_source::duration taken) { return std::chrono::duration<double, std::milli>(taken).count(); }
  void add(run_phase phase, time_point now) { times_.spent[static_cast<std::size_t>(phase)] += milliseconds(now - since_); }
  void close(time_point now) {
    if (!now_) return;
    add(*now_, now);
    run_phase const ended = *now_;
    now_.reset();
    shown_.store(-1, std::memory_order_relaxed);
    if (listener_ != nullptr) listener_->phase_ended(ended);
  }

  time_source const* time_;
  std::optional<run_phase> now_;
  std::atomic<int> shown_{-1};
  time_point since_{};
  time_point taken_;
  phase_times times_;
  phase_listener* listener_ = nullptr;
};

}  // namespace keel::inline KEEL_MODE
