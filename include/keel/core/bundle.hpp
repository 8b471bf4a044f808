// Several models, or tensors that are trained themselves, as the one module that a step or trainer takes:
//
//     keel::bundle model{{"encoder", encoder}, {"decoder", decoder}};       one optimizer over both
//     keel::bundle image{{"pixels", pixels}};                               style transfer, an adversarial example, a learned temperature
//     torch::optim::Adam optimizer(model.parameters(), 1e-3);
//
// It shares them with the program, which calls them by their own names. Left out: a forward(), which only the program knows.
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

/// Several models and tensors as one module.
class bundle : public torch::nn::Module {
 public:
  /// One of them: a module holder such as torch::nn::Linear, a shared pointer to a module, or a tensor.
  class part {
   public:
    /// A module, under this name.
    template <std::derived_from<torch::nn::Module> Module>
    part(std::string name, std::shared_ptr<Module> module) : name_(std::move(name)), module_(std::move(module)) {}
    /// A module holder, such as torch::nn::Linear.
    template <class Holder>
      requires requires(Holder const& holder) {
        { holder.ptr() } -> std::convertible_to<std::shared_ptr<torch::nn::Module>>;
      }
    part(std::string name, Holder const& holder) : part(std::move(name), std::shared_ptr<torch::nn::Module>(holder.ptr())) {}
    /// A tensor, which is trained where it requires grad.
    part(std::string name, at::Tensor tensor) : name_(std::move(name)), tensor_(std::move(tensor)) {}

   private:
    friend bundle;
    std::string name_;
    std::shared_ptr<torch::nn::Module> module_;
    at::Tensor tensor_;
  };

  /// Throws error (E11) for a name that stands twice, is empty or has a point in it, for no module, and for a tensor that no optimizer
  /// can train because it was computed from others.
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
      fail("needs a name without a point, by which checkpoints know it. Give it one, such as \"encoder\".");
    if (named_children().contains(one.name_) || named_parameters(false).contains(one.name_))
      fail("stands there twice. Give each part its own name.");
    if (one.module_ != nullptr) {
      register_module(one.name_, one.module_);
    } else if (one.tensor_.defined()) {
      if (!one.tensor_.is_leaf()) fail("is a result of other tensors. Pass tensor.detach().requires_grad_().");
      register_parameter(one.name_, one.tensor_, one.tensor_.requires_grad());
    } else {
      fail("is empty. Pass a module or a tensor.");
    }
  }
};

}  // namespace keel::inline KEEL_MODE
