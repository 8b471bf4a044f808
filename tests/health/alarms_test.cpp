// Every alarm of keel on both sides of its threshold, and none of them on runs that are well.
#include "../support.hpp"

#include <cmath>
#include <functional>
#include <keel/health/alarm_watch.hpp>
#include <keel/step/program_state.hpp>
#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <set>

using namespace keel_test;
using namespace keel::literals;

namespace {

/// A run as a function of its updates: each sets what it knows of update n, counted from 1.
struct imagined_run {
  std::function<void(std::int64_t, keel::update_metrics&)> update = [](std::int64_t, keel::update_metrics&) {};
  std::int64_t updates = 3000;
  std::int64_t warmup = 100;
  std::int64_t evaluate_every = 0;
  std::function<double(std::int64_t)> evaluation = [](std::int64_t) { return 0.0; };
};

/// The metrics of an ordinary update: a loss that falls to a level, norms about 1.
keel::update_metrics ordinary(std::int64_t n, std::mt19937_64& chance) {
  std::normal_distribution<double> noise(0.0, 0.05);
  keel::update_metrics m;
  m.update = m.attempt = n;
  m.loss = (1.0 + 2.0 * std::exp(-static_cast<double>(n) / 300.0)) * std::exp(noise(chance));
  m.gradient_norm = std::exp(2.0 * noise(chance));
  m.learning_rate = 1e-4;
  m.tokens = 1000;
  m.milliseconds = 100.0;
  m.times.total = 105.0;
  m.times.spent[static_cast<std::size_t>(keel::run_phase::data)] = 2.0;
  return m;
}

std::map<std::string, std::int64_t> alarms_in(imagined_run const& run, std::uint64_t seed = 1) {
  keel::alarm_watch watch(keel::detail::alarms_of<keel::health::sft>(), run.warmup);
  std::mt19937_64 chance(seed);
  keel::window_statistics losses;
  std::map<std::string, std::int64_t> found;
  std::vector<double> last;
  auto const note = [&](std::vector<keel::raised_alarm> const& raised, std::int64_t n) {
    for (auto const& one : raised) found.emplace(one.what->name, n);
  };
  for (std::int64_t n = 1; n <= run.updates; ++n) {
    keel::update_metrics m = ordinary(n, chance);
    run.update(n, m);
    last.push_back(m.loss);
    if (last.size() > 128) last.erase(last.begin());
    double sum = 0.0;
    for (double const one : last) sum += one;
    m.measured[keel::metrics::smoothed_loss{}] = sum / static_cast<double>(last.size());
    note(watch.update(m), n);
    if (run.evaluate_every > 0 && n % run.evaluate_every == 0) note(watch.evaluated(n, "", {{"", run.evaluation(n)}}), n);
  }
  return found;
}

using set_update = std::function<void(std::int64_t, keel::update_metrics&)>;
struct tried_alarm {
  char const* name;
  imagined_run raises;
  imagined_run stays_below;
};

imagined_run run_with(set_update update, std::int64_t updates = 1500) {
  imagined_run run;
  run.update = std::move(update);
  run.updates = updates;
  return run;
}
/// Deterministic noise of mean 0.
double ripple(std::int64_t n) { return 0.01 * std::sin(static_cast<double>(n) * 1.7); }

std::vector<tried_alarm> all_tried() {
  std::vector<tried_alarm> all;
  auto const pair = [&](char const* name, std::function<set_update(double)> const& with, double raises, double below,
                        std::int64_t updates = 1500) {
    all.push_back({name, run_with(with(raises), updates), run_with(with(below), updates)});
  };
  using M = keel::update_metrics;
  pair("loss_spikes", [](double factor) -> set_update {
    return [=](std::int64_t n, M& m) { m.loss = (1.0 + ripple(n)) * (n == 700 ? factor : 1.0) * std::exp(-0.001 * static_cast<double>(n)); };
  }, 2.2, 1.8);
  pair("loss_diverges", [](double rate) -> set_update {
    return [=](std::int64_t n, M& m) { m.loss = n < 700 ? 1.0 + ripple(n) : std::min(1e6, (1.0 + ripple(n)) * std::exp(rate * static_cast<double>(n - 700))); };
  }, 0.03, 0.0005);
  pair("loss_drifts_up", [](double rate) -> set_update {
    return [=](std::int64_t n, M& m) { m.loss = n < 700 ? 1.0 + ripple(n) : (1.0 + ripple(n)) * std::exp(rate * static_cast<double>(n - 700)); };
  }, 0.0012, 0.0003, 2500);
  pair("loss_is_stuck", [](double end) -> set_update {
    return [=](std::int64_t n, M& m) { m.loss = (1.0 + ripple(n)) * (end + (1.0 - end) * std::exp(-static_cast<double>(n) / 50.0)); };
  }, 0.98, 0.9);
  pair("loss_is_constant", [](double change) -> set_update {
    return [=](std::int64_t n, M& m) { m.loss = 1.0 - change * static_cast<double>(n % 7); };
  }, 0.0, 1e-5);
  pair("loss_oscillates", [](double factor) -> set_update {
    return [=](std::int64_t n, M& m) { m.loss = n % 2 == 0 ? 1.0 : factor; };
  }, 2.1, 1.9);
  pair("gradient_norm_spikes", [](double norm) -> set_update { return [=](std::int64_t n, M& m) { if (n == 500) m.gradient_norm = norm; }; },
       101.0, 99.0);
  pair("gradient_norm_is_high", [](double norm) -> set_update { return [=](std::int64_t, M& m) { m.gradient_norm = norm; }; }, 10.1, 9.9);
  pair("gradient_norm_oscillates", [](double factor) -> set_update {
    return [=](std::int64_t n, M& m) { m.gradient_norm = n % 2 == 0 ? 1.0 : factor; };
  }, 4.1, 3.9);
  pair("gradients_vanish", [](double norm) -> set_update {
    return [=](std::int64_t n, M& m) { m.gradient_norm = norm; m.loss = 2.0 + ripple(n); };
  }, 0.09, 0.11);
  pair("learning_rate_is_zero", [](double rate) -> set_update { return [=](std::int64_t n, M& m) { if (n > 500) m.learning_rate = rate; }; },
       0.0, 1e-12);
  pair("updates_are_skipped", [](double every) -> set_update {
    return [=](std::int64_t n, M& m) { m.skipped = static_cast<std::int64_t>(static_cast<double>(n) / every); };
  }, 9.0, 11.0);
  pair("loss_scale_collapses", [](double halvings) -> set_update {
    return [=](std::int64_t n, M& m) { m.loss_scale = 65536.0 * std::exp2(-std::min(halvings, std::max(0.0, static_cast<double>(n - 500) / 10.0))); };
  }, 8.0, 5.0);
  pair("rollbacks_repeat", [](double count) -> set_update {
    return [=](std::int64_t n, M& m) { m.rollbacks = std::min(static_cast<std::int64_t>(count), n / 400); };
  }, 4.0, 2.0, 3000);
  pair("waits_for_data", [](double share) -> set_update {
    return [=](std::int64_t, M& m) { m.times.spent[0] = share * m.times.total; };
  }, 0.31, 0.29);
  pair("loss_rises_in_warmup", [](double factor) -> set_update {
    return [=](std::int64_t n, M& m) { m.loss = (2.0 + ripple(n)) * (n <= 100 ? 1.0 + (factor - 1.0) * std::min(1.0, static_cast<double>(n) / 30.0) : factor * std::exp(-static_cast<double>(n - 100) / 100.0)); };
  }, 5.0, 1.8);
  pair("gradient_norm_rises_in_warmup", [](double norm) -> set_update {
    return [=](std::int64_t n, M& m) { if (n > 40 && n <= 60) m.gradient_norm = norm; };
  }, 120.0, 90.0);
  pair("gpu_is_hot", [](double degrees) -> set_update {
    return [=](std::int64_t, M& m) {
      m.gpu.emplace();
      m.gpu->temperature = degrees;
    };
  }, 88.0, 86.0);
  // Of evaluations.
  for (double const rise : {1.06, 1.04}) {
    imagined_run run = run_with([](std::int64_t n, M& m) { m.loss = std::exp(-static_cast<double>(n) / 800.0) * (1.0 + ripple(n)); });
    run.evaluate_every = 100;
    run.evaluation = [=](std::int64_t n) { return n <= 800 ? 2.0 - static_cast<double>(n) / 800.0 : 1.0 * rise; };
    if (rise > 1.05) {
      all.push_back({"overfits", run, {}});
    } else {
      all.back().stays_below = run;
    }
  }
  for (double const value : {static_cast<double>(NAN), 1.0}) {
    imagined_run run = run_with([](std::int64_t, M&) {}, 1000);
    run.evaluate_every = 100;
    run.evaluation = [=](std::int64_t n) { return n > 500 ? value : 1.0; };
    if (std::isnan(value)) {
      all.push_back({"evaluation_is_not_finite", run, {}});
    } else {
      all.back().stays_below = run;
    }
  }
  for (double const factor : {1.8, 1.3}) {
    imagined_run run = run_with([](std::int64_t n, M& m) { m.loss = std::exp(-static_cast<double>(n) / 2000.0) * (1.0 + ripple(n)); }, 2500);
    run.evaluate_every = 100;
    run.evaluation = [=](std::int64_t n) {
      double const trained = std::exp(-static_cast<double>(n) / 2000.0);
      return trained * (n < 1000 ? 1.05 : std::min(factor, 1.05 + static_cast<double>(n - 1000) / 500.0));
    };
    if (factor > 1.5) {
      all.push_back({"evaluation_is_far_off", run, {}});
    } else {
      all.back().stays_below = run;
    }
  }
  return all;
}

/// Ten kinds of runs that are well.
std::vector<std::pair<std::string, imagined_run>> healthy_runs() {
  std::vector<std::pair<std::string, imagined_run>> all;
  auto const add = [&](char const* name, set_update update, std::int64_t updates = 4000) {
    all.emplace_back(name, run_with(std::move(update), updates));
    all.back().second.evaluate_every = 200;
  };
  auto chance = std::make_shared<std::mt19937_64>(7);
  auto const noise = [chance](double deviation) { return std::exp(std::normal_distribution<double>(0.0, deviation)(*chance)); };
  auto const falls = [](std::int64_t n, double from, double to, double length) {
    return to + (from - to) * std::exp(-static_cast<double>(n) / length);
  };
  using M = keel::update_metrics;
  add("noisy", [=](std::int64_t n, M& m) { m.loss = falls(n, 4.0, 1.5, 800.0) * noise(0.3); m.gradient_norm = noise(0.5); });
  add("plateaued but fine", [=](std::int64_t n, M& m) { m.loss = falls(n, 3.0, 1.2, 200.0) * noise(0.05); });
  add("warm-up", [=](std::int64_t n, M& m) {
    m.learning_rate = 1e-4 * std::min(1.0, static_cast<double>(n) / 100.0);
    m.loss = falls(n, 10.8, 3.5, 300.0) * noise(0.03);
    m.gradient_norm = falls(n, 60.0, 0.8, 20.0) * noise(0.3);
  });
  add("a cosine's end", [=](std::int64_t n, M& m) {
    m.learning_rate = 5e-5 * (1.0 + std::cos(3.14159265358979 * static_cast<double>(n) / 4000.0));
    m.loss = falls(n, 3.0, 1.0, 900.0) * noise(0.05);
    m.gradient_norm = falls(n, 1.0, 0.15, 900.0) * noise(0.2);
  });
  add("restarts", [=](std::int64_t n, M& m) {
    double const at = static_cast<double>(n % 1000) / 1000.0;
    m.learning_rate = 5e-5 * (1.0 + std::cos(3.14159265358979 * at));
    m.loss = falls(n, 3.0, 1.0, 900.0) * (1.0 + 0.15 * (1.0 - at)) * noise(0.05);
    m.gradient_norm = (1.5 - at) * noise(0.2);
  });
  add("small batches", [=](std::int64_t n, M& m) {
    m.loss = falls(n, 2.3, 0.3, 600.0) * noise(0.4);
    m.gradient_norm = 2.0 * noise(0.5);
  });
  add("a curriculum", [=](std::int64_t n, M& m) {
    std::int64_t const stage = n / 1000;
    m.loss = falls(n % 1000, 1.5 + 0.8 * static_cast<double>(stage), 0.8 + 0.1 * static_cast<double>(stage), 200.0) * noise(0.05);
    m.gradient_norm = (n % 1000 < 100 ? 3.0 : 1.0) * noise(0.2);
    m.tokens = 1000 * (stage + 1);
  });
  add("fine-tuning", [=](std::int64_t n, M& m) {
    m.learning_rate = 2e-5 * (1.0 - static_cast<double>(n) / 4001.0);
    m.loss = falls(n, 1.4, 0.9, 500.0) * noise(0.15);
    m.gradient_norm = 0.6 * noise(0.3);
  });
  add("LoRA", [=](std::int64_t n, M& m) {
    m.loss = falls(n, 1.6, 1.1, 700.0) * noise(0.1);
    m.gradient_norm = 0.05 * noise(0.4);
  });
  add("long accumulation", [=](std::int64_t n, M& m) {
    m.loss = falls(n, 3.0, 1.8, 60.0) * noise(0.01);
    m.gradient_norm = 0.3 * noise(0.05);
    m.milliseconds = 30000.0;
  }, 300);
  // A tenth above what is learned; the noise of one update is not in it.
  for (auto& [name, run] : all) {
    run.evaluation = [update = run.update](std::int64_t n) {
      double sum = 0.0;
      for (int i = 0; i < 400; ++i) {
        keel::update_metrics m;
        update(n, m);
        sum += m.loss;
      }
      return 1.1 * sum / 400.0;
    };
    // What a curriculum is judged by stays the same.
    if (name == "a curriculum") run.evaluation = [falls](std::int64_t n) { return falls(n, 3.5, 1.0, 2000.0); };
  }
  return all;
}

std::string names_of(std::map<std::string, std::int64_t> const& alarms) {
  std::string all;
  for (auto const& [name, at] : alarms) all += (all.empty() ? "" : ", ") + name + " at " + std::to_string(at);
  return all;
}

}  // namespace

TEST_CASE("every alarm is raised above its threshold and not below") {
  std::set<std::string> tried;
  for (auto const& one : all_tried()) {
    CAPTURE(one.name);
    auto const raised = alarms_in(one.raises);
    CAPTURE(names_of(raised));
    CHECK(raised.count(one.name) == 1);
    auto const below = alarms_in(one.stays_below);
    CAPTURE(names_of(below));
    CHECK(below.count(one.name) == 0);
    tried.insert(one.name);
  }
  // None is left untried.
  for (auto const& one : keel::detail::alarms_of<keel::health::sft>()) {
    CAPTURE(one.what->name);
    CHECK(tried.count(one.what->name) == 1);
  }
}

TEST_CASE("no alarm on ten kinds of runs that are well") {
  for (auto const& [name, run] : healthy_runs()) {
    for (std::uint64_t const seed : {1U, 2U, 3U}) {
      CAPTURE(name, seed);
      auto const raised = alarms_in(run, seed);
      CAPTURE(names_of(raised));
      CHECK(raised.empty());
    }
  }
}

TEST_CASE("what is learned by heart raises nothing, nor does a loss below 0") {
  auto chance = std::make_shared<std::mt19937_64>(3);
  for (double const sign : {1.0, -1.0}) {
    imagined_run const run = run_with(
        [=](std::int64_t n, keel::update_metrics& m) {
          double const noise = std::exp(std::normal_distribution<double>(0.0, 1.5)(*chance));
          m.loss = sign * (2.0 * std::exp(-static_cast<double>(n) / 50.0) + 1e-5 * noise);
        },
        3000);
    auto const raised = alarms_in(run);
    CAPTURE(sign, names_of(raised));
    CHECK(raised.empty());
  }
}

TEST_CASE("an alarm alone has what its conditions need, and one about a value that never comes says so") {
  keel::alarm_watch watch({{&keel::health::evaluation_is_far_off::configured, keel::health::action::log}}, 0);
  std::mt19937_64 chance(1);
  bool is_raised = false;
  for (std::int64_t n = 1; n <= 3000; ++n) {
    keel::update_metrics m = ordinary(n, chance);
    m.measured[keel::metrics::smoothed_loss{}] = 1.0;
    watch.update(m);
    if (n % 100 == 0) is_raised = is_raised || !watch.evaluated(n, "validation", {{"", 1.0 + static_cast<double>(n) / 1000.0}}).empty();
  }
  CHECK(is_raised);
  static constexpr keel::health::alarm mistyped{.name = "mistyped", .conditions = {{"train/los", keel::health::is::above, 1.0, 5}}};
  keel::alarm_watch other({{&mistyped, keel::health::action::log}}, 0);
  REQUIRE(other.never_seen().size() == 1);
  CHECK(other.never_seen()[0].second == "train/los");
}

TEST_CASE("before the end of the warm-up only alarms about the warm-up are raised") {
  imagined_run const run = run_with(
      [](std::int64_t n, keel::update_metrics& m) {
        m.gradient_norm = n <= 100 ? 50.0 : 1.0;
        m.loss = 2.0 + (n <= 100 ? static_cast<double>(n % 2) * 3.0 : 0.0) - 0.0005 * static_cast<double>(n);
      },
      150);
  auto const raised = alarms_in(run);
  CAPTURE(names_of(raised));
  CHECK(raised.empty());
}

TEST_CASE("an alarm is raised once for as long as it holds, and again after it did not") {
  keel::alarm_watch watch(keel::detail::alarms_of<keel::health::sft>(), 0);
  std::mt19937_64 chance(1);
  std::vector<std::int64_t> raised;
  for (std::int64_t n = 1; n <= 1000; ++n) {
    keel::update_metrics m = ordinary(n, chance);
    if ((n > 100 && n <= 300) || (n > 600 && n <= 800)) m.gradient_norm = 20.0;
    for (auto const& one : watch.update(m)) {
      if (std::string(one.what->name) == "gradient_norm_is_high") raised.push_back(n);
    }
  }
  REQUIRE(raised.size() == 2);
  CHECK((raised[0] > 100 && raised[0] <= 150));
  CHECK((raised[1] > 600 && raised[1] <= 650));
}

TEST_CASE("alarms are those of a run that was not resumed, wherever it was") {
  auto const make = [] { return keel::alarm_watch(keel::detail::alarms_of<keel::health::sft>(), 50); };
  auto const metrics = [](std::int64_t n) {
    std::mt19937_64 chance(static_cast<std::uint64_t>(n));
    keel::update_metrics m = ordinary(n, chance);
    if (n > 300) m.gradient_norm = 15.0;
    if (n == 200) m.loss *= 3.0;
    m.measured[keel::metrics::smoothed_loss{}] = 1.0;
    return m;
  };
  auto const names = [](std::vector<keel::raised_alarm> const& raised) {
    std::string all;
    for (auto const& one : raised) all += one.what->name + (":" + std::to_string(one.update)) + " ";
    return all;
  };
  auto whole = make();
  std::string wanted;
  for (std::int64_t n = 1; n <= 400; ++n) wanted += names(whole.update(metrics(n)));
  CHECK(wanted.find("loss_spikes") != std::string::npos);
  for (std::int64_t const stop : {1, 49, 51, 199, 200, 203, 300, 325, 399}) {
    CAPTURE(stop);
    auto first = make();
    std::string found;
    for (std::int64_t n = 1; n <= stop; ++n) found += names(first.update(metrics(n)));
    nlohmann::json object;
    keel::tensor_map tensors;
    keel::state_writer writer(object, tensors);
    first.visit(writer);
    auto second = make();
    auto const read = nlohmann::json::parse(object.dump());
    keel::state_reader reader(read, tensors, "a checkpoint");
    second.visit(reader);
    for (std::int64_t n = stop + 1; n <= 400; ++n) found += names(second.update(metrics(n)));
    CHECK(found == wanted);
  }
}

namespace {

struct loss_is_low {
  static constexpr keel::health::alarm configured{.name = "loss_is_low",
                                                  .conditions = {{"train/loss", keel::health::is::below, 1e9, 5}},
                                                  .symptom = "the loss is low",
                                                  .causes = {"the test"},
                                                  .fixes = {"nothing"}};
};
struct own_is_high {
  static constexpr keel::health::alarm configured{.name = "own_is_high",
                                                  .conditions = {{"own", keel::health::is::above, 0.5, 3}},
                                                  .part = keel::health::part::warmup,
                                                  .symptom = "the program's value is high"};
};
namespace health = keel::health;
struct stops : keel::recipe<health::watch<health::sft, health::then<loss_is_low, health::stop>>> {};
struct saves : keel::recipe<health::watch<health::then<own_is_high, health::checkpoint>>, keel::checkpoint::every<1000_steps>> {};
struct notes : keel::recipe<health::watch<health::then<loss_is_low, health::incident>>> {};

template <class Recipe>
keel::outcome train(std::filesystem::path const& directory, std::vector<std::string>* alarms = nullptr) {
  auto const model = make_small(3);
  torch::optim::SGD optimizer(model->parameters(), 0.01);
  keel::trainer<Recipe> run{model, optimizer, {.run_directory = directory, .updates = 60, .console = nullptr}};
  run.on([&](keel::event::alarm_raised const& e) {
    if (alarms != nullptr) alarms->push_back(e.alarm.what->name + (" " + std::to_string(e.update)));
  });
  keel::metric<keel::reduce::mean> const own("own");
  run.on([&](keel::event::update_end const&) { run.log(own.reduced(keel::world_of_one{}, 1.0)); });
  std::vector<pair_batch> batches;
  for (std::uint64_t i = 0; i < 60; ++i) batches.push_back(make_pair_batch(i));
  return run.fit(batches, mean_squared_error(model));
}

nlohmann::json alarm_event(std::filesystem::path const& run) {
  for (std::string const& line : read_lines(run / "events.jsonl")) {
    auto const event = nlohmann::json::parse(line);
    if (event["event"] == "alarm") return event;
  }
  return {};
}

}  // namespace

TEST_CASE("an alarm that is bound to stop ends the run, and the record says what to do") {
  scratch_directory const directory;
  std::vector<std::string> alarms;
  auto const ended = train<stops>(directory / "run", &alarms);
  CHECK(ended.stopped() != nullptr);
  REQUIRE(alarms.size() == 1);
  // Five values after the twenty updates of every run's beginning.
  CHECK(alarms[0] == "loss_is_low 25");
  auto const event = alarm_event(directory / "run");
  CHECK(event["alarm"] == "loss_is_low");
  CHECK(event["action"] == "stop");
  CHECK(event["causes"] == nlohmann::json::array({"the test"}));
  CHECK(event["fixes"] == nlohmann::json::array({"nothing"}));
}

TEST_CASE("an alarm about a value of the program's is raised, and saves a checkpoint where the recipe says so") {
  scratch_directory const directory;
  train<saves>(directory / "run");
  CHECK(alarm_event(directory / "run")["update"] == 3);
  bool is_saved = false;
  for (std::string const& line : read_lines(directory / "run/events.jsonl")) {
    auto const event = nlohmann::json::parse(line);
    is_saved = is_saved || (event["event"] == "checkpoint" && event["update"] == 3);
  }
  CHECK(is_saved);
}

TEST_CASE("an incident has the values that raised its alarm") {
  scratch_directory const directory;
  train<notes>(directory / "run");
  std::ifstream file(directory / "run/incident-loss_is_low-25.json");
  REQUIRE(file.good());
  auto const incident = nlohmann::json::parse(file);
  CHECK(incident["windows"]["train/loss"].size() == 5);
}

TEST_CASE("what updates cost can be bound to an action") {
  keel::alarm_watch watch({{&health::slows_down::configured, health::action::stop}, {&health::memory_grows::configured, health::action::log}}, 0);
  std::mt19937_64 chance(1);
  std::map<std::string, std::int64_t> raised;
  for (std::int64_t n = 1; n <= 200; ++n) {
    // Memory that grows during the warm-up is said after it.
    watch.event("event/slowdown", n == 100);
    watch.event("event/memory_grows", n >= 10);
    for (auto const& one : watch.update(ordinary(n, chance))) CHECK(raised.emplace(one.what->name, n).second);
  }
  CHECK(raised == std::map<std::string, std::int64_t>{{"slows_down", 100}, {"memory_grows", 22}});
  CHECK(watch.never_seen().empty());
}

TEST_CASE("an incident without a run directory is an error that says what to name") {
  try {
    train<notes>({});
    FAIL("no error");
  } catch (keel::error const& thrown) {
    CHECK(std::string(thrown.what()).find("options.run_directory is empty") != std::string::npos);
    CHECK(std::string(thrown.what()).find("E12") != std::string::npos);
  }
}

TEST_CASE("an alarm that can never be raised is an error that names it") {
  static constexpr health::alarm empty{.name = "empty"};
  static constexpr health::alarm endless{.name = "endless", .conditions = {{"train/loss", health::is::above, 1.0, 100000}}};
  for (health::alarm const* const one : {&empty, &endless}) {
    try {
      keel::alarm_watch const watch({{one, health::action::log}}, 0);
      FAIL("no error");
    } catch (keel::error const& thrown) {
      CHECK(std::string(thrown.what()).find(one->name) != std::string::npos);
      CHECK(std::string(thrown.what()).find("E12") != std::string::npos);
    }
  }
}
