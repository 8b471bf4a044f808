// expect: H07
#include <keel/recipe.hpp>

using namespace keel::literals;

#ifdef KEEL_TWIN
struct mine : keel::recipe<keel::timeout::set<keel::timeout::first_update<10_min>, keel::timeout::collective<5_min>>,
                           keel::accept<"H07">> {};
#else
struct mine : keel::recipe<keel::timeout::set<keel::timeout::first_update<10_min>, keel::timeout::collective<5_min>>> {};
#endif

template struct keel::checked<mine>;
