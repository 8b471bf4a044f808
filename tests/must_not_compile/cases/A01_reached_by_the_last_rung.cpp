// expect: A01
// says: reached by rung 15 of oom::ladder: [A01]
#include <keel/recipe.hpp>

template <int Number>
struct own_rung {
  static constexpr keel::oom::rung_settings rung{.kind = keel::oom::rung_kind::custom};
};

#ifdef KEEL_TWIN
struct mine
    : keel::recipe<
          keel::shard::zero<3>,
          keel::oom::ladder<own_rung<1>, own_rung<2>, own_rung<3>, own_rung<4>, own_rung<5>, own_rung<6>, own_rung<7>,
                            own_rung<8>, own_rung<9>, own_rung<10>, own_rung<11>, own_rung<12>, own_rung<13>, own_rung<14>,
                            keel::oom::enable_recompute<keel::recompute::reentrant>, keel::oom::give_up>> {};
#else
struct mine
    : keel::recipe<
          keel::shard::zero<3>,
          keel::oom::ladder<own_rung<1>, own_rung<2>, own_rung<3>, own_rung<4>, own_rung<5>, own_rung<6>, own_rung<7>,
                            own_rung<8>, own_rung<9>, own_rung<10>, own_rung<11>, own_rung<12>, own_rung<13>, own_rung<14>,
                            keel::oom::enable_recompute<keel::recompute::non_reentrant>, keel::oom::give_up>> {};
#endif

template struct keel::checked<mine>;
