// expect: P02
#include <keel/recipe.hpp>

#ifdef KEEL_TWIN
struct mine : keel::recipe<keel::precision::bf16, keel::loss_scale::none> {};
#else
struct mine : keel::recipe<keel::precision::bf16, keel::loss_scale::dynamic<> > {};
#endif

template struct keel::checked<mine>;
