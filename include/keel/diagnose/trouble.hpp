// What can be wrong with a run, as a triage names it: each cause with its family, what of the record shows it, and what to do, least
// invasive first. README.md in this folder has the table.
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

/// Causes of trouble; README.md in this folder says what each is judged from.
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
  char const* fields;  ///< of the run directory, from which it is judged
  char const* fixes;   ///< least invasive first, parted by semicolons
};

/// All of them, in the order of the enumeration.
std::span<trouble_facts const> all_troubles();
trouble_facts const& facts_about(trouble which);
/// A few words, such as "not finite".
char const* to_string(trouble_family which);

/// The table of README.md, in Markdown.
std::string trouble_table();

}  // namespace keel::inline KEEL_MODE

#ifndef KEEL_COMPILED
#include <keel/diagnose/trouble.ipp>
#endif
