#include <condition_variable>
#include <mutex>
#include <thread>

#include "../starving.hpp"

using namespace keel_test;
namespace oom = keel::oom;

namespace {

/// Ranks that are threads of this process and meet in every combine().
struct thread_world {
  struct meeting {
    std::mutex mutex;
    std::condition_variable all_here;
    int ranks = 0;
    int arrived = 0;
    int round = 0;
    std::int64_t value = 0;
    std::int64_t result = 0;
  };
  static meeting*& of_this_thread() {
    thread_local meeting* place = nullptr;
    return place;
  }
  static int& rank_of_this_thread() {
    thread_local int rank = 0;
    return rank;
  }
  int size() const { return of_this_thread()->ranks; }
  int rank() const { return rank_of_this_thread(); }
  template <keel::reduction Reduction, class Value>
  Value combine(Reduction, Value const& mine) const {
    meeting& at = *of_this_thread();
    std::unique_lock<std::mutex> lock(at.mutex);
    at.value = at.arrived == 0 ? static_cast<std::int64_t>(mine) : std::max(at.value, static_cast<std::int64_t>(mine));
    if (++at.arrived == at.ranks) {
      at.arrived = 0;
      ++at.round;
      at.result = at.value;
      at.all_here.notify_all();
    } else {
      int const round = at.round;
      if (!at.all_here.wait_for(lock, std::chrono::seconds(20), [&] { return at.round != round; }))
        throw std::runtime_error("a rank waited for another one that went on");
    }
    return static_cast<Value>(at.result);
  }
};
struct several_ranks : keel::step_environment {
  using world = thread_world;
};
// What an incident would need is given up without a rung, so every allocation is counted without it.
struct ranked : keel::recipe<keel::accumulate<2>, oom::ladder<oom::halve_micro_batch, oom::give_up>, keel::incident::off> {};
struct ranked_in_halves : keel::recipe<keel::accumulate<4>> {};

}  // namespace

TEST_CASE("out_of_memory_on_one_rank_is_the_rung_of_all: every rank, every allocation, and nobody waits for ever") {
  constexpr int ranks = 2;
  keel::memory::budget budget;
  auto const data = [](int rank, std::uint64_t i) { return make_pair_batch(10 * static_cast<std::uint64_t>(rank) + i); };
  std::vector<std::vector<at::Tensor>> expected;
  for (int rank = 0; rank < ranks; ++rank) {
    auto const model = make_small();
    keel::adamw optimizer(model->parameters(), 0.01);
    keel::step<ranked_in_halves> step{model, optimizer};
    for (std::uint64_t i = 0; i < 4; ++i) {
      for (std::int64_t half = 0; half < 2; ++half)
        step(keel::batch_traits<pair_batch>::slice(data(rank, i), 4 * half, 4 * half + 4), mean_squared_error(model));
    }
    expected.push_back(copies_of(model->parameters()));
  }
  for (int starved = 0; starved < ranks; ++starved) {
    int cases = 0;
    for (std::int64_t nth = 1;; ++nth, ++cases) {
      thread_world::meeting place;
      place.ranks = ranks;
      std::vector<std::vector<at::Tensor>> parameters(ranks);
      std::vector<std::int64_t> pieces(ranks);
      std::vector<std::string> errors(ranks);
      auto const refused = budget.refused();
      // Made one after the other, because LibTorch has one generator for initial values.
      std::vector<std::shared_ptr<small_module>> models;
      for (int rank = 0; rank < ranks; ++rank) models.push_back(make_small());
      std::vector<std::thread> threads;
      for (int rank = 0; rank < ranks; ++rank) {
        threads.emplace_back([&, rank] {
          auto const me = static_cast<std::size_t>(rank);
          thread_world::of_this_thread() = &place;
          thread_world::rank_of_this_thread() = rank;
          try {
            keel::adamw optimizer(models[me]->parameters(), 0.01);
            keel::step<ranked, several_ranks> step{models[me], optimizer};
            std::vector<pair_batch> batches;
            for (std::uint64_t i = 0; i < 4; ++i) batches.push_back(data(rank, i));
            if (rank == starved) budget.refuse_allocation(nth);
            for (std::uint64_t i = 0; i < 4; ++i) {
              step(batches[i], mean_squared_error(models[me]));
              if (i == 1) budget.refuse_allocation(0);
            }
            pieces[me] = step.pieces();
            parameters[me] = copies_of(models[me]->parameters());
          } catch (std::exception const& thrown) {
            errors[me] = keel::first_line(thrown);
          }
        });
      }
      for (auto& one : threads) one.join();
      INFO("rank " << starved << ", allocation " << nth);
      for (auto const& one : errors) REQUIRE(one.empty());
      REQUIRE(pieces[0] == pieces[1]);
      if (budget.refused() == refused) break;
      REQUIRE(pieces[0] == 2);
      for (std::size_t rank = 0; rank < ranks; ++rank) REQUIRE(same_bits(parameters[rank], expected[rank]));
    }
    CHECK(cases > 20);
  }
}
