// batch_guard::drop: rows that are not finite are left out of their batch, and the rest trains as a batch without them.
#include "../support.hpp"

using namespace keel_test;

namespace {

struct drops : keel::recipe<keel::batch_guard::drop<>, keel::nonfinite::skip<3>> {};
struct drops_of_two : keel::recipe<keel::batch_guard::drop<>, keel::accumulate<2>> {};
struct plain : keel::recipe<keel::nonfinite::skip<3>> {};
struct plain_of_two : keel::recipe<keel::accumulate<2>> {};

/// Of a batch of eight rows, those that are spoiled: in the inputs by NaN, in the labels by infinity.
struct spoiled {
  std::vector<std::int64_t> inputs, labels;
  bool holds(std::int64_t row) const {
    return std::count(inputs.begin(), inputs.end(), row) + std::count(labels.begin(), labels.end(), row) > 0;
  }
};
std::vector<spoiled> const all = {{{}, {}}, {{0}, {}}, {{2, 5}, {7}}, {{}, {3}}, {{0, 1, 2, 3, 4, 5, 6}, {}}, {{}, {}}};

std::vector<pair_batch> batches(bool with_bad_rows) {
  std::vector<pair_batch> made;
  for (std::size_t i = 0; i < all.size(); ++i) {
    pair_batch batch = make_pair_batch(i, 8);
    std::vector<std::int64_t> kept;
    for (std::int64_t row = 0; row < 8; ++row) {
      if (!all[i].holds(row)) kept.push_back(row);
    }
    for (std::int64_t const row : all[i].inputs) batch.first[row][1] = NAN;
    for (std::int64_t const row : all[i].labels) batch.second[row].fill_(INFINITY);
    at::Tensor const numbers = at::tensor(kept, at::kLong);
    if (!with_bad_rows) batch = {batch.first.index_select(0, numbers), batch.second.index_select(0, numbers)};
    made.push_back(batch);
  }
  return made;
}

template <class Recipe>
std::vector<at::Tensor> train(std::vector<pair_batch> const& data, std::filesystem::path const& directory = {}) {
  auto const model = make_small();
  keel::adamw optimizer(model->parameters(), 0.01);
  keel::trainer<Recipe> run{model, optimizer, quiet({.run_directory = directory, .epochs = 1})};
  run.fit(data, mean_squared_error(model));
  CHECK(run.skipped() == 0);
  return copies_of(model->parameters());
}

/// A type of the program's own, which lists its fields and says nothing of inputs and labels.
struct window {
  at::Tensor values;
  std::vector<std::int64_t> lengths;
  std::int64_t rows() const { return values.size(0); }
  window slice(std::int64_t begin, std::int64_t end) const {
    return {values.slice(0, begin, end), {lengths.begin() + begin, lengths.begin() + end}};
  }
  void visit(auto& archive) {
    archive("values", values);
    archive("lengths", lengths);
  }
};

}  // namespace

TEST_CASE("a batch with rows that are not finite trains as one without them, also where micro-batches are weighed by their rows") {
  scratch_directory const directory;
  CHECK(same_bits(train<drops>(batches(true), directory.path()), train<plain>(batches(false))));
  CHECK(same_bits(train<drops_of_two>(batches(true)), train<plain_of_two>(batches(false))));
  std::int64_t told = 0;
  for (auto const& event : events_of(directory.path(), "batch_finding")) {
    auto const words = event.at("message").get<std::string>();
    if (words.find("rows have a value that is not finite, and are left out") != std::string::npos) ++told;
  }
  CHECK(told == 4);
}

TEST_CASE("a batch of which no row is finite is left whole, and its update is skipped as any other") {
  auto const model = make_small();
  keel::adamw optimizer(model->parameters(), 0.01);
  keel::trainer<drops> run{model, optimizer, quiet()};
  pair_batch batch = make_pair_batch(1, 8);
  batch.first.fill_(NAN);
  CHECK(run.step(batch, mean_squared_error(model)).skipped() != nullptr);
  CHECK(run.step(make_pair_batch(2, 8), mean_squared_error(model)).updated() != nullptr);
}

TEST_CASE("rows leave every field of a batch that has them, lists of numbers too") {
  auto const model = make_small();
  keel::adamw optimizer(model->parameters(), 0.01);
  keel::trainer<drops> run{model, optimizer, quiet()};
  window batch{make_pair_batch(1, 4).first.clone(), {10, 11, 12, 13}};
  batch.values[1][0] = NAN;
  std::vector<std::int64_t> seen;
  auto const outcome = run.step(batch, [&](window const& of) {
    seen = of.lengths;
    CHECK(of.values.size(0) == 3);
    return model->forward(of.values).square().mean();
  });
  CHECK(outcome.updated() != nullptr);
  CHECK(seen == std::vector<std::int64_t>{10, 12, 13});
}

TEST_CASE("infinities in a mask are no bad rows") {
  at::Tensor const inputs = at::ones({4, 2}), mask = at::full({4, 3}, -INFINITY);
  CHECK_FALSE(keel::finite_rows({{inputs, mask}, {at::ones({4})}}, 4).defined());
  at::Tensor const labels = at::ones({4});
  labels[1] = -INFINITY;
  CHECK(at::equal(keel::finite_rows({{inputs, mask}, {labels}}, 4), at::tensor({0, 2, 3}, at::kLong)));
}
