// Saves of a run, in the foreground or beside training. Never are two under way at once; what becomes of one that was written
// beside training is reported at the next update boundary, on the thread that trains.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <keel/checkpoint/background_task.hpp>
#include <keel/checkpoint/cadence.hpp>
#include <keel/checkpoint/snapshot.hpp>
#include <keel/checkpoint/store.hpp>
#include <keel/core/error.hpp>
#include <keel/core/out_of_memory.hpp>
#include <keel/json/lines.hpp>
#include <keel/policy/checkpoint.hpp>
#include <string>
#include <utility>

namespace keel {

/// What became of a save.
struct save_report {
  std::int64_t update = 0;
  saved_checkpoint saved{};
  double stall = 0.0;     ///< seconds that training waited for it
  double written = 0.0;   ///< seconds until it was durable
  std::string failure{};  ///< why there is none; empty: there is one
  bool dropped = false;   ///< dropped because the one before it was still being written
};

template <class Files, class Clock>
class saver {
 public:
  /// The store and the metrics outlive this. `report` is called once for every save that becomes a checkpoint, fails for want of
  /// a disk, or is dropped.
  saver(checkpoint::settings const& settings, checkpoint_store<Files>& store, json_lines<Files>& metrics,
        std::function<void(save_report const&)> report)
      : settings_(settings), store_(store), metrics_(metrics), report_(std::move(report)), cadence_(settings) {}

  checkpoint_cadence<Clock>& cadence() { return cadence_; }
  /// A save that is due now would be dropped, because the one before it is still being written. It waits for a requested one,
  /// which takes nothing away that a rollback may need.
  bool drops_now() const { return settings_.drop_when_busy && !requested_ && task_.is_begun() && !task_.is_done(); }
  /// Leaves it out.
  void drop(std::int64_t update) {
    cadence_.restart();
    save_report dropped;
    dropped.update = update;
    dropped.dropped = true;
    report(dropped);
  }

  /// Saves as the policy says; waits for the one before, and calls `prepare()`, which may throw, before it writes. A file_error is
  /// reported and not thrown until it is the last that the policy bears; E01 and everything else is thrown, at the latest by
  /// the next call.
  template <class Prepare>
  void save(std::int64_t update, snapshot const& live, retention const& keep, Prepare const& prepare) {
    auto const began = now();
    wait();
    cadence_.began();
    begun_ = {update};
    requested_ = keep.requested;
    try {
      prepare();
      // Lines that wait for a disk would be missing where the checkpoint counts them.
      metrics_.flush();
      if (settings_.asynchronous && begin(live, keep, began)) return;
      write(live, keep);
    } catch (file_error const& thrown) {
      // The directory is another run's: no disk that comes back changes that.
      if (thrown.id() == "E01") throw;
      begun_.stall = seconds_since(began);
      return failed(thrown);
    }
    begun_.stall = seconds_since(began);
    succeeded();
  }

  /// Saves and returns when the checkpoint is durable. Throws whatever goes wrong.
  void save_now(std::int64_t update, snapshot const& live, retention const& keep) {
    wait();
    auto const began = now();
    begun_ = {update};
    try {
      metrics_.flush();
      write(live, keep);
    } catch (file_error const& thrown) {
      begun_.failure = thrown.what();
      report(begun_);
      throw;
    }
    begun_.stall = seconds_since(began);
    succeeded();
  }
  /// In a call of `report`: a save would begin inside of another.
  bool is_reporting() const { return reporting_; }

  /// Reports what became of a save beside training, if it came to its end; between updates.
  void poll() {
    if (task_.is_done()) wait();
  }
  /// Waits for it.
  void wait() {
    if (!task_.is_begun()) return;
    try {
      task_.collect();
    } catch (file_error const& thrown) {
      return failed(thrown);
    } catch (std::exception const& thrown) {
      begun_.failure = thrown.what();
      report(begun_);
      throw;
    }
    succeeded();
  }

 private:
  using wall_clock = std::chrono::steady_clock;  // a test's own clock is for one thread
  static wall_clock::time_point now() { return wall_clock::now(); }
  static double seconds_since(wall_clock::time_point then) { return std::chrono::duration<double>(now() - then).count(); }

  /// Writes down how long it lived, however it ends.
  class time_taken {
   public:
    explicit time_taken(double& seconds) : seconds_(seconds), began_(now()) {}
    time_taken(time_taken const&) = delete;
    time_taken& operator=(time_taken const&) = delete;
    ~time_taken() { seconds_ = seconds_since(began_); }

   private:
    double& seconds_;
    wall_clock::time_point began_;
  };

  /// False if there is no memory for a copy: then training waits for the disk.
  bool begin(snapshot const& live, retention const& keep, wall_clock::time_point began) {
    snapshot held;
    try {
      held = buffers_.copy(live);
    } catch (std::exception const& thrown) {
      if (!is_out_of_memory(thrown)) throw;
      buffers_.clear();
      return false;
    }
    begun_.stall = seconds_since(began);
    task_.begin([this, held = std::move(held), keep] { write(held, keep); });
    return true;
  }

  /// On either thread; `begun_` belongs to it until it returns.
  void write(snapshot const& content, retention const& keep) {
    time_taken const timed(begun_.written);
    // Nor may they be lost with the power, where the checkpoint is not.
    metrics_.sync();
    begun_.saved = store_.save(begun_.update, content, keep);
  }

  void report(save_report const& of) {
    reporting_ = true;
    try {
      report_(of);
    } catch (...) {
      reporting_ = false;
      throw;
    }
    reporting_ = false;
  }
  void succeeded() {
    in_a_row_ = 0;
    cadence_.measured(begun_.stall, begun_.written);
    report(begun_);
  }
  void failed(file_error const& thrown) {
    begun_.failure = thrown.what();
    cadence_.measured(begun_.stall, begun_.written);
    report(begun_);
    if (++in_a_row_ < settings_.failures) return;
    throw thrown;
  }

  checkpoint::settings settings_;
  checkpoint_store<Files>& store_;
  json_lines<Files>& metrics_;
  std::function<void(save_report const&)> report_;
  checkpoint_cadence<Clock> cadence_;
  snapshot_buffers buffers_;
  save_report begun_;
  long long in_a_row_ = 0;
  bool reporting_ = false;
  bool requested_ = false;  ///< the save that began last is a requested one
  background_task task_;    ///< last: it ends before what it works with
};

}  // namespace keel
