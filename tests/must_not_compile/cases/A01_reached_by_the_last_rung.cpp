// expect: A01
// says: reached by rung 15 of oom::ladder: [A01]
#include <keel/recipe.hpp>

template <int Number>
struct custom_rung {
  static constexpr keel::oom::rung_settings rung{.kind = keel::oom::rung_kind::custom};
};

#ifdef KEEL_TWIN
struct mine
    : keel::recipe<
          keel::shard::zero<3>,
          keel::oom::ladder<custom_rung<1>, custom_rung<2>, custom_rung<3>, custom_rung<4>, custom_rung<5>, custom_rung<6>, custom_rung<7>,
                            custom_rung<8>, custom_rung<9>, custom_rung<10>, custom_rung<11>, custom_rung<12>, custom_rung<13>, custom_rung<14>,
                            keel::oom::enable_recompute<keel::recompute::reentrant>, keel::oom::give_up>> {};
#else
struct mine
    : keel::recipe<
          keel::shard::zero<3>,
          keel::oom::ladder<custom_rung<1>, custom_rung<2>, custom_rung<3>, custom_rung<4>, custom_rung<5>, custom_rung<6>, custom_rung<7>,
                            custom_rung<8>, custom_rung<9>, custom_rung<10>, custom_rung<11>, custom_rung<12>, custom_rung<13>, custom_rung<14>,
                            keel::oom::enable_recompute<keel::recompute::non_reentrant>, keel::oom::give_up>> {};
#endif

template struct keel::checked<mine>;
