// Where two runs part: each of the ways in which they do, made on purpose.
#include <keel/diagnose/compare_runs.hpp>

#include "../support.hpp"

using namespace keel_test;
using namespace keel::literals;

namespace {

struct plain : keel::recipe<keel::checkpoint::every<5_steps>, keel::determinism::seeded<1>> {};
struct clipped : keel::recipe<keel::checkpoint::every<5_steps>, keel::determinism::seeded<1>, keel::clip::global_norm<0.01>> {};
struct scheduled
    : keel::recipe<keel::checkpoint::every<5_steps>, keel::determinism::seeded<1>,
                   keel::schedule::linear<keel::schedule::total<20_steps>, keel::schedule::warmup<4_steps>>> {};

struct variation {
  std::uint64_t initial = 3;
  std::size_t other_batch = 1000;  ///< this one is another
  double rate = 1e-2;
  bool spoils_gradient = false;
  std::map<std::string, std::string> fingerprints = {};
  std::vector<std::string> accept = {};
  std::int64_t updates = 12;
};

template <class Recipe>
std::filesystem::path train(scratch_directory const& where, char const* name, variation const& with = {}) {
  auto const directory = where / name;
  auto const model = make_small(with.initial, 0.1);
  keel::adamw optimizer(model->parameters(), with.rate);
  if (with.spoils_gradient)
    model->first->weight.register_hook([](at::Tensor const& gradient) { return gradient * 1.0000001; });
  keel::trainer<Recipe> run{*model, optimizer, quiet({.run_directory = directory,
                                                              .updates = with.updates,
                                                              .accept = with.accept,
                                                              .fingerprints = with.fingerprints})};
  std::vector<pair_batch> batches;
  for (std::size_t i = 0; i < 12; ++i) batches.push_back(make_pair_batch(i == with.other_batch ? 99 : i));
  run.fit(batches, mean_squared_error(model));
  return directory;
}

bool says(keel::run_comparison const& found, char const* words) {
  INFO(keel::to_text(found));
  bool const does = found.conclusion.find(words) != std::string::npos;
  CHECK(does);
  return does;
}

}  // namespace

TEST_CASE("two runs of one seed are the same in every bit") {
  scratch_directory const directory;
  auto const found = keel::compare_runs(train<plain>(directory, "a"), train<plain>(directory, "b"));
  CHECK(found.records.empty());
  CHECK(found.settings.empty());
  CHECK(found.common_updates == 12);
  says(found, "bitwise identical over all 12 common updates");
  REQUIRE(found.checkpoint == 12);
  REQUIRE(found.layers.size() == 2);
  for (auto const& layer : found.layers) CHECK(layer.relative == 0.0);
}

TEST_CASE("what parted first is named with its update") {
  scratch_directory const directory;
  auto const good = train<plain>(directory, "good");
  auto const with = [&](auto recipe, char const* name, variation const& how) {
    return keel::compare_runs(good, train<typename decltype(recipe)::type>(directory, name, how));
  };
  auto const other_batch = with(std::type_identity<plain>{}, "batch", {.other_batch = 6});
  says(other_batch, "in the data at update 7");
  CHECK(other_batch.batches_part == 7);
  CHECK(keel::to_text(other_batch).find("  batches at update 7\n") != std::string::npos);
  CHECK(other_batch.settings.empty());
  CHECK(other_batch.layers.front().relative > 0.0);
  auto const other_start = with(std::type_identity<plain>{}, "start", {.initial = 4});
  says(other_start, "in the loss of the first update");
  auto const gradient = with(std::type_identity<plain>{}, "gradient", {.spoils_gradient = true});
  says(gradient, "in the backward pass at update 1");
  auto const schedule = with(std::type_identity<scheduled>{}, "schedule", {});
  says(schedule, "in the learning rate at update 1");
  bool names_schedule = false;
  for (auto const& one : schedule.settings) names_schedule = names_schedule || one.name.find("schedule") == 0;
  CHECK(names_schedule);
  auto const rate = with(std::type_identity<plain>{}, "rate", {.rate = 2e-2});
  says(rate, "in the learning rate at update 1");
  auto const clip = with(std::type_identity<clipped>{}, "clip", {});
  bool names_clip = false;
  for (auto const& one : clip.settings) names_clip = names_clip || one.name.find("clip") == 0;
  CHECK(names_clip);
  says(clip, "in the loss at update 2");
}

TEST_CASE("a run that is not there, and one without checkpoints, are said in words") {
  scratch_directory const directory;
  auto const good = train<plain>(directory, "good");
  CHECK_THROWS_WITH(keel::compare_runs(good, directory / "nothing"), Catch::Matchers::Contains("has no metrics.jsonl"));
  std::filesystem::copy(good, directory / "copy", std::filesystem::copy_options::recursive);
  std::filesystem::remove_all(directory / "copy" / "checkpoints");
  auto const found = keel::compare_runs(good, directory / "copy");
  CHECK(!found.checkpoint);
  CHECK(found.records.empty());
  std::ofstream(directory / "copy" / "metrics.jsonl") << "";
  says(keel::compare_runs(good, directory / "copy"), "no update in common");
}

TEST_CASE("another vocabulary stands in the comparison, and a resume with it is an error that names it") {
  scratch_directory const directory;
  std::string const one = keel::fingerprint_of(std::vector<std::string>{"a", "b"});
  std::string const other = keel::fingerprint_of(std::vector<std::string>{"ab"});
  CHECK(one != other);
  CHECK(one.size() == 16);
  auto const a = train<plain>(directory, "a", {.fingerprints = {{"vocabulary", one}, {"data", "x"}}});
  auto const b = train<plain>(directory, "b", {.fingerprints = {{"vocabulary", other}, {"data", "x"}}});
  auto const found = keel::compare_runs(a, b);
  REQUIRE(found.settings.size() == 1);
  CHECK(found.settings[0].name == "fingerprint of vocabulary");
  CHECK(found.settings[0].a == one);
  CHECK(found.settings[0].b == other);
  using Catch::Matchers::Contains;
  CHECK_THROWS_WITH(train<plain>(directory, "a", {.fingerprints = {{"vocabulary", other}}, .updates = 12}),
                    Contains("[E03]") && Contains("another vocabulary") && Contains(one) && Contains(other));
  CHECK_NOTHROW(train<plain>(directory, "a", {.fingerprints = {{"vocabulary", other}}, .accept = {"vocabulary"}, .updates = 12}));
  // A program that says nothing of it is taken as it was.
  CHECK_NOTHROW(train<plain>(directory, "b"));
}

TEST_CASE("a fingerprint is of the content: words, values and bytes of a file") {
  scratch_directory const directory;
  write_file(directory / "data", std::string(3 << 20, 'x'));
  CHECK(keel::fingerprint_of_file(directory / "data") == keel::fingerprint_of(std::string(3 << 20, 'x')));
  CHECK_THROWS_AS(keel::fingerprint_of_file(directory / "nothing"), keel::file_error);
  at::Tensor const values = at::arange(6);
  CHECK(keel::fingerprint_of(values) == keel::fingerprint_of(values.clone()));
  CHECK(keel::fingerprint_of(values) != keel::fingerprint_of(values.view({2, 3})));
  CHECK(keel::fingerprint_of(values) != keel::fingerprint_of(values.to(at::kInt)));
}
