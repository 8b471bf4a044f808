// Parts that a run makes while it goes on: wherever it stops, it goes on with the bits of one that does not.
#include <cmath>
#include <optional>

#include "../support.hpp"

using namespace keel_test;
using namespace keel::literals;

namespace {

struct saved : keel::recipe<keel::checkpoint::every<3_steps>, keel::determinism::seeded<3>> {};
struct skipping : keel::recipe<keel::nonfinite::skip<20>> {};
struct skipping_two : keel::recipe<keel::nonfinite::skip<20>, keel::accumulate<2>> {};
struct rolling : keel::recipe<keel::nonfinite::rollback<1, keel::nonfinite::reseed>> {};

/// A model and its optimizer, from whatever the generator says when it is made.
struct trained_one {
  std::shared_ptr<small_module> model = make_small(4, 0.1);
  torch::optim::Adam optimizer{model->parameters(), torch::optim::AdamOptions(0.01)};
  trained_one() {
    at::NoGradGuard const no_grad;
    for (at::Tensor& one : model->parameters()) one.copy_(at::randn_like(one));
  }
};

std::vector<at::Tensor> all_of(trained_one const& first, std::optional<trained_one> const& second) {
  auto all = copies_of(first.model->parameters());
  if (second) {
    for (at::Tensor const& one : copies_of(second->model->parameters())) all.push_back(one);
  }
  return all;
}

/// A second model joins at the tenth update, at the top of an iteration or `before` the loop where the run stands behind it.
template <class Recipe = skipping>
std::vector<at::Tensor> grow(std::filesystem::path const& directory, std::int64_t until, bool before = false,
                             std::int64_t bad = -1) {
  at::manual_seed(1);
  trained_one first;
  std::optional<trained_one> second;
  keel::run<saved> run{quiet({.run_directory = directory})};
  keel::part<skipping> of_first{run, "first", *first.model, first.optimizer};
  std::optional<keel::part<Recipe>> of_second;
  auto const join = [&] {
    if (run.updates() < 10 || second) return;
    second.emplace();
    of_second.emplace(run, "second", *second->model, second->optimizer);
  };
  if (before && run.resume()) join();
  for (std::int64_t const i : run.iterations(until)) {
    join();
    auto const batch = make_pair_batch(static_cast<std::uint64_t>(i));
    of_first.update(batch, mean_squared_error(first.model));
    if (second) {
      of_second->update([&] {
        at::Tensor const x = i == bad && run.rollbacks() == 0 ? batch.first * NAN : batch.first + at::randn({1});
        return (second->model->forward(x) - first.model->forward(x).detach()).square().mean();
      });
    }
  }
  run.finish();
  return all_of(first, second);
}

std::string words_of(std::function<void()> const& call) {
  try {
    call();
  } catch (keel::error const& thrown) {
    return thrown.what();
  }
  return "";
}
bool has(std::string const& words, char const* part) {
  UNSCOPED_INFO(words);
  return words.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("a run that a second model joins resumes wherever it stands, with the model made before its loop or in it") {
  scratch_directory const directory;
  auto const whole = grow(directory / "whole", 24);
  for (std::int64_t at = 1; at < 24; ++at) grow(directory / "cut", at, at % 2 == 0);
  CHECK(same_bits(whole, grow(directory / "cut", 24)));
  grow(directory / "once", 17);
  CHECK(same_bits(whole, grow(directory / "once", 24, true)));
  auto const accumulated = grow<skipping_two>(directory / "whole_of_two", 24);
  for (std::int64_t at = 9; at < 24; at += 2) grow<skipping_two>(directory / "cut_of_two", at);
  CHECK(same_bits(accumulated, grow<skipping_two>(directory / "cut_of_two", 24)));
}

TEST_CASE("a second optimizer that takes a model over in the middle of a loop resumes wherever it stands") {
  auto const train = [](std::filesystem::path const& directory, std::int64_t until) {
    at::manual_seed(1);
    trained_one one;
    torch::optim::SGD sgd(one.model->parameters(), torch::optim::SGDOptions(0.02).momentum(0.9));
    keel::run<saved> run{quiet({.run_directory = directory})};
    keel::part<skipping> adam{run, "adam", *one.model, one.optimizer};
    std::optional<keel::part<skipping>> behind;
    for (std::int64_t const i : run.iterations(until)) {
      if (run.updates() >= 7 && !behind) behind.emplace(run, "sgd", *one.model, sgd, keel::after(adam));
      (behind ? *behind : adam).update(make_pair_batch(static_cast<std::uint64_t>(i)), mean_squared_error(one.model));
    }
    run.finish();
    return copies_of(one.model->parameters());
  };
  scratch_directory const directory;
  auto const whole = train(directory / "whole", 20);
  for (std::int64_t at = 2; at < 20; ++at) train(directory / "cut", at);
  CHECK(same_bits(whole, train(directory / "cut", 20)));
}

TEST_CASE("a rollback to before a part was made has it as it was made") {
  scratch_directory const directory;
  // The newest checkpoint is of update 9, and the part of update 10.
  auto const once = grow<rolling>(directory / "once", 24, false, 10);
  CHECK(read_file(directory / "once" / "events.jsonl").find("rolled_back") != std::string::npos);
  auto const again = grow<rolling>(directory / "again", 24, false, 10);
  CHECK(same_bits(once, again));
  for (at::Tensor const& one : once) CHECK(one.isfinite().all().item<bool>());
  // Also where this process resumed the part.
  grow<rolling>(directory / "resumed", 13);
  for (auto const& entry : std::filesystem::directory_iterator(directory / "resumed" / "checkpoints")) {
    std::string const name = entry.path().filename();
    if (name.find("step-00000001") == 0 && name != "step-000000013") std::filesystem::remove_all(entry.path());
  }
  auto const resumed = grow<rolling>(directory / "resumed", 24, false, 13);
  for (at::Tensor const& one : resumed) CHECK(one.isfinite().all().item<bool>());
}

TEST_CASE("a late part that is not made again, is another, or is gone is an error that names it, and nothing saved is lost") {
  scratch_directory const directory;
  auto const whole = grow(directory / "whole", 24);
  grow(directory / "run", 16);
  auto const batch = make_pair_batch(16);
  for (bool const accepts : {false, true}) {
    at::manual_seed(1);
    trained_one first;
    keel::run<saved> run{quiet({.run_directory = directory / "run", .accept_changed_recipe = accepts})};
    keel::part<skipping> of_first{run, "first", *first.model, first.optimizer};
    auto const words = words_of([&] {
      for ([[maybe_unused]] std::int64_t const i : run.iterations(24)) of_first.update(batch, mean_squared_error(first.model));
    });
    CHECK(has(words, "contains part second, which was added during the original run"));
    CHECK(run.cursor().consumed == 17);
  }
  {
    at::manual_seed(1);
    trained_one first, second;
    keel::run<saved> run{quiet({.run_directory = directory / "run"})};
    keel::part<skipping> of_first{run, "first", *first.model, first.optimizer};
    REQUIRE(run.resume());
    // What waits is in a save that comes before it is made.
    run.save();
    CHECK(has(words_of([&] { keel::part<skipping_two>(run, "second", *second.model, second.optimizer); }),
              "part second, was saved with another recipe: accumulate was 1 and is now 2"));
    torch::optim::SGD other(second.model->parameters(), 0.1);
    CHECK(has(words_of([&] { keel::part<skipping>(run, "second", *second.model, other); }), "[E04]"));
    CHECK(has(words_of([&] {
                torch::nn::Linear wide(40, 1);
                torch::optim::Adam adam(wide->parameters(), 0.01);
                keel::part<skipping>(run, "second", wide, adam);
              }),
              "[E04]"));
    // None of these is in the run.
    CHECK(has(words_of([&] {
                for ([[maybe_unused]] std::int64_t const i : run.iterations(24))
                  of_first.update(batch, mean_squared_error(first.model));
              }),
              "contains part second"));
  }
  CHECK(same_bits(whole, grow(directory / "run", 24)));
  {
    at::manual_seed(1);
    trained_one first, second;
    keel::run<saved> run{quiet({.run_directory = directory / "gone"})};
    keel::part<skipping> of_first{run, "first", *first.model, first.optimizer};
    auto of_second = std::make_optional<keel::part<skipping>>(run, "second", *second.model, second.optimizer);
    auto const words = words_of([&] {
      for (std::int64_t const i : run.iterations(24)) {
        if (i == 4) of_second.reset();
        if (i < 4) of_second->update(batch, mean_squared_error(second.model));
        of_first.update(batch, mean_squared_error(first.model));
      }
    });
    CHECK(has(words, "the part second was destroyed before its run ended"));
    CHECK(run.updates() == 6);
  }
}
