// One life of several ranks that a seed draws: how many they are, in which order they run, how long they train, and what happens to one of
// them where. `schedule_of_ranks(seed)` lives it, and says in words what was not as it must be; empty: all was.
#pragma once

#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <exception>
#include <keel/collective/in_process.hpp>
#include <keel/keel.hpp>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

namespace keel_test {

struct drawn_schedule {
  enum class event : unsigned char { nothing, kill, hang, nan, two_nans, exception, out_of_memory, early_end, diverged_count, last };
  std::uint64_t seed;
  int ranks;
  std::int64_t updates;
  event what;
  int on;           ///< the rank
  std::int64_t at;  ///< micro-batch or collective
  bool accumulates;
  int stage;        ///< of ZeRO; 0: replicas
  bool climbs;      ///< has a ladder, where it accumulates
  bool is_late;     ///< what happens to a rank does so in its backward pass
  bool in_parts;    ///< a run of two models, of which the first accumulates and has the shard
  bool in_second;   ///< what happens does so in the second
  bool on_device;   ///< updates are decided there
};

inline drawn_schedule draw_schedule(std::uint64_t seed) {
  std::mt19937_64 draws(seed);
  auto const below = [&](std::uint64_t most) { return static_cast<std::int64_t>(draws() % most); };
  drawn_schedule of{};
  of.seed = seed;
  // Many ranks are rare: what two do not show, four do.
  int const kind = static_cast<int>(below(100));
  of.ranks = static_cast<int>(kind < 60 ? 2 + below(3) : kind < 97 ? 2 + below(7) : 9 + below(56));
  of.updates = 2 + below(4);
  of.what = static_cast<drawn_schedule::event>(below(static_cast<std::uint64_t>(drawn_schedule::event::last)));
  of.on = static_cast<int>(below(static_cast<std::uint64_t>(of.ranks)));
  of.accumulates = below(2) == 1;
  of.at = below(static_cast<std::uint64_t>(of.updates) * (of.accumulates ? 2 : 1));
  of.stage = static_cast<int>(below(2));
  of.climbs = of.accumulates && below(2) == 1;
  of.is_late = below(2) == 1;
  of.in_parts = below(4) == 0;
  of.in_second = below(2) == 1;
  of.on_device = below(3) == 0;
  if (of.stage == 1) of.stage += static_cast<int>(below(2));
  return of;
}

namespace detail {

template <class Shard>
struct counted_once : keel::recipe<Shard, keel::nonfinite::skip<3>, keel::clip::global_norm<0.5>> {};
template <class Shard>
struct counted_twice : keel::recipe<Shard, keel::nonfinite::skip<3>, keel::clip::global_norm<0.5>, keel::accumulate<2>> {};

template <class Shard>
struct climbing : keel::recipe<Shard, keel::nonfinite::skip<3>, keel::clip::global_norm<0.5>, keel::accumulate<2>, keel::incident::off,
                               keel::oom::ladder<keel::oom::halve_micro_batch, keel::oom::give_up>> {};

/// Layers of several dtypes, each of which has its own sum: those behind begin while the backward pass runs.
struct layered : torch::nn::Module {
  torch::nn::Linear first{register_module("first", torch::nn::Linear(2, 2))};
  torch::nn::Linear second{register_module("second", torch::nn::Linear(2, 2))};
  torch::nn::Linear third{register_module("third", torch::nn::Linear(2, 1))};
  layered() { second->to(at::kDouble); }
  /// `between` gets what the first layer makes.
  template <class Between>
  at::Tensor forward(at::Tensor const& x, Between const& between) {
    at::Tensor const y = first->forward(x);
    between(y);
    return third->forward(second->forward(y.to(at::kDouble)).to(at::kFloat));
  }
};

struct run_of_parts : keel::recipe<keel::shard::replicate> {};

struct life {
  std::vector<at::Tensor> parameters;
  std::int64_t updates = -1, skipped = 0;
  std::int64_t updates_of_second = 0;
};

/// What happens to a rank once, where its loss says so.
class happening {
 public:
  happening(drawn_schedule const& of, bool happens) : of_(of), happens_(std::make_shared<bool>(happens)) {}
  void operator()() const {
    if (!std::exchange(*happens_, false)) return;
    if (of_.what == drawn_schedule::event::exception) throw std::runtime_error("drawn");
    if (of_.what == drawn_schedule::event::out_of_memory) throw std::bad_alloc();
  }

 private:
  drawn_schedule const& of_;
  std::shared_ptr<bool> happens_;  ///< shared, because a ladder copies what it may run again
};

inline auto loss_of(drawn_schedule const& of, layered& model, happening const& happen, bool is_bad) {
  return [&of, &model, happen, is_bad](at::Tensor const& x) {
    if (!of.is_late) happen();
    at::Tensor const y = model.forward(x, [&](at::Tensor const& one) {
      if (of.is_late) one.register_hook([happen](at::Tensor const&) { happen(); });
    });
    return y.square().mean() * (is_bad ? NAN : 1.0);
  };
}

/// Of a rank in an iteration, which has ragged rows.
inline at::Tensor rows_of(int rank, std::int64_t i) { return at::full({1 + (rank + i) % 3, 2}, 0.1 * static_cast<double>(rank + 1)); }

inline bool is_bad(drawn_schedule const& of, int rank, std::int64_t i) {
  using event = drawn_schedule::event;
  return i == of.at && ((of.what == event::nan && rank == of.on) || (of.what == event::two_nans && rank <= 1));
}

/// Whose tensors are on one, as it says.
struct on_a_device : keel::environment {
  bool decides_on_device(at::DeviceType) const override { return true; }
};

template <class Recipe, class Environment, class Optimizer>
void live(drawn_schedule const& of, keel::world_of_ranks const& world, life& mine) {
  using event = drawn_schedule::event;
  constexpr std::int64_t windows = keel::config_of<Recipe>.accumulate.count;
  layered model;
  Optimizer optimizer(model.parameters(), torch::optim::SGDOptions(0.1));
  keel::step<Recipe, Environment> step{model, optimizer, world};
  std::int64_t batches = of.updates * windows;
  bool const is_it = world.rank() == of.on;
  if (is_it && of.what == event::early_end) batches = of.at;
  for (std::int64_t i = 0; i < batches; ++i) {
    bool const now = is_it && i == of.at;
    step(rows_of(world.rank(), i), loss_of(of, model, happening(of, now), is_bad(of, world.rank(), i)));
    if (now && of.what == event::diverged_count && i + 1 < batches) {
      // The program of one rank leaves a whole update out.
      step.drop_update();
      i += windows;
    }
  }
  step.flush();
  mine.updates = step.updates();
  mine.skipped = step.skipped();
  for (at::Tensor const& one : model.parameters()) mine.parameters.push_back(one.detach().clone());
}

template <class Recipe, class Environment, class Optimizer>
void live_in_parts(drawn_schedule const& of, keel::world_of_ranks const& world, life& mine) {
  using event = drawn_schedule::event;
  layered first, second;
  torch::optim::SGDOptions const rate(0.1);
  Optimizer of_first(first.parameters(), rate), of_second(second.parameters(), rate);
  keel::run<run_of_parts, Environment> run{world, {.console = nullptr}};
  keel::part<Recipe, Environment> a{run, "first", first, of_first};
  keel::part<counted_once<keel::shard::replicate>, Environment> b{run, "second", second, of_second};
  bool const is_it = world.rank() == of.on;
  std::int64_t const all = of.updates * keel::config_of<Recipe>.accumulate.count;
  std::vector<at::Tensor> data;
  for (std::int64_t i = 0; i < (is_it && of.what == event::early_end ? of.at : all); ++i) data.push_back(rows_of(world.rank(), i));
  for (at::Tensor const& x : run.epochs(data)) {
    std::int64_t const i = run.cursor().consumed;
    bool const now = is_it && i == of.at, bad = is_bad(of, world.rank(), i);
    a.update(x, loss_of(of, first, happening(of, now && !of.in_second), bad && !of.in_second));
    b.update(x, loss_of(of, second, happening(of, now && of.in_second), bad && of.in_second));
    // The program of one rank makes an update that the others do not make.
    if (now && of.what == event::diverged_count) b.update(x, loss_of(of, second, happening(of, false), false));
  }
  run.finish();
  mine.updates = a.updates();
  mine.updates_of_second = b.updates();
  mine.skipped = run.skipped();
  for (layered const* const one : {&first, &second}) {
    for (at::Tensor const& parameter : one->parameters()) mine.parameters.push_back(parameter.detach().clone());
  }
}

template <class Recipe>
void live_as_drawn(drawn_schedule const& of, keel::world_of_ranks const& world, life& mine) {
  if (of.in_parts) {
    of.on_device ? live_in_parts<Recipe, on_a_device, keel::sgd>(of, world, mine)
                 : live_in_parts<Recipe, keel::environment, torch::optim::SGD>(of, world, mine);
  } else {
    of.on_device ? live<Recipe, on_a_device, keel::sgd>(of, world, mine)
                 : live<Recipe, keel::environment, torch::optim::SGD>(of, world, mine);
  }
}

inline std::string words_of(std::exception_ptr const& thrown) {
  try {
    std::rethrow_exception(thrown);
  } catch (std::exception const& one) {
    return one.what();
  }
}

}  // namespace detail

inline std::string schedule_of_ranks(std::uint64_t seed) {
  using event = drawn_schedule::event;
  drawn_schedule const of = draw_schedule(seed);
  keel::in_process_options options{.seed = seed};
  // Of a small run so many; one behind the end does not come.
  std::int64_t const collective = 1 + static_cast<std::int64_t>(seed % 29);
  if (of.what == event::kill || of.what == event::hang)
    options.faults = {{of.on, collective, of.what == event::kill ? keel::rank_fault::kind::kill : keel::rank_fault::kind::hang}};
  std::vector<detail::life> all(static_cast<std::size_t>(of.ranks));
  auto const thrown = keel::try_in_process(
      of.ranks,
      [&](keel::world_of_ranks const& world) {
        auto& mine = all[static_cast<std::size_t>(world.rank())];
        using keel::shard::replicate, keel::shard::zero;
        auto const live = [&]<class Shard>(Shard) {
          if (of.climbs) return detail::live_as_drawn<detail::climbing<Shard>>(of, world, mine);
          of.accumulates ? detail::live_as_drawn<detail::counted_twice<Shard>>(of, world, mine)
                         : detail::live_as_drawn<detail::counted_once<Shard>>(of, world, mine);
        };
        of.stage == 2 ? live(zero<2>{}) : of.stage == 1 ? live(zero<1>{}) : live(replicate{});
      },
      options);
  auto const describe = [&](std::string const& what) {
    return "schedule " + std::to_string(seed) + " (" + std::to_string(of.ranks) + " ranks, event " +
           std::to_string(static_cast<int>(of.what)) + " on rank " + std::to_string(of.on) + "): " + what;
  };
  detail::life const* first = nullptr;
  int ended = 0, threw = 0;
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    bool const is_it = static_cast<int>(rank) == of.on;
    if (thrown[rank]) {
      ++threw;
      std::string const words = detail::words_of(thrown[rank]);
      // Who was alright names who was not.
      bool const is_named = words.find("rank " + std::to_string(of.on)) != std::string::npos;
      if (!is_it && !is_named) return describe("rank " + std::to_string(rank) + " says " + words);
    }
    if (all[rank].updates < 0) continue;
    ++ended;
    if (first == nullptr) first = &all[rank];
    if (all[rank].updates != first->updates || all[rank].updates_of_second != first->updates_of_second || all[rank].skipped != first->skipped)
      return describe("rank " + std::to_string(rank) + " made other updates");
    for (std::size_t i = 0; i < first->parameters.size(); ++i) {
      at::Tensor const &a = all[rank].parameters[i], &b = first->parameters[i];
      if (std::memcmp(a.data_ptr(), b.data_ptr(), a.nbytes()) != 0)
        return describe("rank " + std::to_string(rank) + " has other parameters");
    }
  }
  // The second part has no ladder.
  bool const has_room = of.what == event::out_of_memory && of.climbs && !(of.in_parts && of.in_second);
  if (of.what == event::nothing || of.what == event::nan || of.what == event::two_nans || has_room) {
    if (ended != of.ranks) return describe("not all came to the end");
    std::int64_t const skips = of.what == event::nothing || has_room ? 0 : 1;
    std::int64_t const in_first = of.in_parts && of.in_second ? 0 : skips, batches = of.updates * (of.accumulates ? 2 : 1);
    if (first->skipped != skips || first->updates != of.updates - in_first) return describe("other skips than were drawn");
    if (of.in_parts && first->updates_of_second != batches - (skips - in_first)) return describe("the second part made other updates");
  } else if ((of.what == event::exception || of.what == event::out_of_memory) && threw != of.ranks) {
    return describe("not all ended by what one threw");
  }
  return "";
}

}  // namespace keel_test
