// A ladder on several ranks: memory that runs out on one of them, at whatever allocation, is the rung of all, and the update that begins
// again has the bits of one that began there.
#include <ATen/Parallel.h>

#include <cmath>
#include <keel/collective/collectives.hpp>
#include <keel/collective/in_process.hpp>

#include "../collective/rank_error_messages.hpp"
#include "../starving.hpp"

using namespace keel_test;
namespace oom = keel::oom;

namespace {

template <class Shard, class... More>
struct halves : keel::recipe<Shard, keel::accumulate<2>, keel::clip::global_norm<0.05>, keel::nonfinite::skip<9>,
                             oom::ladder<oom::halve_micro_batch, oom::give_up>, keel::incident::off, More...> {};
template <class Shard>
struct in_halves : keel::recipe<Shard, keel::accumulate<4>, keel::clip::global_norm<0.05>, keel::nonfinite::skip<9>> {};
struct only_gives_up : keel::recipe<keel::shard::replicate, oom::ladder<oom::give_up>, keel::incident::off> {};
struct plain : keel::recipe<keel::shard::replicate> {};

/// A rung of the test, which some ranks cannot take.
struct has_room {
  static constexpr oom::rung_settings rung{.kind = oom::rung_kind::custom};
  static bool& of_this_rank() {
    thread_local bool has = true;
    return has;
  }
  static bool take(torch::nn::Module&) { return of_this_rank(); }
};
struct with_own_rung : keel::recipe<keel::shard::replicate, oom::ladder<has_room, oom::give_up>, keel::incident::off> {};
struct offloads : keel::recipe<keel::shard::zero<1>, keel::nonfinite::skip<9>, oom::ladder<oom::offload_optimizer, oom::give_up>, keel::incident::off> {};
struct offloading : keel::recipe<keel::shard::zero<1>, keel::nonfinite::skip<9>, keel::offload::optimizer> {};
struct skipping : keel::recipe<keel::shard::replicate, keel::nonfinite::skip<9>> {};

pair_batch rows_of(int rank, std::uint64_t number) { return make_pair_batch(10 * static_cast<std::uint64_t>(rank) + number); }

/// Two updates of two micro-batches, in halves from the first on.
template <class Shard>
std::vector<std::vector<at::Tensor>> expected_of(int ranks) {
  std::vector<std::vector<at::Tensor>> found(static_cast<std::size_t>(ranks));
  keel::run_in_process(ranks, [&](keel::world_of_ranks const& world) {
    auto const model = make_small(3);
    keel::adamw optimizer(model->parameters(), 0.01);
    keel::step<in_halves<Shard>> step{model, optimizer, world};
    for (std::uint64_t i = 0; i < 4; ++i) {
      for (std::int64_t half = 0; half < 2; ++half)
        step(keel::batch_traits<pair_batch>::slice(rows_of(world.rank(), i), 4 * half, 4 * half + 4), mean_squared_error(model));
    }
    found[static_cast<std::size_t>(world.rank())] = copies_of(model->parameters());
  });
  return found;
}

template <class Shard>
void every_allocation_of_every_rank(int ranks) {
  at::set_num_threads(1);
  keel::memory::budget budget;
  auto expected = expected_of<Shard>(ranks);
  for (int starved = 0; starved < ranks; ++starved) {
    int cases = 0;
    for (std::int64_t nth = 1;; ++nth, ++cases) {
      INFO("rank " << starved << " of " << ranks << ", allocation " << nth);
      std::vector<std::vector<at::Tensor>> parameters(static_cast<std::size_t>(ranks));
      std::vector<std::int64_t> pieces(static_cast<std::size_t>(ranks));
      auto const refused = budget.refused();
      auto const words = rank_error_messages(ranks, [&](keel::world_of_ranks const& world) {
        auto const rank = static_cast<std::size_t>(world.rank());
        auto const model = make_small(3);
        keel::adamw optimizer(model->parameters(), 0.01);
        keel::step<halves<Shard>> step{model, optimizer, world};
        std::vector<pair_batch> batches;
        for (std::uint64_t i = 0; i < 4; ++i) batches.push_back(rows_of(world.rank(), i));
        keel::barrier(world);
        if (world.rank() == starved) budget.refuse_allocation(nth);
        for (std::uint64_t i = 0; i < 4; ++i) {
          step(batches[i], mean_squared_error(model));
          if (i == 1) budget.refuse_allocation(0);
        }
        pieces[rank] = step.pieces();
        parameters[rank] = copies_of(model->parameters());
      });
      budget.refuse_allocation(0);
      for (std::string const& one : words) {
        INFO(one);
        REQUIRE(one.empty());
      }
      for (std::size_t rank = 1; rank < pieces.size(); ++rank) {
        REQUIRE(pieces[rank] == pieces[0]);
        REQUIRE(same_bits(parameters[rank], parameters[0]));
      }
      if (budget.refused() == refused) break;
      REQUIRE(pieces[0] == 2);
      // Gradients in shards are added up over the ranks a micro-batch at a time, whatever it is cut into.
      if (cases == 0 && starved == 0 && Shard::configured.stage == 2) {
        for (std::size_t i = 0; i < expected[0].size(); ++i) REQUIRE(at::allclose(parameters[0][i], expected[0][i], 1e-4, 1e-6));
        expected = parameters;
      }
      REQUIRE(same_bits(parameters[0], expected[0]));
    }
    CHECK(cases > 20);
  }
}

}  // namespace

TEST_CASE("memory that runs out at any allocation of any rank is the rung of all, who go on with the bits of smaller batches") {
  every_allocation_of_every_rank<keel::shard::replicate>(2);
  every_allocation_of_every_rank<keel::shard::replicate>(3);
}

TEST_CASE("with an optimizer in shares too") { every_allocation_of_every_rank<keel::shard::zero<1>>(2); }

TEST_CASE("and with gradients in shards") { every_allocation_of_every_rank<keel::shard::zero<2>>(2); }

TEST_CASE("memory that runs out in the backward pass of one rank, behind the agreement, is the rung of all") {
  at::set_num_threads(1);
  std::vector<std::vector<at::Tensor>> parameters(3);
  std::vector<std::int64_t> pieces(3);
  keel::run_in_process(3, [&](keel::world_of_ranks const& world) {
    auto const model = make_small(3);
    keel::adamw optimizer(model->parameters(), 0.01);
    keel::step<halves<keel::shard::replicate>> step{model, optimizer, world};
    bool starves = world.rank() == 1;
    for (std::uint64_t i = 0; i < 4; ++i) {
      step(rows_of(world.rank(), i), [&, i](pair_batch const& batch) {
        at::Tensor const y = model->forward(batch.first);
        if (i == 1) {
          y.register_hook([&](at::Tensor const&) {
            if (std::exchange(starves, false)) throw c10::OutOfMemoryError({__func__, __FILE__, 1}, "of the test");
          });
        }
        return (y - batch.second).square().mean();
      });
    }
    auto const rank = static_cast<std::size_t>(world.rank());
    pieces[rank] = step.pieces();
    parameters[rank] = copies_of(model->parameters());
  });
  auto const expected = expected_of<keel::shard::replicate>(3);
  for (std::size_t rank = 0; rank < 3; ++rank) {
    CHECK(pieces[rank] == 2);
    CHECK(same_bits(parameters[rank], expected[rank]));
  }
}

TEST_CASE("a ladder that gives up on one rank gives up on all, who keep what was before, and can go on") {
  at::set_num_threads(1);
  std::vector<std::vector<at::Tensor>> before(2), between(2), after(2);
  keel::run_in_process(2, [&](keel::world_of_ranks const& world) {
    auto const rank = static_cast<std::size_t>(world.rank());
    auto const model = make_small(3);
    keel::adamw optimizer(model->parameters(), 0.01);
    keel::step<only_gives_up> step{model, optimizer, world};
    before[rank] = copies_of(model->parameters());
    auto const ended = step(rows_of(world.rank(), 0), [&](pair_batch const& batch) -> at::Tensor {
      if (world.rank() == 1) throw c10::OutOfMemoryError({__func__, __FILE__, 1}, "of the test");
      return mean_squared_error(model)(batch);
    });
    REQUIRE(ended.is<keel::result::gave_up>());
    between[rank] = copies_of(model->parameters());
    REQUIRE(step(rows_of(world.rank(), 1), mean_squared_error(model)).updated() != nullptr);
    after[rank] = copies_of(model->parameters());
  });
  for (std::size_t const rank : {0u, 1u}) {
    CHECK(same_bits(before[rank], between[rank]));
    CHECK(same_bits(after[rank], after[0]));
  }
}

TEST_CASE("where memory runs out on one rank and another one throws, all end with the words of the other") {
  at::set_num_threads(1);
  auto const words = rank_error_messages(3, [&](keel::world_of_ranks const& world) {
    auto const model = make_small(3);
    keel::adamw optimizer(model->parameters(), 0.01);
    keel::step<only_gives_up> step{model, optimizer, world};
    step(rows_of(world.rank(), 0), [&](pair_batch const& batch) -> at::Tensor {
      if (world.rank() == 0) throw c10::OutOfMemoryError({__func__, __FILE__, 1}, "of the test");
      if (world.rank() == 2) throw std::runtime_error("of the program");
      return mean_squared_error(model)(batch);
    });
  });
  CHECK(words[2] == "of the program");
  for (std::size_t const rank : {0u, 1u}) CHECK(words[rank] == "[E25] rank 2 threw; the update was discarded on all ranks: of the program");
}

TEST_CASE("a rung that all ranks can take is taken by all, and one that some alone have taken ends all by name") {
  at::set_num_threads(1);
  for (bool const all_can : {true, false}) {
    std::vector<bool> updated(2);
    auto const words = rank_error_messages(2, [&](keel::world_of_ranks const& world) {
      has_room::of_this_rank() = all_can || world.rank() == 0;
      auto const model = make_small(3);
      keel::adamw optimizer(model->parameters(), 0.01);
      keel::step<with_own_rung> step{model, optimizer, world};
      bool starves = world.rank() == 0;
      auto const ended = step(rows_of(world.rank(), 0), [&](pair_batch const& batch) {
        if (std::exchange(starves, false)) throw c10::OutOfMemoryError({__func__, __FILE__, 1}, "of the test");
        return mean_squared_error(model)(batch);
      });
      updated[static_cast<std::size_t>(world.rank())] = ended.updated() != nullptr;
    });
    for (std::size_t const rank : {0u, 1u}) {
      INFO(words[rank]);
      CHECK(updated[rank] == all_can);
      CHECK((words[rank].find("some ranks alone could take the rung") != std::string::npos) == !all_can);
    }
  }
}

TEST_CASE("moments in shares are offloaded by the rung of all, with the bits of a run that offloads from the first update on") {
  at::set_num_threads(1);
  std::vector<std::vector<at::Tensor>> expected(2), found(2);
  auto const train = [&](auto recipe, std::vector<std::vector<at::Tensor>>& to, bool starves) {
    keel::run_in_process(2, [&](keel::world_of_ranks const& world) {
      auto const model = make_small(3);
      keel::adamw optimizer(model->parameters(), 0.01);
      keel::step<decltype(recipe)> step{model, optimizer, world};
      bool starving = starves && world.rank() == 1;
      for (std::uint64_t i = 0; i < 5; ++i) {
        step(rows_of(world.rank(), i), [&, i](pair_batch const& batch) {
          if (i == 2 && std::exchange(starving, false)) throw c10::OutOfMemoryError({__func__, __FILE__, 1}, "of the test");
          return mean_squared_error(model)(batch);
        });
      }
      CHECK(step.relief().offload);
      to[static_cast<std::size_t>(world.rank())] = copies_of(model->parameters());
    });
  };
  train(offloading(), expected, false);
  train(offloads(), found, true);
  for (std::size_t const rank : {0u, 1u}) CHECK(same_bits(found[rank], expected[0]));
}

TEST_CASE("an exception in the backward pass of one rank beside a NaN of another ends all with its words") {
  at::set_num_threads(1);
  auto const words = rank_error_messages(3, [&](keel::world_of_ranks const& world) {
    auto const model = make_small(3);
    keel::adamw optimizer(model->parameters(), 0.01);
    keel::step<skipping> step{model, optimizer, world};
    for (std::uint64_t i = 0; i < 3; ++i) {
      step(rows_of(world.rank(), i), [&, i](pair_batch const& batch) {
        at::Tensor const y = model->forward(batch.first);
        if (i == 1 && world.rank() == 0) y.register_hook([](at::Tensor const&) { throw std::runtime_error("of the program"); });
        return (y - batch.second).square().mean() * (i == 1 && world.rank() == 2 ? NAN : 1.0);
      });
    }
  });
  CHECK(words[0] == "of the program");
  for (std::size_t const rank : {1u, 2u}) {
    INFO(words[rank]);
    CHECK(words[rank].find("[E25]") == 0);
    CHECK(words[rank].find("rank 0 has given up: of the program") != std::string::npos);
  }
}
