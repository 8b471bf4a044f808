// A trainer of several ranks: they save, stop, skip, roll back, evaluate and end together, whatever happens on one of them; and a run that is
// cut anywhere, and goes on with as many ranks or with others, is the run that was not cut.
#include <ATen/Parallel.h>
#include <torch/nn/modules/batchnorm.h>

#include <cmath>
#include <map>

#include <keel/checkpoint/read_checkpoint.hpp>
#include <keel/collective/collectives.hpp>
#include <keel/collective/in_process.hpp>

#include "../collective/rank_error_messages.hpp"
#include "../support.hpp"

using namespace keel_test;
using namespace keel::literals;

namespace {

using keel::checkpoint::every;

template <class Shard>
struct saving_of : keel::recipe<Shard, every<2_steps, keel::checkpoint::synchronous>, keel::nonfinite::skip<5>,
                                keel::clip::global_norm<0.5>, keel::ema<0.9>> {};
using saving = saving_of<keel::shard::replicate>;
using saving_shares = saving_of<keel::shard::zero<1>>;
struct asynchronous : keel::recipe<keel::shard::replicate, every<3_steps>, keel::accumulate<2>> {};
struct at_the_end : keel::recipe<keel::shard::replicate, every<1000_steps, keel::checkpoint::synchronous>> {};
struct shares_at_the_end : keel::recipe<keel::shard::zero<1>, every<1000_steps, keel::checkpoint::synchronous>> {};
struct returning : keel::recipe<keel::shard::zero<1>, every<1_steps, keel::checkpoint::synchronous, keel::checkpoint::keep<6>>, keel::nonfinite::rollback<2>> {};
struct judged : keel::recipe<keel::shard::replicate, every<1000_steps, keel::checkpoint::synchronous>, keel::evaluation::every<2_steps>> {};
struct unsaved : keel::recipe<keel::shard::zero<1>> {};

constexpr std::int64_t rows = 48;

/// The same for all ranks: row i of the data.
pair_batch rows_of(keel::row_numbers const& numbers) {
  std::vector<at::Tensor> x, y;
  for (std::int64_t const one : numbers) {
    auto const made = make_pair_batch(static_cast<std::uint64_t>(one), 1);
    x.push_back(made.first);
    y.push_back(made.second);
  }
  return {at::cat(x), at::cat(y)};
}

/// What one rank of a test trains with.
struct program {
  std::shared_ptr<small_module> model;
  std::unique_ptr<keel::adamw> optimizer;
  keel::shuffled_batches batches;
  explicit program(keel::world_of_ranks const& world, double dropout = 0.0, at::ScalarType dtype = at::kFloat)
      : model(make_small(3, dropout)),
        batches({.rows = rows, .batch = 12 / world.size(), .seed = 5, .rank = world.rank(), .ranks = world.size()}) {
    model->to(dtype);
    optimizer = std::make_unique<keel::adamw>(model->parameters(), 0.05);
  }
  auto loss() {
    return [this](keel::row_numbers const& numbers) {
      pair_batch const batch = rows_of(numbers);
      auto const dtype = model->first->weight.scalar_type();
      return at::mse_loss(model->forward(batch.first.to(dtype)), batch.second.to(dtype));
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
  std::vector<at::Tensor> parameters;
  std::int64_t updates = 0, skipped = 0, calls = 0;
  at::Tensor last, next;  ///< the last number that was drawn in the run, and the one that would come
  bool stopped = false;
};

/// Trains to `updates`; `stop`, called after each update, says whether this rank asks for a stop.
template <class Recipe>
ended train(keel::world_of_ranks const& world, std::filesystem::path const& directory, std::int64_t updates, double dropout,
            std::function<bool(int, std::int64_t)> const& stop = {}, at::ScalarType dtype = at::kFloat) {
  program of(world, dropout, dtype);
  counter own;
  keel::trainer<Recipe> run{*of.model, *of.optimizer, world, quiet({.run_directory = directory, .updates = updates})};
  run.register_state("counter", own);
  run.on([&](keel::event::update_end const& event) {
    own.calls += world.rank() + 1;
    own.last = at::rand({2});
    if (stop && event.result.updated() && stop(world.rank(), event.update)) run.request_stop();
  });
  auto const how = run.fit(of.batches, of.loss());
  return {copies_of(of.model->parameters()), run.updates(), run.skipped(), own.calls, own.last.clone(), at::rand({2}),
          how.template is<keel::result::stopped>()};
}

template <class Recipe>
std::vector<ended> train_ranks(int ranks, std::filesystem::path const& directory, std::int64_t updates, double dropout,
                               std::function<bool(int, std::int64_t)> const& stop = {}, at::ScalarType dtype = at::kFloat) {
  std::vector<ended> all(static_cast<std::size_t>(ranks));
  keel::run_in_process(ranks, [&](keel::world_of_ranks const& world) {
    all[static_cast<std::size_t>(world.rank())] = train<Recipe>(world, directory, updates, dropout, stop, dtype);
  });
  return all;
}

bool same(std::vector<ended> const& a, std::vector<ended> const& b) {
  for (std::size_t i = 0; i < a.size(); ++i) {
    UNSCOPED_INFO("rank " << i << ": updates " << a[i].updates << " and " << b[i].updates << ", calls " << a[i].calls << " and "
                          << b[i].calls);
    if (!same_bits(a[i].parameters, b[i].parameters) || a[i].updates != b[i].updates || a[i].calls != b[i].calls ||
        !same_bits(a[i].last, b[i].last) || !same_bits(a[i].next, b[i].next))
      return false;
  }
  return true;
}

}  // namespace

TEST_CASE("a run of two or three ranks that one of them stops after any update ends with the bits of the one that was not stopped") {
  for (int const ranks : {2, 3}) {
    scratch_directory const whole;
    auto const expected = train_ranks<saving>(ranks, whole, 9, 0.3);
    for (auto const& one : expected) CHECK(same_bits(one.parameters, expected.front().parameters));
    CHECK(!same_bits(expected[0].last, expected[1].last));
    for (std::int64_t at = 1; at < 9; ++at) {
      scratch_directory const cut;
      int const asks = static_cast<int>(at) % ranks;
      auto const stop = [&](int rank, std::int64_t update) { return rank == asks && update == at; };
      auto const first = at % 2 == 0 ? train_ranks<saving>(ranks, cut, 9, 0.3, stop) : train_ranks<saving_shares>(ranks, cut, 9, 0.3, stop);
      for (auto const& one : first) {
        CHECK((one.stopped || at == 8));
        CHECK(one.updates == first.front().updates);
        CHECK(one.updates <= at + 1);
      }
      INFO(ranks << " ranks, stopped after update " << at);
      CHECK(same(at % 2 == 0 ? train_ranks<saving>(ranks, cut, 9, 0.3) : train_ranks<saving_shares>(ranks, cut, 9, 0.3), expected));
    }
  }
}

TEST_CASE("a rank that is killed or hangs in every third collective of a run leaves a checkpoint from which the run ends with the same bits") {
  // Each rank is a thread, which would get a pool of its own.
  int const threads = at::get_num_threads();
  at::set_num_threads(1);
  auto const sweep = [](auto recipe, int ranks) {
    using tried = decltype(recipe);
    scratch_directory const whole;
    std::int64_t collectives = 0;
    std::vector<ended> expected(static_cast<std::size_t>(ranks));
    keel::run_in_process(ranks, [&](keel::world_of_ranks const& world) {
      expected[static_cast<std::size_t>(world.rank())] = train<tried>(world, whole, 6, 0.3);
      collectives = world.collectives();
    });
    for (std::int64_t at = 1; at <= collectives; at += 3) {
      scratch_directory const cut;
      keel::rank_fault const fault{static_cast<int>(at / 3) % ranks, at,
                                   at % 2 == 0 ? keel::rank_fault::kind::kill : keel::rank_fault::kind::hang};
      auto const words = rank_error_messages(
          ranks, [&](keel::world_of_ranks const& world) { train<tried>(world, cut, 6, 0.3); },
          {.seed = static_cast<std::uint64_t>(at), .faults = {fault}});
      INFO("collective " << at << " of " << collectives << ", rank " << fault.rank);
      for (int rank = 0; rank < ranks; ++rank) {
        if (rank == fault.rank) continue;
        INFO(words[static_cast<std::size_t>(rank)]);
        CHECK(words[static_cast<std::size_t>(rank)].find("rank " + std::to_string(fault.rank)) != std::string::npos);
      }
      CHECK(same(train_ranks<tried>(ranks, cut, 6, 0.3), expected));
    }
  };
  sweep(saving(), 2);
  sweep(asynchronous(), 2);
  sweep(saving(), 3);
  sweep(saving_shares(), 3);
  at::set_num_threads(threads);
}

TEST_CASE("a run of four ranks goes on with one, two and three, and of one with four, over the same rows") {
  scratch_directory const alone;
  auto const expected = train_ranks<at_the_end>(1, alone, 8, 0.0, {}, at::kDouble);
  auto const is_near = [&](std::vector<ended> const& all) {
    for (std::size_t i = 0; i < all.front().parameters.size(); ++i) {
      if (!all.front().parameters[i].allclose(expected.front().parameters[i], 1e-9, 1e-12)) return false;
    }
    return all.front().updates == 8;
  };
  auto const go_on = [&](auto recipe) {
    using tried = decltype(recipe);
    for (auto const& [before, after] : std::vector<std::pair<int, int>>{{4, 1}, {4, 2}, {4, 3}, {1, 4}, {2, 4}}) {
      scratch_directory const cut;
      train_ranks<tried>(before, cut, 8, 0.0, [](int, std::int64_t update) { return update == 4; }, at::kDouble);
      INFO(before << " ranks and then " << after);
      CHECK(is_near(train_ranks<tried>(after, cut, 8, 0.0, {}, at::kDouble)));
      CHECK(events_of(cut, "other_ranks").size() == 1);
    }
  };
  go_on(at_the_end());
  go_on(shares_at_the_end());
}

TEST_CASE("a run with its optimizer in shares goes on as replicas, and the other way about, with the same bits") {
  for (int const ranks : {2, 3}) {
    scratch_directory const whole, of_replicas, of_shares;
    auto const expected = train_ranks<saving>(ranks, whole, 9, 0.3);
    auto const first_five = [](int, std::int64_t update) { return update == 5; };
    train_ranks<saving>(ranks, of_replicas, 9, 0.3, first_five);
    train_ranks<saving_shares>(ranks, of_shares, 9, 0.3, first_five);
    // Bit for bit: who reads it does not see what the run has in shares.
    auto const in = [](std::filesystem::path const& root) { return keel::read_checkpoint(root / "checkpoints/step-000000006"); };
    keel::snapshot const a = in(of_replicas), b = in(of_shares);
    for (auto const& [replicas, shares] : {std::pair(&a.model, &b.model), {&a.optimizer, &b.optimizer}}) {
      CHECK(!shares->empty());
      CHECK(shares->size() == replicas->size());
      for (auto const& [name, tensor] : *replicas) CHECK(same_bits(shares->at(name), tensor));
    }
    CHECK(same(train_ranks<saving_shares>(ranks, of_replicas, 9, 0.3), expected));
    CHECK(same(train_ranks<saving>(ranks, of_shares, 9, 0.3), expected));
  }
}

TEST_CASE("rank 0 has the record of all rows, the other ranks their events, and no rank but 0 writes a checkpoint") {
  scratch_directory const directory;
  train_ranks<saving>(2, directory, 4, 0.0);
  auto const lines = read_lines(directory / "metrics.jsonl");
  CHECK(lines.size() == 4);
  CHECK(nlohmann::json::parse(lines.front()).dump().find("12") != std::string::npos);
  CHECK(events_of(directory, "ranks").front().at("rank") == 0);
  CHECK(events_of(directory / "rank-1", "ranks").front().at("rank") == 1);
  CHECK(std::filesystem::exists(directory / "checkpoints/step-000000004/manifest.json"));
  CHECK(!std::filesystem::exists(directory / "rank-1/checkpoints"));
}

TEST_CASE("a loss that is not finite on one rank is the skip, and after two the rollback, of all") {
  scratch_directory const directory;
  std::vector<std::int64_t> rollbacks(3), updates(3);
  std::vector<std::vector<at::Tensor>> parameters(3);
  keel::run_in_process(3, [&](keel::world_of_ranks const& world) {
    program of(world);
    keel::trainer<returning> run{*of.model, *of.optimizer, world, quiet({.run_directory = directory, .updates = 12})};
    run.fit(of.batches, [&](keel::row_numbers const& numbers) {
      bool const bad = world.rank() == 2 && run.updates() == 4 && run.rollbacks() == 0;
      return of.loss()(numbers) * (bad ? NAN : 1.0);
    });
    auto const rank = static_cast<std::size_t>(world.rank());
    rollbacks[rank] = run.rollbacks();
    updates[rank] = run.updates();
    parameters[rank] = copies_of(of.model->parameters());
  });
  CHECK(rollbacks == std::vector<std::int64_t>{1, 1, 1});
  CHECK(updates == std::vector<std::int64_t>{12, 12, 12});
  CHECK(same_bits(parameters[0], parameters[1]));
  CHECK(same_bits(parameters[0], parameters[2]));
}

TEST_CASE("an evaluation is over what each rank looked at, and its value is the same on all") {
  std::vector<double> values;
  for (int const ranks : {1, 3}) {
    scratch_directory const directory;
    std::vector<std::vector<double>> found(static_cast<std::size_t>(ranks));
    keel::run_in_process(ranks, [&](keel::world_of_ranks const& world) {
      program of(world, 0.0, at::kDouble);
      keel::trainer<judged> run{*of.model, *of.optimizer, world, quiet({.run_directory = directory, .updates = 4})};
      // Ragged: one rank has one row.
      std::vector<keel::row_numbers> mine;
      for (std::int64_t i = 0; i < 9; ++i) {
        int const whose = ranks == 1 ? 0 : i == 0 ? 2 : static_cast<int>(i % 2);
        if (whose == world.rank()) mine.push_back({i});
      }
      run.evaluate_on(mine, of.loss());
      run.on([&](keel::event::evaluated const& event) {
        found[static_cast<std::size_t>(world.rank())].push_back(event.result.values.front().second);
      });
      run.fit(of.batches, of.loss());
    });
    for (auto const& one : found) CHECK(one == found.front());
    CHECK(found.front().size() == 2);
    if (values.empty()) {
      values = found.front();
    } else {
      for (std::size_t i = 0; i < values.size(); ++i) CHECK(std::abs(values[i] - found.front()[i]) < 1e-9 * std::abs(values[i]));
    }
  }
}

TEST_CASE("an epoch ends for all ranks when it ends for one, and says what was left out") {
  scratch_directory const directory;
  std::vector<std::int64_t> updates(3);
  keel::run_in_process(3, [&](keel::world_of_ranks const& world) {
    program of(world);
    std::vector<keel::row_numbers> mine;
    for (int i = 0; i < 5 + 2 * world.rank(); ++i) mine.push_back({i});
    keel::trainer<asynchronous> run{*of.model, *of.optimizer, world, quiet({.run_directory = directory, .epochs = 3})};
    run.fit(mine, of.loss());
    updates[static_cast<std::size_t>(world.rank())] = run.updates();
  });
  CHECK(updates[0] >= 6);
  CHECK(updates[1] == updates[0]);
  CHECK(updates[2] == updates[0]);
  CHECK(!events_of(directory / "rank-2", "data_ended").empty());
}

TEST_CASE(
    "ranks with uneven micro-batches evaluate and save together behind an epoch, and a partial accumulation is left out on "
    "all") {
  struct by_epochs : keel::recipe<keel::shard::replicate, keel::accumulate<2>, keel::evaluation::every<1_epochs>,
                                  every<1_epochs, keel::checkpoint::synchronous>> {};
  struct without : keel::recipe<keel::shard::zero<1>, keel::accumulate<2>> {};
  auto const train = [&]<class Recipe>(Recipe, std::vector<int> const& counts, std::filesystem::path const& directory) {
    std::vector<std::vector<std::int64_t>> found(counts.size());
    auto const words = rank_error_messages(static_cast<int>(counts.size()), [&](keel::world_of_ranks const& world) {
      program of(world);
      auto const rank = static_cast<std::size_t>(world.rank());
      std::vector<keel::row_numbers> mine;
      for (int i = 0; i < counts[rank]; ++i) mine.push_back({i});
      std::vector<keel::row_numbers> const held{{1}, {2}};
      keel::trainer<Recipe> run{*of.model, *of.optimizer, world, quiet({.run_directory = directory, .epochs = 2})};
      if constexpr (std::is_same_v<Recipe, by_epochs>) {
        run.evaluate_on(held, of.loss());
        run.on([&](keel::event::evaluated const& event) { found[rank].push_back(100 + event.update); });
      }
      run.fit(mine, of.loss());
      found[rank].push_back(run.updates());
    });
    for (auto const& one : words) CHECK(one == "");
    for (auto const& one : found) CHECK(one == found.front());
    return found.front().empty() ? 0 : found.front().back();
  };
  for (auto const& counts :
       {std::vector{5, 4}, std::vector{4, 5}, std::vector{6, 5}, std::vector{5, 5}, std::vector{7, 4, 5}, std::vector{3, 2}}) {
    bool const even = counts[0] == counts[1];
    int const least = *std::min_element(counts.begin(), counts.end());
    std::int64_t const expected = even ? counts[0] : 2 * (least / 2);
    scratch_directory const directory, other;
    INFO(counts[0] << ", " << counts[1]);
    CHECK(train(by_epochs{}, counts, directory.path()) == expected);
    CHECK(train(without{}, counts, other.path()) == expected);
    std::size_t said = 0;
    for (std::size_t rank = 0; rank < counts.size(); ++rank)
      said += events_of(rank == 0 ? other.path() : other / ("rank-" + std::to_string(rank)), "data_ended").size();
    CHECK((said > 0) == !even);
  }
}

TEST_CASE("what one rank throws in its loss, its data, a hook or an evaluation ends the run of all, with its words") {
  for (std::string const where : {"loss", "data", "hook", "evaluation"}) {
    for (int const bad : {0, 1}) {
      scratch_directory const directory;
      auto const words = rank_error_messages(2, [&](keel::world_of_ranks const& world) {
        program of(world);
        auto const fail = [&](std::string const& here) {
          if (world.rank() == bad && where == here) throw std::runtime_error("the cat sat on the keyboard");
        };
        keel::trainer<judged> run{*of.model, *of.optimizer, world, quiet({.run_directory = directory, .updates = 6})};
        std::int64_t calls = 0;
        run.evaluate_on(std::vector<keel::row_numbers>{{1}, {2}}, [&](keel::row_numbers const& one) {
          fail("evaluation");
          return of.loss()(one);
        });
        run.on([&](keel::event::update_end const& event) {
          if (event.update == 3) fail("hook");
        });
        run.fit(
            [&](std::int64_t epoch, std::int64_t position) {
              if (epoch == 1) fail("data");
              return of.batches(epoch, position);
            },
            [&](keel::row_numbers const& one) {
              if (++calls == 3) fail("loss");
              return of.loss()(one);
            });
      });
      INFO(where << " of rank " << bad << ": " << words[0] << " | " << words[1]);
      for (auto const& one : words) CHECK(one.find("the cat sat") != std::string::npos);
      CHECK(words[static_cast<std::size_t>(1 - bad)].find("rank " + std::to_string(bad)) != std::string::npos);
    }
  }
}

TEST_CASE("what one rank's constructor throws reaches the others with its words, and ranks that all throw can try again") {
  for (std::string const what : {"E02", "E11"}) {
    scratch_directory const directory;
    auto const words = rank_error_messages(3, [&](keel::world_of_ranks const& world) {
      program of(world), other(world);
      bool const is_bad = world.rank() == 1;
      // A file stands where the directory is to be.
      if (is_bad && what == "E02") write_file(directory / "rank-1", "");
      auto& optimizer = is_bad && what == "E11" ? *other.optimizer : *of.optimizer;
      keel::trainer<unsaved> run{*of.model, optimizer, world, quiet({.run_directory = directory})};
    });
    for (std::size_t rank = 0; rank < 3; ++rank) {
      INFO(words[rank]);
      CHECK(words[rank].find("[" + what + "]") != std::string::npos);
      CHECK((words[rank].find("[E25] rank 1: ") == 0) == (rank != 1));
    }
  }
  auto const again = rank_error_messages(2, [&](keel::world_of_ranks const& world) {
    program of(world), other(world);
    CHECK_THROWS_AS((keel::trainer<unsaved>{*of.model, *other.optimizer, world, quiet()}), keel::error);
    keel::trainer<unsaved> run{*of.model, *of.optimizer, world, quiet({.updates = 2})};
    run.fit(of.batches, of.loss());
  });
  for (std::string const& one : again) CHECK(one == "");
}

TEST_CASE("ranks whose policy gives up end by the same outcome, and all have the best weights then") {
  struct gives_up : keel::recipe<keel::shard::replicate, keel::nonfinite::skip<2>,
                                 every<1_steps, keel::checkpoint::synchronous, keel::checkpoint::keep_best, keel::checkpoint::by_training_loss>> {};
  scratch_directory const directory;
  std::vector<std::int64_t> best(3, -1);
  auto const words = rank_error_messages(3, [&](keel::world_of_ranks const& world) {
    program of(world);
    keel::trainer<gives_up> run{*of.model, *of.optimizer, world, quiet({.run_directory = directory, .updates = 20})};
    // One rank's losses alone are not finite.
    auto const ended = run.fit(of.batches, [&](keel::row_numbers const& one) {
      return of.loss()(one) * (run.updates() >= 4 && world.rank() == 2 ? NAN : 1.0);
    });
    REQUIRE(ended.gave_up());
    best[static_cast<std::size_t>(world.rank())] = run.load_best().update;
    keel::barrier(world);
  });
  for (std::string const& one : words) CHECK(one == "");
  CHECK((best[0] >= 0 && best[0] <= 4 && best == std::vector<std::int64_t>(3, best[0])));
}

TEST_CASE("ranks that evaluate under different names are told both") {
  scratch_directory const directory;
  auto const words = rank_error_messages(2, [&](keel::world_of_ranks const& world) {
    program of(world);
    keel::trainer<judged> run{*of.model, *of.optimizer, world, quiet({.run_directory = directory, .updates = 4})};
    run.evaluate_on(world.rank() == 0 ? "validation" : "test", std::vector<keel::row_numbers>{{1}}, of.loss());
    run.fit(of.batches, of.loss());
  });
  for (std::string const& one : words) CHECK(one.find("[E26] rank 1 evaluates test: loss, but rank 0 evaluates validation: loss.") == 0);
}

TEST_CASE("a program's own loop that ends with an exception of ranks or of its own is in the record of each rank") {
  for (std::string const what : {"[E26]", "of the program"}) {
    scratch_directory const directory;
    auto const words = rank_error_messages(2, [&](keel::world_of_ranks const& world) {
      program of(world);
      keel::trainer<unsaved> run{*of.model, *of.optimizer, world, quiet({.run_directory = directory})};
      for (int i = 0; i < 6; ++i) {
        if (i == 3 && world.rank() == 1) {
          if (what == "of the program") throw std::runtime_error(what);
          of.optimizer->param_groups()[0].options().set_lr(0.5);
        }
        run.step(keel::row_numbers{i}, of.loss());
      }
      run.finish();
    });
    for (auto const& one : words) CHECK(!one.empty());
    for (auto const& of_rank : {directory.path(), directory / "rank-1"}) {
      INFO(what << " " << of_rank);
      auto const ends = events_of(of_rank, "failed");
      CHECK(ends.size() == 1);
    }
    CHECK(std::filesystem::exists(directory / "ranks/0.jsonl"));
  }
}

TEST_CASE("a replica that drifted is found with the next save, by parameter and rank, and the checkpoint before it stays") {
  scratch_directory const directory;
  auto const words = rank_error_messages(3, [&](keel::world_of_ranks const& world) {
    program of(world);
    keel::trainer<saving> run{*of.model, *of.optimizer, world, quiet({.run_directory = directory, .updates = 8})};
    run.on([&](keel::event::update_end const& event) {
      at::NoGradGuard const no_grad;
      // One bit of one weight.
      if (world.rank() == 1 && event.update == 5)
        of.model->second->weight.view(at::kInt).view(-1)[3].bitwise_xor_(1);
    });
    run.fit(of.batches, of.loss());
  });
  for (auto const& one : words) {
    INFO(one);
    CHECK(one.find("second.weight on rank 1") != std::string::npos);
  }
  CHECK(std::filesystem::exists(directory / "checkpoints/step-000000004/manifest.json"));
  CHECK(!std::filesystem::exists(directory / "checkpoints/step-000000006"));
}

TEST_CASE("the statistics of batch normalisation are rank 0's on all ranks") {
  struct normalised : torch::nn::Module {
    torch::nn::Linear in{register_module("in", torch::nn::Linear(6, 4))};
    torch::nn::BatchNorm1d norm{register_module("norm", torch::nn::BatchNorm1d(4))};
    torch::nn::Linear out{register_module("out", torch::nn::Linear(4, 1))};
    at::Tensor forward(at::Tensor const& x) { return out(norm(in(x))); }
  };
  std::vector<std::vector<at::Tensor>> buffers(3);
  keel::run_in_process(3, [&](keel::world_of_ranks const& world) {
    normalised model;
    keel::adamw optimizer(model.parameters(), 0.05);
    program of(world);
    keel::trainer<unsaved> run{model, optimizer, world, quiet({.updates = 5})};
    run.fit(of.batches, [&](keel::row_numbers const& numbers) {
      auto const batch = rows_of(numbers);
      return at::mse_loss(model.forward(batch.first), batch.second);
    });
    buffers[static_cast<std::size_t>(world.rank())] = copies_of(model.buffers());
  });
  CHECK(buffers[0].size() == 3);
  CHECK(buffers[0][2].item<std::int64_t>() == 5);
  CHECK(same_bits(buffers[0], buffers[1]));
  CHECK(same_bits(buffers[0], buffers[2]));
}

TEST_CASE("named losses in the record are means over the rows of all ranks") {
  std::map<int, double> first;
  for (int const ranks : {1, 4}) {
    scratch_directory const directory;
    keel::run_in_process(ranks, [&](keel::world_of_ranks const& world) {
      program of(world, 0.0, at::kDouble);
      keel::trainer<at_the_end> run{*of.model, *of.optimizer, world, quiet({.run_directory = directory, .updates = 3})};
      run.fit(of.batches, [&](keel::row_numbers const& numbers) {
        at::Tensor const loss = of.loss()(numbers);
        return keel::losses{{"fit", loss}, {"size", of.model->first->weight.square().mean(), 0.1}};
      });
    });
    auto const line = nlohmann::json::parse(read_lines(directory / "metrics.jsonl").back());
    INFO(line.dump());
    first[ranks] = line.at("own").at("loss/fit").get<double>();
  }
  CHECK(std::abs(first[1] - first[4]) < 1e-9 * std::abs(first[1]));
}

TEST_CASE("a range test and an overfitted batch of several ranks find the same on all, and leave the run as it was") {
  std::vector<std::vector<double>> losses(2);
  std::vector<bool> as_before(2);
  keel::run_in_process(2, [&](keel::world_of_ranks const& world) {
    program of(world);
    keel::trainer<unsaved> run{*of.model, *of.optimizer, world, quiet({.updates = 5})};
    auto const before = copies_of(of.model->parameters());
    auto const range = run.lr_range_test(of.batches, of.loss(), {.updates = 9});
    auto const fit = run.overfit_one_batch(of.batches.batch(0, 0), of.loss(), 5);
    auto const rank = static_cast<std::size_t>(world.rank());
    for (auto const& point : range.points) losses[rank].push_back(point.loss);
    losses[rank].insert(losses[rank].end(), fit.losses.begin(), fit.losses.end());
    as_before[rank] = same_bits(before, copies_of(of.model->parameters()));
  });
  CHECK(losses[0] == losses[1]);
  CHECK(losses[0].size() >= 10);
  CHECK(as_before == std::vector<bool>{true, true});
}

TEST_CASE("a save that any rank asks for is made by all at the next boundary") {
  for (int const asks : {0, 1, 2}) {
    scratch_directory const directory;
    keel::run_in_process(3, [&](keel::world_of_ranks const& world) {
      program of(world);
      keel::trainer<at_the_end> run{*of.model, *of.optimizer, world, quiet({.run_directory = directory, .updates = 6})};
      run.on([&](keel::event::update_end const& event) {
        if (world.rank() == asks && event.update == 2) run.request_save();
      });
      run.fit(of.batches, of.loss());
    });
    INFO("rank " << asks);
    CHECK(events_of(directory, "checkpoint").size() == 2);
    CHECK(events_of(directory, "checkpoint").front().at("update") == 3);
  }
}
