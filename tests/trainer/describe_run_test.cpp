// What the record says of a run's beginning, of its batches, and of where memory ran out.
#include <keel/diagnose/run_history.hpp>
#include <keel/memory/budget.hpp>

#include "../support.hpp"

using namespace keel_test;
using namespace keel::literals;

namespace {

struct plain : keel::recipe<keel::checkpoint::every<2_steps>, keel::accumulate<2>> {};
struct evaluates : keel::recipe<keel::checkpoint::every<2_steps>, keel::evaluation::every<2_steps>> {};

template <class Recipe>
struct small_run {
  explicit small_run(keel::trainer_options options, double dropout = 0.3)
      : model(make_small(5, dropout)), optimizer(model->parameters(), 1e-2), run{*model, optimizer, quiet(std::move(options))} {}
  auto loss() const { return mean_squared_error(model); }
  std::shared_ptr<small_module> model;
  keel::adamw optimizer;
  keel::trainer<Recipe> run;
};

std::vector<pair_batch> some_batches(std::size_t count, std::size_t first = 0) {
  std::vector<pair_batch> batches;
  for (std::size_t i = 0; i < count; ++i) batches.push_back(make_pair_batch(first + i));
  return batches;
}

}  // namespace

TEST_CASE("a resume that goes on with what it loaded says the same checksums twice, and one that lost something does not") {
  scratch_directory directory;
  keel::trainer_options const first{.run_directory = directory.path(), .updates = 4, .batches_per_epoch = 8};
  {
    small_run<plain> small(first);
    small.run.fit(some_batches(8), small.loss());
  }
  auto const begun = events_of(directory.path(), "begins");
  REQUIRE(begun.size() == 1);
  CHECK_FALSE(begun[0].contains("state"));
  CHECK(begun[0]["parameters"] == 65);
  CHECK(begun[0]["trained"] == 65);
  CHECK(begun[0]["frozen"] == 0);
  CHECK(begun[0]["trained_bytes"] == 260);
  CHECK(begun[0]["rates"] == nlohmann::json({1e-2}));

  keel::trainer_options const longer{.run_directory = directory.path(), .updates = 8, .batches_per_epoch = 8};
  auto const resumed = [&](auto const& change) {
    std::filesystem::path const copy = directory / "copy";
    std::filesystem::remove_all(copy);
    std::filesystem::copy(directory.path(), directory.path().string() + "-copy", std::filesystem::copy_options::recursive);
    keel::trainer_options options = longer;
    options.run_directory = directory.path().string() + "-copy";
    {
      small_run<plain> small(options);
      small.run.on([&](keel::event::run_begin const&) { change(small); });
      small.run.fit(some_batches(8), small.loss());
    }
    auto const loaded = events_of(options.run_directory, "resumed");
    auto const begins = events_of(options.run_directory, "begins");
    std::filesystem::remove_all(options.run_directory);
    REQUIRE(loaded.size() == 1);
    REQUIRE(begins.size() == 2);
    std::vector<std::string> changed;
    for (auto const& [key, value] : loaded[0]["state"].items()) {
      if (begins[1]["state"][key] != value) changed.push_back(key);
    }
    return changed;
  };
  using words = std::vector<std::string>;
  CHECK(resumed([](auto&) {}) == words{});
  CHECK(resumed([](auto& small) { small.optimizer.state().clear(); }) == words{"optimizer"});
  CHECK(resumed([](auto& small) { small.optimizer.param_groups()[0].options().set_lr(0.5); }) == words{"rates"});
  CHECK(resumed([](auto&) { keel::libtorch::seed_random(at::kCPU, 99); }) == words{"is_reseeded", "random", "seed"});
  CHECK(resumed([](auto& small) {
          at::NoGradGuard const no_grad;
          small.model->second->bias.add_(1.0);
        }) == words{"weights"});
}

TEST_CASE("a line of the record has the checksum of its batches: the same for the same ones, also over an interval and a resume") {
  scratch_directory directory;
  auto const checksums = [&](char const* name, std::int64_t every, std::vector<std::int64_t> const& lengths, std::size_t first) {
    for (std::int64_t const updates : lengths) {
      small_run<plain> small({.run_directory = directory / name, .updates = updates, .batches_per_epoch = 16, .record_every = every});
      small.run.fit(some_batches(16, first), small.loss());
    }
    std::vector<std::string> found;
    for (std::string const& line : read_lines(directory / name / "metrics.jsonl"))
      found.push_back(nlohmann::json::parse(line)["batch"].get<std::string>());
    return found;
  };
  auto const once = checksums("once", 1, {8}, 0);
  CHECK(once.size() == 8);
  CHECK(std::set<std::string>(once.begin(), once.end()).size() == 8);
  CHECK(checksums("again", 1, {4, 8}, 0) == once);
  CHECK(checksums("others", 1, {8}, 1) != once);
  auto const threes = checksums("threes", 3, {8}, 0);
  CHECK(threes.size() == 3);
  CHECK(checksums("threes_again", 3, {4, 8}, 0) == threes);
}

TEST_CASE("where memory ran out is in the record: the phase, the piece and the bytes, with a ladder and without") {
  keel::memory::budget budget;
  scratch_directory directory;
  SECTION("in a forward pass of the second micro-batch") {
    small_run<plain> small({.run_directory = directory.path(), .updates = 8, .batches_per_epoch = 16});
    int calls = 0;
    auto const loss = [&](pair_batch const& batch) {
      if (++calls == 4) budget.refuse_allocation(1);
      return mean_squared_error(small.model)(batch);
    };
    CHECK_THROWS_AS(small.run.fit(some_batches(16), loss), keel::out_of_memory_error);
    auto const failed = events_of(directory.path(), "failed");
    REQUIRE(failed.size() == 1);
    CHECK(failed[0]["memory"]["during"] == "forward");
    CHECK(failed[0]["memory"]["pieces"] == 2);
    CHECK(failed[0]["memory"]["held"].get<std::int64_t>() > 0);
  }
  SECTION("in an evaluation") {
    small_run<evaluates> small({.run_directory = directory.path(), .updates = 8, .batches_per_epoch = 16});
    small.run.evaluate_on(some_batches(2), [&](pair_batch const& batch) {
      budget.refuse_allocation(1);
      return mean_squared_error(small.model)(batch);
    });
    CHECK_THROWS_AS(small.run.fit(some_batches(16), small.loss()), std::exception);
    auto const failed = events_of(directory.path(), "failed");
    REQUIRE(failed.size() == 1);
    CHECK(failed[0]["memory"]["during"] == "evaluating");
  }
  SECTION("in the first update's optimizer") {
    small_run<plain> small({.run_directory = directory.path(), .updates = 8, .batches_per_epoch = 16});
    small.run.on([&](keel::event::micro_batch_end const& event) {
      if (event.micro_batch == 1) budget.refuse_allocation(1);
    });
    CHECK_THROWS_AS(small.run.fit(some_batches(16), small.loss()), keel::out_of_memory_error);
    auto const failed = events_of(directory.path(), "failed");
    REQUIRE(failed.size() == 1);
    CHECK(failed[0]["memory"]["during"] == "update");
  }
}

TEST_CASE("what is taken between updates, and what micro-batches leave behind, is in the record") {
  keel::memory::budget budget;
  scratch_directory directory;
  small_run<plain> small({.run_directory = directory.path(), .updates = 4, .batches_per_epoch = 8});
  std::vector<at::Tensor> kept;
  small.run.on([&](keel::event::update_end const& event) {
    if (event.update == 2) at::zeros({1 << 20});
    kept.clear();
  });
  auto const loss = [&](pair_batch const& batch) {
    kept.push_back(at::zeros({1 << 16}));
    return mean_squared_error(small.model)(batch);
  };
  small.run.fit(some_batches(8), loss);
  auto const history = keel::read_run_history(directory.path());
  auto const& between = history.curves.at("memory.between").kept;
  REQUIRE(between.size() == 4);
  CHECK(between[2].value > 4e6);
  CHECK(between[1].value < 4e6);
  for (auto const& point : history.curves.at("memory.accumulated").kept) CHECK(point.value >= 4.0 * (1 << 16));
}

namespace {

/// Of a program's own, which no checkpoint knows.
struct plain_descent : torch::optim::Optimizer {
  explicit plain_descent(std::vector<at::Tensor> parameters)
      : Optimizer({torch::optim::OptimizerParamGroup(std::move(parameters))}, std::make_unique<torch::optim::SGDOptions>(1e-2)) {}
  at::Tensor step(LossClosure) override {
    at::NoGradGuard const no_grad;
    for (at::Tensor& one : param_groups()[0].params()) one.sub_(one.grad() * 1e-2);
    return {};
  }
};
struct without_checkpoints : keel::recipe<> {};

}  // namespace

TEST_CASE("a run without checkpoints may have an optimizer that no checkpoint holds, and its record says the rest") {
  scratch_directory directory;
  auto const model = make_small();
  plain_descent optimizer(model->parameters());
  keel::trainer<without_checkpoints> run{*model, optimizer, quiet({.run_directory = directory.path(), .updates = 3})};
  run.fit(some_batches(3), mean_squared_error(model));
  auto const begun = events_of(directory.path(), "begins");
  REQUIRE(begun.size() == 1);
  CHECK(begun[0]["trained"] == 65);
  CHECK_FALSE(begun[0].contains("optimizer_bytes"));
}

TEST_CASE("a resume that has no memory for checksums goes on without them") {
  keel::memory::budget budget;
  scratch_directory directory;
  keel::trainer_options const first{.run_directory = directory.path(), .updates = 2, .batches_per_epoch = 8};
  {
    small_run<plain> small(first);
    small.run.fit(some_batches(8), small.loss());
  }
  keel::trainer_options longer = first;
  longer.updates = 4;
  longer.resume_at.reset();
  small_run<plain> small(longer);
  small.run.on([&](keel::event::run_begin const&) { budget.refuse_allocation(2); });
  small.run.fit(some_batches(8), small.loss());
  CHECK(small.run.updates() == 4);
}

TEST_CASE("a run whose model was made before its seed was set says so, once") {
  struct seeded : keel::recipe<keel::checkpoint::every<2_steps>, keel::determinism::seeded<41>> {};
  for (bool const is_seeded_first : {true, false}) {
    INFO(is_seeded_first);
    scratch_directory const directory;
    for (std::int64_t const updates : {2, 4}) {
      at::manual_seed(7);
      if (is_seeded_first) keel::seed<seeded>();
      // Its parameters are drawn.
      torch::nn::Linear model(6, 1);
      keel::adamw optimizer(model->parameters(), 1e-2);
      keel::trainer<seeded> run{*model, optimizer, quiet({.run_directory = directory.path(), .updates = updates})};
      run.fit(some_batches(8),
              [&](pair_batch const& batch) { return at::mse_loss(model->forward(batch.first), batch.second); });
    }
    auto const said = events_of(directory.path(), "not_seeded");
    CHECK(said.size() == (is_seeded_first ? 0 : 1));
    for (auto const& event : said)
      CHECK(event.at("message").get<std::string>().find("Call keel::seed<recipe>() before creating the model") !=
            std::string::npos);
  }
}

TEST_CASE("a program's own loop that ends inside an update says what finish leaves out, and flush applies it") {
  for (bool const flushes : {false, true}) {
    scratch_directory const directory;
    small_run<plain> small({.run_directory = directory.path()});
    for (auto const& batch : some_batches(5)) small.run.step(batch, small.loss());
    if (flushes) small.run.flush();
    small.run.finish();
    CHECK(small.run.updates() == (flushes ? 3 : 2));
    auto const said = events_of(directory.path(), "partial_update");
    REQUIRE(said.size() == (flushes ? 0 : 1));
    if (flushes) continue;
    CHECK(said[0].at("micro_batches") == 1);
    CHECK(said[0].at("message").get<std::string>().find("Call flush() before finish() to apply it") != std::string::npos);
  }
}
