// A run of several models whose ranks are processes: what they come to, and what each says when one is killed, hangs, is asked to stop or goes
// another way.
#include <signal.h>

#include <chrono>
#include <thread>

#include <keel/collective/collectives.hpp>
#include <keel/collective/in_process.hpp>
#include <keel/collective/join.hpp>

#include "../collective/rank_processes.hpp"
#include "../support.hpp"

using namespace keel_test;
using namespace keel::literals;
using namespace std::chrono_literals;

namespace {

struct saved : keel::recipe<keel::shard::replicate, keel::checkpoint::every<3_steps>> {};
struct watched : keel::recipe<keel::shard::replicate, keel::timeout::set<keel::timeout::hard<2_s>>> {};
struct limited : keel::recipe<keel::shard::replicate, keel::timeout::set<keel::timeout::collective<3_s>>> {};
struct beating : keel::recipe<keel::shard::replicate, keel::timeout::set<keel::timeout::heartbeat<1_s, 3_s>>> {};
struct replicated : keel::recipe<keel::shard::replicate, keel::nonfinite::skip<5>> {};
struct in_shares : keel::recipe<keel::shard::zero<1>, keel::nonfinite::skip<5>, keel::clip::global_norm<0.5>> {};

/// An encoder and a decoder of which each learns from what the other gives. The sums of their parameters, to the bit.
template <class Recipe>
std::string train(keel::world_of_ranks const& world, std::string const& name, keel::trainer_options options) {
  at::manual_seed(5);
  auto const encoder = make_small(4, 0.1), decoder = make_small(6, 0.1);
  keel::adamw of_encoder(encoder->parameters(), 0.01), of_decoder(decoder->parameters(), 0.02);
  keel::run<Recipe> run{world, std::move(options)};
  keel::part<in_shares> first{run, "encoder", *encoder, of_encoder};
  keel::part<replicated> second{run, "decoder", *decoder, of_decoder};
  bool const is_last = world.rank() == world.size() - 1;
  for (std::int64_t const i : run.iterations(12)) {
    auto const batch = make_pair_batch(static_cast<std::uint64_t>(i * world.size() + world.rank()));
    bool const is_here = is_last && i == 7;
    first.update(batch, [&](pair_batch const& of) { return (encoder->forward(of.first) - decoder->forward(of.first).detach()).square().mean(); });
    if (is_here && name == "leaves_out") continue;
    if (is_here && name == "signalled") ::raise(SIGTERM);
    if (is_here && name == "throws_between") throw std::runtime_error("of the program");
    second.update(batch, [&](pair_batch const& of) {
      if (is_here && name == "killed") ::raise(SIGKILL);
      if (is_here && (name == "stopped" || name == "beats_stopped")) ::raise(SIGSTOP);
      if (is_here && name == "hangs") std::this_thread::sleep_for(60s);
      if (is_here && name == "throws") throw std::runtime_error("of the program");
      at::Tensor const loss = mean_squared_error(decoder)(of);
      return is_here && name == "nan" ? loss * NAN : loss;
    });
  }
  auto const how = run.finish();
  std::string words = (how.stopped() ? "stopped by " + std::to_string(how.stopped()->signal) + " behind " : "trained ") +
                      std::to_string(run.updates()) + ", skipped " + std::to_string(run.skipped());
  for (auto const& model : {encoder, decoder}) {
    for (at::Tensor const& one : model->parameters()) words += " " + nlohmann::json(one.detach().to(at::kDouble).sum().item<double>()).dump();
  }
  return words;
}

std::string train(keel::world_of_ranks const& world, std::string const& name) {
  keel::trainer_options options = quiet();
  if (char const* const directory = std::getenv("KEEL_TEST_DIRECTORY")) options.run_directory = directory;
  options.stop_on_signals = name == "signalled";
  if (name == "hangs") return train<watched>(world, name, options);
  if (name == "stopped") return train<limited>(world, name, options);
  if (name == "beats_stopped") return train<beating>(world, name, options);
  if (options.run_directory.empty()) return train<keel::recipe<keel::shard::replicate>>(world, name, options);
  return train<saved>(world, name, options);
}

using of_ranks = std::vector<std::map<std::string, std::string>>;
std::vector<ended_rank> run_parts(std::string const& name, of_ranks const& ranks, int stopped = -1) {
  return run_ranks(name, ranks, stopped, "a rank of a run of parts");
}
std::vector<ended_rank> run_parts(std::string const& name, std::size_t ranks, int stopped = -1) {
  return run_parts(name, of_ranks(ranks), stopped);
}

}  // namespace

TEST_CASE("a rank of a run of parts", "[.]") {
  be_rank([](std::string const& name) { return train(keel::join(keel::read_launch_environment(), {.timeout = 30s}), name); });
}

#if KEEL_GLOO

TEST_CASE("processes train two models as ranks of one process do, and a NaN of one of them is the skip of all") {
  at::set_num_threads(1);
  for (std::string const name : {"trains", "nan"}) {
    std::vector<std::string> expected(2);
    keel::run_in_process(2, [&](keel::world_of_ranks const& world) { expected[static_cast<std::size_t>(world.rank())] = train(world, name); });
    CHECK(expected[0] == expected[1]);
    CHECK(expected[0].starts_with(name == "nan" ? "trained 12, skipped 1" : "trained 12, skipped 0"));
    for (auto const& one : run_parts(name, 2)) CHECK(one.words == expected[0]);
  }
}

TEST_CASE("a process of a run of parts that is killed, stopped, hangs or throws is named by the others within their time") {
  auto const killed = run_parts("killed", 3), stopped = run_parts("stopped", 3, 2), hangs = run_parts("hangs", 3);
  auto const throws = run_parts("throws", 3), between = run_parts("throws_between", 3);
  for (std::size_t const rank : {0u, 1u}) {
    CHECK(has(killed[rank], "rank 2 is gone or hanging"));
    CHECK(has(stopped[rank], "rank 2 is gone or hanging"));
    // Under ThreadSanitizer two seconds pass on each rank before the one that hangs has ended.
    if (!is_thread_sanitized)
      CHECK(has(hangs[rank], "rank 2 has given up: [E27] rank 2 of 3: nothing has ended for 2 s (keel::timeout::hard is 2 s)"));
    CHECK(has(throws[rank], "[E25] rank 2 threw; the update was discarded on all ranks: of the program"));
    CHECK(has(between[rank], "rank 2 has given up: an exception ended the training loop on this rank"));
    for (auto const* const all : {&killed, &stopped, &hangs, &throws, &between}) CHECK((*all)[rank].seconds < 20.0);
  }
  CHECK(WEXITSTATUS(hangs[2].status) == 87);
  CHECK(throws[2].words == "of the program");
  auto const beats = run_parts("beats_stopped", 3, 2);
  // The end of the one that notices it first fails the collective in which the other one waits.
  CHECK((WEXITSTATUS(beats[0].status) == 82 || WEXITSTATUS(beats[1].status) == 82));
  for (std::size_t const rank : {0u, 1u}) {
    CHECK((WEXITSTATUS(beats[rank].status) == 82 || has(beats[rank], "rank 2 has given no sign of life")));
    CHECK(beats[rank].seconds < 20.0);
  }
}

TEST_CASE("a process of a run of parts that leaves an update out is named with both places") {
  for (auto const& one : run_parts("leaves_out", 2))
    CHECK(has(one, "rank 1 is at the beginning of an iteration, and rank 0 at an update of the part decoder"));
}

TEST_CASE("a signal for one process of a run of parts stops all behind the same iteration, and the run goes on from there") {
  scratch_directory const whole, cut;
  auto const on = [](std::filesystem::path const& directory) {
    return of_ranks(2, {{"KEEL_TEST_DIRECTORY", directory}});
  };
  auto const expected = run_parts("trains", on(whole));
  CHECK(has(expected[0], "trained 12, skipped 0"));
  for (auto const& one : run_parts("signalled", on(cut))) CHECK(has(one, "stopped by 15 behind 9"));
  for (auto const& one : run_parts("trains", on(cut))) CHECK(one.words == expected[0].words);
}

#endif
