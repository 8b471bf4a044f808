// A loss over data without a graph: no gradients, modules in evaluation mode, random state and training modes put back. Not
// LibTorch's inference mode: a mask or a table that a module builds lazily and keeps would be of no use to training after it.
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

/// Puts every module of a model into evaluation mode, and back into the mode that each had. The generators go back too, unless
/// another thread drew from the host's meanwhile, which would get the same numbers again.
class evaluation_scope {
 public:
  /// `device`: whose generators go back too, beside the host's.
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

/// A mean over a batch, by name. Its weight is the batch's rows, or its own.
struct named_mean {
  /// A scalar tensor.
  named_mean(std::string metric, at::Tensor value) : name(std::move(metric)), mean(std::move(value)) {}
  /// A number.
  named_mean(std::string metric, double value) : name(std::move(metric)), mean(at::scalar_tensor(value, at::kDouble)) {}
  /// A count.
  template <std::integral Number>
  named_mean(std::string metric, Number value) : named_mean(std::move(metric), static_cast<double>(value)) {}
  /// A mean with its weight.
  named_mean(std::string metric, weighted_loss value)
      : name(std::move(metric)), mean(std::move(value.mean)), weight(value.weight) {}

  std::string name;                   ///< in records, after the evaluation's
  at::Tensor mean;                    ///< scalar, over the batch
  std::optional<double> weight = {};  ///< nothing: the batch's rows
};

/// What a function for evaluate and evaluate_on returns where a loss alone says too little; one forward pass gives all of them:
///     return keel::batch_metrics{{"loss", loss}, {"accuracy", hits.to(torch::kFloat).mean()}};
using batch_metrics = std::vector<named_mean>;

/// The means of one evaluation.
struct evaluation_result {
  std::vector<std::pair<std::string, double>> values;  ///< in the order in which the function gives them
  std::vector<double> weights = {};                    ///< over which each is a mean, such as rows

  /// True if there is a value of this name.
  bool has(std::string const& name) const {
    return std::any_of(values.begin(), values.end(), [&](auto const& one) { return one.first == name; });
  }
  /// Throws error (E12) that names what there is.
  double operator[](std::string const& name) const {
    std::string there;
    for (auto const& [known, value] : values) {
      if (known == name) return value;
      there += (there.empty() ? "" : ", ") + known;
    }
    throw error("E12", "the evaluation has no value " + name + ". It has: " + there + ".");
  }
};

/// How an evaluation gets along with the memory that there is.
struct evaluation_memory {
  std::int64_t pieces = 1;  ///< into which each batch is cut from the beginning
  bool may_cut = false;     ///< and into more where memory runs out
  attention_kind attention = attention_kind::automatic;
  std::function<void()> make_room = {};   ///< called where memory runs out first, if there is anything that can be spared
  std::function<void()> each_batch = {};  ///< called before each
};

}  // namespace keel::inline KEEL_MODE

namespace keel::detail::inline KEEL_MODE {

/// Means of one pass over the batches, in the order in which they were met first.
class mean_accumulators {
 public:
  void add(std::string const& name, weighted_loss const& one) {
    // A piece that counts nothing may have no mean.
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

/// The means of one batch.
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

/// Weighted means over the batches, or over the first `most` of them, if that is above 0, of what `metrics_of(batch)` returns:
/// a loss, which has the empty name, or batch_metrics. No graph is recorded, unless it asks for one by at::AutoGradMode. Throws
/// data_error (E06) without batches, (E07) for what is not one number, out_of_memory_error (E09) where a batch does not fit
/// however it is cut.
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
