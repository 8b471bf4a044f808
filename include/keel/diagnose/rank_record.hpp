// The log of the collectives of each rank, ranks/RANK.jsonl in the run directory: one JSON object per line, each with `event` and `time`
// (seconds since 1970). keel writes the last ones when a run ends with an error or hangs (keel/collective/write_rank_record.hpp). A program
// may write more of them:
//     joining             world                  before the rendezvous
//     joined                                     after the rendezvous
//     collective          sequence, operation, elements, dtype, of, update     entered; `sequence` counts from 1 on each rank
//     completed           sequence               that collective completed
//     update              update, gradient_norm, coefficient, shard_norm, state     an update was applied: the norm used for clipping,
//                                                the clip coefficient, the norm of this rank's shard alone, a checksum of the
//                                                replicated state; each is optional
//     alive                                      at least every ten seconds, from a thread that never blocks
//     data_ended          update                 this rank has no more micro-batches
//     left                why                    the rank ended: "finished", or the first line of an error
#pragma once

#include <cstdint>
#include <filesystem>
#include <keel/libtorch/mode.hpp>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace keel::inline KEEL_MODE {

struct entered_collective {
  std::int64_t sequence = 0;
  std::string operation;  ///< such as "all_reduce"
  std::string of;         ///< its contents, such as "gradients"
  std::string dtype;
  std::int64_t elements = 0;
  std::int64_t update = 0;
  double time = 0.0;
  bool is_completed = false;
};

/// What a rank recorded about an applied update; each value is optional.
struct rank_update {
  std::optional<double> gradient_norm;
  std::optional<double> coefficient;
  std::optional<double> shard_norm;
  std::string state;
};

struct rank_record {
  std::int64_t rank = 0;
  std::int64_t world = 0;  ///< 0 if unknown
  bool has_joined = false;
  std::map<std::int64_t, entered_collective> collectives;  ///< by sequence number
  std::map<std::int64_t, rank_update> updates;             ///< by update number
  std::optional<std::int64_t> data_ended;                  ///< number of updates after which the data ended
  std::optional<std::string> left;                         ///< why the rank ended
  double last = 0.0;                                       ///< time of the last line, in seconds since 1970
};

/// Returns the records by rank; empty if the directory has none. Ignores invalid lines, such as a line cut off by a kill.
std::vector<rank_record> read_rank_records(std::filesystem::path const& run_directory);

}  // namespace keel::inline KEEL_MODE

#ifndef KEEL_COMPILED
#include <keel/diagnose/rank_record.ipp>
#endif
