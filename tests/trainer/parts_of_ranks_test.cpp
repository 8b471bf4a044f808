// A run of several models on several ranks: the training of one process on all of their data, and whatever happens on one rank between or inside
// of the updates of its parts happens on all, or is said by all.
#include <cmath>

#include <ATen/Parallel.h>
#include <ATen/ops/binary_cross_entropy_with_logits.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/dropout.h>

#include <keel/collective/collectives.hpp>
#include <keel/collective/in_process.hpp>

#include "../collective/words_of_ranks.hpp"
#include "../starving.hpp"
#include "../support.hpp"

using namespace keel_test;
using namespace keel::literals;

namespace {

template <class Shard>
struct part_of : keel::recipe<Shard, keel::nonfinite::skip<20>> {};
template <class Shard>
struct clipped_two_of : keel::recipe<Shard, keel::nonfinite::skip<20>, keel::accumulate<2>, keel::clip::global_norm<0.5>> {};
using replicated = part_of<keel::shard::replicate>;
using in_shares = part_of<keel::shard::zero<1>>;
using replicated_two = clipped_two_of<keel::shard::replicate>;
using two_in_shares = clipped_two_of<keel::shard::zero<1>>;
struct climbing : keel::recipe<keel::shard::zero<1>, keel::oom::ladder<keel::oom::halve_micro_batch, keel::oom::give_up>> {};
struct returning : keel::recipe<keel::shard::zero<1>, keel::nonfinite::rollback<2>> {};

struct unsaved : keel::recipe<keel::shard::replicate> {};
struct saved : keel::recipe<keel::shard::replicate, keel::checkpoint::every<3_steps, keel::checkpoint::synchronous>,
                            keel::evaluation::every<2_steps>, keel::determinism::seeded<3>> {};
struct at_the_end : keel::recipe<keel::shard::replicate, keel::checkpoint::every<1000_steps, keel::checkpoint::synchronous>> {};
struct short_collectives : keel::recipe<keel::shard::replicate, keel::timeout::set<keel::timeout::collective<1_min>>> {};

constexpr std::int64_t rows = 24;

/// Row i of the data, the same on all ranks.
at::Tensor rows_of(keel::row_numbers const& numbers) {
  std::vector<at::Tensor> all;
  for (std::int64_t const one : numbers)
    all.push_back(make_pair_batch(static_cast<std::uint64_t>(one), 1).first.slice(1, 0, 2).contiguous() + 2);
  return at::cat(all);
}

/// A GAN as one rank has it.
struct gan {
  torch::nn::Sequential generator{nullptr}, discriminator{nullptr};
  std::unique_ptr<keel::adamw> of_generator, of_discriminator;
  keel::shuffled_batches batches;
  explicit gan(keel::world_of_ranks const& world, bool plain = false)
      : batches({.rows = rows, .batch = 12 / world.size(), .seed = 5, .rank = world.rank(), .ranks = world.size()}) {
    at::manual_seed(1);
    generator = torch::nn::Sequential(torch::nn::Linear(4, 6));
    discriminator = torch::nn::Sequential(torch::nn::Linear(2, 6));
    if (!plain) {
      generator->push_back(torch::nn::BatchNorm1d(6));
      discriminator->push_back(torch::nn::BatchNorm1d(6));
      discriminator->push_back(torch::nn::Dropout(0.2));
    }
    for (auto model : {generator, discriminator}) model->push_back(torch::nn::Tanh());
    generator->push_back(torch::nn::Linear(6, 2));
    discriminator->push_back(torch::nn::Linear(6, 1));
    of_generator = std::make_unique<keel::adamw>(generator->parameters(), 0.01);
    of_discriminator = std::make_unique<keel::adamw>(discriminator->parameters(), 0.02);
  }
  std::vector<at::Tensor> state() const {
    std::vector<at::Tensor> all;
    for (auto const& model : {generator, discriminator}) {
      for (at::Tensor const& one : copies_of(model->parameters())) all.push_back(one);
      for (at::Tensor const& one : copies_of(model->buffers())) all.push_back(one);
    }
    return all;
  }
  at::Tensor judged(at::Tensor const& x, double target) {
    at::Tensor const out = discriminator->forward(x);
    return at::binary_cross_entropy_with_logits(out, at::full_like(out, target));
  }
  auto discriminator_loss(at::Tensor const& noise) {
    return [this, noise](at::Tensor const& real) {
      return judged(real, 1) + judged(generator->forward(noise.slice(0, 0, real.size(0))).detach(), 0);
    };
  }
};

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

bool has(std::string const& words, std::string const& part) {
  UNSCOPED_INFO(words);
  return words.find(part) != std::string::npos;
}

/// Trains a small GAN, which is what `loop` makes of it, on two ranks; what each threw.
std::vector<std::string> words_of(std::function<void(int rank, gan&, keel::run<unsaved>&, keel::part<replicated>&, keel::part<replicated>&)> const& loop) {
  return words_of_ranks(2, [&](keel::world_of_ranks const& world) {
    gan of(world);
    keel::run<unsaved> run{world, quiet()};
    keel::part<replicated> d{run, "discriminator", of.discriminator, *of.of_discriminator};
    keel::part<replicated> g{run, "generator", of.generator, *of.of_generator};
    loop(world.rank(), of, run, d, g);
  });
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
    for (auto const& [name, tensor] : keel::load_safetensors(newest / "optimizer.safetensors").tensors) all.push_back(tensor);
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

TEST_CASE("a NaN of one rank in one part is the skip of all ranks, and leaves all models and buffers as they were") {
  for (int const place : {0, 1}) {
    CAPTURE(place);
    keel::run_in_process(3, [&](keel::world_of_ranks const& world) {
      gan of(world);
      keel::run<unsaved> run{world, quiet()};
      keel::part<in_shares> d{run, "discriminator", of.discriminator, *of.of_discriminator};
      keel::part<replicated> g{run, "generator", of.generator, *of.of_generator};
      for (keel::row_numbers const& numbers : run.epochs(of.batches, 3)) {
        bool const is_bad = run.cursor().consumed == 3;
        bool const here = is_bad && world.rank() == 1;
        auto const before = of.state();
        auto const of_d = d.update(rows_of(numbers) * (here && place == 0 ? NAN : 1.0), of.discriminator_loss(at::randn({4, 4})));
        if (is_bad && place == 0) CHECK(of_d.skipped() != nullptr);
        if (is_bad && place == 0) CHECK(same_bits(before, of.state()));
        auto const between = of.state();
        auto const of_g = g.update([&] { return of.judged(of.generator->forward(at::randn({4, 4}) * (here && place == 1 ? NAN : 1.0)), 1); });
        if (is_bad && place == 1) CHECK(of_g.skipped() != nullptr);
        if (is_bad && place == 1) CHECK(same_bits(between, of.state()));
      }
      run.finish();
      CHECK(run.updates() == 6);
      CHECK(run.skipped() == 1);
      for (at::Tensor const& one : of.state()) CHECK(at::isfinite(one).all().item<bool>());
    });
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

TEST_CASE("an exception of one rank in a loss, the loop, a hook, the data or an evaluation is everyone's, with the rank") {
  struct thrown_in {
    char const* name;
    char const* words;
  };
  for (auto const& [name, words] : {thrown_in{"discriminator", "rank 1 threw, and no rank makes this update: of the discriminator"},
                                    {"generator", "rank 1 threw, and no rank makes this update: of the generator"},
                                    {"between", "an exception has ended"},
                                    {"hook", "of the hook"},
                                    {"data", "of the data"},
                                    {"evaluation", "of the evaluation"}}) {
    for (int const thrower : {0, 1}) {
      CAPTURE(name, thrower);
      auto const said = words_of_ranks(2, [&, what = std::string(name)](keel::world_of_ranks const& world) {
        gan of(world);
        struct evaluating : keel::recipe<keel::shard::replicate, keel::evaluation::every<1_steps>> {};
        keel::run<evaluating> run{world, quiet()};
        keel::part<replicated> d{run, "discriminator", of.discriminator, *of.of_discriminator};
        keel::part<in_shares> g{run, "generator", of.generator, *of.of_generator};
        auto const throw_in = [&](char const* place) {
          if (what == place && world.rank() == thrower && run.cursor().consumed == 3) throw std::runtime_error(std::string("of the ") + place);
        };
        run.on([&](keel::event::update_end const&) { throw_in("hook"); });
        run.evaluate_on(std::vector<at::Tensor>{rows_of({0, 1, 2})}, [&](at::Tensor const& real) {
          throw_in("evaluation");
          return of.judged(real, 1);
        });
        auto const read = [&](std::int64_t epoch, std::int64_t from) {
          return ranges::views::iota(from, of.batches.size()) | ranges::views::transform([&, epoch](std::int64_t i) {
                   throw_in("data");
                   return of.batches.batch(epoch, i);
                 });
        };
        for (keel::row_numbers const& numbers : run.epochs(read, 5)) {
          d.update(rows_of(numbers), [&](at::Tensor const& real) {
            throw_in("discriminator");
            return of.discriminator_loss(at::randn({6, 4}))(real);
          });
          throw_in("between");
          g.update([&] {
            throw_in("generator");
            return of.judged(of.generator->forward(at::randn({6, 4})), 1);
          });
        }
        run.finish();
      });
      std::string expected = words;
      if (auto const at = expected.find("rank 1"); at != std::string::npos) expected[at + 5] = static_cast<char>('0' + thrower);
      CHECK(has(said[static_cast<std::size_t>(1 - thrower)], expected));
      CHECK(said[static_cast<std::size_t>(thrower)] == std::string("of the ") + name);
    }
  }
}

TEST_CASE("an exception that all ranks have in a part does not end their world: they go on together") {
  keel::run_in_process(2, [&](keel::world_of_ranks const& world) {
    gan of(world);
    keel::run<unsaved> run{world, quiet()};
    keel::part<replicated> d{run, "discriminator", of.discriminator, *of.of_discriminator};
    try {
      for (keel::row_numbers const& numbers : run.epochs(of.batches, 2)) {
        d.update(rows_of(numbers), [&](at::Tensor const& real) {
          if (run.cursor().consumed == 1 && world.rank() == 1) throw std::runtime_error("of the program");
          return of.judged(real, 1);
        });
      }
    } catch (std::exception const&) {
      // As a program that leaves a batch out.
    }
    for (keel::row_numbers const& numbers : run.epochs(of.batches, 2))
      d.update(rows_of(numbers), [&](at::Tensor const& real) { return of.judged(real, 1); });
    run.finish();
    CHECK(d.updates() >= 4);
  });
}

TEST_CASE("ranks that go different ways are named with both places") {
  using torch::nn::Sequential;
  auto const loss = [](gan& of) { return [&of](at::Tensor const& real) { return of.judged(real, 1); }; };
  auto const loss_of_generator = [](gan& of) { return [&of] { return of.judged(of.generator->forward(at::ones({6, 4})), 1); }; };
  auto const say_both = [](std::vector<std::string> const& said, std::string const& words) {
    for (std::string const& one : said) CHECK(has(one, words));
  };
  // Another order.
  say_both(words_of([&](int rank, gan& of, auto& run, auto& d, auto& g) {
             for (keel::row_numbers const& numbers : run.epochs(of.batches)) {
               if (rank == 1) g.update(loss_of_generator(of));
               d.update(rows_of(numbers), loss(of));
               if (rank == 0) g.update(loss_of_generator(of));
             }
           }),
           "rank 1 is at an update of the part generator, and rank 0 at an update of the part discriminator");
  // One more update.
  say_both(words_of([&](int rank, gan& of, auto& run, auto& d, auto& g) {
             for (keel::row_numbers const& numbers : run.epochs(of.batches)) {
               d.update(rows_of(numbers), loss(of));
               for (int i = 0; i < 1 + rank; ++i) g.update(loss_of_generator(of));
             }
           }),
           "rank 1 is at an update of the part generator, and rank 0 at the beginning of an iteration");
  // The end of a loop.
  say_both(words_of([&](int rank, gan& of, auto& run, auto& d, auto&) {
             for (keel::row_numbers const& numbers : run.epochs(of.batches)) {
               d.update(rows_of(numbers), loss(of));
               if (rank == 0) break;
             }
             run.finish();
           }),
           "rank 1 is at the beginning of an iteration, and rank 0 at the end of the run");
  // The last iteration, which one leaves before its end.
  say_both(words_of([&](int rank, gan& of, auto& run, auto& d, auto&) {
             for (std::int64_t const i : run.iterations(3)) {
               d.update(rows_of({i, i + 1}), loss(of));
               if (rank == 0 && i == 2) break;
             }
             run.finish();
           }),
           "rank 1 is at the beginning of an iteration, and rank 0 at the end of the run behind 2 iterations, in the middle of one");
  // Another length.
  for (std::string const& one : words_of_ranks(2, [](keel::world_of_ranks const& world) {
         keel::run<unsaved> run{world, quiet({.updates = 10 + world.rank()})};
       }))
    CHECK(has(one, "rank 0 has \"updates 10\" where rank 1 has \"updates 11\""));
}

TEST_CASE("an exception in a micro-batch that is not the last of its update, or in a hook of a part, is said with its words") {
  for (bool const in_hook : {false, true}) {
    CAPTURE(in_hook);
    auto const said = words_of_ranks(2, [&](keel::world_of_ranks const& world) {
      gan of(world);
      keel::run<unsaved> run{world, quiet()};
      keel::part<replicated_two> d{run, "discriminator", of.discriminator, *of.of_discriminator};
      keel::part<replicated> g{run, "generator", of.generator, *of.of_generator};
      auto const throws = [&](std::int64_t at) {
        if (world.rank() == 1 && run.cursor().consumed == at) throw std::runtime_error("of the program");
      };
      g.on([&](keel::event::update_end const&) {
        if (in_hook) throws(2);
      });
      for (keel::row_numbers const& numbers : run.epochs(of.batches, 3)) {
        d.update(rows_of(numbers), [&](at::Tensor const& real) {
          if (!in_hook) throws(2);
          return of.judged(real, 1);
        });
        g.update([&] { return of.judged(of.generator->forward(at::ones({6, 4})), 1); });
      }
      run.finish();
    });
    CHECK(has(said[0], in_hook ? "[E25] rank 0 of 2: rank 1 has given up: of the program" : "[E25] rank 1 threw at an update of the part discriminator: of the program"));
    CHECK(said[1] == "of the program");
  }
}

TEST_CASE("what ends a rank before its run has parts is told to the others") {
  scratch_directory const directory;
  keel::run<keel::recipe<keel::checkpoint::every<5_steps>>> first{quiet({.run_directory = directory})};
  auto const said = words_of_ranks(2, [&](keel::world_of_ranks const& world) {
    gan of(world);
    keel::run<saved> run{world, quiet({.run_directory = directory})};
    keel::part<replicated> d{run, "discriminator", of.discriminator, *of.of_discriminator};
  });
  CHECK(has(said[0], "[E01]"));
  CHECK(has(said[1], "rank 0 has given up: an exception has ended its run"));
  for (std::string const& one : words_of_ranks(2, [&](keel::world_of_ranks const& world) {
         gan of(world);
         keel::run<unsaved> run{world, quiet()};
         keel::part<replicated> d{run, world.rank() == 0 ? "first" : "second", of.discriminator, *of.of_discriminator};
       }))
    CHECK(has(one, "rank 0 has \"part first\" where rank 1 has \"part second\""));
}

TEST_CASE("a stop that one rank asks for in the last iteration of a loop is a stop of the loops behind it on all ranks") {
  std::vector<std::int64_t> updates(2);
  keel::run_in_process(2, [&](keel::world_of_ranks const& world) {
    gan of(world);
    keel::run<unsaved> run{world, quiet()};
    keel::part<replicated> d{run, "discriminator", of.discriminator, *of.of_discriminator};
    auto const train_to = [&](std::int64_t until) {
      for (std::int64_t const i : run.iterations(until)) {
        d.update(rows_of({i}), [&](at::Tensor const& real) { return of.judged(real.expand({2, 2}), 1); });
        if (i == 3 && world.rank() == 1) run.request_stop();
      }
    };
    train_to(4);
    train_to(9);
    CHECK(run.finish().stopped() != nullptr);
    updates[static_cast<std::size_t>(world.rank())] = d.updates();
  });
  CHECK(updates == std::vector<std::int64_t>{4, 4});
}

TEST_CASE("the data of one rank that ends earlier ends the epoch of all, and is said; a rank without data is named") {
  scratch_directory const directory;
  keel::run_in_process(3, [&](keel::world_of_ranks const& world) {
    gan of(world);
    keel::run<at_the_end> run{world, quiet({.run_directory = directory})};
    keel::part<replicated_two> d{run, "discriminator", of.discriminator, *of.of_discriminator};
    std::vector<at::Tensor> mine;
    for (int i = 0; i < (world.rank() == 1 ? 3 : 5); ++i) mine.push_back(rows_of({i, i + 1}));
    std::int64_t iterations = 0;
    for (at::Tensor const& one : run.epochs(mine, 2)) {
      ++iterations;
      d.update(one, [&](at::Tensor const& real) { return of.judged(real, 1); });
    }
    run.finish();
    CHECK(iterations == 6);
    CHECK(d.updates() == 3);
    CHECK(run.cursor().epoch == 2);
  });
  CHECK(events_of(directory, "data_ended").size() == 2);
  CHECK(events_of(directory / "rank-1", "data_ended").empty());
  auto const said = words_of_ranks(2, [&](keel::world_of_ranks const& world) {
    gan of(world);
    keel::run<unsaved> run{world, quiet()};
    keel::part<replicated> d{run, "discriminator", of.discriminator, *of.of_discriminator};
    std::vector<at::Tensor> const mine(world.rank() == 1 ? 0 : 5, rows_of({1, 2}));
    for (at::Tensor const& one : run.epochs(mine)) d.update(one, [&](at::Tensor const& real) { return of.judged(real, 1); });
  });
  CHECK(has(said[0], "rank 1 has no batches in epoch 0"));
  CHECK(has(said[1], "epoch 0 has no batches"));
}

TEST_CASE("memory that runs out in a part of one rank is the rung of all, and where none is left the end of all") {
  keel::run_in_process(2, [&](keel::world_of_ranks const& world) {
    gan of(world, true);
    keel::run<unsaved> run{world, quiet()};
    keel::part<climbing> d{run, "discriminator", of.discriminator, *of.of_discriminator};
    keel::part<replicated> g{run, "generator", of.generator, *of.of_generator};
    int rungs = 0;
    d.on([&](keel::event::out_of_memory const&) { ++rungs; });
    for (keel::row_numbers const& numbers : run.epochs(of.batches, 3)) {
      bool const is_short = world.rank() == 1 && run.cursor().consumed >= 2;
      d.update(rows_of(numbers), [&, is_short](at::Tensor const& real) {
        if (is_short && real.size(0) > 3) run_out_of_memory();
        return of.judged(real, 1);
      });
      g.update([&] { return of.judged(of.generator->forward(at::ones({6, 4})), 1); });
    }
    run.finish();
    CHECK(rungs == 1);
    CHECK(d.updates() == 6);
  });
  auto const said = words_of_ranks(2, [&](keel::world_of_ranks const& world) {
    gan of(world, true);
    keel::run<unsaved> run{world, quiet()};
    keel::part<climbing> d{run, "discriminator", of.discriminator, *of.of_discriminator};
    for (keel::row_numbers const& numbers : run.epochs(of.batches, 3)) {
      bool const is_short = world.rank() == 1 && run.cursor().consumed >= 2;
      d.update(rows_of(numbers), [&, is_short](at::Tensor const& real) {
        if (is_short) run_out_of_memory();
        return of.judged(real, 1);
      });
    }
  });
  for (std::string const& one : said) CHECK(has(one, "memory ran out in the part discriminator, and its ladder has no further rung"));
}

TEST_CASE("memory that runs out at any allocation of a rank in an iteration, its save and its evaluation ends the run of all") {
  at::set_num_threads(1);
  keel::memory::budget budget;
  bool failed = true;
  std::int64_t named = 0;
  // Every fifth: an iteration has many.
  for (std::int64_t nth = 1; failed; nth += 5) {
    int const rank = static_cast<int>(nth / 5 % 2);
    REQUIRE(nth < 5000);
    scratch_directory const directory;
    auto const refused = budget.refused();
    auto const words = words_of_ranks(2, [&](keel::world_of_ranks const& world) {
      gan of(world);
      struct often : keel::recipe<keel::shard::replicate, keel::checkpoint::every<2_steps, keel::checkpoint::synchronous>, keel::evaluation::every<2_steps>> {};
      keel::run<often> run{world, quiet({.run_directory = directory})};
      keel::part<replicated> d{run, "discriminator", of.discriminator, *of.of_discriminator};
      keel::part<in_shares> g{run, "generator", of.generator, *of.of_generator};
      run.evaluate_on(std::vector<at::Tensor>{rows_of({0, 1, 2})}, [&](at::Tensor const& real) { return of.judged(real, 1); });
      std::vector<at::Tensor> data;
      for (std::int64_t i = 0; i < 4; ++i) data.push_back(rows_of({2 * i, 2 * i + 1}));
      for (at::Tensor const& real : run.epochs(data)) {
        if (run.cursor().consumed == 1 && world.rank() == rank) budget.refuse_allocation(nth);
        if (run.cursor().consumed == 2 && world.rank() == rank) budget.refuse_allocation(0);
        d.update(real, of.discriminator_loss(at::ones({2, 4})));
        g.update([&] { return of.judged(of.generator->forward(at::ones({2, 4}) + real.mean()), 1); });
      }
      run.finish();
      CHECK(run.updates() == 4);
    });
    budget.refuse_allocation(0);
    failed = budget.refused() > refused;
    INFO("allocation " << nth << ": " << words[0] << " | " << words[1]);
    CHECK(words[0].empty() == words[1].empty());
    if (!failed) CHECK(words[0].empty());
    if (failed && !words[0].empty()) CHECK(has(words[static_cast<std::size_t>(1 - rank)], "[E25]"));
    named += words[0].empty() ? 0 : 1;
  }
  CHECK(named > 10);
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

TEST_CASE("a part of one rank that returns to a checkpoint returns with all parts on all ranks") {
  struct often : keel::recipe<keel::shard::replicate, keel::checkpoint::every<1_steps, keel::checkpoint::synchronous, keel::checkpoint::keep<4>>> {};
  scratch_directory const directory;
  keel::run_in_process(2, [&](keel::world_of_ranks const& world) {
    gan of(world);
    keel::run<often> run{world, quiet({.run_directory = directory})};
    keel::part<returning> d{run, "discriminator", of.discriminator, *of.of_discriminator};
    keel::part<replicated> g{run, "generator", of.generator, *of.of_generator};
    for (keel::row_numbers const& numbers : run.epochs(of.batches, 4)) {
      bool const is_bad = world.rank() == 1 && run.rollbacks() == 0 && (run.cursor().consumed == 4 || run.cursor().consumed == 5);
      d.update(rows_of(numbers) * (is_bad ? NAN : 1.0), of.discriminator_loss(at::randn({6, 4})));
      g.update([&] { return of.judged(of.generator->forward(at::randn({6, 4})), 1); });
    }
    run.finish();
    CHECK(run.rollbacks() == 1);
    CHECK(d.updates() == g.updates());
    for (at::Tensor const& one : of.state()) {
      at::Tensor const all = keel::all_gather(world, one.to(at::kDouble));
      CHECK(same_bits(all[0], all[1]));
    }
  });
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

TEST_CASE("a stray write to a parameter of one part on one rank is named at the next save") {
  scratch_directory const directory;
  auto const said = words_of_ranks(2, [&](keel::world_of_ranks const& world) {
    gan of(world);
    keel::run<saved> run{world, quiet({.run_directory = directory})};
    keel::part<replicated> d{run, "discriminator", of.discriminator, *of.of_discriminator};
    keel::part<replicated> g{run, "generator", of.generator, *of.of_generator};
    run.evaluate_on(std::vector<at::Tensor>{rows_of({0, 1, 2})}, [&](at::Tensor const& real) { return of.judged(real, 1); });
    for (keel::row_numbers const& numbers : run.epochs(of.batches, 5)) {
      d.update(rows_of(numbers), of.discriminator_loss(at::randn({6, 4})));
      g.update([&] { return of.judged(of.generator->forward(at::randn({6, 4})), 1); });
      at::NoGradGuard const no_grad;
      if (world.rank() == 1 && run.cursor().consumed == 1) of.generator->parameters().front().add_(1e-3);
    }
  });
  for (std::string const& one : said) CHECK(has(one, "generator.0.weight of rank 1 is not rank 0's"));
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
