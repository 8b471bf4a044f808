// expect: U60
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include <keel/trainer/trainer.hpp>

struct mine : keel::recipe<keel::batch_guard::drop<>> {};

struct rows_of_text {
  at::Tensor ids;
  std::int64_t rows() const { return ids.size(0); }
  rows_of_text slice(std::int64_t begin, std::int64_t end) const { return {ids.slice(0, begin, end)}; }
#ifdef KEEL_TWIN
  void visit(auto& archive) { archive("ids", ids); }
#endif
};

void train(torch::nn::Linear& model, torch::optim::SGD& optimizer, std::vector<rows_of_text> const& batches) {
  keel::trainer<mine> run{model, optimizer};
  run.fit(batches, [&](rows_of_text const& batch) { return model->forward(batch.ids).mean(); });
}
