// Ten recipes as a program with several runs has them. benchmarks/run times its compilation.
#include <keel/recipe.hpp>

using namespace keel::literals;

using ends_at_halves = keel::oom::ladder<keel::oom::halve_micro_batch, keel::oom::give_up>;

struct pretrain
    : keel::recipe<keel::precision::bf16, keel::accumulate<4>, keel::clip::global_norm<1.0>, keel::nonfinite::rollback<10>,
                   keel::checkpoint::every<500_steps>, keel::recompute::reentrant, keel::shard::zero<3>,
                   keel::oom::ladder<keel::oom::halve_micro_batch, keel::oom::offload_optimizer, keel::oom::give_up>> {};
struct finetune
    : keel::recipe<keel::precision::bf16, keel::clip::global_norm<0.5>, keel::nonfinite::skip<10>, keel::model::partly_frozen,
                   keel::recompute::non_reentrant, keel::checkpoint::every<100_steps>, ends_at_halves> {};
struct half : keel::recipe<keel::precision::fp16, keel::loss_scale::dynamic<>, keel::clip::global_norm<1.0>,
                           keel::nonfinite::skip<20>, keel::schedule::cosine<keel::schedule::warmup<100_steps>>> {};
struct replicated : keel::recipe<keel::shard::replicate, keel::accumulate<8, keel::reduce_once>, keel::spike::skip<>,
                                 keel::checkpoint::young_daly<keel::checkpoint::mean_time_between_failures<24_h>>> {};
struct groups : keel::recipe<keel::objective::grpo<8>, keel::accumulate<2, keel::micro_batch<32>>, keel::clip::value<1.0>,
                             ends_at_halves> {};
struct averaged
    : keel::recipe<keel::ema<0.999>, keel::schedule::linear<keel::schedule::min_ratio<0.1>>, keel::determinism::strict<1>> {};
struct watched : keel::recipe<keel::timeout::set<keel::timeout::soft<1_min>, keel::timeout::hard<5_min>>,
                              keel::evaluation::every<100_steps>, keel::profile::every<1000_steps>, keel::health::sft> {};
struct packed : keel::recipe<keel::data::is<keel::data::packed, keel::data::token_weighted>,
                             keel::model::has<keel::model::sequence_boundaries>, keel::attention::fused> {};
struct adapted : keel::recipe<keel::model::has<keel::model::adapters>, keel::offload::optimizer, keel::shard::zero<2>,
                              keel::oom::ladder<keel::oom::halve_micro_batch, keel::oom::quantize_base, keel::oom::give_up>> {};
struct steady : keel::recipe<keel::nonfinite::warn<5>, keel::checkpoint::every<10_min, keel::checkpoint::keep<5>>,
                             keel::schedule::warmup_stable_decay<keel::schedule::decay<200_steps>>, keel::accumulate<16>> {};

template struct keel::checked<pretrain>;
template struct keel::checked<finetune>;
template struct keel::checked<half>;
template struct keel::checked<replicated>;
template struct keel::checked<groups>;
template struct keel::checked<averaged>;
template struct keel::checked<watched>;
template struct keel::checked<packed>;
template struct keel::checked<adapted>;
template struct keel::checked<steady>;
