// Definitions for run_watchdog.hpp.
#pragma once

#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <exception>
#include <keel/collective/exit_code.hpp>
#include <keel/collective/transport.hpp>
#include <keel/core/error.hpp>
#include <keel/core/file_system.hpp>
#include <keel/core/seconds_since_1970.hpp>
#include <keel/timeout/run_watchdog.hpp>
#include <keel/timeout/thread_stacks.hpp>
#include <nlohmann/json.hpp>
#include <utility>

#include <keel/libtorch/detail/body_begin.inc>

namespace keel::detail::inline KEEL_MODE {

/// The process exits after this time even if the report is not written: a blocked disk may be why the run hangs.
inline constexpr std::chrono::seconds report_timeout{10};

/// Heartbeat value of a rank whose trainer has ended.
inline constexpr std::int64_t heartbeat_of_ended_rank = -2;

KEEL_BODY run_watchdog::run_watchdog(timeout::settings const& limits, watchdog_target of)
    : limits_(limits), target_(std::move(of)) {
  if (!has_timeouts(limits)) return;
  // Block all signals in the watchdog thread, so that the program's own threads handle them.
  sigset_t all, before;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  thread_ = std::thread([this] { run(); });
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

KEEL_BODY run_watchdog::~run_watchdog() {
  if (!thread_.joinable()) return;
  {
    std::lock_guard<std::mutex> const lock(mutex_);
    is_over_ = true;
  }
  ends_.notify_one();
  thread_.join();
}

KEEL_BODY void run_watchdog::begin(std::int64_t updates) {
  if (!thread_.joinable()) return;
  updates_.store(updates);
  training_thread_.store(this_thread());
  record_progress();
  watches_.store(true);
}

KEEL_BODY std::int64_t run_watchdog::tick() const {
  std::int64_t shortest = 20;
  for (long long const one :
       {limits_.soft, limits_.hard, limits_.first_update, limits_.force_exit, limits_.heartbeat_interval}) {
    if (one > 0) shortest = std::min<std::int64_t>(shortest, one);
  }
  return shortest * 1000 / 20;
}

KEEL_BODY void run_watchdog::run() {
  ::pthread_setname_np(::pthread_self(), "keel watch");
  auto const every = std::chrono::milliseconds(tick());
  std::unique_lock<std::mutex> lock(mutex_);
  do {
    try {
      poll_heartbeats();
      if (watches_.load()) {
        check_limits();
      } else {
        signalled_at_.reset();
      }
    } catch (std::exception const&) {
      // Out of memory for a report, for example: retried at the next tick.
    }
  } while (!ends_.wait_for(lock, every, [this] { return is_over_; }));
  // Retry: an earlier query may still be pending.
  for (int attempt = 0; own_heartbeat_ > 0 && attempt < 10 && !target_.exchange_heartbeats(heartbeat_of_ended_rank); ++attempt)
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
}

KEEL_BODY void run_watchdog::poll_heartbeats() {
  if (limits_.heartbeat_interval == 0 || target_.ranks == 1) return;
  std::int64_t const at = now();
  if (own_heartbeat_ > 0 && at - heartbeats_polled_at_ < limits_.heartbeat_interval * 1000) return;
  // If this process itself was suspended, missed heartbeats do not mean that other ranks have exited.
  bool const was_suspended = own_heartbeat_ == 0 || at - heartbeats_polled_at_ > 2000 * limits_.heartbeat_interval + 2000;
  heartbeats_polled_at_ = at;
  auto const found = target_.exchange_heartbeats(++own_heartbeat_);
  if (found && found->empty()) return;
  if (found || was_suspended) store_answered_at_ = at;
  heartbeats_.resize(static_cast<std::size_t>(target_.ranks));
  for (std::size_t rank = 0; rank < heartbeats_.size(); ++rank) {
    if (was_suspended) heartbeats_[rank].at = at;
    if (found && (*found)[rank] != heartbeats_[rank].number) heartbeats_[rank] = {(*found)[rank], at};
  }
  std::int64_t const limit = limits_.heartbeat_limit * 1000;
  std::string silent;
  if (!found && at - store_answered_at_ >= limit) silent = "the store of the ranks has not answered";
  for (std::size_t rank = 0; found && silent.empty() && rank < heartbeats_.size(); ++rank) {
    std::int64_t const number = heartbeats_[rank].number;
    bool const lives = number == heartbeat_of_ended_rank || number == transport::heartbeat_not_polled ||
                       static_cast<int>(rank) == target_.rank;
    if (!lives && at - heartbeats_[rank].at >= limit) silent = "rank " + std::to_string(rank) + " has given no sign of life";
  }
  if (silent.empty() || !watches_.load()) return;
  end_process(exit_code::rank_failed,
              "[E25] rank " + std::to_string(target_.rank) + " of " + std::to_string(target_.ranks) + ": " + silent + " for " +
                  std::to_string(limits_.heartbeat_limit) + " s (keel::timeout::heartbeat): " +
                  (found ? "it is gone or hanging as a whole, or cut off"
                         : "rank 0, which serves it where no launcher does, is gone or hanging, or the network is") +
                  ". This rank was in " + place() + " after update " + std::to_string(updates_.load()) +
                  describe_last_collective() + ". Its process ends; start all of them again from the newest checkpoint.");
}

KEEL_BODY void run_watchdog::check_limits() {
  std::int64_t const at = now();
  if (int const signal = limits_.force_exit > 0 ? target_.signal() : 0; signal != 0) {
    if (!signalled_at_) signalled_at_ = at;
    if (at - *signalled_at_ >= limits_.force_exit * 1000)
      end_process(128 + signal, "[E27] signal " + std::to_string(signal) + " asked for a stop " +
                                    std::to_string(limits_.force_exit) +
                                    " s ago (keel::timeout::force_exit), and the run is still in " + place() +
                                    " after update " + std::to_string(updates_.load()) + ". Its checkpoints remain valid.");
  } else {
    signalled_at_.reset();
  }
  auto const phase = target_.phase();
  std::int64_t const moved_at = last_progress_at_.load();
  std::int64_t const still = at - moved_at;
  bool const is_first = is_first_.load() && limits_.first_update > 0;
  // Saves have their own limit, longest_save.
  long long const save = phase == run_phase::saving ? limits_.longest_save : 0;
  long long const soft = limits_.soft == 0 ? 0 : std::max(limits_.soft, save);
  bool const is_save_of_its_own = !is_first && limits_.hard > 0 && save > limits_.hard;
  long long const hard = is_first ? limits_.first_update : is_save_of_its_own ? save : limits_.hard;
  // A rank that waits for another gets more time, so that the hanging rank exits first and publishes its message.
  bool const waits = target_.ranks > 1 && phase == run_phase::update;
  if (hard > 0 && still >= hard * 1000 + (waits ? hard * 100 + 1000 : 0))
    end_process(exit_code::no_progress, sentence(still,
                                                 is_first             ? "first_update"
                                                 : is_save_of_its_own ? "longest_save"
                                                                      : "hard",
                                                 hard) +
                                            " The process ends; start it again from its newest checkpoint.");
  if (is_first || soft == 0 || still < soft * 1000 || reported_stall_at_ == moved_at) return;
  reported_stall_at_ = moved_at;
  report("no_progress", sentence(still, soft == limits_.soft ? "soft" : "longest_save", soft),
         stack_of_thread(training_thread_.load()));
}

KEEL_BODY char const* run_watchdog::place() const {
  auto const phase = target_.phase();
  if (!phase) return "a hook, or what else is between its phases";
  switch (*phase) {
    case run_phase::data:
      return "its data, or in what the program does between two calls";
    case run_phase::forward:
      return "the forward pass";
    case run_phase::backward:
      return "the backward pass";
    case run_phase::update:
      return target_.ranks > 1 ? "the update, where ranks wait for each other" : "the update";
    case run_phase::saving:
      return "a save";
    case run_phase::evaluating:
      return "an evaluation";
  }
  return "";
}

KEEL_BODY std::string run_watchdog::describe_last_collective() const {
  std::string const message = target_.collective ? target_.collective() : std::string();
  return message.empty() ? message : "; " + message;
}

KEEL_BODY std::string run_watchdog::sentence(std::int64_t still, char const* limit, long long seconds) const {
  std::string const who =
      target_.ranks > 1 ? "rank " + std::to_string(target_.rank) + " of " + std::to_string(target_.ranks) + ": " : "";
  return "[E27] " + who + "nothing has ended for " + std::to_string(still / 1000) + " s (keel::timeout::" + limit + " is " +
         std::to_string(seconds) + " s): the run is in " + place() + " after update " + std::to_string(updates_.load()) +
         describe_last_collective() + "." + (target_.directory.empty() ? "" : " Its stack is in no_progress.txt.");
}

KEEL_BODY void run_watchdog::report(char const* event, std::string const& message, std::string const& stacks) const {
  // Does not use the trainer's event log, because the training thread may hang inside it.
  std::string const line = message + "\n";
  static_cast<void>(!::write(STDERR_FILENO, line.data(), line.size()));
  if (target_.directory.empty()) {
    static_cast<void>(!::write(STDERR_FILENO, stacks.data(), stacks.size()));
    return;
  }
  nlohmann::ordered_json const found{
      {"event", event}, {"update", updates_.load()}, {"time", seconds_since_1970()}, {"message", message}};
  file_system files;
  auto const write = [&](auto const& open, std::filesystem::path const& name, std::string const& text) {
    try {
      files.write(open(name), name, text.data(), text.size());
    } catch (file_error const&) {
      // The message is already on stderr.
    }
  };
  write([&](auto const& name) { return files.create(name); }, target_.directory / "no_progress.txt", message + "\n\n" + stacks);
  write([&](auto const& name) { return files.open_for_append(name); }, target_.directory / "events.jsonl",
        found.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n");
}

KEEL_BODY void run_watchdog::end_process(int code, std::string const& message) const {
  std::thread([code] {
    std::this_thread::sleep_for(report_timeout);
    ::_exit(code);
  }).detach();
  try {
    report("failed", message, stacks_of_threads());
    write_launcher_error(message);
    if (target_.notify_ranks) target_.notify_ranks(message);
    // Rank 0 may serve the store, which the others poll once per interval: stay, so that they can find the missing rank too.
    if (code == exit_code::rank_failed && target_.rank == 0)
      std::this_thread::sleep_for(std::chrono::seconds(std::min<long long>(limits_.heartbeat_interval, 5)));
  } catch (std::exception const&) {
    // The exit code still reports the failure.
  }
  ::_exit(code);
}

}  // namespace keel::detail::inline KEEL_MODE

#include <keel/libtorch/detail/body_end.inc>
