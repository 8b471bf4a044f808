// Checks of a preflight that rehearse what a long run meets: the same update again, other threads, an evaluation, a resume, memory that
// runs out.
#pragma once

#include <cstdint>
#include <keel/diagnose/preflight_program.hpp>

namespace keel::detail::inline KEEL_MODE {

/// Two runs of the same update, from the same random numbers.
void check_same_bits(preflight_program& program, preflight_table& table);
void check_threads(preflight_program& program, preflight_table& table);
void check_evaluation(preflight_program& program, preflight_table& table);
/// What an update takes beside what there is.
void check_memory(preflight_program& program, int state_per_parameter, preflight_table& table);
/// Saved, changed, loaded: the next update has the same bits.
void check_resume(preflight_program& program, preflight_table& table);
/// Memory runs out in the forward and in the backward pass, for each rung of the ladder.
void check_out_of_memory(preflight_program& program, preflight_table& table);

}  // namespace keel::detail::inline KEEL_MODE

#ifndef KEEL_COMPILED
#include <keel/diagnose/preflight_rehearsal.ipp>
#endif
