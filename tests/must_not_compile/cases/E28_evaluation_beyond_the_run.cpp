// expect: E28
#include <keel/recipe.hpp>

using namespace keel::literals;
using length = keel::schedule::cosine<keel::schedule::total<60_steps> >;

#ifdef KEEL_TWIN
struct mine : keel::recipe<length, keel::evaluation::every<20_steps> > {};
#else
struct mine : keel::recipe<length, keel::evaluation::every<20000_steps> > {};
#endif

template struct keel::checked<mine>;
