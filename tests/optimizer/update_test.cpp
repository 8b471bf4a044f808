// keel::adamw, adam and sgd beside LibTorch's own, and the factor that a step folds into them.
#include <torch/optim/adam.h>

#include <cmath>
#include <limits>

#include "../support.hpp"

using namespace keel::literals;
using namespace keel_test;

namespace {

/// Shapes that a kernel may stumble over: empty, zero-dimensional, shorter than a vector, with a tail, several pieces long.
std::vector<at::Tensor> odd_parameters(std::uint64_t seed, at::ScalarType dtype = at::kFloat) {
  keel::libtorch::seed_random(at::kCPU, seed);
  std::vector<at::Tensor> all;
  for (auto const& shape : {std::vector<std::int64_t>{0}, {}, {3}, {8}, {37, 5}, {40'000}, {70'001}}) {
    all.push_back(at::randn(shape, dtype).requires_grad_(true));
  }
  all.push_back(at::randn({6, 4}, dtype).t().detach().requires_grad_(true));
  all.push_back(at::randn({10, 10}, dtype).slice(1, 0, 7).detach().requires_grad_(true));
  return all;
}

void set_gradients(std::vector<at::Tensor> const& parameters, std::uint64_t seed) {
  keel::libtorch::seed_random(at::kCPU, seed);
  for (at::Tensor const& one : parameters) one.mutable_grad() = at::randn(one.sizes(), one.scalar_type());
  // One parameter is without a gradient now and then.
  if (seed % 3 == 0) parameters[3].mutable_grad() = at::Tensor();
}

double largest_difference(std::vector<at::Tensor> const& a, std::vector<at::Tensor> const& b) {
  double largest = 0.0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (a[i].numel() == 0) continue;
    largest = std::max(largest, (a[i].detach().to(at::kDouble) - b[i].detach().to(at::kDouble)).abs().max().item<double>());
  }
  return largest;
}

template <class Options>
std::vector<torch::optim::OptimizerParamGroup> in_two_groups(std::vector<at::Tensor> const& all, Options const& first,
                                                             Options const& second) {
  std::vector<torch::optim::OptimizerParamGroup> made;
  made.emplace_back(std::vector<at::Tensor>(all.begin(), all.begin() + 5), std::make_unique<Options>(first));
  made.emplace_back(std::vector<at::Tensor>(all.begin() + 5, all.end()), std::make_unique<Options>(second));
  return made;
}

/// A hundred updates by both, with groups of other options: the largest difference of a parameter.
template <class Ours, class Theirs, class Options>
double after_a_hundred_updates(Options first, Options second, at::ScalarType dtype = at::kFloat) {
  auto const ours = odd_parameters(1, dtype);
  auto const theirs = odd_parameters(1, dtype);
  Ours our_optimizer(in_two_groups(ours, first, second), first);
  Theirs their_optimizer(in_two_groups(theirs, first, second), first);
  for (std::uint64_t step = 0; step < 100; ++step) {
    set_gradients(ours, step);
    set_gradients(theirs, step);
    our_optimizer.step();
    their_optimizer.step();
  }
  return largest_difference(ours, theirs);
}

/// Odd ones of several dtypes and orders in memory.
std::vector<at::Tensor> mixed_parameters() {
  auto all = odd_parameters(1);
  all[2] = all[2].detach().to(at::kDouble).requires_grad_(true);
  all[4] = all[4].detach().to(at::kBFloat16).requires_grad_(true);
  all.push_back(at::randn({3, 4, 5, 6}).contiguous(at::MemoryFormat::ChannelsLast).requires_grad_(true));
  all.push_back(at::randn({20, 30}).to(at::kBFloat16).requires_grad_(true));
  all.push_back(at::randn({}).to(at::kBFloat16).requires_grad_(true));
  return all;
}

/// In the parameters' order in memory; those of bf16 parameters in fp32 now and then.
void set_mixed_gradients(std::vector<at::Tensor> const& parameters, std::uint64_t seed, double scale) {
  set_gradients(parameters, seed);
  for (at::Tensor const& one : parameters) {
    if (!one.grad().defined()) continue;
    bool const widened = seed % 2 == 0 && one.scalar_type() == at::kBFloat16;
    at::Tensor const raw = one.grad() * scale;
    one.mutable_grad() = at::empty_like(one.detach(), widened ? at::kFloat : one.scalar_type()).copy_(raw);
  }
}

at::Tensor yes_or_no(bool value) { return at::full({}, value, at::kBool); }

torch::optim::AdamWParamState& state_of(keel::adamw& optimizer, at::Tensor const& parameter) {
  return static_cast<torch::optim::AdamWParamState&>(*optimizer.state().at(keel::libtorch::state_key(parameter)));
}

/// Parameters, moments, fp32 copies and numbers of updates.
std::vector<at::Tensor> everything_of(keel::adamw& optimizer, std::vector<at::Tensor> const& parameters) {
  std::vector<at::Tensor> all;
  for (at::Tensor const& one : parameters) {
    if (optimizer.state().count(keel::libtorch::state_key(one)) == 0) continue;
    auto const& state = state_of(optimizer, one);
    all.push_back(at::full({}, state.step(), at::kLong));
    for (at::Tensor const& part :
         {one.detach(), state.exp_avg(), state.exp_avg_sq(), state.max_exp_avg_sq(), optimizer.master_of(one)}) {
      if (part.defined()) all.push_back(part.clone());
    }
  }
  return all;
}

}  // namespace

TEST_CASE("an update_where that happens is the update of its factor, and one that does not leaves every bit") {
  using options = torch::optim::AdamWOptions;
  double const nan = std::numeric_limits<double>::quiet_NaN();
  for (double const factor : {1.0, 0.37 / 1024.0}) {
    for (bool const amsgrad : {false, true}) {
      auto const ours = mixed_parameters();
      auto const theirs = mixed_parameters();
      options const first = options(1e-2).weight_decay(0.1).amsgrad(amsgrad);
      options const second = options(3e-3).betas({0.8, 0.95}).amsgrad(!amsgrad);
      keel::adamw where(in_two_groups(ours, first, second), first);
      keel::adamw with(in_two_groups(theirs, first, second), first);
      for (std::uint64_t step = 0; step < 40; ++step) {
        set_mixed_gradients(ours, step, 1.0 / factor);
        where.prepare();
        if (step % 4 == 0) {
          for (at::Tensor const& one : ours) {
            if (one.grad().defined()) one.mutable_grad().fill_(step % 8 == 0 ? nan : INFINITY);
          }
          auto const before = everything_of(where, ours);
          where.update_where(yes_or_no(false), at::full({}, step % 8 == 0 ? nan : 0.0, at::kDouble));
          where.undo_update();
          REQUIRE(same_bits(everything_of(where, ours), before));
        } else {
          where.update_where(yes_or_no(true), at::full({}, factor, at::kDouble));
          set_mixed_gradients(theirs, step, 1.0 / factor);
          with.prepare();
          with.update_with(factor);
        }
      }
      auto mine = everything_of(where, ours);
      auto other = everything_of(with, theirs);
      // Two fp32 copies that hardly differ may round to other bf16 numbers.
      auto const is_rounded = [](at::Tensor const& one) { return one.scalar_type() == at::kBFloat16; };
      std::erase_if(mine, is_rounded);
      std::erase_if(other, is_rounded);
      REQUIRE(mine.size() == other.size());
      CHECK(largest_difference(mine, other) < 1e-5);
    }
  }
}

TEST_CASE("an update_where finds moments that lie in memory in another order than their parameter") {
  auto const after = [](bool conditionally) {
    auto const parameters = odd_parameters(1);
    keel::adamw optimizer(parameters, torch::optim::AdamWOptions(1e-2).amsgrad(true));
    for (std::uint64_t step = 1; step < 6; ++step) {
      set_gradients(parameters, step);
      optimizer.prepare();
      if (step == 2) {
        auto& second = state_of(optimizer, parameters[4]);
        second.exp_avg_sq(second.exp_avg_sq().t().contiguous().t());
        auto& largest = state_of(optimizer, parameters[7]);
        largest.max_exp_avg_sq(largest.max_exp_avg_sq().contiguous());
      }
      if (conditionally) {
        optimizer.update_where(yes_or_no(true), at::full({}, 1.0, at::kDouble));
      } else {
        optimizer.update_with(1.0);
      }
    }
    return everything_of(optimizer, parameters);
  };
  CHECK(largest_difference(after(true), after(false)) < 1e-6);
}

TEST_CASE("keel::adamw follows torch::optim::AdamW over a hundred updates, amsgrad and groups included") {
  using options = torch::optim::AdamWOptions;
  CHECK(after_a_hundred_updates<keel::adamw, torch::optim::AdamW>(options(1e-2), options(1e-3).weight_decay(0.1)) < 1e-5);
  CHECK(after_a_hundred_updates<keel::adamw, torch::optim::AdamW>(options(1e-2).amsgrad(true),
                                                                  options(1e-3).betas({0.8, 0.95}).eps(1e-6)) < 1e-5);
  CHECK(after_a_hundred_updates<keel::adamw, torch::optim::AdamW>(options(1e-2), options(1e-3).weight_decay(0.1), at::kDouble) <
        1e-13);
}

TEST_CASE("keel::adam follows torch::optim::Adam over a hundred updates, with its coupled weight decay") {
  using options = torch::optim::AdamOptions;
  CHECK(after_a_hundred_updates<keel::adam, torch::optim::Adam>(options(1e-2), options(1e-3).weight_decay(0.1)) < 1e-5);
  CHECK(after_a_hundred_updates<keel::adam, torch::optim::Adam>(options(1e-2).amsgrad(true), options(1e-3)) < 1e-5);
  CHECK(after_a_hundred_updates<keel::adam, torch::optim::Adam>(options(1e-2), options(1e-3).weight_decay(0.1), at::kDouble) <
        1e-13);
}

TEST_CASE("keel::sgd follows torch::optim::SGD over a hundred updates, with momentum, dampening, Nesterov and decay") {
  using options = torch::optim::SGDOptions;
  CHECK(after_a_hundred_updates<keel::sgd, torch::optim::SGD>(options(1e-2), options(1e-2).momentum(0.9)) < 1e-4);
  CHECK(after_a_hundred_updates<keel::sgd, torch::optim::SGD>(
            options(1e-2).momentum(0.9).dampening(0.5), options(1e-2).momentum(0.9).nesterov(true).weight_decay(0.01)) < 1e-4);
  CHECK(after_a_hundred_updates<keel::sgd, torch::optim::SGD>(options(1e-2), options(1e-2).momentum(0.9), at::kDouble) < 1e-12);
}

TEST_CASE("the vectorised loops agree with the plain ones to the last places, at every length") {
  for (std::int64_t count : {0, 1, 7, 8, 9, 16, 31, 1000, 32'768}) {
    keel::libtorch::seed_random(at::kCPU, static_cast<std::uint64_t>(count));
    auto const make = [&] {
      return std::vector<at::Tensor>{at::randn({count}), at::randn({count}), at::rand({count}), at::rand({count}),
                                     at::rand({count})};
    };
    auto a = make();
    auto b = copies_of(a);
    keel::detail::adam_coefficients const c{0.5F, 0.01F, 0.999F, 0.9F, 0.1F, 0.999F, 0.001F, 3.0F, 1e-8F, 1e-2F};
    for (bool const amsgrad : {false, true}) {
      auto const at_data = [](std::vector<at::Tensor>& of, std::size_t i) { return of[i].data_ptr<float>(); };
      keel::detail::adam(at_data(a, 0), at_data(a, 1), at_data(a, 2), at_data(a, 3), amsgrad ? at_data(a, 4) : nullptr, count,
                         c);
      keel::detail::adam_plain(at_data(b, 0), at_data(b, 1), at_data(b, 2), at_data(b, 3), amsgrad ? at_data(b, 4) : nullptr,
                               count, c);
    }
    CHECK(largest_difference(a, b) < 2e-6);
    double const plain = keel::detail::sum_of_squares_plain(a[0].data_ptr<float>(), count);
    CHECK(keel::detail::sum_of_squares_fp32(a[0].data_ptr<float>(), count) == Approx(plain).epsilon(1e-14));
  }
}

TEST_CASE("an update has the same bits for any number of threads, and an element's does not depend on where its vector ends") {
  auto const run = [](int threads) {
    at::set_num_threads(threads);
    auto parameters = odd_parameters(1);
    keel::adamw optimizer(parameters, torch::optim::AdamWOptions(1e-2));
    for (std::uint64_t step = 1; step < 5; ++step) {
      set_gradients(parameters, step);
      optimizer.step();
    }
    return parameters;
  };
  auto const alone = run(1);
  auto const together = run(2);
  CHECK(same_bits(alone, together));

  at::Tensor whole = at::linspace(-1, 1, 19).requires_grad_(true);
  std::vector<at::Tensor> parts;
  for (std::int64_t i = 0; i < 19; ++i) parts.push_back(whole.detach().slice(0, i, i + 1).clone().requires_grad_(true));
  keel::adamw of_whole(std::vector<at::Tensor>{whole}, torch::optim::AdamWOptions(1e-2));
  keel::adamw of_parts(parts, torch::optim::AdamWOptions(1e-2));
  for (int step = 0; step < 5; ++step) {
    whole.mutable_grad() = at::linspace(0.1 * step, 2, 19);
    for (std::int64_t i = 0; i < 19; ++i)
      parts[static_cast<std::size_t>(i)].mutable_grad() = whole.grad().slice(0, i, i + 1).clone();
    of_whole.step();
    of_parts.step();
  }
  CHECK(same_bits(whole.detach(), at::cat(parts).detach()));
}

TEST_CASE("the loss scale, the window's weight and the clip are folded into the update, and the gradients stay as they are") {
  struct scaled_clipped : keel::recipe<keel::accumulate<2>, keel::clip::global_norm<0.1>> {};
  auto const ours = make_small();
  auto const theirs = make_small();
  keel::adamw our_optimizer(ours->parameters(), torch::optim::AdamWOptions(1e-2));
  torch::optim::AdamW their_optimizer(theirs->parameters(), torch::optim::AdamWOptions(1e-2));
  keel::step<scaled_clipped> our_step{*ours, our_optimizer};
  keel::step<scaled_clipped> their_step{*theirs, their_optimizer};
  for (std::uint64_t i = 0; i < 20; ++i) {
    auto const batch = make_pair_batch(i);
    our_step(batch, mean_squared_error(ours));
    their_step(batch, mean_squared_error(theirs));
  }
  CHECK(our_step.updates() == 10);
  CHECK(largest_difference(ours->parameters(), theirs->parameters()) < 1e-5);

  at::Tensor const parameter = at::zeros({3}).requires_grad_(true);
  std::vector<at::Tensor> const parameters{parameter};
  keel::sgd plain(parameters, torch::optim::SGDOptions(1.0));
  auto window = keel::begin_update(parameters, 4.0);
  window.add((parameter * at::tensor({3.0F, 0.0F, 4.0F})).sum());
  auto checked = std::move(window).complete().unscale().check();
  auto& found = std::get<keel::gradients<keel::stage::checked>>(checked);
  CHECK(found.norm() == Approx(5.0));
  CHECK(found.norm_of(0) == Approx(5.0));
  std::move(found).clip<keel::clip::global_norm<1.0>>().step(plain);
  CHECK(at::equal(parameter.grad(), at::tensor({12.0F, 0.0F, 16.0F})));
  CHECK(at::allclose(parameter.detach(), at::tensor({-0.6F, 0.0F, -0.8F})));
}

TEST_CASE("narrow parameters are updated through an fp32 copy, so that a thousand small steps move them") {
  for (auto const dtype : {at::kBFloat16, at::kHalf}) {
    at::Tensor const parameter = at::ones({5}, dtype).requires_grad_(true);
    keel::sgd optimizer(std::vector<at::Tensor>{parameter}, torch::optim::SGDOptions(1e-4));
    parameter.mutable_grad() = at::ones({5}, dtype);
    for (int i = 0; i < 1000; ++i) optimizer.step();
    CHECK(parameter[0].item<double>() == Approx(0.9).margin(0.005));
  }
}

TEST_CASE("narrow tensors are widened and rounded as LibTorch does it, at every length and for every kind of value") {
  auto const check = [](auto narrow_one, at::ScalarType dtype) {
    using narrow = decltype(narrow_one);
    float const infinity = std::numeric_limits<float>::infinity();
    at::Tensor const special = at::tensor({0.0F, -0.0F, infinity, -infinity, std::nanf(""), 3.4e38F, -3.4e38F, 1e-40F, 6e-8F,
                                           65504.0F, 65520.0F, 1.00390625F, 1.01171875F});
    for (std::int64_t count : {0, 1, 7, 8, 9, 31, 1000, 5000}) {
      keel::libtorch::seed_random(at::kCPU, static_cast<std::uint64_t>(count));
      at::Tensor const wide = at::cat({at::randn({count}), special, at::randn({count}) * 1e-6});
      at::Tensor const rounded = at::empty(wide.sizes(), dtype);
      keel::detail::narrow(wide.data_ptr<float>(), rounded.data_ptr<narrow>(), wide.numel());
      CHECK(at::allclose(rounded.to(at::kFloat), wide.to(dtype).to(at::kFloat), 0.0, 0.0, true));
      at::Tensor const again = at::empty_like(wide);
      keel::detail::widen(rounded.data_ptr<narrow>(), again.data_ptr<float>(), wide.numel());
      CHECK(at::allclose(again, rounded.to(at::kFloat), 0.0, 0.0, true));
    }
  };
  check(at::BFloat16(), at::kBFloat16);
  check(at::Half(), at::kHalf);
}

TEST_CASE("the fp32 copy of a narrow parameter has the bits of an fp32 parameter with the same gradients") {
  auto const to = [](std::vector<at::Tensor> const& all, at::ScalarType dtype) {
    std::vector<at::Tensor> made;
    for (at::Tensor const& one : all) made.push_back(one.detach().to(dtype).requires_grad_(true));
    return made;
  };
  auto const check = [&](auto make, at::ScalarType dtype) {
    auto const narrow = to(odd_parameters(1), dtype);
    auto const wide = to(narrow, at::kFloat);
    auto of_narrow = make(narrow);
    auto of_wide = make(wide);
    for (std::uint64_t step = 0; step < 5; ++step) {
      set_gradients(wide, step);
      for (std::size_t i = 0; i < wide.size(); ++i) {
        narrow[i].mutable_grad() = at::Tensor();
        if (!wide[i].grad().defined()) continue;
        narrow[i].mutable_grad() = wide[i].grad().to(dtype);
        wide[i].mutable_grad() = narrow[i].grad().to(at::kFloat);
      }
      auto const measure = [](std::vector<at::Tensor> const& all) {
        std::vector<at::Tensor> gradients;
        for (at::Tensor const& one : all) gradients.push_back(one.grad());
        return keel::measure_gradients(gradients).norm;
      };
      CHECK(measure(narrow) == Approx(measure(wide)).epsilon(1e-12));
      of_narrow.prepare();
      of_narrow.update_with(0.5);
      of_wide.prepare();
      of_wide.update_with(0.5);
    }
    for (std::size_t i = 0; i < wide.size(); ++i) {
      CHECK(same_bits(of_narrow.master_of(narrow[i]), wide[i].detach()));
      CHECK(same_bits(narrow[i].detach(), wide[i].detach().to(dtype)));
    }
  };
  for (auto const dtype : {at::kBFloat16, at::kHalf}) {
    check([](auto const& of) { return keel::adamw(of, torch::optim::AdamWOptions(1e-2).weight_decay(0.1)); }, dtype);
    check([](auto const& of) { return keel::adam(of, torch::optim::AdamOptions(1e-2).amsgrad(true)); }, dtype);
    check([](auto const& of) { return keel::sgd(of, torch::optim::SGDOptions(1e-2).momentum(0.9).nesterov(true)); }, dtype);
  }
}

TEST_CASE("a sparse gradient is rejected by name, before anything changed") {
  at::Tensor const parameter = at::ones({4, 2}).requires_grad_(true);
  at::Tensor const dense = at::ones({2}).requires_grad_(true);
  keel::adamw optimizer(std::vector<at::Tensor>{dense, parameter}, torch::optim::AdamWOptions(1e-2));
  dense.mutable_grad() = at::ones({2});
  parameter.mutable_grad() = at::ones({4, 2}).to_sparse();
  try {
    optimizer.step();
    FAIL("a sparse gradient was taken for a dense one");
  } catch (keel::error const& thrown) {
    CHECK(thrown.id() == "E11");
  }
  CHECK(at::equal(dense.detach(), at::ones({2})));
}

TEST_CASE("an out-of-memory while an engine makes its moments changes no parameter, and the next try goes on") {
  auto const model = make_small();
  keel::adamw optimizer(model->parameters(), torch::optim::AdamWOptions(1e-2));
  keel::step<keel::recipe<>> step{*model, optimizer};
  auto const before = copies_of(model->parameters());
  auto const loss = mean_squared_error(model);
  keel::memory::budget budget;
  try {
    step(make_pair_batch(1), [&](pair_batch const& batch) {
      at::Tensor const value = loss(batch);
      value.register_hook([&](at::Tensor const&) { budget.limit(1); });
      return value;
    });
  } catch (keel::out_of_memory_error const&) {
  }
  budget.limit(0);
  CHECK(same_bits(before, model->parameters()));
  CHECK(step(make_pair_batch(1), loss).is<keel::result::updated>());
}

TEST_CASE(
    "a resumed run with keel's engines has the bits of one that was not stopped, with fp32 copies and odd layouts in memory") {
  struct saves : keel::recipe<keel::checkpoint::every<2_steps>, keel::clip::global_norm<1.0>> {};
  struct twisted : torch::nn::Module {
    twisted() {
      weight = register_parameter("weight", at::linspace(-1, 1, 48).reshape({8, 6}).t().detach());
      narrow = register_parameter("narrow", at::linspace(-1, 1, 8).to(at::kBFloat16));
    }
    at::Tensor loss(at::Tensor const& x) { return (at::mm(x, weight) * narrow.to(at::kFloat)).sin().pow(2).mean(); }
    at::Tensor weight, narrow;
  };
  scratch_directory const directory;
  auto const run = [&](std::string const& name, std::vector<std::int64_t> const& lengths) {
    std::vector<at::Tensor> end;
    for (std::int64_t const updates : lengths) {
      auto const model = std::make_shared<twisted>();
      keel::adamw optimizer(model->parameters(), torch::optim::AdamWOptions(1e-2).weight_decay(0.1));
      keel::trainer<saves> trainer{model, optimizer, quiet({.run_directory = directory / name, .updates = updates})};
      trainer.fit(std::vector<at::Tensor>(9, at::linspace(0, 1, 24).reshape({4, 6})),
                  [&](at::Tensor const& x) { return model->loss(x); });
      end = copies_of(model->parameters());
    }
    return end;
  };
  CHECK(same_bits(run("whole", {9}), run("in parts", {3, 4, 9})));
}
