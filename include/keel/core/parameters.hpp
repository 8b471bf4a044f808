// The parameters that a step updates, with the names that the model gives them. A parameter that would silently not train,
// and an optimizer that holds other tensors, are errors.
#pragma once

#include <keel/libtorch/ivalue_first.hpp>

#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <keel/core/error.hpp>
#include <keel/policy/model.hpp>
#include <memory>
#include <string>
#include <type_traits>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

namespace keel {

/// A module, a module holder such as torch::nn::Linear, or a shared pointer to a module.
inline torch::nn::Module& as_module(torch::nn::Module& model) { return model; }
template <class Holder>
  requires requires(Holder const& holder) {
    { *holder.ptr() } -> std::convertible_to<torch::nn::Module const&>;
  }
torch::nn::Module& as_module(Holder& model) {
  return *model.ptr();
}
template <std::derived_from<torch::nn::Module> Module>
torch::nn::Module& as_module(std::shared_ptr<Module> const& model) {
  return *model;
}

/// The module that a model argument stands for, of which facts are known.
template <class Model>
struct module_type {
  using type = Model;
};
template <class Holder>
  requires requires(Holder const& holder) {
    { *holder.ptr() } -> std::convertible_to<torch::nn::Module const&>;
  }
struct module_type<Holder> {
  using type = std::remove_cvref_t<decltype(*std::declval<Holder&>().ptr())>;
};
template <class Module>
struct module_type<std::shared_ptr<Module>> {
  using type = Module;
};
template <class Model>
using module_of = typename module_type<std::remove_cv_t<Model>>::type;

/// The optimizer's parameters in its order, named by the model.
struct parameter_list {
  std::vector<at::Tensor> tensors;
  std::vector<std::string> names;
  at::DeviceType device = at::kCPU;
  bool one_device = true;  ///< all of them are on the same one
  model::settings seen{};  ///< the facts that a look at the model shows
};

/// Takes out what a group holds twice, as it does where a module registers one tensor under two names and the group was made of
/// model->parameters(): the optimizer would step such a parameter twice.
inline void hold_each_once(torch::optim::Optimizer& optimizer) {
  for (auto& group : optimizer.param_groups()) {
    std::unordered_set<c10::TensorImpl*> held;
    auto& all = group.params();
    all.erase(std::remove_if(all.begin(), all.end(),
                             [&](at::Tensor const& one) { return !held.insert(one.unsafeGetTensorImpl()).second; }),
              all.end());
  }
}

/// Throws error (E11) if the optimizer does not fit the model: a tensor that is not one of its parameters, one in two groups, one
/// that would not be trained, a complex one. A parameter that is twice in one group stays there once.
inline parameter_list collect_parameters(torch::nn::Module& model, torch::optim::Optimizer& optimizer) {
  std::unordered_map<c10::TensorImpl*, std::string> name_of;
  for (auto const& item : model.named_parameters()) name_of.emplace(item.value().unsafeGetTensorImpl(), item.key());

  hold_each_once(optimizer);
  parameter_list list;
  std::unordered_set<c10::TensorImpl*> held;
  for (auto const& group : optimizer.param_groups()) {
    for (at::Tensor const& parameter : group.params()) {
      auto const found = name_of.find(parameter.unsafeGetTensorImpl());
      if (found == name_of.end()) {
        throw error(
            "E11",
            "the optimizer holds a tensor that is not a parameter of the model. Build it from model->parameters(), after the "
            "model was moved to its device.");
      }
      if (!held.insert(parameter.unsafeGetTensorImpl()).second) {
        throw error("E11", "parameter " + found->second + " is in the optimizer twice. Give each parameter to one group.");
      }
      if (parameter.is_complex()) {
        throw error("E11",
                    "parameter " + found->second +
                        " is complex, and norms, clipping and the optimizers here are of real "
                        "numbers. Keep its real and imaginary parts as one real parameter, and use at::view_as_complex.");
      }
      list.tensors.push_back(parameter);
      list.names.push_back(found->second);
    }
  }
  std::unordered_set<void const*> memory;
  for (auto const& item : model.named_parameters()) {
    at::Tensor const& parameter = item.value();
    // Frozen ones have no gradients to lose digits of.
    list.seen.half_parameters |= parameter.requires_grad() && parameter.scalar_type() == at::kHalf;
    list.seen.bfloat16_parameters |= parameter.requires_grad() && parameter.scalar_type() == at::kBFloat16;
    list.seen.tied_weights |= parameter.numel() > 0 && !memory.insert(parameter.data_ptr()).second;
    if (!parameter.requires_grad()) {
      list.seen.partly_frozen = true;
    } else if (held.count(parameter.unsafeGetTensorImpl()) == 0) {
      throw error("E11", "parameter " + item.key() +
                             " requires grad but is in no group of the optimizer, so it would never train. Add it, or call "
                             "requires_grad_(false) on it.");
    }
  }
  if (list.tensors.empty()) {
    throw error("E11", "the optimizer holds no parameters. Build it from model->parameters().");
  }
  list.device = list.tensors.front().device().type();
  for (at::Tensor const& parameter : list.tensors) list.one_device &= parameter.device() == list.tensors.front().device();
  for (auto const& module : model.modules(/*include_self=*/false)) {
    // In evaluation mode its statistics are constants.
    bool const tracks = module->named_buffers(/*recurse=*/false).contains("running_mean");
    bool const normalizes = module->name().find("BatchNorm") != std::string::npos ||
                            (tracks && module->name().find("InstanceNorm") != std::string::npos);
    list.seen.batch_norm |= module->is_training() && normalizes;
    list.seen.dropout |= module->name().find("Dropout") != std::string::npos;
  }
  return list;
}

/// Throws error (E11) where the optimizer's groups are not those of the list any more: what was added would never be cleared,
/// checked or saved.
inline void require_same_groups(parameter_list const& list, torch::optim::Optimizer& optimizer) {
  std::size_t index = 0;
  bool same = true;
  for (auto const& group : optimizer.param_groups()) {
    for (at::Tensor const& parameter : group.params()) {
      same = same && index < list.tensors.size() && parameter.is_same(list.tensors[index]);
      ++index;
    }
  }
  if (same && index == list.tensors.size()) return;
  throw error("E11", "the optimizer's parameter groups changed after the step was built: it held " +
                         std::to_string(list.tensors.size()) + " parameters and holds " + std::to_string(index) +
                         ". Register the modules and call add_param_group first, then build the trainer or step.");
}

}  // namespace keel
