// What one rank says, on all of them.
#pragma once

#include <keel/collective/world_of_ranks.hpp>
#include <string>

namespace keel::detail {

/// All ranks call it: the text that rank `from` gives. Throws world_error (E25).
std::string words_of_rank(world_of_ranks const& world, std::string const& mine, int from);

}  // namespace keel::detail

#if !__has_include(<keel_bodies_are_compiled>)
#include <keel/collective/words_of_rank.ipp>
#endif
