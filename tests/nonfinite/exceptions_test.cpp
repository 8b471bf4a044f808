// LibTorch's own checks throw on a NaN before any loss is there: an exception that counts as the skip it is.
#include <cmath>

#include <ATen/ops/binary_cross_entropy.h>
#include <ATen/ops/multinomial.h>
#include <ATen/ops/normal.h>

#include "../support.hpp"

using namespace keel_test;
using namespace keel::literals;

namespace {

namespace nonfinite = keel::nonfinite;
struct taking : keel::recipe<nonfinite::skip<3, nonfinite::exceptions>> {};
struct plain : keel::recipe<nonfinite::skip<3>> {};
struct raising : keel::recipe<nonfinite::raise_with<nonfinite::exceptions>> {};
struct of_two : keel::recipe<nonfinite::skip<3, nonfinite::exceptions>, keel::accumulate<2>> {};

struct on_a_device : keel::step_environment {
  bool decides_on_device(at::DeviceType) const override { return true; }
};

enum class check : unsigned char { binary_cross_entropy, normal, multinomial };

at::Tensor loss_with(check which, at::Tensor const& out) {
  switch (which) {
    case check::binary_cross_entropy:
      return at::binary_cross_entropy(at::sigmoid(out), at::ones_like(out));
    case check::normal:
      return (at::normal(out.detach(), out.detach().abs() + 0.1) - out).square().mean();
    case check::multinomial:
      return out.mean() + 0 * at::multinomial(at::softmax(out.detach().reshape({1, -1}), 1), 2).to(at::kFloat).mean();
  }
  return {};
}

/// A mask of infinities, as attention has it, is in every forward pass.
auto loss_function(std::shared_ptr<small_module> const& model, check which) {
  return [model, which](pair_batch const& batch) {
    at::Tensor const masked = at::zeros({2}).masked_fill(at::ones({2}, at::kBool), -INFINITY);
    static_cast<void>(masked);
    return loss_with(which, model->forward(batch.first));
  };
}

pair_batch spoiled(std::uint64_t seed) {
  pair_batch batch = make_pair_batch(seed);
  batch.first[2][1] = NAN;
  return batch;
}

}  // namespace

TEST_CASE("an exception of LibTorch on a NaN is the skip that it is, with its words") {
  for (check const which : {check::binary_cross_entropy, check::normal, check::multinomial}) {
    auto const model = make_small();
    torch::optim::AdamW optimizer(model->parameters(), 0.01);
    keel::step<taking> step{model, optimizer};
    auto const loss_of = loss_function(model, which);
    REQUIRE(step(make_pair_batch(0), loss_of).updated() != nullptr);
    auto const before = copies_of(model->parameters());
    auto const image = image_of(*model, optimizer);
    auto const outcome = step(spoiled(1), loss_of);
    REQUIRE(outcome.skipped() != nullptr);
    CHECK(outcome.skipped()->why == keel::reason::nonfinite_loss);
    CAPTURE(outcome.skipped()->origin);
    CHECK(outcome.skipped()->origin.find("the loss function threw") == 0);
    CHECK(same_bits(before, copies_of(model->parameters())));
    CHECK(same_bits(image, image_of(*model, optimizer)));
    CHECK(step(make_pair_batch(2), loss_of).updated() != nullptr);
  }
}

TEST_CASE("it counts towards the limit, and the error has LibTorch's words") {
  auto const model = make_small();
  torch::optim::AdamW optimizer(model->parameters(), 0.01);
  keel::step<taking> step{model, optimizer};
  auto const loss_of = loss_function(model, check::binary_cross_entropy);
  step(spoiled(0), loss_of);
  step(spoiled(1), loss_of);
  try {
    step(spoiled(2), loss_of);
    FAIL("the third in a row was taken");
  } catch (keel::nonfinite_error const& thrown) {
    CHECK(std::string(thrown.what()).find("between 0 and 1") != std::string::npos);
  }
  keel::step<raising> raises{model, optimizer};
  CHECK_THROWS_AS(raises(spoiled(3), loss_of), keel::nonfinite_error);
}

TEST_CASE("without the option, and without a NaN, the program has its exception") {
  auto const model = make_small();
  torch::optim::AdamW optimizer(model->parameters(), 0.01);
  keel::step<plain> step{model, optimizer};
  CHECK_THROWS_AS(step(spoiled(0), loss_function(model, check::binary_cross_entropy)), c10::Error);
  keel::step<taking> takes{model, optimizer};
  // A wrong shape, under a mask of infinities, and a target that is out of range.
  CHECK_THROWS_AS(takes(make_pair_batch(0),
                        [&](pair_batch const& batch) {
                          at::Tensor const masked = at::zeros({2}).masked_fill(at::ones({2}, at::kBool), -INFINITY);
                          return at::mm(model->forward(batch.first), masked.reshape({1, 2}).t()).mean();
                        }),
                  c10::Error);
  CHECK_THROWS_AS(
      takes(make_pair_batch(0), [&](pair_batch const& batch) { return at::binary_cross_entropy(model->forward(batch.first) + 7, batch.second); }),
      c10::Error);
  CHECK_THROWS_AS(takes(make_pair_batch(0), [&](pair_batch const&) -> at::Tensor { throw std::runtime_error("of the program"); }),
                  std::runtime_error);
  CHECK(takes.at_boundary());
}

TEST_CASE("one micro-batch that throws is its update's, also on a device, and the record has the words") {
  auto const model = make_small();
  keel::adamw optimizer(model->parameters(), 0.01);
  auto const loss_of = loss_function(model, check::binary_cross_entropy);
  keel::step<of_two, on_a_device> step{model, optimizer};
  auto const before = copies_of(model->parameters());
  step(make_pair_batch(0), loss_of);
  step(spoiled(1), loss_of);
  auto const outcome = step.settle();
  REQUIRE(outcome);
  REQUIRE(outcome->skipped() != nullptr);
  CHECK(outcome->skipped()->origin.find("the loss function threw") == 0);
  CHECK(same_bits(before, copies_of(model->parameters())));

  // Where it is the only one, there is nothing for the device to decide.
  keel::step<taking, on_a_device> of_one{model, optimizer};
  CHECK(of_one(make_pair_batch(0), loss_of).is<keel::result::pending>());
  CHECK(of_one(spoiled(1), loss_of).updated() != nullptr);
  auto const lost = of_one(make_pair_batch(2), loss_of);
  REQUIRE(lost.skipped() != nullptr);
  CHECK(lost.skipped()->origin.find("the loss function threw") == 0);
  CHECK(of_one.settle()->updated() != nullptr);
  CHECK(of_one.updates() == 2);

  struct saving : keel::recipe<nonfinite::skip<3, nonfinite::exceptions>, keel::checkpoint::every<10_steps>> {};
  scratch_directory const directory;
  keel::trainer<saving> run{model, optimizer, quiet({.run_directory = directory / "run"})};
  run.step(spoiled(0), loss_of);
  run.finish();
  CHECK(read_file(directory / "run" / "events.jsonl").find("the loss function threw") != std::string::npos);
}
