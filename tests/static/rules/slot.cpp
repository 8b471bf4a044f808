// D: the list of policies itself. What keel::accept says about rules is in accept.cpp.
#include "example.hpp"

namespace judged {

using namespace keel::literals;
using keel::accumulate;

namespace {

/// A rule of one's own, but for its id and text.
struct sound {
  static constexpr bool broken(config const& c) { return c.checkpoint.keep > 1000; }
  template <bool Holds, class Recipe>
  struct demand {
    static_assert(Holds);
  };
};
struct own_rule : sound {
  static constexpr char const* id = "Q01";
  static constexpr char const* text = "[Q01] a thousand are enough. Fix: keel::checkpoint::keep<2>.";
};
struct id_of_a_rule : sound {
  static constexpr char const* id = "A01";
  static constexpr char const* text = "[A01] a thousand are enough. Fix: keel::checkpoint::keep<2>.";
};
struct id_of_a_call : sound {
  static constexpr char const* id = "P21";
  static constexpr char const* text = "[P21] a thousand are enough. Fix: keel::checkpoint::keep<2>.";
};
struct id_of_an_accept : sound {
  static constexpr char const* id = "D24";
  static constexpr char const* text = "[D24] a thousand are enough. Fix: keel::checkpoint::keep<2>.";
};
struct id_of_a_policy_without_mechanism : sound {
  static constexpr char const* id = "U04";
  static constexpr char const* text = "[U04] a thousand are enough. Fix: keel::checkpoint::keep<2>.";
};
struct id_that_keel_may_take : sound {
  static constexpr char const* id = "K99";
  static constexpr char const* text = "[K99] a thousand are enough. Fix: keel::checkpoint::keep<2>.";
};
struct badly_said : sound {
  static constexpr char const* id = "Q01";
  static constexpr char const* text = "a thousand are enough.";
};
struct without_id : sound {};
struct without_broken {
  static constexpr char const* id = own_rule::id;
  static constexpr char const* text = own_rule::text;
};
struct says_its_text_once : without_broken {
  static constexpr bool broken(config const&) { return false; }
};
struct broken_by_number : own_rule {
  static constexpr int broken(config const&) { return 0; }
};
struct broken_at_run_time : own_rule {
  static bool broken(config const&) { return false; }
};
struct broken_by_an_object : own_rule {
  constexpr bool broken(config const&) const { return false; }
};
struct id_at_run_time : own_rule {
  inline static char const* id = "Q01";
};
struct id_of_an_object : own_rule {
  char const* id = "Q01";
};
struct text_at_run_time : own_rule {
  inline static char const* text = own_rule::text;
};
struct text_of_an_object : own_rule {
  char const* text = own_rule::text;
};
struct id_as_a_number : own_rule {
  static constexpr int id = 1;
};
struct text_as_a_number : own_rule {
  static constexpr int text = 1;
};
struct same_id : own_rule {};
struct another_id : sound {
  static constexpr char const* id = "QQ1";
  static constexpr char const* text = "[QQ1] a thousand are enough. Fix: keel::checkpoint::keep<2>.";
};
struct always_broken : own_rule {
  static constexpr bool broken(config const&) { return true; }
};
struct only_a_name {
  static constexpr char const* id = "Q01";
};

template <class... Options>
using saves = keel::checkpoint::every<500_steps, Options...>;

}  // namespace

template <>
struct example<rule::D00> : recipes<recipe<int>, recipe<>> {};
static_assert(breaks<rule::D00>(of<int, void, only_a_name>) && of<int, void, only_a_name>.unknown_entries == 3);
template <>
struct example<rule::given_twice<keel::slot::loss_scale>>
    : recipes<recipe<keel::loss_scale::none, keel::loss_scale::none>, recipe<keel::loss_scale::none>> {};
template <>
struct example<rule::given_twice<keel::slot::accumulate>>
    : recipes<recipe<accumulate<4>, accumulate<8>>, recipe<accumulate<4>>> {};
template <>
struct example<rule::given_twice<keel::slot::nonfinite>>
    : recipes<recipe<keel::nonfinite::raise, keel::nonfinite::skip<10>>, recipe<keel::nonfinite::skip<10>>> {};
template <>
struct example<rule::given_twice<keel::slot::spike>>
    : recipes<recipe<keel::spike::ignore, keel::spike::skip<>>, recipe<keel::spike::skip<>>> {};
template <>
struct example<rule::given_twice<keel::slot::schedule>>
    : recipes<recipe<keel::schedule::constant, keel::schedule::cosine<>>, recipe<keel::schedule::cosine<>>> {};
template <>
struct example<rule::given_twice<keel::slot::recompute>>
    : recipes<recipe<keel::recompute::none, keel::recompute::reentrant>, recipe<keel::recompute::reentrant>> {};
template <>
struct example<rule::given_twice<keel::slot::offload>>
    : recipes<recipe<keel::offload::none, keel::offload::optimizer>, recipe<keel::offload::optimizer>> {};
template <>
struct example<rule::given_twice<keel::slot::attention>>
    : recipes<recipe<keel::attention::math, keel::attention::fused>, recipe<keel::attention::fused>> {};
template <>
struct example<rule::given_twice<keel::slot::oom>>
    : recipes<recipe<keel::oom::raise, ladder<keel::oom::give_up>>, recipe<ladder<keel::oom::give_up>>> {};
template <>
struct example<rule::given_twice<keel::slot::health>>
    : recipes<recipe<keel::health::off, keel::health::sft>, recipe<keel::health::sft>> {};
template <>
struct example<rule::given_twice<keel::slot::determinism>>
    : recipes<recipe<keel::determinism::off, keel::determinism::seeded<1>>, recipe<keel::determinism::seeded<1>>> {};
template <>
struct example<rule::given_twice<keel::slot::objective>>
    : recipes<recipe<keel::objective::grpo<8>, keel::objective::ebft<8>>, recipe<keel::objective::grpo<8>>> {};
template <>
struct example<rule::given_twice<keel::slot::ema>> : recipes<recipe<keel::ema<0.99>, keel::no_ema>, recipe<keel::ema<0.99>>> {};
template <>
struct example<rule::given_twice<keel::slot::model>>
    : recipes<recipe<keel::model::all_trainable, keel::model::partly_frozen>, recipe<keel::model::partly_frozen>> {};
template <>
struct example<rule::given_twice<keel::slot::evaluation>>
    : recipes<recipe<keel::evaluation::none, keel::evaluation::every<500_steps>>, recipe<keel::evaluation::every<500_steps>>> {
};
template <>
struct example<rule::given_twice<keel::slot::profile>>
    : recipes<recipe<keel::profile::off, keel::profile::every<1000_steps>>, recipe<keel::profile::every<1000_steps>>> {};
template <>
struct example<rule::given_twice<keel::slot::incident>>
    : recipes<recipe<keel::incident::off, keel::incident::keep<>>, recipe<keel::incident::keep<>>> {};
template <>
struct example<rule::given_twice<keel::slot::timeout>>
    : recipes<recipe<keel::timeout::none, keel::timeout::set<keel::timeout::soft<1_min>>>,
              recipe<keel::timeout::set<keel::timeout::soft<1_min>>>> {};
template <>
struct example<rule::given_twice<keel::slot::optimizer>>
    : recipes<recipe<keel::optimizer::usual, keel::optimizer::usual>, recipe<keel::optimizer::usual>> {};
template <>
struct example<rule::given_twice<keel::slot::data>>
    : recipes<recipe<keel::data::usual, keel::data::usual>, recipe<keel::data::usual>> {};
template <>
struct example<rule::given_twice<keel::slot::device>>
    : recipes<recipe<keel::device::any, keel::device::cpu>, recipe<keel::device::cpu>> {};
template <>
struct example<rule::given_twice<keel::slot::batch_guard>>
    : recipes<recipe<keel::batch_guard::on, keel::batch_guard::check<>>, recipe<keel::batch_guard::check<>>> {};
template <>
struct example<rule::given_twice<keel::slot::world>>
    : recipes<recipe<keel::world::any, keel::world::size<1>>, recipe<keel::world::size<1>>> {};

// Two slots that are given twice are two errors, and one that is given three times is one.
static_assert(breaks<rule::given_twice<keel::slot::accumulate>, rule::given_twice<keel::slot::model>>(
    of<accumulate<1>, keel::model::all_trainable, keel::model::all_trainable, accumulate<1>>));
static_assert(breaks<rule::given_twice<keel::slot::accumulate>>(of<accumulate<1>, accumulate<1>, accumulate<1>>));

// Every policy that has options.
template <>
struct example<rule::D20> : recipes<recipe<saves<keel::checkpoint::keep<2>, keel::checkpoint::keep<3>>>,
                                    recipe<saves<keel::checkpoint::keep<3>, keel::checkpoint::keep<3>>>> {};
static_assert(breaks<rule::D20>(of<saves<keel::checkpoint::synchronous, keel::checkpoint::asynchronous>>));
static_assert(breaks<rule::D20>(of<keel::checkpoint::young_daly<keel::checkpoint::mean_time_between_failures<1_h>,
                                                                keel::checkpoint::keep<2>, keel::checkpoint::keep<3>>>));
static_assert(breaks<rule::D20>(of<accumulate<2, keel::micro_batch<2>, keel::micro_batch<3>>>));
static_assert(
    breaks<rule::D20>(of<keel::precision::fp16,
                         keel::loss_scale::dynamic<keel::loss_scale::at_floor_continue, keel::loss_scale::at_floor_raise>>));
static_assert(breaks<rule::D20>(of<keel::nonfinite::skip<10, keel::nonfinite::reseed, keel::nonfinite::change_nothing>>));
static_assert(breaks<rule::D20>(of<keel::nonfinite::warn<10, keel::nonfinite::reseed, keel::nonfinite::change_nothing>>));
static_assert(breaks<rule::D20>(of<keel::nonfinite::raise_with<keel::nonfinite::reseed, keel::nonfinite::change_nothing>>));
static_assert(
    breaks<rule::D20>(of<saves<>, keel::nonfinite::rollback<10, keel::nonfinite::reseed, keel::nonfinite::lower_lr>>));
static_assert(breaks<rule::D20>(of<keel::spike::skip<keel::spike::window<64>, keel::spike::window<128>>>));
static_assert(breaks<rule::D20>(of<saves<>, keel::spike::rollback<keel::spike::window<64>, keel::spike::window<128>>>));
static_assert(breaks<rule::D20>(of<keel::schedule::cosine<keel::schedule::min_ratio<0.1>, keel::schedule::min_ratio<0.2>>>));
static_assert(
    breaks<rule::D20>(of<keel::evaluation::every<500_steps, keel::evaluation::batches<1>, keel::evaluation::batches<2>>>));
static_assert(breaks<rule::D20>(of<keel::profile::every<1000_steps, keel::profile::active<1>, keel::profile::active<2>>>));
static_assert(breaks<rule::D20>(of<keel::timeout::set<keel::timeout::soft<1_s>, keel::timeout::soft<2_s>>>));
static_assert(breaks<rule::D20>(of<keel::data::is<keel::data::rows<1>, keel::data::rows<2>>>));
static_assert(
    of<accumulate<2, keel::micro_batch<2>, keel::micro_batch<3>>, saves<keel::checkpoint::keep<2>, keel::checkpoint::keep<3>>>.disagreeing_options ==
    2);
// Three of which only the outer two differ.
static_assert(!saves<keel::checkpoint::keep<2>, keel::checkpoint::synchronous, keel::checkpoint::keep<3>>::options_agree);

template <>
struct example<rule::D25> : recipes<recipe<badly_said>, recipe<own_rule>> {};
static_assert(breaks<rule::D25>(of<id_of_a_rule>) && breaks<rule::D25>(of<id_of_a_call>) &&
              breaks<rule::D25>(of<id_of_an_accept>) && breaks<rule::D25>(of<id_of_a_policy_without_mechanism>) &&
              breaks<rule::D25>(of<id_that_keel_may_take>));
static_assert(breaks<rule::D25>(of<without_id>) && breaks<rule::D25>(of<without_broken>));
static_assert(!breaks<rule::D25>(of<says_its_text_once>) && keel::valid<keel::recipe<says_its_text_once>>);
static_assert(breaks<rule::D25>(of<broken_by_number>) && breaks<rule::D25>(of<broken_at_run_time>) &&
              breaks<rule::D25>(of<broken_by_an_object>));
static_assert(breaks<rule::D25>(of<id_at_run_time>) && breaks<rule::D25>(of<id_of_an_object>) &&
              breaks<rule::D25>(of<id_as_a_number>));
static_assert(breaks<rule::D25>(of<text_at_run_time>) && breaks<rule::D25>(of<text_of_an_object>) &&
              breaks<rule::D25>(of<text_as_a_number>));
static_assert(of<badly_said, own_rule, without_id>.malformed_rules == 2);
// Two of one id, and one that is there twice.
static_assert(keeps(of<own_rule, another_id>) && keeps(of<another_id, keel::precision::bf16, own_rule>));
static_assert(breaks<rule::D25>(of<own_rule, another_id, same_id>) && breaks<rule::D25>(of<own_rule, own_rule>));
static_assert(of<own_rule, own_rule, keel::precision::bf16, same_id, another_id>.malformed_rules == 2);
constexpr verdict twice_broken = violations<recipe<always_broken, always_broken>>;
static_assert(twice_broken.size() == 2 && twice_broken.has("Q01") && twice_broken.has("D25"));
static_assert(violations<recipe<own_rule, always_broken>>.size() == 1 &&
              violations<recipe<own_rule, always_broken>>.has("D25"));

// One letter and two digits are keel's, but for Q.
using rule::is_id_of_keel;
static_assert(!is_id_of_keel("@01") && !is_id_of_keel("[01") && !is_id_of_keel("A/1") && !is_id_of_keel("A:1") &&
              !is_id_of_keel("A1/") && !is_id_of_keel("A1:"));
static_assert(is_id_of_keel("A00") && is_id_of_keel("Z99") && is_id_of_keel("A09") && is_id_of_keel("A90"));
static_assert(is_id_of_keel("A01") && is_id_of_keel("Z99") && is_id_of_keel("P07"));
static_assert(!is_id_of_keel("Q01") && !is_id_of_keel("QQ1") && !is_id_of_keel("AB1") && !is_id_of_keel("A001") &&
              !is_id_of_keel("A1"));

// How a rule is said: an id of letters and then digits ..
using rule::is_well_formed;
static_assert(is_well_formed("Q01", "[Q01] why. Fix: this."));
static_assert(is_well_formed("Q1", "[Q1] why. Fix: this.") && is_well_formed("QQQQQ01", "[QQQQQ01] why. Fix: this."));
static_assert(!is_well_formed("QQQQQQ01", "[QQQQQQ01] why. Fix: this."));
static_assert(!is_well_formed("01", "[01] why. Fix: this.") && !is_well_formed("Q", "[Q] why. Fix: this."));
static_assert(!is_well_formed("", "[] why. Fix: this.") && !is_well_formed("q01", "[q01] why. Fix: this."));
static_assert(!is_well_formed("Q01] why", "[Q01] why. Fix: this."));
static_assert(!is_well_formed("Q01x", "[Q01x] why. Fix: this.") && !is_well_formed("Q-1", "[Q-1] why. Fix: this."));
static_assert(is_well_formed("AZ09", "[AZ09] why. Fix: this."));
static_assert(!is_well_formed("@01", "[@01] why. Fix: this.") && !is_well_formed("[01", "[[01] why. Fix: this."));
static_assert(!is_well_formed("A/", "[A/] why. Fix: this.") && !is_well_formed("A:", "[A:] why. Fix: this."));
// .. and a text that begins with it, says what to type, and is no longer than a line of errors.
static_assert(!is_well_formed("Q01", "(Q01] why. Fix: this.") && !is_well_formed("Q01", "[Q02] why. Fix: this."));
static_assert(!is_well_formed("Q01", "[Q01]why. Fix: this.") && !is_well_formed("Q01", "[Q01 why. Fix: this."));
static_assert(!is_well_formed("Q01", "[Q01] why.") && !is_well_formed("Q01", "[Q01] why Fix: this."));
static_assert(!is_well_formed("Q01", "") && !is_well_formed("Q01", "[Q01"));
template <int Length>
constexpr bool is_short_enough() {
  constexpr char begin[] = "[Q01] why. Fix: ";
  char text[Length + 1] = {};
  for (int i = 0; i < Length; ++i) text[i] = i < 16 ? begin[i] : 'x';
  return is_well_formed("Q01", text);
}
static_assert(is_short_enough<160>() && !is_short_enough<161>());

using namespace keel::literals;
template <>
struct example<rule::D26> : recipes<recipe<keel::checkpoint::every<500>>, recipe<keel::checkpoint::every<500_steps>>> {};
static_assert(breaks<rule::D26>(of<keel::evaluation::every<500>>) && keeps(of<keel::evaluation::every<2_epochs>>));
static_assert(breaks<rule::D26>(of<keel::evaluation::every<10_min>>) &&
              breaks<rule::D26>(of<keel::evaluation::every<500_tokens>>));
// It is taken as updates, so that no other rule complains of it.
static_assert(breaks<rule::D26>(of<keel::checkpoint::every<500>, keel::nonfinite::rollback<10>>));
static_assert(breaks<rule::D26, rule::S24>(of<keel::checkpoint::every<0>>));

// A whole number is a number.
static_assert(of<keel::clip::global_norm<1>> == of<keel::clip::global_norm<1.0>>);
static_assert(breaks<rule::M10>(of<keel::ema<2>>) && breaks<rule::G11>(of<keel::clip::value<-1>>));

namespace nonfinite = keel::nonfinite;
template <>
struct example<rule::P20>
    : recipes<recipe<nonfinite::skip<10, nonfinite::attempts<1>>>, recipe<nonfinite::skip<10, nonfinite::attempts<0>>>> {};
static_assert(breaks<rule::P20>(of<nonfinite::skip<10, nonfinite::reseed>>) &&
              keeps(of<nonfinite::skip<10, nonfinite::change_nothing>>));
static_assert(breaks<rule::P20>(of<nonfinite::raise_with<nonfinite::skip_data>>));
static_assert(breaks<rule::P20>(of<nonfinite::warn<10, nonfinite::lower_lr>>));
static_assert(
    keeps(of<keel::checkpoint::every<500_steps>, nonfinite::rollback<10, nonfinite::reseed, nonfinite::attempts<1>>>));
using failures = keel::checkpoint::mean_time_between_failures<1_s>;
static_assert(breaks<rule::P20>(of<keel::checkpoint::every<500_steps, failures>>));
static_assert(breaks<rule::P20>(of<keel::checkpoint::every<500_s, failures>>));
static_assert(keeps(of<keel::checkpoint::young_daly<failures>>));
static_assert(breaks<rule::P20>(of<keel::checkpoint::every<500_steps, keel::checkpoint::drop_when_busy>>));
static_assert(keeps(of<keel::checkpoint::every<500_steps, keel::checkpoint::asynchronous, keel::checkpoint::drop_when_busy>>));
static_assert(breaks<rule::P20>(of<keel::spike::skip<keel::spike::attempts<3>>>));
static_assert(breaks<rule::P20>(of<accumulate<2, keel::reduce_once>>) &&
              keeps(of<accumulate<2, keel::reduce_once>, keel::shard::replicate>));
static_assert(breaks<rule::P20>(of<accumulate<1, keel::reduce_once>, keel::shard::replicate>));
// A ladder that cuts the micro-batch makes several of one.
using halving = ladder<keel::oom::halve_micro_batch, keel::oom::give_up>;
static_assert(keeps(of<accumulate<1, keel::reduce_once>, keel::shard::replicate, halving>));
static_assert(breaks<rule::P20>(of<accumulate<1, keel::reduce_once>, halving>));
static_assert(breaks<rule::P20>(of<accumulate<2, keel::reduce_once>>));
static_assert(keeps(of<accumulate<2, keel::reduce_once>, keel::shard::replicate>));
static_assert(keeps(of<accumulate<2>, keel::shard::replicate>) && keeps(of<keel::shard::replicate>));
static_assert(breaks<rule::W01>(in_run(of<accumulate<2, keel::reduce_once>>, {.world_size = 2})) &&
              breaks<rule::P20>(in_run(of<accumulate<2, keel::reduce_once>>, {.world_size = 1})));

template struct each_shown<rule::slot_rules>;

}  // namespace judged
