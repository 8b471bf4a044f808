// A thread that calls a sink from a bounded queue. Posting never blocks: jobs are dropped if the queue is full, and exceptions of the sink
// are kept as messages.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <keel/metrics/sink.hpp>
#include <memory>
#include <mutex>
#include <string>

namespace keel::inline KEEL_MODE {

class sink_thread {
 public:
  using job = std::function<void(metric_sink&)>;

  /// The thread starts with the first job.
  sink_thread(std::string name, std::shared_ptr<metric_sink> sink, std::size_t max_queued_jobs = 1024);
  sink_thread(sink_thread const&) = delete;
  sink_thread& operator=(sink_thread const&) = delete;
  /// Drains the queue. A sink that hangs keeps its thread until it returns.
  ~sink_thread();

  /// Enqueues a job. `may_drop`: the sink stays consistent without it, as without a value.
  void post(job one, bool may_drop = true);

  /// Returns a message about trouble with this sink, once per kind of trouble; empty if there is none. Costs one atomic read.
  std::string take_trouble();

  std::int64_t dropped() const;

  /// Waits at most `limit` until all jobs are done and the sink is flushed. The remaining jobs of a sink that hangs are dropped.
  void drain(std::chrono::milliseconds limit = std::chrono::seconds(10));

 private:
  struct shared;
  static void run(std::shared_ptr<shared> const& all);
  static void say(shared& all, bool& was_said, std::string const& words);

  std::shared_ptr<shared> shared_;
  bool is_begun_ = false;
};

}  // namespace keel::inline KEEL_MODE

#ifndef KEEL_COMPILED
#include <keel/metrics/sink_thread.ipp>
#endif
