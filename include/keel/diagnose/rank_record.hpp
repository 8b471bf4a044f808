// What each rank of a run of several leaves of its collectives, ranks/RANK.jsonl in the run directory, one JSON object a line, each with
// `event` and `time` (seconds since 1970). keel writes the last ones where a run ends with an error or hangs
// (keel/collective/write_rank_record.hpp); a program that records more may write all of these:
//     joining             world                  before the ranks meet
//     joined                                     after
//     collective          sequence, operation, elements, dtype, of, update     entered; counted from 1 on each rank
//     completed           sequence               that collective came to its end
//     update              update, gradient_norm, coefficient, shard_norm, state     an update was applied: the norm that clipping went by, what it
//                                                multiplied by, the norm of this rank's shard alone, a checksum of what all ranks have; each
//                                                where there is one
//     alive                                      at least every ten seconds, from a thread that waits for nothing
//     data_ended          update                 this rank has no more micro-batches
//     left                why                    the rank's end: "finished", or the first line of an error
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
  std::string operation;  ///< "all_reduce"
  std::string of;         ///< what it is about, "gradients"
  std::string dtype;
  std::int64_t elements = 0;
  std::int64_t update = 0;
  double time = 0.0;
  bool is_completed = false;
};

/// What a rank says of an update that it applied, as far as it does.
struct rank_update {
  std::optional<double> gradient_norm;
  std::optional<double> coefficient;
  std::optional<double> shard_norm;
  std::string state;
};

struct rank_record {
  std::int64_t rank = 0;
  std::int64_t world = 0;  ///< 0: not known
  bool has_joined = false;
  std::map<std::int64_t, entered_collective> collectives;  ///< by sequence
  std::map<std::int64_t, rank_update> updates;             ///< by update
  std::optional<std::int64_t> data_ended;                  ///< after so many updates
  std::optional<std::string> left;                         ///< why
  double last = 0.0;                                       ///< time of the last line
};

/// By rank; empty where the directory has none. A line that cannot be read, as a kill leaves one, is passed over.
std::vector<rank_record> read_rank_records(std::filesystem::path const& run_directory);

}  // namespace keel::inline KEEL_MODE

#ifndef KEEL_COMPILED
#include <keel/diagnose/rank_record.ipp>
#endif
