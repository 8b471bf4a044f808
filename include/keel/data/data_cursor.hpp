// The position of a run in its data, which checkpoints store.
#pragma once

#include <cstdint>
#include <keel/libtorch/random.hpp>
#include <string>

namespace keel::inline KEEL_MODE {

/// The position in the data. It counts consumed micro-batches, not prefetched ones.
struct data_cursor {
  std::int64_t epoch = 0;          ///< from 0
  std::int64_t position = 0;       ///< micro-batches of this epoch
  std::int64_t consumed = 0;       ///< micro-batches of the run
  bool in_epoch = false;           ///< the epoch has begun, so a loader has drawn its order
  std::string order;               ///< description of the data order by the source; empty: none
  random_snapshot at_epoch_begin;  ///< restored on resume, so that a loader that shuffles in begin() draws the same order

  template <class Archive>
  void visit(Archive& archive) {
    archive("epoch", epoch);
    archive("position", position);
    archive("consumed", consumed);
    archive("in_epoch", in_epoch);
    archive("order", order);
    archive("random", at_epoch_begin);
  }
};

}  // namespace keel::inline KEEL_MODE
