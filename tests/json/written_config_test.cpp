// A recipe in a file as keel writes it, and in print.
#include "../rule/catch.hpp"
#include "../rule/random_config.hpp"

#include <algorithm>
#include <keel/json/load_config.hpp>
#include <keel/json/write_config.hpp>
#include <string>

using namespace keel::literals;

namespace {

using keel::config;
using keel::config_of;
using keel::recipe;

/// Policies and rungs of a program's own are types, which no file brings back.
bool is_for_a_file(config const& c) {
  for (int i = 0; i < c.oom.count; ++i) {
    auto const& rung = c.oom.rungs[i];
    if (rung.kind == keel::oom::rung_kind::custom || !rung.agreed || !rung.keeps_effective_batch) return false;
  }
  return c.clip.kind != keel::clip::kind::custom && c.schedule.kind != keel::schedule::kind::custom;
}

struct mine : keel::fills<keel::slot::clip> {
  static constexpr keel::clip::settings configured{.kind = keel::clip::kind::custom, .limit = 0.5};
};

struct many : recipe<keel::precision::fp16, keel::loss_scale::dynamic<keel::loss_scale::floor<4>>,
                     keel::clip::zscore<3, keel::clip::window<64>>, keel::nonfinite::rollback<10, keel::nonfinite::exceptions>,
                     keel::checkpoint::every<10_min, keel::checkpoint::keep_best, keel::checkpoint::by_evaluation>,
                     keel::schedule::multi_step<keel::schedule::milestones<100_steps, 200_steps>>,
                     keel::oom::ladder<keel::oom::halve_micro_batch, keel::oom::enable_recompute<keel::recompute::reentrant>,
                                       keel::oom::give_up, keel::oom::release_after<5_steps>>,
                     keel::evaluation::every<1_epochs>, keel::ema<0.99>, keel::model::has<keel::model::batch_norm>> {};

}  // namespace

TEST_CASE("what to_json writes, parse_config reads as the same configuration") {
  int compared = 0;
  for (std::uint64_t seed = 1; seed <= 60'000; ++seed) {
    keel_test::random_config random(seed, true);
    config const c = random.next(0.9);
    if (!is_for_a_file(c) || !keel::check(c).ok()) continue;
    std::string const written = keel::to_json(c).dump();
    CAPTURE(written);
    config read = keel::parse_config(written);
    read.run.device = c.run.device;  // which the trainer finds out, and no file says
    if (!(read == c)) FAIL("configuration " << seed << "\n" << keel::describe(c).c_str() << "but\n" << keel::describe(read).c_str());
    ++compared;
  }
  CHECK(compared > 5000);
  CHECK(keel::parse_config(keel::to_json(config_of<many>).dump()) == config_of<many>);
  CHECK(keel::parse_config(keel::to_json(config{}).dump()) == config{});
}

TEST_CASE("a written recipe names every setting of its policies, so that a later default changes nothing") {
  auto const written = keel::to_json(config_of<recipe<keel::checkpoint::every<500_steps>>>);
  CHECK(written["checkpoint"]["every_steps"]["interval"] == "500_steps");
  CHECK(written["checkpoint"]["every_steps"]["failures"] == 3);
  CHECK(written["clip"] == "none");
  CHECK(written["accumulate"]["count"] == 1);
}

TEST_CASE("a policy of a program's own is written by its name, and a file with it is rejected") {
  auto const written = keel::to_json(config_of<recipe<mine>>);
  CHECK(written["clip"]["custom"]["name"] == "mine");
  std::string sentence;
  try {
    keel::parse_config(written.dump());
  } catch (keel::config_error const& thrown) {
    sentence = thrown.what();
  }
  CHECK(sentence == "[E13] /clip is \"custom\", a custom policy, which a file cannot bring.");
}

TEST_CASE("a field may stand beside its policy's argument, and not in two places") {
  auto const clip = config_of<recipe<keel::clip::global_norm<2.0, keel::clip::order<1>>>>.clip;
  CHECK(keel::parse_config(R"({"clip": {"global_norm": 2.0, "order": 1}})").clip == clip);
  CHECK(keel::parse_config(R"({"clip": {"order": 1, "global_norm": 2.0}})").clip == clip);
  CHECK_THROWS_AS(keel::parse_config(R"({"clip": {"global_norm": {"limit": 2.0}, "order": 1}})"), keel::config_error);
  CHECK_THROWS_AS(keel::parse_config(R"({"clip": {"global_norm": 2.0, "value": 1}})"), keel::config_error);
  CHECK_THROWS_AS(keel::parse_config(R"({"clip": {"global_norm": 2.0, "windows": 1}})"), keel::config_error);
  std::string words;
  try {
    static_cast<void>(keel::parse_config(R"({"clip": {"global_norm": 2.0, "limit": 3}})"));
  } catch (keel::config_error const& thrown) {
    words = thrown.what();
  }
  CHECK(words == "[E13] /clip has limit twice: it is what stands at \"global_norm\".");
  CHECK_THROWS_AS(keel::parse_config(R"({"checkpoint": {"young_daly": ["asynchronous"], "keep": 3}})"), keel::config_error);
}

TEST_CASE("a recipe is printed whole, or with what it sets alone") {
  std::string const set = keel::describe<many>(keel::shown::set).c_str();
  CHECK(set ==
        "precision     fp16\n"
        "loss_scale    dynamic, floor 4\n"
        "clip          zscore 3, window 64 steps\n"
        "nonfinite     rollback 10, exceptions\n"
        "schedule      multi_step, milestones 100 200 steps\n"
        "checkpoint    every 600 s, keep_best, metric evaluation_loss\n"
        "oom           ladder halve_micro_batch, enable_recompute reentrant, give_up, release_after 5 steps\n"
        "ema           0.99\n"
        "evaluation    every 1 epochs\n"
        "model         batch_norm\n");
  std::string const all = keel::describe<many>().c_str();
  CHECK(std::count(all.begin(), all.end(), '\n') == keel::slot_count);
  CHECK(all.find("loss_scale    dynamic, initial 65536, growth 2, backoff 0.5, growth_interval 2000, hysteresis 1, floor 4, "
                 "raise_at_floor\n") != std::string::npos);
  CHECK(std::string(keel::describe(config{}, keel::shown::set).c_str()).empty());

  auto const printed = []<class Policy>(Policy*) {
    using slot = typename Policy::in_slot;
    return std::string(keel::detail::print_slot<slot>(config_of<recipe<Policy>>, keel::shown::set).c_str());
  };
  CHECK(printed(static_cast<keel::checkpoint::young_daly<keel::checkpoint::mean_time_between_failures<24_h>>*>(nullptr)) ==
        "young_daly 86400 s");
  CHECK(printed(static_cast<keel::evaluation::every<500_steps, keel::evaluation::stop_at<0.0>>*>(nullptr)) ==
        "every 500 steps, stop_at 0");
  CHECK(printed(static_cast<keel::clip::global_norm<0.0>*>(nullptr)) == "global_norm 0");
}

TEST_CASE("numbers are printed by the shortest digits that read back") {
  auto const printed = [](double number) { return std::string((keel::slot_text{} << number).c_str()); };
  CHECK(printed(0.1) == "0.1");
  CHECK(printed(3e-4) == "0.0003");
  CHECK(printed(1e-5) == "1e-05");
  CHECK(printed(65536.0) == "65536");
  CHECK(printed(-2.5) == "-2.5");
  CHECK(printed(1.0 / 3.0) == "0.3333333333333333");
  CHECK(printed(1.79e308) == "1.79e+308");
}
