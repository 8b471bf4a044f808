// Writes a rank's last collectives to ranks/RANK.jsonl in the run directory when its run fails or hangs. The file has one JSON object per
// line, each with `event` and `time` (seconds since 1970). keel/diagnose/rank_record.hpp reads it.
//     joining       world
//     joined
//     collective    sequence, operation, elements, update      entered; counted from 1 on each rank
//     completed     sequence
//     left          why
#pragma once

#include <filesystem>
#include <keel/collective/world_of_ranks.hpp>
#include <string>

namespace keel::detail::inline KEEL_MODE {

/// Writes ranks/RANK.jsonl. `directory` is this rank's directory: the run directory for rank 0, else `rank-RANK` in it. Ignores write
/// errors, because the caller also reports `why` elsewhere.
void write_rank_record(world_of_ranks const& world, std::filesystem::path const& directory, std::string const& why) noexcept;
/// Call when a run begins: removes this rank's record of an earlier run. Rank 0 also removes those of ranks that no longer exist.
void remove_rank_record(world_of_ranks const& world, std::filesystem::path const& directory) noexcept;

}  // namespace keel::detail::inline KEEL_MODE

#ifndef KEEL_COMPILED
#include <keel/collective/write_rank_record.ipp>
#endif
