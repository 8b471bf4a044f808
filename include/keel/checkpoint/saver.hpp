// Saves the checkpoints of a run, synchronously or in the background. At most one save runs at a time. The result of a
// background save is reported at the next update boundary, on the training thread.
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

/// The result of a save.
struct save_report {
  std::int64_t update = 0;
  saved_checkpoint saved{};
  double stall = 0.0;     ///< seconds for which training was blocked
  double written = 0.0;   ///< seconds until it was durable
  std::string failure{};  ///< why the save failed; empty on success
  bool dropped = false;   ///< dropped because the previous save was still being written
};

class saver {
  using milliseconds = std::chrono::milliseconds;

 public:
  /// All references must outlive this. `report` is called once for every save that succeeds, fails because of the disk, or is
  /// dropped.
  saver(checkpoint::settings const& settings, checkpoint_store& store, json_lines& metrics, time_source const& time,
        std::function<void(save_report const&)> report)
      : settings_(settings), store_(store), metrics_(metrics), report_(std::move(report)), cadence_(settings, time) {}

  checkpoint_cadence& cadence() { return cadence_; }
  /// True if a save that is due now would be dropped because the previous one is still being written. Never drops because of a
  /// requested save: that one replaces no checkpoint which a rollback may need, so the new save waits for it.
  bool would_drop() const { return settings_.drop_when_busy && !requested_ && task_.is_begun() && !task_.is_done(); }
  /// Drops the save of this update and reports that.
  void drop(std::int64_t update) {
    cadence_.restart();
    save_report dropped;
    dropped.update = update;
    dropped.dropped = true;
    report(dropped);
  }

  /// Saves as the policy specifies. Waits for the previous save and calls `prepare()`, which may throw, before writing. A
  /// file_error is reported, and thrown only when the policy's limit of consecutive failures is reached. E01 and all other
  /// exceptions are thrown, by the next call at the latest.
  template <class Prepare>
  void save(std::int64_t update, snapshot const& live, retention const& keep, Prepare const& prepare) {
    start(update, keep, at_once::no);
    bool is_under_way = false;
    bool const is_successful = attempt([&] {
      prepare();
      // Flush first: the checkpoint counts these lines.
      metrics_.flush();
      is_under_way = settings_.asynchronous && begin_with_copy(live, [this, keep](snapshot const& held) { write(held, keep); });
      if (!is_under_way) write(live, keep);
    });
    if (is_successful && !is_under_way) succeeded_after_stall();
  }

  /// Saves and returns when the checkpoint is durable. Throws on any failure.
  void save_now(std::int64_t update, snapshot const& live, retention const& keep) {
    start(update, keep, at_once::yes);
    bool const is_successful = attempt([&] {
      metrics_.flush();
      write(live, keep);
    });
    if (is_successful) succeeded_after_stall();
  }

  // A save of several ranks on rank 0, in phases. Errors are handled as in save(), or with `at_once::yes` as in save_now(). A
  // phase returns nullopt or false if it reported an error; the save has then ended.
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
  /// Writes the files of this rank.
  bool write_files(pending_checkpoint const& opened, snapshot const& content) {
    return attempt([&] {
      scoped_timer const timed(begun_.written, began_);
      metrics_.sync();
      store_.write(opened, content);
    });
  }
  /// Waits for the files of the other ranks, `ranks` in total with this one, and commits. `patience` as in
  /// checkpoint_store::add_rank_files.
  void commit_checkpoint(pending_checkpoint const& opened, retention const& keep, int ranks,
                         std::function<milliseconds()> const& patience) {
    bool const is_successful = attempt([&] {
      scoped_timer const timed(begun_.written, began_);
      store_.add_rank_files(opened, ranks, patience);
      begun_.saved = store_.commit_checkpoint(opened, keep);
    });
    if (is_successful) succeeded_after_stall();
  }
  /// Writes and commits in the background, from a copy. Does both synchronously if memory has no room for a copy.
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
  /// Fails the save because another rank could not write.
  void fail(pending_checkpoint const& opened, std::string const& why) {
    store_.discard(opened);
    attempt([&] { throw file_error("E02", why); });
  }
  void discard(pending_checkpoint const& opened) { store_.discard(opened); }

  /// True during a call of `report`, in which no save may begin.
  bool is_reporting() const { return reporting_; }

  /// Reports the result of a background save if it has finished. Call between updates.
  void poll() {
    if (task_.is_done()) wait();
  }
  /// Waits for a background save and reports its result.
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
  using wall_clock = std::chrono::steady_clock;  // a clock injected by a test is not thread-safe
  static wall_clock::time_point now() { return wall_clock::now(); }
  static double seconds_since(wall_clock::time_point then) { return std::chrono::duration<double>(now() - then).count(); }

  /// RAII: stores its lifetime in seconds, on exceptions too.
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
  /// Runs `act`; returns false if it throws a file_error that is reported.
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
      // The directory belongs to another run, so retrying is useless.
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

  /// Returns false if memory has no room for a copy; training then waits for the disk.
  template <class Write>
  bool begin_with_copy(snapshot const& live, Write const& write) {
    auto held = buffers_.copy_if_room(live);
    if (!held) return false;
    begun_.stall = seconds_since(began_);
    task_.begin([held = *std::move(held), write] { write(held); });
    return true;
  }

  /// Called on either thread; `begun_` must not be used elsewhere until it returns.
  void write(snapshot const& content, retention const& keep) {
    scoped_timer const timed(begun_.written);
    // The lines must survive a power failure if the checkpoint does.
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
  bool requested_ = false;  ///< the last save begun was a requested one
  background_task task_;    ///< last, so that it ends before the members that it uses are destroyed
};

}  // namespace keel::inline KEEL_MODE
