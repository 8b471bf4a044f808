// Alarms about the cost of updates. A run reports slowdowns and memory growth as events anyway; as alarms they can be bound to actions:
//     watch<sft, then<memory_grows, checkpoint>, then<slows_down, stop>>
// Times and memory sizes differ from run to run, so these alarms are part of neither checkpoints nor sft.
#pragma once

#include <keel/policy/alarm.hpp>

namespace keel::health {

struct slows_down {
  static constexpr alarm configured{.name = "slows_down",
                                    .conditions = {{"event/slowdown", is::above, 0.0, 1}},
                                    .symptom = "updates take longer than they did, and go on so",
                                    .causes = {trouble::busy_machine, trouble::waiting_for_data, trouble::slow_kernels}};
};
struct memory_grows {
  static constexpr alarm configured{.name = "memory_grows",
                                    .conditions = {{"event/memory_grows", is::above, 0.0, 1}},
                                    .severity = severity::critical,
                                    .symptom = "memory grows from update to update",
                                    .causes = {trouble::memory_leak, trouble::fragmentation, "batches become longer"}};
};

}  // namespace keel::health
