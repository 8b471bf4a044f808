// expect: A01
// Everything that a program may do with a trainer comes after the one error in its recipe, and adds none.
#include <torch/nn/modules/linear.h>
#include <torch/optim/adamw.h>

#include <keel/trainer/trainer.hpp>

using namespace keel::literals;

#ifdef KEEL_TWIN
struct mine : keel::recipe<keel::checkpoint::every<500_steps>, keel::ema<0.999>> {};
#else
struct mine : keel::recipe<keel::recompute::non_reentrant, keel::shard::zero<3>, keel::checkpoint::every<500_steps>, keel::ema<0.999>> {};
#endif

bool train(torch::nn::Linear& model, torch::optim::AdamW& optimizer, std::vector<at::Tensor> const& batches) {
  auto loss_of = [&](at::Tensor const& batch) { return model->forward(batch).mean(); };

  keel::trainer<mine> run{model, optimizer, {.run_directory = "run", .updates = 1000}};
  keel::trainer<mine> without_options{model, optimizer};
  run.on([&](keel::event::update_end const& e) {
    if (e.loss > 10.0) run.request_stop();
  });

  bool const resumed = run.resume();
  keel::data_cursor const& cursor = run.cursor();
  std::int64_t const position = run.cursor().position;
  keel::step_outcome const stepped = run.step(batches[0], loss_of);
  if (stepped.is<keel::result::updated>()) run.save();

  keel::outcome result = run.fit(batches, loss_of);
  result = run.fit([&](std::int64_t) { return batches; }, loss_of);
  auto const deduced = run.fit(batches, loss_of);
  double const loss = run.evaluate(batches, loss_of);
  auto const averaged = run.averaged();
  static_cast<void>(averaged);
  run.request_stop();
  run.request_save();
  run.save_if(keel::agree(keel::world_of_one{}, loss > 10.0));
  run.log(keel::metric<keel::reduce::mean>("accuracy").reduced(keel::world_of_one{}, 0.93));

  std::int64_t const counted = run.updates() + run.skipped() + run.rungs_taken() + cursor.consumed + position;
  double const measured = run.learning_rate() * run.loss_scale() + loss;
  constexpr keel::config configured = keel::trainer<mine>::configured;
  return resumed && counted > 0 && measured > 0.0 && configured.checkpoint.keep > 0 && deduced.is<keel::result::finished>() &&
         run.fit(batches, loss_of).is<keel::result::stopped>();
}
