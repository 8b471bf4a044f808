// Checks of a preflight that rehearse events of a long run: a repeated update, another number of threads, an evaluation, a resume,
// running out of memory.
#pragma once

#include <cstdint>
#include <keel/diagnose/preflight_program.hpp>

namespace keel::detail::inline KEEL_MODE {

/// Makes the same update twice, from the same random state.
void check_same_bits(preflight_program& program, preflight_table& table);
void check_threads(preflight_program& program, preflight_table& table);
void check_evaluation(preflight_program& program, preflight_table& table);
/// Compares the memory of an update with the memory available.
void check_memory(preflight_program& program, int state_per_parameter, preflight_table& table);
/// Saves, changes and loads the state: the next update must be bitwise equal.
void check_resume(preflight_program& program, preflight_table& table);
/// Simulates out of memory in the forward and in the backward pass, for each rung of the ladder.
void check_out_of_memory(preflight_program& program, preflight_table& table);

}  // namespace keel::detail::inline KEEL_MODE

#ifndef KEEL_COMPILED
#include <keel/diagnose/preflight_rehearsal.ipp>
#endif
