#include "../transformer.hpp"

using namespace keel_test;

namespace {

at::Tensor by_hand(at::Tensor const& query, at::Tensor const& key, at::Tensor const& value, at::Tensor const& mask) {
  at::Tensor const scores =
      at::einsum("...qw,...kw->...qk", {query, key}) / std::sqrt(static_cast<double>(query.size(-1))) + mask;
  at::Tensor const weights = scores.exp() / scores.exp().sum(-1, true);
  return at::einsum("...qk,...kv->...qv", {weights, value});
}

}  // namespace

TEST_CASE("attention is the textbook's, values and gradients, with a mask, causal and plain, of several shapes") {
  keel::libtorch::seed_random(at::kCPU, 2);
  for (int round = 0; round < 30; ++round) {
    std::int64_t const queries = 1 + round % 4;
    std::int64_t const keys = round % 3 == 0 ? queries : 2 + round % 5;
    auto const leaf = [](at::IntArrayRef sizes) { return at::randn(sizes, at::kDouble).requires_grad_(); };
    at::Tensor const q = leaf({2, 3, queries, 4});
    at::Tensor const k = leaf({2, 3, keys, 4});
    at::Tensor const v = leaf({2, 3, keys, 5});
    bool const causal = round % 3 == 0;
    at::Tensor mask = at::zeros({queries, keys}, at::kDouble);
    if (causal) mask = at::full({queries, keys}, -std::numeric_limits<double>::infinity(), at::kDouble).triu(1);
    if (round % 3 == 1) mask = at::randn({queries, keys}, at::kDouble);
    keel::attention_options const options{.causal = causal, .mask = round % 3 == 1 ? mask : at::Tensor()};
    at::Tensor const found = keel::attention(q, k, v, options);
    at::Tensor const expected = by_hand(q, k, v, mask);
    CHECK(at::allclose(found, expected, 1e-10, 1e-10));
    auto const gradients = torch::autograd::grad({found.sin().sum()}, {q, k, v});
    auto const references = torch::autograd::grad({expected.sin().sum()}, {q, k, v});
    for (std::size_t i = 0; i < 3; ++i) CHECK(at::allclose(gradients[i], references[i], 1e-9, 1e-9));
  }
}

TEST_CASE("attention drops weights while training, by LibTorch's generator") {
  keel::libtorch::seed_random(at::kCPU, 2);
  at::Tensor const q = at::randn({1, 2, 8, 4});
  auto const dropped = [&] {
    keel::libtorch::seed_random(at::kCPU, 3);
    return keel::attention(q, q, q, {.dropout = 0.5});
  };
  CHECK(same_bits(dropped(), dropped()));
  CHECK_FALSE(at::allclose(dropped(), keel::attention(q, q, q)));
}

TEST_CASE("shapes that do not fit, and a mask beside causal, are errors that name them") {
  at::Tensor const q = at::randn({2, 3, 4});
  CHECK_THROWS_AS(keel::attention(q, at::randn({2, 3, 5}), q), keel::data_error);
  CHECK_THROWS_AS(keel::attention(q, q, at::randn({2, 2, 4})), keel::data_error);
  CHECK_THROWS_AS(keel::attention(at::randn({4}), at::randn({4}), at::randn({4})), keel::data_error);
  CHECK_THROWS_AS(keel::attention(q, q, q, {.causal = true, .mask = at::zeros({3, 3})}), keel::data_error);
  // A mask of truths would be added as ones here, and kept positions there.
  CHECK_THROWS_AS(keel::attention(q, q, q, {.mask = at::ones({3, 3}, at::kBool)}), keel::data_error);
}

TEST_CASE("a policy's kernel is the one that this LibTorch has, and the trainer says where it is the math path") {
  CHECK(keel::attention_kernel(keel::attention_kind::math) == keel::attention_kind::math);
  bool const fused = keel::attention_kernel(keel::attention_kind::fused) == keel::attention_kind::fused;
  CHECK(fused == keel::libtorch::has_fused_attention);
  scratch_directory directory;
  auto const model = make_transformer();
  keel::adamw optimizer(keel::trained_parameters(*model), 0.02);
  keel::trainer<keel::recipe<keel::attention::fused>> run{*model, optimizer, quiet({.run_directory = directory / "run"})};
  run.step(some_ids(1), next_token_loss(model));
  bool const said = read_file(directory / "run/events.jsonl").find("no_fused_attention") != std::string::npos;
  CHECK(said == !fused);
}

TEST_CASE("a unit inside a unit is recomputed as it was computed, and so is its attention") {
  auto const gradients = [](keel::recompute_kind kind) {
    keel::libtorch::seed_random(at::kCPU, 3);
    auto const model = make_transformer();
    at::Tensor loss;
    {
      keel::unit_scope const units(kind);
      keel::attention_scope const attention(keel::attention_kind::fused);
      auto const both = [&](at::Tensor const& x) {
        at::Tensor y = x;
        for (auto const& block : model->blocks) y = keel::unit([block](at::Tensor const& z) { return block->forward(z); }, y);
        return y;
      };
      loss = keel::unit(both, model->tokens(some_ids(1))).square().mean();
    }
    loss.backward();
    std::vector<at::Tensor> all;
    for (auto const& one : keel::trained_parameters(*model)) all.push_back(one.grad());
    return all;
  };
  auto const expected = gradients(keel::recompute_kind::none);
  CHECK(same_bits(gradients(keel::recompute_kind::non_reentrant), expected));
  CHECK(same_bits(gradients(keel::recompute_kind::reentrant), expected));
}

TEST_CASE("attention that nobody names is fused where this LibTorch has it, and math for a model that differentiates twice") {
  using keel::attention_kind;
  CHECK((keel::attention_kernel(attention_kind::automatic) == attention_kind::fused) == keel::libtorch::has_fused_attention);
  // Automatic asks nothing of the model: one without any attention trains.
  auto const small = make_small();
  torch::optim::SGD optimizer(small->parameters(), 0.1);
  keel::step<keel::recipe<>> step{small, optimizer};
  CHECK(step(make_pair_batch(1), mean_squared_error(small)).is<keel::result::updated>());
  CHECK(step.relief().attention == attention_kind::automatic);

  at::manual_seed(2);
  at::Tensor const q = at::randn({2, 3, 8, 4});
  auto const output = [&](attention_kind kind) {
    keel::attention_scope const scope(kind);
    return keel::attention(q, q, q, {.causal = true});
  };
  CHECK(at::allclose(keel::attention(q, q, q, {.causal = true}), output(attention_kind::math), 1e-4, 1e-6));
  CHECK(same_bits(keel::attention(q, q, q, {.causal = true}), output(attention_kind::automatic)));
  CHECK(same_bits(output(attention_kind::automatic), output(keel::attention_kernel(attention_kind::automatic))));

  // The force of an energy, as a loss.
  struct twice : keel::recipe<keel::model::has<keel::model::inner_gradients>> {};
  auto const model = make_transformer();
  keel::adamw adamw(keel::trained_parameters(*model), 0.02);
  keel::step<twice> forces{*model, adamw};
  CHECK(forces.relief().attention == attention_kind::math);
  at::Tensor const scale = at::ones({}).requires_grad_();
  auto const force = [&](at::Tensor const& ids) {
    at::Tensor const energy = next_token_loss(model)(ids) * scale;
    return torch::autograd::grad({energy}, {scale}, {}, true, /*create_graph=*/true)[0].square();
  };
  CHECK(forces(some_ids(1), force).is<keel::result::updated>());
}
