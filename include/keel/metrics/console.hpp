// What a person sees of a run: on a terminal one live line with a bar, elsewhere one plain line an update; notices, and a
// summary that stays.
#pragma once

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <keel/metrics/update_metrics.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace keel {

enum class console_mode : unsigned char {
  automatic,  ///< a bar on a terminal, lines elsewhere
  bar,
  lines,
  off,
};

namespace detail {

template <class... Values>
std::string formatted(char const* format, Values... values) {
  int const size = std::snprintf(nullptr, 0, format, values...);
  std::string text(static_cast<std::size_t>(size > 0 ? size : 0), '\0');
  std::snprintf(text.data(), text.size() + 1, format, values...);
  return text;
}

inline std::string duration(double seconds) {
  if (!std::isfinite(seconds) || seconds < 0.0) return "--:--";
  auto const whole = std::llround(seconds);
  if (whole >= 3600) return formatted("%lld:%02lld:%02lld", whole / 3600, whole / 60 % 60, whole % 60);
  return formatted("%02lld:%02lld", whole / 60, whole % 60);
}

inline std::string quantity(double value) {
  if (value >= 1e6) return formatted("%.2fM", value / 1e6);
  if (value >= 1e4) return formatted("%.1fk", value / 1e3);
  return formatted("%.0f", value);
}

inline std::string zscore(std::optional<double> const& value) {
  return value ? formatted(" (z %+.1f)", *value) : std::string();
}

}  // namespace detail

class console {
 public:
  console(std::FILE* out, console_mode mode, std::int64_t every)
      : out_(out), every_(every > 0 ? every : 1), mode_(out == nullptr ? console_mode::off : mode) {
    if (mode_ == console_mode::automatic) mode_ = ::isatty(::fileno(out_)) == 1 ? console_mode::bar : console_mode::lines;
  }

  /// `total` updates in the run, 0 if not known; `unit` is what `tokens` counts.
  void begin(std::int64_t total, char const* unit) {
    total_ = total;
    unit_ = unit;
  }

  void show(update_metrics const& m) {
    if (mode_ == console_mode::off) return;
    // The first few updates carry the warm-up of threads and allocator; a moving average soon forgets them.
    smooth_ms_ = smooth_ms_ == 0.0 ? m.milliseconds : 0.9 * smooth_ms_ + 0.1 * m.milliseconds;
    if (mode_ == console_mode::bar) {
      live(bar(m.update) + line(m));
    } else if (m.update % every_ == 0 || m.update == total_ || !m.skipped_because.empty()) {
      print(line(m) + (total_ > 0 ? "  " + eta(m.update) : ""));
    }
  }

  /// A separate line that stays, such as a rung taken or a checkpoint saved.
  void notice(std::string const& words) {
    if (mode_ == console_mode::off) return;
    clear_live();
    print(words);
  }

  /// The table at the end: what, and how much.
  void summary(std::vector<std::pair<std::string, std::string>> const& rows) {
    if (mode_ == console_mode::off) return;
    if (mode_ == console_mode::bar && !live_.empty()) {
      std::fputc('\n', out_);
      live_.clear();
    }
    for (auto const& [name, value] : rows) print(detail::formatted("  %-22s %s", name.c_str(), value.c_str()));
  }

 private:
  std::string line(update_metrics const& m) const {
    std::string text = total_ > 0 ? detail::formatted("update %*lld/%lld", digits(total_), static_cast<long long>(m.update),
                                                      static_cast<long long>(total_))
                                  : detail::formatted("update %lld", static_cast<long long>(m.update));
    text += detail::formatted("  loss %.4f", m.loss) + detail::zscore(m.loss_zscore);
    text += detail::formatted("  norm %.3f", m.gradient_norm) + detail::zscore(m.gradient_norm_zscore);
    text += detail::formatted("  lr %.2e", m.learning_rate);
    if (m.loss_scale != 1.0) text += detail::formatted("  scale %.0f", m.loss_scale);
    text += detail::formatted("  skipped %lld", static_cast<long long>(m.skipped));
    double const per_second = m.milliseconds > 0.0 ? 1000.0 * static_cast<double>(m.tokens) / m.milliseconds : 0.0;
    text += "  " + detail::quantity(per_second) + " " + unit_ + "/s" + detail::formatted("  %.0f ms", m.milliseconds);
    if (!m.skipped_because.empty()) text += "  SKIPPED: " + m.skipped_because;
    return text;
  }

  std::string eta(std::int64_t update) const {
    if (total_ <= 0) return {};
    return "eta " + detail::duration(smooth_ms_ / 1000.0 * static_cast<double>(total_ - update));
  }

  std::string bar(std::int64_t update) const {
    if (total_ <= 0) return {};
    constexpr std::int64_t width = 20;
    std::int64_t const full = std::min(width, update * width / total_);
    return "[" + std::string(static_cast<std::size_t>(full), '#') + std::string(static_cast<std::size_t>(width - full), '.') +
           detail::formatted("] %3lld%%  ", static_cast<long long>(update * 100 / total_)) + eta(update) + "  ";
  }

  static int digits(std::int64_t number) {
    int count = 1;
    while (number >= 10) number /= 10, ++count;
    return count;
  }

  /// One row, cut to the terminal's width: a line that wraps could not be written over.
  void live(std::string text) {
    winsize size = {};
    bool const known = ::ioctl(::fileno(out_), TIOCGWINSZ, &size) == 0 && size.ws_col > 1;
    if (known && text.size() >= size.ws_col) text.resize(size.ws_col - 1U);
    live_ = text;
    std::fprintf(out_, "\r\033[K%s", text.c_str());
    std::fflush(out_);
  }
  void clear_live() {
    if (live_.empty()) return;
    std::fputs("\r\033[K", out_);
    live_.clear();
  }
  void print(std::string const& text) {
    std::fprintf(out_, "%s\n", text.c_str());
    std::fflush(out_);
  }

  std::FILE* out_;
  std::int64_t every_;
  console_mode mode_;
  std::int64_t total_ = 0;
  char const* unit_ = "tokens";
  double smooth_ms_ = 0.0;
  std::string live_;
};

}  // namespace keel
