// Values that were looked at, agreed on, or reduced, and what takes nothing else.
#include "../support.hpp"

using namespace keel::literals;
using namespace keel_test;

TEST_CASE("only a finite number is one, and it compares with thresholds as numbers do") {
  CHECK_FALSE(keel::as_finite(std::numeric_limits<double>::quiet_NaN()).has_value());
  CHECK_FALSE(keel::as_finite(-std::numeric_limits<float>::infinity()).has_value());
  CHECK(keel::exceeds(*keel::as_finite(2.0), 1.0));
  CHECK_FALSE(keel::exceeds(*keel::as_finite(1.0), 1.0));
  CHECK(*keel::as_finite(1.0) < *keel::as_finite(2.0));
}

TEST_CASE("the best so far takes agreed, finite losses, and ties keep the older one") {
  keel::world_of_one const world;
  keel::best_so_far best;
  auto const offer = [&](double loss, std::int64_t update) {
    return best.offer(keel::as_finite(keel::agree(world, loss)), update);
  };
  CHECK_FALSE(best.has_one());
  CHECK(offer(3.0, 1));
  CHECK_FALSE(offer(3.0, 2));
  CHECK(offer(2.5, 3));
  CHECK_FALSE(offer(4.0, 4));
  CHECK_FALSE(offer(std::nan(""), 5));
  CHECK(best.loss() == 2.5);
  CHECK(best.update() == 3);

  nlohmann::json object;
  keel::tensor_map tensors;
  keel::state_writer writer(object, tensors, "");
  best.visit(writer);
  keel::best_so_far again;
  keel::state_reader reader(object, tensors, "", "a test");
  again.visit(reader);
  CHECK(again.has_one());
  CHECK(again.loss() == 2.5);
}

namespace {
/// Two ranks, of which this is one; the other one's value is fixed.
struct world_of_two {
  double other;
  static int size() { return 2; }
  static int rank() { return 0; }
  template <keel::reduction Reduction, class Value>
  Value combine(Reduction, Value const& mine) const {
    if constexpr (std::same_as<Value, double>) return mine + other;
    return mine;
  }
};
}  // namespace

TEST_CASE("where one rank has a NaN all ranks find it together") {
  keel::best_so_far best;
  CHECK_FALSE(best.offer(keel::as_finite(keel::agree(world_of_two{std::nan("")}, 1.0, keel::reduce::mean{})), 1));
  CHECK(best.offer(keel::as_finite(keel::agree(world_of_two{2.0}, 1.0, keel::reduce::mean{})), 2));
  CHECK(best.loss() == 3.0);
}

TEST_CASE("a metric of one's own, logged from a hook, stands in that window's line and in no other") {
  scratch_directory const directory;
  auto const model = make_small();
  torch::optim::SGD optimizer(model->parameters(), 0.1);
  keel::trainer<keel::recipe<>> run{model, optimizer, quiet({.run_directory = directory / "run", .updates = 2})};
  keel::metric<keel::reduce::mean> const accuracy("accuracy");
  run.on([&](keel::event::update_begin const& e) {
    if (e.update == 0) run.log(accuracy.reduced(keel::world_of_one{}, 0.25));
    if (e.update == 0) run.log(keel::metric<keel::reduce::max>("worst").reduced(keel::world_of_one{}, std::nan("")));
  });
  run.on([&](keel::event::update_end const& e) {
    if (e.update == 1) run.log(keel::metric<keel::reduce::sum>("late").reduced(keel::world_of_one{}, 1.0));
  });
  run.fit(std::vector<pair_batch>{make_pair_batch(1), make_pair_batch(2)}, mean_squared_error(model));
  auto const lines = read_lines(directory / "run" / "metrics.jsonl");
  REQUIRE(lines.size() == 2);
  auto const first = nlohmann::json::parse(lines[0]);
  CHECK(first["own"]["late"] == 1.0);
  CHECK(first["own"]["accuracy"] == 0.25);
  CHECK(first["own"]["worst"] == "nan");
  CHECK_FALSE(nlohmann::json::parse(lines[1]).contains("own"));
}

TEST_CASE("a save that all ranks agreed to is made, and one that they did not is not") {
  scratch_directory const directory;
  struct saves : keel::recipe<keel::checkpoint::every<100_steps>> {};
  auto const model = make_small();
  torch::optim::SGD optimizer(model->parameters(), 0.1);
  keel::trainer<saves> run{model, optimizer, quiet({.run_directory = directory / "run"})};
  run.step(make_pair_batch(1), mean_squared_error(model));
  run.save_if(keel::agree(keel::world_of_one{}, false));
  CHECK(std::filesystem::is_empty(directory / "run" / "checkpoints"));
  run.save_if(keel::agree(keel::world_of_one{}, true));
  CHECK_FALSE(std::filesystem::is_empty(directory / "run" / "checkpoints"));
}
