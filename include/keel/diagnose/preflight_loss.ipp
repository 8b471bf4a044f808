// Definitions for preflight_loss.hpp.
#pragma once

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <keel/diagnose/preflight_loss.hpp>
#include <keel/lora/lora.hpp>
#include <keel/metrics/number_format.hpp>
#include <numbers>
#include <string>

#include <keel/libtorch/detail/body_begin.inc>

namespace keel::detail::inline KEEL_MODE {

/// Returns the value of the loss operation if it is a mean, which excludes other terms of the loss; else the program's loss.
KEEL_BODY double own_loss(tried_pass const& one) {
  at::Tensor const& value = one.operands.value;
  return value.defined() && value.numel() == 1 ? value.item<double>() : one.loss;
}

KEEL_BODY bool is_of_classes(std::string const& operation) {
  return operation == "aten::cross_entropy_loss" || operation.starts_with("aten::nll_loss") || operation == "aten::log_softmax";
}

/// Returns logits or log-probabilities as [values, classes]; undefined if there are no classes.
KEEL_BODY at::Tensor by_class(tried_pass const& one) {
  at::Tensor const& output = one.operands.output;
  if (!output.defined() || output.dim() < 1 || output.numel() == 0) return {};
  bool const classes_are_last = output.dim() <= 2 || one.operands.operation == "aten::log_softmax";
  at::Tensor const turned = classes_are_last ? output : output.transpose(1, -1);
  std::int64_t const classes = turned.size(-1);
  return classes < 2 ? at::Tensor() : turned.reshape({-1, classes}).to(at::kCPU, at::kDouble);
}

KEEL_BODY void check_first_loss(tried_passes const& passes, preflight_table& table) {
  constexpr char const* check = "loss at the start";
  std::string const& operation = passes.first.operands.operation;
  double const loss = own_loss(passes.first);
  if (!std::isfinite(passes.first.loss)) {
    table.failed(check, formatted("the loss is %g", passes.first.loss),
                 "check the batch, the initialization and the operation that the error of the first update names");
    return;
  }
  if (passes.program.updates_so_far() > 0) {
    table.not_applicable(check, "the run has already started");
    return;
  }
  std::int64_t frozen = 0, trained = 0;
  for (at::Tensor const& one : passes.program.model().parameters()) (one.requires_grad() ? trained : frozen) += one.numel();
  if (frozen > trained || !lora_layers(passes.program.model()).empty()) {
    table.not_applicable(check, "parameters are frozen, as in a pretrained model");
    return;
  }
  constexpr char const* fix =
      "use a mean instead of a sum; normalize inputs to mean 0 and standard deviation 1; initialize the last layer with "
      "smaller weights";
  if (is_of_classes(operation)) {
    at::Tensor const logits = by_class(passes.first);
    if (!logits.defined()) {
      table.not_applicable(check, "the loss has no class dimension");
      return;
    }
    double const chance = std::log(static_cast<double>(logits.size(1)));
    std::string const words = formatted("the loss is %.4g; a uniform guess among %lld classes has %.4g", loss,
                                        static_cast<long long>(logits.size(1)), chance);
    if (loss > chance + std::max(1.0, 0.6 * chance)) {
      table.failed(check, words, fix);
    } else {
      table.passed(check, words + (loss < 0.6 * chance ? ": as for a pretrained model, or for labels that leak" : ""));
    }
    return;
  }
  if (operation.starts_with("aten::binary_cross_entropy")) {
    double const chance = std::numbers::ln2;
    std::string const words = formatted("the loss is %.4g; a uniform guess has %.4g", loss, chance);
    if (loss > 3.0 * chance) {
      table.failed(check, words, fix);
    } else {
      table.passed(check, words);
    }
    return;
  }
  at::Tensor const target = passes.first.operands.target;
  if (operation == "aten::mse_loss" && target.defined() && target.numel() >= 8 && passes.first.operands.value.defined() &&
      passes.first.operands.value.numel() == 1) {
    at::Tensor const values = target.to(at::kCPU, at::kDouble);
    double const mean = values.mean().item<double>();
    double const square = values.pow(2).mean().item<double>();
    double const variance = square - mean * mean;
    std::string const words = formatted("the loss is %.4g; the mean square of the targets is %.4g", loss, square);
    if (square > 0.0 && loss > 10.0 * square) {
      table.failed(check, words, fix);
    } else {
      table.passed(check, words);
      if (square > 0.0 && variance < 0.01 * square)
        table.advise(formatted(
            "the targets have mean %.3g and standard deviation %.3g: subtract the mean and divide by the standard deviation",
            mean, std::sqrt(std::max(0.0, variance))));
    }
    return;
  }
  table.not_applicable(check, "keel has no reference value for this loss");
}

KEEL_BODY void check_loss_and_output(tried_passes const& passes, preflight_table& table) {
  constexpr char const* check = "loss and output";
  std::string const& operation = passes.first.operands.operation;
  std::string const name = operation.starts_with("aten::") ? operation.substr(6) : operation;
  at::Tensor const& raw = passes.first.operands.output;
  if (!raw.defined() || raw.numel() < 2) {
    table.not_applicable(check, "the model's output cannot be found in the loss");
    return;
  }
  at::Tensor const output = raw.to(at::kCPU, at::kDouble);
  bool const within_one = output.ge(0).logical_and(output.le(1)).all().item<bool>();
  constexpr std::int64_t enough = 16;
  if (is_of_classes(operation)) {
    at::Tensor const classes = by_class(passes.first);
    if (!classes.defined()) {
      table.not_applicable(check, "the loss has no class dimension");
      return;
    }
    bool const sums_to_one = within_one && (classes.sum(1) - 1.0).abs().max().item<double>() < 1e-2;
    if (operation.starts_with("aten::nll_loss")) {
      bool const is_logarithm = classes.exp().sum(1).sub(1.0).abs().max().item<double>() < 5e-2;
      if (sums_to_one) {
        table.failed(check, name + " expects log-probabilities, but the output is probabilities",
                     "use log_softmax instead of softmax");
      } else if (!is_logarithm) {
        table.failed(check, name + " expects log-probabilities, but the output is not",
                     "use cross_entropy_loss, or apply log_softmax first");
      } else {
        table.passed(check, name + " expects log-probabilities and gets them");
      }
      return;
    }
    double const zeros = classes.eq(0).to(at::kDouble).mean().item<double>();
    if (sums_to_one) {
      table.failed(check, "softmax twice: " + name + " applies one, but the output is already probabilities",
                   "pass the logits, without a softmax");
    } else if (classes.numel() >= enough && output.min().item<double>() == 0.0 && zeros > 0.15) {
      table.failed(check, formatted("no logit is below 0 and %.0f %% of them are 0, as after a ReLU", 100.0 * zeros),
                   "remove the activation after the last layer");
    } else {
      table.passed(check, name + " expects logits, and the output is not probabilities");
    }
    return;
  }
  if (operation == "aten::binary_cross_entropy_with_logits") {
    if (within_one && output.numel() >= enough) {
      table.failed(check, "sigmoid twice: " + name + " applies one, but all outputs are between 0 and 1",
                   "pass the logits, without a sigmoid");
    } else {
      table.passed(check, name + " expects logits, and the output is not probabilities");
    }
    return;
  }
  at::Tensor const& target = passes.first.operands.target;
  if (target.defined() && target.numel() >= 8 &&
      (operation == "aten::mse_loss" || operation == "aten::l1_loss" || operation == "aten::smooth_l1_loss" ||
       operation == "aten::huber_loss" || operation == "aten::sub")) {
    double const zeros = output.eq(0).to(at::kDouble).mean().item<double>();
    bool const is_positive = output.ge(0).all().item<bool>();
    bool const wants_negative = target.lt(0).any().item<bool>();
    if (target.sizes() != raw.sizes()) {
      table.failed(check,
                   c10::str("the output has shape ", raw.sizes(), " and the target ", target.sizes(),
                            ": they are broadcast against each other"),
                   "give both the same shape, for example with target.unsqueeze(1) or output.squeeze(1)");
    } else if (is_positive && zeros > 0.15 && wants_negative) {
      table.failed(check,
                   formatted("no output is below 0 and %.0f %% of them are 0, as after a ReLU, but some targets are below 0",
                             100.0 * zeros),
                   "remove the activation after the last layer");
    } else {
      table.passed(check, "output and target have the same shape");
    }
    return;
  }
  table.not_applicable(check, "keel does not know what this loss expects");
}

}  // namespace keel::detail::inline KEEL_MODE

#include <keel/libtorch/detail/body_end.inc>
