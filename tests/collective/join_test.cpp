// Processes that meet as a launcher's would: what they find when all is well, and what each of them says when one is missing, another, dead
// or hanging. Each scenario runs this program again, once a rank.
// unity: at global scope
#ifndef USE_C10D_GLOO
#define USE_C10D_GLOO
#endif
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#if KEEL_GLOO
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#endif

#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <functional>
#include <map>
#include <random>
#include <set>
#include <span>
#include <sstream>
#include <thread>

#include <keel/collective/collectives.hpp>
#include <keel/collective/in_process.hpp>
#include <keel/collective/join.hpp>
#include <keel/collective/process_group.hpp>

#include "../support.hpp"
#include "rank_processes.hpp"

using namespace keel_test;
using namespace keel::literals;
using namespace std::chrono_literals;

namespace {

struct replicated : keel::recipe<keel::shard::replicate, keel::accumulate<2>, keel::nonfinite::skip<5>, keel::clip::global_norm<0.1>> {};

struct on_a_device : keel::step_environment {
  bool decides_on_device(at::DeviceType) const override { return true; }
};

/// 15 updates, of which one has a NaN on the last rank. The sum of the parameters, to the bit.
template <class Environment = keel::step_environment>
std::string train(keel::world_of_ranks const& world, std::string const& name) {
  at::manual_seed(5);
  auto const model = make_small(4, 0.0);
  keel::adamw optimizer(model->parameters(), 0.01);
  keel::step<replicated, Environment> step{*model, optimizer, world};
  for (std::int64_t i = 0; i < 30; ++i) {
    auto batch = make_pair_batch(static_cast<std::uint64_t>(i * world.size() + world.rank()));
    bool const is_last = world.rank() == world.size() - 1;
    if (is_last && i == 9) batch.first = batch.first * NAN;
    step(batch, [&](pair_batch const& of) {
      if (is_last && i == 20 && name.ends_with("killed")) ::raise(SIGKILL);
      if (is_last && i == 20 && name.ends_with("throws")) throw std::runtime_error("of the program");
      return mean_squared_error(model)(of);
    });
  }
  step.settle();
  std::string words = "trained " + std::to_string(step.updates()) + ", skipped " + std::to_string(step.skipped());
  for (at::Tensor const& one : model->parameters()) words += " " + nlohmann::json(one.detach().to(at::kDouble).sum().item<double>()).dump();
  return words;
}

struct limited : keel::recipe<keel::shard::replicate, keel::timeout::set<keel::timeout::collective<3_s>>> {};
struct watched : keel::recipe<keel::shard::replicate, keel::timeout::set<keel::timeout::hard<2_s>>> {};

/// A trainer whose last rank does not come out of its loss.
std::string hang(keel::world_of_ranks const& world) {
  auto const model = make_small(4, 0.0);
  keel::adamw optimizer(model->parameters(), 0.01);
  keel::trainer<watched> run{*model, optimizer, world, quiet({.updates = 10})};
  std::vector<pair_batch> const batches(10, make_pair_batch(1));
  run.fit(batches, [&](pair_batch const& batch) {
    if (run.updates() == 3 && world.rank() == world.size() - 1) std::this_thread::sleep_for(60s);
    return mean_squared_error(model)(batch);
  });
  return "went on";
}

struct beating : keel::recipe<keel::shard::replicate, keel::timeout::set<keel::timeout::heartbeat<1_s, 3_s>>> {};

/// A trainer of which one rank is stopped as a whole, or takes its time, or leaves before the others.
std::string beat(keel::world_of_ranks const& world, std::string const& name) {
  auto const model = make_small(4, 0.0);
  keel::adamw optimizer(model->parameters(), 0.01);
  keel::trainer<beating> run{*model, optimizer, world, quiet({.updates = 10})};
  std::vector<pair_batch> const batches(10, make_pair_batch(1));
  run.fit(batches, [&](pair_batch const& batch) {
    if (run.updates() == 3 && world.rank() == 1 && name == "beats_slowly") std::this_thread::sleep_for(6s);
    if (run.updates() == 3 && world.rank() == 1 && name == "beats_stopped") ::raise(SIGSTOP);
    if (run.updates() == 3 && world.rank() == 0 && name == "beats_first_stopped") ::raise(SIGSTOP);
    return mean_squared_error(model)(batch);
  });
  // The others are not missed, who have ended.
  if (world.rank() == 0) std::this_thread::sleep_for(5s);
  return "went on";
}

/// A trainer whose last rank is slow. What rank 0's record says of it.
std::string straggle(keel::world_of_ranks const& world) {
  scratch_directory const directory;
  auto const model = make_small(4, 0.0);
  keel::adamw optimizer(model->parameters(), 0.01);
  keel::trainer<keel::recipe<keel::shard::zero<1>>> run{*model, optimizer, world, quiet({.run_directory = directory, .updates = 60})};
  std::vector<pair_batch> const batches(60, make_pair_batch(1));
  run.fit(batches, [&](pair_batch const& batch) {
    if (world.rank() == world.size() - 1) std::this_thread::sleep_for(40ms);
    return mean_squared_error(model)(batch);
  });
  std::string said = world.rank() == 0 ? read_lines(directory / "metrics.jsonl").back() + "\n" : "";
  for (std::string const& line : read_lines(directory / (world.rank() == 0 ? "events.jsonl" : "rank-1/events.jsonl"))) {
    if (line.find("\"straggler\"") != std::string::npos) said += line + "\n";
  }
  return said;
}

/// Of this process, besides those of `known`, that the signal would end it in; all threads into `known`.
int threads_without_mask(std::set<std::string>& known, int signal) {
  int without = 0;
  for (auto const& task : std::filesystem::directory_iterator("/proc/self/task")) {
    if (!known.insert(task.path().filename()).second) continue;
    std::string const status = read_file(task.path() / "status");
    auto const blocked = std::stoull(status.substr(status.find("SigBlk:") + 7), nullptr, 16);
    without += (blocked >> (signal - 1) & 1) == 0 ? 1 : 0;
  }
  return without;
}

/// Connects to a port of this machine, says that, and stays. -1: it could not.
int stranger_at(int port, std::vector<std::uint64_t> const& says) {
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  at.sin_port = htons(static_cast<std::uint16_t>(port));
  int const made = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  bool const is_there = ::connect(made, reinterpret_cast<sockaddr const*>(&at), sizeof(at)) == 0;
  std::size_t const bytes = says.size() * sizeof(std::uint64_t);
  return is_there && ::send(made, says.data(), bytes, MSG_NOSIGNAL) == static_cast<ssize_t>(bytes) ? made : -1;
}

/// A port at which this process listens, other than `known`; 0: none.
int listening_port(int known) {
  for (int file = 3; file < 256; ++file) {
    int listens = 0;
    socklen_t length = sizeof(listens);
    if (::getsockopt(file, SOL_SOCKET, SO_ACCEPTCONN, &listens, &length) != 0 || listens == 0) continue;
    sockaddr_storage address{};
    length = sizeof(address);
    if (::getsockname(file, reinterpret_cast<sockaddr*>(&address), &length) != 0) continue;
    // The port stands in the same place for both families.
    int const port = ntohs(reinterpret_cast<sockaddr_in const*>(&address)->sin_port);
    if (port != known) return port;
  }
  return 0;
}

/// Connects once to Gloo's listener of this process as soon as it is there.
class stranger_at_gloo {
 public:
  stranger_at_gloo(int known, std::string const& name) {
    thread_ = std::thread([this, known, name] {
      for (int port = 0; !is_over_; std::this_thread::sleep_for(50us)) {
        if ((port = listening_port(known)) == 0) continue;
        int const made = stranger_at(port, name == "stranger_closes"  ? std::vector<std::uint64_t>{}
                                           : name == "stranger_talks" ? std::vector<std::uint64_t>(8, 0x2f20544547)
                                                                      : std::vector<std::uint64_t>{1 << 20});
        came_ = made >= 0;
        ::close(made);
        return;
      }
    });
  }
  stranger_at_gloo(stranger_at_gloo const&) = delete;
  stranger_at_gloo& operator=(stranger_at_gloo const&) = delete;
  ~stranger_at_gloo() {
    is_over_ = true;
    thread_.join();
  }
  bool came() const { return came_; }

 private:
  std::atomic<bool> is_over_{false}, came_{false};
  std::thread thread_;
};

/// What a rank does in each scenario. What it returns or throws is what it said.
std::string scenario_of(std::string const& name) {
  auto const how = keel::read_launch_environment();
  if (name.starts_with("stranger")) {
    std::optional<stranger_at_gloo> stranger;
    if (how.rank == 1) stranger.emplace(how.port, name);
    auto const world = keel::join(how, {.timeout = 40s});
    at::Tensor sum = at::ones({3});
    keel::all_reduce(world, sum);
    return "met " + std::to_string(sum[0].item<int>()) + (stranger && !stranger->came() ? ", and no stranger came" : "");
  }
  std::set<std::string> threads;
  int const before = threads_without_mask(threads, SIGPIPE);
  // Less would be too little for a process to start on a machine that is busy.
  auto const world = keel::join(how, {.timeout = name == "absent" || name == "stopped" || name == "first_stopped" || name == "port" || name == "other_call" ? 4s : name == "waits" ? 7s : 30s});
  if (name == "threads") {
    keel::barrier(world);
    std::size_t const known = threads.size();
    int const after = threads_without_mask(threads, SIGPIPE);
    return std::to_string(before) + " before, " + std::to_string(after) + " more of " + (threads.size() > known ? "several" : "none");
  }
  if (name == "limited") {
    auto const model = make_small(4, 0.0);
    keel::adamw optimizer(model->parameters(), 0.01);
    keel::step<limited> step{*model, optimizer, world};
    step(make_pair_batch(1), mean_squared_error(model));
    if (world.rank() == 1) ::raise(SIGSTOP);
    step(make_pair_batch(2), mean_squared_error(model));
    return "went on";
  }
  if (name == "collectives") {
    for (at::ScalarType const dtype : {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16, at::kLong, at::kBool}) {
      at::Tensor const mine = (at::arange(6).view({2, 3}) + world.rank()).to(dtype);
      at::Tensor sum = mine.clone(), sent = mine.clone();
      keel::all_reduce(world, sum);
      keel::broadcast(world, sent, world.size() - 1);
      at::Tensor const all = keel::all_gather(world, mine);
      at::Tensor expected = all[0].to(at::kDouble);
      for (int rank = 1; rank < world.size(); ++rank) expected = expected + all[rank].to(at::kDouble);
      if (!at::equal(sum, expected.to(dtype)) || !at::equal(all[world.rank()], mine) || !at::equal(sent, all[world.size() - 1]))
        return std::string("wrong for ") + c10::toString(dtype);
      at::Tensor const whole = at::cat(std::vector<at::Tensor>(static_cast<std::size_t>(world.size()), mine));
      at::Tensor const part = keel::reduce_scatter(world, whole);
      if (!at::equal(part, sum)) return std::string("wrong share for ") + c10::toString(dtype);
    }
    keel::barrier(world);
    return "right: " + std::to_string(world.combine(keel::reduce::sum{}, world.rank())) + " of " + std::to_string(world.size()) + " " +
           std::to_string(world.fingerprint());
  }
  if (name == "trainer_hangs") return hang(world);
  if (name == "straggles") return straggle(world);
  if (name.starts_with("beats")) return beat(world, name);
  if (name.starts_with("train_late")) return train<on_a_device>(world, name);
  if (name.starts_with("train")) return train(world, name);
  for (int i = 0; i < 3; ++i) keel::barrier(world);
  if (world.rank() == 1 && name == "gives_up") {
    world.abort("the disk is full");
    return "gave up";
  }
  if (name.starts_with("dies_")) {
    // dies_RANK_WHAT
    if (world.rank() == name[5] - '0') ::raise(SIGKILL);
    std::string const what = name.substr(7);
    at::Tensor mine = at::ones({1000}), whole = at::ones({1000 * world.size()});
    if (what == "all_reduce") keel::all_reduce(world, mine);
    if (what == "all_gather") keel::all_gather(world, mine);
    if (what == "broadcast") keel::broadcast(world, mine, world.size() - 1);
    if (what == "reduce_scatter") keel::reduce_scatter(world, whole);
    keel::barrier(world);
    return "went on";
  }
  if (world.rank() == 1 && name == "killed") ::raise(SIGKILL);
  if (world.rank() == 0 && name == "first_killed") ::raise(SIGKILL);
  if (world.rank() == 1 && name == "other_call") keel::barrier(world);
  if (name == "other_size") {
    at::Tensor mine = at::ones({world.rank() == 1 ? 4 : 3});
    keel::all_reduce(world, mine);
    keel::barrier(world);
    return "went on";
  }
  if (world.rank() == 1 && name == "stopped") ::raise(SIGSTOP);
  if (world.rank() == 0 && name == "first_stopped") ::raise(SIGSTOP);
  at::Tensor const one = at::ones({1000});
  keel::all_reduce(world, one);
  return "went on";
}

}  // namespace

TEST_CASE("a rank of a world", "[.]") { be_rank(scenario_of); }

#if KEEL_GLOO

TEST_CASE("processes that a launcher started meet, and their collectives come to what one process computes") {
  for (std::size_t const count : {1u, 2u, 3u}) {
    auto const all = run_ranks("collectives", count);
    for (auto const& one : all) CHECK(has(one, "right: " + std::to_string(count * (count - 1) / 2) + " of " + std::to_string(count)));
    for (auto const& one : all) CHECK(one.words == all.front().words);
  }
}

TEST_CASE("of a rank that gives up the others say why, and of one that is killed or stopped that it is gone, within the timeout") {
  auto const gave_up = run_ranks("gives_up", 3);
  CHECK(gave_up[1].words == "gave up");
  for (std::size_t const rank : {0u, 2u}) {
    CHECK(has(gave_up[rank], "[E25] rank " + std::to_string(rank) + " of 3 cannot complete all_reduce, collective number 4"));
    CHECK(has(gave_up[rank], "rank 1 has given up: the disk is full"));
    CHECK(gave_up[rank].seconds < 25.0);
  }
  auto const killed = run_ranks("killed", 3);
  for (std::size_t const rank : {0u, 2u}) {
    CHECK(has(killed[rank], "[E25] rank " + std::to_string(rank) + " of 3 cannot complete all_reduce"));
    CHECK(has(killed[rank], "rank 1 is gone or hanging"));
    CHECK(killed[rank].seconds < 25.0);
  }
  auto const stopped = run_ranks("stopped", 3, 1);
  for (std::size_t const rank : {0u, 2u}) {
    CHECK(has(stopped[rank], "cannot complete all_reduce, collective number 4"));
    CHECK(has(stopped[rank], "rank 1 is gone or hanging"));
  }
  auto const first = run_ranks("first_killed", 3);
  for (std::size_t const rank : {1u, 2u}) {
    CHECK(has(first[rank], ": the store "));
    CHECK(has(first[rank], ": the process that serves it (the launcher, or rank 0) is gone or hanging"));
  }
  auto const first_stopped = run_ranks("first_stopped", 3, 0);
  for (std::size_t const rank : {1u, 2u}) {
    CHECK(has(first_stopped[rank], "cannot complete all_reduce, collective number 4"));
    CHECK(has(first_stopped[rank], "rank 0"));
    CHECK(has(first_stopped[rank], "is gone or hanging"));
    CHECK(first_stopped[rank].seconds < 25.0);
  }
  auto const other = run_ranks("other_call", 3);
  for (std::size_t const rank : {0u, 2u}) {
    CHECK(has(other[rank], "[E26]"));
    CHECK(has(other[rank], "rank 1 is at barrier, collective number 4"));
  }
  auto const size = run_ranks("other_size", 3);
  for (std::size_t const rank : {0u, 2u}) {
    CHECK(has(size[rank], "[E26]"));
    CHECK(has(size[rank], "rank 1 is at all_reduce, collective number 4, of 4 elements"));
  }
}

TEST_CASE("of several ranks the one that is killed is named alone, by ranks too whose neighbours in the collective are alive") {
  auto const dies = [](int rank, std::string const& what) {
    auto const all = run_ranks("dies_" + std::to_string(rank) + "_" + what, 4);
    for (int one = 0; one < 4; ++one) {
      if (one == rank) continue;
      INFO(what << ": rank " << one);
      CHECK(has(all[static_cast<std::size_t>(one)], ": rank " + std::to_string(rank) + " is gone or hanging"));
      CHECK(all[static_cast<std::size_t>(one)].seconds < 20.0);
    }
  };
  std::vector<std::string> const calls{"all_reduce", "all_gather", "broadcast", "reduce_scatter", "barrier"};
  if (std::getenv("KEEL_LONG_TESTS") != nullptr) {
    for (int rank = 1; rank < 4; ++rank) {
      for (std::string const& what : calls) dies(rank, what);
    }
  } else {
    for (std::size_t i = 0; i < calls.size(); ++i) dies(1 + static_cast<int>(i) % 3, calls[i]);
  }
}

TEST_CASE("ranks that wait in different ones of the collectives that both have called are of one run, and ranks with others or of another size are not") {
  using keel::detail::issued_collective;
  using keel::detail::issued_collectives;
  auto const found = [](issued_collectives const& mine, issued_collective const& failed, issued_collectives const& theirs,
                        issued_collective const& of_theirs) {
    auto const store = c10::make_intrusive<c10d::HashStore>();
    std::runtime_error const thrown("timed out");
    std::thread other([&] { keel::detail::diagnose_failure(1, 2, of_theirs, theirs, thrown, store); });
    auto const result = keel::detail::diagnose_failure(0, 2, failed, mine, thrown, store);
    other.join();
    return result;
  };
  issued_collective const agreement{57, "control all-gather", 20}, sum{58, "all_reduce", 1000}, larger{58, "all_reduce", 1001}, barrier{58, "barrier", 0};
  // Rank 0 was stopped until the other had given up: it begins the next one first.
  auto const late = found({sum, agreement}, sum, {sum, agreement}, agreement);
  CHECK(late.id() == std::string("E25"));
  CHECK(late.message.find("or a rank was too late") != std::string::npos);
  CHECK(found({sum, agreement}, sum, {agreement}, agreement).id() == std::string("E25"));
  auto const size = found({sum, agreement}, sum, {larger, agreement}, larger);
  CHECK(size.id() == std::string("E26"));
  CHECK(size.message.find("rank 0 of 2 cannot complete all_reduce, collective number 58, of 1000 elements: rank 1 is at all_reduce, "
                        "collective number 58, of 1001 elements (timed out)") == 0);
  auto const kind = found({sum, agreement}, sum, {barrier, agreement}, barrier);
  CHECK(kind.id() == std::string("E26"));
  CHECK(kind.message.find("rank 1 is at barrier, collective number 58 (timed out)") != std::string::npos);
}

TEST_CASE("SIGPIPE, which a write to a killed rank raises, ends no thread of a world, and the program's threads take it as before") {
  for (auto const& one : run_ranks("threads", 2)) {
    CHECK(has(one, " before, 0 more of several"));
    CHECK_FALSE(has(one, "0 before"));
  }
}

TEST_CASE("processes train what ranks of one process do, and one that throws or is killed is named to the others in its update") {
  // Also where the hosts learn one update later what became of one.
  for (std::string const scenario : {"train", "train_late"}) {
    CAPTURE(scenario);
    bool const is_late = scenario == "train_late";
    std::string expected;
    keel::run_in_process(
        2, [&](keel::world_of_ranks const& world) { expected = is_late ? train<on_a_device>(world, scenario) : train(world, scenario); });
    CHECK(expected.find("trained 14, skipped 1") == 0);
    for (auto const& one : run_ranks(scenario, 2)) CHECK(one.words == expected);
    auto const three = run_ranks(scenario, 3);
    for (auto const& one : three) CHECK(one.words == three.front().words);
    CHECK(has(three.front(), "trained 14, skipped 1"));
    auto const threw = run_ranks(scenario + "_throws", 3);
    CHECK(threw[2].words == "of the program");
    for (std::size_t const rank : {0u, 1u}) CHECK(has(threw[rank], "[E25] rank 2 threw; the update was discarded on all ranks: of the program"));
    auto const killed = run_ranks(scenario + "_killed", 3);
    for (std::size_t const rank : {0u, 1u}) CHECK(has(killed[rank], "rank 2 is gone or hanging"));
  }
}

TEST_CASE("a rank that hangs ends itself by keel::timeout::hard, and the others end with its words long before their collectives would") {
  if (is_thread_sanitized) {
    WARN("SKIPPED: under ThreadSanitizer two seconds pass on each rank before the one that hangs has ended");
    return;
  }
  auto const all = run_ranks("trainer_hangs", 3);
  for (std::size_t const rank : {0u, 1u}) {
    CHECK(has(all[rank], "[E25] rank " + std::to_string(rank) + " of 3 cannot complete control all-gather"));
    CHECK(has(all[rank], "rank 2 has given up: [E27] rank 2 of 3: nothing has ended for 2 s (keel::timeout::hard is 2 s): the run is in the "
                         "forward pass after update 3; its last collective, which has ended, is "));
    CHECK(all[rank].seconds < 15.0);
  }
  CHECK(WEXITSTATUS(all[2].status) == 87);
}

TEST_CASE("a rank without a sign of life is named by keel::timeout::heartbeat, whose processes end long before their collectives would") {
  scratch_directory const directory;
  auto const variables = [&](std::string const& scenario) {
    std::vector<std::map<std::string, std::string>> all(3);
    for (std::size_t rank = 0; rank < 3; ++rank)
      all[rank] = {{"TORCHELASTIC_RUN_ID", "a test"}, {"TORCHELASTIC_ERROR_FILE", directory / (scenario + std::to_string(rank))}};
    return all;
  };
  for (int const stopped : {1, 0}) {
    std::string const scenario = stopped == 1 ? "beats_stopped" : "beats_first_stopped";
    auto const all = run_ranks(scenario, variables(scenario), stopped);
    // Rank 0 serves the store.
    std::string const what = stopped == 1 ? "rank 1 has given no sign of life" : "the store of the ranks has not answered";
    int noticed = 0;
    for (int const rank : {1 - stopped, 2}) {
      auto const& one = all[static_cast<std::size_t>(rank)];
      CHECK(one.seconds < 20.0);
      std::string const name = "rank " + std::to_string(rank);
      if (WEXITSTATUS(one.status) == 82) {
        ++noticed;
        std::string const error = read_file(directory / (scenario + std::to_string(rank)));
        INFO(scenario << ", " << name << ": " << error);
        CHECK(error.find("[E25] " + name + " of 3: " + what + " for 3 s (keel::timeout::heartbeat)") != std::string::npos);
        if (stopped == 0) CHECK(error.find("rank 0, which serves it where no launcher does, is gone or hanging") != std::string::npos);
        CHECK(error.find("after update 3") != std::string::npos);
      } else {
        // Another rank noticed it first, and its end failed the collective in which this one waits.
        INFO(scenario << ", " << name << ", exit status " << WEXITSTATUS(one.status));
        CHECK(has(one, "[E25] " + name + " of 3 cannot complete"));
        CHECK(has(one, stopped == 1 ? what + " for 3 s (keel::timeout::heartbeat)" : "is gone or hanging"));
      }
    }
    CHECK(noticed > 0);
  }
}

TEST_CASE("a rank that takes its time, and one that has ended before the others, has given its signs") {
  for (auto const& one : run_ranks("beats_slowly", 3)) CHECK(one.words == "went on");
}

using own_group = c10::intrusive_ptr<c10d::ProcessGroupGloo>;

/// So many threads of this process, each of which has a group as a program makes it.
void run_threads(int ranks, std::function<void(own_group const& group, c10::intrusive_ptr<c10d::Store> const& store)> const& run) {
  auto const store = c10::make_intrusive<c10d::HashStore>();
  std::vector<std::string> words(static_cast<std::size_t>(ranks));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      auto const how = c10d::ProcessGroupGloo::Options::create(20s);
      how->devices.push_back(c10d::ProcessGroupGloo::createDeviceForHostname("127.0.0.1"));
      try {
        run(c10::make_intrusive<c10d::ProcessGroupGloo>(store, rank, ranks, how), store);
      } catch (std::exception const& thrown) {
        words[static_cast<std::size_t>(rank)] = thrown.what();
      }
    });
  }
  for (std::thread& one : threads) one.join();
  for (std::string const& one : words) CHECK(one.empty());
}

TEST_CASE("ranks train over a group that the program has, and a heartbeat over one without a store says what it needs") {
  std::vector<std::string> words(2), trained(2);
  run_threads(2, [&](own_group const& group, c10::intrusive_ptr<c10d::Store> const& store) {
    auto const rank = static_cast<std::size_t>(group->getRank());
    auto const model = make_small(4, 0.0);
    keel::adamw optimizer(model->parameters(), 0.01);
    try {
      keel::trainer<beating> run{*model, optimizer, keel::over(group, 20s), quiet({.updates = 10})};
    } catch (std::exception const& thrown) {
      words[rank] = thrown.what();
    }
    keel::trainer<beating> run{*model, optimizer, keel::over(group, 20s, store), quiet({.updates = 10})};
    std::vector<pair_batch> const batches(10, make_pair_batch(1));
    run.fit(batches, mean_squared_error(model));
    trained[rank] = std::to_string(run.updates());
  });
  for (std::string const& one : words)
    CHECK(one.find("[E12] keel::timeout::heartbeat needs a c10d store, and this world has none") == 0);
  for (std::string const& one : trained) CHECK(one == "10");
}

TEST_CASE("what ranks agree on is of each of them, whichever comes first, whether it is waited for, and beside other collectives") {
    std::vector<std::int64_t> wrong(4, -1);
    run_threads(4, [&](own_group const& group, c10::intrusive_ptr<c10d::Store> const& store) {
      keel::world_of_ranks const world = keel::over(group, 20s, store);
      std::mt19937 draw(static_cast<unsigned>(world.rank()));
      at::Tensor const mine = at::zeros({20}, at::kDouble);
      std::int64_t found = 0;
      for (int i = 0; i < 400; ++i) {
        if (draw() % 3 == 0) std::this_thread::sleep_for(std::chrono::microseconds(draw() % 800));
        mine.fill_(1000 * world.rank() + i);
        at::Tensor all = at::zeros({4, 20}, at::kDouble);
        auto const under_way = keel::detail::begin_small_all_gather(world, mine, all);
        if (i % 5 == 1) keel::barrier(world);
        if (i % 7 == 3) continue;
        for (auto const last = std::chrono::steady_clock::now() + 1ms * (draw() % 2); std::chrono::steady_clock::now() < last && !under_way->is_done();) continue;
        under_way->wait();
        at::Tensor const expected = (at::arange(4, at::kDouble) * 1000 + i).unsqueeze(1).expand({4, 20});
        found += at::equal(all, expected) ? 0 : 1;
      }
      keel::barrier(world);
      wrong[static_cast<std::size_t>(world.rank())] = found;
    });
    CHECK(wrong == std::vector<std::int64_t>(4, 0));
}

TEST_CASE("a stranger who connects to a listener of Gloo's while ranks meet does not keep them from it") {
  for (char const* const name : {"stranger_closes", "stranger_talks", "stranger_numbers"}) {
    auto const all = run_ranks(name, 3);
    for (auto const& one : all) {
      INFO(name);
      CHECK(one.words == "met 3");
      CHECK(one.seconds < 35.0);
    }
  }
}

TEST_CASE("keel::timeout::collective limits how long ranks wait for one that is stopped, whatever the world was made with") {
  auto const all = run_ranks("limited", 2, 1);
  CHECK(has(all[0], "[E25] rank 0 of 2 cannot complete control all-gather"));
  CHECK(has(all[0], "rank 1 is gone or hanging"));
  // By this rank's clock, or by that of its process group, which may be a moment ahead.
  CHECK((all[0].words.find("it timed out") != std::string::npos || all[0].words.find("Timed out waiting") != std::string::npos));
  CHECK(all[0].seconds < 15.0);
}

TEST_CASE("a rank for which the other waits is named in the record of both, with how long it takes") {
  auto const all = run_ranks("straggles", 2);
  for (auto const& one : all) CHECK(has(one, "\"rank\":1,"));
  CHECK(has(all.front(), "ranks/slowest_ms"));
}

TEST_CASE("ranks that do not come, come twice, are of another world or look in the wrong place are named with both values") {
  auto const absent = run_ranks("absent", {{{"WORLD_SIZE", "4"}}, {{"WORLD_SIZE", "4"}}});
  for (auto const& one : absent) CHECK(has(one, ": ranks 2, 3 did not join at 127.0.0.1:"));
  auto const sizes = run_ranks("sizes", {{{"WORLD_SIZE", "2"}}, {{"WORLD_SIZE", "3"}}});
  CHECK(has(sizes[0], "[E24] rank 0 (2 ranks"));
  CHECK(has(sizes[0], ") and rank 1 (3 ranks"));
  CHECK(has(sizes[1], "[E24] rank 1 (3 ranks"));
  auto const twice = run_ranks("absent", {{{"WORLD_SIZE", "3"}}, {{"WORLD_SIZE", "3"}}, {{"WORLD_SIZE", "3"}, {"RANK", "1"}}});
  CHECK((has(twice[1], "two processes joined as rank 1") || has(twice[2], "two processes joined as rank 1")));
  auto const place = run_ranks("port", {{{"RANK", "1"}, {"WORLD_SIZE", "2"}}});
  CHECK(has(place[0], "[E24] rank 1 of 2 cannot reach the other ranks at 127.0.0.1:"));
  CHECK(place[0].seconds < 20.0);
  auto const nowhere = run_ranks("port", {{{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", ""}}});
  CHECK(has(nowhere[0], "MASTER_ADDR is not set"));
  auto const unknown = run_ranks("port", {{{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "no-such-machine.invalid"}}});
  CHECK(has(unknown[0], "[E24] rank 1 of 2 cannot reach the other ranks at no-such-machine.invalid:"));
}

TEST_CASE("a rank that waits for others says for whom, and who is here, after five seconds") {
  auto const waiting = run_ranks("waits", {{{"WORLD_SIZE", "4"}}, {{"WORLD_SIZE", "4"}}});
  for (std::size_t const rank : {0u, 1u}) {
    INFO(waiting[rank].said);
    CHECK(waiting[rank].said.find("keel: rank " + std::to_string(rank) + " of 4 has waited 5 s at 127.0.0.1:") != std::string::npos);
    CHECK(waiting[rank].said.find("for ranks 2, 3; joined: 0, 1.") != std::string::npos);
    CHECK(has(waiting[rank], ": ranks 2, 3 did not join at 127.0.0.1:"));
  }
  auto const alone = run_ranks("waits", {{{"RANK", "1"}, {"WORLD_SIZE", "2"}}});
  CHECK(alone[0].said.find("for rank 0 or the launcher, which is not listening there yet.") != std::string::npos);
}

TEST_CASE("a rank that meets a process which is stopped, and answers nothing, says so within the timeout") {
  int const socket = ::socket(AF_INET, SOCK_STREAM, 0);
  REQUIRE(socket >= 0);
  sockaddr_in place{};
  place.sin_family = AF_INET;
  place.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof place;
  REQUIRE(::bind(socket, reinterpret_cast<sockaddr*>(&place), length) == 0);
  REQUIRE(::getsockname(socket, reinterpret_cast<sockaddr*>(&place), &length) == 0);
  // The system takes connections for whoever listens, and stopped processes listen.
  REQUIRE(::listen(socket, 8) == 0);
  auto const began = std::chrono::steady_clock::now();
  std::string words;
  try {
    keel::join({.rank = 1, .size = 2, .address = "127.0.0.1", .port = ntohs(place.sin_port), .launcher = "a test"}, {.timeout = 2s});
  } catch (keel::world_error const& thrown) {
    words = thrown.what();
  }
  // As where it is killed: what was not taken is reset.
  ::close(socket);
  std::this_thread::sleep_for(500ms);
  INFO(words);
  CHECK(words.find("[E24] rank 1 of 2: the rendezvous store at") != std::string::npos);
  CHECK(words.find("127.0.0.1:" + std::to_string(ntohs(place.sin_port))) != std::string::npos);
  CHECK(std::chrono::steady_clock::now() - began < 6s);
}

#else

TEST_CASE("a program without Gloo's headers says so when ranks are to meet") {
  WARN("SKIPPED: this program was compiled without Gloo's headers, which libgloo-dev has");
  auto const all = run_ranks("collectives", 2);
  for (auto const& one : all) CHECK(has(one, "compiled without Gloo's headers"));
}

#endif
