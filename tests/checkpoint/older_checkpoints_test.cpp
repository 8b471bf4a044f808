// Run directories that earlier versions of keel left, in tests/checkpoint/older: each is taken up and run to its end. The hidden
// case [.write] makes those of the version that it is compiled with, in the folder that KEEL_WRITE_OLDER names.
#include "../support.hpp"

#include <keel/checkpoint/safetensors.hpp>

using namespace keel_test;
using namespace keel::literals;

namespace {

/// As many of keel's settings as run on any machine.
struct many_settings
    : keel::recipe<
          keel::accumulate<2>, keel::clip::zscore<4.5, keel::clip::window<4>, keel::clip::at_most<2.0>>,
          keel::nonfinite::rollback<2, keel::nonfinite::lower_lr, keel::nonfinite::attempts<2>>,
          keel::spike::skip<keel::spike::zscore<9.5>, keel::spike::window<4>, keel::spike::loss_above<1000.0>>,
          keel::schedule::one_cycle<keel::schedule::warmup<3_steps>, keel::schedule::min_ratio<0.125>>,
          keel::checkpoint::every<3_steps, keel::checkpoint::keep<3>, keel::checkpoint::keep_best, keel::checkpoint::by_evaluation>,
          keel::evaluation::every<3_steps, keel::evaluation::early_stop<5>>, keel::determinism::seeded<5>,
          keel::ema<0.75, keel::ema_buffers>,
          keel::oom::ladder<keel::oom::halve_micro_batch, keel::oom::give_up, keel::oom::release_after<50_steps>>> {};

/// Policies of a program's own, one with a state.
struct halves : keel::fills<keel::slot::clip> {
  static constexpr keel::clip::settings configured{.kind = keel::clip::kind::custom, .limit = 0.5};
  struct state {
    std::int64_t calls = 0;
    void visit(auto& archive) { archive("calls", calls); }
  };
  static void clip(std::span<at::Tensor const> gradients, double /*norm*/, state& of) {
    ++of.calls;
    for (at::Tensor const& one : gradients) one.mul_(0.5);
  }
};
struct falls : keel::fills<keel::slot::schedule> {
  static constexpr keel::schedule::settings configured{.kind = keel::schedule::kind::custom};
  static double factor(std::int64_t update, std::int64_t total) { return 1.0 - 0.5 * static_cast<double>(update) / static_cast<double>(total); }
};
struct own_policies : keel::recipe<halves, falls, keel::checkpoint::every<3_steps, keel::checkpoint::keep<1>>, keel::determinism::seeded<6>,
                                   keel::nonfinite::skip<3>> {};

/// A rate that judges evaluations, and milestones, which no other recipe here has.
struct judged : keel::recipe<keel::schedule::plateau<keel::schedule::evaluations<1>, keel::schedule::threshold<0.25>>,
                             keel::evaluation::every<1_steps>, keel::checkpoint::every<3_steps, keel::checkpoint::keep<1>>,
                             keel::determinism::seeded<7>> {};
struct at_milestones : keel::recipe<keel::schedule::multi_step<keel::schedule::milestones<2_steps, 7_steps>>, keel::clip::global_norm<0.5, keel::clip::order<1>>,
                                    keel::checkpoint::every<3_steps, keel::checkpoint::keep<1>>, keel::determinism::seeded<8>> {};

constexpr std::int64_t length = 9;

std::filesystem::path older() { return std::filesystem::path(__FILE__).parent_path() / "older"; }

/// As they were when the run directories were written: standard libraries differ in what they draw from one seed.
pair_batch batch_at(std::int64_t index) {
  static keel::tensor_map const all = keel::load_safetensors(older() / "batches.safetensors").tensors;
  return {all.at("x" + std::to_string(index)).to(device()), all.at("y" + std::to_string(index)).to(device())};
}
constexpr std::int64_t evaluated_index = 99;
constexpr std::int64_t batches_an_epoch = 3;

auto batches(std::int64_t epoch) {
  std::vector<pair_batch> all;
  for (std::int64_t i = 0; i < batches_an_epoch; ++i) all.push_back(batch_at(epoch * batches_an_epoch + i));
  return all;
}

struct finished {
  std::int64_t first_update = 0;
  std::vector<at::Tensor> parameters;
};

template <class Recipe>
finished go(std::filesystem::path const& directory, int stop_after = 1 << 20) {
  keel::seed<Recipe>();
  auto const model = std::make_shared<small_module>(0.3);
  torch::optim::AdamW optimizer(model->parameters(), 0.05);
  keel::trainer<Recipe> run{model, optimizer, quiet({.run_directory = directory, .updates = length})};
  if constexpr (keel::config_of<Recipe>.evaluation.kind != keel::evaluation::kind::none)
    run.evaluate_on(std::vector<pair_batch>{batch_at(evaluated_index)}, mean_squared_error(model));
  finished result;
  int updates = 0;
  run.on([&](keel::event::update_end const&) {
    if (updates++ == 0) result.first_update = run.updates();
    if (updates == stop_after) run.request_stop();
  });
  run.fit(batches, mean_squared_error(model));
  result.parameters = copies_of(model->parameters());
  return result;
}

template <class Recipe>
void write(std::filesystem::path const& folder) {
  go<Recipe>(folder / "run", 6);
  scratch_directory const whole;
  auto const expected = go<Recipe>(whole / "run");
  keel::tensor_map tensors;
  for (std::size_t i = 0; i < expected.parameters.size(); ++i) tensors[std::to_string(i)] = expected.parameters[i];
  keel::save_safetensors(folder / "final.safetensors", tensors);
}

/// The run of that version goes on after its sixth update and ends where that version's own did; another machine rounds otherwise.
template <class Recipe>
void take_up(std::string const& name) {
  auto const folder = older() / name;
  scratch_directory const scratch;
  std::filesystem::copy(folder / "run", scratch / "run", std::filesystem::copy_options::recursive);
  auto const result = go<Recipe>(scratch / "run");
  CHECK(result.first_update == 7);
  auto const expected = keel::load_safetensors(folder / "final.safetensors").tensors;
  REQUIRE(result.parameters.size() == expected.size());
  for (std::size_t i = 0; i < expected.size(); ++i) {
    CHECK(at::allclose(result.parameters[i].cpu(), expected.at(std::to_string(i)), 1e-3, 1e-5));
  }
}

}  // namespace

TEST_CASE("writes run directories for later versions", "[.write]") {
  char const* const named = std::getenv("KEEL_WRITE_OLDER");
  if (named == nullptr) return;  // a tag that selects the file selects this case, too
  std::filesystem::path const folder = named;
  for (char const* const name : {"many_settings", "own_policies", "judged", "at_milestones"}) std::filesystem::create_directories(folder / name);
  write<many_settings>(folder / "many_settings");
  write<own_policies>(folder / "own_policies");
  write<judged>(folder / "judged");
  write<at_milestones>(folder / "at_milestones");
}

TEST_CASE("writes the batches of these runs", "[.write]") {
  char const* const named = std::getenv("KEEL_WRITE_OLDER");
  if (named == nullptr) return;
  keel::tensor_map all;
  for (std::int64_t index = 0; index <= evaluated_index; ++index) {
    if (index >= length * 2 && index != evaluated_index) continue;
    auto const [x, y] = make_pair_batch(static_cast<std::uint64_t>(index));
    all["x" + std::to_string(index)] = x.cpu();
    all["y" + std::to_string(index)] = y.cpu();
  }
  keel::save_safetensors(std::filesystem::path(named) / "batches.safetensors", all);
}

TEST_CASE("a run directory of keel 0.1, whose recipe is in words, is taken up with every setting compared") {
  take_up<many_settings>("0.1/many_settings");
  take_up<own_policies>("0.1/own_policies");
  take_up<judged>("0.1/judged");
  take_up<at_milestones>("0.1/at_milestones");
}
