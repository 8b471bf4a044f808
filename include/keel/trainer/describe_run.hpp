// What a run begins with, and where memory ran out, as events.jsonl has them: so that a reader sees what was frozen, and whether a resume
// went on with what it had loaded.
#pragma once

#include <keel/core/parameters.hpp>
#include <keel/memory/phase_watch.hpp>
#include <nlohmann/json_fwd.hpp>
#include <string_view>

namespace torch::nn {
class Module;
}

namespace keel::inline KEEL_MODE {

/// `parameters`, `trained` and `frozen`: elements; `parameter_bytes`, `trained_bytes` and `optimizer_bytes` where its state is known; `rates`: of the
/// optimizer's groups.
nlohmann::ordered_json describe_parameters(torch::nn::Module& model, torch::optim::Optimizer& optimizer,
                                           parameter_list const& parameters);

/// Checksums of the `weights` with the buffers, of the `optimizer` without its rates, and of the `random` state, in hexadecimal; `rates`;
/// the `seed` of LibTorch's generator of the CPU, and `is_reseeded`: nothing was drawn since it was set. Reads all tensors once. Null, as what stands
/// above, where memory does not suffice.
nlohmann::ordered_json describe_state(torch::nn::Module& model, torch::optim::Optimizer& optimizer,
                                      parameter_list const& parameters);

/// `during` a phase of the update, its `pieces`, and in bytes what is `held` and `reserved` after the failed pass was given up, with the
/// peaks so far.
nlohmann::ordered_json describe_shortage(memory::shortage const& of);
/// The same of what ran out elsewhere: `during` "evaluating" or "between updates".
nlohmann::ordered_json describe_shortage(std::string_view during, c10::Device device);

}  // namespace keel::inline KEEL_MODE

#ifndef KEEL_COMPILED
#include <keel/trainer/describe_run.ipp>
#endif
