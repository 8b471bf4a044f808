// shard::zero<2>: gradients are in shards from micro-batch to micro-batch, what is trained is what replicas train, and a rank that fails
// in any micro-batch ends or repeats the update of all.
#include <ATen/Parallel.h>
#include <torch/nn/modules/dropout.h>
#include <torch/optim/adamw.h>

#include <cmath>

#include <keel/collective/collectives.hpp>
#include <keel/collective/in_process.hpp>

#include "../collective/rank_error_messages.hpp"
#include "../support.hpp"

using namespace keel_test;
using namespace keel::literals;

namespace {

template <class... Policies>
struct whole : keel::recipe<keel::shard::replicate, Policies...> {};
template <class... Policies>
struct cut_state : keel::recipe<keel::shard::zero<1>, Policies...> {};
template <class... Policies>
struct cut : keel::recipe<keel::shard::zero<2>, Policies...> {};

using skips = keel::nonfinite::skip<20>;
using clips = keel::clip::global_norm<0.05>;

/// Layers in several dtypes and shapes; `second` is used for positive batches only, `unused` never.
struct layers : torch::nn::Module {
  torch::nn::Linear first{nullptr}, second{nullptr}, third{nullptr}, unused{nullptr};
  bool mixes = false;
  explicit layers(at::ScalarType dtype = at::kFloat, bool mixes_dtypes = false) : mixes(mixes_dtypes) {
    at::manual_seed(4);
    first = register_module("first", torch::nn::Linear(7, 40));
    second = register_module("second", torch::nn::Linear(40, 40));
    third = register_module("third", torch::nn::Linear(40, 3));
    unused = register_module("unused", torch::nn::Linear(5, 5));
    to(dtype);
    if (mixes) second->to(at::kDouble);
  }
  at::Tensor loss(at::Tensor const& x) {
    at::Tensor y = first(x).tanh();
    if (x.sum().item<double>() > 0.0) y = mixes ? second(y.to(at::kDouble)).to(y.scalar_type()) : second(y);
    return third(y).square().mean();
  }
};

at::Tensor rows_of(std::int64_t i, int rank, at::ScalarType dtype = at::kFloat) {
  std::int64_t const rows = 1 + (i + rank) % 3;
  at::Tensor const all = at::arange(rows * 7).view({rows, 7}) * 0.13 + static_cast<double>(i * 5 + rank * 3);
  return all.sin().to(dtype);
}

struct ended {
  std::vector<at::Tensor> parameters;
  std::vector<double> norms, losses;
  std::int64_t updates = 0, skipped = 0;
};

struct training {
  at::ScalarType dtype = at::kFloat;
  bool mixes = false;
  bool stock = false;         ///< LibTorch's AdamW
  std::int64_t micro_batches = 24;
  std::int64_t bad = -1;      ///< the micro-batch that is NaN on rank 0
  bool flushes = false;
};

template <class Recipe>
std::vector<ended> train(int ranks, training const& how) {
  std::vector<ended> all(static_cast<std::size_t>(ranks));
  keel::run_in_process(ranks, [&](keel::world_of_ranks const& world) {
    layers model(how.dtype, how.mixes);
    keel::adamw of_keel(model.parameters(), torch::optim::AdamWOptions(0.01));
    torch::optim::AdamW of_torch(model.parameters(), torch::optim::AdamWOptions(0.01));
    ended& found = all[static_cast<std::size_t>(world.rank())];
    auto const run = [&](auto& optimizer) {
      keel::step<Recipe> step{model, optimizer, world};
      auto const note = [&](keel::step_outcome const& outcome) {
        if (auto const* const updated = outcome.updated()) {
          found.norms.push_back(updated->gradient_norm);
          found.losses.push_back(updated->loss);
        }
      };
      for (std::int64_t i = 0; i < how.micro_batches; ++i) {
        at::Tensor rows = rows_of(i, world.rank(), how.dtype);
        if (i == how.bad && world.rank() == 0) rows = rows * NAN;
        note(step([&] { return keel::weighted_loss{model.loss(rows), static_cast<double>(rows.size(0))}; }));
      }
      if (how.flushes) {
        if (auto const last = step.flush()) note(*last);
      }
      found.updates = step.updates();
      found.skipped = step.skipped();
    };
    how.stock ? run(of_torch) : run(of_keel);
    found.parameters = copies_of(model.parameters());
  });
  return all;
}

/// The largest difference, in units of what each element should be.
double distance(std::vector<at::Tensor> const& a, std::vector<at::Tensor> const& b) {
  double largest = 0.0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    at::Tensor const x = a[i].to(at::kDouble), y = b[i].to(at::kDouble);
    largest = std::max(largest, ((x - y).abs() / (y.abs() + 1e-2)).max().item<double>());
  }
  return largest;
}

template <class... Policies>
void compare(training const& how, double tolerance = 2e-5) {
  for (int const ranks : {1, 2, 3, 4}) {
    auto const expected = train<whole<Policies...>>(ranks, how);
    auto const all = train<cut<Policies...>>(ranks, how);
    for (std::size_t rank = 0; rank < all.size(); ++rank) {
      INFO("rank " << rank << " of " << ranks);
      CHECK(same_bits(all[rank].parameters, all.front().parameters));
      CHECK(distance(all[rank].parameters, expected.front().parameters) <= tolerance);
      CHECK(all[rank].updates == expected.front().updates);
      CHECK(all[rank].skipped == expected.front().skipped);
      REQUIRE(all[rank].norms.size() == expected.front().norms.size());
      for (std::size_t i = 0; i < all[rank].norms.size(); ++i) {
        CHECK(all[rank].norms[i] == Approx(expected.front().norms[i]).epsilon(1e-5));
        CHECK(all[rank].losses[i] == Approx(expected.front().losses[i]).epsilon(1e-5));
      }
    }
  }
}

template <class Recipe, class Other>
void have_same_bits(training const& how) {
  for (int const ranks : {1, 2, 3, 4}) {
    auto const expected = train<Recipe>(ranks, how), all = train<Other>(ranks, how);
    for (auto const& one : all) CHECK(same_bits(one.parameters, expected.front().parameters));
  }
}

bool has(std::string const& words, std::string const& part) {
  UNSCOPED_INFO(words);
  return words.find(part) != std::string::npos;
}

struct single_thread {
  int const before = at::get_num_threads();
  single_thread() { at::set_num_threads(1); }
  ~single_thread() { at::set_num_threads(before); }
};

}  // namespace

TEST_CASE("without a norm, gradients in shards train the bits of replicas and of state in shards, at any number of ranks") {
  single_thread const threads;
  have_same_bits<whole<skips>, cut<skips>>({});
  have_same_bits<cut_state<skips>, cut<skips>>({.dtype = at::kDouble});
  have_same_bits<whole<skips>, cut<skips>>({.dtype = at::kBFloat16});
  have_same_bits<whole<skips>, cut<skips>>({.mixes = true});
  have_same_bits<whole<skips>, cut<skips>>({.bad = 5});
  have_same_bits<whole<skips, keel::clip::value<0.01>>, cut<skips, keel::clip::value<0.01>>>({});
}

TEST_CASE("with clipping, accumulation, averages, sums, other dtypes and optimizers they train what replicas train") {
  single_thread const threads;
  compare<skips, clips>({});
  compare<skips, clips, keel::accumulate<3>>({});
  compare<skips, clips, keel::accumulate<3>>({.dtype = at::kDouble}, 1e-9);
  compare<skips, clips, keel::accumulate<4, keel::sum>>({});
  compare<skips, clips, keel::accumulate<2>, keel::ema<0.9>>({.mixes = true});
  compare<skips, clips, keel::accumulate<3>>({.stock = true});
  compare<skips, clips, keel::accumulate<5>>({.flushes = true});
  compare<skips, keel::spike::skip<>, keel::accumulate<2>>({});
  compare<skips, clips, keel::accumulate<2>, keel::accept<"P06">>({.dtype = at::kBFloat16}, 2e-2);
}

TEST_CASE("a NaN in any micro-batch of an update is the skip of all ranks, and leaves no gradient behind") {
  single_thread const threads;
  for (std::int64_t const bad : {0, 1, 2, 3, 4, 5, 22, 23}) compare<skips, clips, keel::accumulate<3>>({.bad = bad});
}

TEST_CASE("one to four ranks train within 1e-5 what one process in float64 trains on all of their rows") {
  single_thread const threads;
  for (int const ranks : {1, 2, 3, 4}) {
    // The batches of all ranks, one after the other, in one process.
    layers model(at::kDouble);
    keel::adamw optimizer(model.parameters(), torch::optim::AdamWOptions(0.01));
    keel::step<keel::recipe<clips>> step{model, optimizer};
    for (std::int64_t i = 0; i < 24; i += 3) {
      step([&] {
        at::Tensor sum = at::zeros({}, at::kDouble);
        double rows_in_all = 0.0;
        for (std::int64_t k = i; k < i + 3; ++k) {
          for (int rank = 0; rank < ranks; ++rank) {
            at::Tensor const rows = rows_of(k, rank).to(at::kDouble);
            sum = sum + model.loss(rows) * static_cast<double>(rows.size(0));
            rows_in_all += static_cast<double>(rows.size(0));
          }
        }
        return sum / rows_in_all;
      });
    }
    auto const all = train<cut<clips, keel::accumulate<3>>>(ranks, {});
    auto const expected = copies_of(model.parameters());
    for (auto const& one : all) {
      for (std::size_t i = 0; i < expected.size(); ++i)
        CHECK((one.parameters[i].to(at::kDouble) - expected[i]).abs().max().item<double>() <= 1e-5);
    }
  }
}

TEST_CASE("behind each micro-batch no parameter has a gradient, and a hook sees this rank's shards of the sums") {
  single_thread const threads;
  using recipe = cut<keel::accumulate<3>>;
  std::vector<std::vector<at::Tensor>> shards(3);
  keel::run_in_process(3, [&](keel::world_of_ranks const& world) {
    layers model;
    keel::adamw optimizer(model.parameters(), torch::optim::AdamWOptions(0.01));
    struct sees final : keel::step_observer {
      std::vector<at::Tensor>* to;
      void observe(keel::event::gradients_ready const& event) override {
        to->clear();
        for (at::Tensor const& one : event.parameters) to->push_back(one.grad().defined() ? one.grad().clone() : at::Tensor());
      }
      bool reads_gradients() const override { return true; }
    } observer;
    observer.to = &shards[static_cast<std::size_t>(world.rank())];
    keel::step<recipe> step{model, optimizer, world, 0, observer};
    for (std::int64_t i = 0; i < 6; ++i) {
      step([&] { return model.loss(rows_of(i, world.rank())); });
      for (at::Tensor const& one : model.parameters()) CHECK_FALSE(one.grad().defined());
    }
  });
  layers model;
  auto const parameters = model.parameters();
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    std::int64_t elements = 0;
    for (auto const& of_rank : shards) elements += of_rank[i].defined() ? of_rank[i].numel() : 0;
    bool const is_unused = i >= 6;
    CHECK(elements == (is_unused ? 0 : parameters[i].numel()));
  }
}

TEST_CASE("an exception in any micro-batch of one rank is told to all, who make no update and may go on") {
  single_thread const threads;
  for (int at = 0; at < 3; ++at) {
    std::vector<std::string> words(3);
    std::vector<std::vector<at::Tensor>> parameters(3);
    keel::run_in_process(3, [&](keel::world_of_ranks const& world) {
      layers model;
      keel::adamw optimizer(model.parameters(), torch::optim::AdamWOptions(0.01));
      keel::step<cut<clips, keel::accumulate<3>>> step{model, optimizer, world};
      auto const before = copies_of(model.parameters());
      auto const rank = static_cast<std::size_t>(world.rank());
      for (int i = 0; i < 3 && words[rank].empty(); ++i) {
        try {
          step([&]() -> at::Tensor {
            if (i == at && world.rank() == 1) throw std::runtime_error("of the loss itself");
            return model.loss(rows_of(i, world.rank()));
          });
        } catch (std::exception const& thrown) {
          words[rank] = thrown.what();
        }
      }
      CHECK(same_bits(before, copies_of(model.parameters())));
      CHECK(step.open_micro_batches() == 0);
      for (int i = 0; i < 6; ++i) step([&] { return model.loss(rows_of(i, world.rank())); });
      CHECK(step.updates() == 2);
      parameters[rank] = copies_of(model.parameters());
    });
    CHECK(words[1] == "of the loss itself");
    for (std::size_t const other : {0, 2}) CHECK((has(words[other], "[E25]") && has(words[other], "of the loss itself")));
    CHECK(same_bits(parameters[0], parameters[1]));
    CHECK(same_bits(parameters[0], parameters[2]));
  }
}

namespace {

/// A block that is computed again in the backward pass, which then adds to gradients that may be on their way.
template <class Recipe>
std::vector<std::vector<at::Tensor>> train_recomputed(int ranks) {
  std::vector<std::vector<at::Tensor>> all(static_cast<std::size_t>(ranks));
  keel::run_in_process(ranks, [&](keel::world_of_ranks const& world) {
    layers model;
    torch::nn::Dropout dropout(0.2);
    keel::adamw optimizer(model.parameters(), torch::optim::AdamWOptions(0.01));
    keel::step<Recipe> step{model, optimizer, world};
    at::manual_seed(static_cast<std::uint64_t>(world.rank()));
    for (std::int64_t i = 0; i < 12; ++i) {
      step([&] {
        at::Tensor const x = rows_of(i, world.rank()).requires_grad_();
        at::Tensor y = keel::unit(model.first, x);
        // The same block twice: its parameters get two gradients in one backward pass.
        for (int k = 0; k < 2; ++k) y = keel::unit(model.second, dropout(y.tanh()));
        return model.third(y).square().mean();
      });
    }
    all[static_cast<std::size_t>(world.rank())] = copies_of(model.parameters());
  });
  return all;
}

}  // namespace

TEST_CASE("blocks that are computed again, with dropout and shared by two layers, add all of their gradients") {
  single_thread const threads;
  for (int const ranks : {2, 3}) {
    auto const expected = train_recomputed<whole<keel::accumulate<2>>>(ranks);
    using with_gradients = keel::model::has<keel::model::inputs_require_grad>;
    for (auto const& all : {train_recomputed<cut<keel::accumulate<2>, keel::recompute::reentrant, with_gradients>>(ranks),
                            train_recomputed<cut<keel::accumulate<2>, keel::recompute::non_reentrant>>(ranks),
                            train_recomputed<cut<keel::accumulate<2>>>(ranks)}) {
      for (auto const& one : all) CHECK(distance(one, expected.front()) <= 2e-5);
      CHECK(same_bits(all.front(), all.back()));
    }
  }
}

TEST_CASE("layers that are unfrozen and frozen again get their shards and lose them") {
  single_thread const threads;
  auto const train_on = [&](auto recipe) {
    std::vector<std::vector<at::Tensor>> parameters(3);
    keel::run_in_process(3, [&](keel::world_of_ranks const& world) {
      layers model;
      for (at::Tensor const& one : model.second->parameters()) one.requires_grad_(false);
      std::vector<at::Tensor> trained;
      for (at::Tensor const& one : model.parameters()) {
        if (one.requires_grad()) trained.push_back(one);
      }
      keel::adamw optimizer(trained, 0.01);
      keel::step<decltype(recipe)> step{model, optimizer, world};
      std::int64_t i = 0;
      auto const updates = [&] {
        for (std::int64_t const end = i + 4; i < end; ++i) step([&] { return model.loss(rows_of(i, world.rank())); });
      };
      updates();
      step.unfreeze(model.second->parameters(), 0.02);
      updates();
      CHECK(step.refreeze_last_group());
      updates();
      parameters[static_cast<std::size_t>(world.rank())] = copies_of(model.parameters());
    });
    return parameters;
  };
  auto const expected = train_on(whole<keel::accumulate<2>>()), all = train_on(cut<keel::accumulate<2>>());
  for (auto const& one : all) {
    CHECK(same_bits(one, all.front()));
    CHECK(distance(one, expected.front()) <= 2e-5);
  }
}

TEST_CASE("the program's own backward passes are added up over the ranks") {
  single_thread const threads;
  auto const train_on = [&](auto recipe) {
    std::vector<std::vector<at::Tensor>> parameters(3);
    keel::run_in_process(3, [&](keel::world_of_ranks const& world) {
      layers model;
      keel::adamw optimizer(model.parameters(), 0.01);
      keel::step<decltype(recipe)> step{model, optimizer, world};
      for (std::int64_t i = 0; i < 12; ++i) {
        auto micro_batch = step.open();
        at::Tensor const a = model.loss(rows_of(i, world.rank())), b = model.loss(rows_of(i + 1, world.rank())) * 0.5;
        a.backward();
        b.backward();
        micro_batch.close(a + b);
      }
      CHECK(step.updates() == 4);
      parameters[static_cast<std::size_t>(world.rank())] = copies_of(model.parameters());
    });
    return parameters;
  };
  auto const expected = train_on(whole<keel::accumulate<3>, clips>()), all = train_on(cut<keel::accumulate<3>, clips>());
  for (auto const& one : all) {
    CHECK(same_bits(one, all.front()));
    CHECK(distance(one, expected.front()) <= 2e-5);
  }
}

TEST_CASE("what needs whole gradients is refused for gradients in shards by the compiler") {
  static_assert(keel::valid<cut<clips>> && keel::valid<cut<keel::clip::value<0.01>>>);
  static_assert(!keel::valid<cut<keel::clip::adaptive<0.01>>>);
  static_assert(!keel::valid<cut<keel::clip::global_norm<1.0, keel::clip::order<keel::clip::infinity>>>>);
}

namespace {

/// Bytes that the gradients of a rank take between two micro-batches, and at their peak in a backward pass, beyond those of one rank's
/// model, over the bytes of all gradients.
template <class Recipe>
std::pair<double, double> gradient_memory(int ranks) {
  std::pair<double, double> found;
  keel::memory::budget budget;
  keel::run_in_process(ranks, [&](keel::world_of_ranks const& world) {
    torch::nn::Sequential model;
    // 4.2 million parameters in layers of 262,656.
    for (int i = 0; i < 16; ++i) model->push_back(torch::nn::Linear(512, 512));
    keel::sgd optimizer(model->parameters(), torch::optim::SGDOptions(0.01));
    keel::step<Recipe> step{*model, optimizer, world};
    at::Tensor const x = at::ones({1, 512});
    auto const loss = [&] { return model->forward(x).square().mean(); };
    step(loss);
    step(loss);
    keel::barrier(world);
    // One rank runs at a time, so all of them are between two micro-batches here.
    std::int64_t const before = budget.allocated();
    keel::barrier(world);
    if (world.rank() == 0) budget.reset_peak();
    step(loss);
    keel::barrier(world);
    std::int64_t bytes = 0;
    for (at::Tensor const& one : model->parameters()) bytes += static_cast<std::int64_t>(one.nbytes());
    if (world.rank() == 0)
      found = {static_cast<double>(budget.allocated()), static_cast<double>(budget.peak() - before) / static_cast<double>(bytes)};
    keel::barrier(world);
    step(loss);
  });
  return found;
}

}  // namespace

TEST_CASE("in the middle of an update a rank holds its share of the gradients and the buffers of two buckets") {
  single_thread const threads;
  double const parameters = 16.0 * (512 * 512 + 512) * 4;
  for (int const ranks : {2, 4}) {
    auto const [of_all, peak_of_all] = gradient_memory<cut_state<keel::accumulate<3>>>(ranks);
    auto const [of_shards, peak_of_shards] = gradient_memory<cut<keel::accumulate<3>>>(ranks);
    INFO(ranks << " ranks: held " << of_all << " and " << of_shards << ", peak " << peak_of_all << " and " << peak_of_shards);
    // Four buffers of a 16th, the largest layer.
    double const saved = (of_all - of_shards) / ranks / parameters;
    double const share = 1.0 / ranks, buffers = 4.0 / 16;
    CHECK(saved >= 1.0 - share - buffers - 0.01);
    // Besides what was held before: the buffers of each rank for gradients and parameters, and a layer's gradient.
    CHECK(peak_of_all <= ranks * 3.0 / 16 + 0.1);
    CHECK(peak_of_shards <= ranks * 3.0 / 16 + 0.1);
  }
}

namespace {

template <class... Policies>
struct climbing : cut<keel::accumulate<3>, keel::oom::ladder<keel::oom::halve_micro_batch, keel::oom::give_up>, Policies...> {};

/// What each rank ends with where the loss of rank 0 fails in the second micro-batch of every update, as long as it has more rows than
/// `most`. `throws`: not for memory, once the batch was cut.
struct climbed {
  std::vector<std::string> words;
  std::vector<std::int64_t> pieces, updates;
  std::vector<std::vector<at::Tensor>> parameters;
};
climbed climb(int ranks, std::int64_t most, bool throws) {
  auto const count = static_cast<std::size_t>(ranks);
  climbed found{{}, std::vector<std::int64_t>(count), std::vector<std::int64_t>(count), std::vector<std::vector<at::Tensor>>(count)};
  found.words = rank_error_messages(ranks, [&](keel::world_of_ranks const& world) {
    auto const rank = static_cast<std::size_t>(world.rank());
    auto const model = make_small(3);
    keel::adamw optimizer(model->parameters(), 0.01);
    keel::step<climbing<>> step{model, optimizer, world};
    for (std::uint64_t i = 0; i < 6; ++i) {
      pair_batch const batch = make_pair_batch(i + 10 * static_cast<std::uint64_t>(world.rank()));
      bool const is_second = i % 3 == 1;
      std::int64_t const rows = batch.first.size(0);
      step(batch, [&, is_second, rows](pair_batch const& part) {
        bool const is_cut = part.first.size(0) < rows;
        if (world.rank() == 0 && is_second && part.first.size(0) > most) {
          if (throws && is_cut) throw std::runtime_error("of the loss itself");
          throw std::bad_alloc();
        }
        return mean_squared_error(model)(part);
      });
    }
    found.pieces[rank] = step.pieces();
    found.updates[rank] = step.updates();
    found.parameters[rank] = copies_of(model->parameters());
  });
  return found;
}

}  // namespace

TEST_CASE("memory that runs out again while an update is repeated is the next rung of all, and another exception there ends all") {
  single_thread const threads;
  for (int const ranks : {2, 3}) {
    climbed const again = climb(ranks, 2, false);
    for (std::size_t rank = 0; rank < again.words.size(); ++rank) {
      INFO(again.words[rank]);
      CHECK(again.words[rank].empty());
      CHECK(again.pieces[rank] == 4);
      CHECK(again.updates[rank] == 2);
      CHECK(same_bits(again.parameters[rank], again.parameters[0]));
    }
    climbed const ended = climb(ranks, 2, true);
    for (std::string const& words : ended.words) CHECK(has(words, "of the loss itself"));
  }
}
