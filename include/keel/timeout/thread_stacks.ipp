// Definitions for thread_stacks.hpp.
#pragma once

#include <cxxabi.h>
#include <dlfcn.h>
#include <execinfo.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <keel/timeout/thread_stacks.hpp>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include <keel/libtorch/detail/body_begin.inc>

namespace keel::detail::inline KEEL_MODE {

/// Receives the stack of the interrupted thread. One static instance per process, because the signal handler may run late.
struct stack_capture {
  static constexpr int most = 64;
  std::atomic<pid_t> thread{0};  ///< the thread that may respond; 0: none
  std::atomic<int> count{-1};    ///< -1: no response yet
  std::array<void*, most> frames{};
  std::mutex capture_mutex;

  static stack_capture& instance() {
    static stack_capture capture;
    return capture;
  }
  static void answer(int /*signal*/) {
    int const error = errno;
    stack_capture& here = instance();
    pid_t expected = static_cast<pid_t>(::syscall(SYS_gettid));
    // Respond only once, and not after the request timed out.
    if (here.thread.compare_exchange_strong(expected, 0))
      here.count.store(::backtrace(here.frames.data(), most), std::memory_order_release);
    errno = error;
  }
};

inline std::string name_of_function(void* address) {
  Dl_info info{};
  char text[64];
  if (::dladdr(address, &info) == 0 || info.dli_fname == nullptr) {
    std::snprintf(text, sizeof text, "%p", address);
    return text;
  }
  std::string const file = std::filesystem::path(info.dli_fname).filename();
  if (info.dli_sname == nullptr) {
    std::snprintf(text, sizeof text, "+0x%zx",
                  static_cast<std::size_t>(static_cast<char*>(address) - static_cast<char*>(info.dli_fbase)));
    return file + text;
  }
  int status = 0;
  std::unique_ptr<char, void (*)(void*)> const clear(abi::__cxa_demangle(info.dli_sname, nullptr, nullptr, &status),
                                                     &std::free);
  std::string name = status == 0 ? clear.get() : info.dli_sname;
  constexpr std::size_t longest = 200;
  if (name.size() > longest) name = name.substr(0, longest) + "..";
  return name + "  (" + file + ")";
}

KEEL_BODY pid_t this_thread() { return static_cast<pid_t>(::syscall(SYS_gettid)); }

KEEL_BODY std::string stack_of_thread(pid_t thread) {
  stack_capture& capture = stack_capture::instance();
  std::lock_guard<std::mutex> const lock(capture.capture_mutex);
  std::string name;
  std::getline(std::ifstream("/proc/self/task/" + std::to_string(thread) + "/comm"), name);
  std::string words = "thread " + std::to_string(thread) + " (" + name + ")\n";
  // The first call of backtrace() loads a library, which is not async-signal-safe.
  void* warm[1];
  ::backtrace(warm, 1);
  capture.count.store(-1);
  capture.thread.store(thread);
  struct sigaction action = {}, before = {};
  action.sa_handler = &stack_capture::answer;
  ::sigemptyset(&action.sa_mask);
  action.sa_flags = SA_RESTART;
  ::sigaction(SIGURG, &action, &before);
  ::syscall(SYS_tgkill, ::getpid(), thread, SIGURG);
  auto const last = std::chrono::steady_clock::now() + std::chrono::milliseconds(200);
  while (capture.count.load(std::memory_order_acquire) < 0 && std::chrono::steady_clock::now() < last)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  pid_t expected = thread;
  // Withdraw the request. If that fails, the thread is already responding: wait for it.
  if (!capture.thread.compare_exchange_strong(expected, 0)) {
    while (capture.count.load(std::memory_order_acquire) < 0) std::this_thread::yield();
  }
  ::sigaction(SIGURG, &before, nullptr);
  int const count = capture.count.load(std::memory_order_acquire);
  if (count < 0) return words + "  does not answer\n";
  // Skip the frames of the handler and the signal trampoline.
  for (int i = 2; i < count; ++i) words += "  " + name_of_function(capture.frames[static_cast<std::size_t>(i)]) + "\n";
  return words;
}

KEEL_BODY std::string stacks_of_threads() {
  std::vector<pid_t> threads;
  for (auto const& one : std::filesystem::directory_iterator("/proc/self/task")) {
    auto const thread = static_cast<pid_t>(std::strtol(one.path().filename().c_str(), nullptr, 10));
    if (thread != this_thread()) threads.push_back(thread);
  }
  std::string words;
  for (pid_t const thread : threads) words += stack_of_thread(thread);
  return words;
}

}  // namespace keel::detail::inline KEEL_MODE

#include <keel/libtorch/detail/body_end.inc>
