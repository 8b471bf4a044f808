// Definitions for moving_average.hpp.
#pragma once

#include <keel/libtorch/ivalue_first.hpp>

#include <ATen/ops/isfinite.h>

#include <keel/checkpoint/model_state.hpp>
#include <keel/checkpoint/safetensors.hpp>
#include <keel/ema/moving_average.hpp>
#include <keel/recompute/unit_parameters.hpp>

#include <keel/libtorch/detail/body_begin.inc>

namespace keel::detail::inline KEEL_MODE {

inline at::Tensor first_average(at::Tensor const& parameter) {
  return is_narrow(parameter) ? parameter.detach().to(at::kFloat, false, true) : parameter.detach().clone();
}

}  // namespace keel::detail::inline KEEL_MODE

namespace keel::inline KEEL_MODE {

KEEL_BODY moving_average::moving_average(std::vector<at::Tensor> parameters, double decay, std::vector<std::string> names,
                                         bool expects_shards)
    : parameters_(std::move(parameters)), names_(std::move(names)), decay_(decay) {
  if (!(decay > 0.0 && decay < 1.0)) throw broken_rule<error, rule::M10>();
  at::NoGradGuard no_grad;
  for (at::Tensor const& one : parameters_) {
    bool const is_later = expects_shards && detail::unit_parameters::is_freed(one);
    averages_.push_back(is_later ? at::Tensor() : detail::first_average(one));
  }
}

KEEL_BODY void moving_average::set_shards(shard_access access) {
  shards_ = std::move(access);
  follow_shards();
}

KEEL_BODY void moving_average::begin() {
  follow_shards();
  if (taken_ > 0) return;
  at::NoGradGuard no_grad;
  for (std::size_t i = 0; i < parameters_.size(); ++i) averages_[i].copy_(parameters_[i].detach());
}

KEEL_BODY void moving_average::add(parameter_list const& all, std::size_t first) {
  auto const from = static_cast<std::ptrdiff_t>(first);
  std::vector<std::string> const names(all.names.begin() + from, all.names.end());
  at::NoGradGuard const no_grad;
  moving_average more({all.tensors.begin() + from, all.tensors.end()}, decay_, names);
  more.begin();
  parameters_.insert(parameters_.end(), more.parameters_.begin(), more.parameters_.end());
  averages_.insert(averages_.end(), more.averages_.begin(), more.averages_.end());
  names_.insert(names_.end(), names.begin(), names.end());
}

KEEL_BODY void moving_average::remove_last(std::size_t count) {
  parameters_.resize(parameters_.size() - count);
  averages_.resize(averages_.size() - count);
  names_.resize(names_.size() - count);
}

KEEL_BODY void moving_average::update(step_outcome const& result) {
  if (!result.is<result::updated>()) return;
  require_average_swapped_out();
  follow_shards();
  at::NoGradGuard no_grad;
  ++taken_;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    at::Tensor const parameter = parameters_[i].detach();
    if (!detail::is_narrow(parameter)) {
      averages_[i].lerp_(parameter, 1.0 - decay_);
    } else if (parameter.is_cpu() && detail::are_plain_memory(parameter, parameter.scalar_type(), {&parameter}) &&
               detail::are_plain_memory(parameter, at::kFloat, {&averages_[i]})) {
      // The parameters have already changed, so this must not allocate.
      detail::lerp_narrow(averages_[i], parameter, static_cast<float>(1.0 - decay_));
    } else {
      averages_[i].lerp_(parameter.to(at::kFloat), 1.0 - decay_);
    }
  }
}

KEEL_BODY void moving_average::follow_shards() {
  if (!shards_.find) return;
  at::NoGradGuard const no_grad;
  // Also those that add() has added.
  for (std::size_t i = whole_.size(); i < parameters_.size(); ++i) whole_.push_back(parameters_[i]);
  whole_.resize(parameters_.size());
  for (std::size_t i = 0; i < whole_.size(); ++i) {
    at::Tensor const shard = shards_.find(whole_[i]);
    bool const was_sharded = !parameters_[i].is_same(whole_[i]);
    if (!averages_[i].defined()) {
      averages_[i] = detail::first_average(shard.defined() ? shard : whole_[i]);
    } else if (shard.defined() != was_sharded) {
      auto const converted = [&](at::Tensor const& one) {
        return was_sharded ? shards_.assemble(whole_[i], one) : shards_.cut(whole_[i], one).clone();
      };
      at::Tensor const average = converted(averages_[i]);
      if (is_swapped_in()) held_[i] = converted(held_[i]);
      averages_[i] = average;
    }
    parameters_[i] = shard.defined() ? shard : whole_[i];
  }
}

KEEL_BODY std::optional<tensor_slice> moving_average::slice_of(std::size_t at) const {
  if (!shards_.slice || at >= whole_.size() || parameters_[at].is_same(whole_[at])) return std::nullopt;
  return shards_.slice(whole_[at]);
}

KEEL_BODY void moving_average::put_averages() {
  follow_shards();
  at::NoGradGuard no_grad;
  // Makes all copies first: out of memory must not leave half of the averages in the model.
  std::vector<at::Tensor> held;
  held.reserve(parameters_.size());
  for (at::Tensor const& one : parameters_) held.push_back(one.detach().clone());
  held_ = std::move(held);
  for (std::size_t i = 0; i < parameters_.size(); ++i) parameters_[i].variable_data().copy_(averages_[i]);
}

KEEL_BODY void moving_average::put_back() {
  at::NoGradGuard no_grad;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    // A unit may have sharded it since. Without follow_shards(), which allocates.
    at::Tensor const shard = shards_.find ? shards_.find(whole_[i]) : at::Tensor();
    if (shard.defined() && parameters_[i].is_same(whole_[i])) {
      shard.copy_(shards_.cut(whole_[i], held_[i]));
    } else {
      parameters_[i].variable_data().copy_(held_[i]);
    }
  }
  held_.clear();
}

KEEL_BODY tensor_map moving_average::averaged_scope::tensors() const {
  if (average_ == nullptr) throw error("E12", "this average has been moved from. Ask the object that it was moved to.");
  if (model_ != nullptr) return model_tensors(*model_);
  tensor_map found;
  // Of a sharded parameter detach() is an error, which says how to gather it.
  auto const& all = average_->shards_.find ? average_->whole_ : average_->parameters_;
  for (std::size_t i = 0; i < all.size(); ++i) found.emplace(average_->name_of(i), all[i].detach());
  return found;
}

KEEL_BODY void save_weights(std::filesystem::path const& path, moving_average::averaged_scope const& averaged) {
  save_safetensors(path, averaged.tensors());
}

}  // namespace keel::inline KEEL_MODE

namespace keel::detail::inline KEEL_MODE {

KEEL_BODY std::vector<at::Tensor> averaged_tensors(torch::nn::Module& model, parameter_list const& parameters, bool buffers) {
  std::vector<at::Tensor> tensors = parameters.tensors;
  for (auto const& item : model.named_buffers()) {
    if (buffers && is_averaged_buffer(item.value())) tensors.push_back(item.value());
  }
  return tensors;
}

KEEL_BODY std::vector<std::string> averaged_names(torch::nn::Module& model, parameter_list const& parameters, bool buffers) {
  std::vector<std::string> names = parameters.names;
  for (auto const& item : model.named_buffers()) {
    if (buffers && is_averaged_buffer(item.value())) names.push_back(item.key());
  }
  return names;
}

}  // namespace keel::detail::inline KEEL_MODE

#include <keel/libtorch/detail/body_end.inc>
