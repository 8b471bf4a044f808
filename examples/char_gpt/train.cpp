#include "train.hpp"

#include <ATen/Parallel.h>
#include <malloc.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <keel/collective/collectives.hpp>
#include <keel/collective/join.hpp>
#include <keel/keel.hpp>
#include <range/v3/view/iota.hpp>
#include <range/v3/view/transform.hpp>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "bigram.hpp"
#include "model.hpp"
#include "text.hpp"

namespace char_gpt {
namespace {

using namespace keel::literals;

/// keel::shard::none of one process, keel::shard::replicate of several ranks.
template <class Shard>
struct recipe : keel::recipe<                                                                              //
                    Shard,                                                                                 //
                    keel::precision::fp32,                                                                 //
                    keel::accumulate<2>,                                                                   //
                    keel::clip::global_norm<1.0>,                                                          //
                    keel::nonfinite::skip<5>,                                                              //
                    keel::schedule::cosine<keel::schedule::warmup_ratio<0.08>, keel::schedule::min_ratio<0.1>>,  //
                    keel::checkpoint::every<50_steps, keel::checkpoint::keep<2>>,                          //
                    keel::determinism::seeded<1337>,                                                       //
                    keel::oom::ladder<keel::oom::halve_micro_batch,                                        //
                                      keel::oom::enable_recompute<keel::recompute::non_reentrant>,         //
                                      keel::oom::offload_optimizer, keel::oom::give_up>> {};
using of_one = recipe<keel::shard::none>;
using of_ranks = recipe<keel::shard::replicate>;

static_assert(keel::valid<of_one> && keel::valid<of_ranks>);

constexpr std::int64_t rows = 8;  // in a micro-batch

struct batch {
  at::Tensor input;   // int64 [rows, context]
  at::Tensor target;  // int64 [rows, context]: the input one character later
  at::Tensor weight;  // float [rows, context]: how much each character counts

  // keel asks these: how many rows, which part, how many tokens.
  std::int64_t rows() const { return input.size(0); }
  std::int64_t tokens() const { return input.numel(); }
  batch slice(std::int64_t begin, std::int64_t end) const {
    return {input.slice(0, begin, end), target.slice(0, begin, end), weight.slice(0, begin, end)};
  }
};

batch make_batch(at::Tensor const& text, std::vector<std::int64_t> const& starts, std::int64_t context) {
  std::vector<at::Tensor> inputs;
  std::vector<at::Tensor> targets;
  for (std::int64_t const start : starts) {
    inputs.push_back(text.slice(0, start, start + context));
    targets.push_back(text.slice(0, start + 1, start + 1 + context));
  }
  at::Tensor const input = at::stack(inputs);
  return {input, at::stack(targets), at::ones(input.sizes(), at::kFloat)};
}

/// A number that depends on nothing but its arguments (splitmix64), so that a resumed run draws the same windows.
std::uint64_t mix(std::uint64_t epoch, std::uint64_t position, std::uint64_t row) {
  std::uint64_t z = (epoch * 0x9e3779b97f4a7c15ULL) ^ (position * 0xbf58476d1ce4e5b9ULL) ^ (row * 0x94d049bb133111ebULL);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
  return z ^ (z >> 31);
}

/// What is done to the run with --faults, and when.
struct fault_plan {
  explicit fault_plan(settings const& arguments)
      : active(arguments.faults), poisoned(arguments.updates / 5), starved(arguments.updates * 2 / 5), killed(arguments.updates * 3 / 5 + 7) {}
  bool active;
  std::int64_t poisoned;  // update whose second micro-batch holds a NaN
  std::int64_t starved;   // update with too little memory
  std::int64_t killed;    // update after which the process gets SIGKILL
};

std::string sample(gpt& model, vocabulary const& letters, std::string text, std::int64_t length) {
  keel::evaluation_scope const evaluating(*model, at::kCPU);
  at::NoGradGuard no_grad;
  at::Tensor ids = letters.encode(text).unsqueeze(0);
  for (std::int64_t i = 0; i < length; ++i) {
    std::int64_t const from = std::max<std::int64_t>(0, ids.size(1) - model->size.context);
    at::Tensor const logits = model->forward(ids.slice(1, from)).select(1, -1) / 0.7;
    at::Tensor const next = at::multinomial(at::softmax(logits, -1), 1);
    ids = at::cat({ids, next}, 1);
    text += letters.letter(next.item<std::int64_t>());
  }
  return text;
}

/// What events.jsonl says about one kind of event, in words.
void print_survived(std::filesystem::path const& run_directory, fault_plan const& faults) {
  std::string skipped = "no, not reached";
  std::string starved = skipped;
  std::string killed = skipped;
  std::ifstream file(run_directory / "events.jsonl");
  for (std::string line; std::getline(file, line);) {
    auto const event = nlohmann::json::parse(line, nullptr, false);
    if (event.is_discarded()) continue;  // the line that the kill tore
    std::int64_t const update = event.value("update", std::int64_t{0});
    std::string const name = event.value("event", "");
    if (name == "skipped") skipped = "yes: update " + std::to_string(update + 1) + " was skipped, " + event.value("why", "");
    if (name == "rung") starved = "yes: " + event.value("rung", "") + " in update " + std::to_string(update + 1);
    if (name == "resumed") killed = "yes: resumed at update " + std::to_string(update);
  }
  std::printf("\n  %-38s %s\n", "fault", "survived");
  std::printf("  %-38s %s\n", ("a NaN in a batch of update " + std::to_string(faults.poisoned + 1)).c_str(), skipped.c_str());
  std::printf("  %-38s %s\n", ("memory gone in update " + std::to_string(faults.starved + 1)).c_str(), starved.c_str());
  std::printf("  %-38s %s\n", ("SIGKILL after update " + std::to_string(faults.killed)).c_str(), killed.c_str());
}

torch::optim::AdamWOptions optimizer_options() { return torch::optim::AdamWOptions(2e-3).betas({0.9, 0.95}).weight_decay(0.1); }

auto loss_of(gpt const& model) {
  return [model = model.ptr()](batch const& of) {
    at::Tensor const logits = model->forward(of.input).flatten(0, 1);
    at::Tensor const losses = at::cross_entropy_loss(logits, of.target.flatten(), {}, at::Reduction::None);
    return (losses * of.weight.flatten()).mean();
  };
}

double mebibytes(std::int64_t bytes) { return static_cast<double>(bytes) / (1024.0 * 1024.0); }

/// Bytes that two updates take at most without a limit, by a model that is thrown away.
std::int64_t peak_of_updates(model_size const& size, at::Tensor const& text, keel::memory::budget& budget) {
  struct unlimited : keel::recipe<keel::accumulate<2>, keel::clip::global_norm<1.0>> {};
  std::int64_t const before = budget.allocated();
  gpt model(size);
  keel::adamw optimizer(model->parameters(), optimizer_options());
  keel::step<unlimited> step{model, optimizer};
  batch const some = make_batch(text, std::vector<std::int64_t>(rows, 0), size.context);
  budget.reset_peak();
  for (int i = 0; i < 4; ++i) step(some, loss_of(model));
  return budget.peak() - before;
}

/// Of a process alone, or of one rank of several.
template <class Recipe>
auto make_trainer(gpt& model, keel::adamw& optimizer, keel::world_of_ranks const& world, keel::trainer_options const& options) {
  if constexpr (keel::config_of<Recipe>.shard.kind == keel::shard::kind::replicate) {
    return keel::trainer<Recipe>{model, optimizer, world, options};
  } else {
    return keel::trainer<Recipe>{model, optimizer, options};
  }
}

/// All ranks write into one directory, which rank 0 names.
std::filesystem::path run_directory_of(settings const& arguments, keel::world_of_ranks const& world) {
  if (!arguments.run_directory.empty()) return arguments.run_directory;
  std::string const name = new_run_directory();
  at::Tensor const letters = at::zeros({64}, at::kByte);
  std::copy(name.begin(), name.end(), letters.data_ptr<std::uint8_t>());
  keel::broadcast(world, letters);
  return reinterpret_cast<char const*>(letters.data_ptr<std::uint8_t>());
}

template <class Recipe>
int train_by(settings arguments, keel::world_of_ranks const& world, int local_ranks) {
  bool const speaks = world.rank() == 0;
  int const cores = static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
  at::set_num_threads(arguments.threads > 0 ? arguments.threads : std::max(1, cores / local_ranks));
  arguments.run_directory = run_directory_of(arguments, world);

  // Activations are allocated and freed thousands of times a second; without this glibc gives each back to the kernel.
  mallopt(M_MMAP_THRESHOLD, 1 << 30);
  mallopt(M_TRIM_THRESHOLD, 1 << 30);

  std::string const text = read_corpus(arguments.text);
  vocabulary const letters(text);
  model_size const size{.vocabulary = letters.size()};
  split const data = split_tokens(letters.encode(text), size.context, arguments.text.string());

  keel::memory::budget budget;
  if (arguments.memory_percent > 0) {
    std::int64_t const peak = peak_of_updates(size, data.train, budget);
    budget.limit(budget.allocated() + peak * arguments.memory_percent / 100);
    std::printf("an update takes %.1f MiB at most by itself; it gets %.1f MiB, %lld %%\n", mebibytes(peak),
                mebibytes(peak * arguments.memory_percent / 100), static_cast<long long>(arguments.memory_percent));
  }
  keel::seed<Recipe>();
  gpt model(size);
  keel::adamw optimizer(model->parameters(), optimizer_options());

  auto run = make_trainer<Recipe>(
      model, optimizer, world,
      {.run_directory = arguments.run_directory, .updates = arguments.updates, .console_every = arguments.console_every});

  std::int64_t parameters = 0;
  for (auto const& parameter : model->parameters()) parameters += parameter.numel();
  if (speaks) {
    std::cout << keel::describe<Recipe>(keel::shown::set);
    std::printf("%lld parameters, %lld characters of %lld kinds from %s, %d threads\n\n", static_cast<long long>(parameters),
                static_cast<long long>(text.size()), static_cast<long long>(letters.size()), arguments.text.c_str(), at::get_num_threads());
  }

  fault_plan const faults(arguments);
  if (faults.active && faults.killed <= keel::config_of<Recipe>.checkpoint.interval) {
    throw keel::error("E12", "--faults would kill the process after update " + std::to_string(faults.killed) +
                                 ", before its first checkpoint, and so again and again. Give it --updates 74 or more.");
  }
  if (faults.active) {
    bool resumed = false;
    std::int64_t needed = 0;  // bytes that a window takes beyond what stays
    run.on([&](keel::event::run_begin const& e) { resumed = e.resumed; });
    run.on([&](keel::event::update_begin const& e) {
      budget.reset_peak();
      if (e.update == faults.starved && !resumed) budget.limit(budget.allocated() + needed * 6 / 10);
    });
    run.on([&](keel::event::update_end const& e) {
      budget.limit(0);
      needed = std::max(needed, budget.peak() - budget.allocated());
      if (e.update == faults.killed && !resumed) std::raise(SIGKILL);
    });
  }

  auto const training = [&](std::int64_t epoch) {
    return ranges::views::iota(std::int64_t{0}, std::int64_t{1} << 40) |
           ranges::views::transform([&, epoch](std::int64_t position) {
             std::vector<std::int64_t> starts;
             for (std::int64_t row = 0; row < rows; ++row) {
               // Each rank has other windows.
               std::int64_t const place = position * world.size() + world.rank();
               auto const drawn = mix(static_cast<std::uint64_t>(epoch), static_cast<std::uint64_t>(place), static_cast<std::uint64_t>(row));
               starts.push_back(static_cast<std::int64_t>(drawn % static_cast<std::uint64_t>(data.train.numel() - size.context)));
             }
             batch made = make_batch(data.train, starts, size.context);
             if (faults.active && position == 2 * faults.poisoned + 1) made.weight[0][0] = NAN;
             return made;
           });
  };
  std::int64_t const windows = (data.validation.numel() - 1) / size.context;
  std::int64_t const batches = (windows + rows - 1) / rows;
  std::int64_t const own = (batches - world.rank() + world.size() - 1) / world.size();
  auto const validation = ranges::views::iota(std::int64_t{0}, own) | ranges::views::transform([&](std::int64_t number) {
                            std::int64_t const index = number * world.size() + world.rank();
                            std::vector<std::int64_t> starts;
                            for (std::int64_t w = index * rows; w < std::min(windows, (index + 1) * rows); ++w) starts.push_back(w * size.context);
                            return make_batch(data.validation, starts, size.context);
                          });

  keel::outcome const result = run.fit(training, loss_of(model));
  if (auto const* stopped = result.stopped()) {
    if (speaks) std::printf("\nTo go on: examples/run char_gpt --run-directory %s\n", arguments.run_directory.c_str());
    return 128 + stopped->signal;
  }
  if (result.gave_up()) return keel::exit_code_of([&] { return result; });

  double const loss = run.evaluate(validation, loss_of(model));
  if (!speaks) return 0;
  double const bigram = bigram_loss(data.train, data.validation, letters.size());
  std::printf("\nA sample:\n%s\n", sample(model, letters, text.substr(text.size() * 9 / 10, 16), 240).c_str());
  if (faults.active) print_survived(arguments.run_directory, faults);
  std::printf("\n  validation loss, nats a character\n  %-38s %.4f\n  %-38s %.4f\n  %s\n", "bigram", bigram, "this transformer", loss,
              loss < bigram ? "The transformer is below the bigram." : "The transformer is not below the bigram yet; give it more --updates.");
  return 0;
}

}  // namespace

std::string new_run_directory() {
  auto const seconds = std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch()).count();
  return "runs/char_gpt-" + std::to_string(seconds) + "-" + std::to_string(::getpid());
}

int train(settings const& arguments) {
  keel::launch_info const started = keel::read_launch_environment();
  if (started.size == 1) return train_by<of_one>(arguments, {}, 1);
  if (arguments.faults || arguments.memory_percent > 0)
    throw keel::error("E12", "--faults and --memory-percent show one process. Leave --ranks, or them, out.");
  return train_by<of_ranks>(arguments, keel::join(), started.local_size.value_or(started.size));
}

}  // namespace char_gpt
