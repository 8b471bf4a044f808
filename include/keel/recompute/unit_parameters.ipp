// Definitions for unit_parameters.hpp.
#pragma once

#include <keel/libtorch/ivalue_first.hpp>

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include <atomic>
#include <keel/core/error.hpp>
#include <keel/recompute/unit_parameters.hpp>
#include <mutex>
#include <unordered_map>
#include <utility>

#include <keel/libtorch/detail/body_begin.inc>

namespace keel::detail::inline KEEL_MODE {

/// LibTorch has no kernels for this key and tests it before all others, so that an operation on a tensor with it calls our fallback.
inline constexpr c10::DispatchKey freed_key = c10::DispatchKey::TESTING_ONLY_GenericWrapper;

/// Access to the keys of a tensor, which LibTorch changes itself for conjugates and negatives only.
struct dispatch_keys : c10::TensorImpl {
  static c10::DispatchKeySet& of(at::Tensor const& tensor) { return tensor.unsafeGetTensorImpl()->*(&dispatch_keys::key_set_); }
};

struct freed_parameter {
  /// Prevents other memory from getting the same address.
  c10::weak_intrusive_ptr<c10::StorageImpl> memory;
  std::string name, unit;
  std::weak_ptr<unit_parameters> provider;
};

/// The providers of modules and the freed parameters of all steps of this process, by address.
struct provided_parameters {
  std::mutex mutex;
  std::unordered_map<void const*, std::weak_ptr<unit_parameters>> modules;
  std::unordered_map<void const*, freed_parameter> freed;
  std::atomic<std::size_t> module_count = 0;
  std::size_t purge_at = 256;  ///< size of `freed` at which tensors that no longer exist are removed

  /// Never destroyed, because tensors with static storage duration may outlive it.
  static provided_parameters& instance() {
    static auto* const one = new provided_parameters;
    return *one;
  }
};

KEEL_BODY void refuse_freed(c10::OperatorHandle const& operation, torch::jit::Stack* arguments) {
  auto& all = provided_parameters::instance();
  std::string which = "a parameter", unit = "its unit";
  bool has_step = true, is_kept = true;
  auto const look_at = [&](at::Tensor const& one) {
    if (!unit_parameters::is_freed(one)) return;
    std::lock_guard const lock(all.mutex);
    auto const found = all.freed.find(one.storage().unsafeGetStorageImpl());
    if (found == all.freed.end()) return;
    which = found->second.name;
    unit = "the unit " + found->second.unit;
    has_step = !found->second.provider.expired();
    is_kept = unit_parameters::kept_shard_of(one) != nullptr;
  };
  for (c10::IValue const& argument : *arguments) {
    if (argument.isTensor()) look_at(argument.toTensor());
    if (!argument.isList()) continue;
    for (c10::IValue const& element : argument.toListRef()) {
      if (element.isTensor()) look_at(element.toTensor());
    }
  }
  if (!has_step && !is_kept)
    throw error("E12", operation.operator_name().name + " was called with " + which +
                           ", which was sharded by a step that an exception has ended. Build the model again, and load a "
                           "checkpoint.");
  if (!has_step)
    throw error("E12", operation.operator_name().name + " was called with " + which +
                           ", of which each rank has a shard only, and no step or trainer with keel::shard::zero<3> has its "
                           "model now. Construct one, and call the model in its passes; or initialize, load and move a module "
                           "before keel::shard_parameters.");
  throw error("E12", operation.operator_name().name + " was called with " + which + " outside of " + unit +
                         ", but under keel::shard::zero<3> each rank has a shard of it only. Read it inside of "
                         "keel::unit(module, ..), or while the result of gather_parameters() of the step or trainer exists.");
}

inline void register_refusal() {
  // Registered once in a process: two fallbacks of one key are an error.
  static torch::Library const* const fallback = [] {
    auto* const library = new torch::Library(torch::Library::IMPL, "_", freed_key, __FILE__, __LINE__);
    library->fallback(torch::CppFunction::makeFromBoxedFunction<&refuse_freed>());
    return library;
  }();
  static_cast<void>(fallback);
}

KEEL_BODY std::shared_ptr<unit_parameters> unit_parameters::of_module(void const* module) {
  auto& all = provided_parameters::instance();
  if (module == nullptr || all.module_count.load(std::memory_order_acquire) == 0) return nullptr;
  std::lock_guard const lock(all.mutex);
  auto const found = all.modules.find(module);
  return found == all.modules.end() ? nullptr : found->second.lock();
}

KEEL_BODY void unit_parameters::add_module(void const* module, std::weak_ptr<unit_parameters> const& provider) {
  auto& all = provided_parameters::instance();
  register_refusal();
  std::lock_guard const lock(all.mutex);
  all.modules[module] = provider;
  all.module_count.store(all.modules.size(), std::memory_order_release);
}

KEEL_BODY void unit_parameters::remove_module(void const* module, unit_parameters const* provider) {
  auto& all = provided_parameters::instance();
  std::lock_guard const lock(all.mutex);
  auto const found = all.modules.find(module);
  if (found == all.modules.end()) return;
  auto const owner = found->second.lock();
  if (owner != nullptr && owner.get() != provider) return;
  all.modules.erase(found);
  all.module_count.store(all.modules.size(), std::memory_order_release);
}

KEEL_BODY void unit_parameters::free_memory(at::Tensor const& parameter, std::string const& name, std::string const& unit,
                                            std::weak_ptr<unit_parameters> const& provider) {
  register_refusal();
  auto& all = provided_parameters::instance();
  c10::Storage const& storage = parameter.storage();
  c10::StorageImpl* const memory = storage.unsafeGetStorageImpl();
  {
    std::lock_guard const lock(all.mutex);
    if (all.freed.size() >= all.purge_at) {
      std::erase_if(all.freed, [](auto const& one) { return one.second.memory.expired(); });
      all.purge_at = 2 * all.freed.size() + 256;
    }
    all.freed.insert_or_assign(
        memory, freed_parameter{c10::weak_intrusive_ptr<c10::StorageImpl>(storage.getWeakStorageImpl()), name, unit, provider});
  }
  c10::DispatchKeySet& keys = dispatch_keys::of(parameter);
  keys = keys.add(freed_key);
  memory->set_data_ptr_noswap(c10::DataPtr(nullptr, parameter.device()));
  memory->set_nbytes(0);
}

KEEL_BODY void unit_parameters::set_memory(at::Tensor const& parameter, c10::DataPtr memory) {
  auto& all = provided_parameters::instance();
  c10::StorageImpl* const storage = parameter.storage().unsafeGetStorageImpl();
  {
    std::lock_guard const lock(all.mutex);
    all.freed.erase(storage);
  }
  storage->set_data_ptr_noswap(std::move(memory));
  storage->set_nbytes(parameter.nbytes());
  c10::DispatchKeySet& keys = dispatch_keys::of(parameter);
  keys = keys.remove(freed_key);
}

inline void delete_kept_shard(void* shard) { delete static_cast<kept_shard*>(shard); }

KEEL_BODY void unit_parameters::keep_shard(at::Tensor const& parameter, std::unique_ptr<kept_shard> shard) noexcept {
  auto& all = provided_parameters::instance();
  c10::StorageImpl* const storage = parameter.storage().unsafeGetStorageImpl();
  {
    std::lock_guard const lock(all.mutex);
    if (auto const found = all.freed.find(storage); found != all.freed.end()) found->second.provider.reset();
  }
  storage->set_data_ptr_noswap(c10::DataPtr(nullptr, shard.release(), &delete_kept_shard, parameter.device()));
}

KEEL_BODY kept_shard const* unit_parameters::kept_shard_of(at::Tensor const& parameter) {
  if (!is_freed(parameter)) return nullptr;
  c10::DataPtr const& memory = parameter.storage().unsafeGetStorageImpl()->data_ptr();
  return memory.get_deleter() == &delete_kept_shard ? static_cast<kept_shard const*>(memory.get_context()) : nullptr;
}

KEEL_BODY bool unit_parameters::is_freed(at::Tensor const& parameter) {
  return parameter.defined() && parameter.key_set().has(freed_key);
}

KEEL_BODY void unit_parameters::require_memory(at::Tensor const& saved) {
  if (!saved.defined() || !saved.has_storage() || saved.numel() == 0) return;
  c10::StorageImpl const* const memory = saved.storage().unsafeGetStorageImpl();
  if (memory->nbytes() != 0) return;
  auto& all = provided_parameters::instance();
  std::shared_ptr<unit_parameters> provider;
  std::string name;
  {
    std::lock_guard const lock(all.mutex);
    auto const found = all.freed.find(memory);
    if (found == all.freed.end()) return;
    provider = found->second.provider.lock();
    name = found->second.name;
  }
  if (provider == nullptr)
    throw error("E12", "a backward pass needs " + name +
                           ", but the step that shards it no longer exists. Run the backward pass while the step exists.");
  provider->restore(memory);
}

}  // namespace keel::detail::inline KEEL_MODE

#include <keel/libtorch/detail/body_end.inc>
