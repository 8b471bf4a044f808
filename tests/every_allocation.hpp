// Out of memory at every place of an update: the Nth allocation fails, for N = 1, 2, 3 .. until the update passes. Each time
// the run takes its rung and goes on as one that began where the rung leads.
#pragma once

#include "transformer.hpp"

namespace keel_test {

/// All that a run has come to.
struct ended {
  std::vector<at::Tensor> model;
  optimizer_image optimizer;
  at::Tensor next_random;
};
inline bool same(ended const& a, ended const& b) {
  return same_bits(a.model, b.model) && same_bits(a.optimizer, b.optimizer) && same_bits(a.next_random, b.next_random);
}

enum class beginning { plain, quantized, shortened, in_halves, narrow };

template <class Optimizer>
Optimizer make_optimizer(torch::nn::Module& model) {
  if constexpr (std::is_same_v<Optimizer, keel::sgd>) {
    return keel::sgd(keel::trained_parameters(model), torch::optim::SGDOptions(0.05).momentum(0.9));
  } else {
    return Optimizer(keel::trained_parameters(model), 0.05);
  }
}

template <class Recipe, class Optimizer>
struct run {
  run(std::int64_t updates_before, beginning from, bool narrow) {
    keel::freeze_base(*model);
    if (narrow) model->to(at::kBFloat16);
    if (from == beginning::quantized) keel::quantize_base(*model);
    for (std::uint64_t i = 0; i < 2 * static_cast<std::uint64_t>(updates_before + 2); ++i) {
      at::Tensor const ids = from == beginning::shortened ? keel::shortened(some_ids(i), 5) : some_ids(i);
      if (from == beginning::in_halves) {
        batches.push_back(ids.slice(0, 0, 2));
        batches.push_back(ids.slice(0, 2, 4));
      } else {
        batches.push_back(ids);
      }
    }
    optimizer.emplace(make_optimizer<Optimizer>(*model));
    step.emplace(*model, *optimizer);
    keel::libtorch::seed_random(at::kCPU, 7);
    for (std::int64_t i = 0; i < updates_before; ++i) update();
  }
  keel::step_outcome update() {
    for (;;) {
      keel::step_outcome const last = (*step)(batches.at(position++), loss);
      if (!last.is<keel::result::accumulated>()) return last;
    }
  }
  ended end() {
    ended result{{}, image_of(*model, *optimizer), at::rand({3})};
    for (auto const& one : model->parameters()) result.model.push_back(one.detach().clone());
    return result;
  }

  std::shared_ptr<transformer> model = make_transformer();
  std::function<at::Tensor(at::Tensor const&)> loss = next_token_loss(model);
  std::optional<Optimizer> optimizer;
  std::optional<keel::step<Recipe>> step;
  std::vector<at::Tensor> batches;
  std::size_t position = 0;
};

/// `Climbs` has one rung, and keel::incident::off: what an incident would need is given up without a rung; `Reference` with `from` begins where it leads. `updates_before`: of the update that runs out.
template <class Climbs, class Reference, class Optimizer = keel::adamw>
void every_allocation_fails_once(std::int64_t updates_before, beginning from = beginning::plain, bool narrow = false) {
  keel::memory::budget budget;
  auto const outside = budget.allocated();
  ended expected;
  {
    run<Reference, Optimizer> reference(updates_before, from, narrow);
    REQUIRE(reference.update().template is<keel::result::updated>());
    REQUIRE(reference.update().template is<keel::result::updated>());
    expected = reference.end();
  }
  auto const before = budget.allocated();
  std::int64_t held = 0;
  // All of them: sweep.every_allocation.
  std::int64_t const every = std::getenv("KEEL_LONG_TESTS") != nullptr ? 1 : 7;
  std::int64_t nth = 1 - every;
  bool failed = true;
  while (failed) {
    REQUIRE((nth += every) < 5000);
    INFO("allocation " << nth);
    {
      run<Climbs, Optimizer> disturbed(updates_before, beginning::plain, narrow);
      auto const refused = budget.refused();
      budget.refuse_allocation(nth);
      keel::step_outcome const outcome = disturbed.update();
      budget.refuse_allocation(0);
      failed = budget.refused() > refused;
      REQUIRE(outcome.is<keel::result::updated>());
      REQUIRE(disturbed.update().template is<keel::result::updated>());
      if (failed) {
        // Wherever it failed, the same is held afterwards: the model, gradients and moments.
        if (held == 0) held = budget.allocated();
        REQUIRE(budget.allocated() == held);
        REQUIRE(same(disturbed.end(), expected));
      }
    }
    REQUIRE(budget.allocated() == before);
  }
  CHECK(nth > 50);
  expected = {};
  CHECK(budget.allocated() == outside);
}

}  // namespace keel_test
