// expect: D29
#include <keel/recipe.hpp>

#ifdef KEEL_TWIN
struct mine : keel::recipe<keel::batch_guard::on> {};
#else
struct mine : keel::recipe<keel::batch_guard::on, keel::batch_guard::off> {};
#endif

template struct keel::checked<mine>;
