// What one rank says, on all of them.
#pragma once

#include <keel/collective/world_of_ranks.hpp>
#include <string>

namespace keel::detail::inline KEEL_MODE {

/// All ranks call it: the text that rank `from` gives. Throws world_error (E25).
std::string words_of_rank(world_of_ranks const& world, std::string const& mine, int from);

}  // namespace keel::detail::inline KEEL_MODE

#ifndef KEEL_COMPILED
#include <keel/collective/words_of_rank.ipp>
#endif
