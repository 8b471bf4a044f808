#include "../support.hpp"

#include <keel/trainer/resume.hpp>

using namespace keel_test;
using namespace keel::literals;

namespace {

/// What a resume finds different, of a slot that a checkpoint of 0.1 has in these words.
template <class Policy>
std::string other(std::string const& words) {
  return keel::detail::other_settings<typename Policy::in_slot>(nlohmann::json(words), keel::config_of<keel::recipe<Policy>>);
}
template <class Policy>
bool same(std::string const& words) {
  CAPTURE(words);
  return other<Policy>(words).empty();
}

template <int A, int B>
struct mine : keel::fills<keel::slot::clip> {
  static constexpr keel::clip::settings configured{.kind = keel::clip::kind::custom, .limit = 0.5, .at_most = 2.0};
};
struct my_schedule : keel::fills<keel::slot::schedule> {
  static constexpr keel::schedule::settings configured{.kind = keel::schedule::kind::custom, .total = 1000};
};

}  // namespace

TEST_CASE("recipes in the words of keel 0.1 are the same where every setting is, and not where one is not") {
  CHECK(same<keel::precision::bf16>("bf16"));
  CHECK(other<keel::precision::bf16>("fp16") == "fp16");
  CHECK(same<keel::loss_scale::none>("none"));
  CHECK(same<keel::loss_scale::fixed<131072.0>>("fixed 131072"));
  CHECK(same<keel::loss_scale::fixed<100000.0>>("fixed 1e+05"));
  CHECK(same<keel::loss_scale::dynamic<keel::loss_scale::initial<1e-3>, keel::loss_scale::growth_interval<7>,
                                       keel::loss_scale::hysteresis<3>, keel::loss_scale::at_floor_continue>>(
      "dynamic, initial 0.001, growth 2 after 7, backoff 0.5 after 3, floor 1, continue at floor"));
  CHECK_FALSE(same<keel::loss_scale::dynamic<>>(
      "dynamic, initial 65536, growth 2 after 2000, backoff 0.5 after 1, floor 1, continue at floor"));
  CHECK(same<keel::accumulate<4, keel::micro_batch<2>, keel::global_batch<8>, keel::reduce_once>>(
      "4, micro_batch 2, global_batch 8, reduce_once"));
  CHECK_FALSE(same<keel::accumulate<4>>("reduce 4"));
  CHECK(same<keel::clip::global_norm<0.5, keel::clip::order<keel::clip::infinity>>>("global_norm 0.5, order infinity"));
  CHECK_FALSE(same<keel::clip::global_norm<0.5>>("global_norm 0.5, order infinity"));
  CHECK(same<keel::nonfinite::raise_with<keel::nonfinite::rank_local>>("raise, rank local"));
  CHECK(same<keel::nonfinite::rollback<2, keel::nonfinite::lower_lr, keel::nonfinite::attempts<5>>>(
      "rollback 2, lower lr, attempts 5"));
  CHECK_FALSE(same<keel::nonfinite::skip<3>>("skip 3 banana 7"));
  CHECK(same<keel::spike::rollback<keel::spike::ratio<4>, keel::spike::loss_above<10>, keel::spike::gradient_norm_above<100>>>(
      "rollback, zscore 6, window 128, in a row 1, ratio 4, loss above 10, gradient norm above 100, attempts 3"));
  CHECK(same<keel::schedule::one_cycle<keel::schedule::start_ratio<0.0>>>("one_cycle, warmup_ratio 0.3"));
  CHECK_FALSE(same<keel::schedule::one_cycle<>>("one_cycle, warmup_ratio 0.3"));
  CHECK(same<keel::schedule::multi_step<keel::schedule::milestones<2_steps, 7_steps>>>(
      "multi_step, lowered_by 0.1, milestones 2 7 steps"));
  CHECK(same<keel::shard::zero<3>>("zero 3"));
  CHECK(same<keel::determinism::strict<7>>("strict 7"));
  CHECK(same<keel::objective::grpo<8>>("grpo group 8"));
  CHECK(same<keel::no_ema>("none"));
  CHECK(same<keel::ema<0.75, keel::ema_buffers>>("0.75, buffers"));
  CHECK(same<keel::evaluation::every<2_epochs, keel::evaluation::larger_is_better, keel::evaluation::averaged,
                                     keel::evaluation::monitor<"a, b">, keel::evaluation::stop_at<0.9>>>(
      "every 2 epochs, stop_at 0.9, monitor a, b, larger is better, of the average"));
}

TEST_CASE("policies of a program's own are compared by all their settings and by their names, where these were written") {
  CHECK(same<mine<1, 2>>("custom 0.5, at_most 2, mine<1, 2>"));
  CHECK(same<mine<1, 2>>("custom 0.5, at_most 2"));
  CHECK_FALSE(same<mine<1, 2>>("custom 0.5, at_most 2, mine<1, 3>"));
  CHECK_FALSE(same<mine<1, 2>>("custom 0.5, mine<1, 2>"));
  CHECK(same<my_schedule>("custom, total 1000 steps, my_schedule"));
  CHECK_FALSE(same<my_schedule>("custom, my_schedule"));

  auto const now = keel::detail::slot_to_json<keel::slot::clip>(keel::config_of<keel::recipe<mine<1, 2>>>);
  auto const found = [](nlohmann::json const& saved) {
    return keel::detail::other_settings<keel::slot::clip>(saved, keel::config_of<keel::recipe<mine<1, 2>>>);
  };
  CHECK(found(now).empty());
  auto other_limit = now;
  other_limit["custom"]["at_most"] = 1.0;
  CHECK_FALSE(found(other_limit).empty());
  auto other_name = now;
  other_name["custom"]["name"] = "another";
  CHECK_FALSE(found(other_name).empty());
}

TEST_CASE("whatever stands in the place of a recipe is another recipe, in words") {
  auto const found = [](nlohmann::json const& saved) {
    return keel::detail::other_settings<keel::slot::spike>(saved, keel::config_of<keel::recipe<keel::spike::skip<>>>);
  };
  for (char const* const text : {"null", "[]", "{}", "5", "true", "\"\"", "\"skip\"", R"({"custom": null})", R"({"custom": {}})",
                                 R"({"skip": ["agreed"], "window": 5})", R"({"skip": {"zscore": "six"}})", R"({"skip": 6, "zscore": 3})",
                                 R"({"rollback": {}})", R"({"skip": {"zscore": 6, "unknown": 1}})"}) {
    CAPTURE(text);
    CHECK_FALSE(found(nlohmann::json::parse(text)).empty());
  }
  CHECK(found(nlohmann::json::parse(R"({"skip": 6})")).empty());
  CHECK(keel::detail::saved_recipe(nlohmann::json::parse(R"({"recipe": []})")).empty());
}
