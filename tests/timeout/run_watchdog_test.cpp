// What a run that stays where it is says and does: each scenario runs this program again, and is ended by the watch, or is not.
// unity: at global scope
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>

#include <condition_variable>
#include <mutex>
#include <thread>

#include <keel/collective/exit_code.hpp>
#include <keel/timeout/thread_stacks.hpp>

#include "../support.hpp"

extern char** environ;

using namespace keel_test;
using namespace keel::literals;
using namespace std::chrono_literals;
namespace timeout = keel::timeout;

namespace {

using saves = keel::checkpoint::every<2_steps, keel::checkpoint::synchronous>;
struct soft_and_hard : keel::recipe<saves, timeout::set<timeout::soft<1_s>, timeout::hard<3_s>>> {};
struct first : keel::recipe<timeout::set<timeout::soft<1_s>, timeout::hard<2_s>, timeout::first_update<4_s>>, keel::accept<"H07">> {};
struct leaves : keel::recipe<saves, timeout::set<timeout::force_exit<2_s>>> {};
struct saves_for_long : keel::recipe<saves, timeout::set<timeout::soft<1_s>, timeout::hard<2_s>, timeout::longest_save<30_s>>> {};
struct evaluates : keel::recipe<keel::evaluation::every<2_steps>, timeout::set<timeout::hard<2_s>>> {};

/// A lock that another thread has and does not give back, as that of a data loader's worker.
[[gnu::noinline]] void wait_for_a_worker() {
  static std::mutex mutex;
  std::unique_lock<std::mutex> lock(mutex);
  std::condition_variable never;
  never.wait(lock, [] { return false; });
}

struct ended {
  int code = -1;
  int signal = 0;
  double seconds = 0.0;
  std::string said;
};

ended run_scenario(std::string const& name, std::filesystem::path const& directory) {
  std::string const words_file = directory / "said";
  std::vector<std::string> texts;
  for (char** one = environ; *one != nullptr; ++one) texts.push_back(*one);
  texts.push_back("KEEL_TEST_SCENARIO=" + name);
  texts.push_back("KEEL_TEST_DIRECTORY=" + directory.string());
  std::vector<char*> environment;
  for (std::string& text : texts) environment.push_back(text.data());
  environment.push_back(nullptr);
  std::string program = "/proc/self/exe", which = "a run that stays where it is";
  char* words[] = {program.data(), which.data(), nullptr};
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_addopen(&actions, 1, "/dev/null", O_WRONLY, 0);
  ::posix_spawn_file_actions_addopen(&actions, 2, words_file.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
  auto const began = std::chrono::steady_clock::now();
  pid_t process = 0;
  REQUIRE(::posix_spawn(&process, program.c_str(), &actions, nullptr, words, environment.data()) == 0);
  ::posix_spawn_file_actions_destroy(&actions);
  int status = 0;
  for (int i = 0; ::waitpid(process, &status, WNOHANG) == 0; ++i) {
    // A hang is a failure of the test and not its end.
    if (i == 3000) ::kill(process, SIGKILL);
    std::this_thread::sleep_for(10ms);
  }
  ended found;
  found.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
  if (WIFEXITED(status)) found.code = WEXITSTATUS(status);
  if (WIFSIGNALED(status)) found.signal = WTERMSIG(status);
  found.said = read_file(words_file);
  return found;
}

template <class Recipe, class Wait>
int train(std::filesystem::path const& directory, std::int64_t at, Wait const& wait) {
  return keel::exit_code_of([&]() -> keel::outcome {
    auto const model = make_small(3, 0.0);
    keel::adamw optimizer(model->parameters(), 0.01);
    keel::trainer<Recipe> run{*model, optimizer, quiet({.run_directory = directory, .updates = 6})};
    std::vector<pair_batch> batches;
    for (std::uint64_t i = 0; i < 8; ++i) batches.push_back(make_pair_batch(i));
    if constexpr (keel::config_of<Recipe>.evaluation.kind != keel::evaluation::kind::none) {
      run.evaluate_on(batches, [&](pair_batch const& batch) {
        wait();
        return mean_squared_error(model)(batch);
      });
    }
    return run.fit(batches, [&](pair_batch const& batch) {
      if (run.updates() == at) wait();
      return mean_squared_error(model)(batch);
    });
  });
}

/// Takes its time where a checkpoint is made of it.
struct slow_state {
  bool is_slow = false;
  std::int64_t value = 7;
  void visit(auto& archive) {
    if (is_slow) std::this_thread::sleep_for(3s);
    archive("value", value);
  }
};

int save_slowly(std::filesystem::path const& directory) {
  return keel::exit_code_of([&]() -> keel::outcome {
    auto const model = make_small(3, 0.0);
    keel::adamw optimizer(model->parameters(), 0.01);
    keel::trainer<saves_for_long> run{*model, optimizer, quiet({.run_directory = directory, .updates = 3})};
    slow_state state;
    run.register_state("slow", state, keel::state_scope::checkpoints);
    run.on([&](keel::event::update_end const&) { state.is_slow = true; });
    std::vector<pair_batch> const batches{make_pair_batch(0), make_pair_batch(1), make_pair_batch(2)};
    return run.fit(batches, mean_squared_error(model));
  });
}

int be_scenario(std::string const& name, std::filesystem::path const& directory) {
  if (name == "hangs") return train<soft_and_hard>(directory, 4, [] { wait_for_a_worker(); });
  if (name == "is slow") return train<soft_and_hard>(directory, 4, [] { std::this_thread::sleep_for(1600ms); });
  if (name == "begins slowly") return train<first>(directory, 0, [] { std::this_thread::sleep_for(3s); });
  if (name == "never begins") return train<first>(directory, 0, [] { wait_for_a_worker(); });
  if (name == "does not stop")
    return train<leaves>(directory, 4, [] {
      ::raise(SIGTERM);
      wait_for_a_worker();
    });
  if (name == "stops") return train<leaves>(directory, 4, [] { ::raise(SIGTERM); });
  if (name == "saves slowly") return save_slowly(directory);
  if (name == "evaluates long") return train<evaluates>(directory, -1, [] { std::this_thread::sleep_for(500ms); });
  if (name == "hangs in an evaluation") return train<evaluates>(directory, -1, [] { wait_for_a_worker(); });
  return -1;
}

bool has(std::string const& words, std::string const& part) {
  UNSCOPED_INFO(words);
  return words.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("a run that stays where it is", "[.]") {
  char const* const scenario = std::getenv("KEEL_TEST_SCENARIO");
  // Chosen by its file and not by run_scenario.
  if (scenario == nullptr) return;
  std::_Exit(be_scenario(scenario, std::getenv("KEEL_TEST_DIRECTORY")));
}

// BLOOM's chronicles, 2022-04-30 to 05-18: three hangs in a lock of a loader's worker, 35 hours lost.
TEST_CASE("a run that hangs says so, and then ends with the stacks of all threads, and what was saved stays") {
  scratch_directory const directory;
  ended const one = run_scenario("hangs", directory);
  CHECK(one.code == keel::exit_code::no_progress);
  CHECK(one.seconds < 12.0);
  CHECK(has(one.said, "(keel::timeout::soft is 1 s): the run is in the forward pass after update 4."));
  CHECK(has(one.said, "[E27] nothing has ended for 3 s (keel::timeout::hard is 3 s)"));
  auto const stacks = read_file(directory / "no_progress.txt");
  CHECK(has(stacks, "pthread_cond_wait"));
  CHECK(has(stacks, "thread "));
  CHECK(events_of(directory, "no_progress").size() == 1);
  REQUIRE(events_of(directory, "failed").size() == 1);
  CHECK(has(events_of(directory, "failed").front().at("message"), "[E27]"));
  CHECK(std::filesystem::exists(directory / "checkpoints/step-000000004/manifest.json"));
}

TEST_CASE("a run that is only slow says so once and goes on") {
  scratch_directory const directory;
  ended const one = run_scenario("is slow", directory);
  CHECK(one.code == 0);
  REQUIRE(events_of(directory, "no_progress").size() == 1);
  CHECK(has(events_of(directory, "no_progress").front().at("message"), "(keel::timeout::soft is 1 s)"));
  CHECK(events_of(directory, "finished").size() == 1);
}

TEST_CASE("the first update has a time of its own, and an evaluation is as slow as each of its batches") {
  scratch_directory const slow, never, evaluation, stuck;
  CHECK(run_scenario("begins slowly", slow).code == 0);
  CHECK(events_of(slow, "no_progress").empty());
  ended const one = run_scenario("never begins", never);
  CHECK(one.code == keel::exit_code::no_progress);
  CHECK(has(one.said, "(keel::timeout::first_update is 4 s)"));
  // Eight batches of half a second.
  CHECK(run_scenario("evaluates long", evaluation).code == 0);
  ended const hangs = run_scenario("hangs in an evaluation", stuck);
  CHECK(hangs.code == keel::exit_code::no_progress);
  CHECK(has(hangs.said, "the run is in an evaluation after update 2"));
}

TEST_CASE("a save may take as long as longest_save says, in the middle of a run and at its end") {
  scratch_directory const directory;
  ended const one = run_scenario("saves slowly", directory);
  INFO(one.said);
  CHECK(one.code == 0);
  CHECK(one.seconds > 6.0);
  CHECK(events_of(directory, "no_progress").empty());
  CHECK(events_of(directory, "finished").size() == 1);
}

TEST_CASE("a run that a signal does not stop in time ends with the signal's code, and one that stops is not touched") {
  scratch_directory const stuck, stops;
  ended const one = run_scenario("does not stop", stuck);
  CHECK(one.code == 128 + SIGTERM);
  CHECK(has(one.said, "[E27] signal 15 asked for a stop 2 s ago (keel::timeout::force_exit)"));
  ended const other = run_scenario("stops", stops);
  CHECK(other.code == 128 + SIGTERM);
  CHECK(events_of(stops, "stopped").size() == 1);
  CHECK(other.seconds < one.seconds);
}

TEST_CASE("the stack of a thread is what it does, also of several at once, and a thread that blocks the signal is named") {
  std::atomic<pid_t> waiting{0}, blocking{0};
  std::atomic<bool> ends{false};
  std::thread waits([&] {
    waiting = keel::detail::this_thread();
    while (!ends) std::this_thread::sleep_for(20ms);
  });
  std::thread blocks([&] {
    sigset_t all;
    ::sigfillset(&all);
    ::pthread_sigmask(SIG_SETMASK, &all, nullptr);
    blocking = keel::detail::this_thread();
    while (!ends) std::this_thread::sleep_for(20ms);
  });
  while (waiting == 0 || blocking == 0) std::this_thread::yield();
  for (int i = 0; i < 5; ++i) CHECK(has(keel::detail::stack_of_thread(waiting), "nanosleep"));
  CHECK(has(keel::detail::stack_of_thread(blocking), "does not answer"));
  std::string const all = keel::detail::stacks_of_threads();
  CHECK(has(all, "thread " + std::to_string(waiting.load())));
  CHECK(has(all, "thread " + std::to_string(blocking.load())));
  CHECK(has(keel::detail::stack_of_thread(1 << 21), "does not answer"));
  ends = true;
  waits.join();
  blocks.join();
}
