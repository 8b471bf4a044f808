// expect: T08
#include <keel/recipe.hpp>

#ifdef KEEL_TWIN
struct mine : keel::recipe<keel::batch_guard::check<keel::batch_guard::vocabulary<256> > > {};
#else
struct mine : keel::recipe<keel::batch_guard::check<keel::batch_guard::vocabulary<-1> > > {};
#endif

template struct keel::checked<mine>;
