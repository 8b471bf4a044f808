// The constructor's door to the rules: the same predicates as the compiler's, with what is only known now.
#pragma once

#include <keel/error.hpp>
#include <keel/recipe/check.hpp>
#include <string>

namespace keel {

/// Throws recipe_error with the first broken rule's id and all broken rules' sentences, one a line. Returns the configuration
/// with the facts in it.
inline config require_valid(config value, run_facts const& facts, bool partly_frozen) {
  value.run = facts;
  value.model.partly_frozen |= partly_frozen;
  verdict const result = check(value);
  if (result.ok()) return value;
  std::string sentences;
  for (violation const& one : result) {
    // The exception's own prefix is the first rule's id.
    std::string const sentence = one.text;
    if (sentences.empty()) {
      sentences = sentence.substr(sentence.find(' ') + 1);
    } else {
      sentences.append("\n").append(sentence);
    }
  }
  throw recipe_error(result.begin()->id, sentences);
}

}  // namespace keel
