// Alarms about the cost of updates. A run reports slowdowns and memory growth as events anyway; as alarms they can be bound to actions:
//     watch<sft, then<memory_grows, checkpoint>, then<slows_down, stop>>
// Times and memory sizes differ from run to run, so these alarms are part of neither checkpoints nor sft.
#pragma once

#include <keel/policy/alarm.hpp>

namespace keel::health {

struct slows_down {
  static constexpr alarm configured{
      .name = "slows_down",
      .conditions = {{"event/slowdown", is::above, 0.0, 1}},
      .severity = severity::warning,
      .symptom = "updates take longer than they did, and go on so",
      .causes = {"another program has begun to use the machine", "the source of data is slower, as a cold disk or a network is",
                 "the processor or the GPU is hot and slows itself down", "memory is swapped"},
      .fixes = {"look at the event slowdown, which names the phase", "keel::profile::on_symptom<>, and its summary.md",
                "read data on a thread, ahead of the update"}};
};
struct memory_grows {
  static constexpr alarm configured{
      .name = "memory_grows",
      .conditions = {{"event/memory_grows", is::above, 0.0, 1}},
      .severity = severity::critical,
      .symptom = "memory grows from update to update",
      .causes = {"losses or outputs are kept with their graph", "a list of tensors grows", "batches become longer"},
      .fixes = {"keep loss.item<double>() or loss.detach() in place of the loss",
                "keel::profile::on_symptom<>, and its memory.pickle", "a checkpoint and a restart, until the cause is found"}};
};

}  // namespace keel::health
