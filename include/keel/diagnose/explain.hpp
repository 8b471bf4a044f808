// Explains a message, a symptom or an id: full-text search over the guide (guide.hpp) and all rules.
//     for (keel::explanation const& one : keel::explain("loss spikes after a resume")) std::puts(keel::to_text(one).c_str());
#pragma once

#include <cstddef>
#include <keel/libtorch/mode.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace keel::inline KEEL_MODE {

/// The explanation of a message or a symptom.
struct explanation {
  std::string seen;   ///< the symptom; for a rule, its id and what it rejects
  std::string cause;  ///< empty for a rule
  std::string fix;    ///< what to do
  std::string keel;   ///< what keel does about it
};

/// Returns up to `most` explanations, the best match first; empty if no word is known. An id, such as "A01" or "[E08]", returns only its
/// own entries.
std::vector<explanation> explain(std::string_view words, std::size_t most = 3);

/// Returns the explanation as a few lines for a terminal.
std::string to_text(explanation const& one);

/// Returns the guide and the table of causes as a page in Markdown.
std::string guide_page();

}  // namespace keel::inline KEEL_MODE

#ifndef KEEL_COMPILED
#include <keel/diagnose/explain.ipp>
#endif
