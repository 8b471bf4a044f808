// keel::recompute(forward, inputs..): calls the forward pass of a block and drops what autograd would save of it; the backward
// pass computes it again, from the same inputs, random numbers and autocast, up to the last tensor that is needed (Chen et al.
// 2016, "Training Deep Nets with Sublinear Memory Cost"). Usable in any LibTorch program:
//     x = keel::recompute([&](at::Tensor const& x) { return block->forward(x); }, x);
// By saved-tensor hooks, so that it works on partly frozen blocks, inside one another, and under double backward.
// keel::recompute_reentrant runs a backward pass inside the backward pass instead: less bookkeeping, but its inputs must
// require grad (A02), and there is no double backward.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/saved_variable.h>
#include <torch/csrc/autograd/variable.h>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <keel/error.hpp>
#include <keel/libtorch/compatibility.hpp>
#include <keel/libtorch/random.hpp>
#include <keel/memory/attention_scope.hpp>
#include <keel/memory/saved_tensors.hpp>
#include <keel/memory/unit_scope.hpp>
#include <keel/policy/recompute.hpp>
#include <keel/rule/recompute.hpp>
#include <memory>
#include <mutex>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace keel {

namespace detail {

/// What a forward pass depends on beside its inputs: generators and autocast, of the CPU and of the inputs' device, and what
/// the policies of the run make of units and attention inside it.
class forward_context {
 public:
  explicit forward_context(at::DeviceType device)
      : device_(device),
        random_(random_snapshot::take(device)),
        units_(unit_scope::kind()),
        attention_(attention_scope::kind()),
        host_(libtorch::get_autocast(at::kCPU)),
        accelerator_(libtorch::get_autocast(device)) {}

  /// Runs it as it was; everything is put back afterwards, also after an exception.
  template <class Run>
  void again(Run const& run) const {
    struct put_back {
      forward_context now;
      bool cached = at::autocast::is_autocast_cache_enabled();
      ~put_back() {
        at::autocast::set_autocast_cache_enabled(cached);
        now.set();
      }
    } const after{forward_context(device_)};
    set();
    // Casts of weights that the recomputation makes must not stay for whoever comes next.
    at::autocast::set_autocast_cache_enabled(false);
    at::AutoGradMode with_gradients(true);
    unit_scope const units(units_);
    attention_scope const attention(attention_);
    run();
  }

 private:
  void set() const {
    random_.restore();
    libtorch::set_autocast(at::kCPU, host_);
    if (device_ != at::kCPU) libtorch::set_autocast(device_, accelerator_);
  }

  at::DeviceType device_;
  random_snapshot random_;
  recompute_kind units_;
  attention_kind attention_;
  libtorch::autocast_state host_;
  libtorch::autocast_state accelerator_;
};

inline at::DeviceType device_of(std::vector<at::Tensor> const& inputs) {
  for (at::Tensor const& one : inputs) {
    if (one.defined() && !one.device().is_cpu()) return one.device().type();
  }
  return at::kCPU;
}

/// The same values as leaves of a graph of their own.
inline std::vector<at::Tensor> as_leaves(std::vector<at::Tensor> const& inputs) {
  std::vector<at::Tensor> leaves;
  for (at::Tensor const& one : inputs) {
    leaves.push_back(one.defined() ? one.detach().requires_grad_(one.requires_grad()) : one);
  }
  return leaves;
}

/// Thrown out of the forward pass when everything that the backward pass needs is there.
struct all_captured {};

/// One call of a block: what was saved of it, by number, and how to compute it again.
class recompute_frame : public std::enable_shared_from_this<recompute_frame> {
 public:
  using forward_pass = std::function<void(std::vector<at::Tensor> const&)>;

  recompute_frame(forward_pass forward, std::vector<at::Tensor> const& inputs)
      : forward_(std::move(forward)), context_(device_of(inputs)) {
    // Saved as autograd saves, so that a block around this one drops them too.
    for (at::Tensor const& one : inputs) {
      // A leaf that nothing was computed from yet has no accumulator, which its saved form asks for.
      bool const is_leaf = one.defined() && one.requires_grad() && one.is_leaf();
      if (is_leaf) accumulators_.push_back(torch::autograd::impl::grad_accumulator(one));
      inputs_.emplace_back(one, /*is_output=*/false);
    }
  }

  saved_tensor_scope::hooks hooks() { return std::make_unique<dropped>(shared_from_this()); }

 private:
  struct shape {
    std::vector<std::int64_t> sizes;
    at::ScalarType type;
    bool operator==(shape const&) const = default;
  };
  static shape shape_of(at::Tensor const& tensor) { return {tensor.sizes().vec(), tensor.scalar_type()}; }

  /// Stands for a saved tensor by its number.
  class dropped final : public torch::autograd::SavedVariableHooks {
   public:
    explicit dropped(std::shared_ptr<recompute_frame> frame) : frame_(std::move(frame)) {}
    void call_pack_hook(at::Tensor const& tensor) override {
      number_ = frame_->shapes_.size();
      frame_->shapes_.push_back(shape_of(tensor));
    }
    at::Tensor call_unpack_hook() override { return frame_->at(number_); }

   private:
    std::shared_ptr<recompute_frame> frame_;
    std::size_t number_ = 0;
  };

  /// Keeps what the recomputation saves, in its order.
  class captured final : public torch::autograd::SavedVariableHooks {
   public:
    explicit captured(recompute_frame& frame) : frame_(frame) {}
    void call_pack_hook(at::Tensor const& tensor) override {
      std::size_t const number = frame_.next_++;
      if (number >= frame_.shapes_.size() || !(frame_.shapes_[number] == shape_of(tensor))) throw frame_.differs();
      frame_.tensors_[number] = tensor.detach();
      if (frame_.next_ == frame_.shapes_.size()) throw all_captured();
    }
    /// Its graph is dropped before anybody could go through it.
    at::Tensor call_unpack_hook() override { throw frame_.differs(); }

   private:
    recompute_frame& frame_;
  };

  /// Called from whichever thread runs the backward pass.
  at::Tensor at(std::size_t number) {
    std::lock_guard<std::mutex> const lock(mutex_);
    if (number >= tensors_.size() || !tensors_[number].defined()) compute();
    // A second backward pass over a graph that was retained computes it again.
    return std::exchange(tensors_[number], at::Tensor());
  }

  void compute() {
    std::vector<at::Tensor> inputs;
    for (auto const& one : inputs_) inputs.push_back(one.unpack());
    tensors_.assign(shapes_.size(), at::Tensor());
    next_ = 0;
    bool complete = false;
    context_.again([&] {
      saved_tensor_scope const capture([this] { return std::make_unique<captured>(*this); });
      try {
        forward_(as_leaves(inputs));
      } catch (all_captured const&) {
        complete = true;
      }
    });
    if (!complete) throw differs();
  }

  error differs() const {
    return error("E16",
                 "a recomputed block saved other tensors than in its forward pass. Its forward pass must do the same for the "
                 "same inputs: no counters, no branches on anything that changes.");
  }

  forward_pass forward_;
  forward_context context_;
  std::vector<torch::autograd::SavedVariable> inputs_;
  // LibTorch's versions differ in the kind of pointer.
  std::vector<decltype(torch::autograd::impl::grad_accumulator(std::declval<at::Tensor const&>()))> accumulators_;
  std::vector<shape> shapes_;  ///< of what was dropped
  std::vector<at::Tensor> tensors_;
  std::size_t next_ = 0;
  std::mutex mutex_;
};

/// The block's inputs as a list, and its forward pass as a function of one.
template <class Forward, class... Inputs>
auto over_list(Forward forward, Inputs const&...) {
  return [forward = std::move(forward)](std::vector<at::Tensor> const& inputs) mutable {
    return [&]<std::size_t... Index>(std::index_sequence<Index...>) { return forward(inputs[Index]...); }
    (std::make_index_sequence<sizeof...(Inputs)>{});
  };
}

struct reentrant_block {
  std::function<at::Tensor(std::vector<at::Tensor> const&)> forward;
  forward_context context;
};

class reentrant_function : public torch::autograd::Function<reentrant_function> {
 public:
  /// One by one, because LibTorch looks for variables among the arguments and not inside of them.
  template <class... Inputs>
  static at::Tensor forward(torch::autograd::AutogradContext* context, std::shared_ptr<reentrant_block> const& block,
                            Inputs const&... each) {
    torch::autograd::variable_list const inputs = {each...};
    context->save_for_backward(inputs);
    context->saved_data["block"] = c10::IValue::make_capsule(c10::make_intrusive<holder>(block));
    return block->forward(inputs);
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list const& gradients) {
    auto const capsule = context->saved_data["block"].toCapsule();
    auto const block = static_cast<holder&>(*capsule).block;
    auto const leaves = as_leaves(context->get_saved_variables());
    at::Tensor result;
    block->context.again([&] { result = block->forward(leaves); });
    torch::autograd::backward({result}, {gradients.front()});
    // One for the block, which is no variable.
    torch::autograd::variable_list all = {at::Tensor()};
    for (at::Tensor const& leaf : leaves) all.push_back(leaf.defined() ? leaf.grad() : at::Tensor());
    return all;
  }

 private:
  struct holder : torch::CustomClassHolder {
    explicit holder(std::shared_ptr<reentrant_block> of) : block(std::move(of)) {}
    std::shared_ptr<reentrant_block> block;
  };
};

}  // namespace detail

/// Calls `forward(inputs..)`, tensors in and whatever it returns out. It is copied and called again in the backward pass; what
/// it refers to must live until then, and must not change: changed parameters would give other values without a word. Throws
/// error in the backward pass: E16 where it saves another number of tensors, or other shapes, the second time.
template <class Forward, std::same_as<at::Tensor>... Inputs>
requires std::invocable<Forward&, Inputs const&...>
auto recompute(Forward forward, Inputs const&... inputs) {
  if (!at::GradMode::is_enabled()) return forward(inputs...);
  auto again = detail::over_list(forward, inputs...);
  auto const frame = std::make_shared<detail::recompute_frame>(
      [again](std::vector<at::Tensor> const& list) mutable { static_cast<void>(again(list)); },
      std::vector<at::Tensor>{inputs...});
  saved_tensor_scope const scope([frame] { return frame->hooks(); });
  return forward(inputs...);
}

/// The same by a backward pass inside the backward pass; `forward` returns one tensor. Throws error (A02) where no input
/// requires grad, because then nothing in the block would be trained.
template <class Forward, std::same_as<at::Tensor>... Inputs>
requires std::same_as<std::invoke_result_t<Forward&, Inputs const&...>, at::Tensor> at::Tensor recompute_reentrant(
    Forward forward, Inputs const&... inputs) {
  if (!at::GradMode::is_enabled()) return forward(inputs...);
  if (!(inputs.requires_grad() || ...)) throw broken_rule<error, rule::A02>();
  auto const block = std::make_shared<detail::reentrant_block>(detail::reentrant_block{
      detail::over_list(std::move(forward), inputs...), detail::forward_context(detail::device_of({inputs...}))});
  return detail::reentrant_function::apply(block, inputs...);
}

}  // namespace keel
