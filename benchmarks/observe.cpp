// What it costs to be able to look into an update that is not finite, beside the same recipe with keel::incident::off; and what it
// costs to see: a trainer with every metric, sink and alarm, beside a step without any of it, on the small transformer of
// gpt.cpp. Blocks of ten updates, because some looks come once in ten; turn by turn in one process, medians. Prints one JSON row a line.
#include <ATen/Parallel.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <functional>
#include <keel/keel.hpp>
#include <span>
#include <string>
#include <vector>

#include "../examples/char_gpt/model.hpp"
#include "measure.hpp"

namespace {

using namespace keel::literals;

struct unwatched
    : keel::recipe<keel::clip::global_norm<1.0>, keel::nonfinite::skip<10>, keel::spike::skip<>,
                   keel::schedule::cosine<keel::schedule::total<1000000_steps>, keel::schedule::warmup<100_steps>>> {};
struct watched : keel::recipe<keel::clip::global_norm<1.0>, keel::nonfinite::skip<10>, keel::spike::skip<>,
                              keel::schedule::cosine<keel::schedule::total<1000000_steps>, keel::schedule::warmup<100_steps>>,
                              keel::health::sft,
                              keel::batch_guard::check<keel::batch_guard::vocabulary<96>, keel::batch_guard::padding<0>>> {};

constexpr char_gpt::model_size size{.vocabulary = 96, .context = 64, .width = 128, .heads = 4, .layers = 5, .dropout = 0.0};
constexpr std::int64_t rows = 2;

char_gpt::gpt make_model() {
  at::manual_seed(1);
  return char_gpt::gpt(size);
}
at::Tensor loss_of(char_gpt::gpt& model, at::Tensor const& ids) {
  at::Tensor const logits = model->forward(ids.slice(1, 0, size.context));
  return at::cross_entropy_loss(logits.reshape({-1, size.vocabulary}), ids.slice(1, 1, size.context + 1).reshape({-1}));
}

struct own_sink : keel::metric_sink {
  void scalars(std::int64_t, std::span<keel::named_value const> values) override { count += values.size(); }
  std::size_t count = 0;
};

struct observed {
  explicit observed(keel::trainer_options options) : run{model, optimizer, std::move(options)} {}
  void update(at::Tensor const& ids) {
    run.step(ids, [this](at::Tensor const& batch) { return loss_of(model, batch); });
    run.log(own.reduced(keel::world_of_one{}, 1.0));
  }
  char_gpt::gpt model = make_model();
  keel::adamw optimizer{model->parameters(), torch::optim::AdamWOptions(1e-4)};
  keel::metric<keel::reduce::mean> own{"own"};
  keel::trainer<watched> run;
};

void compare(std::filesystem::path const& directory, std::int64_t every, std::int64_t histograms, char const* name,
             char const* words) {
  constexpr int blocks = 61;
  constexpr int updates = 10;
  std::FILE* const nowhere = std::fopen("/dev/null", "w");
  observed seen({.run_directory = directory / name,
                 .console = nowhere,
                 .mode = keel::console_mode::lines,
                 .console_every = every,
                 .record_every = every,
                 .layers_every = every,
                 .histograms_every = histograms,
                 .operations_per_token = 1e6,
                 .peak_operations_per_second = 1e11,
                 .sinks = {std::make_shared<own_sink>()}});
  char_gpt::gpt model = make_model();
  keel::adamw optimizer(model->parameters(), torch::optim::AdamWOptions(1e-4));
  keel::step<unwatched> step{model, optimizer, 1000000};
  std::vector<at::Tensor> batches;
  auto const next = [&] {
    batches.clear();
    for (int i = 0; i < updates; ++i) batches.push_back(at::randint(size.vocabulary, {rows, size.context + 1}));
  };
  auto const with = [&] {
    for (at::Tensor const& ids : batches) seen.update(ids);
  };
  auto const without = [&] {
    for (at::Tensor const& ids : batches) step(ids, [&](at::Tensor const& batch) { return loss_of(model, batch); });
  };
  std::vector<double> ours;
  std::vector<double> peers;
  for (int block = -3; block < blocks; ++block) {
    next();
    bool const first = block % 2 == 0;
    double const a = first ? keel_benchmark::milliseconds(with) : keel_benchmark::milliseconds(without);
    double const b = first ? keel_benchmark::milliseconds(without) : keel_benchmark::milliseconds(with);
    if (block < 0) continue;
    ours.push_back((first ? a : b) / updates);
    peers.push_back((first ? b : a) / updates);
  }
  std::fclose(nowhere);
  keel_benchmark::print_row(std::string("observe/") + name, keel_benchmark::median(ours), keel_benchmark::median(peers),
                            "an update, median of " + std::to_string(blocks) + " blocks of " + std::to_string(updates) +
                                ", 1 thread; peer: keel::step with nothing that looks; " + words);
}

struct not_ready : keel::recipe<keel::clip::global_norm<1.0>, keel::nonfinite::skip<10>, keel::incident::off> {};
struct ready_to_trace : keel::recipe<keel::clip::global_norm<1.0>, keel::nonfinite::skip<10>, keel::incident::trace<>> {};
struct accumulates_not_ready
    : keel::recipe<keel::clip::global_norm<1.0>, keel::nonfinite::skip<10>, keel::accumulate<2>, keel::incident::off> {};
struct ready_to_keep
    : keel::recipe<keel::clip::global_norm<1.0>, keel::nonfinite::skip<10>, keel::accumulate<2>, keel::incident::keep<>> {};

/// The same training with two recipes, one of which is ready for an incident that does not come.
template <class Ready, class NotReady, template <class> class Loop>
void compare_ready(std::filesystem::path const& directory, char const* name, char const* words) {
  constexpr int blocks = 61;
  constexpr int calls = 10;
  Loop<Ready> ready(directory / (std::string(name) + "-ready"));
  Loop<NotReady> not_ready(directory / (std::string(name) + "-not-ready"));
  std::vector<at::Tensor> batches;
  auto const with = [&] { ready.train(batches); };
  auto const without = [&] { not_ready.train(batches); };
  std::vector<double> ours;
  std::vector<double> peers;
  for (int block = -3; block < blocks; ++block) {
    batches.clear();
    for (int i = 0; i < calls; ++i) batches.push_back(at::randint(size.vocabulary, {rows, size.context + 1}));
    bool const first = block % 2 == 0;
    double const a = first ? keel_benchmark::milliseconds(with) : keel_benchmark::milliseconds(without);
    double const b = first ? keel_benchmark::milliseconds(without) : keel_benchmark::milliseconds(with);
    if (block < 0) continue;
    ours.push_back((first ? a : b) / calls);
    peers.push_back((first ? b : a) / calls);
  }
  keel_benchmark::print_row(std::string("observe/") + name, keel_benchmark::median(ours), keel_benchmark::median(peers),
                            "a micro-batch, median of " + std::to_string(blocks) + " blocks of " + std::to_string(calls) +
                                ", 1 thread; peer: the same with keel::incident::off; " + words);
}

template <class Recipe>
struct step_loop {
  explicit step_loop(std::filesystem::path const&) {}
  void train(std::vector<at::Tensor> const& batches) {
    for (at::Tensor const& ids : batches) step(ids, [&](at::Tensor const& batch) { return loss_of(model, batch); });
  }
  char_gpt::gpt model = make_model();
  keel::adamw optimizer{model->parameters(), torch::optim::AdamWOptions(1e-4)};
  keel::step<Recipe> step{model, optimizer};
};
template <class Recipe>
struct trainer_loop {
  explicit trainer_loop(std::filesystem::path directory)
      : run{model, optimizer, {.run_directory = std::move(directory), .console = nullptr, .tensorboard = false}} {}
  void train(std::vector<at::Tensor> const& batches) {
    for (at::Tensor const& ids : batches) run.step(ids, [&](at::Tensor const& batch) { return loss_of(model, batch); });
  }
  char_gpt::gpt model = make_model();
  keel::adamw optimizer{model->parameters(), torch::optim::AdamWOptions(1e-4)};
  keel::trainer<Recipe> run;
};

}  // namespace

int main() {
  at::set_num_threads(1);
  auto const directory = std::filesystem::temp_directory_path() / ("keel-benchmark-observe-" + std::to_string(::getpid()));
  compare_ready<ready_to_trace, not_ready, step_loop>(directory, "op_watch_off", "the watch of operations is there and off");
  compare_ready<ready_to_keep, accumulates_not_ready, trainer_loop>(
      directory, "incident_ready", "handles to the batches and the random state before each are kept");
  compare(directory, 10, 10, "all_on", "every metric, sink, alarm, layer and histogram at interval 10");
  compare(directory, 1, 0, "every_update", "every metric, sink, alarm and layer in every update, histograms off");
  std::filesystem::remove_all(directory);
}
