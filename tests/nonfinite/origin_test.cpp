// Where a value that is not finite began: planted in every place from which one comes, found by the update that ran again.
#include <torch/csrc/autograd/anomaly_mode.h>

#include <cmath>
#include <functional>
#include <limits>
#include <memory>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <thread>
#include <type_traits>

#include "../starving.hpp"
#include "../support.hpp"

using namespace keel_test;
using namespace keel::literals;
using keel::nonfinite_origin;
using keel::nonfinite_place;

namespace {

constexpr float infinity = std::numeric_limits<float>::infinity();

/// An operation that goes wrong for the rows that are marked: of one number a row, 1 where all is well.
struct plant {
  char const* name;
  char const* operation;  ///< that the origin names
  bool is_backward;
  float good;
  float bad;
  std::function<at::Tensor(at::Tensor const&)> compute;
};

at::Tensor softmax_of_masked(at::Tensor const& t) {
  at::Tensor const scores = at::stack({t, t * 0.5, t * 0.25}, 1);
  return at::softmax(scores.masked_fill((t < 0.0).unsqueeze(1), -infinity), 1).select(1, 0);
}

std::vector<plant> const& plants() {
  static std::vector<plant> const all{
      {"logarithm of 0", "aten::log", false, 1.0F, 0.0F, [](auto const& t) { return at::log(t); }},
      {"logarithm of -1", "aten::log", false, 1.0F, -1.0F, [](auto const& t) { return at::log(t); }},
      {"root of -1", "aten::sqrt", false, 1.0F, -1.0F, [](auto const& t) { return at::sqrt(t); }},
      {"0 over 0", "aten::div", false, 1.0F, 0.0F, [](auto const& t) { return at::div(t, t); }},
      {"1 over 0", "aten::reciprocal", false, 1.0F, 0.0F, [](auto const& t) { return at::reciprocal(t); }},
      {"overflow of exp", "aten::exp", false, 1.0F, 1000.0F, [](auto const& t) { return at::exp(t); }},
      {"exp over its sum", "aten::exp", false, 1.0F, 1000.0F,
       [](auto const& t) { return at::div(at::exp(t), at::exp(t) + 1.0); }},
      {"arc cosine of 2", "aten::acos", false, 0.5F, 2.0F, [](auto const& t) { return at::acos(t); }},
      {"power of a negative base", "aten::pow", false, 1.0F, -1.0F, [](auto const& t) { return at::pow(t, 0.5); }},
      {"overflow of a product", "aten::mul", false, 1.0F, 1e30F, [](auto const& t) { return at::mul(t, t); }},
      {"log1p of -2", "aten::log1p", false, 0.5F, -2.0F, [](auto const& t) { return at::log1p(t); }},
      {"softmax of a masked row", "aten::softmax", false, 1.0F, -1.0F, softmax_of_masked},
      {"reciprocal root of 0", "aten::rsqrt", false, 1.0F, 0.0F, [](auto const& t) { return at::rsqrt(t); }},
      {"root of 0", "SqrtBackward0", true, 1.0F, 0.0F, [](auto const& t) { return at::sqrt(t); }},
      {"norm of 0", "SqrtBackward0", true, 1.0F, 0.0F, [](auto const& t) { return at::sqrt(t * t); }},
      {"power of 0", "PowBackward0", true, 1.0F, 0.0F, [](auto const& t) { return at::pow(t, 0.5); }},
      {"arc cosine of 1", "AcosBackward0", true, 0.5F, 1.0F, [](auto const& t) { return at::acos(t); }},
      {"arc sine of 1", "AsinBackward0", true, 0.5F, 1.0F, [](auto const& t) { return at::asin(t); }},
      {"logarithm that where leaves out", "LogBackward0", true, 1.0F, 0.0F,
       [](auto const& t) { return at::where(t > 0.0, at::log(t), at::zeros_like(t)); }},
      {"hyperbolic arc cosine of 1", "AcoshBackward0", true, 2.0F, 1.0F, [](auto const& t) { return at::acosh(t); }},
  };
  return all;
}

/// Three blocks that are units, and a place after them; the rows whose last input is 7 are marked.
struct planted_module : torch::nn::Module {
  planted_module() {
    for (int i = 0; i < 3; ++i) blocks.push_back(register_module("block" + std::to_string(i), torch::nn::Linear(6, 6)));
    head = register_module("head", torch::nn::Linear(6, 1));
  }
  at::Tensor planted(at::Tensor const& h, at::Tensor const& marks) const {
    at::Tensor const wide = h.to(at::kFloat);
    at::Tensor const t = at::where(marks, at::full({}, what->bad), at::full({}, what->good)) + wide.mean(1) * 0.0;
    return wide + what->compute(t).unsqueeze(1) * 1e-3;
  }
  at::Tensor forward(at::Tensor const& x) {
    at::Tensor const marks = x.select(1, 5) == 7.0;
    at::Tensor h = x;
    // Reentrant units want inputs with gradients, as those of an embedding.
    if (inputs_need_gradients) h = x.detach().requires_grad_();
    for (int i = 0; i < 3; ++i) {
      h = keel::unit(
          [this, i, marks](at::Tensor const& given) {
            at::Tensor out = at::tanh(blocks[static_cast<std::size_t>(i)](given));
            return what != nullptr && at == i ? planted(out, marks) : out;
          },
          h);
    }
    if (what != nullptr && at == 3) h = planted(h, marks);
    return head(h).to(at::kFloat);
  }
  std::vector<torch::nn::Linear> blocks;
  torch::nn::Linear head{nullptr};
  plant const* what = nullptr;
  int at = 0;
  bool inputs_need_gradients = false;
};

struct seen {
  std::optional<nonfinite_origin> origin;
  std::string sentence;
};

/// A step's observer.
struct take_origin : keel::step_observer {
  using step_observer::observe;
  void observe(keel::event::incident const& event) override { to->origin = event.traced.origin; }
  explicit take_origin(seen* place) : to(place) {}
  seen* to;
};

using keel::oom::give_up;
using keel::oom::halve_micro_batch;
using skips = keel::nonfinite::skip<100>;
struct plain : keel::recipe<skips> {};
struct accumulated : keel::recipe<skips, keel::accumulate<3>> {};
struct low_precision : keel::recipe<skips, keel::precision::bf16, keel::recompute::non_reentrant> {};
struct reentrant : keel::recipe<skips, keel::precision::bf16, keel::recompute::reentrant, keel::accumulate<2>> {};
struct on_a_ladder : keel::recipe<skips, keel::accumulate<2>, keel::oom::ladder<halve_micro_batch, give_up>> {};
struct everything : keel::recipe<skips, keel::precision::bf16, keel::recompute::non_reentrant, keel::accumulate<2>,
                                 keel::oom::ladder<halve_micro_batch, give_up>, keel::clip::global_norm<1.0>> {};

enum class fault_kind : unsigned char { operation, input, label, loss, state };

struct planted_fault {
  fault_kind what;
  plant const* operation;
  int at;  ///< block, or 3: after all of them
  std::int64_t micro_batch;
  std::vector<std::int64_t> rows;
};

constexpr std::int64_t rows_of_batch = 8;

/// One good update, then one with the fault; the origin that the step found.
template <class Recipe>
seen run_with(planted_fault const& fault, std::uint64_t seed) {
  keel::libtorch::seed_random(at::kCPU, seed);
  auto const model = std::make_shared<planted_module>();
  constexpr auto count = keel::config_of<Recipe>.accumulate.count;
  model->inputs_need_gradients = keel::config_of<Recipe>.recompute.kind == keel::recompute_kind::reentrant;
  torch::optim::AdamW optimizer(model->parameters(), 1e-3);
  seen found;
  take_origin observer(&found);
  keel::step<Recipe> step(*model, optimizer, 0, observer);
  bool spoil_loss = false;
  auto const loss_of = [&](pair_batch const& batch) {
    at::Tensor const predicted = model->forward(batch.first);
    at::Tensor loss = at::mse_loss(predicted, batch.second);
    if (spoil_loss) loss = loss + at::log(at::where(batch.first.select(1, 5) == 7.0, 0.0, 1.0) + predicted.mean() * 0.0).mean();
    return loss;
  };
  for (std::int64_t i = 0; i < count; ++i) {
    auto const outcome = step(make_pair_batch(seed * 100 + static_cast<std::uint64_t>(i)), loss_of);
    if (i + 1 == count) REQUIRE(outcome.updated());
  }
  if (fault.what == fault_kind::state) {
    auto& state = *optimizer.state().at(keel::libtorch::state_key(model->blocks[1]->weight));
    static_cast<torch::optim::AdamWParamState&>(state).exp_avg().view({-1})[3] = NAN;
    for (std::int64_t i = 0; i < count; ++i) step(make_pair_batch(seed * 100 + 40 + static_cast<std::uint64_t>(i)), loss_of);
  }
  model->what = fault.what == fault_kind::operation ? fault.operation : nullptr;
  model->at = fault.at;
  spoil_loss = fault.what == fault_kind::loss;
  auto const before = copies_of(model->parameters());
  for (std::int64_t i = 0; i < count; ++i) {
    auto batch = make_pair_batch(seed * 100 + 50 + static_cast<std::uint64_t>(i));
    if (i == fault.micro_batch) {
      for (std::int64_t const row : fault.rows) {
        if (fault.what == fault_kind::input) batch.first[row][2] = row % 2 == 0 ? NAN : infinity;
        if (fault.what == fault_kind::label) batch.second[row][0] = NAN;
        if (fault.what == fault_kind::operation || fault.what == fault_kind::loss) batch.first[row][5] = 7.0;
      }
    }
    auto const outcome = step(batch, loss_of);
    if (i + 1 < count) continue;
    auto const* const skipped = outcome.skipped();
    REQUIRE(skipped);
    found.sentence = skipped->origin;
  }
  CHECK(same_bits(before, copies_of(model->parameters())));
  for (at::Tensor const& one : model->parameters()) CHECK(!one.grad().defined());
  return found;
}

/// What LibTorch's anomaly mode says of the same passes.
std::string anomaly_of(planted_fault const& fault, std::uint64_t seed) {
  keel::libtorch::seed_random(at::kCPU, seed);
  auto const model = std::make_shared<planted_module>();
  model->what = fault.operation;
  model->at = fault.at;
  auto batch = make_pair_batch(seed * 100 + 50);
  for (std::int64_t const row : fault.rows) batch.first[row][5] = 7.0;
  at::Tensor const loss = at::mse_loss(model->forward(batch.first), batch.second);
  // From here on, or it prints the stack of each forward pass that it blames.
  torch::autograd::AnomalyMode::set_enabled(true, true);
  std::string words;
  try {
    loss.backward();
  } catch (std::exception const& thrown) {
    words = thrown.what();
  }
  torch::autograd::AnomalyMode::set_enabled(false, true);
  return words;
}

template <class Recipe>
void check_fault(planted_fault fault, std::uint64_t seed) {
  constexpr auto count = keel::config_of<Recipe>.accumulate.count;
  fault.micro_batch %= count;
  INFO("seed " << seed << ", " << (fault.operation == nullptr ? "no operation" : fault.operation->name) << " at " << fault.at);
  seen const found = run_with<Recipe>(fault, seed);
  INFO(found.sentence);
  REQUIRE(found.origin);
  nonfinite_origin const& origin = *found.origin;
  if (fault.what == fault_kind::state) {
    CHECK(origin.place == nonfinite_place::optimizer_state);
    CHECK(origin.parameter == "block1.weight.exp_avg");
    return;
  }
  CHECK(origin.micro_batch == fault.micro_batch);
  CHECK(origin.rows == fault.rows);
  switch (fault.what) {
    case fault_kind::operation: {
      CHECK(origin.operation == fault.operation->operation);
      CHECK(origin.place == (fault.operation->is_backward ? nonfinite_place::backward : nonfinite_place::forward));
      CHECK(origin.unit == (fault.at < 3 ? "unit." + std::to_string(fault.at) : ""));
      if (!fault.operation->is_backward) break;
      std::string const anomaly = anomaly_of(fault, seed);
      INFO(anomaly);
      // Anomaly mode looks for NaN alone: of an infinity it names what came after.
      CHECK(!anomaly.empty());
      CHECK((origin.value != "nan" || anomaly.find(fault.operation->operation) != std::string::npos));
      break;
    }
    case fault_kind::input:
      CHECK(origin.place == nonfinite_place::batch);
      CHECK(origin.given == "an input of the batch");
      break;
    case fault_kind::label:
      CHECK(origin.place == nonfinite_place::batch);
      CHECK(origin.given == "a label of the batch");
      CHECK(origin.unit.empty());
      break;
    case fault_kind::loss:
      CHECK(origin.place == nonfinite_place::forward);
      CHECK(origin.operation == "aten::log");
      CHECK(origin.unit.empty());
      break;
    case fault_kind::state:
      break;
  }
}

}  // namespace

TEST_CASE("the operation, the unit and the rows of 240 planted values that are not finite are named") {
  std::mt19937_64 engine(20261124);
  auto const up_to = [&](std::uint64_t most) { return engine() % most; };
  for (std::uint64_t seed = 0; seed < 240; ++seed) {
    planted_fault fault{fault_kind::operation, nullptr, static_cast<int>(up_to(4)), static_cast<std::int64_t>(up_to(3)), {}};
    for (std::int64_t row = 0; row < rows_of_batch; ++row) {
      if (up_to(5) == 0) fault.rows.push_back(row);
    }
    if (fault.rows.empty()) fault.rows.push_back(static_cast<std::int64_t>(up_to(rows_of_batch)));
    if (fault.rows.size() > 6) fault.rows.resize(6);
    std::uint64_t const kind = up_to(plants().size() + 8);
    if (kind < plants().size()) {
      fault.operation = &plants()[kind];
    } else {
      constexpr fault_kind others[] = {fault_kind::input, fault_kind::label, fault_kind::loss, fault_kind::state};
      fault.what = others[(kind - plants().size()) % 4];
    }
    switch (seed % 6) {
      case 0:
        check_fault<plain>(fault, seed);
        break;
      case 1:
        check_fault<accumulated>(fault, seed);
        break;
      case 2:
        check_fault<low_precision>(fault, seed);
        break;
      case 3:
        check_fault<reentrant>(fault, seed);
        break;
      case 4:
        check_fault<on_a_ladder>(fault, seed);
        break;
      default:
        check_fault<everything>(fault, seed);
        break;
    }
  }
}

namespace {

/// The squared error of a small model, of which the program says what becomes of it.
template <class Recipe, class Environment = keel::step_environment>
struct guarded_run {
  explicit guarded_run(double dropout = 0.0)
      : model(make_small(3, dropout)), optimizer(model->parameters(), 1e-2), step(*model, optimizer, 0, observer) {}
  std::shared_ptr<small_module> model;
  keel::adamw optimizer;
  seen found;
  take_origin observer{&found};
  keel::step<Recipe, Environment> step;
};

struct on_a_device : keel::step_environment {
  bool decides_on_device(at::DeviceType) const override { return true; }
};
struct untraced : keel::recipe<skips, keel::incident::off> {};
struct traced_once : keel::recipe<skips, keel::incident::trace<1>> {};
struct untraced_clipped
    : keel::recipe<skips, keel::accumulate<2>, keel::clip::global_norm<0.5>, keel::ema<0.9>, keel::incident::off> {};
struct traced_clipped : keel::recipe<skips, keel::accumulate<2>, keel::clip::global_norm<0.5>, keel::ema<0.9>> {};
struct ends : keel::recipe<> {};

pair_batch spoiled_batch(std::uint64_t seed, std::int64_t row) {
  auto batch = make_pair_batch(seed);
  batch.first[row][1] = NAN;
  return batch;
}

}  // namespace

TEST_CASE("an update that is looked into leaves no bit behind") {
  auto const train = []<class Recipe>(std::type_identity<Recipe>) {
    guarded_run<Recipe> run(0.3);
    for (std::uint64_t i = 0; i < 24; ++i)
      run.step(i % 5 == 3 ? spoiled_batch(i, 2) : make_pair_batch(i), mean_squared_error(run.model));
    auto all = copies_of(run.model->parameters());
    for (at::Tensor const& one : run.step.average().averages()) all.push_back(one.clone());
    all.push_back(at::rand({4}));
    return all;
  };
  CHECK(same_bits(train(std::type_identity<untraced_clipped>{}), train(std::type_identity<traced_clipped>{})));
}

TEST_CASE("an update that is finite the second time is called transient") {
  guarded_run<plain> run;
  int calls = 0;
  auto const loss_of = [&](pair_batch const& batch) {
    at::Tensor const loss = at::mse_loss(run.model->forward(batch.first), batch.second);
    return ++calls == 2 ? loss * NAN : loss;
  };
  run.step(make_pair_batch(1), loss_of);
  auto const outcome = run.step(make_pair_batch(2), loss_of);
  REQUIRE(run.found.origin);
  CHECK(run.found.origin->place == nonfinite_place::transient);
  CHECK(outcome.skipped()->origin.find("suspect the device") != std::string::npos);
  CHECK(run.step(make_pair_batch(2), loss_of).updated());
}

TEST_CASE("of updates in a row the first is looked into, and no more than the recipe says") {
  int calls = 0;
  auto const count = [&](auto& run, pair_batch const& batch) {
    int const before = calls;
    run.step(batch, [&](pair_batch const& of) {
      ++calls;
      return at::mse_loss(run.model->forward(of.first), of.second);
    });
    return calls - before;
  };
  guarded_run<traced_once> once;
  CHECK(count(once, make_pair_batch(1)) == 1);
  CHECK(count(once, spoiled_batch(2, 0)) > 1);
  CHECK(count(once, spoiled_batch(3, 0)) == 1);
  CHECK(count(once, make_pair_batch(4)) == 1);
  CHECK(count(once, spoiled_batch(5, 0)) == 1);
  guarded_run<plain> three;
  for (int i = 0; i < 3; ++i) {
    CHECK(count(three, spoiled_batch(2, 0)) > 1);
    CHECK(count(three, spoiled_batch(2, 0)) == 1);
    CHECK(count(three, make_pair_batch(1)) == 1);
  }
  CHECK(count(three, spoiled_batch(2, 0)) == 1);
  guarded_run<untraced> never;
  CHECK(count(never, spoiled_batch(2, 0)) == 1);
}

TEST_CASE("an exception of the second run is said and changes nothing") {
  guarded_run<plain> run;
  int calls = 0;
  auto const loss_of = [&](pair_batch const& batch) {
    if (++calls == 2) throw std::runtime_error("the file is closed");
    return at::mse_loss(run.model->forward(batch.first), batch.second);
  };
  auto const before = copies_of(run.model->parameters());
  auto const outcome = run.step(spoiled_batch(1, 4), loss_of);
  REQUIRE(outcome.skipped());
  CHECK(outcome.skipped()->origin == "where it began is not known: the update could not be rerun: the file is closed");
  CHECK(same_bits(before, copies_of(run.model->parameters())));
  CHECK(run.step(make_pair_batch(1), loss_of).updated());
}

TEST_CASE("a parameter that is not finite is named also where the second run throws") {
  guarded_run<plain> run;
  int calls = 0;
  {
    at::NoGradGuard const no_grad;
    run.model->first->weight[0][0] = NAN;
  }
  auto const outcome = run.step(make_pair_batch(1), [&](pair_batch const& batch) {
    if (++calls == 2) throw std::runtime_error("all elements of input should be between 0 and 1");
    return at::mse_loss(run.model->forward(batch.first), batch.second);
  });
  REQUIRE(outcome.skipped());
  CHECK(outcome.skipped()->origin == "the parameter first.weight was not finite before the update began");
}

TEST_CASE("an update that a device decides is looked into when the host learns of it") {
  guarded_run<plain, on_a_device> run;
  auto const loss_of = mean_squared_error(run.model);
  CHECK(run.step(make_pair_batch(1), loss_of).pending());
  run.step(spoiled_batch(2, 5), loss_of);
  auto const late = run.step(make_pair_batch(3), loss_of);
  REQUIRE(late.skipped());
  REQUIRE(run.found.origin);
  CHECK(run.found.origin->rows == std::vector<std::int64_t>{5});
  CHECK(late.skipped()->origin == keel::to_sentence(*run.found.origin));
  REQUIRE(run.step.settle()->updated());
  // The last update of a run has none after it.
  run.found = {};
  run.step(spoiled_batch(4, 1), loss_of);
  REQUIRE(run.step.settle()->skipped());
  REQUIRE(run.found.origin);
  CHECK(run.found.origin->rows == std::vector<std::int64_t>{1});
  // An update is dropped while the one before it is under way.
  run.found = {};
  run.step(make_pair_batch(5), loss_of);
  run.step(spoiled_batch(6, 3), loss_of);
  CHECK_THROWS(run.step(make_pair_batch(7), [](pair_batch const&) -> at::Tensor { throw std::runtime_error("no data"); }));
  REQUIRE(run.step.settle()->skipped());
  REQUIRE(run.found.origin);
  CHECK(run.found.origin->rows == std::vector<std::int64_t>{3});
}

TEST_CASE("a batch whose memory the program used again is not blamed on the hardware") {
  guarded_run<accumulated> run;
  auto const loss_of = mean_squared_error(run.model);
  auto batch = spoiled_batch(1, 0);
  run.step(batch, loss_of);
  batch.first.copy_(make_pair_batch(2).first);
  run.step(batch, loss_of);
  auto const outcome = run.step(make_pair_batch(3), loss_of);
  REQUIRE(outcome.skipped());
  CHECK(outcome.skipped()->origin.find("the program modified a batch") != std::string::npos);
}

TEST_CASE("a loss function that cannot be copied trains as any other") {
  guarded_run<accumulated> run;
  auto const once = [&](pair_batch const& batch) {
    return run.step(batch, [held = std::make_unique<int>(1), &run](pair_batch const& of) {
      return at::mse_loss(run.model->forward(of.first), of.second) * static_cast<double>(*held);
    });
  };
  once(make_pair_batch(1));
  once(spoiled_batch(2, 0));
  auto const outcome = once(make_pair_batch(3));
  REQUIRE(outcome.skipped());
  CHECK(outcome.skipped()->origin.find("cannot be copied") != std::string::npos);
  guarded_run<plain> alone;
  auto const outcome_alone = alone.step(spoiled_batch(2, 6), [held = std::make_unique<int>(1), &alone](pair_batch const& of) {
    return at::mse_loss(alone.model->forward(of.first), of.second) * static_cast<double>(*held);
  });
  CHECK(outcome_alone.skipped()->origin.find("row 6") != std::string::npos);
}

TEST_CASE("the error that ends a run says where it began") {
  guarded_run<ends> run;
  try {
    run.step(spoiled_batch(1, 7), mean_squared_error(run.model));
    FAIL("it went on");
  } catch (keel::nonfinite_error const& thrown) {
    std::string const words = thrown.what();
    CHECK(words.find("non-finite loss at update 1: the first value that is not finite, nan, is in an input of the batch, "
                     "which aten::addmm takes, after the parameter first.bias, in micro-batch 0, row 7. The parameters") !=
          std::string::npos);
  }
}

TEST_CASE("micro-batches that the ladder cut are looked into as they were cut") {
  guarded_run<on_a_ladder> run;
  bool starves = true;
  auto const loss_of = starving(mean_squared_error(run.model), [&] { return std::exchange(starves, false); });
  run.step(make_pair_batch(1), loss_of);
  run.step(make_pair_batch(2), loss_of);
  REQUIRE(run.step.pieces() == 2);
  run.step(make_pair_batch(3), loss_of);
  auto const outcome = run.step(spoiled_batch(4, 6), loss_of);
  REQUIRE(outcome.skipped());
  REQUIRE(run.found.origin);
  CHECK(run.found.origin->micro_batch == 1);
  CHECK(run.found.origin->rows == std::vector<std::int64_t>{6});
}

TEST_CASE("rows that make a batch only together are tried apart as far as that goes") {
  torch::nn::Sequential model(torch::nn::Linear(6, 8), torch::nn::BatchNorm1d(8), torch::nn::Linear(8, 1));
  keel::sgd optimizer(model->parameters(), torch::optim::SGDOptions(0.1));
  seen found;
  take_origin observer(&found);
  keel::step<plain> step(*model, optimizer, 0, observer);
  auto const loss_of = [&](pair_batch const& batch) {
    return at::mse_loss(at::log(model->forward(batch.first)), batch.second);
  };
  auto const buffers = copies_of(model->buffers());
  REQUIRE(step(make_pair_batch(1), loss_of).skipped());
  REQUIRE(found.origin);
  CHECK(found.origin->operation == "aten::log");
  CHECK(found.origin->micro_batch == 0);
  // A batch norm of one row throws.
  CHECK(found.origin->detail.find("its rows could not be tested separately") != std::string::npos);
  CHECK(same_bits(buffers, copies_of(model->buffers())));
}

TEST_CASE("a value that every row has is blamed on no row") {
  guarded_run<plain> run;
  auto const loss_of = [&](pair_batch const& batch) { return at::log(run.model->forward(batch.first) * 0.0 - 1.0).mean(); };
  run.step(make_pair_batch(1, 64), loss_of);
  REQUIRE(run.found.origin);
  CHECK(run.found.origin->every_row);
  CHECK(run.found.origin->rows.empty());
}

TEST_CASE("a mask of minus infinity is not an incident's origin") {
  guarded_run<plain> run;
  auto const loss_of = [&](pair_batch const& batch) {
    at::Tensor const scores = run.model->forward(batch.first);
    at::Tensor const mask = at::full({8, 8}, -infinity).triu(1);
    at::Tensor const weights = at::softmax(at::mm(scores, scores.t()) + mask, 1);
    return at::log(at::mm(weights, scores) * 0.0).mean();
  };
  run.step(make_pair_batch(1), loss_of);
  REQUIRE(run.found.origin);
  CHECK(run.found.origin->operation == "aten::log");
}

TEST_CASE("two steps in two threads look into their updates beside each other") {
  std::vector<std::string> sentences(2);
  std::vector<std::thread> threads;
  std::mutex building;
  for (std::size_t i = 0; i < 2; ++i) {
    threads.emplace_back([&, i] {
      std::unique_lock<std::mutex> lock(building);
      guarded_run<plain> run;
      lock.unlock();
      for (std::uint64_t k = 0; k < 3; ++k) {
        auto const outcome = run.step(spoiled_batch(k, static_cast<std::int64_t>(i)), mean_squared_error(run.model));
        if (k == 0 && outcome.skipped()) sentences[i] = outcome.skipped()->origin;
      }
    });
  }
  for (auto& one : threads) one.join();
  CHECK(sentences[0].ends_with("row 0"));
  CHECK(sentences[1].ends_with("row 1"));
}

TEST_CASE("no memory for what an incident would need costs neither a rung nor the update") {
  keel::memory::budget budget;
  guarded_run<on_a_ladder> run;
  auto const loss_of = mean_squared_error(run.model);
  run.step(make_pair_batch(1), loss_of);
  run.step(make_pair_batch(2), loss_of);
  auto const first = make_pair_batch(3);
  auto const second = spoiled_batch(4, 0);
  budget.refuse_allocation(1);
  run.step(first, loss_of);
  budget.refuse_allocation(0);
  auto const outcome = run.step(second, loss_of);
  CHECK(run.step.pieces() == 1);
  REQUIRE(outcome.skipped());
  CHECK(outcome.skipped()->origin == "where it began is not known: memory ran out while its random state was being saved");
}

TEST_CASE("whichever allocation fails while an update is looked into, the run goes on as it was") {
  keel::memory::budget budget;
  std::optional<std::vector<at::Tensor>> expected;
  bool refused = true;
  for (std::int64_t nth = 0; refused; ++nth) {
    guarded_run<plain> run(0.3);
    INFO("allocation " << nth);
    bool is_second_run = false;
    auto const loss_of = [&](pair_batch const& batch) {
      // From the beginning of the second run on.
      if (is_second_run && nth > 0) budget.refuse_allocation(nth);
      is_second_run = !is_second_run;
      return at::mse_loss(run.model->forward(batch.first), batch.second);
    };
    run.step(make_pair_batch(1), loss_of);
    is_second_run = false;
    auto const before = budget.refused();
    REQUIRE(run.step(spoiled_batch(2, 3), loss_of).skipped());
    budget.refuse_allocation(0);
    refused = nth == 0 || budget.refused() > before;
    is_second_run = false;
    REQUIRE(run.step(make_pair_batch(3), mean_squared_error(run.model)).updated());
    auto const parameters = copies_of(run.model->parameters());
    if (!expected) expected = parameters;
    REQUIRE(same_bits(parameters, *expected));
  }
}
