// Checkpoints of which each rank writes and reads its slices: they load at any number of ranks and at any stage, no rank reads all of them,
// every flipped bit is found, and they merge into one file.
#include <ATen/Parallel.h>
#include <torch/nn/modules/linear.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <mutex>

#include <keel/checkpoint/load_weights.hpp>
#include <keel/checkpoint/manifest.hpp>
#include <keel/checkpoint/read_checkpoint.hpp>
#include <keel/checkpoint/verify.hpp>
#include <keel/trainer/checkpoint_collectives.hpp>
#include <keel/collective/in_process.hpp>
#include <keel/data/shuffled_batches.hpp>
#include <keel/recompute/unit.hpp>

#include "../collective/rank_error_messages.hpp"
#include "../support.hpp"

using namespace keel_test;
using namespace keel::literals;

namespace {

template <class... Policies>
struct saving : keel::recipe<keel::checkpoint::every<2_steps, keel::checkpoint::keep<10>>, keel::determinism::seeded<5>, keel::ema<0.9>,
                             Policies...> {};
using skips = keel::nonfinite::skip<20>;
using saving3 = saving<skips, keel::shard::zero<3>, keel::accept<"Z11">>;
using saving2 = saving<skips, keel::shard::zero<2>>;
using saving1 = saving<skips, keel::shard::zero<1>>;
using saving0 = saving<skips, keel::shard::replicate>;

/// A unit with a weight that it may share, a parameter without dimensions, and one whose memory is not in the order of its dimensions.
struct block : torch::nn::Module {
  at::Tensor weight, bias, scale, kernel;
  explicit block(std::int64_t width, at::Tensor const& shared = {}) {
    weight = register_parameter("weight", shared.defined() ? shared : at::randn({width, width}) / 5.0);
    bias = register_parameter("bias", at::zeros({width}));
    scale = register_parameter("scale", at::ones({}));
    kernel = register_parameter("kernel", at::randn({4, 3, 2, 1}).contiguous(at::MemoryFormat::ChannelsLast));
  }
  at::Tensor forward(at::Tensor const& x) { return (x.matmul(weight.t()) + bias) * scale + kernel.mean(); }
};

/// Units, one of them in bfloat16 and two with the same weight, and layers that no unit has.
struct network : torch::nn::Module {
  torch::nn::Linear first{nullptr}, narrow{nullptr}, last{nullptr};
  std::shared_ptr<block> one, same;
  explicit network(std::int64_t width) {
    at::manual_seed(4);
    first = register_module("first", torch::nn::Linear(5, width));
    one = register_module("one", std::make_shared<block>(width));
    same = register_module("same", std::make_shared<block>(width, one->weight));
    narrow = register_module("narrow", torch::nn::Linear(width, width));
    narrow->to(at::kBFloat16);
    last = register_module("last", torch::nn::Linear(width, 1));
    // Frozen, but in a unit.
    same->scale.requires_grad_(false);
  }
  std::vector<at::Tensor> trained() {
    std::vector<at::Tensor> all;
    for (at::Tensor const& tensor : parameters()) {
      bool const is_known = std::any_of(all.begin(), all.end(), [&](at::Tensor const& other) { return other.is_same(tensor); });
      if (tensor.requires_grad() && !is_known) all.push_back(tensor);
    }
    return all;
  }
  at::Tensor loss(at::Tensor const& x) {
    at::Tensor y = keel::unit(one, first(x).tanh());
    y = keel::unit(same, y.tanh());
    y = y + keel::unit(narrow, y.to(at::kBFloat16)).to(at::kFloat);
    return (last(y) - x.sum(1, true)).square().mean();
  }
};

/// The files of one rank, which may see no manifest, or be unable to open a file.
class faulty_files : public keel::file_system {
 public:
  explicit faulty_files(std::string hidden = "", std::string unreadable = "")
      : hidden_(std::move(hidden)), unreadable_(std::move(unreadable)) {}
  bool exists(path const& name) override { return name.filename() != hidden_ && file_system::exists(name); }
  keel::file_handle open_for_read(path const& name) override {
    if (name.filename() == unreadable_) throw keel::file_error("E02", "cannot open " + name.string() + ": Input/output error.");
    opened.push_back(name.filename().string());
    return file_system::open_for_read(name);
  }
  std::vector<std::string> opened;

 private:
  std::string hidden_, unreadable_;
};

/// Counts what is read of tensors.
class counting_files : public keel::file_system {
 public:
  std::size_t read_at(keel::file_handle const& file, path const& name, char* to, std::size_t count, std::uint64_t offset) override {
    if (name.extension() == ".safetensors") bytes_read += count;
    return file_system::read_at(file, name, to, count, offset);
  }
  std::atomic<std::uint64_t> bytes_read{0};
};

struct trained {
  std::vector<double> losses;
  std::vector<std::int64_t> rows;  ///< of all ranks, sorted
  std::vector<at::Tensor> parameters;
  std::vector<at::Tensor> averages;
  std::vector<std::uint64_t> bytes_read;  ///< by each rank
};

template <class Recipe>
trained train(std::filesystem::path const& directory, int ranks, std::int64_t updates, std::int64_t width = 24, std::int64_t bad = -1) {
  trained all;
  all.bytes_read.resize(static_cast<std::size_t>(ranks));
  std::mutex mutex;
  std::atomic<bool> is_spoiled = false;
  keel::run_in_process(ranks, [&](keel::world_of_ranks const& world) {
    keel::seed<Recipe>();
    network model(width);
    keel::adamw optimizer(model.trained(), 0.01);
    auto const files = std::make_shared<counting_files>();
    keel::trainer<Recipe> run{model, optimizer, world, quiet({.run_directory = directory, .updates = updates, .own_files = files})};
    run.resume();
    all.bytes_read[static_cast<std::size_t>(world.rank())] = files->bytes_read;
    run.on([&](keel::event::update_end const& event) {
      if (world.rank() == 0) all.losses.push_back(event.loss);
    });
    keel::shuffled_batches const order(
        {.rows = 96, .batch = 12 / world.size(), .seed = 3, .rank = world.rank(), .ranks = world.size()});
    std::int64_t number = 0;
    run.fit(order, [&](keel::row_numbers const& numbers) {
      std::vector<at::Tensor> x;
      for (std::int64_t const row : numbers) x.push_back((at::arange(5) * 0.3 + static_cast<double>(row)).sin());
      {
        std::lock_guard const lock(mutex);
        all.rows.insert(all.rows.end(), numbers.begin(), numbers.end());
      }
      bool const is_bad = number++ == bad && world.rank() == 0 && !is_spoiled.exchange(true);
      return model.loss(at::stack(x)) * (is_bad ? NAN : 1.0);
    });
    auto const whole = run.gather_parameters();
    if (world.rank() == 0) all.parameters = copies_of(model.trained());
    auto const averaged = run.averaged();
    if (world.rank() == 0) all.averages = copies_of(model.trained());
  });
  std::sort(all.rows.begin(), all.rows.end());
  return all;
}

struct one_thread {
  int const before = at::get_num_threads();
  one_thread() { at::set_num_threads(1); }
  ~one_thread() { at::set_num_threads(before); }
};

void copy_run(std::filesystem::path const& from, std::filesystem::path const& to) {
  std::filesystem::remove(to);
  std::filesystem::copy(from, to, std::filesystem::copy_options::recursive);
}

}  // namespace

TEST_CASE("what four ranks of zero<3> saved resumes at any stage with the same bits, and at other numbers of ranks with close losses and the remaining rows") {
  one_thread const threads;
  scratch_directory const uncut, saved;
  trained const whole = train<saving3>(uncut, 4, 8);
  train<saving3>(saved, 4, 4);
  auto const resume = [&](auto recipe, int ranks) {
    scratch_directory const directory;
    copy_run(saved.path(), directory.path());
    trained const rest = train<decltype(recipe)>(directory, ranks, 8);
    INFO(ranks << " ranks");
    REQUIRE(rest.losses.size() == 4);
    // Sums over another number of ranks are rounded differently.
    for (std::size_t i = 0; i < 4; ++i) CHECK(std::abs(rest.losses[i] - whole.losses[4 + i]) <= 2e-3 * whole.losses[4 + i]);
    if (ranks == 4) {
      CHECK(same_bits(rest.parameters, whole.parameters));
      CHECK(same_bits(rest.averages, whole.averages));
    }
    trained const begin = train<saving3>(scratch_directory().path(), 4, 4);
    std::vector<std::int64_t> both = begin.rows;
    both.insert(both.end(), rest.rows.begin(), rest.rows.end());
    std::sort(both.begin(), both.end());
    CHECK(both == whole.rows);
  };
  resume(saving3(), 4);
  resume(saving1(), 4);
  resume(saving0(), 4);
  resume(saving3(), 3);
  resume(saving3(), 2);
  resume(saving2(), 2);
  resume(saving1(), 3);
  resume(saving3(), 1);
  resume(saving1(), 1);
}

TEST_CASE("a rollback of sharded parameters, to a checkpoint with whole averages or with slices of them, has the bits of replicas") {
  one_thread const threads;
  for (std::int64_t const bad : {1, 5}) {
    scratch_directory const first, second;
    auto const sharded = train<saving<keel::shard::zero<3>, keel::accept<"Z11">, keel::nonfinite::rollback<1>>>(first, 3, 8, 24, bad);
    auto const replicas = train<saving<keel::shard::replicate, keel::nonfinite::rollback<1>>>(second, 3, 8, 24, bad);
    CHECK(events_of(first, "rolled_back").size() == 1);
    CHECK(same_bits(sharded.parameters, replicas.parameters));
    CHECK(same_bits(sharded.averages, replicas.averages));
  }
}

TEST_CASE("each rank reads its portion of a checkpoint: together no more than 1.3 times its bytes") {
  one_thread const threads;
  scratch_directory const saved;
  train<saving3>(saved, 4, 4, 64);
  std::uint64_t bytes = 0;
  for (auto const& entry : std::filesystem::directory_iterator(saved.path() / "checkpoints/step-000000004")) {
    if (entry.path().extension() == ".safetensors") bytes += entry.file_size();
  }
  for (int const ranks : {4, 3, 2}) {
    scratch_directory const directory;
    copy_run(saved.path(), directory.path());
    trained const resumed = train<saving3>(directory, ranks, 6, 64);
    std::uint64_t sum = 0, most = 0;
    for (std::uint64_t const one : resumed.bytes_read) sum += one, most = std::max(most, one);
    INFO(ranks << " ranks read " << sum << " of " << bytes << " bytes, one of them " << most);
    CHECK(sum >= bytes);
    // Headers are read twice.
    CHECK(static_cast<double>(sum) <= 1.3 * static_cast<double>(bytes));
    CHECK(static_cast<double>(most) <= 0.75 * static_cast<double>(bytes));
  }
}

TEST_CASE("each slice that a rank reads has the bits of the whole tensor, at any number of ranks, in any memory order, whoever reads the files") {
  one_thread const threads;
  scratch_directory const saved;
  train<saving3>(saved, 4, 4, 40);
  auto const newest = saved.path() / "checkpoints/step-000000004";
  keel::snapshot const whole = keel::read_checkpoint(newest);
  // Ranges of other lengths than the saved ones, of contiguous tensors: the saved kernel has another order.
  auto const range_of = [](std::vector<std::int64_t> const& sizes, int rank, int ranks) {
    keel::tensor_slice slice{sizes, std::vector<std::int64_t>(sizes.size()), 0, 0};
    std::int64_t elements = 1;
    for (std::size_t i = sizes.size(); i-- > 0; elements *= sizes[i]) slice.strides[i] = elements;
    slice.begin = elements * rank / ranks;
    slice.count = elements * (rank + 1) / ranks - slice.begin;
    return slice;
  };
  struct plan {
    int ranks;
    char const* hidden = "";
    char const* unreadable = "";
  };
  for (plan const& one : {plan{1}, plan{2}, plan{3}, plan{5}, plan{4}, plan{3, "manifest.json"}, plan{4, "", "optimizer-1.safetensors"}}) {
    INFO(one.ranks << " ranks, hidden " << one.hidden << ", unreadable " << one.unreadable);
    keel::run_in_process(one.ranks, [&](keel::world_of_ranks const& world) {
      bool const is_faulty = world.rank() == 1;
      faulty_files files(is_faulty ? one.hidden : "", is_faulty ? one.unreadable : "");
      auto const choose = [&](nlohmann::json const&) -> keel::detail::slice_choice {
        return [&](std::string const& kind, std::string const& name, std::vector<std::int64_t> const& sizes) -> std::optional<keel::tensor_slice> {
          if (kind == "state" && !name.starts_with("step.average.")) return std::nullopt;
          return range_of(sizes, world.rank(), world.size());
        };
      };
      keel::snapshot content;
      std::string source;
      auto const find = [&](keel::checkpoint_store::reader const& read, keel::snapshot& to, std::string& from) {
        to = read(newest);
        from = "here";
        return true;
      };
      REQUIRE(keel::detail::checkpoint_collectives(world).find_checkpoint(find, files, choose, content, source));
      CHECK(content.model.size() == whole.model.size());
      if (world.size() == 1) return;
      auto const compare = [&](keel::tensor_map const& parts, keel::slice_map const& slices, keel::tensor_map const& all) {
        int divided = 0;
        for (auto const& [name, tensor] : all) {
          INFO(name);
          if (name.starts_with("ranks/")) continue;
          auto const found = slices.find(name);
          REQUIRE(parts.count(name) == 1);
          if (found == slices.end()) {
            CHECK(same_bits(parts.at(name), tensor));
            continue;
          }
          ++divided;
          CHECK(same_bits(parts.at(name), tensor.contiguous().view({-1}).narrow(0, found->second.begin, found->second.count)));
        }
        CHECK(divided > 5);
      };
      compare(content.model, content.model_slices, whole.model);
      compare(content.optimizer, content.optimizer_slices, whole.optimizer);
      compare(content.tensors, content.tensor_slices, whole.tensors);
      bool const by_rank0 = *one.hidden != '\0';
      if (by_rank0 && world.rank() > 0)
        CHECK(std::none_of(files.opened.begin(), files.opened.end(), [](std::string const& name) { return name.ends_with(".safetensors"); }));
      if (*one.unreadable != '\0' && world.rank() == 0)
        CHECK(std::count(files.opened.begin(), files.opened.end(), one.unreadable) == 1);
    });
  }
}

TEST_CASE("a file that no rank can read ends a search with its name, on all ranks") {
  one_thread const threads;
  scratch_directory const saved;
  train<saving3>(saved, 2, 4, 6);
  auto const newest = saved.path() / "checkpoints/step-000000004";
  auto const messages = rank_error_messages(2, [&](keel::world_of_ranks const& world) {
    faulty_files files("", "optimizer-1.safetensors");
    keel::snapshot content;
    std::string source;
    auto const find = [&](keel::checkpoint_store::reader const& read, keel::snapshot& to, std::string&) { return to = read(newest), true; };
    auto const choose = [](nlohmann::json const&) -> keel::detail::slice_choice { return [](auto const&...) { return std::nullopt; }; };
    keel::detail::checkpoint_collectives(world).find_checkpoint(find, files, choose, content, source);
  });
  for (auto const& one : messages) CHECK(one.find("optimizer-1.safetensors: Input/output error") != std::string::npos);
  auto const thrown = rank_error_messages(3, [&](keel::world_of_ranks const& world) {
    keel::file_system files;
    keel::snapshot content;
    std::string source;
    auto const find = [&](keel::checkpoint_store::reader const& read, keel::snapshot& to, std::string&) { return to = read(newest), true; };
    auto const choose = [&](nlohmann::json const&) -> keel::detail::slice_choice {
      if (world.rank() == 1) throw keel::data_error("E05", "this rank cannot choose");
      return [](auto const&...) { return std::nullopt; };
    };
    keel::detail::checkpoint_collectives(world).find_checkpoint(find, files, choose, content, source);
  });
  for (auto const& one : thrown) CHECK(one.find("this rank cannot choose") != std::string::npos);
}

TEST_CASE("a flipped bit in a checkpoint of slices is found by its file and tensor, and the run resumes from the one before") {
  one_thread const threads;
  scratch_directory const saved;
  train<saving3>(saved, 2, 4, 6);
  auto const newest = saved.path() / "checkpoints/step-000000004";
  CHECK(keel::find_damage(newest).empty());
  std::vector<std::filesystem::path> all;
  for (auto const& entry : std::filesystem::directory_iterator(newest)) all.push_back(entry.path());
  CHECK(all.size() == 8);
  int flips = 0;
  for (auto const& file : all) {
    std::string const text = read_file(file);
    bool const has_tensors = file.extension() == ".safetensors";
    std::size_t data_begin = 0;
    if (has_tensors) {
      std::uint64_t length = 0;
      std::memcpy(&length, text.data(), sizeof length);
      data_begin = 8 + length;
    }
    for (std::size_t at = 0; at < text.size(); at += 31) {
      std::string changed = text;
      changed[at] = static_cast<char>(changed[at] ^ (1 << (at % 8)));
      std::ofstream(file, std::ios::binary) << changed;
      auto const found = keel::find_damage(newest);
      INFO(file << " at " << at);
      REQUIRE(found.size() >= 1);
      CHECK(found.front().find(file.filename().string()) != std::string::npos);
      if (has_tensors && at >= data_begin) CHECK(found.front().find("the checksum of ") != std::string::npos);
      ++flips;
    }
    std::ofstream(file, std::ios::binary) << text;
  }
  CHECK(flips > 1000);
  CHECK(keel::find_damage(newest).empty());
  // In the file of either rank: rank 0 learns of what the other one finds.
  trained const expected = [&] {
    scratch_directory const directory;
    copy_run(saved.path(), directory.path());
    return train<saving3>(directory, 2, 6, 6);
  }();
  for (std::string const name : {"model.safetensors", "model-1.safetensors", "optimizer-1.safetensors", "state-1.safetensors"}) {
    scratch_directory const directory;
    copy_run(saved.path(), directory.path());
    auto const file = directory.path() / "checkpoints/step-000000004" / name;
    std::string changed = read_file(file);
    changed.back() = static_cast<char>(changed.back() ^ 1);
    std::ofstream(file, std::ios::binary) << changed;
    trained const resumed = train<saving3>(directory, 2, 6, 6);
    INFO(name);
    CHECK(resumed.losses.size() == 4);
    CHECK(same_bits(resumed.parameters, expected.parameters));
    auto const damaged = events_of(directory, "damaged");
    REQUIRE(damaged.size() == 1);
    CHECK(damaged.front().at("message").get<std::string>().find(name) != std::string::npos);
  }
}

TEST_CASE("a manifest whose slices have a gap, an overlap or another shape is damaged, and names the tensor") {
  one_thread const threads;
  scratch_directory const saved;
  train<saving3>(saved, 2, 4);
  auto const newest = saved.path() / "checkpoints/step-000000004";
  std::string const text = read_file(newest / "manifest.json");
  auto const tried = [&](auto const& change) {
    keel::manifest all = keel::parse_manifest(text, "manifest.json");
    change(all.files.at("model-1.safetensors").slices.at("one.weight"));
    std::ofstream(newest / "manifest.json", std::ios::binary) << keel::manifest_text(all);
    CHECK_THROWS_WITH(keel::read_checkpoint(newest), Catch::Contains("E05") && Catch::Contains("one.weight"));
    CHECK_FALSE(keel::find_damage(newest).empty());
  };
  tried([](keel::tensor_slice& one) { ++one.begin; });
  tried([](keel::tensor_slice& one) { --one.count; });
  tried([](keel::tensor_slice& one) { one.begin = 0; });
  tried([](keel::tensor_slice& one) { std::swap(one.strides[0], one.strides[1]); });
  tried([](keel::tensor_slice& one) { one.sizes[0] = std::int64_t{1} << 62; });
  tried([](keel::tensor_slice& one) { one.sizes.clear(); });
}

TEST_CASE("weights of slices are read whole, and merge into one file") {
  one_thread const threads;
  scratch_directory const saved;
  trained const run = train<saving3>(saved, 3, 4);
  network model(24);
  keel::load_weights(model, saved);
  CHECK(same_bits(copies_of(model.trained()), run.parameters));
  keel::tensor_map const weights = keel::read_weights(saved);
  CHECK(weights.at("one.weight").is_same(weights.at("same.weight")));
  auto const file = saved.path() / "merged.safetensors";
  keel::save_safetensors(file, weights);
  // For python_reads_weights.sh.
  if (char const* const kept = std::getenv("KEEL_MERGED_WEIGHTS")) {
    std::filesystem::copy_file(file, kept);
    std::ofstream sums(std::string(kept) + ".sums");
    sums.precision(17);
    for (auto const& [name, tensor] : weights) {
      at::Tensor const values = tensor.to(at::kDouble).contiguous().flatten();
      sums << name << ' ' << (values * (at::arange(values.numel()).remainder(7) + 1)).sum().item<double>() << '\n';
    }
  }
  network other(24);
  keel::load_weights(other, file);
  CHECK(same_bits(copies_of(other.trained()), run.parameters));
  network averaged(24);
  keel::load_weights(averaged, saved, {.averaged = true});
  CHECK(same_bits(copies_of(averaged.trained()), run.averages));
  CHECK_FALSE(same_bits(run.averages, run.parameters));
}
