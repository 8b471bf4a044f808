// expect: A01
// Everything that a program may do with a step comes after the one error in its recipe, and adds none.
#include <torch/nn/modules/linear.h>
#include <torch/optim/adamw.h>

#include <keel/checkpoint/archive.hpp>
#include <keel/step/step.hpp>
#include <nlohmann/json.hpp>

#ifdef KEEL_TWIN
struct mine : keel::recipe<> {};
#else
struct mine : keel::recipe<keel::recompute::non_reentrant, keel::shard::zero<3> > {};
#endif


bool train(torch::nn::Linear& model, torch::optim::AdamW& optimizer, at::Tensor const& batch) {
  auto loss_of = [&](at::Tensor const& rows) { return model->forward(rows).mean(); };

  keel::step<mine> step{model, optimizer};
  keel::step<mine> with_length{model, optimizer, 1000};
  keel::step_outcome result = step(batch, loss_of);
  if (step(batch, loss_of).is<keel::result::skipped>()) return false;
  if (auto last = step.flush()) result = *last;

  nlohmann::json values;
  keel::tensor_map tensors;
  keel::state_writer saved(values, tensors, "");
  step.visit(saved);

  std::int64_t const counted = step.updates() + step.skipped() + step.pieces();
  double const measured = step.learning_rate() * step.loss_scale();
  return result.is<keel::result::updated>() && counted > 0 && measured > 0.0 && step.at_boundary() &&
         step.parameters().tensors.size() > 0 && step.optimizer().param_groups().size() > 0 && step.model().is_training() &&
         step.facts().world_size > 0;
}
