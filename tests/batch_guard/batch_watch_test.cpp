// What is found in batches before they train.
#include "../support.hpp"

#include <keel/batch_guard/batch_watch.hpp>
#include <nlohmann/json.hpp>
#include <set>

using namespace keel_test;
using namespace keel::literals;

namespace {

using keel::batch_problem;

at::Tensor ids(std::vector<std::vector<std::int64_t>> const& rows) {
  at::Tensor const all = at::zeros({static_cast<std::int64_t>(rows.size()), static_cast<std::int64_t>(rows[0].size())}, at::kLong);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    for (std::size_t j = 0; j < rows[i].size(); ++j) all[static_cast<std::int64_t>(i)][static_cast<std::int64_t>(j)] = rows[i][j];
  }
  return all;
}
std::set<std::string> found_in(keel::batch_watch& watch, auto const& batch) {
  std::set<std::string> all;
  for (auto const& one : watch.look(batch)) all.insert(keel::to_string(one.what));
  return all;
}
std::set<std::string> found_in(auto const& batch, keel::batch_guard::settings const& settings = {}) {
  keel::batch_watch watch(settings);
  return found_in(watch, batch);
}

}  // namespace

TEST_CASE("a sound batch has nothing to find") {
  CHECK(found_in(make_pair_batch(1)).empty());
  CHECK(found_in(std::pair(ids({{1, 2, 3}, {4, 5, 6}}), ids({{2, 3, 4}, {5, 6, -100}}))).empty());
  CHECK(found_in(ids({{1, 2, 3}, {4, 5, 6}})).empty());
  CHECK(found_in(std::pair(at::rand({4, 3}), at::arange(4))).empty());
  // Pixels, and numbers of rows.
  CHECK(found_in(std::pair(at::zeros({3, 8}, at::kByte), at::arange(3))).empty());
  CHECK(found_in(keel::row_numbers{1, 1, 1, 1}).empty());
}

TEST_CASE("NaN and infinity are found in inputs and labels, with their row") {
  for (double const bad : {NAN, INFINITY, -INFINITY}) {
    for (auto const dtype : {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf}) {
      auto [x, y] = make_pair_batch(1);
      x = x.to(dtype);
      x[5][2] = bad;
      keel::batch_watch watch({});
      auto const found = watch.look(std::pair(x, y));
      REQUIRE(found.size() == 1);
      CHECK(found[0].what == batch_problem::not_finite);
      CHECK(found[0].row == 5);
      CHECK(found[0].words.find("micro-batch 0, row 5: 1 values of its inputs") == 0);
    }
  }
  auto const [x, y] = make_pair_batch(1);
  y[3][0] = NAN;
  CHECK(found_in(std::pair(x, y)) == std::set<std::string>{"not_finite"});
  // A sum that overflows is not an element that did.
  CHECK(found_in(std::pair(at::rand({4, 2}).mul(1e38), at::rand({4, 1}))).empty());
}

TEST_CASE("an id or label outside of what the recipe says ends the update with its row") {
  auto const message = [](auto const& batch, keel::batch_guard::settings const& settings) {
    keel::batch_watch watch(settings);
    try {
      watch.look(batch);
    } catch (keel::data_error const& thrown) {
      return std::string(thrown.what());
    }
    return std::string("none");
  };
  auto const batch = std::pair(ids({{1, 2}, {3, 10}}), at::full({2}, 1, at::kLong));
  CHECK(message(batch, {.vocabulary = 10}).find("row 1: token 10 is outside the vocabulary of 10") != std::string::npos);
  CHECK(message(batch, {.vocabulary = 11}) == "none");
  CHECK(message(std::pair(ids({{-1, 2}}), ids({{1, 2}})), {.vocabulary = 10}).find("token -1") != std::string::npos);
  auto const labelled = std::pair(at::rand({3, 2}), ids({{0}, {5}, {-100}}));
  CHECK(message(labelled, {.classes = 5}).find("row 1: label 5 is outside the 5 classes") != std::string::npos);
  CHECK(message(labelled, {.classes = 6}) == "none");
  CHECK(message(labelled, {.classes = 6, .ignored = -1}).find("label -100") != std::string::npos);
}

TEST_CASE("each oddity of a batch is found, and its neighbour is not") {
  auto const x = at::rand({4, 3});
  CHECK(found_in(std::pair(x, at::full({4}, -100, at::kLong))) == std::set<std::string>{"all_labels_ignored"});
  CHECK(found_in(std::pair(x, ids({{-100}, {-100}, {-100}, {1}}))).empty());
  CHECK(found_in(std::pair(x, at::full({5}, 1, at::kLong))) == std::set<std::string>{"rows_differ"});
  keel::batch_guard::settings const checks{.kind = keel::batch_guard::kind::check};
  CHECK(found_in(std::pair(x, ids({{-7}, {1}, {2}, {3}})), checks) == std::set<std::string>{"id_below_zero"});
  CHECK(found_in(std::pair(x, ids({{-7}, {1}, {2}, {3}}))).empty());
  CHECK(found_in(ids({{-7, 1}, {2, 3}}), checks) == std::set<std::string>{"id_below_zero"});
  // Features that are integers, masks and positions beside the ids, flattened labels, numbers of users.
  CHECK(found_in(ids({{-7, 1}, {2, 3}})).empty());
  auto const three = std::tuple(ids({{1, 2}, {3, 4}}), ids({{0, 500}, {0, -1}}), ids({{2, -100}, {4, 1}}));
  CHECK(found_in(three, {.kind = keel::batch_guard::kind::check, .vocabulary = 10}).empty());
  CHECK(found_in(std::pair(ids({{1, 2}, {3, 4}}), at::arange(4))).empty());
  CHECK(found_in(std::pair(at::full({8}, 3, at::kLong), at::rand({8}))).empty());
  auto const masked = std::tuple(at::rand({2, 2}), at::full({2, 2}, -INFINITY), at::rand({2, 1}));
  CHECK(found_in(masked).empty());
  CHECK(found_in(std::pair(x, x.clone())).empty());
  CHECK(found_in(ids({{-7, 1}, {2, 3}}), {.kind = keel::batch_guard::kind::check, .padding = -7}).empty());
  CHECK(found_in(std::pair(at::rand({0, 3}), at::rand({0, 1}))).count("nothing_in_it") == 1);
  CHECK(found_in(at::ones({4, 3})) == std::set<std::string>{"rows_repeat"});
  CHECK(found_in(at::ones({3, 3})).empty());
  auto const tokens = ids({{1, 2, 3}, {4, 5, 6}});
  CHECK(found_in(std::pair(tokens, tokens.clone())) == std::set<std::string>{"labels_equal_inputs"});
  CHECK(found_in(tokens, {.longest = 2}) == std::set<std::string>{"row_too_long"});
  CHECK(found_in(tokens, {.longest = 3}).empty());
  CHECK(found_in(at::ones({4, 3}), {.kind = keel::batch_guard::kind::off}).empty());
}

TEST_CASE("a batch that comes again is found, but not in the next epoch, and one batch alone is an experiment") {
  keel::batch_watch watch({});
  auto const batch = [](std::uint64_t seed) { return make_pair_batch(seed); };
  for (std::uint64_t i = 0; i < 10; ++i) CHECK(found_in(watch, batch(i)).empty());
  auto const found = watch.look(batch(7));
  REQUIRE(found.size() == 1);
  CHECK(found[0].words.find("the same as the one 3 micro-batches before it") != std::string::npos);
  watch.end_epoch();
  for (std::uint64_t i = 0; i < 10; ++i) CHECK(found_in(watch, batch(i)).empty());
  keel::batch_watch single({});
  for (int i = 0; i < 500; ++i) CHECK(found_in(single, batch(1)).empty());
  // A loop that goes over its data again without saying so.
  keel::batch_watch cycles({});
  for (std::uint64_t i = 0; i < 100; ++i) CHECK(found_in(cycles, batch(i % 7)).empty());
}

TEST_CASE("padding and ignored labels are shares, and ids that never came are counted once") {
  keel::batch_watch watch({.vocabulary = 10, .padding = 0});
  watch.look(std::pair(ids({{1, 2, 0, 0}, {3, 0, 0, 0}}), ids({{2, 3, 4, -100}, {-100, -100, -100, -100}})));
  CHECK(watch.padding() == 5.0 / 8.0);
  CHECK(watch.ignored_labels() == 5.0 / 8.0);
  auto const found = watch.end_epoch();
  REQUIRE(found.size() == 1);
  CHECK(found[0].words.find("6 of the 10 ids") == 0);
  watch.look(ids({{1, 2}, {3, 4}}));
  CHECK(watch.end_epoch().size() == 1);
}

TEST_CASE("a finding says where the batch stands") {
  keel::batch_watch watch({});
  watch.at(2, 17);
  auto const found = watch.look(at::full({1, 2}, NAN));
  REQUIRE(found.size() == 1);
  CHECK(found[0].words.find("epoch 2, micro-batch 17, row 0: 2 values") == 0);
}

namespace {

struct guarded : keel::recipe<keel::batch_guard::check<keel::batch_guard::vocabulary<11>>, keel::checkpoint::every<2_steps>> {};
struct unguarded : keel::recipe<keel::batch_guard::off> {};
struct masked : keel::recipe<> {};

std::vector<std::string> findings(std::filesystem::path const& run) {
  std::vector<std::string> all;
  for (std::string const& line : read_lines(run / "events.jsonl")) {
    auto const event = nlohmann::json::parse(line);
    if (event["event"] == "batch_finding") all.push_back(event["what"]);
  }
  return all;
}

template <class Recipe>
void train(std::filesystem::path const& directory, std::vector<std::pair<at::Tensor, at::Tensor>> const& batches) {
  auto const model = make_small(1);
  torch::optim::SGD optimizer(model->parameters(), 0.01);
  keel::trainer<Recipe> run{model, optimizer, quiet({.run_directory = directory})};
  run.fit(batches, [&](std::pair<at::Tensor, at::Tensor> const& batch) {
    return model->forward(batch.first.to(at::kFloat).slice(1, 0, 6)).square().mean();
  });
}

}  // namespace

TEST_CASE("a trainer says what it finds, counts tenfold, and goes on") {
  scratch_directory const directory;
  std::vector<std::pair<at::Tensor, at::Tensor>> batches;
  for (std::uint64_t i = 0; i < 25; ++i) {
    auto const [x, y] = make_pair_batch(i);
    batches.emplace_back(x, at::full({8}, -100, at::kLong));
  }
  train<masked>(directory / "run", batches);
  // The first and the tenth.
  CHECK(findings(directory / "run") == std::vector<std::string>(2, "all_labels_ignored"));
  CHECK(nlohmann::json::parse(read_lines(directory / "run/metrics.jsonl").back())["ignored_labels"] == 1.0);
  train<unguarded>(directory / "off", batches);
  CHECK(findings(directory / "off").empty());
}

TEST_CASE("an id outside the vocabulary ends the run before its update, and what was trained is saved") {
  scratch_directory const directory;
  std::vector<std::pair<at::Tensor, at::Tensor>> batches;
  for (std::int64_t i = 0; i < 6; ++i) batches.emplace_back(at::randint(0, 11, {8, 6}, at::kLong), at::arange(8));
  batches[4].first[2][1] = 11;
  CHECK_THROWS_AS(train<guarded>(directory / "run", batches), keel::data_error);
  CHECK(std::filesystem::exists(directory / "run/checkpoints/step-000000004"));
  // Mended, it goes on from there.
  batches[4].first[2][1] = 1;
  train<guarded>(directory / "run", batches);
  CHECK(nlohmann::json::parse(read_lines(directory / "run/metrics.jsonl").back())["update"] == 6);
}
