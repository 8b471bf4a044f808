// expect: U47 U52 U53 U54
#include <torch/nn/modules/linear.h>
#include <torch/optim/adamw.h>

#include <keel/keel.hpp>

using namespace keel::literals;

#ifdef KEEL_TWIN
struct of_run : keel::recipe<keel::checkpoint::every<500_steps>> {};
struct of_other_run : keel::recipe<> {};
struct of_part : keel::recipe<keel::clip::global_norm<1.0>> {};
struct of_other_part : keel::recipe<keel::clip::global_norm<1.0>> {};
#else
struct of_run : keel::recipe<keel::clip::global_norm<1.0>> {};
struct of_other_run : keel::recipe<keel::checkpoint::every<500_steps, keel::checkpoint::on_exception>> {};
struct of_part : keel::recipe<keel::checkpoint::every<500_steps>> {};
struct of_other_part : keel::recipe<keel::clip::global_norm<keel::given>> {};
#endif

void train(torch::nn::Linear& model, torch::nn::Linear& other, torch::optim::AdamW& optimizer, torch::optim::AdamW& second) {
  keel::run<of_run> run;
  keel::run<of_other_run> other_run;
  keel::part<of_part> part{run, "part", model, optimizer};
  keel::part<of_other_part> other_part{run, "other", other, second};
}
