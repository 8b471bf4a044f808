// What a process of a run ends with, and what a launcher reads of it.
#include <cstdlib>
#include <new>

#include <keel/collective/exit_code.hpp>

#include "../support.hpp"

using namespace keel_test;

namespace {

/// A variable of the environment for as long as this lives.
class variable {
 public:
  variable(char const* name, std::string const& value) : name_(name) { ::setenv(name, value.c_str(), 1); }
  variable(variable const&) = delete;
  variable& operator=(variable const&) = delete;
  ~variable() { ::unsetenv(name_); }

 private:
  char const* name_;
};

}  // namespace

TEST_CASE("an exit code says how a run ended") {
  using namespace keel;
  namespace code = keel::exit_code;
  CHECK(exit_code_of(outcome(result::finished{3})) == code::done);
  CHECK(exit_code_of(outcome(result::stopped{0, 3})) == code::done);
  CHECK(exit_code_of(outcome(result::stopped{15, 3})) == 143);
  CHECK(exit_code_of(outcome(result::gave_up{reason::out_of_memory, "words"})) == code::out_of_memory);
  CHECK(exit_code_of(outcome(result::gave_up{reason::nonfinite_loss, "words"})) == code::not_finite);
  CHECK(exit_code_of(nonfinite_error("E08", "words")) == code::not_finite);
  CHECK(exit_code_of(diverged_error("E14", "words")) == code::not_finite);
  CHECK(exit_code_of(world_error("E24", "words")) == code::rendezvous_failed);
  CHECK(exit_code_of(world_error("E25", "words")) == code::rank_failed);
  CHECK(exit_code_of(world_error("E26", "words")) == code::ranks_diverged);
  CHECK(exit_code_of(file_error("E02", "words")) == code::storage);
  CHECK(exit_code_of(checkpoint_error("E05", "words")) == code::storage);
  CHECK(exit_code_of(out_of_memory_error("E09", "words")) == code::out_of_memory);
  CHECK(exit_code_of(std::bad_alloc()) == code::out_of_memory);
  CHECK(exit_code_of(std::runtime_error("words")) == code::failed);
  CHECK(exit_code_of([] { return outcome(result::finished{3}); }) == code::done);
  CHECK(exit_code_of([] { return 7; }) == 7);
}

TEST_CASE("torchrun reads the words and the rank of what ended a process") {
  scratch_directory const directory;
  variable const rank("RANK", "1"), size("WORLD_SIZE", "2"), address("MASTER_ADDR", "127.0.0.1"), port("MASTER_PORT", "29500"), run("TORCHELASTIC_RUN_ID", "some"),
      file("TORCHELASTIC_ERROR_FILE", directory / "error.json");
  CHECK(keel::exit_code_of([]() -> int { throw keel::file_error("E02", "the disk is full."); }) == keel::exit_code::storage);
  auto const read = nlohmann::json::parse(read_file(directory / "error.json"));
  CHECK(read.at("message").at("message") == "rank 1 of 2: [E02] the disk is full.");
  CHECK(keel::exit_code_of([] { return keel::outcome(keel::result::gave_up{keel::reason::loss_spike, "[E14] words"}); }) ==
        keel::exit_code::not_finite);
  CHECK(nlohmann::json::parse(read_file(directory / "error.json")).at("message").at("message") == "rank 1 of 2: [E14] words");
  CHECK(std::stoll(read.at("message").at("extraInfo").at("timestamp").get<std::string>()) > 1700000000);
}
