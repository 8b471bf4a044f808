// Self-play in the manner of AlphaZero (Silver et al. 2017): a player is a class that owns its network and trainer, and is moved about; its
// network has two heads and three losses by name. The game is Nim: take one to three sticks of 21, and whoever takes the last one wins.
// [self_play]
#include <keel/keel.hpp>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include <algorithm>
#include <cstdio>
#include <random>

using namespace keel::literals;

struct learning : keel::recipe<
    keel::clip::global_norm<1.0>,
    keel::nonfinite::skip<10>,
    keel::checkpoint::every<20_steps>,
    keel::determinism::seeded<5>> {};

/// A batch is a list of these; keel counts them.
struct position {
  int sticks;
  int taken;     ///< by the player whose turn it is
  float result;  ///< for that player
};

struct network : torch::nn::Module {
  torch::nn::Linear trunk{register_module("trunk", torch::nn::Linear(22, 64))};
  torch::nn::Linear policy{register_module("policy", torch::nn::Linear(64, 3))};
  torch::nn::Linear value{register_module("value", torch::nn::Linear(64, 1))};
  std::pair<at::Tensor, at::Tensor> forward(at::Tensor const& sticks) {
    at::Tensor const body = at::relu(trunk(at::one_hot(sticks, 22).to(at::kFloat)));
    return {policy(body), at::tanh(value(body)).squeeze(1)};
  }
};

class player {
  /// Games from the run's place on, each played with the network of its time and the number of its batch as seed.
  auto games_from(std::int64_t at) {
    return ranges::views::iota(at) | ranges::views::transform([this](std::int64_t number) {
      std::mt19937_64 chance(static_cast<std::uint64_t>(number) + 1);
      std::vector<position> batch;
      for (int game = 0; game < 16; ++game) {
        std::vector<position> moves;
        for (int sticks = 21; sticks > 0; sticks -= moves.back().taken) {
          bool const explores = std::uniform_real_distribution<>()(chance) < 0.3;
          int const most = std::min(3, sticks);
          moves.push_back({sticks, explores ? std::uniform_int_distribution<>(1, most)(chance) : best_move(sticks), 0});
        }
        for (std::size_t i = 0; i < moves.size(); ++i) moves[i].result = (moves.size() - i) % 2 == 1 ? 1.0F : -1.0F;
        batch.insert(batch.end(), moves.begin(), moves.end());
      }
      return batch;
    });
  }

 public:
  explicit player(std::string const& directory)
      : net_(std::make_shared<network>()),
        run_(net_, torch::optim::SGD(net_->parameters(), torch::optim::SGDOptions(0.05).momentum(0.9)),
             {.run_directory = directory, .updates = 400, .console_every = 100}) {}

  /// Plays until the run has made its updates.
  void learn() {
    run_->fit([&](std::int64_t /*epoch*/, std::int64_t at) { return games_from(at); }, [&](std::vector<position> const& batch) {
      std::vector<std::int64_t> sticks, taken;
      std::vector<float> results;
      for (position const& one : batch) sticks.push_back(one.sticks), taken.push_back(one.taken - 1), results.push_back(one.result);
      auto const [logits, value] = net_->forward(at::tensor(sticks));
      at::Tensor const result = at::tensor(results), advantage = (result - value).detach();
      at::Tensor const chosen = at::log_softmax(logits, 1).gather(1, at::tensor(taken).unsqueeze(1)).squeeze(1);
      at::Tensor const size = net_->trunk->weight.square().sum() + net_->policy->weight.square().sum();
      return keel::losses{{"policy", -(advantage * chosen).mean()}, {"value", at::mse_loss(value, result)}, {"size", size, 1e-4}};
    });
  }
  int best_move(int sticks) const {
    at::NoGradGuard const no_grad;
    return static_cast<int>(net_->forward(at::tensor({static_cast<std::int64_t>(sticks)})).first.narrow(1, 0, std::min(3, sticks)).argmax().item<std::int64_t>()) + 1;
  }
  double checksum() const { return net_->trunk->weight.sum().item<double>(); }

 private:
  std::shared_ptr<network> net_;
  keel::owned<keel::trainer<learning>> run_;
};

player make_player(std::string const& directory) {
  player made(directory);
  return player(std::move(made));
}

int main(int count, char** arguments) {
  keel::seed<learning>();
  std::vector<std::unique_ptr<player>> players;
  players.push_back(std::make_unique<player>(make_player(count > 1 ? arguments[1] : "runs/self_play")));
  players.front()->learn();
  std::printf("with 5, 6, 7 sticks it takes %d, %d, %d; parameters %.17g\n", players.front()->best_move(5), players.front()->best_move(6),
              players.front()->best_move(7), players.front()->checksum());
}
// [self_play]
