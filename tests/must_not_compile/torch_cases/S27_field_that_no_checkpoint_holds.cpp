// expect: S27
#include <torch/nn/modules/linear.h>
#include <torch/optim/adamw.h>

#include <keel/trainer/trainer.hpp>
#include <map>
#include <string>
#include <unordered_map>

struct lessons {
  float level = 0.0F;
#ifdef KEEL_TWIN
  std::map<std::string, double> weights;
#else
  std::unordered_map<std::string, double> weights;
#endif
  void visit(auto& archive) {
    archive("level", level);
    archive("weights", weights);
  }
};

void train(torch::nn::Linear& model, torch::optim::AdamW& optimizer, std::vector<at::Tensor> const& batches, lessons& state) {
  keel::trainer<keel::recipe<keel::checkpoint::every<keel::steps{10}>>> run{model, optimizer};
  run.register_state("lessons", state);
  run.fit(batches, [&](at::Tensor const& batch) { return model->forward(batch).mean(); });
}
