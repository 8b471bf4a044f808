// What several ranks cost and bring, in processes that this one starts on this machine and that meet by Gloo on loopback:
//     agree/step          the agreement of two ranks on an update, as a share of a step of 20 ms, half of which is its last backward pass
//     replicate/scaling   one process with 2 threads, over two ranks with a thread each, on the same global batch
//     zero1/memory        bytes of the optimizer's state on a rank with shard::zero<1>, over its share of 8 bytes a parameter
//     zero1/step          an update of shard::replicate, over one of zero<1>, which sends the parameters once more
//     zero2/step          an update of shard::replicate, over one of zero<2>, which sends the gradients of each of two micro-batches
//     zero3/step          an update of shard::replicate, over one of zero<3>, which also gathers each block twice in each of them
//     zero3/overhead      a loop by hand in one process, over zero<3> on one rank, which has nothing to share
//     zero/scaling        one process with 2 threads, over two ranks with a thread each, of the slowest of zero<1>, zero<2> and zero<3>
//     plan/step           keel plan's time of an update, over the one measured, or the reverse: the worst of 1, 2 and 4 ranks and of all stages
//     replicate/peer      Python's DistributedDataParallel on two ranks, over ours: same model, batches, optimizer; its program is ranks.py
//     zero/peer           the same with Python's ZeroRedundancyOptimizer, over zero<1>
//     ranks [PYTHON RANKS_PY]
// All of them wait for a word on their standard input and take turns, so that one trains at a time. One JSON row a line.
#include <fcntl.h>
#include <malloc.h>
#include <netinet/in.h>
#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <ATen/Parallel.h>
#include <torch/types.h>

#include <torch/nn/utils/clip_grad.h>
#include <torch/optim/adamw.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <iostream>
#include <keel/collective/collectives.hpp>
#include <keel/collective/join.hpp>
#include <keel/diagnose/machine_check.hpp>
#include <keel/diagnose/plan.hpp>
#include <keel/keel.hpp>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "../examples/char_gpt/model.hpp"
#include "measure.hpp"

extern char** environ;

namespace {

template <class Shard>
struct recipe : keel::recipe<Shard, keel::accumulate<2>, keel::clip::global_norm<1.0>, keel::nonfinite::skip<5>> {};

constexpr std::int64_t rows = 8;  // of a micro-batch on a rank
constexpr int turns = 25;
constexpr int planned_turns = 7;
constexpr int agreements_of_a_turn = 10;
/// keel plan is compared with a wider model: in a small one most of a collective is latency, which depends on how busy the cores are.
bool const is_wide = std::getenv("KEEL_BENCHMARK_WIDE") != nullptr;
char_gpt::model_size const size{.vocabulary = 96, .width = is_wide ? 256 : 128};
int const steps = is_wide ? 1 : 4;  // of a turn

/// Milliseconds of this thread's own, for so many of which it computes.
void work(double milliseconds) {
  auto const used = [] {
    timespec time{};
    ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return 1e3 * static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_nsec);
  };
  for (double const end = used() + milliseconds; used() < end;) {
  }
}

/// Milliseconds by a clock that all processes of this machine share.
double now() { return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

/// What every process does first: activations are allocated and freed thousands of times a second.
void begin(int threads) {
  at::set_num_threads(threads);
  mallopt(M_MMAP_THRESHOLD, 1 << 30);
  mallopt(M_TRIM_THRESHOLD, 1 << 30);
  at::manual_seed(1337);
}

/// Batches of one process, with the rows of so many ranks.
std::vector<at::Tensor> make_batches(int ranks) {
  std::vector<at::Tensor> batches;
  for (int i = 0; i < 16; ++i) batches.push_back(at::randint(size.vocabulary, {ranks * rows, size.context + 1}));
  return batches;
}

torch::optim::AdamWOptions adamw_options() { return torch::optim::AdamWOptions(2e-3).betas({0.9, 0.95}).weight_decay(0.1); }

at::Tensor compute_loss(char_gpt::gpt& model, at::Tensor const& ids) {
  at::Tensor const logits = model->forward(ids.slice(1, 0, size.context)).flatten(0, 1);
  return at::cross_entropy_loss(logits, ids.slice(1, 1, size.context + 1).reshape({-1}));
}

/// The model of examples/char_gpt, trained by keel.
template <class Shard>
class training {
 public:
  training(keel::world_of_ranks const& world, int ranks)
      : model_(size), optimizer_(model_->parameters(), adamw_options()), batches_(make_batches(ranks)), step_{model_, optimizer_, world} {}

  /// Of the optimizer's state here, over an equal share of Adam's two moments in fp32.
  double bytes_over_formula(int ranks) {
    double bytes = 0.0, elements = 0.0;
    for (auto const& [key, held] : optimizer_.state()) {
      auto const& one = static_cast<torch::optim::AdamWParamState const&>(*held);
      bytes += static_cast<double>(one.exp_avg().nbytes() + one.exp_avg_sq().nbytes());
    }
    for (at::Tensor const& one : model_->parameters()) elements += static_cast<double>(one.numel());
    return bytes / (8.0 * elements / ranks);
  }
  /// Milliseconds of an update.
  double turn() {
    auto const loss_of = [this](at::Tensor const& ids) { return compute_loss(model_, ids); };
    return keel_benchmark::milliseconds([&] {
             for (int i = 0; i < 2 * steps; ++i) step_(batches_[next_++ % batches_.size()], loss_of);
           }) /
           steps;
  }

 private:
  char_gpt::gpt model_;
  keel::adamw optimizer_;
  std::vector<at::Tensor> batches_;
  std::size_t next_ = 0;
  keel::step<recipe<Shard>> step_;
};

/// The same in a loop by hand, in one process.
class by_hand {
 public:
  explicit by_hand(int ranks) : model_(size), optimizer_(model_->parameters(), adamw_options()), batches_(make_batches(ranks)) {}
  double turn() {
    return keel_benchmark::milliseconds([&] {
             for (int i = 0; i < steps; ++i) {
               optimizer_.zero_grad();
               pass();
               pass();
               update();
             }
           }) /
           steps;
  }
  /// Milliseconds of one micro-batch, and of what follows the last one.
  double micro_batch() {
    return keel_benchmark::milliseconds([&] {
             for (int i = 0; i < 2 * steps; ++i) pass();
           }) /
           (2 * steps);
  }
  double optimizer() {
    return keel_benchmark::milliseconds([&] {
             for (int i = 0; i < steps; ++i) update();
           }) /
           steps;
  }

 private:
  void pass() {
    at::Tensor const loss = compute_loss(model_, batches_[next_++ % batches_.size()]) / 2;
    loss.backward();
    loss.item<double>();
  }
  void update() {
    torch::nn::utils::clip_grad_norm_(optimizer_.param_groups().front().params(), 1.0);
    optimizer_.step();
  }

  char_gpt::gpt model_;
  keel::adamw optimizer_;
  std::vector<at::Tensor> batches_;
  std::size_t next_ = 0;
};

/// What two ranks need for a step of 20 ms of work beyond it, with and without an agreement.
class agreeing {
 public:
  explicit agreeing(keel::world_of_ranks const& world)
      : world_(world), optimizer_(model_->parameters(), 0.1), parameters_(keel::collect_parameters(*model_, optimizer_)), with_(world) {
    with_.begin({}, parameters_, *model_, optimizer_, /*updates=*/0, /*has_closure=*/false, /*on_device=*/false);
  }
  /// From when the last rank begins until all are at the end.
  double turn(bool agrees) {
    at::Tensor const times = at::empty({agreements_of_a_turn, 2}, at::kDouble);
    for (int i = 0; i < agreements_of_a_turn; ++i) {
      keel::barrier(world_);
      times[i][0] = now();
      keel::detail::update_summary const mine{.loss = 1.0, .loss_weight = 1.0, .weight = 1.0};
      work(10.0);
      if (agrees) {
        with_.begin_call();
        with_.begin_agreement(mine);
      }
      work(10.0);
      if (agrees) with_.agree(mine);
      times[i][1] = now();
      if (agrees) with_.sum_gradients();
    }
    at::Tensor const all = keel::all_gather(world_, times);
    return (all.select(2, 1).amax(0) - all.select(2, 0).amax(0)).median().item<double>();
  }

 private:
  keel::world_of_ranks world_;
  torch::nn::Linear model_{1, 1};
  torch::optim::SGD optimizer_;
  keel::parameter_list parameters_;
  keel::detail::replication with_;
};

/// One of the ranks: does what it is asked for, and rank 0 says how many milliseconds that took.
int be_a_rank() {
  begin(1);
  keel::world_of_ranks const world = keel::join();
  training<keel::shard::replicate> of(world, 1);
  training<keel::shard::zero<1>> in_shares(world, 1);
  training<keel::shard::zero<2>> with_gradients_in_shares(world, 1);
  training<keel::shard::zero<3>> with_parameters_in_shares(world, 1);
  agreeing agreements(world);
  by_hand parts(1);
  for (std::string word; std::cin >> word && word != "end";) {
    double took = 0.0;
    if (word == "steps") took = of.turn();
    if (word == "shares") took = in_shares.turn();
    if (word == "gradient_shares") took = with_gradients_in_shares.turn();
    if (word == "parameter_shares") took = with_parameters_in_shares.turn();
    if (word == "bytes") took = world.combine(keel::reduce::max{}, in_shares.bytes_over_formula(world.size()));
    if (word == "agree") took = agreements.turn(true);
    if (word == "work") took = agreements.turn(false);
    if (word == "micro_batch") took = parts.micro_batch();
    if (word == "optimizer") took = parts.optimizer();
    if (word == "latency" || word == "bandwidth") {
      keel::detail::link_speed const link = keel::detail::measure_link(world);
      took = word == "latency" ? 1e3 * link.seconds : link.bytes_per_second;
    }
    if (world.rank() == 0) std::cout << took << std::endl;
  }
  return 0;
}

int free_port() {
  int const socket = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof(address);
  bool const bound = ::bind(socket, reinterpret_cast<sockaddr*>(&address), length) == 0 &&
                     ::getsockname(socket, reinterpret_cast<sockaddr*>(&address), &length) == 0;
  ::close(socket);
  if (!bound) throw std::runtime_error("there is no free port on loopback");
  return ntohs(address.sin_port);
}

/// Processes of one program.
class group_of_ranks {
 public:
  explicit group_of_ranks(std::vector<std::string> const& command, int ranks = 2) {
    std::string const port = std::to_string(free_port());
    for (int rank = 0; rank < ranks; ++rank) {
      int in[2], out[2];
      if (::pipe2(in, O_CLOEXEC) != 0 || ::pipe2(out, O_CLOEXEC) != 0) throw std::runtime_error("there are no pipes");
      posix_spawn_file_actions_t files;
      ::posix_spawn_file_actions_init(&files);
      ::posix_spawn_file_actions_adddup2(&files, in[0], 0);
      if (rank == 0) ::posix_spawn_file_actions_adddup2(&files, out[1], 1);
      std::vector<std::string> variables{"RANK=" + std::to_string(rank), "WORLD_SIZE=" + std::to_string(ranks), "MASTER_ADDR=127.0.0.1", "MASTER_PORT=" + port,
                                         "OMP_NUM_THREADS=1", "OMP_WAIT_POLICY=passive", "KEEL_BENCHMARK_RANK=1"};
      std::vector<char*> words, environment;
      for (auto const& one : command) words.push_back(const_cast<char*>(one.c_str()));
      words.push_back(nullptr);
      for (char** one = environ; *one != nullptr; ++one) {
        if (std::string(*one).rfind("OMP_", 0) != 0) environment.push_back(*one);
      }
      for (auto& one : variables) environment.push_back(one.data());
      environment.push_back(nullptr);
      pid_t process = 0;
      if (::posix_spawnp(&process, words[0], &files, nullptr, words.data(), environment.data()) != 0)
        throw std::runtime_error(command.front() + " does not start");
      ::posix_spawn_file_actions_destroy(&files);
      ::close(in[0]);
      ::close(out[1]);
      processes_.push_back(process);
      to_.push_back(in[1]);
      if (rank == 0) from_ = ::fdopen(out[0], "r");
    }
  }
  group_of_ranks(group_of_ranks const&) = delete;
  group_of_ranks& operator=(group_of_ranks const&) = delete;
  ~group_of_ranks() {
    for (int const one : to_) ::close(one);
    for (pid_t const one : processes_) ::waitpid(one, nullptr, 0);
    if (from_ != nullptr) std::fclose(from_);
  }

  double ask(std::string const& word) {
    std::string const line = word + "\n";
    for (int const one : to_) {
      if (::write(one, line.data(), line.size()) != static_cast<ssize_t>(line.size())) throw std::runtime_error("a rank is gone");
    }
    double found = 0.0;
    if (std::fscanf(from_, "%lf", &found) != 1) throw std::runtime_error("rank 0 gives no answer");
    return found;
  }

 private:
  std::vector<pid_t> processes_;
  std::vector<int> to_;
  std::FILE* from_ = nullptr;
};

/// The worst of keel plan's times of an update over the measured ones, or the reverse, with all of them in `detail`.
double worst_of_plan(std::string& detail) {
  ::setenv("KEEL_BENCHMARK_WIDE", "1", 1);
  auto wide = size;
  wide.width = 256;
  char_gpt::gpt const model(wide);
  double parameters = 0.0, unit = 0.0;
  for (at::Tensor const& one : model->parameters()) parameters += static_cast<double>(one.numel());
  for (auto const& child : model->named_children()) {
    double own = 0.0;
    for (at::Tensor const& one : child.value()->parameters()) own += static_cast<double>(one.numel());
    unit = std::max(unit, own / static_cast<double>(std::max<std::size_t>(1, child.value()->children().size())));
  }
  double worst = 1.0;
  for (int const ranks : {1, 2, 4}) {
    group_of_ranks group({"/proc/self/exe"}, ranks);
    std::vector<double> measured[4], micro_batch, optimizer, latency, bandwidth;
    char const* const words[4] = {"steps", "shares", "gradient_shares", "parameter_shares"};
    for (int turn = -1; turn < planned_turns; ++turn) {
      double const pass = group.ask("micro_batch"), update = group.ask("optimizer");
      double const of_stage[4] = {group.ask(words[0]), group.ask(words[1]), group.ask(words[2]), group.ask(words[3])};
      if (turn < 0) continue;
      micro_batch.push_back(pass);
      optimizer.push_back(update);
      for (int stage = 0; stage < 4; ++stage) measured[stage].push_back(of_stage[stage]);
      if (ranks == 1 || turn % 2 != 0) continue;
      latency.push_back(group.ask("latency"));
      bandwidth.push_back(group.ask("bandwidth"));
    }
    using keel_benchmark::median;
    keel::plan_inputs in{.parameters = parameters,
                         .unit_parameters = unit,
                         .micro_batch_seconds = 1e-3 * median(micro_batch),
                         .optimizer_seconds = 1e-3 * median(optimizer),
                         .micro_batches = 2,
                         .ranks_per_host = ranks,
                         .overlap = 1.0 - std::min(1.0, static_cast<double>(std::thread::hardware_concurrency()) / ranks)};
    if (ranks > 1) {
      in.latency = 1e-3 * median(latency) / (ranks - 1);
      in.bandwidth = median(bandwidth) * 2.0 * (ranks - 1) / ranks;
    }
    for (int stage = 0; stage < 4; ++stage) {
      double const planned = 1e3 * keel::plan_run(in, ranks, stage).update_seconds, found = median(measured[stage]);
      worst = std::max({worst, planned / found, found / planned});
      char line[96];
      std::snprintf(line, sizeof line, "%d ranks stage %d: %.1f of %.1f ms; ", ranks, stage, planned, found);
      detail += line;
    }
  }
  return worst;
}

}  // namespace

int main(int count, char** words) {
  if (std::getenv("KEEL_BENCHMARK_RANK") != nullptr) return be_a_rank();
  begin(2);
  ::signal(SIGPIPE, SIG_IGN);
  training<keel::shard::replicate> alone({}, 2);
  training<keel::shard::zero<3>> alone_in_shares({}, 2);
  by_hand hand(2);
  group_of_ranks ours({"/proc/self/exe"});
  std::unique_ptr<group_of_ranks> peer;
  if (count == 3) peer = std::make_unique<group_of_ranks>(std::vector<std::string>{words[1], words[2]});
  std::vector<double> agreements, without, of_alone, of_ours, of_shares, of_gradient_shares, of_parameter_shares, of_alone_in_shares, of_hand, of_peer, of_sharded_peer;
  for (int turn = -2; turn < turns; ++turn) {
    double const agreement = ours.ask("agree"), work = ours.ask("work"), one = alone.turn(), two = ours.ask("steps"), shared = ours.ask("shares"),
                 gradients_shared = ours.ask("gradient_shares"), parameters_shared = ours.ask("parameter_shares"), one_in_shares = alone_in_shares.turn(), one_by_hand = hand.turn();
    double const theirs = peer ? peer->ask("steps") : 0.0, theirs_shared = peer ? peer->ask("shares") : 0.0;
    if (turn < 0) continue;
    agreements.push_back(agreement);
    without.push_back(work);
    of_alone.push_back(one);
    of_ours.push_back(two);
    of_shares.push_back(shared);
    of_gradient_shares.push_back(gradients_shared);
    of_parameter_shares.push_back(parameters_shared);
    of_alone_in_shares.push_back(one_in_shares);
    of_hand.push_back(one_by_hand);
    of_peer.push_back(theirs);
    of_sharded_peer.push_back(theirs_shared);
  }
  using keel_benchmark::median;
  std::string const what = "the model of examples/char_gpt, " + std::to_string(4 * rows) + " rows an update in two micro-batches, AdamW, clipped; medians of " + std::to_string(turns) +
                           " turns of " + std::to_string(steps) + " updates";
  double const share = (median(agreements) - median(without)) / 20.0;
  std::printf("{\"name\": \"agree/step\", \"ours\": %.5f, \"peer\": %.5f, \"ratio\": %.5f, \"unit\": \"ms\", \"detail\": \"ratio is (ours - peer) / "
              "20 ms, smaller is better: two ranks with 20 ms of work each, which agree in the second half of it, and which do not; median of %d turns of %d\"}\n",
              median(agreements), median(without), share, turns, agreements_of_a_turn);
  keel_benchmark::print_row("replicate/scaling", median(of_ours), median(of_alone),
                            "ours: 2 ranks with 1 thread each; peer: 1 process with 2 threads, the same global batch; " + what);
  double const bytes = ours.ask("bytes");
  std::printf("{\"name\": \"zero1/memory\", \"ours\": %.5f, \"peer\": 1, \"ratio\": %.5f, \"unit\": \"shares\", \"detail\": \"ratio is ours / "
              "peer, smaller is better: bytes of AdamW's state on the rank with most, of 2 ranks, over half of 8 bytes a parameter\"}\n",
              bytes, bytes);
  keel_benchmark::print_row("zero1/step", median(of_shares), median(of_ours), "ours: zero<1>; peer: replicate, both on 2 ranks with 1 thread each; " + what);
  keel_benchmark::print_row("zero2/step", median(of_gradient_shares), median(of_ours),
                            "ours: zero<2>; peer: replicate, both on 2 ranks with 1 thread each; " + what);
  keel_benchmark::print_row("zero3/step", median(of_parameter_shares), median(of_ours),
                            "ours: zero<3>, blocks as units; peer: replicate, both on 2 ranks with 1 thread each; " + what);
  keel_benchmark::print_row("zero3/overhead", median(of_alone_in_shares), median(of_hand),
                            "ours: zero<3> on one rank; peer: a loop by hand, both with keel::adamw and 2 threads; " + what);
  double const slowest = std::max({median(of_shares), median(of_gradient_shares), median(of_parameter_shares)});
  keel_benchmark::print_row("zero/scaling", slowest, median(of_alone),
                            "ours: 2 ranks with 1 thread each, the slowest of zero<1>, zero<2> and zero<3>; peer: 1 process with 2 threads, the same "
                            "global batch; " + what);
  std::string planned;
  double const worst = worst_of_plan(planned);
  std::printf("{\"name\": \"plan/step\", \"ours\": %.5f, \"peer\": 1, \"ratio\": %.5f, \"unit\": \"ratio\", \"detail\": \"smaller is better: %smedians of %d turns\"}\n",
              worst, worst, planned.c_str(), planned_turns);
  if (!peer) return 0;
  keel_benchmark::print_row("replicate/peer", median(of_ours), median(of_peer),
                              "2 ranks with 1 thread each; peer: DistributedDataParallel of Python's torch; " + what);
  keel_benchmark::print_row("zero/peer", median(of_shares), median(of_sharded_peer),
                            "ours: zero<1>; peer: DistributedDataParallel and ZeroRedundancyOptimizer of Python's torch; " + what);
  return 0;
}
