// expect: S05
#include <keel/recipe.hpp>

struct own_clip : keel::fills<keel::slot::clip> {
  static constexpr keel::clip::settings configured{keel::clip::kind::custom, 1.0};
  struct state {
    double level = 0.0;
#ifdef KEEL_TWIN
    void visit(auto& archive) { archive("level", level); }
#endif
  };
};

struct mine : keel::recipe<own_clip> {};

template struct keel::checked<mine>;
