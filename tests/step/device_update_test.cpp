// Updates that are decided on the device, tried on the CPU: what differs there is who decides and when the host learns of it.
#include <atomic>
#include <cmath>
#include <limits>
#include <type_traits>

#include <keel/checkpoint/optimizer_state.hpp>

#include "../deciding_device.hpp"
#include "../host_reads.hpp"
#include "../support.hpp"

using namespace keel_test;
using namespace keel::literals;

namespace {

/// Counts the numbers that the host asks for.
struct reads_counted : keel::environment {
  double host_value(at::Tensor const& one) const override {
    ++reads;
    return keel::host_value(one);
  }
  inline static int reads = 0;
};
struct reads_counted_on_a_device : reads_counted {
  bool decides_on_device(at::DeviceType) const override { return true; }
};

struct guarded : keel::recipe<keel::clip::global_norm<0.5>, keel::nonfinite::skip<20>,
                              keel::schedule::cosine<keel::schedule::total<200_steps>>,
                              keel::spike::skip<keel::spike::window<32>, keel::spike::in_a_row<20>>, keel::ema<0.9>> {};
struct guarded_by_zscore
    : keel::recipe<keel::clip::zscore<1.0, keel::clip::window<16>>, keel::accumulate<2>, keel::nonfinite::skip<20>> {};
struct scaling : keel::recipe<keel::precision::fp16, keel::nonfinite::skip<20>, keel::clip::global_norm<1.0>,
                              keel::loss_scale::dynamic<keel::loss_scale::initial<1024.0>, keel::loss_scale::growth_interval<3>,
                                                        keel::loss_scale::hysteresis<2>, keel::loss_scale::floor<1e-3>>> {};

/// In double, so that both ways compute by the same operators.
std::shared_ptr<small_module> make_double() {
  auto const model = make_small();
  model->to(at::kDouble);
  return model;
}
pair_batch batch_of(std::uint64_t seed, double scale = 1.0) {
  auto const [x, y] = make_pair_batch(seed);
  return {x.to(at::kDouble), y.to(at::kDouble) * scale};
}

/// Batches that are sound, NaN, infinite, or far off, at random.
std::vector<pair_batch> hostile_batches(int count, std::uint64_t seed) {
  std::mt19937_64 engine(seed);
  std::vector<pair_batch> batches;
  for (int i = 0; i < count; ++i) {
    auto const kind = i < 12 ? 9 : engine() % 12;
    double const scale =
        kind == 0 ? std::numeric_limits<double>::quiet_NaN() : (kind == 1 ? INFINITY : (kind == 2 ? 1e4 : 1.0));
    batches.push_back(batch_of(engine(), scale));
  }
  return batches;
}

template <class Optimizer>
Optimizer make_optimizer(std::shared_ptr<small_module> const& model) {
  if constexpr (std::is_same_v<Optimizer, keel::sgd>) {
    return keel::sgd(model->parameters(), torch::optim::SGDOptions(0.05).momentum(0.9).weight_decay(0.01).nesterov(true));
  } else if constexpr (std::is_same_v<Optimizer, keel::adamw>) {
    return keel::adamw(model->parameters(), torch::optim::AdamWOptions(0.05).weight_decay(0.1).amsgrad(true));
  } else {
    return keel::adam(model->parameters(), torch::optim::AdamOptions(0.05).weight_decay(0.1));
  }
}

std::string word_of(keel::step_outcome const& result) {
  if (auto const* const skipped = result.get_if<keel::result::skipped>()) return to_string(skipped->why) + skipped->where;
  return result.is<keel::result::updated>() ? "updated" : (result.is<keel::result::pending>() ? "pending" : "other");
}

template <class Recipe, class OnHost, class OnDevice, class Optimizer>
void compare_ways(std::uint64_t seed) {
  auto const ours = make_double();
  auto const theirs = make_double();
  auto a = make_optimizer<Optimizer>(ours);
  auto b = make_optimizer<Optimizer>(theirs);
  keel::step<Recipe, OnHost> on_host{ours, a};
  keel::step<Recipe, OnDevice> on_device{theirs, b};
  bool overflows = false;
  auto const overflow = [&](at::Tensor const& gradient) { return overflows ? gradient * INFINITY : gradient; };
  ours->first->weight.register_hook(overflow);
  theirs->first->weight.register_hook(overflow);
  std::mt19937_64 engine(seed);
  std::vector<std::string> known_at_once, known_later;
  for (auto const& batch : hostile_batches(80, seed)) {
    overflows = engine() % 5 == 0;
    auto const now = on_host(batch, mean_squared_error(ours));
    auto const later = on_device(batch, mean_squared_error(theirs));
    if (!now.template is<keel::result::accumulated>()) {
      known_at_once.push_back(word_of(now));
      known_later.push_back(word_of(later));
    }
  }
  REQUIRE(on_device.is_pending());
  known_later.push_back(word_of(*on_device.settle()));
  REQUIRE(known_later.front() == "pending");
  known_later.erase(known_later.begin());
  REQUIRE(known_later == known_at_once);
  REQUIRE(on_host.skipped() > 0);
  REQUIRE(on_device.updates() == on_host.updates());
  REQUIRE(on_device.learning_rate() == on_host.learning_rate());
  REQUIRE(on_device.loss_scale() == on_host.loss_scale());
  REQUIRE(on_device.clip_fraction() == on_host.clip_fraction());
  auto const mine = ours->parameters();
  for (std::size_t i = 0; i < mine.size(); ++i) REQUIRE(at::allclose(mine[i], theirs->parameters()[i], 1e-9, 1e-12));
  if constexpr (keel::config_of<Recipe>.ema.decay > 0.0) {
    for (std::size_t i = 0; i < mine.size(); ++i)
      REQUIRE(at::allclose(on_host.average().averages()[i], on_device.average().averages()[i], 1e-9, 1e-12));
  }
}

/// A model with running statistics.
struct normalized : torch::nn::Module {
  torch::nn::Linear first = register_module("first", torch::nn::Linear(6, 8));
  torch::nn::BatchNorm1d norm = register_module("norm", torch::nn::BatchNorm1d(8));
  torch::nn::Linear second = register_module("second", torch::nn::Linear(8, 1));
  at::Tensor forward(at::Tensor const& x) { return second(norm(first(x))); }
};

}  // namespace

TEST_CASE("decided on the device or on the host, a run takes the same branches to the same parameters") {
  for (std::uint64_t const seed : {1, 2, 3}) {
    compare_ways<guarded, keel::step_environment, on_a_device, keel::adamw>(seed);
    compare_ways<guarded, keel::step_environment, on_a_device, keel::adam>(seed);
    compare_ways<guarded, keel::step_environment, on_a_device, keel::sgd>(seed);
    compare_ways<guarded_by_zscore, keel::step_environment, on_a_device, keel::adamw>(seed);
  }
}

TEST_CASE("the loss scale on the device follows the host's through overflows, hysteresis and growth") {
  for (std::uint64_t const seed : {1, 2, 3}) {
    compare_ways<scaling, scaled_on_host, scaled_on_device, keel::adamw>(seed);
    compare_ways<scaling, scaled_on_host, scaled_on_device, keel::sgd>(seed);
  }
}

TEST_CASE("no_host_read_in_the_steady_state: on a device no number is asked for, and LibTorch for none either way") {
  auto const reads_of = [](auto environment, auto recipe, bool narrow) {
    auto const model = make_small();
    if (narrow) model->to(at::kBFloat16);
    keel::adamw optimizer(model->parameters(), torch::optim::AdamWOptions(1e-3));
    scratch_directory directory;
    keel::trainer<decltype(recipe), decltype(environment)> run{model, optimizer,
                                                               quiet({.run_directory = directory.path(), .updates = 100})};
    auto const loss_of = [&](pair_batch const& batch) {
      auto const type = model->first->weight.scalar_type();
      return (model->forward(batch.first.to(type)) - batch.second.to(type)).square().mean();
    };
    run.step(make_pair_batch(1), loss_of);
    run.step(make_pair_batch(2), loss_of);
    host_reads const reads;
    for (std::uint64_t seed = 3; seed < 40; ++seed) run.step(make_pair_batch(seed), loss_of);
    return reads.count().load();
  };
  struct adaptive : keel::recipe<keel::clip::adaptive<0.01>> {};
  struct summing : keel::recipe<keel::accumulate<2>, keel::accept<"P06">> {};
  reads_counted::reads = 0;
  CHECK(reads_of(reads_counted_on_a_device{}, guarded{}, false) == 0);
  CHECK(reads_counted::reads == 0);
  CHECK(reads_of(reads_counted{}, guarded{}, false) == 0);
  CHECK(reads_counted::reads == 39);
  CHECK(reads_of(keel::environment{}, adaptive{}, false) == 0);
  CHECK(reads_of(on_a_device{}, summing{}, true) == 0);
  // The count can see one.
  host_reads const reads;
  static_cast<void>(at::ones({}).item<double>());
  CHECK(reads.count() == 1);
}

TEST_CASE("what the host learns later is raised later, with the parameters of the last good update") {
  auto const model = make_double();
  keel::adamw optimizer(model->parameters(), torch::optim::AdamWOptions(0.05));
  keel::step<keel::recipe<>, on_a_device> step{model, optimizer};
  auto const loss_of = mean_squared_error(model);
  CHECK(step(batch_of(1), loss_of).is<keel::result::pending>());
  CHECK(step(batch_of(2), loss_of).is<keel::result::updated>());
  step.settle();
  auto const before = copies_of(model->parameters());
  auto const moments = image_of(*model, optimizer);
  step(batch_of(3, std::numeric_limits<double>::quiet_NaN()), loss_of);
  CHECK(same_bits(model->parameters(), before));
  CHECK_THROWS_AS(step(batch_of(4), loss_of), keel::nonfinite_error);
  CHECK(same_bits(model->parameters(), before));
  CHECK(same_bits(image_of(*model, optimizer), moments));
  CHECK(step.updates() == 2);
  // The step is usable again.
  step(batch_of(5), loss_of);
  CHECK(step.settle()->is<keel::result::updated>());
}

TEST_CASE("a run that is decided on the device is recorded, saved and resumed like any other") {
  struct saving : keel::recipe<keel::clip::global_norm<0.5>, keel::nonfinite::skip<20>, keel::checkpoint::every<4_steps>> {};
  auto batches = hostile_batches(30, 8);
  auto const run_for = [&](std::filesystem::path const& directory, auto environment, std::vector<int> const& stops) {
    auto const model = make_double();
    for (std::size_t part = 0; part <= stops.size(); ++part) {
      keel::adamw optimizer(model->parameters(), torch::optim::AdamWOptions(0.05));
      keel::trainer<saving, decltype(environment)> run{model, optimizer, quiet({.run_directory = directory})};
      if (part < stops.size()) {
        run.on([&](keel::event::micro_batch_begin const& e) {
          if (e.update == stops[part]) run.request_stop();
        });
      }
      run.fit(batches, mean_squared_error(model));
    }
    return copies_of(model->parameters());
  };
  scratch_directory const on_host, on_device, resumed;
  auto const expected = run_for(on_host, keel::environment{}, {});
  auto const whole = run_for(on_device, on_a_device{}, {});
  auto const in_parts = run_for(resumed, on_a_device{}, {5, 13});
  CHECK(same_bits(whole, in_parts));
  for (std::size_t i = 0; i < whole.size(); ++i) CHECK(at::allclose(whole[i], expected[i], 1e-9, 1e-12));
  auto const lines = read_lines(on_device / "metrics.jsonl");
  REQUIRE(lines.size() == 30);
  CHECK(timeless_metrics(on_device).size() == timeless_metrics(resumed).size());
  for (std::size_t i = 0; i < lines.size(); ++i) {
    auto const one = nlohmann::json::parse(lines[i]);
    auto const other = nlohmann::json::parse(read_lines(on_host / "metrics.jsonl")[i]);
    REQUIRE(one["update"] == other["update"]);
    REQUIRE(one["epoch"] == other["epoch"]);
    REQUIRE(one["lr"] == other["lr"]);
    REQUIRE(one.contains("skipped_because") == other.contains("skipped_because"));
  }
}

TEST_CASE("a hook that looks at gradients or losses is told at once, and the device decides as ever") {
  auto const model = make_double();
  keel::adamw optimizer(model->parameters(), torch::optim::AdamWOptions(0.05));
  keel::trainer<keel::recipe<>, on_a_device> run{model, optimizer, quiet()};
  int seen = 0;
  run.on([&](keel::event::gradients_ready const& e) { seen += std::isfinite(e.norm) ? 1 : 0; });
  run.on([&](keel::event::micro_batch_end const& e) { REQUIRE(std::isfinite(e.loss)); });
  CHECK(run.step(batch_of(1), mean_squared_error(model)).is<keel::result::pending>());
  CHECK(seen == 1);
  CHECK(run.step(batch_of(2), mean_squared_error(model)).is<keel::result::updated>());
  CHECK(seen == 2);
}

TEST_CASE("batch norm's running statistics go back with an update that the device left out") {
  torch::nn::Sequential model(torch::nn::Linear(6, 4), torch::nn::BatchNorm1d(4), torch::nn::Linear(4, 1));
  keel::adamw optimizer(model->parameters(), torch::optim::AdamWOptions(0.05));
  keel::step<keel::recipe<keel::nonfinite::skip<3>>, on_a_device> step{model, optimizer};
  auto const loss_of = [&](pair_batch const& batch) { return at::mse_loss(model->forward(batch.first), batch.second); };
  step(make_pair_batch(1), loss_of);
  auto const before = copies_of(model->buffers());
  auto bad = make_pair_batch(2);
  bad.first[0][0] = std::numeric_limits<float>::quiet_NaN();
  step(bad, loss_of);
  CHECK(same_bits(model->buffers(), before));
  step(make_pair_batch(3), loss_of);
  CHECK(!same_bits(model->buffers(), before));
  CHECK(step.settle()->is<keel::result::updated>());
  CHECK(step.skipped() == 1);
}

TEST_CASE("an update that is being closed is no boundary: a hook cannot save half of it, whoever decides") {
  struct saving : keel::recipe<keel::checkpoint::every<3_steps>, keel::nonfinite::skip<20>> {};
  scratch_directory const directory;
  auto const model = make_double();
  keel::adamw optimizer(model->parameters(), torch::optim::AdamWOptions(0.05));
  keel::trainer<saving, on_a_device> run{model, optimizer, quiet({.run_directory = directory.path()})};
  int refused = 0;
  run.on([&](keel::event::update_end const&) {
    try {
      run.save();
    } catch (keel::error const& thrown) {
      refused += thrown.id() == "S16" ? 1 : 0;
    }
  });
  run.fit(hostile_batches(30, 8), mean_squared_error(model));
  CHECK(refused == 30);
}

TEST_CASE("a window's milliseconds are its own from the first update on, and a loop of one's own can settle") {
  scratch_directory const directory;
  auto const model = make_double();
  keel::adamw optimizer(model->parameters(), torch::optim::AdamWOptions(0.05));
  keel::trainer<keel::recipe<>, on_a_device> run{model, optimizer, quiet({.run_directory = directory.path()})};
  for (std::uint64_t seed = 0; seed < 3; ++seed) run.step(batch_of(seed), mean_squared_error(model));
  CHECK(run.updates() == 2);
  CHECK(run.settle()->is<keel::result::updated>());
  CHECK(run.updates() == 3);
  CHECK_FALSE(run.flush().has_value());
  auto const lines = read_lines(directory / "metrics.jsonl");
  REQUIRE(lines.size() == 3);
  for (auto const& line : lines) CHECK(nlohmann::json::parse(line)["ms"].get<double>() < 60000.0);
}

TEST_CASE("momentum that an update left out had begun begins anew, also after a save in between") {
  auto const after = [](bool resumes) {
    auto const model = make_double();
    auto const options = torch::optim::SGDOptions(0.05).momentum(0.9).dampening(0.5);
    auto optimizer = std::make_unique<keel::sgd>(model->parameters(), options);
    keel::step<keel::recipe<keel::nonfinite::skip<3>>, on_a_device> first{model, *optimizer};
    first(batch_of(1, std::numeric_limits<double>::quiet_NaN()), mean_squared_error(model));
    first.settle();
    auto const image = image_of(*model, *optimizer);
    keel::sgd loaded(model->parameters(), options);
    if (resumes) {
      keel::load_optimizer(loaded, keel::collect_parameters(*model, loaded), nlohmann::json::parse(image.options),
                           image.moments, "a test");
    }
    keel::step<keel::recipe<>, on_a_device> second{model, resumes ? loaded : *optimizer};
    second(batch_of(2), mean_squared_error(model));
    second.settle();
    return copies_of(model->parameters());
  };
  CHECK(same_bits(after(true), after(false)));
}

TEST_CASE("the average of buffers is that of the update, where updates are decided on a device and a batch is NaN") {
  struct averaging : keel::recipe<keel::clip::global_norm<1.0>, keel::nonfinite::skip<5>, keel::ema<0.5, keel::ema_buffers>> {};
  auto const train = [](auto environment) {
    keel::libtorch::seed_random(at::kCPU, 1);
    auto const model = std::make_shared<normalized>();
    keel::adamw optimizer(model->parameters(), 0.01);
    keel::step<averaging, typename decltype(environment)::type> step{model, optimizer};
    for (std::uint64_t i = 0; i < 9; ++i) {
      auto batch = make_pair_batch(i);
      if (i == 4) batch.first.fill_(std::numeric_limits<double>::quiet_NaN());
      step(batch, [&](pair_batch const& b) { return at::mse_loss(model->forward(b.first.cpu()), b.second.cpu()); });
    }
    if (step.is_pending()) step.settle();
    return copies_of(step.average().averages());
  };
  auto const expected = train(std::type_identity<keel::environment>());
  auto const found = train(std::type_identity<on_a_device>());
  REQUIRE(found.size() == expected.size());
  for (std::size_t i = 0; i < found.size(); ++i) CHECK(at::allclose(found[i], expected[i], 1e-6, 1e-9));
  for (at::Tensor const& one : found) CHECK(one.isfinite().all().item<bool>());
}

TEST_CASE("a gradient whose square is infinite is skipped on a device as on the host, in the same words") {
  struct skipping : keel::recipe<keel::nonfinite::skip<10>> {};
  auto const train = [](auto of_device) {
    auto const model = make_small();
    keel::adamw optimizer(model->parameters(), 0.01);
    keel::step<skipping, decltype(of_device)> step{model, optimizer};
    auto const launched =
        step(make_pair_batch(1), [&](pair_batch const& batch) { return mean_squared_error(model)(batch) * 1e22; });
    auto const outcome = step.settle().value_or(launched);
    REQUIRE(outcome.skipped() != nullptr);
    CHECK(outcome.skipped()->why == keel::reason::nonfinite_gradient);
    step(make_pair_batch(2), mean_squared_error(model));
    step.settle();
    CHECK(step.updates() == 1);
    return std::make_pair(outcome.skipped()->origin, copies_of(model->parameters()));
  };
  auto const on_host = train(keel::environment()), on_device = train(on_a_device());
  CHECK(on_device.first == on_host.first);
  for (std::size_t i = 0; i < on_host.second.size(); ++i) CHECK(at::allclose(on_device.second[i], on_host.second[i], 1e-5, 1e-7));
}
