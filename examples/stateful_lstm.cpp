// A language model that carries its hidden state from batch to batch: the state is registered, so that a skipped update, a kill and a
// rollback bring it back.
//     examples/run stateful_lstm [RUN_DIRECTORY] [UPDATES]
#include <keel/keel.hpp>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/rnn.h>
#include <torch/optim/adamw.h>

#include <cstdio>
#include <cstdlib>
#include <range/v3/view/iota.hpp>
#include <range/v3/view/transform.hpp>

using namespace keel::literals;

namespace {

struct recipe : keel::recipe<
    keel::determinism::seeded<7>,
    keel::clip::global_norm<1.0>,
    keel::nonfinite::skip<10>,
    keel::checkpoint::every<50_steps, keel::checkpoint::on_exception>> {};

constexpr std::int64_t symbols = 16, streams = 8, length = 24;

/// What the network remembers of each stream.
struct memory {
  at::Tensor hidden = at::zeros({1, streams, 32});
  at::Tensor cell = at::zeros({1, streams, 32});
  void visit(auto& archive) { archive("hidden", hidden), archive("cell", cell); }
};

struct network : torch::nn::Module {
  at::Tensor forward(at::Tensor const& text, memory& carried) {
    auto const [output, state] = lstm(embedding(text), std::make_tuple(carried.hidden, carried.cell));
    // Detached: the next batch begins with these numbers and not with this batch's graph.
    if (is_training()) carried = {std::get<0>(state).detach(), std::get<1>(state).detach()};
    return head(output);
  }
  torch::nn::Embedding embedding = register_module("embedding", torch::nn::Embedding(symbols, 32));
  torch::nn::LSTM lstm = register_module("lstm", torch::nn::LSTM(torch::nn::LSTMOptions(32, 32).batch_first(true)));
  torch::nn::Linear head = register_module("head", torch::nn::Linear(32, symbols));
};

/// Piece `number` of a text without end for each stream: it depends on what stood 31 symbols before, more than one piece shows.
at::Tensor piece(std::int64_t number) {
  at::Tensor const place = at::arange(number * length, (number + 1) * length + 1).unsqueeze(0) + at::arange(streams).unsqueeze(1) * 1000;
  return (place.remainder(31) * 7 + place.floor_divide(31)).remainder(symbols);
}

}  // namespace

int main(int argc, char** argv) try {
  keel::seed<recipe>();
  network model;
  torch::optim::AdamW optimizer(model.parameters(), torch::optim::AdamWOptions(3e-3));
  memory carried;
  keel::trainer<recipe> run{model, optimizer,
                            {.run_directory = argc > 1 ? argv[1] : "runs/stateful_lstm",
                             .updates = argc > 2 ? std::atoi(argv[2]) : 300,
                             .console_every = 50}};
  run.register_state("memory", carried);
  auto const pieces = [](std::int64_t epoch, std::int64_t position) {
    return ranges::views::iota(epoch * 1000 + position, epoch * 1000 + 1000) | ranges::views::transform(piece);
  };
  keel::outcome const ended = run.fit(pieces, [&](at::Tensor const& text) {
    at::Tensor const scores = model.forward(text.narrow(1, 0, length), carried);
    return torch::nn::functional::cross_entropy(scores.flatten(0, 1), text.narrow(1, 1, length).flatten());
  });
  if (ended.gave_up()) return keel::exit_code_of(ended);
  keel::save_safetensors("stateful_lstm.safetensors", model);
  std::printf("wrote stateful_lstm.safetensors after %lld updates\n", static_cast<long long>(run.updates()));
} catch (keel::error const& thrown) {
  std::fprintf(stderr, "%s\n", thrown.what());
  return 1;
}
