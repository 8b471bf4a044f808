// keel doctor: measures what a run needs of its machine, and of the links among ranks. Each check returns what it measured, whether that is
// slow or wrong, and what to do. The limits are far from what a sound machine has: a busy one may be slow, and a slow one is not wrong.
// Left out: what only a run can show, such as throttling after an hour; triage reads that from its record.
#pragma once

#include <keel/libtorch/ivalue_first.hpp>

#include <cstdint>
#include <filesystem>
#include <keel/collective/world_of_ranks.hpp>
#include <keel/core/file_system.hpp>
#include <string>
#include <vector>

namespace keel::detail::inline KEEL_MODE {

enum class machine_verdict : unsigned char { ok, slow, wrong, absent };

struct machine_finding {
  std::string what;
  machine_verdict verdict = machine_verdict::ok;
  std::string measured;
  std::string advice = {};  ///< empty unless slow or wrong
};

/// What check_threads() measures.
struct thread_speed {
  int threads = 1, cores = 1;
  double seconds_of_one = 0.0, seconds_of_all = 0.0;  ///< of a matrix product, with one thread, and with one per core or more
};
/// `is_launched`: a launcher has divided the cores among ranks.
machine_finding judge_threads(thread_speed const& found, bool is_launched);
machine_finding check_threads(bool is_launched);
/// Products of float32 matrices with one thread, compared with float64.
machine_finding check_matrix_product();
machine_finding check_memory();
/// Writes into a separate folder in `directory`, as a save does. Throws file_error (E02) if it cannot.
machine_finding check_disk(file_system& files, std::filesystem::path const& directory);
/// A finding for each device, or one that there is none.
std::vector<machine_finding> check_devices();

/// What measure_link() measures.
struct link_speed {
  double seconds = 0.0;           ///< of an all-gather of a few numbers
  double bytes_per_second = 0.0;  ///< of an all-reduce of 16 MiB
  bool is_right = true;           ///< results, on all ranks
};
machine_finding judge_link(link_speed const& found, int ranks, std::string const& where);
/// Collective.
link_speed measure_link(world_of_ranks const& world);
/// Measures the link of `ranks` threads of this process, which communicate over Gloo as processes do.
machine_finding check_local_ranks(int ranks);

/// One line a finding, and its advice below it.
std::string describe(std::vector<machine_finding> const& all);
/// True if none is slow or wrong.
bool is_sound(std::vector<machine_finding> const& all);

}  // namespace keel::detail::inline KEEL_MODE

#ifndef KEEL_COMPILED
#include <keel/diagnose/machine_check.ipp>
#endif
