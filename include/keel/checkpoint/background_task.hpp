// A thread that runs one task at a time, for work that must not block training. An exception of a task is stored and rethrown
// by collect().
#pragma once

#include <atomic>
#include <condition_variable>
#include <exception>
#include <functional>
#include <keel/libtorch/mode.hpp>
#include <mutex>
#include <thread>
#include <utility>

namespace keel::inline KEEL_MODE {

class background_task {
 public:
  background_task() = default;
  background_task(background_task const&) = delete;
  background_task& operator=(background_task const&) = delete;
  /// Waits for a running task and discards its exception.
  ~background_task() {
    {
      std::lock_guard<std::mutex> const lock(mutex_);
      closing_ = true;
    }
    wake_.notify_all();
    if (thread_.joinable()) thread_.join();
  }

  /// Starts a task. The previous one must have been collected. The first call creates the thread.
  void begin(std::function<void()> task) {
    if (!thread_.joinable()) thread_ = std::thread([this] { run(); });
    {
      std::lock_guard<std::mutex> const lock(mutex_);
      task_ = std::move(task);
      begun_ = true;
      done_.store(false, std::memory_order_relaxed);
    }
    wake_.notify_all();
  }
  /// True from begin() until collect().
  bool is_begun() const { return begun_; }
  /// True if the task has finished, so that collect() does not block. Costs one atomic read.
  bool is_done() const { return begun_ && done_.load(std::memory_order_acquire); }

  /// Waits for the task and rethrows its exception.
  void collect() {
    if (!begun_) return;
    std::unique_lock<std::mutex> lock(mutex_);
    wake_.wait(lock, [this] { return done_.load(std::memory_order_relaxed); });
    begun_ = false;
    if (auto const failed = std::exchange(failed_, nullptr)) std::rethrow_exception(failed);
  }

 private:
  void run() {
    std::unique_lock<std::mutex> lock(mutex_);
    for (;;) {
      wake_.wait(lock, [this] { return task_ || closing_; });
      if (!task_) return;
      auto const task = std::exchange(task_, nullptr);
      lock.unlock();
      std::exception_ptr failed;
      try {
        task();
      } catch (...) {
        // Rethrown by collect().
        failed = std::current_exception();
      }
      lock.lock();
      failed_ = failed;
      done_.store(true, std::memory_order_release);
      wake_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable wake_;
  std::thread thread_;
  std::function<void()> task_;
  std::exception_ptr failed_;
  std::atomic<bool> done_{false};
  bool begun_ = false;  ///< used only by the thread that calls begin() and collect()
  bool closing_ = false;
};

}  // namespace keel::inline KEEL_MODE
