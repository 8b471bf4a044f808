// Whatever happens on one rank between or inside of the updates of a run's parts happens on all ranks, or is said by all.
#include <cmath>

#include <keel/collective/collectives.hpp>
#include <keel/collective/in_process.hpp>

#include "../collective/rank_error_messages.hpp"
#include "../starving.hpp"
#include "../support.hpp"
#include "gan_of_ranks.hpp"

using namespace keel_test;
using namespace keel::literals;

namespace {

struct climbing : keel::recipe<keel::shard::zero<1>, keel::oom::ladder<keel::oom::halve_micro_batch, keel::oom::give_up>> {};
struct returning : keel::recipe<keel::shard::zero<1>, keel::nonfinite::rollback<2>> {};

/// Trains a small GAN, which is what `loop` makes of it, on two ranks; what each threw.
std::vector<std::string> words_of(std::function<void(int rank, gan&, keel::run<unsaved>&, keel::part<replicated>&, keel::part<replicated>&)> const& loop) {
  return rank_error_messages(2, [&](keel::world_of_ranks const& world) {
    gan of(world);
    keel::run<unsaved> run{world, quiet()};
    keel::part<replicated> d{run, "discriminator", of.discriminator, *of.of_discriminator};
    keel::part<replicated> g{run, "generator", of.generator, *of.of_generator};
    loop(world.rank(), of, run, d, g);
  });
}

}  // namespace

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

TEST_CASE("an exception of one rank in a loss, the loop, a hook, the data or an evaluation is everyone's, with the rank") {
  struct thrown_in {
    char const* name;
    char const* words;
  };
  for (auto const& [name, words] : {thrown_in{"discriminator", "rank 1 threw; the update was discarded on all ranks: of the discriminator"},
                                    {"generator", "rank 1 threw; the update was discarded on all ranks: of the generator"},
                                    {"between", "an exception ended the training loop on this rank"},
                                    {"hook", "of the hook"},
                                    {"data", "of the data"},
                                    {"evaluation", "of the evaluation"}}) {
    for (int const thrower : {0, 1}) {
      CAPTURE(name, thrower);
      auto const said = rank_error_messages(2, [&, what = std::string(name)](keel::world_of_ranks const& world) {
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
           "rank 1 is at the beginning of an iteration, and rank 0 at the end of the run after 2 iterations, in the middle of one");
  // Another length.
  for (std::string const& one : rank_error_messages(2, [](keel::world_of_ranks const& world) {
         keel::run<unsaved> run{world, quiet({.updates = 10 + world.rank()})};
       }))
    CHECK(has(one, "rank 0 has \"updates 10\" where rank 1 has \"updates 11\""));
}

TEST_CASE("an exception in a micro-batch that is not the last of its update, or in a hook of a part, is said with its words") {
  for (bool const in_hook : {false, true}) {
    CAPTURE(in_hook);
    auto const said = rank_error_messages(2, [&](keel::world_of_ranks const& world) {
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
  auto const said = rank_error_messages(2, [&](keel::world_of_ranks const& world) {
    gan of(world);
    keel::run<saved> run{world, quiet({.run_directory = directory})};
    keel::part<replicated> d{run, "discriminator", of.discriminator, *of.of_discriminator};
  });
  CHECK(has(said[0], "[E01]"));
  CHECK(has(said[1], "[E25] rank 0: [E01] another run"));
  for (std::string const& one : rank_error_messages(2, [&](keel::world_of_ranks const& world) {
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
  auto const said = rank_error_messages(2, [&](keel::world_of_ranks const& world) {
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
  auto const said = rank_error_messages(2, [&](keel::world_of_ranks const& world) {
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
  for (std::string const& one : said) CHECK(has(one, "memory ran out in part discriminator, and its ladder has no rung left"));
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
    auto const words = rank_error_messages(2, [&](keel::world_of_ranks const& world) {
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

TEST_CASE("a stray write to a parameter of one part on one rank is named at the next save") {
  scratch_directory const directory;
  auto const said = rank_error_messages(2, [&](keel::world_of_ranks const& world) {
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
  for (std::string const& one : said) CHECK(has(one, "generator.0.weight on rank 1 has diverged from rank 0"));
}
