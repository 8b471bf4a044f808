// Options and result of a preflight, which checks in about a minute for problems that would waste a long run.
//     keel::preflight_result const found = run.preflight(batches, loss_of);
//     std::fputs(found.table().c_str(), stdout);
//     if (!found.passed()) return 1;
#pragma once

#include <cstddef>
#include <cstdint>
#include <keel/libtorch/mode.hpp>
#include <string>
#include <vector>

namespace keel::inline KEEL_MODE {

/// Limits of a preflight.
struct preflight_options {
  /// Number of batches to take from the first epoch and keep in memory during the checks.
  std::size_t batches = 64;
  /// Updates of each experiment that trains; fewer if updates are slow.
  std::int64_t updates = 150;
  /// Target duration of all checks together, in seconds.
  double seconds = 60.0;
  /// fp32 values of optimizer state per trained parameter element, for the memory estimate; negative: counted after the first update.
  int state_per_parameter = -1;
};

/// The result of a check.
enum class preflight_verdict : unsigned char { passed, failed, not_applicable };
/// Returns "passed", "FAILED" or "not applicable".
char const* to_string(preflight_verdict which);

/// The result of one check, with its explanation.
struct preflight_row {
  std::string check;          ///< name of the check, such as "overfit one batch"
  preflight_verdict verdict;  ///< passed, failed or not applicable
  std::string message;        ///< what the check found, or why it is not applicable
  std::string fix;            ///< recommended action; empty unless it failed
};

/// The results of all checks.
struct preflight_result {
  std::vector<preflight_row> rows;  ///< one per check
  std::vector<std::string> advice;  ///< settings outside their usual ranges; not failures
  double seconds = 0.0;             ///< duration of the preflight

  /// True if no check failed.
  bool passed() const;
  /// Returns the row of the check with this name, or null.
  preflight_row const* find(std::string const& check) const;
  /// Formats the result for a terminal.
  std::string table() const;
};

}  // namespace keel::inline KEEL_MODE

#ifndef KEEL_COMPILED
#include <keel/trainer/preflight_result.ipp>
#endif
