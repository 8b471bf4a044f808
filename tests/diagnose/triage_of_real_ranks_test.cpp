// What a triage says of the run directory of several ranks, one of which really died, hung, drifted or made other updates.
#include <keel/collective/collectives.hpp>
#include <keel/collective/in_process.hpp>
#include <keel/diagnose/triage.hpp>
#include <keel/diagnose/triage_ranks.hpp>

#include "../collective/rank_error_messages.hpp"
#include "../support.hpp"

using namespace keel_test;
using namespace keel::literals;

namespace {

struct saving : keel::recipe<keel::shard::replicate, keel::checkpoint::every<2_steps, keel::checkpoint::synchronous>> {};

/// Three ranks that train twelve updates in this directory, `spoil(rank, update, model)` behind each.
void train(std::filesystem::path const& directory, std::vector<keel::rank_fault> const& faults,
           std::function<void(int, std::int64_t, small_module&)> const& spoil = {}) {
  rank_error_messages(
      3,
      [&](keel::world_of_ranks const& world) {
        auto const model = make_small(3);
        keel::adamw optimizer(model->parameters(), 0.01);
        keel::trainer<saving> run{*model, optimizer, world, quiet({.run_directory = directory, .updates = 12, .tensorboard = false})};
        run.on([&](keel::event::update_end const& event) {
          if (spoil) spoil(world.rank(), event.update, *model);
        });
        std::vector<pair_batch> batches;
        for (std::uint64_t i = 0; i < 4; ++i) batches.push_back(make_pair_batch(10 * i + static_cast<std::uint64_t>(world.rank())));
        run.fit(batches, mean_squared_error(model));
      },
      {.seed = 3, .faults = faults});
}

void is_named(std::filesystem::path const& directory, keel::trouble cause, std::string const& rank) {
  auto const found = keel::triage(directory);
  INFO(keel::to_text(found));
  for (auto const& one : keel::detail::ends_of_ranks(directory)) UNSCOPED_INFO("ended: " << one);
  REQUIRE(!found.findings.empty());
  CHECK(found.findings.front().cause == cause);
  CHECK(keel::to_text(found).find(rank) != std::string::npos);
}

}  // namespace

TEST_CASE("a rank that died or hangs, be it rank 0 or another, is named by the triage of the run directory") {
  for (int const rank : {0, 1, 2}) {
    for (auto const how : {keel::rank_fault::kind::kill, keel::rank_fault::kind::hang}) {
      scratch_directory const directory;
      train(directory, {{rank, 60, how}});
      is_named(directory, keel::trouble::dead_rank, "rank " + std::to_string(rank));
    }
  }
}

TEST_CASE("a rank that drifted, and the parameter, are named by the triage of the run directory") {
  scratch_directory const directory;
  train(directory, {}, [](int rank, std::int64_t update, small_module& model) {
    at::NoGradGuard const no_grad;
    if (rank == 2 && update == 5) model.first->bias[1] += 1e-3;
  });
  is_named(directory, keel::trouble::ranks_drift, "first.bias on rank 2");
}

TEST_CASE("ranks that ended well, or were started again and went on, are no trouble") {
  scratch_directory const directory;
  train(directory, {{1, 60, keel::rank_fault::kind::kill}});
  train(directory, {});
  auto const found = keel::triage(directory.path());
  INFO(keel::to_text(found));
  for (auto const& one : found.findings) CHECK(one.cause != keel::trouble::dead_rank);
}

TEST_CASE("each rank of a run that ends with an error leaves its last collectives, which a run after it takes away") {
  scratch_directory const directory;
  train(directory, {{1, 60, keel::rank_fault::kind::kill}});
  auto const records = keel::read_rank_records(directory.path());
  // Who is killed leaves nothing.
  REQUIRE(records.size() == 2);
  CHECK(records.back().rank == 2);
  for (keel::rank_record const& one : records) {
    INFO("rank " << one.rank);
    CHECK(one.world == 3);
    CHECK(one.left.has_value());
    CHECK(one.collectives.size() > 40);
    keel::entered_collective const& last = one.collectives.rbegin()->second;
    CHECK(last.update > 0);
    CHECK(!last.operation.empty());
    CHECK(!last.is_completed);
    CHECK(last.sequence == 60);
    CHECK(one.left->find("rank 1") != std::string::npos);
    for (auto const& [sequence, collective] : one.collectives) {
      if (sequence < last.sequence - 3) CHECK(collective.is_completed);
    }
  }
  train(directory, {});
  CHECK(keel::read_rank_records(directory.path()).empty());
}

TEST_CASE("ranks that make different collectives are named with both by the triage of what they left") {
  scratch_directory const directory;
  rank_error_messages(2, [&](keel::world_of_ranks const& world) {
    auto const model = make_small(3);
    keel::adamw optimizer(model->parameters(), 0.01);
    keel::trainer<saving> run{*model, optimizer, world, quiet({.run_directory = directory, .updates = 12, .tensorboard = false})};
    run.on([&](keel::event::update_end const& event) {
      at::Tensor const own = at::ones({5});
      if (event.update == 5 && world.rank() == 0) keel::all_reduce(world, own);
      if (event.update == 5 && world.rank() == 1) keel::broadcast(world, own, 0);
    });
    run.fit(std::vector<pair_batch>{make_pair_batch(1)}, mean_squared_error(model));
  });
  auto const found = keel::triage(directory.path());
  INFO(keel::to_text(found));
  bool names_both = false;
  for (auto const& one : found.findings) {
    for (auto const& words : one.evidence)
      names_both |= one.cause == keel::trouble::collective_mismatch && words.find("all_reduce (5 elements) on rank 0") != std::string::npos &&
                    words.find("broadcast (5 elements) on rank 1") != std::string::npos;
  }
  CHECK(names_both);
}
