// Fine-tuning in little memory: a small transformer is trained on a text, its linear layers are frozen in eight bits, and
// corrections of rank two learn the same text in another alphabet.
#include <ATen/Parallel.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <keel/keel.hpp>

#include "char_gpt/model.hpp"
#include "char_gpt/text.hpp"

namespace {

// [fine_tune]
struct tunes : keel::recipe<
    keel::model::has<keel::model::adapters>,
    keel::clip::global_norm<1.0>,
    keel::nonfinite::skip<10>,
    keel::recompute::non_reentrant> {};

/// A linear layer of the pretrained model: frozen, with a correction of rank two beside it.
struct corrected : keel::lora {
  using keel::lora::lora;
  corrected(std::int64_t in, std::int64_t out) : keel::lora(keel::lora_options(in, out).rank(2).alpha(8)) {}
};
// [fine_tune]

constexpr std::int64_t rows = 16;

/// Every letter thirteen places on, so that no pair of characters is what it was.
std::string rotated(std::string text) {
  for (char& letter : text) {
    if (letter >= 'a' && letter <= 'z') letter = static_cast<char>('a' + (letter - 'a' + 13) % 26);
    if (letter >= 'A' && letter <= 'Z') letter = static_cast<char>('A' + (letter - 'A' + 13) % 26);
  }
  return text;
}

/// int64 [rows, context + 1], from places that the number decides.
at::Tensor batch_of(at::Tensor const& text, std::int64_t context, std::int64_t number) {
  std::vector<at::Tensor> all;
  for (std::int64_t row = 0; row < rows; ++row) {
    std::int64_t const start = (number * rows + row) * 7919 % (text.numel() - context - 1);
    all.push_back(text.slice(0, start, start + context + 1));
  }
  return at::stack(all);
}

template <class Model>
auto loss_of(Model const& model) {
  return [model = model.ptr()](at::Tensor const& ids) {
    std::int64_t const context = ids.size(1) - 1;
    return at::cross_entropy_loss(model->forward(ids.slice(1, 0, context)).flatten(0, 1), ids.slice(1, 1).flatten());
  };
}

std::int64_t bytes_of(torch::nn::Module& model) {
  std::int64_t sum = 0;
  for (auto const& one : model.parameters()) sum += static_cast<std::int64_t>(one.nbytes());
  return sum;
}

int run(std::string const& path, std::int64_t updates) {
  std::string const text = char_gpt::read_corpus(path);
  char_gpt::vocabulary const letters(text + rotated(text));
  char_gpt::model_size const size{.vocabulary = letters.size(), .width = 192, .layers = 3, .dropout = 0.0};
  at::Tensor const known = char_gpt::split_tokens(letters.encode(text), size.context, path).train;
  auto const [unknown, unseen] = char_gpt::split_tokens(letters.encode(rotated(text)), size.context, path);
  auto const batches = [&](at::Tensor const& of) {
    return [&of, &size, number = std::int64_t{0}](std::int64_t) mutable {
      std::vector<at::Tensor> some;
      for (int i = 0; i < 50; ++i) some.push_back(batch_of(of, size.context, number++));
      return some;
    };
  };
  auto const held_out = std::vector<at::Tensor>{batch_of(unseen, size.context, 0), batch_of(unseen, size.context, 1)};

  at::manual_seed(1);
  keel::tensor_map dense;
  std::int64_t dense_bytes = 0;
  {
    std::printf("training the dense model\n");
    char_gpt::gpt model(size);
    keel::adamw optimizer(model->parameters(), 2e-3);
    keel::trainer<keel::recipe<keel::clip::global_norm<1.0>>> pretraining{model, optimizer, {.updates = updates, .console_every = 50}};
    pretraining.fit(batches(known), loss_of(model));
    dense = keel::model_tensors(*model);
    dense_bytes = bytes_of(*model);
  }

  std::printf("\ntuning corrections on eight bits\n");
  // [fine_tune]
  char_gpt::gpt_of<corrected> model(size);
  keel::load_base(*model, dense);   // by name: a lora layer's weight is the linear layer's
  keel::freeze_base(*model);
  keel::quantize_base(*model);
  keel::adamw optimizer(keel::trained_parameters(*model), 1e-2);

  keel::trainer<tunes> run{model, optimizer, {.updates = updates, .console_every = 50}};
  double const before = run.evaluate(held_out, loss_of(model));
  run.fit(batches(unknown), loss_of(model));
  double const after = run.evaluate(held_out, loss_of(model));
  // [fine_tune]

  std::int64_t const bytes = bytes_of(*model);
  double const share = static_cast<double>(bytes) / static_cast<double>(dense_bytes);
  std::printf("\n  parameters %.2f MiB of the dense model's %.2f, %.0f %%\n  loss on held-out text %.4f before, %.4f after\n",
              static_cast<double>(bytes) / 1048576.0, static_cast<double>(dense_bytes) / 1048576.0, 100.0 * share, before, after);
  return after < before && 3 * bytes < dense_bytes ? 0 : 1;
}

}  // namespace

int main(int count, char** words) {
  CLI::App app("Fine-tunes corrections beside a base in eight bits.");
  std::string text = char_gpt::licenses;
  std::int64_t updates = 200;
  app.add_option("--text", text, "a file, or a folder whose files are read")->capture_default_str();
  app.add_option("--updates", updates, "of the dense model, and of the corrections")->check(CLI::Range(1, 1000000))->capture_default_str();
  CLI11_PARSE(app, count, words);
  try {
    return run(text, updates);
  } catch (std::exception const& thrown) {
    std::fprintf(stderr, "fine_tune: %s\n", keel::first_line(thrown).c_str());
    return 1;
  }
}
