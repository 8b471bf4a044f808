// Runs of small models, each really trained, some with one fault put in: what a triage is judged by. Three kinds of model: a classifier
// of points, a language model, and a network over time that predicts numbers.
#pragma once

#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/normalization.h>

#include <ATen/record_function.h>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <keel/memory/budget.hpp>
#include <keel/policy/trouble.hpp>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "../support.hpp"

namespace keel_test::planted {

using namespace keel::literals;

/// What is put into a model or its batches.
struct twist {
  bool detaches = false;             ///< the trunk learns nothing
  bool hides_the_past = false;       ///< attention sees its own position alone, and the position is not in it
  double scale_of_weights = 1.0;
  bool divides_by_zero = false;      ///< a normalisation without epsilon, of rows that may be zeros
  double dropout = 0.0;
};

struct model : torch::nn::Module {
  virtual at::Tensor forward(at::Tensor const& x) = 0;
  virtual at::Tensor loss(at::Tensor const& output, at::Tensor const& wanted) const = 0;
  twist with;
};

inline at::Tensor trunk_of(model const& of, at::Tensor const& x) { return of.with.detaches ? x.detach() : x; }

/// Points of eight clusters.
struct classifier : model {
  static constexpr std::int64_t inputs = 12, classes = 8, width = 48;
  classifier()
      : first(register_module("first", torch::nn::Linear(inputs, width))),
        second(register_module("second", torch::nn::Linear(width, width))),
        head(register_module("head", torch::nn::Linear(width, classes))) {}
  at::Tensor forward(at::Tensor const& x) override {
    at::Tensor const y = with.divides_by_zero ? x / x.abs().sum(1, true) : x;
    at::Tensor hidden = at::relu(second(at::relu(first(y))));
    if (with.dropout > 0.0) hidden = at::dropout(hidden, with.dropout, is_training());
    return head(trunk_of(*this, hidden));
  }
  at::Tensor loss(at::Tensor const& output, at::Tensor const& wanted) const override {
    return at::cross_entropy_loss(output, wanted);
  }
  torch::nn::Linear first, second, head;
};

/// Sequences in which the next symbol follows from the last two.
struct language_model : model {
  static constexpr std::int64_t vocabulary = 16, width = 32, tokens = 16;
  language_model()
      : symbols(register_module("symbols", torch::nn::Embedding(vocabulary, width))),
        places(register_module("places", torch::nn::Embedding(tokens, width))),
        norm(register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({width})))),
        attention(register_module("attention", torch::nn::Linear(width, 3 * width))),
        wide(register_module("wide", torch::nn::Linear(width, 4 * width))),
        narrow(register_module("narrow", torch::nn::Linear(4 * width, width))),
        head(register_module("head", torch::nn::Linear(width, vocabulary))) {}
  at::Tensor forward(at::Tensor const& ids) override {
    std::int64_t const length = ids.size(1);
    at::Tensor x = places(at::arange(length)).unsqueeze(0).expand({ids.size(0), length, width});
    if (!with.hides_the_past) x = x + symbols(ids);
    if (with.divides_by_zero) x = x / (ids != 0).sum(1).view({-1, 1, 1}).to(at::kFloat);
    auto const parts = attention(norm(x)).chunk(3, 2);
    at::Tensor const causal = at::ones({length, length}).tril();
    at::Tensor const scores = parts[0].matmul(parts[1].transpose(1, 2)) / std::sqrt(static_cast<double>(width));
    x = x + at::softmax(scores.masked_fill(causal == 0, -1e9), 2).matmul(parts[2]);
    x = x + narrow(at::gelu(wide(x)));
    if (with.dropout > 0.0) x = at::dropout(x, with.dropout, is_training());
    return head(trunk_of(*this, x));
  }
  at::Tensor loss(at::Tensor const& output, at::Tensor const& wanted) const override {
    return at::cross_entropy_loss(output.flatten(0, 1), wanted.flatten());
  }
  torch::nn::Embedding symbols, places;
  torch::nn::LayerNorm norm;
  torch::nn::Linear attention, wide, narrow, head;
};

/// Series of which a moving sum of products is predicted.
struct predictor : model {
  static constexpr std::int64_t channels = 3, length = 24, width = 24;
  predictor()
      : first(register_module("first", torch::nn::Conv1d(torch::nn::Conv1dOptions(channels, width, 5).padding(2)))),
        second(register_module("second", torch::nn::Conv1d(torch::nn::Conv1dOptions(width, width, 3).padding(1)))),
        head(register_module("head", torch::nn::Linear(width, 1))) {}
  at::Tensor forward(at::Tensor const& x) override {
    at::Tensor const y = with.divides_by_zero ? x * x.pow(2).sum({1, 2}, true).rsqrt() * 8.0 : x;
    at::Tensor hidden = at::relu(second(at::relu(first(y)))).mean(2);
    if (with.dropout > 0.0) hidden = at::dropout(hidden, with.dropout, is_training());
    return head(trunk_of(*this, hidden));
  }
  at::Tensor loss(at::Tensor const& output, at::Tensor const& wanted) const override { return at::mse_loss(output, wanted); }
  torch::nn::Conv1d first, second;
  torch::nn::Linear head;
};

enum class kind : int { classifier, language_model, predictor };
inline constexpr kind kinds[] = {kind::classifier, kind::language_model, kind::predictor};
inline char const* to_string(kind which) {
  constexpr char const* names[] = {"classifier", "language model", "predictor"};
  return names[static_cast<int>(which)];
}

inline std::shared_ptr<model> make_model(kind which, std::uint64_t seed, twist const& with = {}) {
  keel::libtorch::seed_random(at::kCPU, seed);
  std::shared_ptr<model> made;
  if (which == kind::classifier) made = std::make_shared<classifier>();
  if (which == kind::language_model) made = std::make_shared<language_model>();
  if (which == kind::predictor) made = std::make_shared<predictor>();
  made->with = with;
  at::NoGradGuard const no_grad;
  if (with.scale_of_weights != 1.0) {
    for (at::Tensor& one : made->parameters()) one.mul_(with.scale_of_weights);
  }
  return made;
}

/// `task`: which clusters, which language, which law.
inline pair_batch make_batch(kind which, std::uint64_t seed, std::int64_t rows = 16, std::uint64_t task = 0) {
  at::Generator chance = at::detail::createCPUGenerator(seed * 7919 + 13);
  at::Generator law = at::detail::createCPUGenerator(task + 1000);
  if (which == kind::classifier) {
    at::Tensor const centres = at::randn({classifier::classes, classifier::inputs}, law) * 1.2;
    at::Tensor const labels = at::randint(classifier::classes, {rows}, chance, at::kLong);
    return {centres.index_select(0, labels) + at::randn({rows, classifier::inputs}, chance), labels};
  }
  if (which == kind::language_model) {
    std::int64_t const v = language_model::vocabulary, length = language_model::tokens;
    at::Tensor const next = at::randint(v, {v, v}, law, at::kLong);
    at::Tensor const ids = at::randint(v, {rows, length + 1}, chance, at::kLong);
    at::Tensor const chooses = at::rand({rows, length + 1}, chance);
    auto* const id = ids.data_ptr<std::int64_t>();
    auto const* const follows = next.data_ptr<std::int64_t>();
    for (std::int64_t row = 0; row < rows; ++row) {
      for (std::int64_t i = 2; i <= length; ++i) {
        std::int64_t const at = row * (length + 1) + i;
        if (chooses.data_ptr<float>()[at] < 0.85F) id[at] = follows[id[at - 1] * v + (id[at - 2] % 2)];
      }
    }
    return {ids.slice(1, 0, length).contiguous(), ids.slice(1, 1).contiguous()};
  }
  at::Tensor const x = at::randn({rows, predictor::channels, predictor::length}, chance);
  at::Tensor const weights = at::randn({predictor::channels, 3}, law);
  at::Tensor const filtered = (x.unfold(2, 3, 1) * weights.view({1, predictor::channels, 1, 3})).sum({1, 3});
  // So that their mean is about 0, and nothing is learned by it alone.
  double const mean = 0.39894 * weights.pow(2).sum().sqrt().item<double>();
  return {x, (filtered.relu().mean(1, true) - mean) * 3.0};
}

inline std::vector<pair_batch> make_batches(kind which, std::size_t count, std::uint64_t seed, std::int64_t rows = 16,
                                            std::uint64_t task = 0) {
  std::vector<pair_batch> all;
  for (std::size_t i = 0; i < count; ++i) all.push_back(make_batch(which, seed * 100003 + i, rows, task));
  return all;
}

inline auto loss_of(std::shared_ptr<model> const& of) {
  return [of](pair_batch const& batch) { return of->loss(of->forward(batch.first), batch.second); };
}

/// A rate at which this kind learns.
inline double good_rate(kind which) { return which == kind::predictor ? 2e-3 : 3e-3; }

struct usual : keel::recipe<keel::checkpoint::every<50_steps>, keel::nonfinite::skip<25>> {};
struct clipped : keel::recipe<keel::checkpoint::every<50_steps>, keel::nonfinite::skip<25>, keel::clip::global_norm<1.0>> {};
struct evaluated : keel::recipe<keel::nonfinite::skip<25>, keel::evaluation::every<25_steps>> {};
struct accumulated : keel::recipe<keel::accumulate<4>, keel::nonfinite::skip<25>> {};
struct profiled : keel::recipe<keel::profile::every<60_steps, keel::profile::active<4>>> {};
struct padded : keel::recipe<keel::batch_guard::check<keel::batch_guard::padding<0>>> {};
struct scaled : keel::recipe<keel::precision::fp16, keel::nonfinite::skip<40>,
                             keel::loss_scale::dynamic<keel::loss_scale::initial<65536.0>, keel::loss_scale::growth_interval<50>>> {};
struct scheduled : keel::recipe<keel::checkpoint::every<40_steps>, keel::clip::global_norm<1.0>,
                                keel::schedule::cosine<keel::schedule::warmup_ratio<0.1>, keel::schedule::min_ratio<0.1>>> {};
struct laddered : keel::recipe<keel::accumulate<2>, keel::oom::ladder<keel::oom::halve_micro_batch, keel::oom::give_up>> {};

/// Claims fp16 kernels, so that a scale is at work on any machine; what is computed in fp16 says so itself.
struct scales_here : keel::environment {
  bool computes_in_half(at::DeviceType) const override { return true; }
  bool computes_in_bfloat16(at::DeviceType) const override { return true; }
  keel::precision::kind autocast(keel::precision::kind) const override { return keel::precision::kind::fp32; }
};

/// A run in the making: what a fault changes.
struct plan {
  std::filesystem::path directory;
  planted::kind kind = planted::kind::classifier;
  std::uint64_t seed = 1;
  std::int64_t updates = 300;
  std::int64_t rows = 16;
  double rate = 0.0;  ///< 0: a good one
  double momentum = -1.0;  ///< of SGD; below 0: AdamW
  twist with;
  std::vector<pair_batch> batches;     ///< empty: enough of the kind's own
  std::function<void(std::size_t index, pair_batch&)> change_batch;
  std::function<at::Tensor(model&, pair_batch const&)> loss;  ///< empty: the model's own
  std::function<void(model&)> prepare;
  std::function<void(std::int64_t update, torch::optim::Optimizer&)> after_update;
  std::function<void(std::int64_t update)> before_batch;
  std::vector<std::pair<std::string, std::vector<pair_batch>>> evaluations;
  std::function<at::Tensor(model&, pair_batch const&)> evaluation_loss;
  std::int64_t stop_at = 0;  ///< the first process ends there, and another goes on
  std::function<void(torch::optim::Optimizer&)> after_resume;
  bool starts_data_again = false;
  std::int64_t layers_every = 100;
  std::int64_t record_every = 1;
  bool epochs = false;  ///< the batches come again and again
};

/// Batches that are made as they are asked for.
struct batch_range {
  plan const* of;
  std::vector<pair_batch> const* batches;
  std::int64_t total;

  struct iterator {
    using difference_type = std::ptrdiff_t;
    using value_type = pair_batch;
    batch_range const* range = nullptr;
    std::int64_t at = 0;
    pair_batch operator*() const {
      if (range->of->before_batch) range->of->before_batch(at);
      pair_batch batch = (*range->batches)[static_cast<std::size_t>(at) % range->batches->size()];
      if (range->of->change_batch) {
        batch.first = batch.first.clone();
        batch.second = batch.second.clone();
        range->of->change_batch(static_cast<std::size_t>(at), batch);
      }
      return batch;
    }
    iterator& operator++() { return ++at, *this; }
    iterator operator++(int) { auto const before = *this; return ++at, before; }
    bool operator==(iterator const& other) const { return at == other.at; }
  };
  iterator begin() const { return {this, 0}; }
  iterator end() const { return {this, total}; }
};

template <class Recipe, class Environment = keel::environment>
void train(plan of) {
  constexpr keel::config configured = keel::config_of<Recipe>;
  constexpr std::int64_t per_update = configured.accumulate.count;
  if (of.batches.empty()) of.batches = make_batches(of.kind, static_cast<std::size_t>(of.updates * per_update), of.seed, of.rows);
  auto const run_until = [&](std::int64_t updates, bool resumes) {
    auto const net = make_model(of.kind, of.seed, of.with);
    if (of.prepare) of.prepare(*net);
    std::vector<at::Tensor> trained;
    for (at::Tensor const& one : net->parameters()) {
      if (one.requires_grad()) trained.push_back(one);
    }
    double const rate = of.rate > 0.0 ? of.rate : good_rate(of.kind);
    std::unique_ptr<torch::optim::Optimizer> optimizer;
    if (of.momentum >= 0.0) {
      optimizer = std::make_unique<keel::sgd>(trained, torch::optim::SGDOptions(rate).momentum(of.momentum));
    } else {
      optimizer = std::make_unique<keel::adamw>(trained, rate);
    }
    keel::trainer_options options{.run_directory = of.directory,
                                  .updates = of.stop_at > 0 ? of.updates : updates,
                                  .stop_on_signals = false,
                                  .console = nullptr,
                                  .record_every = of.record_every,
                                  .layers_every = of.layers_every,
                                  .tensorboard = false};
    keel::trainer<Recipe, Environment> run{*net, *optimizer, options};
    auto const loss = [&](pair_batch const& batch) {
      return of.loss ? of.loss(*net, batch) : net->loss(net->forward(batch.first), batch.second);
    };
    if constexpr (configured.evaluation.kind != keel::evaluation::kind::none) {
      for (auto const& [name, batches] : of.evaluations)
        run.evaluate_on(name, batches, [&](pair_batch const& batch) {
          return of.evaluation_loss ? of.evaluation_loss(*net, batch) : net->loss(net->forward(batch.first), batch.second);
        });
    }
    run.on([&](keel::event::update_end const& event) {
      if (of.after_update) of.after_update(event.update, *optimizer);
      if (updates < of.updates && event.update >= updates) run.request_stop();
    });
    if (resumes) {
      run.on([&](keel::event::run_begin const&) {
        if (of.after_resume) of.after_resume(*optimizer);
      });
    }
    std::int64_t const count = of.epochs ? static_cast<std::int64_t>(of.batches.size()) : of.updates * per_update;
    if (resumes && of.starts_data_again) {
      run.resume();
      batch_range const range{&of, &of.batches, count};
      for (pair_batch const& batch : range) {
        run.step(batch, loss);
        if (run.updates() >= of.updates) break;
      }
      run.finish();
    } else {
      run.fit(batch_range{&of, &of.batches, count}, loss);
    }
  };
  try {
    if (of.stop_at > 0) run_until(of.stop_at, false);
    run_until(of.updates, of.stop_at > 0);
  } catch (std::exception const&) {
    // What ended the run stands in its record.
  }
}

}  // namespace keel_test::planted
