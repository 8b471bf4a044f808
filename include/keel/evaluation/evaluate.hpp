// Evaluates a loss or metrics over data without a graph, in evaluation mode. Restores training modes and random state. Does not
// use at::InferenceMode: masks or tables that a module caches there could not be used in training.
#pragma once

#include <keel/libtorch/ivalue_first.hpp>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/scalar_tensor.h>
#include <c10/util/StringUtil.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <concepts>
#include <cstdint>
#include <exception>
#include <functional>
#include <keel/attention/attention_scope.hpp>
#include <keel/core/error.hpp>
#include <keel/core/loss.hpp>
#include <keel/core/loss_accumulator.hpp>
#include <keel/core/out_of_memory.hpp>
#include <keel/data/batch_source.hpp>
#include <keel/libtorch/draw_watch.hpp>
#include <keel/libtorch/host_value.hpp>
#include <keel/libtorch/random.hpp>
#include <keel/oom/cut_batch.hpp>
#include <keel/policy/precision.hpp>
#include <keel/precision/autocast.hpp>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace keel::inline KEEL_MODE {

/// Sets every module of a model to evaluation mode, and restores each module's mode on destruction. Also restores the
/// generators, unless another thread drew from the host's generator meanwhile and would draw the same numbers again.
class evaluation_scope {
 public:
  /// `device`: the device whose generators are saved in addition to the host's. The model must outlive this object.
  evaluation_scope(torch::nn::Module& model, at::DeviceType device)
      : model_(model), training_(model.is_training()), random_(random_snapshot::take(device)) {
    // The model itself is excluded because no shared pointer need own it.
    for (auto const& module : model.modules(/*include_self=*/false)) modes_.emplace_back(module, module->is_training());
    model.eval();
  }
  evaluation_scope(evaluation_scope const&) = delete;
  evaluation_scope& operator=(evaluation_scope const&) = delete;
  ~evaluation_scope() {
    // train() is recursive, so children, which come later, are restored after their parents.
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

/// A named mean over a batch, with an optional weight. The default weight is the number of rows.
struct named_mean {
  /// A scalar tensor.
  named_mean(std::string metric, at::Tensor value) : name(std::move(metric)), mean(std::move(value)) {}
  /// A number.
  named_mean(std::string metric, double value) : name(std::move(metric)), mean(at::scalar_tensor(value, at::kDouble)) {}
  /// A count.
  template <std::integral Number>
  named_mean(std::string metric, Number value) : named_mean(std::move(metric), static_cast<double>(value)) {}
  /// Takes a mean with its own weight.
  named_mean(std::string metric, weighted_loss value)
      : name(std::move(metric)), mean(std::move(value.mean)), weight(value.weight) {}

  std::string name;                   ///< appended to the evaluation's name in records
  at::Tensor mean;                    ///< scalar: the mean over the batch
  std::optional<double> weight = {};  ///< nullopt: the batch's rows
};

/// Several metrics from one forward pass, as the return type of a function for evaluate and evaluate_on:
///     return keel::batch_metrics{{"loss", loss}, {"accuracy", hits.to(torch::kFloat).mean()}};
using batch_metrics = std::vector<named_mean>;

/// The weighted means of one evaluation.
struct evaluation_result {
  std::vector<std::pair<std::string, double>> values;  ///< in the order in which the function returns them
  std::vector<double> weights = {};                    ///< the total weight of each mean, such as rows

  /// Returns true if a value of this name exists.
  bool has(std::string const& name) const {
    return std::any_of(values.begin(), values.end(), [&](auto const& one) { return one.first == name; });
  }
  /// Returns the value of this name. Throws error (E12), which lists the existing names, if there is none.
  double operator[](std::string const& name) const {
    std::string there;
    for (auto const& [known, value] : values) {
      if (known == name) return value;
      there += (there.empty() ? "" : ", ") + known;
    }
    throw error("E12", "the evaluation has no value " + name + ". It has: " + there + ".");
  }
};

/// How an evaluation adapts to the available memory.
struct evaluation_memory {
  std::int64_t pieces = 1;  ///< the initial number of pieces per batch
  bool may_cut = false;     ///< cut batches into more pieces when memory runs out
  attention_kind attention = attention_kind::automatic;
  std::function<void()> make_room = {};   ///< called once, on the first out-of-memory; may be empty
  std::function<void()> each_batch = {};  ///< called before each batch; may be empty
};

}  // namespace keel::inline KEEL_MODE

namespace keel::detail::inline KEEL_MODE {

/// Weighted means over the batches, in the order of their first appearance.
class mean_accumulators {
 public:
  void add(std::string const& name, weighted_loss const& one) {
    // A piece of weight zero may have no defined mean.
    if (!(one.weight > 0.0)) return;
    if (!one.mean.defined() || one.mean.numel() != 1) {
      throw data_error("E07", (name.empty() ? std::string("the loss of an evaluation") : "the metric " + name) +
                                  " must be one number for each batch and is " +
                                  (one.mean.defined() ? c10::str("of shape ", one.mean.sizes()) : "undefined") +
                                  ". Return the mean over the batch's rows, as hits.to(torch::kFloat).mean().");
    }
    of(name).add(host_value(one.mean.detach()), one.weight);
  }
  void add(mean_accumulators const& others) {
    for (auto const& [name, tally] : others.all_) {
      if (tally.weight > 0.0) of(name).add(tally.mean(), tally.weight);
    }
  }
  std::vector<std::pair<std::string, loss_accumulator>> const& all() const { return all_; }

 private:
  loss_accumulator& of(std::string const& name) {
    for (auto& [known, tally] : all_) {
      if (known == name) return tally;
    }
    return all_.emplace_back(name, loss_accumulator()).second;
  }
  std::vector<std::pair<std::string, loss_accumulator>> all_;
};

inline void add_means(mean_accumulators& to, batch_metrics const& metrics, std::int64_t rows) {
  for (named_mean const& one : metrics) to.add(one.name, {one.mean, one.weight.value_or(static_cast<double>(rows))});
}
template <class Loss>
void add_means(mean_accumulators& to, Loss const& loss, std::int64_t rows) {
  to.add("", as_weighted_loss(loss, rows));
}

/// Returns the means of one batch, cut into pieces as `memory` allows.
template <class Batch, class LossOf>
mean_accumulators evaluate_batch(Batch const& batch, LossOf& loss_of, at::DeviceType device, precision::kind precision,
                                 evaluation_memory& memory) {
  if constexpr (sliceable_batch<Batch>) {
    if (memory.may_cut || memory.pieces > 1) require_same_rows(batch);
  }
  for (;;) {
    mean_accumulators tally;
    std::optional<std::string> starved;
    try {
      for_each_piece(batch, memory.pieces, granularity_of(batch), [&](Batch const& piece, std::int64_t rows) {
        autocast_scope const autocast(device, precision);
        attention_scope const attention(memory.attention);
        add_means(tally, loss_of(piece), rows);
      });
      return tally;
    } catch (std::exception const& thrown) {
      if (!is_out_of_memory(thrown)) throw;
      starved = first_line(thrown);
    }
    bool const can_cut = sliceable_batch<Batch> && memory.may_cut && memory.pieces < max_pieces(batch, granularity_of(batch));
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

}  // namespace keel::detail::inline KEEL_MODE

namespace keel::inline KEEL_MODE {

/// Returns the weighted means of `metrics_of(batch)` over the batches, or over the first `most` of them if `most` is above 0. The function
/// returns a loss, which is recorded under the empty name, or batch_metrics. No graph is recorded unless the function enables gradients
/// with at::AutoGradMode. Throws data_error: E06 if there are no batches, E07 for a value that is not a scalar. Throws out_of_memory_error
/// (E09) if a batch does not fit even in the smallest allowed pieces.
template <class Source, class MetricsOf>
evaluation_result evaluate(torch::nn::Module& model, at::DeviceType device, precision::kind precision, Source& batches,
                           MetricsOf& metrics_of, evaluation_memory memory = {}, std::int64_t most = 0) {
  evaluation_scope scope(model, device);
  at::NoGradGuard no_grad;
  detail::mean_accumulators sums;
  detail::with_epoch(batches, 0, [&](auto at, auto const& end) {
    for (std::int64_t seen = 0; at != end && (most == 0 || seen < most); ++at, ++seen) {
      if (memory.each_batch) memory.each_batch();
      auto&& batch = *at;
      sums.add(detail::evaluate_batch(batch, metrics_of, device, precision, memory));
    }
  });
  if (sums.all().empty())
    throw data_error("E06", "there is nothing to evaluate: the batches are empty. Give evaluate at least one batch.");
  evaluation_result result;
  for (auto const& [name, tally] : sums.all()) {
    result.values.emplace_back(name, tally.mean());
    result.weights.push_back(tally.weight);
  }
  return result;
}

}  // namespace keel::inline KEEL_MODE
