#include "../starving.hpp"

using namespace keel_test;
namespace oom = keel::oom;

namespace {

struct halves : keel::recipe<oom::ladder<oom::halve_micro_batch, oom::give_up>> {};

}  // namespace

TEST_CASE("an evaluation that does not fit is cut like a micro-batch, and without a ladder is an error that says so") {
  auto const model = make_small();
  keel::adamw optimizer(model->parameters(), 0.01);
  keel::trainer<halves> run{model, optimizer, quiet()};
  std::vector<pair_batch> const batches{make_pair_batch(1), make_pair_batch(2)};
  double const whole = run.evaluate(batches, mean_squared_error(model));
  run.step(batches[0], mean_squared_error(model));
  CHECK(optimizer.param_groups()[0].params()[0].grad().defined());
  auto const at_most = [&](std::int64_t rows) {
    return [&, rows](pair_batch const& batch) {
      if (keel::batch_traits<pair_batch>::rows(batch) > rows) run_out_of_memory();
      return mean_squared_error(model)(batch);
    };
  };
  double const expected = run.evaluate(batches, mean_squared_error(model));
  CHECK(whole != expected);
  CHECK(run.evaluate(batches, at_most(2)) == Approx(expected).epsilon(1e-6));
  CHECK_FALSE(optimizer.param_groups()[0].params()[0].grad().defined());
  CHECK_THROWS_AS(run.evaluate(batches, at_most(0)), keel::out_of_memory_error);
  keel::trainer<keel::recipe<>> plain{model, optimizer, quiet()};
  CHECK_THROWS_AS(plain.evaluate(batches, at_most(2)), keel::out_of_memory_error);
}

TEST_CASE("a batch or a piece of weight nothing counts nothing in an evaluation, however it is cut") {
  auto const model = make_small();
  keel::adamw optimizer(model->parameters(), 0.01);
  keel::trainer<halves> run{model, optimizer, quiet()};
  std::vector<pair_batch> const batches{make_pair_batch(1), make_pair_batch(2)};
  auto const of_positive = [&](pair_batch const& batch, bool starve) -> keel::weighted_loss {
    auto const rows = batch.second.squeeze(1).gt(0.0).nonzero().squeeze(1);
    if (starve && batch.first.size(0) > 1) run_out_of_memory();
    if (rows.numel() == 0) return {at::full({}, NAN), 0.0};
    return {at::mse_loss(model->forward(batch.first.index_select(0, rows)), batch.second.index_select(0, rows)),
            static_cast<double>(rows.numel())};
  };
  double const whole = run.evaluate(batches, [&](pair_batch const& batch) { return of_positive(batch, false); });
  double const by_rows = run.evaluate(batches, [&](pair_batch const& batch) { return of_positive(batch, true); });
  CHECK(std::isfinite(whole));
  CHECK(by_rows == Approx(whole).epsilon(1e-6));
}

TEST_CASE("memory that runs out at any allocation of an evaluation is at most an error, and leaves the run as it was") {
  auto const model = make_small(1, 0.3);
  keel::adamw optimizer(model->parameters(), 0.01);
  keel::trainer<keel::recipe<>> run{model, optimizer, quiet()};
  std::vector<pair_batch> const batches{make_pair_batch(1)};
  // It draws, as an evaluation by samples does.
  auto const loss_of = [&](pair_batch const& batch) { return mean_squared_error(model)(batch) + at::rand({}); };
  keel::memory::budget budget;
  bool was_refused = true;
  std::int64_t nth = 0, errors = 0;
  while (was_refused) {
    REQUIRE(++nth < 1000);
    auto const before = keel::random_snapshot::take(at::kCPU);
    auto const refused = budget.refused();
    budget.refuse_allocation(nth);
    try {
      run.evaluate(batches, loss_of);
    } catch (std::exception const&) {
      ++errors;
    }
    budget.refuse_allocation(0);
    was_refused = budget.refused() > refused;
    INFO("allocation " << nth);
    CHECK(before.is_current());
    CHECK(model->is_training());
  }
  // Where it can make room, an evaluation tries again.
  CHECK(errors > 0);
  CHECK(nth > 10);
}
