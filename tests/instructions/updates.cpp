// An update of a small transformer each: by a keel step with every policy at its default, by the loop that one would write by
// hand for the same, and by that loop without the look at the gradients. One process, so that their instructions can be counted.
#include <ATen/Parallel.h>
#include <valgrind/callgrind.h>

#include <cmath>
#include <cstdlib>
#include <keel/step/step.hpp>
#include <keel/optimizer/adam.hpp>
#include <vector>

#include "../../examples/char_gpt/model.hpp"

namespace {

struct plain : keel::recipe<> {};

constexpr char_gpt::model_size size{.vocabulary = 96, .context = 64, .width = 128, .heads = 4, .layers = 3, .dropout = 0.0};

at::Tensor loss_of(char_gpt::gpt& model, at::Tensor const& ids) {
  at::Tensor const logits = model->forward(ids.slice(1, 0, size.context));
  return at::cross_entropy_loss(logits.reshape({-1, size.vocabulary}), ids.slice(1, 1, size.context + 1).reshape({-1}));
}

struct ground {
  char_gpt::gpt model{size};
  keel::adamw optimizer{model->parameters(), torch::optim::AdamWOptions(1e-4)};
};

void update_by_hand(ground& on, at::Tensor const& ids, bool checks) {
  auto const parameters = on.model->parameters();
  for (at::Tensor const& one : parameters) one.mutable_grad() = at::Tensor();
  at::Tensor const loss = loss_of(on.model, ids);
  loss.backward();
  if (checks) {
    std::vector<at::Tensor> gradients;
    for (at::Tensor const& one : parameters) gradients.push_back(one.grad());
    if (!std::isfinite(*loss.data_ptr<float>()) || keel::measure_gradients(gradients).first_nonfinite >= 0) std::abort();
  }
  on.optimizer.step();
}

}  // namespace

int main() {
  at::set_num_threads(1);
  at::manual_seed(1);
  at::Tensor const ids = at::randint(size.vocabulary, {2, size.context + 1});
  ground a, b, c;
  keel::step<plain> step{a.model, a.optimizer};
  auto const by_keel = [&] { step(ids, [&](at::Tensor const& batch) { return loss_of(a.model, batch); }); };
  auto const by_hand = [&] { update_by_hand(b, ids, true); };
  auto const bare = [&] { update_by_hand(c, ids, false); };
  by_keel();
  by_hand();
  bare();
  CALLGRIND_START_INSTRUMENTATION;
  CALLGRIND_ZERO_STATS;
  by_keel();
  CALLGRIND_DUMP_STATS_AT("keel");
  by_hand();
  CALLGRIND_DUMP_STATS_AT("hand");
  bare();
  CALLGRIND_DUMP_STATS_AT("bare");
  CALLGRIND_STOP_INSTRUMENTATION;
}
