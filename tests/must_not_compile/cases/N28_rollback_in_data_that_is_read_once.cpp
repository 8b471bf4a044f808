// expect: N28
#include <keel/recipe.hpp>

using namespace keel::literals;

#ifdef KEEL_TWIN
struct mine
    : keel::recipe<keel::nonfinite::skip<10>, keel::checkpoint::every<500_steps>, keel::data::is<keel::data::single_pass>> {};
#else
struct mine
    : keel::recipe<keel::nonfinite::rollback<10>, keel::checkpoint::every<500_steps>, keel::data::is<keel::data::single_pass>> {
};
#endif

template struct keel::checked<mine>;
