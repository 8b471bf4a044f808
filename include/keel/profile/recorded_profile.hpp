// What a profile holds, as a trace that chrome://tracing, Perfetto and Speedscope open, and as a summary for a person.
#pragma once

#include <cstdint>
#include <keel/libtorch/mode.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace keel::inline KEEL_MODE {

/// What an operation is mostly about, by the whole words of its name: "aten::softmax" has no "max" in it.
enum class operation_kind : unsigned char { matrix_product, communication, memory, other };
inline constexpr std::size_t operation_kinds = 4;
char const* to_string(operation_kind which);
operation_kind kind_of_operation(std::string_view name);

/// Each phase of a run has a track; LibTorch's numbers of threads are small.
inline constexpr std::uint64_t first_phase_track = 1'000'000'000;
constexpr bool is_phase_track(std::uint64_t thread) { return thread >= first_phase_track; }

/// Nanoseconds since the profile began.
struct recorded_range {
  std::string name;
  std::uint64_t thread = 0;  ///< LibTorch's number of it, or the track of a phase
  std::int64_t begin = 0;
  std::int64_t end = 0;
};
struct recorded_memory {
  std::int64_t at = 0;
  std::int64_t bytes = 0;  ///< allocated
};

/// Ranges of one thread nest.
struct recorded_profile {
  std::int64_t first_update = 0;  ///< applied before the first of them
  std::int64_t updates = 0;
  std::string why;                ///< one line
  std::int64_t length = 0;        ///< nanoseconds
  std::uint64_t main_thread = 0;  ///< that trains
  std::vector<recorded_range> ranges;
  std::vector<recorded_memory> memory;
  std::int64_t left_out = 0;  ///< ranges that found no place
};

/// Trace Event Format (Google, 2016): complete events and counters, microseconds.
std::string chrome_trace(recorded_profile const& of);

/// Markdown: where the time of the training thread goes by kind, with idle, by phase, and the operations and gaps that take most.
std::string summary_of(recorded_profile const& of);

}  // namespace keel::inline KEEL_MODE

#ifndef KEEL_COMPILED
#include <keel/profile/recorded_profile.ipp>
#endif
