// Definitions for describe_run.hpp.
#pragma once

#include <ATen/CPUGeneratorImpl.h>

#include <array>
#include <cstddef>
#include <cstring>
#include <exception>
#include <keel/checkpoint/checksum.hpp>
#include <keel/checkpoint/model_state.hpp>
#include <keel/checkpoint/optimizer_state.hpp>
#include <keel/checkpoint/tensor_map.hpp>
#include <keel/core/error.hpp>
#include <keel/core/out_of_memory.hpp>
#include <keel/libtorch/random.hpp>
#include <keel/memory/statistics.hpp>
#include <keel/trainer/describe_run.hpp>
#include <mutex>
#include <nlohmann/json.hpp>
#include <string>

#include <keel/libtorch/detail/body_begin.inc>

namespace keel::detail::inline KEEL_MODE {

KEEL_BODY void add_to(checksum& to, at::Tensor const& tensor) {
  if (!tensor.defined() || tensor.is_sparse()) return;
  at::Tensor const here = tensor.detach().to(at::kCPU).contiguous();
  to.add(static_cast<char const*>(here.data_ptr()), here.nbytes());
}

KEEL_BODY std::string checksum_of_tensors(tensor_map const& tensors) {
  checksum all;
  for (auto const& [name, tensor] : tensors) {
    all.add(name.data(), name.size());
    add_to(all, tensor);
  }
  return all.digest();
}

KEEL_BODY std::string checksum_of_model(torch::nn::Module& model, whole_tensor_function const& whole) {
  tensor_map tensors;
  for (auto const& item : model.named_parameters()) tensors.emplace(item.key(), item.value());
  for (auto const& item : model.named_buffers()) tensors.emplace(item.key(), item.value());
  std::exception_ptr failed;
  checksum all;
  for (auto const& [name, tensor] : tensors) {
    all.add(name.data(), name.size());
    at::Tensor const gathered = whole ? whole(tensor) : tensor;
    try {
      add_to(all, gathered);
    } catch (std::exception const& thrown) {
      // Rethrown once the other ranks have this one's shards of the rest.
      if (!is_out_of_memory(thrown)) throw;
      failed = std::current_exception();
    }
  }
  if (failed) std::rethrow_exception(failed);
  return all.digest();
}

KEEL_BODY nlohmann::ordered_json rates_of(torch::optim::Optimizer& optimizer) {
  auto rates = nlohmann::ordered_json::array();
  for (auto& group : optimizer.param_groups())
    rates.push_back(nlohmann::ordered_json(number_to_json(group.options().get_lr())));
  return rates;
}

/// Returns `describe()`; null if memory runs out, because a description must not end a run.
template <class Describe>
nlohmann::ordered_json describe_or_null(Describe const& describe) {
  try {
    return describe();
  } catch (std::exception const& thrown) {
    if (!is_out_of_memory(thrown)) throw;
    return nullptr;
  }
}

KEEL_BODY nlohmann::ordered_json describe_usage(memory::usage const& of) {
  nlohmann::ordered_json bytes;
  bytes["held"] = of.held;
  bytes["reserved"] = of.reserved;
  for (std::size_t i = 0; i < memory::phases; ++i) bytes[to_string(static_cast<memory::phase>(i))] = of.peaks[i];
  bytes["between"] = of.between;
  bytes["accumulated"] = of.accumulated;
  return bytes;
}

KEEL_BODY std::int64_t size_of(at::Tensor const& tensor) {
  return tensor.numel() * static_cast<std::int64_t>(tensor.element_size());
}

KEEL_BODY nlohmann::ordered_json build_parameter_description(torch::nn::Module& model, torch::optim::Optimizer& optimizer,
                                                             parameter_list const& parameters) {
  std::int64_t all = 0, trained = 0, frozen = 0, bytes = 0, trained_bytes = 0;
  for (at::Tensor const& one : model.parameters()) {
    all += one.numel();
    bytes += size_of(one);
    if (!one.requires_grad()) frozen += one.numel();
  }
  for (at::Tensor const& one : parameters.tensors) {
    // A frozen parameter may remain in its group.
    if (!one.requires_grad()) continue;
    trained += one.numel();
    trained_bytes += size_of(one);
  }
  nlohmann::ordered_json found = {{"parameters", all},
                                  {"trained", trained},
                                  {"frozen", frozen},
                                  {"parameter_bytes", bytes},
                                  {"trained_bytes", trained_bytes}};
  try {
    nlohmann::json unused;
    tensor_map state;
    save_optimizer(optimizer, parameters, unused, state);
    std::int64_t optimizer_bytes = 0;
    for (auto const& [name, tensor] : state) optimizer_bytes += size_of(tensor);
    found["optimizer_bytes"] = optimizer_bytes;
  } catch (error const&) {
    // No checkpoint can hold this optimizer, which is allowed in a run without checkpoints. The size of its state is unknown.
  }
  found["rates"] = rates_of(optimizer);
  return found;
}

KEEL_BODY nlohmann::ordered_json build_state_description(torch::nn::Module& model, torch::optim::Optimizer& optimizer,
                                                         parameter_list const& parameters, whole_tensor_function const& whole) {
  nlohmann::ordered_json state;
  state["weights"] = checksum_of_model(model, whole);
  tensor_map tensors;
  nlohmann::json object;
  save_optimizer(optimizer, parameters, object, tensors);
  for (auto& group : object["groups"]) group["options"].erase("lr");
  checksum of_optimizer;
  std::string const words =
      object.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + checksum_of_tensors(tensors);
  of_optimizer.add(words.data(), words.size());
  state["optimizer"] = of_optimizer.digest();
  state["rates"] = rates_of(optimizer);
  checksum of_random;
  at::Tensor const host = libtorch::random_state(at::kCPU);
  add_to(of_random, host);
  if (parameters.device != at::kCPU) add_to(of_random, libtorch::random_state(parameters.device));
  state["random"] = of_random.digest();
  at::Generator generator = at::detail::getDefaultCPUGenerator();
  std::uint64_t seed = 0;
  {
    std::lock_guard<std::mutex> const lock(generator.mutex());
    seed = generator.current_seed();
  }
  at::Tensor const fresh = at::detail::createCPUGenerator(seed).get_state();
  state["seed"] = in_hexadecimal(seed);
  state["is_reseeded"] = fresh.nbytes() == host.nbytes() && std::memcmp(fresh.data_ptr(), host.data_ptr(), host.nbytes()) == 0;
  return state;
}

}  // namespace keel::detail::inline KEEL_MODE

namespace keel::inline KEEL_MODE {

KEEL_BODY nlohmann::ordered_json describe_parameters(torch::nn::Module& model, torch::optim::Optimizer& optimizer,
                                                     parameter_list const& parameters) {
  return detail::describe_or_null([&] { return detail::build_parameter_description(model, optimizer, parameters); });
}

KEEL_BODY nlohmann::ordered_json describe_state(torch::nn::Module& model, torch::optim::Optimizer& optimizer,
                                                parameter_list const& parameters, whole_tensor_function const& whole) {
  return detail::describe_or_null([&] { return detail::build_state_description(model, optimizer, parameters, whole); });
}

KEEL_BODY nlohmann::ordered_json describe_shortage(memory::shortage const& of) {
  nlohmann::ordered_json bytes = {{"during", to_string(of.during)}, {"pieces", of.pieces}};
  bytes.update(detail::describe_usage(of.so_far));
  return bytes;
}

KEEL_BODY nlohmann::ordered_json describe_shortage(std::string_view during, c10::Device device) {
  nlohmann::ordered_json bytes = {{"during", std::string(during)}};
  auto const all = memory::statistics_of(device);
  if (!all) return bytes;
  bytes["held"] = all->allocated;
  bytes["reserved"] = all->reserved;
  return bytes;
}

}  // namespace keel::inline KEEL_MODE

#include <keel/libtorch/detail/body_end.inc>
