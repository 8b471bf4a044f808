#include <cmath>
#include <limits>

#include "../support.hpp"

using namespace keel_test;
using namespace keel::literals;

namespace {

struct plain : keel::recipe<> {};
struct skipping : keel::recipe<keel::nonfinite::skip<3>, keel::clip::global_norm<1.0>,
                               keel::schedule::linear<keel::schedule::total<100_steps>>> {};
struct accumulating : keel::recipe<keel::accumulate<4>> {};

/// Claims fp16 kernels and computes in fp32, so that loss scaling can be tried on any machine.
struct scaled_in_fp32 : keel::step_environment {
  bool computes_in_half(at::DeviceType) const override { return true; }
  bool computes_in_bfloat16(at::DeviceType) const override { return true; }
  keel::precision::kind autocast(keel::precision::kind) const override { return keel::precision::kind::fp32; }
};
struct scaling : keel::recipe<keel::precision::fp16, keel::loss_scale::dynamic<keel::loss_scale::initial<1024.0>>> {};

}  // namespace

TEST_CASE("with every policy at none a step has the bits of the loop that one would write by hand") {
  auto const mine = make_small();
  auto const theirs = make_small();
  torch::optim::AdamW my_optimizer(mine->parameters(), 0.01);
  torch::optim::AdamW their_optimizer(theirs->parameters(), 0.01);
  keel::step<plain> step{mine, my_optimizer};
  for (std::uint64_t i = 0; i < 20; ++i) {
    auto const batch = make_pair_batch(i);
    auto const outcome = step(batch, mean_squared_error(mine));
    for (auto const& parameter : theirs->parameters()) parameter.mutable_grad() = at::Tensor();
    at::Tensor const loss = mean_squared_error(theirs)(batch);
    loss.backward();
    their_optimizer.step();
    REQUIRE(outcome.is<keel::result::updated>());
    REQUIRE(outcome.get<keel::result::updated>().loss == loss.item<double>());
  }
  CHECK(same_bits(mine->parameters(), theirs->parameters()));
}

TEST_CASE("nonfinite_in_a_batch_changes_no_bit: parameters, moments, schedule and the outcome that says why") {
  auto const model = make_small();
  torch::optim::AdamW optimizer(model->parameters(), 0.01);
  keel::step<skipping> step{model, optimizer};
  for (std::uint64_t i = 0; i < 5; ++i) step(make_pair_batch(i), mean_squared_error(model));

  for (float const bad : {std::nanf(""), INFINITY, -INFINITY}) {
    auto const parameters = copies_of(model->parameters());
    auto const image = image_of(*model, optimizer);
    double const rate = step.learning_rate();
    auto const updates = step.updates();
    auto batch = make_pair_batch(99);
    batch.first[3][2] = bad;
    batch.second[3] = bad;
    auto const outcome = step(batch, mean_squared_error(model));
    REQUIRE(outcome.is<keel::result::skipped>());
    CHECK(outcome.get<keel::result::skipped>().why == keel::reason::nonfinite_loss);
    CHECK(same_bits(model->parameters(), parameters));
    CHECK(same_bits(image_of(*model, optimizer), image));
    CHECK(step.learning_rate() == rate);
    CHECK(step.updates() == updates);
    step(make_pair_batch(100), mean_squared_error(model));
  }
}

TEST_CASE("a finite loss with a non-finite gradient is skipped too, and the parameter is named") {
  for (std::string const name : {"first.weight", "first.bias", "second.weight", "second.bias"}) {
    for (float const bad : {std::nanf(""), INFINITY, -INFINITY}) {
      auto const model = make_small();
      torch::optim::AdamW optimizer(model->parameters(), 0.01);
      keel::step<skipping> step{model, optimizer};
      step(make_pair_batch(1), mean_squared_error(model));
      auto const parameters = copies_of(model->parameters());
      auto const image = image_of(*model, optimizer);
      // A hook that poisons one gradient element stands for an operator whose backward pass overflows.
      auto const handle = model->named_parameters()[name].register_hook([&](at::Tensor const& gradient) {
        at::Tensor poisoned = gradient.clone();
        poisoned.view({-1})[0] = bad;
        return poisoned;
      });
      auto const outcome = step(make_pair_batch(2), mean_squared_error(model));
      model->named_parameters()[name].remove_hook(handle);
      REQUIRE(outcome.is<keel::result::skipped>());
      CHECK(outcome.get<keel::result::skipped>().why == keel::reason::nonfinite_gradient);
      CHECK(outcome.get<keel::result::skipped>().where == name);
      CHECK(same_bits(model->parameters(), parameters));
      CHECK(same_bits(image_of(*model, optimizer), image));
    }
  }
}

TEST_CASE("schedule_advances_by_applied_updates_only, whatever is skipped") {
  auto const model = make_small();
  torch::optim::SGD optimizer(model->parameters(), 1e-3);
  keel::step<skipping> step{model, optimizer};
  std::mt19937_64 engine(5);
  std::int64_t applied = 0;
  int in_a_row = 0;
  for (std::uint64_t i = 0; i < 60; ++i) {
    bool const bad = engine() % 3 == 0 && in_a_row < 2;
    in_a_row = bad ? in_a_row + 1 : 0;
    step(make_pair_batch(i), [&](pair_batch const& batch) {
      at::Tensor const loss = mean_squared_error(model)(batch);
      return bad ? loss * NAN : loss;
    });
    applied += bad ? 0 : 1;
    REQUIRE(step.updates() == applied);
    REQUIRE(step.learning_rate() == Approx(1e-3 * (1.0 - static_cast<double>(applied) / 100.0)));
  }
  CHECK(step.skipped() == 60 - applied);
}

TEST_CASE("skip<3> bears two in a row, ends at the third, and a good update starts the count again") {
  auto const model = make_small();
  torch::optim::SGD optimizer(model->parameters(), 1e-3);
  keel::step<skipping> step{model, optimizer};
  auto const good = mean_squared_error(model);
  auto const bad = [&](pair_batch const& batch) { return good(batch) * NAN; };
  step(make_pair_batch(1), bad);
  step(make_pair_batch(1), bad);
  step(make_pair_batch(1), good);
  step(make_pair_batch(1), bad);
  step(make_pair_batch(1), bad);
  auto const parameters = copies_of(model->parameters());
  try {
    step(make_pair_batch(1), bad);
    FAIL("the third in a row was borne");
  } catch (keel::nonfinite_error const& thrown) {
    CHECK(thrown.id() == "E08");
    CHECK(std::string(thrown.what()).find(", 3 in a row") != std::string::npos);
  }
  CHECK(same_bits(model->parameters(), parameters));
}

TEST_CASE("raise ends at the first non-finite loss, with the parameters as they were") {
  auto const model = make_small();
  torch::optim::SGD optimizer(model->parameters(), 1e-3);
  keel::step<plain> step{model, optimizer};
  auto const parameters = copies_of(model->parameters());
  auto const good = mean_squared_error(model);
  CHECK_THROWS_AS(step(make_pair_batch(1), [&](pair_batch const& batch) { return good(batch) * NAN; }), keel::nonfinite_error);
  CHECK(same_bits(model->parameters(), parameters));
  CHECK(step(make_pair_batch(2), good).is<keel::result::updated>());
}

TEST_CASE("four ragged micro-batches update as their rows in one batch would") {
  auto const whole = make_small();
  auto const pieces = make_small();
  whole->to(at::kDouble);
  pieces->to(at::kDouble);
  torch::optim::SGD optimizer_of_whole(whole->parameters(), 0.1);
  torch::optim::SGD optimizer_of_pieces(pieces->parameters(), 0.1);
  keel::step<plain> step_whole{whole, optimizer_of_whole};
  keel::step<accumulating> step_pieces{pieces, optimizer_of_pieces};
  auto const loss_of = [](std::shared_ptr<small_module> const& model) {
    return [model](at::Tensor const& x) { return at::mse_loss(model->forward(x), x.sum(1, true)); };
  };
  at::manual_seed(9);
  for (int update = 0; update < 5; ++update) {
    at::Tensor const all = at::randn({10, 6}, at::kDouble);
    step_whole(all, loss_of(whole));
    std::int64_t begin = 0;
    for (std::int64_t const rows : {1, 2, 3, 4}) {
      auto const outcome = step_pieces(all.slice(0, begin, begin + rows), loss_of(pieces));
      begin += rows;
      REQUIRE(outcome.is<keel::result::updated>() == (begin == 10));
    }
  }
  for (std::size_t i = 0; i < whole->parameters().size(); ++i) {
    CHECK(at::allclose(whole->parameters()[i], pieces->parameters()[i], 1e-10, 1e-12));
  }
}

TEST_CASE("a loss may bring its own weight, such as a number of unmasked tokens") {
  auto const model = make_small();
  torch::optim::SGD optimizer(model->parameters(), 0.1);
  keel::step<accumulating> step{model, optimizer};
  double weight = 1.0;
  keel::step_outcome last = keel::result::accumulated{0, 0};
  double expected = 0.0;
  for (std::uint64_t i = 0; i < 4; ++i, weight *= 3.0) {
    last = step(make_pair_batch(i), [&](pair_batch const& batch) {
      at::Tensor const mean = mean_squared_error(model)(batch);
      expected += mean.item<double>() * weight;
      return keel::weighted_loss{mean, weight};
    });
  }
  CHECK(last.get<keel::result::updated>().loss == Approx(expected / 40.0));
}

TEST_CASE("a window that the data's end leaves incomplete is applied by flush, weighted by what it holds") {
  auto const flushed = make_small();
  auto const reference = make_small();
  torch::optim::SGD a(flushed->parameters(), 0.1);
  torch::optim::SGD b(reference->parameters(), 0.1);
  keel::step<accumulating> step{flushed, a};
  CHECK_FALSE(step.flush().has_value());
  step(make_pair_batch(1), mean_squared_error(flushed));
  REQUIRE(step.flush()->is<keel::result::updated>());
  keel::step<plain> one{reference, b};
  one(make_pair_batch(1), mean_squared_error(reference));
  CHECK(same_bits(flushed->parameters(), reference->parameters()));
}

TEST_CASE("an overflow of the loss scale is skipped, backs the scale off, and is not a non-finite event") {
  auto const model = make_small();
  torch::optim::SGD optimizer(model->parameters(), 0.1);
  keel::step<scaling, scaled_in_fp32> step{model, optimizer};
  auto const parameters = copies_of(model->parameters());
  auto const handle = model->first->weight.register_hook([](at::Tensor const& gradient) { return gradient * INFINITY; });
  auto const outcome = step(make_pair_batch(1), mean_squared_error(model));
  model->first->weight.remove_hook(handle);
  CHECK(outcome.get<keel::result::skipped>().why == keel::reason::scale_overflow);
  CHECK(step.loss_scale() == 512.0);
  CHECK(same_bits(model->parameters(), parameters));

  auto const reference = make_small();
  torch::optim::SGD unscaled(reference->parameters(), 0.1);
  keel::step<plain> plain_step{reference, unscaled};
  step(make_pair_batch(2), mean_squared_error(model));
  plain_step(make_pair_batch(2), mean_squared_error(reference));
  // A power of two scales without rounding.
  CHECK(same_bits(model->parameters(), reference->parameters()));
}

TEST_CASE("bf16 computes in bf16 under the loss and leaves parameters and gradients in fp32") {
  struct half : keel::recipe<keel::precision::bf16> {};
  auto const model = make_small();
  torch::optim::SGD optimizer(model->parameters(), 0.1);
  keel::step<half> step{model, optimizer};
  auto seen = at::kFloat;
  step(make_pair_batch(1), [&](pair_batch const& batch) {
    at::Tensor const y = model->first(batch.first);
    seen = y.scalar_type();
    return at::mse_loss(model->second(y).to(at::kFloat), batch.second);
  });
  CHECK(seen == at::kBFloat16);
  CHECK(model->first->weight.scalar_type() == at::kFloat);
  CHECK_FALSE(keel::libtorch::get_autocast(at::kCPU).enabled);
  step(make_pair_batch(1), [&](pair_batch const& batch) {
    CHECK(keel::libtorch::get_autocast(at::kCPU).enabled);
    return at::mse_loss(model->second(model->first(batch.first)).to(at::kFloat), batch.second);
  });
}

TEST_CASE("fp16 or bf16 on a device without its kernels is rejected at construction by rules P14 and P15") {
  struct without_half : keel::step_environment {
    bool computes_in_half(at::DeviceType) const override { return false; }
    bool computes_in_bfloat16(at::DeviceType) const override { return false; }
    keel::precision::kind autocast(keel::precision::kind) const override { return keel::precision::kind::fp32; }
  };
  auto const model = make_small();
  torch::optim::SGD optimizer(model->parameters(), 0.1);
  try {
    keel::step<scaling, without_half> step{model, optimizer};
    FAIL("fp16 was accepted");
  } catch (keel::recipe_error const& thrown) {
    CHECK(thrown.id() == "P14");
    CHECK(std::string(thrown.what()).rfind("[P14] this device", 0) == 0);
  }
  struct narrow : keel::recipe<keel::precision::bf16> {};
  try {
    keel::step<narrow, without_half> step{model, optimizer};
    FAIL("bf16 without kernels was accepted");
  } catch (keel::recipe_error const& thrown) {
    CHECK(thrown.id() == "P15");
  }
}

TEST_CASE("a schedule that needs the run's length is rejected by rule L04 if nothing says it") {
  struct endless : keel::recipe<keel::schedule::cosine<>> {};
  auto const model = make_small();
  torch::optim::SGD optimizer(model->parameters(), 0.1);
  try {
    keel::step<endless> step{model, optimizer};
    FAIL("a cosine without an end was accepted");
  } catch (keel::recipe_error const& thrown) {
    CHECK(thrown.id() == "L04");
  }
  keel::step<endless> step{model, optimizer, 10};
  CHECK(step.learning_rate() == Approx(0.1));
}

TEST_CASE("every bad batch and loss is an error that names it, and costs nothing") {
  auto const model = make_small();
  torch::optim::SGD optimizer(model->parameters(), 0.1);
  keel::step<plain> step{model, optimizer};
  auto const parameters = copies_of(model->parameters());
  auto const good = mean_squared_error(model);
  auto const id_of = [&](pair_batch const& batch, auto loss_of) {
    try {
      step(batch, loss_of);
    } catch (keel::data_error const& thrown) {
      return thrown.id();
    }
    return std::string("none");
  };
  CHECK(id_of(make_pair_batch(1, 0), good) == "E06");
  CHECK(id_of(make_pair_batch(1), [](pair_batch const& b) { return b.first; }) == "E07");
  CHECK(id_of(make_pair_batch(1), [](pair_batch const&) { return at::Tensor(); }) == "E07");
  CHECK(id_of(make_pair_batch(1), [&](pair_batch const& b) { return good(b).detach(); }) == "E07");
  CHECK(id_of(make_pair_batch(1), [&](pair_batch const& b) { return keel::weighted_loss{good(b), -1.0}; }) == "E07");
  CHECK_THROWS_AS(keel::require_token_range(at::tensor({0, 4, 5}), 5), keel::data_error);
  CHECK_NOTHROW(keel::require_token_range(at::tensor({0, 4}), 5));
  CHECK(same_bits(model->parameters(), parameters));
  CHECK(step(make_pair_batch(1), good).is<keel::result::updated>());
}

TEST_CASE("a batch larger than the recipe declares is rejected by rule B01") {
  struct declared : keel::recipe<keel::accumulate<2, keel::micro_batch<8>, keel::global_batch<16>>> {};
  auto const model = make_small();
  torch::optim::SGD optimizer(model->parameters(), 0.1);
  keel::step<declared> step{model, optimizer};
  CHECK_NOTHROW(step(make_pair_batch(1, 8), mean_squared_error(model)));
  try {
    step(make_pair_batch(1, 9), mean_squared_error(model));
    FAIL("nine rows were taken for eight");
  } catch (keel::data_error const& thrown) {
    CHECK(thrown.id() == "B01");
  }
}

TEST_CASE("an exception from the loss drops the window and leaves the step usable") {
  auto const model = make_small();
  torch::optim::SGD optimizer(model->parameters(), 0.1);
  keel::step<accumulating> step{model, optimizer};
  auto const parameters = copies_of(model->parameters());
  step(make_pair_batch(1), mean_squared_error(model));
  CHECK_THROWS_AS(step(make_pair_batch(1), [](pair_batch const&) -> at::Tensor { throw std::runtime_error("the user's own"); }),
                  std::runtime_error);
  CHECK(step.at_boundary());
  CHECK(same_bits(model->parameters(), parameters));
  for (auto const& parameter : model->parameters()) CHECK_FALSE(parameter.grad().defined());
}

TEST_CASE("an optimizer that does not fit the model is rejected before the first batch") {
  auto const model = make_small();
  auto const other = make_small();
  auto const refused = [&](torch::optim::Optimizer& optimizer) {
    try {
      keel::step<plain> step{model, optimizer};
    } catch (keel::error const& thrown) {
      return thrown.id() == "E11";
    }
    return false;
  };
  torch::optim::SGD of_another(other->parameters(), 0.1);
  CHECK(refused(of_another));
  torch::optim::SGD partial(model->first->parameters(), 0.1);
  CHECK(refused(partial));
  model->second->weight.requires_grad_(false);
  model->second->bias.requires_grad_(false);
  CHECK_FALSE(refused(partial));
}

namespace {

struct halving_clip : keel::fills<keel::slot::clip> {
  static constexpr keel::clip::settings configured{.kind = keel::clip::kind::custom, .limit = 0.5};
  struct state {
    std::int64_t calls = 0;
    void visit(auto& archive) { archive("calls", calls); }
  };
  static void clip(std::span<at::Tensor const> gradients, double /*norm*/, state& of) {
    ++of.calls;
    for (at::Tensor const& one : gradients) {
      if (one.defined()) one.mul_(0.5);
    }
  }
};
struct every_other : keel::fills<keel::slot::schedule> {
  static constexpr keel::schedule::settings configured{.kind = keel::schedule::kind::custom};
  static double factor(std::int64_t update, std::int64_t /*total*/) { return update % 2 == 0 ? 1.0 : 0.25; }
};
struct own_policies : keel::recipe<halving_clip, every_other> {};

}  // namespace

TEST_CASE("a user's own clip and schedule are policies like keel's, and the state of the clip is saved") {
  auto const model = make_small();
  torch::optim::SGD optimizer(model->parameters(), 1.0);
  keel::step<own_policies> step{model, optimizer};
  CHECK(step.learning_rate() == 1.0);
  step(make_pair_batch(1), mean_squared_error(model));
  CHECK(step.learning_rate() == 0.25);

  nlohmann::json saved;
  keel::tensor_map tensors;
  keel::state_writer writer(saved, tensors);
  step.visit(writer);
  CHECK(saved["clip"]["calls"] == 1);
}

TEST_CASE("nonfinite_in_a_batch leaves batch norm's running statistics as they were") {
  torch::nn::Sequential model(torch::nn::Linear(6, 4), torch::nn::BatchNorm1d(4), torch::nn::Linear(4, 1));
  torch::optim::SGD optimizer(model->parameters(), 0.1);
  keel::step<skipping> step{model, optimizer};
  auto const loss_of = [&](pair_batch const& batch) { return at::mse_loss(model->forward(batch.first), batch.second); };
  step(make_pair_batch(1), loss_of);
  auto const buffers = copies_of(model->buffers());
  auto batch = make_pair_batch(2);
  batch.first[0][0] = NAN;
  CHECK(step(batch, loss_of).is<keel::result::skipped>());
  CHECK(same_bits(model->buffers(), buffers));
}

TEST_CASE("the first full window must hold the global batch that the recipe declares") {
  struct declared : keel::recipe<keel::accumulate<2, keel::global_batch<16>>> {};
  auto const model = make_small();
  torch::optim::SGD optimizer(model->parameters(), 0.1);
  keel::step<declared> step{model, optimizer};
  step(make_pair_batch(1, 8), mean_squared_error(model));
  CHECK(step(make_pair_batch(1, 8), mean_squared_error(model)).is<keel::result::updated>());
  keel::step<declared> halved{model, optimizer};
  halved(make_pair_batch(1, 4), mean_squared_error(model));
  CHECK_THROWS_AS(halved(make_pair_batch(1, 4), mean_squared_error(model)), keel::data_error);
}

TEST_CASE("building a step leaves the optimizer's learning rate alone until the first update") {
  struct warming : keel::recipe<keel::schedule::constant_with<keel::schedule::warmup<10_steps>>> {};
  auto const model = make_small();
  torch::optim::SGD optimizer(model->parameters(), 0.1);
  { keel::step<warming> never_used{model, optimizer}; }
  CHECK(optimizer.param_groups()[0].options().get_lr() == 0.1);
  keel::step<warming> step{model, optimizer};
  step(make_pair_batch(1), mean_squared_error(model));
  CHECK(optimizer.param_groups()[0].options().get_lr() == Approx(0.01));
}

namespace {

std::shared_ptr<small_module>& model_of_function() {
  static std::shared_ptr<small_module> model;
  return model;
}
at::Tensor loss_of_function(pair_batch const& batch) { return at::mse_loss(model_of_function()->forward(batch.first), batch.second); }

}  // namespace

TEST_CASE("a plain function is a loss function, also of an update that may run again") {
  struct laddered : keel::recipe<keel::accumulate<2>, keel::oom::ladder<keel::oom::halve_micro_batch, keel::oom::give_up>> {};
  model_of_function() = make_small();
  keel::adamw optimizer(model_of_function()->parameters(), 0.01);
  keel::step<laddered> step{model_of_function(), optimizer};
  CHECK(step(make_pair_batch(1), loss_of_function).is<keel::result::accumulated>());
  CHECK(step(make_pair_batch(2), loss_of_function).is<keel::result::updated>());
}

TEST_CASE("flush() with nothing accumulated leaves the gradients of the last update") {
  auto const model = make_small();
  torch::optim::SGD optimizer(model->parameters(), 0.1);
  keel::step<keel::recipe<>> step{model, optimizer};
  step(make_pair_batch(1), mean_squared_error(model));
  CHECK_FALSE(step.flush());
  CHECK(model->parameters()[0].grad().defined());
}
