// A requested checkpoint and a scheduled one of the same update, and where a rollback then leads.
#include "../support.hpp"

#include <csignal>
#include <range/v3/view/iota.hpp>
#include <range/v3/view/transform.hpp>

using namespace keel_test;
using namespace keel::literals;

namespace fs = std::filesystem;

namespace {

struct recipe : keel::recipe<keel::nonfinite::rollback<3, keel::nonfinite::reseed>, keel::checkpoint::every<4_steps, keel::checkpoint::keep<3>>,
                             keel::determinism::seeded<3>> {};

enum class asks { nothing, for_a_save_by_signal, for_a_save_by_the_program, for_a_stop };

struct result {
  std::vector<at::Tensor> parameters;
  std::vector<std::string> metrics;
};

/// Windows 4 and 5 are bad, so that a request after the first of them finds the scheduled checkpoint of update 4; windows 9 to 11
/// are bad, and the run goes back.
result go(fs::path const& directory, asks what, bool goes_on = false) {
  keel::seed<recipe>();
  auto const model = std::make_shared<small_module>(0.3);
  torch::optim::AdamW optimizer(model->parameters(), 0.02);
  keel::trainer<recipe> run{model, optimizer, quiet({.run_directory = directory, .updates = 16})};
  int windows = 0;
  run.on([&](keel::event::update_end const&) {
    if (goes_on || ++windows != 5) return;
    if (what == asks::for_a_save_by_signal) std::raise(SIGUSR2);
    if (what == asks::for_a_save_by_the_program) run.request_save();
    if (what == asks::for_a_stop) run.request_stop();
  });
  auto const batches = [](std::int64_t epoch) {
    return ranges::views::iota(100 * epoch, 100 * epoch + 100) | ranges::views::transform([](std::int64_t i) { return keel::row_numbers{i}; });
  };
  auto const loss_of = [&](keel::row_numbers const& rows) {
    at::Tensor const loss = mean_squared_error(model)(make_pair_batch(static_cast<std::uint64_t>(rows[0])));
    bool const always_bad = rows[0] == 4 || rows[0] == 5;
    bool const bad_once = rows[0] >= 7 && rows[0] <= 9 && run.rollbacks() == 0;
    return always_bad || bad_once ? loss * NAN : loss;
  };
  run.fit(batches, loss_of);
  std::vector<std::string> lines = read_lines(directory / "metrics.jsonl");
  for (std::string& line : lines) line.resize(std::min(line.find("\"ms\":"), line.size()));
  return {copies_of(model->parameters()), lines};
}

}  // namespace

TEST_CASE("a save, a signal or a stop after a skipped update leaves the scheduled checkpoint of that update as it was, and a rollback to it the same bits") {
  scratch_directory const directory;
  auto const alone = go(directory / "alone", asks::nothing);
  for (asks const what : {asks::for_a_save_by_signal, asks::for_a_save_by_the_program}) {
    fs::remove_all(directory / "run");
    auto const found = go(directory / "run", what);
    CHECK(found.metrics == alone.metrics);
    CHECK(same_bits(found.parameters, alone.parameters));
  }
  fs::remove_all(directory / "run");
  go(directory / "run", asks::for_a_stop);
  CHECK(fs::exists(directory / "run/checkpoints/step-000000004/manifest.json"));
  CHECK(fs::exists(directory / "run/checkpoints/step-000000004-requested/manifest.json"));
  auto const found = go(directory / "run", asks::nothing, true);
  CHECK(found.metrics == alone.metrics);
  CHECK(same_bits(found.parameters, alone.parameters));
}

TEST_CASE("options.resume_at takes the scheduled checkpoint of an update, and the requested one beside it steps aside") {
  scratch_directory const directory;
  go(directory / "run", asks::for_a_stop);
  auto const model = make_small();
  struct constant : keel::recipe<keel::nonfinite::rollback<3, keel::nonfinite::reseed>, keel::checkpoint::every<4_steps, keel::checkpoint::keep<3>>,
                                 keel::determinism::seeded<3>> {};
  torch::optim::AdamW optimizer(model->parameters(), 0.01);
  keel::trainer<constant> run{model, optimizer, quiet({.run_directory = directory / "run", .updates = 16, .resume_at = 4})};
  CHECK(run.resume());
  CHECK(run.updates() == 4);
  CHECK(fs::exists(directory / "run/checkpoints/abandoned-step-000000004-requested"));
}

TEST_CASE("a second rollback to an older checkpoint lowers the rate of the first one again") {
  for (bool const with_schedule : {false, true}) {
    struct constant : keel::recipe<keel::nonfinite::rollback<3, keel::nonfinite::lower_lr, keel::nonfinite::attempts<4>>,
                                   keel::checkpoint::every<4_steps, keel::checkpoint::keep<5>>, keel::determinism::seeded<3>> {};
    struct scheduled : keel::recipe<keel::nonfinite::rollback<3, keel::nonfinite::lower_lr, keel::nonfinite::attempts<4>>, keel::schedule::linear<>,
                                    keel::checkpoint::every<4_steps, keel::checkpoint::keep<5>>, keel::determinism::seeded<3>> {};
    auto const train = [](auto type, fs::path const& directory) {
      using chosen = typename decltype(type)::type;
      auto const model = make_small();
      torch::optim::SGD optimizer(model->parameters(), 0.5);
      keel::trainer<chosen> run{model, optimizer, quiet({.run_directory = directory, .updates = 16})};
      // The same three windows fail until the rate is low enough: a threshold between a quarter and a half.
      auto const highest = [&] { return run.learning_rate() / (1.0 - (std::is_same_v<chosen, scheduled> ? static_cast<double>(run.updates()) / 16 : 0.0)); };
      std::vector<double> rates;
      run.on([&](keel::event::rolled_back const& e) { rates.push_back(static_cast<double>(e.to)); });
      auto const batches = [](std::int64_t epoch) {
        return ranges::views::iota(100 * epoch, 100 * epoch + 100) | ranges::views::transform([](std::int64_t i) { return keel::row_numbers{i}; });
      };
      run.fit(batches, [&](keel::row_numbers const& rows) {
        at::Tensor const loss = mean_squared_error(model)(make_pair_batch(static_cast<std::uint64_t>(rows[0])));
        return rows[0] >= 9 && rows[0] <= 11 && highest() > 0.1251 ? loss * NAN : loss;
      });
      return std::pair(rates, highest());
    };
    scratch_directory const directory;
    auto const [to, rate] = with_schedule ? train(std::type_identity<scheduled>(), directory / "run") : train(std::type_identity<constant>(), directory / "run");
    REQUIRE(to.size() == 2);
    // The second time nothing was saved since, so the run goes back further.
    CHECK(to[1] < to[0]);
    if (!with_schedule) CHECK(rate == 0.125);
  }
}
