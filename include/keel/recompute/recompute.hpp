// keel::recompute(forward, inputs..): calls the forward pass of a block and drops what autograd would save of it; the backward
// pass computes it again, from the same inputs, random numbers and autocast, up to the last tensor that is needed (Chen et al.
// 2016, "Training Deep Nets with Sublinear Memory Cost"). Usable in any LibTorch program:
//     x = keel::recompute([&](at::Tensor const& x) { return block->forward(x); }, x);
// By saved-tensor hooks, so that it works on partly frozen blocks, inside one another, and under double backward.
// keel::recompute_reentrant runs a backward pass inside the backward pass instead: less bookkeeping, but its inputs must
// require grad (A02), there is no double backward, and torch::autograd::grad cannot go through it (A04).
//
// Never another gradient silently (E16): what was saved must not have been changed in place since, as for autograd itself; and
// the random numbers of the second forward pass are compared with the first one's by what they led to, because all threads of
// a process share LibTorch's generators, and one that draws meanwhile, such as a data loader's worker, shifts them. On a device
// that comparison would wait for it, and is not made.
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

  /// Random numbers were drawn since this was taken, by the forward pass or by another thread.
  bool has_moved() const { return !random_.is_current(); }

  /// Runs it as it was; everything is put back afterwards, also after an exception. `random`: the forward pass may have drawn;
  /// where it did not, other threads' numbers are left alone.
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
    // Casts of weights that the recomputation makes must not stay for whoever comes next.
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

/// The same values as leaves of a separate graph.
std::vector<at::Tensor> as_leaves(std::vector<at::Tensor> const& inputs);

/// Thrown out of the forward pass when everything that the backward pass needs is there, or when it cannot be. What arrives may
/// be another exception: LibTorch's engine, inside a block that differentiates, lets only those derived from std::exception
/// through, and the interpreter of scripted blocks throws one with its own words.
struct recomputation_ends : std::exception {};

/// Of values in host memory; 0 for others.
std::uint64_t sum_of_values(at::Tensor const& tensor);

error changed_in_place();
error drew_otherwise();

/// One call of a block: what was saved of it, by number, and how to compute it again.
class recompute_frame : public std::enable_shared_from_this<recompute_frame> {
 public:
  using forward_pass = std::function<void(std::vector<at::Tensor> const&)>;

  recompute_frame(forward_pass forward, std::vector<at::Tensor> const& inputs);

  saved_tensor_scope::hooks hooks() { return std::make_unique<dropped>(shared_from_this()); }
  /// The forward pass is over: what it computed again, to differentiate inside itself, is not kept.
  void end_forward() { tensors_.clear(); }

 private:
  /// What is known of a tensor that was dropped.
  struct trace {
    std::vector<std::int64_t> sizes;
    at::ScalarType type;
    c10::VariableVersion versions;  ///< counts its changes in place, as long as this lives
    std::int64_t version;
    bool after_a_draw;      ///< the first after a random draw: a dropout's mask, or what was made of it
    std::uint64_t sum;      ///< of its values then
    bool released = false;  ///< no graph needs it any more

    bool resembles(at::Tensor const& other) const { return other.sizes() == sizes && other.scalar_type() == type; }
    bool was_changed() const { return !released && versions.current_version() != static_cast<std::uint32_t>(version); }
  };
  trace trace_of(at::Tensor const& tensor);

  /// Stands for a saved tensor by its number.
  class dropped final : public torch::autograd::SavedVariableHooks {
   public:
    explicit dropped(std::shared_ptr<recompute_frame> frame) : frame_(std::move(frame)) {}
    // Of a graph inside the block, which may change its own tensors in place once it is done with them.
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

  /// Keeps what the recomputation saves, in its order.
  class captured final : public torch::autograd::SavedVariableHooks {
   public:
    explicit captured(recompute_frame& frame) : frame_(frame) {}
    void call_pack_hook(at::Tensor const& tensor) override {
      // A block that catches every exception goes on.
      if (frame_.ended_ != ending::none) throw recomputation_ends();
      std::size_t const number = frame_.next_++;
      if (number >= frame_.traces_.size() || !frame_.traces_[number].resembles(tensor)) frame_.end(ending::differs);
      trace const& before = frame_.traces_[number];
      if (before.after_a_draw && sum_of_values(tensor) != before.sum) frame_.end(ending::other_numbers);
      // The second forward pass may differentiate inside itself, and then asks for it.
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

  /// Called from whichever thread runs the backward pass.
  at::Tensor at(std::size_t number);

  void compute();

  /// False where other random numbers came.
  bool compute(std::vector<at::Tensor> const& inputs);

  error differs() const;

  forward_pass forward_;
  at::DeviceType device_;
  forward_context context_;
  random_snapshot random_;  ///< as it was when a tensor was dropped last
  bool drew_ = false;       ///< the generator moved during the forward pass
  std::vector<torch::autograd::SavedVariable> inputs_;
  // LibTorch's versions differ in the kind of pointer.
  std::vector<decltype(torch::autograd::impl::grad_accumulator(std::declval<at::Tensor const&>()))> accumulators_;
  std::vector<trace> traces_;  ///< of what was dropped
  std::vector<at::Tensor> tensors_;
  std::size_t next_ = 0;
  ending ended_ = ending::none;
  std::mutex mutex_;
};

/// The block's inputs as a list, and its forward pass as a function of one.
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
  std::vector<bool> given;  ///< which of the inputs are defined
  bool drew = false;        ///< the generator moved during the forward pass
  std::uint64_t sum = 0;    ///< of its result then

  /// LibTorch passes only tensors on, so that something stands for an optional input that is not there.
  at::Tensor call(torch::autograd::variable_list inputs) const;
  /// The forward pass without a graph. Throws error (E16) for a block that differentiates inside itself.
  at::Tensor call_without_graph(torch::autograd::variable_list const& inputs) const;
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

// A function and a class share the name on purpose, and so the function is in the namespace of the class.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wshadow"

/// Calls `forward(inputs..)`, tensors in and whatever it returns out. It is copied and called again in the backward pass; what
/// it refers to must live until then, and must not change; casts that autocast made of a parameter hide that it did. Throws
/// error (E16) in the backward pass, where the second forward pass is not the first.
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

/// The same by a backward pass inside the backward pass; `forward` returns one tensor. Throws error (A02) where no input
/// requires grad, because then nothing in the block would be trained, and (E16) for a block that differentiates inside itself; in the
/// backward pass A04 under torch::autograd::grad, and E16 as recompute does, by the block's result.
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
