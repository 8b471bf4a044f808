// Definitions for triage_ranks.hpp.
#pragma once

#include <algorithm>
#include <cmath>
#include <keel/core/file_system.hpp>
#include <keel/diagnose/curve_values.hpp>
#include <keel/diagnose/run_history.hpp>
#include <keel/diagnose/triage_ranks.hpp>
#include <keel/metrics/number_format.hpp>
#include <set>
#include <string>

#include <keel/libtorch/detail/body_begin.inc>

namespace keel::detail::inline KEEL_MODE {

KEEL_BODY entered_collective const* open_collective(rank_record const& rank) {
  for (auto one = rank.collectives.rbegin(); one != rank.collectives.rend(); ++one) {
    if (!one->second.is_completed) return &one->second;
  }
  return nullptr;
}

KEEL_BODY std::string describe_collective(entered_collective const& one) {
  return one.operation + (one.of.empty() ? "" : " of " + one.of) + " (" + std::to_string(one.elements) + " " +
         (one.dtype.empty() ? "elements" : one.dtype) + ")";
}

/// Compares values of the same update that must be equal on all ranks.
KEEL_BODY void add_differences_of_ranks(std::vector<rank_record> const& ranks, std::vector<triage_finding>& to) {
  bool drifts = false, is_wrong = false;
  auto const at = [](std::int64_t update, rank_record const& one) {
    return "at update " + std::to_string(update) + " rank " + std::to_string(one.rank);
  };
  auto const differ = [](std::optional<double> const& a, std::optional<double> const& b) {
    if (!a || !b || std::isfinite(*a) != std::isfinite(*b)) return a && b;
    return std::isfinite(*a) && std::abs(*a - *b) > 1e-5 * std::max(std::abs(*a), std::abs(*b));
  };
  rank_record const& first = ranks.front();
  for (auto const& [update, mine] : first.updates) {
    double squares = 0.0;
    std::size_t with_shards = 0;
    for (rank_record const& other : ranks) {
      auto const found = other.updates.find(update);
      if (found == other.updates.end()) continue;
      rank_update const& theirs = found->second;
      if (theirs.shard_norm) {
        squares += *theirs.shard_norm * *theirs.shard_norm;
        ++with_shards;
      }
      if (drifts) continue;
      std::string words;
      if (differ(mine.coefficient, theirs.coefficient)) {
        words = formatted(" clipped by %.6g and rank %lld by %.6g: each rank used the norm of its local shard",
                          *theirs.coefficient, static_cast<long long>(first.rank), *mine.coefficient);
      } else if (!mine.state.empty() && !theirs.state.empty() && mine.state != theirs.state) {
        words = " differs from rank " + std::to_string(first.rank) + " in replicated state";
      } else if (differ(mine.gradient_norm, theirs.gradient_norm)) {
        words = formatted(" has gradient norm %.6g and rank %lld has %.6g: decisions based on it are not agreed across ranks",
                          *theirs.gradient_norm, static_cast<long long>(first.rank), *mine.gradient_norm);
      }
      if (words.empty()) continue;
      drifts = true;
      to.push_back({trouble::ranks_drift, 0.95, {at(update, other) + words}});
    }
    auto const world = static_cast<double>(ranks.size());
    double const whole = std::sqrt(squares);
    if (is_wrong || with_shards != ranks.size() || !(whole > 0.0) || !mine.gradient_norm || !std::isfinite(*mine.gradient_norm))
      continue;
    double const ratio = *mine.gradient_norm / whole;
    if (std::abs(ratio - 1.0) < 1e-3) continue;
    is_wrong = true;
    auto const is = [&](double wanted) { return std::abs(ratio / wanted - 1.0) < 0.02; };
    std::string const how = is(std::sqrt(world))         ? ": each shard was counted as the full gradient"
                            : is(1.0 / std::sqrt(world)) ? ": the squares were averaged instead of summed"
                                                         : "";
    to.push_back({trouble::wrong_norm,
                  0.9,
                  {formatted("at update %lld the gradient norm is %.6g, %.4g times the norm over all shards, %.6g",
                             static_cast<long long>(update), *mine.gradient_norm, ratio, whole) +
                   how}});
  }
}

KEEL_BODY std::vector<triage_finding> triage_of_ranks(std::vector<rank_record> const& ranks) {
  std::vector<triage_finding> found;
  if (ranks.empty()) return found;
  if (ranks.size() > 1) add_differences_of_ranks(ranks, found);
  auto const add = [&](trouble cause, double confidence, std::vector<std::string> evidence) {
    found.push_back({cause, confidence, std::move(evidence)});
  };
  std::int64_t world = 0;
  double now = 0.0;
  std::int64_t joined = 0;
  rank_record const* waiting = nullptr;
  std::set<std::int64_t> worlds;
  for (rank_record const& one : ranks) {
    world = std::max(world, one.world);
    if (one.world > 0) worlds.insert(one.world);
    now = std::max(now, one.last);
    joined += one.has_joined ? 1 : 0;
    bool const is_newer = waiting == nullptr || one.last > waiting->last;
    if (open_collective(one) != nullptr && !one.left && is_newer) waiting = &one;
  }
  auto const name = [](rank_record const& one) { return "rank " + std::to_string(one.rank); };

  bool const any_collective = std::any_of(ranks.begin(), ranks.end(), [](auto const& one) { return !one.collectives.empty(); });
  if (!any_collective && joined < std::max(world, static_cast<std::int64_t>(ranks.size()))) {
    std::vector<std::string> evidence{std::to_string(joined) + " of " + std::to_string(world) + " ranks have joined"};
    for (rank_record const& one : ranks) {
      if (!one.has_joined) evidence.push_back(name(one) + " is still joining" + (one.left ? ", and ended: " + *one.left : ""));
    }
    if (worlds.size() > 1) evidence.push_back("the ranks have different world sizes");
    add(trouble::rendezvous, 0.95, std::move(evidence));
    return found;
  }

  bool mismatches = false;
  // Collectives of the same number must be the same on all ranks; after a mismatch, further comparisons are meaningless.
  for (auto const& [sequence, mine] : ranks.front().collectives) {
    for (rank_record const& other : ranks) {
      auto const theirs = other.collectives.find(sequence);
      if (theirs == other.collectives.end()) continue;
      auto const& one = theirs->second;
      if (one.operation.empty() || mine.operation.empty()) continue;
      if (one.operation == mine.operation && one.elements == mine.elements && one.dtype == mine.dtype && one.of == mine.of)
        continue;
      mismatches = true;
      // If all ranks have ended, their error messages are better evidence.
      add(trouble::collective_mismatch, waiting != nullptr ? 0.95 : 0.7,
          {"collective " + std::to_string(sequence) + " is " + describe_collective(mine) + " on " + name(ranks.front()) +
           " and " + describe_collective(one) + " on " + name(other)});
      break;
    }
    if (mismatches) break;
  }

  if (waiting == nullptr) return found;
  entered_collective const& open = *open_collective(*waiting);
  std::string const waits =
      name(*waiting) + " waits in collective " + std::to_string(open.sequence) + ", " + describe_collective(open);
  for (rank_record const& one : ranks) {
    if (&one == waiting) continue;
    // A silent rank died inside the collective that it entered.
    bool const is_silent = waiting->last - one.last > 30.0;
    if (one.collectives.count(open.sequence) > 0 && !one.left && !is_silent) continue;
    bool const failed = one.left && *one.left != "finished";
    if (one.data_ended || (one.left && !failed)) {
      add(trouble::uneven_data, 0.95,
          {waits,
           name(one) + (one.data_ended ? " ran out of data after update " + std::to_string(*one.data_ended) : " finished")});
    } else if (failed) {
      add(trouble::dead_rank, 0.95, {waits, name(one) + " ended: " + *one.left});
    } else if (now - one.last > 30.0) {
      add(trouble::dead_rank, 0.9, {waits, formatted("%s has not reported for %.0f s", name(one).c_str(), now - one.last)});
    } else if (!mismatches && now - open.time > 60.0) {
      add(trouble::collective_mismatch, 0.6, {waits, name(one) + " is alive but has not entered it"});
    }
  }
  return found;
}

KEEL_BODY std::vector<triage_finding> triage_of_ends(std::vector<std::string> const& ends) {
  std::vector<triage_finding> found;
  for (std::string const& words : ends) {
    auto const has = [&](char const* part) { return words.find(part) != std::string::npos; };
    // A rank that threw already gives the reason.
    if (has("[E27]")) {
      found.push_back({trouble::no_progress, 0.97, {words}});
    } else if (has("[E26]")) {
      found.push_back({has("has diverged from rank 0") ? trouble::ranks_drift : trouble::collective_mismatch, 0.95, {words}});
    } else if (has("[E25]") && !has("has given up") && !has("threw")) {
      if (has("gone") || has("has not called it") || has("too late")) {
        found.push_back({trouble::dead_rank, 0.95, {words}});
      } else if (has(" is at ") || has("has ended")) {
        found.push_back({trouble::collective_mismatch, 0.95, {words}});
      }
    }
  }
  return found;
}

/// Returns the message of the failure that ends a run directory's events; empty if the run did not fail.
KEEL_BODY std::string end_in(std::filesystem::path const& directory) {
  file_system files;
  if (!files.exists(directory / "events.jsonl")) return "";
  std::string message;
  for (run_event const& event : read_run_history(directory).events) {
    if (event.name == "failed") message = text_of(event, "message");
    if (event.name == "started" || event.name == "resumed" || event.name == "finished") message.clear();
  }
  return message;
}

KEEL_BODY std::vector<std::string> ends_of_ranks(std::filesystem::path const& run_directory) {
  std::vector<std::string> ends{end_in(run_directory)};
  for (int rank = 1; std::filesystem::is_directory(run_directory / ("rank-" + std::to_string(rank))); ++rank)
    ends.push_back(end_in(run_directory / ("rank-" + std::to_string(rank))));
  return ends;
}

}  // namespace keel::detail::inline KEEL_MODE

#include <keel/libtorch/detail/body_end.inc>
