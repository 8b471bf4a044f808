// Definitions for preflight_wiring.hpp.
#pragma once

#include <ATen/ATen.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>

#include <algorithm>
#include <keel/core/out_of_memory.hpp>
#include <keel/diagnose/preflight_wiring.hpp>
#include <keel/metrics/number_format.hpp>
#include <set>
#include <string>
#include <type_traits>
#include <unordered_set>
#include <vector>

#include <keel/libtorch/detail/body_begin.inc>

namespace keel::detail::inline KEEL_MODE {

KEEL_BODY std::string first_names(std::vector<std::string> const& names) {
  constexpr std::size_t most = 4;
  std::string words;
  for (std::size_t i = 0; i < std::min(names.size(), most); ++i) words += (i > 0 ? ", " : "") + names[i];
  if (names.size() > most) words += " and " + std::to_string(names.size() - most) + " more";
  return words;
}

/// Returns true if all parameters are frozen: the module may then be in evaluation mode on purpose.
KEEL_BODY bool is_frozen_on_purpose(torch::nn::Module const& module) {
  auto const parameters = module.parameters();
  return !parameters.empty() &&
         std::none_of(parameters.begin(), parameters.end(), [](at::Tensor const& one) { return one.requires_grad(); });
}

KEEL_BODY std::vector<std::string> modules_left_in_evaluation(torch::nn::Module& model) {
  std::vector<std::string> found;
  std::vector<std::string> frozen;
  for (auto const& item : model.named_modules("", /*include_self=*/false)) {
    std::string const& name = item.key();
    torch::nn::Module const& module = *item.value();
    if (module.is_training()) continue;
    bool const inside =
        std::any_of(frozen.begin(), frozen.end(), [&](std::string const& outer) { return name.starts_with(outer + "."); });
    if (inside) continue;
    if (is_frozen_on_purpose(module)) {
      frozen.push_back(name);
      continue;
    }
    std::string const kind = module.name();
    if (kind.find("Dropout") != std::string::npos || kind.find("BatchNorm") != std::string::npos) found.push_back(name);
  }
  return found;
}

KEEL_BODY void check_modes(preflight_program& program, preflight_table& table) {
  torch::nn::Module& model = program.model();
  mode_scope const modes(model);
  constexpr char const* check = "training mode";
  auto const judge = [&](char const* when) {
    if (!model.is_training() && !is_frozen_on_purpose(model)) {
      table.failed(check,
                   std::string("the model is in evaluation mode ") + when +
                       ": dropout is off, and batch norm does not update its statistics",
                   "call model->train() before training and after each of your own evaluations");
      return false;
    }
    auto const left = modules_left_in_evaluation(model);
    if (left.empty()) return true;
    table.failed(check, first_names(left) + (left.size() == 1 ? " is" : " are") + " in evaluation mode " + when,
                 "call model->train(); freeze the parameters of modules that must stay in evaluation mode");
    return false;
  };
  if (!judge("before the first update")) return;
  program.loss({});
  if (judge("after a call of the loss function")) table.passed(check, "before and after a call of the loss function");
}

KEEL_BODY bool has_values(at::Tensor const& gradient) {
  if (!gradient.defined()) return false;
  at::Tensor const values = gradient.is_sparse() ? gradient._values() : gradient;
  return values.numel() > 0 && values.ne(0).any().item<bool>();
}

KEEL_BODY void check_gradients(preflight_program& program, preflight_table& table) {
  parameter_list const& parameters = program.parameters();
  constexpr char const* check = "gradients";
  std::vector<bool> defined(parameters.tensors.size(), false);
  std::vector<bool> nonzero(parameters.tensors.size(), false);
  std::vector<std::string> still;
  std::int64_t applied = 0;
  std::string why;
  constexpr std::size_t most = 6;
  program.with_step([&](tried_step& step) {
    // Several updates, because a factor initialized to zero, such as an adapter's second one, blocks the gradient of the others in the
    // first.
    for (std::size_t i = 0; i < most; ++i) {
      std::vector<tried_batch> const batches{{i % program.batches()}};
      tried_update const update = step.update(batches);
      if (!update.is_applied) {
        why = update.words;
        continue;
      }
      ++applied;
      for (std::size_t k = 0; k < parameters.tensors.size(); ++k) {
        at::Tensor const& gradient = parameters.tensors[k].grad();
        if (!gradient.defined()) continue;
        defined[k] = true;
        if (!nonzero[k]) nonzero[k] = has_values(gradient);
      }
    }
  });
  if (applied == 0) {
    table.failed(
        check, "none of " + std::to_string(most) + " updates was applied: " + why,
        "inspect the operation and row that the error of the first update names; try a lower loss scale or another precision");
    return;
  }
  std::vector<std::string> without, zero;
  std::size_t trained = 0;
  for (std::size_t k = 0; k < parameters.tensors.size(); ++k) {
    if (!parameters.tensors[k].requires_grad()) continue;
    ++trained;
    if (!defined[k]) without.push_back(parameters.names[k]);
    if (defined[k] && !nonzero[k]) zero.push_back(parameters.names[k]);
  }
  std::string const of = std::to_string(trained);
  if (!without.empty()) {
    table.failed(
        check, std::to_string(without.size()) + " of " + of + " trainable parameters have no gradient: " + first_names(without),
        "look for detach(), NoGradGuard, or a module that the forward pass does not use; or freeze them and remove them from "
        "the optimizer");
  } else if (!zero.empty()) {
    table.failed(check,
                 std::to_string(zero.size()) + " of " + of + " trainable parameters have a gradient of 0 in " +
                     std::to_string(applied) + " updates: " + first_names(zero),
                 "check the mask, the initialization and the activation after them");
  } else {
    table.passed(check, of + " trainable parameters have a gradient");
  }
  std::vector<std::string> at_rest;
  auto const& groups = program.optimizer().param_groups();
  for (std::size_t i = 0; i < groups.size(); ++i) {
    if (groups[i].has_options() && !(groups[i].options().get_lr() > 0.0) && !groups[i].params().empty())
      at_rest.push_back(std::to_string(i));
  }
  if (!at_rest.empty() && program.updates_so_far() == 0) {
    table.failed("rates", "parameter group " + first_names(at_rest) + " has a learning rate of 0",
                 "set the learning rate of each group above 0");
  }
}

/// Returns the leaves of a graph that a backward pass would give a gradient.
KEEL_BODY std::vector<at::Tensor> leaves_of(at::Tensor const& loss) {
  std::vector<at::Tensor> found;
  std::unordered_set<torch::autograd::Node const*> seen;
  // The type of grad_fn() differs between LibTorch versions.
  std::vector<std::remove_cvref_t<decltype(loss.grad_fn())>> open{loss.grad_fn()};
  while (!open.empty()) {
    auto const node = open.back();
    open.pop_back();
    if (!node || !seen.insert(node.get()).second) continue;
    if (auto const* const leaf = dynamic_cast<torch::autograd::AccumulateGrad const*>(node.get()))
      found.push_back(leaf->variable);
    for (auto const& edge : node->next_edges()) open.push_back(edge.function);
  }
  return found;
}

KEEL_BODY void check_other_leaves(preflight_program& program, preflight_table& table) {
  constexpr char const* check = "parameters";
  std::unordered_set<void const*> known;
  for (at::Tensor const& one : program.all_models().parameters()) known.insert(one.unsafeGetTensorImpl());
  // Parameters are leaves of every call; temporary leaves, such as inputs of a derivative, are new in each. The leaves of the first call
  // are kept alive so that their addresses are not reused.
  std::vector<at::Tensor> const first = leaves_of(program.loss({0}).mean);
  std::vector<at::Tensor> const second = leaves_of(program.loss({program.batches() - 1}).mean);
  std::vector<std::string> unknown_tensors;
  for (at::Tensor const& one : first) {
    bool const is_again =
        std::any_of(second.begin(), second.end(), [&](at::Tensor const& other) { return other.is_same(one); });
    if (is_again && known.count(one.unsafeGetTensorImpl()) == 0)
      unknown_tensors.push_back(c10::str("one of shape ", one.sizes()));
  }
  if (!unknown_tensors.empty()) {
    table.failed(
        check,
        "the loss depends on " + std::to_string(unknown_tensors.size()) + " tensor" + (unknown_tensors.size() == 1 ? "" : "s") +
            " with requires_grad that the model does not register, so nothing trains " +
            (unknown_tensors.size() == 1 ? "it: " : "them: ") + first_names(unknown_tensors),
        "call register_parameter or register_module, also for members of a std::vector; or call requires_grad_(false)");
    return;
  }
  std::size_t frozen = 0, trained = 0;
  for (at::Tensor const& one : program.model().parameters()) ++(one.requires_grad() ? trained : frozen);
  table.passed(check, std::to_string(trained) + " trainable, " + std::to_string(frozen) +
                          " frozen; the optimizer has all trainable ones, and the loss depends on no others");
}

KEEL_BODY void check_batches(preflight_program& program, preflight_table& table) {
  constexpr char const* check = "batches";
  batch_guard::settings settings = program.recipe().batch_guard;
  settings.kind = batch_guard::kind::check;
  batch_watch watch(settings);
  std::set<std::string> said;
  std::size_t of_one_class = 0, with_labels = 0;
  std::set<std::int64_t> classes;
  auto const is_serious = [](batch_problem what) {
    return what != batch_problem::rows_repeat && what != batch_problem::ids_never_seen &&
           what != batch_problem::labels_equal_inputs;
  };
  for (std::size_t i = 0; i < program.batches(); ++i) {
    batch_contents const contents = program.contents(i);
    for (batch_finding const& found : watch.look_at(contents)) {
      if (is_serious(found.what)) said.insert(found.words);
    }
    bool const one_label_a_row = contents.labels.size() == 1 && contents.labels[0].scalar_type() == at::kLong &&
                                 contents.labels[0].dim() == 1 && contents.labels[0].numel() >= 4;
    if (!one_label_a_row) continue;
    ++with_labels;
    at::Tensor const labels = contents.labels[0].cpu();
    std::int64_t const lowest = labels.min().item<std::int64_t>();
    of_one_class += lowest == labels.max().item<std::int64_t>() ? 1 : 0;
    classes.insert(lowest);
  }
  if (!said.empty()) {
    table.failed(check, *said.begin() + (said.size() > 1 ? " (and " + std::to_string(said.size() - 1) + " more findings)" : ""),
                 "fix the data, or describe it in keel::batch_guard::check<..>");
  } else if (with_labels >= 4 && 5 * of_one_class >= 4 * with_labels) {
    table.failed(check,
                 classes.size() == 1 ? std::string("all labels are the same")
                                     : std::to_string(of_one_class) + " of " + std::to_string(with_labels) +
                                           " batches have labels of only one class: the data is sorted, not shuffled",
                 "shuffle the data, for example with keel::shuffled_batches");
  } else {
    table.passed(check, std::to_string(program.batches()) + " checked");
  }
}

KEEL_BODY void check_inputs_and_labels(tried_passes const& passes, preflight_table& table) {
  constexpr char const* inputs = "inputs";
  constexpr char const* labels = "labels";
  std::size_t const count = passes.tensors.size();
  if (count == 0) {
    table.not_applicable(inputs, "this batch type does not list its tensors; add `void visit(auto& archive)` to it");
    table.not_applicable(labels, "same as inputs");
    return;
  }
  auto const last = passes.labels();
  bool any = false;
  bool varies = false;
  for (std::size_t i = 0; i < count; ++i) {
    if (last && i == *last) continue;
    any = any || passes.is_input[i];
    varies = varies || !drawn_from(passes.tensors[i], 1).equal(passes.tensors[i]);
  }
  if (any) {
    table.passed(inputs, passes.has_output() ? "the model's output changes with them" : "the loss changes with them");
  } else if (!varies) {
    table.not_applicable(inputs, "all values are equal");
  } else {
    table.failed(inputs,
                 std::string("the ") + (passes.has_output() ? "model's output" : "loss") + " does not change with the inputs",
                 "compute the loss from the batch that is passed to the function; look for a mask that hides all of it, dead "
                 "units, or weights of 0");
  }
  if (passes.is_autoencoder) {
    table.not_applicable(labels, "the inputs are the targets, as in an autoencoder");
  } else if (!last) {
    table.not_applicable(labels,
                         count > 1 ? "the last tensor of the batch is also an input of the model" : "the batch is one tensor");
  } else if (drawn_from(passes.tensors[*last], 1).equal(passes.tensors[*last])) {
    table.not_applicable(labels, "all values are equal");
  } else {
    tried_pass const other = passes.pass(passes.with(*last, drawn_from(passes.tensors[*last], 1)));
    if (passes.first.loss != other.loss) {
      table.passed(labels, "the loss changes with them");
    } else {
      table.failed(labels, "the loss does not change with the labels, which are the last tensor of the batch",
                   "compute the loss from the batch's labels; keel takes the last member of a batch as the labels");
    }
  }
}

/// Returns true if only the first row of the output changed, in one of the usual layouts of outputs.
KEEL_BODY bool stays_in_its_row(at::Tensor const& changed, std::int64_t rows) {
  for (std::int64_t dim = 0; dim < changed.dim(); ++dim) {
    std::int64_t const size = changed.size(dim);
    if (size % rows != 0) continue;
    std::int64_t const block = size / rows;
    at::Tensor const along = changed.transpose(0, dim).reshape({size, -1}).any(1);
    at::Tensor const first = at::arange(size) < block;
    at::Tensor const every = at::arange(size).remainder(rows) == 0;
    if (!along.logical_and(first.logical_not()).any().item<bool>()) return true;
    if (!along.logical_and(every.logical_not()).any().item<bool>()) return true;
  }
  return false;
}

KEEL_BODY void check_rows(tried_passes const& passes, preflight_table& table) {
  constexpr char const* check = "rows";
  if (!passes.has_output() || passes.rows < 2) {
    table.not_applicable(check, passes.rows < 2 ? "a batch has one row" : "the model's output cannot be found in the loss");
    return;
  }
  at::Tensor const& output = passes.first.operands.output;
  auto const divides = [&] {
    for (std::int64_t dim = 0; dim < output.dim(); ++dim) {
      if (output.size(dim) % passes.rows == 0) return true;
    }
    return false;
  };
  bool const compares_rows = output.dim() == 2 && output.size(0) == output.size(1) && output.size(0) % passes.rows == 0;
  if (!divides() || compares_rows) {
    table.not_applicable(check, compares_rows ? "the loss compares all pairs of rows" : "the output has no batch dimension");
    return;
  }
  mode_scope const modes(passes.program.all_models());
  bool const by_batch = normalises_over_a_batch(passes.program.all_models());
  if (by_batch) passes.program.all_models().eval();
  // Replaces the values at the first index of one dimension of all inputs, and returns the changes of the output.
  auto const with_another_first = [&](std::int64_t dim, std::int64_t size) {
    std::vector<at::Tensor> instead = passes.tensors;
    for (std::size_t i = 0; i < instead.size(); ++i) {
      if (!passes.is_input[i] || passes.is_fixed[i] || instead[i].dim() <= dim || instead[i].size(dim) != size) continue;
      instead[i] = instead[i].clone();
      instead[i].select(dim, 0).copy_(drawn_from(instead[i], 3).select(dim, 0));
    }
    tried_pass const other = passes.pass(instead);
    bool const same_shape = other.operands.output.defined() && other.operands.output.sizes() == output.sizes();
    return same_shape ? where_changed(output, other.operands.output) : at::Tensor();
  };
  at::Tensor const changed = with_another_first(0, passes.rows);
  if (!changed.defined()) {
    table.not_applicable(check, "the shape of the output changes with the inputs");
  } else if (!changed.any().item<bool>()) {
    table.not_applicable(check, "the output does not change with the first row");
  } else if (stays_in_its_row(changed, passes.rows)) {
    table.passed(check, "the output of a row depends only on that row");
  } else if (passes.first.operands.operations.count("aten::batch_norm") > 0 && !by_batch) {
    table.not_applicable(check, "the model normalizes over the batch");
  } else {
    // In time-first sequences the second dimension is the batch.
    at::Tensor const& input = passes.tensors[static_cast<std::size_t>(
        std::find(passes.is_input.begin(), passes.is_input.end(), true) - passes.is_input.begin())];
    std::int64_t const beside = input.dim() > 1 ? input.size(1) : 0;
    at::Tensor const of_second = beside > 1 ? with_another_first(1, beside) : at::Tensor();
    if (of_second.defined() && of_second.any().item<bool>() && stays_in_its_row(of_second, beside)) {
      table.passed(check, "the first dimension is time; entries of the second depend only on themselves");
      return;
    }
    table.failed(check, "changing the first row changes the outputs of other rows: the model mixes the rows of a batch",
                 "look for a view() or reshape() instead of a transpose(), and for a softmax or mean over the batch dimension");
  }
}

}  // namespace keel::detail::inline KEEL_MODE

#include <keel/libtorch/detail/body_end.inc>
