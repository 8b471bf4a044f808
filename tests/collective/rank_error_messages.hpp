// What each rank of a test threw, in words.
#pragma once

#include <exception>
#include <functional>
#include <keel/collective/in_process.hpp>
#include <string>
#include <vector>

namespace keel_test {

/// Empty for one that returned or was killed.
inline std::vector<std::string> rank_error_messages(int ranks, std::function<void(keel::world_of_ranks)> const& body,
                                               keel::in_process_options const& options = {}) {
  std::vector<std::string> all;
  for (auto const& threw : keel::try_in_process(ranks, body, options)) {
    std::string words;
    try {
      if (threw) std::rethrow_exception(threw);
    } catch (std::exception const& thrown) {
      words = thrown.what();
    }
    all.push_back(words);
  }
  return all;
}

}  // namespace keel_test
