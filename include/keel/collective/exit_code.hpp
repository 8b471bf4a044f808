// Process exit codes that tell a launcher, a scheduler or a script what to do next:
//     int main() {
//       return keel::exit_code_of([] { .. return run.fit(batches, loss_of); });
//     }
// Prints the exception, or the reason why a policy gave up, with the rank. Also writes it to torchrun's error file
// (TORCHELASTIC_ERROR_FILE).
#pragma once

#include <exception>
#include <functional>
#include <keel/core/outcome.hpp>
#include <string>

namespace keel::inline KEEL_MODE {

/// Exit codes of exit_code_of(). A run that a signal stopped, and whose state was saved, exits with 128 + the signal number, such as 143
/// for SIGTERM.
namespace exit_code {
inline constexpr int done = 0;         ///< the run finished
inline constexpr int failed = 1;       ///< any other failure
inline constexpr int not_finite = 81;  ///< NaN or infinity, or diverged (E08, E14): check the data and the learning rate
inline constexpr int rank_failed =
    82;  ///< another rank was killed, hangs, or failed with its own error (E25): restart all ranks
inline constexpr int ranks_diverged =
    83;                             ///< the ranks have diverged: different calls or different replicas (E26): restart all ranks
inline constexpr int storage = 84;  ///< a file, directory or checkpoint error (E01 to E05, E17)
inline constexpr int out_of_memory = 85;      ///< memory ran out (E09)
inline constexpr int rendezvous_failed = 86;  ///< the rendezvous failed, or the ranks are configured differently (E24)
inline constexpr int no_progress =
    87;  ///< the run hung; keel::timeout::hard, longest_save or first_update ended it (E27): restart
}  // namespace exit_code

/// Returns the exit code for the outcome of a run; a stop that the program requested counts as `done`.
int exit_code_of(outcome const& ended);
/// Returns the exit code for an exception that ended the run.
int exit_code_of(std::exception const& thrown);

/// Calls `body` and returns the exit code for its outcome, or for the std::exception that it threw. Reports a failure on stderr and to the
/// launcher.
int exit_code_of(std::function<outcome()> const& body);
/// Calls `body` and returns its return value. If it throws a std::exception, reports it and returns the exit code for it.
int exit_code_of(std::function<int()> const& body);

}  // namespace keel::inline KEEL_MODE

namespace keel::detail::inline KEEL_MODE {
/// Writes the message to the error file of the launcher that started this process, if it has one.
void write_launcher_error(std::string const& message);
/// Prints the message with the rank on stderr and writes it to the launcher's error file.
void report_failed_exit(std::string message);
}  // namespace keel::detail::inline KEEL_MODE

#ifndef KEEL_COMPILED
#include <keel/collective/exit_code.ipp>
#endif
