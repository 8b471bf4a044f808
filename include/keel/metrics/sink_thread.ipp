// Definitions for sink_thread.hpp.
#pragma once

#include <algorithm>
#include <exception>
#include <keel/metrics/sink_thread.hpp>
#include <system_error>
#include <thread>
#include <utility>

#include <keel/libtorch/detail/body_begin.inc>

namespace keel::inline KEEL_MODE {

/// The state shared by the thread and its owner. A thread that hangs in its sink keeps it alive.
struct sink_thread::shared {
  std::string name;
  std::shared_ptr<metric_sink> sink;
  std::size_t max_queued_jobs = 0;

  std::mutex mutex;
  std::condition_variable wake;
  struct posted {
    job what;
    bool may_drop;
  };
  std::deque<posted> jobs;
  bool is_urgent = false;  ///< the jobs must not wait for a full batch
  bool is_busy = false;
  bool hangs = false;  ///< a call took longer than a drain waits
  bool is_closing = false;
  bool is_done = false;
  // Messages that were already given.
  bool was_full = false;
  bool was_broken = false;
  bool was_hanging = false;
  std::int64_t dropped = 0;
  std::string trouble;
  std::atomic<bool> has_trouble{false};

  // Waking the thread for every update would slow down training on a machine with few cores.
  static constexpr std::size_t batch = 64;
  bool has_work() const { return is_closing || is_urgent || jobs.size() >= std::min(batch, (max_queued_jobs + 1) / 2); }
};

KEEL_BODY sink_thread::sink_thread(std::string name, std::shared_ptr<metric_sink> sink, std::size_t max_queued_jobs)
    : shared_(std::make_shared<shared>()) {
  shared_->name = std::move(name);
  shared_->sink = std::move(sink);
  shared_->max_queued_jobs = max_queued_jobs;
}

KEEL_BODY sink_thread::~sink_thread() {
  drain();
  std::unique_lock<std::mutex> lock(shared_->mutex);
  shared_->is_closing = true;
  shared_->wake.notify_all();
  if (is_begun_ && !shared_->hangs) shared_->wake.wait_for(lock, std::chrono::seconds(10), [this] { return shared_->is_done; });
}

KEEL_BODY void sink_thread::say(shared& all, bool& was_said, std::string const& words) {
  if (std::exchange(was_said, true)) return;
  all.trouble += (all.trouble.empty() ? "" : "; ") + words;
  all.has_trouble.store(true, std::memory_order_release);
}

KEEL_BODY void sink_thread::post(job one, bool may_drop) {
  bool wakes = false;
  {
    std::lock_guard<std::mutex> const lock(shared_->mutex);
    if (shared_->hangs && may_drop) {
      ++shared_->dropped;
      return;
    }
    auto& jobs = shared_->jobs;
    if (jobs.size() >= shared_->max_queued_jobs) {
      say(*shared_, shared_->was_full, "the sink " + shared_->name + " is slower than the run, and misses values");
      // A job that must not be dropped replaces the oldest one that may be.
      auto const oldest = std::find_if(jobs.begin(), jobs.end(), [](auto const& each) { return each.may_drop; });
      if (may_drop || oldest != jobs.end()) ++shared_->dropped;
      if (may_drop) return;
      if (oldest != jobs.end()) jobs.erase(oldest);
    }
    jobs.push_back({std::move(one), may_drop});
    if (!may_drop) shared_->is_urgent = true;
    wakes = shared_->has_work();
  }
  if (!is_begun_) {
    try {
      // Detached, so that a sink that never returns does not block the end of the run; drain() waits for one that does.
      std::thread([all = shared_] { run(all); }).detach();
      is_begun_ = true;
    } catch (std::system_error const& thrown) {
      // If no thread can be created, the run continues without its sinks.
      std::lock_guard<std::mutex> const lock(shared_->mutex);
      shared_->jobs.clear();
      ++shared_->dropped;
      say(*shared_, shared_->was_broken, "the sink " + shared_->name + " has no thread: " + thrown.what());
    }
  }
  if (wakes) shared_->wake.notify_all();
}

KEEL_BODY std::string sink_thread::take_trouble() {
  if (!shared_->has_trouble.load(std::memory_order_acquire)) return {};
  std::lock_guard<std::mutex> const lock(shared_->mutex);
  shared_->has_trouble.store(false, std::memory_order_relaxed);
  return std::exchange(shared_->trouble, {});
}

KEEL_BODY std::int64_t sink_thread::dropped() const {
  std::lock_guard<std::mutex> const lock(shared_->mutex);
  return shared_->dropped;
}

KEEL_BODY void sink_thread::drain(std::chrono::milliseconds limit) {
  std::unique_lock<std::mutex> lock(shared_->mutex);
  if (!is_begun_ || shared_->hangs) return;
  shared_->jobs.push_back({[](metric_sink& sink) { sink.flush(); }, true});
  shared_->is_urgent = true;
  shared_->wake.notify_all();
  if (shared_->wake.wait_for(lock, limit, [this] { return shared_->jobs.empty() && !shared_->is_busy; })) return;
  shared_->hangs = true;
  shared_->dropped += static_cast<std::int64_t>(shared_->jobs.size());
  shared_->jobs.clear();
  say(*shared_, shared_->was_hanging, "the sink " + shared_->name + " did not take the last values in time");
}

KEEL_BODY void sink_thread::run(std::shared_ptr<shared> const& all) {
  constexpr std::chrono::seconds longest_wait{1};
  std::unique_lock<std::mutex> lock(all->mutex);
  auto const guarded = [&](job const& one) {
    lock.unlock();
    std::string failure;
    try {
      one(*all->sink);
    } catch (std::exception const& thrown) {
      failure = thrown.what();
    } catch (...) {
      // A user-defined sink may throw anything; training must continue.
      failure = "an exception that is not a std::exception";
    }
    lock.lock();
    if (!failure.empty()) say(*all, all->was_broken, "the sink " + all->name + " fails: " + failure);
  };
  for (;;) {
    all->wake.wait_for(lock, longest_wait, [&] { return all->has_work(); });
    if (all->jobs.empty() && all->is_closing) break;
    while (!all->jobs.empty()) {
      job const next = std::move(all->jobs.front().what);
      all->jobs.pop_front();
      all->is_busy = true;
      guarded(next);
      all->is_busy = false;
      // A sink that returned after a timeout is used again.
      all->hangs = false;
    }
    all->is_urgent = false;
    all->wake.notify_all();
  }
  // The sink is destroyed on its thread, before the run ends.
  auto sink = std::move(all->sink);
  lock.unlock();
  sink.reset();
  lock.lock();
  all->is_done = true;
  all->wake.notify_all();
}

}  // namespace keel::inline KEEL_MODE

#include <keel/libtorch/detail/body_end.inc>
