#include "../support.hpp"

using namespace keel_test;

namespace {

struct climbing : keel::recipe<keel::accumulate<2>, keel::oom::ladder<keel::oom::halve_micro_batch, keel::oom::give_up>> {};
struct two_pieces : keel::recipe<keel::accumulate<4>> {};
struct plain : keel::recipe<> {};

[[noreturn]] void run_out_of_memory() {
  TORCH_CHECK_WITH(OutOfMemoryError, false, "a test took the memory away");
  std::abort();
}

}  // namespace

TEST_CASE("only memory errors count as out of memory") {
  auto const classify = [](auto&& run) {
    try {
      run();
    } catch (std::exception const& thrown) {
      return keel::is_out_of_memory(thrown);
    }
    return false;
  };
  CHECK(classify([] { run_out_of_memory(); }));
  CHECK(classify([] { throw std::bad_alloc(); }));
  CHECK(classify([] { at::empty({std::int64_t{1} << 60}, at::kByte); }));
  CHECK_FALSE(classify([] { at::ones({2, 3}).matmul(at::ones({2, 3})); }));
  CHECK_FALSE(classify([] { TORCH_CHECK(false, "CUDA error: device-side assert triggered"); }));
  CHECK_FALSE(classify([] { throw std::runtime_error("not enough memory"); }));
}

TEST_CASE("after a halved micro-batch the update has the bits of one that began in halves") {
  for (int failing_call = 0; failing_call < 2; ++failing_call) {
    auto const climbed = make_small();
    auto const reference = make_small();
    torch::optim::AdamW a(climbed->parameters(), 0.01);
    torch::optim::AdamW b(reference->parameters(), 0.01);
    keel::step<climbing> step{climbed, a};
    keel::step<two_pieces> in_halves{reference, b};
    int call = 0;
    auto const starved = [&](pair_batch const& batch) {
      if (call++ == failing_call) run_out_of_memory();
      return mean_squared_error(climbed)(batch);
    };
    for (std::uint64_t update = 0; update < 3; ++update) {
      for (std::uint64_t i = 0; i < 2; ++i) {
        auto const batch = make_pair_batch(2 * update + i);
        step(batch, starved);
        for (std::int64_t half = 0; half < 2; ++half) {
          in_halves(keel::batch_traits<pair_batch>::slice(batch, 4 * half, 4 * half + 4), mean_squared_error(reference));
        }
      }
    }
    CHECK(step.pieces() == 2);
    CHECK(step.updates() == 3);
    CHECK(same_bits(climbed->parameters(), reference->parameters()));
  }
}

TEST_CASE("a retried window draws the same random numbers and sees the same running statistics") {
  torch::nn::Sequential model(torch::nn::Linear(6, 4), torch::nn::BatchNorm1d(4), torch::nn::Linear(4, 1));
  torch::optim::SGD optimizer(model->parameters(), 0.1);
  struct climbing_all_the_same
      : keel::recipe<keel::accumulate<2>, keel::oom::ladder<keel::oom::halve_micro_batch, keel::oom::give_up>,
                     keel::accept<"O10">> {};
  keel::step<climbing_all_the_same> step{model, optimizer};
  std::vector<at::Tensor> drawn;
  std::vector<at::Tensor> mean_before;
  int call = 0;
  auto const loss_of = [&](pair_batch const& batch) {
    drawn.push_back(at::rand({3}));
    mean_before.push_back(model->named_buffers()["1.running_mean"].clone());
    at::Tensor const loss = at::mse_loss(model->forward(batch.first), batch.second);
    if (call++ == 1) run_out_of_memory();
    return loss;
  };
  step(make_pair_batch(1), loss_of);
  step(make_pair_batch(2), loss_of);
  REQUIRE(drawn.size() == 6);  // two whole micro-batches, then twice two halves
  CHECK(same_bits(drawn[2], drawn[0]));
  CHECK(same_bits(mean_before[2], mean_before[0]));
  CHECK_FALSE(same_bits(drawn[1], drawn[0]));
}

TEST_CASE("where one row is still too much the ladder gives up, with parameters as they were and the step usable") {
  auto const model = make_small();
  torch::optim::SGD optimizer(model->parameters(), 0.1);
  keel::step<climbing> step{model, optimizer};
  auto const parameters = copies_of(model->parameters());
  int calls = 0;
  auto const outcome = step(make_pair_batch(1), [&](pair_batch const&) -> at::Tensor {
    ++calls;
    run_out_of_memory();
  });
  REQUIRE(outcome.is<keel::result::gave_up>());
  CHECK(calls == 4);  // 8 rows: whole, halves, quarters, single rows
  CHECK(same_bits(model->parameters(), parameters));
  CHECK(step.at_boundary());
  step(make_pair_batch(2), mean_squared_error(model));
  CHECK(step(make_pair_batch(3), mean_squared_error(model)).is<keel::result::updated>());
}

TEST_CASE("an error that is not about memory is never retried") {
  auto const model = make_small();
  torch::optim::SGD optimizer(model->parameters(), 0.1);
  keel::step<climbing> step{model, optimizer};
  int calls = 0;
  CHECK_THROWS_AS(step(make_pair_batch(1),
                       [&](pair_batch const&) -> at::Tensor {
                         ++calls;
                         TORCH_CHECK(false, "CUDA error: an illegal memory access was encountered");
                       }),
                  c10::Error);
  CHECK(calls == 1);
}

TEST_CASE("without a ladder an out-of-memory is an error that names the update and the way out") {
  auto const model = make_small();
  torch::optim::SGD optimizer(model->parameters(), 0.1);
  keel::step<plain> step{model, optimizer};
  try {
    step(make_pair_batch(1), [](pair_batch const&) -> at::Tensor { run_out_of_memory(); });
    FAIL("the error was swallowed");
  } catch (keel::out_of_memory_error const& thrown) {
    CHECK(thrown.id() == "E09");
    CHECK(std::string(thrown.what()).find("update 1: a test took the memory away") != std::string::npos);
    CHECK(std::string(thrown.what()).find("keel::oom::ladder") != std::string::npos);
  }
}

TEST_CASE("memory_comes_back_after_an_out_of_memory: a real refusal by the allocator leaves not a byte behind") {
  keel::memory::budget budget;
  auto const model = make_small();
  torch::optim::SGD optimizer(model->parameters(), 0.1);
  keel::step<climbing> step{model, optimizer};
  auto const wide = [&](pair_batch const& batch) {
    // Two tensors of one MiB a row: eight rows need more than the budget, four rows do not.
    at::Tensor const big = batch.first.sum(1).view({-1, 1}).expand({-1, 1 << 18}).contiguous();
    return at::mse_loss(model->forward(batch.first), batch.second) + (big * 0.0).sum();
  };
  for (int i = 0; i < 2; ++i) step(make_pair_batch(1), wide);
  auto const before = budget.allocated();
  auto const refused = budget.refused();
  budget.limit(budget.allocated() + (13 << 20));
  keel::step_outcome last = keel::result::accumulated{0, 0};
  for (int i = 0; i < 2; ++i) last = step(make_pair_batch(1), wide);
  budget.limit(0);
  CHECK(last.is<keel::result::updated>());
  CHECK(budget.refused() > refused);
  CHECK(step.pieces() == 2);
  CHECK(budget.allocated() == before);
  CHECK_THROWS_AS(keel::memory::budget(), std::logic_error);
}
