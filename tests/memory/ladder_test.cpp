#include <condition_variable>
#include <mutex>
#include <thread>

#include "transformer.hpp"

using namespace keel_test;
using namespace keel::literals;
namespace oom = keel::oom;
using oom::rung_kind;

namespace {

template <class... Entries>
keel::ladder_position position_of() {
  return keel::ladder_position(keel::config_of<keel::recipe<oom::ladder<Entries...>>>);
}
constexpr auto anything = [](int) { return true; };

[[noreturn]] void run_out_of_memory() {
  TORCH_CHECK_WITH(OutOfMemoryError, false, "a test took the memory away");
  std::abort();
}

/// Runs out of memory in the calls that are marked.
template <class LossOf>
auto starving(LossOf loss_of, std::function<bool()> const& now) {
  return [=](auto const& batch) {
    if (now()) run_out_of_memory();
    return loss_of(batch);
  };
}

}  // namespace

TEST_CASE("rungs are taken in the ladder's order, and those that free nothing are passed over") {
  auto at = position_of<oom::halve_micro_batch, oom::enable_recompute<keel::recompute::reentrant>, oom::offload_optimizer,
                        oom::fused_attention, oom::give_up>();
  CHECK(at.take_next(4, 9, anything) == rung_kind::halve_micro_batch);
  CHECK(at.take_next(4, 9, anything) == rung_kind::halve_micro_batch);
  CHECK(at.relief().pieces == 4);
  CHECK(at.take_next(4, 9, anything) == rung_kind::enable_recompute);
  CHECK(at.relief().recompute == keel::recompute_kind::reentrant);
  // What cannot do anything here is passed over, too.
  CHECK(at.take_next(4, 9, [](int index) { return index != 2; }) == rung_kind::fused_attention);
  CHECK(at.relief() == keel::memory_relief{4, keel::recompute_kind::reentrant, keel::attention_kind::fused, false, false, 0});
  CHECK(at.take_next(4, 9, anything) == rung_kind::give_up);
  CHECK(at.take_next(4, 9, anything) == rung_kind::give_up);
}

TEST_CASE("rungs that change the experiment are taken before the first update and never later") {
  using first = keel::ladder_position;
  auto const make = [] {
    return position_of<oom::quantize_base, oom::shorten_sequence<8>, oom::shorten_sequence<4>, oom::give_up>();
  };
  first before = make();
  CHECK(before.take_next(8, 0, anything) == rung_kind::quantize_base);
  CHECK(before.take_next(8, 0, anything) == rung_kind::shorten_sequence);
  CHECK(before.relief().length == 8);
  CHECK(before.take_next(8, 0, anything) == rung_kind::shorten_sequence);
  CHECK(before.relief().length == 4);
  CHECK(before.take_next(8, 0, anything) == rung_kind::give_up);
  first running = make();
  CHECK(running.take_next(8, 1, anything) == rung_kind::give_up);
}

TEST_CASE("a rung is given back after the updates that the recipe says, and after twice as many where that was too early") {
  auto at = position_of<oom::halve_micro_batch, oom::climb_back<3_steps>, oom::give_up>();
  auto const updates_until_given_back = [&] {
    for (int updates = 1; updates < 100; ++updates) {
      if (at.updated()) return updates;
    }
    return 0;
  };
  at.take_next(8, 0, anything);
  at.take_next(8, 0, anything);
  CHECK(updates_until_given_back() == 3);
  CHECK(at.relief().pieces == 2);
  CHECK(updates_until_given_back() == 3);
  CHECK(at.relief().pieces == 1);
  CHECK(updates_until_given_back() == 0);
  at.take_next(8, 0, anything);
  CHECK(updates_until_given_back() == 6);
  at.take_next(8, 0, anything);
  CHECK(updates_until_given_back() == 12);

  auto stays = position_of<oom::shorten_sequence<4>, oom::climb_back<1_steps>, oom::give_up>();
  stays.take_next(8, 0, anything);
  CHECK_FALSE(stays.updated());
}

TEST_CASE("where a run stands on its ladder is saved and restored, also onto another ladder, and damage becomes no rung") {
  auto at = position_of<oom::halve_micro_batch, oom::enable_recompute<keel::recompute::non_reentrant>, oom::give_up>();
  for (int i = 0; i < 3; ++i) at.take_next(4, 5, anything);
  nlohmann::json object;
  keel::tensor_map tensors;
  keel::state_writer writer(object, tensors);
  at.visit(writer);
  auto const read = [&](auto position) {
    keel::state_reader reader(object, tensors, "a test");
    position.visit(reader);
    return position;
  };
  auto same = read(position_of<oom::halve_micro_batch, oom::enable_recompute<keel::recompute::non_reentrant>, oom::give_up>());
  CHECK(same.relief() == at.relief());
  CHECK(same.take_next(4, 5, anything) == rung_kind::give_up);
  auto longer = read(position_of<oom::halve_micro_batch, oom::enable_recompute<keel::recompute::non_reentrant>,
                                 oom::offload_optimizer, oom::give_up>());
  CHECK(longer.take_next(4, 5, anything) == rung_kind::offload_optimizer);
  CHECK(longer.relief().pieces == 4);
  object["taken"] = {1, 77, -3};
  object["patience"] = -5;
  auto damaged = read(position_of<oom::halve_micro_batch, oom::give_up>());
  CHECK(damaged.relief().pieces == 2);
  CHECK(damaged.taken() == 1);
}

namespace {

struct climbs_back : keel::recipe<oom::ladder<oom::halve_micro_batch, oom::climb_back<2_steps>, oom::give_up>,
                                  keel::checkpoint::every<1_steps>> {};

}  // namespace

TEST_CASE("a run says which rungs it took and gave back, and a resumed one stands where it stood") {
  scratch_directory directory;
  auto const path = directory / "run";
  std::vector<std::string> said;
  for (int part = 0; part < 2; ++part) {
    auto const model = make_small();
    keel::adamw optimizer(model->parameters(), 0.01);
    keel::trainer<climbs_back> run{model, optimizer, quiet({.run_directory = path})};
    run.on([&](keel::event::out_of_memory const& e) { said.push_back(e.rung + " " + std::to_string(e.update)); });
    run.on([&](keel::event::rung_given_back const& e) { said.push_back("back " + std::to_string(e.update)); });
    bool starve = part == 0;
    auto const loss = starving(mean_squared_error(model), [&] { return std::exchange(starve, false); });
    run.resume();
    if (part == 1) CHECK(run.relief().pieces == 2);
    run.step(make_pair_batch(1), loss);
    if (part == 1) {
      CHECK(run.rungs_taken() == 1);
      for (std::uint64_t i = 2; i < 4; ++i) run.step(make_pair_batch(i), loss);
      CHECK(run.relief().pieces == 1);
    }
  }
  CHECK(said == std::vector<std::string>{"halve_micro_batch 0", "back 2"});
  auto const events = read_file(path / "events.jsonl");
  CHECK(events.find("\"event\":\"rung\"") != std::string::npos);
  CHECK(events.find("rung_given_back") != std::string::npos);
}

namespace {

/// An allocator that tried again in the updates that the test names.
struct thrashing : keel::step_environment {
  static std::int64_t& count() {
    static std::int64_t retries = 0;
    return retries;
  }
  static std::int64_t allocator_retries(c10::Device) { return count(); }
};
struct halves : keel::recipe<oom::ladder<oom::halve_micro_batch, oom::give_up>> {};

}  // namespace

TEST_CASE("thrash_takes_a_rung: an allocator that had to try again in three of ten windows, and one that did in two does not") {
  auto const model = make_small();
  keel::adamw optimizer(model->parameters(), 0.01);
  keel::step<halves, thrashing> step{model, optimizer};
  auto const update = [&](bool tried_again) {
    if (tried_again) thrashing::count() += 4;
    CHECK(step(make_pair_batch(1), mean_squared_error(model)).is<keel::outcome::updated>());
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
  std::int64_t grain() const { return 3; }
  grouped_batch slice(std::int64_t begin, std::int64_t end) const { return {ids.slice(0, begin, end)}; }
};

}  // namespace

TEST_CASE("halving goes down to the grain of a batch and never parts a group") {
  auto const model = make_small();
  keel::adamw optimizer(model->parameters(), 0.01);
  keel::step<halves> step{model, optimizer};
  std::vector<std::int64_t> seen;
  auto const outcome = step(grouped_batch{at::randn({13, 6})}, [&](grouped_batch const& piece) -> at::Tensor {
    seen.push_back(piece.rows());
    if (piece.rows() > 4) run_out_of_memory();
    return model->forward(piece.ids).square().mean();
  });
  CHECK(outcome.is<keel::outcome::updated>());
  CHECK(step.pieces() == 4);
  CHECK(seen == std::vector<std::int64_t>{13, 6, 3, 3, 3, 4});
  // A group alone cannot be cut.
  auto const too_large =
      step(grouped_batch{at::randn({3, 6})}, [&](grouped_batch const&) -> at::Tensor { run_out_of_memory(); });
  CHECK(too_large.is<keel::outcome::gave_up>());
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
  CHECK(outcome.is<keel::outcome::gave_up>());
  CHECK(frees_once::calls() == 2);
}

TEST_CASE("a rung that could never do anything for this model is refused before memory runs out: A21, A22, O20, U33") {
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
  REQUIRE(outcome->is<keel::outcome::updated>());
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
  CHECK(result.is<keel::outcome::gave_up>());
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
      step(make_pair_batch(1, 1), [&](pair_batch const&) -> at::Tensor { run_out_of_memory(); }).is<keel::outcome::gave_up>());
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

TEST_CASE(
    "a trial runs on the rungs that its run took, takes none that changes the experiment, and leaves state where it lives") {
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

TEST_CASE("an evaluation that does not fit is cut like a micro-batch, and without a ladder is an error that says so") {
  auto const model = make_small();
  keel::adamw optimizer(model->parameters(), 0.01);
  keel::trainer<halves> run{model, optimizer, quiet()};
  std::vector<pair_batch> const batches{make_pair_batch(1), make_pair_batch(2)};
  double const whole = run.evaluate(batches, mean_squared_error(model));
  run.step(batches[0], mean_squared_error(model));
  CHECK(optimizer.param_groups()[0].params()[0].grad().defined());
  auto const at_most = [&](std::int64_t rows) {
    return [&, rows](pair_batch const& batch) {
      if (keel::batch_traits<pair_batch>::rows(batch) > rows) run_out_of_memory();
      return mean_squared_error(model)(batch);
    };
  };
  double const expected = run.evaluate(batches, mean_squared_error(model));
  CHECK(whole != expected);
  CHECK(run.evaluate(batches, at_most(2)) == Approx(expected).epsilon(1e-6));
  CHECK_FALSE(optimizer.param_groups()[0].params()[0].grad().defined());
  CHECK_THROWS_AS(run.evaluate(batches, at_most(0)), keel::out_of_memory_error);
  keel::trainer<keel::recipe<>> plain{model, optimizer, quiet()};
  CHECK_THROWS_AS(plain.evaluate(batches, at_most(2)), keel::out_of_memory_error);
}

TEST_CASE("a batch or a piece of weight nothing counts nothing in an evaluation, however it is cut") {
  auto const model = make_small();
  keel::adamw optimizer(model->parameters(), 0.01);
  keel::trainer<halves> run{model, optimizer, quiet()};
  std::vector<pair_batch> const batches{make_pair_batch(1), make_pair_batch(2)};
  auto const of_positive = [&](pair_batch const& batch, bool starve) -> keel::weighted_loss {
    auto const rows = batch.second.squeeze(1).gt(0.0).nonzero().squeeze(1);
    if (starve && batch.first.size(0) > 1) run_out_of_memory();
    if (rows.numel() == 0) return {at::full({}, NAN), 0.0};
    return {at::mse_loss(model->forward(batch.first.index_select(0, rows)), batch.second.index_select(0, rows)),
            static_cast<double>(rows.numel())};
  };
  double const whole = run.evaluate(batches, [&](pair_batch const& batch) { return of_positive(batch, false); });
  double const by_rows = run.evaluate(batches, [&](pair_batch const& batch) { return of_positive(batch, true); });
  CHECK(std::isfinite(whole));
  CHECK(by_rows == Approx(whole).epsilon(1e-6));
}

TEST_CASE("the cursor after an exception stands before the window that was dropped, and after one that was applied") {
  struct in_three : keel::recipe<keel::accumulate<3>> {};
  auto const model = make_small();
  keel::adamw optimizer(model->parameters(), 0.01);
  keel::trainer<in_three> run{model, optimizer, quiet()};
  auto const loss = mean_squared_error(model);
  auto const throws = [](pair_batch const&) -> at::Tensor { throw std::runtime_error("a loss"); };
  for (int i = 0; i < 3; ++i) run.step(make_pair_batch(1), loss);
  run.step(make_pair_batch(1), loss);
  CHECK(run.cursor().consumed == 4);
  CHECK_THROWS_AS(run.step(make_pair_batch(1), throws), std::runtime_error);
  CHECK(run.cursor().consumed == 3);
  bool angry = true;
  run.on([&](keel::event::update_end const&) {
    if (std::exchange(angry, false)) throw std::runtime_error("a hook");
  });
  for (int i = 0; i < 2; ++i) run.step(make_pair_batch(1), loss);
  CHECK_THROWS_AS(run.step(make_pair_batch(1), loss), std::runtime_error);
  CHECK(run.updates() == 2);
  CHECK(run.cursor().consumed == 6);
  // A flush takes nothing, whether the update that it made is followed by an exception or it never came to one.
  run.step(make_pair_batch(1), loss);
  angry = true;
  CHECK_THROWS_AS(run.flush(), std::runtime_error);
  CHECK(run.updates() == 3);
  CHECK(run.cursor().consumed == 7);
}

namespace {

/// Ranks that are threads of this process and meet in every combine().
struct thread_world {
  struct meeting {
    std::mutex mutex;
    std::condition_variable all_here;
    int ranks = 0;
    int arrived = 0;
    int round = 0;
    std::int64_t value = 0;
    std::int64_t result = 0;
  };
  static meeting*& of_this_thread() {
    thread_local meeting* place = nullptr;
    return place;
  }
  static int& rank_of_this_thread() {
    thread_local int rank = 0;
    return rank;
  }
  int size() const { return of_this_thread()->ranks; }
  int rank() const { return rank_of_this_thread(); }
  template <keel::reduction Reduction, class Value>
  Value combine(Reduction, Value const& mine) const {
    meeting& at = *of_this_thread();
    std::unique_lock<std::mutex> lock(at.mutex);
    at.value = at.arrived == 0 ? static_cast<std::int64_t>(mine) : std::max(at.value, static_cast<std::int64_t>(mine));
    if (++at.arrived == at.ranks) {
      at.arrived = 0;
      ++at.round;
      at.result = at.value;
      at.all_here.notify_all();
    } else {
      int const round = at.round;
      if (!at.all_here.wait_for(lock, std::chrono::seconds(20), [&] { return at.round != round; }))
        throw std::runtime_error("a rank waited for another one that went on");
    }
    return static_cast<Value>(at.result);
  }
};
struct several_ranks : keel::step_environment {
  using world = thread_world;
};
struct ranked : keel::recipe<keel::accumulate<2>, oom::ladder<oom::halve_micro_batch, oom::give_up>> {};
struct ranked_in_halves : keel::recipe<keel::accumulate<4>> {};

}  // namespace

TEST_CASE("out_of_memory_on_one_rank_is_the_rung_of_all: every rank, every allocation, and nobody waits for ever") {
  constexpr int ranks = 2;
  keel::memory::budget budget;
  auto const data = [](int rank, std::uint64_t i) { return make_pair_batch(10 * static_cast<std::uint64_t>(rank) + i); };
  std::vector<std::vector<at::Tensor>> expected;
  for (int rank = 0; rank < ranks; ++rank) {
    auto const model = make_small();
    keel::adamw optimizer(model->parameters(), 0.01);
    keel::step<ranked_in_halves> step{model, optimizer};
    for (std::uint64_t i = 0; i < 4; ++i) {
      for (std::int64_t half = 0; half < 2; ++half)
        step(keel::batch_traits<pair_batch>::slice(data(rank, i), 4 * half, 4 * half + 4), mean_squared_error(model));
    }
    expected.push_back(copies_of(model->parameters()));
  }
  for (int starved = 0; starved < ranks; ++starved) {
    int cases = 0;
    for (std::int64_t nth = 1;; ++nth, ++cases) {
      thread_world::meeting place;
      place.ranks = ranks;
      std::vector<std::vector<at::Tensor>> parameters(ranks);
      std::vector<std::int64_t> pieces(ranks);
      std::vector<std::string> errors(ranks);
      auto const refused = budget.refused();
      // Made one after the other, because LibTorch has one generator for initial values.
      std::vector<std::shared_ptr<small_module>> models;
      for (int rank = 0; rank < ranks; ++rank) models.push_back(make_small());
      std::vector<std::thread> threads;
      for (int rank = 0; rank < ranks; ++rank) {
        threads.emplace_back([&, rank] {
          auto const me = static_cast<std::size_t>(rank);
          thread_world::of_this_thread() = &place;
          thread_world::rank_of_this_thread() = rank;
          try {
            keel::adamw optimizer(models[me]->parameters(), 0.01);
            keel::step<ranked, several_ranks> step{models[me], optimizer};
            std::vector<pair_batch> batches;
            for (std::uint64_t i = 0; i < 4; ++i) batches.push_back(data(rank, i));
            if (rank == starved) budget.refuse_allocation(nth);
            for (std::uint64_t i = 0; i < 4; ++i) {
              step(batches[i], mean_squared_error(models[me]));
              if (i == 1) budget.refuse_allocation(0);
            }
            pieces[me] = step.pieces();
            parameters[me] = copies_of(models[me]->parameters());
          } catch (std::exception const& thrown) {
            errors[me] = keel::first_line(thrown);
          }
        });
      }
      for (auto& one : threads) one.join();
      INFO("rank " << starved << ", allocation " << nth);
      for (auto const& one : errors) REQUIRE(one.empty());
      REQUIRE(pieces[0] == pieces[1]);
      if (budget.refused() == refused) break;
      REQUIRE(pieces[0] == 2);
      for (std::size_t rank = 0; rank < ranks; ++rank) REQUIRE(same_bits(parameters[rank], expected[rank]));
    }
    CHECK(cases > 20);
  }
}
