// expect: U53 U56 U57 U59 U59
#include <torch/nn/modules/linear.h>
#include <torch/optim/adamw.h>

#include <keel/trainer/part.hpp>

#ifdef KEEL_TWIN
struct of_ranks : keel::recipe<keel::shard::replicate> {};
struct of_other_ranks : keel::recipe<keel::shard::replicate> {};
struct of_one : keel::recipe<> {};
struct part_of_ranks : keel::recipe<keel::shard::zero<1>> {};
struct part_of_one : keel::recipe<> {};
#else
struct of_ranks : keel::recipe<keel::shard::replicate> {};
struct of_other_ranks : keel::recipe<keel::shard::zero<1>> {};
struct of_one : keel::recipe<> {};
struct part_of_ranks : keel::recipe<> {};
struct part_of_one : keel::recipe<keel::shard::zero<1>> {};
#endif

void train(torch::nn::Linear& model, torch::nn::Linear& other, torch::optim::AdamW& optimizer, torch::optim::AdamW& second,
           keel::world_of_ranks const& world) {
  keel::run<of_other_ranks> other_run{world};
#ifdef KEEL_TWIN
  keel::run<of_ranks> run{world, {.updates = 3}};
  keel::run<of_one> alone{{.updates = 3}};
#else
  keel::run<of_ranks> run{{.updates = 3}};
  keel::run<of_one> alone{world, {.updates = 3}};
#endif
  keel::part<part_of_ranks> part{run, "part", model, optimizer};
  keel::part<part_of_one> part_alone{alone, "part", other, second};
}
