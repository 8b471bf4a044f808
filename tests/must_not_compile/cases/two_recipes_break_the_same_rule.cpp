// expect: A01 A01
#include <keel/recipe.hpp>

#ifdef KEEL_TWIN
using recompute = keel::recompute::reentrant;
#else
using recompute = keel::recompute::non_reentrant;
#endif

struct pretrain : keel::recipe<recompute, keel::shard::zero<3>> {};
struct finetune : keel::recipe<recompute, keel::shard::zero<3>> {};

template struct keel::checked<pretrain>;
template struct keel::checked<finetune>;
