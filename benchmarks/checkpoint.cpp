// What a checkpoint costs the run that it protects. Prints one JSON row a line.
//   checkpoint/stall     how long training stands still: by an asynchronous save, and by torch::save of the same model and
//   optimizer. checkpoint/stall_limit      the same beside a plain copy of as many bytes at this memory's speed.
//   checkpoint/write     a whole save, checksums and syncs included, and one plain sequential write of as many bytes
//   with fsync. checkpoint/load      a resume that verifies every byte, and torch::load of the same model and optimizer.
//   checkpoint/slowdown  an update while a save is being written, and one while none is.
// The files go to the folder that is the first argument, or to the temporary one: it must be on a disk, not in memory.
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/serialize.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <keel/checkpoint/for_each_in_parallel.hpp>
#include <keel/checkpoint/stream_copy.hpp>
#include <keel/keel.hpp>
#include <memory>
#include <string>
#include <vector>

#include "measure.hpp"

namespace {

namespace fs = std::filesystem;
using namespace keel::literals;

struct beside : keel::recipe<keel::checkpoint::every<1000000_steps, keel::checkpoint::asynchronous>> {};
struct in_front : keel::recipe<keel::checkpoint::every<1000000_steps>> {};

constexpr int rounds = 21;

torch::nn::Sequential make_model(int layers, std::int64_t width) {
  torch::nn::Sequential model;
  for (int i = 0; i < layers; ++i) model->push_back(torch::nn::Linear(width, width));
  return model;
}

/// A model of 25M parameters whose optimizer has been used, in a run directory.
template <class Recipe>
struct run_of {
  explicit run_of(fs::path const& directory) : trainer(model, optimizer, {.run_directory = directory, .console = nullptr}) {}
  void update() {
    trainer.step(batch, [&](at::Tensor const& x) { return at::mse_loss(model->forward(x), x); });
  }
  torch::nn::Sequential model = make_model(24, 1024);
  // 24 linear layers in a row diverge at higher rates, and what a save costs does not depend on it.
  keel::adamw optimizer{model->parameters(), 1e-6};
  keel::trainer<Recipe> trainer;
  at::Tensor batch = at::randn({16, 1024});
};

void torch_save(torch::nn::Sequential& model, torch::optim::Optimizer& optimizer, fs::path const& folder) {
  torch::save(model, (folder / "model.pt").string());
  torch::save(optimizer, (folder / "optimizer.pt").string());
}

std::uint64_t bytes_of(fs::path const& directory) {
  std::uint64_t sum = 0;
  for (auto const& entry : fs::recursive_directory_iterator(directory)) sum += entry.is_regular_file() ? entry.file_size() : 0;
  return sum;
}

std::string size_words(std::uint64_t bytes) {
  return std::to_string(bytes / 1000000) + " MB of parameters and AdamW's moments";
}

/// A copy of so many bytes past the caches by as many threads as there are cores, up to four, into memory that is there.
class plain_copy {
 public:
  explicit plain_copy(std::uint64_t bytes)
      : from_(at::ones({static_cast<std::int64_t>(bytes)}, at::kByte)), to_(at::ones_like(from_)) {}
  void operator()() {
    auto const bytes = static_cast<std::size_t>(from_.numel());
    constexpr std::size_t block = 1 << 20;
    auto* const to = static_cast<char*>(to_.data_ptr());
    auto const* const from = static_cast<char const*>(from_.data_ptr());
    keel::detail::for_each_in_parallel((bytes + block - 1) / block, bytes, [&](std::size_t i) {
      keel::detail::stream_copy(to + i * block, from + i * block, std::min(block, bytes - i * block));
    });
  }

 private:
  at::Tensor from_;
  at::Tensor to_;
};

void stall(fs::path const& folder) {
  run_of<beside> run(folder / "stall");
  torch::optim::AdamW plain(run.model->parameters(), 1e-3);
  for (int i = 0; i < 2; ++i) run.update();
  // The peer saves an optimizer of LibTorch's with as many moments.
  plain.step();
  std::vector<double> ours;
  std::vector<double> theirs;
  std::vector<double> copies;
  run.trainer.save();
  run.trainer.wait_for_save();
  plain_copy copy(bytes_of(folder / "stall/checkpoints/step-000000002"));
  for (int round = -2; round < rounds; ++round) {
    double const a = keel_benchmark::milliseconds([&] { run.trainer.save(); });
    run.trainer.wait_for_save();
    double const b = keel_benchmark::milliseconds([&] { torch_save(run.model, plain, folder); });
    double const c = keel_benchmark::milliseconds(copy);
    if (round < 0) continue;
    ours.push_back(a);
    theirs.push_back(b);
    copies.push_back(c);
  }
  keel_benchmark::print_row("checkpoint/stall_limit", keel_benchmark::median(ours), keel_benchmark::median(copies),
                            size_words(bytes_of(folder / "stall/checkpoints/step-000000002")) + ", median of " +
                                std::to_string(rounds) + "; peer: a plain copy of as many bytes");
  keel_benchmark::print_row(
      "checkpoint/stall", keel_benchmark::median(ours), keel_benchmark::median(theirs),
      size_words(bytes_of(folder / "stall/checkpoints/step-000000002")) + ", median of " + std::to_string(rounds) +
          ", copied by up to four threads; peer: torch::save of model and optimizer, by one, which syncs nothing");
}

void write(fs::path const& folder) {
  run_of<in_front> run(folder / "write");
  run.update();
  run.trainer.save();
  std::uint64_t const bytes = bytes_of(folder / "write/checkpoints");
  std::vector<char> const content(bytes, 'k');
  keel::file_system files;
  auto const theirs = [&] {
    fs::path const name = folder / "plain";
    auto const file = files.create(name);
    files.write(file, name, content.data(), content.size());
    files.sync(file, name);
  };
  auto const [a, b] = keel_benchmark::compare([&] { run.trainer.save(); }, theirs, rounds, 2);
  keel_benchmark::print_row("checkpoint/write", a, b,
                            size_words(bytes) + ", " + std::to_string(static_cast<int>(static_cast<double>(bytes) / a / 1e3)) +
                                " MB/s with checksums and six syncs, median of " + std::to_string(rounds) +
                                "; peer: one file of as many bytes with fsync, " +
                                std::to_string(static_cast<int>(static_cast<double>(bytes) / b / 1e3)) + " MB/s");
}

void load(fs::path const& folder) {
  {
    run_of<in_front> run(folder / "load");
    torch::optim::AdamW plain(run.model->parameters(), 1e-3);
    run.update();
    run.trainer.save();
    plain.step();
    torch_save(run.model, plain, folder);
  }
  std::vector<double> ours;
  std::vector<double> theirs;
  for (int round = -2; round < rounds; ++round) {
    // Each into a new model, as after a start.
    auto run = std::make_unique<run_of<in_front>>(folder / "load");
    double const a = keel_benchmark::milliseconds([&] { run->trainer.resume(); });
    run.reset();
    auto model = make_model(24, 1024);
    torch::optim::AdamW optimizer(model->parameters(), 1e-3);
    double const b = keel_benchmark::milliseconds([&] {
      torch::load(model, (folder / "model.pt").string());
      torch::load(optimizer, (folder / "optimizer.pt").string());
    });
    if (round < 0) continue;
    ours.push_back(a);
    theirs.push_back(b);
  }
  keel_benchmark::print_row("checkpoint/load", keel_benchmark::median(ours), keel_benchmark::median(theirs),
                            size_words(bytes_of(folder / "load/checkpoints")) + ", every byte verified, median of " +
                                std::to_string(rounds) +
                                ", read by up to four threads from the system's cache; peer: torch::load of model and "
                                "optimizer, by one, which verifies nothing");
}

void slowdown(fs::path const& folder) {
  run_of<beside> run(folder / "slowdown");
  run.batch = at::randn({64, 1024});
  bool writing = false;
  run.trainer.on([&](keel::event::checkpoint_saved const&) { writing = false; });
  for (int i = 0; i < 3; ++i) run.update();
  std::vector<double> busy;
  std::vector<double> idle;
  for (int round = 0; round < 2 * rounds; ++round) {
    run.trainer.save();
    writing = true;
    std::vector<double> during;
    while (writing) during.push_back(keel_benchmark::milliseconds([&] { run.update(); }));
    // The last one was written beside for a part of its time only.
    if (during.size() > 1) during.pop_back();
    for (double const one : during) busy.push_back(one);
    for (std::size_t i = 0; i < during.size(); ++i) idle.push_back(keel_benchmark::milliseconds([&] { run.update(); }));
  }
  auto const mean = [](std::vector<double> const& values) {
    double sum = 0.0;
    for (double const one : values) sum += one;
    return sum / static_cast<double>(values.size());
  };
  keel_benchmark::print_row("checkpoint/slowdown", mean(busy), mean(idle),
                            "an update of 25M parameters while 300 MB are being written, mean of " +
                                std::to_string(busy.size()) + " in " + std::to_string(2 * rounds) + " saves; medians " +
                                std::to_string(keel_benchmark::median(busy)) + " and " +
                                std::to_string(keel_benchmark::median(idle)) + " ms; peer: an update while none is");
}

}  // namespace

int main(int count, char** words) {
  fs::path const folder = (count > 1 ? fs::path(words[1]) : fs::temp_directory_path()) / "keel-benchmark-checkpoint";
  fs::remove_all(folder);
  fs::create_directories(folder);
  stall(folder);
  write(folder);
  load(folder);
  slowdown(folder);
  fs::remove_all(folder);
}
