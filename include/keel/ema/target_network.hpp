// A target network: a second model that slowly follows the trained one, as in actor-critic methods and Q-learning.
//     keel::target_network target{critic, target_critic, 0.005};      // copies the critic's parameters and buffers into target_critic
//     run.register_state("target", target);                           // saved, resumed, and restored when an update is skipped
//     ..
//     if (critic_part.update(batch, loss_of).updated()) target.follow();
// Polyak averaging (Lillicrap et al. 2016, "DDPG"): target <- (1 - rate) * target + rate * model. A rate of 1 copies, as every N updates in
// Mnih et al. 2015. For an average to evaluate and save with the model, use keel::ema.
#pragma once

#include <keel/libtorch/ivalue_first.hpp>

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <torch/nn/module.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <keel/core/error.hpp>
#include <keel/core/parameters.hpp>
#include <string>
#include <utility>
#include <vector>

namespace keel::inline KEEL_MODE {

/// Updates a copy of a model that follows it slowly.
class target_network {
 public:
  /// Copies the model to the target. Both must outlive this object; sets requires_grad of the target to false. `rate`: above 0, at most 1.
  /// Throws error: E12 for another rate, E11 if the models do not have the same tensors.
  template <class Model, class Target>
  target_network(Model& model, Target& target, double rate) : target_network(as_module(model), as_module(target), rate, 0) {}

  /// Moves the target's parameters by `rate` towards the model's. Copies buffers, such as running statistics, and integers.
  void follow() { move(rate_); }
  /// Copies the model to the target.
  void copy() { move(1.0); }
  /// Returns the number of follow() and copy() calls.
  std::int64_t followed() const { return followed_; }

  template <class Archive>
  void visit(Archive& archive) {
    archive("followed", followed_);
    // Loads into the target's existing tensors, which the program uses.
    for (std::size_t i = 0; i < names_.size(); ++i) {
      at::Tensor held = to_[i];
      archive(names_[i].c_str(), held);
      if (held.is_same(to_[i])) continue;
      at::NoGradGuard const no_grad;
      to_[i].copy_(held);
    }
  }

 private:
  target_network(torch::nn::Module& model, torch::nn::Module& target, double rate, int /*checked*/) : rate_(rate) {
    if (!(rate > 0.0 && rate <= 1.0))
      throw error("E12", "a target network follows at a rate above 0 and at most 1, and not at " + std::to_string(rate) +
                             ". Use 0.005, or 1 to copy.");
    auto const pair = [&](auto const& from, auto const& to, bool is_parameter) {
      for (auto const& item : from) {
        auto const* const found = to.find(item.key());
        if (found == nullptr || found->sizes() != item.value().sizes() || found->scalar_type() != item.value().scalar_type() ||
            from.size() != to.size())
          throw error("E11", "the target network lacks " + item.key() +
                                 ", or has it in another shape or dtype. Build it as the model is built.");
        if (found->is_same(item.value()))
          throw error("E11", "the target network is the model itself: they share " + item.key() + ". Build a second model.");
        names_.push_back(item.key());
        from_.push_back(item.value().detach());
        to_.push_back(found->detach());
        averages_.push_back(is_parameter && item.value().is_floating_point());
      }
    };
    pair(model.named_parameters(), target.named_parameters(), true);
    pair(model.named_buffers(), target.named_buffers(), false);
    for (at::Tensor const& one : target.parameters()) one.requires_grad_(false);
    move(1.0);
    followed_ = 0;
  }

  void move(double rate) {
    at::NoGradGuard const no_grad;
    for (std::size_t i = 0; i < from_.size(); ++i) {
      if (averages_[i] && rate != 1.0) {
        to_[i].mul_(1.0 - rate).add_(from_[i], rate);
      } else {
        to_[i].copy_(from_[i]);
      }
    }
    ++followed_;
  }

  double rate_;
  std::vector<std::string> names_;
  std::vector<at::Tensor> from_, to_;
  std::vector<bool> averages_;
  std::int64_t followed_ = 0;
};

}  // namespace keel::inline KEEL_MODE
