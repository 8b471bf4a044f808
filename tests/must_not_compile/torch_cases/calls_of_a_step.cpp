// expect: U14 U15 U16 U34
#include <torch/nn/modules/linear.h>
#include <torch/optim/adamw.h>

#include <keel/step/step.hpp>

struct counted {
  at::Tensor rows;
};
struct cut : counted {};

template <>
struct keel::batch_traits<counted> {
  static std::int64_t rows(counted const& batch) { return batch.rows.size(0); }
  static std::int64_t tokens(counted const& batch) { return batch.rows.numel(); }
};
template <>
struct keel::batch_traits<cut> : keel::batch_traits<counted> {
  static cut slice(cut const& batch, std::int64_t begin, std::int64_t end) { return {{batch.rows.slice(0, begin, end)}}; }
};
struct uncountable : counted {};
struct texts : cut {};
template <>
struct keel::batch_traits<texts> : keel::batch_traits<cut> {
  static texts slice(texts const& batch, std::int64_t, std::int64_t) { return batch; }
  static texts shortened(texts const& batch, std::int64_t) { return batch; }
};

struct plain : keel::recipe<> {};
struct shortens
    : keel::recipe<keel::oom::ladder<keel::oom::halve_micro_batch, keel::oom::shorten_sequence<64>, keel::oom::give_up>> {};
struct halves : keel::recipe<keel::oom::ladder<keel::oom::halve_micro_batch, keel::oom::give_up>> {};

#ifdef KEEL_TWIN
using first_batch = counted;
using second_batch = cut;
using third_batch = texts;
#else
using first_batch = uncountable;
using second_batch = counted;
using third_batch = cut;
#endif

void train(torch::nn::Linear& model, torch::optim::AdamW& optimizer) {
  auto loss_of = [&](counted const& batch) { return model->forward(batch.rows).mean(); };
  keel::step<plain> step{model, optimizer};
  keel::step<halves> step_with_ladder{model, optimizer};
  keel::step<shortens> step_that_shortens{model, optimizer};

  keel::step_outcome result = step(first_batch{}, loss_of);
  result = step_with_ladder(second_batch{}, loss_of);
  result = step_that_shortens(third_batch{}, loss_of);

#ifdef KEEL_TWIN
  result = step(counted{}, [&](counted const& batch) { return model->forward(batch.rows).mean(); });
#else
  result = step(counted{}, [&](counted& batch) { return model->forward(batch.rows).mean(); });
#endif
}
