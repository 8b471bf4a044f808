// Definitions for preflight_result.hpp.
#pragma once

#include <algorithm>
#include <keel/metrics/console.hpp>
#include <keel/trainer/preflight_result.hpp>

#include <keel/libtorch/detail/body_begin.inc>

namespace keel::inline KEEL_MODE {

KEEL_BODY char const* to_string(preflight_verdict which) {
  switch (which) {
    case preflight_verdict::passed:
      return "passed";
    case preflight_verdict::failed:
      return "FAILED";
    default:
      return "not applicable";
  }
}

KEEL_BODY bool preflight_result::passed() const {
  return std::none_of(rows.begin(), rows.end(),
                      [](preflight_row const& one) { return one.verdict == preflight_verdict::failed; });
}

KEEL_BODY preflight_row const* preflight_result::find(std::string const& check) const {
  auto const found = std::find_if(rows.begin(), rows.end(), [&](preflight_row const& one) { return one.check == check; });
  return found == rows.end() ? nullptr : &*found;
}

KEEL_BODY std::string preflight_result::table() const {
  std::size_t width = 0;
  for (preflight_row const& one : rows) width = std::max(width, one.check.size());
  std::string text;
  std::size_t failed = 0;
  std::string const indent(width + 18, ' ');
  for (preflight_row const& one : rows) {
    std::string const verdict = to_string(one.verdict);
    text += one.check + std::string(width - one.check.size() + 2, ' ') + verdict + std::string(16 - verdict.size(), ' ') +
            one.message + "\n";
    if (!one.fix.empty()) text += indent + "to do: " + one.fix + "\n";
    failed += one.verdict == preflight_verdict::failed ? 1 : 0;
  }
  for (std::string const& one : advice) text += "advice: " + one + "\n";
  text +=
      failed == 0 ? std::string("no check failed") : std::to_string(failed) + (failed == 1 ? " check" : " checks") + " failed";
  return text + detail::formatted(", in %.1f seconds\n", seconds);
}

}  // namespace keel::inline KEEL_MODE

#include <keel/libtorch/detail/body_end.inc>
