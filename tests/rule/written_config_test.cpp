// A recipe in a file as keel writes it, in print, and in the words of keel 0.1.
#include "catch.hpp"
#include "random_config.hpp"

#include <algorithm>
#include <keel/config/older_words.hpp>
#include <keel/config/write_config.hpp>
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

template <class Slot>
typename Slot::settings from_words(std::string const& words) {
  return keel::detail::read_slot<Slot>(keel::detail::slot_from_words<Slot>(words), "");
}

template <class Policy>
bool was(std::string const& words) {
  CAPTURE(words);
  return from_words<typename Policy::in_slot>(words) == Policy::configured;
}

struct mine : keel::fills<keel::slot::clip> {
  static constexpr keel::clip::settings configured{.kind = keel::clip::kind::custom, .limit = 0.5};
};

struct many : recipe<keel::precision::fp16, keel::loss_scale::dynamic<keel::loss_scale::floor<4>>,
                     keel::clip::zscore<3, keel::clip::window<64>>, keel::nonfinite::rollback<10, keel::nonfinite::rank_local>,
                     keel::checkpoint::every<10_min, keel::checkpoint::keep_best, keel::checkpoint::by_evaluation>,
                     keel::schedule::multi_step<keel::schedule::milestones<100_steps, 200_steps>>,
                     keel::oom::ladder<keel::oom::halve_micro_batch, keel::oom::enable_recompute<keel::recompute::reentrant>,
                                       keel::oom::give_up, keel::oom::climb_back<5_steps>>,
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

TEST_CASE("a policy of a program's own is written by its name, and a file with it is refused") {
  auto const written = keel::to_json(config_of<recipe<mine>>);
  CHECK(written["clip"]["custom"]["name"] == "mine");
  std::string sentence;
  try {
    keel::parse_config(written.dump());
  } catch (keel::config_error const& thrown) {
    sentence = thrown.what();
  }
  CHECK(sentence == "[E13] /clip is \"custom\", a policy of a program's own, which a file cannot bring.");
}

TEST_CASE("a field may stand beside its policy's argument, and not in two places") {
  auto const clip = config_of<recipe<keel::clip::global_norm<2.0, keel::clip::order<1>>>>.clip;
  CHECK(keel::parse_config(R"({"clip": {"global_norm": 2.0, "order": 1}})").clip == clip);
  CHECK(keel::parse_config(R"({"clip": {"order": 1, "global_norm": 2.0}})").clip == clip);
  CHECK_THROWS_AS(keel::parse_config(R"({"clip": {"global_norm": {"limit": 2.0}, "order": 1}})"), keel::config_error);
  CHECK_THROWS_AS(keel::parse_config(R"({"clip": {"global_norm": 2.0, "value": 1}})"), keel::config_error);
  CHECK_THROWS_AS(keel::parse_config(R"({"clip": {"global_norm": 2.0, "windows": 1}})"), keel::config_error);
}

TEST_CASE("a recipe is printed whole, or with what it sets alone") {
  std::string const set = keel::describe<many>(keel::shown::set).c_str();
  CHECK(set ==
        "precision     fp16\n"
        "loss_scale    dynamic, floor 4\n"
        "clip          zscore 3, window 64 steps\n"
        "nonfinite     rollback 10, agreed false\n"
        "schedule      multi_step, milestones 100 200 steps\n"
        "checkpoint    every 600 s, keep_best, metric evaluation_loss\n"
        "oom           ladder halve_micro_batch, enable_recompute reentrant, give_up, climb_back 5 steps\n"
        "ema           0.99\n"
        "evaluation    every 1 epochs\n"
        "model         batch_norm\n");
  std::string const all = keel::describe<many>().c_str();
  CHECK(std::count(all.begin(), all.end(), '\n') == keel::slot_count);
  CHECK(all.find("loss_scale    dynamic, initial 65536, growth 2, backoff 0.5, growth_interval 2000, hysteresis 1, floor 4, "
                 "raise_at_floor\n") != std::string::npos);
  CHECK(std::string(keel::describe(config{}, keel::shown::set).c_str()).empty());
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

TEST_CASE("recipes in the words of keel 0.1 are the settings that they were") {
  CHECK(was<keel::precision::bf16>("bf16"));
  CHECK(was<keel::loss_scale::none>("none"));
  CHECK(was<keel::loss_scale::fixed<128.0>>("fixed 128"));
  CHECK(was<keel::loss_scale::dynamic<>>(
      "dynamic, initial 65536, growth 2 after 2000, backoff 0.5 after 1, floor 1, raise at floor"));
  CHECK(was<keel::loss_scale::dynamic<keel::loss_scale::initial<1e-3>, keel::loss_scale::growth_interval<7>,
                                      keel::loss_scale::hysteresis<3>, keel::loss_scale::at_floor_continue>>(
      "dynamic, initial 0.001, growth 2 after 7, backoff 0.5 after 3, floor 1, continue at floor"));
  CHECK(was<keel::accumulate<4, keel::micro_batch<2>, keel::global_batch<8>, keel::reduce_once>>(
      "4, micro_batch 2, global_batch 8, reduce_once"));
  CHECK(was<keel::clip::global_norm<0.5, keel::clip::order<keel::clip::infinity>>>("global_norm 0.5, order infinity"));
  CHECK(was<keel::clip::zscore<4.5, keel::clip::window<4>, keel::clip::at_most<2>>>("zscore 4.5, window 4, at_most 2"));
  CHECK(was<keel::nonfinite::raise>("raise"));
  CHECK(was<keel::nonfinite::raise_with<keel::nonfinite::rank_local>>("raise, rank local"));
  CHECK(was<keel::nonfinite::rollback<2, keel::nonfinite::lower_lr, keel::nonfinite::attempts<5>>>(
      "rollback 2, lower lr, attempts 5"));
  CHECK(was<keel::nonfinite::rollback<2, keel::nonfinite::change_nothing>>("rollback 2, change nothing, attempts 3"));
  CHECK(was<keel::spike::rollback<keel::spike::ratio<4>, keel::spike::loss_above<10>, keel::spike::gradient_norm_above<100>>>(
      "rollback, zscore 6, window 128, in a row 1, ratio 4, loss above 10, gradient norm above 100, attempts 3"));
  CHECK(was<keel::schedule::cosine<keel::schedule::warmup<100_steps>, keel::schedule::total<1000_steps>,
                                   keel::schedule::min_ratio<0.1>>>("cosine, warmup 100 steps, total 1000 steps, min_ratio 0.1"));
  CHECK(was<keel::schedule::multi_step<keel::schedule::milestones<2_steps, 7_steps>>>(
      "multi_step, lowered_by 0.1, milestones 2 7 steps"));
  CHECK(was<keel::shard::zero<3>>("zero 3"));
  CHECK(was<keel::attention::automatic>("automatic"));
  CHECK(was<keel::determinism::strict<7>>("strict 7"));
  CHECK(was<keel::objective::grpo<8>>("grpo group 8"));
  CHECK(was<keel::no_ema>("none"));
  CHECK(was<keel::ema<0.75, keel::ema_buffers>>("0.75, buffers"));
  CHECK(was<keel::evaluation::every<2_epochs, keel::evaluation::larger_is_better, keel::evaluation::averaged,
                                    keel::evaluation::monitor<"accuracy">, keel::evaluation::stop_at<0.9>>>(
      "every 2 epochs, stop_at 0.9, monitor accuracy, larger is better, of the average"));
  CHECK_THROWS_AS(from_words<keel::slot::clip>("no words of keel"), keel::config_error);
}
