// expect: E02
#include <keel/recipe.hpp>

using namespace keel::literals;

#ifdef KEEL_TWIN
struct mine
    : keel::recipe<keel::data::is<keel::data::endless>, keel::evaluation::every<500_steps, keel::evaluation::batches<10>>> {};
#else
struct mine : keel::recipe<keel::data::is<keel::data::endless>, keel::evaluation::every<500_steps>> {};
#endif

template struct keel::checked<mine>;
