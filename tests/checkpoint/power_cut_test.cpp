// Runs on a disk that loses what was not synced, cut off before every call.
#include "../support.hpp"
#include "forgetful_disk.hpp"

using namespace keel_test;
using namespace keel::literals;

namespace {

struct synchronous : keel::recipe<keel::checkpoint::every<1_steps, keel::checkpoint::keep<2>>, keel::determinism::seeded<3>> {};
struct only_one : keel::recipe<keel::checkpoint::every<1_steps, keel::checkpoint::keep<1>>, keel::determinism::seeded<3>> {};
struct in_the_background
    : keel::recipe<keel::checkpoint::every<1_steps, keel::checkpoint::keep<2>, keel::checkpoint::asynchronous>, keel::determinism::seeded<3>> {};

constexpr std::int64_t length = 5;

/// Trains to the end; `saved` hears of what was said to be durable.
template <class Recipe>
std::vector<at::Tensor> train(std::shared_ptr<forgetful_disk> const& disk, std::int64_t& saved) {
  keel::seed<Recipe>();
  auto const model = std::make_shared<small_module>(0.2);
  torch::optim::AdamW optimizer(model->parameters(), 0.05);
  keel::trainer<Recipe> run{model, optimizer,
                            quiet({.run_directory = "/run", .updates = length, .own_files = std::make_shared<forgetful_files>(disk)})};
  run.on([&](keel::event::checkpoint_saved const& e) { saved = std::max(saved, e.update); });
  auto const batches = [](std::int64_t epoch) {
    return std::vector<pair_batch>{make_pair_batch(static_cast<std::uint64_t>(epoch)), make_pair_batch(static_cast<std::uint64_t>(epoch) + 100)};
  };
  run.fit(batches, mean_squared_error(model));
  return copies_of(model->parameters());
}

/// Cuts the power before the N-th call, N = 1, 2, 3 .., and lets the run go on with what the disk remembers.
template <class Recipe>
void cut_before_every_call(std::int64_t keep, std::optional<std::uint64_t> seed) {
  auto const untouched = std::make_shared<forgetful_disk>();
  std::int64_t saved = 0;
  auto const expected = train<Recipe>(untouched, saved);
  int const calls = untouched->calls;
  REQUIRE(calls > 80);
  // All of them with each seed: sweep.power_cut.
  int const every = seed && std::getenv("KEEL_LONG_TESTS") == nullptr ? 3 : 1;
  for (int cut = 1; cut <= calls; cut += every) {
    INFO("before call " << cut << (seed ? ", part of it survives" : ""));
    auto const disk = std::make_shared<forgetful_disk>();
    disk->cut_at = cut;
    saved = 0;
    CHECK_THROWS_AS(train<Recipe>(disk, saved), power_cut);
    disk->come_back(seed ? std::optional(*seed + static_cast<std::uint64_t>(cut)) : std::nullopt);

    forgetful_files files(disk);
    keel::checkpoint_store store("/run/checkpoints", files);
    auto whole = [&] {
      std::int64_t count = 0;
      std::int64_t newest = 0;
      for (std::int64_t const update : store.updates()) {
        try {
          store.load(update);
          ++count;
          newest = update;
        } catch (keel::checkpoint_error const&) {
        }
      }
      return std::pair(count, newest);
    }();
    // What was said to be durable is, and never are there fewer good ones than were saved and kept.
    REQUIRE(whole.second >= saved);
    REQUIRE(whole.first >= std::min(keep, saved));
    std::int64_t again = 0;
    REQUIRE(same_bits(train<Recipe>(disk, again), expected));
  }
}

}  // namespace

TEST_CASE("killed_at_every_write: on a disk that drops what was not synced, every cut leaves what was said to be saved, and the run goes on to the same bits") {
  cut_before_every_call<synchronous>(2, std::nullopt);
  cut_before_every_call<only_one>(1, std::nullopt);
  cut_before_every_call<in_the_background>(2, std::nullopt);
}

TEST_CASE("a disk that keeps part of what was not synced, in any place: the same") {
  // Each seed is half a minute: sweep.power_cut has three.
  std::vector<std::uint64_t> seeds{1000};
  if (std::getenv("KEEL_LONG_TESTS") != nullptr) seeds.insert(seeds.end(), {2000, 3000});
  for (std::uint64_t const seed : seeds) {
    cut_before_every_call<synchronous>(2, seed);
    cut_before_every_call<only_one>(1, seed);
    cut_before_every_call<in_the_background>(2, seed);
  }
}
