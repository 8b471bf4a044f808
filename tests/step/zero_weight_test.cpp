// Micro-batches of weight zero, as where every label is masked: they count for nothing, and an update of nothing else is skipped.
#include <torch/optim/lbfgs.h>

#include <keel/collective/in_process.hpp>

#include "../support.hpp"

using namespace keel_test;

namespace {

struct raises : keel::recipe<> {};
struct of_three : keel::recipe<keel::accumulate<3>, keel::clip::global_norm<0.5>> {};
struct summed : keel::recipe<keel::accumulate<3, keel::sum>> {};
struct of_ranks : keel::recipe<keel::shard::replicate, keel::accumulate<2>> {};

/// The mean over the rows that count, 0 / 0 where none does, as a masked loss of LibTorch.
struct masked_loss {
  small_module& model;
  double weight;
  keel::weighted_loss operator()(pair_batch const& batch) const {
    at::Tensor const squares = (model.forward(batch.first) - batch.second).square();
    return {weight > 0.0 ? squares.mean() : squares.sum() / 0.0, weight};
  }
};

/// Trains one update of micro-batches with these weights.
template <class Recipe>
std::vector<at::Tensor> train(std::vector<double> const& weights, bool leaves_out_zeros) {
  auto const model = make_small();
  torch::optim::SGD optimizer(model->parameters(), 0.1);
  keel::step<Recipe> step{model, optimizer};
  for (std::uint64_t i = 0; i < weights.size(); ++i) {
    if (leaves_out_zeros && weights[i] == 0.0) continue;
    step(make_pair_batch(i), masked_loss{*model, weights[i]});
  }
  step.flush();
  CHECK(step.skipped() == 0);
  return copies_of(model->parameters());
}

}  // namespace

TEST_CASE("a micro-batch of weight zero counts for nothing, wherever in its update it comes") {
  struct of_two : keel::recipe<keel::accumulate<2>, keel::clip::global_norm<0.5>> {};
  struct summed_two : keel::recipe<keel::accumulate<2, keel::sum>> {};
  for (std::vector<double> const& weights : std::vector<std::vector<double>>{{0, 4, 8}, {4, 0, 8}, {4, 8, 0}}) {
    CHECK(same_bits(train<of_three>(weights, false), train<of_two>(weights, true)));
    CHECK(same_bits(train<summed>(weights, false), train<summed_two>(weights, true)));
  }
}

TEST_CASE("an update of weight zero is skipped with that reason, whatever the recipe does about values that are not finite") {
  auto const model = make_small();
  torch::optim::AdamW optimizer(model->parameters(), 0.1);
  auto const before = copies_of(model->parameters());
  keel::step<raises> step{model, optimizer};
  auto const outcome = step(make_pair_batch(1), masked_loss{*model, 0.0});
  REQUIRE(outcome.skipped() != nullptr);
  CHECK(outcome.skipped()->why == keel::reason::zero_weight);
  CHECK(std::string(keel::to_string(outcome.skipped()->why)) == "zero weight");
  CHECK(same_bits(model->parameters(), before));
  CHECK(step(make_pair_batch(2), masked_loss{*model, 8.0}).updated() != nullptr);
}

TEST_CASE("an optimizer with a closure skips an update of weight zero") {
  auto const model = make_small();
  torch::optim::LBFGS optimizer(model->parameters(), torch::optim::LBFGSOptions(0.1).max_iter(3));
  auto const before = copies_of(model->parameters());
  keel::step<raises> step{model, optimizer};
  auto const outcome = step(make_pair_batch(1), masked_loss{*model, 0.0});
  REQUIRE(outcome.skipped() != nullptr);
  CHECK(outcome.skipped()->why == keel::reason::zero_weight);
  CHECK(same_bits(model->parameters(), before));
}

TEST_CASE("100 updates of weight zero in a row end the run, and 99 do not") {
  auto const model = make_small();
  torch::optim::SGD optimizer(model->parameters(), 0.1);
  keel::step<raises> step{model, optimizer};
  for (int round = 0; round < 2; ++round) {
    for (int i = 0; i < 99; ++i) step(make_pair_batch(1), masked_loss{*model, 0.0});
    if (round == 0) step(make_pair_batch(1), masked_loss{*model, 1.0});
  }
  try {
    step(make_pair_batch(1), masked_loss{*model, 0.0});
    FAIL("nothing was thrown");
  } catch (keel::data_error const& thrown) {
    CHECK(thrown.id() == "E07");
    CHECK(std::string(thrown.what()).find("100 consecutive updates") != std::string::npos);
  }
}

TEST_CASE("a weight that is negative or not finite is rejected") {
  auto const model = make_small();
  torch::optim::SGD optimizer(model->parameters(), 0.1);
  keel::step<raises> step{model, optimizer};
  for (double const weight : {-1.0, double(NAN), double(INFINITY)}) {
    CHECK_THROWS_AS(step(make_pair_batch(1), masked_loss{*model, weight}), keel::data_error);
  }
}

TEST_CASE("of several ranks one that counts no row adds nothing to the update, and an update without any is skipped on all") {
  // Of each rank the weights of its two micro-batches; rank 0 alone in the second line, both in the third, none in the last.
  double const weights[4][2][2] = {{{4, 8}, {8, 4}}, {{4, 8}, {0, 0}}, {{0, 8}, {4, 0}}, {{0, 0}, {0, 0}}};
  std::vector<at::Tensor> of_rank[2];
  keel::run_in_process(2, [&](keel::world_of_ranks const& world) {
    auto const model = make_small();
    torch::optim::SGD optimizer(model->parameters(), 0.1);
    keel::step<of_ranks> step{model, optimizer, world};
    auto const rank = static_cast<std::size_t>(world.rank());
    for (std::uint64_t i = 0; i < 4; ++i) {
      for (std::uint64_t j = 0; j < 2; ++j) {
        auto const outcome = step(make_pair_batch(4 * i + 2 * j + rank), masked_loss{*model, weights[i][rank][j]});
        if (j == 0) continue;
        if (i < 3) {
          if (outcome.updated() == nullptr) throw std::runtime_error("not updated");
        } else if (outcome.skipped() == nullptr || outcome.skipped()->why != keel::reason::zero_weight) {
          throw std::runtime_error("not skipped");
        }
      }
    }
    of_rank[rank] = copies_of(model->parameters());
  });
  CHECK(same_bits(of_rank[0], of_rank[1]));

  // By hand, in double.
  auto const model = make_small();
  model->to(at::kDouble);
  torch::optim::SGD optimizer(model->parameters(), 0.1);
  for (std::uint64_t i = 0; i < 3; ++i) {
    optimizer.zero_grad();
    double total = 0.0;
    for (auto const& of : weights[i]) total += of[0] + of[1];
    for (std::uint64_t rank = 0; rank < 2; ++rank) {
      for (std::uint64_t j = 0; j < 2; ++j) {
        if (weights[i][rank][j] == 0.0) continue;
        auto const [x, y] = make_pair_batch(4 * i + 2 * j + rank);
        at::Tensor const mean = (model->forward(x.to(at::kDouble)) - y.to(at::kDouble)).square().mean();
        (mean * (weights[i][rank][j] / total)).backward();
      }
    }
    optimizer.step();
  }
  auto const expected = model->parameters();
  for (std::size_t i = 0; i < expected.size(); ++i)
    CHECK(at::allclose(of_rank[0][i].to(at::kDouble), expected[i], 1e-5, 1e-6));
}
