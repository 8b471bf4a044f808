// The bodies of optimizer_shares.hpp.
#pragma once

#include <keel/libtorch/ivalue_first.hpp>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <iterator>
#include <keel/checkpoint/optimizer_state.hpp>
#include <keel/collective/collectives.hpp>
#include <keel/collective/words_of_rank.hpp>
#include <keel/core/error.hpp>
#include <keel/libtorch/compatibility.hpp>
#include <keel/optimizer/engine.hpp>
#include <keel/shard/buckets.hpp>
#include <keel/shard/optimizer_shares.hpp>
#include <utility>

#include <keel/libtorch/detail/body_begin.inc>

namespace keel::detail::inline KEEL_MODE {

inline constexpr std::int64_t elements_of_line = 64;

/// The elements in the order in which those of `like` lie in memory: a view where the tensor lies the same, or else of a copy.
inline at::Tensor in_memory_order(at::Tensor const& tensor, at::Tensor const& like) {
  at::Tensor same = tensor;
  if (tensor.strides() != like.strides())
    same = at::empty_strided(like.sizes(), like.strides(), tensor.options().requires_grad(false)).copy_(tensor);
  return same.as_strided({same.numel()}, {1}, same.storage_offset());
}

KEEL_BODY range_of_elements share_of(std::int64_t elements, std::size_t index, int rank, int size) {
  std::int64_t const lines = (elements + elements_of_line - 1) / elements_of_line;
  std::int64_t const part = (rank + static_cast<std::int64_t>(index % static_cast<std::size_t>(size))) % size;
  auto const begin_of = [&](std::int64_t at) { return std::min(elements, lines * at / size * elements_of_line); };
  return {begin_of(part), begin_of(part + 1) - begin_of(part)};
}

KEEL_BODY optimizer_shares::optimizer_shares(world_of_ranks world, torch::optim::Optimizer& optimizer,
                                             parameter_list const& parameters)
    : world_(std::move(world)), optimizer_(optimizer), parameters_(parameters) {
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
                "the optimizer has state of tensors that are not its parameters, as of the shares of another step with "
                "keel::shard::zero<1> that still lives. Let that one end before the next is built.");
  nlohmann::json values;
  tensor_map tensors;
  if (has_state) save_optimizer(optimizer, parameters, values, tensors);
  parameters_changed();
  if (!has_state) return;
  cut(tensors, parameters, "the optimizer's state");
  inside const shares(this);
  load_optimizer(optimizer, parameters, values, tensors, "the optimizer's state");
}

KEEL_BODY optimizer_shares::~optimizer_shares() {
  for (share const& one : shares_) forget(one);
}

KEEL_BODY void optimizer_shares::require_dense_memory(at::Tensor const& parameter, std::string const& name) {
  if (!parameter.is_non_overlapping_and_dense())
    throw error("E11",
                "parameter " + name +
                    " lies in memory with holes, and keel::shard::zero<1> cuts memory. Make it with .contiguous(), or use "
                    "keel::shard::replicate.");
}

KEEL_BODY optimizer_shares::share optimizer_shares::make_share(at::Tensor const& parameter, std::size_t index) const {
  require_dense_memory(parameter, parameters_.names[index]);
  range_of_elements const range = share_of(parameter.numel(), index, world_.rank(), world_.size());
  at::Tensor const flat = in_memory_order(parameter.detach(), parameter);
  return {parameter, flat.narrow(0, range.begin, range.count), range};
}

KEEL_BODY void optimizer_shares::forget(share const& one) {
  optimizer_.state().erase(libtorch::state_key(one.piece));
  if (auto* const engine = dynamic_cast<update_engine*>(&optimizer_);
      engine != nullptr && engine->master_of(one.piece).defined())
    engine->set_master(one.piece, at::Tensor());
}

KEEL_BODY void optimizer_shares::parameters_changed() {
  at::NoGradGuard const no_grad;
  std::vector<share> before = std::exchange(shares_, {});
  for (std::size_t i = 0; i < parameters_.tensors.size(); ++i) {
    auto const found = std::find_if(before.begin(), before.end(),
                                    [&](share const& one) { return one.parameter.is_same(parameters_.tensors[i]); });
    // A group is added behind the others, so that a parameter keeps its place, and with it its share.
    shares_.push_back(found == before.end() ? make_share(parameters_.tensors[i], i) : *found);
    if (found != before.end()) before.erase(found);
  }
  for (share const& one : before) forget(one);
  aside_.clear();
  std::size_t index = 0;
  for (auto const& group : optimizer_.param_groups()) {
    std::vector<at::Tensor>& pieces = aside_.emplace_back();
    for (std::size_t i = 0; i < group.params().size(); ++i) pieces.push_back(shares_[index++].piece);
  }
}

KEEL_BODY void optimizer_shares::swap() {
  auto& groups = optimizer_.param_groups();
  for (std::size_t i = 0; i < groups.size(); ++i) std::swap(groups[i].params(), aside_[i]);
}

KEEL_BODY void optimizer_shares::set_gradients() {
  at::NoGradGuard const no_grad;
  for (share& one : shares_) {
    at::Tensor const mine = in_memory_order(one.parameter.detach(), one.parameter).narrow(0, one.range.begin, one.range.count);
    // Something gave the parameter other memory.
    if (one.range.count > 0 && one.piece.data_ptr() != mine.data_ptr()) one.piece.set_data(mine);
    at::Tensor const& gradient = one.parameter.grad();
    one.piece.mutable_grad() = gradient.defined()
                                   ? in_memory_order(gradient, one.parameter).narrow(0, one.range.begin, one.range.count)
                                   : at::Tensor();
  }
}

KEEL_BODY optimizer_shares::inside::inside(optimizer_shares* shares, gradients which) : shares_(shares) {
  if (shares_ == nullptr) return;
  if (which == gradients::with) shares_->set_gradients();
  if (shares_->depth_++ == 0) shares_->swap();
}

KEEL_BODY optimizer_shares::inside::~inside() {
  if (shares_ == nullptr || --shares_->depth_ > 0) return;
  shares_->swap();
  // They hold the memory of whole gradients.
  for (share& one : shares_->shares_) one.piece.mutable_grad() = at::Tensor();
}

template <class Use>
void optimizer_shares::for_each_gathered(Use const& use) const {
  std::vector<std::size_t> updated;
  for (std::size_t i = 0; i < shares_.size(); ++i) {
    if (shares_[i].parameter.grad().defined()) updated.push_back(i);
  }
  auto const parameter_of = [this](std::size_t i) -> at::Tensor const& { return shares_[i].parameter; };
  for_each_bucket(updated, parameter_of, [&](std::vector<std::size_t> const& bucket) {
    std::int64_t longest = 0;
    for (int rank = 0; rank < world_.size(); ++rank) {
      std::int64_t length = 0;
      for (std::size_t const i : bucket) length += range_of(i, rank).count;
      longest = std::max(longest, length);
    }
    use(bucket, longest);
  });
}

KEEL_BODY range_of_elements optimizer_shares::range_of(std::size_t index, int rank) const {
  return share_of(shares_[index].parameter.numel(), index, rank, world_.size());
}

KEEL_BODY optimizer_shares::memory_of_gather& optimizer_shares::memory_on(c10::Device device) {
  for (memory_of_gather& one : of_devices_) {
    if (one.sent.defined() && one.sent.device() == device) return one;
  }
  return of_devices_.emplace_back();
}

KEEL_BODY void optimizer_shares::prepare() {
  for_each_gathered([this](std::vector<std::size_t> const& bucket, std::int64_t longest) {
    at::Tensor const& like = shares_[bucket.front()].parameter;
    auto const bytes = longest * static_cast<std::int64_t>(like.element_size());
    memory_of_gather& memory = memory_on(like.device());
    if (memory.sent.defined() && memory.sent.numel() >= bytes) return;
    auto const options = at::TensorOptions(at::kByte).device(like.device());
    memory.received = at::empty({world_.size() * bytes}, options);
    memory.sent = at::zeros({bytes}, options);
  });
}

KEEL_BODY void optimizer_shares::gather_parameters() {
  at::NoGradGuard const no_grad;
  prepare();
  for_each_gathered([this](std::vector<std::size_t> const& bucket, std::int64_t longest) {
    at::Tensor const& like = shares_[bucket.front()].parameter;
    auto const begin_of = [&](at::Tensor const& bytes, std::int64_t elements) {
      return bytes.narrow(0, 0, elements * static_cast<std::int64_t>(like.element_size())).view(like.scalar_type());
    };
    memory_of_gather const& memory = memory_on(like.device());
    at::Tensor const mine = begin_of(memory.sent, longest);
    std::int64_t at = 0;
    for (std::size_t const i : bucket) {
      mine.narrow(0, at, shares_[i].range.count).copy_(shares_[i].piece);
      at += shares_[i].range.count;
    }
    at::Tensor all = begin_of(memory.received, world_.size() * longest).view({world_.size(), longest});
    if (auto const under_way = begin_all_gather(world_, mine, all)) under_way->wait();
    for (int rank = 0; rank < world_.size(); ++rank) {
      if (rank == world_.rank()) continue;
      at = 0;
      for (std::size_t const i : bucket) {
        auto const [begin, count] = range_of(i, rank);
        // Past autograd, which counts one change: the copies in fp32 of narrow shares are not behind.
        at::Tensor const whole = in_memory_order(shares_[i].parameter.variable_data(), shares_[i].parameter);
        whole.narrow(0, begin, count).copy_(all[rank].narrow(0, at, count));
        at += count;
      }
    }
  });
  // That change the optimizer has counted where it has a share.
  for (share const& one : shares_) {
    if (one.parameter.grad().defined() && one.range.count == 0) one.parameter.unsafeGetTensorImpl()->bump_version();
  }
}

KEEL_BODY void optimizer_shares::require_own_state() const {
  auto const& state = optimizer_.state();
  for (std::size_t i = 0; i < shares_.size(); ++i) {
    if (state.count(libtorch::state_key(shares_[i].parameter)) == 0) continue;
    throw interference_error("E19",
                             "the optimizer has state of the whole of " + parameters_.names[i] +
                                 ", where this rank has a share: optimizer.step() or loading was called beside the step. "
                                 "Remove that call, and start from a checkpoint, or from parameters that you kept.");
  }
}

KEEL_BODY optimizer_shares::share const* optimizer_shares::share_of_tensor(std::string const& name,
                                                                           parameter_list const& named) const {
  std::string const parameter = name.substr(0, name.rfind('.'));
  auto const found = std::find(named.names.begin(), named.names.end(), parameter);
  return found == named.names.end() ? nullptr : &shares_[static_cast<std::size_t>(found - named.names.begin())];
}

KEEL_BODY void optimizer_shares::make_whole(tensor_map& tensors, parameter_list const& named,
                                            std::function<int(std::uint64_t)> const& rank_for) const {
  at::NoGradGuard const no_grad;
  std::string names;
  for (auto const& [name, tensor] : tensors) names += name + "\n";
  if (!world_.combine(reduce::min{}, words_of_rank(world_, names, 0) == names))
    throw world_error(
        "E26",
        "the ranks do not have the same state of the optimizer any more. Freeze, add and remove the same parameters "
        "on all of them.");
  for (auto at = tensors.begin(); at != tensors.end();) {
    auto& [name, tensor] = *at;
    share const* const one = share_of_tensor(name, named);
    bool const is_whole = one == nullptr || tensor.dim() == 0;
    int const keeper = rank_for(is_whole ? tensor.nbytes() : whole_bytes(*one, tensor));
    if (!is_whole) {
      at::Tensor const all = pieces_of_ranks(*one, tensor);
      if (world_.rank() == keeper) tensor = whole_of(*one, all);
    }
    at = world_.rank() == keeper ? std::next(at) : tensors.erase(at);
  }
}

KEEL_BODY std::uint64_t optimizer_shares::whole_bytes(share const& of, at::Tensor const& piece) {
  return static_cast<std::uint64_t>(of.parameter.numel() * static_cast<std::int64_t>(piece.element_size()));
}

KEEL_BODY at::Tensor optimizer_shares::pieces_of_ranks(share const& of, at::Tensor const& piece) const {
  auto const index = static_cast<std::size_t>(&of - shares_.data());
  std::int64_t longest = 0;
  for (int rank = 0; rank < world_.size(); ++rank) longest = std::max(longest, range_of(index, rank).count);
  at::Tensor const mine = at::zeros({longest}, piece.options());
  mine.narrow(0, 0, piece.numel()).copy_(piece);
  return all_gather(world_, mine);
}

KEEL_BODY at::Tensor optimizer_shares::whole_of(share const& of, at::Tensor const& pieces) const {
  auto const index = static_cast<std::size_t>(&of - shares_.data());
  // A device that has a share has no room for the whole.
  at::Tensor whole = at::empty_strided(of.parameter.sizes(), of.parameter.strides(), pieces.options().device(at::kCPU));
  at::Tensor const flat = in_memory_order(whole, of.parameter);
  for (int rank = 0; rank < world_.size(); ++rank) {
    auto const [begin, count] = range_of(index, rank);
    flat.narrow(0, begin, count).copy_(pieces[rank].narrow(0, 0, count));
  }
  return whole;
}

KEEL_BODY bool optimizer_shares::is_cut(share const& of, at::Tensor const& tensor) {
  return tensor.dim() == 1 && tensor.numel() == of.range.count;
}

KEEL_BODY at::Tensor optimizer_shares::cut_of(share const& of, at::Tensor const& whole) {
  return in_memory_order(whole, of.parameter).narrow(0, of.range.begin, of.range.count).clone();
}

KEEL_BODY void optimizer_shares::cut_if_whole(std::string const& name, at::Tensor& tensor, parameter_list const& named) const {
  at::NoGradGuard const no_grad;
  share const* const one = share_of_tensor(name, named);
  if (one != nullptr && tensor.dim() > 0 && tensor.sizes() == one->parameter.sizes()) tensor = cut_of(*one, tensor);
}

KEEL_BODY void optimizer_shares::cut(tensor_map& tensors, parameter_list const& named, std::string const& source) const {
  at::NoGradGuard const no_grad;
  for (auto& [name, tensor] : tensors) {
    share const* const one = share_of_tensor(name, named);
    if (one == nullptr || tensor.dim() == 0) continue;
    if (tensor.sizes() == one->parameter.sizes()) {
      tensor = cut_of(*one, tensor);
    } else if (!is_cut(*one, tensor)) {
      throw checkpoint_error("E05", source + ": " + name + " has another shape than its parameter. Take an older checkpoint.");
    }
  }
}

}  // namespace keel::detail::inline KEEL_MODE

#include <keel/libtorch/detail/body_end.inc>
