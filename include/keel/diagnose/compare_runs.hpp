// Two runs beside each other: where one is fine and the other is not. What was asked of them (recipe, versions, fingerprints of data and vocabulary), the first update at
// which they part and what parted first, and how far the weights of their newest common checkpoint are from each other, by layer.
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

/// Of what was asked of the runs; empty text where one does not have it.
struct setting_difference {
  std::string name;  ///< "clip.limit" of the recipe, "learning rate of group 0", ..
  std::string a;     ///< of the first run
  std::string b;     ///< of the second
};

/// A key of metrics.jsonl, at the first update where its values differ in any bit.
struct record_difference {
  std::string key;      ///< of the record
  std::int64_t update;  ///< the first that differs
  double a;             ///< the first run's value there
  double b;             ///< the second's
};

/// How far a layer's weights are from each other.
struct layer_distance {
  std::string name;  ///< of the layer
  double relative;   ///< norm of the difference over the norm of the first run's; infinity where only one has the layer
};

/// Where two runs part.
struct run_comparison {
  std::string name_a;                        ///< the first run's directory
  std::string name_b;                        ///< the second's
  std::vector<setting_difference> settings;  ///< that differ
  std::int64_t common_updates = 0;           ///< that both records have
  std::vector<record_difference> records;    ///< the first to part comes first; empty: they do not part
  std::optional<std::int64_t>
      batches_part;  ///< the first update that saw other batches; nothing where none did, or the record does not say
  std::optional<std::int64_t> checkpoint;  ///< the newest update of which both have a checkpoint
  std::vector<layer_distance> layers;      ///< in that one, the farthest first
  std::string conclusion;                  ///< one sentence
};

/// Throws file_error (E02) for a directory without a record, checkpoint_error (E05) for a damaged checkpoint.
run_comparison compare_runs(std::filesystem::path const& a, std::filesystem::path const& b);

/// For a terminal.
std::string to_text(run_comparison const& found);

}  // namespace keel::inline KEEL_MODE

#ifndef KEEL_COMPILED
#include <keel/diagnose/compare_runs.ipp>
#endif
