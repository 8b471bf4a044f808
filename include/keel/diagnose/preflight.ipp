// Definitions for preflight.hpp and of the table in preflight_program.hpp.
#pragma once

#include <algorithm>
#include <chrono>
#include <exception>
#include <keel/checkpoint/read_checkpoint.hpp>
#include <keel/checkpoint/write_checkpoint.hpp>
#include <keel/core/out_of_memory.hpp>
#include <keel/diagnose/preflight.hpp>
#include <keel/diagnose/preflight_loss.hpp>
#include <keel/diagnose/preflight_rehearsal.hpp>
#include <keel/diagnose/preflight_sequence.hpp>
#include <keel/diagnose/preflight_training.hpp>
#include <keel/diagnose/preflight_wiring.hpp>
#include <keel/trainer/resume.hpp>

#include <keel/libtorch/detail/body_begin.inc>

namespace keel::detail::inline KEEL_MODE {

KEEL_BODY void preflight_table::run(char const* check, std::function<void()> const& look) {
  if (is_over()) return not_enough_time(check, "");
  show_progress(check);
  try {
    look();
  } catch (std::exception const& thrown) {
    if (is_out_of_memory(thrown)) {
      failed(check, "memory ran out: " + first_line(thrown),
             "use fewer or smaller batches; a preflight holds options.batches of them and a second copy of the parameters");
      return;
    }
    // An exception from the program is the finding of the check.
    failed(check, first_line(thrown), "follow the message, or fix what makes the loss function throw");
  }
}

KEEL_BODY void preflight_table::show_progress(char const* check) {
  if (console_ == nullptr || seconds() - shown_at_ < between_lines) return;
  shown_at_ = seconds();
  std::fprintf(console_, "preflight, %.0f s: %s\n", shown_at_, check);
  std::fflush(console_);
}

KEEL_BODY void save_rehearsal(preflight_program& program, std::vector<state_part> const& parts, std::int64_t update,
                              std::string const& directory) {
  snapshot const content = take_snapshot(program.recipe(), program.model(),
                                         {{"", &program.optimizer(), &program.parameters(), program.recipe()}}, parts);
  file_system files;
  write_checkpoint(files, directory, update, false, content);
}

KEEL_BODY void load_rehearsal(preflight_program& program, std::vector<state_part> const& parts, std::string const& directory) {
  apply_snapshot(read_checkpoint(directory), program.recipe(), program.model(),
                 {{"", &program.optimizer(), &program.parameters(), program.recipe()}}, parts, directory,
                 {.is_same_run = true});
}

KEEL_BODY preflight_result preflight_of_program(preflight_program& program, preflight_options const& options) {
  preflight_result result;
  preflight_table table(result, options.seconds, program.console());

  double of_an_update = 0.0;
  bool updates = false;
  table.run("an update", [&] {
    program.with_step([&](tried_step& step) {
      std::vector<tried_batch> const batches{{0}};
      tried_update const update = step.update(batches);
      updates = update.is_applied || update.is_overflow;
      if (updates) {
        // The first call includes one-time initialization.
        double const from = table.seconds();
        step.update(batches);
        of_an_update = table.seconds() - from;
        return;
      }
      table.failed("an update", update.words, "inspect the operation and row that the error of the first update names");
    });
  });
  table.run("training mode", [&] { check_modes(program, table); });
  table.run("parameters", [&] { check_other_leaves(program, table); });
  table.run("batches", [&] { check_batches(program, table); });
  if (updates) {
    table.run("same bits twice", [&] { check_same_bits(program, table); });
    table.run("gradients", [&] { check_gradients(program, table); });
  }
  bool has_labels = true;
  table.run("inputs", [&] {
    tried_passes const passes(program);
    has_labels = passes.tensors.empty() || (passes.labels() && !passes.is_autoencoder);
    if (!passes.is_repeatable) {
      table.not_applicable("inputs", "the loss of one batch differs between calls; see same bits twice");
      return;
    }
    table.run("inputs", [&] { check_inputs_and_labels(passes, table); });
    table.run("rows", [&] { check_rows(passes, table); });
    table.run("look-ahead", [&] { check_look_ahead(passes, table); });
    table.run("targets in inputs", [&] { check_targets_in_inputs(passes, table); });
    table.run("masks", [&] { check_masks(passes, table); });
    table.run("loss at the start", [&] { check_first_loss(passes, table); });
    table.run("loss and output", [&] { check_loss_and_output(passes, table); });
  });
  table.run("evaluation", [&] { check_evaluation(program, table); });
  if (updates) {
    table.run("memory", [&] { check_memory(program, options.state_per_parameter, table); });
    table.run("threads", [&] { check_threads(program, table); });
    table.run("out of memory", [&] { check_out_of_memory(program, table); });
    table.run("resume", [&] { check_resume(program, table); });
    // There are two to ten experiments.
    double const room = std::max(1.0, options.seconds - table.seconds()) / 8.0;
    constexpr double fewest = 20.0;
    preflight_training training;
    training.has_labels = has_labels;
    training.wanted = options.updates;
    training.updates =
        std::min(options.updates, static_cast<std::int64_t>(std::max(fewest, room / std::max(of_an_update, 1e-5))));
    training.is_slow = fewest * of_an_update > room;
    table.begin_training();
    table.run("overfit one batch", [&] { check_overfit(program, training, table); });
    table.run("learning rate", [&] { check_rate(program, training, table); });
    table.run("labels belong to inputs", [&] { check_labels_belong(program, training, table); });
  } else {
    table.not_applicable("what trains", "no update can be applied");
  }
  advise(program, table);
  result.seconds = table.seconds();
  return result;
}

}  // namespace keel::detail::inline KEEL_MODE

#include <keel/libtorch/detail/body_end.inc>
