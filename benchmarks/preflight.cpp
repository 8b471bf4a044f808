// Small programs as users write them, for a preflight: sound ones that must pass, and ones with a single wiring bug that must fail where it is.
// Their writer had not seen the checks. Prints one JSON row a line; an argument runs those with it in their name, and says what was found.
#include <keel/keel.hpp>

#include <ATen/Parallel.h>
#include <torch/autograd.h>
#include <torch/data/example.h>
#include <torch/enum.h>
#include <torch/nn.h>
#include <torch/optim.h>

#include <array>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

using namespace keel::literals;
namespace nn = torch::nn;
namespace F = torch::nn::functional;

namespace {

using pair = std::pair<at::Tensor, at::Tensor>;
using triple = std::tuple<at::Tensor, at::Tensor, at::Tensor>;
using example = torch::data::Example<>;

struct plain : keel::recipe<keel::clip::global_norm<1.0>, keel::nonfinite::skip<10>> {};
struct in_four : keel::recipe<keel::accumulate<4>, keel::clip::global_norm<1.0>, keel::nonfinite::skip<10>,
                              keel::schedule::cosine<keel::schedule::warmup<20_steps>>, keel::evaluation::every<50_steps>> {};
struct halving : keel::recipe<keel::clip::global_norm<1.0>, keel::oom::ladder<keel::oom::halve_micro_batch, keel::oom::give_up>> {};
struct climbing : keel::recipe<keel::clip::global_norm<1.0>,
                               keel::oom::ladder<keel::oom::halve_micro_batch,
                                                 keel::oom::enable_recompute<keel::recompute::non_reentrant>, keel::oom::give_up>> {};
struct recomputing : keel::recipe<keel::clip::global_norm<1.0>, keel::recompute::non_reentrant> {};
struct in_bf16 : keel::recipe<keel::precision::bf16, keel::clip::global_norm<1.0>, keel::nonfinite::skip<10>> {};
struct adapted : keel::recipe<keel::model::has<keel::model::adapters>, keel::clip::global_norm<1.0>> {};

void seed(std::uint64_t number) { keel::libtorch::seed_random(at::kCPU, number); }

template <class Make>
auto many(int count, Make make) {
  std::vector<decltype(make())> all;
  for (int i = 0; i < count; ++i) all.push_back(make());
  return all;
}

/// The program's end: a trainer of the recipe, and its preflight.
template <class Recipe = plain, class Batch, class Model, class Optimizer>
keel::preflight_result look(Model& model, Optimizer& optimizer, std::vector<Batch> const& batches,
                            std::type_identity_t<std::function<at::Tensor(Batch const&)>> const& loss_of) {
  keel::trainer<Recipe> run{model, optimizer, {.updates = 1000, .console = nullptr}};
  return run.preflight(batches, loss_of);
}

// Data.

/// Eight features, one smooth target of variance about a half.
pair smooth(std::int64_t rows = 32) {
  at::Tensor const x = at::randn({rows, 8});
  at::Tensor const sum = x.select(1, 0) + 0.7 * x.select(1, 3) - 0.6 * x.select(1, 5);
  return {x, (sum.tanh() + 0.1 * at::randn({rows})).unsqueeze(1)};
}

/// Four clouds of eight features.
pair clouds(std::int64_t rows = 32) {
  static at::Tensor const centers = [] {
    std::mt19937 engine(3);
    std::normal_distribution<float> normal(0.0F, 1.3F);
    at::Tensor made = at::empty({4, 8});
    for (int i = 0; i < 32; ++i) made.data_ptr<float>()[i] = normal(engine);
    return made;
  }();
  at::Tensor const label = at::randint(4, {rows}, at::kLong);
  return {centers.index_select(0, label) + at::randn({rows, 8}), label};
}

/// Eight by eight images of one channel, 0 to 1, with a bright spot in one of four quarters.
pair spots(std::int64_t rows = 16) {
  at::Tensor const label = at::randint(4, {rows}, at::kLong);
  at::Tensor image = 0.3 * at::rand({rows, 1, 8, 8});
  for (std::int64_t i = 0; i < rows; ++i) {
    std::int64_t const which = label[i].item<std::int64_t>();
    image[i][0].slice(0, which / 2 * 4 + 1, which / 2 * 4 + 3).slice(1, which % 2 * 4 + 1, which % 2 * 4 + 3) += 0.6;
  }
  return {image, label};
}

constexpr std::int64_t letters = 16;

/// A text in which each letter has three likely successors.
at::Tensor text(std::mt19937& engine, std::int64_t rows, std::int64_t length) {
  static std::vector<std::array<std::int64_t, 3>> const after = [] {
    std::mt19937 own(11);
    std::vector<std::array<std::int64_t, 3>> made;
    for (std::int64_t i = 0; i < letters; ++i)
      made.push_back({static_cast<std::int64_t>(own() % letters), static_cast<std::int64_t>(own() % letters),
                      static_cast<std::int64_t>(own() % letters)});
    return made;
  }();
  at::Tensor ids = at::empty({rows, length}, at::kLong);
  auto* out = ids.data_ptr<std::int64_t>();
  for (std::int64_t row = 0; row < rows; ++row) {
    std::int64_t letter = static_cast<std::int64_t>(engine() % letters);
    for (std::int64_t i = 0; i < length; ++i) {
      *out++ = letter;
      auto const draw = engine() % 20;
      letter = draw == 0 ? static_cast<std::int64_t>(engine() % letters) : after[static_cast<std::size_t>(letter)][draw < 12 ? 0 : (draw < 16 ? 1 : 2)];
    }
  }
  return ids;
}
std::vector<at::Tensor> texts(unsigned number, int count = 40, std::int64_t rows = 16, std::int64_t length = 13) {
  std::mt19937 engine(number);
  return many(count, [&] { return text(engine, rows, length); });
}

/// Padded texts of three topics: ids [rows, 12] with 0 as padding, which places are words, and the topic.
triple topics(std::int64_t rows = 16) {
  std::int64_t const length = 12;
  at::Tensor const topic = at::randint(3, {rows}, at::kLong);
  at::Tensor const lengths = at::randint(4, length, {rows}, at::kLong);
  at::Tensor const mask = at::arange(length).unsqueeze(0).lt(lengths.unsqueeze(1));
  at::Tensor const own = 1 + topic.unsqueeze(1) * 3 + at::randint(3, {rows, length}, at::kLong);
  at::Tensor const common = at::randint(10, 20, {rows, length}, at::kLong);
  at::Tensor const ids = at::where(at::rand({rows, length}).lt(0.45), own, common).masked_fill(mask.logical_not(), 0);
  return {ids, mask, topic};
}

/// Padded texts with a tag for each word, of the word's parity and whether it is above the one before; `hole` is the tag of padding.
triple tagged(std::int64_t rows, std::int64_t hole) {
  std::int64_t const length = 10;
  at::Tensor const lengths = at::randint(5, length, {rows}, at::kLong);
  at::Tensor const mask = at::arange(length).unsqueeze(0).lt(lengths.unsqueeze(1));
  at::Tensor const ids = at::randint(1, 13, {rows, length}, at::kLong);
  at::Tensor const before = at::cat({at::full({rows, 1}, 6, at::kLong), ids.slice(1, 0, length - 1)}, 1);
  at::Tensor const clean = ids.remainder(2) + 2 * ids.gt(before).to(at::kLong);
  at::Tensor const tags = at::where(at::rand({rows, length}).lt(0.1), at::randint(4, {rows, length}, at::kLong), clean);
  at::Tensor const gap = mask.logical_not();
  return {ids.masked_fill(gap, 0), mask, tags.masked_fill(gap, hole)};
}

/// Noisy waves [rows, length].
at::Tensor waves(std::int64_t rows, std::int64_t length) {
  at::Tensor const phase = at::rand({rows, 1}) * 6.28;
  at::Tensor const speed = 0.5 + 0.5 * at::rand({rows, 1});
  return 1.3 * (at::arange(length, at::kFloat).unsqueeze(0) * speed + phase).sin() + 0.2 * at::randn({rows, length});
}

// Models.

nn::Sequential perceptron(std::int64_t in, std::int64_t out, std::int64_t width = 32) {
  return nn::Sequential(nn::Linear(in, width), nn::ReLU(), nn::Linear(width, out));
}

enum class attends { causally, everywhere, normalised_over_queries, normalised_over_rows, between_heads };

/// One transformer block over letters.
struct block_lm : nn::Module {
  explicit block_lm(attends how) : how_(how) {}
  at::Tensor forward(at::Tensor const& ids) {
    std::int64_t const rows = ids.size(0), time = ids.size(1);
    at::Tensor x = tokens(ids) + positions(at::arange(time));
    auto const part = qkv(norm1(x)).chunk(3, -1);
    auto const split = [&](at::Tensor const& of) {
      at::Tensor const heads = of.reshape({rows, time, 2, 12});
      return how_ == attends::between_heads ? heads : heads.transpose(1, 2);
    };
    at::Tensor const q = split(part[0]), k = split(part[1]), v = split(part[2]);
    at::Tensor scores = at::matmul(q, k.transpose(-2, -1)) / std::sqrt(12.0);
    if (how_ != attends::everywhere) {
      std::int64_t const places = scores.size(-1);
      scores = scores.masked_fill(at::ones({places, places}, at::kBool).triu(1), -1e9);
    }
    std::int64_t const dim = how_ == attends::normalised_over_queries ? -2 : (how_ == attends::normalised_over_rows ? 0 : -1);
    at::Tensor mixed = at::matmul(at::softmax(scores, dim), v);
    mixed = how_ == attends::between_heads ? mixed.reshape({rows, time, 24}) : mixed.transpose(1, 2).reshape({rows, time, 24});
    x = x + merge(mixed);
    x = x + narrow(at::gelu(widen(norm2(x))));
    return head(norm3(x));
  }
  attends how_;
  nn::Embedding tokens = register_module("tokens", nn::Embedding(letters, 24));
  nn::Embedding positions = register_module("positions", nn::Embedding(16, 24));
  nn::Linear qkv = register_module("qkv", nn::Linear(24, 72));
  nn::Linear merge = register_module("merge", nn::Linear(24, 24));
  nn::Linear widen = register_module("widen", nn::Linear(24, 48));
  nn::Linear narrow = register_module("narrow", nn::Linear(48, 24));
  nn::Linear head = register_module("head", nn::Linear(24, letters));
  nn::LayerNorm norm1 = register_module("norm1", nn::LayerNorm(nn::LayerNormOptions({24})));
  nn::LayerNorm norm2 = register_module("norm2", nn::LayerNorm(nn::LayerNormOptions({24})));
  nn::LayerNorm norm3 = register_module("norm3", nn::LayerNorm(nn::LayerNormOptions({24})));
};

struct lstm_lm : nn::Module {
  explicit lstm_lm(bool both_ways = false)
      : lstm(register_module("lstm", nn::LSTM(nn::LSTMOptions(24, 24).batch_first(true).bidirectional(both_ways)))),
        head(register_module("head", nn::Linear(both_ways ? 48 : 24, letters))) {}
  at::Tensor forward(at::Tensor const& ids) { return head(std::get<0>(lstm(embed(ids)))); }
  nn::Embedding embed = register_module("embed", nn::Embedding(letters, 24));
  nn::LSTM lstm;
  nn::Linear head;
};

/// The next-letter loss of a model on windows [rows, length + 1].
template <class Model>
auto next_letter(Model& model) {
  return [&model](at::Tensor const& ids) {
    std::int64_t const time = ids.size(1) - 1;
    return F::cross_entropy(model.forward(ids.narrow(1, 0, time)).flatten(0, 1), ids.narrow(1, 1, time).flatten());
  };
}

/// Classifies padded text by a LibTorch encoder layer, which is sequence first and takes a mask that is true where it must not look.
struct topic_encoder : nn::Module {
  at::Tensor forward(at::Tensor const& ids, at::Tensor const& hidden, at::Tensor const& counted) {
    at::Tensor x = (embed(ids) + positions(at::arange(ids.size(1)))).transpose(0, 1);
    x = layer(x, at::Tensor(), hidden).transpose(0, 1);
    at::Tensor const weight = counted.to(at::kFloat).unsqueeze(-1);
    return head((x * weight).sum(1) / weight.sum(1));
  }
  nn::Embedding embed = register_module("embed", nn::Embedding(20, 16));
  nn::Embedding positions = register_module("positions", nn::Embedding(12, 16));
  nn::TransformerEncoderLayer layer =
      register_module("layer", nn::TransformerEncoderLayer(nn::TransformerEncoderLayerOptions(16, 2).dim_feedforward(32).dropout(0.1)));
  nn::Linear head = register_module("head", nn::Linear(16, 3));
};

struct tagger : nn::Module {
  at::Tensor forward(at::Tensor const& ids, at::Tensor const& mask) {
    at::Tensor const x = embed(ids) * mask.to(at::kFloat).unsqueeze(-1);
    return head(std::get<0>(gru(x)));
  }
  nn::Embedding embed = register_module("embed", nn::Embedding(13, 16));
  nn::GRU gru = register_module("gru", nn::GRU(nn::GRUOptions(16, 16).batch_first(true)));
  nn::Linear head = register_module("head", nn::Linear(16, 4));
};

// Sound programs.

keel::preflight_result sound_mlp_regression() {
  seed(101);
  nn::Sequential net(nn::Linear(8, 32), nn::Tanh(), nn::Linear(32, 32), nn::Tanh(), nn::Linear(32, 1));
  torch::optim::Adam optimizer(net->parameters(), torch::optim::AdamOptions(3e-3));
  auto const batches = many(48, [] { return smooth(); });
  return look(net, optimizer, batches, [&](pair const& b) { return F::mse_loss(net->forward(b.first), b.second); });
}

struct own_regressor : nn::Module {
  own_regressor() {
    hidden = register_module("hidden", nn::Linear(8, 24));
    out = register_module("out", nn::Linear(24, 1));
    gain = register_parameter("gain", at::ones({1}));
  }
  at::Tensor forward(at::Tensor x) {
    x = torch::relu(hidden(x));
    return gain * out(x).squeeze(-1);
  }
  nn::Linear hidden{nullptr}, out{nullptr};
  at::Tensor gain;
};

keel::preflight_result sound_handwritten_mse_example_sgd() {
  seed(102);
  auto model = std::make_shared<own_regressor>();
  torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.03).momentum(0.9));
  auto const batches = many(40, [] {
    pair const b = smooth(24);
    return example(b.first, b.second.squeeze(1));
  });
  return look(*model, optimizer, batches, [model](example const& b) { return (model->forward(b.data) - b.target).pow(2).mean(); });
}

keel::preflight_result sound_conv_batch_norm_dropout_nll() {
  seed(103);
  nn::Sequential net(nn::Conv2d(nn::Conv2dOptions(1, 8, 3).padding(1)), nn::BatchNorm2d(8), nn::ReLU(), nn::MaxPool2d(2), nn::Flatten(),
                     nn::Dropout(0.2), nn::Linear(8 * 16, 4), nn::LogSoftmax(1));
  torch::optim::AdamW optimizer(net->parameters(), torch::optim::AdamWOptions(3e-3));
  auto const batches = many(40, [] { return spots(); });
  return look(net, optimizer, batches, [&](pair const& b) { return torch::nll_loss(net->forward(b.first), b.second); });
}

keel::preflight_result sound_bytes_normalised_in_loss() {
  seed(104);
  nn::Sequential net(nn::Flatten(), nn::Linear(64, 32), nn::ReLU(), nn::Linear(32, 4));
  torch::optim::Adam optimizer(net->parameters(), torch::optim::AdamOptions(3e-3));
  auto const batches = many(40, [] {
    pair const b = spots(32);
    return pair((b.first * 255).clamp(0, 255).to(at::kByte), b.second);
  });
  return look(net, optimizer, batches, [&](pair const& b) {
    at::Tensor const pixels = (b.first.to(at::kFloat) / 255.0 - 0.25) / 0.2;
    return at::cross_entropy_loss(net->forward(pixels), b.second);
  });
}

keel::preflight_result sound_binary_with_logits() {
  seed(105);
  nn::Sequential net = perceptron(8, 1);
  torch::optim::AdamW optimizer(net->parameters(), torch::optim::AdamWOptions(5e-3));
  auto const batches = many(40, [] {
    pair const b = smooth();
    return pair(b.first, b.second.squeeze(1).gt(0).to(at::kFloat));
  });
  return look(net, optimizer, batches,
              [&](pair const& b) { return at::binary_cross_entropy_with_logits(net->forward(b.first).squeeze(-1), b.second); });
}

keel::preflight_result sound_multi_label_sigmoid_bce() {
  seed(106);
  nn::Sequential net(nn::Linear(8, 32), nn::ReLU(), nn::Linear(32, 3), nn::Sigmoid());
  torch::optim::Adam optimizer(net->parameters(), torch::optim::AdamOptions(1e-2));
  at::Tensor const mix = at::randn({8, 3});
  auto const batches = many(40, [&] {
    at::Tensor const x = at::randn({32, 8});
    return pair(x, (at::matmul(x, mix) + 0.5 * at::randn({32, 3})).gt(0).to(at::kFloat));
  });
  return look(net, optimizer, batches, [&](pair const& b) { return F::binary_cross_entropy(net->forward(b.first), b.second); });
}

keel::preflight_result sound_lstm_language_model() {
  seed(107);
  lstm_lm model;
  torch::optim::Adam optimizer(model.parameters(), torch::optim::AdamOptions(1e-2));
  auto const batches = texts(1);
  return look(model, optimizer, batches, next_letter(model));
}

keel::preflight_result sound_causal_transformer_language_model() {
  seed(108);
  block_lm model(attends::causally);
  torch::optim::AdamW optimizer(model.parameters(), torch::optim::AdamWOptions(5e-3));
  auto const batches = texts(2);
  return look(model, optimizer, batches, next_letter(model));
}

keel::preflight_result sound_padded_causal_transformer_weighted_loss() {
  seed(109);
  block_lm model(attends::causally);
  keel::adamw optimizer(model.parameters(), 5e-3);
  std::mt19937 engine(3);
  auto const batches = many(40, [&] {
    at::Tensor const ids = text(engine, 16, 13);
    at::Tensor const lengths = at::randint(6, 13, {16}, at::kLong);
    at::Tensor const mask = at::arange(12).unsqueeze(0).lt(lengths.unsqueeze(1));
    return triple(ids.narrow(1, 0, 12), mask, ids.narrow(1, 1, 12));
  });
  keel::trainer<plain> run{model, optimizer, {.updates = 500, .console = nullptr}};
  return run.preflight(batches, [&](triple const& b) -> keel::weighted_loss {
    auto const& [ids, mask, next] = b;
    at::Tensor const each = at::cross_entropy_loss(model.forward(ids).flatten(0, 1), next.flatten(), {}, at::Reduction::None);
    at::Tensor const counted = mask.flatten().to(at::kFloat);
    return {(each * counted).sum() / counted.sum(), counted.sum().item<double>()};
  });
}

keel::preflight_result sound_topic_encoder_with_mask() {
  seed(110);
  topic_encoder model;
  torch::optim::Adam optimizer(model.parameters(), torch::optim::AdamOptions(3e-3));
  auto const batches = many(40, [] { return topics(); });
  return look(model, optimizer, batches, [&](triple const& b) {
    auto const& [ids, mask, topic] = b;
    return F::cross_entropy(model.forward(ids, mask.logical_not(), mask), topic);
  });
}

struct two_way_tagger : nn::Module {
  at::Tensor forward(at::Tensor const& ids) { return head(std::get<0>(lstm(embed(ids)))); }
  nn::Embedding embed = register_module("embed", nn::Embedding(13, 16));
  nn::LSTM lstm = register_module("lstm", nn::LSTM(nn::LSTMOptions(16, 12).batch_first(true).bidirectional(true)));
  nn::Linear head = register_module("head", nn::Linear(24, 4));
};

keel::preflight_result sound_bidirectional_tagger() {
  seed(111);
  two_way_tagger model;
  torch::optim::Adam optimizer(model.parameters(), torch::optim::AdamOptions(1e-2));
  // Every row is whole: a tagger may look ahead, because tags do not go in.
  auto const batches = many(40, [] {
    at::Tensor const ids = at::randint(1, 13, {16, 10}, at::kLong);
    at::Tensor const after = at::cat({ids.slice(1, 1), at::full({16, 1}, 6, at::kLong)}, 1);
    at::Tensor const clean = ids.remainder(2) + 2 * ids.gt(after).to(at::kLong);
    return pair(ids, at::where(at::rand({16, 10}).lt(0.1), at::randint(4, {16, 10}, at::kLong), clean));
  });
  return look(model, optimizer, batches,
              [&](pair const& b) { return F::cross_entropy(model.forward(b.first).transpose(1, 2), b.second); });
}

keel::preflight_result sound_tagger_with_ignored_padding() {
  seed(112);
  tagger model;
  torch::optim::Adam optimizer(model.parameters(), torch::optim::AdamOptions(1e-2));
  auto const batches = many(40, [] { return tagged(16, -100); });
  return look(model, optimizer, batches, [&](triple const& b) {
    auto const& [ids, mask, tags] = b;
    return F::cross_entropy(model.forward(ids, mask).flatten(0, 1), tags.flatten(), F::CrossEntropyFuncOptions().ignore_index(-100));
  });
}

/// Sequences lie as LibTorch's recurrent layers have them, [time, rows, features].
struct time_first {
  at::Tensor inputs, labels;
  std::int64_t rows() const { return inputs.size(1); }
  time_first slice(std::int64_t begin, std::int64_t end) const { return {inputs.slice(1, begin, end), labels.slice(0, begin, end)}; }
  void visit(auto& archive) { archive("inputs", inputs), archive("labels", labels); }
};

struct gru_classifier : nn::Module {
  at::Tensor forward(at::Tensor const& x) { return head(std::get<1>(gru(x))[0]); }
  nn::GRU gru = register_module("gru", nn::GRU(1, 16));
  nn::Linear head = register_module("head", nn::Linear(16, 2));
};

keel::preflight_result sound_time_first_struct_gru() {
  seed(113);
  gru_classifier model;
  torch::optim::Adam optimizer(model.parameters(), torch::optim::AdamOptions(1e-2));
  auto const batches = many(40, [] {
    at::Tensor const label = at::randint(2, {16}, at::kLong);
    at::Tensor const drift = (label.to(at::kFloat) - 0.5) * 1.2;
    return time_first{(at::randn({10, 16}) + drift.unsqueeze(0)).unsqueeze(-1), label};
  });
  return look(model, optimizer, batches, [&](time_first const& b) { return at::cross_entropy_loss(model.forward(b.inputs), b.labels); });
}

struct variational : nn::Module {
  std::tuple<at::Tensor, at::Tensor, at::Tensor> forward(at::Tensor const& x) {
    auto const code = encoder->forward(x).chunk(2, 1);
    at::Tensor const z = code[0] + at::randn_like(code[0]) * (0.5 * code[1]).exp();
    return {decoder->forward(z), code[0], code[1]};
  }
  nn::Sequential encoder = register_module("encoder", nn::Sequential(nn::Linear(16, 32), nn::ReLU(), nn::Linear(32, 6)));
  nn::Sequential decoder = register_module("decoder", nn::Sequential(nn::Linear(3, 32), nn::ReLU(), nn::Linear(32, 16)));
};

/// Sixteen numbers that hang on two.
std::vector<at::Tensor> sheets(int count, std::int64_t rows = 32) {
  at::Tensor const spread = at::randn({2, 16});
  return many(count, [&] { return at::matmul(at::randn({rows, 2}), spread).tanh() + 0.05 * at::randn({rows, 16}); });
}

keel::preflight_result sound_vae() {
  seed(114);
  variational model;
  torch::optim::Adam optimizer(model.parameters(), torch::optim::AdamOptions(5e-3));
  auto const batches = sheets(40);
  return look(model, optimizer, batches, [&](at::Tensor const& x) {
    auto const [again, mean, spread] = model.forward(x);
    at::Tensor const kl = -0.5 * (1 + spread - mean.pow(2) - spread.exp()).sum(1).mean();
    return F::mse_loss(again, x) + 0.02 * kl;
  });
}

keel::preflight_result sound_autoencoder() {
  seed(115);
  nn::Sequential net(nn::Linear(16, 24), nn::Tanh(), nn::Linear(24, 3), nn::Linear(3, 24), nn::Tanh(), nn::Linear(24, 16));
  keel::adamw optimizer(net->parameters(), 5e-3);
  auto const batches = sheets(40);
  return look(net, optimizer, batches, [&](at::Tensor const& x) { return (net->forward(x) - x).pow(2).mean(); });
}

keel::preflight_result sound_denoising_conv_pair() {
  seed(116);
  nn::Sequential net(nn::Conv1d(nn::Conv1dOptions(1, 8, 5).padding(2)), nn::ReLU(), nn::Conv1d(nn::Conv1dOptions(8, 1, 5).padding(2)));
  torch::optim::Adam optimizer(net->parameters(), torch::optim::AdamOptions(1e-2));
  auto const batches = many(40, [] {
    at::Tensor const clean = (at::arange(20, at::kFloat).unsqueeze(0) * (0.3 + 0.4 * at::rand({16, 1})) + 6.28 * at::rand({16, 1})).sin();
    return pair((clean + 0.7 * at::randn({16, 20})).unsqueeze(1), clean.unsqueeze(1));
  });
  return look(net, optimizer, batches, [&](pair const& b) { return F::l1_loss(net->forward(b.first), b.second); });
}

keel::preflight_result sound_contrastive_two_views() {
  seed(117);
  nn::Sequential net = perceptron(8, 8);
  torch::optim::Adam optimizer(net->parameters(), torch::optim::AdamOptions(3e-3));
  auto const batches = many(40, [] {
    at::Tensor const thing = at::randn({24, 8});
    return pair(thing + 0.4 * at::randn({24, 8}), thing + 0.4 * at::randn({24, 8}));
  });
  return look(net, optimizer, batches, [&](pair const& b) {
    at::Tensor const one = F::normalize(net->forward(b.first), F::NormalizeFuncOptions().dim(1));
    at::Tensor const two = F::normalize(net->forward(b.second), F::NormalizeFuncOptions().dim(1));
    at::Tensor const scores = at::matmul(one, two.t()) / 0.2;
    at::Tensor const own = at::arange(scores.size(0));
    return 0.5 * (F::cross_entropy(scores, own) + F::cross_entropy(scores.t(), own));
  });
}

keel::preflight_result sound_triplets() {
  seed(118);
  nn::Sequential net = perceptron(8, 6);
  torch::optim::Adam optimizer(net->parameters(), torch::optim::AdamOptions(3e-3));
  at::Tensor const centers = at::randn({4, 8}) * 1.3;
  auto const batches = many(40, [&] {
    at::Tensor const kind = at::randint(4, {24}, at::kLong);
    at::Tensor const other = (kind + at::randint(1, 4, {24}, at::kLong)).remainder(4);
    auto const near = [&](at::Tensor const& of) { return centers.index_select(0, of) + at::randn({24, 8}); };
    return triple(near(kind), near(kind), near(other));
  });
  return look(net, optimizer, batches, [&](triple const& b) {
    auto const& [anchor, like, unlike] = b;
    return F::triplet_margin_loss(net->forward(anchor), net->forward(like), net->forward(unlike));
  });
}

keel::preflight_result sound_physics_without_labels() {
  seed(119);
  nn::Sequential net(nn::Linear(1, 16), nn::Tanh(), nn::Linear(16, 16), nn::Tanh(), nn::Linear(16, 1));
  torch::optim::Adam optimizer(net->parameters(), torch::optim::AdamOptions(5e-3));
  auto const batches = many(32, [] { return at::rand({24, 1}) * 2.0; });
  return look(net, optimizer, batches, [&](at::Tensor const& places) {
    at::Tensor const t = places.detach().clone().requires_grad_();
    at::Tensor const u = net->forward(t);
    at::Tensor const slope = torch::autograd::grad({u.sum()}, {t}, {}, true, true)[0];
    return (slope + u).pow(2).mean() + (net->forward(at::zeros({1, 1})) - 1.0).pow(2).mean();
  });
}

/// Bags of words without padding: all words in one tensor, and where each row begins.
struct bags {
  at::Tensor words, begins, topic;
  std::int64_t rows() const { return begins.size(0); }
  bags slice(std::int64_t begin, std::int64_t end) const {
    std::int64_t const from = begin < rows() ? begins[begin].item<std::int64_t>() : words.size(0);
    std::int64_t const to = end < rows() ? begins[end].item<std::int64_t>() : words.size(0);
    return {words.slice(0, from, to), begins.slice(0, begin, end) - from, topic.slice(0, begin, end)};
  }
  void visit(auto& archive) { archive("words", words), archive("begins", begins), archive("topic", topic); }
};

struct bag_classifier : nn::Module {
  at::Tensor forward(bags const& b) { return head(torch::relu(bag(b.words, b.begins))); }
  nn::EmbeddingBag bag = register_module("bag", nn::EmbeddingBag(nn::EmbeddingBagOptions(20, 16).mode(torch::kMean)));
  nn::Linear head = register_module("head", nn::Linear(16, 3));
};

keel::preflight_result sound_embedding_bags() {
  seed(120);
  bag_classifier model;
  torch::optim::Adam optimizer(model.parameters(), torch::optim::AdamOptions(1e-2));
  auto const batches = many(40, [] {
    auto const [ids, mask, topic] = topics();
    at::Tensor const lengths = mask.sum(1);
    return bags{ids.masked_select(mask), lengths.cumsum(0) - lengths, topic};
  });
  return look(model, optimizer, batches, [&](bags const& b) { return F::cross_entropy(model.forward(b), b.topic); });
}

keel::preflight_result sound_gaussian_nll() {
  seed(121);
  nn::Sequential net = perceptron(8, 2);
  torch::optim::Adam optimizer(net->parameters(), torch::optim::AdamOptions(3e-3));
  auto const batches = many(40, [] { return smooth(); });
  return look(net, optimizer, batches, [&](pair const& b) {
    auto const parts = net->forward(b.first).split(1, 1);
    at::Tensor const mean = parts[0], log_variance = parts[1].clamp(-6.0, 6.0);
    return (0.5 * (log_variance + (b.second - mean).pow(2) / log_variance.exp())).mean();
  });
}

keel::preflight_result sound_accumulate_cosine_evaluation() {
  seed(122);
  nn::Sequential net(nn::Linear(8, 32), nn::ReLU(), nn::Dropout(0.1), nn::Linear(32, 4));
  torch::optim::AdamW optimizer(net->parameters(), torch::optim::AdamWOptions(1e-2));
  auto const batches = many(64, [] { return clouds(16); });
  auto const held_out = many(4, [] { return clouds(32); });
  keel::trainer<in_four> run{net, optimizer, {.updates = 400, .console = nullptr}};
  std::function<at::Tensor(pair const&)> const loss_of = [&](pair const& b) { return F::cross_entropy(net->forward(b.first), b.second); };
  run.evaluate_on("validation", held_out, loss_of);
  return run.preflight(batches, loss_of);
}

struct residual_block : nn::Module {
  at::Tensor forward(at::Tensor const& x) { return x + second(torch::gelu(first(norm(x)))); }
  nn::LayerNorm norm = register_module("norm", nn::LayerNorm(nn::LayerNormOptions({24})));
  nn::Linear first = register_module("first", nn::Linear(24, 48));
  nn::Linear second = register_module("second", nn::Linear(48, 24));
};

struct residual_net : nn::Module {
  explicit residual_net(int depth) {
    for (int i = 0; i < depth; ++i) blocks.push_back(register_module("block" + std::to_string(i), std::make_shared<residual_block>()));
  }
  at::Tensor forward(at::Tensor x) {
    x = entry(x);
    for (auto const& one : blocks) x = keel::unit(one, x);
    return exit(x);
  }
  nn::Linear entry = register_module("entry", nn::Linear(8, 24));
  nn::Linear exit = register_module("exit", nn::Linear(24, 4));
  std::vector<std::shared_ptr<residual_block>> blocks;
};

keel::preflight_result sound_units_under_recompute() {
  seed(123);
  residual_net net(3);
  keel::adamw optimizer(net.parameters(), 3e-3);
  auto const batches = many(40, [] { return clouds(); });
  return look<recomputing>(net, optimizer, batches, [&](pair const& b) { return at::cross_entropy_loss(net.forward(b.first), b.second); });
}

keel::preflight_result sound_ladder_with_units() {
  seed(124);
  residual_net net(2);
  keel::adamw optimizer(net.parameters(), 3e-3);
  auto const batches = many(40, [] { return clouds(); });
  return look<climbing>(net, optimizer, batches, [&](pair const& b) { return at::cross_entropy_loss(net.forward(b.first), b.second); });
}

template <class Linear>
struct two_layers : nn::Module {
  at::Tensor forward(at::Tensor const& x) { return second(torch::relu(first(x))); }
  Linear first = register_module("first", Linear(8, 32));
  Linear second = register_module("second", Linear(std::int64_t{32}, std::int64_t{4}));
};

keel::preflight_result sound_lora() {
  seed(125);
  two_layers<nn::Linear> dense;
  torch::optim::Adam teaching(dense.parameters(), torch::optim::AdamOptions(1e-2));
  for (int i = 0; i < 100; ++i) {
    pair const b = clouds();
    teaching.zero_grad();
    F::cross_entropy(dense.forward(b.first), b.second).backward();
    teaching.step();
  }
  two_layers<keel::lora> model;
  keel::load_base(model, keel::model_tensors(dense));
  keel::freeze_base(model);
  keel::adamw optimizer(keel::trained_parameters(model), 1e-2);
  auto const batches = many(40, [] {  // the same clouds under other names, with features in another order
    pair const b = clouds();
    return pair(b.first.roll(1, 1), b.second);
  });
  return look<adapted>(model, optimizer, batches, [&](pair const& b) { return F::cross_entropy(model.forward(b.first), b.second); });
}

keel::preflight_result sound_bf16_classifier() {
  seed(126);
  nn::Sequential net(nn::Linear(8, 32), nn::GELU(), nn::Linear(32, 4));
  torch::optim::AdamW optimizer(net->parameters(), torch::optim::AdamWOptions(5e-3));
  auto const batches = many(40, [] { return clouds(); });
  return look<in_bf16>(net, optimizer, batches,
                       [&](pair const& b) { return F::cross_entropy(net->forward(b.first).to(at::kFloat), b.second); });
}

struct on_a_trunk : nn::Module {
  at::Tensor forward(at::Tensor const& x) { return head(trunk->forward(x)); }
  nn::Sequential trunk =
      register_module("trunk", nn::Sequential(nn::Linear(8, 32), nn::ReLU(), nn::Linear(32, 32), nn::ReLU()));
  nn::Linear head = register_module("head", nn::Linear(32, 4));
};

keel::preflight_result sound_frozen_trunk() {
  seed(127);
  on_a_trunk model;
  for (auto& one : model.trunk->parameters()) one.requires_grad_(false);
  torch::optim::Adam optimizer(model.head->parameters(), torch::optim::AdamOptions(1e-2));
  auto const batches = many(40, [] { return clouds(); });
  return look(model, optimizer, batches, [&](pair const& b) { return F::cross_entropy(model.forward(b.first), b.second); });
}

/// What the network remembers of each stream.
struct memory {
  at::Tensor hidden = at::zeros({1, 8, 24});
  at::Tensor cell = at::zeros({1, 8, 24});
  void visit(auto& archive) { archive("hidden", hidden), archive("cell", cell); }
};

struct remembering : nn::Module {
  at::Tensor forward(at::Tensor const& ids, memory& carried) {
    auto const [output, state] = lstm(embed(ids), std::make_tuple(carried.hidden, carried.cell));
    if (is_training()) carried = {std::get<0>(state).detach(), std::get<1>(state).detach()};
    return head(output);
  }
  nn::Embedding embed = register_module("embed", nn::Embedding(letters, 24));
  nn::LSTM lstm = register_module("lstm", nn::LSTM(nn::LSTMOptions(24, 24).batch_first(true)));
  nn::Linear head = register_module("head", nn::Linear(24, letters));
};

/// Eight long texts, cut into pieces that follow each other.
std::vector<at::Tensor> pieces() {
  std::mt19937 engine(8);
  at::Tensor const all = text(engine, 8, 40 * 12 + 1);
  std::vector<at::Tensor> cut;
  for (std::int64_t i = 0; i < 40; ++i) cut.push_back(all.narrow(1, i * 12, 13).clone());
  return cut;
}

keel::preflight_result sound_stateful_lstm_registered() {
  seed(128);
  remembering model;
  torch::optim::AdamW optimizer(model.parameters(), torch::optim::AdamWOptions(1e-2));
  memory carried;
  keel::trainer<plain> run{model, optimizer, {.updates = 300, .console = nullptr}};
  run.register_state("memory", carried);
  std::function<at::Tensor(at::Tensor const&)> const loss_of = [&](at::Tensor const& ids) {
    return F::cross_entropy(model.forward(ids.narrow(1, 0, 12), carried).flatten(0, 1), ids.narrow(1, 1, 12).flatten());
  };
  return run.preflight(pieces(), loss_of);
}

/// Letters of an answer after letters of a question, whose first says with which letter the answer begins.
struct translator : nn::Module {
  at::Tensor forward(at::Tensor const& source, at::Tensor const& given) {
    at::Tensor const state = std::get<1>(encoder(embed(source)));
    return head(std::get<0>(decoder(embed(given), state)));
  }
  nn::Embedding embed = register_module("embed", nn::Embedding(letters + 1, 20));
  nn::GRU encoder = register_module("encoder", nn::GRU(nn::GRUOptions(20, 24).batch_first(true)));
  nn::GRU decoder = register_module("decoder", nn::GRU(nn::GRUOptions(20, 24).batch_first(true)));
  nn::Linear head = register_module("head", nn::Linear(24, letters));
};

keel::preflight_result sound_teacher_forced_translator() {
  seed(129);
  translator model;
  torch::optim::Adam optimizer(model.parameters(), torch::optim::AdamOptions(1e-2));
  std::mt19937 engine(9);
  auto const batches = many(40, [&] {
    at::Tensor const answer = text(engine, 16, 8);
    at::Tensor const source = at::cat({(answer.narrow(1, 0, 1) * 5 + 3).remainder(letters), at::randint(letters, {16, 3}, at::kLong)}, 1);
    at::Tensor const given = at::cat({at::full({16, 1}, letters, at::kLong), answer.narrow(1, 0, 7)}, 1);
    return triple(source, given, answer);
  });
  return look(model, optimizer, batches, [&](triple const& b) {
    auto const& [source, given, answer] = b;
    return F::cross_entropy(model.forward(source, given).flatten(0, 1), answer.flatten());
  });
}

/// `chomps_right`: what was padded at the end is cut off, so that nothing comes from later.
struct wave_convolution : nn::Module {
  explicit wave_convolution(bool chomps_right) : right(chomps_right) {}
  at::Tensor chomp(at::Tensor const& x, std::int64_t by) const { return right ? x.slice(2, 0, x.size(2) - by) : x.slice(2, by); }
  at::Tensor forward(at::Tensor const& x) { return last(torch::relu(chomp(second(torch::relu(chomp(first(x), 2))), 4))); }
  bool right;
  nn::Conv1d first = register_module("first", nn::Conv1d(nn::Conv1dOptions(1, 12, 3).padding(2)));
  nn::Conv1d second = register_module("second", nn::Conv1d(nn::Conv1dOptions(12, 12, 3).padding(4).dilation(2)));
  nn::Conv1d last = register_module("last", nn::Conv1d(nn::Conv1dOptions(12, 1, 1)));
};

keel::preflight_result causal_convolution(bool chomps_right) {
  wave_convolution model(chomps_right);
  torch::optim::Adam optimizer(model.parameters(), torch::optim::AdamOptions(5e-3));
  auto const batches = many(40, [] { return waves(16, 21).unsqueeze(1); });
  return look(model, optimizer, batches,
              [&](at::Tensor const& all) { return at::mse_loss(model.forward(all.narrow(2, 0, 20)), all.narrow(2, 1, 20)); });
}
keel::preflight_result sound_causal_convolution_on_waves() {
  seed(130);
  return causal_convolution(true);
}

keel::preflight_result forecast(std::int64_t target) {
  nn::Sequential net = perceptron(12, 1);
  torch::optim::Adam optimizer(net->parameters(), torch::optim::AdamOptions(5e-3));
  auto const batches = many(48, [&] {
    at::Tensor const all = waves(32, 13);
    return pair(all.narrow(1, 0, 12).clone(), all.select(1, target).clone());
  });
  return look(net, optimizer, batches, [&](pair const& b) { return F::smooth_l1_loss(net->forward(b.first).squeeze(1), b.second); });
}
keel::preflight_result sound_forecast_from_window() {
  seed(131);
  return forecast(12);
}

keel::preflight_result sound_masked_language_model() {
  seed(132);
  struct filler : block_lm {
    filler() : block_lm(attends::everywhere) {}
  } model;
  torch::optim::AdamW optimizer(model.parameters(), torch::optim::AdamWOptions(5e-3));
  // Letters 1 to 15 in three topics of five; 0 hides a letter.
  auto const batches = many(40, [] {
    at::Tensor const ids = 1 + at::randint(3, {16, 1}, at::kLong) * 5 + at::randint(5, {16, 12}, at::kLong);
    at::Tensor const hidden = at::rand({16, 12}).lt(0.25);
    return pair(ids.masked_fill(hidden, 0), ids.masked_fill(hidden.logical_not(), -100));
  });
  return look(model, optimizer, batches,
              [&](pair const& b) { return F::cross_entropy(model.forward(b.first).flatten(0, 1), b.second.flatten()); });
}

keel::preflight_result sound_distillation_from_a_teacher_in_evaluation() {
  seed(133);
  nn::Sequential teacher(nn::Linear(8, 32), nn::ReLU(), nn::Dropout(0.3), nn::Linear(32, 4));
  torch::optim::Adam teaching(teacher->parameters(), torch::optim::AdamOptions(1e-2));
  for (int i = 0; i < 150; ++i) {
    pair const b = clouds();
    teaching.zero_grad();
    F::cross_entropy(teacher->forward(b.first), b.second).backward();
    teaching.step();
  }
  teacher->eval();
  for (auto& one : teacher->parameters()) one.requires_grad_(false);
  nn::Sequential student = perceptron(8, 4, 16);
  torch::optim::Adam optimizer(student->parameters(), torch::optim::AdamOptions(1e-2));
  auto const batches = many(40, [] { return clouds(); });
  return look(student, optimizer, batches, [&](pair const& b) {
    at::Tensor const scores = student->forward(b.first);
    at::Tensor const wanted = at::softmax(teacher->forward(b.first), 1);
    at::Tensor const soft = F::kl_div(at::log_softmax(scores, 1), wanted, F::KLDivFuncOptions().reduction(torch::kBatchMean));
    return 0.5 * F::cross_entropy(scores, b.second) + 0.5 * soft;
  });
}

struct two_heads : nn::Module {
  std::pair<at::Tensor, at::Tensor> forward(at::Tensor const& x) {
    at::Tensor const shared = torch::relu(trunk(x));
    return {kind(shared), size(shared)};
  }
  nn::Linear trunk = register_module("trunk", nn::Linear(8, 32));
  nn::Linear kind = register_module("kind", nn::Linear(32, 4));
  nn::Linear size = register_module("size", nn::Linear(32, 1));
};

keel::preflight_result sound_two_heads() {
  seed(134);
  two_heads model;
  torch::optim::Adam optimizer(model.parameters(), torch::optim::AdamOptions(5e-3));
  auto const batches = many(40, [] {
    pair const b = clouds();
    return triple(b.first, b.second, (b.first.select(1, 2) - b.first.select(1, 6)).sin().unsqueeze(1));
  });
  return look(model, optimizer, batches, [&](triple const& b) {
    auto const& [x, kind, size] = b;
    auto const [scores, guess] = model.forward(x);
    return F::cross_entropy(scores, kind) + F::mse_loss(guess, size);
  });
}

keel::preflight_result sound_weights_of_rows() {
  seed(135);
  nn::Sequential net = perceptron(8, 1);
  torch::optim::Adam optimizer(net->parameters(), torch::optim::AdamOptions(3e-3));
  auto const batches = many(40, [] {
    pair const b = smooth();
    return triple(b.first, 0.5 + at::rand({32, 1}), b.second);
  });
  return look(net, optimizer, batches, [&](triple const& b) {
    auto const& [x, weight, y] = b;
    return (weight * (net->forward(x) - y).square()).sum() / weight.sum();
  });
}

// Programs with one bug.

keel::preflight_result letters_by(attends how, unsigned number) {
  seed(number);
  block_lm model(how);
  torch::optim::AdamW optimizer(model.parameters(), torch::optim::AdamWOptions(5e-3));
  auto const batches = texts(number);
  return look(model, optimizer, batches, next_letter(model));
}
keel::preflight_result bug_no_causal_mask() { return letters_by(attends::everywhere, 201); }
keel::preflight_result bug_softmax_over_queries() { return letters_by(attends::normalised_over_queries, 202); }
keel::preflight_result bug_softmax_over_rows() { return letters_by(attends::normalised_over_rows, 203); }
keel::preflight_result bug_attention_between_heads() { return letters_by(attends::between_heads, 204); }

keel::preflight_result bug_bidirectional_language_model() {
  seed(205);
  lstm_lm model(true);
  torch::optim::Adam optimizer(model.parameters(), torch::optim::AdamOptions(1e-2));
  auto const batches = texts(5);
  return look(model, optimizer, batches, next_letter(model));
}

struct two_way_waves : nn::Module {
  at::Tensor forward(at::Tensor const& x) { return head(std::get<0>(gru(x))); }
  nn::GRU gru = register_module("gru", nn::GRU(nn::GRUOptions(1, 12).batch_first(true).bidirectional(true)));
  nn::Linear head = register_module("head", nn::Linear(24, 1));
};

keel::preflight_result bug_bidirectional_forecast() {
  seed(206);
  two_way_waves model;
  torch::optim::Adam optimizer(model.parameters(), torch::optim::AdamOptions(1e-2));
  auto const batches = many(40, [] {
    at::Tensor const all = waves(16, 17).unsqueeze(-1);
    return pair(all.narrow(1, 0, 16).clone(), all.narrow(1, 1, 16).clone());
  });
  return look(model, optimizer, batches, [&](pair const& b) { return (model.forward(b.first) - b.second).pow(2).mean(); });
}

keel::preflight_result bug_convolution_cut_at_the_wrong_end() {
  seed(207);
  return causal_convolution(false);
}

keel::preflight_result bug_feature_is_the_target() {
  seed(208);
  nn::Sequential net = perceptron(8, 1);
  torch::optim::Adam optimizer(net->parameters(), torch::optim::AdamOptions(3e-3));
  auto const batches = many(48, [] {
    pair const b = smooth();
    at::Tensor x = b.first.clone();
    x.select(1, 6).copy_(b.second.squeeze(1) * 2.0 + 1.0);
    return pair(x, b.second);
  });
  return look(net, optimizer, batches, [&](pair const& b) { return F::mse_loss(net->forward(b.first), b.second); });
}

keel::preflight_result bug_class_among_the_features() {
  seed(209);
  nn::Sequential net = perceptron(9, 4);
  torch::optim::Adam optimizer(net->parameters(), torch::optim::AdamOptions(3e-3));
  auto const batches = many(40, [] {  // the last column of the table was the label, which stayed in
    pair const b = clouds();
    return example(at::cat({b.first, b.second.to(at::kFloat).unsqueeze(1)}, 1), b.second);
  });
  return look(net, optimizer, batches, [&](example const& b) { return F::cross_entropy(net->forward(b.data), b.target); });
}

keel::preflight_result bug_window_holds_the_target() {
  seed(210);
  return forecast(11);
}

/// Inputs from `input` on and targets from `target` on, of windows of 14.
keel::preflight_result shifted(std::int64_t input, std::int64_t target) {
  lstm_lm model;
  torch::optim::Adam optimizer(model.parameters(), torch::optim::AdamOptions(1e-2));
  std::mt19937 engine(12);
  auto const batches = many(40, [&] {
    at::Tensor const ids = text(engine, 16, 14);
    return pair(ids.narrow(1, input, 12).clone(), ids.narrow(1, target, 12).clone());
  });
  return look(model, optimizer, batches,
              [&](pair const& b) { return F::cross_entropy(model.forward(b.first).flatten(0, 1), b.second.flatten()); });
}
keel::preflight_result bug_targets_shifted_by_none() {
  seed(211);
  return shifted(0, 0);
}
keel::preflight_result bug_targets_shifted_by_two() {
  seed(212);
  return shifted(0, 2);
}
keel::preflight_result bug_targets_shifted_backwards() {
  seed(213);
  return shifted(1, 0);
}

keel::preflight_result bug_targets_shifted_by_two_single_tensor() {
  seed(214);
  block_lm model(attends::causally);
  keel::adamw optimizer(model.parameters(), 5e-3);
  auto const batches = texts(14, 40, 16, 14);
  return look(model, optimizer, batches, [&](at::Tensor const& ids) {  // shifted by the data set, and once more here
    at::Tensor const scores = model.forward(ids.slice(1, 0, -2));
    return at::cross_entropy_loss(scores.reshape({-1, letters}), ids.slice(1, 2).reshape({-1}));
  });
}

keel::preflight_result bug_targets_transposed_against_scores() {
  seed(215);
  struct time_first_lm : nn::Module {
    at::Tensor forward(at::Tensor const& ids) { return head(std::get<0>(lstm(embed(ids)))); }
    nn::Embedding embed = register_module("embed", nn::Embedding(letters, 24));
    nn::LSTM lstm = register_module("lstm", nn::LSTM(24, 24));
    nn::Linear head = register_module("head", nn::Linear(24, letters));
  } model;
  torch::optim::Adam optimizer(model.parameters(), torch::optim::AdamOptions(1e-2));
  auto const batches = texts(15);
  return look(model, optimizer, batches, [&](at::Tensor const& ids) {
    at::Tensor const scores = model.forward(ids.narrow(1, 0, 12).t());  // [time, rows, letters]
    return F::cross_entropy(scores.flatten(0, 1), ids.narrow(1, 1, 12).flatten());
  });
}

keel::preflight_result bug_decoder_is_given_the_answer() {
  seed(216);
  translator model;
  torch::optim::Adam optimizer(model.parameters(), torch::optim::AdamOptions(1e-2));
  std::mt19937 engine(16);
  auto const batches = many(40, [&] {
    at::Tensor const answer = text(engine, 16, 8);
    return pair(at::cat({(answer.narrow(1, 0, 1) * 5 + 3).remainder(letters), at::randint(letters, {16, 3}, at::kLong)}, 1), answer);
  });
  return look(model, optimizer, batches,
              [&](pair const& b) { return F::cross_entropy(model.forward(b.first, b.second).flatten(0, 1), b.second.flatten()); });
}

struct layers_in_a_vector : nn::Module {
  layers_in_a_vector() {
    for (int i = 0; i < 2; ++i) middle.push_back(nn::Linear(24, 24));
  }
  at::Tensor forward(at::Tensor x) {
    x = torch::relu(entry(x));
    for (auto& one : middle) x = torch::relu(one(x));
    return exit(x);
  }
  nn::Linear entry = register_module("entry", nn::Linear(8, 24));
  nn::Linear exit = register_module("exit", nn::Linear(24, 4));
  std::vector<nn::Linear> middle;
};

keel::preflight_result bug_layers_in_a_vector() {
  seed(217);
  layers_in_a_vector model;
  torch::optim::Adam optimizer(model.parameters(), torch::optim::AdamOptions(5e-3));
  auto const batches = many(40, [] { return clouds(); });
  return look(model, optimizer, batches, [&](pair const& b) { return F::cross_entropy(model.forward(b.first), b.second); });
}

struct with_a_plain_tensor : nn::Module {
  at::Tensor forward(at::Tensor const& x) { return out(torch::tanh(at::matmul(x, mixing))); }
  at::Tensor mixing = (at::randn({8, 16}) * 0.3).requires_grad_();
  nn::Linear out = register_module("out", nn::Linear(16, 1));
};

keel::preflight_result bug_plain_tensor_as_parameter() {
  seed(218);
  with_a_plain_tensor model;
  torch::optim::Adam optimizer(model.parameters(), torch::optim::AdamOptions(5e-3));
  auto const batches = many(40, [] { return smooth(); });
  return look(model, optimizer, batches, [&](pair const& b) { return (model.forward(b.first) - b.second).square().mean(); });
}

struct forgets_a_layer : nn::Module {
  at::Tensor forward(at::Tensor const& x) {
    at::Tensor const one = torch::relu(first(x));
    at::Tensor const two = torch::relu(second(one));
    return third(one);  // and not of two
  }
  nn::Linear first = register_module("first", nn::Linear(8, 24));
  nn::Linear second = register_module("second", nn::Linear(24, 24));
  nn::Linear third = register_module("third", nn::Linear(24, 4));
};

keel::preflight_result bug_layer_is_not_used() {
  seed(219);
  forgets_a_layer model;
  torch::optim::Adam optimizer(model.parameters(), torch::optim::AdamOptions(5e-3));
  auto const batches = many(40, [] { return clouds(); });
  return look(model, optimizer, batches, [&](pair const& b) { return F::cross_entropy(model.forward(b.first), b.second); });
}

keel::preflight_result bug_mask_inverted() {
  seed(220);
  topic_encoder model;
  torch::optim::Adam optimizer(model.parameters(), torch::optim::AdamOptions(3e-3));
  auto const batches = many(40, [] { return topics(); });
  return look(model, optimizer, batches, [&](triple const& b) {
    auto const& [ids, mask, topic] = b;
    return F::cross_entropy(model.forward(ids, mask, mask), topic);  // the layer wants true where it must not look
  });
}

keel::preflight_result bug_mask_unused() {
  seed(221);
  topic_encoder model;
  torch::optim::Adam optimizer(model.parameters(), torch::optim::AdamOptions(3e-3));
  auto const batches = many(40, [] { return topics(); });
  return look(model, optimizer, batches, [&](triple const& b) {
    auto const& [ids, mask, topic] = b;
    return F::cross_entropy(model.forward(ids, {}, at::ones_like(ids)), topic);
  });
}

keel::preflight_result bug_mask_not_in_the_mean() {
  seed(222);
  topic_encoder model;
  torch::optim::Adam optimizer(model.parameters(), torch::optim::AdamOptions(3e-3));
  auto const batches = many(40, [] { return topics(); });
  return look(model, optimizer, batches, [&](triple const& b) {
    auto const& [ids, mask, topic] = b;
    return F::cross_entropy(model.forward(ids, mask.logical_not(), at::ones_like(mask)), topic);
  });
}

keel::preflight_result bug_labels_of_padding_count() {
  seed(223);
  tagger model;
  torch::optim::Adam optimizer(model.parameters(), torch::optim::AdamOptions(1e-2));
  auto const batches = many(40, [] { return tagged(16, 0); });
  return look(model, optimizer, batches, [&](triple const& b) {
    auto const& [ids, mask, tags] = b;
    return F::cross_entropy(model.forward(ids, mask).flatten(0, 1), tags.flatten());
  });
}

keel::preflight_result bug_loss_of_padding_alone() {
  seed(224);
  tagger model;
  torch::optim::Adam optimizer(model.parameters(), torch::optim::AdamOptions(1e-2));
  auto const batches = many(40, [] { return tagged(16, 0); });
  return look(model, optimizer, batches, [&](triple const& b) {
    auto const& [ids, mask, tags] = b;
    at::Tensor const each = at::cross_entropy_loss(model.forward(ids, mask).flatten(0, 1), tags.flatten(), {}, at::Reduction::None);
    at::Tensor const counted = mask.flatten().logical_not().to(at::kFloat);
    return (each * counted).sum() / counted.sum();
  });
}

keel::preflight_result bug_softmax_before_cross_entropy() {
  seed(225);
  nn::Sequential net(nn::Linear(8, 32), nn::ReLU(), nn::Linear(32, 4), nn::Softmax(1));
  torch::optim::Adam optimizer(net->parameters(), torch::optim::AdamOptions(5e-3));
  auto const batches = many(40, [] { return clouds(); });
  return look(net, optimizer, batches, [&](pair const& b) { return F::cross_entropy(net->forward(b.first), b.second); });
}

keel::preflight_result bug_sigmoid_twice() {
  seed(226);
  nn::Sequential net(nn::Linear(8, 32), nn::ReLU(), nn::Linear(32, 1), nn::Sigmoid());
  torch::optim::Adam optimizer(net->parameters(), torch::optim::AdamOptions(5e-3));
  auto const batches = many(40, [] {
    pair const b = smooth();
    return pair(b.first, b.second.gt(0).to(at::kFloat));
  });
  return look(net, optimizer, batches, [&](pair const& b) { return F::binary_cross_entropy_with_logits(net->forward(b.first), b.second); });
}

keel::preflight_result bug_nll_of_probabilities() {
  seed(227);
  nn::Sequential net = perceptron(8, 4);
  torch::optim::Adam optimizer(net->parameters(), torch::optim::AdamOptions(5e-3));
  auto const batches = many(40, [] { return clouds(); });
  return look(net, optimizer, batches, [&](pair const& b) { return torch::nll_loss(torch::softmax(net->forward(b.first), 1), b.second); });
}

keel::preflight_result bug_relu_on_scores() {
  seed(228);
  struct scorer : nn::Module {
    at::Tensor forward(at::Tensor x) {
      x = torch::relu(first(x));
      return torch::relu(second(x));
    }
    nn::Linear first = register_module("first", nn::Linear(8, 32));
    nn::Linear second = register_module("second", nn::Linear(32, 4));
  } model;
  torch::optim::Adam optimizer(model.parameters(), torch::optim::AdamOptions(5e-3));
  auto const batches = many(40, [] { return clouds(); });
  return look(model, optimizer, batches, [&](pair const& b) { return at::cross_entropy_loss(model.forward(b.first), b.second); });
}

nn::Sequential with_dropout() { return nn::Sequential(nn::Linear(8, 32), nn::ReLU(), nn::Dropout(0.2), nn::Linear(32, 4)); }

keel::preflight_result bug_left_in_evaluation_by_a_test() {
  seed(229);
  nn::Sequential net = with_dropout();
  torch::optim::Adam optimizer(net->parameters(), torch::optim::AdamOptions(5e-3));
  auto const batches = many(40, [] { return clouds(); });
  auto const accuracy = [&](pair const& b) {
    net->eval();
    torch::NoGradGuard no_grad;
    return net->forward(b.first).argmax(1).eq(b.second).to(at::kFloat).mean().item<double>();
  };
  if (accuracy(batches[0]) > 1.0) std::puts("?");
  return look(net, optimizer, batches, [&](pair const& b) { return F::cross_entropy(net->forward(b.first), b.second); });
}

keel::preflight_result bug_evaluation_mode_inside_the_loss() {
  seed(230);
  nn::Sequential net = with_dropout();
  torch::optim::Adam optimizer(net->parameters(), torch::optim::AdamOptions(5e-3));
  auto const batches = many(40, [] { return clouds(); });
  double right = 0.0;
  return look(net, optimizer, batches, [&](pair const& b) {
    at::Tensor const loss = F::cross_entropy(net->forward(b.first), b.second);
    net->eval();
    right = net->forward(b.first).argmax(1).eq(b.second).to(at::kFloat).mean().item<double>();
    return loss;
  });
}

keel::preflight_result bug_one_dropout_in_evaluation() {
  seed(231);
  struct network : nn::Module {
    at::Tensor forward(at::Tensor const& x) { return out(drop(torch::relu(in(x)))); }
    nn::Linear in = register_module("in", nn::Linear(8, 32));
    nn::Dropout drop = register_module("drop", nn::Dropout(0.2));
    nn::Linear out = register_module("out", nn::Linear(32, 1));
  } model;
  model.drop->eval();
  torch::optim::Adam optimizer(model.parameters(), torch::optim::AdamOptions(5e-3));
  auto const batches = many(40, [] { return smooth(); });
  return look(model, optimizer, batches, [&](pair const& b) { return F::mse_loss(model.forward(b.first), b.second); });
}

struct two_branches : nn::Module {
  at::Tensor forward(at::Tensor const& x) {
    at::Tensor const wide = torch::relu(left(x));
    at::Tensor const deep = torch::relu(right(x)).detach();
    return out(at::cat({wide, deep}, 1));
  }
  nn::Linear left = register_module("left", nn::Linear(8, 16));
  nn::Linear right = register_module("right", nn::Linear(8, 16));
  nn::Linear out = register_module("out", nn::Linear(32, 1));
};

keel::preflight_result bug_branch_is_detached() {
  seed(232);
  two_branches model;
  torch::optim::Adam optimizer(model.parameters(), torch::optim::AdamOptions(5e-3));
  auto const batches = many(40, [] { return smooth(); });
  return look(model, optimizer, batches, [&](pair const& b) { return F::mse_loss(model.forward(b.first), b.second); });
}

keel::preflight_result bug_trunk_under_no_grad() {
  seed(233);
  on_a_trunk model;
  torch::optim::Adam optimizer(model.parameters(), torch::optim::AdamOptions(5e-3));
  auto const batches = many(40, [] { return clouds(); });
  return look(model, optimizer, batches, [&](pair const& b) {
    at::Tensor features;
    {
      torch::NoGradGuard no_grad;
      features = model.trunk->forward(b.first);
    }
    return F::cross_entropy(model.head(features), b.second);
  });
}

keel::preflight_result bug_hard_threshold_inside() {
  seed(234);
  struct network : nn::Module {
    at::Tensor forward(at::Tensor const& x) { return out(in(x).gt(0).to(at::kFloat)); }
    nn::Linear in = register_module("in", nn::Linear(8, 32));
    nn::Linear out = register_module("out", nn::Linear(32, 4));
  } model;
  torch::optim::Adam optimizer(model.parameters(), torch::optim::AdamOptions(5e-3));
  auto const batches = many(40, [] { return clouds(); });
  return look(model, optimizer, batches, [&](pair const& b) { return F::cross_entropy(model.forward(b.first), b.second); });
}

keel::preflight_result bug_loss_of_another_model() {
  seed(235);
  nn::Sequential net = perceptron(8, 1), draft = perceptron(8, 1);
  torch::optim::Adam optimizer(net->parameters(), torch::optim::AdamOptions(5e-3));
  auto const batches = many(40, [] { return smooth(); });
  return look(net, optimizer, batches, [&](pair const& b) { return F::mse_loss(draft->forward(b.first), b.second); });
}

keel::preflight_result clouds_at_rate(double rate) {
  nn::Sequential net = perceptron(8, 4);
  torch::optim::Adam optimizer(net->parameters(), torch::optim::AdamOptions(rate));
  auto const batches = many(40, [] { return clouds(); });
  return look(net, optimizer, batches, [&](pair const& b) { return F::cross_entropy(net->forward(b.first), b.second); });
}
keel::preflight_result bug_rate_far_too_high() {
  seed(236);
  return clouds_at_rate(5.0);
}
keel::preflight_result bug_rate_far_too_low() {
  seed(237);
  return clouds_at_rate(1e-8);
}
keel::preflight_result bug_rate_zero() {
  seed(238);
  return clouds_at_rate(0.0);
}

keel::preflight_result bug_sgd_rate_a_millionth() {
  seed(239);
  nn::Sequential net = perceptron(8, 1);
  torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(1e-6));
  auto const batches = many(40, [] { return smooth(); });
  return look(net, optimizer, batches, [&](pair const& b) { return F::mse_loss(net->forward(b.first), b.second); });
}

keel::preflight_result bug_second_group_without_a_rate() {
  seed(240);
  on_a_trunk model;
  std::vector<torch::optim::OptimizerParamGroup> groups;
  groups.emplace_back(model.head->parameters());
  groups.emplace_back(model.trunk->parameters(), std::make_unique<torch::optim::AdamOptions>(0.0));
  torch::optim::Adam optimizer(std::move(groups), torch::optim::AdamOptions(5e-3));
  auto const batches = many(40, [] { return clouds(); });
  return look(model, optimizer, batches, [&](pair const& b) { return F::cross_entropy(model.forward(b.first), b.second); });
}

keel::preflight_result bug_labels_shuffled_apart() {
  seed(241);
  nn::Sequential net = perceptron(8, 4);
  torch::optim::Adam optimizer(net->parameters(), torch::optim::AdamOptions(5e-3));
  auto const batches = many(64, [] {
    pair const b = clouds();
    return pair(b.first.index_select(0, at::randperm(32, at::kLong)), b.second);
  });
  return look(net, optimizer, batches, [&](pair const& b) { return F::cross_entropy(net->forward(b.first), b.second); });
}

keel::preflight_result bug_labels_rolled_by_one() {
  seed(242);
  nn::Sequential net = perceptron(8, 1);
  torch::optim::Adam optimizer(net->parameters(), torch::optim::AdamOptions(3e-3));
  auto const batches = many(64, [] {
    pair const b = smooth();
    return example(b.first, b.second.roll(1, 0));
  });
  return look(net, optimizer, batches, [&](example const& b) { return F::mse_loss(net->forward(b.data), b.target); });
}

/// Waves of one of two speeds, [rows, time, 1].
pair fast_or_slow() {
  at::Tensor const label = at::randint(2, {16}, at::kLong);
  at::Tensor const speed = (0.4 + 0.8 * label.to(at::kFloat)).unsqueeze(1);
  at::Tensor const x = (at::arange(10, at::kFloat).unsqueeze(0) * speed + 0.3 * at::randn({16, 1})).sin() + 0.1 * at::randn({16, 10});
  return {x.unsqueeze(-1), label};
}

keel::preflight_result bug_view_for_transpose() {
  seed(243);
  gru_classifier model;
  torch::optim::Adam optimizer(model.parameters(), torch::optim::AdamOptions(1e-2));
  auto const batches = many(40, [] { return fast_or_slow(); });
  return look(model, optimizer, batches, [&](pair const& b) {
    at::Tensor const x = b.first.view({b.first.size(1), b.first.size(0), 1});  // for transpose(0, 1)
    return F::cross_entropy(model.forward(x), b.second);
  });
}

keel::preflight_result bug_batch_first_forgotten() {
  seed(244);
  struct network : nn::Module {
    at::Tensor forward(at::Tensor const& x) { return head(std::get<0>(lstm(x)).select(1, -1)); }
    nn::LSTM lstm = register_module("lstm", nn::LSTM(nn::LSTMOptions(1, 16)));
    nn::Linear head = register_module("head", nn::Linear(16, 2));
  } model;
  torch::optim::Adam optimizer(model.parameters(), torch::optim::AdamOptions(1e-2));
  auto const batches = many(40, [] { return fast_or_slow(); });
  return look(model, optimizer, batches, [&](pair const& b) { return F::cross_entropy(model.forward(b.first), b.second); });
}

keel::preflight_result bug_log_softmax_over_rows() {
  seed(245);
  nn::Sequential net(nn::Linear(8, 32), nn::ReLU(), nn::Linear(32, 4), nn::LogSoftmax(0));
  torch::optim::Adam optimizer(net->parameters(), torch::optim::AdamOptions(5e-3));
  auto const batches = many(40, [] { return clouds(); });
  return look(net, optimizer, batches, [&](pair const& b) { return F::nll_loss(net->forward(b.first), b.second); });
}

keel::preflight_result bug_broadcast_column_against_row() {
  seed(246);
  nn::Sequential net = perceptron(8, 1);
  torch::optim::Adam optimizer(net->parameters(), torch::optim::AdamOptions(5e-3));
  auto const batches = many(40, [] {
    pair const b = smooth();
    return pair(b.first, b.second.squeeze(1));
  });
  return look(net, optimizer, batches, [&](pair const& b) { return (net->forward(b.first) - b.second).pow(2).mean(); });
}

keel::preflight_result bug_broadcast_in_mse_loss() {
  seed(247);
  own_regressor model;  // gives [rows]
  torch::optim::Adam optimizer(model.parameters(), torch::optim::AdamOptions(5e-3));
  auto const batches = many(40, [] { return smooth(); });
  return look(model, optimizer, batches, [&](pair const& b) { return at::mse_loss(model.forward(b.first), b.second); });
}

keel::preflight_result bug_sum_for_mean() {
  seed(248);
  nn::Sequential net = perceptron(8, 4);
  torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  auto const batches = many(40, [] { return clouds(); });
  return look(net, optimizer, batches, [&](pair const& b) { return at::cross_entropy_loss(net->forward(b.first), b.second, {}, at::Reduction::Sum); });
}

keel::preflight_result bug_pixels_not_normalised() {
  seed(249);
  nn::Sequential net(nn::Flatten(), nn::Linear(64, 64), nn::ReLU(), nn::Linear(64, 4));
  torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.05).momentum(0.9));
  auto const batches = many(40, [] {
    pair const b = spots(32);
    return pair((b.first * 255).clamp(0, 255).to(at::kByte), b.second);
  });
  return look(net, optimizer, batches, [&](pair const& b) { return F::cross_entropy(net->forward(b.first.to(at::kFloat)), b.second); });
}

keel::preflight_result bug_prices_not_normalised() {
  seed(250);
  nn::Sequential net = perceptron(8, 1);
  torch::optim::Adam optimizer(net->parameters(), torch::optim::AdamOptions(1e-3));
  auto const batches = many(48, [] {
    pair const b = smooth();
    return pair(b.first, b.second * 60000 + 250000);
  });
  return look(net, optimizer, batches, [&](pair const& b) { return F::mse_loss(net->forward(b.first), b.second); });
}

keel::preflight_result bug_sigmoid_for_targets_outside() {
  seed(251);
  nn::Sequential net(nn::Linear(8, 32), nn::ReLU(), nn::Linear(32, 1), nn::Sigmoid());
  torch::optim::Adam optimizer(net->parameters(), torch::optim::AdamOptions(5e-3));
  auto const batches = many(40, [] {
    pair const b = smooth();
    return pair(b.first, b.second * 3.0);
  });
  return look(net, optimizer, batches, [&](pair const& b) { return F::mse_loss(net->forward(b.first), b.second); });
}

keel::preflight_result bug_noise_of_random_device() {
  seed(252);
  nn::Sequential net = perceptron(8, 1);
  torch::optim::Adam optimizer(net->parameters(), torch::optim::AdamOptions(5e-3));
  auto const batches = many(40, [] { return smooth(); });
  return look(net, optimizer, batches, [&](pair const& b) {
    std::random_device device;
    std::mt19937 engine(device());
    std::normal_distribution<float> normal(0.0F, 0.1F);
    at::Tensor x = b.first.clone();
    for (std::int64_t i = 0; i < x.numel(); ++i) x.data_ptr<float>()[i] += normal(engine);
    return F::mse_loss(net->forward(x), b.second);
  });
}

keel::preflight_result bug_hidden_state_not_registered() {
  seed(253);
  remembering model;
  torch::optim::AdamW optimizer(model.parameters(), torch::optim::AdamWOptions(1e-2));
  memory carried;
  auto const batches = pieces();
  return look(model, optimizer, batches, [&](at::Tensor const& ids) {
    return F::cross_entropy(model.forward(ids.narrow(1, 0, 12), carried).flatten(0, 1), ids.narrow(1, 1, 12).flatten());
  });
}

keel::preflight_result bug_running_mean_not_registered() {
  seed(254);
  nn::Sequential net = perceptron(8, 1);
  torch::optim::Adam optimizer(net->parameters(), torch::optim::AdamOptions(3e-3));
  auto const batches = many(40, [] { return smooth(); });
  at::Tensor center = at::zeros({8});
  return look(net, optimizer, batches, [&](pair const& b) {
    center = 0.9 * center + 0.1 * b.first.mean(0);
    return F::mse_loss(net->forward(b.first - center), b.second);
  });
}

keel::preflight_result bug_labels_are_ignored() {
  seed(255);
  nn::Sequential net = perceptron(8, 4);
  torch::optim::Adam optimizer(net->parameters(), torch::optim::AdamOptions(5e-3));
  auto const batches = many(40, [] { return clouds(); });
  return look(net, optimizer, batches, [&](pair const& b) {
    at::Tensor const scores = net->forward(b.first);
    return F::cross_entropy(scores, scores.argmax(1));
  });
}

keel::preflight_result bug_inputs_are_ignored() {
  seed(256);
  nn::Sequential net = perceptron(8, 4);
  torch::optim::Adam optimizer(net->parameters(), torch::optim::AdamOptions(5e-3));
  auto const batches = many(40, [] { return clouds(); });
  return look(net, optimizer, batches, [&](pair const& b) {
    at::Tensor const padded = at::zeros({b.first.size(0), 8});  // the features are not copied into it
    return F::cross_entropy(net->forward(padded), b.second);
  });
}

keel::preflight_result bug_rows_are_a_constant_under_halving() {
  seed(257);
  struct network : nn::Module {
    at::Tensor forward(at::Tensor const& x) {
      at::Tensor const start = at::zeros({1, 32, 12});
      return head(std::get<1>(gru(x, start))[0]);
    }
    nn::GRU gru = register_module("gru", nn::GRU(nn::GRUOptions(2, 12).batch_first(true)));
    nn::Linear head = register_module("head", nn::Linear(12, 4));
  } model;
  torch::optim::Adam optimizer(model.parameters(), torch::optim::AdamOptions(1e-2));
  auto const batches = many(40, [] {
    pair const b = clouds();
    return pair(b.first.view({32, 4, 2}), b.second);
  });
  return look<halving>(model, optimizer, batches, [&](pair const& b) { return F::cross_entropy(model.forward(b.first), b.second); });
}

keel::preflight_result bug_evaluation_keeps_graphs() {
  seed(258);
  nn::Sequential net = perceptron(8, 4);
  torch::optim::AdamW optimizer(net->parameters(), torch::optim::AdamWOptions(1e-2));
  auto const batches = many(64, [] { return clouds(16); });
  auto const held_out = many(4, [] { return clouds(32); });
  keel::trainer<in_four> run{net, optimizer, {.updates = 400, .console = nullptr}};
  std::function<at::Tensor(pair const&)> const loss_of = [&](pair const& b) {
    torch::AutoGradMode with_gradients(true);
    return F::cross_entropy(net->forward(b.first), b.second);
  };
  run.evaluate_on("validation", held_out, loss_of);
  return run.preflight(batches, loss_of);
}

keel::preflight_result bug_all_weights_zero() {
  seed(259);
  nn::Sequential net = perceptron(8, 4);
  {
    torch::NoGradGuard no_grad;
    for (auto& one : net->parameters()) one.zero_();
  }
  torch::optim::Adam optimizer(net->parameters(), torch::optim::AdamOptions(5e-3));
  auto const batches = many(40, [] { return clouds(); });
  return look(net, optimizer, batches, [&](pair const& b) { return F::cross_entropy(net->forward(b.first), b.second); });
}

keel::preflight_result bug_sorted_by_class() {
  seed(260);
  nn::Sequential net = perceptron(8, 4);
  torch::optim::Adam optimizer(net->parameters(), torch::optim::AdamOptions(5e-3));
  std::vector<at::Tensor> x, y;
  for (int i = 0; i < 48; ++i) {
    pair const b = clouds(16);
    x.push_back(b.first), y.push_back(b.second);
  }
  at::Tensor const labels = at::cat(y);
  at::Tensor const order = labels.argsort();
  auto const inputs = at::cat(x).index_select(0, order).split(16);
  auto const sorted = labels.index_select(0, order).split(16);
  std::vector<pair> batches;
  for (std::size_t i = 0; i < inputs.size(); ++i) batches.emplace_back(inputs[i], sorted[i]);
  return look(net, optimizer, batches, [&](pair const& b) { return F::cross_entropy(net->forward(b.first), b.second); });
}

keel::preflight_result bug_nan_in_the_data() {
  seed(261);
  nn::Sequential net = perceptron(8, 1);
  torch::optim::Adam optimizer(net->parameters(), torch::optim::AdamOptions(5e-3));
  auto batches = many(40, [] { return smooth(); });
  batches[5].first[3][2] = NAN;
  return look(net, optimizer, batches, [&](pair const& b) { return F::mse_loss(net->forward(b.first), b.second); });
}

// All of them.

struct program {
  char const* name;
  keel::preflight_result (*run)();
  std::vector<std::string> wanted;  ///< one of these rows fails; empty: none
};

#define SOUND(name) {#name, name, {}}
#define BUG(name, ...) {#name, name, {__VA_ARGS__}}

std::vector<program> programs() {
  return {
      SOUND(sound_mlp_regression),
      SOUND(sound_handwritten_mse_example_sgd),
      SOUND(sound_conv_batch_norm_dropout_nll),
      SOUND(sound_bytes_normalised_in_loss),
      SOUND(sound_binary_with_logits),
      SOUND(sound_multi_label_sigmoid_bce),
      SOUND(sound_lstm_language_model),
      SOUND(sound_causal_transformer_language_model),
      SOUND(sound_padded_causal_transformer_weighted_loss),
      SOUND(sound_topic_encoder_with_mask),
      SOUND(sound_bidirectional_tagger),
      SOUND(sound_tagger_with_ignored_padding),
      SOUND(sound_time_first_struct_gru),
      SOUND(sound_vae),
      SOUND(sound_autoencoder),
      SOUND(sound_denoising_conv_pair),
      SOUND(sound_contrastive_two_views),
      SOUND(sound_triplets),
      SOUND(sound_physics_without_labels),
      SOUND(sound_embedding_bags),
      SOUND(sound_gaussian_nll),
      SOUND(sound_accumulate_cosine_evaluation),
      SOUND(sound_units_under_recompute),
      SOUND(sound_ladder_with_units),
      SOUND(sound_lora),
      SOUND(sound_bf16_classifier),
      SOUND(sound_frozen_trunk),
      SOUND(sound_stateful_lstm_registered),
      SOUND(sound_teacher_forced_translator),
      SOUND(sound_causal_convolution_on_waves),
      SOUND(sound_forecast_from_window),
      SOUND(sound_masked_language_model),
      SOUND(sound_distillation_from_a_teacher_in_evaluation),
      SOUND(sound_two_heads),
      SOUND(sound_weights_of_rows),

      BUG(bug_no_causal_mask, "look-ahead"),
      BUG(bug_softmax_over_queries, "look-ahead"),
      BUG(bug_softmax_over_rows, "rows", "look-ahead"),
      BUG(bug_attention_between_heads, "masks"),
      BUG(bug_bidirectional_language_model, "look-ahead"),
      BUG(bug_bidirectional_forecast, "look-ahead"),
      BUG(bug_convolution_cut_at_the_wrong_end, "look-ahead"),
      BUG(bug_feature_is_the_target, "targets in inputs"),
      BUG(bug_class_among_the_features, "targets in inputs"),
      BUG(bug_window_holds_the_target, "targets in inputs"),
      BUG(bug_targets_shifted_by_none, "shift of targets", "look-ahead", "targets in inputs"),
      BUG(bug_targets_shifted_by_two, "shift of targets"),
      BUG(bug_targets_shifted_backwards, "shift of targets", "look-ahead", "targets in inputs"),
      BUG(bug_targets_shifted_by_two_single_tensor, "shift of targets"),
      BUG(bug_targets_transposed_against_scores, "rows", "shift of targets", "look-ahead", "labels belong to inputs", "loss and output"),
      BUG(bug_decoder_is_given_the_answer, "look-ahead", "shift of targets", "targets in inputs"),
      BUG(bug_layers_in_a_vector, "parameters"),
      BUG(bug_plain_tensor_as_parameter, "parameters"),
      BUG(bug_layer_is_not_used, "gradients"),
      BUG(bug_mask_inverted, "masks"),
      BUG(bug_mask_unused, "masks"),
      BUG(bug_mask_not_in_the_mean, "masks"),
      BUG(bug_labels_of_padding_count, "masks"),
      BUG(bug_loss_of_padding_alone, "masks"),
      BUG(bug_softmax_before_cross_entropy, "loss and output"),
      BUG(bug_sigmoid_twice, "loss and output"),
      BUG(bug_nll_of_probabilities, "loss and output"),
      BUG(bug_relu_on_scores, "loss and output"),
      BUG(bug_left_in_evaluation_by_a_test, "training mode"),
      BUG(bug_evaluation_mode_inside_the_loss, "training mode"),
      BUG(bug_one_dropout_in_evaluation, "training mode"),
      BUG(bug_branch_is_detached, "gradients"),
      BUG(bug_trunk_under_no_grad, "gradients"),
      BUG(bug_hard_threshold_inside, "gradients"),
      BUG(bug_loss_of_another_model, "parameters", "gradients"),
      BUG(bug_rate_far_too_high, "learning rate"),
      BUG(bug_rate_far_too_low, "learning rate"),
      BUG(bug_rate_zero, "rates", "learning rate"),
      BUG(bug_sgd_rate_a_millionth, "learning rate"),
      BUG(bug_second_group_without_a_rate, "rates", "learning rate"),
      BUG(bug_labels_shuffled_apart, "labels belong to inputs"),
      BUG(bug_labels_rolled_by_one, "labels belong to inputs"),
      BUG(bug_view_for_transpose, "rows"),
      BUG(bug_batch_first_forgotten, "rows"),
      BUG(bug_log_softmax_over_rows, "rows", "loss and output", "loss at the start"),
      BUG(bug_broadcast_column_against_row, "loss and output"),
      BUG(bug_broadcast_in_mse_loss, "loss and output"),
      BUG(bug_sum_for_mean, "loss at the start", "learning rate", "loss and output"),
      BUG(bug_pixels_not_normalised, "loss at the start", "learning rate", "batches"),
      BUG(bug_prices_not_normalised, "loss at the start", "learning rate", "batches", "overfit one batch"),
      BUG(bug_sigmoid_for_targets_outside, "overfit one batch", "loss and output"),
      BUG(bug_noise_of_random_device, "same bits twice"),
      BUG(bug_hidden_state_not_registered, "same bits twice", "resume"),
      BUG(bug_running_mean_not_registered, "same bits twice", "resume"),
      BUG(bug_labels_are_ignored, "labels"),
      BUG(bug_inputs_are_ignored, "inputs"),
      BUG(bug_rows_are_a_constant_under_halving, "out of memory"),
      BUG(bug_evaluation_keeps_graphs, "evaluation"),
      BUG(bug_all_weights_zero, "gradients", "inputs", "overfit one batch"),
      BUG(bug_sorted_by_class, "batches"),
      BUG(bug_nan_in_the_data, "batches"),
  };
}

}  // namespace

int main(int argc, char** argv) {
  at::set_num_threads(1);
  bool const talks = argc > 1;
  int sound = 0, alarms = 0, bugs = 0, found_bugs = 0;
  for (program const& one : programs()) {
    if (argc > 1 && std::strstr(one.name, argv[1]) == nullptr) continue;
    bool const is_sound = one.wanted.empty();
    ++(is_sound ? sound : bugs);
    std::string words, wanted;
    bool right = false;
    try {
      keel::preflight_result const found = one.run();
      for (keel::preflight_row const& row : found.rows) {
        if (row.verdict != keel::preflight_verdict::failed) continue;
        for (std::string const& check : one.wanted) right = right || row.check == check;
      }
      right = is_sound ? found.passed() : right;
      words = found.table();
    } catch (std::exception const& thrown) {
      words = std::string("it threw: ") + thrown.what() + "\n";
    }
    if (is_sound) alarms += right ? 0 : 1;
    if (!is_sound) found_bugs += right ? 1 : 0;
    for (std::string const& check : one.wanted) wanted += (wanted.empty() ? ", to fail: " : ", or ") + check;
    if (talks || !right) std::fprintf(stderr, "%s %s%s\n%s\n", right ? "right" : "WRONG", one.name, wanted.c_str(), words.c_str());
  }
  std::printf("{\"name\": \"preflight/found\", \"ours\": %.4f, \"peer\": null, \"ratio\": null, \"unit\": \"share\", \"detail\": \"of %d programs "
              "with one bug each, by the row that it belongs to\"}\n",
              bugs > 0 ? static_cast<double>(found_bugs) / bugs : 0.0, bugs);
  std::printf("{\"name\": \"preflight/false_alarms\", \"ours\": %d, \"peer\": null, \"ratio\": null, \"unit\": \"programs\", \"detail\": \"of %d sound "
              "programs\"}\n",
              alarms, sound);
}
