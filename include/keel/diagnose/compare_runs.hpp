// Compares two runs: their settings (recipe, versions, fingerprints of data and vocabulary), the first update at which their records
// diverge, the key that diverges first, and the distance of the weights in their newest common checkpoint, by layer.
//     keel::run_comparison const found = keel::compare_runs("runs/good", "runs/worse");
//     std::puts(keel::to_text(found).c_str());
#pragma once

#include <cstdint>
#include <filesystem>
#include <keel/libtorch/mode.hpp>
#include <optional>
#include <string>
#include <vector>

namespace keel::inline KEEL_MODE {

/// A setting that differs between the runs. The value is empty if a run does not have the setting.
struct setting_difference {
  std::string name;  ///< "clip.limit" of the recipe, "learning rate of group 0", ..
  std::string a;     ///< the first run's value
  std::string b;     ///< the second run's value
};

/// A key of metrics.jsonl, at the first update at which its values differ in any bit.
struct record_difference {
  std::string key;      ///< the key
  std::int64_t update;  ///< the first update with different values
  double a;             ///< the first run's value at that update
  double b;             ///< the second run's value at that update
};

/// The distance between a layer's weights in the two runs.
struct layer_distance {
  std::string name;  ///< the layer's name
  double
      relative;  ///< norm of the difference divided by the norm of the first run's weights; infinity if only one run has the layer
};

/// The differences between two runs.
struct run_comparison {
  std::string name_a;                        ///< the first run's directory
  std::string name_b;                        ///< the second run's directory
  std::vector<setting_difference> settings;  ///< settings that differ
  std::int64_t common_updates = 0;           ///< number of updates that both records have
  std::vector<record_difference> records;    ///< keys whose values differ, the earliest first
  std::optional<std::int64_t>
      batches_part;  ///< the first update with different batches; nullopt if there is none or the records have no checksums
  std::optional<std::int64_t> checkpoint;  ///< the newest update of which both runs have a checkpoint
  std::vector<layer_distance> layers;      ///< distances in that checkpoint, the largest first
  std::string conclusion;                  ///< the conclusion, one sentence
};

/// Compares two run directories. Throws file_error (E02) for a directory without a record, checkpoint_error (E05) for a damaged checkpoint.
run_comparison compare_runs(std::filesystem::path const& a, std::filesystem::path const& b);

/// Returns the comparison as text for a terminal.
std::string to_text(run_comparison const& found);

}  // namespace keel::inline KEEL_MODE

#ifndef KEEL_COMPILED
#include <keel/diagnose/compare_runs.ipp>
#endif
