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

namespace keel::inline KEEL_MODE {

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

/// Returns the module of a model argument.
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

/// The optimizer's parameters, in its order, with the names that the model gives them.
struct parameter_list {
  std::vector<at::Tensor> tensors;
  std::vector<std::string> names;
  at::DeviceType device = at::kCPU;
  bool one_device = true;  ///< all parameters are on the same device
  model::settings seen{};  ///< the facts that are detected in the model
};

/// Removes duplicates within a group. They arise if a module registers one tensor under two names and the group was made from
/// model->parameters(); the optimizer would step such a parameter twice.
void hold_each_once(torch::optim::Optimizer& optimizer);

/// Throws error (E11) if the optimizer does not fit the model: it holds a tensor that is not a parameter of the model, one in two groups,
/// one that would not be trained, or a complex one. Removes duplicates within a group.
parameter_list collect_parameters(torch::nn::Module& model, torch::optim::Optimizer& optimizer);

/// Unfreezes the parameters in `which` that the list does not contain yet: sets requires_grad and adds them to the optimizer as a group
/// with this rate and the other options of the first group. Returns false if the list contains all of them. Throws as collect_parameters,
/// and then changes nothing.
bool add_trained_group(torch::nn::Module& model, torch::optim::Optimizer& optimizer, parameter_list& list,
                       std::vector<at::Tensor> const& which, double rate);
/// Freezes the optimizer's last group and removes it with its state. Returns its number of parameters.
std::size_t remove_trained_group(torch::nn::Module& model, torch::optim::Optimizer& optimizer, parameter_list& list);

/// Throws error (E11) if the optimizer's groups differ from the list. Parameters that were added elsewhere would never be cleared, checked
/// or saved.
void require_same_groups(parameter_list const& list, torch::optim::Optimizer& optimizer);

}  // namespace keel::inline KEEL_MODE

#ifndef KEEL_COMPILED
#include <keel/core/parameters.ipp>
#endif
