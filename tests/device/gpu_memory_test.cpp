// Memory of a GPU: real refusals of its allocator go down the ladder, blocks are recomputed with its generator, moments move.
#include "gpu.hpp"

using namespace keel_test;
namespace oom = keel::oom;

namespace {

struct halves : keel::recipe<oom::ladder<oom::halve_micro_batch, oom::give_up>> {};
struct moves_moments : keel::recipe<oom::ladder<oom::offload_optimizer, oom::give_up>> {};
struct no_ladder : keel::recipe<> {};
struct recomputes : keel::recipe<keel::recompute::non_reentrant> {};
struct recomputes_reentrant : keel::recipe<keel::recompute::reentrant> {};
struct recomputes_in_fp16 : keel::recipe<keel::recompute::non_reentrant, keel::precision::fp16, keel::loss_scale::dynamic<>> {};
struct in_fp16 : keel::recipe<keel::precision::fp16, keel::loss_scale::dynamic<>> {};

/// A loss that takes 64 MiB a row.
auto wide_loss(std::shared_ptr<small_module> const& model) {
  return [model](pair_batch const& batch) {
    at::Tensor const big = batch.first.sum(1).view({-1, 1}).expand({-1, 16 << 20}).contiguous();
    return at::mse_loss(model->forward(batch.first), batch.second) + (big * 0.0).sum();
  };
}

template <class Recipe>
std::vector<at::Tensor> train_transformer(int updates) {
  auto const model = make_transformer(1, 32);
  model->to(at::kCUDA);
  // The reentrant way trains no partly frozen model, and LoRA's is one.
  for (at::Tensor const& one : model->parameters()) one.requires_grad_();
  keel::libtorch::seed_random(at::kCUDA, 3);
  keel::adamw optimizer(model->parameters(), 0.01);
  keel::step<Recipe> step{model, optimizer};
  for (int i = 0; i < updates; ++i) step(some_ids(static_cast<std::uint64_t>(i)).to(at::kCUDA), next_token_loss(model));
  if (step.is_pending()) step.settle();
  auto all = on_cpu(model->parameters());
  all.push_back(at::rand({4}, at::TensorOptions().device(at::kCUDA)).to(at::kCPU, at::kDouble));
  return all;
}

}  // namespace

TEST_CASE("a real out-of-memory of a GPU halves the micro-batch, and the update has the bits of one that began in halves") {
  if (skipped_without_a_gpu()) return;
  auto const model = make_small_on_gpu();
  torch::optim::SGD optimizer(model->parameters(), 0.1);
  keel::step<halves> step{model, optimizer};
  step(on_gpu(make_pair_batch(0)), mean_squared_error(model));
  auto const before = keel::memory::statistics_of(at::kCUDA)->allocated;
  {
    // Eight rows need two tensors of 512 MiB, four of 256.
    gpu_limited_to const limit(std::int64_t(800) << 20);
    auto const result = step(on_gpu(make_pair_batch(1)), wide_loss(model));
    CHECK(result.is<keel::result::updated>());
    CHECK(step.pieces() == 2);
  }
  CHECK(keel::memory::statistics_of(at::kCUDA)->allocated <= before + 4096);
  auto const other = make_small_on_gpu();
  torch::optim::SGD theirs(other->parameters(), 0.1);
  struct two : keel::recipe<keel::accumulate<2>> {};
  keel::step<halves> first{other, theirs};
  first(on_gpu(make_pair_batch(0)), mean_squared_error(other));
  keel::step<two> second{other, theirs};
  auto const batch = on_gpu(make_pair_batch(1));
  for (std::int64_t i = 0; i < 2; ++i) {
    second(pair_batch(batch.first.slice(0, 4 * i, 4 * i + 4), batch.second.slice(0, 4 * i, 4 * i + 4)), mean_squared_error(other));
  }
  CHECK(distance(model->parameters(), other->parameters()) < 1e-6);
}

TEST_CASE("without a ladder an out-of-memory of a GPU is an error that names the update, and training goes on after it") {
  if (skipped_without_a_gpu()) return;
  auto const model = make_small_on_gpu();
  keel::adamw optimizer(model->parameters(), 0.1);
  keel::step<no_ladder> step{model, optimizer};
  step(on_gpu(make_pair_batch(0)), mean_squared_error(model));
  {
    gpu_limited_to const limit(std::int64_t(100) << 20);
    try {
      step(on_gpu(make_pair_batch(1)), wide_loss(model));
      FAIL("it fitted");
    } catch (keel::out_of_memory_error const& thrown) {
      CHECK(thrown.id() == "E09");
      WARN(thrown.what());
    }
  }
  auto const result = step(on_gpu(make_pair_batch(1)), mean_squared_error(model));
  CHECK((result.is<keel::result::updated>() || result.is<keel::result::pending>()));
}

TEST_CASE("moments of parameters on a GPU live in host memory, and the run is the same up to rounding") {
  if (skipped_without_a_gpu()) return;
  struct offloads : keel::recipe<keel::offload::optimizer> {};
  auto const train = [](auto recipe_tag) {
    using recipe = typename decltype(recipe_tag)::type;
    auto const model = make_small_on_gpu();
    keel::adamw optimizer(model->parameters(), 0.05);
    keel::step<recipe> step{model, optimizer};
    for (std::uint64_t i = 0; i < 20; ++i) step(on_gpu(make_pair_batch(i)), mean_squared_error(model));
    if (step.is_pending()) step.settle();
    if constexpr (std::is_same_v<recipe, offloads>) {
      for (auto const& [name, tensor] : image_of(*model, optimizer).moments) CHECK(tensor.is_cpu());
    }
    return on_cpu(model->parameters());
  };
  CHECK(distance(train(std::type_identity<offloads>()), train(std::type_identity<no_ladder>())) < 1e-5);
}

TEST_CASE("recomputed blocks draw a GPU's random numbers again: parameters and the next number have the same bits") {
  if (skipped_without_a_gpu()) return;
  auto const expected = train_transformer<no_ladder>(6);
  CHECK(same_bits(train_transformer<recomputes>(6), expected));
  CHECK(same_bits(train_transformer<recomputes_reentrant>(6), expected));
  CHECK(same_bits(train_transformer<recomputes_in_fp16>(6), train_transformer<in_fp16>(6)));
}

TEST_CASE("recomputed blocks hold less memory of a GPU") {
  if (skipped_without_a_gpu()) return;
  auto const peak = [](auto recipe_tag) {
    using recipe = typename decltype(recipe_tag)::type;
    auto const model = make_transformer(1, 256);
    model->to(at::kCUDA);
    keel::adamw optimizer(model->parameters(), 0.01);
    keel::step<recipe> step{model, optimizer};
    keel::memory::peak_watch watch(at::Device(at::kCUDA));
    auto const ids = some_ids(1, 32, 256).to(at::kCUDA);
    step(ids, next_token_loss(model));
    watch.take();
    auto const held = keel::memory::statistics_of(at::kCUDA)->allocated;
    step(ids, next_token_loss(model));
    return *watch.take() - held;
  };
  auto const all = peak(std::type_identity<no_ladder>());
  auto const less = peak(std::type_identity<recomputes>());
  WARN("peak of an update beside what stays: " << all << " bytes, recomputed " << less);
  CHECK(less < all * 3 / 4);
}

TEST_CASE("attention's fused kernels of a GPU are the math path up to rounding, and hold memory by the length of a sequence") {
  if (skipped_without_a_gpu()) return;
  for (auto const type : {at::kFloat, at::kHalf, at::kBFloat16}) {
    keel::libtorch::seed_random(at::kCUDA, 2);
    at::Tensor const q = at::randn({2, 4, 1024, 64}, at::TensorOptions().device(at::kCUDA).dtype(type)).requires_grad_();
    auto const run = [&](keel::attention_kind kind) {
      keel::attention_scope const scope(kind);
      auto const before = keel::memory::statistics_of(at::kCUDA)->allocated;
      at::Tensor const y = keel::attention(q, q, q, {.causal = true});
      auto const held = keel::memory::statistics_of(at::kCUDA)->allocated - before;
      at::Tensor const gradient = torch::autograd::grad({y.to(at::kFloat).sin().sum()}, {q})[0];
      return std::make_tuple(y.detach().to(at::kFloat), gradient.to(at::kFloat), held);
    };
    auto const [y, gradient, held] = run(keel::attention_kind::fused);
    auto const [expected, reference, held_by_math] = run(keel::attention_kind::math);
    double const tolerance = type == at::kFloat ? 1e-3 : (type == at::kHalf ? 2e-2 : 1e-1);
    CHECK(at::allclose(y, expected, tolerance, tolerance));
    CHECK(at::allclose(gradient, reference, 10 * tolerance, 10 * tolerance));
    WARN(type << ": fused holds " << held << " bytes, math " << held_by_math);
    CHECK(4 * held < held_by_math);
  }
}

TEST_CASE("a trainer records the peaks of a GPU's memory, and the estimate counts what is on it") {
  if (skipped_without_a_gpu()) return;
  scratch_directory const directory;
  auto const model = make_small_on_gpu();
  keel::adamw optimizer(model->parameters(), 0.05);
  keel::trainer<no_ladder> run{model, optimizer, quiet({.run_directory = directory / "run", .updates = 5})};
  run.fit([](std::int64_t) { return std::vector<pair_batch>(5, on_gpu(make_pair_batch(1))); }, mean_squared_error(model));
  auto const lines = read_lines(directory / "run" / "metrics.jsonl");
  REQUIRE(lines.size() == 5);
  WARN(lines.back());
  CHECK(lines.back().find("memory") != std::string::npos);
}
