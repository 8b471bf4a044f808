#include <cmath>

#include "../deciding_device.hpp"
#include "../support.hpp"

using namespace keel_test;
using namespace keel::literals;

namespace {

struct full : keel::recipe<keel::accumulate<2>, keel::clip::global_norm<1.0>, keel::nonfinite::skip<5>,
                           keel::schedule::cosine<keel::schedule::warmup<20_steps>>, keel::spike::skip<>, keel::ema<0.9>,
                           keel::accept<"P06">, keel::checkpoint::every<10_steps>, keel::determinism::seeded<3>> {};

std::vector<pair_batch> some_batches(int count = 8) {
  std::vector<pair_batch> all;
  for (int i = 0; i < count; ++i) all.push_back(make_pair_batch(static_cast<std::uint64_t>(i)));
  return all;
}

/// Everything of a run that a dry run could leave a trace in.
template <class Optimizer>
struct run_image {
  std::vector<at::Tensor> tensors;
  std::vector<at::Tensor> gradients;
  optimizer_image optimizer;
  at::Tensor random;
  std::vector<std::string> metrics, events;
  std::int64_t updates;
  double rate;

  template <class Trainer>
  run_image(Trainer& run, small_module& model, Optimizer& optimizer_of, std::filesystem::path const& directory)
      : tensors(copies_of(model.parameters())),
        optimizer(image_of(model, optimizer_of)),
        random(keel::libtorch::random_state(at::kCPU)),
        metrics(read_lines(directory / "metrics.jsonl")),
        events(read_lines(directory / "events.jsonl")),
        updates(run.updates()),
        rate(run.learning_rate()) {
    for (at::Tensor const& one : model.parameters()) gradients.push_back(one.grad());
  }
  bool operator==(run_image const& other) const {
    return same_bits(tensors, other.tensors) && same_bits(gradients, other.gradients) &&
           same_bits(optimizer, other.optimizer) && same_bits(random, other.random) && metrics == other.metrics &&
           events == other.events && updates == other.updates && rate == other.rate;
  }
};

template <class Optimizer, class Environment = keel::environment, class Options>
void leaves_no_trace(Options const& options, at::ScalarType type = at::kFloat) {
  auto const batches = some_batches();
  auto const train = [&](bool tries) {
    scratch_directory const directory;
    auto const model = make_small(1, 0.3);
    model->to(type);
    Optimizer optimizer(model->parameters(), options);
    auto const loss_of = [&](pair_batch const& batch) {
      return (model->forward(batch.first.to(type)) - batch.second.to(type)).square().mean();
    };
    keel::trainer<full, Environment> run{model, optimizer, quiet({.run_directory = directory.path(), .updates = 40})};
    auto const try_out = [&] {
      if (!tries) return;
      run.settle();
      run_image<Optimizer> const before(run, *model, optimizer, directory);
      auto const range = run.lr_range_test(batches, loss_of, {.lowest = 1e-5, .highest = 100.0, .updates = 50});
      CHECK(range.points.size() > 5);
      CHECK(run_image<Optimizer>(run, *model, optimizer, directory) == before);
      auto const fit = run.overfit_one_batch(batches[0], loss_of, 30);
      CHECK(fit.losses.size() == 30);
      CHECK(run_image<Optimizer>(run, *model, optimizer, directory) == before);
    };
    try_out();
    for (auto const& batch : batches) run.step(batch, loss_of);
    try_out();
    run.fit(batches, loss_of);
    try_out();
    auto all = copies_of(model->parameters());
    auto const scope = run.averaged();
    for (at::Tensor const& one : model->parameters()) all.push_back(one.detach().clone());
    return all;
  };
  CHECK(same_bits(train(true), train(false)));
}

}  // namespace

TEST_CASE("an lr range test and an overfitted batch leave a run exactly as it was, before it, in the middle and after it") {
  auto const momentum = torch::optim::SGDOptions(0.01).momentum(0.9).dampening(0.5);
  leaves_no_trace<keel::adamw>(torch::optim::AdamWOptions(0.01));
  leaves_no_trace<torch::optim::AdamW>(torch::optim::AdamWOptions(0.01));
  leaves_no_trace<keel::sgd>(momentum);
  leaves_no_trace<keel::adamw>(torch::optim::AdamWOptions(0.01), at::kBFloat16);
  leaves_no_trace<keel::adamw, on_a_device>(torch::optim::AdamWOptions(0.01));
  leaves_no_trace<keel::sgd, on_a_device>(momentum, at::kBFloat16);
}

TEST_CASE("the range test names the rates at which the loss falls and where it blows up") {
  auto const model = make_small();
  torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.1));
  keel::trainer<keel::recipe<>> run{model, optimizer, quiet()};
  auto const range = run.lr_range_test(some_batches(1), mean_squared_error(model), {.lowest = 1e-4, .highest = 1e4});
  CHECK(range.diverged);
  CHECK(range.points.front().learning_rate == Approx(1e-4));
  CHECK(range.points[1].learning_rate / range.points[0].learning_rate == Approx(std::pow(1e8, 1.0 / 99.0)));
  CHECK(range.steepest > 1e-3);
  CHECK(range.steepest < range.lowest);
  CHECK(range.lowest < 10.0);
  CHECK(optimizer.param_groups()[0].options().get_lr() == 0.1);

  keel::trainer<keel::recipe<>> calm{model, optimizer, quiet()};
  auto const low = calm.lr_range_test(some_batches(), mean_squared_error(model), {.highest = 1e-4, .updates = 20});
  CHECK_FALSE(low.diverged);
  CHECK(low.points.size() == 20);
  CHECK(low.points.back().learning_rate == Approx(1e-4));
}

TEST_CASE("one batch is learned by heart by a sound model, and not by one whose loss it cannot move") {
  auto const model = make_small();
  keel::adamw optimizer(model->parameters(), torch::optim::AdamWOptions(0.02));
  keel::trainer<keel::recipe<keel::accumulate<2>>> run{model, optimizer, quiet()};
  CHECK(run.overfit_one_batch(make_pair_batch(1), mean_squared_error(model)).learned());
  auto const stuck = [&](pair_batch const& batch) { return at::mse_loss(model->forward(batch.first) * 1e-9, batch.second); };
  CHECK_FALSE(run.overfit_one_batch(make_pair_batch(1), stuck, 20).learned());
}

TEST_CASE("a dry run that meets NaN, throws, or is asked for nonsense leaves the run as it was") {
  auto const model = make_small();
  keel::adamw optimizer(model->parameters(), torch::optim::AdamWOptions(0.02));
  keel::trainer<keel::recipe<keel::accumulate<2>>> run{model, optimizer, quiet()};
  auto const before = copies_of(model->parameters());
  int calls = 0;
  auto const breaks = [&](pair_batch const& batch) {
    at::Tensor const loss = at::mse_loss(model->forward(batch.first), batch.second);
    return ++calls < 9 ? loss : loss * NAN;
  };
  auto const range = run.lr_range_test(some_batches(), breaks);
  CHECK(range.points.size() == 4);
  CHECK(range.diverged);
  auto const throws = [&](pair_batch const&) -> at::Tensor { throw std::runtime_error("the loss itself"); };
  CHECK_THROWS_AS(run.lr_range_test(some_batches(), throws), std::runtime_error);
  CHECK_THROWS_AS(run.lr_range_test(some_batches(0), breaks), keel::data_error);
  CHECK_THROWS_AS(run.lr_range_test(some_batches(), breaks, {.lowest = 0.0}), keel::error);
  CHECK_THROWS_AS(run.overfit_one_batch(make_pair_batch(1), breaks, 0), keel::error);
  CHECK(same_bits(model->parameters(), before));
  CHECK(optimizer.state().empty());
  run.step(make_pair_batch(1), mean_squared_error(model));
  CHECK_THROWS_AS(run.overfit_one_batch(make_pair_batch(1), mean_squared_error(model)), keel::error);
  CHECK(run.step(make_pair_batch(2), mean_squared_error(model)).is<keel::result::updated>());
}

TEST_CASE("a dry run after a run has the groups' own rates, and those that the schedule left come back") {
  struct falling : keel::recipe<keel::schedule::cosine<keel::schedule::warmup<5_steps>, keel::schedule::min_lr<1e-3>>> {};
  auto const model = make_small();
  keel::adamw optimizer(model->parameters(), torch::optim::AdamWOptions(0.02));
  keel::trainer<falling> run{model, optimizer, quiet({.updates = 30})};
  CHECK(run.overfit_one_batch(make_pair_batch(1), mean_squared_error(model)).learned());
  run.step(make_pair_batch(2), mean_squared_error(model));
  double const left = optimizer.param_groups()[0].options().get_lr();
  CHECK(left < 0.02);
  CHECK(run.overfit_one_batch(make_pair_batch(1), mean_squared_error(model)).learned());
  CHECK(optimizer.param_groups()[0].options().get_lr() == left);
  run.fit(some_batches(), mean_squared_error(model));
  auto const flipped = [](pair_batch const& batch) { return pair_batch{batch.first, -batch.second}; };
  CHECK(run.overfit_one_batch(flipped(make_pair_batch(1)), mean_squared_error(model)).learned());
}

TEST_CASE("an overflow of the loss scale, the scaler's ordinary signal, ends no dry run") {
  struct scaled_in_fp32 : keel::environment {
    bool computes_in_half(at::DeviceType) const override { return true; }
    bool computes_in_bfloat16(at::DeviceType) const override { return true; }
    keel::precision::kind autocast(keel::precision::kind) const override { return keel::precision::kind::fp32; }
  };
  struct scaling : keel::recipe<keel::precision::fp16, keel::loss_scale::dynamic<>> {};
  auto const model = make_small();
  keel::adamw optimizer(model->parameters(), torch::optim::AdamWOptions(0.02));
  keel::trainer<scaling, scaled_in_fp32> run{model, optimizer, quiet()};
  int calls = 0;
  model->first->weight.register_hook([&](at::Tensor const& gradient) { return ++calls <= 3 ? gradient * INFINITY : gradient; });
  auto const fit = run.overfit_one_batch(make_pair_batch(1), mean_squared_error(model), 100);
  CHECK(fit.losses.size() == 100);
  CHECK(run.loss_scale() == 65536.0);
}
