// Several ranks and what else a run has: a loop of the program, signals, clocks that differ, a disk that is full for one rank, saves that the
// program asks for, earlier checkpoints, a rollback that must not differ, exceptions after which the run is saved, a preflight.
#include <atomic>

#include <keel/collective/in_process.hpp>

#include "../collective/rank_error_messages.hpp"
#include "../support.hpp"

using namespace keel_test;
using namespace keel::literals;

namespace {

using keel::checkpoint::every;

struct saving : keel::recipe<keel::shard::zero<1>, every<2_steps, keel::checkpoint::synchronous, keel::checkpoint::keep<3>>,
                             keel::nonfinite::skip<5>> {};
struct by_time : keel::recipe<keel::shard::replicate, every<10_min, keel::checkpoint::synchronous>> {};
struct after_all : keel::recipe<keel::shard::zero<1>, every<1000_steps, keel::checkpoint::synchronous, keel::checkpoint::on_exception>> {};
struct best : keel::recipe<keel::shard::zero<1>, keel::evaluation::every<1_steps>,
                           every<1_steps, keel::checkpoint::synchronous, keel::checkpoint::keep<1>, keel::checkpoint::keep_best, keel::checkpoint::by_evaluation_loss>> {};
struct unsaved : keel::recipe<keel::shard::replicate> {};
struct climbing : keel::recipe<keel::shard::zero<1>, every<2_steps, keel::checkpoint::synchronous>,
                               keel::oom::ladder<keel::oom::halve_micro_batch, keel::oom::give_up>> {};

/// A rank of a test, and what it trains.
struct program {
  std::shared_ptr<small_module> model = make_small(3, 0.2);
  keel::adamw optimizer{model->parameters(), 0.05};
  keel::shuffled_batches batches;
  explicit program(keel::world_of_ranks const& world)
      : batches({.rows = 48, .batch = 4, .seed = 5, .rank = world.rank(), .ranks = world.size()}) {}
  auto loss() {
    return [this](keel::row_numbers const& numbers) {
      std::vector<at::Tensor> x, y;
      for (std::int64_t const one : numbers) {
        auto const made = make_pair_batch(static_cast<std::uint64_t>(one), 1);
        x.push_back(made.first);
        y.push_back(made.second);
      }
      return at::mse_loss(model->forward(at::cat(x)), at::cat(y));
    };
  }
};

/// What a signal would be for one rank alone: the process of a test has all of them.
struct fake_signal {
  int number = 0;
  int received() const { return number; }
};

/// A clock of each thread, and so of each rank.
struct rank_clock : keel::time_source {
  static inline thread_local duration passed{};
  time_point now() const override { return time_point(passed); }
};

/// Rank 0's disk is full for checkpoints after the first.
std::atomic<bool> is_full{false};
struct full_for_checkpoints : keel::file_system {
  void write(keel::file_handle const& file, path const& name, char const* bytes, std::size_t count) override {
    if (is_full && name.string().find("/checkpoints/") != std::string::npos)
      throw keel::file_error("E02", "cannot write " + name.string() + ": No space left on device. Make room.");
    keel::file_system::write(file, name, bytes, count);
  }
};

}  // namespace

TEST_CASE("in a loop of the program a signal for one rank stops all behind the same update, and the loop goes on from there") {
  auto const run_loop = [](std::filesystem::path const& directory, std::int64_t signal_at) {
    std::vector<std::pair<std::int64_t, std::vector<at::Tensor>>> all(2);
    keel::run_in_process(2, [&](keel::world_of_ranks const& world) {
      program of(world);
      keel::trainer<saving> run{*of.model, of.optimizer, world, quiet({.run_directory = directory, .updates = 12})};
      run.resume();
      fake_signal signals;
      bool stopped = false;
      while (!stopped && run.updates() < 12) {
        auto const rows = of.batches.batch(run.cursor().epoch, run.cursor().position);
        run.step(rows, of.loss());
        if (world.rank() == 1 && run.updates() == signal_at) signals.number = 15;
        stopped = run.should_stop(signals);
        if (run.cursor().position == of.batches.size()) run.end_epoch();
      }
      auto const ended = run.finish(signals.received());
      if (signal_at > 0) CHECK(ended.stopped() != nullptr);
      CHECK(!run.should_stop(fake_signal()));
      all[static_cast<std::size_t>(world.rank())] = {run.updates(), copies_of(of.model->parameters())};
    });
    return all;
  };
  scratch_directory const whole;
  auto const expected = run_loop(whole, 0);
  for (std::int64_t const at : {1, 4, 7}) {
    scratch_directory const cut;
    auto const first = run_loop(cut, at);
    CHECK(first[0].first == first[1].first);
    CHECK(first[0].first == at + 1);
    auto const second = run_loop(cut, 0);
    for (std::size_t rank = 0; rank < 2; ++rank) CHECK(same_bits(second[rank].second, expected[rank].second));
  }
}

TEST_CASE("ranks whose clocks differ save by the clock of rank 0, all behind the same update") {
  for (int const late : {0, 1}) {
    scratch_directory const directory;
    keel::run_in_process(2, [&](keel::world_of_ranks const& world) {
      rank_clock::passed = {};
      program of(world);
      keel::trainer<by_time> run{*of.model, of.optimizer, world,
                                 quiet({.run_directory = directory, .updates = 9, .own_clock = std::make_shared<rank_clock>()})};
      run.on([&](keel::event::update_end const& event) {
        if (world.rank() == late && event.update == 4) rank_clock::passed += std::chrono::minutes(11);
      });
      run.fit(of.batches, of.loss());
    });
    auto const saves = events_of(directory, "checkpoint");
    INFO("the clock of rank " << late);
    CHECK(saves.size() == (late == 0 ? 2 : 1));
    CHECK(saves.back().at("update") == 9);
  }
}

TEST_CASE("a disk that is full for rank 0 ends the run of all, or none, and the checkpoint before stays") {
  scratch_directory const directory;
  is_full = false;
  std::vector<std::int64_t> updates(2);
  auto const words = rank_error_messages(2, [&](keel::world_of_ranks const& world) {
    program of(world);
    keel::trainer<saving> run{*of.model, of.optimizer, world,
                              quiet({.run_directory = directory, .updates = 20, .own_files = std::make_shared<full_for_checkpoints>()})};
    run.on([&](keel::event::update_end const& event) {
      if (event.update == 3) is_full = true;
    });
    run.fit(of.batches, of.loss());
  });
  is_full = false;
  INFO(words[0] << " | " << words[1]);
  CHECK(words[0].find("No space left") != std::string::npos);
  CHECK(words[1].find("rank 0") != std::string::npos);
  CHECK(words[1].find("No space left") != std::string::npos);
  CHECK(std::filesystem::exists(directory / "checkpoints/step-000000002/manifest.json"));
  // And with room again it goes on from there.
  keel::run_in_process(2, [&](keel::world_of_ranks const& world) {
    program of(world);
    keel::trainer<saving> run{*of.model, of.optimizer, world, quiet({.run_directory = directory, .updates = 8})};
    CHECK(run.resume());
    CHECK(run.updates() == 2);
    run.fit(of.batches, of.loss());
  });
}

TEST_CASE("after an exception that all ranks know of, the run is saved where the recipe says so, and goes on with the same bits") {
  scratch_directory const whole, cut;
  auto const train = [](keel::world_of_ranks const& world, std::filesystem::path const& directory, std::int64_t bad) {
    program of(world);
    keel::trainer<after_all> run{*of.model, of.optimizer, world, quiet({.run_directory = directory, .updates = 9})};
    run.fit(of.batches, [&](keel::row_numbers const& numbers) {
      if (world.rank() == 1 && run.updates() == bad) throw std::runtime_error("the cat sat on the keyboard");
      return of.loss()(numbers);
    });
    return copies_of(of.model->parameters());
  };
  std::vector<std::vector<at::Tensor>> expected(3), found(3);
  keel::run_in_process(3, [&](keel::world_of_ranks const& world) {
    expected[static_cast<std::size_t>(world.rank())] = train(world, whole, -1);
  });
  auto const words = rank_error_messages(3, [&](keel::world_of_ranks const& world) { train(world, cut, 5); });
  for (auto const& one : words) CHECK(one.find("the cat sat") != std::string::npos);
  CHECK(std::filesystem::exists(cut / "checkpoints/step-000000005/manifest.json"));
  keel::run_in_process(3, [&](keel::world_of_ranks const& world) {
    found[static_cast<std::size_t>(world.rank())] = train(world, cut, -1);
  });
  for (std::size_t rank = 0; rank < 3; ++rank) CHECK(same_bits(found[rank], expected[rank]));
}

TEST_CASE("save, best, load_best, resume_at and resume_from are of all ranks") {
  scratch_directory const directory, other;
  std::vector<std::vector<at::Tensor>> loaded(2), restarted(2), begun(2);
  std::vector<std::int64_t> of_best(2);
  auto const evaluate_on = [](auto& run, program& of) {
    // Best in the middle: the third of six values is the least.
    auto const calls = std::make_shared<int>(0);
    run.evaluate_on(std::vector<keel::row_numbers>{{1}}, [calls, &of](keel::row_numbers const& one) {
      return of.loss()(one) * 0.0 + std::abs(++*calls - 3);
    });
  };
  keel::run_in_process(2, [&](keel::world_of_ranks const& world) {
    auto const rank = static_cast<std::size_t>(world.rank());
    program of(world);
    keel::trainer<best> run{*of.model, of.optimizer, world, quiet({.run_directory = directory, .updates = 6})};
    evaluate_on(run, of);
    run.fit(of.batches, of.loss());
    CHECK(run.best().has_value());
    of_best[rank] = run.load_best().update;
    loaded[rank] = copies_of(of.model->parameters());
    run.wait_for_save();
  });
  CHECK(of_best == std::vector<std::int64_t>{3, 3});
  CHECK(same_bits(loaded[0], loaded[1]));
  keel::run_in_process(2, [&](keel::world_of_ranks const& world) {
    auto const rank = static_cast<std::size_t>(world.rank());
    program of(world);
    keel::trainer<best> run{*of.model, of.optimizer, world, quiet({.run_directory = directory, .updates = 7, .resume_at = 3, .accept_changed_recipe = true})};
    evaluate_on(run, of);
    run.resume();
    CHECK(run.updates() == 3);
    restarted[rank] = copies_of(of.model->parameters());
    run.save();
  });
  CHECK(same_bits(restarted[0], loaded[0]));
  CHECK(same_bits(restarted[1], loaded[0]));
  keel::run_in_process(2, [&](keel::world_of_ranks const& world) {
    auto const rank = static_cast<std::size_t>(world.rank());
    program of(world);
    keel::trainer<best> run{*of.model, of.optimizer, world,
                            quiet({.run_directory = other, .updates = 6, .resume_from = directory / "checkpoints/step-000000003"})};
    evaluate_on(run, of);
    CHECK(run.resume());
    begun[rank] = copies_of(of.model->parameters());
  });
  CHECK(same_bits(begun[0], loaded[0]));
  CHECK(same_bits(begun[1], loaded[0]));
}

TEST_CASE("a checkpoint of another recipe, and a directory that another run has, end all ranks with the reason") {
  scratch_directory const directory;
  struct clipped : keel::recipe<keel::shard::replicate, keel::clip::global_norm<1.0>,
                                every<2_steps, keel::checkpoint::synchronous, keel::checkpoint::keep<3>>, keel::nonfinite::skip<5>> {};
  keel::run_in_process(2, [&](keel::world_of_ranks const& world) {
    program of(world);
    keel::trainer<saving> run{*of.model, of.optimizer, world, quiet({.run_directory = directory, .updates = 4})};
    run.fit(of.batches, of.loss());
  });
  auto const other_recipe = rank_error_messages(2, [&](keel::world_of_ranks const& world) {
    program of(world);
    keel::trainer<clipped> run{*of.model, of.optimizer, world, quiet({.run_directory = directory, .updates = 4})};
    run.fit(of.batches, of.loss());
  });
  for (auto const& one : other_recipe) {
    INFO(one);
    CHECK(one.find("another recipe") != std::string::npos);
  }
  auto const not_resumed = rank_error_messages(2, [&](keel::world_of_ranks const& world) {
    program of(world);
    keel::trainer<saving> run{*of.model, of.optimizer, world, quiet({.run_directory = directory, .updates = 6, .resume = false})};
    run.fit(of.batches, of.loss());
  });
  for (auto const& one : not_resumed) {
    INFO(one);
    CHECK(one.find("contains another run") != std::string::npos);
  }
}

TEST_CASE("a preflight on several ranks looks on each of them and leaves the run as it was") {
  std::vector<bool> as_before(2);
  keel::run_in_process(2, [&](keel::world_of_ranks const& world) {
    program of(world);
    keel::trainer<unsaved> run{*of.model, of.optimizer, world, quiet({.updates = 6})};
    auto const before = copies_of(of.model->parameters());
    // One has time for fewer updates than the other.
    std::int64_t const collectives = world.collectives();
    run.preflight(of.batches, of.loss(), {.updates = world.rank() == 0 ? 300 : 50});
    CHECK(world.collectives() == collectives);
    as_before[static_cast<std::size_t>(world.rank())] = same_bits(before, copies_of(of.model->parameters()));
    run.fit(of.batches, of.loss());
    CHECK(run.updates() == 6);
  });
  CHECK(as_before == std::vector<bool>{true, true});
}

TEST_CASE("a rung that all ranks take because of one is in the run's record and its checkpoints, and a run that is cut behind it ends with the same bits") {
  at::set_num_threads(1);
  auto const run = [](std::filesystem::path const& directory, std::int64_t stop_at, bool starves) {
    std::vector<std::vector<at::Tensor>> all(2);
    keel::run_in_process(2, [&](keel::world_of_ranks const& world) {
      program of(world);
      keel::trainer<climbing> trainer{*of.model, of.optimizer, world, quiet({.run_directory = directory, .updates = 9})};
      bool starving = starves && world.rank() == 1;
      trainer.on([&](keel::event::update_end const& event) {
        if (event.update == stop_at) trainer.request_stop();
      });
      trainer.fit(of.batches, [&, loss = of.loss()](keel::row_numbers const& numbers) {
        if (trainer.updates() == 3 && std::exchange(starving, false)) throw c10::OutOfMemoryError({__func__, __FILE__, 1}, "of the test");
        return loss(numbers);
      });
      all[static_cast<std::size_t>(world.rank())] = copies_of(of.model->parameters());
    });
    return all;
  };
  scratch_directory const whole, cut;
  auto const expected = run(whole, 0, true);
  auto const rungs = events_of(whole, "rung");
  REQUIRE(rungs.size() == 1);
  CHECK(rungs.front().at("update") == 3);
  run(cut, 5, true);
  auto const found = run(cut, 0, false);
  for (std::size_t const rank : {0u, 1u}) {
    CHECK(same_bits(found[rank], expected[rank]));
    CHECK(same_bits(found[rank], found[0]));
  }
}

TEST_CASE("a ladder that is at its end on one rank ends the run of all, who go on from what it saved") {
  at::set_num_threads(1);
  scratch_directory const directory;
  for (bool const starves : {true, false}) {
    std::vector<bool> gave_up(2);
    std::vector<std::vector<at::Tensor>> all(2);
    keel::run_in_process(2, [&](keel::world_of_ranks const& world) {
      auto const rank = static_cast<std::size_t>(world.rank());
      program of(world);
      keel::trainer<climbing> trainer{*of.model, of.optimizer, world, quiet({.run_directory = directory, .updates = 9})};
      auto const ended = trainer.fit(of.batches, [&, loss = of.loss()](keel::row_numbers const& numbers) {
        if (starves && world.rank() == 1 && trainer.updates() == 4) throw c10::OutOfMemoryError({__func__, __FILE__, 1}, "of the test");
        return loss(numbers);
      });
      gave_up[rank] = ended.gave_up() != nullptr;
      all[rank] = copies_of(of.model->parameters());
      CHECK(trainer.updates() == (starves ? 4 : 9));
    });
    CHECK(gave_up == std::vector<bool>{starves, starves});
    CHECK(same_bits(all[0], all[1]));
  }
}

TEST_CASE("where memory runs out on one rank and the data of another ends, in the same update, the epoch ends for all") {
  at::set_num_threads(1);
  for (bool const in_backward : {false, true}) {
    INFO((in_backward ? "in the backward pass" : "in the forward pass"));
    scratch_directory const directory;
    std::vector<std::vector<at::Tensor>> all(3);
    keel::run_in_process(3, [&](keel::world_of_ranks const& world) {
      auto const model = make_small(3, 0.2);
      keel::adamw optimizer{model->parameters(), 0.05};
      keel::trainer<climbing> trainer{*model, optimizer, world, quiet({.run_directory = directory, .epochs = 2})};
      std::vector<pair_batch> const batches(world.rank() == 1 ? 3 : 5, make_pair_batch(static_cast<std::uint64_t>(world.rank())));
      bool starves = world.rank() == 0;
      auto const ended = trainer.fit(batches, [&](pair_batch const& batch) {
        bool const now = trainer.updates() == 3 && std::exchange(starves, false);
        auto const starve = [] { throw c10::OutOfMemoryError({__func__, __FILE__, 1}, "of the test"); };
        if (now && !in_backward) starve();
        at::Tensor const y = model->forward(batch.first);
        if (now) y.register_hook([=](at::Tensor const&) { starve(); });
        return at::mse_loss(y, batch.second);
      });
      CHECK(ended.finished() != nullptr);
      CHECK(trainer.updates() == 6);
      all[static_cast<std::size_t>(world.rank())] = copies_of(model->parameters());
    });
    for (auto const& one : all) CHECK(same_bits(one, all[0]));
    CHECK(events_of(directory, "rung").empty());
  }
}
