// keel::memory::estimate<Recipe>(model, batch, loss_of): estimates the peak memory of an update before training.
//     std::puts(keel::memory::estimate<recipe>(model, batch, loss_of).describe().c_str());
// Parameters, gradients and moments are counted. Activations are measured: the loss is computed for one row and for two, the bytes that
// autograd saves are counted by unit, and the result is extrapolated to all rows of the batch. A batch that would not fit can therefore be
// estimated as well. Afterwards gradients, buffers and random state are restored.
//     peak = parameters + gathered + 2 buffers + gradients + optimizer + average + activations + backward
//     backward = the larger of 2 logits and (the largest recomputed unit, if units are) + 2 of the largest tensor of a unit
// A backward pass holds the incoming and the outgoing gradient at the same time: those of the logits before any activation is freed, and
// those of a unit while its activations exist. Temporary memory of operators and the allocator's rounding are not included.
#pragma once

#include <keel/libtorch/ivalue_first.hpp>

#include <ATen/core/Tensor.h>
#include <ATen/ops/log_softmax.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <keel/attention/attention_scope.hpp>
#include <keel/core/buffers.hpp>
#include <keel/core/loss.hpp>
#include <keel/core/parameters.hpp>
#include <keel/libtorch/random.hpp>
#include <keel/memory/saved_tensors.hpp>
#include <keel/oom/cut_batch.hpp>
#include <keel/oom/ladder_position.hpp>
#include <keel/optimizer/parameter_state.hpp>
#include <keel/precision/autocast.hpp>
#include <keel/recipe/config_of.hpp>
#include <keel/recompute/unit_scope.hpp>
#include <memory>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

namespace keel::memory::inline KEEL_MODE {

/// Options of an estimate that cannot be derived from the recipe, the model and the batch.
struct estimate_options {
  /// Number of fp32 values that the optimizer keeps per trained parameter: 2 for Adam and AdamW, 3 with amsgrad, 1 for SGD with momentum.
  int state_per_parameter = 2;
  /// Number of ranks that share what keel::shard::zero shards; 0: as many as keel::world::size gives, else one.
  int ranks = 0;
};

/// The estimate by purpose, in bytes.
struct breakdown {
  std::int64_t trained = 0;     ///< number of elements that require grad; not bytes
  int state_per_parameter = 0;  ///< copied from the options
  std::int64_t parameters =
      0;                       ///< in their own dtypes; under zero<3> a rank's shards of those in units, if these were measured
  std::int64_t gathered = 0;   ///< under zero<3>: the largest unit's parameters, and the buffers of two gathers
  std::int64_t buffers = 0;    ///< buffers of the model, counted once
  std::int64_t gradients = 0;  ///< gradients of trained parameters
  std::int64_t optimizer = 0;  ///< moments, and fp32 copies of fp16 and bf16 parameters; 0 if they are offloaded
  std::int64_t average = 0;    ///< the average of keel::ema
  std::int64_t sums = 0;       ///< buffers for the gradient sums of several ranks
  std::vector<std::int64_t> units;  ///< bytes that each unit saves for the backward pass without recompute
  std::int64_t outside = 0;         ///< bytes saved outside of units, such as by embeddings and the loss
  std::int64_t activations = 0;     ///< bytes saved in units and outside, with the recipe's recompute
  std::int64_t recomputed =
      0;                    ///< the largest unit, whose activations are recomputed in the backward pass; 0 without recompute
  std::int64_t logits = 0;  ///< the largest tensor saved outside of units
  std::int64_t widest = 0;  ///< the largest tensor that a unit saves
  std::int64_t rows = 0;    ///< rows of the batch; 0: activations were not measured

  /// Returns the bytes that a backward pass needs in addition to the saved activations.
  std::int64_t backward() const { return std::max(2 * logits, recomputed + 2 * widest); }
  /// Returns the peak of an update.
  std::int64_t peak() const {
    return parameters + gathered + 2 * buffers + gradients + optimizer + average + sums + activations + backward();
  }

  /// Returns a table for a terminal.
  std::string describe() const {
    std::string table;
    auto const line = [&](char const* name, std::int64_t bytes, std::string const& words) {
      char start[64];
      std::snprintf(start, sizeof start, "%-12s %10.2f MiB  ", name, static_cast<double>(bytes) / (1024.0 * 1024.0));
      table += start + words + "\n";
    };
    line("parameters", parameters, std::to_string(trained) + " trained numbers, and the frozen ones");
    if (gathered > 0) line("gathered", gathered, "the largest unit's parameters, and the buffers of two gathers");
    line("buffers", 2 * buffers, "with the copies that an update keeps");
    line("gradients", gradients, "of trained parameters");
    line("optimizer", optimizer,
         optimizer == 0 ? "offloaded, or none"
                        : std::to_string(state_per_parameter) + " x " + std::to_string(trained) +
                              " numbers of fp32, and copies of narrow ones");
    if (average > 0) line("average", average, "of trained parameters, fp32");
    if (sums > 0) line("sums", sums, "of the gradients of all ranks, beside each rank's");
    if (rows == 0) {
      line("sum", peak(), "without activations, which keel::memory::estimate measures in the program that has the model");
      return table;
    }
    line("activations", activations, "of " + std::to_string(rows) + " rows, as the recipe keeps them");
    for (std::size_t i = 0; i < units.size(); ++i) line("", units[i], "unit " + std::to_string(i) + " without recompute");
    line("", outside, "outside of units");
    line("backward", backward(), "the larger of:");
    line("", 2 * logits, "logits and their gradient");
    line("", recomputed + 2 * widest,
         recomputed > 0 ? "the largest unit, computed again, with its gradients" : "gradients inside of a unit");
    line("peak", peak(), "parameters to activations, and backward");
    return table;
  }
};

}  // namespace keel::memory::inline KEEL_MODE

namespace keel::memory::detail::inline KEEL_MODE {

/// Counts the tensors that autograd saves, each storage once, except parameters and buffers.
class kept_counter final : public unit_listener {
 public:
  explicit kept_counter(torch::nn::Module& model) {
    for (auto const& one : model.parameters()) known_.insert(key_of(one));
    for (auto const& one : model.buffers()) known_.insert(key_of(one));
  }
  void begin_unit(void const* module) override {
    if (depth_++ != 0) return;
    units.push_back(0);
    if (module != nullptr) modules.push_back(static_cast<torch::nn::Module const*>(module));
  }
  void end_unit() override { --depth_; }

  std::unique_ptr<torch::autograd::SavedVariableHooks> hooks() { return std::make_unique<kept>(*this); }

  std::vector<std::int64_t> units;
  std::vector<torch::nn::Module const*> modules;  ///< of the units
  std::int64_t outside = 0;
  std::int64_t largest = 0;  ///< outside of units
  std::int64_t widest = 0;   ///< inside of a unit
  std::int64_t all() const {
    std::int64_t sum = outside;
    for (std::int64_t const one : units) sum += one;
    return sum;
  }

 private:
  class kept final : public torch::autograd::SavedVariableHooks {
   public:
    explicit kept(kept_counter& counter) : counter_(counter) {}
    void call_pack_hook(at::Tensor const& tensor) override {
      // Without detach() the tensor's graph would own the node that owns this hook.
      tensor_ = tensor.detach();
      counter_.count(tensor_);
    }
    at::Tensor call_unpack_hook() override { return tensor_; }

   private:
    kept_counter& counter_;
    at::Tensor tensor_;
  };

  static void const* key_of(at::Tensor const& tensor) {
    return tensor.has_storage() ? tensor.storage().unsafeGetStorageImpl()
                                : static_cast<void const*>(tensor.unsafeGetTensorImpl());
  }
  void count(at::Tensor const& tensor) {
    if (!known_.insert(key_of(tensor)).second) return;
    // A freed storage's address may be reused, so counted tensors stay alive until the end.
    alive_.push_back(tensor);
    auto const bytes = static_cast<std::int64_t>(tensor.has_storage() ? tensor.storage().nbytes() : tensor.nbytes());
    if (depth_ > 0) {
      units.back() += bytes;
      widest = std::max(widest, bytes);
    } else {
      outside += bytes;
      largest = std::max(largest, bytes);
    }
  }

  std::unordered_set<void const*> known_;
  std::vector<at::Tensor> alive_;
  int depth_ = 0;
};

/// Restores random state and buffers on destruction, so also after an exception.
class put_back {
 public:
  put_back(torch::nn::Module& model, at::DeviceType device) : random_(random_snapshot::take(device)), buffers_(model) {
    buffers_.take();
  }
  put_back(put_back const&) = delete;
  put_back& operator=(put_back const&) = delete;
  ~put_back() {
    random_.restore();
    buffers_.restore();
  }

 private:
  random_snapshot random_;
  buffer_snapshot buffers_;
};

struct counted_passes {
  kept_counter without;  ///< without recompute
  kept_counter as_configured;

  template <class Batch, class LossOf>
  counted_passes(torch::nn::Module& model, at::DeviceType device, Batch const& batch, LossOf& loss_of, config const& configured)
      : without(model), as_configured(model) {
    auto const pass = [&](kept_counter& counter, recompute_kind recompute) {
      at::Tensor loss;
      autocast_scope const autocast(device, configured.precision.kind);
      attention_scope const attention(ladder_position(configured).relief().attention);
      unit_scope const units(recompute, &counter);
      saved_tensor_scope const saved([&counter] { return counter.hooks(); });
      loss = as_weighted_loss(loss_of(batch), batch_traits<Batch>::rows(batch)).mean;
    };
    pass(without, recompute_kind::none);
    if (configured.recompute.kind != recompute_kind::none) pass(as_configured, configured.recompute.kind);
  }
};

}  // namespace keel::memory::detail::inline KEEL_MODE

namespace keel::memory::detail::inline KEEL_MODE {

/// Sums the memory of parameters, of their gradients and of their optimizer state.
class parameter_counter {
 public:
  parameter_counter(breakdown& sums, config const& configured, estimate_options const& options)
      : sums_(sums), configured_(configured) {
    sums.state_per_parameter = options.state_per_parameter;
    std::int64_t const declared = configured.world.declared ? configured.world.ranks : 1;
    if (shard::is_distributed(configured.shard))
      ranks_ = std::max<std::int64_t>(options.ranks > 0 ? options.ranks : declared, 1);
  }

  void add(at::Tensor const& parameter, bool is_trained) {
    auto const bytes = static_cast<std::int64_t>(parameter.nbytes());
    sums_.parameters += bytes;
    if (!is_trained) return;
    sums_.trained += parameter.numel();
    bool const narrow = keel::detail::is_narrow(parameter);
    std::int64_t const wide = 4 * parameter.numel();
    // Gradients are accumulated in fp32 from the second micro-batch on.
    bool const is_cut = configured_.shard.stage >= 2 && ranks_ > 1;
    std::int64_t const gradient = is_cut                                       ? (narrow ? wide : bytes) / ranks_
                                  : narrow && configured_.accumulate.count > 1 ? wide
                                                                               : bytes;
    sums_.gradients += gradient;
    bool const offloaded = configured_.offload.kind == offload::kind::optimizer;
    std::int64_t const state = sums_.state_per_parameter * std::max(wide, bytes) + (narrow ? wide : 0);
    std::int64_t const shards = configured_.shard.stage >= 1 ? ranks_ : 1;
    if (!offloaded) sums_.optimizer += (state + shards - 1) / shards;
    std::int64_t const summed = narrow ? wide : bytes;
    summed_ += summed;
    largest_ = std::max(largest_, summed);
    if (is_cut) {
      // Four buffers, each of a bucket (shard/bucket_bytes.hpp), or of the largest parameter.
      sums_.sums = 4 * std::max({largest_, summed_ / (32 * ranks_), summed_ / 1024});
    } else if (ranks_ > 1 && narrow) {
      // Gradients of other dtypes are in the memory of their sums.
      sums_.sums += summed;
    }
    if (configured_.ema.decay > 0.0) sums_.average += std::max(wide, bytes);
  }

  /// Under zero<3>: counts the parameters of units as shards.
  void shard_units(std::vector<torch::nn::Module const*> const& units) {
    if (configured_.shard.stage < 3 || ranks_ == 1) return;
    std::unordered_set<void const*> counted;
    for (torch::nn::Module const* const unit : units) {
      std::int64_t whole = 0;
      for (at::Tensor const& one : unit->parameters()) {
        auto const bytes = static_cast<std::int64_t>(one.nbytes());
        whole += bytes;
        if (!counted.insert(one.unsafeGetTensorImpl()).second) continue;
        auto const without_shard = [this](std::int64_t all) { return all - (all + ranks_ - 1) / ranks_; };
        sums_.parameters -= without_shard(bytes);
        if (configured_.ema.decay > 0.0 && one.requires_grad())
          sums_.average -= without_shard(std::max(4 * one.numel(), bytes));
      }
      // Its parameters; and, for this unit and the next, what is received from all ranks and sent by this one.
      sums_.gathered = std::max(sums_.gathered, 3 * whole + 2 * (whole / ranks_));
    }
  }

 private:
  breakdown& sums_;
  config const& configured_;
  std::int64_t ranks_ = 1;
  std::int64_t summed_ = 0;   ///< bytes of all gradients as they are summed over the ranks
  std::int64_t largest_ = 0;  ///< of these the most that one parameter has
};

}  // namespace keel::memory::detail::inline KEEL_MODE

namespace keel::memory::inline KEEL_MODE {

/// Estimates an update. `model` and `loss_of` are as for a step; the batch is one micro-batch. `configured` is the recipe with its numbers,
/// as a step's recipe_value(). Throws what the loss throws.
template <class Recipe, class Model, sliceable_batch Batch, class LossOf>
  requires loss_function<LossOf, Batch>
breakdown estimate(Model& model, Batch const& batch, LossOf&& loss_of, estimate_options const& options = {},
                   config const& configured = keel::detail::closed_config<Recipe>()) {
  torch::nn::Module& module = as_module(model);
  breakdown result;
  detail::parameter_counter counter(result, configured, options);
  at::DeviceType device = at::kCPU;
  for (at::Tensor const& one : module.parameters()) {
    device = one.device().type();
    counter.add(one, one.requires_grad());
  }
  for (at::Tensor const& one : module.buffers()) result.buffers += static_cast<std::int64_t>(one.nbytes());

  std::int64_t const granularity = granularity_of(batch, keel::detail::update_granularity(configured));
  std::int64_t const rows = result.rows = batch_traits<Batch>::rows(batch);
  detail::put_back const afterwards(module, device);
  auto const of = [&](std::int64_t granules) {
    return detail::counted_passes(module, device, batch_traits<Batch>::slice(batch, 0, std::min(rows, granules * granularity)),
                                  loss_of, configured);
  };
  auto const one = of(1);
  auto const two = of(rows >= 2 * granularity ? 2 : 1);
  auto const all = [&](std::int64_t at_one, std::int64_t at_two) {
    return rows >= 2 * granularity ? at_one + (at_two - at_one) * (rows - granularity) / granularity : at_one;
  };

  counter.shard_units(one.without.modules);
  bool const recomputes = configured.recompute.kind != recompute_kind::none;
  for (std::size_t i = 0; i < one.without.units.size() && i < two.without.units.size(); ++i) {
    result.units.push_back(all(one.without.units[i], two.without.units[i]));
    if (recomputes) result.recomputed = std::max(result.recomputed, result.units.back());
  }
  result.outside = all(one.without.outside, two.without.outside);
  result.widest = all(one.without.widest, two.without.widest);
  result.logits = all(one.without.largest, two.without.largest);
  result.activations =
      recomputes ? all(one.as_configured.all(), two.as_configured.all()) : all(one.without.all(), two.without.all());
  return result;
}

/// Estimates an update of a model whose forward(batch) returns logits, with a cross-entropy loss.
template <class Recipe, class Model, sliceable_batch Batch>
  requires requires(Model& model, Batch const& batch) {
    { model->forward(batch) } -> std::convertible_to<at::Tensor>;
  }
breakdown estimate(Model& model, Batch const& batch, estimate_options const& options = {}) {
  auto const loss_of = [&](Batch const& rows) { return at::log_softmax(model->forward(rows), -1).sum(); };
  return estimate<Recipe>(model, batch, loss_of, options);
}

}  // namespace keel::memory::inline KEEL_MODE
