// S: checkpoints.
#include "example.hpp"

namespace judged {

using namespace keel::literals;
namespace checkpoint = keel::checkpoint;
namespace evaluation = keel::evaluation;
using checkpoint::by_evaluation_loss;
using checkpoint::by_training_loss;
using checkpoint::keep;
using checkpoint::keep_best;
using checkpoint::mean_time_between_failures;

namespace {

struct forgets : keel::fills<keel::slot::clip> {
  static constexpr keel::clip::settings configured{keel::clip::kind::custom, 1.0};
  struct state {
    double level = 0.0;
  };
};
struct remembers : keel::fills<keel::slot::clip> {
  static constexpr keel::clip::settings configured{keel::clip::kind::custom, 1.0};
  struct state {
    double level = 0.0;
    void visit(auto& archive) { archive("level", level); }
  };
};
struct forgets_too : keel::fills<keel::slot::schedule> {
  static constexpr keel::schedule::settings configured{.kind = keel::schedule::kind::custom};
  struct state {};
};

}  // namespace

template <checkpoint::option... Options>
inline constexpr config const& saved = of<checkpoint::every<500_steps, Options...>>;

template <>
struct example<rule::S01> : recipes<recipe<checkpoint::every<500_steps, checkpoint::asynchronous, keep<1>>>,
                                    recipe<checkpoint::every<500_steps, checkpoint::asynchronous, keep<2>>>> {};
static_assert(keeps(saved<checkpoint::synchronous, keep<1>>));
static_assert(breaks<rule::S01>(of<checkpoint::every<10_min, checkpoint::asynchronous, keep<1>>>));
static_assert(keeps({.checkpoint = {.keep = 1, .asynchronous = true}}));

template <>
struct example<rule::S05> : recipes<recipe<forgets>, recipe<remembers>> {};
static_assert(breaks<rule::S05>(of<forgets, forgets_too>) && of<forgets, forgets_too>.unsaved_states == 2);

using judged_by_evaluation = checkpoint::every<500_steps, keep_best, by_evaluation_loss>;
template <>
struct example<rule::S11> : recipes<recipe<checkpoint::every<500_steps, keep_best>>,
                                    recipe<checkpoint::every<500_steps, keep_best, by_training_loss>>> {};
static_assert(keeps(saved<>));

template <>
struct example<rule::S12> : recipes<recipe<judged_by_evaluation, evaluation::every<499_steps>>,
                                    recipe<judged_by_evaluation, evaluation::every<500_steps>>> {};
static_assert(keeps(of<judged_by_evaluation, evaluation::every<250_steps>>));
static_assert(breaks<rule::S12>(of<judged_by_evaluation, evaluation::every<1000_steps>>));
static_assert(keeps(of<judged_by_evaluation, evaluation::every<1_steps>>));
static_assert(breaks<rule::S11>(of<judged_by_evaluation>));
static_assert(breaks<rule::S11>({.checkpoint = judged_by_evaluation::configured, .evaluation = {.interval = 500}}));
static_assert(breaks<rule::S24>(of<checkpoint::every<500_steps, checkpoint::keep_k_best<0>, checkpoint::by_training_loss>>));
static_assert(breaks<rule::E28>(of<judged_by_evaluation, evaluation::every<0_steps>>));
static_assert(breaks<rule::E28>(of<judged_by_evaluation, evaluation::every<keel::steps{-300}>>));
static_assert(breaks<rule::S12>(of<checkpoint::every<500_s, keep_best, by_evaluation_loss>, evaluation::every<500_steps>>));
// Saved at once, an evaluation is always judged.
using at_once = checkpoint::every<500_s, checkpoint::on_best, by_evaluation_loss>;
static_assert(keeps(of<at_once, evaluation::every<300_steps>>) && breaks<rule::S11>(of<at_once>));
static_assert(keeps(of<at_once, evaluation::every<300_steps, evaluation::early_stop<3>>>));
static_assert(breaks<rule::S11>(saved<checkpoint::on_best>) && breaks<rule::S11>(saved<checkpoint::on_best, by_training_loss>));
static_assert(breaks<rule::S12>({.checkpoint = {.interval = 500, .best = true, .metric = checkpoint::metric::evaluation_loss},
                                 .evaluation = evaluation::every<500_steps>::configured}));
// The best by training loss needs no evaluation, and a metric that nothing reads asks for none either.
static_assert(keeps(saved<keep_best, by_training_loss>));
static_assert(breaks<rule::S26>(saved<by_evaluation_loss>));
// An early stop goes back to the best evaluation, unless nothing is saved.
using stops_early = evaluation::every<300_steps, evaluation::early_stop<1>>;
static_assert(breaks<rule::S12>(of<checkpoint::every<500_steps>, stops_early>));
static_assert(keeps(of<checkpoint::every<600_steps>, stops_early>));
static_assert(breaks<rule::S12>(of<checkpoint::every<2_epochs>, stops_early>));
static_assert(keeps(of<checkpoint::every<500_steps, checkpoint::on_best, by_evaluation_loss>, stops_early>));
// Saves by the clock or by what they cost are there to go on from.
static_assert(keeps(of<checkpoint::every<10_min>, stops_early>) && keeps(of<checkpoint::every<10'000'000_tokens>, stops_early>));
static_assert(keeps(of<checkpoint::young_daly<mean_time_between_failures<24_h>>, stops_early>));
static_assert(breaks<rule::S12>(of<checkpoint::every<10_min, keep_best, by_evaluation_loss>, stops_early>));
static_assert(keeps(of<checkpoint::every<500_steps>, evaluation::every<300_steps, evaluation::early_stop<0>>>));
static_assert(keeps(of<stops_early>));

template <>
struct example<rule::given_twice<keel::slot::checkpoint>>
    : recipes<recipe<checkpoint::every<500_steps>, checkpoint::every<10_min>>, recipe<checkpoint::every<500_steps>>> {};

template <>
struct example<rule::S13>
    : recipes<recipe<checkpoint::every<500_steps, checkpoint::keep_every<1200_steps>>>,
              recipe<checkpoint::every<500_steps, checkpoint::keep_every<1500_steps>>>> {};
static_assert(breaks<rule::S13>(of<checkpoint::every<10_min, checkpoint::keep_every<500_steps>>>));
static_assert(breaks<rule::S13>(of<checkpoint::young_daly<mean_time_between_failures<1_h>, checkpoint::keep_every<500_steps>>>));
static_assert(breaks<rule::S13>({.checkpoint = {.kind = checkpoint::kind::every_steps, .interval = 500, .keep_every = -500}}));
static_assert(keeps({.checkpoint = {.keep_every = 7}}));
// An interval of nothing divides nothing, and is S24's.
static_assert(breaks<rule::S24>(of<checkpoint::every<0_steps, checkpoint::keep_every<500_steps>>>));

template <>
struct example<rule::S24> : recipes<recipe<checkpoint::every<0_steps>>, recipe<checkpoint::every<1_steps>>> {};
static_assert(breaks<rule::S24>(of<checkpoint::every<0_s>>) && keeps(of<checkpoint::every<1_s>>));
static_assert(breaks<rule::S24>(saved<keep<0>>) && keeps(saved<keep<1>>));
using often_enough = mean_time_between_failures<1_s>;
static_assert(breaks<rule::S24>(of<checkpoint::young_daly<often_enough, keep<0>>>) &&
              keeps(of<checkpoint::young_daly<often_enough, keep<1>>>));
static_assert(keeps({.checkpoint = {.interval = -1, .keep = 0}}));

static_assert(breaks<rule::S24>(saved<checkpoint::failures<0>>) && keeps(saved<checkpoint::failures<1>>));

template <>
struct example<rule::S25> : recipes<recipe<checkpoint::young_daly<mean_time_between_failures<0_s>>>,
                                    recipe<checkpoint::young_daly<mean_time_between_failures<1_s>>>> {};
static_assert(breaks<rule::S25>(of<checkpoint::young_daly<>>));

template <>
struct example<rule::S26> : recipes<recipe<checkpoint::every<500_steps, by_training_loss>>,
                                    recipe<checkpoint::every<500_steps, by_training_loss, keep_best>>> {};

template struct each_shown<rule::checkpoint_rules>;

}  // namespace judged
