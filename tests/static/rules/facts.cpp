// What types say of themselves, and what a recipe that leaves a slot open takes for it.
#include "example.hpp"

namespace {

namespace data = keel::data;
namespace model = keel::model;
namespace optimizer = keel::optimizer;
using keel::facts;
namespace slot = keel::slot;

struct says_nothing {};
struct has_batch_norm {
  using facts = model::has<model::batch_norm>;
};
struct of_another_library {};
struct says_more_elsewhere {
  using facts = model::has<model::batch_norm>;
};
struct says_it_of_another_slot {
  using facts = optimizer::is<optimizer::closure>;
};
struct is_told_of_another_slot {};
struct says_both_slots {
  using facts = model::has<model::routing>;
};
struct has_a_list_of_rows {
  using facts = data::is<data::ragged, data::rows<3>>;
};
struct has_no_policy {
  using facts = int;
};
struct hides_its_facts {
 private:
  using facts [[maybe_unused]] = model::has<model::batch_norm>;
};
struct inherits_its_facts : has_batch_norm {};

}  // namespace

template <>
struct keel::facts_of<of_another_library> {
  using facts = keel::optimizer::is<keel::optimizer::closure>;
};
template <>
struct keel::facts_of<says_more_elsewhere> {
  using facts = keel::model::has<keel::model::routing>;
};
template <>
struct keel::facts_of<is_told_of_another_slot> {
  using facts = keel::model::has<keel::model::routing>;
};
template <>
struct keel::facts_of<says_both_slots> {
  using facts = keel::data::is<keel::data::ragged>;
};
template <>
struct keel::facts_of<has_a_list_of_rows> {
  using facts = keel::data::is<keel::data::packed, keel::data::rows<4>>;
};

namespace judged {

static_assert(facts<slot::model, has_batch_norm>() == model::has<model::batch_norm>::configured);
static_assert(facts<slot::optimizer, of_another_library>() == optimizer::is<optimizer::closure>::configured);
static_assert(facts<slot::model, says_more_elsewhere>() == model::has<model::batch_norm, model::routing>::configured);
static_assert(facts<slot::data, has_a_list_of_rows>() == data::is<data::ragged, data::packed, data::rows<3>>::configured);
static_assert(facts<slot::model, inherits_its_facts>() == model::has<model::batch_norm>::configured);
// Who says nothing, and who says it of something else.
static_assert(facts<slot::model, says_nothing>() == model::settings{} &&
              facts<slot::data, says_nothing>() == data::settings{} &&
              facts<slot::optimizer, says_nothing>() == optimizer::settings{});
static_assert(facts<slot::model, has_no_policy>() == model::settings{});
static_assert(facts<slot::model, hides_its_facts>() == model::settings{});
static_assert(facts<slot::model, says_it_of_another_slot>() == model::settings{} &&
              facts<slot::optimizer, says_it_of_another_slot>() == optimizer::is<optimizer::closure>::configured);
static_assert(facts<slot::optimizer, is_told_of_another_slot>() == optimizer::settings{} &&
              facts<slot::model, is_told_of_another_slot>() == model::has<model::routing>::configured);
static_assert(facts<slot::model, says_both_slots>() == model::has<model::routing>::configured &&
              facts<slot::data, says_both_slots>() == data::is<data::ragged>::configured);
// A type that is no class has no facts.
static_assert(facts<slot::model, int>() == model::settings{} && facts<slot::data, int[3]>() == data::settings{});

// Either of two sources is enough, for each fact by itself.
template <class Nothing, class... Alone>
constexpr bool either_is_enough =
    (((Alone::configured | Nothing::configured) == Alone::configured &&
      (Nothing::configured | Alone::configured) == Alone::configured &&
      (Alone::configured | Alone::configured) == Alone::configured && !(Alone::configured == Nothing::configured)) &&
     ...);
static_assert(
    either_is_enough<model::has<>, model::has<model::frozen>, model::has<model::adapters>, model::has<model::batch_norm>,
                     model::has<model::dropout>, model::has<model::tied_weights>, model::has<model::routing>,
                     model::has<model::inner_gradients>, model::has<model::half_parameters>,
                     model::has<model::bfloat16_parameters>, model::has<model::sequence_boundaries>>);
static_assert(either_is_enough<optimizer::is<>, optimizer::is<optimizer::closure>, optimizer::is<optimizer::unscales>,
                               optimizer::is<optimizer::whole_tensors>, optimizer::is<optimizer::device_only>,
                               optimizer::is<optimizer::state_on_host>>);
static_assert(either_is_enough<data::is<>, data::is<data::ragged>, data::is<data::token_weighted>, data::is<data::packed>,
                               data::is<data::grouped>, data::is<data::endless>, data::is<data::finite>,
                               data::is<data::drops_last>, data::is<data::single_pass>, data::is<data::rows<3>>>);
static_assert(model::partly_frozen::configured == model::settings{.partly_frozen = true});
static_assert(model::has<model::adapters>::configured == model::settings{.partly_frozen = true, .adapters = true});
// Of two numbers the first counts.
static_assert((data::is<data::rows<3>>::configured | data::is<data::rows<4>>::configured).rows == 3);

// A config that nobody filled is the recipe that leaves all open, and its members are the default policies.
static_assert(config{} == of<>);
static_assert(config{}.run == keel::run_facts{.known = false,
                                              .world_size = 1,
                                              .updates = 0,
                                              .learning_rate = 0.0,
                                              .half_kernels = true,
                                              .bfloat16_kernels = true,
                                              .device = keel::device::kind::any});
template <class Slot, class Settings>
constexpr bool is_default(Settings const& member) {
  static_assert(std::is_same_v<typename Slot::settings, Settings>);
  static_assert(std::is_same_v<typename Slot::default_policy::in_slot, Slot>);
  return Slot::default_policy::configured == member;
}
constexpr config nobody_filled{};
static_assert(is_default<slot::precision>(nobody_filled.precision));
static_assert(is_default<slot::loss_scale>(nobody_filled.loss_scale));
static_assert(is_default<slot::accumulate>(nobody_filled.accumulate));
static_assert(is_default<slot::clip>(nobody_filled.clip));
static_assert(is_default<slot::nonfinite>(nobody_filled.nonfinite));
static_assert(is_default<slot::spike>(nobody_filled.spike));
static_assert(is_default<slot::schedule>(nobody_filled.schedule));
static_assert(is_default<slot::checkpoint>(nobody_filled.checkpoint));
static_assert(is_default<slot::recompute>(nobody_filled.recompute));
static_assert(is_default<slot::shard>(nobody_filled.shard));
static_assert(is_default<slot::offload>(nobody_filled.offload));
static_assert(is_default<slot::attention>(nobody_filled.attention));
static_assert(is_default<slot::oom>(nobody_filled.oom));
static_assert(is_default<slot::batch_guard>(nobody_filled.batch_guard));
static_assert(is_default<slot::health>(nobody_filled.health));
static_assert(is_default<slot::determinism>(nobody_filled.determinism));
static_assert(is_default<slot::objective>(nobody_filled.objective));
static_assert(is_default<slot::ema>(nobody_filled.ema));
static_assert(is_default<slot::evaluation>(nobody_filled.evaluation));
static_assert(is_default<slot::profile>(nobody_filled.profile));
static_assert(is_default<slot::incident>(nobody_filled.incident));
static_assert(is_default<slot::timeout>(nobody_filled.timeout));
static_assert(is_default<slot::model>(nobody_filled.model));
static_assert(is_default<slot::optimizer>(nobody_filled.optimizer));
static_assert(is_default<slot::data>(nobody_filled.data));
static_assert(is_default<slot::device>(nobody_filled.device));
static_assert(is_default<slot::world>(nobody_filled.world));
static_assert(keel::slot_count == 27);

// A policy goes to the member of its slot and to no other.
template <class Policy, auto Member>
constexpr bool goes_to = [] {
  config filled{};
  filled.*Member = Policy::configured;
  return of<Policy> == filled && !(filled == config{});
}();
static_assert(goes_to<keel::precision::bf16, &config::precision>);
static_assert(goes_to<keel::loss_scale::dynamic<>, &config::loss_scale>);
static_assert(goes_to<keel::accumulate<2>, &config::accumulate>);
static_assert(goes_to<keel::clip::value<1.0>, &config::clip>);
static_assert(goes_to<keel::nonfinite::skip<10>, &config::nonfinite>);
static_assert(goes_to<keel::spike::skip<>, &config::spike>);
static_assert(goes_to<keel::schedule::cosine<>, &config::schedule>);
static_assert(goes_to<keel::checkpoint::every<keel::steps{500}>, &config::checkpoint>);
static_assert(goes_to<keel::recompute::reentrant, &config::recompute>);
static_assert(goes_to<keel::shard::replicate, &config::shard>);
static_assert(goes_to<keel::offload::optimizer, &config::offload>);
static_assert(goes_to<keel::attention::fused, &config::attention>);
static_assert(goes_to<ladder<keel::oom::give_up>, &config::oom>);
static_assert(goes_to<keel::health::sft, &config::health>);
static_assert(goes_to<keel::determinism::seeded<1>, &config::determinism>);
static_assert(goes_to<keel::objective::grpo<8>, &config::objective>);
static_assert(goes_to<keel::ema<0.99>, &config::ema>);
static_assert(goes_to<keel::evaluation::every<keel::steps{500}>, &config::evaluation>);
static_assert(goes_to<keel::profile::every<keel::steps{500}>, &config::profile>);
static_assert(goes_to<keel::incident::keep<2>, &config::incident>);
static_assert(goes_to<keel::timeout::set<keel::timeout::soft<keel::seconds{60}>>, &config::timeout>);
static_assert(goes_to<model::partly_frozen, &config::model>);
static_assert(goes_to<optimizer::is<optimizer::closure>, &config::optimizer>);
static_assert(goes_to<data::is<data::ragged>, &config::data>);
static_assert(goes_to<keel::device::cpu, &config::device>);
static_assert(goes_to<keel::world::size<1>, &config::world>);

}  // namespace judged
