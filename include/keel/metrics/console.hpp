// Shows a run's progress: a live line with a progress bar on a terminal, and plain lines elsewhere. Also prints notices and a
// final summary.
#pragma once

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <keel/metrics/number_format.hpp>
#include <keel/metrics/update_metrics.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace keel::inline KEEL_MODE {

/// How progress is shown.
enum class console_mode : unsigned char {
  automatic,  ///< a bar on a terminal, lines elsewhere
  bar,
  lines,
  off,
};

/// Shows the progress of a run. Not thread-safe.
class console {
 public:
  /// Writes to `out`, or nowhere if it is null. `every`: updates per line without a terminal.
  console(std::FILE* out, console_mode mode, std::int64_t every)
      : out_(out), every_(every > 0 ? every : 1), mode_(out == nullptr ? console_mode::off : mode) {
    if (mode_ == console_mode::automatic) mode_ = ::isatty(::fileno(out_)) == 1 ? console_mode::bar : console_mode::lines;
  }

  /// Starts the display. `total`: updates of the run, 0 if unknown. `unit`: the unit that `tokens` counts.
  void begin(std::int64_t total, char const* unit) {
    total_ = total;
    unit_ = unit;
  }

  /// Sets a function that receives every permanent line, even if nothing is printed. An empty function disables it.
  void log_to(std::function<void(std::string const&)> log) { log_ = std::move(log); }

  /// Shows one update or an interval of them.
  void show(update_metrics const& m);

  /// Prints a separate, permanent line, such as a rung taken or a checkpoint saved.
  void notice(std::string const& words);

  /// Prints the final table of names and values.
  void summary(std::vector<std::pair<std::string, std::string>> const& rows);

 private:
  std::string line(update_metrics const& m) const;

  std::string eta(std::int64_t update) const {
    if (total_ <= 0) return {};
    return "eta " + detail::duration(smooth_ms_ / 1000.0 * static_cast<double>(total_ - update));
  }

  std::string bar(std::int64_t update) const;

  static int digits(std::int64_t number);

  /// Writes one row, cut to the terminal's width, because a wrapped line cannot be overwritten.
  void live(std::string text);
  void clear_live();
  void print(std::string const& text) {
    std::fprintf(out_, "%s\n", text.c_str());
    std::fflush(out_);
  }

  std::FILE* out_;
  std::int64_t every_;
  console_mode mode_;
  std::int64_t total_ = 0;
  char const* unit_ = "tokens";
  std::function<void(std::string const&)> log_;
  double smooth_ms_ = 0.0;
  std::string live_;
};

}  // namespace keel::inline KEEL_MODE

#ifndef KEEL_COMPILED
#include <keel/metrics/console.ipp>
#endif
