#pragma once

#include <ATen/record_function.h>

#include <atomic>
#include <memory>
#include <string>

namespace keel_test {

/// How often LibTorch was asked for a number, while this lives. Its fused AdamW for the CPU asks for the number of the update
/// itself, which one for a device reads there.
class host_reads {
 public:
  host_reads() {
    count() = 0;
    handle_ = at::addGlobalCallback(at::RecordFunctionCallback(begins, ends).scopes({at::RecordScope::FUNCTION}));
  }
  host_reads(host_reads const&) = delete;
  host_reads& operator=(host_reads const&) = delete;
  ~host_reads() { at::removeCallback(handle_); }
  static std::atomic<int>& count() {
    static std::atomic<int> reads{0};
    return reads;
  }

 private:
  static std::unique_ptr<at::ObserverContext> begins(at::RecordFunction const& function) {
    std::string const name = function.name();
    if (name == "aten::_fused_adamw_") ++fused();
    if (name == "aten::_local_scalar_dense" && fused() == 0) ++count();
    return nullptr;
  }
  static void ends(at::RecordFunction const& function, at::ObserverContext*) {
    if (std::string(function.name()) == "aten::_fused_adamw_") --fused();
  }
  /// How many calls of it this thread is in.
  static int& fused() {
    thread_local int depth = 0;
    return depth;
  }

  at::CallbackHandle handle_;
};

}  // namespace keel_test
