#include "../support.hpp"

#include <torch/data/dataloader.h>
#include <torch/data/datasets/base.h>
#include <torch/data/datasets/map.h>
#include <torch/data/samplers/random.h>
#include <torch/data/transforms/stack.h>

#include <range/v3/view/iota.hpp>
#include <range/v3/view/transform.hpp>
#include <set>

using namespace keel_test;
using namespace keel::literals;

namespace {

struct recipe : keel::recipe<keel::checkpoint::every<1_steps, keel::checkpoint::keep<3>>, keel::clip::global_norm<1.0>, keel::accumulate<2>,
                             keel::nonfinite::skip<4>, keel::determinism::seeded<5>,
                             keel::schedule::cosine<keel::schedule::warmup<3_steps>>> {};

constexpr std::int64_t length = 12;

/// Five batches an epoch, in an order that the epoch decides; a window of two crosses epochs.
auto epoch_of(std::int64_t epoch) {
  return ranges::views::iota(0, 5) |
         ranges::views::transform([epoch](int i) { return make_pair_batch(static_cast<std::uint64_t>(epoch * 100 + (i * 3 + epoch) % 5)); });
}

struct run_result {
  std::vector<at::Tensor> parameters;
  optimizer_image optimizer;
  std::vector<std::string> metrics;
};

/// Runs in a directory until `stop_after` windows of this call, or to the end.
template <class Batches>
run_result go(std::filesystem::path const& directory, Batches&& batches, int stop_after = 1 << 20) {
  keel::seed<recipe>();
  auto const model = std::make_shared<small_module>(0.3);
  torch::optim::AdamW optimizer(model->parameters(), 0.05);
  keel::trainer<recipe> run{model, optimizer, quiet({.run_directory = directory, .updates = length})};
  int windows = 0;
  run.on([&](keel::event::update_end const&) {
    if (++windows == stop_after) run.request_stop();
  });
  run.fit(batches, [&](auto const& batch) {
    if constexpr (requires { batch.data; }) {
      return at::mse_loss(model->forward(batch.data), batch.target);
    } else {
      at::Tensor const loss = mean_squared_error(model)(batch);
      // One window in the middle is skipped, so that counters and data positions part ways.
      return run.updates() == 5 && run.skipped() == 0 ? loss * NAN : loss;
    }
  });
  return {copies_of(model->parameters()), image_of(*model, optimizer), timeless_metrics(directory)};
}

void check_same(run_result const& a, run_result const& b) {
  CHECK(same_bits(a.parameters, b.parameters));
  CHECK(same_bits(a.optimizer, b.optimizer));
  CHECK(a.metrics == b.metrics);
}

}  // namespace

TEST_CASE("killed_at_every_step: a run stopped after any number of windows and continued has the bits of one that was not") {
  scratch_directory const whole;
  auto const expected = go(whole / "run", epoch_of);
  REQUIRE(expected.metrics.size() == length + 1);
  for (int stop = 1; stop <= length; ++stop) {
    scratch_directory const directory;
    go(directory / "run", epoch_of, stop);
    check_same(go(directory / "run", epoch_of), expected);
  }
}

TEST_CASE("resume_twice_in_one_epoch: stopped after every single window, with dropout on") {
  scratch_directory const whole;
  auto const expected = go(whole / "run", epoch_of);
  scratch_directory const directory;
  for (int i = 0; i < 12; ++i) go(directory / "run", epoch_of, 1);
  check_same(go(directory / "run", epoch_of), expected);
}

namespace {
struct numbered_dataset : torch::data::datasets::Dataset<numbered_dataset> {
  torch::data::Example<> get(std::size_t index) override {
    at::Tensor const x = at::full({6}, static_cast<double>(index) / 40.0);
    return {x, x.sum().view({1})};
  }
  c10::optional<std::size_t> size() const override { return 30; }
};
auto make_loader() {
  return torch::data::make_data_loader<torch::data::samplers::RandomSampler>(
      numbered_dataset().map(torch::data::transforms::Stack<>()), torch::data::DataLoaderOptions(4));
}
}  // namespace

TEST_CASE("data_order_of_a_shuffling_loader survives a resume in the middle of an epoch") {
  scratch_directory const whole;
  auto const expected = go(whole / "run", *make_loader());
  for (int const stop : {1, 3, 4, 5, 9}) {
    scratch_directory const directory;
    go(directory / "run", *make_loader(), stop);
    check_same(go(directory / "run", *make_loader()), expected);
  }
}

TEST_CASE("a finished run that is started again says so and changes nothing") {
  scratch_directory const directory;
  auto const first = go(directory / "run", epoch_of);
  check_same(go(directory / "run", epoch_of), first);
}

TEST_CASE("a resume says that weights of the program, or weights_from, give way to the checkpoint") {
  scratch_directory const directory;
  auto const expected = go(directory / "run", epoch_of, 3);
  auto const words_of = [&](keel::trainer_options options) {
    std::FILE* const console = std::tmpfile();
    auto const model = std::make_shared<small_module>(0.7);
    torch::optim::AdamW optimizer(model->parameters(), 0.05);
    options.run_directory = directory / "run";
    options.updates = length;
    options.console = console;
    keel::trainer<recipe> run{model, optimizer, std::move(options)};
    CHECK(run.resume());
    CHECK(same_bits(copies_of(model->parameters()), expected.parameters));
    std::rewind(console);
    char letters[1024] = {};
    std::string const words(letters, std::fread(letters, 1, sizeof letters, console));
    std::fclose(console);
    return words;
  };
  CHECK(words_of({}).find("replacing the parameters of the program's model") != std::string::npos);
  CHECK(words_of({.weights_from = directory / "run"}).find("ignoring options.weights_from") != std::string::npos);
}

TEST_CASE("a run that is shorter than its checkpoint is rejected by rule S19") {
  scratch_directory const directory;
  struct flat : keel::recipe<keel::checkpoint::every<1_steps>> {};
  auto const run_for = [&](std::int64_t updates) {
    auto const model = make_small();
    torch::optim::SGD optimizer(model->parameters(), 0.1);
    keel::trainer<flat> run{model, optimizer, quiet({.run_directory = directory / "run", .updates = updates})};
    run.fit(epoch_of, mean_squared_error(model));
  };
  run_for(4);
  try {
    run_for(3);
    FAIL("nothing trained, and nobody said so");
  } catch (keel::error const& thrown) {
    CHECK(thrown.id() == "S19");
  }
  CHECK_NOTHROW(run_for(6));
}

TEST_CASE("a checkpoint of another recipe, length, model or optimizer is rejected by name, and accepted where that is asked for") {
  scratch_directory const directory;
  auto const expected = go(directory / "run", epoch_of, 4);
  auto const refusal = [&](auto make_run) {
    try {
      make_run();
    } catch (keel::checkpoint_error const& thrown) {
      return std::string(thrown.what());
    }
    return std::string("accepted");
  };
  auto const start = [&]<class Recipe>(Recipe*, auto model, auto& optimizer, keel::trainer_options options) {
    options.run_directory = directory / "run";
    keel::trainer<Recipe> run{model, optimizer, quiet(options)};
    run.resume();
  };
  struct other_clip : keel::recipe<keel::checkpoint::every<1_steps>, keel::clip::global_norm<2.0>, keel::accumulate<2>, keel::nonfinite::skip<4>,
                                   keel::determinism::seeded<5>, keel::schedule::cosine<keel::schedule::warmup<3_steps>>> {};
  auto const model = make_small();
  torch::optim::AdamW adamw(model->parameters(), 0.05);
  torch::optim::SGD sgd(model->parameters(), 0.05);

  auto const clip = refusal([&] { start(static_cast<other_clip*>(nullptr), model, adamw, {.updates = length}); });
  CHECK(clip.find("[E03]") == 0);
  CHECK(clip.find("clip was global_norm 1 and is now global_norm 2") != std::string::npos);
  CHECK(refusal([&] { start(static_cast<recipe*>(nullptr), model, adamw, {.updates = length + 1}); }).find("[E03]") == 0);
  CHECK(refusal([&] { start(static_cast<recipe*>(nullptr), model, sgd, {.updates = length}); }).find("[E04]") == 0);
  CHECK(refusal([&] {
          start(static_cast<other_clip*>(nullptr), model, adamw, {.updates = length, .accept_changed_recipe = true});
        }) == "accepted");

  struct wider_module : torch::nn::Module {
    wider_module() : first(register_module("first", torch::nn::Linear(6, 9))), second(register_module("second", torch::nn::Linear(9, 1))) {}
    torch::nn::Linear first, second;
  };
  auto const wider = std::make_shared<wider_module>();
  torch::optim::AdamW of_wider(wider->parameters(), 0.05);
  auto const shape = refusal([&] { start(static_cast<recipe*>(nullptr), wider, of_wider, {.updates = length}); });
  CHECK(shape.find("[E04]") == 0);
  CHECK(shape.find("first.bias is [8] of Float and this model's is [9] of Float") != std::string::npos);

  // Nothing of this harmed what was saved.
  scratch_directory const whole;
  check_same(go(directory / "run", epoch_of), go(whole / "run", epoch_of));
}

TEST_CASE("state_is_matched_by_name: parameter groups in another order are rejected, never swapped in silence") {
  scratch_directory const directory;
  struct flat : keel::recipe<keel::checkpoint::every<1_steps>> {};
  auto const build = [&](bool swapped, bool train) {
    auto const model = make_small();
    std::vector<torch::optim::OptimizerParamGroup> groups;
    groups.emplace_back((swapped ? model->second : model->first)->parameters());
    groups.emplace_back((swapped ? model->first : model->second)->parameters());
    torch::optim::AdamW optimizer(std::move(groups), torch::optim::AdamWOptions(0.1));
    keel::trainer<flat> run{model, optimizer, quiet({.run_directory = directory / "run", .updates = 2})};
    if (train) {
      run.fit(epoch_of, mean_squared_error(model));
    } else {
      run.resume();
    }
  };
  build(false, true);
  try {
    build(true, false);
    FAIL("the groups were swapped in silence");
  } catch (keel::checkpoint_error const& thrown) {
    CHECK(thrown.id() == "E04");
  }
}

TEST_CASE("two runs in one directory are rejected while the first is there") {
  scratch_directory const directory;
  auto const model = make_small();
  torch::optim::AdamW optimizer(model->parameters(), 0.05);
  keel::trainer<recipe> first{model, optimizer, quiet({.run_directory = directory / "run", .updates = length})};
  try {
    keel::trainer<recipe> second{model, optimizer, quiet({.run_directory = directory / "run", .updates = length})};
    FAIL("two runs share a directory");
  } catch (keel::file_error const& thrown) {
    CHECK(thrown.id() == "E01");
  }
}

TEST_CASE("optimizer options changed in the program are named and not overridden in silence") {
  scratch_directory const directory;
  struct flat : keel::recipe<keel::checkpoint::every<1_steps>> {};
  auto const start = [&](torch::optim::AdamWOptions const& options, bool accept) {
    auto const model = make_small();
    torch::optim::AdamW optimizer(model->parameters(), options);
    keel::trainer<flat> run{model, optimizer, quiet({.run_directory = directory / "run", .updates = 3, .accept_changed_recipe = accept})};
    run.fit(epoch_of, mean_squared_error(model));
    return optimizer.param_groups()[0].options().get_lr();
  };
  start(torch::optim::AdamWOptions(1e-3), false);
  auto const refused = [&](torch::optim::AdamWOptions const& options) {
    try {
      start(options, false);
    } catch (keel::checkpoint_error const& thrown) {
      return std::string(thrown.what());
    }
    return std::string("accepted");
  };
  CHECK(refused(torch::optim::AdamWOptions(3e-4)).find("lr of group 0 was 0.001 and is now 0.0003") != std::string::npos);
  CHECK(refused(torch::optim::AdamWOptions(1e-3).weight_decay(0.5)).find("weight_decay of group 0") != std::string::npos);
  CHECK(refused(torch::optim::AdamWOptions(1e-3)) == "accepted");
  CHECK(start(torch::optim::AdamWOptions(3e-4), true) == 3e-4);
}

TEST_CASE("a rejected checkpoint is rejected again when the program tries once more") {
  scratch_directory const directory;
  go(directory / "run", epoch_of, 3);
  struct other : keel::recipe<keel::checkpoint::every<1_steps>> {};
  auto const model = make_small();
  torch::optim::AdamW optimizer(model->parameters(), 0.05);
  keel::trainer<other> run{model, optimizer, quiet({.run_directory = directory / "run", .updates = 9})};
  for (int attempt = 0; attempt < 3; ++attempt) CHECK_THROWS_AS(run.fit(epoch_of, mean_squared_error(model)), keel::checkpoint_error);
  CHECK(read_lines(directory / "run/metrics.jsonl").size() == 3);
}

TEST_CASE("a second fit of one trainer goes on with the record, and a later resume fits to it") {
  scratch_directory const whole;
  auto const expected = go(whole / "run", epoch_of);
  scratch_directory const directory;
  keel::seed<recipe>();
  auto const model = std::make_shared<small_module>(0.3);
  torch::optim::AdamW optimizer(model->parameters(), 0.05);
  keel::trainer<recipe> run{model, optimizer, quiet({.run_directory = directory / "run", .updates = length})};
  run.on([&](keel::event::update_end const& e) {
    if (e.update % 3 == 0) run.request_stop();
  });
  auto const loss_of = [&](pair_batch const& batch) {
    at::Tensor const loss = mean_squared_error(model)(batch);
    return run.updates() == 5 && run.skipped() == 0 ? loss * NAN : loss;
  };
  while (!run.fit(epoch_of, loss_of).is<keel::result::finished>()) {
  }
  CHECK(same_bits(copies_of(model->parameters()), expected.parameters));
  CHECK(timeless_metrics(directory / "run") == expected.metrics);
}

namespace {
/// Draws noise when an example is fetched, as an augmenting dataset does.
struct noisy_dataset : torch::data::datasets::Dataset<noisy_dataset> {
  torch::data::Example<> get(std::size_t index) override {
    at::Tensor const x = at::full({6}, static_cast<double>(index) / 40.0) + 0.1 * at::randn({6});
    return {x, x.sum().view({1})};
  }
  c10::optional<std::size_t> size() const override { return 30; }
};
auto make_noisy_loader() {
  return torch::data::make_data_loader<torch::data::samplers::RandomSampler>(
      noisy_dataset().map(torch::data::transforms::Stack<>()), torch::data::DataLoaderOptions(4));
}
}  // namespace

TEST_CASE("augmentation_drawn_by_a_loader survives a resume in the middle of an epoch") {
  scratch_directory const whole;
  auto const expected = go(whole / "run", *make_noisy_loader());
  for (int const stop : {1, 3, 4, 7}) {
    scratch_directory const directory;
    go(directory / "run", *make_noisy_loader(), stop);
    check_same(go(directory / "run", *make_noisy_loader()), expected);
  }
}

TEST_CASE("options.accept brings the mechanism of another schedule, which begins anew") {
  struct before : keel::recipe<keel::checkpoint::every<2_steps>, keel::schedule::cosine<keel::schedule::total<20_steps>>> {};
  struct after : keel::recipe<keel::checkpoint::every<2_steps>, keel::schedule::plateau<keel::schedule::patience<2_steps>>, keel::clip::zscore<1.0>, keel::ema<0.9>> {};
  scratch_directory const directory;
  auto const train = [&](auto tag, std::int64_t updates, std::vector<std::string> accept) {
    auto const model = make_small();
    torch::optim::SGD optimizer(model->parameters(), 0.1);
    keel::trainer<typename decltype(tag)::type> run{
        model, optimizer, quiet({.run_directory = directory / "run", .updates = updates, .accept = std::move(accept)})};
    run.fit(std::vector{make_pair_batch(1)}, mean_squared_error(model));
    return run.updates();
  };
  CHECK(train(std::type_identity<before>(), 4, {}) == 4);
  try {
    train(std::type_identity<after>(), 8, {"schedule"});
    FAIL("another clip and average were accepted");
  } catch (keel::checkpoint_error const& thrown) {
    CHECK(thrown.id() == "E03");
  }
  CHECK(train(std::type_identity<after>(), 8, {"schedule", "clip", "ema"}) == 8);
}

TEST_CASE("where evaluations decide the rate, another evaluation is another recipe") {
  struct before : keel::recipe<keel::checkpoint::every<2_steps>, keel::schedule::plateau<keel::schedule::evaluations<3>>,
                               keel::evaluation::every<2_steps, keel::evaluation::larger_is_better>> {};
  struct after : keel::recipe<keel::checkpoint::every<2_steps>, keel::schedule::plateau<keel::schedule::evaluations<3>>,
                              keel::evaluation::every<2_steps>> {};
  scratch_directory const directory;
  auto const train = [&](auto tag, std::int64_t updates) {
    auto const model = make_small();
    torch::optim::SGD optimizer(model->parameters(), 0.1);
    keel::trainer<typename decltype(tag)::type> run{model, optimizer, quiet({.run_directory = directory / "run", .updates = updates})};
    run.evaluate_on(std::vector{make_pair_batch(9)}, mean_squared_error(model));
    run.fit(std::vector{make_pair_batch(1)}, mean_squared_error(model));
  };
  train(std::type_identity<before>(), 4);
  try {
    train(std::type_identity<after>(), 8);
    FAIL("another evaluation was accepted");
  } catch (keel::checkpoint_error const& thrown) {
    CHECK(thrown.id() == "E03");
    CHECK(std::string(thrown.what()).find("evaluation was ") != std::string::npos);
  }
}
