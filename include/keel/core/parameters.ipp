// Definitions for parameters.hpp.
#pragma once

#include <keel/core/parameters.hpp>
#include <keel/libtorch/compatibility.hpp>

#include <keel/libtorch/detail/body_begin.inc>

namespace keel::inline KEEL_MODE {

KEEL_BODY void hold_each_once(torch::optim::Optimizer& optimizer) {
  for (auto& group : optimizer.param_groups()) {
    std::unordered_set<c10::TensorImpl*> held;
    auto& all = group.params();
    all.erase(std::remove_if(all.begin(), all.end(),
                             [&](at::Tensor const& one) { return !held.insert(one.unsafeGetTensorImpl()).second; }),
              all.end());
  }
}

KEEL_BODY parameter_list collect_parameters(torch::nn::Module& model, torch::optim::Optimizer& optimizer) {
  std::unordered_map<c10::TensorImpl*, std::string> name_of;
  for (auto const& item : model.named_parameters()) name_of.emplace(item.value().unsafeGetTensorImpl(), item.key());

  hold_each_once(optimizer);
  parameter_list list;
  std::unordered_set<c10::TensorImpl*> held;
  for (auto const& group : optimizer.param_groups()) {
    for (at::Tensor const& parameter : group.params()) {
      auto const found = name_of.find(parameter.unsafeGetTensorImpl());
      if (found == name_of.end()) {
        throw error("E11",
                    "the optimizer contains a tensor that is not a parameter of the model. Build the optimizer from "
                    "model->parameters(), after moving the model to its device. For several models, or your own tensors: "
                    "keel::bundle model{{\"encoder\", encoder}, {\"pixels\", pixels}}; optimizer(model.parameters(), ..);");
      }
      if (!held.insert(parameter.unsafeGetTensorImpl()).second) {
        throw error("E11", "parameter " + found->second + " is in the optimizer twice. Give each parameter to one group.");
      }
      if (parameter.is_complex()) {
        throw error("E11", "parameter " + found->second +
                               " is complex, but norms, clipping and keel's optimizers support only real numbers. Store its "
                               "real and imaginary parts as one real parameter, and use at::view_as_complex.");
      }
      list.tensors.push_back(parameter);
      list.names.push_back(found->second);
    }
  }
  std::unordered_set<void const*> memory;
  for (auto const& item : model.named_parameters()) {
    at::Tensor const& parameter = item.value();
    // Frozen parameters have no gradients that could lose digits.
    list.seen.half_parameters |= parameter.requires_grad() && parameter.scalar_type() == at::kHalf;
    list.seen.bfloat16_parameters |= parameter.requires_grad() && parameter.scalar_type() == at::kBFloat16;
    bool const may_share = parameter.numel() > 0 && parameter.has_storage();
    // The memory of a sharded parameter is freed.
    bool const is_freed = may_share && parameter.storage().nbytes() == 0;
    void const* const place = !may_share ? nullptr
                              : is_freed ? parameter.storage().unsafeGetStorageImpl()
                                         : parameter.data_ptr();
    list.seen.tied_weights |= may_share && !memory.insert(place).second;
    if (!parameter.requires_grad()) {
      list.seen.partly_frozen = true;
    } else if (held.count(parameter.unsafeGetTensorImpl()) == 0) {
      throw error("E11", "parameter " + item.key() +
                             " requires grad but is in no group of the optimizer, so it would never train. Add it, or call "
                             "requires_grad_(false) on it.");
    }
  }
  if (list.tensors.empty()) {
    throw error("E11", "the optimizer has no parameters. Build it from model->parameters().");
  }
  list.device = list.tensors.front().device().type();
  for (at::Tensor const& parameter : list.tensors) list.one_device &= parameter.device() == list.tensors.front().device();
  for (auto const& module : model.modules(/*include_self=*/false)) {
    // In evaluation mode the statistics are constants.
    bool const tracks = module->named_buffers(/*recurse=*/false).contains("running_mean");
    bool const normalizes = module->name().find("BatchNorm") != std::string::npos ||
                            (tracks && module->name().find("InstanceNorm") != std::string::npos);
    list.seen.batch_norm |= module->is_training() && normalizes;
    list.seen.dropout |= module->name().find("Dropout") != std::string::npos;
  }
  return list;
}

KEEL_BODY bool add_trained_group(torch::nn::Module& model, torch::optim::Optimizer& optimizer, parameter_list& list,
                                 std::vector<at::Tensor> const& which, double rate) {
  std::vector<at::Tensor> added;
  for (at::Tensor const& one : which) {
    bool const known =
        std::any_of(list.tensors.begin(), list.tensors.end(), [&](at::Tensor const& other) { return other.is_same(one); });
    if (!known) added.push_back(one);
  }
  if (added.empty()) return false;
  for (at::Tensor& one : added) one.requires_grad_(true);
  torch::optim::OptimizerParamGroup group(added, optimizer.param_groups().front().options().clone());
  group.options().set_lr(rate);
  optimizer.add_param_group(group);
  try {
    list = collect_parameters(model, optimizer);
  } catch (...) {
    optimizer.param_groups().pop_back();
    for (at::Tensor& one : added) one.requires_grad_(false);
    throw;
  }
  return true;
}

KEEL_BODY std::size_t remove_trained_group(torch::nn::Module& model, torch::optim::Optimizer& optimizer, parameter_list& list) {
  auto const tensors = optimizer.param_groups().back().params();
  for (at::Tensor const& tensor : tensors) {
    tensor.requires_grad_(false);
    tensor.mutable_grad() = at::Tensor();
    optimizer.state().erase(libtorch::state_key(tensor));
  }
  optimizer.param_groups().pop_back();
  list = collect_parameters(model, optimizer);
  return tensors.size();
}

KEEL_BODY void require_same_groups(parameter_list const& list, torch::optim::Optimizer& optimizer) {
  std::size_t index = 0;
  bool same = true;
  for (auto const& group : optimizer.param_groups()) {
    for (at::Tensor const& parameter : group.params()) {
      same = same && index < list.tensors.size() && parameter.is_same(list.tensors[index]);
      ++index;
    }
  }
  if (same && index == list.tensors.size()) return;
  throw error("E11", "the optimizer's parameter groups changed after the step was built: it had " +
                         std::to_string(list.tensors.size()) + " parameters and now has " + std::to_string(index) +
                         ". Register the modules and call add_param_group first, then build the trainer or step.");
}

}  // namespace keel::inline KEEL_MODE

#include <keel/libtorch/detail/body_end.inc>
