// expect: U17 U18 U31 U32
#include <torch/nn/modules/linear.h>
#include <torch/optim/adamw.h>

#include <keel/trainer/trainer.hpp>
#include <range/v3/view/cache1.hpp>

#ifdef KEEL_TWIN
struct mine : keel::recipe<keel::ema<0.99>> {};
#else
struct mine : keel::recipe<> {};
#endif

void train(torch::nn::Linear& model, torch::optim::AdamW& optimizer, std::vector<at::Tensor> const& batches) {
  auto loss_of = [&](at::Tensor const& batch) { return model->forward(batch).mean(); };
  keel::trainer<mine> run{model, optimizer};
#ifdef KEEL_TWIN
  run.on([](keel::event::update_end const& e) { (void)e; });
  keel::outcome const result = run.fit(batches, loss_of);
  auto const range = run.lr_range_test(batches, loss_of);
#else
  run.on([](keel::event::update_end& e) { (void)e; });
  keel::outcome const result = run.fit(static_cast<int>(batches.size()), loss_of);
  auto once = batches | ranges::views::cache1;
  auto const range = run.lr_range_test(once, loss_of);
#endif
  auto scope = run.averaged();
  (void)result;
  (void)range;
}
