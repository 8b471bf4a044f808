// Saves beside training.
#include "../support.hpp"

#include <condition_variable>
#include <mutex>
#include <thread>
#include <keel/checkpoint/optimizer_state.hpp>
#include <keel/checkpoint/read_checkpoint.hpp>

using namespace keel_test;
using namespace keel::literals;

namespace {

namespace checkpoint = keel::checkpoint;

/// A disk that a test holds and lets go, and that counts who writes.
struct held_disk {
  std::mutex mutex;
  std::condition_variable wake;
  bool held = false;
  int writing = 0;
  int most_writing = 0;
  int fail_syncs = 0;

  void hold() {
    std::lock_guard<std::mutex> const lock(mutex);
    held = true;
  }
  void let_go() {
    {
      std::lock_guard<std::mutex> const lock(mutex);
      held = false;
    }
    wake.notify_all();
  }
};

struct held_files : keel::file_system {
  explicit held_files(std::shared_ptr<held_disk> disk = nullptr) : disk_(std::move(disk)) {}
  keel::file_handle create(path const& name) override {
    if (disk_ && name.filename() == "model.safetensors") {
      std::unique_lock<std::mutex> lock(disk_->mutex);
      disk_->most_writing = std::max(disk_->most_writing, ++disk_->writing);
      disk_->wake.wait(lock, [this] { return !disk_->held; });
      --disk_->writing;
    }
    return file_system::create(name);
  }
  std::string sync_directory(path const& name) override {
    if (disk_ && name.filename() == "checkpoints") {
      std::lock_guard<std::mutex> const lock(disk_->mutex);
      if (disk_->fail_syncs > 0) {
        --disk_->fail_syncs;
        keel::detail::throw_file_error("sync", name, EIO);
      }
    }
    return file_system::sync_directory(name);
  }

 private:
  std::shared_ptr<held_disk> disk_;
};

template <class... Options>
struct saves : keel::recipe<checkpoint::every<1_steps, checkpoint::keep<8>, checkpoint::asynchronous, Options...>, keel::determinism::seeded<3>> {};

/// A run in its parts, so that a test can do something between two updates.
template <class Recipe>
struct parts {
  explicit parts(std::filesystem::path const& directory, std::shared_ptr<held_disk> disk = nullptr)
      : model((keel::seed<Recipe>(), std::make_shared<small_module>(0.2))),
        optimizer(model->parameters(), 0.05),
        run(model, optimizer, quiet({.run_directory = directory, .own_files = std::make_shared<held_files>(std::move(disk))})) {}
  void update() {
    run.step(make_pair_batch(static_cast<std::uint64_t>(count++)), mean_squared_error(model));
  }
  std::shared_ptr<small_module> model;
  torch::optim::AdamW optimizer;
  keel::trainer<Recipe> run;
  int count = 0;
};

}  // namespace

TEST_CASE("async_save_holds_the_old_values: every tensor is changed right after save returns, and the file has the bytes from before") {
  scratch_directory const directory;
  auto const disk = std::make_shared<held_disk>();
  parts<saves<>> p(directory / "run", disk);
  p.update();
  p.update();
  p.run.wait_for_save();
  disk->hold();
  auto const parameters = copies_of(p.model->parameters());
  auto const moments = image_of(*p.model, p.optimizer);
  p.run.save();
  {
    at::NoGradGuard const no_grad;
    for (at::Tensor const& one : p.model->parameters()) one.detach().fill_(7.0);
    nlohmann::json ignored;
    keel::tensor_map live;
    keel::save_optimizer(p.optimizer, keel::collect_parameters(*p.model, p.optimizer), ignored, live);
    for (auto const& [name, tensor] : live) tensor.fill_(8.0);
  }
  at::rand({5});
  disk->let_go();
  p.run.wait_for_save();
  keel::checkpoint_store store(directory / "run/checkpoints");
  auto const saved = store.load(2);
  std::size_t i = 0;
  for (auto const& item : p.model->named_parameters()) CHECK(same_bits(saved.model.at(item.key()), parameters[i++]));
  for (auto const& [name, tensor] : moments.moments) CHECK(same_bits(saved.optimizer.at(name), tensor));
  CHECK(saved.state["run"]["step"]["updates"] == 2);
}

TEST_CASE("torn_async_save: step and content agree, and the name is the content's step, however slow the disk is") {
  scratch_directory const directory;
  scratch_directory const slowly;
  std::map<std::int64_t, std::vector<at::Tensor>> expected;
  {
    parts<saves<>> p(directory / "run");
    for (int i = 0; i < 12; ++i) {
      p.update();
      expected[p.run.updates()] = copies_of(p.model->parameters());
    }
  }
  auto const disk = std::make_shared<held_disk>();
  parts<saves<>> p(slowly / "run", disk);
  // The disk waits until the next update has changed everything.
  p.run.on([&](keel::event::update_end const&) { disk->let_go(); });
  for (int i = 0; i < 6; ++i) {
    disk->let_go();
    p.update();
    p.run.wait_for_save();
    disk->hold();
    p.run.save();
    p.update();
    disk->let_go();
  }
  p.run.wait_for_save();
  keel::checkpoint_store store(slowly / "run/checkpoints");
  REQUIRE(store.updates().size() == 8);
  for (std::int64_t const update : store.updates()) {
    auto const saved = store.load(update);
    CHECK(saved.state["run"]["step"]["updates"] == update);
    CHECK(keel::read_manifest(store.path_of(update)).update == update);
    std::size_t i = 0;
    for (auto const& item : p.model->named_parameters()) CHECK(same_bits(saved.model.at(item.key()), expected[update][i++]));
  }
  // A directory that somebody renamed does not pass for another step.
  std::filesystem::rename(store.path_of(7), store.path_of(77));
  CHECK_THROWS_AS(store.load(77), keel::checkpoint_error);
}

TEST_CASE("a conjugated or negated view is copied as itself, and not as what it views") {
  at::Tensor const a = at::randn({4}, at::kComplexFloat);
  keel::snapshot live;
  live.tensors["a"] = a;
  live.tensors["b"] = a.conj();
  live.tensors["c"] = at::imag(a);
  live.tensors["d"] = at::imag(a.conj());
  keel::snapshot_buffers buffers;
  auto const held = buffers.copy(live);
  for (auto const& [name, tensor] : live.tensors) CHECK(at::equal(held.tensors.at(name).resolve_conj().resolve_neg(), tensor.resolve_conj().resolve_neg()));
}

TEST_CASE("stale_buffers: successive checkpoints differ in every moment, also where the tensors moved between saves") {
  scratch_directory const directory;
  parts<saves<>> p(directory / "run");
  p.update();
  p.update();
  p.run.wait_for_save();
  {
    // Other memory, the same values: what a save remembers of addresses would now be wrong.
    at::NoGradGuard const no_grad;
    for (at::Tensor& one : p.model->parameters()) one.set_data(one.detach().clone());
  }
  p.update();
  p.run.wait_for_save();
  keel::checkpoint_store store(directory / "run/checkpoints");
  auto const before = store.load(2);
  auto const after = store.load(3);
  for (auto const& [name, tensor] : before.optimizer) CHECK_FALSE(same_bits(tensor, after.optimizer.at(name)));
  for (auto const& [name, tensor] : before.model) CHECK_FALSE(same_bits(tensor, after.model.at(name)));
  for (auto const& item : p.model->named_parameters()) CHECK(same_bits(after.model.at(item.key()), item.value()));
}

TEST_CASE("a slow disk never makes two saves overlap: the next one waits, or is left out where the policy says so") {
  scratch_directory const directory;
  auto const disk = std::make_shared<held_disk>();
  {
    parts<saves<>> p(directory / "waits", disk);
    disk->hold();
    p.update();
    std::thread release([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      disk->let_go();
    });
    p.update();
    release.join();
    for (int i = 0; i < 4; ++i) p.update();
    p.run.wait_for_save();
    CHECK(keel::checkpoint_store(directory / "waits/checkpoints").updates() == std::vector<std::int64_t>{1, 2, 3, 4, 5, 6});
  }
  {
    parts<saves<checkpoint::drop_when_busy>> p(directory / "drops", disk);
    disk->hold();
    for (int i = 0; i < 4; ++i) p.update();
    disk->let_go();
    p.run.wait_for_save();
    p.update();
    p.run.wait_for_save();
    CHECK(keel::checkpoint_store(directory / "drops/checkpoints").updates() == std::vector<std::int64_t>{1, 5});
    std::string const events = read_file(directory / "drops/events.jsonl");
    CHECK(events.find("\"checkpoint_dropped\",\"update\":3") != std::string::npos);
  }
  CHECK(disk->most_writing == 1);
}

TEST_CASE("a save that fails beside training is heard of at the next step, by name, and training goes on") {
  scratch_directory const directory;
  auto const disk = std::make_shared<held_disk>();
  parts<saves<>> p(directory / "run", disk);
  std::vector<std::string> heard;
  p.run.on([&](keel::event::checkpoint_failed const& e) { heard.push_back(std::to_string(e.update) + " " + e.message); });
  p.update();
  p.run.wait_for_save();
  disk->fail_syncs = 1;
  p.update();
  for (int i = 0; i < 1000 && heard.empty(); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    p.update();
  }
  REQUIRE(heard.size() == 1);
  CHECK(heard[0].find("2 [E02] cannot sync " + (directory / "run/checkpoints").string()) == 0);
  p.run.wait_for_save();
  keel::checkpoint_store store(directory / "run/checkpoints");
  CHECK(store.updates().back() > 2);
  for (std::int64_t const update : store.updates()) CHECK_NOTHROW(store.load(update));
  CHECK(read_file(directory / "run/events.jsonl").find("\"checkpoint_failed\",\"update\":2") != std::string::npos);
}

TEST_CASE("the third save in a row that fails beside training ends the run with its error") {
  scratch_directory const directory;
  auto const disk = std::make_shared<held_disk>();
  parts<saves<>> p(directory / "run", disk);
  p.update();
  p.run.wait_for_save();
  disk->fail_syncs = 100;
  int updates = 0;
  try {
    for (; updates < 100; ++updates) p.update(), p.run.wait_for_save();
    FAIL("nobody heard of a hundred failed saves");
  } catch (keel::file_error const& thrown) {
    CHECK(thrown.id() == "E02");
    CHECK(updates == 2);
  }
}

TEST_CASE("loading_beside_a_save: who reads the directory finds the one from before, and a rollback, the end of a run and the end of a trainer wait") {
  scratch_directory const directory;
  auto const disk = std::make_shared<held_disk>();
  auto const let_go_soon = [&] {
    return std::jthread([disk] {
      std::this_thread::sleep_for(std::chrono::milliseconds(30));
      disk->let_go();
    });
  };
  {
    parts<saves<>> p(directory / "run", disk);
    p.update();
    p.run.wait_for_save();
    disk->hold();
    p.update();
    keel::checkpoint_store reader(directory / "run/checkpoints");
    CHECK(reader.updates() == std::vector<std::int64_t>{1});
    CHECK_NOTHROW(reader.load(1));
    auto const soon = let_go_soon();
    // The trainer ends here.
  }
  CHECK(keel::checkpoint_store(directory / "run/checkpoints").updates() == std::vector<std::int64_t>{1, 2});
  CHECK_NOTHROW(keel::checkpoint_store(directory / "run/checkpoints").load(2));

  struct goes_back : keel::recipe<checkpoint::every<2_steps, checkpoint::keep<4>, checkpoint::asynchronous>, keel::nonfinite::rollback<1>,
                                  keel::determinism::seeded<3>> {};
  parts<goes_back> p(directory / "back", disk);
  std::jthread soon;
  std::int64_t to = -1;
  p.run.on([&](keel::event::rolled_back const& e) { to = e.to; });
  std::vector<pair_batch> data;
  for (std::uint64_t i = 0; i < 40; ++i) data.push_back(make_pair_batch(i));
  bool bad = false;
  p.run.on([&](keel::event::update_end const& e) {
    if (e.update == 5 && e.result.is<keel::result::updated>() && to < 0) bad = true;
    if (e.update == 12) p.run.request_stop();
    if (e.update == 4 || e.update == 11) {
      // What is saved now is still being written when the run wants to go back, and when it ends.
      disk->hold();
      soon = let_go_soon();
    }
  });
  auto const loss_of = mean_squared_error(p.model);
  p.run.fit(data, [&](pair_batch const& batch) { return loss_of(batch) * (std::exchange(bad, false) ? NAN : 1.0); });
  CHECK(to == 4);
  keel::checkpoint_store store(directory / "back/checkpoints");
  CHECK(store.updates().back() == 12);
  for (std::int64_t const update : store.updates()) CHECK_NOTHROW(store.load(update));
}

TEST_CASE("parameters that are not finite are no checkpoint either when it is written beside training") {
  scratch_directory const directory;
  parts<saves<>> p(directory / "run");
  p.update();
  p.run.wait_for_save();
  {
    at::NoGradGuard const no_grad;
    p.model->second->bias.fill_(INFINITY);
  }
  p.run.save();
  try {
    p.run.wait_for_save();
    FAIL("a checkpoint of infinity");
  } catch (keel::nonfinite_error const& thrown) {
    CHECK(thrown.id() == "N13");
    CHECK(std::string(thrown.what()).find("second.bias") != std::string::npos);
  }
  CHECK(keel::checkpoint_store(directory / "run/checkpoints").updates() == std::vector<std::int64_t>{1});
}

TEST_CASE("asynchronous saves change no bit of a run, stopped after every window or not") {
  auto const go = []<class Recipe>(Recipe*, std::filesystem::path const& directory, int stop_after) {
    keel::seed<Recipe>();
    auto const model = std::make_shared<small_module>(0.3);
    torch::optim::AdamW optimizer(model->parameters(), 0.05);
    keel::trainer<Recipe> run{model, optimizer, quiet({.run_directory = directory, .updates = 9})};
    int windows = 0;
    run.on([&](keel::event::update_end const&) {
      if (++windows == stop_after) run.request_stop();
    });
    run.fit([](std::int64_t epoch) { return std::vector<pair_batch>{make_pair_batch(static_cast<std::uint64_t>(epoch)), make_pair_batch(99)}; },
            mean_squared_error(model));
    return copies_of(model->parameters());
  };
  struct beside : saves<> {};
  struct in_front : keel::recipe<checkpoint::every<1_steps>, keel::determinism::seeded<3>> {};
  scratch_directory const directory;
  auto const expected = go(static_cast<in_front*>(nullptr), directory / "whole", 1 << 20);
  CHECK(same_bits(go(static_cast<beside*>(nullptr), directory / "beside", 1 << 20), expected));
  std::vector<at::Tensor> last;
  for (int i = 0; i < 9; ++i) last = go(static_cast<beside*>(nullptr), directory / "stopped", 1);
  CHECK(same_bits(last, expected));
}

TEST_CASE("a disk that fails while young_daly measures is not tried again with every update") {
  scratch_directory const directory;
  struct recipe : keel::recipe<checkpoint::young_daly<checkpoint::mean_time_between_failures<24_h>>> {};
  auto const disk = std::make_shared<held_disk>();
  auto const model = make_small();
  torch::optim::AdamW optimizer(model->parameters(), 0.05);
  keel::trainer<recipe> run{model, optimizer, quiet({.run_directory = directory / "run", .own_files = std::make_shared<held_files>(disk)})};
  int heard = 0;
  run.on([&](keel::event::checkpoint_failed const&) { ++heard; });
  disk->fail_syncs = 100;
  for (std::uint64_t i = 0; i < 20; ++i) run.step(make_pair_batch(i), mean_squared_error(model));
  CHECK(heard == 1);
}
