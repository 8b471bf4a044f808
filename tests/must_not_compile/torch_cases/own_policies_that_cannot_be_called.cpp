// expect: U19 U20 U21 U35 U39
#include <torch/nn/modules/linear.h>
#include <torch/optim/adamw.h>

#include <keel/step/step.hpp>

struct my_clip : keel::fills<keel::slot::clip> {
  static constexpr keel::clip::settings configured{keel::clip::kind::custom, 1.0};
#ifdef KEEL_TWIN
  static void clip(std::span<at::Tensor const>, double) {}
#else
  static void clip(std::vector<at::Tensor>&, double) {}
#endif
};

struct my_schedule : keel::fills<keel::slot::schedule> {
  static constexpr keel::schedule::settings configured{.kind = keel::schedule::kind::custom};
#ifdef KEEL_TWIN
  static double factor(std::int64_t, std::int64_t) { return 1.0; }
#else
  static double factor(std::int64_t) { return 1.0; }
#endif
};

struct my_skip : keel::fills<keel::slot::nonfinite> {
  static constexpr keel::nonfinite::settings configured{.kind = keel::nonfinite::kind::skip, .limit = 3};
#ifndef KEEL_TWIN
  struct state {
    double level = 0;
    void visit(auto& archive) { archive("level", level); }
  };
#endif
};

struct my_spike : keel::fills<keel::slot::spike> {
  static constexpr keel::spike::settings configured{};
#ifndef KEEL_TWIN
  template <class Loss>
  static bool decide(Loss loss) {
    return loss > 3.0;
  }
#endif
};

struct my_rung {
  static constexpr keel::oom::rung_settings rung{.kind = keel::oom::rung_kind::custom};
#ifdef KEEL_TWIN
  static bool take(torch::nn::Module&) { return false; }
#else
  static bool take() { return false; }
#endif
};

void build(torch::nn::Linear& model, torch::optim::AdamW& optimizer) {
  keel::step<keel::recipe<my_clip>> clips{model, optimizer};
  keel::step<keel::recipe<my_schedule>> schedules{model, optimizer};
  keel::step<keel::recipe<my_skip>> skips{model, optimizer};
  keel::step<keel::recipe<my_spike>> decides{model, optimizer};
  keel::step<keel::recipe<keel::oom::ladder<my_rung, keel::oom::give_up>>> climbs{model, optimizer};
}
