// Checkpoints that the ranks of a run write side by side: what is in them, and disks and ranks that fail in between.
#include <ATen/Parallel.h>

#include <atomic>
#include <map>
#include <memory>
#include <set>
#include <thread>
#include <type_traits>

#include <keel/checkpoint/rank_files.hpp>
#include <keel/checkpoint/read_checkpoint.hpp>
#include <keel/checkpoint/safetensors.hpp>
#include <keel/checkpoint/store.hpp>
#include <keel/checkpoint/verify.hpp>
#include <keel/collective/in_process.hpp>
#include <keel/recompute/unit.hpp>

#include "../collective/rank_error_messages.hpp"
#include "../support.hpp"

using namespace keel_test;
using namespace keel::literals;

namespace {

using keel::checkpoint::every;

template <class Shard, class How>
struct saving_of : keel::recipe<Shard, every<2_steps, How, keel::checkpoint::keep<2>>, keel::nonfinite::skip<5>, keel::ema<0.9>> {
  static constexpr bool divides = !std::is_same_v<Shard, keel::shard::replicate>;
};
using synchronous = saving_of<keel::shard::zero<3>, keel::checkpoint::synchronous>;
using of_replicas = saving_of<keel::shard::replicate, keel::checkpoint::synchronous>;
using asynchronous = saving_of<keel::shard::zero<3>, keel::checkpoint::asynchronous>;

/// What happens to the calls of one rank's disk that concern checkpoints.
struct disk_plan {
  enum class kind : unsigned char { fails_once, is_full, rank_dies };
  int rank = -1;
  int at = 1 << 30;  ///< the call, counted from 1
  kind what = kind::fails_once;
  enum class sight : unsigned char { all, not_by_first, not_writable };
  sight seen = sight::all;  ///< of what the last rank writes: rank 0 does not see it, or it cannot write there
  std::atomic<int> calls{0};
};

/// A process that is killed makes no call any more.
struct rank_is_dead : std::exception {
  char const* what() const noexcept override { return "dead"; }
};

class planned_files : public keel::file_system {
 public:
  explicit planned_files(int rank = 0, std::shared_ptr<disk_plan> plan = nullptr) : rank_(rank), plan_(std::move(plan)) {}
  void make_directories(path const& name) override { call(name), file_system::make_directories(name); }
  keel::file_handle create(path const& name) override {
    if (plan_ && rank_ == 2 && plan_->seen == disk_plan::sight::not_writable && name.extension() == ".sees")
      throw keel::file_error("E02", "cannot create " + name.string() + ": Read-only file system.");
    return call(name), file_system::create(name);
  }
  void write(keel::file_handle const& file, path const& name, char const* bytes, std::size_t count) override {
    call(name, true), file_system::write(file, name, bytes, count);
  }
  void sync(keel::file_handle const& file, path const& name) override { call(name), file_system::sync(file, name); }
  std::string sync_directory(path const& name) override { return call(name), file_system::sync_directory(name); }
  void rename(path const& from, path const& to) override { call(from), file_system::rename(from, to); }
  void remove_file(path const& name) override { call(name), file_system::remove_file(name); }
  bool remove_directory(path const& name) override { return call(name), file_system::remove_directory(name); }
  bool exists(path const& name) override {
    bool const is_hidden = plan_ && rank_ == 0 && plan_->seen == disk_plan::sight::not_by_first && name.filename() == "rank-2.sees";
    return !is_hidden && file_system::exists(name);
  }

 private:
  void call(path const& name, bool writes = false) {
    if (!plan_ || plan_->rank != rank_ || name.string().find("/checkpoints/") == std::string::npos) return;
    int const number = ++plan_->calls;
    if (number < plan_->at) return;
    using kind = disk_plan::kind;
    if (plan_->what == kind::rank_dies) throw rank_is_dead();
    bool const fails = plan_->what == kind::is_full ? writes : number == plan_->at;
    if (fails) throw keel::file_error("E02", "cannot write " + name.string() + ": No space left on device. Make room.");
  }

  int rank_;
  std::shared_ptr<disk_plan> plan_;
};

/// State of the program that is each rank's own.
struct counter {
  at::Tensor calls = at::zeros({3});
  void visit(auto& archive) { archive("calls", calls); }
};

struct ended {
  std::vector<at::Tensor> parameters;
  at::Tensor calls, next;
  std::int64_t updates = 0;
};

template <class Recipe>
ended train(keel::world_of_ranks const& world, std::filesystem::path const& directory, std::shared_ptr<disk_plan> const& plan = nullptr,
            std::int64_t updates = 5) {
  auto const model = make_small(3, 0.3);
  keel::adamw optimizer(model->parameters(), 0.05);
  keel::shuffled_batches const batches({.rows = 48, .batch = 4, .seed = 5, .rank = world.rank(), .ranks = world.size()});
  counter own;
  keel::trainer<Recipe> run{*model, optimizer, world,
                            quiet({.run_directory = directory,
                                   .updates = updates,
                                   .own_files = std::make_shared<planned_files>(world.rank(), plan)})};
  run.register_state("counter", own);
  run.on([&](keel::event::update_end const&) { own.calls += world.rank() + 1; });
  run.fit(batches, [&](keel::row_numbers const& numbers) {
    std::vector<at::Tensor> x, y;
    for (std::int64_t const one : numbers) {
      auto const made = make_pair_batch(static_cast<std::uint64_t>(one), 1);
      x.push_back(made.first);
      y.push_back(made.second);
    }
    return at::mse_loss(keel::unit(model, at::cat(x)), at::cat(y));
  });
  auto const whole = run.gather_parameters();
  return {copies_of(model->parameters()), own.calls.clone(), at::rand({2}), run.updates()};
}

template <class Recipe>
std::vector<ended> train_ranks(int ranks, std::filesystem::path const& directory, std::shared_ptr<disk_plan> const& plan = nullptr) {
  std::vector<ended> all(static_cast<std::size_t>(ranks));
  keel::run_in_process(ranks, [&](keel::world_of_ranks const& world) {
    all[static_cast<std::size_t>(world.rank())] = train<Recipe>(world, directory, plan);
  });
  return all;
}

bool same(std::vector<ended> const& a, std::vector<ended> const& b) {
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (!same_bits(a[i].parameters, b[i].parameters) || !same_bits(a[i].calls, b[i].calls) || !same_bits(a[i].next, b[i].next) ||
        a[i].updates != b[i].updates)
      return false;
  }
  return true;
}

bool same(keel::tensor_map const& a, keel::tensor_map const& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](auto const& one, auto const& other) { return one.first == other.first && same_bits(one.second, other.second); });
}

std::set<std::string> names_in(std::filesystem::path const& directory) {
  std::set<std::string> names;
  for (auto const& entry : std::filesystem::directory_iterator(directory)) names.insert(entry.path().filename().string());
  return names;
}

std::set<std::string> files_of_three(std::set<std::string> names) {
  names.insert({"manifest.json", "model.safetensors", "optimizer.safetensors", "state.json", "state.safetensors"});
  return names;
}

/// Everything in the run's directory is a whole checkpoint.
void require_whole(std::filesystem::path const& run) {
  for (auto const& entry : std::filesystem::directory_iterator(run / "checkpoints")) {
    INFO(entry.path());
    CHECK(entry.path().filename().string().starts_with("step-"));
    CHECK(keel::find_damage(entry.path()).empty());
  }
}

/// Each rank is a thread, which would get a pool of its own.
struct one_thread {
  int const before = at::get_num_threads();
  one_thread() { at::set_num_threads(1); }
  ~one_thread() { at::set_num_threads(before); }
};

}  // namespace

TEST_CASE("each rank writes its portion of a checkpoint, which holds what rank 0 would have written for all") {
  one_thread const threads;
  auto const compare = [](auto recipe, disk_plan::sight seen) {
    using tried = decltype(recipe);
    scratch_directory const together, by_first;
    auto const plan = std::make_shared<disk_plan>();
    plan->seen = seen;
    CHECK(same(train_ranks<tried>(3, together), train_ranks<tried>(3, by_first, plan)));
    auto const newest = [](std::filesystem::path const& run) { return run / "checkpoints/step-000000004"; };
    for (auto const& one : std::filesystem::directory_iterator(std::filesystem::path(by_first) / "checkpoints"))
      CHECK(names_in(one.path()) == files_of_three({}));
    CHECK(names_in(newest(together)) ==
          files_of_three(tried::divides
                             ? std::set<std::string>{"model-1.safetensors", "model-2.safetensors", "optimizer-1.safetensors",
                                                     "optimizer-2.safetensors", "state-1.safetensors", "state-2.safetensors"}
                             : std::set<std::string>{"optimizer-1.safetensors", "optimizer-2.safetensors", "state-1.safetensors",
                                                     "state-2.safetensors"}));
    // Each element of a tensor is in one file. Of tensors that are not divided rank 0, which has the model, has the least.
    std::set<std::string> tensors;
    std::vector<std::uint64_t> bytes;
    for (std::string const name : {"", "-1", "-2"}) {
      std::uint64_t of_file = 0;
      for (auto const& [tensor, values] : keel::load_safetensors(newest(together) / ("optimizer" + name + ".safetensors")).tensors) {
        tensors.insert(tensor);
        of_file += values.nbytes();
      }
      bytes.push_back(of_file);
    }
    keel::snapshot const a = keel::read_checkpoint(newest(together)), b = keel::read_checkpoint(newest(by_first));
    std::uint64_t all = 0;
    for (auto const& [name, tensor] : b.optimizer) all += tensor.nbytes();
    CHECK(tensors.size() == b.optimizer.size());
    CHECK(bytes[0] + bytes[1] + bytes[2] == all);
    keel::manifest const of_all = keel::read_manifest(newest(together));
    bool const is_divided = !of_all.files.at("optimizer-1.safetensors").slices.empty();
    CHECK(is_divided == tried::divides);
    if (!is_divided) CHECK(bytes[0] < std::min(bytes[1], bytes[2]));
    CHECK(same(a.model, b.model));
    CHECK(same(a.optimizer, b.optimizer));
    CHECK(same(a.tensors, b.tensors));
    CHECK(a.state.at("ranks") == b.state.at("ranks"));
    CHECK(a.tensors.count("ranks/2/registered.counter.calls") == 1);
    // The retention removes files of all ranks.
    CHECK(names_in(std::filesystem::path(together) / "checkpoints").size() == names_in(std::filesystem::path(by_first) / "checkpoints").size());
    require_whole(together);
  };
  compare(synchronous(), disk_plan::sight::not_by_first);
  compare(of_replicas(), disk_plan::sight::not_writable);
  compare(asynchronous(), disk_plan::sight::not_writable);
}

TEST_CASE("a failed call of either rank's disk, tried throughout a run, costs one save, or ends the run of both with the reason, and what is there is whole") {
  one_thread const threads;
  auto const sweep = [](auto recipe, int rank, int step) {
    using tried = decltype(recipe);
    scratch_directory const whole;
    auto const expected = train_ranks<tried>(2, whole);
    int lost_saves = 0, lost_runs = 0;
    for (int at = 1;; at += step) {
      scratch_directory const directory;
      auto const plan = std::make_shared<disk_plan>();
      plan->rank = rank;
      plan->at = at;
      std::vector<ended> all(2);
      auto const words = rank_error_messages(2, [&](keel::world_of_ranks const& world) {
        all[static_cast<std::size_t>(world.rank())] = train<tried>(world, directory, plan);
      });
      INFO("call " << at << " of rank " << rank << ": " << words[0] << " | " << words[1]);
      if (plan->calls < at) break;
      if (words[0].empty()) {
        CHECK(words[1].empty());
        CHECK(same(all, expected));
        auto const failed = events_of(directory, "checkpoint_failed");
        lost_saves += static_cast<int>(failed.size());
        for (auto const& one : failed) CHECK(one.at("message").template get<std::string>().find("No space left") != std::string::npos);
      } else {
        ++lost_runs;
        CHECK(words[0].find("No space left") != std::string::npos);
        CHECK(words[1].find("No space left") != std::string::npos);
      }
      keel::checkpoint_store store(std::filesystem::path(directory) / "checkpoints");
      for (std::int64_t const update : store.updates()) CHECK(keel::find_damage(store.path_of_update(update)).empty());
      CHECK(same(train_ranks<tried>(2, directory), expected));
      require_whole(directory);
    }
    CHECK(lost_saves > 0);
    INFO(lost_saves << " saves and " << lost_runs << " runs of rank " << rank);
    if (rank == 1) CHECK(lost_saves > lost_runs);
  };
  sweep(synchronous(), 1, 2);
  sweep(synchronous(), 0, 7);
  sweep(asynchronous(), 1, 3);
  sweep(asynchronous(), 0, 8);
}

TEST_CASE("a rank that is killed at calls of its disk throughout a run leaves checkpoints from which the run ends with the same bits") {
  one_thread const threads;
  auto const sweep = [](auto recipe, int ranks, int rank, int begin, int step) {
    using tried = decltype(recipe);
    scratch_directory const whole;
    auto const expected = train_ranks<tried>(ranks, whole);
    int killed = 0;
    for (int at = begin;; at += step) {
      scratch_directory const directory;
      auto const plan = std::make_shared<disk_plan>();
      plan->rank = rank;
      plan->at = at;
      plan->what = disk_plan::kind::rank_dies;
      auto const words = rank_error_messages(ranks, [&](keel::world_of_ranks const& world) { train<tried>(world, directory, plan); });
      INFO("killed at call " << at << " of rank " << rank << " of " << ranks);
      if (plan->calls < at) break;
      ++killed;
      for (auto const& one : words) CHECK(!one.empty());
      CHECK(same(train_ranks<tried>(ranks, directory), expected));
      require_whole(directory);
    }
    CHECK(killed > 2);
  };
  sweep(synchronous(), 2, 1, 1, 2);
  sweep(synchronous(), 2, 0, 2, 9);
  sweep(synchronous(), 3, 2, 1, 5);
  sweep(asynchronous(), 2, 1, 3, 17);
  sweep(asynchronous(), 2, 0, 3, 31);
}

TEST_CASE("a disk that stays full for one rank alone ends the run after as many saves as the recipe bears, and nothing whole is lost") {
  one_thread const threads;
  scratch_directory const directory;
  auto const plan = std::make_shared<disk_plan>();
  plan->rank = 1;
  plan->at = 1;
  plan->what = disk_plan::kind::is_full;
  auto const words = rank_error_messages(2, [&](keel::world_of_ranks const& world) { train<synchronous>(world, directory, plan, 20); });
  for (auto const& one : words) {
    INFO(one);
    CHECK(one.find("rank 1: ") != std::string::npos);
    CHECK(one.find("No space left") != std::string::npos);
  }
  CHECK(events_of(directory, "checkpoint_failed").size() == 3);
  require_whole(directory);
}

TEST_CASE("a file of a rank that is gone or damaged is named, and the run goes on from the checkpoint before") {
  one_thread const threads;
  scratch_directory const whole;
  auto const expected = train_ranks<synchronous>(2, whole);
  for (std::string const name : {"optimizer-1.safetensors", "state-1.safetensors"}) {
    for (bool const is_gone : {true, false}) {
      scratch_directory const directory;
      train_ranks<synchronous>(2, directory);
      std::filesystem::path const newest = std::filesystem::path(directory) / "checkpoints/step-000000005-requested";
      std::filesystem::path const there = std::filesystem::exists(newest) ? newest : std::filesystem::path(directory) / "checkpoints/step-000000005";
      std::string bytes = read_file(there / name);
      bytes.back() = static_cast<char>(bytes.back() ^ 1);
      std::filesystem::remove(there / name);
      if (!is_gone) write_file(there / name, bytes);
      auto const damage = keel::find_damage(there);
      REQUIRE(damage.size() == 1);
      CHECK(damage.front().find(name) != std::string::npos);
      CHECK(same(train_ranks<synchronous>(2, directory), expected));
      CHECK(events_of(directory, "damaged").size() == 1);
    }
  }
}

TEST_CASE("of a checkpoint that ranks read together, each keeps its slices, at any number of ranks") {
  scratch_directory const directory;
  auto const make = [] { return make_small(3, 0.0); };
  keel::tensor_map whole;
  {
    auto const model = make();
    for (auto const& one : model->named_parameters())
      whole[one.key() + ".exp_avg"] = at::arange(one.value().numel(), at::kFloat).view(one.value().sizes());
    whole["other.exp_avg"] = at::ones({7});
    keel::snapshot content;
    content.optimizer = whole;
    keel::file_system files;
    keel::detail::write_checkpoint(files, directory, 0, false, content);
  }
  keel::run_in_process(3, [&](keel::world_of_ranks const& world) {
    auto const model = make();
    keel::adamw optimizer(model->parameters(), 0.05);
    keel::parameter_list const parameters = keel::collect_parameters(*model, optimizer);
    keel::detail::optimizer_shards shares(world, optimizer, parameters);
    keel::file_system files;
    keel::snapshot content;
    std::string source;
    auto const find = [&](keel::checkpoint_store::reader const& read, keel::snapshot& to, std::string& from) {
      to = read(directory.path());
      from = "a checkpoint";
      return true;
    };
    auto const choose = [&](nlohmann::json const&) -> keel::detail::slice_choice {
      return [&](std::string const&, std::string const& name, std::vector<std::int64_t> const&) { return shares.slice_of(name, parameters); };
    };
    REQUIRE(keel::detail::checkpoint_collectives(world).find_checkpoint(find, files, choose, content, source));
    CHECK(source == "a checkpoint");
    CHECK(content.optimizer.size() == whole.size());
    CHECK(same_bits(content.optimizer.at("other.exp_avg"), whole.at("other.exp_avg")));
    for (std::size_t i = 0; i < parameters.tensors.size(); ++i) {
      std::string const name = parameters.names[i] + ".exp_avg";
      auto const [begin, count] = keel::detail::compute_shard_range(parameters.tensors[i].numel(), i, world.rank(), world.size());
      CHECK(same_bits(content.optimizer.at(name), whole.at(name).view({-1}).narrow(0, begin, count)));
      CHECK(content.optimizer.at(name).storage().nbytes() == static_cast<std::size_t>(count) * sizeof(float));
    }
  });
}

TEST_CASE("a rank that writes for long shows that it is there, and one that shows nothing is named") {
  scratch_directory const directory;
  using std::chrono::milliseconds;
  keel::file_system files;
  auto const patience = [] { return milliseconds(1500); };
  {
    // A disk that syncs for longer than the other waits.
    struct slow_files : keel::file_system {
      void sync(keel::file_handle const& file, path const& name) override {
        if (name.extension() == ".safetensors") std::this_thread::sleep_for(milliseconds(1200));
        file_system::sync(file, name);
      }
    };
    slow_files slow;
    keel::rank_writer writer(slow, 1);
    keel::snapshot mine;
    mine.tensors["state"] = at::ones({3});
    writer.begin(directory, mine);
    auto const found = keel::detail::collect_rank_files(files, directory, 2, patience);
    writer.wait();
    CHECK(found.size() == 2);
    CHECK(found.count("state-1.safetensors") == 1);
    CHECK(names_in(directory) == std::set<std::string>{"optimizer-1.safetensors", "state-1.safetensors"});
  }
  std::string words;
  try {
    keel::detail::collect_rank_files(files, directory, 2, patience);
  } catch (keel::file_error const& thrown) {
    words = thrown.what();
  }
  INFO(words);
  CHECK(words.find("rank 1 has reported no progress for 1500 ms while writing its files") != std::string::npos);
}

TEST_CASE("a rank does nothing more, and fails by nothing, where rank 0 has given the save up") {
  scratch_directory const directory;
  keel::checkpoint_store store(directory);
  store.prepare();
  auto const opened = store.open(5, "a run", {}, "0123");
  CHECK(opened.directory.filename() == ".writing-step-000000005.0123");
  store.discard(opened);
  keel::rank_writer writer(keel::real_files(), 1);
  CHECK(!writer.can_write(opened.directory));
  CHECK_NOTHROW(writer.write(opened.directory, {}));
  CHECK(names_in(directory).empty());
  // What a kill leaves goes with the next start.
  keel::snapshot mine;
  mine.optimizer["moment"] = at::ones({3});
  writer.write(store.open(6, "a run", {}, "4567").directory, mine);
  CHECK(names_in(directory) == std::set<std::string>{".writing-step-000000006.4567"});
  store.prepare();
  CHECK(names_in(directory).empty());
}
