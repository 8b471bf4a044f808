// Combines several models or trainable tensors into the single module that a step or trainer takes:
//
//     keel::bundle model{{"encoder", encoder}, {"decoder", decoder}};       one optimizer over both
//     keel::bundle image{{"pixels", pixels}};                               style transfer, an adversarial example, a learned temperature
//     torch::optim::Adam optimizer(model.parameters(), 1e-3);
//
// The modules are shared: the program keeps calling them through its own variables. A bundle has no forward().
#pragma once

#include <keel/libtorch/ivalue_first.hpp>

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <concepts>
#include <initializer_list>
#include <keel/core/error.hpp>
#include <memory>
#include <string>
#include <utility>

namespace keel::inline KEEL_MODE {

/// A module that holds several named modules and tensors.
class bundle : public torch::nn::Module {
 public:
  /// A named entry: a module holder such as torch::nn::Linear, a shared pointer to a module, or a tensor.
  class part {
   public:
    /// Constructs an entry from a shared pointer to a module.
    template <std::derived_from<torch::nn::Module> Module>
    part(std::string name, std::shared_ptr<Module> module) : name_(std::move(name)), module_(std::move(module)) {}
    /// Constructs an entry from a module holder such as torch::nn::Linear.
    template <class Holder>
      requires requires(Holder const& holder) {
        { holder.ptr() } -> std::convertible_to<std::shared_ptr<torch::nn::Module>>;
      }
    part(std::string name, Holder const& holder) : part(std::move(name), std::shared_ptr<torch::nn::Module>(holder.ptr())) {}
    /// Constructs an entry from a tensor. It is trained only if it requires grad.
    part(std::string name, at::Tensor tensor) : name_(std::move(name)), tensor_(std::move(tensor)) {}

   private:
    friend bundle;
    std::string name_;
    std::shared_ptr<torch::nn::Module> module_;
    at::Tensor tensor_;
  };

  /// Registers each part under its name. Throws error (E11) for a duplicate or empty name, a name with a dot, an empty part,
  /// and a tensor that is not a leaf.
  bundle(std::initializer_list<part> parts) : torch::nn::Module("bundle") {
    for (part const& one : parts) add(one);
  }
  bundle(bundle const&) = delete;
  bundle& operator=(bundle const&) = delete;

 private:
  void add(part const& one) {
    auto const fail = [&](char const* words) {
      throw error("E11", "the part \"" + one.name_ + "\" of a keel::bundle " + words);
    };
    if (one.name_.empty() || one.name_.find('.') != std::string::npos)
      fail("needs a name without a dot, which checkpoints use. Name it, for example \"encoder\".");
    if (named_children().contains(one.name_) || named_parameters(false).contains(one.name_))
      fail("appears twice. Give each part its own name.");
    if (one.module_ != nullptr) {
      register_module(one.name_, one.module_);
    } else if (one.tensor_.defined()) {
      if (!one.tensor_.is_leaf()) fail("is not a leaf tensor. Pass tensor.detach().requires_grad_().");
      register_parameter(one.name_, one.tensor_, one.tensor_.requires_grad());
    } else {
      fail("is empty. Pass a module or a tensor.");
    }
  }
};

}  // namespace keel::inline KEEL_MODE
