// keel's exceptions. Each carries a short id that programs may compare and a sentence that names the thing and the way out.
// A recipe's id is its rule's; the ids of the running program are append-only, never a rule's, and listed here:
//   E01 run directory      E02 file             E03 checkpoint of another recipe   E04 checkpoint of another model
//   E05 checkpoint content E06 batch            E07 loss                           E08 non-finite values
//   E09 out of memory      E10 loss scale       E11 optimizer                      E12 options
//   E13 configuration file E14 spikes               E15 autograd engine               E16 recomputation
//   E17 checkpoint format  E18 learning rate        E19 changed while an update was open
//   E22 given numbers      E23 evaluation mode      E24 launcher and meeting point E25 other ranks
//   E26 ranks that are not of the same training any more     E27 no progress  (E20, E21 and E28 on are rules)
#pragma once

#include <keel/core/outcome.hpp>
#include <keel/libtorch/mode.hpp>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace keel::inline KEEL_MODE {

/// The base of all of keel's exceptions.
class error : public std::runtime_error {
 public:
  /// For an id, such as "E02", and a sentence; what() puts the id in brackets before it.
  error(std::string id, std::string const& sentence) : std::runtime_error("[" + id + "] " + sentence), id_(std::move(id)) {}
  /// Such as "E02" or a rule's "A01".
  std::string const& id() const noexcept { return id_; }

 private:
  std::string id_;
};

/// A recipe that breaks a rule which only construction can decide, or a configuration file that breaks one; `id()` is the first
/// broken rule's.
class recipe_error : public error {
 public:
  /// For the first broken rule, the sentences of all, and the ids of all.
  recipe_error(std::string const& id, std::string const& sentences, std::vector<std::string> ids = {})
      : error(id, sentences), ids_(ids.empty() ? std::vector<std::string>{id} : std::move(ids)) {}
  /// Of all broken rules, in the order of the sentences.
  std::vector<std::string> const& ids() const noexcept { return ids_; }

 private:
  std::vector<std::string> ids_;
};
/// The run directory or a file in it: missing, not writable, full, in use.
struct file_error : error {
  using error::error;
};
/// A checkpoint that cannot be loaded: damaged, or of another recipe, model or optimizer.
struct checkpoint_error : error {
  using error::error;
};
/// A batch or loss that cannot be trained on: empty, of a wrong shape, not a scalar.
struct data_error : error {
  using error::error;
};
/// Skipped updates, and the recipe tolerates no more of them.
class skip_limit_error : public error {
 public:
  /// For an id, a sentence, and the reason where a limit was reached.
  skip_limit_error(std::string id, std::string const& sentence, std::optional<reason> limit = std::nullopt)
      : error(std::move(id), sentence), limit_(limit) {}
  /// Why the last of them was skipped, where a policy has a limit that is reached: fit then returns result::gave_up. Nothing where the
  /// first one is an error.
  std::optional<reason> limit() const noexcept { return limit_; }

 private:
  std::optional<reason> limit_;
};
/// NaN or infinity.
struct nonfinite_error : skip_limit_error {
  using skip_limit_error::skip_limit_error;
};
/// Finite losses or gradient norms far above their history.
struct diverged_error : skip_limit_error {
  using skip_limit_error::skip_limit_error;
};
/// A learning rate that no update can use, or one that the program wrote beside a schedule policy.
struct learning_rate_error : error {
  using error::error;
};
/// Gradients, parameters or optimizer state that something else than the step changed while they were the step's.
struct interference_error : error {
  using error::error;
};
/// Several ranks: a launcher that contradicts itself, ranks that do not meet, one that is gone, too late, or does something else.
struct world_error : error {
  using error::error;
};
/// Memory ran out, and the recipe has no rung for it.
struct out_of_memory_error : error {
  using error::error;
};

/// What an exception says without the id before it, for a sentence that has one.
inline std::string without_id(std::string const& words) {
  std::size_t const end = words.starts_with('[') ? words.find("] ") : std::string::npos;
  return end == std::string::npos ? words : words.substr(end + 2);
}

/// The exception for a rule that is decided while the run goes on: its id, its text, and what happened here.
template <class Error, class Rule>
Error broken_rule(std::string const& here = {}) {
  std::string const sentence = Rule::text;
  return Error(Rule::id, (here.empty() ? "" : here + ": ") + sentence.substr(sentence.find(' ') + 1));
}

}  // namespace keel::inline KEEL_MODE
