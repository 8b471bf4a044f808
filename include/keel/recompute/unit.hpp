// keel::unit(block, input..): marks a block of the model once, for every policy that works by blocks. Without such a policy it
// just calls the block.
//     for (auto& block : blocks) x = keel::unit(block, x);
// A block is a module, a module holder or a std::shared_ptr of one, or any function of tensors:
//     x = keel::unit([&](at::Tensor const& x) { return block->forward(x, mask); }, x);
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

/// Calls the function as a unit. `module`: null if it is not the forward of a module.
template <class Forward, class... Inputs>
at::Tensor call_unit(void const* module, Forward&& forward, Inputs const&... inputs) {
  unit_scope::call const called(module);
  at::Tensor output = output_of_unit(std::forward<Forward>(forward), inputs...);
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

}  // namespace keel::inline KEEL_MODE
