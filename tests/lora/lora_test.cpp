#include "../transformer.hpp"

using namespace keel_test;

namespace {

/// A layer whose correction has learned something.
keel::lora trained_layer(std::int64_t in, std::int64_t out, keel::lora_options const& options) {
  static_cast<void>(in);
  static_cast<void>(out);
  keel::lora layer(options);
  at::NoGradGuard no_grad;
  layer->up.normal_(0.0, 0.3);
  return layer;
}

std::int64_t bytes_of(torch::nn::Module& model) {
  std::int64_t sum = 0;
  for (auto const& one : model.parameters()) sum += static_cast<std::int64_t>(one.nbytes());
  return sum;
}

}  // namespace

TEST_CASE("an adapter is made of two plain numbers, as LibTorch's linear layer is") {
  keel::lora const layer(6, 4);
  CHECK(layer->weight.sizes() == at::IntArrayRef({4, 6}));
  CHECK(layer->forward(at::ones({2, 6})).sizes() == at::IntArrayRef({2, 4}));
}

TEST_CASE("a lora layer is the dense layer of its merged weight, values and gradients, dense and in eight bits") {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    keel::libtorch::seed_random(at::kCPU, seed);
    std::int64_t const in = 3 + static_cast<std::int64_t>(seed % 7);
    std::int64_t const out = 2 + static_cast<std::int64_t>(seed % 5);
    auto layer = trained_layer(in, out, keel::lora_options(in, out).rank(1 + static_cast<std::int64_t>(seed % 3)).alpha(3.0));
    for (bool const quantized : {false, true}) {
      if (quantized) layer->quantize();
      CHECK(layer->is_quantized() == quantized);
      at::Tensor const x = at::randn({2, 4, in}).requires_grad_();
      at::Tensor const weights = at::randn({2, 4, out}, at::kDouble);
      (layer->forward(x).to(at::kDouble) * weights).sum().backward();

      // The reference in double: the correction's gradients follow from that of the merged weight.
      double const scale = layer->options.alpha() / static_cast<double>(layer->options.rank());
      at::Tensor const base = (quantized ? layer->weight.to(at::kDouble) * layer->scale.to(at::kDouble).unsqueeze(1)
                                         : layer->weight.detach().to(at::kDouble));
      at::Tensor const down = layer->down.detach().to(at::kDouble).requires_grad_();
      at::Tensor const up = layer->up.detach().to(at::kDouble).requires_grad_();
      at::Tensor const x64 = x.detach().to(at::kDouble).requires_grad_();
      at::Tensor const y = at::linear(x64, base + at::matmul(up, down) * scale, layer->bias.to(at::kDouble));
      (y * weights).sum().backward();
      auto const near = [](at::Tensor const& a, at::Tensor const& b) { return at::allclose(a.to(at::kDouble), b, 1e-4, 1e-5); };
      CHECK(near(layer->forward(x).detach(), y.detach()));
      CHECK(near(x.grad(), x64.grad()));
      CHECK(near(layer->down.grad(), down.grad()));
      CHECK(near(layer->up.grad(), up.grad()));
      CHECK_FALSE(layer->weight.grad().defined());
      CHECK(near(layer->merged(), (base + at::matmul(up, down).detach() * scale)));
      layer->zero_grad();
    }
  }
}

TEST_CASE("eight bits are off by at most half a scale, a row of zeros stays zero, and the largest element is met") {
  keel::libtorch::seed_random(at::kCPU, 1);
  keel::lora layer(keel::lora_options(50, 30));
  at::Tensor const before = layer->weight.detach().clone();
  {
    at::NoGradGuard no_grad;
    before[3].zero_();
    before[4].mul_(1e6);
    layer->weight.copy_(before);
  }
  layer->quantize();
  at::Tensor const off = (layer->merged() - before).abs();
  CHECK(off.le(layer->scale.unsqueeze(1) * 0.501).all().item<bool>());
  CHECK(layer->merged()[3].abs().max().item<float>() == 0.0F);
  CHECK(layer->weight.abs().amax(1)[4].item<int>() == 127);
  at::Tensor const once = layer->weight.clone();
  layer->quantize();
  CHECK(same_bits(layer->weight, once));
}

TEST_CASE("a model of lora layers in eight bits has less than a third of the dense model's bytes") {
  auto const model = make_transformer(1, 128);
  keel::freeze_base(*model);
  std::int64_t corrections = 0;
  for (auto const* const layer : keel::lora_layers(*model))
    corrections += static_cast<std::int64_t>(layer->up.nbytes() + layer->down.nbytes() + layer->scale.nbytes());
  std::int64_t const dense = bytes_of(*model) - corrections;
  CHECK(keel::quantize_base(*model) == 6);
  CHECK(keel::quantize_base(*model) == 0);
  CHECK(3 * bytes_of(*model) < dense);
}

TEST_CASE("a dense checkpoint fits under the same names, and one that does not changes nothing") {
  auto const dense = make_transformer(4);
  auto const model = make_transformer(5);
  keel::tensor_map tensors = keel::model_tensors(*dense);
  for (auto it = tensors.begin(); it != tensors.end();)
    it = it->first.find("lora_") != std::string::npos ? tensors.erase(it) : std::next(it);
  keel::load_base(*model, tensors);
  CHECK(same_bits(model->blocks[1]->wide->weight, dense->blocks[1]->wide->weight));
  CHECK(same_bits(model->tokens->weight, dense->tokens->weight));
  CHECK_FALSE(same_bits(model->blocks[1]->wide->down, dense->blocks[1]->wide->down));

  auto const by_model = make_transformer(7);
  keel::load_base(*by_model, *dense);
  CHECK(same_bits(by_model->blocks[1]->wide->weight, dense->blocks[1]->wide->weight));

  auto const other = make_transformer(6);
  auto const before = copies_of(other->parameters());
  tensors.erase("block1.wide.weight");
  CHECK_THROWS_AS(keel::load_base(*other, tensors), keel::checkpoint_error);
  CHECK(same_bits(other->parameters(), before));
  keel::quantize_base(*model);
  CHECK_THROWS_AS(keel::load_base(*model, keel::model_tensors(*dense)), keel::checkpoint_error);
  CHECK_THROWS_AS(keel::lora(keel::lora_options(3, 4).rank(0)), keel::error);
}

TEST_CASE("under autocast a layer of eight bits gives the dtype that a dense one gives, and a moved weight is rejected") {
  keel::libtorch::seed_random(at::kCPU, 1);
  keel::lora layer(keel::lora_options(8, 4));
  at::Tensor const x = at::randn({2, 8});
  keel::autocast_scope const autocast(at::kCPU, keel::precision::kind::bf16);
  auto const dense = layer->forward(x).scalar_type();
  layer->quantize();
  CHECK(layer->forward(x).scalar_type() == dense);
  layer->to(at::kBFloat16);
  CHECK_THROWS_AS(layer->forward(x), keel::error);
}

TEST_CASE("quantizing that runs out of memory leaves every weight as it was") {
  keel::memory::budget budget;
  auto const model = make_transformer();
  for (std::int64_t nth = 1;; ++nth) {
    auto const before = copies_of(model->parameters());
    auto const refused = budget.refused();
    budget.refuse_allocation(nth);
    try {
      keel::quantize_base(*model);
    } catch (c10::OutOfMemoryError const&) {
      CHECK(same_bits(model->parameters(), before));
    }
    budget.refuse_allocation(0);
    if (budget.refused() == refused) break;
  }
  CHECK(model->blocks[1]->narrow->is_quantized());
}

namespace {

struct fine_tunes : keel::recipe<keel::model::has<keel::model::adapters>, keel::checkpoint::every<keel::steps{5}>,
                                 keel::oom::ladder<keel::oom::quantize_base, keel::oom::give_up>> {};

}  // namespace

TEST_CASE("the ladder's quantized base learns, is saved, and a resumed run has the bits of one that went on") {
  scratch_directory directory;
  auto const train = [&](std::string const& name, std::int64_t stop, bool starve) {
    auto const model = make_transformer(1, 16);
    keel::freeze_base(*model);
    model->eval();  // without dropout
    keel::adamw optimizer(keel::trained_parameters(*model), 0.02);
    keel::trainer<fine_tunes> run{*model, optimizer, quiet({.run_directory = directory / name})};
    run.resume();
    auto const loss_of = next_token_loss(model);
    std::vector<double> losses;
    for (std::int64_t i = run.updates(); i < stop; ++i) {
      auto const outcome = run.step(some_ids(1, 4, 12), [&](at::Tensor const& ids) {
        if (std::exchange(starve, false)) TORCH_CHECK_WITH(OutOfMemoryError, false, "a test took the memory away");
        return loss_of(ids);
      });
      losses.push_back(outcome.get<keel::result::updated>().loss);
    }
    run.save();
    CHECK(run.relief().quantized);
    CHECK(model->blocks[0]->wide->is_quantized());
    return std::make_pair(losses, copies_of(model->parameters()));
  };
  auto const whole = train("whole", 40, true);
  CHECK(whole.first.back() < 0.9 * whole.first.front());
  train("resumed", 20, true);
  CHECK(same_bits(train("resumed", 40, false).second, whole.second));
}

namespace {

using adapted = keel::model::has<keel::model::adapters, keel::model::inputs_require_grad>;
struct keeps_activations : keel::recipe<adapted> {};
struct reentrant : keel::recipe<adapted, keel::recompute::reentrant> {};

struct adapted_blocks : torch::nn::Module {
  adapted_blocks() {
    for (int i = 0; i < 3; ++i) layers.push_back(register_module("layer" + std::to_string(i), keel::lora(keel::lora_options(6, 6))));
  }
  std::vector<keel::lora> layers;
};

template <class Recipe>
std::vector<at::Tensor> adapt(bool inputs_require_grad) {
  keel::libtorch::seed_random(at::kCPU, 3);
  auto const model = std::make_shared<adapted_blocks>();
  keel::freeze_base(*model);
  keel::adamw optimizer(keel::trained_parameters(*model), 0.05);
  keel::trainer<Recipe> run{model, optimizer, quiet({.updates = 10})};
  run.fit([](std::int64_t) { return std::vector<pair_batch>(10, make_pair_batch(1)); }, [&](pair_batch const& batch) {
    at::Tensor x = batch.first.clone().requires_grad_(inputs_require_grad);
    for (auto const& layer : model->layers)
      x = keel::unit([layer](at::Tensor const& y) mutable { return at::dropout(at::tanh(layer->forward(y)), 0.2, true); }, x);
    return at::mse_loss(x.sum(1, true), batch.second);
  });
  return copies_of(model->parameters());
}

}  // namespace

TEST_CASE("adapters in frozen blocks train under reentrant recompute, bit for bit, where the blocks' inputs require grad") {
  CHECK(same_bits(adapt<reentrant>(true), adapt<keeps_activations>(true)));
  // A recipe that says so, of a program that does not do so, is refused where it would train nothing.
  try {
    adapt<reentrant>(false);
    FAIL("a reentrant block without an input that requires grad was run");
  } catch (keel::error const& thrown) {
    CHECK(std::string(thrown.id()) == "A02");
  }
}
