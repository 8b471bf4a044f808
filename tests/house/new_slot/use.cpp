// The slot of slot.hpp in a recipe, in print, in a file, in random recipes, and twice.
#include <cstdio>
#include <keel/json/load_config.hpp>
#include <keel/json/write_config.hpp>
#include <string>

#include "../../rule/random_config.hpp"

using namespace keel::literals;

struct mine : keel::recipe<keel::tempo::swing<1.5, keel::tempo::at_most<7>, keel::tempo::in_bars<40_steps>, keel::tempo::loud>> {};
static_assert(keel::valid<mine> && keel::config_of<mine>.tempo.at_most == 7);
static_assert(keel::violations<keel::recipe<keel::tempo::none, keel::tempo::steady<4>>>.has("D99"));
static_assert(keel::violations<keel::recipe<keel::tempo::swing<1, keel::tempo::at_most<1>, keel::tempo::at_most<2>>>>.has("D20"));

bool fails(char const* what) {
  std::printf("a new slot: %s\n", what);
  return true;
}

int main() {
  bool failed = false;
  constexpr keel::config const& c = keel::config_of<mine>;
  if (std::string(keel::describe(c, keel::shown::set).c_str()) != "tempo         swing 1.5, at_most 7, bars 40 steps, loud\n")
    failed = fails("is not printed");
  if (!(keel::parse_config(keel::to_json(c).dump()) == c)) failed = fails("is not read as it is written");
  if (!(keel::parse_config(R"({"tempo": {"steady": 4}})").tempo == keel::tempo::steady<4>::configured)) failed = fails("is not read");
  constexpr keel::config twice = keel::config_of<keel::recipe<keel::tempo::none, keel::tempo::steady<4>>>;
  if (std::string(keel::check(twice).begin()->text) !=
      "[D99] two tempo policies in one recipe: only one can apply. Fix: keep one of keel::tempo::{none, steady, swing}.")
    failed = fails("has another sentence where it is given twice");
  int set = 0;
  for (std::uint64_t seed = 1; seed < 100; ++seed) set += keel_test::random_config(seed).next(0.5).tempo.loud ? 1 : 0;
  if (set == 0) failed = fails("is in no random recipe");
  return failed ? 1 : 0;
}
