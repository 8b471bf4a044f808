// Descriptions for events.jsonl: a run's parameters, its state after a resume, and memory shortages. They show which parameters were
// frozen, and whether a resumed run continued with the state that it loaded.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <keel/core/parameters.hpp>
#include <keel/memory/phase_watch.hpp>
#include <nlohmann/json_fwd.hpp>
#include <string_view>

namespace torch::nn {
class Module;
}

namespace keel::inline KEEL_MODE {

/// Returns the fields of the event `begins`. Includes `optimizer_bytes` only if a checkpoint can hold the optimizer's state. Null if memory
/// runs out.
nlohmann::ordered_json describe_parameters(torch::nn::Module& model, torch::optim::Optimizer& optimizer,
                                           parameter_list const& parameters);

/// Returns the whole tensor of a parameter or buffer, of which this rank may have a shard.
using whole_tensor_function = std::function<at::Tensor(at::Tensor const&)>;

/// Returns hexadecimal checksums of `weights` (with buffers), `optimizer` (without learning rates) and `random` state, and the `rates`.
/// Also the `seed` of LibTorch's CPU generator; `is_reseeded`: nothing was drawn since it was set. Reads all tensors once. Like
/// describe_parameters, returns null if there is not enough memory. `whole` is called for one tensor after the other, in the order of their
/// names.
nlohmann::ordered_json describe_state(torch::nn::Module& model, torch::optim::Optimizer& optimizer,
                                      parameter_list const& parameters, whole_tensor_function const& whole = {});

/// Describes an out-of-memory failure: the phase (`during`), the `pieces` of a micro-batch, and the peaks so far. `held` and `reserved`:
/// memory after the failed pass was released. All sizes are in bytes.
nlohmann::ordered_json describe_shortage(memory::shortage const& of);
/// Describes an out-of-memory failure outside an update. `during`: "evaluating" or "between updates".
nlohmann::ordered_json describe_shortage(std::string_view during, c10::Device device);

}  // namespace keel::inline KEEL_MODE

#ifndef KEEL_COMPILED
#include <keel/trainer/describe_run.ipp>
#endif
