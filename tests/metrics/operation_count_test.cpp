// Floating-point operations: counted against closed forms, and what the record says of utilisation.
#include "../support.hpp"

#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/pooling.h>

#include <keel/metrics/operation_count.hpp>
#include <nlohmann/json.hpp>
#include <thread>

#include "../transformer.hpp"

using namespace keel_test;
using namespace keel::literals;

namespace {

void check_near(double counted, double wanted) {
  CAPTURE(counted, wanted);
  CHECK(counted > 0.98 * wanted);
  CHECK(counted < 1.02 * wanted);
}

}  // namespace

TEST_CASE("the operations of a perceptron are those of its formula") {
  torch::nn::Sequential model(torch::nn::Linear(64, 128), torch::nn::Linear(128, 128), torch::nn::Linear(128, 10));
  at::Tensor const x = at::rand({32, 64});
  double const counted = keel::count_operations([&] { model->forward(x).sum().backward(); });
  // Two operations a weight and row forward, and four backward, of which the first layer has no gradient for its input.
  check_near(counted, 32.0 * (6.0 * (64 * 128 + 128 * 128 + 128 * 10) - 2.0 * 64 * 128));
}

TEST_CASE("the operations of a convolutional network are those of its formula") {
  torch::nn::Conv2d first(torch::nn::Conv2dOptions(3, 16, 3).padding(1));
  torch::nn::Conv2d second(torch::nn::Conv2dOptions(16, 32, 3).stride(2).groups(2));
  torch::nn::ConvTranspose2d third(torch::nn::ConvTranspose2dOptions(32, 8, 2).stride(2));
  at::Tensor const x = at::rand({4, 3, 16, 16});
  double const counted = keel::count_operations([&] { third(at::relu(second(at::relu(first(x))))).sum().backward(); });
  double const of_first = 2.0 * 4 * 16 * 16 * 16 * 3 * 9;
  double const of_second = 2.0 * 4 * 7 * 7 * 32 * 8 * 9;
  double const of_third = 2.0 * 4 * 7 * 7 * 32 * 8 * 4;
  check_near(counted, 2.0 * of_first + 3.0 * of_second + 3.0 * of_third);
}

TEST_CASE("the operations of a transformer are six a parameter and token, and its attention") {
  constexpr std::int64_t width = 64, rows = 2, length = 32, layers = 2;
  auto const model = make_transformer(1, width);
  for (auto& parameter : model->parameters()) parameter.requires_grad_(true);
  auto const ids = at::randint(0, transformer::vocabulary, {rows, length}, at::kLong);
  double const counted = keel::count_operations([&] { model->forward(ids).sum().backward(); });
  // Each block has 11 * width^2 weights in products, because it projects no output of its attention, beside the adapters of rank 2, whose products count too; the head has the vocabulary's.
  double const weights = layers * (11.0 * width * width + 2.0 * (width + 3 * width) + 2.0 * (width + 4 * width) * 2) +
                         static_cast<double>(width * transformer::vocabulary);
  double const attention = layers * 12.0 * rows * length * length * width;
  check_near(counted, 6.0 * weights * rows * length + attention);
}

TEST_CASE("two counts at once count their own threads alone") {
  at::Tensor const a = at::rand({16, 16});
  double outer = 0.0;
  double inner = 0.0;
  double elsewhere = 0.0;
  outer = keel::count_operations([&] {
    at::mm(a, a);
    inner = keel::count_operations([&] { at::mm(a, a); });
    std::thread([&] {
      elsewhere = keel::count_operations([&] {
        for (int i = 0; i < 3; ++i) at::mm(a, a);
      });
    }).join();
  });
  double const one = 2.0 * 16 * 16 * 16;
  CHECK(inner == one);
  CHECK(outer == 2.0 * one);
  CHECK(elsewhere == 3.0 * one);
}

TEST_CASE("counting leaves the run as it was, and the record has its utilisation from then on") {
  struct plain : keel::recipe<keel::checkpoint::every<5_steps>> {};
  auto const train = [](std::filesystem::path const& directory, bool counts) {
    auto const model = make_small(1, 0.1);
    torch::optim::AdamW optimizer(model->parameters(), torch::optim::AdamWOptions(0.01));
    keel::trainer<plain> run{model, optimizer, quiet({.run_directory = directory, .updates = 10, .peak_operations_per_second = 1e12})};
    if (counts) {
      double const per_token = run.count_operations(make_pair_batch(1), mean_squared_error(model));
      check_near(per_token, 6.0 * (6 * 8 + 8) - 2.0 * 6 * 8);
    }
    std::vector<pair_batch> batches;
    for (std::uint64_t i = 0; i < 10; ++i) batches.push_back(make_pair_batch(i));
    run.fit(batches, mean_squared_error(model));
  };
  scratch_directory const directory;
  train(directory / "plain", false);
  train(directory / "counted", true);
  CHECK(timeless_metrics(directory / "plain") == timeless_metrics(directory / "counted"));
  auto const line = nlohmann::json::parse(read_lines(directory / "counted/metrics.jsonl").back());
  double const wanted = (6.0 * (6 * 8 + 8) - 2.0 * 6 * 8) * 8 * 1e3 / (line["ms"].get<double>() * 1e12);
  CHECK(line["mfu"].get<double>() == Approx(wanted));
  CHECK(!nlohmann::json::parse(read_lines(directory / "plain/metrics.jsonl").back()).contains("mfu"));
}

TEST_CASE("a measured peak is what this machine can do") {
  double const peak = keel::measured_peak(at::kCPU, at::kFloat);
  CHECK(peak > 1e8);
  CHECK(peak < 1e14);
}
