// Definitions for parameter_shards.hpp.
#pragma once

#include <keel/libtorch/ivalue_first.hpp>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/zeros.h>
#include <c10/core/Allocator.h>
#include <c10/core/DeviceGuard.h>
#include <torch/csrc/autograd/saved_variable_hooks.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <keel/collective/collectives.hpp>
#include <keel/core/error.hpp>
#include <keel/memory/saved_tensors.hpp>
#include <keel/recompute/unit_scope.hpp>
#include <keel/shard/parameter_shards.hpp>
#include <utility>

#include <keel/libtorch/detail/body_begin.inc>

namespace keel::detail::inline KEEL_MODE {

/// What an announced call is, added to the number of its unit: the first one, of a unit whose parameters are whole; the first one, of a unit
/// that shares parameters with another; or a later one.
inline constexpr double first_call = 0.25, first_call_gathers = 0.5, later_call = 0.75;

inline void require_single_backward() {
  if (!at::GradMode::is_enabled()) return;
  throw error(
      "E16",
      "a backward pass through a unit has create_graph, as for a gradient penalty, but its graph would refer to parameters "
      "that keel::shard::zero<3> frees. Use keel::shard::zero<2>.");
}

/// Saves a tensor as the outer scope does, or as autograd does without hooks. A view of a parameter may be freed until it is needed.
class restoring_hooks final : public torch::autograd::SavedVariableHooks {
 public:
  restoring_hooks(saved_tensor_scope::hooks outer, std::shared_ptr<unit_call> call)
      : outer_(std::move(outer)), call_(std::move(call)) {}
  void call_pack_hook(at::Tensor const& tensor) override {
    if (outer_ && call_->owns(tensor)) outer_ = nullptr;
    if (outer_) return outer_->call_pack_hook(tensor);
    // Without detach() the result of an operation would own the node that saves it.
    tensor_ = tensor.detach();
    version_ = torch::autograd::impl::version_counter(tensor).current_version();
  }
  at::Tensor call_unpack_hook() override {
    require_single_backward();
    if (outer_) return outer_->call_unpack_hook();
    // Autograd does not compare versions of tensors that it saves with hooks.
    if (torch::autograd::impl::version_counter(tensor_).current_version() != version_)
      throw error("E16",
                  "a tensor of shape " + c10::str(tensor_.sizes()) +
                      " that the backward pass needs was modified in place after the forward pass, so the gradient would be "
                      "wrong. Modify a copy, or modify it after the backward pass.");
    unit_parameters::require_memory(tensor_);
    return tensor_;
  }

 private:
  saved_tensor_scope::hooks outer_;
  std::shared_ptr<unit_call> call_;
  at::Tensor tensor_;
  std::uint32_t version_ = 0;
};

KEEL_BODY bool owns_memory(at::Tensor const& parameter) {
  return parameter.layout() == at::kStrided && parameter.is_non_overlapping_and_dense() && parameter.numel() > 0 &&
         parameter.storage_offset() == 0 && parameter.storage().nbytes() == parameter.nbytes() &&
         parameter.storage().use_count() == 1;
}

KEEL_BODY void require_whole_parameters(torch::nn::Module const& model) {
  for (auto const& item : model.named_parameters()) {
    if (!unit_parameters::is_freed(item.value())) continue;
    throw error("E11", item.key() +
                           " was sharded by keel::shard_parameters or an earlier step, and only keel::shard::zero<3> with the "
                           "same ranks gathers it. Use zero<3>, or call unshard_parameters() of that step before it is "
                           "destroyed.");
  }
}

class parameter_shards::one_call final : public unit_call, public std::enable_shared_from_this<one_call> {
 public:
  one_call(std::shared_ptr<parameter_shards> owner, std::size_t unit) : owner_(std::move(owner)) {
    std::lock_guard const lock(owner_->mutex_);
    held_ = {unit, ++owner_->clock_, 0};
  }

  std::unique_ptr<saved_tensor_scope> begin_forward() override {
    if (has_ended()) {
      hold();
    } else {
      std::lock_guard const lock(owner_->mutex_);
      owner_->use(held_.unit);
      is_used_ = true;
    }
    // Non-reentrant recompute saves nothing, and has its own hooks.
    if (!at::GradMode::is_enabled() || unit_scope::kind() == recompute_kind::non_reentrant) return nullptr;
    return std::make_unique<saved_tensor_scope>(
        [self = shared_from_this(), outer = saved_tensor_scope::innermost()]() -> saved_tensor_scope::hooks {
          return std::make_unique<restoring_hooks>(outer ? outer() : nullptr, self);
        });
  }

  void end_forward(at::Tensor const& output) override {
    {
      std::lock_guard const lock(owner_->mutex_);
      held_.end = ++owner_->clock_;
      if (std::exchange(is_used_, false)) owner_->drop(held_.unit);
    }
    if (!output.defined() || !output.requires_grad() || output.is_leaf()) return;
    output.register_hook([self = shared_from_this()](at::Tensor const&) {
      require_single_backward();
      self->hold();
    });
  }

  bool owns(at::Tensor const& tensor) const override {
    if (!tensor.has_storage()) return false;
    auto const& entries = owner_->units_[held_.unit].entries;
    return std::any_of(entries.begin(), entries.end(), [&](std::size_t i) {
      return owner_->entries_[i].parameter.storage().unsafeGetStorageImpl() == tensor.storage().unsafeGetStorageImpl();
    });
  }

 private:
  bool has_ended() const { return held_.end != 0; }
  void hold() {
    std::lock_guard const lock(owner_->mutex_);
    owner_->hold(held_);
  }

  std::shared_ptr<parameter_shards> owner_;
  held_call held_{};
  bool is_used_ = false;
};

KEEL_BODY parameter_shards::parameter_shards(world_of_ranks world, torch::nn::Module& model, parameter_list const& trained,
                                             before_gather announce)
    : world_(std::move(world)), model_(model), trained_(trained), announce_(std::move(announce)) {
  for (auto const& item : model.named_parameters()) {
    at::Tensor const& one = item.value();
    if (is_freed(one) && kept_shard_of(one) == nullptr)
      throw error("E11",
                  item.key() +
                      " is sharded by another step with keel::shard::zero<3>, or by one that an exception has ended, after "
                      "which the shards of the ranks may be of different updates. Destroy the other step first, or build "
                      "the model again and load a checkpoint.");
    if (!is_freed(one) && !owns_memory(one)) continue;
    // Tied weights have several names.
    if (!entry_of_.emplace(one.unsafeGetTensorImpl(), entries_.size()).second) continue;
    entries_.push_back({.parameter = one, .name = item.key(), .index = entries_.size()});
  }
  // Numbered by their places in the model, which all ranks know.
  add_unit(model, "of the whole model");
  for (auto const& item : model.named_modules("", /*include_self=*/false)) add_unit(*item.value(), item.key());
  for (entry& one : entries_) {
    if (kept_shard const* const kept = kept_shard_of(one.parameter)) take_kept_shard(one, *kept);
  }
}

KEEL_BODY void parameter_shards::take_kept_shard(entry& one, kept_shard const& kept) {
  auto const unit = unit_of_module_.find(kept.unit);
  if (unit == unit_of_module_.end())
    throw error("E11", one.name +
                           " was sharded with a module that is not in the model. Call keel::shard_parameters with a "
                           "module of the model that is trained, or unshard_parameters() of the step that sharded it.");
  if (kept.rank != world_.rank() || kept.ranks != world_.size())
    throw error("E11", one.name + " was sharded as rank " + std::to_string(kept.rank) + " of " + std::to_string(kept.ranks) +
                           ", but this is rank " + std::to_string(world_.rank()) + " of " + std::to_string(world_.size()) +
                           ". Pass keel::shard_parameters, and each step or trainer of the model, the same world, or call "
                           "unshard_parameters() before the earlier one is destroyed.");
  one.index = kept.index;
  one.unit = unit->second;
  adopt_shard(one, kept.values);
  one.is_sharded = true;
  one.is_present = false;
  units_[one.unit].was_called = true;
}

KEEL_BODY void parameter_shards::add_unit(torch::nn::Module const& module, std::string const& name) {
  if (!unit_of_module_.emplace(&module, units_.size()).second) return;
  unit_group& made = units_.emplace_back();
  made.name = name;
  for (at::Tensor const& one : module.parameters()) {
    auto const at = entry_of_.find(one.unsafeGetTensorImpl());
    if (at != entry_of_.end()) made.entries.push_back(at->second);
  }
}

KEEL_BODY std::shared_ptr<parameter_shards> parameter_shards::make(world_of_ranks world, torch::nn::Module& model,
                                                                   parameter_list const& trained, before_gather announce) {
  std::shared_ptr<parameter_shards> made(new parameter_shards(std::move(world), model, trained, std::move(announce)));
  for (auto const& [module, unit] : made->unit_of_module_) {
    if (of_module(module) != nullptr)
      throw error("E11", "the module " + made->units_[unit].name +
                             " is sharded by another step with keel::shard::zero<3>. Destroy that step first, or shard it in "
                             "one of them only.");
  }
  for (auto const& [module, unit] : made->unit_of_module_) add_module(module, made);
  for (entry const& one : made->entries_) {
    if (!one.is_present) free_memory(one.parameter, one.name, made->units_[one.unit].name, made);
  }
  return made;
}

KEEL_BODY parameter_shards::~parameter_shards() { close(); }

KEEL_BODY void parameter_shards::close(bool keeps_shards) noexcept {
  for (auto const& [module, unit] : unit_of_module_) remove_module(module, this);
  std::lock_guard const lock(mutex_);
  if (std::exchange(is_closed_, true)) return;
  announce_ = nullptr;
  for (entry& one : entries_) {
    if (!one.is_present && keeps_shards) {
      *one.kept = {one.shard, nullptr, one.index, world_.rank(), world_.size()};
      for (auto const& [module, unit] : unit_of_module_) one.kept->unit = unit == one.unit ? module : one.kept->unit;
      keep_shard(one.parameter, std::move(one.kept));
    }
    one.shard = at::Tensor();
  }
}

KEEL_BODY std::string parameter_shards::describe() const {
  std::string lines = "sharded parameters\n";
  for (entry const& one : entries_)
    lines += "sharded " + one.name + (one.is_present ? "" : " in " + units_[one.unit].name + ", before the step") + "\n";
  return lines;
}

KEEL_BODY void parameter_shards::trained_changed() {
  auto const place_of = [this](at::Tensor const& parameter) {
    auto const& trained = trained_.tensors;
    return std::find_if(trained.begin(), trained.end(), [&](at::Tensor const& one) { return one.is_same(parameter); }) -
           trained.begin();
  };
  at::NoGradGuard const no_grad;
  for (entry& one : entries_) {
    auto const place = static_cast<std::size_t>(place_of(one.parameter));
    if (place == trained_.tensors.size() || place == one.index) continue;
    if (!one.is_sharded) {
      one.index = place;
      one.shard = at::Tensor();
      continue;
    }
    // It was sharded before it was trained: its range is now that of the optimizer's list. One at a time, because all may not fit.
    at::Tensor const whole = one.is_present ? one.parameter.variable_data() : assemble(one.parameter, one.shard);
    auto const [begin, count] = compute_shard_range(whole.numel(), place, world_.rank(), world_.size());
    at::Tensor const shard = in_memory_order(whole, whole).narrow(0, begin, count).clone();
    one.index = place;
    adopt_shard(one, shard);
  }
}

KEEL_BODY element_range parameter_shards::range_of(entry const& one, int rank) const {
  return compute_shard_range(one.parameter.numel(), one.index, rank, world_.size());
}

KEEL_BODY std::shared_ptr<unit_call> parameter_shards::call(void const* module) {
  return std::make_shared<one_call>(shared_from_this(), unit_of_module_.at(module));
}

KEEL_BODY void parameter_shards::use(std::size_t unit) {
  for (std::size_t const i : units_[unit].entries) ++entries_[i].users;
  try {
    gather(unit, pass::forward);
  } catch (...) {
    // Rethrown once nothing counts as used.
    drop(unit);
    throw;
  }
}

KEEL_BODY void parameter_shards::drop(std::size_t unit) {
  for (std::size_t const i : units_[unit].entries) {
    entry& one = entries_[i];
    one.unit = unit;
    if (--one.users == 0 && (units_[unit].was_called || one.is_sharded)) free_unused(one);
  }
}

KEEL_BODY void parameter_shards::hold(held_call const& call) {
  bool const is_held = std::any_of(held_.begin(), held_.end(), [&](held_call const& one) { return one.begin == call.begin; });
  if (is_held) return;
  // Counted before others are dropped, so that what both need stays.
  for (std::size_t const i : units_[call.unit].entries) ++entries_[i].users;
  for (auto at = held_.begin(); at != held_.end();) {
    if (at->begin > call.end) {
      drop(at->unit);
      at = held_.erase(at);
    } else {
      ++at;
    }
  }
  held_.push_back(call);
  gather(call.unit, pass::backward);
}

KEEL_BODY void parameter_shards::restore(c10::StorageImpl const* memory) {
  std::lock_guard const lock(mutex_);
  auto const found = std::find_if(entries_.begin(), entries_.end(),
                                  [&](entry const& one) { return one.parameter.storage().unsafeGetStorageImpl() == memory; });
  if (found == entries_.end()) return;
  ++clock_;
  hold({found->unit, clock_, clock_});
}

KEEL_BODY void parameter_shards::end_backward() {
  std::lock_guard const lock(mutex_);
  for (held_call const& one : std::exchange(held_, {})) drop(one.unit);
}

KEEL_BODY void parameter_shards::write_shard(entry& one) {
  at::NoGradGuard const no_grad;
  auto const [begin, count] = range_of(one, world_.rank());
  at::Tensor const whole = one.parameter.variable_data();
  at::Tensor const own = in_memory_order(whole, whole).narrow(0, begin, count);
  // Without a new version: the values are the parameter's.
  one.shard.variable_data().copy_(own);
  one.is_sharded = true;
}

KEEL_BODY void parameter_shards::allocate_shard(entry& one) const {
  if (one.shard.defined()) return;
  adopt_shard(one, at::empty({range_of(one, world_.rank()).count}, one.parameter.options().requires_grad(false)));
}

KEEL_BODY void parameter_shards::adopt_shard(entry& one, at::Tensor const& shard) {
  if (!one.kept) one.kept = std::make_unique<kept_shard>();
  one.shard = shard;
  // What writes to the shard changes the parameter: graphs that saved it, and its fp32 master copy, must see that.
  one.shard.unsafeGetTensorImpl()->set_version_counter(torch::autograd::impl::version_counter(one.parameter));
}

KEEL_BODY void parameter_shards::free_unused(entry& one) {
  if (gather_depth_ > 0 || is_closed_ || !one.is_present) return;
  if (!one.is_sharded) {
    allocate_shard(one);
    write_shard(one);
  }
  free_memory(one.parameter, one.name, units_[one.unit].name, weak_from_this());
  one.is_present = false;
}

KEEL_BODY std::vector<std::size_t> parameter_shards::sharded_entries_of(std::size_t unit) const {
  std::vector<std::size_t> sharded;
  for (std::size_t const i : units_[unit].entries) {
    if (entries_[i].is_sharded) sharded.push_back(i);
  }
  return sharded;
}

KEEL_BODY void parameter_shards::gather(std::size_t unit, pass of) {
  unit_group& group = units_[unit];
  // A rank that followed the first call of others shards now what they sharded at its end.
  for (std::size_t const i : group.entries) {
    if (!group.was_called || entries_[i].is_sharded || entries_[i].users > 1) continue;
    entries_[i].unit = unit;
    free_unused(entries_[i]);
  }
  // All of the unit's, so that another rank can take part without knowing which of them are freed here.
  std::vector<std::size_t> freed;
  for (std::size_t const i : group.entries) {
    if (!entries_[i].is_present) freed.push_back(i);
  }
  if (freed.empty() && (group.was_called || group.entries.empty() || is_closed_)) return;
  if (is_closed_)
    throw error("E12", "the unit " + group.name +
                           " was called after the step that shards its parameters was destroyed. Call unshard_parameters() of "
                           "that step before.");
  at::NoGradGuard const no_grad;
  // First what can fail on this rank alone.
  std::vector<c10::DataPtr> memory;
  memory.reserve(freed.size());
  for (std::size_t const i : freed) {
    at::Tensor const& one = entries_[i].parameter;
    c10::OptionalDeviceGuard const guard(one.device());
    memory.push_back(c10::GetAllocator(one.device().type())->allocate(one.nbytes()));
  }
  for (std::size_t const i : group.entries) allocate_shard(entries_[i]);
  for (gather_buffers& one : buffers_) prepare(one, unit);
  double const what = group.was_called ? later_call : sharded_entries_of(unit).empty() ? first_call : first_call_gathers;
  if (announce_) announce_(of, static_cast<double>(unit) + what, group.name);
  group.was_called = true;
  for (std::size_t place = 0; place < freed.size(); ++place) {
    set_memory(entries_[freed[place]].parameter, std::move(memory[place]));
    entries_[freed[place]].is_present = true;
  }
  if (what == first_call) return;
  finish(begin(unit), [&](std::size_t i) { return std::find(freed.begin(), freed.end(), i) != freed.end(); });
}

KEEL_BODY void parameter_shards::begin_gather(double collective) {
  std::lock_guard const lock(mutex_);
  at::NoGradGuard const no_grad;
  begin(static_cast<std::size_t>(collective));
}

KEEL_BODY void parameter_shards::follow_gather(double collective) {
  std::lock_guard const lock(mutex_);
  at::NoGradGuard const no_grad;
  auto const unit = static_cast<std::size_t>(collective);
  double const what = collective - std::floor(collective);
  auto const shard_unused = [&] {
    for (std::size_t const i : units_[unit].entries) {
      if (entries_[i].users > 0) continue;
      entries_[i].unit = unit;
      free_unused(entries_[i]);
    }
  };
  // The other ranks have sharded them at the end of an earlier call; or they do so at the end of this one.
  if (what == later_call) shard_unused();
  units_[unit].was_called = true;
  if (what != first_call) finish(begin(unit), [](std::size_t) { return false; });
  shard_unused();
}

KEEL_BODY void parameter_shards::prepare_buffers() {
  std::lock_guard const lock(mutex_);
  for (std::size_t unit = 0; unit < units_.size(); ++unit) {
    if (!units_[unit].was_called) continue;
    for (gather_buffers& one : buffers_) prepare(one, unit);
  }
}

KEEL_BODY std::int64_t parameter_shards::aligned_bytes(entry const& one, int rank) const {
  constexpr std::int64_t alignment = 16;
  std::int64_t const bytes = range_of(one, rank).count * static_cast<std::int64_t>(one.parameter.element_size());
  return (bytes + alignment - 1) / alignment * alignment;
}

KEEL_BODY std::int64_t parameter_shards::bytes_of(std::size_t unit) const {
  std::int64_t most = 0;
  for (int rank = 0; rank < world_.size(); ++rank) {
    std::int64_t bytes = 0;
    for (std::size_t const i : sharded_entries_of(unit)) bytes += aligned_bytes(entries_[i], rank);
    most = std::max(most, bytes);
  }
  return most;
}

KEEL_BODY void parameter_shards::prepare(gather_buffers& buffers, std::size_t unit) const {
  std::int64_t const bytes = bytes_of(unit);
  if (bytes == 0 || buffers.unit || (buffers.sent.defined() && buffers.sent.numel() >= bytes)) return;
  auto const options = at::TensorOptions(at::kByte).device(entries_[units_[unit].entries.front()].parameter.device());
  buffers.sent = at::Tensor();
  buffers.received = at::empty({world_.size() * bytes}, options);
  buffers.sent = at::empty({bytes}, options);
}

KEEL_BODY parameter_shards::gather_buffers* parameter_shards::find_buffers_of(std::size_t unit) {
  auto const found =
      std::find_if(buffers_.begin(), buffers_.end(), [&](gather_buffers const& one) { return one.unit == unit; });
  return found == buffers_.end() ? nullptr : &*found;
}

/// The elements of a shard in the bytes of a gather.
inline at::Tensor elements_at(at::Tensor const& bytes, std::int64_t at, std::int64_t count, at::Tensor const& like) {
  return bytes.narrow(0, at, count * static_cast<std::int64_t>(like.element_size())).view(like.scalar_type());
}

KEEL_BODY parameter_shards::gather_buffers& parameter_shards::begin(std::size_t unit) {
  if (gather_buffers* const begun = find_buffers_of(unit)) return *begun;
  auto* unused = std::find_if(buffers_.begin(), buffers_.end(), [](gather_buffers const& one) { return !one.unit; });
  if (unused == buffers_.end()) {
    // An exception has ended what it was begun for.
    unused = buffers_.begin();
    finish(*unused, [](std::size_t) { return false; });
  }
  gather_buffers& buffers = *unused;
  prepare(buffers, unit);
  std::int64_t const bytes = bytes_of(unit);
  std::int64_t at = 0;
  for (std::size_t const i : sharded_entries_of(unit)) {
    at::Tensor const& shard = entries_[i].shard;
    elements_at(buffers.sent, at, shard.numel(), shard).copy_(shard);
    at += aligned_bytes(entries_[i], world_.rank());
  }
  at::Tensor received = buffers.received.narrow(0, 0, world_.size() * bytes).view({world_.size(), bytes});
  buffers.pending = begin_all_gather(world_, buffers.sent.narrow(0, 0, bytes), received);
  buffers.unit = unit;
  return buffers;
}

template <class IsWritten>
void parameter_shards::finish(gather_buffers& buffers, IsWritten const& is_written) {
  // NOLINTNEXTLINE(bugprone-unchecked-optional-access): the buffers are in use
  std::size_t const unit = *buffers.unit;
  buffers.unit.reset();
  world_.waiting([&] {
    if (auto const pending = std::exchange(buffers.pending, nullptr)) pending->wait();
  });
  std::int64_t const bytes = bytes_of(unit);
  for (int rank = 0; rank < world_.size(); ++rank) {
    std::int64_t at = rank * bytes;
    for (std::size_t const i : sharded_entries_of(unit)) {
      auto const [begin, count] = range_of(entries_[i], rank);
      if (is_written(i)) {
        // variable_data() leaves the parameter's version as it is: its values are those of the forward pass.
        at::Tensor const whole = entries_[i].parameter.variable_data();
        in_memory_order(whole, whole).narrow(0, begin, count).copy_(elements_at(buffers.received, at, count, whole));
      }
      at += aligned_bytes(entries_[i], rank);
    }
  }
}

KEEL_BODY at::Tensor parameter_shards::shard_of(at::Tensor const& parameter) const {
  auto const found = entry_of_.find(parameter.unsafeGetTensorImpl());
  return found == entry_of_.end() || !entries_[found->second].is_sharded ? at::Tensor() : entries_[found->second].shard;
}

KEEL_BODY tensor_slice parameter_shards::slice_of(at::Tensor const& parameter) const {
  auto const [begin, count] = range_of(entries_[entry_of_.at(parameter.unsafeGetTensorImpl())], world_.rank());
  return {parameter.sizes().vec(), parameter.strides().vec(), begin, count};
}

KEEL_BODY at::Tensor parameter_shards::cut(at::Tensor const& parameter, at::Tensor const& whole) const {
  auto const [begin, count] = range_of(entries_[entry_of_.at(parameter.unsafeGetTensorImpl())], world_.rank());
  return in_memory_order(whole, parameter).narrow(0, begin, count);
}

KEEL_BODY parameter_shards::whole_buffers parameter_shards::allocate_whole(at::Tensor const& parameter,
                                                                           at::Tensor const& shard) const {
  entry const& one = entries_[entry_of_.at(parameter.unsafeGetTensorImpl())];
  std::int64_t longest = 0;
  for (int rank = 0; rank < world_.size(); ++rank) longest = std::max(longest, range_of(one, rank).count);
  return {at::zeros({longest}, shard.options()), at::empty({world_.size(), longest}, shard.options()),
          at::empty_strided(parameter.sizes(), parameter.strides(), shard.options())};
}

KEEL_BODY at::Tensor parameter_shards::assemble(at::Tensor const& parameter, at::Tensor const& shard) const {
  return assemble(parameter, shard, allocate_whole(parameter, shard));
}

KEEL_BODY at::Tensor parameter_shards::assemble(at::Tensor const& parameter, at::Tensor const& shard,
                                                whole_buffers buffers) const {
  entry const& one = entries_[entry_of_.at(parameter.unsafeGetTensorImpl())];
  buffers.own.narrow(0, 0, shard.numel()).copy_(shard);
  if (auto const pending = begin_all_gather(world_, buffers.own, buffers.all)) pending->wait();
  at::Tensor const flat = in_memory_order(buffers.whole, buffers.whole);
  for (int rank = 0; rank < world_.size(); ++rank) {
    auto const [begin, count] = range_of(one, rank);
    flat.narrow(0, begin, count).copy_(buffers.all[rank].narrow(0, 0, count));
  }
  return buffers.whole;
}

KEEL_BODY void parameter_shards::gather_all() {
  std::lock_guard const lock(mutex_);
  if (gather_depth_ == 0) {
    try {
      for (std::size_t unit = 0; unit < units_.size(); ++unit) {
        if (!units_[unit].was_called) continue;
        use(unit);
        gathered_units_.push_back(unit);
      }
    } catch (...) {
      // Rethrown once those that were gathered are freed again.
      for (std::size_t const unit : std::exchange(gathered_units_, {})) drop(unit);
      throw;
    }
  }
  ++gather_depth_;
}

KEEL_BODY void parameter_shards::drop_all() {
  std::lock_guard const lock(mutex_);
  if (--gather_depth_ > 0) return;
  for (entry& one : entries_) {
    if (one.is_sharded && one.is_present) write_shard(one);
  }
  for (std::size_t const unit : std::exchange(gathered_units_, {})) drop(unit);
  // Those of units that were called first while all were gathered.
  for (unit_group const& group : units_) {
    for (std::size_t const i : group.entries) {
      if (group.was_called && entries_[i].users == 0) free_unused(entries_[i]);
    }
  }
}

KEEL_BODY void parameter_shards::unshard() {
  gather_all();
  close();
  std::lock_guard const lock(mutex_);
  for (entry& one : entries_) {
    one.shard = at::Tensor();
    one.is_sharded = false;
  }
}

KEEL_BODY std::vector<std::string> parameter_shards::names_outside_units() const {
  std::vector<std::string> names;
  for (auto const& item : model_.named_parameters()) {
    if (!shard_of(item.value()).defined()) names.push_back(item.key());
  }
  return names;
}

}  // namespace keel::detail::inline KEEL_MODE

#include <keel/libtorch/detail/body_end.inc>
