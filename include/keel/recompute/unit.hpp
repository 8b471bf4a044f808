// keel::unit(forward, input..): marks a block of the model once, for every policy that works by blocks. Without such a policy
// it is the call itself.
//     for (auto& block : blocks) x = keel::unit([&](at::Tensor const& x) { return block->forward(x); }, x);
// Under keel::recompute::reentrant or non_reentrant a trainer or step computes each unit again in the backward pass; a
// unit_scope does so in a loop of one's own. What `forward` refers to must then live until the backward pass.
#pragma once

#include <ATen/core/Tensor.h>

#include <concepts>
#include <keel/policy/recompute.hpp>
#include <keel/recompute/recompute.hpp>
#include <keel/recompute/unit_scope.hpp>
#include <type_traits>
#include <utility>

namespace keel {

/// Calls `forward(inputs..)`, which returns one tensor, as the policies of the run say. Throws as recompute and
/// recompute_reentrant do.
template <class Forward, std::same_as<at::Tensor>... Inputs>
requires std::same_as<std::invoke_result_t<Forward&, Inputs const&...>, at::Tensor> at::Tensor unit(Forward&& forward,
                                                                                                    Inputs const&... inputs) {
  unit_scope::call const called;
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

}  // namespace keel
