// Definitions for recompute.hpp.
#pragma once

#include <keel/libtorch/ivalue_first.hpp>

#include <ATen/ops/empty.h>
#include <torch/csrc/autograd/engine.h>

#include <xxhash.h>

#include <keel/recompute/recompute.hpp>
#include <keel/recompute/recompute_pass.hpp>

#include <keel/libtorch/detail/body_begin.inc>

namespace keel::detail::inline KEEL_MODE {

KEEL_BODY void forward_context::set(bool random) const {
  if (random) random_.restore();
  libtorch::set_autocast(at::kCPU, host_);
  if (device_ != at::kCPU) libtorch::set_autocast(device_, accelerator_);
}

KEEL_BODY at::DeviceType device_of(std::vector<at::Tensor> const& inputs) {
  for (at::Tensor const& one : inputs) {
    if (one.defined() && !one.device().is_cpu()) return one.device().type();
  }
  return at::kCPU;
}

KEEL_BODY std::vector<at::Tensor> as_leaves(std::vector<at::Tensor> const& inputs) {
  std::vector<at::Tensor> leaves;
  leaves.reserve(inputs.size());
  for (at::Tensor const& one : inputs) {
    leaves.push_back(one.defined() ? one.detach().requires_grad_(one.requires_grad()) : one);
  }
  return leaves;
}

KEEL_BODY std::uint64_t sum_of_values(at::Tensor const& tensor) {
  if (!tensor.defined() || !tensor.device().is_cpu() || tensor.layout() != at::kStrided || tensor.numel() == 0) return 0;
  at::NoGradGuard no_grad;
  at::Tensor const values = tensor.detach().contiguous();
  return XXH3_64bits(values.data_ptr(), values.nbytes());
}

KEEL_BODY error changed_in_place() {
  return error(
      "E16",
      "a tensor that a recomputed block needs again was modified in place after the forward pass, so the gradient would "
      "be wrong. Modify a copy, or modify it after the backward pass.");
}

KEEL_BODY error drew_otherwise() {
  return error("E16",
               "a recomputed block drew different random numbers than in its forward pass: another thread used LibTorch's "
               "generator in between, or a kernel of the block is not deterministic. Give each data-loading thread a separate "
               "generator: at::make_generator<at::CPUGeneratorImpl>(seed), passed to each call that draws.");
}

KEEL_BODY recompute_frame::recompute_frame(forward_pass forward, std::vector<at::Tensor> const& inputs)
    : forward_(std::move(forward)), device_(device_of(inputs)), context_(device_), random_(random_snapshot::take(device_)) {
  // Saved as autograd saves tensors, so that an enclosing recomputed block drops them too.
  for (at::Tensor const& one : inputs) {
    // A saved variable requires a gradient accumulator, which a leaf without uses does not have yet.
    bool const is_leaf = one.defined() && one.requires_grad() && one.is_leaf();
    if (is_leaf) accumulators_.push_back(torch::autograd::impl::grad_accumulator(one));
    inputs_.emplace_back(one, /*is_output=*/false);
  }
}

KEEL_BODY recompute_frame::trace recompute_frame::trace_of(at::Tensor const& tensor) {
  bool const drawn = !random_.is_current();
  if (drawn) random_ = random_snapshot::take(device_);
  drew_ |= drawn;
  auto const& versions = torch::autograd::impl::version_counter(tensor);
  return {tensor.sizes().vec(),
          tensor.scalar_type(),
          versions,
          static_cast<std::int64_t>(versions.current_version()),
          drawn,
          drawn ? sum_of_values(tensor) : 0};
}

KEEL_BODY at::Tensor recompute_frame::at(std::size_t number) {
  std::lock_guard<std::mutex> const lock(mutex_);
  if (number >= tensors_.size() || !tensors_[number].defined()) compute();
  // Released on use; a second backward pass over a retained graph recomputes it.
  return std::exchange(tensors_[number], at::Tensor());
}

KEEL_BODY void recompute_frame::compute() {
  for (trace const& one : traces_) {
    if (one.was_changed()) throw changed_in_place();
  }
  std::vector<at::Tensor> inputs;
  inputs.reserve(inputs_.size());
  for (auto const& one : inputs_) inputs.push_back(one.unpack());
  // Retry, because another thread may draw during a recomputation too. If it drew during the first pass, no attempt succeeds.
  constexpr int attempts = 4;
  for (int attempt = 1; !compute(inputs); ++attempt) {
    if (attempt == attempts) throw drew_otherwise();
  }
}

KEEL_BODY bool recompute_frame::compute(std::vector<at::Tensor> const& inputs) {
  tensors_.assign(traces_.size(), at::Tensor());
  next_ = 0;
  ended_ = ending::none;
  context_.again(drew_, [&] {
    saved_tensor_scope const capture([this] { return std::make_unique<captured>(*this); });
    try {
      forward_(as_leaves(inputs));
    } catch (...) {
      // Swallow the exception that ended the pass, whatever it was converted to.
      if (ended_ == ending::none) throw;
    }
  });
  if (ended_ == ending::none || ended_ == ending::differs) throw differs();
  return ended_ == ending::complete;
}

KEEL_BODY error recompute_frame::differs() const {
  return error("E16",
               "a recomputed block saved other tensors than in its forward pass. Its forward pass must do the same for the "
               "same inputs: no counters, no branches on anything that changes.");
}

KEEL_BODY at::Tensor reentrant_block::call(torch::autograd::variable_list inputs) const {
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    if (!given[i]) inputs[i] = at::Tensor();
  }
  return forward(inputs);
}

KEEL_BODY at::Tensor reentrant_block::call_without_graph(torch::autograd::variable_list const& inputs) const {
  try {
    return call(inputs);
  } catch (c10::Error const& thrown) {
    // LibTorch has no exception type for this error.
    if (std::string_view(thrown.what()).find("does not require grad") == std::string_view::npos) throw;
  }
  throw error("E16",
              "a block that differentiates inside itself has no graph for it under keel::recompute::reentrant. Use "
              "keel::recompute::non_reentrant, or differentiate outside of the block.");
}

KEEL_BODY torch::autograd::variable_list reentrant_function::backward(torch::autograd::AutogradContext* context,
                                                                      torch::autograd::variable_list const& gradients) {
  // torch::autograd::grad computes selected gradients only; this backward pass would add to all of them.
  if (!torch::autograd::Engine::get_default_engine().is_checkpoint_valid()) throw broken_rule<error, rule::A04>();
  auto const capsule = context->saved_data["block"].toCapsule();
  auto const block = static_cast<holder&>(*capsule).block;
  auto const saved = context->get_saved_variables();
  torch::autograd::variable_list leaves;
  at::Tensor result;
  constexpr int attempts = 4;
  std::uint64_t before = 0;
  for (int attempt = 1;; ++attempt) {
    leaves = as_leaves(saved);
    block->context.again(block->drew, [&] { result = block->call(leaves); });
    std::uint64_t const sum = sum_of_values(result);
    if (sum == block->sum) break;
    if (!block->drew && attempt == 2) {
      if (sum == before) throw changed_in_place();
      break;  // a nondeterministic kernel
    }
    if (attempt == attempts) throw drew_otherwise();
    before = sum;
  }
  {
    recompute_pass const running;
    torch::autograd::backward({result}, {gradients.front()});
  }
  // The first result is for the block, which is not a variable.
  torch::autograd::variable_list all = {at::Tensor()};
  for (at::Tensor const& leaf : leaves) all.push_back(leaf.grad());
  return all;
}

}  // namespace keel::detail::inline KEEL_MODE

#include <keel/libtorch/detail/body_end.inc>
