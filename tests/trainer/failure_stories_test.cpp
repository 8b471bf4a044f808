// What went wrong elsewhere, one promise a story: a resume that forgets, shifts or repeats something. The same of files is in
// tests/checkpoint, of saves beside training in asynchronous_test.cpp, of the data's order in shuffled_batches_test.cpp.
#include "../support.hpp"

#include <map>
#include <range/v3/view/iota.hpp>
#include <range/v3/view/transform.hpp>
#include <keel/checkpoint/optimizer_state.hpp>

using namespace keel_test;
using namespace keel::literals;

namespace {

namespace checkpoint = keel::checkpoint;

/// Claims fp16 kernels and computes in fp32, so that there is a loss scale to lose on any machine.
struct scaled_in_fp32 : keel::environment {
  bool computes_in_half(at::DeviceType) const override { return true; }
  bool computes_in_bfloat16(at::DeviceType) const override { return true; }
  keel::precision::kind autocast(keel::precision::kind) const override { return keel::precision::kind::fp32; }
};

struct everything : keel::recipe<keel::precision::fp16, keel::loss_scale::dynamic<keel::loss_scale::initial<1024.0>, keel::loss_scale::growth_interval<3>>,
                                 keel::clip::zscore<4.0, keel::clip::window<4>>, keel::nonfinite::skip<5>, keel::ema<0.9>,
                                 keel::schedule::cosine<keel::schedule::warmup<6_steps>>, checkpoint::every<1_steps>, keel::determinism::seeded<4>> {};

constexpr std::int64_t length = 12;

struct trace {
  std::map<std::int64_t, double> rate, scale;
  std::vector<std::string> record;
  std::vector<at::Tensor> parameters;
};

/// Three batches an epoch, in an order that the epoch decides; `stops`: after so many windows of each call.
template <class Recipe = everything, class Environment = scaled_in_fp32>
trace go(std::filesystem::path const& directory, int stops, std::function<at::Tensor(pair_batch const&, small_module&)> loss = {}) {
  keel::seed<Recipe>();
  auto const model = std::make_shared<small_module>(0.3);
  torch::optim::AdamW optimizer(model->parameters(), 0.05);
  keel::trainer<Recipe, Environment> run{model, optimizer, quiet({.run_directory = directory, .updates = length})};
  trace seen;
  int windows = 0;
  run.on([&](keel::event::update_end const& e) {
    seen.rate[e.update] = run.learning_rate();
    seen.scale[e.update] = run.loss_scale();
    if (++windows == stops) run.request_stop();
  });
  auto const batches = [](std::int64_t epoch) {
    return ranges::views::iota(0, 3) | ranges::views::transform([epoch](int i) { return make_pair_batch(static_cast<std::uint64_t>(10 * epoch + (i + epoch) % 3)); });
  };
  run.fit(batches, [&](pair_batch const& batch) { return loss ? loss(batch, *model) : mean_squared_error(model)(batch); });
  seen.record = timeless_metrics(directory);
  seen.parameters = copies_of(model->parameters());
  return seen;
}

/// Stopped after every so many windows until it is at its end; the union of what was seen.
template <class Recipe = everything, class Environment = scaled_in_fp32>
trace in_pieces(std::filesystem::path const& directory, int stops) {
  trace all;
  for (int i = 0; i < length; ++i) {
    trace one = go<Recipe, Environment>(directory, stops);
    all.rate.merge(one.rate);
    all.scale.merge(one.scale);
    all.record = one.record;
    all.parameters = one.parameters;
  }
  return all;
}

}  // namespace

TEST_CASE("scaler_state_lost: the loss scale of every update is that of a run that was not stopped") {
  scratch_directory const directory;
  auto const expected = go(directory / "whole", 1 << 20);
  CHECK(expected.scale.at(length) > 1024.0);
  for (int const stops : {1, 2, 5}) {
    auto const got = in_pieces(directory / std::to_string(stops), stops);
    CHECK(got.scale == expected.scale);
    CHECK(same_bits(got.parameters, expected.parameters));
  }
}

TEST_CASE("lr_warmup_restarted: the learning rate of every update is that of a run that was not stopped, in the warm-up and after") {
  scratch_directory const directory;
  auto const expected = go(directory / "whole", 1 << 20);
  for (int const stops : {1, 2, 5}) {
    auto const got = in_pieces(directory / std::to_string(stops), stops);
    CHECK(got.rate == expected.rate);
    CHECK(got.record == expected.record);
  }
}

TEST_CASE("scheduler_saved_before_the_update: rate, moments and counters of a checkpoint belong to one update") {
  scratch_directory const directory;
  go(directory / "run", 7);
  auto const saved = keel::checkpoint_store(directory / "run/checkpoints").load(7);
  auto const& step = saved.state["run"]["step"];
  CHECK(step["updates"] == 7);
  CHECK(step["schedule"]["position"] == 7);
  CHECK(step["average"]["taken"] == 7);
  for (auto const& [name, state] : saved.state["optimizer"]["state"].items()) CHECK(state["step"] == 7);
  CHECK(saved.state["run"]["record"]["attempts"] == 7);
}

TEST_CASE("optimizer_rebuilt_around_a_load: an optimizer built before or after the model's values were loaded has the saved moments, and one that replaces it later is rejected") {
  scratch_directory const directory;
  struct plain : keel::recipe<checkpoint::every<1_steps>, keel::determinism::seeded<4>> {};
  auto const expected = go<plain, keel::environment>(directory / "whole", 1 << 20);
  go<plain, keel::environment>(directory / "run", 5);
  // Values from the newest checkpoint first, then the optimizer, then the trainer, which loads all of it again.
  auto const model = std::make_shared<small_module>(0.3);
  keel::load_model(*model, keel::checkpoint_store(directory / "run/checkpoints").load(5).model, "the checkpoint");
  torch::optim::AdamW optimizer(model->parameters(), 0.05);
  keel::trainer<plain> run{model, optimizer, quiet({.run_directory = directory / "run", .updates = length})};
  REQUIRE(run.resume());
  CHECK(keel::checkpoint_store(directory / "run/checkpoints").load(5).optimizer.size() == image_of(*model, optimizer).moments.size());
  auto const batches = [](std::int64_t epoch) {
    return ranges::views::iota(0, 3) | ranges::views::transform([epoch](int i) { return make_pair_batch(static_cast<std::uint64_t>(10 * epoch + (i + epoch) % 3)); });
  };
  run.fit(batches, mean_squared_error(model));
  CHECK(same_bits(copies_of(model->parameters()), expected.parameters));
}

TEST_CASE("state_matched_by_position: layers registered in another order take their own moments, or are rejected by name") {
  scratch_directory const directory;
  struct plain : keel::recipe<checkpoint::every<1_steps>> {};
  struct two_layers : torch::nn::Module {
    explicit two_layers(bool swapped) {
      // The same shapes, so that nothing but the names can tell them apart.
      if (swapped) {
        b = register_module("b", torch::nn::Linear(6, 6));
        a = register_module("a", torch::nn::Linear(6, 6));
      } else {
        a = register_module("a", torch::nn::Linear(6, 6));
        b = register_module("b", torch::nn::Linear(6, 6));
      }
    }
    torch::nn::Linear a{nullptr}, b{nullptr};
  };
  auto const train = [&](bool swapped, std::string const& name, std::int64_t updates) {
    keel::libtorch::seed_random(at::kCPU, 8);
    auto const model = std::make_shared<two_layers>(swapped);
    torch::optim::AdamW optimizer(model->parameters(), 0.05);
    keel::trainer<plain> run{model, optimizer, quiet({.run_directory = directory / name, .updates = updates})};
    run.fit([](std::int64_t epoch) { return std::vector<pair_batch>{make_pair_batch(static_cast<std::uint64_t>(epoch))}; },
            [&](pair_batch const& batch) { return at::mse_loss(model->b(at::tanh(model->a(batch.first))).sum(1, true), batch.second); });
    return copies_of({model->a->weight, model->b->weight});
  };
  train(false, "run", 4);
  try {
    train(true, "run", 8);
    FAIL("moments in another order were accepted");
  } catch (keel::checkpoint_error const& thrown) {
    CHECK(thrown.id() == "E04");
    CHECK(std::string(thrown.what()).find("in the same order") != std::string::npos);
  }
}

TEST_CASE("saved_on_one_device_loaded_on_another: moments come to where the parameters are") {
  if (!at::hasCUDA()) {
    WARN("SKIPPED: there is no second device");
    return;
  }
  auto const host = make_small();
  torch::optim::AdamW from(host->parameters(), 0.1);
  mean_squared_error(host)(make_pair_batch(1)).backward();
  from.step();
  nlohmann::json object;
  keel::tensor_map tensors;
  keel::save_optimizer(from, keel::collect_parameters(*host, from), object, tensors);
  auto const device = make_small();
  device->to(at::kCUDA);
  torch::optim::AdamW to(device->parameters(), 0.1);
  keel::load_optimizer(to, keel::collect_parameters(*device, to), object, tensors, "a test");
  for (auto const& [name, tensor] : image_of(*device, to).moments) CHECK((!tensor.is_floating_point() || tensor.is_cuda()));
}

TEST_CASE("rng_not_restored: the first number that anybody draws after a resume is the one that comes next, and nobody draws between") {
  scratch_directory const directory;
  struct plain : keel::recipe<checkpoint::every<1_steps>, keel::determinism::seeded<4>> {};
  for (std::int64_t const stop : {1, 2, 3, 4}) {
    auto const next_number = [&](std::filesystem::path const& where, bool stops) {
      keel::seed<plain>();
      auto const model = std::make_shared<small_module>(0.3);
      torch::optim::AdamW optimizer(model->parameters(), 0.05);
      keel::trainer<plain> run{model, optimizer, quiet({.run_directory = where, .updates = 6})};
      double drawn = 0.0;
      run.on([&](keel::event::micro_batch_begin const& e) {
        if (e.update == stop && drawn == 0.0) drawn = at::rand({1}).item<double>();
      });
      run.on([&](keel::event::update_end const& e) {
        if (stops && e.update == stop) run.request_stop();
      });
      run.fit([](std::int64_t epoch) { return std::vector<pair_batch>(2, make_pair_batch(static_cast<std::uint64_t>(epoch))); }, mean_squared_error(model));
      return drawn;
    };
    double const expected = next_number(directory / ("whole" + std::to_string(stop)), false);
    CHECK(next_number(directory / std::to_string(stop), true) == 0.0);
    CHECK(next_number(directory / std::to_string(stop), false) == expected);
  }
}

TEST_CASE("resume_in_a_later_epoch and epoch_boundary: stopped one window before, at and after every epoch's end, the order is that epoch's and none is left out") {
  scratch_directory const directory;
  auto const expected = go(directory / "whole", 1 << 20);
  // Epochs end with windows 3, 6, 9 and 12.
  for (int first = 1; first < length; ++first) {
    auto const where = directory / std::to_string(first);
    go(where, first);
    auto const got = go(where, 1 << 20);
    CHECK(got.record == expected.record);
    CHECK(same_bits(got.parameters, expected.parameters));
  }
}

TEST_CASE("data_ratio_bias_after_a_resume: a mixture of two sources keeps its ratio, however often it is stopped") {
  scratch_directory const directory;
  struct plain : keel::recipe<checkpoint::every<1_steps>> {};
  // Two of three batches are of the first source.
  keel::shuffled_batches const order{{.rows = 30, .batch = 1, .seed = 3}};
  std::map<std::int64_t, int> seen;
  for (int i = 0; i < 40; ++i) {
    auto const model = make_small();
    torch::optim::AdamW optimizer(model->parameters(), 0.05);
    keel::trainer<plain> run{model, optimizer, quiet({.run_directory = directory / "run", .updates = 60})};
    int windows = 0;
    run.on([&](keel::event::update_end const&) {
      if (++windows == 1 + i % 3) run.request_stop();
    });
    run.fit(order, [&](keel::row_numbers const& rows) {
      ++seen[rows[0] < 20 ? 1 : 2];
      return mean_squared_error(model)(make_pair_batch(static_cast<std::uint64_t>(rows[0])));
    });
  }
  CHECK(seen[1] == 40);
  CHECK(seen[2] == 20);
}
