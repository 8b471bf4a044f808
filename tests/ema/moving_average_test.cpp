#include "../support.hpp"

using namespace keel_test;
using namespace keel::literals;

namespace {
keel::step_outcome const updated = keel::result::updated{};
keel::step_outcome const skipped = keel::result::skipped{keel::reason::nonfinite_loss, ""};
}  // namespace

TEST_CASE("a moving average is the published one, in fp32 for narrow parameters") {
  for (auto const dtype : {at::kFloat, at::kBFloat16}) {
    at::Tensor const parameter = at::ones({3}, dtype);
    keel::moving_average average({parameter}, 0.9);
    double expected = 1.0;
    for (int i = 0; i < 50; ++i) {
      parameter.add_(0.25);
      average.update(updated);
      expected = 0.9 * expected + 0.1 * parameter[0].item<double>();
    }
    CHECK(average.averages()[0].scalar_type() == at::kFloat);
    CHECK(average.averages()[0][2].item<double>() == Approx(expected).epsilon(1e-5));
  }
}

TEST_CASE("a skipped step leaves a moving average as it is, by rule M03") {
  at::Tensor const parameter = at::ones({3});
  keel::moving_average average({parameter}, 0.5);
  parameter.add_(1.0);
  average.update(skipped);
  CHECK(at::equal(average.averages()[0], at::ones({3})));
  average.update(updated);
  CHECK(at::equal(average.averages()[0], at::full({3}, 1.5)));
}

TEST_CASE("the average is in the parameters for a scope, and an update or a second swap in it is rejected by rule M04") {
  for (auto const dtype : {at::kFloat, at::kHalf}) {
    at::Tensor const parameter = at::ones({3}, dtype);
    keel::moving_average average({parameter}, 0.5);
    parameter.fill_(3.0);
    average.update(updated);
    at::Tensor const kept = average.averages()[0].clone();
    {
      auto const averaged = average.swap_in();
      CHECK(at::equal(parameter, at::full({3}, 2.0).to(dtype)));
      for (auto const& misuse : {std::function<void()>([&] { average.update(updated); }),
                                 std::function<void()>([&] { auto const twice = average.swap_in(); })}) {
        try {
          misuse();
          FAIL("the average was trained");
        } catch (keel::error const& thrown) {
          CHECK(thrown.id() == "M04");
        }
      }
    }
    CHECK(at::equal(parameter, at::full({3}, 3.0).to(dtype)));
    CHECK(same_bits(kept, average.averages()[0]));
    CHECK_FALSE(average.is_swapped_in());
  }
}

TEST_CASE("a decay outside (0, 1) is rejected by rule M10") {
  for (double const decay : {0.0, 1.0, -0.5, std::numeric_limits<double>::quiet_NaN()}) {
    CHECK_THROWS_AS(keel::moving_average({at::ones({1})}, decay), keel::error);
  }
}

namespace {
struct averaging : keel::recipe<keel::ema<0.9>, keel::nonfinite::skip<3>, keel::checkpoint::every<5_steps>> {};
}  // namespace

TEST_CASE("a recipe's average follows the applied updates, is saved and resumed, and is in the model for a scope alone") {
  scratch_directory const whole, parts;
  auto const batches = [] {
    std::vector<pair_batch> all;
    for (std::uint64_t seed = 0; seed < 20; ++seed) all.push_back(make_pair_batch(seed));
    all[7].first[0][0] = NAN;
    return all;
  }();
  auto const train = [&](std::filesystem::path const& directory, std::vector<std::int64_t> const& stops) {
    std::vector<at::Tensor> averages;
    for (std::size_t part = 0; part <= stops.size(); ++part) {
      auto const model = make_small();
      keel::adamw optimizer(model->parameters(), torch::optim::AdamWOptions(0.05));
      keel::trainer<averaging> run{model, optimizer, quiet({.run_directory = directory})};
      std::vector<at::Tensor> reference = copies_of(model->parameters());
      run.on([&](keel::event::update_end const& e) {
        if (part < stops.size() && e.update == stops[part]) run.request_stop();
        if (!e.result.is<keel::result::updated>() || !stops.empty()) return;
        // At this event the update is there and its average too.
        for (std::size_t i = 0; i < reference.size(); ++i)
          reference[i] = reference[i] * 0.9 + model->parameters()[i].detach() * 0.1;
      });
      run.fit(batches, mean_squared_error(model));
      auto const trained = copies_of(model->parameters());
      {
        auto const scope = run.averaged();
        averages = copies_of(model->parameters());
        CHECK_THROWS_AS(run.averaged(), keel::error);
        CHECK_THROWS_AS(run.save(), keel::error);
        CHECK_THROWS_AS(run.step(batches[0], mean_squared_error(model)), keel::error);
        CHECK(same_bits(copies_of(model->parameters()), averages));
      }
      CHECK(same_bits(copies_of(model->parameters()), trained));
      auto const file = directory / "averaged.safetensors";
      keel::save_weights(file, run.averaged());
      CHECK(same_bits(copies_of(model->parameters()), trained));
      auto const exported = make_small();
      keel::load_weights(*exported, file);
      CHECK(same_bits(copies_of(exported->parameters()), averages));
      if (stops.empty()) {
        for (std::size_t i = 0; i < reference.size(); ++i) CHECK(at::allclose(averages[i], reference[i], 1e-4, 1e-6));
      }
    }
    return averages;
  };
  auto const expected = train(whole, {});
  CHECK(same_bits(train(parts, {3, 11}), expected));
}

TEST_CASE("the average that is put into the model inside a window is rejected before anything moves, by rule M04") {
  auto const model = make_small();
  keel::adamw optimizer(model->parameters(), torch::optim::AdamWOptions(0.05));
  keel::step<keel::recipe<keel::accumulate<2>, keel::ema<0.9>>> step{model, optimizer};
  step(make_pair_batch(1), mean_squared_error(model));
  auto const before = copies_of(model->parameters());
  {
    auto const scope = step.average().swap_in();
    CHECK_THROWS_AS(step.flush(), keel::error);
    CHECK_THROWS_AS(step(make_pair_batch(2), mean_squared_error(model)), keel::error);
  }
  CHECK(same_bits(model->parameters(), before));
  CHECK(step.updates() == 0);
  CHECK(optimizer.state().empty());
}

TEST_CASE("a mechanism that an accepted change of the recipe brings begins anew, and the rest goes on") {
  struct before : keel::recipe<keel::clip::global_norm<1.0>, keel::checkpoint::every<5_steps>> {};
  struct after
      : keel::recipe<keel::clip::zscore<3.0>, keel::ema<0.9>, keel::schedule::plateau<keel::schedule::patience<10_steps>>, keel::checkpoint::every<5_steps>> {};
  scratch_directory const directory;
  auto const model = make_small();
  std::vector<pair_batch> batches;
  for (std::uint64_t seed = 0; seed < 10; ++seed) batches.push_back(make_pair_batch(seed));
  {
    keel::adamw optimizer(model->parameters(), torch::optim::AdamWOptions(0.05));
    keel::trainer<before> run{model, optimizer, quiet({.run_directory = directory.path()})};
    run.fit(batches, mean_squared_error(model));
  }
  auto const trained = copies_of(model->parameters());
  auto const other = make_small(7);
  keel::adamw optimizer(other->parameters(), torch::optim::AdamWOptions(0.05));
  keel::trainer<after> run{other, optimizer,
                           quiet({.run_directory = directory.path(), .updates = 11, .accept_changed_recipe = true})};
  REQUIRE(run.resume());
  CHECK(run.updates() == 10);
  CHECK(same_bits(other->parameters(), trained));
  run.fit([&](std::int64_t) { return batches; }, mean_squared_error(other));
  CHECK(run.updates() == 11);
  auto const updated = copies_of(other->parameters());
  auto const scope = run.averaged();
  for (std::size_t i = 0; i < trained.size(); ++i)
    CHECK(at::allclose(other->parameters()[i], trained[i] * 0.9 + updated[i] * 0.1, 1e-5, 1e-7));
}
