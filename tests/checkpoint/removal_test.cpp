// keel removes what it can prove to have written, and nothing else.
#include "../support.hpp"

#include <algorithm>
#include <keel/checkpoint/manifest.hpp>
#include <keel/checkpoint/verify.hpp>
#include <keel/checkpoint/read_checkpoint.hpp>

using namespace keel_test;
using namespace keel::literals;

namespace fs = std::filesystem;

namespace {

keel::snapshot content(double value, std::int64_t generation = 0, std::vector<std::int64_t> best = {}) {
  keel::snapshot made;
  made.model["weight"] = at::full({3}, value);
  made.state = {{"run", {{"value", value}}}};
  made.generation = generation;
  made.best = std::move(best);
  return made;
}

double value_of(keel::snapshot const& of) { return of.model.at("weight")[0].item<double>(); }

struct saves_often : keel::recipe<keel::checkpoint::every<2_steps>> {};

/// A clock on which every look is two seconds later, so that each update looks for the file `save`.
struct fast_clock : keel::time_source {
  mutable duration passed{};
  time_point now() const override { return time_point(passed += std::chrono::seconds(2)); }
};

void train(fs::path const& directory, std::int64_t updates) {
  auto const model = make_small();
  torch::optim::SGD optimizer(model->parameters(), 0.1);
  keel::trainer<saves_often> run{model, optimizer,
                                 quiet({.run_directory = directory, .updates = updates, .own_clock = std::make_shared<fast_clock>()})};
  run.fit(std::vector{make_pair_batch(1)}, mean_squared_error(model));
}

}  // namespace

TEST_CASE("a directory, a link or a long file named `save` in the run directory is data, and stays") {
  scratch_directory const directory;
  fs::create_directories(directory / "save/deep");
  write_file(directory / "save/deep/thesis.txt", "years of work");
  train(directory, 6);
  CHECK(read_file(directory / "save/deep/thesis.txt") == "years of work");
  fs::remove_all(directory / "save");

  write_file(directory / "elsewhere", "mine");
  fs::create_symlink(directory / "elsewhere", directory / "save");
  train(directory, 12);
  CHECK(fs::is_symlink(directory / "save"));
  CHECK(read_file(directory / "elsewhere") == "mine");
  fs::remove(directory / "save");

  write_file(directory / "save", std::string(100'000, 'x'));
  train(directory, 18);
  CHECK(fs::file_size(directory / "save") == 100'000);
}

TEST_CASE("a checkpoint that was moved here from another run stays, whatever its number") {
  scratch_directory const directory;
  auto const of = [](std::string run, double value, std::int64_t generation = 0) {
    auto made = content(value, generation);
    made.run = std::move(run);
    return made;
  };
  keel::checkpoint_store other(directory / "other");
  other.prepare();
  for (std::int64_t const update : {3, 5, 9}) other.save(update, of("theirs", 100.0), {.newest = 9});
  keel::checkpoint_store store(directory / "mine");
  store.prepare();
  for (std::int64_t update = 1; update < 5; ++update) store.save(update, of("mine", 1.0), {.newest = 2});
  CHECK(store.updates() == std::vector<std::int64_t>{3, 4});
  fs::remove_all(directory / "mine/step-000000003");
  for (std::string const name : {"step-000000003", "step-000000005", "step-000000009"}) fs::rename(directory / "other" / name, directory / "mine" / name);
  fs::create_directories(directory / "mine/step-000000002");
  write_file(directory / "mine/step-000000002/manifest.json", "{\"format\": 99}");
  for (std::int64_t const update : {5, 6, 7}) store.save(update, of("mine", 2.0, 1), {.newest = 1});
  store.remove_abandoned(7);
  CHECK(value_of(store.load(3)) == 100.0);
  CHECK(value_of(store.load(9)) == 100.0);
  CHECK(value_of(keel::read_checkpoint(directory / "mine/foreign-step-000000005")) == 100.0);
  CHECK(fs::exists(directory / "mine/step-000000002/manifest.json"));
  CHECK(store.updates() == std::vector<std::int64_t>{2, 3, 7, 9});
}

TEST_CASE("a manifest with numbers that no count has is rejected in words") {
  keel::manifest one;
  one.update = 7;
  std::string const whole = keel::manifest_text(one);
  CHECK(keel::parse_manifest(whole, "a test").update == 7);
  for (std::string const number : {"1e300", "18446744073709551615", "7.5", "\"7\"", "null"}) {
    std::string text = whole.substr(0, whole.rfind(",\n  \"xxh3\": \""));
    text.replace(text.find("\"update\": 7"), 11, "\"update\": " + number);
    text += ",\n  \"xxh3\": \"" + keel::checksum_of(text) + "\"\n}\n";
    try {
      keel::parse_manifest(text, "a test");
      FAIL_CHECK("accepted " << number);
    } catch (keel::checkpoint_error const& thrown) {
      CHECK(thrown.id() == "E05");
    }
  }
}

TEST_CASE("what a person put into a checkpoint's directory outlives the checkpoint") {
  scratch_directory const directory;
  keel::checkpoint_store store(directory);
  store.prepare();
  store.save(1, content(1.0), {.newest = 1});
  write_file(directory / "step-000000001/notes.txt", "the good one");
  fs::create_directories(directory / "step-000000001/plots");
  write_file(directory / "step-000000001/plots/loss.png", "a picture");
  auto const saved = store.save(2, content(2.0), {.newest = 1});
  CHECK(store.updates() == std::vector<std::int64_t>{2});
  CHECK(read_file(directory / "kept-step-000000001/notes.txt") == "the good one");
  CHECK(read_file(directory / "kept-step-000000001/plots/loss.png") == "a picture");
  CHECK_FALSE(fs::exists(directory / "kept-step-000000001/model.safetensors"));
  CHECK(saved.removal_failure.find("step-000000001 contained ") == 0);
  CHECK(saved.removal_failure.find("kept-step-000000001") != std::string::npos);
}

TEST_CASE("directories whose names only look like those of keel stay where they are") {
  scratch_directory const directory;
  std::vector<std::string> const names = {".writing-thesis", ".writing-removed-thesis", ".writing-replaced-thesis", "step-1", "steps",
                                          "damaged-step-000000001", "kept-step-000000001"};
  for (std::string const& name : names) {
    fs::create_directories(directory / name);
    write_file(directory / name / "file", name);
  }
  keel::checkpoint_store store(directory);
  store.prepare();
  for (std::int64_t update = 1; update < 6; ++update) store.save(update, content(1.0), {.newest = 1});
  store.prepare();
  for (std::string const& name : names) CHECK(read_file(directory / name / "file") == name);
}

TEST_CASE("a directory of keel's own temporary names loses its checkpoint files only") {
  scratch_directory const directory;
  keel::checkpoint_store store(directory);
  store.prepare();
  fs::create_directories(directory / ".writing-step-000000007");
  write_file(directory / ".writing-step-000000007/model.safetensors", "half");
  write_file(directory / ".writing-step-000000007/mine", "a file");
  store.prepare();
  CHECK_FALSE(fs::exists(directory / ".writing-step-000000007"));
  CHECK(read_file(directory / "kept-step-000000007/mine") == "a file");
}

TEST_CASE("a step above the newest goes only where its manifest proves that a rollback abandoned it") {
  scratch_directory const directory;
  keel::checkpoint_store store(directory);
  store.prepare();
  store.save(1, content(1.0), {});
  store.save(900, content(9.0), {});
  store.save(2, content(2.0), {});
  CHECK(store.updates() == std::vector<std::int64_t>{1, 2, 900});
  fs::create_directories(directory / "step-000000950");
  write_file(directory / "step-000000950/thesis.txt", "years of work");
  fs::copy(directory / "step-000000001", directory / "step-000000960");
  store.save(3, content(3.0, 1), {});
  CHECK(store.updates() == std::vector<std::int64_t>{2, 3, 950, 960});
  CHECK(read_file(directory / "step-000000950/thesis.txt") == "years of work");
}

TEST_CASE("a damaged checkpoint in the place of a new one steps aside, and two of one name do, too") {
  scratch_directory const directory;
  keel::checkpoint_store store(directory);
  store.prepare();
  for (int time = 0; time < 2; ++time) {
    store.save(5, content(1.0 + time), {});
    write_file(directory / "step-000000005/manifest.json", "damaged " + std::to_string(time));
  }
  store.save(5, content(3.0), {});
  CHECK(value_of(store.load(5)) == 3.0);
  CHECK(read_file(directory / "damaged-step-000000005/manifest.json") == "damaged 0");
  CHECK(read_file(directory / "damaged-step-000000005-2/manifest.json") == "damaged 1");
}

TEST_CASE("a link to a checkpoint that was moved to another disk is removed, and not what it leads to") {
  scratch_directory const directory;
  scratch_directory const elsewhere;
  keel::checkpoint_store store(directory);
  store.prepare();
  store.save(1, content(1.0), {.newest = 1});
  fs::rename(directory / "step-000000001", elsewhere / "step-000000001");
  fs::create_directory_symlink(elsewhere / "step-000000001", directory / "step-000000001");
  store.save(2, content(2.0), {.newest = 1});
  CHECK(store.updates() == std::vector<std::int64_t>{2});
  CHECK(keel::find_damage(elsewhere / "step-000000001").empty());
}

TEST_CASE("a requested checkpoint stands beside the scheduled one of its update, and is the newer one") {
  scratch_directory const directory;
  keel::checkpoint_store store(directory);
  store.prepare();
  auto scheduled = content(1.0);
  scheduled.attempt = 5;
  store.save(5, scheduled, {});
  auto requested = content(2.0);
  requested.attempt = 7;
  auto const saved = store.save(5, requested, {.requested = true});
  CHECK(saved.path == directory / "step-000000005-requested");
  CHECK(value_of(store.load(5)) == 1.0);
  CHECK(value_of(store.load({5, true})) == 2.0);
  CHECK(store.updates() == std::vector<std::int64_t>{5});
  CHECK((store.newest_first() == std::vector<keel::checkpoint_id>{{5, true}, {5, false}}));
  CHECK(store.is_requested({5, true}));
  CHECK_FALSE(store.is_requested(5));
  requested.attempt = 8;
  store.save(5, requested, {.requested = true});
  CHECK(store.all().size() == 2);
  // The cadence's own save of the update, by time, is newer than what was requested before it.
  scheduled.attempt = 9;
  store.save(5, scheduled, {});
  CHECK((store.all() == std::vector<keel::checkpoint_id>{{5, false}}));
}

TEST_CASE("what a kept checkpoint calls the best stays, also when a newer one is better") {
  scratch_directory const directory;
  keel::checkpoint_store store(directory);
  store.prepare();
  store.save(500, content(1.0, 0, {500}), {.newest = 2, .best = {500}});
  store.save(600, content(2.0, 0, {500}), {.newest = 2, .best = {500}});
  store.save(700, content(3.0, 0, {500}), {.newest = 2, .best = {500}});
  store.save(800, content(4.0, 0, {800}), {.newest = 2, .best = {800}});
  // A run that goes back to 700 has 500 for its best.
  CHECK(store.updates() == std::vector<std::int64_t>{500, 700, 800});
  store.save(900, content(5.0, 0, {800}), {.newest = 2, .best = {800}});
  CHECK(store.updates() == std::vector<std::int64_t>{800, 900});
}

TEST_CASE("verify names a checkpoint that was renamed, whatever stands before its number") {
  scratch_directory const directory;
  keel::checkpoint_store store(directory);
  store.prepare();
  store.save(5, content(1.0), {});
  store.save(5, content(2.0), {.requested = true});
  CHECK(keel::find_damage(directory / "step-000000005").empty());
  CHECK(keel::find_damage(directory / "step-000000005-requested").empty());
  CHECK(keel::find_damage((directory / "step-000000005").string() + "/").empty());
  fs::rename(directory / "step-000000005", directory / "step-000000006");
  auto const found = keel::find_damage(directory / "step-000000006");
  REQUIRE(found.size() == 1);
  CHECK(found[0].find("it was renamed from step-000000005") != std::string::npos);
  fs::rename(directory / "step-000000006", directory / "abandoned-step-000000006-2");
  CHECK(keel::find_damage(directory / "abandoned-step-000000006-2").size() == 1);
  fs::rename(directory / "abandoned-step-000000006-2", directory / "best");
  CHECK(keel::find_damage(directory / "best").empty());
}
