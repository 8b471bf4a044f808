// Facts about LibTorch's optimizers. Those not listed here are element-wise and take no closure.
#pragma once

#include <keel/libtorch/ivalue_first.hpp>

#include <torch/optim/lbfgs.h>

#include <keel/libtorch/mode.hpp>
#include <keel/policy/facts.hpp>
#include <keel/policy/optimizer.hpp>

namespace keel {

template <>
struct facts_of<torch::optim::LBFGS> {
  using facts = optimizer::is<optimizer::closure, optimizer::whole_tensors>;
};

}  // namespace keel

namespace keel::inline KEEL_MODE {

/// Returns the facts of an optimizer whose type is known only at run time.
inline optimizer::settings inspect_optimizer(torch::optim::Optimizer& optimizer) {
  if (dynamic_cast<torch::optim::LBFGS*>(&optimizer) != nullptr) return facts<slot::optimizer, torch::optim::LBFGS>();
  return {};
}

}  // namespace keel::inline KEEL_MODE
