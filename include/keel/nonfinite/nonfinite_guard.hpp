// The mechanism of keel::nonfinite: how many updates in a row were skipped, and when that ends the run or rolls it back.
#pragma once

#include <cstdint>
#include <keel/config/open_numbers.hpp>
#include <keel/core/error.hpp>
#include <keel/core/outcome.hpp>
#include <keel/policy/nonfinite.hpp>
#include <optional>
#include <string>

namespace keel {

class nonfinite_guard {
 public:
  template <policy_for<slot::nonfinite> Policy>
  explicit nonfinite_guard(Policy const&) : nonfinite_guard(detail::closed_settings<Policy>()) {}
  explicit nonfinite_guard(nonfinite::settings const& settings) : settings_(settings) {}

  void accepted() { in_a_row_ = 0; }

  /// One more update is skipped. Throws nonfinite_error (E08) if the policy does not bear it; where it rolls back, returns
  /// what happened instead. `origin`: where it began, in words, or empty. `update` counts from 1.
  std::optional<std::string> skipped(reason why, std::string const& where, std::int64_t update,
                                     std::string const& origin = {}) {
    ++in_a_row_;
    bool const first_ends = settings_.kind == nonfinite::kind::raise;
    if (!first_ends && in_a_row_ < settings_.limit) return std::nullopt;
    std::string what = to_string(why);
    if (!where.empty()) what += " in " + where;
    what += " at update " + std::to_string(update);
    if (first_ends) {
      throw nonfinite_error("E08",
                            what + (origin.empty() ? "" : ": " + origin) +
                                ". The parameters are as they were before it. Look at that batch, or let the run go on with "
                                "keel::nonfinite::skip<10>.");
    }
    if (settings_.kind == nonfinite::kind::rollback) return what + ", " + std::to_string(in_a_row_) + " in a row";
    throw nonfinite_error("E08", what + ", " + std::to_string(in_a_row_) + " in a row, which is this recipe's limit" +
                                     (origin.empty() ? "" : "; of the last " + origin) +
                                     ". The parameters are those of the last good update. "
                                     "Lower the learning rate, or look at the data from here on.");
  }

  template <class Archive>
  void visit(Archive& archive) {
    archive("in_a_row", in_a_row_);
  }

 private:
  nonfinite::settings settings_;
  std::int64_t in_a_row_ = 0;
};

}  // namespace keel
