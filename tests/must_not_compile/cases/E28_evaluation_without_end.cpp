// expect: E28
#include <keel/recipe.hpp>

using namespace keel::literals;

#ifdef KEEL_TWIN
struct mine : keel::recipe<keel::evaluation::every<500_steps>, keel::data::is<keel::data::endless>> {};
#else
struct mine : keel::recipe<keel::evaluation::every<0_steps>, keel::data::is<keel::data::endless>> {};
#endif

template struct keel::checked<mine>;
