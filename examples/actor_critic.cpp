// An actor-critic (Haarnoja et al. 2018, "Soft Actor-Critic", with one critic): three parts, one of them a single number, a target network,
// and a replay buffer and an environment that belong to the run, so that a resume goes on in the middle of an episode.
// [actor_critic]
#include <keel/keel.hpp>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adam.h>

#include <cmath>
#include <cstdio>

using namespace keel::literals;

struct whole_run : keel::recipe<keel::checkpoint::every<50_steps>, keel::determinism::seeded<7>> {};
struct part_recipe : keel::recipe<keel::nonfinite::skip<10>, keel::clip::global_norm<10.0>> {};

/// A point that is to be pushed to zero: position, velocity.
struct world {
  at::Tensor state = at::zeros({2});
  std::int64_t age = 0;
  void visit(auto& archive) { archive("state", state), archive("age", age); }
  double push(double force) {
    if (age++ % 50 == 0) state = at::rand({2}) * 2 - 1;
    at::Tensor const velocity = state[1] * 0.95 + 0.1 * force;
    state = at::stack({state[0] + 0.1 * velocity, velocity});
    return -state.square().sum().item<double>() - 0.01 * force * force;
  }
};
struct replay {
  at::Tensor rows = at::zeros({2000, 6});   // state, action, reward, next state
  std::int64_t seen = 0;
  void visit(auto& archive) { archive("rows", rows), archive("seen", seen); }
  void add(at::Tensor const& row) { rows[seen++ % rows.size(0)] = row; }
  at::Tensor sample(std::int64_t count) const { return rows.index_select(0, at::randint(std::min(seen, rows.size(0)), {count}, at::kLong)); }
};

int main(int count, char** arguments) {
  keel::seed<whole_run>();
  auto const make = [](std::int64_t in, std::int64_t out) {
    return torch::nn::Sequential(torch::nn::Linear(in, 32), torch::nn::Tanh(), torch::nn::Linear(32, out));
  };
  torch::nn::Sequential actor = make(2, 2), critic = make(3, 1), target = make(3, 1);
  at::Tensor const log_alpha = at::zeros({}).requires_grad_();
  keel::bundle temperature{{"log_alpha", log_alpha}};
  torch::optim::Adam for_actor(actor->parameters(), 3e-3), for_critic(critic->parameters(), 3e-3), for_alpha(temperature.parameters(), 3e-3);

  keel::run<whole_run> run{{.run_directory = count > 1 ? arguments[1] : "runs/actor_critic", .console_every = 200}};
  keel::part<part_recipe> actor_part{run, "actor", actor, for_actor};
  keel::part<part_recipe> critic_part{run, "critic", critic, for_critic};
  keel::part<part_recipe> alpha_part{run, "temperature", temperature, for_alpha};
  keel::target_network follows{critic, target, 0.01};
  world place;
  replay memory;
  run.register_state("target", follows);
  run.register_state("world", place, keel::state_scope::checkpoints);
  run.register_state("replay", memory, keel::state_scope::checkpoints);

  auto const act = [&](at::Tensor const& state) {
    at::Tensor const out = actor->forward(state), spread = out.narrow(-1, 1, 1).clamp(-5, 1).exp();
    at::Tensor const noise = at::randn_like(spread), action = (out.narrow(-1, 0, 1) + spread * noise).tanh();
    return std::pair(action, -0.5 * noise.square() - spread.log() - (1 - action.square() + 1e-6).log());
  };
  auto const value_of = [](torch::nn::Sequential& of, at::Tensor const& state, at::Tensor const& action) { return of->forward(at::cat({state, action}, -1)); };

  for ([[maybe_unused]] std::int64_t const i : run.iterations(1500)) {
    {
      at::NoGradGuard const no_grad;
      at::Tensor const before = place.state, action = act(before).first;
      double const reward = place.push(action.item<double>());
      memory.add(at::cat({before, action, at::full({1}, reward), place.state}));
    }
    auto const parts = memory.sample(64).split_with_sizes({2, 1, 1, 2}, 1);
    at::Tensor const state = parts[0], alpha = log_alpha.detach().exp();
    bool const learned = critic_part.update([&] {
      auto const [action, entropy] = act(parts[3]);
      at::Tensor const wanted = parts[2] + 0.97 * (value_of(target, parts[3], action) - alpha * entropy);
      return at::mse_loss(value_of(critic, state, parts[1]), wanted.detach());
    }).updated();
    if (learned) follows.follow();
    auto const [action, log_probability] = act(state);
    actor_part.update([&] { return (alpha * log_probability - value_of(critic, state, action)).mean(); });
    alpha_part.update([&] { return -(log_alpha * (log_probability.detach() - 1.0)).mean(); });
  }
  run.finish();
  std::printf("temperature %.17g, actor %.17g\n", log_alpha.exp().item<double>(), actor->parameters()[0].sum().item<double>());
}
// [actor_critic]
