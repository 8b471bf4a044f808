// The bodies of training_mode.hpp.
#pragma once

#include <keel/core/error.hpp>
#include <keel/step/training_mode.hpp>

#include <keel/core/detail/body_begin.inc>

namespace keel::detail::inline KEEL_MODE {

KEEL_BODY void require_training_mode(torch::nn::Module const& model, parameter_list const& parameters, bool& was_training) {
  bool const trains = model.is_training();
  if (!trains && was_training && (parameters.seen.dropout || parameters.seen.batch_norm)) {
    throw error(
        "E23",
        "the model was put into evaluation mode since the last update, and would train without dropout and with the batch "
        "statistics of before. Call model->train() behind your own test, or use run.evaluate; to train in evaluation "
        "mode on purpose, put the model into it before the step is built.");
  }
  was_training = was_training || trains;
}

}  // namespace keel::detail::inline KEEL_MODE

#include <keel/core/detail/body_end.inc>
