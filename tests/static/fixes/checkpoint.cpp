// S: checkpoints and when they are judged.
#include "typed.hpp"

using namespace keel::literals;
namespace checkpoint = keel::checkpoint;
namespace evaluation = keel::evaluation;

namespace {
struct remembers : keel::fills<keel::slot::clip> {
  static constexpr keel::clip::settings configured{.kind = keel::clip::kind::custom};
  struct state {
    double mean = 0.0;
    void visit(auto& archive) { archive("mean", mean); }
  };
};
}  // namespace

namespace fixed {

template <>
inline constexpr auto fixes<rule::S01> =
    said(FIX("keel::checkpoint::keep<2>", checkpoint::every<500_steps, checkpoint::asynchronous, keel::checkpoint::keep<2>>));
template <>
inline constexpr auto fixes<rule::S05> = said(FIX("give its state `void visit(auto& archive)` that names every field", remembers));
template <>
inline constexpr auto fixes<rule::given_twice<keel::slot::checkpoint>> =
    said(FIX("keep one of keel::checkpoint::every, young_daly, never", keel::checkpoint::every<500_steps>),
         FIX("keep one of keel::checkpoint::", keel::checkpoint::young_daly<keel::checkpoint::mean_time_between_failures<24_h>>),
         FIX("keep one of keel::checkpoint::", keel::checkpoint::never));
template <>
inline constexpr auto fixes<rule::S24> = said(FIX(
    "keel::checkpoint::every<500_steps, keep<2>, failures<3>>", keel::checkpoint::every<500_steps, checkpoint::keep<2>, checkpoint::failures<3>>));
template <>
inline constexpr auto fixes<rule::S25> =
    said(FIX("keel::checkpoint::mean_time_between_failures<24_h>", checkpoint::young_daly<keel::checkpoint::mean_time_between_failures<24_h>>));
template <>
inline constexpr auto fixes<rule::S11> =
    said(FIX("by_evaluation_loss with keel::evaluation::every",
             checkpoint::every<500_steps, checkpoint::keep_best, checkpoint::by_evaluation_loss>, keel::evaluation::every<500_steps>),
         FIX("by_evaluation_loss with keel::evaluation::every",
             checkpoint::every<500_steps, checkpoint::on_best, checkpoint::by_evaluation_loss>, keel::evaluation::every<500_steps>),
         FIX("keep_best with by_training_loss", checkpoint::every<500_steps, checkpoint::keep_best, checkpoint::by_training_loss>));
template <>
inline constexpr auto fixes<rule::S13> =
    said(FIX("a multiple of checkpoint::every in steps, such as keep_every<5000_steps>",
             checkpoint::every<500_steps, checkpoint::keep_every<5000_steps>>));
template <>
inline constexpr auto fixes<rule::S12> =
    said(FIX("checkpoint::every a multiple of evaluation::every, both in steps",
             checkpoint::every<500_steps, checkpoint::keep_best, checkpoint::by_evaluation_loss>, evaluation::every<250_steps>),
         FIX("in epochs", checkpoint::every<2_epochs, checkpoint::keep_best, checkpoint::by_evaluation_loss>, evaluation::every<1_epochs>),
         FIX("on_best", checkpoint::every<10_min, checkpoint::on_best, checkpoint::by_evaluation_loss>, evaluation::every<250_steps>));
template <>
inline constexpr auto fixes<rule::S26> =
    said(FIX("add keel::checkpoint::keep_best", checkpoint::every<500_steps, checkpoint::by_training_loss, keel::checkpoint::keep_best>),
         FIX("remove the metric", checkpoint::every<500_steps>));

template struct each_followed<rule::checkpoint_rules>;

}  // namespace fixed
