// A step or trainer that owns its model and optimizer moves with them.
#include <torch/nn/modules/batchnorm.h>

#include "../support.hpp"

using namespace keel_test;
using namespace keel::literals;
using keel::given;

namespace {

struct skipping : keel::recipe<keel::nonfinite::skip<5>> {};
struct saving : keel::recipe<keel::checkpoint::every<2_steps>, keel::clip::global_norm<given>> {};

/// What a program of one class looks like.
class agent {
 public:
  explicit agent(std::uint64_t seed)
      : net_(make_small(seed)), step_(net_, torch::optim::AdamW(net_->parameters(), torch::optim::AdamWOptions(0.01))) {}
  double learn(std::uint64_t seed) { return step_(make_pair_batch(seed), mean_squared_error(net_)).updated()->loss; }
  std::vector<at::Tensor> parameters() const { return copies_of(net_->parameters()); }

 private:
  static std::shared_ptr<small_module> make_small(std::uint64_t seed) {
    at::manual_seed(seed);
    return std::make_shared<small_module>();
  }
  std::shared_ptr<small_module> net_;
  keel::owned<keel::step<skipping>> step_;
};

agent moved_twice(std::uint64_t seed) {
  agent first(seed);
  first.learn(0);
  agent second = std::move(first);
  second.learn(1);
  return second;
}

}  // namespace

TEST_CASE("a class with a step of its own moves, in a vector too, and trains on with the same bits") {
  agent stays(1);
  for (std::uint64_t i = 0; i < 6; ++i) stays.learn(i);
  std::vector<agent> all;
  all.push_back(moved_twice(1));
  for (std::uint64_t i = 2; i < 10; ++i) all.push_back(agent(i));
  for (std::uint64_t i = 2; i < 6; ++i) all.front().learn(i);
  CHECK(same_bits(stays.parameters(), all.front().parameters()));
  agent assigned(7);
  assigned = std::move(all.front());
  CHECK(same_bits(stays.parameters(), assigned.parameters()));
}

TEST_CASE("a trainer that owns is returned from a function, saves and resumes, with an optimizer of any ownership") {
  scratch_directory const directory;
  auto const make = [&](auto optimizer_of, std::string const& name, std::int64_t updates) {
    at::manual_seed(1);
    auto net = std::make_shared<small_module>();
    auto optimizer = optimizer_of(net->parameters());
    return std::pair(net, keel::owned<keel::trainer<saving>>(net, std::move(optimizer), {.clip = 1.0},
                                                            quiet({.run_directory = directory / name, .updates = updates})));
  };
  auto const by_value = [](auto const& all) { return keel::adamw(all, 0.01); };
  auto const by_unique = [](auto const& all) { return std::make_unique<keel::adamw>(all, 0.01); };
  auto const by_shared = [](auto const& all) { return std::make_shared<keel::adamw>(all, 0.01); };
  std::vector<pair_batch> batches;
  for (std::uint64_t i = 0; i < 20; ++i) batches.push_back(make_pair_batch(i));
  auto const train = [&](auto made) {
    auto run = std::move(made.second);
    run->fit(batches, mean_squared_error(made.first));
    return copies_of(made.first->parameters());
  };
  auto const whole = train(make(by_unique, "whole", 9));
  train(make(by_shared, "cut", 3));
  train(make(by_unique, "cut", 6));
  CHECK(same_bits(whole, train(make(by_shared, "cut", 9))));
  if constexpr (std::is_move_constructible_v<keel::adamw>) CHECK(same_bits(whole, train(make(by_value, "by_value", 9))));
}

TEST_CASE("what was moved from says so") {
  agent first(1);
  agent const second = std::move(first);
  CHECK_THROWS_AS(first.learn(0), keel::error);
}
