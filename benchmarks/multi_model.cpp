// What runs with multi_model cost beside the loops that one would write by hand: a GAN, an actor-critic, a network with three losses, a
// physics-informed network by Adam and by LBFGS, fine-tuning that unfreezes, numbers from a file, and backward passes that the program runs.
// Both train in one process, turn by turn, from the same parameters on the same batches. They must have the same parameters after a
// hundred turns: bit for bit, or within 1e-4 where a norm was clipped. One JSON row a line. The lines between the marks "[ours" and "[hand"
// are what a program says for an update; benchmarks/run counts them.
#include <ATen/Parallel.h>
#include <malloc.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/utils/clip_grad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/sgd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <keel/keel.hpp>
#include <string>
#include <type_traits>
#include <vector>

#include "measure.hpp"

namespace {

using keel::given;
using namespace keel::literals;
using torch::nn::BatchNorm1d;
using torch::nn::Linear;
using torch::nn::ReLU;
using torch::nn::Sequential;
using torch::nn::Tanh;

constexpr int kinds_of_batches = 16;

struct plain : keel::recipe<> {};
struct skips : keel::recipe<keel::nonfinite::skip<10>> {};
struct clips : keel::recipe<keel::nonfinite::skip<10>, keel::clip::global_norm<1.0>> {};
struct scheduled : keel::recipe<keel::nonfinite::skip<10>, keel::schedule::cosine<keel::schedule::warmup<20_steps>>> {};
struct numbered : keel::recipe<keel::nonfinite::skip<given>, keel::accumulate<given>, keel::clip::global_norm<given>> {};

keel::trainer_options quiet(std::int64_t updates) { return {.updates = updates, .console = nullptr}; }

std::vector<at::Tensor> batches_of(at::IntArrayRef shape) {
  std::vector<at::Tensor> all;
  for (int i = 0; i < kinds_of_batches; ++i) all.push_back(at::randn(shape));
  return all;
}
at::Tensor const& turn_of(std::vector<at::Tensor> const& all, std::int64_t turn) {
  return all[static_cast<std::size_t>(turn % kinds_of_batches)];
}

Sequential body(std::int64_t in, std::int64_t width, std::int64_t out) {
  return Sequential(Linear(in, width), BatchNorm1d(width), ReLU(), Linear(width, width), ReLU(), Linear(width, out));
}
Sequential smooth(std::int64_t in, std::int64_t width, std::int64_t out) {
  return Sequential(Linear(in, width), Tanh(), Linear(width, width), Tanh(), Linear(width, out));
}
at::Tensor judged(Sequential& by, at::Tensor const& points, double is_real) {
  at::Tensor const out = by->forward(points);
  return at::binary_cross_entropy_with_logits(out, at::full_like(out, is_real));
}
void add_parameters(std::vector<at::Tensor>& to, Sequential const& of) {
  for (at::Tensor const& one : of->parameters()) to.push_back(one);
}

// Each has the same members: what both begin with, and a turn of either.

struct gan {
  static constexpr bool clipped = false;
  static constexpr char const* is = "a GAN with batch norm, 128 rows, width 256";
  struct models {
    Sequential generator = body(32, 256, 64), discriminator = body(64, 256, 1);
    torch::optim::Adam g_optimizer{generator->parameters(), torch::optim::AdamOptions(2e-4)};
    torch::optim::Adam d_optimizer{discriminator->parameters(), torch::optim::AdamOptions(2e-4)};
    std::vector<at::Tensor> all() const {
      std::vector<at::Tensor> list;
      add_parameters(list, generator);
      add_parameters(list, discriminator);
      return list;
    }
  };
  std::vector<at::Tensor> real = batches_of({128, 64}), noise = batches_of({128, 32});

  struct ours : models {
    gan const& data;
    keel::run<plain> run{quiet(0)};
    keel::part<skips> d{run, "discriminator", discriminator, d_optimizer};
    keel::part<skips> g{run, "generator", generator, g_optimizer};
    decltype(run.iterations(1)) loop = run.iterations(1'000'000);
    decltype(loop.begin()) at = loop.begin();
    explicit ours(gan const& with) : data(with) {}
    void turn(std::int64_t i) {
      // [ours gan]
      d.update(turn_of(data.real, i), [&](at::Tensor const& points) {
        at::Tensor const fake = generator->forward(turn_of(data.noise, i)).detach();
        return keel::losses{{"real", judged(discriminator, points, 1)}, {"fake", judged(discriminator, fake, 0)}};
      });
      g.update([&] { return judged(discriminator, generator->forward(turn_of(data.noise, i + 1)), 1); });
      // [ours gan]
      ++at;
    }
  };
  struct by_hand : models {
    gan const& data;
    explicit by_hand(gan const& with) : data(with) {}
    void turn(std::int64_t i) {
      // [hand gan]
      d_optimizer.zero_grad();
      at::Tensor const fake = generator->forward(turn_of(data.noise, i)).detach();
      at::Tensor const d_loss = judged(discriminator, turn_of(data.real, i), 1) + judged(discriminator, fake, 0);
      d_loss.backward();
      if (std::isfinite(d_loss.item<double>())) d_optimizer.step();
      g_optimizer.zero_grad();
      at::Tensor const g_loss = judged(discriminator, generator->forward(turn_of(data.noise, i + 1)), 1);
      g_loss.backward();
      if (std::isfinite(g_loss.item<double>())) g_optimizer.step();
      // [hand gan]
    }
  };
};

struct actor_critic {
  static constexpr bool clipped = false;
  static constexpr char const* is = "an actor, a critic with a target, and a temperature, 256 rows, width 128";
  struct models {
    Sequential actor = smooth(8, 128, 2), critic = smooth(9, 128, 1), target = smooth(9, 128, 1);
    at::Tensor log_alpha = at::zeros({}).requires_grad_();
    torch::optim::Adam for_actor{actor->parameters(), torch::optim::AdamOptions(3e-4)};
    torch::optim::Adam for_critic{critic->parameters(), torch::optim::AdamOptions(3e-4)};
    torch::optim::Adam for_alpha{{log_alpha}, torch::optim::AdamOptions(3e-4)};
    std::vector<at::Tensor> all() const {
      std::vector<at::Tensor> list{log_alpha};
      add_parameters(list, actor);
      add_parameters(list, critic);
      add_parameters(list, target);
      return list;
    }
    std::pair<at::Tensor, at::Tensor> act(at::Tensor const& state, at::Tensor const& noise) {
      at::Tensor const out = actor->forward(state), spread = out.narrow(-1, 1, 1).clamp(-5, 1).exp();
      at::Tensor const action = (out.narrow(-1, 0, 1) + spread * noise).tanh();
      return {action, -0.5 * noise.square() - spread.log() - (1 - action.square() + 1e-6).log()};
    }
    static at::Tensor value(Sequential& of, at::Tensor const& state, at::Tensor const& action) {
      return of->forward(at::cat({state, action}, -1));
    }
  };
  std::vector<at::Tensor> rows = batches_of({256, 18}), noise = batches_of({256, 1});

  struct ours : models {
    actor_critic const& data;
    keel::run<plain> run{quiet(0)};
    keel::bundle temperature{{"log_alpha", log_alpha}};
    keel::part<skips> actor_part{run, "actor", actor, for_actor};
    keel::part<skips> critic_part{run, "critic", critic, for_critic};
    keel::part<skips> alpha_part{run, "temperature", temperature, for_alpha};
    keel::target_network follows{critic, target, 0.01};
    decltype(run.iterations(1)) loop = run.iterations(1'000'000);
    decltype(loop.begin()) at = loop.begin();
    explicit ours(actor_critic const& with) : data(with) {}
    void turn(std::int64_t i) {
      auto const parts = turn_of(data.rows, i).split_with_sizes({8, 1, 1, 8}, 1);
      at::Tensor const &noise = turn_of(data.noise, i), &more = turn_of(data.noise, i + 1), alpha = log_alpha.detach().exp();
      // [ours actor_critic]
      bool const learned = critic_part
                               .update([&] {
                                 auto const [action, entropy] = act(parts[3], noise);
                                 at::Tensor const wanted =
                                     parts[2] + 0.97 * (value(target, parts[3], action) - alpha * entropy);
                                 return at::mse_loss(value(critic, parts[0], parts[1]), wanted.detach());
                               })
                               .updated();
      if (learned) follows.follow();
      auto const [action, log_probability] = act(parts[0], more);
      actor_part.update([&] { return (alpha * log_probability - value(critic, parts[0], action)).mean(); });
      alpha_part.update([&] { return -(log_alpha * (log_probability.detach() - 1.0)).mean(); });
      // [ours actor_critic]
      ++at;
    }
  };
  struct by_hand : models {
    actor_critic const& data;
    explicit by_hand(actor_critic const& with) : data(with) {
      at::NoGradGuard const no_grad;
      for (std::size_t p = 0; p < target->parameters().size(); ++p) target->parameters()[p].copy_(critic->parameters()[p]);
      for (at::Tensor const& one : target->parameters()) one.requires_grad_(false);
    }
    void turn(std::int64_t i) {
      auto const parts = turn_of(data.rows, i).split_with_sizes({8, 1, 1, 8}, 1);
      at::Tensor const &noise = turn_of(data.noise, i), &more = turn_of(data.noise, i + 1), alpha = log_alpha.detach().exp();
      // [hand actor_critic]
      for_critic.zero_grad();
      auto const [next, entropy] = act(parts[3], noise);
      at::Tensor const wanted = parts[2] + 0.97 * (value(target, parts[3], next) - alpha * entropy);
      at::Tensor const critic_loss = at::mse_loss(value(critic, parts[0], parts[1]), wanted.detach());
      critic_loss.backward();
      if (std::isfinite(critic_loss.item<double>())) {
        for_critic.step();
        at::NoGradGuard const no_grad;
        auto const from = critic->parameters(), to = target->parameters();
        for (std::size_t p = 0; p < to.size(); ++p) to[p].mul_(0.99).add_(from[p], 0.01);
      }
      for_actor.zero_grad();
      auto const [action, log_probability] = act(parts[0], more);
      at::Tensor const actor_loss = (alpha * log_probability - value(critic, parts[0], action)).mean();
      actor_loss.backward();
      if (std::isfinite(actor_loss.item<double>())) for_actor.step();
      for_alpha.zero_grad();
      at::Tensor const alpha_loss = -(log_alpha * (log_probability.detach() - 1.0)).mean();
      alpha_loss.backward();
      if (std::isfinite(alpha_loss.item<double>())) for_alpha.step();
      // [hand actor_critic]
    }
  };
};

struct self_play {
  static constexpr bool clipped = true;
  static constexpr char const* is =
      "a policy, a value and a size as three losses, clipped, SGD with momentum, 128 rows, width 256";
  struct models {
    Sequential trunk = smooth(64, 256, 32);
    torch::optim::SGD optimizer{trunk->parameters(), torch::optim::SGDOptions(0.01).momentum(0.9)};
    std::vector<at::Tensor> all() const { return trunk->parameters(); }
    struct parts {
      at::Tensor policy, value, size;
    };
    parts losses_of(at::Tensor const& x) {
      at::Tensor const out = trunk->forward(x), result = x.narrow(1, 0, 1).tanh();
      at::Tensor const value = out.narrow(1, 31, 1), advantage = (result - value).detach();
      at::Tensor const chosen = at::log_softmax(out.narrow(1, 0, 31), 1).narrow(1, 0, 1);
      return {-(advantage * chosen).mean(), at::mse_loss(value, result), trunk->parameters()[0].square().sum()};
    }
  };
  std::vector<at::Tensor> rows = batches_of({128, 64});

  struct ours : models {
    self_play const& data;
    keel::trainer<clips> run{trunk, optimizer, quiet(1'000'000)};
    explicit ours(self_play const& with) : data(with) {}
    void turn(std::int64_t i) {
      // [ours self_play]
      run.step(turn_of(data.rows, i), [&](at::Tensor const& x) {
        auto const [policy, value, size] = losses_of(x);
        return keel::losses{{"policy", policy}, {"value", value}, {"size", size, 1e-4}};
      });
      // [ours self_play]
    }
  };
  struct by_hand : models {
    self_play const& data;
    explicit by_hand(self_play const& with) : data(with) {}
    void turn(std::int64_t i) {
      // [hand self_play]
      optimizer.zero_grad();
      auto const [policy, value, size] = losses_of(turn_of(data.rows, i));
      at::Tensor const loss = policy + value + size * 1e-4;
      loss.backward();
      double const norm = torch::nn::utils::clip_grad_norm_(trunk->parameters(), 1.0);
      if (std::isfinite(norm) && std::isfinite(policy.item<double>()) && std::isfinite(value.item<double>()) &&
          std::isfinite(size.item<double>()))
        optimizer.step();
      // [hand self_play]
    }
  };
};

/// u'' + u' + 5 u = 0: derivatives of the network by its input, and through them by its parameters.
template <class Optimizer>
struct physics {
  static constexpr bool clipped = false;
  static constexpr bool by_closure = std::is_same_v<Optimizer, torch::optim::LBFGS>;
  static constexpr char const* is = by_closure
                                        ? "a physics-informed network by LBFGS, 10 iterations an update, 256 rows, width 64"
                                        : "a physics-informed network by Adam, 256 rows, width 64";
  static Optimizer make(std::vector<at::Tensor> of) {
    if constexpr (by_closure) {
      return Optimizer(of, torch::optim::LBFGSOptions(1.0).max_iter(10).history_size(30).line_search_fn("strong_wolfe"));
    } else {
      return Optimizer(of, torch::optim::AdamOptions(1e-3));
    }
  }
  struct models {
    Sequential model = smooth(1, 64, 1);
    Optimizer optimizer = make(model->parameters());
    at::Tensor times = at::linspace(0, 4, 256).unsqueeze(1).requires_grad_();
    std::vector<at::Tensor> all() const { return model->parameters(); }
    at::Tensor loss() {
      auto const slope = [](at::Tensor const& of, at::Tensor const& at) {
        return torch::autograd::grad({of.sum()}, {at}, {}, true, true)[0];
      };
      at::Tensor const u = model->forward(times), velocity = slope(u, times), acceleration = slope(velocity, times);
      return (acceleration + velocity + 5 * u).square().mean() + 10.0 * (u[0] - 1).square().sum() +
             10.0 * velocity[0].square().sum();
    }
  };

  struct ours : models {
    keel::run<plain> run{quiet(0)};
    keel::part<skips> part{run, "model", this->model, this->optimizer};
    decltype(run.iterations(1)) loop = run.iterations(1'000'000);
    decltype(loop.begin()) at = loop.begin();
    explicit ours(physics const&) {}
    void turn(std::int64_t) {
      // [ours physics]
      part.update([&] { return this->loss(); });
      // [ours physics]
      ++at;
    }
  };
  struct by_hand : models {
    explicit by_hand(physics const&) {}
    void turn(std::int64_t) {
      if constexpr (by_closure) {
        // [hand physics]
        std::vector<at::Tensor> before;
        for (at::Tensor const& one : this->model->parameters()) before.push_back(one.detach().clone());
        double first = NAN;
        this->optimizer.step([&] {
          at::AutoGradMode const enabled(true);
          this->optimizer.zero_grad();
          at::Tensor const loss = this->loss();
          loss.backward();
          if (std::isnan(first)) first = loss.template item<double>();
          return loss;
        });
        at::NoGradGuard const no_grad;
        bool finite = std::isfinite(first);
        for (at::Tensor const& one : this->model->parameters())
          finite = finite && at::isfinite(one).all().template item<bool>();
        for (std::size_t i = 0; !finite && i < before.size(); ++i) this->model->parameters()[i].copy_(before[i]);
        // [hand physics]
      } else {
        this->optimizer.zero_grad();
        at::Tensor const loss = this->loss();
        loss.backward();
        if (std::isfinite(loss.template item<double>())) this->optimizer.step();
      }
    }
  };
};

struct unfreeze {
  static constexpr bool clipped = false;
  static constexpr char const* is =
      "a layer that is unfrozen after 50 updates, cosine with warm-up, AdamW, 128 rows, width 256";
  static constexpr std::int64_t length = 100'000;
  struct models {
    Sequential model = body(64, 256, 8);
    torch::nn::LinearImpl& bottom = *model[0]->as<Linear>();
    std::vector<at::Tensor> lower() const { return bottom.parameters(); }
    std::vector<at::Tensor> upper() const {
      std::vector<at::Tensor> all = model->parameters();
      return {all.begin() + 2, all.end()};
    }
    torch::optim::AdamW optimizer{upper(), torch::optim::AdamWOptions(1e-3)};
    models() {
      for (at::Tensor const& one : lower()) one.requires_grad_(false);
    }
    std::vector<at::Tensor> all() const { return model->parameters(); }
  };
  std::vector<at::Tensor> rows = batches_of({128, 64});

  struct ours : models {
    unfreeze const& data;
    keel::trainer<scheduled> run{model, optimizer, quiet(length)};
    explicit ours(unfreeze const& with) : data(with) {}
    void turn(std::int64_t i) {
      // [ours unfreeze]
      if (i == 50) run.unfreeze(bottom, 1e-4);
      run.step(turn_of(data.rows, i), [&](at::Tensor const& x) { return at::mse_loss(model->forward(x), x.narrow(1, 0, 8)); });
      // [ours unfreeze]
    }
  };
  struct by_hand : models {
    unfreeze const& data;
    std::int64_t updates = 0;
    std::vector<double> highest = {1e-3};
    explicit by_hand(unfreeze const& with) : data(with) {}
    void turn(std::int64_t i) {
      // [hand unfreeze]
      if (i == 50) {
        for (at::Tensor const& one : lower()) one.requires_grad_(true);
        optimizer.add_param_group(torch::optim::OptimizerParamGroup(
            lower(), std::make_unique<torch::optim::AdamWOptions>(torch::optim::AdamWOptions(1e-4))));
        highest.push_back(1e-4);
      }
      double const progress = static_cast<double>(updates - 20) / static_cast<double>(length - 20);
      double const factor = updates < 20 ? static_cast<double>(updates + 1) / 20.0 : 0.5 * (1.0 + std::cos(M_PI * progress));
      for (std::size_t g = 0; g < highest.size(); ++g) optimizer.param_groups()[g].options().set_lr(highest[g] * factor);
      optimizer.zero_grad();
      at::Tensor const& x = turn_of(data.rows, i);
      at::Tensor const loss = at::mse_loss(model->forward(x), x.narrow(1, 0, 8));
      loss.backward();
      if (std::isfinite(loss.item<double>())) optimizer.step(), ++updates;
      // [hand unfreeze]
    }
  };
};

struct numbers_from_file {
  static constexpr bool clipped = false;
  static constexpr char const* is =
      "four micro-batches an update and a limit that nothing reaches, both given at run time, AdamW, 64 rows, width 256";
  struct models {
    Sequential model = body(64, 256, 8);
    torch::optim::AdamW optimizer{model->parameters(), torch::optim::AdamWOptions(1e-3)};
    std::vector<at::Tensor> all() const { return model->parameters(); }
  };
  std::vector<at::Tensor> rows = batches_of({64, 64});

  struct ours : models {
    numbers_from_file const& data;
    keel::trainer<numbered> run{model, optimizer, {.clip = 100.0, .accumulate = 4, .nonfinite = 10}, quiet(1'000'000)};
    explicit ours(numbers_from_file const& with) : data(with) {}
    void turn(std::int64_t i) {
      // [ours numbers_from_file]
      auto const loss_of = [&](at::Tensor const& x) { return at::mse_loss(model->forward(x), x.narrow(1, 0, 8)); };
      for (std::int64_t j = 0; j < 4; ++j) run.step(turn_of(data.rows, 4 * i + j), loss_of);
      // [ours numbers_from_file]
    }
  };
  struct by_hand : models {
    numbers_from_file const& data;
    explicit by_hand(numbers_from_file const& with) : data(with) {}
    void turn(std::int64_t i) {
      // [hand numbers_from_file]
      optimizer.zero_grad();
      bool finite = true;
      for (std::int64_t j = 0; j < 4; ++j) {
        at::Tensor const& x = turn_of(data.rows, 4 * i + j);
        at::Tensor const loss = at::mse_loss(model->forward(x), x.narrow(1, 0, 8)) / 4;
        loss.backward();
        finite = finite && std::isfinite(loss.item<double>());
      }
      double const norm = torch::nn::utils::clip_grad_norm_(model->parameters(), 100.0);
      if (finite && std::isfinite(norm)) optimizer.step();
      // [hand numbers_from_file]
    }
  };
};

struct manual_backward {
  static constexpr bool clipped = false;
  static constexpr char const* is = "two losses whose backward passes the program runs, AdamW, 128 rows, width 256";
  struct models {
    Sequential model = body(64, 256, 8);
    torch::optim::AdamW optimizer{model->parameters(), torch::optim::AdamWOptions(1e-3)};
    std::vector<at::Tensor> all() const { return model->parameters(); }
    at::Tensor loss(at::Tensor const& x, std::int64_t from) { return at::mse_loss(model->forward(x), x.narrow(1, from, 8)); }
  };
  std::vector<at::Tensor> rows = batches_of({128, 64});

  struct ours : models {
    manual_backward const& data;
    keel::trainer<skips> run{model, optimizer, quiet(1'000'000)};
    explicit ours(manual_backward const& with) : data(with) {}
    void turn(std::int64_t i) {
      // [ours manual_backward]
      auto micro_batch = run.open(128);
      at::Tensor const first = loss(turn_of(data.rows, i), 0);
      first.backward();
      at::Tensor const second = loss(turn_of(data.rows, i + 1), 8);
      second.backward();
      micro_batch.close(first + second);
      // [ours manual_backward]
    }
  };
  struct by_hand : models {
    manual_backward const& data;
    explicit by_hand(manual_backward const& with) : data(with) {}
    void turn(std::int64_t i) {
      // [hand manual_backward]
      optimizer.zero_grad();
      at::Tensor const first = loss(turn_of(data.rows, i), 0);
      first.backward();
      at::Tensor const second = loss(turn_of(data.rows, i + 1), 8);
      second.backward();
      if (std::isfinite((first + second).item<double>())) optimizer.step();
      // [hand manual_backward]
    }
  };
};

/// The largest difference over the largest value.
double difference_of(std::vector<at::Tensor> const& ours, std::vector<at::Tensor> const& theirs) {
  at::NoGradGuard const no_grad;
  double largest = 0.0, apart = 0.0;
  for (std::size_t i = 0; i < ours.size(); ++i) {
    largest = std::max(largest, theirs[i].abs().max().item<double>());
    apart = std::max(apart, (ours[i] - theirs[i]).abs().max().item<double>());
  }
  return apart / largest;
}

template <class Kind>
bool compare(std::string const& name, int rounds) {
  at::manual_seed(1);
  Kind const data;
  at::manual_seed(2);
  typename Kind::ours ours(data);
  at::manual_seed(2);
  typename Kind::by_hand theirs(data);
  std::int64_t a = 0, b = 0;
  for (; a < 100; ++a, ++b) ours.turn(a), theirs.turn(b);
  double const apart = difference_of(ours.all(), theirs.all());
  if (!(apart <= (Kind::clipped ? 1e-4 : 0.0))) {
    std::fprintf(stderr, "%s: after 100 turns the parameters are apart by %g of the largest\n", name.c_str(), apart);
    return false;
  }
  auto const [mine, peer] = keel_benchmark::compare([&] { ours.turn(a++); }, [&] { theirs.turn(b++); }, rounds, 10);
  char apart_words[32];
  std::snprintf(apart_words, sizeof apart_words, "%.1g", apart);
  keel_benchmark::print_row(name, mine, peer,
                            std::string(Kind::is) + "; median of " + std::to_string(rounds) + ", " +
                                std::to_string(at::get_num_threads()) +
                                " thread; peer: the loop by hand, with a look at the loss; after 100 turns apart by " +
                                (apart == 0.0 ? "no bit" : apart_words));
  return true;
}

}  // namespace

/// multi_model [NAME..]: without a name all of them.
int main(int count, char** words) {
  at::set_num_threads(1);
  // glibc gives the end of its heap back and takes it again page by page, for one of the two: which, the layout of the heap decides.
  mallopt(M_MMAP_THRESHOLD, 1 << 25);
  mallopt(M_TRIM_THRESHOLD, 1 << 30);
  std::vector<std::string> const wanted(words + 1, words + count);
  bool all_agree = true;
  auto const compared = [&]<class Kind>(std::type_identity<Kind>, char const* name, int rounds) {
    if (!wanted.empty() && std::find(wanted.begin(), wanted.end(), name) == wanted.end()) return;
    all_agree &= compare<Kind>(name, rounds);
  };
  compared(std::type_identity<gan>(), "multi_model/gan", 400);
  compared(std::type_identity<actor_critic>(), "multi_model/actor_critic", 400);
  compared(std::type_identity<self_play>(), "multi_model/self_play", 600);
  compared(std::type_identity<physics<torch::optim::Adam>>(), "multi_model/physics_adam", 400);
  compared(std::type_identity<physics<torch::optim::LBFGS>>(), "multi_model/physics_lbfgs", 60);
  compared(std::type_identity<unfreeze>(), "multi_model/unfreeze", 600);
  compared(std::type_identity<numbers_from_file>(), "multi_model/numbers_from_file", 300);
  compared(std::type_identity<manual_backward>(), "multi_model/manual_backward", 400);
  return all_agree ? EXIT_SUCCESS : EXIT_FAILURE;
}
