// What a message, a symptom or an id means, and what to do: the guide (guide.hpp) and every rule, found by words.
//     for (keel::explanation const& one : keel::explain("loss spikes after a resume")) std::puts(keel::to_text(one).c_str());
#pragma once

#include <cstddef>
#include <keel/libtorch/mode.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace keel::inline KEEL_MODE {

/// What a message or a symptom means.
struct explanation {
  std::string seen;   ///< of a rule its id and what it rejects
  std::string cause;  ///< empty for a rule
  std::string fix;    ///< what to do
  std::string keel;   ///< what keel does about it
};

/// What fits best comes first, at most so many; empty where no word is known. An id, as "A01" or "[E08]", gives what belongs to it alone.
std::vector<explanation> explain(std::string_view words, std::size_t most = 3);

/// For a terminal, a few lines.
std::string to_text(explanation const& one);

/// The guide as a page in Markdown.
std::string guide_page();

}  // namespace keel::inline KEEL_MODE

#ifndef KEEL_COMPILED
#include <keel/diagnose/explain.ipp>
#endif
