// Updates of several ranks that their devices decide, tried on the CPU: the same as where the hosts decide, and no host waits for its device.
#include <atomic>
#include <cmath>
#include <limits>
#include <map>

#include <keel/collective/collectives.hpp>
#include <keel/collective/in_process.hpp>

#include "../collective/rank_error_messages.hpp"
#include "../deciding_device.hpp"
#include "../host_reads.hpp"
#include "../starving.hpp"
#include "../support.hpp"

using namespace keel_test;
using namespace keel::literals;

namespace {

/// Counts the numbers that a host asks for.
struct reads_counted_of_ranks : on_a_device {
  double host_value(at::Tensor const& one) const override {
    ++reads;
    return keel::host_value(one);
  }
  inline static std::atomic<int> reads{0};
};

template <class Shard>
struct plain : keel::recipe<Shard> {};
template <class Shard>
struct guarded_ranks : keel::recipe<Shard, keel::nonfinite::skip<20>, keel::clip::global_norm<0.05>, keel::ema<0.9>,
                                    keel::spike::skip<keel::spike::window<32>, keel::spike::in_a_row<20>>,
                                    keel::schedule::cosine<keel::schedule::total<200_steps>, keel::schedule::warmup<5_steps>>> {
};
template <class Shard>
struct accumulating : keel::recipe<Shard, keel::accumulate<3>, keel::nonfinite::skip<20>, keel::clip::global_norm<0.05>> {};
template <class Shard>
struct summing : keel::recipe<Shard, keel::accumulate<2, keel::sum>, keel::nonfinite::skip<20>> {};
template <class Shard>
struct scaled_ranks
    : keel::recipe<Shard, keel::precision::fp16, keel::nonfinite::skip<20>, keel::clip::global_norm<1.0>,
                   keel::loss_scale::dynamic<keel::loss_scale::initial<1024.0>, keel::loss_scale::growth_interval<3>,
                                             keel::loss_scale::hysteresis<2>, keel::loss_scale::floor<1e-3>>> {};
template <class Shard>
struct scaled_sums : keel::recipe<Shard, keel::precision::fp16, keel::nonfinite::skip<20>, keel::accumulate<2, keel::sum>,
                                  keel::clip::global_norm<1.0>, keel::loss_scale::fixed<1024.0>> {};
template <class Shard>
struct taking : keel::recipe<Shard, keel::nonfinite::skip<5, keel::nonfinite::exceptions>> {};
template <class Shard>
struct climbing : keel::recipe<Shard, keel::accumulate<2>, keel::incident::off, keel::accept<"O10">,
                               keel::oom::ladder<keel::oom::halve_micro_batch, keel::oom::give_up>> {};

/// A model of one rank with running statistics, in double, so that both ways compute by the same operators.
struct trained_model {
  torch::nn::Sequential all;
  std::unique_ptr<keel::adamw> optimizer;
  explicit trained_model(at::ScalarType dtype = at::kDouble) {
    at::manual_seed(11);
    // In front of the norm a bias has no gradient but rounding, of which Adam makes steps.
    all = torch::nn::Sequential(torch::nn::Linear(torch::nn::LinearOptions(6, 8).bias(false)), torch::nn::BatchNorm1d(8),
                                torch::nn::Linear(8, 1));
    all->to(dtype);
    optimizer = std::make_unique<keel::adamw>(all->parameters(), torch::optim::AdamWOptions(0.02).weight_decay(0.1));
  }
  keel::losses loss_of(pair_batch const& batch) {
    at::Tensor const error = all->forward(batch.first) - batch.second;
    keel::losses all{{"square", error.square().mean(), 1.0}, {"absolute", error.abs().mean(), 0.5}};
    return all.over(batch.second.any().item<bool>() ? static_cast<double>(batch.first.size(0)) : 0.0);
  }
};

/// Of a rank in a micro-batch: ragged, and now and then not finite, far off, or all zeros, which count for nothing.
pair_batch rows_of(std::int64_t i, int rank, bool is_hostile) {
  auto const [x, y] = make_pair_batch(static_cast<std::uint64_t>(100 * i + rank));
  std::mt19937_64 draw(static_cast<std::uint64_t>(1000 * i + rank));
  auto const kind = i < 12 || !is_hostile ? 9 : draw() % 40;
  double const scale = kind == 0 ? std::numeric_limits<double>::quiet_NaN() : kind == 1 ? INFINITY : kind == 2 ? 1e4 : kind == 3 ? 0.0 : 1.0;
  std::int64_t const rows = x.size(0) - (rank + i) % 3;
  return {x.slice(0, 0, rows).to(at::kDouble), y.slice(0, 0, rows).to(at::kDouble) * scale};
}

struct training {
  std::vector<at::Tensor> parameters, averages;
  std::vector<std::string> outcomes;
  std::vector<double> losses;
  std::int64_t updates = 0, skipped = 0;
  double rate = 0.0, scale = 0.0, clipped = 0.0;
};

template <class Recipe, class Environment>
training train(keel::world_of_ranks const& world, std::int64_t updates) {
  constexpr std::int64_t windows = keel::config_of<Recipe>.accumulate.count;
  trained_model one;
  keel::step<Recipe, Environment> step{*one.all, *one.optimizer, world};
  training found;
  auto const note = [&](keel::step_outcome const& outcome) {
    if (outcome.is<keel::result::accumulated>() || outcome.is<keel::result::pending>()) return;
    auto const* const skipped = outcome.skipped();
    found.outcomes.push_back(skipped != nullptr ? to_string(skipped->why) + skipped->where : "updated");
    if (auto const* const updated = outcome.updated()) found.losses.push_back(updated->loss);
  };
  for (std::int64_t i = 0; i < updates * windows; ++i)
    note(step(rows_of(i, world.rank(), true), [&](pair_batch const& batch) { return one.loss_of(batch); }));
  if (auto const last = step.settle()) note(*last);
  found.parameters = copies_of(one.all->parameters());
  for (at::Tensor const& buffer : one.all->buffers()) found.parameters.push_back(buffer.clone());
  if constexpr (keel::step<Recipe>::has_average) found.averages = copies_of(step.average().averages());
  found.updates = step.updates();
  found.skipped = step.skipped();
  found.rate = step.learning_rate();
  found.scale = step.loss_scale();
  found.clipped = step.clip_fraction();
  return found;
}

template <class Recipe, class Environment>
std::vector<training> train_ranks(int ranks, std::int64_t updates) {
  std::vector<training> all(static_cast<std::size_t>(ranks));
  keel::run_in_process(ranks, [&](keel::world_of_ranks const& world) {
    all[static_cast<std::size_t>(world.rank())] = train<Recipe, Environment>(world, updates);
  });
  return all;
}

template <class Recipe, class OnHost = keel::environment, class OnDevice = on_a_device>
void compare_ways(std::int64_t updates) {
  for (int const ranks : {1, 2, 3}) {
    CAPTURE(ranks);
    auto const on_host = train_ranks<Recipe, OnHost>(ranks, updates), on_device = train_ranks<Recipe, OnDevice>(ranks, updates);
    CHECK(on_host.front().skipped > 0);
    for (std::size_t rank = 0; rank < on_host.size(); ++rank) {
      training const &a = on_host[rank], &b = on_device[rank];
      CHECK(a.outcomes == b.outcomes);
      CHECK(same_bits(b.parameters, on_device.front().parameters));
      REQUIRE(a.losses.size() == b.losses.size());
      for (std::size_t i = 0; i < a.losses.size(); ++i)
        CHECK(std::abs(a.losses[i] - b.losses[i]) <= 1e-9 * std::abs(a.losses[i]));
      for (std::size_t i = 0; i < a.parameters.size(); ++i) CHECK(at::allclose(a.parameters[i], b.parameters[i], 1e-8, 1e-11));
      for (std::size_t i = 0; i < a.averages.size(); ++i) CHECK(at::allclose(a.averages[i], b.averages[i], 1e-8, 1e-11));
      CHECK(a.updates == b.updates);
      CHECK(a.skipped == b.skipped);
      CHECK(a.rate == b.rate);
      CHECK(a.scale == b.scale);
      CHECK(b.scale == on_device.front().scale);
      CHECK(a.clipped == b.clipped);
    }
  }
}

struct counter {
  std::int64_t calls = 0;
  void visit(auto& archive) { archive("calls", calls); }
};

}  // namespace

TEST_CASE("decided on the devices or on the hosts, ranks take the same branches to the same parameters, averages, scales and buffers") {
  at::set_num_threads(1);
  using keel::shard::replicate, keel::shard::zero;
  compare_ways<guarded_ranks<replicate>>(50);
  compare_ways<guarded_ranks<zero<1>>>(50);
  compare_ways<accumulating<replicate>>(30);
  compare_ways<accumulating<zero<1>>>(30);
  compare_ways<summing<replicate>>(30);
  compare_ways<scaled_ranks<replicate>, scaled_on_host, scaled_on_device>(50);
  compare_ways<scaled_ranks<zero<1>>, scaled_on_host, scaled_on_device>(50);
  compare_ways<scaled_sums<replicate>, scaled_on_host, scaled_on_device>(40);
}

TEST_CASE("no host waits for its device in the steady state, whatever the number of ranks") {
  at::set_num_threads(1);
  for (int const ranks : {1, 2}) {
    CAPTURE(ranks);
    std::atomic<int> reads{-1};
    keel::run_in_process(ranks, [&](keel::world_of_ranks const& world) {
      auto const model = make_small(4, 0.0);
      keel::adamw optimizer(model->parameters(), torch::optim::AdamWOptions(1e-3));
      scratch_directory const directory;
      keel::trainer<guarded_ranks<keel::shard::replicate>, reads_counted_of_ranks> run{
          *model, optimizer, world, quiet({.run_directory = directory.path(), .updates = 100})};
      auto const loss_of = [&](pair_batch const& batch) {
        at::Tensor const error = model->forward(batch.first) - batch.second;
        return keel::losses{{"square", error.square().mean(), 1.0}, {"absolute", error.abs().mean(), 0.5}};
      };
      run.step(make_pair_batch(1), loss_of);
      run.step(make_pair_batch(2), loss_of);
      keel::barrier(world);
      std::optional<host_reads> counts;
      if (world.rank() == 0) counts.emplace();
      reads_counted_of_ranks::reads = 0;
      keel::barrier(world);
      for (std::uint64_t seed = 3; seed < 40; ++seed) run.step(make_pair_batch(seed), loss_of);
      keel::barrier(world);
      if (counts) reads = host_reads::count().load();
      keel::barrier(world);
    });
    CHECK(reads == 0);
    CHECK(reads_counted_of_ranks::reads == 0);
  }
}

TEST_CASE("an exception that counts as a skip on one rank is the skip of all, which the hosts know without their devices") {
  std::map<int, std::vector<at::Tensor>> parameters;
  keel::run_in_process(2, [&](keel::world_of_ranks const& world) {
    trained_model one;
    keel::step<taking<keel::shard::replicate>, on_a_device> step{*one.all, *one.optimizer, world};
    for (std::int64_t i = 0; i < 6; ++i) {
      auto batch = rows_of(i, world.rank(), false);
      bool const is_it = i == 3 && world.rank() == 1;
      if (is_it) batch.first = batch.first * NAN;
      auto const outcome = step(batch, [&](pair_batch const& of) {
        at::Tensor const out = one.all->forward(of.first);
        TORCH_CHECK(!is_it || at::isfinite(out).all().template item<bool>(), "a value is not finite");
        return (out - of.second).square().mean();
      });
      if (i == 4) {
        REQUIRE(outcome.skipped() != nullptr);
        CHECK(outcome.skipped()->where == "rank 1");
        CHECK(outcome.skipped()->origin.find(world.rank() == 1 ? "the loss function threw"
                                                               : "the loss function of rank 1 threw") == 0);
      }
    }
    step.settle();
    CHECK(step.updates() == 5);
    CHECK(step.skipped() == 1);
    parameters[world.rank()] = copies_of(one.all->parameters());
  });
  CHECK(same_bits(parameters[0], parameters[1]));
}

TEST_CASE("what the hosts learn later ends all ranks alike, and they may go on together") {
  std::map<int, std::vector<at::Tensor>> parameters;
  std::map<int, std::string> caught;
  keel::run_in_process(3, [&](keel::world_of_ranks const& world) {
    trained_model one;
    keel::step<plain<keel::shard::replicate>, on_a_device> step{*one.all, *one.optimizer, world};
    auto const loss_of = [&](pair_batch const& batch) { return one.loss_of(batch); };
    for (std::int64_t i = 0; i < 8; ++i) {
      auto batch = rows_of(i, world.rank(), false);
      if (i == 3 && world.rank() == 2) batch.first = batch.first * NAN;
      try {
        step(batch, loss_of);
      } catch (keel::nonfinite_error const& thrown) {
        caught[world.rank()] = std::to_string(i) + thrown.what();
      }
    }
    step.settle();
    CHECK(step.updates() == 6);
    parameters[world.rank()] = copies_of(one.all->parameters());
  });
  for (int const rank : {0, 1, 2}) {
    INFO(caught[rank]);
    // One update later, which is lost with it.
    CHECK(caught[rank].find("4[") == 0);
    CHECK(same_bits(parameters[0], parameters[rank]));
  }
}

TEST_CASE(
    "what one rank throws, in a loss, behind an open micro-batch or in a hook of the update before, is told to all of them") {
  for (int const place : {0, 1, 2}) {
    CAPTURE(place);
    auto const words = rank_error_messages(3, [&](keel::world_of_ranks const& world) {
      trained_model one;
      keel::trainer<accumulating<keel::shard::replicate>, on_a_device> run{*one.all, *one.optimizer, world,
                                                                           quiet({.updates = 6})};
      if (place == 2 && world.rank() == 1) {
        run.on([&](keel::event::update_end const& e) {
          if (e.update == 2) throw std::runtime_error("of the program");
        });
      }
      std::vector<pair_batch> batches;
      for (std::int64_t i = 0; i < 18; ++i) batches.push_back(rows_of(i, world.rank(), false));
      std::int64_t calls = 0;
      run.fit(batches, [&](pair_batch const& batch) {
        if (world.rank() == 1 && place < 2 && calls == 6 + place) throw std::runtime_error("of the program");
        ++calls;
        return one.loss_of(batch);
      });
    });
    for (std::string const& one : words) {
      INFO(one);
      CHECK(one.find("of the program") != std::string::npos);
    }
  }
}

TEST_CASE("memory that runs out on one rank takes the rung of all, and data that ends on one rank ends the epoch of all") {
  std::map<int, std::vector<at::Tensor>> on_host, on_device;
  std::int64_t on_host_updates = 0, on_device_updates = 0;
  auto const train_in = [](auto environment, std::map<int, std::vector<at::Tensor>>& parameters, std::int64_t& updates) {
    keel::run_in_process(2, [&](keel::world_of_ranks const& world) {
      trained_model one;
      keel::trainer<climbing<keel::shard::replicate>, decltype(environment)> run{*one.all, *one.optimizer, world,
                                                                                 quiet({.epochs = 2})};
      std::vector<pair_batch> batches;
      for (std::int64_t i = 0; i < (world.rank() == 1 ? 9 : 12); ++i) {
        auto const [x, y] = make_pair_batch(static_cast<std::uint64_t>(i + world.rank()));
        batches.emplace_back(x.to(at::kDouble), y.to(at::kDouble));
      }
      int calls = 0, rungs = 0;
      run.on([&](keel::event::out_of_memory const&) { ++rungs; });
      run.fit(batches, [&](pair_batch const& batch) {
        if (world.rank() == 1 && ++calls == 6) throw std::bad_alloc();
        return (one.all->forward(batch.first) - batch.second).square().mean();
      });
      CHECK(rungs == 1);
      updates = run.updates();
      parameters[world.rank()] = copies_of(one.all->parameters());
    });
  };
  train_in(keel::environment{}, on_host, on_host_updates);
  train_in(on_a_device{}, on_device, on_device_updates);
  CHECK(on_device_updates == on_host_updates);
  CHECK(same_bits(on_device[0], on_device[1]));
  for (std::size_t i = 0; i < on_host[0].size(); ++i) CHECK(at::allclose(on_host[0][i], on_device[0][i], 1e-8, 1e-11));
}

/// Memory runs out once, at allocations of one rank throughout three updates. How often it was the end of all.
template <class Recipe>
std::int64_t ends_at_allocations() {
  std::int64_t const every = std::getenv("KEEL_LONG_TESTS") != nullptr ? 1 : 7;
  keel::memory::budget budget;
  bool failed = true;
  std::int64_t ended = 0, cases = 0;
  for (std::int64_t nth = 1; failed; nth += every, ++cases) {
    REQUIRE(nth < 5000);
    std::vector<std::vector<at::Tensor>> parameters(2);
    std::vector<std::int64_t> updates(2), pieces(2);
    auto const refused = budget.refused();
    auto const words = rank_error_messages(2, [&](keel::world_of_ranks const& world) {
      auto const rank = static_cast<std::size_t>(world.rank());
      trained_model one(at::kFloat);
      keel::step<Recipe, on_a_device> step{*one.all, *one.optimizer, world};
      std::vector<pair_batch> batches;
      for (std::int64_t i = 0; i < 8; ++i)
        batches.push_back(make_pair_batch(static_cast<std::uint64_t>(10 * world.rank() + i)));
      keel::barrier(world);
      if (world.rank() == 1) budget.refuse_allocation(nth);
      keel::barrier(world);
      for (std::int64_t i = 0; i < 8; ++i) {
        if (i == 6 && world.rank() == 1) budget.refuse_allocation(0);
        step(batches[static_cast<std::size_t>(i)], [&](pair_batch const& batch) { return one.loss_of(batch); });
      }
      step.settle();
      updates[rank] = step.updates();
      pieces[rank] = step.pieces();
      parameters[rank] = copies_of(one.all->parameters());
      keel::barrier(world);
    });
    budget.refuse_allocation(0);
    failed = budget.refused() > refused;
    INFO("allocation " << nth << ": " << words[0] << " | " << words[1]);
    CHECK(words[0].empty() == words[1].empty());
    if (!failed) CHECK(words[0].empty());
    if (words[0].empty()) {
      CHECK(updates[0] == updates[1]);
      CHECK(pieces[0] == pieces[1]);
      CHECK(same_bits(parameters[0], parameters[1]));
    }
    // What is left is the update itself, which no rung can make again.
    if (keel::config_of<Recipe>.oom.kind == keel::oom::kind::ladder && !words[1].empty())
      CHECK(words[1].find("inside the optimizer's step") != std::string::npos);
    ended += words[0].empty() ? 0 : 1;
  }
  CHECK(cases > 20);
  return ended;
}

TEST_CASE("memory that runs out at allocations of one rank throughout its updates is the end of all, or the rung of all") {
  at::set_num_threads(1);
  CHECK(ends_at_allocations<accumulating<keel::shard::replicate>>() > 20);
  CHECK(ends_at_allocations<accumulating<keel::shard::zero<1>>>() > 20);
  static_cast<void>(ends_at_allocations<climbing<keel::shard::replicate>>());
  static_cast<void>(ends_at_allocations<climbing<keel::shard::zero<1>>>());
}

TEST_CASE("ranks that decide at different places, because one has registered state of the program, are told so") {
  auto const words = rank_error_messages(2, [](keel::world_of_ranks const& world) {
    trained_model one;
    keel::trainer<plain<keel::shard::replicate>, on_a_device> run{*one.all, *one.optimizer, world, quiet({.updates = 6})};
    counter counted;
    if (world.rank() == 1) run.register_state("counted", counted);
    std::vector<pair_batch> const batches(6, rows_of(0, 0, false));
    run.fit(batches, [&](pair_batch const& batch) { return one.loss_of(batch); });
  });
  for (std::string const& one : words) {
    INFO(one);
    CHECK(one.find("[E26] rank 1 and rank 0 disagree on where updates are decided") != std::string::npos);
  }
}

TEST_CASE("a run of ranks that is stopped and resumed on devices has the bits of one that is not") {
  at::set_num_threads(1);
  struct saving : keel::recipe<keel::shard::zero<1>, keel::clip::global_norm<0.5>, keel::nonfinite::skip<20>,
                               keel::checkpoint::every<4_steps>> {};
  auto const run_for = [&](std::filesystem::path const& directory, std::vector<int> const& stops) {
    std::map<int, std::vector<at::Tensor>> parameters;
    for (std::size_t part = 0; part <= stops.size(); ++part) {
      keel::run_in_process(2, [&](keel::world_of_ranks const& world) {
        trained_model one;
        keel::trainer<saving, on_a_device> run{*one.all, *one.optimizer, world, quiet({.run_directory = directory})};
        std::vector<pair_batch> batches;
        for (std::int64_t i = 0; i < 30; ++i) batches.push_back(rows_of(i, world.rank(), true));
        if (part < stops.size() && world.rank() == 1) {
          run.on([&](keel::event::micro_batch_begin const& e) {
            if (e.update == stops[part]) run.request_stop();
          });
        }
        run.fit(batches, [&](pair_batch const& batch) { return one.loss_of(batch); });
        parameters[world.rank()] = copies_of(one.all->parameters());
      });
    }
    CHECK(same_bits(parameters[0], parameters[1]));
    return parameters[0];
  };
  scratch_directory const whole, in_parts;
  CHECK(same_bits(run_for(whole, {}), run_for(in_parts, {5, 13})));
}
