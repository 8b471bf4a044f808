// Definitions for training_mode.hpp.
#pragma once

#include <keel/core/error.hpp>
#include <keel/step/training_mode.hpp>
#include <string>

#include <keel/libtorch/detail/body_begin.inc>

namespace keel::detail::inline KEEL_MODE {

KEEL_BODY void require_training_mode(torch::nn::Module const& model) {
  if (model.is_training()) return;
  auto const matters = [](torch::nn::Module const& one) {
    std::string const& type = one.name();
    bool const tracks = one.named_buffers(/*recurse=*/false).contains("running_mean");
    return type.find("Dropout") != std::string::npos || type.find("BatchNorm") != std::string::npos ||
           (tracks && type.find("InstanceNorm") != std::string::npos);
  };
  std::string first = matters(model) ? model.name() : "";
  // include_self=true would need the model to be held by a shared_ptr.
  for (auto const& one : model.named_modules("", /*include_self=*/false)) {
    // After eval() every submodule is in evaluation mode. If one is still in training mode, such as a head on a frozen backbone, the mix is
    // deliberate.
    if (one.value()->is_training()) return;
    if (first.empty() && matters(*one.value())) first = one.key();
  }
  if (first.empty()) return;
  throw error("E23",
              "the model is in evaluation mode: it would train without dropout and with frozen batch-norm statistics (its " +
                  first +
                  "). Call model->train() before training and after your own evaluation, or use run.evaluate. To keep single "
                  "layers in evaluation mode, such as a frozen batch norm, call eval() on those layers after model->train().");
}

}  // namespace keel::detail::inline KEEL_MODE

#include <keel/libtorch/detail/body_end.inc>
