// Definitions for triage.hpp.
#pragma once

#include <signal.h>
#include <sys/types.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <keel/core/error.hpp>
#include <keel/core/file_system.hpp>
#include <keel/diagnose/page_text.hpp>
#include <keel/diagnose/triage.hpp>
#include <keel/diagnose/triage_learning.hpp>
#include <keel/diagnose/triage_memory.hpp>
#include <keel/diagnose/triage_nonfinite.hpp>
#include <keel/diagnose/triage_ranks.hpp>
#include <keel/diagnose/triage_resume.hpp>
#include <keel/diagnose/triage_speed.hpp>
#include <keel/metrics/number_format.hpp>
#include <utility>

#include <keel/libtorch/detail/body_begin.inc>

namespace keel::inline KEEL_MODE {

KEEL_BODY triage_result triage(run_history const& history, std::vector<rank_record> const& ranks,
                               std::vector<std::string> const& ends) {
  triage_result found;
  found.updates = history.updates;
  auto const add = [&](std::vector<triage_finding> const& all) {
    for (triage_finding const& one : all) {
      auto const known = std::find_if(found.findings.begin(), found.findings.end(),
                                      [&](triage_finding const& other) { return other.cause == one.cause; });
      if (known == found.findings.end()) {
        found.findings.push_back(one);
        continue;
      }
      known->confidence = std::max(known->confidence, one.confidence);
      for (std::string const& words : one.evidence) {
        if (std::find(known->evidence.begin(), known->evidence.end(), words) == known->evidence.end())
          known->evidence.push_back(words);
      }
    }
  };
  auto const nonfinite = detail::triage_of_nonfinite(history);
  auto const memory = detail::triage_of_memory(history);
  auto const resume = detail::triage_of_resume(history);
  add(detail::triage_of_ranks(ranks));
  add(detail::triage_of_ends(ends));
  add(nonfinite);
  add(memory);
  add(resume);
  auto learning = detail::triage_of_learning(history);
  auto speed = detail::triage_of_speed(history);
  // If an event explains how the run ended, curves count only if nothing else was found.
  bool const has_hard_evidence = !found.findings.empty();
  // Speed matters less for a run that does not learn.
  bool const learns =
      std::none_of(learning.begin(), learning.end(), [](triage_finding const& one) { return one.confidence >= 0.6; });
  for (auto* const soft : {&learning, &speed}) {
    for (triage_finding& one : *soft) one.confidence *= has_hard_evidence ? 0.6 : 1.0;
  }
  for (triage_finding& one : speed) one.confidence *= learns ? 1.0 : 0.7;
  add(learning);
  add(speed);
  std::stable_sort(found.findings.begin(), found.findings.end(),
                   [](triage_finding const& a, triage_finding const& b) { return a.confidence > b.confidence; });
  constexpr double enough = 0.5;
  constexpr double worth_a_line = 0.25;
  bool const in_trouble = !found.findings.empty() && found.findings.front().confidence >= enough;
  if (!in_trouble) found.findings.clear();
  std::erase_if(found.findings, [](triage_finding const& one) { return one.confidence < worth_a_line; });
  constexpr std::int64_t least = 60;
  found.verdict = in_trouble                 ? triage_verdict::in_trouble
                  : history.updates >= least ? triage_verdict::healthy
                                             : triage_verdict::not_enough_data;
  return found;
}

}  // namespace keel::inline KEEL_MODE

namespace keel::detail::inline KEEL_MODE {

/// Returns true if a process of this machine holds the lock or is the one that it names.
inline bool is_held(file_system& files, std::filesystem::path const& lock) {
  if (files.kind(lock) != file_kind::file) return false;
  std::string const text = files.read(lock).substr(0, 11);
  auto const process = static_cast<pid_t>(std::strtol(text.c_str(), nullptr, 10));
  return files.is_locked(lock) || (process > 0 && (::kill(process, 0) == 0 || errno == EPERM));
}

}  // namespace keel::detail::inline KEEL_MODE

namespace keel::inline KEEL_MODE {

KEEL_BODY triage_result triage(std::filesystem::path const& run_directory) {
  auto const ranks = read_rank_records(run_directory);
  file_system files;
  // Ranks that failed to rendezvous have no record of a run.
  bool const has_record = files.exists(run_directory / "metrics.jsonl") || files.exists(run_directory / "events.jsonl");
  if (!ranks.empty() && !has_record) return triage(run_history{}, ranks);
  run_history const history = read_run_history(run_directory);
  triage_result found = triage(history, ranks, detail::ends_of_ranks(run_directory));
  bool const is_gone = ending_of(history) == nullptr && !detail::is_held(files, run_directory / "lock");
  if (found.verdict != triage_verdict::in_trouble && is_gone && !history.events.empty())
    found.verdict = triage_verdict::not_ended;
  return found;
}

KEEL_BODY std::string to_text(triage_result const& found) {
  std::string const updates = std::to_string(found.updates) + " updates";
  if (found.verdict == triage_verdict::healthy) return "healthy: no finding in " + updates + "\n";
  if (found.verdict == triage_verdict::not_ended)
    return "no end: no finding in " + updates +
           ", but the record has no end and no process on this machine holds its lock: the run was killed, or runs on another "
           "machine. Restart it from its newest checkpoint, and check the logs of the kernel and the scheduler\n";
  if (found.verdict == triage_verdict::not_enough_data)
    return "not enough data: " + updates + " are too few, and no event shows a problem\n";
  std::string text = std::string("family: ") + to_string(facts_about(found.findings.front().cause).family) + "\n";
  int place = 0;
  for (triage_finding const& one : found.findings) {
    trouble_facts const& facts = facts_about(one.cause);
    text += detail::formatted("%d. %s (%s), confidence %.2f\n", ++place, facts.name, to_string(facts.family), one.confidence);
    for (std::string const& words : one.evidence) text += "     " + detail::without_control_codes(words) + "\n";
    text += "     to do: " + joined(facts.fixes) + "\n";
  }
  return text;
}

}  // namespace keel::inline KEEL_MODE

#include <keel/libtorch/detail/body_end.inc>
