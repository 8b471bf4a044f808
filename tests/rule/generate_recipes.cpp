// Writes random recipes twice: as types for the compiler and as JSON for the run-time door. generate_recipes COUNT SEED > FILE
#include <cstdlib>
#include <iostream>
#include <random>
#include <string>
#include <utility>
#include <vector>

namespace {

struct spelling {
  char const* type;
  char const* json;
};

struct slot_spellings {
  char const* name;
  std::vector<spelling> policies;
};

std::vector<slot_spellings> const slots = {
    {"precision",
     {{"keel::precision::bf16", "\"bf16\""}, {"keel::precision::fp16", "\"fp16\""}, {"keel::precision::fp32", "\"fp32\""}}},
    {"loss_scale",
     {{"keel::loss_scale::dynamic<>", "\"dynamic\""},
      {"keel::loss_scale::fixed<1024.0>", "{\"fixed\": 1024}"},
      {"keel::loss_scale::fixed<0.0>", "{\"fixed\": 0}"},
      {"keel::loss_scale::dynamic<keel::loss_scale::floor<1e-40>, keel::loss_scale::initial<2.0>>",
       "{\"dynamic\": {\"floor\": 1e-40, \"initial\": 2}}"},
      {"keel::loss_scale::dynamic<keel::loss_scale::growth<1.0>>", "{\"dynamic\": {\"growth\": 1}}"}}},
    {"accumulate",
     {{"keel::accumulate<4>", "4"},
      {"keel::accumulate<0>", "0"},
      {"keel::accumulate<2, keel::micro_batch<8>, keel::global_batch<16>>",
       "{\"count\": 2, \"micro_batch\": 8, \"global_batch\": 16}"},
      {"keel::accumulate<2, keel::micro_batch<8>, keel::global_batch<17>>",
       "{\"count\": 2, \"micro_batch\": 8, \"global_batch\": 17}"},
      {"keel::accumulate<2, keel::reduce_once>", "{\"count\": 2, \"reduce_once\": true}"}}},
    {"clip",
     {{"keel::clip::global_norm<1.0>", "{\"global_norm\": 1.0}"},
      {"keel::clip::value<0.5>", "{\"value\": 0.5}"},
      {"keel::clip::adaptive<0.01>", "{\"adaptive\": 0.01}"},
      {"keel::clip::zscore<3.0, keel::clip::window<64>, keel::clip::at_most<2.0>>",
       "{\"zscore\": {\"limit\": 3, \"window\": \"64_steps\", \"at_most\": 2}}"},
      {"keel::clip::global_norm<1.0, keel::clip::order<1>>", "{\"global_norm\": {\"limit\": 1, \"order\": 1}}"},
      {"keel::clip::global_norm<1.0, keel::clip::order<keel::clip::infinity>>",
       "{\"global_norm\": {\"limit\": 1, \"order\": \"infinity\"}}"},
      {"keel::clip::global_norm<1.0, keel::clip::order<0.5>>", "{\"global_norm\": {\"limit\": 1, \"order\": 0.5}}"},
      {"keel::clip::global_norm<-1.0>", "{\"global_norm\": -1}"}}},
    {"nonfinite",
     {{"keel::nonfinite::skip<10>", "{\"skip\": 10}"},
      {"keel::nonfinite::warn<0>", "{\"warn\": 0}"},
      {"keel::nonfinite::rollback<10>", "{\"rollback\": 10}"},
      {"keel::nonfinite::rollback<2000, keel::nonfinite::lower_lr, keel::nonfinite::attempts<5>>",
       "{\"rollback\": {\"limit\": 2000, \"change\": \"lower_lr\", \"attempts\": 5}}"},
      {"keel::nonfinite::skip<3, keel::nonfinite::exceptions>", "{\"skip\": {\"limit\": 3, \"exceptions\": true}}"}}},
    {"spike",
     {{"keel::spike::skip<>", "\"skip\""},
      {"keel::spike::rollback<keel::spike::window<1000>>", "{\"rollback\": {\"window\": \"1000_steps\"}}"},
      {"keel::spike::skip<keel::spike::in_a_row<3>>", "{\"skip\": {\"limit\": 3}}"},
      {"keel::spike::skip<keel::spike::ratio<4.0>, keel::spike::loss_above<5.0>, keel::spike::gradient_norm_above<100.0>>",
       "{\"skip\": {\"ratio\": 4, \"loss_above\": 5, \"gradient_norm_above\": 100}}"},
      {"keel::spike::rollback<keel::spike::ratio<0.5>>", "{\"rollback\": {\"ratio\": 0.5}}"},
      {"keel::spike::skip<keel::spike::zscore<0.0>>", "{\"skip\": {\"zscore\": 0}}"}}},
    {"schedule",
     {{"keel::schedule::one_cycle<keel::schedule::start_ratio<0.1>>", "{\"one_cycle\": {\"start_ratio\": 0.1}}"},
      {"keel::schedule::plateau<keel::schedule::patience<50_steps>, keel::schedule::threshold<0.01>>",
       "{\"plateau\": {\"patience\": \"50_steps\", \"threshold\": 0.01}}"},
      {"keel::schedule::cosine<keel::schedule::warmup<100_steps>>", "{\"cosine\": {\"warmup\": 100}}"},
      {"keel::schedule::linear<keel::schedule::min_ratio<1.1>>", "{\"linear\": {\"min_ratio\": 1.1}}"},
      {"keel::schedule::warmup_stable_decay<>", "\"warmup_stable_decay\""},
      {"keel::schedule::plateau<keel::schedule::evaluations<3>>", "{\"plateau\": {\"evaluations\": 3}}"},
      {"keel::schedule::polynomial<keel::schedule::power<2.0>>", "{\"polynomial\": {\"power\": 2}}"},
      {"keel::schedule::inverse_root<keel::schedule::warmup<4000_steps>>", "{\"inverse_root\": {\"warmup\": \"4000_steps\"}}"},
      {"keel::schedule::inverse_root<>", "\"inverse_root\""},
      {"keel::schedule::exponential<keel::schedule::lowered_by<0.99>>", "{\"exponential\": {\"lowered_by\": 0.99}}"},
      {"keel::schedule::step_decay<keel::schedule::interval<100_steps>, keel::schedule::lowered_by<0.5>>",
       "{\"step_decay\": {\"interval\": 100, \"lowered_by\": 0.5}}"},
      {"keel::schedule::step_decay<keel::schedule::power<2.0>>", "{\"step_decay\": {\"power\": 2}}"},
      {"keel::schedule::multi_step<keel::schedule::milestones<100_steps, 200_steps>>",
       "{\"multi_step\": {\"milestones\": [100, \"200_steps\"]}}"},
      {"keel::schedule::multi_step<keel::schedule::milestones<1_steps, 2_steps, 3_steps, 4_steps, 5_steps, 6_steps, 7_steps, "
       "8_steps, 9_steps>>",
       "{\"multi_step\": {\"milestones\": [1, 2, 3, 4, 5, 6, 7, 8, 9]}}"},
      {"keel::schedule::warm_restarts<keel::schedule::cycle<100_steps>, keel::schedule::cycle_factor<2>>",
       "{\"warm_restarts\": {\"cycle\": 100, \"cycle_factor\": 2}}"},
      {"keel::schedule::constant_with<keel::schedule::min_lr<1e-5>>", "{\"constant\": {\"min_lr\": 1e-5}}"},
      {"keel::schedule::cosine<keel::schedule::total<100_steps>, keel::schedule::warmup<100_steps>, "
       "keel::schedule::warmup_ratio<0.1>>",
       "{\"cosine\": {\"total\": 100, \"warmup\": 100, \"warmup_ratio\": 0.1}}"}}},
    {"checkpoint",
     {{"keel::checkpoint::every<500_steps>", "{\"every_steps\": 500}"},
      {"keel::checkpoint::every<10_min, keel::checkpoint::keep<1>, keel::checkpoint::asynchronous>",
       "{\"every_seconds\": {\"interval\": \"10_min\", \"keep\": 1, \"asynchronous\": true}}"},
      {"keel::checkpoint::young_daly<>", "\"young_daly\""},
      {"keel::checkpoint::every<100_steps, keel::checkpoint::keep_every<1000_steps>, keel::checkpoint::asynchronous, "
       "keel::checkpoint::drop_when_busy, keel::checkpoint::failures<1>>",
       "{\"every_steps\": {\"interval\": 100, \"keep_every\": 1000, \"asynchronous\": true, \"drop_when_busy\": true, \"failures\": 1}}"},
      {"keel::checkpoint::every<10_min, keel::checkpoint::on_best, keel::checkpoint::by_evaluation_loss>",
       "{\"every_seconds\": {\"interval\": \"10_min\", \"keep_best\": true, \"on_best\": true, \"metric\": \"evaluation_loss\"}}"},
      {"keel::checkpoint::young_daly<keel::checkpoint::mean_time_between_failures<24_h>>", "{\"young_daly\": \"24_h\"}"},
      {"keel::checkpoint::every<100_steps, keel::checkpoint::keep_best, keel::checkpoint::by_evaluation_loss>",
       "{\"every_steps\": {\"interval\": 100, \"keep_best\": true, \"metric\": \"evaluation_loss\"}}"}}},
    {"recompute", {{"keel::recompute::reentrant", "\"reentrant\""}, {"keel::recompute::non_reentrant", "\"non_reentrant\""}}},
    {"shard",
     {{"keel::shard::zero<3>", "{\"zero\": 3}"},
      {"keel::shard::zero<2>", "{\"zero\": 2}"},
      {"keel::shard::replicate", "\"replicate\""}}},
    {"offload", {{"keel::offload::optimizer", "\"optimizer\""}}},
    {"attention", {{"keel::attention::fused", "\"fused\""}, {"keel::attention::math", "\"math\""}}},
    {"oom",
     {{"keel::oom::ladder<keel::oom::halve_micro_batch, keel::oom::give_up>",
       "{\"ladder\": [\"halve_micro_batch\", \"give_up\"]}"},
      {"keel::oom::ladder<keel::oom::enable_recompute<keel::recompute::non_reentrant>, keel::oom::offload_optimizer, "
       "keel::oom::give_up>",
       "{\"ladder\": [{\"enable_recompute\": \"non_reentrant\"}, \"offload_optimizer\", \"give_up\"]}"},
      {"keel::oom::ladder<keel::oom::shorten_sequence<512>, keel::oom::halve_micro_batch>",
       "{\"ladder\": [{\"shorten_sequence\": 512}, \"halve_micro_batch\"]}"},
      {"keel::oom::ladder<keel::oom::halve_micro_batch, keel::oom::quantize_base, "
       "keel::oom::give_up>",
       "{\"ladder\": [\"halve_micro_batch\", \"quantize_base\", \"give_up\"]}"},
      {"keel::oom::ladder<keel::oom::shorten_sequence<0>, keel::oom::give_up, keel::oom::release_after<500_steps>>",
       "{\"ladder\": [{\"shorten_sequence\": 0}, \"give_up\"], \"release_after\": 500}"}}},
    {"determinism", {{"keel::determinism::strict<7>", "{\"strict\": 7}"}}},
    {"objective", {{"keel::objective::grpo<8>", "{\"grpo\": 8}"}, {"keel::objective::ebft<1>", "{\"ebft\": 1}"}}},
    {"ema", {{"keel::ema<0.999>", "0.999"}, {"keel::ema<1.0>", "1.0"}, {"keel::ema<0.0>", "0.0"}}},
    {"evaluation",
     {{"keel::evaluation::every<100_steps>", "{\"every\": 100}"},
      {"keel::evaluation::every<0_steps, keel::evaluation::early_stop<3>>",
       "{\"every\": {\"interval\": 0, \"early_stop\": 3}}"}}},
    {"batch_guard",
     {{"keel::batch_guard::off", "\"off\""},
      {"keel::batch_guard::check<keel::batch_guard::vocabulary<100>, keel::batch_guard::padding<0>>",
       "{\"check\": {\"vocabulary\": 100, \"padding\": 0}}"}}},
    {"profile",
     {{"keel::profile::every<1000_steps>", "{\"every\": 1000}"}, {"keel::profile::every<2_steps>", "{\"every\": 2}"}}},
    {"incident",
     {{"keel::incident::off", "\"off\""},
      {"keel::incident::trace<1>", "{\"trace\": 1}"},
      {"keel::incident::keep<2>", "{\"keep\": 2}"},
      {"keel::incident::keep<0>", "{\"keep\": {\"most\": 0}}"}}},
    {"timeout",
     {{"keel::timeout::set<keel::timeout::soft<1_min>, keel::timeout::hard<30_s>>", "{\"soft\": \"1_min\", \"hard\": 30}"},
      {"keel::timeout::set<keel::timeout::heartbeat<30_s, 5_s>, keel::timeout::grace<10_s>, keel::timeout::force_exit<20_s>>",
       "{\"heartbeat_interval\": 30, \"heartbeat_limit\": 5, \"grace\": 10, \"force_exit\": 20}"}}},
    {"model",
     {{"keel::model::partly_frozen", "[\"partly_frozen\"]"},
      {"keel::model::has<keel::model::batch_norm, keel::model::inner_gradients>", "[\"batch_norm\", \"inner_gradients\"]"},
      {"keel::model::has<keel::model::adapters, keel::model::tied_weights, keel::model::bfloat16_parameters>",
       "[\"adapters\", \"tied_weights\", \"bfloat16_parameters\"]"}}},
    {"optimizer",
     {{"keel::optimizer::is<keel::optimizer::closure>", "[\"closure\"]"},
      {"keel::optimizer::is<keel::optimizer::whole_tensors, keel::optimizer::device_only>",
       "[\"whole_tensors\", \"device_only\"]"}}},
    {"data",
     {{"keel::data::is<keel::data::ragged>", "[\"ragged\"]"},
      {"keel::data::is<keel::data::packed, keel::data::rows<1>>", "{\"packed\": true, \"rows\": 1}"},
      {"keel::data::is<keel::data::finite>", "[\"finite\"]"}}},
    {"device",
     {{"keel::device::cpu", "\"cpu\""},
      {"keel::device::cuda_with<keel::device::device_assert>", "{\"cuda\": [\"device_assert\"]}"}}},
    {"world", {{"keel::world::size<8>", "{\"size\": 8}"}, {"keel::world::size<1>", "{\"size\": 1}"}}},
    {"accept",
     {{"keel::accept<\"O10\">", "[\"O10\"]"}, {"keel::accept<\"A02\">", "[\"A02\"]"}, {"keel::accept<\"B06\">", "[\"B06\"]"}}}};

}  // namespace

int main(int count, char** arguments) {
  int const recipes = count > 1 ? std::atoi(arguments[1]) : 250;
  std::mt19937_64 engine(count > 2 ? std::strtoull(arguments[2], nullptr, 10) : 1);
  auto const below = [&](std::size_t size) { return std::uniform_int_distribution<std::size_t>(0, size - 1)(engine); };
  // From one policy to about half of the slots: recipes that break nothing, one rule, and a dozen.
  std::vector<double> const fills = {0.04, 0.1, 0.2, 0.5};
  for (int i = 0; i < recipes; ++i) {
    std::string types;
    std::string json;
    double const fill = fills[static_cast<std::size_t>(i) % fills.size()];
    for (auto const& slot : slots) {
      if (std::uniform_real_distribution<>(0.0, 1.0)(engine) > fill) continue;
      auto const& chosen = slot.policies[below(slot.policies.size())];
      types += (types.empty() ? "" : ", ") + std::string(chosen.type);
      json += (json.empty() ? "" : ", ") + ("\"" + std::string(slot.name) + "\": " + chosen.json);
    }
    std::cout << "template <>\nstruct sampled<" << i << "> {\n  using type = keel::recipe<" << types
              << ">;\n  static constexpr char const* json = R\"({" << json << "})\";\n};\n";
  }
  std::cout << "inline constexpr int sampled_count = " << recipes << ";\n";
}
