#include "../transformer.hpp"

using namespace keel_test;

namespace {

struct plain : keel::recipe<keel::accumulate<2>> {};
struct one_batch : keel::recipe<> {};
struct recomputing : keel::recipe<keel::accumulate<2>, keel::recompute::non_reentrant, keel::ema<0.99>> {};
struct sharing : keel::recipe<keel::shard::zero<1>> {};
struct sharing_all : keel::recipe<keel::shard::zero<3>> {};
struct offloading : keel::recipe<keel::accumulate<2>, keel::recompute::reentrant, keel::offload::optimizer> {};

/// What two updates take at most, beside what was there before.
template <class Recipe>
double measured(std::int64_t rows) {
  keel::memory::budget budget;
  auto const ids = some_ids(1, rows, 32);
  auto const before = budget.allocated();
  auto const model = make_transformer(1, 64);
  keel::adamw optimizer(model->parameters(), 0.01);
  for (auto const& one : model->parameters()) one.set_requires_grad(true);
  keel::adamw all(model->parameters(), 0.01);
  keel::step<Recipe> step{*model, all};
  for (int i = 0; i < 4; ++i) step(ids, next_token_loss(model));
  budget.reset_peak();
  for (int i = 0; i < 2; ++i) step(ids, next_token_loss(model));
  return static_cast<double>(budget.peak() - before);
}

template <class Recipe>
double estimated(std::int64_t rows) {
  auto const model = make_transformer(1, 64);
  for (auto const& one : model->parameters()) one.set_requires_grad(true);
  return static_cast<double>(keel::memory::estimate<Recipe>(*model, some_ids(1, rows, 32), next_token_loss(model)).peak());
}

}  // namespace

TEST_CASE("an estimate is within a fifth of what an update takes, for several recipes and sizes of the batch") {
  for (std::int64_t const rows : {2, 8, 32}) {
    INFO(rows << " rows");
    CHECK(estimated<plain>(rows) / measured<plain>(rows) == Approx(1.0).margin(0.2));
    CHECK(estimated<one_batch>(rows) / measured<one_batch>(rows) == Approx(1.0).margin(0.2));
    CHECK(estimated<recomputing>(rows) / measured<recomputing>(rows) == Approx(1.0).margin(0.2));
    CHECK(estimated<offloading>(rows) / measured<offloading>(rows) == Approx(1.0).margin(0.2));
  }
}

TEST_CASE("an estimate names each part, grows with the rows alone where it should, and leaves the model as it was") {
  auto const model = make_transformer();
  auto const before = copies_of(model->parameters());
  keel::memory::budget budget;
  {
    auto const held = budget.allocated();
    keel::memory::estimate<recomputing>(*model, some_ids(1, 8), next_token_loss(model));
    CHECK(budget.allocated() == held);
  }
  keel::libtorch::seed_random(at::kCPU, 5);
  at::Tensor const next = at::rand({2});
  keel::libtorch::seed_random(at::kCPU, 5);
  auto const eight = keel::memory::estimate<plain>(*model, some_ids(1, 8), next_token_loss(model));
  auto const sixteen = keel::memory::estimate<plain>(*model, some_ids(1, 16), next_token_loss(model));
  CHECK(same_bits(at::rand({2}), next));
  CHECK(same_bits(model->parameters(), before));
  for (auto const& one : model->parameters()) CHECK_FALSE(one.grad().defined());
  CHECK(eight.parameters == sixteen.parameters);
  CHECK(eight.optimizer == 2 * eight.gradients);
  auto const ids_of_eight = some_ids(1, 8);
  auto const of_rank = keel::memory::estimate<sharing>(*model, ids_of_eight, next_token_loss(model), {.ranks = 4});
  CHECK(of_rank.sums == 0);
  CHECK(std::abs(of_rank.optimizer - eight.optimizer / 4) < 256);
  CHECK(keel::memory::estimate<sharing>(*model, ids_of_eight, next_token_loss(model)).optimizer == eight.optimizer);
  REQUIRE(eight.units.size() == 2);
  CHECK(eight.units[0] == eight.units[1]);
  CHECK(static_cast<double>(sixteen.activations) == Approx(2.0 * static_cast<double>(eight.activations)).epsilon(0.05));
  CHECK(eight.rows == 8);
  CHECK(eight.describe().find("logits") != std::string::npos);
  CHECK(eight.describe().find("unit 1") != std::string::npos);
  // By the model's forward alone.
  auto const ids = some_ids(1, 8).slice(1, 0, 6);
  CHECK(keel::memory::estimate<plain>(model, ids).units == eight.units);
}

TEST_CASE("under zero<3> the parameters of units count as shards, and one unit as whole with the buffers of its gather") {
  torch::nn::Sequential layers(torch::nn::Linear(64, 64), torch::nn::Linear(64, 64), torch::nn::Linear(64, 4));
  auto const loss_of = [&](at::Tensor const& rows) {
    at::Tensor x = rows;
    for (std::size_t i = 0; i < 2; ++i) x = keel::unit(layers->ptr<torch::nn::LinearImpl>(i), x);
    return layers->ptr<torch::nn::LinearImpl>(2)->forward(x).square().mean();
  };
  at::Tensor const rows = at::ones({4, 64});
  std::int64_t const unit = 4 * (64 * 64 + 64), outside = 4 * (64 * 4 + 4);
  auto const whole = keel::memory::estimate<sharing>(*layers, rows, loss_of, {.ranks = 4});
  auto const shards = keel::memory::estimate<sharing_all>(*layers, rows, loss_of, {.ranks = 4});
  CHECK(whole.parameters == 2 * unit + outside);
  CHECK(whole.gathered == 0);
  CHECK(shards.parameters == 2 * unit / 4 + outside);
  CHECK(shards.gathered == 3 * unit + 2 * (unit / 4));
  CHECK(shards.describe().find("gathered") != std::string::npos);
  // Gradients of bfloat16 are summed in other memory, in float32.
  layers->to(at::kBFloat16);
  auto const narrow = keel::memory::estimate<sharing>(*layers, rows.to(at::kBFloat16), loss_of, {.ranks = 4});
  CHECK(narrow.sums == 2 * narrow.gradients);
  CHECK(narrow.describe().find("of the gradients of all ranks") != std::string::npos);
  layers->to(at::kFloat);
  CHECK(keel::memory::estimate<sharing_all>(*layers, rows, loss_of).parameters == whole.parameters);
}
