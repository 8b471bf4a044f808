#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <keel/json/load_config.hpp>
#include <keel/recipe.hpp>
#include <string>
#include <vector>

#include "../rule/catch.hpp"

using namespace keel::literals;

namespace {

class file {
 public:
  explicit file(std::string const& content) {
    std::string name = (std::filesystem::temp_directory_path() / "keel-config-XXXXXX").string();
    int const handle = ::mkstemp(name.data());
    REQUIRE(handle >= 0);
    ::close(handle);
    path_ = name;
    std::ofstream(path_) << content;
  }
  file(file const&) = delete;
  file& operator=(file const&) = delete;
  ~file() { std::filesystem::remove(path_); }
  std::filesystem::path const& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

/// The place and the words of what is wrong with a text.
std::pair<std::string, std::string> wrong(std::string const& text) {
  try {
    keel::parse_config(text);
  } catch (keel::config_error const& thrown) {
    REQUIRE(thrown.id() == "E13");
    return {thrown.path(), thrown.what()};
  }
  return {};
}

bool says(std::string const& text, std::string const& path, std::string const& words) {
  auto const [place, sentence] = wrong(text);
  CAPTURE(text, place, sentence);
  CHECK(place == path);
  CHECK(sentence.find(words) != std::string::npos);
  CHECK(sentence.ends_with('.'));
  return place == path && sentence.find(words) != std::string::npos;
}

}  // namespace

TEST_CASE("a recipe in a file is the recipe in C++") {
  using recipe =
      keel::recipe<keel::precision::fp16, keel::loss_scale::dynamic<keel::loss_scale::initial<1024.0>>,
                   keel::accumulate<4, keel::micro_batch<8>>, keel::clip::global_norm<1.0>, keel::nonfinite::rollback<10>,
                   keel::checkpoint::every<500_steps, keel::checkpoint::keep<3>>,
                   keel::schedule::cosine<keel::schedule::warmup<100_steps>, keel::schedule::min_ratio<0.1>>,
                   keel::oom::ladder<keel::oom::halve_micro_batch, keel::oom::enable_recompute<keel::recompute::reentrant>,
                                     keel::oom::shorten_sequence<512>, keel::oom::give_up>,
                   keel::determinism::seeded<18446744073709551615ULL>, keel::model::has<keel::model::batch_norm>,
                   keel::accept<"O10">, keel::accept<"A17">>;
  file const on_disk(R"({
    "precision": "fp16",
    "loss_scale": {"dynamic": {"initial": 1024}},
    "accumulate": {"count": 4, "micro_batch": 8},
    "clip": {"global_norm": 1},
    "nonfinite": {"rollback": 10},
    "checkpoint": {"every_steps": {"interval": "500_steps", "keep": 3}},
    "schedule": {"cosine": {"warmup": "100_steps", "min_ratio": 0.1}},
    "oom": {"ladder": ["halve_micro_batch", {"enable_recompute": "reentrant"}, {"shorten_sequence": 512}, "give_up"]},
    "determinism": {"seeded": 18446744073709551615},
    "model": ["batch_norm"],
    "accept": ["O10", "A17"]
  })");
  CHECK(keel::load_config(on_disk.path()) == keel::config_of<recipe>);
  CHECK(keel::parse_config("{}") == keel::config_of<keel::recipe<>>);
}

TEST_CASE("an unknown slot, policy, field or choice is an error with the nearest known name") {
  CHECK(says(R"({"precison": "bf16"})", "the recipe", "did you mean \"precision\"?"));
  CHECK(says(R"({"precision": "bf61"})", "/precision", "did you mean \"bf16\"?"));
  CHECK(says(R"({"clip": {"global_nrom": 1}})", "/clip", "did you mean \"global_norm\"?"));
  CHECK(says(R"({"schedule": {"cosine": {"warm_up": 100}}})", "/schedule/cosine", "did you mean \"warmup\"?"));
  CHECK(says(R"({"model": ["batchnorm"]})", "/model", "did you mean \"batch_norm\"?"));
  CHECK(says(R"({"oom": {"ladder": ["halve_microbatch"]}})", "/oom/ladder/0", "did you mean \"halve_micro_batch\"?"));
  CHECK(says(R"({"nonfinite": {"rollback": {"limit": 3, "change": "skip"}}})", "/nonfinite/rollback/change",
             "There are: nothing skip_data"));
  CHECK(says(R"({"run": {"world_size": 8, "updates": 1, "learning_rate": 1, "halfkernels": true}})", "/run",
             "did you mean \"half_kernels\"?"));
  CHECK(says(R"({"precision": {"fp16": {"speed": 1}}})", "/precision/fp16", "nothing can be set there"));
  CHECK(says(R"({"something entirely else": 1})", "the recipe", "There are: precision"));
  CHECK(wrong(R"({"something entirely else": 1})").second.find("did you mean") == std::string::npos);
}

TEST_CASE("a value of another kind is an error that names its place") {
  CHECK(says(R"({"clip": {"global_norm": "one"}})", "/clip/global_norm/limit", "must be a number"));
  CHECK(says(R"({"clip": 1})", "/clip", "must be the name of a policy"));
  CHECK(says(R"({"clip": {"none": 1}})", "/clip/none", "takes no argument"));
  CHECK(says(R"({"clip": {"value": 1, "global_norm": 1}})", "/clip", "one policy as its key"));
  CHECK(says(R"({"accumulate": 1.5})", "/accumulate/count", "whole number"));
  CHECK(says(R"({"accumulate": 99999999999999999999})", "/accumulate/count", "whole number"));
  CHECK(says(R"({"determinism": {"seeded": -1}})", "/determinism/seeded/seed", "whole number"));
  CHECK(says(R"({"shard": {"zero": 4}})", "/shard/zero/stage", "from 1 to 3"));
  CHECK(says(R"({"checkpoint": {"every_steps": "500"}})", "/checkpoint/every_steps/interval", "500_steps"));
  CHECK(says(R"({"checkpoint": {"every_seconds": "9999999999999_h"}})", "/checkpoint/every_seconds/interval", "10_min"));
  CHECK(says(R"({"model": "batch_norm"})", "/model", "list of names"));
  CHECK(says(R"({"model": [1]})", "/model", "list of names"));
  CHECK(says(R"({"oom": "ladder"})", "/oom", "needs the rungs of ladder: {\"ladder\": ..}"));
  CHECK(says(R"({"oom": {"ladder": ["give_up"], "release_after": "soon"}})", "/oom/release_after", "must be a duration such as 500"));
  CHECK(says(R"({"oom": {"ladder": ["give_up"], "release_after": 9223372036854775808}})", "/oom/release_after",
             "a whole number that fits"));
  CHECK(says(R"({"oom": {"ladder": ["give_up"], "climbs": 5}})", "/oom", "has no field \"climbs\". There are: rungs release_after"));
  file const releases(R"({"oom": {"ladder": ["offload_optimizer", "give_up"], "release_after": 500}})");
  CHECK(keel::load_config(releases.path()).oom ==
        keel::oom::ladder<keel::oom::offload_optimizer, keel::oom::give_up, keel::oom::release_after<keel::steps{500}>>::configured);
  CHECK(says(R"({"accept": "B06"})", "/accept", "list of rule ids"));
  CHECK(says(R"({"accept": [6]})", "/accept", "list of rule ids"));
  CHECK(says(R"({"data": {"ragged": 1}})", "/data/ragged", "true or false"));
  CHECK(says(R"([])", "", "object of slots"));
  std::string rungs;
  for (int i = 0; i < 17; ++i) rungs += std::string(i == 0 ? "" : ", ") + "\"give_up\"";
  CHECK(says("{\"oom\": {\"ladder\": [" + rungs + "]}}", "/oom/ladder", "more than 16 rungs"));
}

TEST_CASE("a text that is not JSON, and a key that stands twice, are errors") {
  CHECK(says("{", "", "is not JSON: parse error at line 1"));
  CHECK(says("", "", "is not JSON"));
  CHECK(says(R"({"clip": "none", "clip": {"value": 1}})", "", "the key 'clip' stands twice"));
  CHECK(says(R"({"model": {"dropout": true, "dropout": false}})", "", "the key 'dropout' stands twice"));
}

TEST_CASE("a text that nests without end is an error in words, not the end of the stack") {
  for (std::string const opening : {"[", "{\"model\":"}) {
    std::string deep;
    for (int i = 0; i < 200'000; ++i) deep += opening;
    CHECK(says(deep, "", "more than 64 levels"));
    CHECK(says("{\"clip\": " + deep, "", "more than 64 levels"));
  }
  CHECK(says("{\"clip\": " + std::string(63, '[') + std::string(63, ']') + "}", "/clip", "must be the name of a policy"));
}

TEST_CASE("a rule's id with a zero byte is not the id before it, and no other name is either") {
  CHECK(says(R"({"accept": ["O10\u0000x"]})", "/accept", "\"O10?x\" holds a zero byte"));
  CHECK(says(R"({"accept": ["O10\u0000"]})", "/accept", "zero byte"));
  CHECK(says(R"({"accept": ["\u0000\u0000\u0000\u0000\u0000O10"]})", "/accept", "zero byte"));
  CHECK(says(R"({"clip\u0000": "none"})", "the recipe", "has no slot \"clip?\"; did you mean \"clip\"?"));
  CHECK(says(R"({"clip": "none\u0000"})", "/clip", "has no policy \"none?\""));
  CHECK(says(R"({"clip": {"value\u0000": 1}})", "/clip", "has no policy \"value?\""));
  CHECK(says(R"({"clip": {"value": {"limit\u0000": 1, "limit": 1}}})", "/clip/value", "has no field \"limit?\""));
  CHECK(says(R"({"checkpoint": {"every_steps": "500_steps\u0000"}})", "/checkpoint/every_steps/interval", "duration"));
  CHECK(says(R"({"model": ["dropout\u0000"]})", "/model", "has no field"));
  CHECK(says(std::string("{\"clip\": \"none\"}\0", 17), "", "a NUL byte at position 16"));
}

TEST_CASE("an unknown name of a megabyte is shown by its beginning") {
  auto const words = wrong("{\"" + std::string(1'000'000, 'x') + "\": 1}").second;
  CHECK(words.find("has no slot \"xxx") != std::string::npos);
  CHECK(words.size() < 2000);
}

TEST_CASE("a file that breaks rules is rejected with all of their ids and sentences, a missing one by its name") {
  file const on_disk(R"({"shard": {"zero": 3}, "nonfinite": {"rollback": 10},
                         "oom": {"ladder": ["halve_micro_batch", {"enable_recompute": "non_reentrant"}]}})");
  CHECK(keel::read_config(on_disk.path()).shard.stage == 3);
  try {
    keel::load_config(on_disk.path());
    FAIL("three rules are broken");
  } catch (keel::recipe_error const& thrown) {
    CHECK(thrown.ids() == std::vector<std::string>{"N09", "O05", "A01"});
    std::string const words = thrown.what();
    CHECK(words.find(on_disk.path().string()) != std::string::npos);
    CHECK(words.find("\nreached by rung 2 of oom::ladder: [A01] ") != std::string::npos);
    CHECK(words.find("\n[N09] ") != std::string::npos);
  }
  file const broken(R"({"clp": 1})");
  try {
    keel::load_config(broken.path());
    FAIL("there is no slot clp");
  } catch (keel::config_error const& thrown) {
    CHECK(std::string(thrown.what()).find(broken.path().string() + ": the recipe has no slot \"clp\"") != std::string::npos);
  }
  CHECK_THROWS_AS(keel::load_config("/nowhere/recipe.json"), keel::file_error);
  CHECK_THROWS_AS(keel::load_config(std::filesystem::temp_directory_path()), keel::file_error);
}

TEST_CASE("facts of the run in a file decide the rules that need them") {
  auto const verdict = [](std::string const& slots) {
    return keel::check(keel::parse_config("{\"schedule\": \"cosine\"" + slots + "}"));
  };
  CHECK(verdict("").ok());
  CHECK(verdict(R"(, "run": {"world_size": 1, "updates": 0, "learning_rate": 1e-3})").has("L04"));
  CHECK(verdict(R"(, "run": {"world_size": 1, "updates": "1000_steps", "learning_rate": 1e-3})").ok());
}

TEST_CASE("facts of the run come together or not at all, because one that is left out would count as known") {
  CHECK(says(R"({"run": {"world_size": 8}})", "/run", "lacks updates"));
  CHECK(says(R"({"run": {"updates": 8, "learning_rate": 1}})", "/run", "lacks world_size"));
  CHECK(says(R"({"run": {"world_size": 8, "updates": 8}})", "/run", "lacks learning_rate"));
  CHECK(says(R"({"run": 8})", "/run", "lacks world_size"));
  CHECK(says(R"({"run": {"world_size": 0, "updates": 8, "learning_rate": 1}})", "/run/world_size", "at least 1"));
}

TEST_CASE("a field that a policy does not take, and an argument that it needs and lacks, are errors") {
  CHECK(says(R"({"clip": {"none": {"limit": 1}}})", "/clip/none", "has no field \"limit\""));
  CHECK(says(R"({"checkpoint": {"never": {"interval": 500}}})", "/checkpoint/never", "has no field \"interval\""));
  CHECK(says(R"({"nonfinite": {"raise": {"limit": 10}}})", "/nonfinite/raise", "There are: exceptions"));
  CHECK(says(R"({"nonfinite": {"skip": {"limit": 10, "attempts": 3}}})", "/nonfinite/skip", "has no field \"attempts\""));
  CHECK(says(R"({"loss_scale": {"fixed": {"initial": 8, "growth": 3}}})", "/loss_scale/fixed", "There are: initial"));
  CHECK(says(R"({"oom": {"ladder": [{"halve_micro_batch": {"tokens": 512}}]}})", "/oom/ladder/0/halve_micro_batch",
             "has no field"));
  CHECK(says(R"({"shard": {"none": {"stage": 3}}})", "/shard/none", "has no field \"stage\""));
  CHECK(says(R"({"device": {"cpu": ["device_assert"]}})", "/device/cpu", "has no field \"device_assert\""));
  CHECK(says(R"({"shard": "zero"})", "/shard", "needs the stage of zero"));
  CHECK(says(R"({"nonfinite": {"rollback": {"attempts": 3}}})", "/nonfinite/rollback", "needs limit"));
  CHECK(says(R"({"oom": {"ladder": ["shorten_sequence"]}})", "/oom/ladder/0", "needs the tokens"));
  CHECK(keel::parse_config(R"({"model": ["adapters"]})").model == keel::model::has<keel::model::adapters>::configured);
}

TEST_CASE("numbers as large as they come are judged without an overflow") {
  std::string const most = "9223372036854775807";
  auto const verdict = [](std::string const& text) { return keel::check(keel::parse_config(text)); };
  CHECK(verdict("{\"accumulate\": {\"count\": " + most + ", \"micro_batch\": " + most +
                ", \"global_batch\": 8}, \"shard\": {\"zero\": 2},"
                " \"oom\": {\"ladder\": [\"halve_micro_batch\", \"give_up\"]}}")
            .has("B01"));
  CHECK(verdict("{\"accumulate\": -9223372036854775808, \"oom\": {\"ladder\": [\"halve_micro_batch\", \"give_up\"]}}").has("B21"));
  CHECK(verdict("{\"nonfinite\": {\"rollback\": " + most + "}, \"spike\": {\"rollback\": {\"window\": " + most +
                "}},"
                " \"checkpoint\": {\"every_steps\": {\"interval\": 500, \"keep\": 3}}}")
            .has("N12"));
  CHECK(verdict("{\"nonfinite\": {\"rollback\": 10}, \"checkpoint\": {\"every_steps\": {\"interval\": " + most +
                ", \"keep\": " + most + "}}}")
            .ok());
  CHECK(verdict("{\"timeout\": {\"grace\": 1, \"longest_update\": " + most + ", \"longest_save\": " + most + "}}").has("H04"));
  CHECK(verdict("{\"profile\": {\"every\": {\"period\": 5, \"warmup\": " + most + ", \"active\": " + most + "}}}").has("X07"));
  CHECK(verdict("{\"objective\": {\"grpo\": " + most +
                "}, \"accumulate\": {\"micro_batch\": 8},"
                " \"oom\": {\"ladder\": [\"halve_micro_batch\", \"give_up\"]}}")
            .has("B12"));
}
