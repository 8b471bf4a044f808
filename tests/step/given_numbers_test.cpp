// A recipe whose numbers the program gives trains, records and saves as the recipe that has them as constants.
#include <keel/json/load_numbers.hpp>
#include <keel/trainer/summary.hpp>

#include "../support.hpp"

using namespace keel_test;
using namespace keel::literals;
using keel::given;

namespace {

namespace batch_guard = keel::batch_guard;
namespace checkpoint = keel::checkpoint;
namespace clip = keel::clip;
namespace evaluation = keel::evaluation;
namespace loss_scale = keel::loss_scale;
namespace nonfinite = keel::nonfinite;
namespace schedule = keel::schedule;
namespace spike = keel::spike;

template <class Base>
struct with_half_kernels : Base {
  bool computes_in_half(at::DeviceType) const override { return true; }
  bool computes_in_bfloat16(at::DeviceType) const override { return true; }
  keel::precision::kind autocast(keel::precision::kind) const override { return keel::precision::kind::fp32; }
};

struct result_of_run {
  std::vector<at::Tensor> parameters;
  std::vector<std::string> record;
  std::string ended;
  std::vector<std::string> checkpoints;
};

template <class Recipe, class... Numbers>
result_of_run train(Numbers const&... all) {
  scratch_directory const directory;
  at::manual_seed(5);
  auto const model = std::make_shared<small_module>();
  keel::adamw optimizer(model->parameters(), 0.02);
  result_of_run found;
  constexpr bool saves = keel::config_of<Recipe>.checkpoint.kind != checkpoint::kind::never;
  auto options = quiet({.run_directory = directory / "run", .updates = 14});
  if (!saves) options.run_directory.clear();
  keel::trainer<Recipe, with_half_kernels<keel::environment>> run{model, optimizer, all..., options};
  bool is_bad = false;
  model->first->weight.register_hook([&](at::Tensor const& gradient) { return is_bad ? gradient * INFINITY : gradient; });
  auto const loss_of = [&](keel::row_numbers const& row) {
    is_bad = row[0] >= 6 && row[0] < 9;
    at::Tensor const loss = mean_squared_error(model)(make_pair_batch(static_cast<std::uint64_t>(row[0])));
    return row[0] == 12 ? loss * 30 : loss;
  };
  auto const rows = ranges::views::iota(0, 60) | ranges::views::transform([](int i) { return keel::row_numbers{i}; });
  if constexpr (keel::config_of<Recipe>.evaluation.kind != evaluation::kind::none)
    run.evaluate_on(std::vector<keel::row_numbers>{{70}, {71}, {72}}, loss_of);
  try {
    found.ended = keel::describe_outcome(run.fit(rows, loss_of));
  } catch (keel::error const& thrown) {
    found.ended = thrown.what();
  }
  for (at::Tensor const& one : model->parameters()) found.parameters.push_back(one.detach().clone());
  if (saves) {
    // Marks of a rollback have no times.
    for (std::string const& line : read_lines(directory / "run" / "metrics.jsonl"))
      found.record.push_back(line.substr(0, line.find("\"ms\":")));
    for (auto const& one : std::filesystem::directory_iterator(directory / "run" / "checkpoints"))
      found.checkpoints.push_back(one.path().filename().string());
    std::sort(found.checkpoints.begin(), found.checkpoints.end());
  }
  return found;
}

template <class Closed, class Open>
void compare(keel::numbers const& all) {
  static_assert(keel::config_of<Open>.given > 0);
  auto const closed = train<Closed>();
  auto const open = train<Open>(all);
  CAPTURE(keel::describe<Closed>(keel::shown::set).c_str());
  CHECK(closed.ended == open.ended);
  CHECK(closed.record == open.record);
  CHECK(closed.checkpoints == open.checkpoints);
  REQUIRE(closed.parameters.size() == open.parameters.size());
  for (std::size_t i = 0; i < open.parameters.size(); ++i) CHECK(same_bits(closed.parameters[i], open.parameters[i]));
}

template <class... Policies>
struct tolerant : keel::recipe<nonfinite::skip<20>, Policies...> {};

}  // namespace

TEST_CASE("numbers that are given do what constants do: clip policies") {
  compare<tolerant<clip::global_norm<0.1>>, tolerant<clip::global_norm<given>>>({.clip = 0.1});
  compare<tolerant<clip::global_norm<0.2, clip::order<1>>>, tolerant<clip::global_norm<given, clip::order<given>>>>(
      {.clip = 0.2, .clip_order = 1});
  compare<tolerant<clip::value<0.01>>, tolerant<clip::value<given>>>({.clip = 0.01});
  compare<tolerant<clip::adaptive<0.01>>, tolerant<clip::adaptive<given>>>({.clip = 0.01});
  compare<tolerant<clip::zscore<0.5, clip::window<4>, clip::at_most<0.3>>>,
          tolerant<clip::zscore<given, clip::window<given>, clip::at_most<given>>>>(
      {.clip = 0.5, .clip_window = 4, .clip_at_most = 0.3});
}

TEST_CASE("numbers that are given do what constants do: batches, scale, rate, average and guards") {
  compare<tolerant<keel::accumulate<3>>, tolerant<keel::accumulate<given>>>({.accumulate = 3});
  compare<tolerant<keel::accumulate<2, keel::micro_batch<1>, keel::global_batch<2>>>,
          tolerant<keel::accumulate<given, keel::micro_batch<given>, keel::global_batch<2>>>>(
      {.accumulate = 2, .accumulate_micro_batch = 1});
  compare<tolerant<keel::precision::fp16, loss_scale::dynamic<loss_scale::initial<64.0>, loss_scale::floor<2.0>, loss_scale::growth_interval<3>>>,
          tolerant<keel::precision::fp16, loss_scale::dynamic<loss_scale::initial<given>, loss_scale::floor<given>, loss_scale::growth_interval<given>>>>(
      {.loss_scale = 64, .loss_scale_growth_interval = 3, .loss_scale_floor = 2});
  compare<tolerant<schedule::cosine<schedule::warmup<4_steps>, schedule::min_ratio<0.2>, schedule::total<12_steps>>>,
          tolerant<schedule::cosine<schedule::warmup<given>, schedule::min_ratio<given>, schedule::total<given>>>>(
      {.schedule_warmup = 4, .schedule_total = 12, .schedule_min_ratio = 0.2});
  compare<tolerant<schedule::plateau<schedule::patience<2_steps>, schedule::lowered_by<0.7>>>,
          tolerant<schedule::plateau<schedule::patience<given>, schedule::lowered_by<given>>>>(
      {.schedule_patience = 2, .schedule_lowered_by = 0.7});
  compare<tolerant<keel::ema<0.9>>, tolerant<keel::ema<given>>>({.ema = 0.9});
  compare<keel::recipe<nonfinite::skip<2>>, keel::recipe<nonfinite::skip<given>>>({.nonfinite = 2});
  compare<tolerant<spike::skip<spike::loss_above<9.0>, spike::in_a_row<2>>>, tolerant<spike::skip<spike::loss_above<given>, spike::in_a_row<given>>>>(
      {.spike_limit = 2, .spike_loss_above = 9.0});
}

TEST_CASE("numbers that are given do what constants do: checkpoints, evaluations, rollback, and what they write") {
  compare<tolerant<checkpoint::every<3_steps, checkpoint::keep<2>>, keel::determinism::seeded<11>, keel::ema<0.9>, keel::accumulate<2>>,
          tolerant<checkpoint::every<given, checkpoint::keep<given>>, keel::determinism::seeded<given>, keel::ema<given>, keel::accumulate<given>>>(
      {.accumulate = 2, .checkpoint = 3_steps, .checkpoint_keep = 2, .ema = 0.9, .determinism = 11});
  compare<tolerant<checkpoint::every<4_steps>, evaluation::every<2_steps, evaluation::early_stop<2>, evaluation::min_delta<0.5>, evaluation::batches<2>>>,
          tolerant<checkpoint::every<given>, evaluation::every<given, evaluation::early_stop<given>, evaluation::min_delta<given>, evaluation::batches<given>>>>(
      {.checkpoint = 4, .evaluation = 2, .evaluation_batches = 2, .evaluation_early_stop = 2, .evaluation_min_delta = 0.5});
  compare<keel::recipe<checkpoint::every<2_steps, checkpoint::keep<4>>, nonfinite::rollback<2, nonfinite::attempts<2>>>,
          keel::recipe<checkpoint::every<given, checkpoint::keep<given>>, nonfinite::rollback<given, nonfinite::attempts<given>>>>(
      {.nonfinite = 2, .nonfinite_attempts = 2, .checkpoint = 2, .checkpoint_keep = 4});
}

TEST_CASE("a run with given numbers resumes with the same, and says which number is another") {
  scratch_directory const directory;
  struct open : keel::recipe<clip::global_norm<given>, checkpoint::every<given>> {};
  struct closed : keel::recipe<clip::global_norm<0.1>, checkpoint::every<5_steps>> {};
  auto const train_on = [&](auto recipe, auto const&... all) {
    at::manual_seed(5);
    auto const model = std::make_shared<small_module>();
    keel::adamw optimizer(model->parameters(), 0.02);
    keel::trainer<typename decltype(recipe)::type> run{model, optimizer, all..., quiet({.run_directory = directory / "run", .updates = 5})};
    run.resume();
    if (run.updates() == 0) {
      for (std::uint64_t i = 0; i < 5; ++i) run.step(make_pair_batch(i), mean_squared_error(model));
      run.finish();
    }
    return run.updates();
  };
  using of_open = std::type_identity<open>;
  CHECK(train_on(of_open{}, keel::numbers{.clip = 0.1, .checkpoint = 5}) == 5);
  CHECK(train_on(of_open{}, keel::numbers{.clip = 0.1, .checkpoint = 7}) == 5);
  // A number is a number, however the program has it.
  CHECK(train_on(std::type_identity<closed>{}) == 5);
  try {
    train_on(of_open{}, keel::numbers{.clip = 0.2, .checkpoint = 5});
    FAIL("a run with another clip limit resumed");
  } catch (keel::checkpoint_error const& thrown) {
    CHECK(thrown.id() == "E03");
    CHECK(std::string(thrown.what()).find("clip was global_norm 0.1 and is now global_norm 0.2") != std::string::npos);
  }
}

TEST_CASE("each object has its own numbers, and a number that no run can use is the constant's rule") {
  struct open : keel::recipe<clip::global_norm<given>, keel::accumulate<given>> {};
  torch::nn::Linear model(3, 1);
  torch::optim::SGD optimizer(model->parameters(), 0.1);
  keel::step<open> one{model, optimizer, {.clip = 0.5, .accumulate = 2}};
  keel::step<open> two{model, optimizer, {.clip = 1.5, .accumulate = 3}};
  CHECK(one.recipe_value().clip.limit == 0.5);
  CHECK(two.recipe_value().accumulate.count == 3);
  auto const ids = [&](keel::numbers const& all) {
    try {
      keel::step<open>{model, optimizer, all};
    } catch (keel::recipe_error const& thrown) {
      return thrown.ids();
    }
    return std::vector<std::string>{};
  };
  CHECK(ids({.clip = 0.5, .accumulate = 2}).empty());
  CHECK(ids({.clip = -0.5, .accumulate = 0}) == std::vector<std::string>{"G11", "B21"});
  CHECK(ids({.clip = 0.5}) == std::vector<std::string>{"E22"});
  CHECK(ids({.clip = 0.5, .accumulate = 2, .ema = 0.9}) == std::vector<std::string>{"E22"});
}
