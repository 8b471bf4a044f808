// keel::recompute(forward, inputs..): runs the forward pass of a block and drops the tensors that autograd would save. The
// backward pass recomputes them from the same inputs, random numbers and autocast state, up to the last tensor that is needed
// (Chen et al. 2016, "Training Deep Nets with Sublinear Memory Cost"). Usable in any LibTorch program:
//     x = keel::recompute([&](at::Tensor const& x) { return block->forward(x); }, x);
// Uses saved-tensor hooks, so that it supports partly frozen blocks, nesting and double backward. keel::recompute_reentrant
// instead runs a backward pass inside the backward pass. It needs less bookkeeping, but its inputs must require grad (A02), and
// it supports neither double backward nor torch::autograd::grad (A04).
//
// A gradient is never silently wrong (E16). Saved tensors must not be changed in place, as for autograd itself. The random
// numbers of the second forward pass are compared with those of the first by the values computed from them. All threads of a
// process share LibTorch's generators, so a concurrent draw, such as by a data loader's worker, shifts them. On a device the
// comparison is omitted, because it would synchronize.
#pragma once

#include <keel/libtorch/ivalue_first.hpp>

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/saved_variable.h>
#include <torch/csrc/autograd/variable.h>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <keel/attention/attention_scope.hpp>
#include <keel/core/error.hpp>
#include <keel/libtorch/compatibility.hpp>
#include <keel/libtorch/random.hpp>
#include <keel/memory/saved_tensors.hpp>
#include <keel/policy/recompute.hpp>
#include <keel/recompute/unit_scope.hpp>
#include <keel/rule/recompute.hpp>
#include <memory>
#include <mutex>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace keel::detail::inline KEEL_MODE {

/// Inputs of a forward pass other than its arguments: generators and autocast state, of the CPU and of the inputs' device, and
/// the scopes' policies for units and attention.
class forward_context {
 public:
  explicit forward_context(at::DeviceType device)
      : device_(device),
        random_(random_snapshot::take(device)),
        units_(unit_scope::kind()),
        attention_(attention_scope::kind()),
        host_(libtorch::get_autocast(at::kCPU)),
        accelerator_(libtorch::get_autocast(device)) {}

  /// True if random numbers were drawn since construction, by the forward pass or by another thread.
  bool has_moved() const { return !random_.is_current(); }

  /// Calls `run` in the captured context and restores the present one afterwards, also after an exception. `random`: the
  /// forward pass may have drawn random numbers. If false, the generators are unchanged, for the sake of other threads.
  template <class Run>
  void again(bool random, Run const& run) const {
    struct put_back {
      forward_context now;
      bool random;
      bool cached = libtorch::caches_casts();
      ~put_back() {
        libtorch::cache_casts(cached);
        now.set(random);
      }
    } const after{forward_context(device_), random};
    set(random);
    // Casts of weights made by the recomputation must not stay in autocast's cache.
    libtorch::cache_casts(false);
    at::AutoGradMode with_gradients(true);
    unit_scope const units(units_);
    attention_scope const attention(attention_);
    run();
  }

 private:
  void set(bool random) const;

  at::DeviceType device_;
  random_snapshot random_;
  recompute_kind units_;
  attention_kind attention_;
  libtorch::autocast_state host_;
  libtorch::autocast_state accelerator_;
};

at::DeviceType device_of(std::vector<at::Tensor> const& inputs);

/// Returns the inputs as leaves of a separate graph, with the same values.
std::vector<at::Tensor> as_leaves(std::vector<at::Tensor> const& inputs);

/// Ends the recomputed forward pass when the backward pass has all tensors that it needs, or cannot get them. The exception
/// that arrives may be another one: inside a block that differentiates, LibTorch's engine passes only classes derived from
/// std::exception, and the interpreter of scripted blocks throws its own.
struct recomputation_ends : std::exception {};

/// Returns a checksum of the values in host memory; 0 for a tensor on a device.
std::uint64_t sum_of_values(at::Tensor const& tensor);

error changed_in_place();
error drew_otherwise();

/// One call of a block: information about the tensors that were dropped, by number, and all that recomputing them requires.
class recompute_frame : public std::enable_shared_from_this<recompute_frame> {
 public:
  using forward_pass = std::function<void(std::vector<at::Tensor> const&)>;

  recompute_frame(forward_pass forward, std::vector<at::Tensor> const& inputs);

  saved_tensor_scope::hooks hooks() { return std::make_unique<dropped>(shared_from_this()); }
  /// Call at the end of the forward pass: discards tensors that were recomputed because the block differentiates inside itself.
  void end_forward() { tensors_.clear(); }

 private:
  /// Properties of a dropped tensor.
  struct trace {
    std::vector<std::int64_t> sizes;
    at::ScalarType type;
    c10::VariableVersion versions;  ///< the tensor's counter of in-place changes
    std::int64_t version;
    bool after_a_draw;      ///< the first one saved after a random draw, such as a dropout mask or a value computed from it
    std::uint64_t sum;      ///< checksum of its values at that time
    bool released = false;  ///< no graph needs it any more

    bool resembles(at::Tensor const& other) const { return other.sizes() == sizes && other.scalar_type() == type; }
    bool was_changed() const { return !released && versions.current_version() != static_cast<std::uint32_t>(version); }
  };
  trace trace_of(at::Tensor const& tensor);

  /// Replaces a saved tensor by its number.
  class dropped final : public torch::autograd::SavedVariableHooks {
   public:
    explicit dropped(std::shared_ptr<recompute_frame> frame) : frame_(std::move(frame)) {}
    // Called early for a graph inside the block, after which the block may change its tensors in place.
    ~dropped() override {
      if (number_ < frame_->traces_.size()) frame_->traces_[number_].released = true;
    }
    void call_pack_hook(at::Tensor const& tensor) override {
      number_ = frame_->traces_.size();
      frame_->traces_.push_back(frame_->trace_of(tensor));
    }
    at::Tensor call_unpack_hook() override { return frame_->at(number_); }

   private:
    std::shared_ptr<recompute_frame> frame_;
    std::size_t number_ = static_cast<std::size_t>(-1);
  };

  /// Captures the tensors that the recomputation saves, in order.
  class captured final : public torch::autograd::SavedVariableHooks {
   public:
    explicit captured(recompute_frame& frame) : frame_(frame) {}
    void call_pack_hook(at::Tensor const& tensor) override {
      // The block caught the exception that ended it: throw again.
      if (frame_.ended_ != ending::none) throw recomputation_ends();
      std::size_t const number = frame_.next_++;
      if (number >= frame_.traces_.size() || !frame_.traces_[number].resembles(tensor)) frame_.end(ending::differs);
      trace const& before = frame_.traces_[number];
      if (before.after_a_draw && sum_of_values(tensor) != before.sum) frame_.end(ending::other_numbers);
      // Kept, because a second forward pass that differentiates inside itself needs the tensor.
      tensor_ = tensor.detach();
      frame_.tensors_[number] = tensor_;
      if (frame_.next_ == frame_.traces_.size()) frame_.end(ending::complete);
    }
    at::Tensor call_unpack_hook() override { return tensor_; }

   private:
    recompute_frame& frame_;
    at::Tensor tensor_;
  };
  enum class ending : unsigned char { none, complete, differs, other_numbers };
  [[noreturn]] void end(ending how) {
    ended_ = how;
    throw recomputation_ends();
  }

  /// Returns a dropped tensor, recomputed if necessary. Called on any thread that runs the backward pass.
  at::Tensor at(std::size_t number);

  void compute();

  /// Returns false if the random numbers differed.
  bool compute(std::vector<at::Tensor> const& inputs);

  error differs() const;

  forward_pass forward_;
  at::DeviceType device_;
  forward_context context_;
  random_snapshot random_;  ///< state of the generators when the last tensor was dropped
  bool drew_ = false;       ///< random numbers were drawn during the forward pass
  std::vector<torch::autograd::SavedVariable> inputs_;
  // The pointer type depends on LibTorch's version.
  std::vector<decltype(torch::autograd::impl::grad_accumulator(std::declval<at::Tensor const&>()))> accumulators_;
  std::vector<trace> traces_;  ///< one per dropped tensor
  std::vector<at::Tensor> tensors_;
  std::size_t next_ = 0;
  ending ended_ = ending::none;
  std::mutex mutex_;
};

/// Returns the forward pass as a function of a list of inputs.
template <class Forward, class... Inputs>
auto over_list(Forward forward, Inputs const&...) {
  return [forward = std::move(forward)](std::vector<at::Tensor> const& inputs) mutable {
    return [&]<std::size_t... Index>(std::index_sequence<Index...>) {
      return forward(inputs[Index]...);
    }(std::make_index_sequence<sizeof...(Inputs)>{});
  };
}

struct reentrant_block {
  std::function<at::Tensor(std::vector<at::Tensor> const&)> forward;
  forward_context context;
  std::vector<bool> given;  ///< which inputs are defined
  bool drew = false;        ///< random numbers were drawn during the forward pass
  std::uint64_t sum = 0;    ///< checksum of its result at that time

  /// Calls the block. LibTorch passes only defined tensors on, so a placeholder represents an optional input that is undefined.
  at::Tensor call(torch::autograd::variable_list inputs) const;
  /// Runs the forward pass without a graph. Throws error (E16) for a block that differentiates inside itself.
  at::Tensor call_without_graph(torch::autograd::variable_list const& inputs) const;
};

class reentrant_function : public torch::autograd::Function<reentrant_function> {
 public:
  /// The inputs are separate arguments, because LibTorch finds variables among the arguments but not inside them.
  template <class... Inputs>
  static at::Tensor forward(torch::autograd::AutogradContext* context, std::shared_ptr<reentrant_block> const& block,
                            Inputs const&... each) {
    torch::autograd::variable_list const inputs = {each...};
    context->save_for_backward(inputs);
    context->saved_data["block"] = c10::IValue::make_capsule(c10::make_intrusive<holder>(block));
    at::Tensor const result = block->call_without_graph(inputs);
    block->drew = block->context.has_moved();
    block->sum = sum_of_values(result);
    return result;
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list const& gradients);

 private:
  struct holder : torch::CustomClassHolder {
    explicit holder(std::shared_ptr<reentrant_block> of) : block(std::move(of)) {}
    std::shared_ptr<reentrant_block> block;
  };
};

}  // namespace keel::detail::inline KEEL_MODE

namespace keel {

// A function and a class deliberately share the name, so the function is in the namespace of the class.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wshadow"

/// Returns the result of `forward(inputs..)`, whose arguments are tensors. `forward` is copied and called again in the backward
/// pass, until which everything that it refers to must live and stay unchanged. A change of a parameter goes unnoticed if
/// autocast has cached its cast. The backward pass throws error (E16) if the second forward pass differs from the first.
template <class Forward, std::same_as<at::Tensor>... Inputs>
  requires std::invocable<Forward&, Inputs const&...>
auto recompute(Forward forward, Inputs const&... inputs) {
  if (!at::GradMode::is_enabled()) return forward(inputs...);
  auto again = detail::over_list(forward, inputs...);
  auto const frame = std::make_shared<detail::recompute_frame>(
      [again](std::vector<at::Tensor> const& list) mutable { static_cast<void>(again(list)); },
      std::vector<at::Tensor>{inputs...});
  struct ended {
    std::shared_ptr<detail::recompute_frame> const& frame;
    ~ended() { frame->end_forward(); }
  } const at_end{frame};
  saved_tensor_scope const scope([frame] { return frame->hooks(); });
  return forward(inputs...);
}

#pragma GCC diagnostic pop

}  // namespace keel

namespace keel::inline KEEL_MODE {

/// As recompute, but with a backward pass inside the backward pass; `forward` returns one tensor. Throws error: A02 if no input
/// requires grad, because then nothing in the block would be trained; E16 for a block that differentiates inside itself. The
/// backward pass throws A04 under torch::autograd::grad, and E16 as recompute does, by comparing the block's result.
template <class Forward, std::same_as<at::Tensor>... Inputs>
  requires std::same_as<std::invoke_result_t<Forward&, Inputs const&...>, at::Tensor>
at::Tensor recompute_reentrant(Forward forward, Inputs const&... inputs) {
  if (!at::GradMode::is_enabled()) return forward(inputs...);
  if (!(inputs.requires_grad() || ...)) throw broken_rule<error, rule::A02>();
  auto const block = std::make_shared<detail::reentrant_block>(
      detail::reentrant_block{detail::over_list(std::move(forward), inputs...),
                              detail::forward_context(detail::device_of({inputs...})), std::vector<bool>{inputs.defined()...}});
  return detail::reentrant_function::apply(block, (inputs.defined() ? inputs : at::empty({0}))...);
}

}  // namespace keel::inline KEEL_MODE

#ifndef KEEL_COMPILED
#include <keel/recompute/recompute.ipp>
#endif
