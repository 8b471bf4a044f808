// The bodies of run_watch.hpp.
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
#include <keel/timeout/run_watch.hpp>
#include <keel/timeout/thread_stacks.hpp>
#include <nlohmann/json.hpp>
#include <utility>

#include <keel/libtorch/detail/body_begin.inc>

namespace keel::detail::inline KEEL_MODE {

/// Whatever writing the report comes to: a disk that does not answer may be why the run hangs.
inline constexpr std::chrono::seconds longest_report{10};

/// The sign of a rank whose trainer has ended.
inline constexpr std::int64_t farewell = -2;

KEEL_BODY run_watch::run_watch(timeout::settings const& limits, watched_run of) : limits_(limits), of_(std::move(of)) {
  if (!is_watched(limits)) return;
  // Signals are for the program's own threads.
  sigset_t all, before;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  thread_ = std::thread([this] { run(); });
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

KEEL_BODY run_watch::~run_watch() {
  if (!thread_.joinable()) return;
  {
    std::lock_guard<std::mutex> const lock(mutex_);
    is_over_ = true;
  }
  ends_.notify_one();
  thread_.join();
}

KEEL_BODY void run_watch::begin(std::int64_t updates) {
  if (!thread_.joinable()) return;
  updates_.store(updates);
  trains_.store(this_thread());
  moved();
  watches_.store(true);
}

KEEL_BODY std::int64_t run_watch::tick() const {
  std::int64_t shortest = 20;
  for (long long const one :
       {limits_.soft, limits_.hard, limits_.first_update, limits_.force_exit, limits_.heartbeat_interval}) {
    if (one > 0) shortest = std::min<std::int64_t>(shortest, one);
  }
  return shortest * 1000 / 20;
}

KEEL_BODY void run_watch::run() {
  ::pthread_setname_np(::pthread_self(), "keel watch");
  auto const every = std::chrono::milliseconds(tick());
  std::unique_lock<std::mutex> lock(mutex_);
  do {
    try {
      listen();
      if (watches_.load()) {
        look();
      } else {
        signalled_at_.reset();
      }
    } catch (std::exception const&) {
      // No memory for a report, or a clock that is gone: it looks again soon.
    }
  } while (!ends_.wait_for(lock, every, [this] { return is_over_; }));
  // A question may still be open.
  for (int attempt = 0; own_sign_ > 0 && attempt < 10 && !of_.exchange_signs(farewell); ++attempt)
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
}

KEEL_BODY void run_watch::listen() {
  if (limits_.heartbeat_interval == 0 || of_.ranks == 1) return;
  std::int64_t const at = now();
  if (own_sign_ > 0 && at - listened_at_ < limits_.heartbeat_interval * 1000) return;
  // What this thread missed, as where the whole process was stopped for a while, says nothing of the others.
  bool const was_away = own_sign_ == 0 || at - listened_at_ > 2000 * limits_.heartbeat_interval + 2000;
  listened_at_ = at;
  auto const found = of_.exchange_signs(++own_sign_);
  if (found && found->empty()) return;
  if (found || was_away) answered_at_ = at;
  signs_.resize(static_cast<std::size_t>(of_.ranks));
  for (std::size_t rank = 0; rank < signs_.size(); ++rank) {
    if (was_away) signs_[rank].at = at;
    if (found && (*found)[rank] != signs_[rank].number) signs_[rank] = {(*found)[rank], at};
  }
  std::int64_t const limit = limits_.heartbeat_limit * 1000;
  std::string silent;
  if (!found && at - answered_at_ >= limit) silent = "the store of the ranks has not answered";
  for (std::size_t rank = 0; found && silent.empty() && rank < signs_.size(); ++rank) {
    std::int64_t const number = signs_[rank].number;
    bool const lives = number == farewell || number == transport::not_asked_for || static_cast<int>(rank) == of_.rank;
    if (!lives && at - signs_[rank].at >= limit) silent = "rank " + std::to_string(rank) + " has given no sign of life";
  }
  if (silent.empty() || !watches_.load()) return;
  end_process(exit_code::ranks_gone,
              "[E25] rank " + std::to_string(of_.rank) + " of " + std::to_string(of_.ranks) + ": " + silent + " for " +
                  std::to_string(limits_.heartbeat_limit) + " s (keel::timeout::heartbeat): " +
                  (found ? "it is gone or hanging as a whole, or cut off"
                         : "rank 0, which serves it where no launcher does, is gone or hanging, or the network is") +
                  ". This rank was in " + place() + " behind update " + std::to_string(updates_.load()) + last_collective() +
                  ". Its process ends; start all of them again from the newest checkpoint.");
}

KEEL_BODY void run_watch::look() {
  std::int64_t const at = now();
  if (int const signal = limits_.force_exit > 0 ? of_.signal() : 0; signal != 0) {
    if (!signalled_at_) signalled_at_ = at;
    if (at - *signalled_at_ >= limits_.force_exit * 1000)
      end_process(128 + signal, "[E27] signal " + std::to_string(signal) + " asked for a stop " +
                                    std::to_string(limits_.force_exit) +
                                    " s ago (keel::timeout::force_exit), and the run is still in " + place() +
                                    " behind update " + std::to_string(updates_.load()) + ". What it had saved stays.");
  } else {
    signalled_at_.reset();
  }
  auto const phase = of_.phase();
  std::int64_t const moved_at = moved_at_.load();
  std::int64_t const still = at - moved_at;
  bool const is_first = is_first_.load() && limits_.first_update > 0;
  // A save may take as long as the recipe says of saves.
  long long const save = phase == run_phase::saving ? limits_.longest_save : 0;
  long long const soft = limits_.soft == 0 ? 0 : std::max(limits_.soft, save);
  bool const is_save_of_its_own = !is_first && limits_.hard > 0 && save > limits_.hard;
  long long const hard = is_first ? limits_.first_update : is_save_of_its_own ? save : limits_.hard;
  // Who waits for another rank lets that one end first, and then has its words.
  bool const waits = of_.ranks > 1 && phase == run_phase::update;
  if (hard > 0 && still >= hard * 1000 + (waits ? hard * 100 + 1000 : 0))
    end_process(exit_code::no_progress, sentence(still,
                                                 is_first             ? "first_update"
                                                 : is_save_of_its_own ? "longest_save"
                                                                      : "hard",
                                                 hard) +
                                            " The process ends; start it again from its newest checkpoint.");
  if (is_first || soft == 0 || still < soft * 1000 || said_of_ == moved_at) return;
  said_of_ = moved_at;
  report("no_progress", sentence(still, soft == limits_.soft ? "soft" : "longest_save", soft), stack_of_thread(trains_.load()));
}

KEEL_BODY char const* run_watch::place() const {
  auto const phase = of_.phase();
  if (!phase) return "a hook, or what else is between its phases";
  switch (*phase) {
    case run_phase::data:
      return "its data, or in what the program does between two calls";
    case run_phase::forward:
      return "the forward pass";
    case run_phase::backward:
      return "the backward pass";
    case run_phase::update:
      return of_.ranks > 1 ? "the update, where ranks wait for each other" : "the update";
    case run_phase::saving:
      return "a save";
    case run_phase::evaluating:
      return "an evaluation";
  }
  return "";
}

KEEL_BODY std::string run_watch::last_collective() const {
  std::string const words = of_.collective ? of_.collective() : std::string();
  return words.empty() ? words : "; " + words;
}

KEEL_BODY std::string run_watch::sentence(std::int64_t still, char const* limit, long long seconds) const {
  std::string const who = of_.ranks > 1 ? "rank " + std::to_string(of_.rank) + " of " + std::to_string(of_.ranks) + ": " : "";
  return "[E27] " + who + "nothing has ended for " + std::to_string(still / 1000) + " s (keel::timeout::" + limit + " is " +
         std::to_string(seconds) + " s): the run is in " + place() + " behind update " + std::to_string(updates_.load()) +
         last_collective() + "." + (of_.directory.empty() ? "" : " Its stack is in no_progress.txt.");
}

KEEL_BODY void run_watch::report(char const* event, std::string const& words, std::string const& stacks) const {
  // The trainer's own record is its thread's, which may be in it.
  std::string const line = words + "\n";
  static_cast<void>(!::write(STDERR_FILENO, line.data(), line.size()));
  if (of_.directory.empty()) {
    static_cast<void>(!::write(STDERR_FILENO, stacks.data(), stacks.size()));
    return;
  }
  nlohmann::ordered_json const found{
      {"event", event}, {"update", updates_.load()}, {"time", seconds_since_1970()}, {"message", words}};
  file_system files;
  auto const write = [&](auto const& open, std::filesystem::path const& name, std::string const& text) {
    try {
      files.write(open(name), name, text.data(), text.size());
    } catch (file_error const&) {
      // The standard error has the words.
    }
  };
  write([&](auto const& name) { return files.create(name); }, of_.directory / "no_progress.txt", words + "\n\n" + stacks);
  write([&](auto const& name) { return files.open_for_append(name); }, of_.directory / "events.jsonl",
        found.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n");
}

KEEL_BODY void run_watch::end_process(int code, std::string const& words) const {
  std::thread([code] {
    std::this_thread::sleep_for(longest_report);
    ::_exit(code);
  }).detach();
  try {
    report("failed", words, stacks_of_threads());
    write_launcher_error(words);
    if (of_.tell_ranks) of_.tell_ranks(words);
    // Rank 0 may serve the store, where the others look for signs once an interval: who is gone is for them to find too.
    if (code == exit_code::ranks_gone && of_.rank == 0)
      std::this_thread::sleep_for(std::chrono::seconds(std::min<long long>(limits_.heartbeat_interval, 5)));
  } catch (std::exception const&) {
    // The end itself says that there was something.
  }
  ::_exit(code);
}

}  // namespace keel::detail::inline KEEL_MODE

#include <keel/libtorch/detail/body_end.inc>
