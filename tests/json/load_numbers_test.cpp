#include <keel/json/load_numbers.hpp>
#include <keel/recipe.hpp>
#include <string>

#include "../rule/catch.hpp"

using namespace keel::literals;

namespace {

struct open_recipe
    : keel::recipe<keel::clip::zscore<keel::given, keel::clip::window<keel::given>>, keel::accumulate<keel::given>,
                   keel::checkpoint::every<keel::seconds{keel::given}, keel::checkpoint::keep<2>>, keel::ema<keel::given>> {};

keel::numbers read(char const* json) { return keel::read_numbers<open_recipe>(nlohmann::json::parse(json)); }

std::string error_of(char const* json) {
  try {
    read(json);
  } catch (keel::error const& thrown) {
    return thrown.what();
  }
  return "";
}
void check_error(char const* json, char const* words) {
  CAPTURE(json);
  std::string const error = error_of(json);
  CAPTURE(error);
  CHECK(error.find(words) != std::string::npos);
}

}  // namespace

TEST_CASE("numbers are read by their names, and as the slots of a configuration, with their units") {
  keel::numbers const expected{.clip = 3.0, .clip_window = 64LL, .accumulate = 4LL, .checkpoint = 600LL, .ema = 0.99};
  CHECK(read(R"({"clip": 3, "clip_window": 64, "accumulate": 4, "checkpoint": 600, "ema": 0.99})") == expected);
  CHECK(read(R"({"clip": 3, "clip_window": "64_steps", "accumulate": 4, "checkpoint": "10_min", "ema": 0.99})") == expected);
  CHECK(read(R"({"clip": {"zscore": 3, "window": 64}, "accumulate": {"count": 4}, "ema": {"decay": 0.99},
                 "checkpoint": {"every_seconds": {"interval": "10_min", "keep": 2}}})") == expected);
  CHECK(read(R"({"clip": {"zscore": {"limit": 3, "window": 64}}, "accumulate": 4, "ema": 0.99, "checkpoint": 600})") == expected);
}

TEST_CASE("a file of numbers that does not fit the recipe is an error that names the place") {
  check_error(R"({"clip": 3, "clip_window": 64, "accumulate": 4, "ema": 0.99})", "lacks checkpoint");
  check_error(R"({"clip": {"zscore": 3}, "accumulate": 4, "ema": 0.99, "checkpoint": 600})", "lacks clip_window");
  check_error(R"({"clip": {"zscore": 3, "window": 64}, "clip_window": 64, "accumulate": 4, "ema": 0.99, "checkpoint": 600})", "twice");
  check_error(R"({"clip": {"global_norm": 1.0}, "accumulate": 4})",
              "/clip is global_norm 1, and the program was compiled with zscore given, window given. Policies and constants are types");
  check_error(R"({"clip": 3, "clip_window": 64, "accumulate": 4, "ema": 0.99,
                  "checkpoint": {"every_seconds": {"interval": 600, "keep": 3}}})", "/checkpoint is every 600 s, keep 3");
  check_error(R"({"clip": 3, "clip_windw": 64})", "did you mean \"clip_window\"");
  check_error(R"({"checkpoint_keep": 3})", "/checkpoint_keep is not a number that the recipe leaves open");
  check_error(R"({"clip": 3, "clip_window": 64, "accumulate": 2.5, "ema": 0.99, "checkpoint": 600})", "/accumulate must be a whole number");
  check_error(R"({"clip": -3, "clip_window": 64, "accumulate": 0, "ema": 0.99, "checkpoint": 600})", "[G");
  check_error(R"({"clip": -3, "clip_window": 64, "accumulate": 0, "ema": 0.99, "checkpoint": 600})", "[B21]");
  check_error(R"([1, 2])", "must be an object");
}
