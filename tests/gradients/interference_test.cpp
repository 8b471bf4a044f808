// Whose gradients and parameters are these: what the program does to them while they are the step's is named.
#include <torch/nn/modules/embedding.h>
#include <torch/nn/utils/clip_grad.h>
#include <torch/optim/adam.h>
#include <torch/optim/rmsprop.h>

#include <cmath>

#include "../deciding_device.hpp"
#include "../support.hpp"

using namespace keel_test;
using namespace keel::literals;

namespace {

struct plain : keel::recipe<> {};
struct two : keel::recipe<keel::accumulate<2>> {};

template <class Error = keel::interference_error, class Call>
std::string message_of(Call const& call, std::string const& id) {
  try {
    call();
  } catch (Error const& thrown) {
    CHECK(thrown.id() == id);
    return thrown.what();
  }
  FAIL("nothing was thrown");
  return {};
}

template <class Optimizer>
Optimizer make_optimizer(std::vector<at::Tensor> const& parameters, double rate = 0.05) {
  if constexpr (std::is_base_of_v<torch::optim::SGD, Optimizer>) return Optimizer(parameters, torch::optim::SGDOptions(rate));
  if constexpr (std::is_base_of_v<torch::optim::AdamW, Optimizer>) return Optimizer(parameters, torch::optim::AdamWOptions(rate));
  if constexpr (std::is_base_of_v<torch::optim::Adam, Optimizer>) return Optimizer(parameters, torch::optim::AdamOptions(rate));
  if constexpr (std::is_base_of_v<torch::optim::RMSprop, Optimizer>) return Optimizer(parameters, torch::optim::RMSpropOptions(rate));
}

/// Between the two micro-batches of an update `meddle(model, optimizer)` runs; what keel says of it.
template <class Optimizer, class Meddle>
std::string between(Meddle const& meddle) {
  auto const model = make_small();
  auto optimizer = make_optimizer<Optimizer>(model->parameters());
  keel::step<two> step{model, optimizer};
  step(make_pair_batch(0), mean_squared_error(model));
  step(make_pair_batch(1), mean_squared_error(model));
  step(make_pair_batch(2), mean_squared_error(model));
  meddle(*model, optimizer);
  auto const words = message_of([&] { step(make_pair_batch(3), mean_squared_error(model)); }, "E19");
  // The update is dropped, and the next one is as sound as ever.
  CHECK_FALSE(step.has_open_update());
  CHECK(step.updates() == 1);
  step(make_pair_batch(4), mean_squared_error(model));
  CHECK(step(make_pair_batch(5), mean_squared_error(model)).template is<keel::result::updated>());
  return words;
}

template <class Optimizer>
void all_between() {
  // By whatever default this LibTorch has.
  CHECK(between<Optimizer>([](auto&, auto& optimizer) { optimizer.zero_grad(); }).find("zero_grad()") != std::string::npos);
  CHECK(between<Optimizer>([](auto& model, auto&) {
          for (at::Tensor const& one : model.parameters()) one.mutable_grad() = at::Tensor();
        }).find("is gone, as after zero_grad()") != std::string::npos);
  CHECK(between<Optimizer>([](auto& model, auto&) {
          for (at::Tensor const& one : model.parameters()) one.mutable_grad().zero_();
        }).find("was set to zero") != std::string::npos);
  CHECK(between<Optimizer>([](auto& model, auto&) { torch::nn::utils::clip_grad_norm_(model.parameters(), 1e-3); })
            .find("clip_grad_norm_") != std::string::npos);
  CHECK(between<Optimizer>([](auto& model, auto&) { model.forward(make_pair_batch(9).first).sum().backward(); })
            .find("backward pass of another loss") != std::string::npos);
  // The step of an optimizer clears nothing, but moves the parameters.
  CHECK(between<Optimizer>([](auto&, auto& optimizer) { optimizer.step(); }).find("optimizer.step()") != std::string::npos);
}

}  // namespace

TEST_CASE("zero_grad, clip_grad_norm_, another backward pass and optimizer.step() between micro-batches are named") {
  all_between<torch::optim::SGD>();
  all_between<torch::optim::AdamW>();
  all_between<keel::adamw>();
  all_between<keel::sgd>();
}

TEST_CASE("a generator's backward pass through the discriminator does not enter the discriminator's open update") {
  auto const discriminator = make_small(1);
  torch::nn::Linear generator(6, 6);
  torch::optim::SGD d_optimizer(discriminator->parameters(), 0.1);
  torch::optim::SGD g_optimizer(generator->parameters(), 0.1);
  keel::step<two> d_step{discriminator, d_optimizer};
  keel::step<plain> g_step{generator, g_optimizer};
  auto const g_loss = [&](at::Tensor const& z) { return discriminator->forward(generator(z)).mean(); };
  d_step(make_pair_batch(0), mean_squared_error(discriminator));
  g_step(make_pair_batch(1).first, g_loss);
  message_of([&] { d_step(make_pair_batch(2), mean_squared_error(discriminator)); }, "E19");
  // Between whole updates it is no concern of anybody's: the next one begins without it.
  auto const alone = make_small(1);
  torch::optim::SGD optimizer(alone->parameters(), 0.1);
  keel::step<two> step{alone, optimizer};
  auto const with = make_small(1);
  torch::optim::SGD with_optimizer(with->parameters(), 0.1);
  keel::step<two> with_step{with, with_optimizer};
  for (std::uint64_t i = 0; i < 6; ++i) {
    step(make_pair_batch(i), mean_squared_error(alone));
    with_step(make_pair_batch(i), mean_squared_error(with));
    if (i % 2 == 1) with->forward(generator(make_pair_batch(9).first)).mean().backward();
  }
  CHECK(same_bits(alone->parameters(), with->parameters()));
}

namespace {

template <class Optimizer>
void stepping_twice(Optimizer optimizer, std::shared_ptr<small_module> const& model) {
  keel::step<keel::recipe<keel::clip::global_norm<1.0>>> step{model, optimizer};
  step(make_pair_batch(0), mean_squared_error(model));
  step(make_pair_batch(1), mean_squared_error(model));
  optimizer.step();
  CHECK(message_of([&] { step(make_pair_batch(2), mean_squared_error(model)); }, "E19").find("applied twice") != std::string::npos);
}

}  // namespace

TEST_CASE("optimizer.step() after an update that the step has applied is named by the next call") {
  auto const run = [](auto make) {
    auto const model = make_small();
    stepping_twice(make(model->parameters()), model);
  };
  using parameters = std::vector<at::Tensor> const&;
  run([](parameters p) { return torch::optim::SGD(p, 0.05); });
  run([](parameters p) { return torch::optim::SGD(p, torch::optim::SGDOptions(0.05).momentum(0.9).weight_decay(0.1)); });
  run([](parameters p) { return torch::optim::SGD(p, torch::optim::SGDOptions(0.05).momentum(0.9).nesterov(true)); });
  run([](parameters p) { return torch::optim::AdamW(p, 0.05); });
  run([](parameters p) { return torch::optim::Adam(p, 0.05); });
  run([](parameters p) { return torch::optim::RMSprop(p, 0.05); });
  run([](parameters p) { return keel::adamw(p, 0.05); });
  run([](parameters p) { return keel::sgd(p, torch::optim::SGDOptions(0.05)); });
}

TEST_CASE("what the program may do between updates is not taken for a second step") {
  auto const model = make_small();
  torch::optim::SGD optimizer(model->parameters(), 0.05);
  keel::step<plain> step{model, optimizer};
  auto const updates = [&](auto const& between) {
    for (std::uint64_t i = 0; i < 5; ++i) {
      CHECK(step(make_pair_batch(i), mean_squared_error(model)).is<keel::result::updated>());
      at::NoGradGuard no_grad;
      between();
    }
  };
  updates([&] {
    for (at::Tensor const& one : model->parameters()) one.clamp_(-0.3, 0.3);
  });
  updates([&] { optimizer.zero_grad(); });
  updates([&] { torch::nn::utils::clip_grad_norm_(model->parameters(), 0.1); });
  updates([&] {
    for (at::Tensor const& one : model->parameters()) one.mul_(0.999);
  });
  // A phase of the program's own, with the same optimizer.
  updates([&] {
    at::AutoGradMode with_gradients(true);
    optimizer.zero_grad();
    mean_squared_error(model)(make_pair_batch(7)).backward();
    optimizer.step();
  });
}

TEST_CASE("a parameter group that is added after the step was built is E11 at the next update, and a NaN never reaches it") {
  auto const model = make_small();
  std::vector<at::Tensor> const first = model->first->parameters();
  for (at::Tensor const& one : model->second->parameters()) one.requires_grad_(false);
  torch::optim::SGD optimizer(first, torch::optim::SGDOptions(0.1));
  keel::step<plain> step{model, optimizer};
  step(make_pair_batch(0), mean_squared_error(model));
  for (at::Tensor const& one : model->second->parameters()) one.requires_grad_(true);
  optimizer.add_param_group(torch::optim::OptimizerParamGroup(model->second->parameters()));
  auto const before = copies_of(model->parameters());
  auto const words = message_of<keel::error>([&] { step(make_pair_batch(1), mean_squared_error(model)); }, "E11");
  CHECK(words.find("had 2 parameters and now has 4") != std::string::npos);
  CHECK(same_bits(copies_of(model->parameters()), before));
  // Built anew, all of them train.
  keel::step<plain> anew{model, optimizer};
  CHECK(anew(make_pair_batch(1), mean_squared_error(model)).is<keel::result::updated>());
}

TEST_CASE("a loss that reaches no parameter of the optimizer is an error, with one micro-batch and with two") {
  auto const model = make_small(1);
  auto const other = make_small(2);
  torch::optim::SGD optimizer(model->parameters(), 0.1);
  keel::step<plain> step{model, optimizer};
  auto const words = message_of<keel::data_error>([&] { step(make_pair_batch(0), mean_squared_error(other)); }, "E07");
  CHECK(words.find("any parameter of the optimizer") != std::string::npos);
  // One that reaches some of them trains those.
  auto const part = [&](pair_batch const& b) { return model->second(at::tanh(model->first(b.first)).detach()).square().mean(); };
  CHECK(step(make_pair_batch(0), part).is<keel::result::updated>());
  CHECK(step.updates() == 1);
}

namespace {

/// Its two layers share one weight, registered under both names.
struct tied_module : torch::nn::Module {
  tied_module() : in(register_module("in", torch::nn::Linear(6, 6))), bias(register_parameter("bias", at::zeros({6}))) {
    out = register_parameter("out", in->weight);
  }
  at::Tensor forward(at::Tensor const& x) { return at::linear(at::tanh(in(x)), out, bias); }
  torch::nn::Linear in;
  at::Tensor bias, out;
};

template <class Optimizer>
std::vector<at::Tensor> train_tied(bool each_once) {
  at::manual_seed(4);
  tied_module model;
  std::vector<at::Tensor> parameters = model.parameters();
  if (each_once) parameters = {model.in->weight, model.in->bias, model.bias};
  auto optimizer = make_optimizer<Optimizer>(parameters);
  keel::step<keel::recipe<keel::clip::global_norm<0.5>>> step{model, optimizer};
  for (std::uint64_t i = 0; i < 5; ++i)
    step(make_pair_batch(i), [&](pair_batch const& b) { return (model.forward(b.first) - b.second).square().mean(); });
  return {model.in->weight.detach(), model.in->bias.detach(), model.bias.detach()};
}

}  // namespace

TEST_CASE("weights tied by registering one tensor twice train from exactly model->parameters(), and count once") {
  CHECK(same_bits(train_tied<torch::optim::SGD>(false), train_tied<torch::optim::SGD>(true)));
  CHECK(same_bits(train_tied<torch::optim::AdamW>(false), train_tied<torch::optim::AdamW>(true)));
  CHECK(same_bits(train_tied<keel::adamw>(false), train_tied<keel::adamw>(true)));
  CHECK(same_bits(train_tied<keel::sgd>(false), train_tied<keel::sgd>(true)));
  // In two groups, of which one would have to win, it is an error.
  tied_module model;
  std::vector<torch::optim::OptimizerParamGroup> groups;
  groups.emplace_back(std::vector<at::Tensor>{model.in->weight, model.in->bias});
  groups.emplace_back(std::vector<at::Tensor>{model.out, model.bias});
  torch::optim::SGD optimizer(groups, torch::optim::SGDOptions(0.1));
  message_of<keel::error>([&] { keel::step<plain>{model, optimizer}; }, "E11");
}

TEST_CASE("a keel optimizer alone updates a parameter once that its group holds twice") {
  auto const run = [](bool twice) {
    at::Tensor const weight = at::linspace(-1.0, 1.0, 100'000).requires_grad_();
    keel::adamw optimizer(twice ? std::vector<at::Tensor>{weight, weight} : std::vector<at::Tensor>{weight}, 0.1);
    for (int i = 0; i < 3; ++i) {
      optimizer.zero_grad();
      weight.square().sum().backward();
      optimizer.step();
    }
    return weight.detach();
  };
  CHECK(same_bits(run(true), run(false)));
}

TEST_CASE("sparse gradients of an embedding train, their rows that come twice count as their sum, and NaN in them is found") {
  struct model_of_words : torch::nn::Module {
    explicit model_of_words(bool sparse)
        : words(register_module("words", torch::nn::Embedding(torch::nn::EmbeddingOptions(20, 4).sparse(sparse)))) {}
    torch::nn::Embedding words;
  };
  struct clipped : keel::recipe<keel::accumulate<2>, keel::clip::global_norm<0.1>, keel::nonfinite::skip<3>> {};
  auto const train = [](bool sparse, std::vector<double>& norms) {
    at::manual_seed(5);
    model_of_words model(sparse);
    torch::optim::SGD optimizer(model.parameters(), torch::optim::SGDOptions(0.5));
    keel::step<clipped> step{model, optimizer};
    for (std::int64_t i = 0; i < 12; ++i) {
      at::Tensor const ids = at::arange(8).remainder(3) + i;
      auto const result = step(ids, [&](at::Tensor const& id) {
        at::Tensor const loss = model.words(id).square().sum();
        return i >= 4 && i < 6 ? (model.words(id) * NAN).nansum() * 1e30 + loss + at::sqrt(model.words(id).sum() * 0.0 - 0.0) : loss;
      });
      if (auto const* const updated = result.get_if<keel::result::updated>()) norms.push_back(updated->gradient_norm);
    }
    return std::pair(copies_of(model.parameters()), step.skipped());
  };
  std::vector<double> sparse_norms, dense_norms;
  auto const [sparse, sparse_skipped] = train(true, sparse_norms);
  auto const [dense, dense_skipped] = train(false, dense_norms);
  REQUIRE(sparse_norms.size() == dense_norms.size());
  for (std::size_t i = 0; i < dense_norms.size(); ++i) CHECK(sparse_norms[i] == Approx(dense_norms[i]).epsilon(1e-6));
  CHECK(sparse_skipped == dense_skipped);
  CHECK(dense_skipped == 1);
  CHECK(at::allclose(sparse[0], dense[0], 1e-5, 1e-7));

  // Where somebody would have to look at every element, the words are keel's.
  model_of_words model(true);
  auto const loss = [&](at::Tensor const& id) { return model.words(id).square().sum(); };
  torch::optim::SGD sgd(model.parameters(), torch::optim::SGDOptions(0.5));
  keel::step<keel::recipe<keel::clip::value<0.1>>> by_value{model, sgd};
  message_of<keel::error>([&] { by_value(at::arange(4), loss); }, "E11");
  keel::adamw adamw(model.parameters(), 0.1);
  keel::step<plain> by_engine{model, adamw};
  message_of<keel::error>([&] { by_engine(at::arange(4), loss); }, "E11");
}

TEST_CASE("clip_grad_norm_ of sparse gradients is that of the dense ones") {
  auto const clipped = [](bool sparse) {
    at::Tensor const weight = at::ones({6, 3}).requires_grad_();
    at::embedding(weight, at::tensor({1, 1, 4}, at::kLong), -1, false, sparse).sum().backward();
    std::vector<at::Tensor> const parameters = {weight};
    double const norm = keel::clip_grad_norm_(parameters, 1.0);
    return std::pair(norm, sparse ? weight.grad().to_dense() : weight.grad());
  };
  CHECK(clipped(true).first == Approx(clipped(false).first));
  CHECK(at::allclose(clipped(true).second, clipped(false).second));
}

TEST_CASE("complex parameters are rejected by name when the step is built") {
  struct complex_module : torch::nn::Module {
    complex_module() { phase = register_parameter("phase", at::ones({3}, at::kComplexFloat)); }
    at::Tensor phase;
  } model;
  torch::optim::SGD optimizer(model.parameters(), torch::optim::SGDOptions(0.1));
  CHECK(message_of<keel::error>([&] { keel::step<plain>{model, optimizer}; }, "E11").find("phase is complex") != std::string::npos);
}

TEST_CASE("a hook that writes to a gradient is named, and the update is dropped") {
  auto const model = make_small();
  torch::optim::SGD optimizer(model->parameters(), 0.1);
  keel::trainer<plain> run{model, optimizer, quiet({.updates = 1})};
  run.on([](keel::event::gradients_ready const& e) { e.parameters[0].mutable_grad().mul_(0.5); });
  auto const before = copies_of(model->parameters());
  message_of([&] { run.fit(std::vector<pair_batch>{make_pair_batch(0)}, mean_squared_error(model)); }, "E19");
  CHECK(same_bits(copies_of(model->parameters()), before));
}

namespace {

/// The parameters after some clipped, accumulated updates in a narrow dtype, with what `listen(run)` adds.
template <class Recipe, class Environment, class Listen>
std::vector<at::Tensor> parameters_with(Listen const& listen, at::ScalarType type) {
  auto const model = make_small();
  model->to(type);
  keel::adamw optimizer(model->parameters(), 0.01);
  keel::trainer<Recipe, Environment> run{model, optimizer, quiet({.updates = 10})};
  listen(run);
  auto const batches = [](std::int64_t) {
    std::vector<pair_batch> all;
    for (std::uint64_t i = 0; i < 30; ++i) all.push_back(make_pair_batch(i, 5));
    return all;
  };
  run.fit(batches, [&](pair_batch const& b) { return (model->forward(b.first.to(type)) - b.second.to(type)).square().mean(); });
  return copies_of(model->parameters());
}

template <class Environment>
void hooks_change_nothing(at::ScalarType type) {
  struct recipe : keel::recipe<keel::accumulate<3>, keel::clip::global_norm<0.05>, keel::accept<"P06">> {};
  auto const alone = parameters_with<recipe, Environment>([](auto&) {}, type);
  int heard = 0;
  auto const looked = parameters_with<recipe, Environment>(
      [&](auto& run) {
        run.on([&](keel::event::gradients_ready const& e) {
          double squares = 0.0;
          for (at::Tensor const& one : e.parameters) squares += one.grad().to(at::kDouble).square().sum().item<double>();
          // Unscaled, and before the clip.
          CHECK(std::sqrt(squares) == Approx(e.norm).epsilon(type == at::kFloat ? 1e-5 : 2e-2));
          ++heard;
        });
      },
      type);
  CHECK(heard == 10);
  CHECK(same_bits(looked, alone));
  std::vector<double> losses;
  auto const listened = parameters_with<recipe, Environment>(
      [&](auto& run) { run.on([&](keel::event::micro_batch_end const& e) { losses.push_back(e.loss); }); }, type);
  CHECK(losses.size() == 30);
  for (double const loss : losses) CHECK(std::isfinite(loss));
  CHECK(same_bits(listened, alone));
}

}  // namespace

TEST_CASE("a hook that only listens to micro_batch_end or gradients_ready changes no bit, on the host and on a device") {
  hooks_change_nothing<keel::environment>(at::kFloat);
  hooks_change_nothing<keel::environment>(at::kBFloat16);
  hooks_change_nothing<on_a_device>(at::kFloat);
  hooks_change_nothing<on_a_device>(at::kBFloat16);
}

TEST_CASE("a hook of update_end may change parameters, also where it is called late, inside the next update") {
  struct recipe : keel::recipe<keel::accumulate<2>> {};
  auto const clamped = [](auto* environment) {
    auto const model = make_small();
    keel::adamw optimizer(model->parameters(), 0.05);
    keel::trainer<recipe, std::remove_pointer_t<decltype(environment)>> run{model, optimizer, quiet({.updates = 5})};
    int ended = 0;
    run.on([&](keel::event::update_end const&) {
      at::NoGradGuard no_grad;
      for (at::Tensor const& one : model->parameters()) one.clamp_(-0.2, 0.2);
      ++ended;
    });
    std::vector<pair_batch> batches;
    for (std::uint64_t i = 0; i < 10; ++i) batches.push_back(make_pair_batch(i));
    CHECK(run.fit(batches, mean_squared_error(model)).template is<keel::result::finished>());
    CHECK(ended == 5);
    for (at::Tensor const& one : model->parameters()) CHECK(one.abs().max().template item<double>() <= 0.2 + 1e-6);
  };
  clamped(static_cast<keel::environment*>(nullptr));
  clamped(static_cast<on_a_device*>(nullptr));
}

TEST_CASE("what leaves every value as it is between micro-batches is no interference: averaged weights, a clamp that holds already") {
  struct averaging : keel::recipe<keel::accumulate<4>, keel::ema<0.9>> {};
  auto const model = make_small();
  keel::adamw optimizer(model->parameters(), 0.01);
  keel::trainer<averaging> run{model, optimizer, quiet({.epochs = 2})};
  std::vector<pair_batch> batches;
  for (std::uint64_t i = 0; i < 10; ++i) batches.push_back(make_pair_batch(i));
  int evaluated = 0;
  // Ten batches are two and a half updates.
  run.on([&](keel::event::epoch_end const&) {
    auto const scope = run.averaged();
    run.evaluate(batches, mean_squared_error(model));
    ++evaluated;
  });
  CHECK(run.fit(batches, mean_squared_error(model)).is<keel::result::finished>());
  CHECK(evaluated == 2);

  auto const other = make_small();
  torch::optim::SGD sgd(other->parameters(), 0.01);
  keel::step<two> step{other, sgd};
  auto const clamp = [&] {
    at::NoGradGuard no_grad;
    for (at::Tensor const& one : other->parameters()) one.clamp_(-0.3, 0.3);
  };
  clamp();
  for (std::uint64_t i = 0; i < 8; ++i) {
    step(make_pair_batch(i), mean_squared_error(other));
    clamp();
  }
  CHECK(step.updates() == 4);
}
