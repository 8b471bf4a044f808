// What fit trains on: a vector, a LibTorch data loader, a function of the epoch, a shuffled order, and that order under worker threads.
#include <keel/keel.hpp>

#include <keel/data/libtorch_sampler.hpp>
#include <torch/data/dataloader.h>
#include <torch/data/datasets/map.h>
#include <torch/data/datasets/tensor.h>
#include <torch/data/samplers/random.h>
#include <torch/data/transforms/stack.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include <cstdint>
#include <range/v3/view/iota.hpp>
#include <range/v3/view/transform.hpp>
#include <vector>

namespace {

struct plain : keel::recipe<keel::clip::global_norm<1.0>> {};

/// The mean loss of a batch of rows: the model learns the sum of each row.
auto sum_loss(torch::nn::Linear& model) {
  return [&model](at::Tensor const& x) { return at::mse_loss(model(x), x.sum(1, true)); };
}

bool train_on_a_vector() {
  torch::nn::Linear model(4, 1);
  torch::optim::SGD optimizer(model->parameters(), 0.05);
  auto const loss_of = sum_loss(model);
  // [vectors]
  std::vector<at::Tensor> const batches = at::randn({64, 4}).split(8);   // 8 micro-batches of 8 rows
  keel::trainer<plain> run{model, optimizer, {.updates = 20, .console_every = 10}};
  run.fit(batches, loss_of);                                             // two and a half passes over the vector
  // [vectors]
  return run.updates() == 20;
}

bool train_on_a_loader() {
  torch::nn::Linear model(4, 1);
  torch::optim::SGD optimizer(model->parameters(), 0.05);
  auto const loss_of = sum_loss(model);
  // [loader]
  using stack = torch::data::transforms::Stack<torch::data::TensorExample>;
  auto const dataset = torch::data::datasets::TensorDataset(at::randn({64, 4})).map(stack());
  auto const loader = torch::data::make_data_loader<torch::data::samplers::RandomSampler>(dataset, torch::data::DataLoaderOptions(8));
  keel::trainer<plain> run{model, optimizer, {.epochs = 2, .console_every = 10}};
  run.fit(*loader, [&](torch::data::TensorExample const& batch) { return loss_of(batch.data); });   // the loader, not the pointer
  // [loader]
  return run.updates() == 16;
}

bool train_on_a_function_of_the_epoch() {
  torch::nn::Linear model(4, 1);
  torch::optim::SGD optimizer(model->parameters(), 0.05);
  auto const loss_of = sum_loss(model);
  // [epoch_function]
  at::Tensor const rows = at::randn({64, 4});
  auto const batches_of = [&rows](std::int64_t epoch) {   // epoch: 0, 1, 2, ..
    return ranges::views::iota(std::int64_t{0}, std::int64_t{8}) |
           ranges::views::transform([&rows, epoch](std::int64_t i) { return rows.narrow(0, (i + epoch) % 8 * 8, 8); });
  };
  keel::trainer<plain> run{model, optimizer, {.epochs = 3, .console_every = 10}};
  run.fit(batches_of, loss_of);
  // [epoch_function]
  return run.updates() == 24;
}

bool train_on_a_shuffled_order() {
  torch::nn::Linear model(4, 1);
  torch::optim::SGD optimizer(model->parameters(), 0.05);
  auto const loss_of = sum_loss(model);
  // [shuffled]
  at::Tensor const rows = at::randn({60, 4});
  keel::shuffled_batches const order{{.rows = 60, .batch = 8, .seed = 7}};   // 8 batches an epoch; the last one has 4 rows
  keel::trainer<plain> run{model, optimizer, {.epochs = 2, .batches_per_epoch = order.size(), .console_every = 10}};
  run.fit(order, [&](keel::row_numbers const& numbers) {
    return loss_of(rows.index_select(0, at::tensor(at::ArrayRef<std::int64_t>(numbers))));
  });
  // [shuffled]
  return run.updates() == 16;
}

bool train_with_worker_threads() {
  torch::nn::Linear model(4, 1);
  torch::optim::SGD optimizer(model->parameters(), 0.05);
  auto const loss_of = sum_loss(model);
  using stack = torch::data::transforms::Stack<torch::data::TensorExample>;
  auto const dataset = torch::data::datasets::TensorDataset(at::randn({64, 4})).map(stack());
  // [workers]
  keel::shuffled_batches const order{{.rows = 64, .batch = 8, .seed = 7}};
  auto const loader_at = [&](std::int64_t epoch, std::int64_t position) {
    return torch::data::make_data_loader(dataset, keel::libtorch_sampler(order, epoch, position),
                                         torch::data::DataLoaderOptions(8).workers(2));
  };
  keel::trainer<plain> run{model, optimizer, {.epochs = 2, .batches_per_epoch = order.size(), .console_every = 10}};
  run.fit(loader_at, [&](torch::data::TensorExample const& batch) { return loss_of(batch.data); });
  // [workers]
  return run.updates() == 16;
}

}  // namespace

int main() {
  at::manual_seed(1);
  bool const all_trained = train_on_a_vector() && train_on_a_loader() && train_on_a_function_of_the_epoch() &&
                           train_on_a_shuffled_order() && train_with_worker_threads();
  return all_trained ? 0 : 1;
}
