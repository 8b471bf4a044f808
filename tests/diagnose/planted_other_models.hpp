// More runs with one fault each, and healthy ones: other models, other faults, other moments than those of planted_faults.hpp, by a writer
// who had not seen the judge. Each is really trained, by a separate runner; it shares no constant with the judge.
#pragma once

#include <torch/nn/modules/rnn.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/rmsprop.h>

#include <cstdio>
#include <limits>
#include <map>

#include "planted_faults.hpp"

namespace keel_test::planted::unseen {

// ---------------------------------------------------------------------------------------------------------------------------------------
// The models, and what they learn from.

inline at::Generator generator_of(std::uint64_t seed) { return at::detail::createCPUGenerator(seed); }

/// Which of five tones a noisy series is.
struct recurrent : model {
  static constexpr std::int64_t tones = 5, width = 24, length = 16;
  recurrent()
      : memory(register_module("memory", torch::nn::LSTM(torch::nn::LSTMOptions(2, width).batch_first(true)))),
        head(register_module("head", torch::nn::Linear(width, tones))) {}
  at::Tensor forward(at::Tensor const& x) override {
    at::Tensor hidden = std::get<0>(memory(x)).select(1, x.size(1) - 1);
    if (with.dropout > 0.0) hidden = at::dropout(hidden, with.dropout, is_training());
    return head(trunk_of(*this, hidden));
  }
  at::Tensor loss(at::Tensor const& output, at::Tensor const& wanted) const override {
    return at::cross_entropy_loss(output, wanted);
  }
  torch::nn::LSTM memory;
  torch::nn::Linear head;
};
inline pair_batch tones(std::uint64_t seed, std::int64_t rows, std::int64_t length = recurrent::length, double noise = 0.3,
                        double slower = 1.0) {
  at::Generator chance = generator_of(seed * 6151 + 5);
  at::Tensor const labels = at::randint(recurrent::tones, {rows}, chance, at::kLong);
  at::Tensor const frequency = (0.3 + 0.45 * labels.to(at::kFloat)).view({rows, 1}) * slower;
  at::Tensor const phase = at::rand({rows, 1}, chance) * 6.28 + frequency * at::arange(length).to(at::kFloat).view({1, length});
  at::Tensor const clean = at::stack({phase.sin(), phase.cos()}, 2);
  return {clean + noise * at::randn({rows, length, 2}, chance), labels};
}

/// Which of six small pictures it is; with batch normalisation.
struct images : model {
  static constexpr std::int64_t sorts = 6, side = 10;
  images()
      : first(register_module("first", torch::nn::Conv2d(torch::nn::Conv2dOptions(1, 8, 3).padding(1)))),
        first_norm(register_module("first_norm", torch::nn::BatchNorm2d(8))),
        second(register_module("second", torch::nn::Conv2d(torch::nn::Conv2dOptions(8, 12, 3).padding(1)))),
        second_norm(register_module("second_norm", torch::nn::BatchNorm2d(12))),
        head(register_module("head", torch::nn::Linear(12 * 25, sorts))) {}
  at::Tensor forward(at::Tensor const& x) override {
    at::Tensor y = at::max_pool2d(at::relu(first_norm(first(x))), 2);
    hidden = at::relu(second_norm(second(y)));
    return head(trunk_of(*this, hidden.flatten(1)));
  }
  at::Tensor loss(at::Tensor const& output, at::Tensor const& wanted) const override {
    return at::cross_entropy_loss(output, wanted);
  }
  torch::nn::Conv2d first;
  torch::nn::BatchNorm2d first_norm;
  torch::nn::Conv2d second;
  torch::nn::BatchNorm2d second_norm;
  torch::nn::Linear head;
  at::Tensor hidden;
};
/// `from`, `to`: of which sorts.
inline pair_batch pictures(std::uint64_t seed, std::int64_t rows, double contrast = 0.45, std::int64_t from = 0,
                           std::int64_t to = images::sorts, std::uint64_t law = 77) {
  at::Generator chance = generator_of(seed * 4099 + 3);
  at::Generator drawn = generator_of(law);
  at::Tensor const shapes = at::randn({images::sorts, 1, images::side, images::side}, drawn);
  at::Tensor const labels = at::randint(from, to, {rows}, chance, at::kLong);
  return {contrast * shapes.index_select(0, labels) + at::randn({rows, 1, images::side, images::side}, chance), labels};
}

/// Takes the noise from points of a curved surface.
struct autoencoder : model {
  static constexpr std::int64_t wide = 24, width = 20, narrow = 4;
  autoencoder()
      : inward(register_module("inward", torch::nn::Linear(wide, width))),
        code(register_module("code", torch::nn::Linear(width, narrow))),
        outward(register_module("outward", torch::nn::Linear(narrow, width))),
        last(register_module("last", torch::nn::Linear(width, wide))) {}
  at::Tensor forward(at::Tensor const& x) override {
    at::Tensor inside = code(at::tanh(inward(x)));
    if (with.detaches) inside = inside.detach();
    if (with.dropout > 0.0) inside = at::dropout(inside, with.dropout, is_training());
    return last(at::tanh(outward(inside)));
  }
  at::Tensor loss(at::Tensor const& output, at::Tensor const& wanted) const override { return at::mse_loss(output, wanted); }
  torch::nn::Linear inward, code, outward, last;
};
inline pair_batch surface(std::uint64_t seed, std::int64_t rows, double noise = 0.2, std::uint64_t law = 19) {
  at::Generator chance = generator_of(seed * 3571 + 11);
  at::Generator drawn = generator_of(law);
  at::Tensor const to = at::randn({autoencoder::narrow, autoencoder::wide}, drawn) * 0.8;
  at::Tensor const clean = at::tanh(at::randn({rows, autoencoder::narrow}, chance).matmul(to)) * 1.4;
  return {clean + noise * at::randn({rows, autoencoder::wide}, chance), clean};
}

/// The same with a code that is drawn.
struct variational : model {
  variational()
      : inward(register_module("inward", torch::nn::Linear(autoencoder::wide, 20))),
        code(register_module("code", torch::nn::Linear(20, 8))),
        outward(register_module("outward", torch::nn::Linear(4, 20))),
        last(register_module("last", torch::nn::Linear(20, autoencoder::wide))) {}
  at::Tensor forward(at::Tensor const& x) override {
    at::Tensor const both = code(at::tanh(inward(x)));
    at::Tensor const mean = both.slice(1, 0, 4), spread = both.slice(1, 4);
    far = 0.5 * (mean.pow(2) + spread.exp() - 1.0 - spread).sum(1).mean();
    return last(at::tanh(outward(mean + (0.5 * spread).exp() * at::randn_like(mean))));
  }
  at::Tensor loss(at::Tensor const& output, at::Tensor const& wanted) const override {
    return at::mse_loss(output, wanted) + 1e-3 * far;
  }
  torch::nn::Linear inward, code, outward, last;
  at::Tensor far;
};

/// A number and how sure it is of it: the loss becomes negative.
struct density : model {
  density()
      : first(register_module("first", torch::nn::Linear(6, 32))),
        second(register_module("second", torch::nn::Linear(32, 32))),
        head(register_module("head", torch::nn::Linear(32, 2))) {}
  at::Tensor forward(at::Tensor const& x) override { return head(at::tanh(second(at::tanh(first(x))))); }
  at::Tensor loss(at::Tensor const& output, at::Tensor const& wanted) const override {
    at::Tensor const mean = output.slice(1, 0, 1), spread = output.slice(1, 1).clamp(-6.0, 6.0);
    return (0.5 * ((wanted - mean) * (-spread).exp()).pow(2) + spread).mean();
  }
  torch::nn::Linear first, second, head;
};
inline pair_batch readings(std::uint64_t seed, std::int64_t rows) {
  at::Generator chance = generator_of(seed * 2903 + 7);
  at::Tensor const x = at::randn({rows, 6}, chance);
  at::Tensor const sharp = 0.05 + 0.1 * x.slice(1, 5).sigmoid();
  return {x, (x.slice(1, 0, 1) * 0.8).sin() + 0.5 * x.slice(1, 1, 2) * x.slice(1, 2, 3).tanh() + sharp * at::randn({rows, 1}, chance)};
}

/// What users think of items.
struct factors : model {
  static constexpr std::int64_t count = 50, width = 6;
  factors()
      : users(register_module("users", torch::nn::Embedding(count, width))),
        items(register_module("items", torch::nn::Embedding(count, width))),
        scale(register_module("scale", torch::nn::Linear(1, 1))) {
    at::NoGradGuard const no_grad;
    users->weight.mul_(0.4);
    items->weight.mul_(0.4);
    scale->weight.fill_(1.0);
    scale->bias.zero_();
  }
  at::Tensor forward(at::Tensor const& ids) override {
    at::Tensor product;
    if (with.detaches) {
      at::NoGradGuard const no_grad;
      product = (users(ids.select(1, 0)) * items(ids.select(1, 1))).sum(1, true);
    } else {
      product = (users(ids.select(1, 0)) * items(ids.select(1, 1))).sum(1, true);
    }
    return scale(product);
  }
  at::Tensor loss(at::Tensor const& output, at::Tensor const& wanted) const override { return at::mse_loss(output, wanted); }
  torch::nn::Embedding users, items;
  torch::nn::Linear scale;
};
inline pair_batch ratings(std::uint64_t seed, std::int64_t rows, double noise = 0.3) {
  at::Generator chance = generator_of(seed * 1987 + 1);
  at::Generator drawn = generator_of(401);
  at::Tensor const taste = at::randn({factors::count, 3}, drawn), kinds_of = at::randn({factors::count, 3}, drawn);
  at::Tensor const ids = at::randint(factors::count, {rows, 2}, chance, at::kLong);
  at::Tensor const products = (taste.index_select(0, ids.select(1, 0)) * kinds_of.index_select(0, ids.select(1, 1))).sum(1, true);
  return {ids, products / 1.7 + noise * at::randn({rows, 1}, chance)};
}

/// What a text of some length is about; 0 fills the rows.
struct reader : model {
  static constexpr std::int64_t words = 14, width = 20, longest = 12, subjects = 4;
  reader()
      : symbols(register_module("symbols", torch::nn::Embedding(torch::nn::EmbeddingOptions(words, width).padding_idx(0)))),
        places(register_module("places", torch::nn::Embedding(256, width))),
        mix(register_module("mix", torch::nn::Linear(width, width))),
        head(register_module("head", torch::nn::Linear(width, subjects))) {}
  at::Tensor forward(at::Tensor const& ids) override {
    at::Tensor const counts = (looks_at_padding ? ids == 0 : ids != 0).to(at::kFloat).unsqueeze(2);
    at::Tensor const x = at::gelu(mix(symbols(ids) + 0.2 * places(at::arange(ids.size(1))).unsqueeze(0)));
    return head((x * counts).sum(1) / counts.sum(1).clamp_min(1.0));
  }
  at::Tensor loss(at::Tensor const& output, at::Tensor const& wanted) const override {
    return at::cross_entropy_loss(output, wanted);
  }
  bool looks_at_padding = false;
  torch::nn::Embedding symbols, places;
  torch::nn::Linear mix, head;
};
/// `shortest`, `most`: words of a text, of a row of `length`.
inline pair_batch texts(std::uint64_t seed, std::int64_t rows, std::int64_t shortest = 5, std::int64_t most = 9,
                        std::int64_t length = reader::longest) {
  at::Generator chance = generator_of(seed * 8191 + 17);
  at::Generator drawn = generator_of(911);
  at::Tensor const likely = at::softmax(at::randn({reader::subjects, reader::words - 1}, drawn) * 1.1, 1);
  at::Tensor const labels = at::randint(reader::subjects, {rows}, chance, at::kLong);
  at::Tensor const ids = likely.index_select(0, labels).multinomial(length, true, chance) + 1;
  at::Tensor const lengths = at::randint(shortest, most + 1, {rows, 1}, chance, at::kLong);
  return {at::where(at::arange(length).unsqueeze(0) < lengths, ids, at::zeros_like(ids)), labels};
}

/// Layer on layer without any normalisation, for points of clusters.
struct deep : model {
  explicit deep(int layers = 6, bool with_tanh = false) : is_tanh(with_tanh) {
    for (int i = 0; i < layers; ++i) {
      std::int64_t const in = i == 0 ? classifier::inputs : 40;
      all.push_back(register_module("layer" + std::to_string(i), torch::nn::Linear(in, 40)));
    }
    head = register_module("head", torch::nn::Linear(40, classifier::classes));
  }
  at::Tensor forward(at::Tensor const& x) override {
    at::Tensor y = x;
    for (auto& one : all) y = is_tanh ? at::tanh(one(y)) : at::relu(one(y));
    return head(trunk_of(*this, y));
  }
  at::Tensor loss(at::Tensor const& output, at::Tensor const& wanted) const override {
    return at::cross_entropy_loss(output, wanted);
  }
  bool is_tanh;
  std::vector<torch::nn::Linear> all;
  torch::nn::Linear head{nullptr};
};

/// Two wide layers: 160,000 parameters.
struct wide : model {
  wide()
      : first(register_module("first", torch::nn::Linear(classifier::inputs, 360))),
        second(register_module("second", torch::nn::Linear(360, 360))),
        head(register_module("head", torch::nn::Linear(360, classifier::classes))) {}
  at::Tensor forward(at::Tensor const& x) override {
    hidden = at::relu(second(at::relu(first(x))));
    return head(hidden);
  }
  at::Tensor loss(at::Tensor const& output, at::Tensor const& wanted) const override {
    return at::cross_entropy_loss(output, wanted);
  }
  torch::nn::Linear first, second, head;
  at::Tensor hidden;
};

/// A classifier whose large layers stay, with what is added to them in a few dimensions.
struct adapted : model {
  adapted()
      : first(register_module("first", torch::nn::Linear(classifier::inputs, 64))),
        second(register_module("second", torch::nn::Linear(64, 64))),
        down(register_module("down", torch::nn::Linear(torch::nn::LinearOptions(64, 4).bias(false)))),
        up(register_module("up", torch::nn::Linear(torch::nn::LinearOptions(4, 64).bias(false)))),
        head(register_module("head", torch::nn::Linear(64, classifier::classes))) {
    at::NoGradGuard const no_grad;
    up->weight.zero_();
  }
  at::Tensor forward(at::Tensor const& x) override {
    at::Tensor const y = at::relu(first(x));
    return head(at::relu(second(y) + up(down(y))));
  }
  at::Tensor loss(at::Tensor const& output, at::Tensor const& wanted) const override {
    return at::cross_entropy_loss(output, wanted);
  }
  torch::nn::Linear first, second, down, up, head;
};

// ---------------------------------------------------------------------------------------------------------------------------------------
// The runner.

using maker = std::function<std::unique_ptr<torch::optim::Optimizer>(model&, std::vector<at::Tensor> const&)>;
inline maker adamw(double rate, double decay = 1e-2) {
  return [=](model&, std::vector<at::Tensor> const& trained) -> std::unique_ptr<torch::optim::Optimizer> {
    return std::make_unique<keel::adamw>(trained, torch::optim::AdamWOptions(rate).weight_decay(decay));
  };
}
inline maker stock_adamw(double rate, double eps = 1e-8) {
  return [=](model&, std::vector<at::Tensor> const& trained) -> std::unique_ptr<torch::optim::Optimizer> {
    return std::make_unique<torch::optim::AdamW>(trained, torch::optim::AdamWOptions(rate).eps(eps));
  };
}
inline maker sgd(double rate, double momentum = 0.0) {
  return [=](model&, std::vector<at::Tensor> const& trained) -> std::unique_ptr<torch::optim::Optimizer> {
    return std::make_unique<keel::sgd>(trained, torch::optim::SGDOptions(rate).momentum(momentum));
  };
}
inline maker stock_sgd(double rate, double momentum = 0.0) {
  return [=](model&, std::vector<at::Tensor> const& trained) -> std::unique_ptr<torch::optim::Optimizer> {
    return std::make_unique<torch::optim::SGD>(trained, torch::optim::SGDOptions(rate).momentum(momentum));
  };
}
inline maker rmsprop(double rate) {
  return [=](model&, std::vector<at::Tensor> const& trained) -> std::unique_ptr<torch::optim::Optimizer> {
    return std::make_unique<torch::optim::RMSprop>(trained, torch::optim::RMSpropOptions(rate));
  };
}
inline maker adagrad(double rate) {
  return [=](model&, std::vector<at::Tensor> const& trained) -> std::unique_ptr<torch::optim::Optimizer> {
    return std::make_unique<torch::optim::Adagrad>(trained, torch::optim::AdagradOptions(rate));
  };
}

inline void set_rate(torch::optim::Optimizer& optimizer, double rate) {
  for (auto& group : optimizer.param_groups()) group.options().set_lr(rate);
}
inline double rate_of(torch::optim::Optimizer& optimizer) { return optimizer.param_groups()[0].options().get_lr(); }

struct session {
  std::filesystem::path directory;
  std::uint64_t seed = 1;
  std::int64_t updates = 300;
  std::int64_t rows = 16;
  std::function<std::shared_ptr<model>()> make;
  std::function<pair_batch(std::int64_t index)> batch;
  std::int64_t per_epoch = 0;  ///< micro-batches; 0: none comes twice
  double rate = 1e-3;          ///< a good one
  maker optimizer;
  std::function<at::Tensor(model&, pair_batch const&)> loss;
  std::function<void(model&)> prepare;
  std::function<void(std::int64_t update, model&, torch::optim::Optimizer&)> after_update;
  std::function<void(std::int64_t index)> before_batch;
  std::function<void()> before_micro_batch;  ///< as a hook of the trainer
  std::vector<std::pair<std::string, std::vector<pair_batch>>> evaluations;
  std::function<at::Tensor(model&, pair_batch const&)> evaluation_loss;
  bool own_loop = false;
  std::int64_t stop_at = 0;
  std::function<void(model&, torch::optim::Optimizer&)> after_resume;
  std::function<std::int64_t(std::int64_t index)> data_after_resume;  ///< of an own loop: which batch follows, in place of `index`
  std::int64_t layers_every = 50;
  std::int64_t record_every = 1;
};

/// Batches as they are asked for, in a pass over the data.
struct walk {
  session const* of;
  std::int64_t total;
  struct iterator {
    using difference_type = std::ptrdiff_t;
    using value_type = pair_batch;
    session const* of = nullptr;
    std::int64_t at = 0;
    pair_batch operator*() const {
      if (of->before_batch) of->before_batch(at);
      return of->batch(at);
    }
    iterator& operator++() { return ++at, *this; }
    iterator operator++(int) { auto const before = *this; return ++at, before; }
    bool operator==(iterator const& other) const { return at == other.at; }
  };
  iterator begin() const { return {of, 0}; }
  iterator end() const { return {of, total}; }
};

template <class Recipe, class Environment = keel::environment>
void go(session of) {
  constexpr keel::config configured = keel::config_of<Recipe>;
  constexpr std::int64_t per_update = configured.accumulate.count;
  auto const run_until = [&](std::int64_t updates, bool resumes) {
    keel::libtorch::seed_random(at::kCPU, of.seed);
    auto const net = of.make();
    if (of.prepare) of.prepare(*net);
    std::vector<at::Tensor> trained;
    for (at::Tensor const& one : net->parameters()) {
      if (one.requires_grad()) trained.push_back(one);
    }
    auto const optimizer = (of.optimizer ? of.optimizer : adamw(of.rate))(*net, trained);
    keel::trainer_options options{.run_directory = of.directory,
                                  .updates = of.updates,
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
      if (of.after_update) of.after_update(event.update, *net, *optimizer);
      if (!of.own_loop && updates < of.updates && event.update >= updates) run.request_stop();
    });
    if (of.before_micro_batch) run.on([&](keel::event::micro_batch_begin const&) { of.before_micro_batch(); });
    if (!of.own_loop) {
      if (resumes) {
        run.on([&](keel::event::run_begin const&) {
          if (of.after_resume) of.after_resume(*net, *optimizer);
        });
      }
      run.fit(walk{&of, of.per_epoch > 0 ? of.per_epoch : of.updates * per_update}, loss);
      return;
    }
    run.resume();
    if (resumes && of.after_resume) of.after_resume(*net, *optimizer);
    std::int64_t index = run.cursor().epoch * of.per_epoch + run.cursor().position;
    if (resumes && of.data_after_resume) index = of.data_after_resume(index);
    for (std::int64_t most = 3 * of.updates * per_update; most > 0 && run.updates() < of.updates; --most, ++index) {
      std::int64_t const place = of.per_epoch > 0 ? index % of.per_epoch : index;
      if (of.before_batch) of.before_batch(place);
      run.step(of.batch(place), loss);
      if (of.per_epoch > 0 && place + 1 == of.per_epoch) run.end_epoch();
      if (updates < of.updates && run.updates() >= updates) {
        run.request_stop();
        break;
      }
    }
    run.finish();
  };
  try {
    if (of.stop_at > 0) run_until(of.stop_at, false);
    run_until(of.updates, of.stop_at > 0);
  } catch (std::exception const&) {
    // What ended the run stands in its record.
  }
}

/// What a few updates of it keep, and what they take above that.
template <class Recipe>
measured usually_takes(session of, keel::memory::budget& budget) {
  scratch_directory const aside;
  of.directory = aside.path();
  of.updates = 3;
  of.evaluations.clear();
  std::int64_t const before = budget.allocated();
  std::int64_t held = 0;
  of.after_update = [&](std::int64_t, model&, torch::optim::Optimizer&) { held = budget.allocated(); };
  budget.reset_peak();
  go<Recipe>(of);
  return {held - before, budget.peak() - held};
}

enum class sort { recurrent, images, autoencoder, variational, density, factors, reader, deep, wide, adapted, classifier, language_model, predictor };
inline char const* to_string(sort which) {
  constexpr char const* names[] = {"recurrent", "images", "autoencoder", "variational", "density", "factors", "reader",
                                   "deep", "wide", "adapted", "classifier", "language model", "predictor"};
  return names[static_cast<int>(which)];
}
/// The nearest of the kinds that there were.
inline planted::kind nearest(sort which) {
  if (which == sort::language_model || which == sort::reader) return planted::kind::language_model;
  bool const numbers = which == sort::autoencoder || which == sort::variational || which == sort::density || which == sort::factors ||
                       which == sort::predictor;
  return numbers ? planted::kind::predictor : planted::kind::classifier;
}

template <class Model, class... Arguments>
std::function<std::shared_ptr<model>()> making(Arguments... arguments) {
  return [=] { return std::make_shared<Model>(arguments...); };
}

inline session begin(sort which, plan const& from) {
  session of;
  of.directory = from.directory;
  of.seed = from.seed;
  std::uint64_t const seed = from.seed * 1000003;
  auto const draws = [&](double rate, std::function<pair_batch(std::uint64_t)> one) {
    of.rate = rate;
    of.batch = [seed, one](std::int64_t index) { return one(seed + static_cast<std::uint64_t>(index)); };
  };
  auto const of_kind = [&](planted::kind kind, double rate) {
    draws(rate, [kind](std::uint64_t i) { return make_batch(kind, i, 16); });
  };
  switch (which) {
    case sort::recurrent:
      of.make = making<recurrent>();
      draws(6e-3, [](std::uint64_t i) { return tones(i, 16); });
      break;
    case sort::images:
      of.make = making<images>();
      draws(2e-3, [](std::uint64_t i) { return pictures(i, 16); });
      break;
    case sort::autoencoder:
      of.make = making<autoencoder>();
      draws(4e-3, [](std::uint64_t i) { return surface(i, 16); });
      break;
    case sort::variational:
      of.make = making<variational>();
      draws(4e-3, [](std::uint64_t i) { return surface(i, 16); });
      break;
    case sort::density:
      of.make = making<density>();
      draws(3e-3, [](std::uint64_t i) { return readings(i, 24); });
      break;
    case sort::factors:
      of.make = making<factors>();
      draws(1e-2, [](std::uint64_t i) { return ratings(i, 48); });
      break;
    case sort::reader:
      of.make = making<reader>();
      draws(4e-3, [](std::uint64_t i) { return texts(i, 16); });
      break;
    case sort::deep:
      of.make = making<deep>();
      of_kind(planted::kind::classifier, 1.5e-3);
      break;
    case sort::wide:
      of.make = making<wide>();
      of_kind(planted::kind::classifier, 5e-4);
      break;
    case sort::adapted:
      of.make = making<adapted>();
      of_kind(planted::kind::classifier, 3e-3);
      break;
    case sort::classifier:
      of.make = making<classifier>();
      of_kind(planted::kind::classifier, 3e-3);
      break;
    case sort::language_model:
      of.make = making<language_model>();
      of_kind(planted::kind::language_model, 3e-3);
      break;
    case sort::predictor:
      of.make = making<predictor>();
      of_kind(planted::kind::predictor, 2e-3);
      break;
  }
  return of;
}

/// Batches that nothing was trained on.
inline std::vector<pair_batch> others(session const& of, std::size_t count, std::int64_t from = 500000) {
  std::vector<pair_batch> all;
  for (std::size_t i = 0; i < count; ++i) all.push_back(of.batch(from + static_cast<std::int64_t>(i)));
  return all;
}

/// Changes batches on their way.
inline void change(session& of, std::function<void(std::int64_t index, pair_batch&)> how) {
  of.batch = [before = of.batch, how](std::int64_t index) {
    pair_batch batch = before(index);
    how(index, batch);
    return batch;
  };
}
/// A small set of data that was drawn once, which comes again and again.
inline void take_little(session& of, std::int64_t count) {
  auto const all = std::make_shared<std::vector<pair_batch>>();
  for (std::int64_t i = 0; i < count; ++i) all->push_back(of.batch(i));
  of.batch = [all](std::int64_t index) {
    pair_batch const& one = (*all)[static_cast<std::size_t>(index) % all->size()];
    return pair_batch{one.first.clone(), one.second.clone()};
  };
  of.per_epoch = count;
}
/// Learns from `batch` for so many updates, before the run.
inline std::function<void(model&)> learned(std::function<pair_batch(std::int64_t)> batch, double rate, std::int64_t updates) {
  return [=](model& net) {
    keel::adamw optimizer(net.parameters(), rate);
    for (std::int64_t i = 0; i < updates; ++i) {
      pair_batch const one = batch(900000 + i);
      optimizer.zero_grad();
      net.loss(net.forward(one.first), one.second).backward();
      optimizer.step();
    }
    optimizer.zero_grad();
    for (at::Tensor& one : net.parameters()) one.mutable_grad() = at::Tensor();
  };
}
inline void draw_noise_into(at::Tensor& numbers, double deviation, std::int64_t index) {
  at::Generator chance = generator_of(static_cast<std::uint64_t>(index) + 51);
  numbers = numbers + deviation * at::randn(numbers.sizes(), chance);
}

struct kept : keel::recipe<keel::nonfinite::skip<12>, keel::checkpoint::every<30_steps>> {};
struct bare : keel::recipe<> {};
struct tight : keel::recipe<keel::clip::global_norm<0.5>, keel::nonfinite::skip<30>> {};
struct judged : keel::recipe<keel::evaluation::every<10_steps>, keel::nonfinite::skip<12>> {};
struct piled : keel::recipe<keel::accumulate<8>, keel::nonfinite::skip<12>> {};
struct traced : keel::recipe<keel::profile::every<50_steps, keel::profile::active<3>>> {};
struct filled : keel::recipe<keel::batch_guard::check<keel::batch_guard::padding<0>>, keel::nonfinite::skip<12>> {};
struct half_fixed : keel::recipe<keel::precision::fp16, keel::nonfinite::skip<60>, keel::loss_scale::fixed<33554432.0>> {};
struct half_growing : keel::recipe<keel::precision::fp16, keel::nonfinite::skip<60>,
                                   keel::loss_scale::dynamic<keel::loss_scale::initial<1024.0>, keel::loss_scale::growth<16.0>,
                                                             keel::loss_scale::growth_interval<3>, keel::loss_scale::floor<64.0>>> {};
struct cycled : keel::recipe<keel::schedule::one_cycle<>, keel::clip::global_norm<1.0>, keel::nonfinite::skip<12>> {};
struct restarted : keel::recipe<keel::schedule::warm_restarts<keel::schedule::cycle<50_steps>>, keel::clip::global_norm<1.0>,
                                keel::nonfinite::skip<12>> {};
struct rolling : keel::recipe<keel::checkpoint::every<20_steps>, keel::nonfinite::rollback<2, keel::nonfinite::attempts<2>>> {};
struct stepped : keel::recipe<keel::checkpoint::every<40_steps>, keel::nonfinite::skip<12>,
                              keel::schedule::step_decay<keel::schedule::interval<150_steps>>> {};
struct wary : keel::recipe<keel::spike::skip<keel::spike::zscore<10.0>>, keel::ema<0.99>, keel::nonfinite::skip<12>,
                           keel::clip::zscore<4.0>> {};
struct rungs : keel::recipe<keel::oom::ladder<keel::oom::halve_micro_batch, keel::oom::give_up>> {};

// ---------------------------------------------------------------------------------------------------------------------------------------
// Ranks.

/// What several ranks write of one after the other, with times that go on.
struct rank_writer {
  std::vector<nlohmann::json>& lines;
  double now() const { return lines.empty() ? 1.79e9 : lines.back()["time"].get<double>(); }
  void begins(std::int64_t sequence, char const* operation, char const* of, std::int64_t elements, char const* dtype, std::int64_t update,
              double after = 0.2) {
    lines.push_back({{"event", "collective"}, {"sequence", sequence}, {"operation", operation}, {"of", of}, {"elements", elements},
                     {"dtype", dtype}, {"update", update}, {"time", now() + after}});
  }
  void ends(std::int64_t sequence, double after = 0.03) {
    lines.push_back({{"event", "completed"}, {"sequence", sequence}, {"time", now() + after}});
  }
  void lives(double seconds) {
    double const from = now();
    for (double t = 10.0; t <= seconds; t += 10.0) lines.push_back({{"event", "alive"}, {"time", from + t}});
  }
  void leaves(char const* why, double after = 0.1) { lines.push_back({{"event", "left"}, {"why", why}, {"time", now() + after}}); }
  void data_ends(std::int64_t update, double after = 0.1) {
    lines.push_back({{"event", "data_ended"}, {"update", update}, {"time", now() + after}});
  }
};

// ---------------------------------------------------------------------------------------------------------------------------------------

inline std::vector<incident> incidents() {
  using keel::trouble;
  std::vector<incident> all;
  auto const add = [&](trouble cause, std::string const& name, std::vector<sort> const& of, int seeds,
                       std::function<void(sort, session)> run) {
    for (sort const which : of) {
      for (int seed = 0; seed < seeds; ++seed)
        all.push_back({cause, name + " (" + to_string(which) + ")", nearest(which),
                       static_cast<std::uint64_t>(211 + 29 * seed + 7 * static_cast<int>(which)),
                       [which, run](plan from) { run(which, begin(which, from)); }});
    }
  };

  // Not finite: the optimisation.
  add(trouble::blow_up, "a schedule that multiplies by ten in place of a tenth", {sort::autoencoder, sort::predictor}, 1, [](sort which, session of) {
    of.optimizer = sgd(which == sort::predictor ? 0.02 : 0.05, 0.9);
    of.after_update = [](std::int64_t update, model&, torch::optim::Optimizer& optimizer) {
      if (update % 45 == 0) set_rate(optimizer, rate_of(optimizer) * 10.0);
    };
    go<kept>(of);
  });
  add(trouble::blow_up, "a penalty on the weights of the wrong sign", {sort::autoencoder, sort::predictor}, 1, [](sort which, session of) {
    of.optimizer = stock_sgd(which == sort::predictor ? 0.02 : 0.08);
    of.loss = [](model& net, pair_batch const& batch) {
      at::Tensor penalty = at::zeros({});
      for (at::Tensor const& one : net.parameters()) penalty = penalty + one.pow(2).sum();
      return net.loss(net.forward(batch.first), batch.second) - 0.5 * penalty;
    };
    of.updates = 700;
    go<kept>(of);
  });
  add(trouble::blow_up, "a loss that is a sum, when the batches grow", {sort::autoencoder}, 2, [](sort, session of) {
    of.optimizer = sgd(2e-3, 0.8);
    std::uint64_t const seed = of.seed * 77;
    of.batch = [seed](std::int64_t index) { return surface(seed + static_cast<std::uint64_t>(index), index < 110 ? 4 : 768); };
    of.loss = [](model& net, pair_batch const& batch) {
      return (net.forward(batch.first) - batch.second).pow(2).sum();
    };
    go<bare>(of);
  });
  add(trouble::blow_up, "a warm-up that goes far too high, with rollbacks", {sort::autoencoder}, 1, [](sort, session of) {
    of.optimizer = sgd(1e-3, 0.9);
    of.after_update = [](std::int64_t update, model&, torch::optim::Optimizer& optimizer) {
      set_rate(optimizer, 1e-3 + 60.0 * std::pow(static_cast<double>(update) / 100.0, 4.0));
    };
    go<rolling>(of);
  });

  // Not finite: the data.
  add(trouble::bad_sample, "a target that is NaN", {sort::autoencoder, sort::factors}, 1, [](sort, session of) {
    change(of, [](std::int64_t index, pair_batch& batch) {
      if (index == 133) batch.second[7].fill_(NAN);
    });
    go<kept>(of);
  });
  add(trouble::bad_sample, "an infinite pixel", {sort::images}, 1, [](sort, session of) {
    change(of, [](std::int64_t index, pair_batch& batch) {
      if (index == 58) batch.first[11].view({-1})[42] = std::numeric_limits<float>::infinity();
    });
    go<kept>(of);
  });
  add(trouble::bad_sample, "a target of 1e30, which ends the run", {sort::density, sort::predictor}, 1, [](sort, session of) {
    change(of, [](std::int64_t index, pair_batch& batch) {
      if (index == 171) batch.second[2].fill_(1e30F);
    });
    go<bare>(of);
  });
  add(trouble::bad_sample, "a part of a file that is broken", {sort::recurrent}, 1, [](sort, session of) {
    change(of, [](std::int64_t index, pair_batch& batch) {
      if (index >= 120 && index < 125) batch.first[static_cast<std::int64_t>(3 + index % 5)].slice(0, 6).fill_(NAN);
    });
    go<kept>(of);
  });
  add(trouble::bad_sample, "one row of a small set, in each epoch again", {sort::wide}, 1, [](sort, session of) {
    take_little(of, 70);
    change(of, [](std::int64_t index, pair_batch& batch) {
      if (index == 37) batch.first[4][5] = NAN;
    });
    of.own_loop = true;
    go<kept>(of);
  });

  // Not finite: a layer.
  add(trouble::layer_numerics, "a softmax by hand in half precision, without taking off the maximum", {sort::classifier, sort::images}, 1,
      [](sort, session of) {
        of.optimizer = adamw(1e-2, 0.0);
        of.loss = [](model& net, pair_batch const& batch) {
          at::Tensor const powers = net.forward(batch.first).exp().clamp_min(1e-4).to(at::kHalf).to(at::kFloat);
          return -(powers / powers.sum(1, true)).gather(1, batch.second.unsqueeze(1)).log().mean();
        };
        of.updates = 600;
        go<kept>(of);
      });
  add(trouble::layer_numerics, "the logarithm of one minus a sigmoid", {sort::classifier, sort::deep}, 1, [](sort, session of) {
    of.optimizer = adamw(1e-2, 0.0);
    of.loss = [](model& net, pair_batch const& batch) {
      at::Tensor const likely = net.forward(batch.first).sigmoid();
      at::Tensor const wanted = at::one_hot(batch.second, classifier::classes).to(at::kFloat);
      return -(wanted * likely.log() + (1.0 - wanted) * (1.0 - likely).log()).sum(1).mean();
    };
    of.updates = 600;
    go<kept>(of);
  });
  add(trouble::layer_numerics, "the root of a relu by hand, from the first update on", {sort::images, sort::reader}, 1, [](sort, session of) {
    of.loss = [](model& net, pair_batch const& batch) {
      at::Tensor const output = net.forward(batch.first);
      return net.loss(output, batch.second) + 0.01 * (output * (output > 0).to(at::kFloat)).sqrt().mean();
    };
    go<kept>(of);
  });
  add(trouble::layer_numerics, "a variance as the mean of squares less the square of the mean", {sort::autoencoder, sort::deep}, 1, [](sort, session of) {
    // What stands in the same place for some rows: a sensor that does not move.
    change(of, [seed = of.seed](std::int64_t index, pair_batch& batch) {
      if (index < 60 || (index + static_cast<std::int64_t>(seed)) % 17 != 0) return;
      for (std::int64_t const row : {2, 5, 9}) batch.first[row].fill_(3.7F + 0.1F * static_cast<float>(row));
    });
    of.loss = [](model& net, pair_batch const& batch) {
      at::Tensor const& x = batch.first;
      at::Tensor const mean = x.mean(1, true);
      at::Tensor const variance = x.pow(2).mean(1, true) - mean.pow(2);
      return net.loss(net.forward((x - mean) / variance.sqrt()), batch.second);
    };
    go<kept>(of);
  });

  // Not finite: the scale, and the machine.
  add(trouble::loss_scale, "a fixed scale that is far too large", {sort::classifier}, 1, [](sort, session of) {
    of.loss = [](model& net, pair_batch const& batch) {
      return net.loss(net.forward(batch.first).to(at::kHalf).to(at::kFloat), batch.second);
    };
    go<half_fixed, scales_here>(of);
  });
  add(trouble::loss_scale, "a loss that becomes a sum of millions, and the scale falls to its floor", {sort::recurrent, sort::predictor}, 1,
      [](sort, session of) {
        auto const now = std::make_shared<std::int64_t>(0);
        of.after_update = [now](std::int64_t update, model&, torch::optim::Optimizer&) { *now = update; };
        of.loss = [now](model& net, pair_batch const& batch) {
          double const weight = *now >= 75 ? 1e8 : 1.0;
          return net.loss(net.forward(batch.first).to(at::kHalf).to(at::kFloat), batch.second) * weight;
        };
        go<half_growing, scales_here>(of);
      });
  add(trouble::loss_scale, "a scale that grows sixteenfold after every third update", {sort::classifier, sort::images}, 1, [](sort, session of) {
    of.loss = [](model& net, pair_batch const& batch) {
      return net.loss(net.forward(batch.first).to(at::kHalf).to(at::kFloat), batch.second);
    };
    go<half_growing, scales_here>(of);
  });
  add(trouble::hardware, "a gradient that is infinite once", {sort::images, sort::language_model}, 1, [](sort which, session of) {
    auto const calls = std::make_shared<int>(0);
    int const when = which == sort::images ? 187 : 64;
    of.loss = [calls, when](model& net, pair_batch const& batch) {
      at::Tensor const output = net.forward(batch.first);
      if (output.requires_grad()) {
        output.register_hook([calls, when](at::Tensor const& gradient) {
          return ++*calls == when ? gradient * std::numeric_limits<double>::infinity() : gradient;
        });
      }
      return net.loss(output, batch.second);
    };
    go<kept>(of);
  });
  add(trouble::hardware, "a card that fails now and then", {sort::recurrent}, 1, [](sort, session of) {
    auto const calls = std::make_shared<int>(0);
    of.loss = [calls](model& net, pair_batch const& batch) {
      at::Tensor output = net.forward(batch.first);
      ++*calls;
      if (*calls == 96 || *calls == 207) output = output + std::numeric_limits<double>::quiet_NaN();
      return net.loss(output, batch.second);
    };
    go<kept>(of);
  });

  // Not learning: the rate.
  add(trouble::rate_too_low, "a thousandth of the rate", {sort::images, sort::recurrent}, 1, [](sort, session of) {
    of.optimizer = adamw(of.rate * 1e-3);
    of.updates = 400;
    go<tight>(of);
  });
  add(trouble::rate_too_low, "a decay for epochs that comes at each update", {sort::recurrent, sort::autoencoder}, 1, [](sort, session of) {
    of.optimizer = adamw(of.rate * 0.3);
    of.after_update = [](std::int64_t, model&, torch::optim::Optimizer& optimizer) { set_rate(optimizer, rate_of(optimizer) * 0.6); };
    of.updates = 500;
    go<kept>(of);
  });
  add(trouble::rate_too_low, "a warm-up of a hundred times the run", {sort::language_model, sort::factors}, 1, [](sort, session of) {
    double const highest = of.rate;
    of.optimizer = adamw(highest / 60000.0);
    of.updates = 400;
    of.after_update = [highest](std::int64_t update, model&, torch::optim::Optimizer& optimizer) {
      set_rate(optimizer, highest * static_cast<double>(update + 1) / 60000.0);
    };
    of.record_every = 5;
    go<bare>(of);
  });
  add(trouble::rate_too_low, "the rate of AdamW for plain SGD", {sort::recurrent, sort::deep}, 1, [](sort, session of) {
    of.optimizer = stock_sgd(1e-5, 0.0);
    of.own_loop = true;
    go<bare>(of);
  });

  add(trouble::rate_too_high, "RMSprop at a hundred times its rate", {sort::recurrent, sort::language_model}, 1, [](sort which, session of) {
    of.optimizer = rmsprop(which == sort::recurrent ? 1.0 : 0.3);
    of.updates = 400;
    go<kept>(of);
  });
  add(trouble::rate_too_high, "a hundred times too high and more, without clipping", {sort::deep, sort::wide, sort::density, sort::images}, 1,
      [](sort which, session of) {
        of.optimizer = adamw(which == sort::deep ? 0.15 : which == sort::wide ? 0.2 : which == sort::density ? 1.0 : 3.0);
        go<bare>(of);
      });
  add(trouble::rate_too_high, "the trunk's group has another rate, by a slip of three places", {sort::language_model}, 2, [](sort, session of) {
    of.optimizer = [](model& net, std::vector<at::Tensor> const& trained) -> std::unique_ptr<torch::optim::Optimizer> {
      auto const& head = static_cast<language_model&>(net).head;
      std::vector<at::Tensor> trunk;
      for (at::Tensor const& one : trained) {
        if (!one.is_same(head->weight) && !one.is_same(head->bias)) trunk.push_back(one);
      }
      std::vector<torch::optim::OptimizerParamGroup> groups;
      groups.emplace_back(head->parameters(), std::make_unique<torch::optim::AdamWOptions>(3e-3));
      groups.emplace_back(trunk, std::make_unique<torch::optim::AdamWOptions>(3.0));
      return std::make_unique<torch::optim::AdamW>(groups, torch::optim::AdamWOptions(3e-3));
    };
    go<tight>(of);
  });

  // Not learning: labels.
  add(trouble::wrong_labels, "labels of the row before", {sort::images, sort::recurrent}, 1, [](sort, session of) {
    change(of, [](std::int64_t, pair_batch& batch) { batch.second = batch.second.roll(1, 0); });
    of.updates = 350;
    go<kept>(of);
  });
  add(trouble::wrong_labels, "labels of the next batch", {sort::reader, sort::deep}, 1, [](sort, session of) {
    of.batch = [before = of.batch](std::int64_t index) { return pair_batch{before(index).first, before(index + 1).second}; };
    of.updates = 400;
    of.own_loop = true;
    go<tight>(of);
  });
  add(trouble::wrong_labels, "inputs and targets are shuffled apart, in every epoch anew", {sort::factors, sort::density}, 1, [](sort which, session of) {
    auto const inputs = std::make_shared<std::vector<pair_batch>>();
    for (std::int64_t i = 0; i < 60; ++i) inputs->push_back(of.batch(i));
    auto const epoch = std::make_shared<std::int64_t>(0);
    of.batch = [inputs, epoch](std::int64_t index) {
      if (index == 0) ++*epoch;
      std::vector<at::Tensor> all;
      for (pair_batch const& one : *inputs) all.push_back(one.second);
      at::Tensor const targets = at::cat(all);
      std::int64_t const rows = (*inputs)[0].second.size(0);
      at::Generator chance = generator_of(static_cast<std::uint64_t>(*epoch));
      at::Tensor const order = at::randperm(targets.size(0), chance, at::kLong).slice(0, index * rows, (index + 1) * rows);
      return pair_batch{(*inputs)[static_cast<std::size_t>(index)].first, targets.index_select(0, order)};
    };
    of.per_epoch = 60;
    of.updates = 420;
    if (which == sort::density) of.optimizer = adamw(1e-3);
    go<kept>(of);
  });
  add(trouble::wrong_labels, "labels that were sorted, and inputs that were not", {sort::classifier, sort::recurrent}, 1, [](sort, session of) {
    change(of, [](std::int64_t, pair_batch& batch) { batch.second = std::get<0>(batch.second.sort(0)); });
    of.record_every = 4;
    of.updates = 400;
    go<kept>(of);
  });

  // Not learning: what does not train.
  add(trouble::untrained_parameters, "the embeddings are looked up under NoGradGuard", {sort::factors}, 2, [](sort, session of) {
    of.make = [] {
      auto made = std::make_shared<factors>();
      made->with.detaches = true;
      return made;
    };
    go<kept>(of);
  });
  add(trouble::untrained_parameters, "a backbone that is frozen and was never loaded", {sort::language_model, sort::recurrent}, 1, [](sort which, session of) {
    of.prepare = [which](model& net) {
      char const* const trained = which == sort::recurrent ? "head.bias" : "norm.";
      for (auto const& item : net.named_parameters()) item.value().requires_grad_(item.key().rfind(trained, 0) == 0);
    };
    of.updates = 350;
    go<tight>(of);
  });
  add(trouble::untrained_parameters, "a gradient that is multiplied by nothing on its way back", {sort::autoencoder}, 2, [](sort, session of) {
    of.loss = [](model& net, pair_batch const& batch) {
      auto& all = static_cast<autoencoder&>(net);
      at::Tensor const inside = all.code(at::tanh(all.inward(batch.first)));
      at::Tensor const cut = inside.detach() + 0.0 * inside;
      return net.loss(all.last(at::tanh(all.outward(0.02 * cut))), batch.second);
    };
    go<kept>(of);
  });

  // Not learning: masks.
  add(trouble::wrong_mask, "a mask of the padding that is turned about", {sort::reader}, 2, [](sort, session of) {
    of.make = [] {
      auto made = std::make_shared<reader>();
      made->looks_at_padding = true;
      return made;
    };
    std::uint64_t const seed = of.seed * 991;
    of.batch = [seed](std::int64_t index) { return texts(seed + static_cast<std::uint64_t>(index), 16, 3, 6); };
    of.updates = 350;
    go<filled>(of);
  });
  add(trouble::wrong_mask, "the prompt counts, and the answer does not", {sort::language_model}, 2, [](sort, session of) {
    change(of, [](std::int64_t index, pair_batch& batch) {
      // Three random symbols of a prompt, and the answer repeats them.
      at::Generator chance = generator_of(static_cast<std::uint64_t>(index) + 77777);
      at::Tensor const prompt = at::randint(1, language_model::vocabulary, {batch.first.size(0), 3}, chance, at::kLong);
      at::Tensor const text = prompt.repeat({1, 6}).slice(1, 0, language_model::tokens + 1);
      batch.first = text.slice(1, 0, language_model::tokens).contiguous();
      batch.second = text.slice(1, 1).contiguous();
      batch.second.slice(1, 2).fill_(-100);
    });
    of.updates = 350;
    go<filled>(of);
  });

  // Not learning: how it begins.
  add(trouble::bad_initialization, "weights of variance one, layer on layer", {sort::deep}, 2, [](sort, session of) {
    of.prepare = [](model& net) {
      at::NoGradGuard const no_grad;
      for (at::Tensor& one : net.parameters()) {
        if (one.dim() > 1) one.normal_(0.0, 1.0);
      }
    };
    go<tight>(of);
  });
  add(trouble::bad_initialization, "weights that are far too small, layer on layer, with tanh", {sort::deep}, 1, [](sort, session of) {
    of.make = making<deep>(10, true);
    of.prepare = [](model& net) {
      at::NoGradGuard const no_grad;
      for (at::Tensor& one : net.parameters()) one.mul_(0.05);
    };
    of.optimizer = sgd(0.03, 0.9);
    of.updates = 350;
    go<kept>(of);
  });
  add(trouble::bad_initialization, "embeddings that are drawn twenty times too wide", {sort::factors}, 2, [](sort, session of) {
    of.prepare = [](model& net) {
      at::NoGradGuard const no_grad;
      static_cast<factors&>(net).users->weight.mul_(20.0);
      static_cast<factors&>(net).items->weight.mul_(20.0);
    };
    of.updates = 400;
    go<kept>(of);
  });
  add(trouble::bad_initialization, "the scales of batch norm begin at nothing", {sort::images}, 1, [](sort, session of) {
    of.prepare = [](model& net) {
      at::NoGradGuard const no_grad;
      static_cast<images&>(net).first_norm->weight.zero_();
      static_cast<images&>(net).second_norm->weight.zero_();
    };
    go<kept>(of);
  });

  // Learning the wrong thing.
  add(trouble::overfitting, "a few rows, learned by heart", {sort::recurrent, sort::images, sort::wide}, 1, [](sort which, session of) {
    of.evaluations = {{"holdout", others(of, 5)}};
    take_little(of, which == sort::wide ? 4 : 3);
    change(of, [](std::int64_t index, pair_batch& batch) {
      at::Generator chance = generator_of(static_cast<std::uint64_t>(index) + 5);
      at::Tensor const other = at::randint(5, batch.second.sizes(), chance, at::kLong);
      batch.second = at::where(at::rand(batch.second.sizes(), chance) < 0.25, other, batch.second);
    });
    of.updates = which == sort::recurrent ? 700 : 400;
    go<judged>(of);
  });
  add(trouble::overfitting, "more factors than ratings", {sort::factors}, 2, [](sort, session of) {
    of.evaluations = {{"unseen", others(of, 6)}};
    take_little(of, 4);
    change(of, [](std::int64_t index, pair_batch& batch) { draw_noise_into(batch.second, 0.7, index); });
    of.optimizer = adamw(2e-2, 0.0);
    of.updates = 500;
    go<judged>(of);
  });

  add(trouble::collapse, "a penalty on the code that is turned up, and the code says nothing more", {sort::variational}, 2, [](sort, session of) {
    auto const now = std::make_shared<std::int64_t>(0);
    of.after_update = [now](std::int64_t update, model&, torch::optim::Optimizer&) { *now = update; };
    of.loss = [now](model& net, pair_batch const& batch) {
      at::Tensor const output = net.forward(batch.first);
      double const weight = *now < 220 ? 1e-3 : 3.0;
      return at::mse_loss(output, batch.second) + weight * static_cast<variational&>(net).far;
    };
    std::uint64_t const seed = of.seed * 31;
    of.batch = [seed](std::int64_t index) { return surface(seed + static_cast<std::uint64_t>(index), 32); };
    of.updates = 600;
    go<kept>(of);
  });
  add(trouble::collapse, "a penalty on what is active that kills the units", {sort::wide, sort::images}, 1, [](sort which, session of) {
    auto const now = std::make_shared<std::int64_t>(0);
    of.after_update = [now](std::int64_t update, model&, torch::optim::Optimizer&) { *now = update; };
    of.loss = [now, which](model& net, pair_batch const& batch) {
      at::Tensor const output = net.forward(batch.first);
      at::Tensor const hidden = which == sort::wide ? static_cast<wide&>(net).hidden : static_cast<images&>(net).hidden;
      return net.loss(output, batch.second) + (*now < 180 ? 0.0 : 60.0) * hidden.mean();
    };
    of.optimizer = adamw(which == sort::wide ? 2e-3 : 4e-3);
    of.updates = 600;
    go<kept>(of);
  });
  add(trouble::collapse, "an output that is clamped, and leaves its range", {sort::predictor, sort::autoencoder}, 1, [](sort, session of) {
    of.loss = [](model& net, pair_batch const& batch) {
      return net.loss(net.forward(batch.first).clamp(-3.0, 3.0), batch.second);
    };
    double const usual_rate = of.rate;
    of.after_update = [usual_rate](std::int64_t update, model&, torch::optim::Optimizer& optimizer) {
      // What an entry of a table of rates came to.
      set_rate(optimizer, update >= 200 && update < 202 ? 40.0 : usual_rate);
    };
    of.updates = 550;
    go<tight>(of);
  });

  add(trouble::oscillation, "a momentum of 0.999", {sort::wide}, 2, [](sort, session of) {
    of.optimizer = sgd(0.001, 0.999);
    of.updates = 700;
    go<kept>(of);
  });
  add(trouble::oscillation, "restarts of the schedule at far too high a rate", {sort::autoencoder}, 2, [](sort, session of) {
    of.optimizer = adamw(0.6);
    of.updates = 500;
    go<restarted>(of);
  });
  add(trouble::oscillation, "a rate that is raised while the loss falls, and cut when it jumps", {sort::autoencoder, sort::language_model, sort::reader}, 1,
      [](sort, session of) {
        auto const last = std::make_shared<double>(0.0);
        auto const lowest = std::make_shared<double>(1e9);
        of.loss = [last](model& net, pair_batch const& batch) {
          at::Tensor const loss = net.loss(net.forward(batch.first), batch.second);
          *last = *last == 0.0 ? loss.item<double>() : 0.7 * *last + 0.3 * loss.item<double>();
          return loss;
        };
        double const usual_rate = of.rate;
        of.after_update = [=](std::int64_t update, model&, torch::optim::Optimizer& optimizer) {
          *lowest = std::min(*lowest, *last);
          if (*last > *lowest + 0.6) {
            set_rate(optimizer, usual_rate * 0.5);
          } else if (update >= 100) {
            set_rate(optimizer, rate_of(optimizer) * 1.2);
          }
        };
        of.updates = 600;
        go<kept>(of);
      });

  add(trouble::forgetting, "a tune on new classes alone", {sort::images}, 2, [](sort, session of) {
    std::uint64_t const seed = of.seed * 13;
    auto const of_sorts = [seed](std::int64_t from, std::int64_t to) {
      return [=](std::int64_t index) { return pictures(seed + static_cast<std::uint64_t>(index), 16, 0.45, from, to); };
    };
    of.prepare = learned(of_sorts(0, 4), 3e-3, 250);
    of.batch = of_sorts(0, 4);
    of.evaluations = {{"old classes", others(of, 4)}};
    of.batch = of_sorts(4, 6);
    of.evaluations.emplace_back("new classes", others(of, 4));
    of.optimizer = adamw(1.5e-3);
    go<judged>(of);
  });
  add(trouble::forgetting, "a tune at a high rate on other data", {sort::recurrent, sort::autoencoder}, 1, [](sort which, session of) {
    std::uint64_t const seed = of.seed * 17;
    of.prepare = learned(of.batch, of.rate, 500);
    of.evaluations = {{"what it knew", others(of, 4)}};
    if (which == sort::recurrent) {
      // The same tones with other names.
      change(of, [](std::int64_t, pair_batch& batch) { batch.second = (batch.second * 2 + 1) % recurrent::tones; });
    } else {
      of.batch = [seed](std::int64_t index) { return surface(seed + static_cast<std::uint64_t>(index), 16, 0.2, 20); };
    }
    of.optimizer = adamw(of.rate * 3.0);
    of.updates = 240;
    go<judged>(of);
  });

  // Memory.
  add(trouble::activations, "a text that is forty times as long", {sort::recurrent}, 2, [](sort, session of) {
    keel::memory::budget budget;
    measured const usually = usually_takes<kept>(of, budget);
    std::uint64_t const seed = of.seed * 3;
    of.batch = [seed](std::int64_t index) { return tones(seed + static_cast<std::uint64_t>(index), 16, index == 88 ? 16 * 40 : 16); };
    budget.limit(budget.allocated() + usually.kept + 6 * usually.above);
    go<kept>(of);
  });
  add(trouble::activations, "twenty views of each picture, from an update on", {sort::images}, 1, [](sort, session of) {
    keel::memory::budget budget;
    measured const usually = usually_takes<kept>(of, budget);
    auto const now = std::make_shared<std::int64_t>(0);
    of.after_update = [now](std::int64_t update, model&, torch::optim::Optimizer&) { *now = update; };
    of.loss = [now](model& net, pair_batch const& batch) {
      at::Tensor sum = net.loss(net.forward(batch.first), batch.second);
      for (int view = 1; *now >= 120 && view < 20; ++view)
        sum = sum + net.loss(net.forward(batch.first + 0.1 * at::randn_like(batch.first)), batch.second);
      return sum;
    };
    budget.limit(budget.allocated() + usually.kept + 5 * usually.above);
    go<kept>(of);
  });
  add(trouble::activations, "two rows of which not even one fits, so that no halving helps", {sort::reader}, 1, [](sort, session of) {
    keel::memory::budget budget;
    measured const usually = usually_takes<rungs>(of, budget);
    std::uint64_t const seed = of.seed * 3;
    pair_batch const large = texts(seed, 2, 240, 256, 256);
    of.batch = [seed, large](std::int64_t index) { return index < 40 ? texts(seed + static_cast<std::uint64_t>(index), 16) : large; };
    budget.limit(budget.allocated() + usually.kept + usually.above + usually.above / 8);
    go<rungs>(of);
  });
  add(trouble::optimizer_state, "the moments of wide layers do not fit", {sort::wide}, 2, [](sort, session of) {
    keel::memory::budget budget;
    of.optimizer = of.seed % 2 == 0 ? stock_adamw(5e-4) : adamw(5e-4);
    std::uint64_t const seed = of.seed;
    of.batch = [seed](std::int64_t index) { return make_batch(planted::kind::classifier, seed + static_cast<std::uint64_t>(index), 4); };
    of.prepare = [&budget](model& net) {
      // Parameters are there; gradients, and a part of the moments, still fit.
      budget.limit(budget.allocated() + 2 * bytes_of(net) + 100000);
    };
    go<bare>(of);
  });
  add(trouble::optimizer_state, "the momentum of SGD does not fit", {sort::wide}, 1, [](sort, session of) {
    keel::memory::budget budget;
    of.optimizer = sgd(0.01, 0.9);
    std::uint64_t const seed = of.seed;
    of.batch = [seed](std::int64_t index) { return make_batch(planted::kind::classifier, seed + static_cast<std::uint64_t>(index), 4); };
    of.prepare = [&budget](model& net) { budget.limit(budget.allocated() + bytes_of(net) + 250000); };
    go<bare>(of);
  });
  add(trouble::memory_leak, "outputs are kept for a measure at the end of the epoch", {sort::language_model, sort::images}, 1, [](sort, session of) {
    keel::memory::budget budget;
    auto const outputs = std::make_shared<std::vector<at::Tensor>>();
    of.loss = [outputs](model& net, pair_batch const& batch) {
      at::Tensor const output = net.forward(batch.first);
      outputs->push_back(output);
      return net.loss(output, batch.second);
    };
    of.updates = 450;
    go<kept>(of);
    outputs->clear();
  });
  add(trouble::memory_leak, "copies of the weights for a histogram", {sort::recurrent}, 1, [](sort, session of) {
    keel::memory::budget budget;
    auto const copies = std::make_shared<std::vector<at::Tensor>>();
    of.after_update = [copies](std::int64_t, model& net, torch::optim::Optimizer&) {
      for (at::Tensor const& one : net.parameters()) copies->push_back(one.detach().clone());
    };
    of.record_every = 5;
    of.updates = 400;
    go<kept>(of);
    copies->clear();
  });
  add(trouble::memory_leak, "a cache of prepared batches that forgets none", {sort::autoencoder, sort::predictor}, 1, [](sort, session of) {
    keel::memory::budget budget;
    auto const cache = std::make_shared<std::map<std::int64_t, pair_batch>>();
    of.batch = [cache, before = of.batch](std::int64_t index) {
      return cache->emplace(index, before(index)).first->second;
    };
    of.updates = 500;
    go<bare>(of);
    cache->clear();
  });
  add(trouble::memory_leak, "snapshots of the weights every eighth update, until there is no room", {sort::wide}, 1, [](sort, session of) {
    keel::memory::budget budget;
    measured const usually = usually_takes<kept>(of, budget);
    auto const copies = std::make_shared<std::vector<at::Tensor>>();
    of.after_update = [copies](std::int64_t update, model& net, torch::optim::Optimizer&) {
      for (at::Tensor const& one : net.parameters()) {
        if (update % 8 == 0) copies->push_back(one.detach().clone());
      }
    };
    of.updates = 400;
    budget.limit(budget.allocated() + usually.kept + 2 * usually.above + 20000000);
    go<kept>(of);
    copies->clear();
  });
  add(trouble::fragmentation, "memory that is not LibTorch's is never given back", {sort::autoencoder, sort::reader}, 1, [](sort, session of) {
    keel::memory::budget budget;
    auto const log = std::make_shared<std::vector<std::string>>();
    of.after_update = [log](std::int64_t update, model&, torch::optim::Optimizer&) {
      log->push_back(std::string(700000, static_cast<char>('a' + update % 20)));
    };
    of.updates = 400;
    go<bare>(of);
  });
  add(trouble::fragmentation, "blocks of many sizes, of which each third stays", {sort::recurrent}, 1, [](sort, session of) {
    keel::memory::budget budget;
    auto const stays = std::make_shared<std::vector<std::unique_ptr<char[]>>>();
    of.after_update = [stays](std::int64_t update, model&, torch::optim::Optimizer&) {
      std::vector<std::unique_ptr<char[]>> goes;
      for (std::size_t i = 0; i < 120; ++i) {
        std::size_t const bytes = 2000 + 173 * ((i * 7 + static_cast<std::size_t>(update)) % 90);
        auto block = std::make_unique<char[]>(bytes);
        std::fill_n(block.get(), bytes, 'x');
        (i % 3 == 0 ? *stays : goes).push_back(std::move(block));
      }
    };
    of.updates = 400;
    go<bare>(of);
  });
  add(trouble::graph_in_evaluation, "predictions are gathered with their graphs", {sort::recurrent, sort::images}, 1, [](sort, session of) {
    keel::memory::budget budget;
    measured const usually = usually_takes<kept>(of, budget);
    auto const gathered = std::make_shared<std::vector<at::Tensor>>();
    of.evaluations = {{"test", others(of, 150)}};
    of.evaluation_loss = [gathered](model& net, pair_batch const& batch) {
      at::AutoGradMode const with_graph(true);
      at::Tensor const output = net.forward(batch.first);
      gathered->push_back(output);
      return net.loss(output, batch.second).detach();
    };
    budget.limit(budget.allocated() + usually.kept + 12 * usually.above);
    go<judged>(of);
    gathered->clear();
  });
  add(trouble::graph_in_evaluation, "an evaluation of the program's own, in a hook", {sort::reader}, 1, [](sort, session of) {
    keel::memory::budget budget;
    measured const usually = usually_takes<kept>(of, budget);
    auto const test = std::make_shared<std::vector<pair_batch>>(others(of, 200));
    of.after_update = [test](std::int64_t update, model& net, torch::optim::Optimizer&) {
      if (update % 70 != 0) return;
      at::Tensor sum = at::zeros({});
      for (pair_batch const& batch : *test) sum = sum + net.loss(net.forward(batch.first), batch.second);
    };
    budget.limit(budget.allocated() + usually.kept + 15 * usually.above);
    go<kept>(of);
  });
  add(trouble::graphs_in_accumulation, "a second pass whose graph waits for the update", {sort::recurrent, sort::images}, 1, [](sort, session of) {
    keel::memory::budget budget;
    measured const usually = usually_takes<piled>(of, budget);
    auto const waiting = std::make_shared<std::vector<at::Tensor>>();
    auto const now = std::make_shared<std::int64_t>(0);
    of.loss = [waiting, now](model& net, pair_batch const& batch) {
      at::Tensor const output = net.forward(batch.first);
      // How much alike the outputs of all micro-batches are, which is asked when the update is complete.
      if (*now >= 25) waiting->push_back(at::softmax(net.forward(batch.first), 1));
      return net.loss(output, batch.second);
    };
    of.after_update = [waiting, now](std::int64_t update, model&, torch::optim::Optimizer&) {
      *now = update;
      waiting->clear();
    };
    of.updates = 60;
    budget.limit(budget.allocated() + usually.kept + 4 * usually.above);
    go<piled>(of);
    waiting->clear();
  });

  // Slow.
  add(trouble::waiting_for_data, "a loader that becomes slower and slower", {sort::reader, sort::density}, 1, [](sort, session of) {
    of.before_batch = [](std::int64_t index) { wait(0.5 + 0.08 * static_cast<double>(index)); };
    of.updates = 200;
    go<bare>(of);
  });
  add(trouble::waiting_for_data, "a queue that runs empty at every tenth batch", {sort::images}, 1, [](sort, session of) {
    of.before_batch = [](std::int64_t index) {
      if (index % 10 == 9) wait(90.0);
    };
    of.updates = 200;
    of.record_every = 10;
    go<kept>(of);
  });
  add(trouble::waiting_for_data, "a disk of the network, in a loop of the program's own", {sort::recurrent}, 1, [](sort, session of) {
    of.before_batch = [](std::int64_t index) { wait(index < 60 ? 9.0 : 14.0); };
    of.updates = 170;
    of.own_loop = true;
    go<kept>(of);
  });
  add(trouble::host_waits, "a hook that writes to a slow disk after each update", {sort::reader, sort::autoencoder}, 1, [](sort, session of) {
    of.after_update = [](std::int64_t, model&, torch::optim::Optimizer&) { wait(9.0); };
    of.updates = 200;
    go<bare>(of);
  });
  add(trouble::host_waits, "a hook that asks a service before each micro-batch", {sort::images}, 1, [](sort, session of) {
    of.before_micro_batch = [] { wait(10.0); };
    of.updates = 160;
    go<traced>(of);
  });
  add(trouble::host_waits, "a lock in the loss function", {sort::classifier}, 1, [](sort, session of) {
    of.loss = [](model& net, pair_batch const& batch) {
      wait(6.0);
      at::Tensor const output = net.forward(batch.first);
      wait(6.0);
      return net.loss(output, batch.second);
    };
    of.updates = 150;
    go<traced>(of);
  });
  add(trouble::communication, "gradients over a slow network", {sort::reader, sort::images}, 1, [](sort which, session of) {
    of.loss = [which](model& net, pair_batch const& batch) {
      at::Tensor const loss = net.loss(net.forward(batch.first), batch.second);
      for (int bucket = 0; bucket < 3; ++bucket) {
        RECORD_FUNCTION(which == sort::reader ? "nccl:all_reduce" : "gloo:all_reduce", std::vector<c10::IValue>());
        wait(4.0);
      }
      return loss;
    };
    of.updates = 150;
    go<traced>(of);
  });
  add(trouble::communication, "shards that are gathered for each layer", {sort::deep}, 1, [](sort, session of) {
    of.loss = [](model& net, pair_batch const& batch) {
      for (int layer = 0; layer < 6; ++layer) {
        RECORD_FUNCTION("c10d::_allgather_base_", std::vector<c10::IValue>());
        wait(2.0);
      }
      return net.loss(net.forward(batch.first), batch.second);
    };
    of.updates = 150;
    go<traced>(of);
  });
  add(trouble::slow_kernels, "one row after the other", {sort::reader, sort::deep}, 1, [](sort, session of) {
    of.loss = [](model& net, pair_batch const& batch) {
      std::vector<at::Tensor> outputs;
      for (std::int64_t row = 0; row < batch.first.size(0); ++row) {
        for (int part = 0; part < 2; ++part) outputs.push_back(net.forward(batch.first.slice(0, row, row + 1)) * 0.5);
      }
      at::Tensor const both = at::cat(outputs);
      return net.loss(both.slice(0, 0, both.size(0), 2) + both.slice(0, 1, both.size(0), 2), batch.second);
    };
    of.updates = 150;
    go<traced>(of);
  });
  add(trouble::slow_kernels, "one symbol after the other", {sort::language_model}, 1, [](sort, session of) {
    of.loss = [](model& net, pair_batch const& batch) {
      at::Tensor const output = at::log_softmax(net.forward(batch.first), 2).flatten(0, 1);
      at::Tensor const wanted = batch.second.flatten();
      at::Tensor sum = at::zeros({});
      for (std::int64_t i = 0; i < wanted.size(0); ++i) sum = sum - output[i][wanted[i].item<std::int64_t>()];
      return sum / static_cast<double>(wanted.size(0));
    };
    of.updates = 150;
    go<traced>(of);
  });
  add(trouble::padding, "one long text in each batch of short ones", {sort::reader}, 2, [](sort, session of) {
    std::uint64_t const seed = of.seed * 5;
    of.batch = [seed](std::int64_t index) {
      pair_batch batch = texts(seed + static_cast<std::uint64_t>(index), 16, 4, 9, 80);
      batch.first[static_cast<std::int64_t>(index % 16)].copy_(batch.first[0].slice(0, 0, 4).repeat({20}).clamp_min(1));
      return batch;
    };
    go<filled>(of);
  });
  add(trouble::padding, "all rows are filled to the longest that there may be", {sort::language_model}, 1, [](sort, session of) {
    change(of, [](std::int64_t index, pair_batch& batch) {
      batch.first.clamp_min_(1);
      for (std::int64_t row = 0; row < batch.first.size(0); ++row) {
        std::int64_t const length = 2 + (row + index) % 3;
        batch.first[row].slice(0, length).fill_(0);
        batch.second[row].slice(0, length).fill_(-100);
      }
    });
    of.updates = 400;
    go<filled>(of);
  });

  // Several ranks.
  auto const of_ranks = [&](trouble cause, std::string const& name, std::int64_t world, std::int64_t updates,
                            std::function<void(std::int64_t rank, rank_writer)> goes_on) {
    all.push_back({cause, name, planted::kind::classifier, static_cast<std::uint64_t>(400 + all.size()), [=](plan from) {
                     auto ranks = sound_ranks(updates, from.seed, world);
                     for (std::size_t rank = 0; rank < ranks.size(); ++rank) goes_on(static_cast<std::int64_t>(rank), rank_writer{ranks[rank]});
                     write_ranks(from.directory, ranks);
                   }});
  };
  of_ranks(trouble::collective_mismatch, "one rank broadcasts and the others reduce", 2, 41, [](std::int64_t rank, rank_writer writer) {
    writer.begins(83, rank == 0 ? "broadcast" : "all_reduce", rank == 0 ? "weights" : "gradients", 4096, "float32", 41);
    writer.lives(240.0);
  });
  of_ranks(trouble::collective_mismatch, "one rank is in bf16", 4, 0, [](std::int64_t rank, rank_writer writer) {
    writer.begins(1, "all_reduce", "gradients", 4096, rank == 3 ? "bfloat16" : "float32", 0);
    writer.lives(310.0);
  });
  of_ranks(trouble::collective_mismatch, "rank 0 evaluates and has one collective more", 8, 25, [](std::int64_t rank, rank_writer writer) {
    if (rank == 0) {
      writer.begins(51, "all_reduce", "evaluation", 1, "float32", 25);
    } else {
      writer.begins(51, "all_reduce", "gradients", 4096, "float32", 25);
    }
    writer.lives(180.0);
  });
  of_ranks(trouble::uneven_data, "two ranks of eight have one batch less", 8, 58, [](std::int64_t rank, rank_writer writer) {
    if (rank == 6 || rank == 7) {
      writer.data_ends(58);
      writer.lives(260.0);
    } else {
      writer.begins(117, "all_reduce", "gradients", 4096, "float32", 58);
      writer.lives(260.0);
    }
  });
  of_ranks(trouble::uneven_data, "one of two ranks goes home early", 2, 17, [](std::int64_t rank, rank_writer writer) {
    if (rank == 0) {
      writer.data_ends(17, 0.02);
      writer.leaves("finished");
    } else {
      writer.begins(35, "all_reduce", "gradients", 4096, "float32", 17);
      writer.lives(600.0);
    }
  });
  of_ranks(trouble::dead_rank, "a rank is killed inside a collective, without a word", 2, 33, [](std::int64_t rank, rank_writer writer) {
    writer.begins(67, "all_reduce", "gradients", 4096, "float32", 33);
    if (rank == 0) writer.lives(400.0);
  });
  of_ranks(trouble::dead_rank, "both ranks of a machine go at once", 8, 70, [](std::int64_t rank, rank_writer writer) {
    if (rank == 2 || rank == 3) return;
    writer.begins(141, "all_reduce", "gradients", 4096, "float32", 70);
    writer.lives(220.0);
  });
  of_ranks(trouble::dead_rank, "a rank cannot read its data", 4, 5, [](std::int64_t rank, rank_writer writer) {
    if (rank == 1) return writer.leaves("[E05] data/shard-0007: the file ends in the middle of a record", 0.4);
    writer.begins(11, "all_reduce", "gradients", 4096, "float32", 5);
    writer.lives(150.0);
  });
  auto const of_meeting = [&](std::string const& name, std::vector<std::int64_t> const& worlds) {
    all.push_back({trouble::rendezvous, name, planted::kind::classifier, static_cast<std::uint64_t>(500 + all.size()), [=](plan from) {
                     std::vector<std::vector<nlohmann::json>> ranks(worlds.size());
                     for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
                       ranks[rank].push_back({{"event", "joining"}, {"world", worlds[rank]}, {"time", 1.79e9 + 0.7 * static_cast<double>(rank)}});
                       rank_writer{ranks[rank]}.lives(330.0);
                     }
                     write_ranks(from.directory, ranks);
                   }});
  };
  of_meeting("seven of eight ranks come", {8, 8, 8, 8, 8, 8, 8});
  of_meeting("two ranks expect two, two expect four", {2, 4, 2, 4});

  // Not resumed.
  add(trouble::optimizer_not_resumed, "the momentum of SGD is thrown away", {sort::images, sort::factors}, 1, [](sort which, session of) {
    of.optimizer = which == sort::images ? sgd(0.02, 0.9) : stock_sgd(0.1, 0.9);
    of.stop_at = 160;
    of.after_resume = [](model&, torch::optim::Optimizer& optimizer) { optimizer.state().clear(); };
    go<kept>(of);
  });
  add(trouble::optimizer_not_resumed, "the moments are set to zero, in a loop of the program's own", {sort::recurrent}, 1, [](sort, session of) {
    of.optimizer = stock_adamw(of.rate);
    of.stop_at = 130;
    of.own_loop = true;
    of.after_resume = [](model&, torch::optim::Optimizer& optimizer) {
      for (auto& [key, state] : optimizer.state()) {
        auto& moments = static_cast<torch::optim::AdamWParamState&>(*state);
        moments.exp_avg().zero_();
        moments.exp_avg_sq().zero_();
        moments.step(0);
      }
    };
    go<kept>(of);
  });
  add(trouble::optimizer_not_resumed, "RMSprop forgets its averages", {sort::autoencoder}, 1, [](sort, session of) {
    of.optimizer = rmsprop(2e-3);
    of.stop_at = 200;
    of.updates = 400;
    of.after_resume = [](model&, torch::optim::Optimizer& optimizer) { optimizer.state().clear(); };
    go<kept>(of);
  });
  add(trouble::schedule_not_resumed, "the warm-up of the program comes again", {sort::reader, sort::autoencoder}, 1, [](sort, session of) {
    double const highest = of.rate;
    of.optimizer = adamw(highest / 50.0);
    of.stop_at = 180;
    auto const count = std::make_shared<int>(1);
    of.after_update = [=](std::int64_t, model&, torch::optim::Optimizer& optimizer) {
      ++*count;
      set_rate(optimizer, highest * std::min(1.0, *count / 50.0));
    };
    of.after_resume = [=](model&, torch::optim::Optimizer& optimizer) {
      *count = 1;
      set_rate(optimizer, highest / 50.0);
    };
    go<kept>(of);
  });
  add(trouble::schedule_not_resumed, "steps down that are forgotten, seen from the second update on", {sort::images, sort::deep}, 1, [](sort, session of) {
    double const highest = of.rate;
    of.optimizer = adamw(highest);
    of.stop_at = 210;
    of.updates = 360;
    auto const count = std::make_shared<int>(0);
    of.after_update = [=](std::int64_t, model&, torch::optim::Optimizer& optimizer) {
      ++*count;
      set_rate(optimizer, highest * std::pow(0.2, *count / 90));
    };
    of.after_resume = [=](model&, torch::optim::Optimizer&) { *count = 0; };
    go<kept>(of);
  });
  add(trouble::data_not_resumed, "the pass over the data begins again, in the second epoch", {sort::recurrent, sort::factors}, 1, [](sort, session of) {
    take_little(of, 120);
    of.own_loop = true;
    of.stop_at = 170;
    of.data_after_resume = [](std::int64_t) { return std::int64_t{0}; };
    go<kept>(of);
  });
  add(trouble::data_not_resumed, "fifteen batches come twice, as the loader saved too rarely", {sort::images}, 1, [](sort, session of) {
    of.own_loop = true;
    of.stop_at = 150;
    of.data_after_resume = [](std::int64_t index) { return index - 15; };
    go<kept>(of);
  });
  add(trouble::data_not_resumed, "both the loader and the program skip ahead", {sort::deep}, 1, [](sort, session of) {
    take_little(of, 100);
    of.own_loop = true;
    of.stop_at = 130;
    of.data_after_resume = [](std::int64_t index) { return index + 30; };
    go<kept>(of);
  });
  add(trouble::random_state_not_resumed, "the program seeds by the clock, in a loop of its own", {sort::recurrent, sort::autoencoder}, 1,
      [](sort which, session of) {
        of.make = [which]() -> std::shared_ptr<model> {
          std::shared_ptr<model> made;
          if (which == sort::recurrent) made = std::make_shared<recurrent>();
          if (which == sort::autoencoder) made = std::make_shared<autoencoder>();
          made->with.dropout = 0.1;
          return made;
        };
        of.own_loop = true;
        of.stop_at = 140;
        of.after_resume = [](model&, torch::optim::Optimizer&) { keel::libtorch::seed_random(at::kCPU, 1795623411); };
        go<kept>(of);
      });
  add(trouble::random_state_not_resumed, "a trial pass after the resume draws numbers", {sort::variational}, 1, [](sort, session of) {
    of.stop_at = 160;
    auto const trial = of.batch(700000);
    of.after_resume = [trial](model& net, torch::optim::Optimizer&) {
      at::NoGradGuard const no_grad;
      net.forward(trial.first);
    };
    go<kept>(of);
  });
  return all;
}

// ---------------------------------------------------------------------------------------------------------------------------------------

inline std::vector<healthy_run> healthy_runs() {
  std::vector<healthy_run> all;
  auto const add = [&](std::string const& name, std::vector<sort> const& of, std::function<void(sort, session)> run) {
    for (sort const which : of)
      all.push_back({name + " (" + to_string(which) + ")", nearest(which), static_cast<std::uint64_t>(601 + 11 * static_cast<int>(which)),
                     [which, run](plan from) { run(which, begin(which, from)); }});
  };
  add("as it comes", {sort::recurrent, sort::images, sort::density, sort::reader}, [](sort, session of) {
    of.updates = 350;
    go<kept>(of);
  });
  add("three rows at a time, which is noisy", {sort::recurrent, sort::classifier}, [](sort which, session of) {
    std::uint64_t const seed = of.seed * 3;
    of.batch = [seed, which](std::int64_t index) {
      std::uint64_t const one = seed + static_cast<std::uint64_t>(index);
      return which == sort::recurrent ? tones(one, 3) : make_batch(planted::kind::classifier, one, 3);
    };
    of.optimizer = adamw(of.rate * 0.5);
    of.updates = 900;
    go<tight>(of);
  });
  add("a rate that is high, and fine", {sort::wide, sort::reader}, [](sort, session of) {
    of.optimizer = adamw(of.rate * 4.0);
    go<bare>(of);
  });
  add("flat at the noise of its data", {sort::autoencoder, sort::predictor}, [](sort, session of) {
    change(of, [](std::int64_t index, pair_batch& batch) { draw_noise_into(batch.second, 0.7, index); });
    of.updates = 900;
    go<kept>(of);
  });
  add("a third of the labels is noise", {sort::images}, [](sort, session of) {
    change(of, [](std::int64_t index, pair_batch& batch) {
      at::Generator chance = generator_of(static_cast<std::uint64_t>(index) + 3);
      at::Tensor const other = at::randint(images::sorts, batch.second.sizes(), chance, at::kLong);
      batch.second = at::where(at::rand(batch.second.sizes(), chance) < 0.33, other, batch.second);
    });
    of.updates = 600;
    go<kept>(of);
  });
  add("learned soon, and flat from then on", {sort::images, sort::deep}, [](sort which, session of) {
    std::uint64_t const seed = of.seed * 3;
    if (which == sort::images)
      of.batch = [seed](std::int64_t index) { return pictures(seed + static_cast<std::uint64_t>(index), 16, 1.2); };
    of.optimizer = adamw(of.rate * 2.0);
    of.updates = 500;
    go<bare>(of);
  });
  add("one cycle", {sort::language_model, sort::recurrent}, [](sort, session of) {
    of.optimizer = adamw(of.rate * 2.0);
    of.updates = 400;
    go<cycled>(of);
  });
  add("warm restarts at a rate that is fine", {sort::reader, sort::autoencoder}, [](sort, session of) {
    of.updates = 400;
    go<restarted>(of);
  });
  add("tuned from weights that are good, at a small rate", {sort::recurrent, sort::images}, [](sort, session of) {
    of.prepare = learned(of.batch, of.rate, 150);
    of.evaluations = {{"validation", others(of, 8)}};
    of.optimizer = adamw(of.rate * 0.1);
    go<judged>(of);
  });
  add("a frozen trunk with adapters, which gain a little", {sort::adapted}, [](sort, session of) {
    auto const before = of.batch;
    of.prepare = [before](model& net) {
      learned(before, 3e-3, 120)(net);
      at::NoGradGuard const no_grad;
      static_cast<adapted&>(net).up->weight.zero_();
      for (auto const& item : net.named_parameters())
        item.value().requires_grad_(item.key().rfind("up.", 0) == 0 || item.key().rfind("down.", 0) == 0 || item.key().rfind("head.", 0) == 0);
    };
    change(of, [](std::int64_t, pair_batch& batch) { batch.first = batch.first * 0.8 + 0.3; });
    of.optimizer = adamw(2e-3);
    go<kept>(of);
  });
  add("long, to almost nothing", {sort::recurrent, sort::factors}, [](sort which, session of) {
    std::uint64_t const seed = of.seed * 3;
    of.batch = [seed, which](std::int64_t index) {
      std::uint64_t const one = seed + static_cast<std::uint64_t>(index);
      return which == sort::factors ? ratings(one, 48, 0.0) : tones(one, 16, recurrent::length, 0.05);
    };
    of.updates = which == sort::factors ? 1000 : 800;
    of.record_every = 10;
    // A recurrent one falls back now and then where its rate does not go down.
    which == sort::factors ? go<kept>(of) : go<cycled>(of);
  });
  add("a rate that goes down in steps, after it has learned", {sort::wide}, [](sort, session of) {
    of.updates = 450;
    go<stepped>(of);
  });
  add("outliers now and then, of which a few are skipped", {sort::density, sort::predictor}, [](sort, session of) {
    change(of, [](std::int64_t index, pair_batch& batch) {
      if (index == 151 || index == 333) batch.second[0].fill_(25.0F);
    });
    of.updates = 450;
    go<wary>(of);
  });
  add("targets of hundreds", {sort::factors, sort::predictor}, [](sort, session of) {
    change(of, [](std::int64_t, pair_batch& batch) { batch.second = batch.second * 40.0 + 20.0; });
    of.optimizer = adamw(of.rate * 10.0);
    of.updates = 700;
    go<tight>(of);
  });
  add("an evaluation every few updates", {sort::deep, sort::factors}, [](sort, session of) {
    of.evaluations = {{"validation", others(of, 4)}};
    go<judged>(of);
  });
  add("killed and resumed in a loop of its own, in the second epoch", {sort::recurrent, sort::factors}, [](sort, session of) {
    take_little(of, 110);
    of.own_loop = true;
    of.stop_at = 170;
    go<kept>(of);
  });
  add("resumed with a schedule and momentum", {sort::images}, [](sort, session of) {
    of.optimizer = sgd(0.02, 0.9);
    of.stop_at = 200;
    of.updates = 380;
    go<stepped>(of);
  });
  add("RMSprop", {sort::autoencoder}, [](sort, session of) {
    of.optimizer = rmsprop(2e-3);
    of.updates = 400;
    go<tight>(of);
  });
  add("Adagrad", {sort::factors}, [](sort, session of) {
    of.optimizer = adagrad(0.1);
    of.updates = 400;
    go<kept>(of);
  });
  add("eight micro-batches an update, in a counted process", {sort::recurrent}, [](sort, session of) {
    keel::memory::budget budget;
    of.updates = 150;
    go<piled>(of);
  });
  add("rows of other lengths, and a cache that fills and stays", {sort::recurrent}, [](sort, session of) {
    keel::memory::budget budget;
    auto const cache = std::make_shared<std::map<std::int64_t, at::Tensor>>();
    std::uint64_t const seed = of.seed * 3;
    of.batch = [=](std::int64_t index) {
      if (cache->size() < 40) cache->emplace(index, at::zeros({2000}));
      return tones(seed + static_cast<std::uint64_t>(index), 16, 12 + (index * 7) % 9);
    };
    of.updates = 400;
    go<kept>(of);
  });
  add("a little padding", {sort::reader}, [](sort, session of) {
    std::uint64_t const seed = of.seed * 3;
    of.batch = [seed](std::int64_t index) { return texts(seed + static_cast<std::uint64_t>(index), 16, 9, 12); };
    go<filled>(of);
  });
  add("a profile, and nothing in it", {sort::wide}, [](sort, session of) {
    of.updates = 200;
    go<traced>(of);
  });
  add("classes of which one is rare", {sort::images}, [](sort, session of) {
    std::uint64_t const seed = of.seed * 3;
    of.batch = [seed](std::int64_t index) {
      pair_batch const most = pictures(seed + static_cast<std::uint64_t>(index), 15, 0.35, 0, 1);
      pair_batch const rare = pictures(seed + static_cast<std::uint64_t>(index), 3, 0.35, 1, 3);
      return pair_batch{at::cat({most.first, rare.first}), at::cat({most.second, rare.second})};
    };
    of.updates = 400;
    go<kept>(of);
  });
  all.push_back({"four ranks that finish", planted::kind::classifier, 777, [](plan from) {
                   auto ranks = sound_ranks(24, from.seed);
                   for (auto& rank : ranks) {
                     rank_writer{rank}.data_ends(24);
                     rank_writer{rank}.leaves("finished");
                   }
                   write_ranks(from.directory, ranks);
                 }});
  return all;
}

}  // namespace keel_test::planted::unseen
