// Where a run stands: the data cursor, counters, and the statistics that the record needs. All of it is part of a checkpoint.
#pragma once

#include <cstdint>
#include <keel/libtorch/random.hpp>
#include <keel/observe/window_statistics.hpp>

namespace keel {

/// The position in the data: what was consumed, not what was fetched.
struct data_cursor {
  std::int64_t epoch = 0;
  std::int64_t position = 0;       ///< micro-batches of this epoch
  std::int64_t consumed = 0;       ///< micro-batches of the run
  bool in_epoch = false;           ///< the epoch has begun, so a loader has drawn its order
  random_snapshot at_epoch_begin;  ///< so that a loader that shuffles at its begin() shuffles the same again

  template <class Archive>
  void visit(Archive& archive) {
    archive("epoch", epoch);
    archive("position", position);
    archive("consumed", consumed);
    archive("in_epoch", in_epoch);
    archive("random", at_epoch_begin);
  }
};

/// What the record of a run remembers from update to update.
struct run_record {
  std::int64_t attempts = 0;  ///< windows, the skipped ones included; as many lines has metrics.jsonl
  std::int64_t tokens = 0;
  std::int64_t rungs = 0;  ///< rungs taken
  double first_loss = 0.0;
  double last_loss = 0.0;
  window_statistics loss;
  window_statistics gradient_norm;

  template <class Archive>
  void visit(Archive& archive) {
    archive("attempts", attempts);
    archive("tokens", tokens);
    archive("rungs", rungs);
    archive("first_loss", first_loss);
    archive("last_loss", last_loss);
    archive("loss", loss);
    archive("gradient_norm", gradient_norm);
  }
};

}  // namespace keel
