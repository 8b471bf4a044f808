// Collectives against what they come to on one process, and ranks of one process: the same each time, and no end without a name.
#include <cmath>
#include <limits>
#include <map>
#include <mutex>

#include <keel/collective/collectives.hpp>
#include <keel/collective/in_process.hpp>

#include <keel/collective/agreed.hpp>

#include "rank_error_messages.hpp"
#include "../support.hpp"

using namespace keel_test;

namespace {

at::ScalarType const dtypes[] = {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16, at::kInt, at::kLong, at::kShort, at::kByte};

at::Tensor values(int rank, std::vector<std::int64_t> const& shape, at::ScalarType dtype) {
  at::Tensor const whole = at::arange(1, 1 + at::zeros(shape).numel()).view(shape);
  return (whole * (rank + 1) % 7).to(dtype);
}
at::Tensor sum_of(int ranks, std::vector<std::int64_t> const& shape, at::ScalarType dtype) {
  at::Tensor sum = values(0, shape, at::kDouble);
  for (int rank = 1; rank < ranks; ++rank) sum = sum + values(rank, shape, at::kDouble);
  return sum.to(dtype);
}

bool has(std::string const& words, char const* part) {
  UNSCOPED_INFO(words);
  return words.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("collectives of any dtype, shape and strides come to what one process computes, at one to five ranks") {
  for (int const ranks : {1, 2, 3, 5}) {
    CAPTURE(ranks);
    std::mutex checks;
    keel::run_in_process(ranks, [&](keel::world_of_ranks const& world) {
      for (at::ScalarType const dtype : dtypes) {
        for (std::vector<std::int64_t> const& shape : {std::vector<std::int64_t>{}, {1}, {7}, {2 * ranks, 3}, {0, 4}}) {
          at::Tensor const mine = values(world.rank(), shape, dtype);
          at::Tensor reduced = mine.clone();
          keel::all_reduce(world, reduced);
          at::Tensor least = mine.clone(), most = mine.clone(), sent = mine.clone();
          keel::all_reduce(world, least, keel::reduce::min{});
          keel::all_reduce(world, most, keel::reduce::max{});
          at::Tensor const all = keel::all_gather(world, mine);
          keel::broadcast(world, sent, ranks - 1);
          std::lock_guard const one_at_a_time(checks);
          CAPTURE(c10::toString(dtype), shape);
          CHECK(at::equal(reduced, sum_of(ranks, shape, dtype)));
          CHECK(all.size(0) == ranks);
          for (int rank = 0; rank < ranks; ++rank) CHECK(at::equal(all[rank], values(rank, shape, dtype)));
          CHECK(at::equal(sent, values(ranks - 1, shape, dtype)));
          if (mine.numel() > 0) {
            CHECK(at::equal(least, std::get<0>(all.to(at::kDouble).min(0)).to(dtype)));
            CHECK(at::equal(most, std::get<0>(all.to(at::kDouble).max(0)).to(dtype)));
          }
        }
        at::Tensor const whole = values(world.rank(), {2 * ranks, 3}, dtype);
        at::Tensor const part = keel::reduce_scatter(world, whole);
        at::Tensor const turned = keel::all_to_all(world, whole);
        std::lock_guard const one_at_a_time(checks);
        CHECK(at::equal(part, sum_of(ranks, {2 * ranks, 3}, dtype).slice(0, 2 * world.rank(), 2 * world.rank() + 2)));
        for (int rank = 0; rank < ranks; ++rank)
          CHECK(at::equal(turned.slice(0, 2 * rank, 2 * rank + 2),
                          values(rank, {2 * ranks, 3}, dtype).slice(0, 2 * world.rank(), 2 * world.rank() + 2)));
      }
      // In place where the memory is not dense.
      at::Tensor const square = values(world.rank(), {4, 6}, at::kFloat);
      keel::all_reduce(world, square.t().slice(0, 1, 3), keel::reduce::mean{});
      at::Tensor expected = values(world.rank(), {4, 6}, at::kFloat);
      at::Tensor const column = expected.t().slice(0, 1, 3);
      column.copy_(sum_of(ranks, {4, 6}, at::kFloat).t().slice(0, 1, 3) / ranks);
      keel::barrier(world);
      std::lock_guard const one_at_a_time(checks);
      CHECK(at::allclose(square, expected));
    });
  }
}

TEST_CASE("values are combined exactly, and a NaN of one rank is everyone's") {
  std::mutex checks;
  keel::run_in_process(3, [&](keel::world_of_ranks const& world) {
    double const mine = world.rank() == 1 ? NAN : 1.0 + world.rank();
    double const most = world.combine(keel::reduce::max{}, mine), least = world.combine(keel::reduce::min{}, mine);
    double const mean = world.combine(keel::reduce::mean{}, 0.1 * (world.rank() + 1));
    std::int64_t const large = world.combine(keel::reduce::sum{}, (std::int64_t{1} << 60) + world.rank());
    bool const any = world.combine(keel::reduce::max{}, world.rank() == 2), all = world.combine(keel::reduce::min{}, world.rank() == 2);
    auto const agreed = keel::agree(world, world.rank() == 0);
    std::lock_guard const one_at_a_time(checks);
    CHECK(std::isnan(most));
    CHECK(std::isnan(least));
    CHECK(mean == (0.1 + 0.2 + 0.1 * 3) / 3);
    CHECK(large == 3 * (std::int64_t{1} << 60) + 3);
    CHECK(any);
    CHECK(!all);
    CHECK(agreed.value());
    CHECK(world.collectives() == 7);
  });
}

TEST_CASE("ranks of one process run the same for a seed, have random numbers of their own, and leave the caller's") {
  auto const order = [](std::uint64_t seed) {
    std::vector<int> all;
    std::vector<double> drawn(4);
    at::manual_seed(3);
    keel::run_in_process(
        4,
        [&](keel::world_of_ranks const& world) {
          for (int i = 0; i < 5; ++i) {
            all.push_back(world.rank());
            drawn[static_cast<std::size_t>(world.rank())] += at::rand({}).item<double>();
            keel::barrier(world);
          }
        },
        {.seed = seed});
    for (double const one : drawn) CHECK(one == drawn.front());
    double const next = at::rand({}).item<double>();
    at::manual_seed(3);
    CHECK(next == at::rand({}).item<double>());
    return all;
  };
  CHECK(order(1) == order(1));
  CHECK(order(1) != order(2));
}

TEST_CASE("ranks that call different things, end early, throw, give up, are killed or hang are named to all others") {
  at::Tensor const three = at::zeros({3});
  for (auto const& words : rank_error_messages(2, [&](keel::world_of_ranks const& world) {
         world.rank() == 0 ? keel::all_reduce(world, three.clone()) : keel::all_reduce(world, at::zeros({4}));
       })) {
    CHECK(has(words, "all_reduce of 3 elements of Float"));
    CHECK(has(words, "all_reduce of 4 elements of Float"));
  }
  for (auto const& words : rank_error_messages(2, [&](keel::world_of_ranks const& world) {
         world.rank() == 0 ? keel::broadcast(world, three.clone()) : keel::barrier(world);
       })) {
    CHECK(has(words, "broadcast of 12 elements"));
    CHECK(has(words, "barrier"));
  }
  auto const body = [&](std::function<void(keel::world_of_ranks const&)> const& of_one) {
    return [of_one](keel::world_of_ranks const& world) {
      keel::barrier(world);
      if (world.rank() == 1) of_one(world);
      if (world.rank() != 1 || of_one == nullptr) keel::all_reduce(world, at::zeros({2}));
    };
  };
  auto const ended = rank_error_messages(3, body([](auto const&) {}));
  CHECK(ended[1].empty());
  for (int const rank : {0, 2}) CHECK(has(ended[static_cast<std::size_t>(rank)], "waiting in all_reduce of 2 elements of Float, and rank 1 has ended"));
  auto const threw = rank_error_messages(3, body([](auto const&) { throw std::runtime_error("the disk is full"); }));
  CHECK(threw[1] == "the disk is full");
  for (int const rank : {0, 2}) CHECK(has(threw[static_cast<std::size_t>(rank)], "rank 1 threw: the disk is full"));
  auto const gave_up = rank_error_messages(3, body([](auto const& world) {
                                  world.abort("no data");
                                  keel::all_reduce(world, at::zeros({2}));
                                }));
  for (auto const& words : gave_up) CHECK(has(words, "rank 1 has given up: no data"));
  CHECK_THROWS_WITH(keel::run_in_process(3, body([](auto const&) { throw std::runtime_error("the disk is full"); })),
                    "the disk is full");
  auto const always = [](keel::world_of_ranks const& world) {
    for (int i = 0; i < 4; ++i) keel::barrier(world);
  };
  for (auto const kind : {keel::rank_fault::kind::kill, keel::rank_fault::kind::hang}) {
    for (std::int64_t collective = 1; collective <= 4; ++collective) {
      for (std::uint64_t seed = 1; seed < 6; ++seed) {
        auto const words = rank_error_messages(4, always, {.seed = seed, .faults = {{2, collective, kind}}});
        CHECK(words[2].empty());
        for (int const rank : {0, 1, 3})
          CHECK(has(words[static_cast<std::size_t>(rank)],
                    kind == keel::rank_fault::kind::kill ? "rank 2 is gone" : "rank 2 has not called it"));
      }
    }
  }
}

TEST_CASE("what no collective takes is an error on every rank before it waits") {
  for (auto const& words : rank_error_messages(2, [&](keel::world_of_ranks const& world) { keel::all_reduce(world, at::Tensor()); }))
    CHECK(has(words, "[E12] all_reduce requires a dense tensor"));
  for (auto const& words : rank_error_messages(2, [&](keel::world_of_ranks const& world) { keel::reduce_scatter(world, at::zeros({3})); }))
    CHECK(has(words, "evenly among the 2 ranks, but the tensor has shape [3]. Pad its first dimension to a multiple of 2."));
  for (auto const& words : rank_error_messages(2, [&](keel::world_of_ranks const& world) { keel::broadcast(world, at::zeros({3}), 2); }))
    CHECK(has(words, "`from` is 2, but the ranks are 0 to 1"));
  CHECK_THROWS_AS(keel::run_in_process(0, [](auto const&) {}), keel::error);
  at::Tensor alone = at::ones({2});
  keel::all_reduce(keel::world_of_ranks(), alone);
  keel::all_reduce(keel::world_of_one(), alone);
  CHECK(alone.sum().item<double>() == 2.0);
}
