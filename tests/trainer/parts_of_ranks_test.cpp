// A run of several models on several ranks trains as one process does on all of their data, and is saved and resumed as one run.
#include <cmath>

#include <keel/checkpoint/read_checkpoint.hpp>
#include <keel/collective/collectives.hpp>
#include <keel/collective/in_process.hpp>

#include "../support.hpp"
#include "gan_of_ranks.hpp"

using namespace keel_test;
using namespace keel::literals;

namespace {

/// State of the program that is each rank's own.
struct counter {
  std::int64_t calls = 0;
  at::Tensor last = at::zeros({2});
  void visit(auto& archive) {
    archive("calls", calls);
    archive("last", last);
  }
};

struct ended {
  std::vector<at::Tensor> state;
  std::int64_t updates = 0, skipped = 0, consumed = 0, calls = 0;
  at::Tensor last, next;  ///< drawn in the run, and behind it
  bool stopped = false;
};

/// What a test does in an iteration, before and between the parts' updates.
using meddle = std::function<void(int rank, std::int64_t iteration, int place)>;

template <class Recipe, class Discriminator, class Generator>
ended train(keel::world_of_ranks const& world, std::filesystem::path const& directory, std::int64_t epochs, std::int64_t stop_at = 0,
            int stops = 0, meddle const& does = {}) {
  gan of(world);
  counter own;
  keel::run<Recipe> run{world, quiet({.run_directory = directory})};
  keel::part<Discriminator> d{run, "discriminator", of.discriminator, *of.of_discriminator};
  keel::part<Generator> g{run, "generator", of.generator, *of.of_generator};
  run.register_state("counter", own);
  if constexpr (keel::config_of<Recipe>.evaluation.kind != keel::evaluation::kind::none)
    run.evaluate_on(std::vector<at::Tensor>{rows_of({0, 1, 2}), rows_of({3, 4})}, [&](at::Tensor const& real) { return of.judged(real, 1); });
  auto const at = [&](int place) {
    if (does) does(world.rank(), run.cursor().consumed, place);
  };
  for (keel::row_numbers const& numbers : run.epochs(of.batches, epochs)) {
    at(0);
    own.calls += world.rank() + 1;
    own.last = at::rand({2});
    auto const count = static_cast<std::int64_t>(numbers.size());
    d.update(rows_of(numbers), of.discriminator_loss(at::randn({count, 4})));
    at(1);
    g.update([&] { return of.judged(of.generator->forward(at::randn({count, 4})), 1); });
    at(2);
    if (run.cursor().consumed + 1 == stop_at && world.rank() == stops) run.request_stop();
  }
  auto const how = run.finish();
  return {of.state(), run.updates(), run.skipped(), run.cursor().consumed, own.calls, own.last.clone(), at::rand({2}), how.template is<keel::result::stopped>()};
}

template <class Recipe, class Discriminator, class Generator>
std::vector<ended> train_ranks(int ranks, std::filesystem::path const& directory, std::int64_t epochs, std::int64_t stop_at = 0,
                               meddle const& does = {}) {
  std::vector<ended> all(static_cast<std::size_t>(ranks));
  keel::run_in_process(ranks, [&](keel::world_of_ranks const& world) {
    all[static_cast<std::size_t>(world.rank())] =
        train<Recipe, Discriminator, Generator>(world, directory, epochs, stop_at, ranks - 1, does);
  });
  for (auto const& one : all) CHECK(same_bits(one.state, all.front().state));
  return all;
}

bool same(std::vector<ended> const& a, std::vector<ended> const& b) {
  for (std::size_t i = 0; i < a.size(); ++i) {
    UNSCOPED_INFO("rank " << i << ": updates " << a[i].updates << " and " << b[i].updates << ", calls " << a[i].calls << " and "
                          << b[i].calls);
    if (!same_bits(a[i].state, b[i].state) || a[i].updates != b[i].updates || a[i].calls != b[i].calls ||
        !same_bits(a[i].last, b[i].last) || !same_bits(a[i].next, b[i].next))
      return false;
  }
  return true;
}

}  // namespace

TEST_CASE("two models on one to four ranks train as one process does on all of their rows") {
  // By hand, in float64: gradients of the whole batch, or of two.
  auto const by_hand = [](bool accumulates) {
    gan of(keel::world_of_ranks(), true);
    for (auto model : {of.generator, of.discriminator}) model->to(at::kDouble);
    keel::adamw of_d(of.discriminator->parameters(), 0.02), of_g(of.generator->parameters(), 0.01);
    at::Tensor const noise = at::arange(48, at::kDouble).view({12, 4}).sin();
    for (std::int64_t epoch = 0; epoch < 4; ++epoch) {
      for (std::int64_t i = 0; i < of.batches.size(); ++i) {
        at::Tensor const real = rows_of(of.batches.batch(epoch, i)).to(at::kDouble);
        if (!accumulates || i % 2 == 0) of_d.zero_grad();
        (of.discriminator_loss(noise)(real) * (accumulates ? 0.5 : 1.0)).backward();
        if (accumulates && i % 2 == 1) {
          double squares = 0.0;
          for (auto const& one : of.discriminator->parameters()) squares += one.grad().square().sum().item<double>();
          double const norm = std::sqrt(squares);
          for (auto const& one : of.discriminator->parameters())
            if (norm > 0.5) one.mutable_grad().mul_(0.5 / norm);
        }
        if (!accumulates || i % 2 == 1) of_d.step();
        std::vector<at::Tensor> kept;
        for (auto const& one : of.discriminator->parameters()) kept.push_back(one.grad().clone());
        of_g.zero_grad();
        of.judged(of.generator->forward(noise), 1).backward();
        of_g.step();
        std::size_t place = 0;
        for (auto const& one : of.discriminator->parameters()) one.mutable_grad() = kept[place++];
      }
    }
    return of.state();
  };
  auto const by_keel = []<class Discriminator, class Generator>(int ranks) {
    std::vector<std::vector<at::Tensor>> all(static_cast<std::size_t>(ranks));
    keel::run_in_process(ranks, [&](keel::world_of_ranks const& world) {
      gan of(world, true);
      keel::run<unsaved> run{world, quiet()};
      keel::part<Discriminator> d{run, "discriminator", of.discriminator, *of.of_discriminator};
      keel::part<Generator> g{run, "generator", of.generator, *of.of_generator};
      at::Tensor const noise = at::arange(48, at::kFloat).view({12, 4}).sin();
      for (keel::row_numbers const& numbers : run.epochs(of.batches, 4)) {
        // Each rank the rows of its own.
        auto const mine = noise.slice(0, world.rank() * 12 / ranks, (world.rank() + 1) * 12 / ranks);
        d.update(rows_of(numbers), of.discriminator_loss(mine));
        g.update([&] { return of.judged(of.generator->forward(mine), 1); });
      }
      CHECK(run.finish().finished() != nullptr);
      all[static_cast<std::size_t>(world.rank())] = of.state();
    });
    for (auto const& one : all) CHECK(same_bits(one, all.front()));
    return all.front();
  };
  auto const is_close = [](std::vector<at::Tensor> const& expected, std::vector<at::Tensor> const& found) {
    for (std::size_t i = 0; i < expected.size(); ++i)
      CHECK((found[i].to(at::kDouble) - expected[i]).abs().max().item<double>() < 1e-5 * expected[i].abs().max().item<double>());
  };
  auto const expected = by_hand(false), expected_of_two = by_hand(true);
  for (int const ranks : {1, 2, 3, 4}) {
    CAPTURE(ranks);
    is_close(expected, by_keel.operator()<replicated, in_shares>(ranks));
    is_close(expected_of_two, by_keel.operator()<replicated_two, replicated>(ranks));
    // Shares and replicas are of the same bits.
    CHECK(same_bits(by_keel.operator()<replicated, replicated>(ranks), by_keel.operator()<in_shares, in_shares>(ranks)));
  }
}

TEST_CASE("a run of parts on several ranks that one of them stops after any iteration ends with the bits of one that was not stopped") {
  auto const try_all = []<class Discriminator, class Generator>(int ranks) {
    scratch_directory const whole;
    auto const expected = train_ranks<saved, Discriminator, Generator>(ranks, whole, 5);
    CHECK(!same_bits(expected[0].last, expected[1].last));
    CHECK(expected[0].consumed == 10);
    for (std::int64_t at = 1; at < 10; ++at) {
      CAPTURE(ranks, at);
      scratch_directory const cut;
      auto const first = train_ranks<saved, Discriminator, Generator>(ranks, cut, 5, at);
      for (auto const& one : first) CHECK(one.consumed == first.front().consumed);
      if (at < 8) CHECK(first.front().stopped);
      CHECK(same(expected, train_ranks<saved, Discriminator, Generator>(ranks, cut, 5)));
    }
  };
  try_all.operator()<replicated, in_shares>(2);
  try_all.operator()<two_in_shares, replicated>(2);
  try_all.operator()<replicated_two, in_shares>(3);
}

TEST_CASE("a run of parts goes on with other numbers of ranks, and between replicas and shares, from a checkpoint that is whole") {
  scratch_directory const of_one;
  auto const bytes = [](std::filesystem::path const& directory) {
    std::filesystem::path newest;
    for (auto const& one : std::filesystem::directory_iterator(directory / "checkpoints")) newest = std::max(newest, one.path());
    std::vector<at::Tensor> all;
    for (auto const& [name, tensor] : keel::read_checkpoint(newest).optimizer) all.push_back(tensor);
    return all;
  };
  // Without what each rank draws by itself.
  auto const go = []<class Part>(int ranks, std::filesystem::path const& directory, std::int64_t epochs) {
    std::vector<at::Tensor> found;
    keel::run_in_process(ranks, [&](keel::world_of_ranks const& world) {
      gan of(world, true);
      keel::run<at_the_end> run{world, quiet({.run_directory = directory})};
      keel::part<Part> d{run, "discriminator", of.discriminator, *of.of_discriminator};
      keel::part<Part> g{run, "generator", of.generator, *of.of_generator};
      for (keel::row_numbers const& numbers : run.epochs(of.batches, epochs)) {
        at::Tensor const x = rows_of(numbers);
        d.update(x, [&](at::Tensor const& real) { return of.judged(real, 1) + of.judged(-real, 0); });
        g.update(x, [&](at::Tensor const& real) { return of.judged(of.generator->forward(at::cat({real, -real}, 1)), 1); });
      }
      run.finish();
      if (world.rank() == 0) found = of.state();
    });
    return found;
  };
  auto const expected = go.operator()<replicated>(1, of_one, 6);
  for (auto const& [before, after] : {std::pair(4, 1), {4, 2}, {4, 3}, {1, 2}, {2, 4}}) {
    CAPTURE(before, after);
    scratch_directory const replicas, shares;
    go.operator()<replicated>(before, replicas, 3);
    go.operator()<in_shares>(before, shares, 3);
    CHECK(same_bits(bytes(replicas), bytes(shares)));
    auto const on = go.operator()<in_shares>(after, replicas, 6);
    CHECK(same_bits(on, go.operator()<replicated>(after, shares, 6)));
    for (std::size_t i = 0; i < expected.size(); ++i) CHECK(at::allclose(on[i], expected[i], 1e-4, 1e-6));
  }
}

TEST_CASE("buffers of every part's model are rank 0's behind each update, whichever part's loss ran through them, and in a save") {
  scratch_directory const directory;
  keel::run_in_process(2, [&](keel::world_of_ranks const& world) {
    gan of(world);
    keel::run<saved> run{world, quiet({.run_directory = directory})};
    keel::part<replicated> d{run, "discriminator", of.discriminator, *of.of_discriminator};
    keel::part<replicated> g{run, "generator", of.generator, *of.of_generator};
    run.evaluate_on(std::vector<at::Tensor>{rows_of({0, 1, 2})}, [&](at::Tensor const& real) { return of.judged(real, 1); });
    auto const are_alike = [&] {
      for (at::Tensor const& one : of.state()) {
        at::Tensor const all = keel::all_gather(world, one.to(at::kDouble));
        CHECK(same_bits(all[0], all[1]));
      }
    };
    for (keel::row_numbers const& numbers : run.epochs(of.batches, 3)) {
      d.update(rows_of(numbers), of.discriminator_loss(at::randn({6, 4})));
      are_alike();
      g.update([&] { return of.judged(of.generator->forward(at::randn({6, 4})), 1); });
      are_alike();
      // As a program does that looks at what it generates.
      of.discriminator->forward(of.generator->forward(at::randn({6, 4})));
    }
    run.finish();
    CHECK(run.updates() == 6);
  });
  CHECK(std::filesystem::exists(directory / "checkpoints/step-000000006"));
}

TEST_CASE("the program's own backward passes of a part are added up over the ranks, and a layer is unfrozen on all") {
  auto const go = [](int ranks) {
    std::vector<std::vector<at::Tensor>> all(static_cast<std::size_t>(ranks));
    keel::run_in_process(ranks, [&](keel::world_of_ranks const& world) {
      gan of(world, true);
      for (auto const& one : of.generator->parameters()) one.requires_grad_(false);
      auto const last = of.generator->ptr(of.generator->size() - 1);
      for (auto& one : last->parameters()) one.requires_grad_(true);
      keel::adamw of_last(last->parameters(), 0.01);
      keel::run<unsaved> run{world, quiet()};
      keel::part<in_shares> d{run, "discriminator", of.discriminator, *of.of_discriminator};
      keel::part<in_shares> g{run, "generator", of.generator, of_last};
      at::Tensor const noise = at::arange(48, at::kFloat).view({12, 4}).sin().slice(0, world.rank() * 12 / ranks, (world.rank() + 1) * 12 / ranks);
      for (keel::row_numbers const& numbers : run.epochs(of.batches, 4)) {
        at::Tensor const real = rows_of(numbers);
        auto window = d.open(real.size(0));
        at::Tensor const a = of.judged(real, 1), b = of.judged(of.generator->forward(noise).detach(), 0);
        a.backward();
        b.backward();
        window.close(a + b);
        if (run.cursor().consumed == 3) g.unfreeze(*of.generator->ptr(0));
        g.update([&] { return of.judged(of.generator->forward(noise), 1); });
      }
      run.finish();
      all[static_cast<std::size_t>(world.rank())] = of.state();
    });
    for (auto const& one : all) CHECK(same_bits(one, all.front()));
    return all.front();
  };
  auto const one = go(1), two = go(2);
  for (std::size_t i = 0; i < one.size(); ++i) CHECK(at::allclose(one[i], two[i], 1e-4, 1e-6));
}

TEST_CASE("a part that joins later on all ranks resumes wherever the run stood") {
  auto const grow = []<class Late>(std::filesystem::path const& directory, std::int64_t until) {
    std::vector<std::vector<at::Tensor>> all(2);
    keel::run_in_process(2, [&](keel::world_of_ranks const& world) {
      gan of(world);
      keel::run<at_the_end> run{world, quiet({.run_directory = directory})};
      keel::part<replicated> d{run, "discriminator", of.discriminator, *of.of_discriminator};
      std::optional<keel::part<Late>> g;
      for (std::int64_t const i : run.iterations(until)) {
        if (run.updates() >= 4 && !g) g.emplace(run, "generator", of.generator, *of.of_generator);
        d.update(rows_of({i, i + world.rank()}), [&](at::Tensor const& real) { return of.judged(real, 1); });
        if (g) g->update([&] { return of.judged(of.generator->forward(at::randn({6, 4})), 1); });
      }
      run.finish();
      all[static_cast<std::size_t>(world.rank())] = of.state();
    });
    CHECK(same_bits(all[0], all[1]));
    return all[0];
  };
  auto const try_all = [&]<class Late>() {
    scratch_directory const whole;
    auto const expected = grow.template operator()<Late>(whole, 10);
    for (std::int64_t const at : {3, 4, 5, 8}) {
      scratch_directory const cut;
      grow.template operator()<Late>(cut, at);
      CHECK(same_bits(expected, grow.template operator()<Late>(cut, 10)));
    }
  };
  try_all.operator()<replicated>();
  try_all.operator()<in_shares>();
}

TEST_CASE("of a run of parts on several ranks rank 0 has the record and the checkpoints, and each its events") {
  scratch_directory const directory;
  auto const all = train_ranks<saved, replicated, in_shares>(2, directory, 5);
  std::vector<nlohmann::json> updates;
  for (std::string const& line : read_lines(directory / "metrics.jsonl")) {
    auto one = nlohmann::json::parse(line);
    if (one.contains("loss")) updates.push_back(std::move(one));
  }
  CHECK(updates.size() == static_cast<std::size_t>(all.front().updates));
  REQUIRE(!updates.empty());
  CHECK(has(updates.back().dump(), "ranks/slowest_ms"));
  CHECK(has(updates.back().dump(), "generator/gradient_norm"));
  // Of the discriminator's rows, and of the generator, which gets none and counts as one on each rank.
  CHECK(updates.back().at("tokens") == 12 + 2);
  CHECK(events_of(directory, "ranks").front().at("ranks") == 2);
  CHECK(events_of(directory / "rank-1", "ranks").front().at("rank") == 1);
  CHECK(!std::filesystem::exists(directory / "rank-1" / "checkpoints"));
}

TEST_CASE("a kill of either rank at any collective of a run of parts leaves checkpoints that all go on from") {
  scratch_directory const whole;
  auto const expected = train_ranks<saved, in_shares, replicated>(2, whole, 5);
  std::int64_t const last = 260;
  for (std::int64_t at = 9; at < last; at += 23) {
    for (int const killed : {0, 1}) {
      CAPTURE(at, killed);
      scratch_directory const cut;
      auto const threw = keel::try_in_process(
          2, [&](keel::world_of_ranks const& world) { train<saved, in_shares, replicated>(world, cut, 5); },
          {.faults = {{.rank = killed, .collective = at}}});
      CHECK(threw[static_cast<std::size_t>(1 - killed)] != nullptr);
      CHECK(same(expected, train_ranks<saved, in_shares, replicated>(2, cut, 5)));
    }
  }
}
