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
    said(FIX("keep one of keel::checkpoint::{never, every, young_daly}", keel::checkpoint::never),
         FIX("keep one of keel::checkpoint::", keel::checkpoint::every<500_steps>),
         FIX("keep one of keel::checkpoint::", keel::checkpoint::young_daly<keel::checkpoint::mean_time_between_failures<24_h>>));
template <>
inline constexpr auto fixes<rule::S24> =
    said(FIX("such numbers, as in keel::checkpoint::every<500_steps, keep<2>, failures<3>>",
             keel::checkpoint::every<500_steps, checkpoint::keep<2>, checkpoint::failures<3>>),
         FIX("such numbers", checkpoint::every<1_s, checkpoint::keep<1>, checkpoint::failures<1>>),
         FIX("such numbers", checkpoint::every<500_steps, checkpoint::keep_k_best<1>, checkpoint::by_training_loss>));
template <>
inline constexpr auto fixes<rule::S25> =
    said(FIX("keel::checkpoint::mean_time_between_failures<24_h>", checkpoint::young_daly<keel::checkpoint::mean_time_between_failures<24_h>>));
template <>
inline constexpr auto fixes<rule::S11> =
    said(FIX("on_best and by_evaluation_loss with keel::evaluation::every",
             checkpoint::every<500_steps, checkpoint::on_best, checkpoint::by_evaluation_loss>, keel::evaluation::every<300_steps>),
         FIX("on_best and by_evaluation_loss with keel::evaluation::every",
             checkpoint::every<10_min, checkpoint::on_best, checkpoint::by_evaluation_loss>, keel::evaluation::every<300_steps>),
         FIX("on_best and by_evaluation_loss with keel::evaluation::every",
             checkpoint::young_daly<checkpoint::mean_time_between_failures<24_h>, checkpoint::on_best, checkpoint::by_evaluation_loss>,
             keel::evaluation::every<1_epochs>),
         FIX("keep_best with by_training_loss", checkpoint::every<500_steps, checkpoint::keep_best, checkpoint::by_training_loss>),
         FIX("keep_best with by_training_loss", checkpoint::every<10_min, checkpoint::keep_best, checkpoint::by_training_loss>));
template <>
inline constexpr auto fixes<rule::S13> =
    said(FIX("remove keep_every", checkpoint::every<1_epochs>),
         FIX("remove keep_every", checkpoint::young_daly<checkpoint::mean_time_between_failures<24_h>>),
         FIX("make it a multiple of a keel::checkpoint::every<D> in steps",
             keel::checkpoint::every<300_steps, checkpoint::keep_every<3000_steps>>));
template <>
inline constexpr auto fixes<rule::S12> =
    said(FIX("checkpoint::every a multiple of evaluation::every, both in steps",
             checkpoint::every<500_steps, checkpoint::keep_best, checkpoint::by_evaluation_loss>, evaluation::every<250_steps>),
         FIX("checkpoint::every a multiple of evaluation::every, both in steps",
             checkpoint::every<600_steps>, evaluation::every<300_steps, evaluation::early_stop<3>>),
         FIX("in epochs", checkpoint::every<2_epochs, checkpoint::keep_best, checkpoint::by_evaluation_loss>, evaluation::every<1_epochs>),
         FIX("on_best with by_evaluation_loss", checkpoint::every<10_min, checkpoint::on_best, checkpoint::by_evaluation_loss>,
             evaluation::every<250_steps>),
         FIX("on_best with by_evaluation_loss", checkpoint::every<500_steps, checkpoint::on_best, checkpoint::by_evaluation_loss>,
             evaluation::every<300_steps, evaluation::early_stop<3>>));
template <>
inline constexpr auto fixes<rule::S26> =
    said(FIX("remove it", checkpoint::every<500_steps>), FIX("remove it", checkpoint::every<500_steps>, evaluation::every<300_steps>),
         FIX("keep_best by_training_loss", checkpoint::every<500_steps, checkpoint::keep_best, checkpoint::by_training_loss>),
         FIX("on_best by_evaluation_loss with keel::evaluation::every",
             checkpoint::every<500_steps, checkpoint::on_best, checkpoint::by_evaluation_loss>, keel::evaluation::every<300_steps>));

template struct each_followed<rule::checkpoint_rules>;

// Under sanitizers g++ 12 takes the text, which is put together, for no constant.
#ifndef __SANITIZE_ADDRESS__
template struct each_followed<rule::list<rule::given_twice<keel::slot::checkpoint>>>;
#endif

}  // namespace fixed
