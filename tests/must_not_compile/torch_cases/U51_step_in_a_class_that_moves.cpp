// expect: U51
#include <torch/nn/modules/linear.h>
#include <torch/optim/adamw.h>

#include <keel/keel.hpp>

struct mine : keel::recipe<keel::nonfinite::skip<10>> {};

struct agent {
  torch::nn::Linear net{4, 1};
  torch::optim::AdamW optimizer{net->parameters()};
#ifdef KEEL_TWIN
  keel::owned<keel::step<mine>> step{net, torch::optim::AdamW(net->parameters())};
#else
  keel::step<mine> step{net, optimizer};
#endif
};

agent moved(agent& one) { return std::move(one); }
