// Micro-batches that are cut: pieces that count nothing, members that are no rows. And leaks that come seldom.
#include <cmath>

#include "../support.hpp"

using namespace keel_test;
using namespace keel::literals;

namespace {

struct halves : keel::recipe<keel::oom::ladder<keel::oom::halve_micro_batch, keel::oom::give_up>> {};
struct plain : keel::recipe<> {};

[[noreturn]] void run_out_of_memory() { C10_THROW_ERROR(OutOfMemoryError, "no memory"); }

/// Rows and how many of each row's tokens count.
using masked = std::tuple<at::Tensor, at::Tensor, at::Tensor>;

/// The mean over the rows that count: 0 / 0 of a batch that is all padding.
auto masked_loss(std::shared_ptr<small_module> const& model, std::int64_t max_rows) {
  return [model, max_rows](masked const& b) {
    auto const& [x, y, mask] = b;
    if (x.size(0) > max_rows) run_out_of_memory();
    at::Tensor const losses = (model->forward(x) - y).square().squeeze(1);
    double const weight = mask.sum().item<double>();
    return keel::weighted_loss{(losses * mask).sum() / weight, weight};
  };
}

template <class Call>
std::string message_of(Call const& call, std::string const& id) {
  try {
    call();
  } catch (keel::error const& thrown) {
    CHECK(thrown.id() == id);
    return thrown.what();
  }
  FAIL("nothing was thrown");
  return {};
}

}  // namespace

TEST_CASE("a half that is all padding adds nothing: the update is that of the whole micro-batch") {
  for (std::int64_t const padded_from : {std::int64_t{4}, std::int64_t{0}}) {
    auto const train = [&](auto* recipe, std::int64_t max_rows) {
      auto const model = make_small();
      keel::adamw optimizer(model->parameters(), 0.01);
      keel::step<std::remove_pointer_t<decltype(recipe)>> step{model, optimizer};
      for (std::uint64_t i = 0; i < 4; ++i) {
        auto const [x, y] = make_pair_batch(i);
        at::Tensor const mask = at::ones({8});
        mask.slice(0, padded_from, padded_from + 4).fill_(0.0);
        auto const result = step(masked{x, y, mask}, masked_loss(model, max_rows));
        REQUIRE(result.template is<keel::result::updated>());
        CHECK(std::isfinite(result.template get<keel::result::updated>().loss));
      }
      return copies_of(model->parameters());
    };
    auto const cut = train(static_cast<halves*>(nullptr), 4);
    auto const whole = train(static_cast<plain*>(nullptr), 8);
    for (std::size_t i = 0; i < cut.size(); ++i) CHECK(at::allclose(cut[i], whole[i], 1e-5, 1e-6));
  }
  // One of which nothing counts is skipped, whole and cut.
  auto const model = make_small();
  keel::adamw optimizer(model->parameters(), 0.01);
  keel::step<halves> step{model, optimizer};
  auto const [x, y] = make_pair_batch(1);
  auto const outcome = step(masked{x, y, at::zeros({8})}, masked_loss(model, 4));
  REQUIRE(outcome.skipped() != nullptr);
  CHECK(outcome.skipped()->why == keel::reason::zero_weight);
  CHECK(step.pieces() == 2);
}

TEST_CASE("a member of a batch that is no row is rejected by name before a rung is taken, and in an evaluation") {
  auto const model = make_small();
  keel::adamw optimizer(model->parameters(), 0.01);
  auto const refuses = [&](auto const& batch, std::string const& words) {
    keel::trainer<halves> run{model, optimizer, quiet()};
    auto const loss = [&](auto const& b) { return model->forward(std::get<0>(b)).square().mean(); };
    auto const said = message_of([&] { run.step(batch, loss); }, "E06");
    INFO(said);
    CHECK(said.find(words) != std::string::npos);
    CHECK(message_of([&] { run.evaluate(std::vector{batch}, loss); }, "E06").find(words) != std::string::npos);
    // Where nothing is ever cut it is the loss function's business.
    keel::trainer<plain> uncut{model, optimizer, quiet()};
    CHECK(uncut.step(batch, loss).template is<keel::result::updated>());
  };
  at::Tensor const x = at::randn({8, 6});
  refuses(std::tuple(x, at::rand({3})), "member 2 of the batch has 3 rows and the first has 8");
  refuses(std::tuple(x, x, at::scalar_tensor(0.5)), "member 3 of the batch has 0 rows");
  refuses(std::pair(x, std::pair(x, at::rand({9, 2}))), "member 2 of the batch has 9 rows and the first has 8");
}

TEST_CASE("a vector of tensors and an example with data and target are cut only along rows that they share") {
  CHECK_NOTHROW(keel::require_same_rows(std::vector<at::Tensor>{at::ones({4, 2}), at::ones({4})}));
  CHECK_THROWS_AS(keel::require_same_rows(std::vector<at::Tensor>{at::ones({4, 2}), at::ones({5})}), keel::data_error);
  struct example {
    at::Tensor data, target;
  };
  CHECK_NOTHROW(keel::require_same_rows(example{at::ones({4, 2}), at::ones({4})}));
  CHECK_THROWS_AS(keel::require_same_rows(example{at::ones({4, 2}), at::ones({1})}), keel::data_error);
  CHECK_NOTHROW(keel::require_same_rows(keel::row_numbers{1, 2, 3}));
}

TEST_CASE("leaks of every update and of every 40, 100, 500 and 2000 are found, and noise is none") {
  using keel::memory::growth;
  auto const judged = [](std::int64_t every, std::int64_t bytes, std::int64_t updates) {
    std::mt19937_64 engine(5);
    std::uniform_int_distribution<std::int64_t> noise(0, 1 << 22);
    keel::memory::timeline line;
    growth found = growth::unknown;
    for (std::int64_t i = 0; i < updates && found != growth::staircase; ++i) {
      std::int64_t const held = (100 << 20) + bytes * (i / every) + (i % 5 == 0 ? noise(engine) : 0);
      line.add(i, {held, held + (20 << 20) + noise(engine), {held, held, held}});
      found = line.judge();
    }
    return found;
  };
  for (std::int64_t const every : {1, 40, 100, 500, 2000}) {
    INFO("every " << every);
    CHECK(judged(every, 1 << 16, 20 * every + 16) == growth::staircase);
  }
  CHECK(judged(1, 0, 20'000) == growth::flat);
}

TEST_CASE("a leak is found in a run that is resumed more often than it leaks, whatever each process holds to begin with") {
  using keel::memory::growth;
  keel::memory::timeline line;
  std::int64_t update = 0;
  for (std::int64_t process = 0; process < 12; ++process) {
    // Another process, which begins at another level; within it one leak.
    std::int64_t const begins = (100 + process % 3 * 7) << 20;
    for (int i = 0; i < 300; ++i, ++update) {
      std::int64_t const held = begins + (i >= 150 ? 1 << 16 : 0);
      line.add(update, {held, held + (1 << 20), {held, held, held}});
    }
    nlohmann::json object;
    keel::tensor_map tensors;
    keel::state_writer writer(object, tensors);
    line.visit(writer);
    keel::memory::timeline resumed;
    keel::state_reader reader(object, tensors, "here");
    resumed.visit(reader);
    line = resumed;
  }
  CHECK(line.judge() == growth::staircase);
  // A checkpoint of an older keel has none.
  keel::tensor_map const none;
  nlohmann::json const empty = nlohmann::json::object();
  keel::state_reader reader(empty, none, "here");
  keel::memory::timeline fresh;
  CHECK_NOTHROW(fresh.visit(reader));
  CHECK(fresh.judge() == growth::unknown);
}
