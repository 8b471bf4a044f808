// A thread that feeds a sink from a bounded queue. Whoever posts never waits: what finds the queue full is dropped, and what a sink
// throws stays here as a sentence.
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

  /// The thread is made with the first job.
  sink_thread(std::string name, std::shared_ptr<metric_sink> sink, std::size_t max_queued_jobs = 1024);
  sink_thread(sink_thread const&) = delete;
  sink_thread& operator=(sink_thread const&) = delete;
  /// Drains; a sink that hangs keeps its thread until it returns.
  ~sink_thread();

  /// `may_drop`: the sink is right without it, as without a value.
  void post(job one, bool may_drop = true);

  /// What must be known of this sink, once for each kind of trouble; empty: nothing new. Costs one read.
  std::string take_trouble();

  std::int64_t dropped() const;

  /// Waits until all jobs are done and the sink is flushed, at most so long: what a hanging sink was to get is then dropped.
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
