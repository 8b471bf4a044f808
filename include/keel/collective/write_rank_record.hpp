// What a rank leaves of its last collectives where its run ends with an error or hangs: ranks/RANK.jsonl in the run directory, one JSON
// object a line, each with `event` and `time` (seconds since 1970). keel/diagnose/rank_record.hpp reads it.
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

/// Writes ranks/RANK.jsonl; `directory`: of this rank, the run's own or `rank-RANK` in it. A disk that does not let it be written changes
/// nothing: `why` is what matters, and is said elsewhere.
void write_rank_record(world_of_ranks const& world, std::filesystem::path const& directory, std::string const& why) noexcept;
/// A run begins: what one before it left goes. Rank 0 removes what ranks left that are not there any more.
void remove_rank_record(world_of_ranks const& world, std::filesystem::path const& directory) noexcept;

}  // namespace keel::detail::inline KEEL_MODE

#ifndef KEEL_COMPILED
#include <keel/collective/write_rank_record.ipp>
#endif
