#include <torch/optim/adam.h>
#include <torch/optim/rmsprop.h>

#include "../starving.hpp"

#include <limits>

using namespace keel_test;
using namespace keel::literals;
namespace oom = keel::oom;
using oom::rung_kind;

namespace {

/// An allocator that tried again in the updates that the test names.
struct thrashing : keel::step_environment {
  static std::int64_t& count() {
    static std::int64_t retries = 0;
    return retries;
  }
  std::int64_t allocator_retries(c10::Device) const override { return count(); }
};
struct halves : keel::recipe<oom::ladder<oom::halve_micro_batch, oom::give_up>> {};

}  // namespace

TEST_CASE("thrash_takes_a_rung: an allocator that had to try again in three of ten windows, and one that did in two does not") {
  auto const model = make_small();
  keel::adamw optimizer(model->parameters(), 0.01);
  keel::step<halves, thrashing> step{model, optimizer};
  auto const update = [&](bool tried_again) {
    if (tried_again) thrashing::count() += 4;
    CHECK(step(make_pair_batch(1), mean_squared_error(model)).is<keel::result::updated>());
  };
  for (int i = 0; i < 40; ++i) update(i % 5 == 0);
  for (int i = 0; i < 10; ++i) update(false);
  CHECK(step.pieces() == 1);
  for (int i = 0; i < 3; ++i) update(true);
  CHECK(step.pieces() == 2);
  // Counted from the rung on: what follows it is given time to help.
  for (int i = 0; i < 2; ++i) update(true);
  CHECK(step.pieces() == 2);
}

namespace {

struct grouped_batch {
  at::Tensor ids;
  std::int64_t rows() const { return ids.size(0); }
  std::int64_t granularity() const { return 3; }
  grouped_batch slice(std::int64_t begin, std::int64_t end) const { return {ids.slice(0, begin, end)}; }
};

}  // namespace

TEST_CASE("halving goes down to the granularity of a batch and never parts a group") {
  auto const model = make_small();
  keel::adamw optimizer(model->parameters(), 0.01);
  keel::step<halves> step{model, optimizer};
  std::vector<std::int64_t> seen;
  auto const outcome = step(grouped_batch{at::randn({13, 6})}, [&](grouped_batch const& piece) -> at::Tensor {
    seen.push_back(piece.rows());
    if (piece.rows() > 4) run_out_of_memory();
    return model->forward(piece.ids).square().mean();
  });
  CHECK(outcome.is<keel::result::updated>());
  CHECK(step.pieces() == 4);
  CHECK(seen == std::vector<std::int64_t>{13, 6, 3, 3, 3, 4});
  // A group alone cannot be cut.
  auto const too_large =
      step(grouped_batch{at::randn({3, 6})}, [&](grouped_batch const&) -> at::Tensor { run_out_of_memory(); });
  CHECK(too_large.is<keel::result::gave_up>());
}

namespace {

struct frees_once {
  static constexpr oom::rung_settings rung{.kind = rung_kind::custom};
  static int& calls() {
    static int count = 0;
    return count;
  }
  static bool take(torch::nn::Module& model) {
    CHECK(model.parameters().size() == 4);
    return ++calls() == 1;
  }
};
struct own : keel::recipe<oom::ladder<frees_once, oom::give_up>> {};

struct recomputes : keel::recipe<oom::ladder<oom::enable_recompute<keel::recompute::reentrant>, oom::give_up>> {};
struct fuses : keel::recipe<oom::ladder<oom::fused_attention, oom::give_up>> {};
struct quantizes : keel::recipe<keel::model::has<keel::model::adapters>, oom::ladder<oom::quantize_base, oom::give_up>> {};
struct offloads : keel::recipe<oom::ladder<oom::offload_optimizer, oom::give_up>> {};
struct offloading : keel::recipe<keel::offload::optimizer> {};

template <class Run>
std::string id_of_refusal(Run const& run) {
  try {
    run();
  } catch (keel::recipe_error const& thrown) {
    return thrown.id();
  }
  return "none";
}

}  // namespace

TEST_CASE("a rung of the program's own is asked again until it has nothing left") {
  frees_once::calls() = 0;
  auto const model = make_small();
  keel::adamw optimizer(model->parameters(), 0.01);
  keel::step<own> step{model, optimizer};
  auto const outcome = step(make_pair_batch(1), [&](pair_batch const&) -> at::Tensor { run_out_of_memory(); });
  CHECK(outcome.is<keel::result::gave_up>());
  CHECK(frees_once::calls() == 2);
}

TEST_CASE("a program's own loop whose last update gave up ends as such, and one that went on as finished") {
  for (bool const goes_on : {false, true}) {
    frees_once::calls() = 1;
    auto const model = make_small();
    keel::adamw optimizer(model->parameters(), 0.01);
    keel::trainer<own> run{model, optimizer, quiet()};
    auto const outcome = run.step(make_pair_batch(1), [&](pair_batch const&) -> at::Tensor { run_out_of_memory(); });
    CHECK(outcome.is<keel::result::gave_up>());
    if (goes_on) run.step(make_pair_batch(1), mean_squared_error(model));
    auto const ended = run.finish();
    CHECK(ended.is<keel::result::gave_up>() != goes_on);
    CHECK(ended.is<keel::result::finished>() == goes_on);
  }
}

TEST_CASE("a rung that could never do anything for this model is rejected before memory runs out: A21, A22, O20, U33") {
  auto const model = make_small();
  keel::adamw engine(model->parameters(), 0.01);
  torch::optim::AdamW stock(model->parameters(), 0.01);
  CHECK(id_of_refusal([&] { keel::step<quantizes>(model, engine); }) == "O20");
  CHECK(id_of_refusal([&] { keel::step<offloads>(model, stock); }) == "U33");
  CHECK(id_of_refusal([&] { keel::step<offloading>(model, stock); }) == "U33");
  CHECK(id_of_refusal([&] { keel::step<recomputes>(model, engine)(make_pair_batch(1), mean_squared_error(model)); }) == "A21");
  CHECK(id_of_refusal([&] { keel::step<fuses>(model, engine)(make_pair_batch(1), mean_squared_error(model)); }) == "A22");
}

TEST_CASE(
    "LibTorch's own optimizer, which allocates while it steps, is no reason to retry: the error says so and names keel's") {
  keel::memory::budget budget;
  auto const model = make_small();
  torch::optim::AdamW optimizer(model->parameters(), 0.01);
  keel::step<halves> step{model, optimizer};
  auto const batch = make_pair_batch(1);
  bool inside = false;
  for (std::int64_t nth = 1; nth < 2000 && !inside; ++nth) {
    budget.refuse_allocation(nth);
    try {
      step(batch, mean_squared_error(model));
    } catch (keel::out_of_memory_error const& thrown) {
      inside = std::string(thrown.what()).find("half updated") != std::string::npos &&
               std::string(thrown.what()).find("keel::adamw") != std::string::npos;
    }
    budget.refuse_allocation(0);
  }
  CHECK(inside);
}

namespace {

/// The first update of an optimizer of LibTorch's, with each allocation refused in turn: how often it was left half updated.
template <class Optimizer, class Options>
std::int64_t half_updated_of(Options const& options, std::optional<std::size_t> states = {}) {
  auto const model = make_small();
  auto const before = copies_of(model->parameters());
  auto const batch = make_pair_batch(1);
  std::int64_t half_updated = 0;
  for (std::int64_t nth = 1; nth < 2000; ++nth) {
    for (std::size_t i = 0; i < before.size(); ++i) model->parameters()[i].data().copy_(before[i]);
    Optimizer optimizer(model->parameters(), options);
    keel::step<keel::recipe<>> step{model, optimizer};
    keel::memory::budget budget;
    budget.refuse_allocation(nth);
    try {
      step(batch, mean_squared_error(model));
      break;
    } catch (std::exception const& thrown) {
      budget.refuse_allocation(0);
      if (step.is_half_updated()) {
        ++half_updated;
        CHECK(std::string(thrown.what()).find("half updated") != std::string::npos);
        // Its states were there before the first write.
        if (states) CHECK(optimizer.state().size() == *states);
      } else {
        CHECK(same_bits(copies_of(model->parameters()), before));
        CHECK(optimizer.state().empty());
        CHECK(step(batch, mean_squared_error(model)).updated());
      }
    }
  }
  // As LibTorch's own first step.
  auto const alone = make_small();
  Optimizer optimizer(alone->parameters(), options);
  mean_squared_error(alone)(batch).backward();
  optimizer.step();
  CHECK(same_bits(copies_of(model->parameters()), copies_of(alone->parameters())));
  return half_updated;
}

}  // namespace

TEST_CASE("what LibTorch's own optimizers keep is allocated before the first parameter changes") {
  std::size_t const all = make_small()->parameters().size();
  // What is left are the few tensors that each parameter's arithmetic needs for a moment.
  auto const few = static_cast<std::int64_t>(4 * all);
  CHECK(half_updated_of<torch::optim::AdamW>(torch::optim::AdamWOptions(0.01).amsgrad(true), all) <= few);
  CHECK(half_updated_of<torch::optim::Adam>(torch::optim::AdamOptions(0.01).weight_decay(0.1), all) <= few);
  CHECK(half_updated_of<torch::optim::RMSprop>(torch::optim::RMSpropOptions(0.01).momentum(0.9).centered(true), all) <= few);
  half_updated_of<torch::optim::SGD>(torch::optim::SGDOptions(0.01), 0);
  // Its momentum is the first gradient, which the step copies.
  CHECK(half_updated_of<torch::optim::SGD>(torch::optim::SGDOptions(0.01).momentum(0.9)) <= 2 * few);
}

namespace {

struct four_and_ladder : keel::recipe<keel::accumulate<4>, oom::ladder<oom::halve_micro_batch, oom::give_up>> {};
struct in_four : keel::recipe<keel::accumulate<4>> {};

}  // namespace

TEST_CASE("a window that the data's end left incomplete is retried whole where its end runs out of memory, and may give up") {
  keel::memory::budget budget;
  auto const reference = make_small();
  keel::adamw plain(reference->parameters(), 0.01);
  keel::step<in_four> in_halves{reference, plain};
  auto const batch = make_pair_batch(1);
  for (std::int64_t half = 0; half < 2; ++half)
    in_halves(keel::batch_traits<pair_batch>::slice(batch, 4 * half, 4 * half + 4), mean_squared_error(reference));
  in_halves.flush();

  auto const model = make_small();
  keel::adamw optimizer(model->parameters(), 0.01);
  keel::step<four_and_ladder> step{model, optimizer};
  step(batch, mean_squared_error(model));
  budget.refuse_allocation(1);  // of the moments
  auto const outcome = step.flush();
  budget.refuse_allocation(0);
  REQUIRE(outcome->is<keel::result::updated>());
  CHECK(step.pieces() == 2);
  CHECK(same_bits(model->parameters(), reference->parameters()));

  auto const other = make_small();
  keel::adamw starved(other->parameters(), 0.01);
  keel::trainer<four_and_ladder> run{other, starved, quiet()};
  std::vector<pair_batch> const batches{batch, make_pair_batch(2)};
  // Nothing that begins again fits.
  bool end = false;
  run.on([&](keel::event::micro_batch_end const& e) { end = e.micro_batch == 1; });
  run.on([&](keel::event::gradients_ready const&) { run_out_of_memory(); });
  auto const result = run.fit(batches, mean_squared_error(other));
  CHECK(end);
  CHECK(result.is<keel::result::gave_up>());
  CHECK(run.cursor().consumed == 0);
}

namespace {

struct needs_memory_itself {
  static constexpr oom::rung_settings rung{.kind = rung_kind::custom};
  static bool take(torch::nn::Module&) { run_out_of_memory(); }
};
struct own_and_halves : keel::recipe<oom::ladder<oom::halve_micro_batch, needs_memory_itself, oom::give_up>> {};

}  // namespace

TEST_CASE("a rung that runs out of memory itself is passed over") {
  auto const model = make_small();
  keel::adamw optimizer(model->parameters(), 0.01);
  keel::step<own_and_halves> step{model, optimizer};
  CHECK(
      step(make_pair_batch(1, 1), [&](pair_batch const&) -> at::Tensor { run_out_of_memory(); }).is<keel::result::gave_up>());
}

TEST_CASE("a run that came to offloading, or to shorter rows, is not resumed where that cannot go on: U33, E03") {
  scratch_directory directory;
  struct offloads_and_saves
      : keel::recipe<oom::ladder<oom::offload_optimizer, oom::give_up>, keel::checkpoint::every<1_steps>> {};
  struct shortens_and_saves
      : keel::recipe<oom::ladder<oom::shorten_sequence<4>, oom::give_up>, keel::checkpoint::every<1_steps>> {};
  struct saves : keel::recipe<keel::checkpoint::every<1_steps>> {};
  {
    auto const model = make_small();
    keel::adamw optimizer(model->parameters(), 0.01);
    keel::trainer<offloads_and_saves> run{model, optimizer, quiet({.run_directory = directory / "offloads"})};
    bool starve = true;
    run.step(make_pair_batch(1), starving(mean_squared_error(model), [&] { return std::exchange(starve, false); }));
    CHECK(run.relief().offload);
  }
  auto const model = make_small();
  torch::optim::AdamW stock(model->parameters(), torch::optim::AdamWOptions(0.01));
  keel::trainer<saves> resumed{model, stock, quiet({.run_directory = directory / "offloads"})};
  CHECK(id_of_refusal([&] { resumed.step(make_pair_batch(1), mean_squared_error(model)); }) == "U33");
  {
    auto const text = make_transformer();
    keel::adamw optimizer(keel::trained_parameters(*text), 0.01);
    keel::trainer<shortens_and_saves> run{*text, optimizer, quiet({.run_directory = directory / "shortens"})};
    bool starve = true;
    run.step(some_ids(1), starving(next_token_loss(text), [&] { return std::exchange(starve, false); }));
    CHECK(run.relief().length == 4);
  }
  auto const text = make_transformer();
  keel::adamw optimizer(keel::trained_parameters(*text), 0.01);
  keel::trainer<saves> other{*text, optimizer, quiet({.run_directory = directory / "shortens"})};
  try {
    other.resume();
    FAIL("rows became longer without a word");
  } catch (keel::checkpoint_error const& thrown) {
    CHECK(thrown.id() == "E03");
  }
}

TEST_CASE("a count of a ladder that no run reaches is a damaged checkpoint, and the longest wait overflows nothing: E05") {
  // As a configuration file may say it.
  auto recipe = keel::config_of<keel::recipe<oom::ladder<oom::halve_micro_batch, oom::release_after<2_steps>, oom::give_up>>>;
  auto const id_of_reading = [&](std::int64_t calm) -> std::string {
    keel::ladder_position at(recipe);
    at.take_next(4, 0, [](int) { return true; });
    nlohmann::json object;
    keel::tensor_map tensors;
    keel::state_writer writer(object, tensors);
    at.visit(writer);
    object["calm"] = calm;
    object["patience"] = std::numeric_limits<std::int64_t>::max();
    keel::state_reader reader(object, tensors, "a test");
    try {
      at.visit(reader);
    } catch (keel::checkpoint_error const& thrown) {
      CHECK(std::string(thrown.what()).find(std::to_string(calm) + " updates") != std::string::npos);
      return thrown.id();
    }
    return at.updated() ? "released" : "waits";
  };
  constexpr auto most = std::numeric_limits<std::int64_t>::max();
  CHECK(id_of_reading(-1) == "E05");
  CHECK(id_of_reading(-most - 1) == "E05");
  CHECK(id_of_reading(most) == "E05");
  CHECK(id_of_reading((2 << 20) - 2) == "waits");
  CHECK(id_of_reading((2 << 20) - 1) == "released");
  recipe.oom.release_after = most;
  CHECK(id_of_reading(1000) == "waits");
}

TEST_CASE(
    "a dry run runs on the rungs that its run took, takes none that changes the experiment, and leaves state where it lives") {
  scratch_directory directory;
  struct trying : keel::recipe<keel::model::has<keel::model::adapters>,
                               oom::ladder<oom::offload_optimizer, oom::quantize_base, oom::give_up>> {};
  auto const model = make_transformer();
  keel::freeze_base(*model);
  keel::adamw optimizer(keel::trained_parameters(*model), 0.01);
  keel::trainer<trying> run{*model, optimizer, quiet({.run_directory = directory / "run"})};
  run.step(some_ids(1), next_token_loss(model));
  auto const moment_of = [&] {
    auto& state = *optimizer.state()[keel::libtorch::state_key(optimizer.param_groups()[0].params()[0])];
    return static_cast<torch::optim::AdamWParamState&>(state).exp_avg().data_ptr();
  };
  auto const before = moment_of();
  int calls = 0;
  auto const starved = starving(next_token_loss(model), [&] { return ++calls == 1; });
  run.overfit_one_batch(some_ids(2), starved, 3);
  run.step(some_ids(1), next_token_loss(model));
  CHECK(moment_of() == before);
  CHECK_FALSE(run.relief().offload);
  CHECK_FALSE(model->blocks[0]->wide->is_quantized());
  CHECK_THROWS_AS(run.overfit_one_batch(
                      some_ids(2), [&](at::Tensor const&) -> at::Tensor { run_out_of_memory(); }, 3),
                  keel::out_of_memory_error);
  CHECK_FALSE(model->blocks[0]->wide->is_quantized());
}
