// keel's exceptions. Each has a short, stable id that programs may compare, and a message with the problem and its fix.
// For a rejected recipe the id is that of the rule. Runtime ids are append-only and never equal a rule's id:
//   E01 run directory      E02 file             E03 checkpoint of another recipe   E04 checkpoint of another model
//   E05 checkpoint content E06 batch            E07 loss                           E08 non-finite values
//   E09 out of memory      E10 loss scale       E11 optimizer                      E12 options
//   E13 configuration file E14 spikes               E15 autograd engine               E16 recomputation
//   E17 checkpoint format  E18 learning rate        E19 changed while an update was open
//   E22 given numbers      E23 evaluation mode      E24 launcher and rendezvous    E25 other ranks
//   E26 ranks that diverged from each other                  E27 no progress  (E20, E21 and E28 on are rules)
#pragma once

#include <keel/core/outcome.hpp>
#include <keel/libtorch/mode.hpp>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace keel::inline KEEL_MODE {

/// Base class of all keel exceptions.
class error : public std::runtime_error {
 public:
  /// Constructs the exception from an id such as "E02" and a message. what() returns "[id] message".
  error(std::string id, std::string const& sentence) : std::runtime_error("[" + id + "] " + sentence), id_(std::move(id)) {}
  /// Returns the id, such as "E02" or, for a rule, "A01".
  std::string const& id() const noexcept { return id_; }

 private:
  std::string id_;
};

/// Thrown if a recipe breaks a rule that is checked at construction, or if a configuration file breaks a rule. `id()` is that
/// of the first broken rule.
class recipe_error : public error {
 public:
  /// Takes the id of the first broken rule, the messages of all broken rules, and their ids.
  recipe_error(std::string const& id, std::string const& sentences, std::vector<std::string> ids = {})
      : error(id, sentences), ids_(ids.empty() ? std::vector<std::string>{id} : std::move(ids)) {}
  /// Returns the ids of all broken rules, in the order of their messages.
  std::vector<std::string> const& ids() const noexcept { return ids_; }

 private:
  std::vector<std::string> ids_;
};
/// The run directory or a file in it is missing, not writable, full or in use.
struct file_error : error {
  using error::error;
};
/// A checkpoint cannot be loaded: it is damaged, or belongs to another recipe, model or optimizer.
struct checkpoint_error : error {
  using error::error;
};
/// A batch or loss cannot be used for training: it is empty, has a wrong shape, or is not a scalar.
struct data_error : error {
  using error::error;
};
/// An update was skipped and the recipe tolerates no more skipped updates.
class skip_limit_error : public error {
 public:
  /// Takes an id, a message, and the reason if a limit was reached.
  skip_limit_error(std::string id, std::string const& sentence, std::optional<reason> limit = std::nullopt)
      : error(std::move(id), sentence), limit_(limit) {}
  /// The reason of the last skipped update if a policy's limit was reached; fit then returns result::gave_up. Empty if the
  /// policy throws on the first one.
  std::optional<reason> limit() const noexcept { return limit_; }

 private:
  std::optional<reason> limit_;
};
/// A loss, gradient or buffer is NaN or infinite.
struct nonfinite_error : skip_limit_error {
  using skip_limit_error::skip_limit_error;
};
/// Finite losses or gradient norms were far above their history.
struct diverged_error : skip_limit_error {
  using skip_limit_error::skip_limit_error;
};
/// A learning rate is unusable, or the program wrote one although the recipe has a schedule policy.
struct learning_rate_error : error {
  using error::error;
};
/// Code outside the step modified gradients, parameters or optimizer state during an open update.
struct interference_error : error {
  using error::error;
};
/// A multi-rank failure: conflicting launcher variables, a failed rendezvous, or a rank that is gone, late or diverged.
struct world_error : error {
  using error::error;
};
/// Memory ran out and the recipe has no rung that handles it.
struct out_of_memory_error : error {
  using error::error;
};

/// Removes the leading "[id] " from an exception's message, to embed it in another one.
inline std::string without_id(std::string const& words) {
  std::size_t const end = words.starts_with('[') ? words.find("] ") : std::string::npos;
  return end == std::string::npos ? words : words.substr(end + 2);
}

/// Makes the exception for a rule that is checked at run time, from the rule's id and text. `here` is an optional prefix.
template <class Error, class Rule>
Error broken_rule(std::string const& here = {}) {
  std::string const sentence = Rule::text;
  return Error(Rule::id, (here.empty() ? "" : here + ": ") + sentence.substr(sentence.find(' ') + 1));
}

}  // namespace keel::inline KEEL_MODE
