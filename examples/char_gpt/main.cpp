// A character-level transformer on real text. With --faults this process only watches: it starts the run in a child, and
// starts it again when the child was killed, as a cluster's scheduler would.
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <csignal>
#include <cstdio>
#include <exception>
#include <keel/collective/exit_code.hpp>
#include <keel/collective/launch.hpp>
#include <keel/core/out_of_memory.hpp>

#include "text.hpp"
#include "train.hpp"

namespace {

int train_and_report(char_gpt::settings const& arguments) {
  try {
    // With the rank in its words, and a code that says to a launcher what happened.
    if (keel::read_launch_environment().size > 1) return keel::exit_code_of([&] { return char_gpt::train(arguments); });
    return char_gpt::train(arguments);
  } catch (std::exception const& thrown) {
    // LibTorch's own errors carry the stack of their calls.
    std::fprintf(stderr, "char_gpt: %s\n", keel::first_line(thrown).c_str());
    return 1;
  }
}

int watch(char_gpt::settings arguments) {
  if (arguments.run_directory.empty()) arguments.run_directory = char_gpt::new_run_directory();
  for (int attempt = 1; attempt <= 5; ++attempt) {
    std::fflush(nullptr);
    pid_t const child = ::fork();
    if (child < 0) {
      std::perror("char_gpt: cannot fork");
      return 1;
    }
    if (child == 0) {
      int const code = train_and_report(arguments);
      std::fflush(nullptr);
      ::_exit(code);
    }
    int status = 0;
    ::waitpid(child, &status, 0);
    if (WIFEXITED(status)) return WEXITSTATUS(status);
    std::printf("\n== the process was ended by signal %d; starting it again ==\n\n", WTERMSIG(status));
  }
  std::fprintf(stderr, "char_gpt: the process was killed five times; look at the machine.\n");
  return 1;
}

}  // namespace

int main(int count, char** words) {
  CLI::App app("Trains a character-level transformer and compares it with a bigram model.");
  char_gpt::settings arguments{.text = char_gpt::licenses, .run_directory = {}};
  app.add_option("--text", arguments.text, "a file, or a folder whose files are read")->capture_default_str();
  app.add_option("--run-directory", arguments.run_directory, "where checkpoints and metrics go, one in runs/ unless it is said; one that exists is continued");
  app.add_option("--updates", arguments.updates, "length of the run")->check(CLI::Range(1, 1000000000))->capture_default_str();
  app.add_option("--threads", arguments.threads, "0: one a core")->check(CLI::Range(0, 4096))->capture_default_str();
  app.add_option("--console-every", arguments.console_every, "without a terminal, a line each so many updates")
      ->check(CLI::Range(1, 1000000000))
      ->capture_default_str();
  auto* const memory = app.add_option("--memory-percent", arguments.memory_percent,
                                      "limit memory to so much of what the run takes by itself, and see it get along")
                           ->check(CLI::Range(1, 1000));
  app.add_flag("--faults", arguments.faults, "poison a batch with NaN, take memory away, and kill the process")->excludes(memory);
  CLI11_PARSE(app, count, words);
  return arguments.faults ? watch(arguments) : train_and_report(arguments);
}
