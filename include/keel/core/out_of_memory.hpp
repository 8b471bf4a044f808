// Distinguishes an out-of-memory from every other error. On a GPU it is a separate type; on the CPU LibTorch throws a plain
// c10::Error, which only its words distinguish. A retry after any other CUDA error would run on a corrupt context (O12).
#pragma once

#include <cstdint>
#include <exception>
#include <keel/libtorch/mode.hpp>
#include <string>

namespace keel::inline KEEL_MODE {

/// True for the exceptions by which LibTorch and the standard library say that memory ran out.
bool is_out_of_memory(std::exception const& thrown);

/// The first line of an exception's message, without LibTorch's backtrace.
std::string first_line(std::exception const& thrown);

}  // namespace keel::inline KEEL_MODE

namespace keel::detail::inline KEEL_MODE {

/// Inside the handler of `thrown`: throws out_of_memory_error (E09) where LibTorch says that memory ran out, and `thrown` otherwise.
[[noreturn]] void rethrow_named(std::exception const& thrown, std::int64_t updates, char const* where, char const* way_out);

template <class Run>
void name_out_of_memory(std::int64_t updates, char const* where, char const* way_out, Run const& run) {
  try {
    run();
  } catch (std::exception const& thrown) {
    rethrow_named(thrown, updates, where, way_out);
  }
}

/// Runs a part of the update after so many; throws out_of_memory_error (E09) where LibTorch says that memory ran out.
template <class Run>
void name_out_of_memory(std::int64_t updates, Run const& run) {
  name_out_of_memory(
      updates, "", "Add keel::oom::ladder<keel::oom::halve_micro_batch, keel::oom::give_up>, or make the batch smaller.", run);
}
/// The same where the parameters are being changed, by one of keel's optimizers.
template <class Run>
void name_out_of_memory_inside_engine(std::int64_t updates, Run const& run) {
  name_out_of_memory(
      updates, " inside the optimizer's step, so that parameters may be half updated and only a checkpoint is whole",
      "Start again from the last checkpoint. Parameters that are not dense fp32, bf16 or fp16 on the CPU are updated by "
      "LibTorch's operators, which take memory of a parameter's size: use such parameters, or a smaller batch.",
      run);
}
/// The same where the parameters are being changed, by any other.
template <class Run>
void name_out_of_memory_inside_update(std::int64_t updates, Run const& run) {
  name_out_of_memory(
      updates, " inside the optimizer's step, so that parameters may be half updated and only a checkpoint is whole",
      "Start again from the last checkpoint with a smaller batch, or with keel::adamw, adam or sgd, which allocate before they "
      "change anything.",
      run);
}

}  // namespace keel::detail::inline KEEL_MODE

#ifndef KEEL_COMPILED
#include <keel/core/out_of_memory.ipp>
#endif
