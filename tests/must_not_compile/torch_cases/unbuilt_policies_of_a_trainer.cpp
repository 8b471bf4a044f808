// expect: U01 U02 U02 U11 U28
#include <torch/nn/modules/linear.h>
#include <torch/optim/adamw.h>

#include <keel/loop/trainer.hpp>

using namespace keel::literals;
using saves = keel::checkpoint::every<500_steps>;

#ifdef KEEL_TWIN
struct by_failures : keel::recipe<saves> {};
struct in_the_background : keel::recipe<keel::checkpoint::every<500_steps, keel::checkpoint::synchronous>> {};
struct rolls_back : keel::recipe<saves, keel::nonfinite::skip<10>> {};
struct rolls_back_spikes : keel::recipe<saves, keel::spike::skip<>> {};
struct keeps_the_best : keel::recipe<saves> {};
#else
struct by_failures : keel::recipe<keel::checkpoint::young_daly<keel::checkpoint::mean_time_between_failures<24_h>>> {};
struct in_the_background : keel::recipe<keel::checkpoint::every<500_steps, keel::checkpoint::asynchronous>> {};
struct rolls_back : keel::recipe<saves, keel::nonfinite::rollback<10>> {};
struct rolls_back_spikes : keel::recipe<saves, keel::spike::rollback<>> {};
struct keeps_the_best
    : keel::recipe<keel::checkpoint::every<500_steps, keel::checkpoint::keep_best, keel::checkpoint::by_training_loss>> {};
#endif

void build(torch::nn::Linear& model, torch::optim::AdamW& optimizer) {
  keel::trainer<by_failures> first{model, optimizer, {.run_directory = "first"}};
  keel::trainer<in_the_background> second{model, optimizer, {.run_directory = "second"}};
  keel::trainer<rolls_back> third{model, optimizer, {.run_directory = "third"}};
  keel::trainer<rolls_back_spikes> spikes{model, optimizer, {.run_directory = "spikes"}};
  keel::trainer<keeps_the_best> fourth{model, optimizer, {.run_directory = "fourth"}};
}
