// Numbers at their ends: overflows at the scale's floor, histories that do not vary, norms that a double cannot square.
#include <cmath>
#include <limits>

#include "../support.hpp"

using namespace keel_test;
using namespace keel::literals;

namespace {

namespace loss_scale = keel::loss_scale;
namespace spike = keel::spike;

template <class Base>
struct scaled_in_fp32 : Base {
  bool computes_in_half(at::DeviceType) const override { return true; }
  bool computes_in_bfloat16(at::DeviceType) const override { return true; }
  keel::precision::kind autocast(keel::precision::kind) const override { return keel::precision::kind::fp32; }
};
using on_host = scaled_in_fp32<keel::environment>;
struct on_a_device : on_host {
  bool decides_on_device(at::DeviceType) const override { return true; }
};

using from_eight = loss_scale::dynamic<loss_scale::initial<8.0>, loss_scale::floor<1.0>>;

template <class Nonfinite>
struct fp16 : keel::recipe<keel::precision::fp16, from_eight, Nonfinite, keel::checkpoint::every<2_steps, keel::checkpoint::keep<4>>,
                           keel::determinism::seeded<3>> {};

struct ending {
  std::string id;
  std::int64_t skipped = 0, updates = 0, rollbacks = 0;
  double scale = 0.0;
  bool is_exception = false;
};

/// From the row `bad` on every gradient of `count` rows is infinite, whatever the scale.
template <class Recipe, class Environment>
ending train(int bad, int count) {
  scratch_directory const directory;
  keel::seed<Recipe>();
  auto const model = std::make_shared<small_module>();
  keel::adamw optimizer(model->parameters(), 0.01);
  keel::trainer<Recipe, Environment> run{model, optimizer, quiet({.run_directory = directory / "run", .updates = 14})};
  bool overflows = false;
  model->first->weight.register_hook([&](at::Tensor const& gradient) { return overflows ? gradient * INFINITY : gradient; });
  auto const rows = [](std::int64_t epoch) {
    return ranges::views::iota(40 * epoch, 40 * epoch + 40) |
           ranges::views::transform([](std::int64_t i) { return keel::row_numbers{i}; });
  };
  ending found;
  try {
    keel::outcome const ended = run.fit(rows, [&](keel::row_numbers const& row) {
      overflows = row[0] >= bad && row[0] < bad + count;
      return mean_squared_error(model)(make_pair_batch(static_cast<std::uint64_t>(row[0])));
    });
    if (auto const* const by = ended.gave_up()) found.id = by->detail.substr(1, 3);
  } catch (keel::error const& thrown) {
    found.id = thrown.id();
    found.is_exception = true;
  }
  found.skipped = run.skipped();
  found.updates = run.updates();
  found.rollbacks = run.rollbacks();
  found.scale = run.loss_scale();
  return found;
}

template <class Environment>
void floor_hands_over() {
  // Three overflows take the scale from 8 to its floor of 1; the fourth and fifth are the run's.
  auto const skips = train<fp16<keel::nonfinite::skip<5>>, Environment>(4, 6);
  CHECK(skips.id.empty());
  CHECK(skips.updates == 14);
  CHECK(skips.skipped == 6);
  auto const limited = train<fp16<keel::nonfinite::skip<3>>, Environment>(4, 6);
  CHECK((limited.id == "E08" && !limited.is_exception));
  auto const back = train<fp16<keel::nonfinite::rollback<2>>, Environment>(4, 5);
  CHECK(back.id.empty());
  CHECK(back.rollbacks == 1);
  CHECK(back.updates == 14);
  auto const raises = train<fp16<keel::nonfinite::raise>, Environment>(4, 6);
  CHECK((raises.id == "E10" && raises.is_exception));
}

}  // namespace

TEST_CASE("an overflow at the floor of the loss scale is the nonfinite policy's, on the host and on a device") {
  floor_hands_over<on_host>();
  floor_hands_over<on_a_device>();
}

TEST_CASE("a spike after a history that does not vary is seen: 0.5 forty times, then 1e12") {
  struct guarded : keel::recipe<spike::skip<spike::window<32>>> {};
  auto const model = make_small();
  torch::optim::SGD optimizer(model->parameters(), 0.0);
  keel::step<guarded> step{model, optimizer};
  auto const batch = make_pair_batch(1);
  auto const scaled = [&](double factor) {
    return [&model, factor](pair_batch const& b) { return mean_squared_error(model)(b) * factor; };
  };
  for (int i = 0; i < 40; ++i) REQUIRE(step(batch, scaled(1.0)).is<keel::result::updated>());
  CHECK(step(batch, scaled(1e12)).is<keel::result::skipped>());
  // Nothing is made of what a history that is this even varies by.
  CHECK(step(batch, scaled(1.03)).is<keel::result::updated>());
}

TEST_CASE("a spike is also a ratio to the mean, and a loss or norm above a bound that holds from the first update on") {
  namespace s = spike;
  auto const limits = [](keel::spike::settings const& settings, int updates) {
    keel::spike_guard guard(settings);
    for (int i = 0; i < updates; ++i)
      guard.accepted(keel::step_outcome(keel::result::updated{2.0 + 0.5 * (i % 3), 1.0 + (i % 2), 0.1}));
    return std::pair(guard.loss_limit(), guard.gradient_norm_limit());
  };
  auto const ratio = s::skip<s::zscore<1e6>, s::ratio<4.0>, s::window<16>>::configured;
  CHECK(std::isinf(limits(ratio, 3).first));
  CHECK(limits(ratio, 12).first == Approx(10.0));
  CHECK(limits(ratio, 12).second == Approx(6.0));
  auto const bounds = s::skip<s::loss_above<5.0>, s::gradient_norm_above<100.0>>::configured;
  CHECK(limits(bounds, 0) == std::pair(5.0, 100.0));
  // The lowest bound counts.
  auto const all = s::skip<s::zscore<2.0>, s::ratio<4.0>, s::loss_above<50.0>, s::window<16>>::configured;
  CHECK(limits(all, 12).first < 4.0);

  // in_a_row is the patience with an absolute bound: three losses above it in a row end the run.
  struct watched : keel::recipe<s::skip<s::loss_above<5.0>, s::in_a_row<3>>> {};
  auto const model = make_small();
  torch::optim::SGD optimizer(model->parameters(), 0.01);
  keel::step<watched> step{model, optimizer};
  auto const high = [&](pair_batch const& b) { return mean_squared_error(model)(b) + 10.0; };
  auto const low = [&](pair_batch const& b) { return mean_squared_error(model)(b); };
  CHECK(step(make_pair_batch(0), high).is<keel::result::skipped>());
  CHECK(step(make_pair_batch(0), high).is<keel::result::skipped>());
  CHECK(step(make_pair_batch(0), low).is<keel::result::updated>());
  CHECK(step(make_pair_batch(0), high).is<keel::result::skipped>());
  CHECK(step(make_pair_batch(0), high).is<keel::result::skipped>());
  CHECK_THROWS_AS(step(make_pair_batch(0), high), keel::diverged_error);
}

TEST_CASE("finite double gradients of norm 2e200 are clipped to the limit and not to zero") {
  at::Tensor const parameter = at::zeros({4}, at::kDouble).requires_grad_();
  parameter.mutable_grad() = at::full({4}, 1e200, at::kDouble);
  std::vector<at::Tensor> const parameters = {parameter};
  CHECK(keel::clip_grad_norm_(parameters, 1.0) == Approx(2e200));
  CHECK(at::allclose(parameter.grad(), at::full({4}, 0.5, at::kDouble)));

  struct module : torch::nn::Module {
    module() { weight = register_parameter("weight", at::zeros({4}, at::kDouble)); }
    at::Tensor weight;
  };
  struct clipped : keel::recipe<keel::clip::global_norm<1.0>> {};
  for (int kind = 0; kind < 2; ++kind) {
    module model;
    torch::optim::SGD plain(model.parameters(), 1.0);
    keel::sgd ours(model.parameters(), torch::optim::SGDOptions(1.0));
    keel::step<clipped> step{model, kind == 0 ? plain : static_cast<torch::optim::SGD&>(ours)};
    auto const result = step(at::ones({1}), [&](at::Tensor const&) { return (model.weight * 1e200).sum(); });
    REQUIRE(result.is<keel::result::updated>());
    CHECK(result.get<keel::result::updated>().gradient_norm == Approx(2e200));
    CHECK(at::allclose(model.weight.detach(), at::full({4}, -0.5, at::kDouble)));
  }
}

TEST_CASE("the norm of a gradient with holes has the same bits for any number of threads") {
  if (is_thread_sanitized) {
    WARN("SKIPPED: ThreadSanitizer does not see that OpenMP's threads wait for each other");
    return;
  }
  at::manual_seed(3);
  std::vector<at::Tensor> const tensors = {at::randn({1003, 2000}).slice(1, 0, 2000, 2), at::randn({999, 3, 501}).slice(1, 0, 2)};
  int const before = at::get_num_threads();
  std::vector<double> norms;
  for (int const threads : {1, 2, 3, 4, 7}) {
    at::set_num_threads(threads);
    norms.push_back(keel::measure_gradients(tensors).norm);
  }
  at::set_num_threads(before);
  for (double const one : norms) CHECK(one == norms[0]);
}

TEST_CASE("an out-of-memory inside keel's own optimizer is not told to use keel's optimizers") {
  auto const model = make_small();
  model->to(at::kDouble);  // goes by LibTorch's operators, which take memory while they run
  keel::adamw optimizer(model->parameters(), 0.01);
  struct plain : keel::recipe<> {};
  keel::step<plain> step{model, optimizer};
  auto const loss = [&](pair_batch const& b) { return at::mse_loss(model->forward(b.first.to(at::kDouble)), b.second.to(at::kDouble)); };
  step(make_pair_batch(0), loss);
  bool heard = false;
  auto const batch = make_pair_batch(1);
  keel::memory::budget budget;
  for (int call = 1; call < 200 && !heard; ++call) {
    budget.refuse_allocation(call);
    try {
      step(batch, loss);
    } catch (keel::out_of_memory_error const& thrown) {
      std::string const words = thrown.what();
      if (words.find("half updated") == std::string::npos) continue;
      heard = true;
      CHECK(words.find("with keel::adamw") == std::string::npos);
      CHECK(words.find("LibTorch's operators") != std::string::npos);
    }
  }
  CHECK(heard);
}
