// Training on a GPU: the updates are those of the CPU up to rounding, and the host does not wait for them.
#include "gpu.hpp"

#include <torch/nn/utils/clip_grad.h>

#include <cmath>
#include <keel/collective/in_process.hpp>
#include <limits>
#include <memory>

using namespace keel_test;
using namespace keel::literals;

namespace {

struct plain : keel::recipe<> {};
struct guarded : keel::recipe<keel::clip::global_norm<0.5>, keel::nonfinite::skip<20>,
                              keel::schedule::cosine<keel::schedule::total<200_steps>>,
                              keel::spike::skip<keel::spike::window<32>, keel::spike::in_a_row<20>>, keel::ema<0.9>> {};
struct accumulating : keel::recipe<keel::accumulate<4>, keel::clip::global_norm<0.5>, keel::nonfinite::skip<20>> {};
struct in_fp16 : keel::recipe<keel::precision::fp16, keel::nonfinite::skip<20>, keel::clip::global_norm<1.0>,
                              keel::loss_scale::dynamic<keel::loss_scale::initial<65536.0>, keel::loss_scale::growth_interval<5>>> {};
/// Whose scale meets no overflow: one that is left out asks the device where.
struct in_fp16_at_a_low_scale
    : keel::recipe<keel::precision::fp16, keel::nonfinite::skip<20>, keel::clip::global_norm<1.0>,
                   keel::loss_scale::dynamic<keel::loss_scale::initial<8.0>, keel::loss_scale::growth_interval<50>>> {};
struct in_bf16 : keel::recipe<keel::precision::bf16, keel::nonfinite::skip<20>, keel::clip::global_norm<1.0>> {};
template <class Shard>
struct of_ranks : keel::recipe<Shard, keel::clip::global_norm<0.5>, keel::nonfinite::skip<20>> {};

/// Some are NaN, some infinite, some far off.
std::vector<pair_batch> hostile_batches(int count, std::uint64_t seed) {
  std::mt19937_64 engine(seed);
  std::vector<pair_batch> batches;
  for (int i = 0; i < count; ++i) {
    auto const kind = i < 12 ? 9 : engine() % 12;
    double const scale =
        kind == 0 ? std::numeric_limits<double>::quiet_NaN() : (kind == 1 ? INFINITY : (kind == 2 ? 1e4 : 1.0));
    auto const [x, y] = make_pair_batch(engine());
    batches.push_back({x, y * scale});
  }
  return batches;
}

std::string word_of(keel::step_outcome const& result) {
  if (auto const* const skipped = result.get_if<keel::result::skipped>()) return to_string(skipped->why) + skipped->where;
  return result.is<keel::result::updated>() ? "updated" : "other";
}

/// The words of all windows, and the parameters after them.
template <class Recipe, class Optimizer>
std::pair<std::vector<std::string>, std::vector<at::Tensor>> train(at::DeviceType device, at::ScalarType type, std::uint64_t seed) {
  auto const model = make_small(seed);
  model->to(device, type);
  Optimizer optimizer(model->parameters(), 0.05);
  keel::step<Recipe> step{model, optimizer};
  std::vector<std::string> words;
  auto const say = [&](keel::step_outcome const& one) {
    if (!one.template is<keel::result::accumulated>() && !one.template is<keel::result::pending>()) words.push_back(word_of(one));
  };
  for (auto const& [x, y] : hostile_batches(80, seed))
    say(step(pair_batch(x.to(device, type), y.to(device, type)), mean_squared_error(model)));
  if (step.is_pending()) say(*step.settle());
  return {words, on_cpu(model->parameters())};
}

template <class Recipe, class Optimizer>
void compare_devices() {
  for (std::uint64_t const seed : {1U, 2U, 3U}) {
    auto const [words, expected] = train<Recipe, Optimizer>(at::kCPU, at::kDouble, seed);
    auto const [found_words, found] = train<Recipe, Optimizer>(at::kCUDA, at::kDouble, seed);
    CHECK(found_words == words);
    CHECK(distance(found, expected) < 1e-9);
  }
}

}  // namespace

TEST_CASE("hostile batches are judged on a GPU as on the CPU, and leave the same parameters up to rounding") {
  if (skipped_without_a_gpu()) return;
  compare_devices<guarded, keel::adamw>();
  compare_devices<guarded, keel::adam>();
  compare_devices<guarded, keel::sgd>();
  compare_devices<guarded, torch::optim::AdamW>();
  compare_devices<accumulating, keel::adamw>();
  compare_devices<accumulating, torch::optim::SGD>();
}

TEST_CASE("a step without policies is the loop by hand on a GPU, bit for bit") {
  if (skipped_without_a_gpu()) return;
  auto const ours = make_small_on_gpu();
  auto const theirs = make_small_on_gpu();
  torch::optim::AdamW a(ours->parameters(), 0.01);
  torch::optim::AdamW b(theirs->parameters(), 0.01);
  keel::step<plain> step{ours, a};
  for (std::uint64_t i = 0; i < 30; ++i) {
    auto const batch = on_gpu(make_pair_batch(i));
    step(batch, mean_squared_error(ours));
    b.zero_grad();
    mean_squared_error(theirs)(batch).backward();
    b.step();
  }
  CHECK(same_bits(on_cpu(ours->parameters()), on_cpu(theirs->parameters())));
}

TEST_CASE("fp16 under autocast with a dynamic scale trains on a GPU: overflows lower the scale, change nothing, and the loss falls") {
  if (skipped_without_a_gpu()) return;
  auto const train = [](auto& optimizer, std::shared_ptr<small_module> const& model) {
    keel::step<in_fp16> step{model, optimizer};
    double first = 0.0, last = 0.0;
    int skipped = 0, updated = 0;
    auto const count = [&](keel::step_outcome const& one) {
      skipped += one.is<keel::result::skipped>();
      updated += one.is<keel::result::updated>();
    };
    for (std::uint64_t i = 0; i < 200; ++i) {
      auto const batch = on_gpu(make_pair_batch(i % 4));
      auto const before = copies_of(model->parameters());
      bool const overflows = i == 50;
      at::Tensor seen;
      auto const result = step(batch, [&](pair_batch const& b) {
        at::Tensor const y = model->forward(b.first);
        CHECK(y.scalar_type() == at::kHalf);
        seen = at::mse_loss(y.to(at::kFloat), b.second);
        // The loss is finite, and the gradient is beyond fp16.
        return overflows ? seen + (y * 6e4F).sum().to(at::kFloat) * 1e3 : seen;
      });
      count(result);
      if (i == 50) {
        if (step.is_pending()) count(*step.settle());
        CHECK(same_bits(on_cpu(before), on_cpu(model->parameters())));
      }
      if (i == 0) first = seen.item<double>();
      last = seen.item<double>();
    }
    if (step.is_pending()) count(*step.settle());
    CHECK(last < 0.2 * first);
    CHECK(skipped >= 1);
    CHECK(skipped < 40);
    CHECK(skipped + updated == 200);
    CHECK(std::isfinite(step.loss_scale()));
  };
  auto const a = make_small_on_gpu();
  keel::adamw ours(a->parameters(), 0.01);
  train(ours, a);
  auto const b = make_small_on_gpu();
  torch::optim::AdamW theirs(b->parameters(), 0.01);
  train(theirs, b);
}

TEST_CASE("bf16 parameters with fp32 copies train on a GPU as on the CPU, up to bf16's rounding") {
  if (skipped_without_a_gpu()) return;
  auto const train = [](at::DeviceType device) {
    auto const model = make_small();
    model->to(device, at::kBFloat16);
    keel::adamw optimizer(model->parameters(), 0.01);
    keel::step<guarded> step{model, optimizer};
    double last = 0.0;
    for (std::uint64_t i = 0; i < 100; ++i) {
      auto const [x, y] = make_pair_batch(i % 4);
      pair_batch const batch(x.to(device, at::kBFloat16), y.to(device, at::kBFloat16));
      step(batch, [&](pair_batch const& b) {
        at::Tensor const loss = at::mse_loss(model->forward(b.first).to(at::kFloat), b.second.to(at::kFloat));
        last = loss.item<double>();
        return loss;
      });
    }
    if (step.is_pending()) step.settle();
    CHECK(optimizer.master_of(model->first->weight).scalar_type() == at::kFloat);
    CHECK(optimizer.master_of(model->first->weight).device().type() == device);
    return last;
  };
  double const expected = train(at::kCPU);
  CHECK(train(at::kCUDA) == Approx(expected).epsilon(0.2));
}

namespace {

/// Waits of the host in `count` updates of a run in its stride.
template <class Recipe, class Optimizer>
int waits_of(int count) {
  auto const model = make_small_on_gpu();
  Optimizer optimizer(model->parameters(), 0.01);
  auto step = [&] {
    if constexpr (keel::step<Recipe>::is_distributed) {
      return std::make_unique<keel::step<Recipe>>(*model, optimizer, keel::world_of_ranks());
    } else {
      return std::make_unique<keel::step<Recipe>>(model, optimizer);
    }
  }();
  auto const batch = on_gpu(make_pair_batch(1));
  auto const run = [&](int windows) {
    for (int i = 0; i < windows * static_cast<int>(keel::config_of<Recipe>.accumulate.count); ++i) (*step)(batch, mean_squared_error(model));
  };
  run(10);
  waits_counted const waits;
  run(count);
  return waits.count();
}

}  // namespace

TEST_CASE("the host never waits for a GPU in an update that is decided there, and after its gradients in one that the host decides") {
  if (skipped_without_a_gpu()) return;
  CHECK(waits_of<guarded, keel::adamw>(20) == 0);
  CHECK(waits_of<guarded, keel::sgd>(20) == 0);
  CHECK(waits_of<in_fp16_at_a_low_scale, keel::adamw>(20) == 0);
  CHECK(waits_of<in_bf16, keel::adam>(20) == 0);
  CHECK(waits_of<accumulating, keel::adamw>(20) == 0);
  CHECK(waits_of<of_ranks<keel::shard::replicate>, keel::adamw>(20) == 0);
  CHECK(waits_of<of_ranks<keel::shard::zero<1>>, keel::adamw>(20) == 0);
  // For the norm, and for the loss, which is there by then.
  CHECK(waits_of<plain, torch::optim::AdamW>(20) == 40);
  CHECK(waits_of<guarded, torch::optim::AdamW>(20) == 40);
  CHECK(waits_of<accumulating, torch::optim::AdamW>(20) == 40);
  // By hand, LibTorch's own clip_grad_norm_ waits too.
  auto const model = make_small_on_gpu();
  mean_squared_error(model)(on_gpu(make_pair_batch(1))).backward();
  waits_counted const waits;
  torch::nn::utils::clip_grad_norm_(model->parameters(), 1.0);
  CHECK(waits.count() >= 1);
}

namespace {

/// The parameters of each of two ranks of this process.
template <class Recipe>
std::vector<std::vector<at::Tensor>> trained_by_two(at::DeviceType device) {
  std::vector<std::vector<at::Tensor>> parameters(2);
  keel::run_in_process(2, [&](keel::world_of_ranks const& world) {
    auto const model = make_small(4);
    model->to(device, at::kDouble);
    keel::adamw optimizer(model->parameters(), 0.05);
    keel::step<Recipe> step{*model, optimizer, world};
    for (auto const& [x, y] : hostile_batches(40, static_cast<std::uint64_t>(world.rank() + 1)))
      step(pair_batch(x.to(device, at::kDouble), y.to(device, at::kDouble)), mean_squared_error(model));
    step.settle();
    CHECK(step.skipped() > 0);
    parameters[static_cast<std::size_t>(world.rank())] = on_cpu(model->parameters());
  });
  return parameters;
}

}  // namespace

TEST_CASE("two ranks on a GPU train what they do on the CPU, up to rounding, with the same bits on both") {
  if (skipped_without_a_gpu()) return;
  auto const compare = [](auto recipe) {
    auto const expected = trained_by_two<decltype(recipe)>(at::kCPU), found = trained_by_two<decltype(recipe)>(at::kCUDA);
    CHECK(same_bits(found[0], found[1]));
    CHECK(distance(found[0], expected[0]) < 1e-9);
  };
  compare(of_ranks<keel::shard::replicate>());
  compare(of_ranks<keel::shard::zero<1>>());
}

TEST_CASE("a skipped update leaves running statistics, moments and generators of a GPU as they were") {
  if (skipped_without_a_gpu()) return;
  struct skips : keel::recipe<keel::nonfinite::skip<5>, keel::clip::global_norm<1.0>> {};
  keel::libtorch::seed_random(at::kCPU, 1);
  torch::nn::Sequential model(torch::nn::Linear(6, 8), torch::nn::BatchNorm1d(8), torch::nn::Linear(8, 1));
  model->to(at::kCUDA);
  keel::adamw optimizer(model->parameters(), 0.01);
  keel::step<skips> step{*model, optimizer};
  auto const loss = [&](pair_batch const& b) { return at::mse_loss(model->forward(b.first), b.second); };
  for (std::uint64_t i = 0; i < 5; ++i) step(on_gpu(make_pair_batch(i)), loss);
  if (step.is_pending()) step.settle();
  auto const parameters = copies_of(model->parameters());
  auto const buffers = copies_of(model->buffers());
  auto const moments = image_of(*model, optimizer).moments;
  auto batch = on_gpu(make_pair_batch(9));
  batch.first.fill_(std::numeric_limits<double>::quiet_NaN());
  auto const result = step(batch, loss);
  auto const settled = step.is_pending() ? *step.settle() : result;
  CHECK(settled.is<keel::result::skipped>());
  CHECK(same_bits(on_cpu(parameters), on_cpu(model->parameters())));
  CHECK(same_bits(on_cpu(buffers), on_cpu(model->buffers())));
  for (auto const& [name, tensor] : image_of(*model, optimizer).moments) CHECK(same_bits(tensor.cpu(), moments.at(name).cpu()));
}

TEST_CASE("training on a stream of the program's choice gives the bits of the default stream") {
  if (skipped_without_a_gpu()) return;
  auto const train = [](bool aside) {
    auto const model = make_small_on_gpu();
    keel::adamw optimizer(model->parameters(), 0.01);
    std::vector<pair_batch> batches;
    for (std::uint64_t i = 0; i < 40; ++i) batches.push_back(on_gpu(make_pair_batch(i)));
    c10::impl::VirtualGuardImpl const device(at::kCUDA);
    device.getStream(at::Device(at::kCUDA, 0)).synchronize();
    keel::step<guarded> step{model, optimizer};
    auto const stream = aside ? device.getStreamFromGlobalPool(at::Device(at::kCUDA, 0), false)
                              : device.getStream(at::Device(at::kCUDA, 0));
    auto const before = device.exchangeStream(stream);
    for (auto const& batch : batches) step(batch, mean_squared_error(model));
    if (step.is_pending()) step.settle();
    stream.synchronize();
    device.exchangeStream(before);
    return on_cpu(model->parameters());
  };
  CHECK(same_bits(train(true), train(false)));
}
