// Definitions for recorded_profile.hpp.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <keel/metrics/console.hpp>
#include <keel/metrics/phase_times.hpp>
#include <keel/profile/recorded_profile.hpp>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include <keel/libtorch/detail/body_begin.inc>

namespace keel::inline KEEL_MODE {

KEEL_BODY char const* to_string(operation_kind which) {
  constexpr char const* names[] = {"matrix products", "communication", "memory operations", "other operations"};
  return names[static_cast<std::size_t>(which)];
}

KEEL_BODY operation_kind kind_of_operation(std::string_view name) {
  for (std::string_view const library :
       {"record_param_comms", "c10d::", "c10d_functional::", "_c10d_functional::", "nccl:", "gloo:", "mpi:"}) {
    if (name.starts_with(library)) return operation_kind::communication;
  }
  static std::set<std::string_view> const products{"mm",    "bmm",    "addmm",  "baddbmm", "addbmm",   "matmul",      "mv",
                                                   "addmv", "linear", "conv1d", "conv2d",  "conv3d",   "convolution", "einsum",
                                                   "dot",   "lstm",   "gru",    "rnn",     "attention"};
  static std::set<std::string_view> const memory{"copy",    "to",     "contiguous", "clone",  "cat",   "stack",  "empty",
                                                 "zeros",   "ones",   "full",       "fill",   "zero",  "resize", "gather",
                                                 "scatter", "index",  "select",     "narrow", "slice", "repeat", "expand",
                                                 "pad",     "arange", "embedding",  "strided"};
  bool moves = false;
  std::string_view rest = name;
  while (!rest.empty()) {
    std::size_t const end = std::min(rest.find_first_of(":_."), rest.size());
    std::string_view const word = rest.substr(0, end);
    if (products.count(word) > 0) return operation_kind::matrix_product;
    moves = moves || memory.count(word) > 0;
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
  return moves ? operation_kind::memory : operation_kind::other;
}

}  // namespace keel::inline KEEL_MODE

namespace keel::detail::inline KEEL_MODE {

/// Formats microseconds with nanosecond resolution.
KEEL_BODY std::string microseconds(std::int64_t nanoseconds) {
  return formatted("%lld.%03lld", static_cast<long long>(nanoseconds / 1000), static_cast<long long>(nanoseconds % 1000));
}

/// Returns the ranges of a thread by start time, outer ones first.
KEEL_BODY std::vector<recorded_range const*> ordered_ranges(recorded_profile const& of, std::uint64_t thread) {
  std::vector<recorded_range const*> found;
  for (recorded_range const& range : of.ranges) {
    if (range.thread == thread) found.push_back(&range);
  }
  std::stable_sort(found.begin(), found.end(), [](recorded_range const* a, recorded_range const* b) {
    return a->begin != b->begin ? a->begin < b->begin : a->end > b->end;
  });
  return found;
}

struct operation_time {
  std::int64_t self = 0;  ///< nanoseconds, without nested ranges
  std::int64_t count = 0;
};
struct idle_gap {
  std::int64_t begin = 0;
  std::int64_t length = 0;
};
struct time_spent {
  std::map<std::string, operation_time> operations;
  std::array<std::int64_t, operation_kinds> kinds{};
  std::int64_t idle = 0;
  std::vector<idle_gap> gaps;
};

KEEL_BODY time_spent time_spent_in(recorded_profile const& of) {
  time_spent found;
  std::vector<std::pair<recorded_range const*, std::int64_t>> open;  // with the time of nested ranges
  std::int64_t busy_until = 0;
  auto const close = [&] {
    auto const [range, inside] = open.back();
    open.pop_back();
    std::int64_t const length = range->end - range->begin;
    if (!open.empty()) open.back().second += length;
    auto& time = found.operations[range->name];
    time.self += length - inside;
    ++time.count;
    found.kinds[static_cast<std::size_t>(kind_of_operation(range->name))] += length - inside;
  };
  auto const idle_until = [&](std::int64_t at) {
    if (at <= busy_until) return;
    found.idle += at - busy_until;
    found.gaps.push_back({busy_until, at - busy_until});
  };
  for (recorded_range const* const range : ordered_ranges(of, of.main_thread)) {
    while (!open.empty() && open.back().first->end <= range->begin) close();
    if (open.empty()) idle_until(range->begin);
    busy_until = std::max(busy_until, range->end);
    open.emplace_back(range, 0);
  }
  while (!open.empty()) close();
  idle_until(of.length);
  return found;
}

KEEL_BODY std::string phase_at(recorded_profile const& of, std::int64_t at) {
  for (recorded_range const& range : of.ranges) {
    if (is_phase_track(range.thread) && range.begin <= at && at < range.end) return range.name;
  }
  return "none";
}

KEEL_BODY std::string in_milliseconds(std::int64_t nanoseconds) {
  return formatted("%.3f", static_cast<double>(nanoseconds) / 1e6);
}

}  // namespace keel::detail::inline KEEL_MODE

namespace keel::inline KEEL_MODE {

KEEL_BODY std::string chrome_trace(recorded_profile const& of) {
  std::set<std::uint64_t> threads;
  std::string events;
  auto const add = [&](std::string const& event) { events += (events.empty() ? "" : ",\n") + event; };
  for (recorded_range const& range : of.ranges) threads.insert(range.thread);
  auto const quoted = [](std::string const& words) {
    return nlohmann::json(words).dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
  };
  add("{\"ph\":\"M\",\"pid\":1,\"tid\":0,\"name\":\"process_name\",\"args\":{\"name\":\"training\"}}");
  for (std::uint64_t const thread : threads) {
    std::string const name = is_phase_track(thread)     ? to_string(static_cast<run_phase>(thread - first_phase_track))
                             : thread == of.main_thread ? "training thread"
                                                        : "thread " + std::to_string(thread);
    add("{\"ph\":\"M\",\"pid\":1,\"tid\":" + std::to_string(thread) +
        ",\"name\":\"thread_name\",\"args\":{\"name\":" + quoted(name) + "}}");
  }
  for (std::uint64_t const thread : threads) {
    for (recorded_range const* const range : detail::ordered_ranges(of, thread)) {
      std::string const category = is_phase_track(thread) ? "phase" : to_string(kind_of_operation(range->name));
      add("{\"ph\":\"X\",\"pid\":1,\"tid\":" + std::to_string(thread) + ",\"name\":" + quoted(range->name) + ",\"cat\":\"" +
          category + "\",\"ts\":" + detail::microseconds(range->begin) +
          ",\"dur\":" + detail::microseconds(range->end - range->begin) + "}");
    }
  }
  for (recorded_memory const& one : of.memory) {
    add("{\"ph\":\"C\",\"pid\":1,\"tid\":0,\"name\":\"memory\",\"ts\":" + detail::microseconds(one.at) +
        ",\"args\":{\"allocated\":" + std::to_string(one.bytes) + "}}");
  }
  return "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n" + events + "\n]}\n";
}

KEEL_BODY std::string summary_of(recorded_profile const& of) {
  detail::time_spent const spent = detail::time_spent_in(of);
  auto const share = [&](std::int64_t time) {
    return detail::formatted("%.1f %%",
                             of.length > 0 ? 100.0 * static_cast<double>(time) / static_cast<double>(of.length) : 0.0);
  };
  auto const row = [&](std::string const& name, std::int64_t time) {
    return "| " + name + " | " + detail::in_milliseconds(time) + " | " + share(time) + " |\n";
  };
  std::string text = "# Updates " + std::to_string(of.first_update + 1) + " to " +
                     std::to_string(of.first_update + of.updates) + "\n\n" + of.why + " " + detail::in_milliseconds(of.length) +
                     " ms in all, by the clock of the host: what runs on a device shows where the host waits for it.\n\n";
  if (of.left_out > 0)
    text += std::to_string(of.left_out) +
            " operations are left out, because this profile is full: its times are too low, and idle is too high.\n\n";
  bool const has_others = std::any_of(of.ranges.begin(), of.ranges.end(), [&](recorded_range const& range) {
    return !is_phase_track(range.thread) && range.thread != of.main_thread;
  });
  if (has_others)
    text +=
        "What other threads run, such as a backward pass on a GPU, is in the trace; here the training thread waits for it, "
        "idle.\n\n";
  text += "| the training thread | ms | share |\n|---|---:|---:|\n";
  for (std::size_t kind = 0; kind < operation_kinds; ++kind)
    text += row(to_string(static_cast<operation_kind>(kind)), spent.kinds[kind]);
  text += row("idle: outside of LibTorch's operations", spent.idle);

  text += "\n| phase | ms | share |\n|---|---:|---:|\n";
  std::map<std::string, std::int64_t> phases;
  for (recorded_range const& range : of.ranges) {
    if (is_phase_track(range.thread)) phases[range.name] += range.end - range.begin;
  }
  for (auto const& [name, time] : phases) text += row(name, time);

  constexpr std::size_t most_operations = 20;
  std::vector<std::pair<std::string, detail::operation_time>> operations(spent.operations.begin(), spent.operations.end());
  std::stable_sort(operations.begin(), operations.end(),
                   [](auto const& a, auto const& b) { return a.second.self > b.second.self; });
  text += "\n| operation, without what runs inside | ms | share | calls | kind |\n|---|---:|---:|---:|---|\n";
  for (std::size_t i = 0; i < std::min(most_operations, operations.size()); ++i) {
    auto const& [name, time] = operations[i];
    text += "| `" + name + "` | " + detail::in_milliseconds(time.self) + " | " + share(time.self) + " | " +
            std::to_string(time.count) + " | " + to_string(kind_of_operation(name)) + " |\n";
  }
  constexpr std::size_t most_gaps = 5;
  auto gaps = spent.gaps;
  std::stable_sort(gaps.begin(), gaps.end(), [](auto const& a, auto const& b) { return a.length > b.length; });
  text += "\n| the longest gaps, from | ms | in the phase |\n|---:|---:|---|\n";
  for (std::size_t i = 0; i < std::min(most_gaps, gaps.size()); ++i)
    text += "| " + detail::in_milliseconds(gaps[i].begin) + " ms | " + detail::in_milliseconds(gaps[i].length) + " | " +
            detail::phase_at(of, gaps[i].begin + gaps[i].length / 2) + " |\n";
  return text;
}

}  // namespace keel::inline KEEL_MODE

#include <keel/libtorch/detail/body_end.inc>
