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
#include <keel/json/lines.hpp>
#include <keel/policy/checkpoint.hpp>
#include <optional>
#include <string>
#include <utility>

namespace keel::inline KEEL_MODE {

/// What became of a save.
struct save_report {
  std::int64_t update = 0;
  saved_checkpoint saved{};
  double stall = 0.0;     ///< seconds that training waited for it
  double written = 0.0;   ///< seconds until it was durable
  std::string failure{};  ///< why there is none; empty: there is one
  bool dropped = false;   ///< dropped because the one before it was still being written
};

class saver {
  using milliseconds = std::chrono::milliseconds;

 public:
  /// The store, the metrics and the time outlive this. `report` is called once for every save that becomes a checkpoint, fails for want of
  /// a disk, or is dropped.
  saver(checkpoint::settings const& settings, checkpoint_store& store, json_lines& metrics, time_source const& time,
        std::function<void(save_report const&)> report)
      : settings_(settings), store_(store), metrics_(metrics), report_(std::move(report)), cadence_(settings, time) {}

  checkpoint_cadence& cadence() { return cadence_; }
  /// A save that is due now would be dropped, because the one before it is still being written. It waits for a requested one,
  /// which takes nothing away that a rollback may need.
  bool would_drop() const { return settings_.drop_when_busy && !requested_ && task_.is_begun() && !task_.is_done(); }
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
    start(update, keep, at_once::no);
    bool is_under_way = false;
    bool const is_successful = attempt([&] {
      prepare();
      // Lines that wait for a disk would be missing where the checkpoint counts them.
      metrics_.flush();
      is_under_way = settings_.asynchronous && begin_with_copy(live, [this, keep](snapshot const& held) { write(held, keep); });
      if (!is_under_way) write(live, keep);
    });
    if (is_successful && !is_under_way) succeeded_after_stall();
  }

  /// Saves and returns when the checkpoint is durable. Throws whatever goes wrong.
  void save_now(std::int64_t update, snapshot const& live, retention const& keep) {
    start(update, keep, at_once::yes);
    bool const is_successful = attempt([&] {
      metrics_.flush();
      write(live, keep);
    });
    if (is_successful) succeeded_after_stall();
  }

  // A save of several ranks, of which this is the first, in steps. What goes wrong in any of them is as in save(), or where it is `at_once`
  // as in save_now(): nothing, or false, where it was reported, and the save is over.
  enum class at_once : bool { no, yes };
  template <class Prepare>
  std::optional<pending_checkpoint> open(std::int64_t update, std::string const& run, std::string const& mark,
                                         retention const& keep, at_once now, Prepare const& prepare) {
    start(update, keep, now);
    std::optional<pending_checkpoint> opened;
    attempt([&] {
      prepare();
      metrics_.flush();
      opened = store_.open(update, run, keep, mark);
    });
    return opened;
  }
  /// This rank's files.
  bool write_files(pending_checkpoint const& opened, snapshot const& content) {
    return attempt([&] {
      scoped_timer const timed(begun_.written, began_);
      metrics_.sync();
      store_.write(opened, content);
    });
  }
  /// With those of the other ranks that write, `ranks` with this one; checkpoint_store::add_rank_files says what `patience` is.
  void commit_checkpoint(pending_checkpoint const& opened, retention const& keep, int ranks,
                         std::function<milliseconds()> const& patience) {
    bool const is_successful = attempt([&] {
      scoped_timer const timed(begun_.written, began_);
      store_.add_rank_files(opened, ranks, patience);
      begun_.saved = store_.commit_checkpoint(opened, keep);
    });
    if (is_successful) succeeded_after_stall();
  }
  /// Writes and seals beside training, from a copy; at once where memory has no room for one.
  void begin(pending_checkpoint const& opened, snapshot const& live, retention const& keep, int ranks,
             std::function<milliseconds()> const& patience) {
    auto const all = [this, opened, keep, ranks, patience](snapshot const& content) {
      scoped_timer const timed(begun_.written);
      metrics_.sync();
      store_.write(opened, content);
      store_.add_rank_files(opened, ranks, patience);
      begun_.saved = store_.commit_checkpoint(opened, keep);
    };
    bool is_under_way = false;
    bool const is_successful = attempt([&] {
      is_under_way = begin_with_copy(live, all);
      if (!is_under_way) all(live);
    });
    if (is_successful && !is_under_way) succeeded_after_stall();
  }
  /// Another rank could not write.
  void fail(pending_checkpoint const& opened, std::string const& why) {
    store_.discard(opened);
    attempt([&] { throw file_error("E02", why); });
  }
  void discard(pending_checkpoint const& opened) { store_.discard(opened); }

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
  class scoped_timer {
   public:
    explicit scoped_timer(double& seconds, wall_clock::time_point began = now()) : seconds_(seconds), began_(began) {}
    scoped_timer(scoped_timer const&) = delete;
    scoped_timer& operator=(scoped_timer const&) = delete;
    ~scoped_timer() { seconds_ = seconds_since(began_); }

   private:
    double& seconds_;
    wall_clock::time_point began_;
  };

  void start(std::int64_t update, retention const& keep, at_once now) {
    at_once_ = now;
    began_ = this->now();
    wait();
    if (now == at_once::yes) {
      began_ = this->now();
    } else {
      cadence_.began();
      requested_ = keep.requested;
    }
    begun_ = {update};
  }
  /// False where `act` throws a file_error that is reported.
  template <class Act>
  bool attempt(Act const& act) {
    try {
      act();
      return true;
    } catch (file_error const& thrown) {
      if (at_once_ == at_once::yes) {
        begun_.failure = thrown.what();
        report(begun_);
        throw;
      }
      // The directory is another run's: no disk that comes back changes that.
      if (thrown.id() == "E01") throw;
      begun_.stall = seconds_since(began_);
      failed(thrown);
      return false;
    }
  }
  void succeeded_after_stall() {
    begun_.stall = seconds_since(began_);
    succeeded();
  }

  /// False if memory has no room for a copy: then training waits for the disk.
  template <class Write>
  bool begin_with_copy(snapshot const& live, Write const& write) {
    auto held = buffers_.copy_if_room(live);
    if (!held) return false;
    begun_.stall = seconds_since(began_);
    task_.begin([held = *std::move(held), write] { write(held); });
    return true;
  }

  /// On either thread; `begun_` belongs to it until it returns.
  void write(snapshot const& content, retention const& keep) {
    scoped_timer const timed(begun_.written);
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
    consecutive_ = 0;
    cadence_.measured(begun_.stall, begun_.written);
    report(begun_);
  }
  void failed(file_error const& thrown) {
    begun_.failure = thrown.what();
    cadence_.measured(begun_.stall, begun_.written);
    report(begun_);
    if (++consecutive_ < settings_.failures) return;
    throw thrown;
  }

  checkpoint::settings settings_;
  checkpoint_store& store_;
  json_lines& metrics_;
  std::function<void(save_report const&)> report_;
  checkpoint_cadence cadence_;
  snapshot_buffers buffers_;
  save_report begun_;
  wall_clock::time_point began_{};
  at_once at_once_ = at_once::no;
  long long consecutive_ = 0;
  bool reporting_ = false;
  bool requested_ = false;  ///< the save that began last is a requested one
  background_task task_;    ///< last: it ends before what it works with
};

}  // namespace keel::inline KEEL_MODE
