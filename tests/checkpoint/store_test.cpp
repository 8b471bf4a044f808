#include "../support.hpp"

#include <memory>
#include <torch/optim/rmsprop.h>
#include <keel/checkpoint/optimizer_state.hpp>

using namespace keel_test;

namespace {

/// Fails the Nth call that could fail on a real disk, and from then on every write, as a full one would.
struct faulty_files : keel::file_system {
  struct plan {
    int calls = 0;
    int fail_at = -1;
    int fail_from = 1 << 30;
    int code = ENOSPC;
  };
  explicit faulty_files(std::shared_ptr<plan> shared) : shared_(std::move(shared)) {}

  void make_directories(path const& name) override { next("make the directory", name), file_system::make_directories(name); }
  keel::file_handle create(path const& name) override { return next("create", name), file_system::create(name); }
  void write(keel::file_handle const& file, path const& name, char const* bytes, std::size_t count) override {
    if (will_fail()) file_system::write(file, name, bytes, count / 2);  // a short write, then the error
    next("write", name), file_system::write(file, name, bytes, count);
  }
  void sync(keel::file_handle const& file, path const& name) override { next("sync", name), file_system::sync(file, name); }
  std::string sync_directory(path const& name) override { return next("sync", name), file_system::sync_directory(name); }
  void rename(path const& from, path const& to) override { next("rename", from), file_system::rename(from, to); }
  void remove_file(path const& name) override { next("remove", name), file_system::remove_file(name); }
  bool remove_directory(path const& name) override { return next("remove", name), file_system::remove_directory(name); }

 private:
  bool will_fail() const { return shared_->calls + 1 == shared_->fail_at || shared_->calls + 1 >= shared_->fail_from; }
  void next(char const* doing, path const& name) {
    if (++shared_->calls == shared_->fail_at || shared_->calls >= shared_->fail_from) keel::detail::throw_file_error(doing, name, shared_->code);
  }
  std::shared_ptr<plan> shared_;
};

keel::snapshot content(double value) {
  keel::snapshot made;
  made.model["weight"] = at::full({3, 2}, value);
  made.optimizer["weight.exp_avg"] = at::full({3, 2}, value / 2);
  made.tensors["random.host"] = at::arange(5, at::kByte);
  made.state = {{"run", {{"value", value}}}};
  return made;
}

}  // namespace

TEST_CASE("a checkpoint comes back as it was saved") {
  scratch_directory const directory;
  keel::checkpoint_store store(directory);
  store.prepare();
  store.save(7, content(1.5), {});
  auto const loaded = store.load(7);
  CHECK(same_bits(loaded.model.at("weight"), content(1.5).model["weight"]));
  CHECK(same_bits(loaded.optimizer.at("weight.exp_avg"), content(1.5).optimizer["weight.exp_avg"]));
  CHECK(same_bits(loaded.tensors.at("random.host"), content(1.5).tensors["random.host"]));
  CHECK(loaded.state == content(1.5).state);
}

TEST_CASE("rotation keeps the newest, also where the number of digits grows") {
  scratch_directory const directory;
  for (std::int64_t keep = 1; keep <= 4; ++keep) {
    keel::checkpoint_store store(directory / std::to_string(keep));
    store.prepare();
    for (std::int64_t const update : {9998, 9999, 10000, 10001, 999999999, 1000000000}) store.save(update, content(1.0), {.newest = keep});
    auto const left = store.updates();
    REQUIRE(left.size() == static_cast<std::size_t>(keep));
    CHECK(left.back() == 1000000000);
    if (keep > 1) CHECK(left[left.size() - 2] == 999999999);
  }
}

TEST_CASE("disk_full_in_the_middle_of_a_save: whichever call fails, the error names the file and older checkpoints are whole") {
  for (int const code : {ENOSPC, EIO}) {
    int fail_at = 1;
    for (bool done = false; !done; ++fail_at) {
      scratch_directory const directory;
      auto const plan = std::make_shared<faulty_files::plan>();
      faulty_files files(plan);
      keel::checkpoint_store store(directory, files);
      store.prepare();
      store.save(1, content(1.0), {});
      store.save(2, content(2.0), {});
      plan->calls = 0;
      plan->fail_at = fail_at;
      plan->code = code;
      try {
        store.save(3, content(3.0), {});
        done = true;
      } catch (keel::file_error const& thrown) {
        CHECK(thrown.id() == "E02");
        CHECK(std::string(thrown.what()).find(directory.path().string()) != std::string::npos);
      }
      plan->fail_at = -1;
      keel::checkpoint_store after(directory);
      after.prepare();
      auto const left = after.updates();
      REQUIRE(left.size() >= 2);
      for (std::int64_t const update : left) {
        CHECK(same_bits(after.load(update).model.at("weight"), content(static_cast<double>(update)).model["weight"]));
      }
      for (auto const& entry : std::filesystem::directory_iterator(directory.path())) {
        CHECK(entry.path().filename().string().rfind("step-", 0) == 0);
      }
    }
    CHECK(fail_at > 20);  // every file's create, write and sync was among them
  }
}

TEST_CASE("every_bit: each bit of each file flipped, and each truncation, is found, and the file is named") {
  scratch_directory const directory;
  keel::checkpoint_store store(directory);
  store.prepare();
  keel::snapshot made = content(1.0);
  made.model["mask"] = at::ones({3}, at::kBool);
  store.save(1, made, {});
  for (std::string const name : {"model.safetensors", "optimizer.safetensors", "state.safetensors", "state.json", "manifest.json"}) {
    auto const file = store.path_of(1) / name;
    std::string const good = read_file(file);
    auto const refused = [&](std::string const& bad) {
      write_file(file, bad);
      try {
        store.load(1);
      } catch (keel::checkpoint_error const& thrown) {
        return thrown.id() == "E05" && std::string(thrown.what()).find(file.string()) != std::string::npos;
      }
      return false;
    };
    for (std::size_t position = 0; position < good.size(); ++position) {
      for (int bit = 0; bit < 8; ++bit) {
        std::string bad = good;
        bad[position] = static_cast<char>(bad[position] ^ (1 << bit));
        INFO(name << " bit " << bit << " of byte " << position);
        REQUIRE(refused(bad));
      }
    }
    for (std::size_t length = 0; length < good.size(); ++length) REQUIRE(refused(good.substr(0, length)));
    REQUIRE(refused(good + " "));
    write_file(file, good);
  }
  CHECK_NOTHROW(store.load(1));
}

TEST_CASE("damage names the tensor, and a manifest of another format says which it is") {
  scratch_directory const directory;
  keel::checkpoint_store store(directory);
  store.prepare();
  store.save(1, content(1.0), {});
  auto const words = [&] {
    try {
      store.load(1);
    } catch (keel::checkpoint_error const& thrown) {
      return std::string(thrown.what());
    }
    return std::string("accepted");
  };
  auto const file = store.path_of(1) / "model.safetensors";
  std::string bytes = read_file(file);
  bytes.back() = static_cast<char>(bytes.back() ^ 1);
  write_file(file, bytes);
  CHECK(words().find("the checksum of 'weight' differs") != std::string::npos);
  write_file(store.path_of(1) / "manifest.json", "{\"files\": {}, \"format\": 1}\n");
  CHECK(words().find("[E17]") == 0);
  CHECK(words().find("has format 1, but this version of keel reads formats 2 to 4") != std::string::npos);
}

TEST_CASE("saved again under the same number: a kill or an error between the renames loses no checkpoint") {
  for (int fail_at = 1; fail_at < 60; ++fail_at) {
    scratch_directory const directory;
    auto const plan = std::make_shared<faulty_files::plan>();
    faulty_files files(plan);
    keel::checkpoint_store store(directory, files);
    store.prepare();
    store.save(5, content(1.0), {.newest = 1});
    plan->calls = 0;
    plan->fail_at = fail_at;
    bool failed = false;
    try {
      store.save(5, content(2.0), {.newest = 1});
    } catch (keel::file_error const&) {
      failed = true;
    }
    plan->fail_at = -1;
    keel::checkpoint_store after(directory);
    after.prepare();
    REQUIRE(after.updates() == std::vector<std::int64_t>{5});
    double const value = after.load(5).model.at("weight")[0][0].item<double>();
    REQUIRE((value == 2.0 || (failed && value == 1.0)));
  }
  // A kill after the first rename leaves the one under its other name.
  scratch_directory const directory;
  keel::checkpoint_store store(directory);
  store.prepare();
  store.save(5, content(1.0), {});
  std::filesystem::rename(directory / "step-000000005", directory / ".writing-replaced-step-000000005");
  keel::checkpoint_store after(directory);
  after.prepare();
  CHECK(after.updates() == std::vector<std::int64_t>{5});
}

TEST_CASE("what a killed save left behind is no checkpoint and goes away") {
  scratch_directory const directory;
  keel::checkpoint_store store(directory);
  store.prepare();
  store.save(1, content(1.0), {});
  std::filesystem::create_directory(directory / ".writing-step-000000002");
  write_file(directory / ".writing-step-000000002/model.safetensors", "half");
  std::filesystem::create_directory(directory / "step-notes");
  CHECK(store.updates() == std::vector<std::int64_t>{1});
  store.prepare();
  CHECK_FALSE(std::filesystem::exists(directory / ".writing-step-000000002"));
  CHECK(std::filesystem::exists(directory / "step-notes"));
}

namespace {
struct recipe : keel::recipe<keel::checkpoint::every<keel::steps{1}, keel::checkpoint::keep<3>>> {};

void train(std::filesystem::path const& directory, std::int64_t updates) {
  auto const model = make_small();
  torch::optim::AdamW optimizer(model->parameters(), 0.1);
  keel::trainer<recipe> run{model, optimizer, quiet({.run_directory = directory, .updates = updates})};
  run.fit([](std::int64_t epoch) { return std::vector<pair_batch>{make_pair_batch(static_cast<std::uint64_t>(epoch))}; },
          mean_squared_error(model));
}
}  // namespace

TEST_CASE("a damaged newest checkpoint is passed over for the one before it, and the result is the same") {
  scratch_directory const directory;
  train(directory / "whole", 8);
  train(directory / "damaged", 5);
  write_file(directory / "damaged/checkpoints/step-000000005/model.safetensors", "not what was saved");
  train(directory / "damaged", 8);
  CHECK(read_file(directory / "whole/checkpoints/step-000000008/model.safetensors") ==
        read_file(directory / "damaged/checkpoints/step-000000008/model.safetensors"));
  CHECK(timeless_metrics(directory / "whole") == timeless_metrics(directory / "damaged"));
}

TEST_CASE("where no checkpoint is whole the run does not begin anew over it") {
  scratch_directory const directory;
  train(directory / "run", 2);
  for (auto const& entry : std::filesystem::directory_iterator(directory / "run/checkpoints")) write_file(entry.path() / "state.json", "{}");
  try {
    train(directory / "run", 4);
    FAIL("the damaged run was overwritten");
  } catch (keel::checkpoint_error const& thrown) {
    CHECK(thrown.id() == "E05");
  }
  CHECK(read_lines(directory / "run/metrics.jsonl").size() == 2);
}

namespace {
/// Trains on from update 3 to 8 on a disk that fails as planned.
void go_on(std::filesystem::path const& directory, std::shared_ptr<faulty_files::plan> const& plan, std::vector<std::int64_t>& failed) {
  auto const model = make_small();
  torch::optim::AdamW optimizer(model->parameters(), 0.1);
  keel::trainer<recipe> run{model, optimizer,
                            quiet({.run_directory = directory, .updates = 8, .own_files = std::make_shared<faulty_files>(plan)})};
  run.on([&](keel::event::checkpoint_failed const& e) { failed.push_back(e.update); });
  run.fit([](std::int64_t epoch) { return std::vector<pair_batch>{make_pair_batch(static_cast<std::uint64_t>(epoch))}; },
          mean_squared_error(model));
}
}  // namespace

TEST_CASE("disk_full_mid_save: whichever call fails, training goes on to the same end, and what failed is an event") {
  scratch_directory const whole;
  train(whole / "run", 8);
  int fail_at = 1;
  int heard = 0;
  int ended = 0;
  for (bool done = false; !done; ++fail_at) {
    INFO("call " << fail_at);
    scratch_directory const directory;
    train(directory / "run", 3);
    auto const plan = std::make_shared<faulty_files::plan>();
    plan->fail_at = fail_at;
    std::vector<std::int64_t> failed;
    try {
      go_on(directory / "run", plan, failed);
      done = plan->calls < fail_at;
      heard += failed.empty() ? 0 : 1;
      CHECK(timeless_metrics(directory / "run") == timeless_metrics(whole / "run"));
      CHECK(read_file(directory / "run/checkpoints/step-000000008/model.safetensors") ==
            read_file(whole / "run/checkpoints/step-000000008/model.safetensors"));
    } catch (keel::file_error const& thrown) {
      // Before the first update, or in the last save: nobody could go on.
      CHECK(thrown.id() == "E02");
      ++ended;
    }
    keel::checkpoint_store store(directory / "run/checkpoints");
    auto const left = store.updates();
    REQUIRE(left.size() >= 3);
    for (std::int64_t const update : left) CHECK_NOTHROW(store.load(update));
  }
  CHECK(fail_at > 100);
  CHECK(heard > 60);
  CHECK(ended < 40);
}

TEST_CASE("a disk that stays full ends the run at the third save in a row that fails, and the checkpoints from before are whole") {
  scratch_directory const directory;
  train(directory / "run", 3);
  auto const plan = std::make_shared<faulty_files::plan>();
  plan->fail_from = 30;
  std::vector<std::int64_t> failed;
  CHECK_THROWS_AS(go_on(directory / "run", plan, failed), keel::file_error);
  REQUIRE(failed.size() == 3);
  CHECK(failed[2] - failed[0] == 2);
  keel::checkpoint_store store(directory / "run/checkpoints");
  REQUIRE(store.updates().size() == 3);
  for (std::int64_t const update : store.updates()) CHECK_NOTHROW(store.load(update));
}

TEST_CASE("a run that would overwrite another one's directory is rejected") {
  scratch_directory const directory;
  train(directory / "run", 2);
  auto const model = make_small();
  torch::optim::AdamW optimizer(model->parameters(), 0.1);
  auto const data = std::vector<pair_batch>{make_pair_batch(1)};
  keel::trainer<recipe> anew{model, optimizer, quiet({.run_directory = directory / "run", .updates = 2, .resume = false})};
  CHECK_THROWS_AS(anew.fit(data, mean_squared_error(model)), keel::file_error);
}

TEST_CASE("every known optimizer comes back with its moments and options") {
  auto const try_one = [](auto make) {
    auto const source = make_small(1);
    auto const target = make_small(2);
    auto from = make(source);
    auto to = make(target);
    for (std::uint64_t i = 0; i < 3; ++i) {
      from->zero_grad();
      mean_squared_error(source)(make_pair_batch(i)).backward();
      from->step();
    }
    from->param_groups()[0].options().set_lr(0.0123);
    nlohmann::json object;
    keel::tensor_map tensors;
    keel::save_optimizer(*from, keel::collect_parameters(*source, *from), object, tensors);
    keel::load_optimizer(*to, keel::collect_parameters(*target, *to), object, tensors, "a test");
    CHECK(same_bits(image_of(*target, *to), image_of(*source, *from)));
    CHECK(to->param_groups()[0].options().get_lr() == 0.0123);
  };
  using namespace torch::optim;
  try_one([](auto const& m) { return std::make_unique<AdamW>(m->parameters(), AdamWOptions(0.1).amsgrad(true)); });
  try_one([](auto const& m) { return std::make_unique<Adam>(m->parameters(), AdamOptions(0.1).betas({0.8, 0.9})); });
  try_one([](auto const& m) { return std::make_unique<SGD>(m->parameters(), SGDOptions(0.1).momentum(0.9)); });
  try_one([](auto const& m) { return std::make_unique<RMSprop>(m->parameters(), RMSpropOptions(0.1).momentum(0.5).centered(true)); });
  try_one([](auto const& m) { return std::make_unique<Adagrad>(m->parameters(), AdagradOptions(0.1)); });
}
