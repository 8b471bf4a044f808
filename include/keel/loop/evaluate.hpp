// A loss over data without a graph: no gradients, modules in evaluation mode, random state and training modes put back. Not
// LibTorch's inference mode: a mask or a table that a module builds lazily and keeps would be of no use to training after it.
#pragma once

#include <ATen/core/grad_mode.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <exception>
#include <functional>
#include <keel/error.hpp>
#include <keel/libtorch/draw_watch.hpp>
#include <keel/libtorch/host_value.hpp>
#include <keel/libtorch/random.hpp>
#include <keel/loop/batch_source.hpp>
#include <keel/memory/attention_scope.hpp>
#include <keel/memory/out_of_memory.hpp>
#include <keel/policy/precision.hpp>
#include <keel/step/cut_batch.hpp>
#include <keel/step/loss.hpp>
#include <keel/step/window_sums.hpp>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace keel {

/// Puts every module of a model into evaluation mode, and back into the mode that each had. The generators go back too, unless
/// another thread drew from the host's meanwhile, which would get the same numbers again.
class evaluation_scope {
 public:
  evaluation_scope(torch::nn::Module& model, at::DeviceType device)
      : model_(model), training_(model.is_training()), random_(random_snapshot::take(device)) {
    // Without the model itself, which need not be held by a shared pointer.
    for (auto const& module : model.modules(/*include_self=*/false)) modes_.emplace_back(module, module->is_training());
    model.eval();
  }
  evaluation_scope(evaluation_scope const&) = delete;
  evaluation_scope& operator=(evaluation_scope const&) = delete;
  ~evaluation_scope() {
    // A module's mode goes down to its children, which come after it and then get their own.
    model_.train(training_);
    for (auto const& [module, training] : modes_) module->train(training);
    if (!watch_.others_drew()) random_.restore();
  }

 private:
  torch::nn::Module& model_;
  bool training_;
  std::vector<std::pair<std::shared_ptr<torch::nn::Module>, bool>> modes_;
  draw_watch watch_;
  random_snapshot random_;
};

/// How an evaluation gets along with the memory that there is.
struct evaluation_memory {
  std::int64_t pieces = 1;  ///< into which each batch is cut from the beginning
  bool may_cut = false;     ///< and into more where memory runs out
  attention_kind attention = attention_kind::automatic;
  std::function<void()> make_room = {};  ///< called where memory runs out first, if there is anything that can be spared
};

namespace detail {

/// Weighted sum of one batch's losses.
template <class Autocast, class Batch, class LossOf>
loss_tally evaluate_batch(Batch const& batch, LossOf& loss_of, at::DeviceType device, precision::kind precision,
                          evaluation_memory& memory) {
  if constexpr (sliceable_batch<Batch>) {
    if (memory.may_cut || memory.pieces > 1) require_same_rows(batch);
  }
  for (;;) {
    loss_tally tally;
    std::optional<std::string> starved;
    try {
      for_each_piece(batch, memory.pieces, grain_of(batch), [&](Batch const& piece, std::int64_t rows) {
        Autocast autocast(device, precision);
        attention_scope const attention(memory.attention);
        weighted_loss const loss = as_weighted_loss(loss_of(piece), rows);
        // A piece that counts nothing may have no mean.
        if (loss.weight > 0.0) tally.add(host_value(loss.mean), loss.weight);
      });
      return tally;
    } catch (std::exception const& thrown) {
      if (!is_out_of_memory(thrown)) throw;
      starved = first_line(thrown);
    }
    bool const can_cut = sliceable_batch<Batch> && memory.may_cut && memory.pieces < most_pieces(batch, grain_of(batch));
    if (auto const make_room = std::exchange(memory.make_room, {})) {
      make_room();
    } else if (can_cut) {
      memory.pieces *= 2;
    } else {
      throw out_of_memory_error("E09",
                                "memory ran out in an evaluation: " + *starved +
                                    (memory.may_cut ? ". Evaluate smaller batches, or give the process more memory."
                                                    : ". Evaluate smaller batches, or add keel::oom::ladder<"
                                                      "keel::oom::halve_micro_batch, keel::oom::give_up>, which cuts them."));
    }
  }
}

}  // namespace detail

/// Weighted mean of `loss_of` over the batches, or over the first `most` of them, if that is above 0. No graph is recorded, unless
/// the loss asks for one by at::AutoGradMode. Throws data_error (E06) without batches, out_of_memory_error (E09) where a batch does
/// not fit however it is cut.
template <class Autocast, class Source, class LossOf>
double evaluate(torch::nn::Module& model, at::DeviceType device, precision::kind precision, Source& batches, LossOf& loss_of,
                evaluation_memory memory = {}, std::int64_t most = 0) {
  evaluation_scope scope(model, device);
  at::NoGradGuard no_grad;
  double sum = 0.0;
  double weight = 0.0;
  detail::with_epoch(batches, 0, [&](auto at, auto const& end) {
    for (std::int64_t seen = 0; at != end && (most == 0 || seen < most); ++at, ++seen) {
      auto&& batch = *at;
      auto const tally = detail::evaluate_batch<Autocast>(batch, loss_of, device, precision, memory);
      if (tally.weight > 0.0) sum += tally.mean() * tally.weight;
      weight += tally.weight;
    }
  });
  if (weight == 0.0)
    throw data_error("E06", "there is nothing to evaluate: the batches are empty. Give evaluate at least one batch.");
  return sum / weight;
}

}  // namespace keel
