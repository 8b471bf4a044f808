// Which checkpoints stay: every rotation against a model of it, and directories that were tampered with.
#include "../support.hpp"

#include <set>

using namespace keel_test;

namespace {

keel::snapshot content(double value) {
  keel::snapshot made;
  made.model["weight"] = at::full({3}, value);
  made.state = {{"run", {{"value", value}}}};
  return made;
}

struct saved {
  std::int64_t update;
  bool extra;
};

/// What should be there after the saves, by the words of the policy.
std::set<std::int64_t> expected(std::vector<saved> const& all, keel::retention const& keep) {
  std::set<std::int64_t> stay;
  std::map<std::int64_t, bool> extra;
  for (auto const& one : all) {
    auto const [at, first] = extra.emplace(one.update, one.extra);
    if (!first) at->second = at->second && one.extra;
    std::erase_if(extra, [&](auto const& item) { return item.first > one.update; });
    stay.clear();
    std::int64_t in_turn = 0;
    for (auto item = extra.rbegin(); item != extra.rend(); ++item) {
      bool const young = !item->second && ++in_turn <= keep.newest;
      if (young || item->first == one.update || (keep.every > 0 && item->first % keep.every == 0) || (!keep.best.empty() && keep.best[0] == item->first)) stay.insert(item->first);
    }
    // In turn: the newest that is long enough ago for a rollback, and the oldest that is not.
    if (keep.rollback_distance > 0) {
      auto const is_old = [&](auto const& item) { return one.update - item.first >= keep.rollback_distance; };
      std::vector<std::int64_t> old, young;
      for (auto const& item : extra) {
        if (!item.second) (is_old(item) ? old : young).push_back(item.first);
      }
      if (!old.empty()) stay.insert(old.back());
      if (!young.empty()) stay.insert(young.front());
    }
    std::erase_if(extra, [&](auto const& item) { return stay.count(item.first) == 0; });
  }
  return stay;
}

}  // namespace

TEST_CASE("rotation_with_a_limit_of_one: every limit and count up to six, in turn and out of it, keeps what the policy says and at least one") {
  for (std::int64_t limit = 1; limit <= 6; ++limit) {
    for (unsigned extras = 0; extras < 64; ++extras) {
      for (auto const& [every, distance] : {std::pair<std::int64_t, std::int64_t>{0, 0}, {4, 0}, {0, 3}}) {
        scratch_directory const directory;
        keel::checkpoint_store store(directory);
        store.prepare();
        keel::retention keep{.newest = limit, .every = every, .rollback_distance = distance};
        std::vector<saved> all;
        for (std::int64_t count = 1; count <= 6; ++count) {
          keep.requested = (extras >> (count - 1) & 1u) != 0;
          store.save(count, content(static_cast<double>(count)), keep);
          all.push_back({count, keep.requested});
          auto const found = store.updates();
          REQUIRE(!found.empty());
          REQUIRE(std::set<std::int64_t>(found.begin(), found.end()) == expected(all, keep));
        }
      }
    }
  }
}

TEST_CASE("rotation_by_string: the step after 9999 is newer than it, and a directory of an abandoned future goes") {
  scratch_directory const directory;
  keel::checkpoint_store store(directory);
  store.prepare();
  for (std::int64_t const update : {9998, 9999, 10000}) store.save(update, content(1.0), {});
  CHECK(store.updates() == std::vector<std::int64_t>{9999, 10000});
  store.save(77777, content(2.0), {});
  auto after_rollback = content(3.0);
  after_rollback.generation = 1;
  store.save(10001, after_rollback, {});
  CHECK(store.updates() == std::vector<std::int64_t>{10000, 10001});
}

TEST_CASE("truncated_copies: a run takes the newest whole checkpoint, whichever file of the newer ones is cut, empty or missing") {
  struct recipe : keel::recipe<keel::checkpoint::every<keel::steps{1}, keel::checkpoint::keep<4>>> {};
  auto const train = [](std::filesystem::path const& directory, std::int64_t updates) {
    auto const model = make_small();
    torch::optim::AdamW optimizer(model->parameters(), 0.1);
    keel::trainer<recipe> run{model, optimizer, quiet({.run_directory = directory, .updates = updates})};
    run.fit([](std::int64_t epoch) { return std::vector<pair_batch>{make_pair_batch(static_cast<std::uint64_t>(epoch))}; }, mean_squared_error(model));
    return copies_of(model->parameters());
  };
  scratch_directory const whole;
  auto const expected_parameters = train(whole / "run", 7);
  for (std::string const name : {"model.safetensors", "optimizer.safetensors", "state.safetensors", "state.json", "manifest.json"}) {
    for (int const how : {0, 1, 2}) {
      scratch_directory const directory;
      train(directory / "run", 4);
      for (char const* const step : {"step-000000004", "step-000000003"}) {
        auto const file = directory / "run" / "checkpoints" / step / name;
        std::string const bytes = read_file(file);
        if (how == 2) {
          std::filesystem::remove(file);
        } else {
          write_file(file, how == 0 ? bytes.substr(0, bytes.size() / 2) : std::string());
        }
      }
      INFO(name << ", " << how);
      CHECK(same_bits(train(directory / "run", 7), expected_parameters));
      CHECK(read_file(directory / "run/events.jsonl").find("\"damaged\",\"update\":4") != std::string::npos);
    }
  }
}
