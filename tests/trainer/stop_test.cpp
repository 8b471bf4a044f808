// Signals: what stops a run, what saves it, and what ends it at once. Each in a process of its own.
#include "../support.hpp"

#include <sys/wait.h>

#include <csignal>
#include <range/v3/view/iota.hpp>
#include <range/v3/view/transform.hpp>

using namespace keel_test;
using namespace keel::literals;

namespace fs = std::filesystem;

namespace {

struct saves : keel::recipe<keel::checkpoint::every<1000_steps>> {};

/// How a child ended that ran `work`: its exit status, or minus its signal. What it writes to standard error goes to `words`.
template <class Work>
int ending(Work const& work, fs::path const& words) {
  pid_t const child = ::fork();
  if (child < 0) throw std::runtime_error("cannot fork");
  if (child == 0) {
    if (::freopen(words.c_str(), "w", stderr) == nullptr) ::_exit(90);
    for (int const number : {SIGTERM, SIGINT, SIGHUP, SIGUSR1, SIGUSR2}) std::signal(number, SIG_DFL);
    // The threads of the process that forked are not here.
    at::set_num_threads(1);
    try {
      work();
    } catch (std::exception const& thrown) {
      std::fprintf(stderr, "%s\n", thrown.what());
      std::fflush(stderr);
      ::_exit(91);
    }
    ::_exit(0);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status);
}

auto const endless = [](std::int64_t) {
  return ranges::views::iota(1) | ranges::views::transform([](int i) { return make_pair_batch(static_cast<std::uint64_t>(i)); });
};

/// Trains; `at` is called after each update with its number.
template <class At>
void train(fs::path const& directory, At const& at) {
  auto const model = make_small();
  torch::optim::SGD optimizer(model->parameters(), 0.01);
  keel::trainer<saves> run{model, optimizer, quiet({.run_directory = directory, .updates = 50})};
  run.on([&](keel::event::update_end const& e) { at(e.update); });
  run.on([&](keel::event::checkpoint_saved const&) { at(-1); });
  run.fit(endless, mean_squared_error(model));
}

std::vector<std::int64_t> saved(fs::path const& directory) { return keel::checkpoint_store(directory / "checkpoints").updates(); }

}  // namespace

TEST_CASE("the same stop signal from scheduler and launcher counts once, also during the last save") {
  for (int const number : {SIGTERM, SIGHUP, SIGINT, SIGUSR1}) {
    scratch_directory const directory;
    CHECK(ending([&] {
            train(directory / "run", [&](std::int64_t update) {
              if (update == 7 || update == -1) std::raise(number), std::raise(number);
            });
          }, directory / "words") == 0);
    CHECK(saved(directory / "run") == std::vector<std::int64_t>{7});
    CHECK(read_file(directory / "words").find("already stopping") != std::string::npos);
  }
}

TEST_CASE("another stop signal than the first one never ends a run at once") {
  scratch_directory const directory;
  CHECK(ending([&] {
          train(directory / "run", [&](std::int64_t update) {
            if (update == 3) std::raise(SIGUSR1);
            if (update == -1) std::raise(SIGTERM), std::raise(SIGINT);
          });
        }, directory / "words") == 0);
  CHECK(saved(directory / "run") == std::vector<std::int64_t>{3});
}

TEST_CASE("the same signal after five seconds ends the process at once, and says so") {
  scratch_directory const directory;
  CHECK(ending([&] {
          train(directory / "run", [&](std::int64_t update) {
            if (update != 3) return;
            std::raise(SIGTERM);
            ::usleep(5'200'000);
            std::raise(SIGTERM);
          });
        }, directory / "words") == -SIGTERM);
  CHECK(read_file(directory / "words").find("second signal: exiting immediately") != std::string::npos);
}

TEST_CASE("SIGUSR2 before fit does not kill, and is a checkpoint after the first update") {
  scratch_directory const directory;
  CHECK(ending([&] {
          auto const model = make_small();
          torch::optim::SGD optimizer(model->parameters(), 0.01);
          keel::trainer<saves> run{model, optimizer, quiet({.run_directory = directory / "run", .updates = 5})};
          std::vector<std::int64_t> at;
          run.on([&](keel::event::checkpoint_saved const& e) { at.push_back(e.update); });
          std::raise(SIGUSR2);
          run.fit(endless, mean_squared_error(model));
          if (at != std::vector<std::int64_t>{1, 5}) throw std::runtime_error("other saves");
        }, directory / "words") == 0);
  CHECK(read_file(directory / "words").empty());
}

TEST_CASE("a handler that the program sets while a trainer lives stays, and nohup's ignored SIGHUP stays ignored") {
  scratch_directory const directory;
  CHECK(ending([&] {
          std::signal(SIGHUP, SIG_IGN);
          auto const mine = [](int) {};
          {
            auto const model = make_small();
            torch::optim::SGD optimizer(model->parameters(), 0.01);
            keel::trainer<saves> run{model, optimizer, quiet({.run_directory = directory / "run", .updates = 5})};
            std::signal(SIGUSR2, mine);
            run.on([](keel::event::update_end const& e) {
              if (e.update == 2) std::raise(SIGHUP);
            });
            if (!run.fit(endless, mean_squared_error(model)).is<keel::result::finished>()) throw std::runtime_error("stopped");
          }
          struct sigaction now = {};
          ::sigaction(SIGUSR2, nullptr, &now);
          if (now.sa_handler != static_cast<void (*)(int)>(mine)) throw std::runtime_error("another handler");
        }, directory / "words") == 0);
}

TEST_CASE("a signal in the last update of a run finds it finished: fit returns, and what the program does behind it is done") {
  struct plain : keel::recipe<keel::checkpoint::every<2_steps>> {};
  scratch_directory const directory;
  auto const model = make_small();
  keel::adamw optimizer(model->parameters(), 0.01);
  keel::trainer_options options = quiet({.run_directory = directory.path(), .updates = 4});
  options.stop_on_signals = true;
  keel::trainer<plain> run{model, optimizer, options};
  auto const loss_of = mean_squared_error(model);
  auto const ended = run.fit(std::vector{make_pair_batch(1), make_pair_batch(2)}, [&](pair_batch const& batch) {
    if (run.updates() == 3) ::raise(SIGTERM);
    return loss_of(batch);
  });
  CHECK(ended.is<keel::result::finished>());
  CHECK(run.updates() == 4);
  CHECK(events_of(directory.path(), "finished").size() == 1);
  // A loop that follows in this process is stopped by it.
  keel::signal_listener const next;
  CHECK(next.received() == SIGTERM);
}

TEST_CASE("a loop of one's own polls for signals and loses nothing: it ends with a checkpoint and goes on to the same bits") {
  struct recipe : keel::recipe<keel::accumulate<2>, keel::checkpoint::every<1000_steps>> {};
  auto const go = [](fs::path const& directory, std::int64_t raise_at) {
    auto const model = make_small();
    torch::optim::AdamW optimizer(model->parameters(), 0.01);
    keel::trainer<recipe> run{model, optimizer, quiet({.run_directory = directory})};
    run.resume();
    keel::signal_listener const signals;
    for (std::int64_t i = run.cursor().consumed; i < 20; ++i) {
      run.step(make_pair_batch(static_cast<std::uint64_t>(i)), mean_squared_error(model));
      if (i == raise_at) std::raise(SIGTERM);
      if (run.should_stop(signals)) break;
    }
    auto const result = run.finish(signals.received());
    CHECK(result.is<keel::result::stopped>() == (raise_at >= 0));
    return copies_of(model->parameters());
  };
  scratch_directory const directory;
  auto const whole = go(directory / "whole", -1);
  // In the middle of an update: the loop goes on to its end.
  go(directory / "run", 8);
  CHECK(saved(directory / "run") == std::vector<std::int64_t>{5});
  CHECK(same_bits(go(directory / "run", -1), whole));
}

TEST_CASE("finish drops the micro-batches of an incomplete update, and the next process takes them again") {
  struct recipe : keel::recipe<keel::accumulate<4>, keel::checkpoint::every<1000_steps>> {};
  scratch_directory const directory;
  auto const model = make_small();
  torch::optim::SGD optimizer(model->parameters(), 0.01);
  keel::trainer<recipe> run{model, optimizer, quiet({.run_directory = directory / "run"})};
  for (std::uint64_t i = 0; i < 6; ++i) run.step(make_pair_batch(i), mean_squared_error(model));
  run.finish();
  CHECK(run.cursor().consumed == 4);
  CHECK(saved(directory / "run") == std::vector<std::int64_t>{1});
}
