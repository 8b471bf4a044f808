// Causes of trouble that a triage distinguishes: each with its family, its evidence in the record, and remedies, the least invasive first.
// README.md in this folder has the table.
#pragma once

#include <cstddef>
#include <cstdint>
#include <keel/libtorch/mode.hpp>
#include <span>
#include <string>

namespace keel::inline KEEL_MODE {

/// Families of trouble; README.md in this folder lists them with their causes.
enum class trouble_family : unsigned char {
  not_finite,
  not_learning,
  overfitting,
  collapse,
  oscillation,
  forgetting,
  out_of_memory,
  slow,
  hang,
  not_resumed,
  ranks_differ
};

/// Causes of trouble; README.md in this folder lists the evidence of each.
enum class trouble : unsigned char {
  blow_up,
  bad_sample,
  layer_numerics,
  loss_scale,
  hardware,
  rate_too_low,
  rate_too_high,
  wrong_labels,
  untrained_parameters,
  wrong_mask,
  bad_initialization,
  overfitting,
  collapse,
  oscillation,
  forgetting,
  activations,
  optimizer_state,
  memory_leak,
  fragmentation,
  graph_in_evaluation,
  graphs_in_accumulation,
  waiting_for_data,
  host_waits,
  communication,
  slow_kernels,
  padding,
  collective_mismatch,
  uneven_data,
  dead_rank,
  no_progress,
  rendezvous,
  optimizer_not_resumed,
  schedule_not_resumed,
  data_not_resumed,
  random_state_not_resumed,
  ranks_drift,
  wrong_norm
};

struct trouble_facts {
  trouble cause;
  trouble_family family;
  char const* name;    ///< "bad sample"
  char const* fields;  ///< the evidence: fields of the run directory
  char const* fixes;   ///< remedies, the least invasive first, separated by semicolons
};

/// Returns all causes, in the order of the enumeration.
std::span<trouble_facts const> all_troubles();
trouble_facts const& facts_about(trouble which);
/// Returns a short name, such as "not finite".
char const* to_string(trouble_family which);

/// Returns the table of README.md, in Markdown.
std::string trouble_table();

}  // namespace keel::inline KEEL_MODE

#ifndef KEEL_COMPILED
#include <keel/diagnose/trouble.ipp>
#endif
