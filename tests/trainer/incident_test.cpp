// The incidents of a run directory, and the update that they show again.
#include "../support.hpp"
#include <keel/checkpoint/read_checkpoint.hpp>

using namespace keel_test;
using namespace keel::literals;

namespace {

namespace fs = std::filesystem;
using keel::nonfinite_place;
using skips = keel::nonfinite::skip<100>;

struct keeps
    : keel::recipe<skips, keel::accumulate<2>, keel::clip::global_norm<0.5>, keel::ema<0.9>, keel::incident::keep<2>> {};
struct keeps_in_low_precision
    : keel::recipe<skips, keel::precision::bf16, keel::incident::keep<>, keel::checkpoint::every<2_steps>> {};
struct keeps_and_ends : keel::recipe<keel::incident::keep<>> {};

/// A small model with dropout, an optimizer and a trainer.
template <class Recipe, class Environment = keel::environment>
struct small_run {
  explicit small_run(keel::trainer_options options, std::uint64_t seed = 5)
      : model(make_small(seed, 0.3)), optimizer(model->parameters(), 1e-2), run{*model, optimizer, quiet(std::move(options))} {}
  auto loss() const { return mean_squared_error(model); }
  std::shared_ptr<small_module> model;
  keel::adamw optimizer;
  keel::trainer<Recipe, Environment> run;
};

std::vector<pair_batch> batches_with(std::vector<std::size_t> const& spoiled, std::size_t count = 24) {
  std::vector<pair_batch> batches;
  for (std::size_t i = 0; i < count; ++i) {
    batches.push_back(make_pair_batch(i));
    if (std::find(spoiled.begin(), spoiled.end(), i) != spoiled.end()) batches.back().first[static_cast<std::int64_t>(i % 8)][1] = NAN;
  }
  return batches;
}

std::vector<fs::path> incidents_of(fs::path const& directory) {
  std::vector<fs::path> found;
  if (!fs::exists(directory / "incidents")) return found;
  for (auto const& one : fs::directory_iterator(directory / "incidents")) found.push_back(one.path());
  std::sort(found.begin(), found.end());
  return found;
}

}  // namespace

TEST_CASE("an incident is in the record, and what shows it again in the run directory") {
  scratch_directory directory;
  small_run<keeps> small({.run_directory = directory.path(), .epochs = 1});
  small.run.fit(batches_with({9, 16, 21}), small.loss());
  auto const events = events_of(directory.path(), "incident");
  REQUIRE(events.size() == 2);  // the first two of this process
  CHECK(events[0]["origin"]["place"] == "batch");
  CHECK(events[0]["origin"]["rows"] == nlohmann::json({1}));
  CHECK(events[0]["origin"]["micro_batch"] == 1);
  auto const all = incidents_of(directory.path());
  REQUIRE(all.size() == 2);
  CHECK(all[0].filename() == "attempt-000000005");
  CHECK(events[0]["path"] == all[0].string());
  auto const words = nlohmann::json::parse(std::ifstream(all[0] / "incident.json"));
  CHECK(words["update"] == 4);
  CHECK(words["position"] == 8);
  CHECK(words["loss"] == "nan");
  CHECK(read_lines(all[0] / "records.jsonl").size() == 4);
  CHECK_NOTHROW(keel::read_checkpoint(all[0]));
}

TEST_CASE("a replay has the bits of the update, in another process's trainer too, and leaves the run as it was") {
  scratch_directory directory;
  auto const batches = batches_with({9, 16});
  {
    small_run<keeps> small({.run_directory = directory.path(), .epochs = 1});
    small.run.fit(batches, small.loss());
  }
  auto const incident = incidents_of(directory.path()).at(0);
  // Other parameters, other random numbers.
  scratch_directory of_other;
  small_run<keeps> other({.run_directory = of_other.path(), .epochs = 1}, 77);
  other.run.fit(batches_with({}), other.loss());
  auto const before = copies_of(other.model->parameters());
  auto const moments = image_of(*other.model, other.optimizer);
  auto const random = keel::libtorch::random_state(at::kCPU);
  for (int i = 0; i < 2; ++i) {
    keel::replay_result const again = other.run.replay(incident, other.loss());
    CHECK(again.is_bitwise_equal);
    CHECK(again.losses.size() == 2);
    CHECK(std::isnan(again.losses[1]));
    CHECK(again.origin.rows == std::vector<std::int64_t>{1});
    CHECK(!again.is_finite());
  }
  CHECK(same_bits(before, copies_of(other.model->parameters())));
  CHECK(same_bits(moments, image_of(*other.model, other.optimizer)));
  CHECK(same_bits(random, keel::libtorch::random_state(at::kCPU)));
  CHECK(other.run.updates() == 12);
  auto const without = other.run.replay(incident, other.loss(), {.without_rows = {1}});
  CHECK(without.is_finite());
  CHECK(!without.is_bitwise_equal);
  CHECK(other.run.replay(incident, other.loss(), {.micro_batch = 0}).is_finite());
  CHECK(!other.run.replay(incident, other.loss(), {.micro_batch = 1}).is_finite());
}

TEST_CASE("a run goes on after a replay as it would have without it") {
  auto const train = [](bool replays) {
    scratch_directory directory;
    small_run<keeps> small({.run_directory = directory.path()});
    auto const batches = batches_with({5});
    for (std::size_t i = 0; i < batches.size(); ++i) {
      small.run.step(batches[i], small.loss());
      if (replays && i == 11) CHECK(small.run.replay(incidents_of(directory.path()).at(0), small.loss()).is_bitwise_equal);
    }
    auto all = copies_of(small.model->parameters());
    {
      auto const averaged = small.run.averaged();
      for (at::Tensor const& one : small.model->parameters()) all.push_back(one.detach().clone());
    }
    small.run.finish();
    return std::make_pair(all, timeless_metrics(directory.path()));
  };
  auto const a = train(false);
  auto const b = train(true);
  CHECK(same_bits(a.first, b.first));
  CHECK(a.second == b.second);
}

TEST_CASE("a replay gives the run its own learning rate back, whatever it is and whatever the options accept") {
  scratch_directory directory;
  {
    small_run<keeps> small({.run_directory = directory.path(), .epochs = 1});
    small.run.fit(batches_with({9}), small.loss());
  }
  auto const incident = incidents_of(directory.path()).at(0);
  for (bool const accepts : {false, true}) {
    scratch_directory of_other;
    small_run<keeps> other({.run_directory = of_other.path(),
                            .accept = accepts ? std::vector<std::string>{"lr"} : std::vector<std::string>{},
                            .accept_changed_recipe = accepts});
    other.optimizer.param_groups()[0].options().set_lr(0.5);
    other.run.step(make_pair_batch(0), other.loss());
    other.run.step(make_pair_batch(1), other.loss());
    CHECK(other.run.replay(incident, other.loss()).is_bitwise_equal);
    CHECK(other.optimizer.param_groups()[0].options().get_lr() == 0.5);
    CHECK(other.run.learning_rate() == 0.5);
    CHECK(other.run.updates() == 1);
  }
}

TEST_CASE("narrowing names what makes the update finite") {
  scratch_directory directory;
  small_run<keeps> small({.run_directory = directory.path(), .epochs = 1});
  small.run.fit(batches_with({9}), small.loss());
  keel::narrow_down_result const found = small.run.narrow_down(incidents_of(directory.path()).at(0), small.loss());
  auto const cures = found.finite_experiments();
  auto const cured_by = [&](char const* one) { return std::find(cures.begin(), cures.end(), one) != cures.end(); };
  CHECK(cured_by("without row 1 of each micro-batch"));
  CHECK(cured_by("micro-batch 0 alone"));
  CHECK(cured_by("synthetic inputs"));
  CHECK(!cured_by("micro-batch 1 alone"));
  CHECK(!cured_by("one thread"));
  CHECK(!cured_by("unchanged"));
  CHECK(found.table().find("unchanged") != std::string::npos);
}

TEST_CASE("low precision is found by an experiment in fp32") {
  scratch_directory directory;
  small_run<keeps_in_low_precision> small({.run_directory = directory.path()});
  // What float can hold and bfloat16 cannot is no value, so the mechanism overflows where only autocast goes.
  auto const loss_of = [&](pair_batch const& batch) {
    at::Tensor const out = small.model->forward(batch.first);
    at::Tensor const loss = at::mse_loss(out.to(at::kFloat), batch.second);
    return out.scalar_type() == at::kBFloat16 ? loss + at::log(loss.detach() * 0.0) : loss;
  };
  small.run.step(make_pair_batch(1), loss_of);
  auto const cures = small.run.narrow_down(incidents_of(directory.path()).at(0), loss_of).finite_experiments();
  CHECK(cures == std::vector<std::string>{"fp32"});
}

TEST_CASE("a run begins where an incident was, with another recipe's number") {
  scratch_directory directory;
  scratch_directory next;
  {
    small_run<keeps_in_low_precision> small({.run_directory = directory.path(), .epochs = 1});
    small.run.fit(batches_with({9}), small.loss());
  }
  auto const incident = incidents_of(directory.path()).at(0);
  small_run<keeps_in_low_precision> again({.run_directory = next.path(), .epochs = 1, .resume_from = incident}, 8);
  CHECK(again.run.resume());
  CHECK(again.run.updates() == 9);
  CHECK(again.run.cursor().position == 9);
  again.run.fit(batches_with({}), again.loss());
  CHECK(again.run.updates() == 24);
}

TEST_CASE("the run ends as its policy says, and the incident is there") {
  scratch_directory directory;
  small_run<keeps_and_ends> small({.run_directory = directory.path(), .epochs = 1});
  CHECK_THROWS_AS(small.run.fit(batches_with({3}), small.loss()), keel::nonfinite_error);
  auto const all = incidents_of(directory.path());
  REQUIRE(all.size() == 1);
  CHECK(small.run.replay(all[0], small.loss()).is_bitwise_equal);
}

TEST_CASE("of the incidents of several processes the newest stay") {
  scratch_directory directory;
  for (int process = 0; process < 3; ++process) {
    small_run<keeps> small({.run_directory = directory.path()});
    // Without checkpoints each process begins a new run in the directory: of a later attempt the name is another one.
    auto const skip = static_cast<std::size_t>(2 * process + 1);
    if (process > 0) fs::remove(directory.path() / "metrics.jsonl");
    for (auto const& batch : batches_with({skip, skip + 6}, 12)) small.run.step(batch, small.loss());
    small.run.finish();
    CHECK(incidents_of(directory.path()).size() == 2);
  }
  CHECK(incidents_of(directory.path()).back().filename() == "attempt-000000006");
}

TEST_CASE("an older incident goes without what a person put beside it, and a link to a moved one without what it leads to") {
  scratch_directory const directory, elsewhere;
  auto const train = [&](std::size_t skip) {
    small_run<keeps> small({.run_directory = directory.path()});
    fs::remove(directory.path() / "metrics.jsonl");
    for (auto const& batch : batches_with({skip, skip + 4}, 12)) small.run.step(batch, small.loss());
    small.run.finish();
  };
  train(1);
  auto const incidents = directory.path() / "incidents";
  auto const first = incidents / "attempt-000000001", second = incidents / "attempt-000000003";
  REQUIRE(fs::exists(first / "incident.json"));
  REQUIRE(fs::exists(second / "incident.json"));
  // One is moved to another disk, with a notebook; the other has notes, a folder, and a copy beside it.
  fs::copy(first, elsewhere.path() / "moved", fs::copy_options::recursive);
  write_file(elsewhere / "moved/notebook.txt", "months of work");
  fs::remove_all(first);
  fs::create_directory_symlink(elsewhere.path() / "moved", first);
  write_file(second / "notes.txt", "why");
  fs::create_directories(second / "plots");
  write_file(second / "plots/1.svg", "<svg/>");
  fs::copy(second, incidents / "attempt-000000003-copy", fs::copy_options::recursive);
  auto const entries = [](fs::path const& folder) {
    return std::distance(fs::directory_iterator(folder), fs::directory_iterator());
  };
  auto const moved = entries(elsewhere.path() / "moved"), copied = entries(incidents / "attempt-000000003-copy");
  train(7);
  CHECK(entries(elsewhere.path() / "moved") == moved);
  CHECK(read_file(elsewhere / "moved/notebook.txt") == "months of work");
  CHECK(!fs::is_symlink(first));
  CHECK(entries(incidents / "attempt-000000003-copy") == copied);
  CHECK(!fs::exists(second));
  CHECK(read_file(incidents / "kept-attempt-000000003/notes.txt") == "why");
  CHECK(read_file(incidents / "kept-attempt-000000003/plots/1.svg") == "<svg/>");
  CHECK(entries(incidents / "kept-attempt-000000003") == 2);
  CHECK(fs::exists(incidents / "attempt-000000004/incident.json"));
  CHECK(fs::exists(incidents / "attempt-000000006/incident.json"));
  // Both are events, and none says that it was not kept.
  for (auto const& event : events_of(directory.path(), "incident")) CHECK(event.contains("path"));
}

namespace {

/// Of a user; it says how it is written.
struct sentence_batch {
  at::Tensor ids;
  std::vector<std::string> texts;
  std::int64_t rows() const { return ids.size(0); }
  sentence_batch slice(std::int64_t begin, std::int64_t end) const {
    return {ids.slice(0, begin, end), {texts.begin() + begin, texts.begin() + end}};
  }
  void visit(auto& archive) {
    archive("ids", ids);
    archive("texts", texts);
  }
};
/// And one that does not.
struct silent_batch {
  at::Tensor ids;
  std::int64_t rows() const { return ids.size(0); }
  silent_batch slice(std::int64_t begin, std::int64_t end) const { return {ids.slice(0, begin, end)}; }
};

struct keeps_alone : keel::recipe<skips, keel::incident::keep<>> {};

}  // namespace

TEST_CASE("a batch of a user's type is written as it says") {
  scratch_directory directory;
  small_run<keeps_alone> small({.run_directory = directory.path()});
  sentence_batch const batch{make_pair_batch(1).first, {"a", "b", "c", "d", "e", "f", "g", "h"}};
  auto const loss_of = [&](sentence_batch const& of) {
    at::Tensor const out = small.model->forward(of.ids).squeeze(1);
    at::Tensor factor = at::ones({of.rows()});
    for (std::size_t i = 0; i < of.texts.size(); ++i) {
      if (of.texts[i] == "e") factor[static_cast<std::int64_t>(i)] = 0.0;
    }
    return at::log(factor + out * 0.0).mean();
  };
  small.run.step(batch, loss_of);
  auto const again = small.run.replay(incidents_of(directory.path()).at(0), loss_of);
  CHECK(again.is_bitwise_equal);
  CHECK(again.origin.rows == std::vector<std::int64_t>{4});
}

TEST_CASE("a batch that does not say how it is written makes an incident without it, which says so") {
  scratch_directory directory;
  small_run<keeps_alone> small({.run_directory = directory.path()});
  auto const loss_of = [&](silent_batch const& of) { return at::log(small.model->forward(of.ids) * 0.0).mean(); };
  small.run.step(silent_batch{make_pair_batch(1).first}, loss_of);
  auto const incident = incidents_of(directory.path()).at(0);
  auto const reads_pairs = [&](pair_batch const& of) { return small.model->forward(of.first).mean(); };
  CHECK_THROWS_WITH(small.run.replay(incident, reads_pairs), Catch::Matchers::Contains("does not list its fields"));
}

TEST_CASE("what is not an incident of this run is refused in words, and the run stays as it was") {
  scratch_directory directory;
  scratch_directory of_other;
  small_run<keeps> small({.run_directory = directory.path(), .epochs = 1});
  small.run.fit(batches_with({9}), small.loss());
  auto const incident = incidents_of(directory.path()).at(0);
  auto const before = copies_of(small.model->parameters());
  auto const refuses = [&](fs::path const& path, char const* words) {
    CHECK_THROWS_WITH(small.run.replay(path, small.loss()), Catch::Matchers::Contains(words));
    CHECK(same_bits(before, copies_of(small.model->parameters())));
  };
  refuses(directory.path() / "incidents" / "attempt-000000077", "manifest.json is missing");
  small_run<keeps_in_low_precision> other({.run_directory = of_other.path(), .updates = 4});
  other.run.fit(batches_with({1, 9}), other.loss());
  refuses(incidents_of(of_other.path()).at(0), "[E03]");
  refuses(of_other.path() / "checkpoints" / "step-000000002", "is a checkpoint, not an incident");
  {
    std::fstream file(incident / "state.safetensors", std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(-3, std::ios::end);
    file.put('!');
  }
  refuses(incident, "is corrupted");
}

TEST_CASE("an incident whose numbers no run has is refused in words before anything is done with them") {
  auto const sound = nlohmann::json{{"incident",
                                     {{"batches_are_written", true},
                                      {"batches", {{{"device", "cpu"}}}},
                                      {"loss_scale", 1.0},
                                      {"pieces", 1},
                                      {"length", 0},
                                      {"threads", 2},
                                      {"losses", {1.0}},
                                      {"gradients", "0"},
                                      {"origin", {{"rows", {0, 3}}}}}}};
  CHECK(keel::detail::parse_incident(sound, "here", "").threads == 2);
  auto const refuses = [&](char const* pointer, nlohmann::json const& value) {
    nlohmann::json spoiled = sound;
    spoiled["incident"][nlohmann::json::json_pointer(pointer)] = value;
    CAPTURE(pointer, value.dump());
    try {
      keel::detail::parse_incident(spoiled, "here", "");
      FAIL("nothing was thrown");
    } catch (keel::checkpoint_error const& thrown) {
      CHECK(thrown.id() == "E05");
      CHECK(std::string(thrown.what()).find("here: the incident is damaged or was not written by keel") != std::string::npos);
    }
  };
  for (nlohmann::json const& bad : {nlohmann::json(2147483647), nlohmann::json(100000), nlohmann::json(-1), nlohmann::json(1e300), nlohmann::json("2"), nlohmann::json()})
    refuses("/threads", bad);
  for (nlohmann::json const& bad : {nlohmann::json(0), nlohmann::json(-3), nlohmann::json(1.5), nlohmann::json(std::int64_t{1} << 40)})
    refuses("/pieces", bad);
  refuses("/length", -1);
  for (nlohmann::json const& bad : {nlohmann::json(0.0), nlohmann::json(-2.0), nlohmann::json("nan")}) refuses("/loss_scale", bad);
  for (nlohmann::json const& bad : {nlohmann::json("no device"), nlohmann::json(7), nlohmann::json("cuda:-4")}) refuses("/batches/0/device", bad);
  refuses("/batches/0", "no object");
  refuses("/origin", 5);
  refuses("/origin/rows", {-1});
  refuses("/origin/rows", {"first"});
  refuses("/gradients", 5);
}

TEST_CASE("an incident of a recipe that keeps them needs a directory") {
  auto const model = make_small();
  keel::adamw optimizer(model->parameters(), 1e-2);
  CHECK_THROWS_WITH((keel::trainer<keeps_alone>{*model, optimizer, quiet()}), Catch::Matchers::Contains("the recipe keeps incidents"));
}

namespace {

/// A disk that is full for incidents.
struct full_for_incidents : keel::file_system {
  void write(keel::file_handle const& file, path const& name, char const* bytes, std::size_t count) override {
    if (name.string().find("/incidents/") != std::string::npos)
      throw keel::file_error("E02", "cannot write " + name.string() + ": No space left on device. Make room.");
    keel::file_system::write(file, name, bytes, count);
  }
};

}  // namespace

TEST_CASE("a disk that does not take an incident costs the incident and nothing else") {
  scratch_directory directory;
  small_run<keeps> small({.run_directory = directory.path(), .epochs = 1, .own_files = std::make_shared<full_for_incidents>()});
  small.run.fit(batches_with({9}), small.loss());
  CHECK(small.run.updates() == 11);
  CHECK(incidents_of(directory.path()).empty());
  auto const events = events_of(directory.path(), "incident");
  REQUIRE(events.size() == 1);
  CHECK(!events[0].contains("path"));
}
