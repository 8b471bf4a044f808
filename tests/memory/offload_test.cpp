#include "transformer.hpp"

using namespace keel_test;
namespace oom = keel::oom;

namespace {

struct plain : keel::recipe<keel::checkpoint::every<keel::steps{2}>> {};
struct offloading : keel::recipe<keel::offload::optimizer, keel::checkpoint::every<keel::steps{2}>> {};
struct climbs : keel::recipe<oom::ladder<oom::offload_optimizer, oom::climb_back<keel::steps{2}>, oom::give_up>> {};

at::Tensor first_moment(torch::optim::Optimizer& optimizer, at::Tensor const& parameter) {
  return static_cast<torch::optim::AdamWParamState&>(*optimizer.state()[keel::libtorch::state_key(parameter)]).exp_avg();
}

/// A directory that is no memory.
std::filesystem::path on_disk() { return "/var/tmp"; }

struct wide_linear {
  wide_linear() { keel::libtorch::seed_random(at::kCPU, 3); }
  torch::nn::Linear model{1024, 1024};
};

}  // namespace

TEST_CASE("tensors in a mapped file are tensors like others, leave memory when they are released, and come back unchanged") {
  keel::memory::mapped_memory home(on_disk());
  at::Tensor const values = at::randn({300, 1000}).t();
  at::Tensor const moved = home.move_in(values);
  CHECK(home.holds(moved));
  CHECK_FALSE(home.holds(values));
  CHECK(moved.strides() == values.strides());
  CHECK(home.bytes() == 1200000);
  CHECK(same_bits(moved, values));
  moved.mul_(2.0);
  home.release(moved, 0, 1200000);
  CHECK(home.resident() < 100000);
  CHECK(same_bits(moved, values * 2.0));
  CHECK(home.resident() > 1000000);
  {
    at::Tensor const other = home.zeros(values, at::kDouble);
    CHECK(other.scalar_type() == at::kDouble);
    CHECK(home.bytes() == 3600000);
    CHECK(other.sum().item<double>() == 0.0);
  }
  CHECK(home.bytes() == 1200000);
  at::Tensor const empty = home.zeros(at::empty({0, 3}), at::kFloat);
  CHECK(empty.numel() == 0);
  CHECK(home.holds(empty));
}

TEST_CASE("offloading to a directory in memory, or to none, is refused by name") {
  auto const id = [](std::filesystem::path const& where) {
    try {
      keel::memory::mapped_memory home(where);
    } catch (keel::file_error const& thrown) {
      CHECK(std::string(thrown.what()).find(where.string()) != std::string::npos);
      return thrown.id();
    }
    return std::string("none");
  };
  CHECK(id("/dev/shm") == "E02");
  CHECK(id("/no/such/directory") == "E02");
}

TEST_CASE("an optimizer whose state is in a file gives the bits of one in memory, holds none of it, and saves and resumes") {
  scratch_directory directory;
  keel::memory::budget budget;
  auto const train = [&](auto recipe, std::string const& name, std::int64_t stop) {
    using Recipe = decltype(recipe);
    keel::libtorch::seed_random(at::kCPU, 3);
    torch::nn::Linear model(300, 500);
    keel::adamw optimizer(model->parameters(), torch::optim::AdamWOptions(0.01).amsgrad(true));
    auto const before = budget.allocated();
    keel::trainer<Recipe> run{model, optimizer, quiet({.run_directory = directory / name})};
    run.resume();
    auto const loss = [&](at::Tensor const& x) { return model->forward(x).square().mean(); };
    for (std::int64_t i = run.updates(); i < stop; ++i) {
      at::Generator generator = at::detail::createCPUGenerator(static_cast<std::uint64_t>(i));
      run.step(at::randn({4, 300}, generator), loss);
    }
    // Beside the gradients: three moments of 600 KB a parameter, or none.
    std::int64_t const held = budget.allocated() - before - 4 * (300 * 500 + 500);
    run.save();
    return std::make_pair(copies_of(model->parameters()), held);
  };
  auto const expected = train(plain{}, "plain", 6);
  auto const found = train(offloading{}, "offloading", 6);
  CHECK(same_bits(found.first, expected.first));
  CHECK(expected.second > 1700000);
  CHECK(found.second < 100000);
  // Killed after four updates and continued.
  train(offloading{}, "resumed", 4);
  CHECK(same_bits(train(offloading{}, "resumed", 6).first, expected.first));
}

TEST_CASE("bf16 parameters keep their fp32 copies in the file, too, and doubles and strided ones go by operators there") {
  for (at::ScalarType const type : {at::kBFloat16, at::kDouble}) {
    for (bool const sgd : {false, true}) {
      auto const train = [&](bool offload) {
        keel::libtorch::seed_random(at::kCPU, 3);
        torch::nn::Linear model(64, 32);
        model->to(type);
        std::unique_ptr<torch::optim::Optimizer> optimizer;
        if (sgd) {
          optimizer = std::make_unique<keel::sgd>(model->parameters(), torch::optim::SGDOptions(0.05).momentum(0.9));
        } else {
          optimizer = std::make_unique<keel::adamw>(model->parameters(), 0.01);
        }
        auto& engine = dynamic_cast<keel::update_engine&>(*optimizer);
        auto const home = std::make_shared<keel::memory::mapped_memory>(on_disk());
        for (int i = 0; i < 4; ++i) {
          model->weight.mutable_grad() = at::full({64, 32}, 0.1 * (i + 1), model->weight.options()).t();
          model->bias.mutable_grad() = at::ones({32}, model->bias.options());
          if (offload && i == 1) engine.keep_state_in(home);
          optimizer->step();
          if (offload && i > 0) CHECK(home->bytes() > 0);
          if (offload && i == 2) {
            engine.keep_state_in(nullptr);
            CHECK(home->bytes() == 0);
            engine.keep_state_in(home);
          }
        }
        return copies_of(model->parameters());
      };
      CHECK(same_bits(train(true), train(false)));
    }
  }
}

TEST_CASE("a rung that offloads moves the moments at once, and brings them back when it is given back") {
  keel::memory::budget budget;
  wide_linear with;
  keel::adamw optimizer(with.model->parameters(), 0.01);
  keel::step<climbs> step{with.model, optimizer};
  step.ladder().offload_to(on_disk());
  bool starve = false;
  std::int64_t seen = 0;
  auto const loss = [&](at::Tensor const& x) {
    seen = budget.allocated();
    if (std::exchange(starve, false)) TORCH_CHECK_WITH(OutOfMemoryError, false, "a test took the memory away");
    return with.model->forward(x).square().mean();
  };
  at::Tensor const x = at::randn({2, 1024});
  step(x, loss);
  step(x, loss);
  auto const in_memory = seen;
  starve = true;
  step(x, loss);
  CHECK(step.relief().offload);
  // Two moments of 4 MiB went before the batch ran again.
  CHECK(seen < in_memory - (7 << 20));
  CHECK(budget.allocated() > 0);
  auto const address = first_moment(optimizer, with.model->weight).data_ptr();
  step(x, loss);
  CHECK_FALSE(step.relief().offload);
  // Moved when the next window begins.
  step(x, loss);
  CHECK(first_moment(optimizer, with.model->weight).data_ptr() != address);
  CHECK(seen > in_memory - (1 << 20));
}
