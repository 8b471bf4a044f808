// What a process of a run ends with, so that a launcher, a scheduler or a script knows what to do next:
//     int main() {
//       return keel::exit_code_of([] { .. return run.fit(batches, loss_of); });
//     }
// An exception that ends it, and why a policy gave up, is printed with the rank, and written where torchrun looks for it (TORCHELASTIC_ERROR_FILE).
#pragma once

#include <exception>
#include <functional>
#include <keel/core/outcome.hpp>
#include <string>

namespace keel::inline KEEL_MODE {

/// A run that a signal has stopped and that is saved ends with 128 and the signal's number, as 143 for SIGTERM: start it again.
namespace exit_code {
inline constexpr int done = 0;         ///< the run finished
inline constexpr int failed = 1;       ///< anything that is not listed here
inline constexpr int not_finite = 81;  ///< or diverged (E08, E14): look at the data and the rate
inline constexpr int ranks_gone =
    82;  ///< another rank was killed, hangs, or ended by what it says itself (E25): start all again
inline constexpr int desynchronised = 83;  ///< the ranks are not of the same training any more (E26): start all again
inline constexpr int storage = 84;         ///< a file, a directory or a checkpoint (E01 to E05, E17)
inline constexpr int out_of_memory = 85;   ///< memory ran out (E09)
inline constexpr int not_met = 86;         ///< the ranks did not find each other, or are of different runs (E24)
inline constexpr int no_progress = 87;     ///< it hung, and keel::timeout::hard or first_update ended it (E27): start it again
}  // namespace exit_code

/// Of how a run ended; a stop that the program asked for is done.
int exit_code_of(outcome const& ended);
/// Of an exception that ended it.
int exit_code_of(std::exception const& thrown);

/// Calls `body`, and returns what its outcome, or the exception that it threw, comes to; or the code that it returns.
int exit_code_of(std::function<outcome()> const& body);
/// The same for a body that returns a code.
int exit_code_of(std::function<int()> const& body);

}  // namespace keel::inline KEEL_MODE

namespace keel::detail::inline KEEL_MODE {
/// Where the launcher that started this process looks for them, if there is one.
void write_launcher_error(std::string const& message);
/// On stderr and to the launcher, with the rank.
void report_failed_exit(std::string message);
}  // namespace keel::detail::inline KEEL_MODE

#ifndef KEEL_COMPILED
#include <keel/collective/exit_code.ipp>
#endif
