// The bodies of triage_ranks.hpp.
#pragma once

#include <algorithm>
#include <keel/diagnose/triage_ranks.hpp>
#include <keel/metrics/console.hpp>
#include <set>
#include <string>

#include <keel/core/detail/body_begin.inc>

namespace keel::detail {

KEEL_BODY entered_collective const* open_collective(rank_record const& rank) {
  for (auto one = rank.collectives.rbegin(); one != rank.collectives.rend(); ++one) {
    if (!one->second.is_completed) return &one->second;
  }
  return nullptr;
}

KEEL_BODY std::string words_of(entered_collective const& one) {
  return one.operation + " of " + one.of + " (" + std::to_string(one.elements) + " " + one.dtype + ")";
}

KEEL_BODY std::vector<triage_finding> triage_of_ranks(std::vector<rank_record> const& ranks) {
  std::vector<triage_finding> found;
  if (ranks.empty()) return found;
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
  if (waiting == nullptr) return found;

  // The same number on two ranks is the same collective, or nothing of what follows is.
  for (auto const& [sequence, mine] : ranks.front().collectives) {
    for (rank_record const& other : ranks) {
      auto const theirs = other.collectives.find(sequence);
      if (theirs == other.collectives.end()) continue;
      auto const& one = theirs->second;
      if (one.operation.empty() || mine.operation.empty()) continue;
      if (one.operation == mine.operation && one.elements == mine.elements && one.dtype == mine.dtype && one.of == mine.of)
        continue;
      add(trouble::collective_mismatch, 0.95,
          {"collective " + std::to_string(sequence) + " is " + words_of(mine) + " on " + name(ranks.front()) + " and " +
           words_of(one) + " on " + name(other)});
      break;
    }
    if (!found.empty()) break;
  }

  entered_collective const& open = *open_collective(*waiting);
  std::string const waits = name(*waiting) + " waits in collective " + std::to_string(open.sequence) + ", " + words_of(open);
  for (rank_record const& one : ranks) {
    if (&one == waiting) continue;
    // Dead inside the collective that it entered too.
    bool const is_silent = waiting->last - one.last > 30.0;
    if (one.collectives.count(open.sequence) > 0 && !one.left && !is_silent) continue;
    bool const failed = one.left && *one.left != "finished";
    if (one.data_ended || (one.left && !failed)) {
      add(trouble::uneven_data, 0.95,
          {waits,
           name(one) + (one.data_ended ? " had no more data after update " + std::to_string(*one.data_ended) : " finished")});
    } else if (failed) {
      add(trouble::dead_rank, 0.95, {waits, name(one) + " ended: " + *one.left});
    } else if (now - one.last > 30.0) {
      add(trouble::dead_rank, 0.9, {waits, formatted("%s has been silent for %.0f s", name(one).c_str(), now - one.last)});
    } else if (found.empty() && now - open.time > 60.0) {
      add(trouble::collective_mismatch, 0.6, {waits, name(one) + " is alive and has not entered it"});
    }
  }
  return found;
}

}  // namespace keel::detail

#include <keel/core/detail/body_end.inc>
