// Definitions for optimizer_shards.hpp.
#pragma once

#include <keel/libtorch/ivalue_first.hpp>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <keel/checkpoint/optimizer_state.hpp>
#include <keel/collective/collectives.hpp>
#include <keel/core/error.hpp>
#include <keel/libtorch/compatibility.hpp>
#include <keel/optimizer/engine.hpp>
#include <keel/shard/buckets.hpp>
#include <keel/shard/optimizer_shards.hpp>
#include <utility>

#include <keel/libtorch/detail/body_begin.inc>

namespace keel::detail::inline KEEL_MODE {

KEEL_BODY optimizer_shards::optimizer_shards(world_of_ranks world, torch::optim::Optimizer& optimizer,
                                             parameter_list const& parameters, parameter_shards* of_units)
    : world_(std::move(world)), optimizer_(optimizer), parameters_(parameters), of_units_(of_units) {
  at::NoGradGuard const no_grad;
  auto* const engine = dynamic_cast<update_engine*>(&optimizer);
  bool has_state = !optimizer.state().empty();
  std::size_t of_these = 0;
  for (at::Tensor const& one : parameters.tensors) {
    has_state = has_state || (engine != nullptr && engine->master_of(one).defined());
    of_these += optimizer.state().count(libtorch::state_key(one));
  }
  if (of_these != optimizer.state().size())
    throw error("E11",
                "the optimizer has state for tensors that are not its parameters, such as the shards of another step with "
                "keel::shard::zero. Destroy that step before building the next.");
  nlohmann::json values;
  tensor_map tensors;
  if (has_state) save_optimizer(optimizer, parameters, values, tensors);
  parameters_changed();
  if (!has_state) return;
  cut(tensors, parameters, "the optimizer's state");
  scope const shards(this);
  load_optimizer(optimizer, parameters, values, tensors, "the optimizer's state");
}

KEEL_BODY optimizer_shards::~optimizer_shards() {
  for (parameter_shard const& one : shards_) forget(one);
}

KEEL_BODY void optimizer_shards::require_dense_memory(at::Tensor const& parameter, std::string const& name) {
  if (!parameter.is_non_overlapping_and_dense())
    throw error(
        "E11",
        "parameter " + name +
            " is not dense in memory, as keel::shard::zero requires. Make it .contiguous(), or use keel::shard::replicate.");
}

KEEL_BODY optimizer_shards::parameter_shard optimizer_shards::make_shard(at::Tensor const& parameter, std::size_t index) const {
  require_dense_memory(parameter, parameters_.names[index]);
  parameter_shard made{parameter, {}, compute_shard_range(parameter.numel(), index, world_.rank(), world_.size())};
  made.piece = is_gathered_by_units(made) ? elements_of(made).alias() : elements_of(made);
  return made;
}

KEEL_BODY bool optimizer_shards::is_gathered_by_units(parameter_shard const& one) const {
  return of_units_ != nullptr && of_units_->shard_of(one.parameter).defined();
}

KEEL_BODY at::Tensor optimizer_shards::elements_of(parameter_shard const& one) const {
  if (is_gathered_by_units(one)) return of_units_->shard_of(one.parameter);
  return in_memory_order(one.parameter.detach(), one.parameter).narrow(0, one.range.begin, one.range.count);
}

KEEL_BODY void optimizer_shards::forget(parameter_shard const& one) {
  optimizer_.state().erase(libtorch::state_key(one.piece));
  if (auto* const engine = dynamic_cast<update_engine*>(&optimizer_);
      engine != nullptr && engine->master_of(one.piece).defined())
    engine->set_master(one.piece, at::Tensor());
}

KEEL_BODY void optimizer_shards::parameters_changed() {
  at::NoGradGuard const no_grad;
  std::vector<parameter_shard> before = std::exchange(shards_, {});
  for (std::size_t i = 0; i < parameters_.tensors.size(); ++i) {
    auto const found = std::find_if(before.begin(), before.end(),
                                    [&](parameter_shard const& one) { return one.parameter.is_same(parameters_.tensors[i]); });
    // Groups are only appended, so a parameter keeps its index, and with it its shard.
    shards_.push_back(found == before.end() ? make_shard(parameters_.tensors[i], i) : *found);
    if (found != before.end()) before.erase(found);
  }
  for (parameter_shard const& one : before) forget(one);
  pieces_.clear();
  for (parameter_shard const& one : shards_) pieces_.push_back(one.piece);
  swapped_params_.clear();
  std::size_t index = 0;
  for (auto const& group : optimizer_.param_groups()) {
    std::vector<at::Tensor>& pieces = swapped_params_.emplace_back();
    for (std::size_t i = 0; i < group.params().size(); ++i) pieces.push_back(shards_[index++].piece);
  }
}

KEEL_BODY void optimizer_shards::swap() {
  auto& groups = optimizer_.param_groups();
  for (std::size_t i = 0; i < groups.size(); ++i) std::swap(groups[i].params(), swapped_params_[i]);
}

KEEL_BODY void optimizer_shards::follow_memory() {
  at::NoGradGuard const no_grad;
  for (parameter_shard& one : shards_) {
    at::Tensor const local = elements_of(one);
    // The parameter's memory was replaced.
    if (one.range.count > 0 && one.piece.data_ptr() != local.data_ptr()) one.piece.set_data(local);
  }
}

KEEL_BODY void optimizer_shards::set_gradients(std::vector<at::Tensor> const& gradients) {
  follow_memory();
  for (std::size_t i = 0; i < shards_.size(); ++i) shards_[i].piece.mutable_grad() = gradients[i];
  has_own_gradients_ = true;
}

KEEL_BODY void optimizer_shards::clear_gradients() {
  if (!std::exchange(has_own_gradients_, false)) return;
  for (parameter_shard& one : shards_) one.piece.mutable_grad() = at::Tensor();
}

KEEL_BODY void optimizer_shards::view_gradients() {
  follow_memory();
  at::NoGradGuard const no_grad;
  for (parameter_shard& one : shards_) {
    at::Tensor const& gradient = one.parameter.grad();
    one.piece.mutable_grad() = gradient.defined()
                                   ? in_memory_order(gradient, one.parameter).narrow(0, one.range.begin, one.range.count)
                                   : at::Tensor();
  }
}

KEEL_BODY optimizer_shards::scope::scope(optimizer_shards* shards, gradients which) : shards_(shards) {
  if (shards_ == nullptr) return;
  if (shards_->of_units_ != nullptr) shards_->follow_memory();
  if (which == gradients::with && !shards_->has_own_gradients_) shards_->view_gradients();
  if (shards_->depth_++ == 0) shards_->swap();
}

KEEL_BODY optimizer_shards::scope::~scope() {
  if (shards_ == nullptr || --shards_->depth_ > 0) return;
  shards_->swap();
  if (shards_->has_own_gradients_) return;
  // The views keep the memory of full gradients alive.
  for (parameter_shard& one : shards_->shards_) one.piece.mutable_grad() = at::Tensor();
}

template <class Use>
void optimizer_shards::for_each_gathered(Use const& use) const {
  std::vector<std::size_t> updated;
  std::int64_t bytes = 0;
  for (std::size_t i = 0; i < shards_.size(); ++i) {
    bytes += static_cast<std::int64_t>(shards_[i].parameter.nbytes());
    if (has_gradient(shards_[i]) && !is_gathered_by_units(shards_[i])) updated.push_back(i);
  }
  auto const parameter_of = [this](std::size_t i) -> at::Tensor const& { return shards_[i].parameter; };
  auto const with_longest = [&](std::vector<std::size_t> const& bucket) {
    std::int64_t longest = 0;
    for (int rank = 0; rank < world_.size(); ++rank) {
      std::int64_t length = 0;
      for (std::size_t const i : bucket) length += range_of(i, rank).count;
      longest = std::max(longest, length);
    }
    use(bucket, longest);
  };
  for_each_bucket(updated, parameter_of, with_longest, shard_bucket_bytes(bytes, world_.size()));
}

KEEL_BODY element_range optimizer_shards::range_of(std::size_t index, int rank) const {
  return compute_shard_range(shards_[index].parameter.numel(), index, rank, world_.size());
}

KEEL_BODY optimizer_shards::gather_buffers& optimizer_shards::buffers_on(c10::Device device) {
  for (gather_buffers& one : device_buffers_) {
    if (one.sent.defined() && one.sent.device() == device) return one;
  }
  return device_buffers_.emplace_back();
}

KEEL_BODY void optimizer_shards::prepare() {
  for_each_gathered([this](std::vector<std::size_t> const& bucket, std::int64_t longest) {
    at::Tensor const& like = shards_[bucket.front()].parameter;
    auto const bytes = longest * static_cast<std::int64_t>(like.element_size());
    gather_buffers& memory = buffers_on(like.device());
    if (memory.sent.defined() && memory.sent.numel() >= bytes) return;
    auto const options = at::TensorOptions(at::kByte).device(like.device());
    memory.received = at::empty({world_.size() * bytes}, options);
    memory.sent = at::zeros({bytes}, options);
  });
}

KEEL_BODY void optimizer_shards::gather_parameters() {
  at::NoGradGuard const no_grad;
  prepare();
  for_each_gathered([this](std::vector<std::size_t> const& bucket, std::int64_t longest) {
    at::Tensor const& like = shards_[bucket.front()].parameter;
    auto const begin_of = [&](at::Tensor const& bytes, std::int64_t elements) {
      return bytes.narrow(0, 0, elements * static_cast<std::int64_t>(like.element_size())).view(like.scalar_type());
    };
    gather_buffers const& memory = buffers_on(like.device());
    at::Tensor const local = begin_of(memory.sent, longest);
    std::int64_t at = 0;
    for (std::size_t const i : bucket) {
      local.narrow(0, at, shards_[i].range.count).copy_(shards_[i].piece);
      at += shards_[i].range.count;
    }
    at::Tensor all = begin_of(memory.received, world_.size() * longest).view({world_.size(), longest});
    if (auto const pending = begin_all_gather(world_, local, all)) pending->wait();
    for (int rank = 0; rank < world_.size(); ++rank) {
      if (rank == world_.rank()) continue;
      at = 0;
      for (std::size_t const i : bucket) {
        auto const [begin, count] = range_of(i, rank);
        // variable_data() does not bump the version, so the fp32 master copies of half-precision shards stay valid.
        at::Tensor const whole = in_memory_order(shards_[i].parameter.variable_data(), shards_[i].parameter);
        whole.narrow(0, begin, count).copy_(all[rank].narrow(0, at, count));
        at += count;
      }
    }
  });
  // The optimizer bumped the version of parameters in which this rank has a shard; bump those of the others.
  for (parameter_shard const& one : shards_) {
    if (has_gradient(one) && one.range.count == 0) one.parameter.unsafeGetTensorImpl()->bump_version();
  }
}

KEEL_BODY void optimizer_shards::require_no_full_state() const {
  auto const& state = optimizer_.state();
  for (std::size_t i = 0; i < shards_.size(); ++i) {
    if (state.count(libtorch::state_key(shards_[i].parameter)) == 0) continue;
    throw interference_error("E19", "the optimizer has full state for " + parameters_.names[i] +
                                        ", of which this rank owns a shard: optimizer.step() or a load was called outside the "
                                        "step. Remove that call, and restart from a checkpoint or from saved parameters.");
  }
}

KEEL_BODY optimizer_shards::parameter_shard const* optimizer_shards::shard_of_tensor(std::string const& name,
                                                                                     parameter_list const& named) const {
  std::string const parameter = name.substr(0, name.rfind('.'));
  auto const found = std::find(named.names.begin(), named.names.end(), parameter);
  return found == named.names.end() ? nullptr : &shards_[static_cast<std::size_t>(found - named.names.begin())];
}

KEEL_BODY std::optional<tensor_slice> optimizer_shards::slice_of(std::string const& name, parameter_list const& named) const {
  parameter_shard const* const one = shard_of_tensor(name, named);
  if (one == nullptr) return std::nullopt;
  return tensor_slice{one->parameter.sizes().vec(), one->parameter.strides().vec(), one->range.begin, one->range.count};
}

KEEL_BODY bool optimizer_shards::is_cut(parameter_shard const& of, at::Tensor const& tensor) {
  return tensor.dim() == 1 && tensor.numel() == of.range.count;
}

KEEL_BODY at::Tensor optimizer_shards::copy_own_shard(parameter_shard const& of, at::Tensor const& whole) {
  return in_memory_order(whole, of.parameter).narrow(0, of.range.begin, of.range.count).clone();
}

KEEL_BODY void optimizer_shards::cut(tensor_map& tensors, parameter_list const& named, std::string const& source) const {
  at::NoGradGuard const no_grad;
  for (auto& [name, tensor] : tensors) {
    parameter_shard const* const one = shard_of_tensor(name, named);
    if (one == nullptr) continue;
    if (tensor.sizes() == one->parameter.sizes()) {
      tensor = copy_own_shard(*one, tensor);
    } else if (!is_cut(*one, tensor)) {
      throw checkpoint_error("E05",
                             source + ": " + name + " does not have the shape of its parameter. Use an older checkpoint.");
    }
  }
}

}  // namespace keel::detail::inline KEEL_MODE

#include <keel/libtorch/detail/body_end.inc>
