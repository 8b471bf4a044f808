// A recorded profile, its export as a trace for chrome://tracing, Perfetto and Speedscope, and its summary.
#pragma once

#include <cstdint>
#include <keel/libtorch/mode.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace keel::inline KEEL_MODE {

/// The kind of an operation, by the whole words of its name: "aten::softmax" does not contain "max".
enum class operation_kind : unsigned char { matrix_product, communication, memory, other };
inline constexpr std::size_t operation_kinds = 4;
char const* to_string(operation_kind which);
operation_kind kind_of_operation(std::string_view name);

/// Each phase of a run has a track; LibTorch's thread numbers are below these.
inline constexpr std::uint64_t first_phase_track = 1'000'000'000;
constexpr bool is_phase_track(std::uint64_t thread) { return thread >= first_phase_track; }

/// In nanoseconds since the start of the profile.
struct recorded_range {
  std::string name;
  std::uint64_t thread = 0;  ///< LibTorch's thread number, or the track of a phase
  std::int64_t begin = 0;
  std::int64_t end = 0;
};
struct recorded_memory {
  std::int64_t at = 0;
  std::int64_t bytes = 0;  ///< allocated bytes
};

/// Ranges of one thread are properly nested.
struct recorded_profile {
  std::int64_t first_update = 0;  ///< number of updates applied before the profile
  std::int64_t updates = 0;
  std::string why;                ///< the reason for the profile, one line
  std::int64_t length = 0;        ///< nanoseconds
  std::uint64_t main_thread = 0;  ///< the training thread
  std::vector<recorded_range> ranges;
  std::vector<recorded_memory> memory;
  std::int64_t left_out = 0;  ///< number of ranges beyond the limit
};

/// Returns the profile in the Trace Event Format (Google, 2016): complete events and counters, in microseconds.
std::string chrome_trace(recorded_profile const& of);

/// Returns Markdown: the training thread's time by kind, including idle time, and by phase, and the operations and gaps that take the most.
std::string summary_of(recorded_profile const& of);

}  // namespace keel::inline KEEL_MODE

#ifndef KEEL_COMPILED
#include <keel/profile/recorded_profile.ipp>
#endif
