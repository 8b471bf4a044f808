// keel::unit(block, input..): marks a block of the model once, for every policy that works by blocks. Without such a policy it
// just calls the block.
//     for (auto& block : blocks) x = keel::unit(block, x);
// A block is a module, a module holder or a std::shared_ptr of one, or any function of tensors:
//     x = keel::unit([&](at::Tensor const& x) { return block->forward(x, mask); }, x);
// Under keel::shard::zero<3> a unit's parameters are those of its module, so name it beside the function:
//     x = keel::unit(block, [&](at::Tensor const& x) { return block->forward(x, mask); }, x);
// Under keel::recompute::reentrant or non_reentrant a trainer or step recomputes each unit in the backward pass. In your own
// loop use a unit_scope. A module, and objects that a function refers to, must then live until the backward pass; a holder or
// shared pointer keeps its module alive.
#pragma once

#include <keel/libtorch/ivalue_first.hpp>

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <concepts>
#include <keel/policy/recompute.hpp>
#include <keel/recompute/recompute.hpp>
#include <keel/recompute/unit_parameters.hpp>
#include <keel/recompute/unit_scope.hpp>
#include <memory>
#include <type_traits>
#include <utility>

namespace keel::detail::inline KEEL_MODE {

/// A module whose forward takes these tensors and returns a tensor.
template <class Block, class... Inputs>
concept module_block = std::derived_from<Block, torch::nn::Module> && requires(Block& block, Inputs const&... inputs) {
  { block.forward(inputs...) } -> std::same_as<at::Tensor>;
};

/// Returns the module that a holder or a std::shared_ptr owns.
template <class Module>
std::shared_ptr<Module> held_module(std::shared_ptr<Module> const& block) {
  return block;
}
template <class Holder>
auto held_module(Holder const& block) -> decltype(block.ptr()) {
  return block.ptr();
}
template <class Block, class... Inputs>
concept holder_block =
    requires(Block const& block) { requires module_block<std::remove_reference_t<decltype(*held_module(block))>, Inputs...>; };
template <class Block, class... Inputs>
concept function_block = requires(Block& block, Inputs const&... inputs) {
  { block(inputs...) } -> std::same_as<at::Tensor>;
};
template <class Block>
concept any_holder = requires(Block const& block) {
  { *held_module(block) } -> std::convertible_to<torch::nn::Module const&>;
};

template <class Forward, class... Inputs>
at::Tensor output_of_unit(Forward&& forward, Inputs const&... inputs) {
  switch (unit_scope::kind()) {
    case recompute_kind::non_reentrant:
      return recompute(std::forward<Forward>(forward), inputs...);
    case recompute_kind::reentrant:
      return recompute_reentrant(std::forward<Forward>(forward), inputs...);
    case recompute_kind::none:
      break;
  }
  return forward(inputs...);
}

/// Calls the function as a unit whose parameters are provided.
template <class Forward, class... Inputs>
at::Tensor output_of_provided_unit(std::shared_ptr<unit_call> const& call, Forward&& forward, Inputs const&... inputs) {
  at::Tensor output;
  try {
    output = output_of_unit(
        [call,
         forward = std::decay_t<Forward>(std::forward<Forward>(forward))](auto const&... arguments) mutable -> at::Tensor {
          auto const saving = call->begin_forward();
          return forward(arguments...);
        },
        inputs...);
  } catch (...) {
    // Rethrown once the parameters are freed.
    call->end_forward({});
    throw;
  }
  call->end_forward(output);
  return output;
}

/// Calls the function as a unit. `module`: null if it is not the forward of a module.
template <class Forward, class... Inputs>
at::Tensor call_unit(torch::nn::Module const* module, Forward&& forward, Inputs const&... inputs) {
  unit_scope::call const called(module);
  auto const provider = unit_parameters::of_module(module);
  at::Tensor output = provider ? output_of_provided_unit(provider->call(module), std::forward<Forward>(forward), inputs...)
                               : output_of_unit(std::forward<Forward>(forward), inputs...);
  called.returned(output);
  return output;
}

}  // namespace keel::detail::inline KEEL_MODE

namespace keel::inline KEEL_MODE {

/// Calls the block, which returns one tensor, under the policies of the run. A block is a module, whose forward is called, or a
/// function. Throws as recompute and recompute_reentrant do.
template <class Block, std::same_as<at::Tensor>... Inputs>
  requires detail::holder_block<std::remove_cvref_t<Block>, Inputs...> ||
           (detail::module_block<std::remove_cvref_t<Block>, Inputs...> && std::is_lvalue_reference_v<Block>) ||
           detail::function_block<std::remove_reference_t<Block>, Inputs...>
at::Tensor unit(Block&& block, Inputs const&... inputs) {
  using type = std::remove_cvref_t<Block>;
  if constexpr (detail::holder_block<type, Inputs...>) {
    auto const held = detail::held_module(block);
    torch::nn::Module const* const module = held.get();
    return detail::call_unit(module, [held](auto const&... arguments) { return held->forward(arguments...); }, inputs...);
  } else if constexpr (detail::module_block<type, Inputs...>) {
    torch::nn::Module const* const module = &block;
    return detail::call_unit(module, [&block](auto const&... arguments) { return block.forward(arguments...); }, inputs...);
  } else {
    return detail::call_unit(nullptr, std::forward<Block>(block), inputs...);
  }
}

/// As above, with a function that calls the block, for example with arguments that are not tensors:
///     x = keel::unit(block, [&](at::Tensor const& x) { return block->forward(x, is_causal); }, x);
template <class Block, class Forward, std::same_as<at::Tensor>... Inputs>
  requires(detail::any_holder<std::remove_cvref_t<Block>> ||
           (std::derived_from<std::remove_cvref_t<Block>, torch::nn::Module> && std::is_lvalue_reference_v<Block>)) &&
          detail::function_block<std::remove_reference_t<Forward>, Inputs...>
at::Tensor unit(Block&& block, Forward&& forward, Inputs const&... inputs) {
  if constexpr (detail::any_holder<std::remove_cvref_t<Block>>) {
    auto const held = detail::held_module(block);
    torch::nn::Module const* const module = held.get();
    auto call = [held, forward = std::decay_t<Forward>(std::forward<Forward>(forward))](auto const&... arguments) mutable {
      return forward(arguments...);
    };
    return detail::call_unit(module, std::move(call), inputs...);
  } else {
    return detail::call_unit(&block, std::forward<Forward>(forward), inputs...);
  }
}

}  // namespace keel::inline KEEL_MODE
