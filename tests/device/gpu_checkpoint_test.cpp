// Checkpoints of a run on a GPU: resumed there they give the same bits, and they are read on the CPU, and back.
#include "gpu.hpp"

using namespace keel_test;
using namespace keel::literals;
namespace checkpoint = keel::checkpoint;

namespace {

struct saves : keel::recipe<checkpoint::every<3_steps>, keel::clip::global_norm<0.5>, keel::nonfinite::skip<5>, keel::ema<0.9>,
                            keel::determinism::seeded<4>, keel::schedule::cosine<keel::schedule::warmup<4_steps>>> {};
struct saves_beside : keel::recipe<checkpoint::every<3_steps, checkpoint::asynchronous>, keel::clip::global_norm<0.5>,
                                   keel::nonfinite::skip<5>, keel::ema<0.9>, keel::determinism::seeded<4>,
                                   keel::schedule::cosine<keel::schedule::warmup<4_steps>>> {};
struct rolls_back : keel::recipe<checkpoint::every<3_steps>, keel::nonfinite::rollback<2>, keel::determinism::seeded<4>> {};
struct scaled : keel::recipe<keel::precision::fp16, keel::loss_scale::dynamic<keel::loss_scale::growth_interval<4>>,
                             checkpoint::every<3_steps>, keel::nonfinite::skip<9>, keel::determinism::seeded<4>> {};

std::vector<pair_batch> batches_of(std::int64_t epoch) {
  std::vector<pair_batch> all;
  for (std::uint64_t i = 0; i < 5; ++i) all.push_back(on_gpu(make_pair_batch(10 * static_cast<std::uint64_t>(epoch) + i)));
  return all;
}

/// Trains 20 updates, stopped at each of `stops`; what it ends with.
template <class Recipe, class Optimizer>
std::vector<at::Tensor> train(std::filesystem::path const& where, std::vector<std::int64_t> const& stops) {
  for (std::size_t part = 0;; ++part) {
    keel::seed<Recipe>(at::kCUDA);
    auto const model = std::make_shared<small_module>(0.3);
    model->to(at::kCUDA);
    Optimizer optimizer(model->parameters(), 0.05);
    keel::trainer<Recipe> run{model, optimizer, quiet({.run_directory = where, .updates = 20})};
    run.on([&](keel::event::update_end const& e) {
      if (part < stops.size() && e.update >= stops[part]) run.request_stop();
    });
    auto const result = run.fit(batches_of, mean_squared_error(model));
    if (result.template is<keel::result::finished>()) {
      CHECK(run.updates() == 20);
      auto all = on_cpu(model->parameters());
      for (auto const& [name, tensor] : image_of(*model, optimizer).moments) all.push_back(tensor.to(at::kCPU, at::kDouble));
      all.push_back(at::rand({3}, at::TensorOptions().device(at::kCUDA)).to(at::kCPU, at::kDouble));
      all.push_back(at::rand({3}).to(at::kDouble));
      return all;
    }
    REQUIRE(part < stops.size());
  }
}

template <class Recipe, class Optimizer>
void resumes_to_the_same_bits() {
  scratch_directory const directory;
  auto const expected = train<Recipe, Optimizer>(directory / "whole", {});
  CHECK(same_bits(train<Recipe, Optimizer>(directory / "stopped", {1, 4, 7, 12}), expected));
}

}  // namespace

TEST_CASE("a run on a GPU that is stopped and resumed ends with the bits of one that was not, generators included") {
  if (skipped_without_a_gpu()) return;
  resumes_to_the_same_bits<saves, keel::adamw>();
  resumes_to_the_same_bits<saves, torch::optim::AdamW>();
  resumes_to_the_same_bits<saves_beside, keel::adamw>();
  resumes_to_the_same_bits<saves_beside, torch::optim::SGD>();
  resumes_to_the_same_bits<scaled, keel::adamw>();
  resumes_to_the_same_bits<scaled, torch::optim::AdamW>();
}

TEST_CASE("a save beside training holds a GPU's values of its update, whatever the program writes next") {
  if (skipped_without_a_gpu()) return;
  scratch_directory const directory;
  keel::seed<saves_beside>(at::kCUDA);
  torch::nn::Linear model(1024, 4096);
  model->to(at::kCUDA);
  keel::adamw optimizer(model->parameters(), 0.05);
  keel::trainer<saves_beside> run{model, optimizer, quiet({.run_directory = directory / "run", .updates = 6})};
  std::map<std::int64_t, at::Tensor> at_update;
  run.on([&](keel::event::update_end const& e) { at_update[e.update] = model->weight.detach().clone(); });
  auto const x = at::randn({8, 1024}, at::TensorOptions().device(at::kCUDA));
  run.fit([&](std::int64_t) { return std::vector<at::Tensor>(6, x); },
          [&](at::Tensor const& batch) { return model->forward(batch).square().mean(); });
  for (auto const update : {3, 6}) {
    auto const path = directory / "run" / "checkpoints" / ("step-00000000" + std::to_string(update)) / "model.safetensors";
    auto const saved = keel::load_safetensors(path).tensors;
    CHECK(same_bits(saved.at("weight"), at_update.at(update).cpu()));
  }
}

TEST_CASE("a checkpoint of a GPU goes on on the CPU, and one of the CPU on a GPU, from the same values") {
  if (skipped_without_a_gpu()) return;
  struct plain : keel::recipe<checkpoint::every<2_steps>> {};
  for (bool const to_gpu : {false, true}) {
    scratch_directory const directory;
    std::vector<at::Tensor> before;
    for (int part = 0; part < 2; ++part) {
      auto const device = (part == 1) == to_gpu ? at::kCUDA : at::kCPU;
      auto const model = make_small(static_cast<std::uint64_t>(part));
      model->to(device);
      torch::optim::AdamW optimizer(model->parameters(), 0.05);
      keel::trainer<plain> run{model, optimizer, quiet({.run_directory = directory / "run", .updates = part == 0 ? 4 : 8})};
      auto const source = [&](std::int64_t) {
        std::vector<pair_batch> all;
        for (std::uint64_t i = 0; i < 4; ++i) {
          auto const [x, y] = make_pair_batch(i);
          all.emplace_back(x.to(device), y.to(device));
        }
        return all;
      };
      if (part == 1) {
        run.resume();
        CHECK(run.updates() == 4);
        CHECK(same_bits(on_cpu(model->parameters()), before));
        for (auto const& [name, tensor] : image_of(*model, optimizer).moments) {
          CHECK((!tensor.is_floating_point() || tensor.device().type() == device));
        }
      }
      run.fit(source, mean_squared_error(model));
      CHECK(run.updates() == (part == 0 ? 4 : 8));
      before = on_cpu(model->parameters());
    }
  }
}

TEST_CASE("a rollback on a GPU ends with the bits of one that was stopped after every update") {
  if (skipped_without_a_gpu()) return;
  auto const train = [](std::filesystem::path const& where, bool stops) {
    for (int part = 0; part < 60; ++part) {
      keel::seed<rolls_back>(at::kCUDA);
      auto const model = std::make_shared<small_module>(0.3);
      model->to(at::kCUDA);
      keel::adamw optimizer(model->parameters(), 0.05);
      keel::trainer<rolls_back> run{model, optimizer, quiet({.run_directory = where, .updates = 12})};
      run.on([&](keel::event::update_end const&) {
        if (stops) run.request_stop();
      });
      std::int64_t update = 0;
      run.on([&](keel::event::update_begin const& e) { update = e.update; });
      auto const result = run.fit(batches_of, [&](pair_batch const& b) {
        at::Tensor const loss = at::mse_loss(model->forward(b.first), b.second);
        // Enough of them for the policy, also where each is known one update later.
        return update >= 7 && update < 11 && run.rollbacks() < 1 ? loss * NAN : loss;
      });
      if (!result.is<keel::result::finished>()) continue;
      CHECK(run.rollbacks() == 1);
      return on_cpu(model->parameters());
    }
    FAIL("it did not end");
    return std::vector<at::Tensor>();
  };
  scratch_directory const directory;
  auto const expected = train(directory / "whole", false);
  CHECK(same_bits(train(directory / "stopped", true), expected));
}
