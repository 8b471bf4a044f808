// Recipes that leave numbers to the program: what the compiler may say of them, and that the numbers come to where they belong.
#include <algorithm>
#include <cmath>
#include <random>
#include <set>
#include <string>
#include <vector>

#include <keel/config/numbers.hpp>

#include "catch.hpp"
#include "random_config.hpp"

using namespace keel::literals;

namespace {

using keel::config;

constexpr int swept = 60'000;

/// Leaves some of a configuration's numbers open, and says which they were.
config open_some(config const& from, keel::numbers& were, std::mt19937_64& engine, double probability) {
  config open = from;
  auto const look_into = [&]<class Slot>(Slot*) {
    auto const policies = Slot::policies();
    auto const* const entry = keel::detail::policy_of_settings<Slot>(policies, from.*keel::place<Slot>);
    if (entry == nullptr) return;
    auto start = entry->start;
    auto const look = [&](char const* field, auto& to) {
      using type = std::remove_reference_t<decltype(to)>;
      auto* const number = were.find(Slot::name, field);
      bool const chosen = std::bernoulli_distribution(probability)(engine);
      if (number == nullptr || !chosen || !keel::detail::takes(entry->fields, field)) return;
      // A recipe leaves open what it names: the argument, and options that set something.
      bool is_default = false;
      auto const compare = [&](char const* other, auto& value) {
        if constexpr (std::is_same_v<std::remove_reference_t<decltype(value)>, type>) {
          if (keel::detail::is_same(other, field)) is_default = value == to;
        }
      };
      keel::detail::number_fields<decltype(compare)> defaults{compare};
      Slot::fields(start, defaults);
      bool const is_argument = entry->argument != nullptr && keel::detail::is_same(entry->argument, field);
      if (is_default && !is_argument) return;
      if (std::string(field) == "patience" && from.schedule.evaluations != 0) return;
      *number = to;
      if constexpr (std::is_same_v<type, double>) {
        to = keel::given_number::real;
      } else if constexpr (std::is_same_v<type, long long>) {
        to = keel::given_number::whole;
      } else if constexpr (std::is_same_v<type, unsigned long long>) {
        to = keel::given_number::natural;
      }
      if (keel::is_given(to)) {
        ++open.given;
      } else {
        *number = {};
      }
    };
    keel::detail::number_fields<decltype(look)> fields{look};
    Slot::fields(open.*keel::place<Slot>, fields);
  };
  [&]<class... Slots>(keel::slot_list<Slots...>) { (look_into(static_cast<Slots*>(nullptr)), ...); }
  (keel::slots{});
  return open;
}

std::set<std::string> ids_of(config const& value) {
  std::set<std::string> ids;
  for (keel::violation const& one : keel::check(value)) ids.insert(one.id);
  return ids;
}

std::vector<std::string> faults_of(config value, keel::numbers const& all) {
  std::vector<std::string> faults;
  keel::give(value, all, [&](keel::number_fault fault, char const* name) {
    char const* const words[] = {"missing ", "unwanted ", "not of its kind "};
    faults.push_back(words[static_cast<int>(fault)] + std::string(name));
  });
  return faults;
}

}  // namespace

TEST_CASE("every number of every policy has a name in keel::numbers, and every name is a number of a policy") {
  std::set<std::string> found;
  auto const look_into = [&]<class Slot>(Slot*) {
    for (auto const& policy : Slot::policies().all) {
      auto settings = policy.start;
      auto const look = [&](char const* field, auto& to) {
        // How many alarms there are, and a stage of sharding, are kinds.
        if constexpr (!std::is_same_v<std::remove_reference_t<decltype(to)>, int>) {
          auto const* const place = keel::detail::find_number(Slot::name, field);
          CAPTURE(Slot::name, field);
          REQUIRE(place != nullptr);
          found.insert(place->name);
        }
      };
      keel::detail::number_fields<decltype(look)> fields{look};
      Slot::fields(settings, fields);
    }
  };
  [&]<class... Slots>(keel::slot_list<Slots...>) { (look_into(static_cast<Slots*>(nullptr)), ...); }
  (keel::slots{});
  for (auto const& place : keel::detail::number_places) {
    CAPTURE(place.name);
    CHECK(found.count(place.name) == 1);
    bool const by_slot = std::string(place.name) == place.slot;
    CHECK((by_slot || std::string(place.name) == std::string(place.slot) + "_" + place.field));
  }
}

TEST_CASE("a rule is only held against a recipe with open numbers if no numbers keep it") {
  // The numbers that were there break none but these.
  std::mt19937_64 engine(7);
  int opened = 0, still_rejected = 0;
  for (int number = 0; number < swept; ++number) {
    static constexpr double keep[] = {0.95, 0.9, 0.8, 0.6, 0.3};
    keel_test::random_config random(static_cast<std::uint64_t>(number) + 1, true);
    config value = random.next(keep[number % 5]);
    if (value.schedule.evaluations != 0) value.schedule.patience = 0;
    keel::numbers were;
    config const open = open_some(value, were, engine, number % 2 == 0 ? 0.3 : 1.0);
    if (open.given == 0) continue;
    ++opened;
    auto const of_open = ids_of(open);
    auto const of_value = ids_of(value);
    still_rejected += of_open.empty() ? 0 : 1;
    if (std::includes(of_value.begin(), of_value.end(), of_open.begin(), of_open.end())) continue;
    std::string words;
    for (keel::violation const& one : keel::check(open)) {
      if (of_value.count(one.id) == 0) words += std::string(keel::describe(one).c_str()) + "\n";
    }
    FAIL("configuration " << number << "\n" << keel::describe(value).c_str() << "with open numbers\n" << keel::describe(open, keel::shown::set).c_str() << words);
  }
  CHECK(opened > 10'000);
  CHECK(still_rejected > 1'000);
}

TEST_CASE("the constructor's door is that of constants: with its numbers a recipe is the recipe that has them") {
  std::mt19937_64 engine(8);
  std::set<std::string> ids;
  for (int number = 0; number < swept; ++number) {
    keel_test::random_config random(static_cast<std::uint64_t>(number) + 1, true);
    config value = random.next(0.7);
    // One option sets both.
    if (value.schedule.evaluations != 0) value.schedule.patience = 0;
    keel::numbers were;
    config open = open_some(value, were, engine, 0.7);
    if (open.given == 0) continue;
    keel::give(open, were, [&](keel::number_fault, char const* name) { FAIL(name); });
    REQUIRE(open == value);
    for (std::string const& id : ids_of(open)) ids.insert(id);
  }
  CHECK(ids.size() > 100);
}

TEST_CASE("a number that is missing, unwanted or of another kind is named") {
  using open = keel::recipe<keel::accumulate<keel::given>, keel::clip::zscore<keel::given, keel::clip::window<keel::given>>,
                            keel::determinism::seeded<keel::given>>;
  config const value = keel::config_of<open>;
  using faults = std::vector<std::string>;
  CHECK(faults_of(value, {.clip = 3, .clip_window = 64, .accumulate = 4, .determinism = 7}).empty());
  CHECK(faults_of(value, {.clip = 3, .accumulate = 4, .determinism = 7}) == faults{"missing clip_window"});
  CHECK(faults_of(value, {.clip = 3, .clip_window = 64, .accumulate = 4, .ema = 0.9, .determinism = 7}) == faults{"unwanted ema"});
  CHECK(faults_of(value, {.clip = 3, .clip_window = 64.5, .accumulate = 4.0, .determinism = -1}) ==
        faults{"not of its kind clip_window", "not of its kind determinism"});
  CHECK(faults_of(value, {.clip = std::nan(""), .clip_window = 1e30, .accumulate = 1ULL << 63, .determinism = ~0ULL}) ==
        faults{"not of its kind accumulate", "not of its kind clip", "not of its kind clip_window"});
}
