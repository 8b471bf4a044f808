// Distinguishes out-of-memory exceptions from all others. On a GPU they have their own type. On the CPU LibTorch throws a plain
// c10::Error that only its message identifies. Other CUDA errors must not be retried: they leave a corrupt context (O12).
#pragma once

#include <cstdint>
#include <exception>
#include <keel/libtorch/mode.hpp>
#include <string>

namespace keel::inline KEEL_MODE {

/// Returns true if LibTorch or the standard library threw this exception because memory ran out.
bool is_out_of_memory(std::exception const& thrown);

/// Returns the first line of an exception's message, without LibTorch's backtrace.
std::string first_line(std::exception const& thrown);

}  // namespace keel::inline KEEL_MODE

namespace keel::detail::inline KEEL_MODE {

/// Call from the handler of `thrown`. Throws out_of_memory_error (E09) if memory ran out, and rethrows `thrown` otherwise.
[[noreturn]] void rethrow_named(std::exception const& thrown, std::int64_t updates, char const* where, char const* way_out);

template <class Run>
void name_out_of_memory(std::int64_t updates, char const* where, char const* way_out, Run const& run) {
  try {
    run();
  } catch (std::exception const& thrown) {
    rethrow_named(thrown, updates, where, way_out);
  }
}

/// Runs a part of an update. Throws out_of_memory_error (E09) with the number of completed updates if memory runs out.
template <class Run>
void name_out_of_memory(std::int64_t updates, Run const& run) {
  name_out_of_memory(
      updates, "", "Add keel::oom::ladder<keel::oom::halve_micro_batch, keel::oom::give_up>, or make the batch smaller.", run);
}
/// As above, for the optimizer step of one of keel's optimizers, which may leave parameters half updated.
template <class Run>
void name_out_of_memory_inside_engine(std::int64_t updates, Run const& run) {
  name_out_of_memory(
      updates, " inside the optimizer's step, so parameters may be half updated and only a checkpoint is consistent",
      "Start again from the last checkpoint. Parameters that are not dense fp32, bf16 or fp16 on the CPU are updated by "
      "LibTorch's operators, which allocate memory of a parameter's size: use dense ones of these dtypes, or a smaller batch.",
      run);
}
/// As above, for the optimizer step of any other optimizer.
template <class Run>
void name_out_of_memory_inside_update(std::int64_t updates, Run const& run) {
  name_out_of_memory(
      updates, " inside the optimizer's step, so parameters may be half updated and only a checkpoint is consistent",
      "Start again from the last checkpoint with a smaller batch, or with keel::adamw, adam or sgd, which allocate before they "
      "change anything.",
      run);
}

}  // namespace keel::detail::inline KEEL_MODE

#ifndef KEEL_COMPILED
#include <keel/core/out_of_memory.ipp>
#endif
