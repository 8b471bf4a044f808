// One fault for each cause that a triage names, and runs without any. A generator of its own: it shares no constant with the judge.
#pragma once

#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <stdexcept>

#include "planted_runs.hpp"

namespace keel_test::planted {

/// Does it in a child process, so that what one run leaves in memory is not there for the next. For programs whose parent has not computed
/// anything yet: a pool of threads does not outlive a fork.
template <class Run>
void in_another_process(Run const& run) {
  pid_t const child = ::fork();
  if (child == 0) {
    try {
      run();
    } catch (std::exception const& thrown) {
      std::fprintf(stderr, "%s\n", thrown.what());
    }
    ::_exit(0);
  }
  int status = 0;
  if (child < 0 || ::waitpid(child, &status, 0) != child || status != 0) throw std::runtime_error("a planted run ended badly");
}

struct incident {
  keel::trouble cause;
  std::string name;
  planted::kind kind;
  std::uint64_t seed;
  std::function<void(plan)> run;  ///< with directory, kind and seed
};

struct healthy_run {
  std::string name;
  planted::kind kind;
  std::uint64_t seed;
  std::function<void(plan)> run;
};

inline std::int64_t bytes_of(torch::nn::Module& net) {
  std::int64_t bytes = 0;
  for (at::Tensor const& one : net.parameters()) bytes += static_cast<std::int64_t>(one.nbytes());
  return bytes;
}

inline void wait(double milliseconds) { std::this_thread::sleep_for(std::chrono::duration<double, std::milli>(milliseconds)); }

/// What a few updates of the same plan take: what stays after them, and what they take above that.
struct measured {
  std::int64_t kept = 0;
  std::int64_t above = 0;
};
template <class Recipe>
measured measure(plan of, keel::memory::budget& budget) {
  scratch_directory aside;
  of.directory = aside.path();
  of.updates = 3;
  if (of.batches.empty()) of.batches = make_batches(of.kind, 16, of.seed, of.rows);
  std::int64_t const before = budget.allocated();
  std::int64_t held = 0;
  of.after_update = [&](std::int64_t, torch::optim::Optimizer&) { held = budget.allocated(); };
  budget.reset_peak();
  train<Recipe>(of);
  return {held - before, budget.peak() - held};
}

inline void write_ranks(std::filesystem::path const& directory, std::vector<std::vector<nlohmann::json>> const& ranks) {
  std::filesystem::create_directories(directory / "ranks");
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    std::ofstream file(directory / "ranks" / (std::to_string(rank) + ".jsonl"));
    for (nlohmann::json const& line : ranks[rank]) file << line.dump() << '\n';
  }
}

/// What four ranks write in so many sound updates.
inline std::vector<std::vector<nlohmann::json>> sound_ranks(std::int64_t updates, std::uint64_t seed, std::int64_t world = 4) {
  std::mt19937_64 engine(seed);
  double const began = 1.79e9;
  std::vector<std::vector<nlohmann::json>> all(static_cast<std::size_t>(world));
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    double now = began + static_cast<double>(engine() % 1000) / 1e3;
    all[rank].push_back({{"event", "joining"}, {"world", world}, {"time", now}});
    all[rank].push_back({{"event", "joined"}, {"time", now + 1.0}});
    std::int64_t sequence = 0;
    for (std::int64_t update = 0; update < updates; ++update) {
      for (char const* const of : {"gradients", "loss"}) {
        now = began + 2.0 + 0.5 * static_cast<double>(update) + static_cast<double>(engine() % 100) / 1e3;
        all[rank].push_back({{"event", "collective"}, {"sequence", ++sequence}, {"operation", "all_reduce"}, {"of", of},
                             {"elements", of[0] == 'g' ? 4096 : 1}, {"dtype", "float32"}, {"update", update}, {"time", now}});
        all[rank].push_back({{"event", "completed"}, {"sequence", sequence}, {"time", now + 0.05}});
      }
    }
  }
  return all;
}
inline void add_waiting(std::vector<nlohmann::json>& rank, std::int64_t update, char const* of, std::int64_t elements, double alive_for) {
  std::int64_t const sequence = 2 * update + 1;
  double const now = rank.back()["time"].get<double>() + 0.5;
  rank.push_back({{"event", "collective"}, {"sequence", sequence}, {"operation", "all_reduce"}, {"of", of}, {"elements", elements},
                  {"dtype", "float32"}, {"update", update}, {"time", now}});
  for (double t = 10.0; t <= alive_for; t += 10.0) rank.push_back({{"event", "alive"}, {"time", now + t}});
}

inline std::vector<incident> incidents() {
  using keel::trouble;
  std::vector<incident> all;
  auto const add = [&](trouble cause, std::string name, std::vector<planted::kind> const& of, int seeds, std::function<void(plan)> run) {
    for (planted::kind const which : of) {
      for (int seed = 0; seed < seeds; ++seed)
        all.push_back({cause, name, which, static_cast<std::uint64_t>(31 + 17 * seed + 5 * static_cast<int>(which)), run});
    }
  };
  std::vector<planted::kind> const every(std::begin(kinds), std::end(kinds));
  std::vector<planted::kind> const of_numbers{kind::classifier, kind::predictor};
  auto const set_rate = [](torch::optim::Optimizer& optimizer, double rate) {
    for (auto& group : optimizer.param_groups()) group.options().set_lr(rate);
  };
  auto const rate_of = [](torch::optim::Optimizer& optimizer) { return optimizer.param_groups()[0].options().get_lr(); };

  // Not finite.
  add(trouble::blow_up, "the rate grows by a third an update", every, 1, [=](plan of) {
    of.after_update = [=](std::int64_t update, torch::optim::Optimizer& optimizer) {
      if (update >= 80) set_rate(optimizer, rate_of(optimizer) * 1.33);
    };
    train<usual>(of);
  });
  add(trouble::blow_up, "plain SGD at a rate that it cannot bear", {kind::predictor, kind::classifier}, 1, [=](plan of) {
    of.momentum = 0.0;
    of.rate = 0.02;
    of.after_update = [=](std::int64_t update, torch::optim::Optimizer& optimizer) {
      if (update == 60) set_rate(optimizer, of.kind == kind::predictor ? 40.0 : 4000.0);
    };
    train<usual>(of);
  });
  add(trouble::bad_sample, "a row with a NaN", of_numbers, 1, [](plan of) {
    of.change_batch = [seed = of.seed](std::size_t index, pair_batch& batch) {
      if (index == 70 + seed % 50) batch.first[static_cast<std::int64_t>(index % 16)].view({-1})[3] = NAN;
    };
    train<usual>(of);
  });
  add(trouble::bad_sample, "a row of numbers without sense", of_numbers, 1, [](plan of) {
    of.change_batch = [seed = of.seed](std::size_t index, pair_batch& batch) {
      if (index == 90 + seed % 50) batch.first[static_cast<std::int64_t>(index % 16)].fill_(2.5e38F);
    };
    train<usual>(of);
  });
  add(trouble::layer_numerics, "a division by zero in a layer, at a row of zeros", every, 1, [](plan of) {
    of.with.divides_by_zero = true;
    of.change_batch = [seed = of.seed](std::size_t index, pair_batch& batch) {
      if (index > 50 && (index + seed) % 20 == 0) batch.first[5].zero_();
    };
    train<usual>(of);
  });
  add(trouble::layer_numerics, "the root of what becomes 0, whose derivative is infinite", of_numbers, 1, [](plan of) {
    // Two rows that are the same are at no distance from each other, where the root has no derivative.
    of.change_batch = [seed = of.seed](std::size_t index, pair_batch& batch) {
      if (index > 60 && (index + seed) % 30 == 0) batch.first[4].copy_(batch.first[3]);
    };
    of.loss = [](model& net, pair_batch const& batch) {
      at::Tensor const output = net.forward(batch.first);
      return net.loss(output, batch.second) + 1e-3 * (output[3] - output[4]).pow(2).sum().sqrt();
    };
    train<usual>(of);
  });
  add(trouble::loss_scale, "gradients that no scale fits into fp16", every, 1, [](plan of) {
    of.loss = [](model& net, pair_batch const& batch) {
      // In half precision backwards, as a kernel of fp16 would be.
      at::Tensor const output = net.forward(batch.first).to(at::kHalf).to(at::kFloat);
      return net.loss(output, batch.second) * 3e7;
    };
    of.updates = 120;
    train<scaled, scales_here>(of);
  });
  add(trouble::hardware, "a bit that flips once", every, 1, [](plan of) {
    auto const calls = std::make_shared<int>(0);
    of.loss = [calls](model& net, pair_batch const& batch) {
      at::Tensor output = net.forward(batch.first);
      if (++*calls == 111) output = output * std::numeric_limits<double>::quiet_NaN();
      return net.loss(output, batch.second);
    };
    train<usual>(of);
  });

  // Not learning.
  add(trouble::rate_too_low, "a rate ten thousand times too low", every, 1, [](plan of) {
    of.rate = good_rate(of.kind) * 1e-4;
    train<usual>(of);
  });
  add(trouble::rate_too_high, "a rate three hundred times too high", every, 1, [](plan of) {
    of.rate = good_rate(of.kind) * 300.0;
    train<clipped>(of);
  });
  add(trouble::wrong_labels, "labels of other rows", every, 1, [](plan of) {
    of.change_batch = [](std::size_t index, pair_batch& batch) {
      at::Generator chance = at::detail::createCPUGenerator(index);
      if (batch.second.scalar_type() == at::kLong && batch.second.dim() > 1) {
        batch.second = at::randint(language_model::vocabulary, batch.second.sizes(), chance, at::kLong);
      } else {
        batch.second = batch.second.index_select(0, at::randperm(batch.second.size(0), chance, at::kLong));
      }
    };
    train<clipped>(of);
  });
  add(trouble::untrained_parameters, "a trunk that is detached", {kind::language_model, kind::predictor}, 1, [](plan of) {
    of.with.detaches = true;
    of.change_batch = [](std::size_t index, pair_batch& batch) {
      // What is left for the head to learn is nothing.
      at::Generator chance = at::detail::createCPUGenerator(index);
      if (batch.second.scalar_type() != at::kLong) batch.second = batch.second - batch.second.mean();
    };
    train<usual>(of);
  });
  add(trouble::untrained_parameters, "all but the biases are frozen", every, 1, [](plan of) {
    of.prepare = [](model& net) {
      for (auto const& item : net.named_parameters()) item.value().requires_grad_(item.key() == "head.bias");
    };
    train<usual>(of);
  });
  add(trouble::wrong_mask, "a mask that hides what is to be predicted from", {kind::language_model}, 2, [](plan of) {
    of.with.hides_the_past = true;
    train<usual>(of);
  });
  add(trouble::wrong_mask, "a mask that leaves the wrong labels", {kind::language_model}, 2, [](plan of) {
    of.change_batch = [](std::size_t index, pair_batch& batch) {
      // Only the first two, which follow from nothing, count.
      static_cast<void>(index);
      batch.second.slice(1, 1).fill_(-100);
    };
    train<clipped>(of);
  });
  add(trouble::bad_initialization, "all weights are zero", every, 1, [](plan of) {
    of.with.scale_of_weights = 0.0;
    if (of.kind == kind::predictor) of.rate = 1e-3;
    train<usual>(of);
  });
  add(trouble::bad_initialization, "weights that let nothing through", of_numbers, 1, [](plan of) {
    of.with.scale_of_weights = 2e-3;
    of.momentum = 0.0;
    of.rate = 0.05;
    train<usual>(of);
  });

  // Learning the wrong thing.
  add(trouble::overfitting, "a hundred passes over too little data", every, 1, [](plan of) {
    of.batches = make_batches(of.kind, 3, of.seed);
    at::Generator chance = at::detail::createCPUGenerator(of.seed);
    for (auto& [x, y] : of.batches) {
      // A part of the labels is noise, as it is where little data is.
      if (y.scalar_type() == at::kLong) {
        at::Tensor const other = at::randint(8, y.sizes(), chance, at::kLong);
        y = at::where(at::rand(y.sizes(), chance) < 0.2, other, y);
      } else {
        y = y + 1.5 * at::randn(y.sizes(), chance);
      }
    }
    of.epochs = true;
    of.updates = 500;
    of.evaluations = {{"validation", make_batches(of.kind, 6, of.seed + 1)}};
    train<evaluated>(of);
  });
  add(trouble::collapse, "the hidden units die", of_numbers, 1, [=](plan of) {
    of.updates = 500;
    auto const net = std::make_shared<model*>(nullptr);
    of.prepare = [net](model& made) { *net = &made; };
    of.after_update = [net](std::int64_t update, torch::optim::Optimizer&) {
      if (update != 150) return;
      at::NoGradGuard const no_grad;
      for (auto const& item : (*net)->named_parameters()) {
        if (item.key() == "second.bias") item.value().fill_(-60.0);
      }
    };
    train<clipped>(of);
  });
  add(trouble::collapse, "a decay of the weights that leaves nothing", every, 1, [=](plan of) {
    of.updates = 400;
    of.after_update = [=](std::int64_t update, torch::optim::Optimizer& optimizer) {
      if (update != 140) return;
      for (auto& group : optimizer.param_groups()) static_cast<torch::optim::AdamWOptions&>(group.options()).weight_decay(60.0);
    };
    train<clipped>(of);
  });
  add(trouble::oscillation, "data that is sorted: one kind of it after the other", every, 1, [](plan of) {
    of.updates = 400;
    of.rate = good_rate(of.kind) * 4.0;
    for (std::size_t i = 0; i < 400; ++i) {
      std::uint64_t const seed = of.seed * 1000 + i;
      if (of.kind == kind::classifier) {
        auto const [points, labels] = make_batch(of.kind, seed, 12 * of.rows);
        at::Tensor const chosen = (labels == static_cast<std::int64_t>((i / 20) % 8)).nonzero().squeeze(1).slice(0, 0, of.rows);
        of.batches.emplace_back(points.index_select(0, chosen), labels.index_select(0, chosen));
      } else {
        of.batches.push_back(make_batch(of.kind, seed, of.rows, (i / 20) % 2 == 0 ? 0 : 9));
      }
    }
    train<usual>(of);
  });
  add(trouble::oscillation, "a rate that goes up and down", every, 1, [=](plan of) {
    of.updates = 400;
    of.after_update = [=](std::int64_t update, torch::optim::Optimizer& optimizer) {
      set_rate(optimizer, update % 30 < 3 ? good_rate(of.kind) * (of.kind == kind::predictor ? 25.0 : 60.0) : good_rate(of.kind));
    };
    train<clipped>(of);
  });
  add(trouble::forgetting, "another task after the first", every, 1, [](plan of) {
    of.prepare = [of](model& net) {
      keel::adamw optimizer(net.parameters(), good_rate(of.kind));
      for (pair_batch const& batch : make_batches(of.kind, 400, of.seed)) {
        optimizer.zero_grad();
        net.loss(net.forward(batch.first), batch.second).backward();
        optimizer.step();
      }
      optimizer.zero_grad();
    };
    of.batches = make_batches(of.kind, 300, of.seed, 16, 7);
    of.evaluations = {{"before", make_batches(of.kind, 4, of.seed + 1)}, {"new", make_batches(of.kind, 4, of.seed + 2, 16, 7)}};
    train<evaluated>(of);
  });

  // Memory.
  add(trouble::activations, "a batch sixteen times as large", every, 1, [](plan of) {
    keel::memory::budget budget;
    measured const usually = measure<usual>(of, budget);
    of.batches = make_batches(of.kind, 60, of.seed);
    of.batches[35] = make_batch(of.kind, 1, of.rows * 64);
    budget.limit(budget.allocated() + usually.kept + 4 * usually.above);
    train<usual>(of);
  });
  add(trouble::activations, "no batch of this size fits", of_numbers, 1, [](plan of) {
    keel::memory::budget budget;
    measured const usually = measure<usual>(of, budget);
    of.batches = make_batches(of.kind, 60, of.seed, of.rows * 64);
    budget.limit(budget.allocated() + usually.kept + 6 * usually.above);
    train<usual>(of);
  });
  add(trouble::optimizer_state, "the moments do not fit", every, 1, [](plan of) {
    keel::memory::budget budget;
    of.batches = make_batches(of.kind, 60, of.seed, 1);
    of.prepare = [&](model& net) {
      scratch_directory aside;
      plan few = of;
      few.prepare = nullptr;
      measured const usually = measure<usual>(few, budget);
      // What one update of so few rows takes, and not what the optimizer keeps.
      budget.limit(budget.allocated() + usually.above + 2 * bytes_of(net));
    };
    train<usual>(of);
  });
  add(trouble::memory_leak, "losses are kept with their outputs", every, 1, [](plan of) {
    keel::memory::budget budget;
    auto const kept = std::make_shared<std::vector<at::Tensor>>();
    of.loss = [kept](model& net, pair_batch const& batch) {
      at::Tensor const output = net.forward(batch.first);
      kept->push_back(output.detach().repeat({64, 1, 1}));
      return net.loss(output, batch.second);
    };
    of.updates = 400;
    train<usual>(of);
  });
  add(trouble::memory_leak, "a leak that ends the run", {kind::classifier, kind::language_model}, 1, [](plan of) {
    keel::memory::budget budget;
    auto const kept = std::make_shared<std::vector<at::Tensor>>();
    measured const usually = measure<usual>(of, budget);
    of.batches = make_batches(of.kind, 300, of.seed);
    of.loss = [kept](model& net, pair_batch const& batch) {
      at::Tensor const output = net.forward(batch.first);
      kept->push_back(at::zeros({3000}));
      return net.loss(output, batch.second);
    };
    budget.limit(budget.allocated() + 200 * 12000 + usually.kept + 2 * usually.above);
    train<usual>(of);
  });
  add(trouble::fragmentation, "small blocks stay between freed ones", every, 1, [](plan of) {
    keel::memory::budget budget;
    auto const kept = std::make_shared<std::vector<std::unique_ptr<char[]>>>();
    of.after_update = [kept](std::int64_t, torch::optim::Optimizer&) {
      std::vector<std::unique_ptr<char[]>> between;
      for (int i = 0; i < 400; ++i) {
        auto block = std::make_unique<char[]>(4000);
        std::fill_n(block.get(), 4000, 'x');
        (i % 4 != 0 ? *kept : between).push_back(std::move(block));
      }
    };
    of.updates = 500;
    train<usual>(of);
  });
  add(trouble::graph_in_evaluation, "an evaluation that sums losses with their graphs", every, 1, [](plan of) {
    keel::memory::budget budget;
    measured const usually = measure<usual>(of, budget);
    auto const sum = std::make_shared<at::Tensor>();
    of.batches = make_batches(of.kind, 300, of.seed);
    of.evaluations = {{"validation", make_batches(of.kind, 400, of.seed + 1)}};
    of.evaluation_loss = [sum](model& net, pair_batch const& batch) {
      at::AutoGradMode const with_graph(true);
      at::Tensor const loss = net.loss(net.forward(batch.first), batch.second);
      *sum = sum->defined() ? *sum + loss : loss;
      return loss;
    };
    budget.limit(budget.allocated() + usually.kept + 9 * usually.above);
    train<evaluated>(of);
    *sum = at::Tensor();
  });
  add(trouble::graphs_in_accumulation, "outputs are kept until the update", every, 1, [](plan of) {
    keel::memory::budget budget;
    measured const usually = measure<accumulated>(of, budget);
    auto const kept = std::make_shared<std::vector<at::Tensor>>();
    of.batches = make_batches(of.kind, 200, of.seed);
    auto const updates = std::make_shared<std::int64_t>(0);
    of.loss = [kept, updates](model& net, pair_batch const& batch) {
      at::Tensor const output = net.forward(batch.first);
      // The loss of the whole, whose graph holds every micro-batch.
      for (int copy = 0; copy < 6; ++copy) kept->push_back(output.exp() * (1.0 + *updates / 40.0));
      kept->push_back(at::zeros({12000}));
      return net.loss(output, batch.second);
    };
    of.after_update = [kept, updates](std::int64_t update, torch::optim::Optimizer&) {
      *updates = update;
      kept->clear();
    };
    budget.limit(budget.allocated() + usually.kept + usually.above + 120000);
    train<accumulated>(of);
    kept->clear();
  });

  // Slow.
  add(trouble::waiting_for_data, "batches that take their time", every, 1, [](plan of) {
    of.before_batch = [](std::int64_t) { wait(6.0); };
    of.updates = 120;
    train<usual>(of);
  });
  add(trouble::host_waits, "the loss function waits for something else", every, 1, [](plan of) {
    of.loss = [](model& net, pair_batch const& batch) {
      at::Tensor const loss = net.loss(net.forward(batch.first), batch.second);
      wait(9.0);
      return loss;
    };
    of.updates = 140;
    train<profiled>(of);
  });
  add(trouble::communication, "collectives on a slow link", every, 1, [](plan of) {
    of.loss = [](model& net, pair_batch const& batch) {
      at::Tensor const loss = net.loss(net.forward(batch.first), batch.second);
      RECORD_FUNCTION("c10d::allreduce_", std::vector<c10::IValue>());
      wait(9.0);
      return loss;
    };
    of.updates = 140;
    train<profiled>(of);
  });
  add(trouble::slow_kernels, "an operation for every number", every, 1, [](plan of) {
    of.loss = [](model& net, pair_batch const& batch) {
      at::Tensor output = net.forward(batch.first);
      for (int i = 0; i < 700; ++i) output = output * 1.0;
      return net.loss(output, batch.second);
    };
    of.updates = 140;
    train<profiled>(of);
  });
  add(trouble::padding, "rows that are mostly padding", {kind::language_model}, 3, [](plan of) {
    of.change_batch = [](std::size_t index, pair_batch& batch) {
      auto const length = static_cast<std::int64_t>(3 + index % 4);
      batch.first.clamp_min_(1);
      batch.first.slice(1, length).fill_(0);
      batch.second.slice(1, length).fill_(-100);
    };
    train<padded>(of);
  });

  // Several ranks.
  for (int which = 0; which < 2; ++which) {
    add(trouble::collective_mismatch, "ranks that take different branches", {kind::classifier}, 1, [which](plan of) {
      auto ranks = sound_ranks(20 + 7 * which, of.seed);
      for (std::size_t rank = 0; rank < ranks.size(); ++rank)
        add_waiting(ranks[rank], 20 + 7 * which, rank == 2 && which == 0 ? "skipped" : "gradients", rank == 2 ? 17 : 4096, 200.0);
      write_ranks(of.directory, ranks);
    });
    add(trouble::uneven_data, "one rank has fewer batches", {kind::classifier}, 1, [which](plan of) {
      auto ranks = sound_ranks(30, of.seed);
      for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
        if (rank == 1) {
          double const now = ranks[rank].back()["time"].get<double>();
          ranks[rank].push_back({{"event", "data_ended"}, {"update", 30}, {"time", now + 0.1}});
          if (which == 1) ranks[rank].push_back({{"event", "left"}, {"why", "finished"}, {"time", now + 0.2}});
        } else {
          add_waiting(ranks[rank], 30, "gradients", 4096, 300.0);
        }
      }
      write_ranks(of.directory, ranks);
    });
    add(trouble::dead_rank, "one rank dies", {kind::classifier}, 1, [which](plan of) {
      auto ranks = sound_ranks(12, of.seed);
      for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
        double const now = ranks[rank].back()["time"].get<double>();
        if (rank == 3 && which == 1) ranks[rank].push_back({{"event", "left"}, {"why", "[E09] memory ran out in update 13"}, {"time", now + 0.3}});
        if (rank != 3) add_waiting(ranks[rank], 12, "gradients", 4096, 120.0);
      }
      write_ranks(of.directory, ranks);
    });
    // Of the process itself, or of another rank that left its words.
    add(trouble::no_progress, "a process that hangs", {kind::classifier}, 1, [which](plan of) {
      write_ranks(of.directory, sound_ranks(12, of.seed));
      std::string const words = "[E27] rank 2 of 4: nothing has ended for 300 s (keel::timeout::hard is 300 s): the run is in an evaluation";
      std::string const by_another = "[E25] rank 0 of 4 cannot complete control all-gather, collective number 61: rank 2 has given up: " + words;
      nlohmann::json const failed{{"event", "failed"}, {"update", 12}, {"time", 1.79e9 + 300.0}, {"message", which == 0 ? words : by_another}};
      std::ofstream(of.directory / "events.jsonl") << nlohmann::json{{"event", "started"}, {"update", 0}, {"time", 1.79e9}}.dump() << "\n" << failed.dump() << "\n";
    });
    add(trouble::rendezvous, "a rank that does not find the others", {kind::classifier}, 1, [which](plan of) {
      std::vector<std::vector<nlohmann::json>> ranks(which == 0 ? 4 : 3);
      for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
        ranks[rank].push_back({{"event", "joining"}, {"world", 4}, {"time", 1.79e9}});
        ranks[rank].push_back({{"event", "alive"}, {"time", 1.79e9 + 400.0}});
      }
      write_ranks(of.directory, ranks);
    });
  }

  // Ranks that go on and are not the same.
  for (int which = 0; which < 3; ++which) {
    // Each clips by the norm of its shard; one does not clip at all, and its replicas drift; one begins with other values.
    add(trouble::ranks_drift, "replicas that part", {kind::classifier}, 1, [which](plan of) {
      auto ranks = sound_ranks(18, of.seed);
      for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
        for (std::int64_t update = 1; update <= 18; ++update) {
          double const norm = 2.0 + 0.1 * static_cast<double>(update);
          double const own = which == 0 ? norm * (0.4 + 0.05 * static_cast<double>(rank)) : norm;
          bool const is_other = (which == 1 && rank == 2 && update > 11) || (which == 2 && rank == 3);
          ranks[rank].push_back({{"event", "update"}, {"update", update}, {"gradient_norm", own}, {"coefficient", 1.0 / own},
                                 {"state", is_other ? "1f" : "a0"}, {"time", 1.79e9 + static_cast<double>(update)}});
        }
      }
      write_ranks(of.directory, ranks);
    });
    // The norm of all shards is wrong by the root of the ranks, in both directions, or what is replicated counts again.
    add(trouble::wrong_norm, "a norm that is wrong on all ranks alike", {kind::classifier}, 1, [which](plan of) {
      auto ranks = sound_ranks(18, of.seed);
      for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
        for (std::int64_t update = 1; update <= 18; ++update) {
          double const shard = 1.0 + 0.02 * static_cast<double>(update);
          double const factor = which == 0 ? 1.0 : which == 1 ? 4.0 : 3.1;
          ranks[rank].push_back({{"event", "update"}, {"update", update}, {"gradient_norm", factor * shard}, {"coefficient", 0.5},
                                 {"shard_norm", shard}, {"state", "a0"}, {"time", 1.79e9 + static_cast<double>(update)}});
        }
      }
      write_ranks(of.directory, ranks);
    });
  }

  // Not resumed.
  add(trouble::optimizer_not_resumed, "the optimizer is made anew after the resume", every, 1, [](plan of) {
    of.stop_at = 150;
    of.after_resume = [](torch::optim::Optimizer& optimizer) { optimizer.state().clear(); };
    train<usual>(of);
  });
  add(trouble::schedule_not_resumed, "a schedule of the program begins again", every, 1, [=](plan of) {
    of.stop_at = 150;
    double const highest = good_rate(of.kind);
    of.rate = highest;
    // A scheduler of the program's own, which counts from its construction.
    auto const steps = std::make_shared<int>(0);
    of.after_update = [=](std::int64_t, torch::optim::Optimizer& optimizer) { set_rate(optimizer, highest * std::pow(0.99, ++*steps)); };
    of.after_resume = [=](torch::optim::Optimizer& optimizer) {
      *steps = 0;
      set_rate(optimizer, highest);
    };
    train<usual>(of);
  });
  add(trouble::data_not_resumed, "the data begins again after the resume", every, 1, [](plan of) {
    of.stop_at = 150;
    of.starts_data_again = true;
    train<usual>(of);
  });
  add(trouble::random_state_not_resumed, "the program seeds again", every, 1, [](plan of) {
    of.stop_at = 150;
    of.with.dropout = 0.2;
    of.after_resume = [seed = of.seed](torch::optim::Optimizer&) { keel::libtorch::seed_random(at::kCPU, seed); };
    train<usual>(of);
  });
  return all;
}

inline std::vector<healthy_run> healthy_runs() {
  std::vector<healthy_run> all;
  auto const add = [&](std::string name, std::function<void(plan)> run) {
    for (planted::kind const which : kinds) all.push_back({name, which, static_cast<std::uint64_t>(101 + 3 * static_cast<int>(which)), run});
  };
  add("as it comes", [](plan of) { train<usual>(of); });
  add("a schedule with warm-up, clipping and checkpoints", [](plan of) { train<scheduled>(of); });
  add("accumulation in a counted process", [](plan of) {
    keel::memory::budget budget;
    train<accumulated>(of);
  });
  add("small batches, which are noisy", [](plan of) {
    of.rows = 4;
    of.updates = 600;
    train<clipped>(of);
  });
  add("evaluations that go on falling", [](plan of) {
    of.evaluations = {{"validation", make_batches(of.kind, 4, of.seed + 1)}};
    train<evaluated>(of);
  });
  add("killed and resumed, with dropout", [](plan of) {
    of.stop_at = 140;
    of.with.dropout = 0.1;
    train<usual>(of);
  });
  add("SGD with momentum", [](plan of) {
    of.momentum = 0.9;
    of.rate = of.kind == kind::predictor ? 0.01 : 0.05;
    of.updates = 500;
    train<clipped>(of);
  });
  add("a scale that settles", [](plan of) { train<scaled, scales_here>(of); });
  add("several passes over the data, a line for ten updates", [](plan of) {
    of.batches = make_batches(of.kind, 100, of.seed);
    of.epochs = true;
    of.record_every = 10;
    of.updates = 1000;
    train<usual>(of);
  });
  add("a profile now and then, and a ladder that is not needed", [](plan of) {
    keel::memory::budget budget;
    train<profiled>(of);
  });
  add("half of it is frozen, as in a fine-tune", [](plan of) {
    of.prepare = [](model& net) {
      auto const all = net.named_parameters();
      for (std::size_t i = 0; i < 1; ++i) all[i].value().requires_grad_(false);
    };
    train<laddered>(of);
  });
  return all;
}

}  // namespace keel_test::planted
