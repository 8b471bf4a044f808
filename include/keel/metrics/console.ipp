// Definitions for console.hpp.
#pragma once

#include <keel/metrics/console.hpp>

#include <keel/libtorch/detail/body_begin.inc>

namespace keel::inline KEEL_MODE {

KEEL_BODY void console::show(update_metrics const& m) {
  bool const stays = m.update % every_ == 0 || m.update == total_ || !m.skipped_because.empty();
  if (mode_ == console_mode::off && !(log_ && stays)) return;
  // The first updates include the warm-up of threads and allocator; a moving average soon forgets it.
  smooth_ms_ = smooth_ms_ == 0.0 ? m.milliseconds : 0.9 * smooth_ms_ + 0.1 * m.milliseconds;
  std::string const words = line(m);
  if (log_ && stays) log_(words);
  if (mode_ == console_mode::bar) {
    live(bar(m.update) + words);
  } else if (mode_ == console_mode::lines && stays) {
    print(words + (total_ > 0 ? "  " + eta(m.update) : ""));
  }
}

KEEL_BODY void console::notice(std::string const& words) {
  if (log_) log_(words);
  if (mode_ == console_mode::off) return;
  clear_live();
  print(words);
}

KEEL_BODY void console::summary(std::vector<std::pair<std::string, std::string>> const& rows) {
  auto const row = [](auto const& one) { return detail::formatted("  %-22s %s", one.first.c_str(), one.second.c_str()); };
  if (log_) {
    for (auto const& one : rows) log_(row(one));
  }
  if (mode_ == console_mode::off) return;
  if (mode_ == console_mode::bar && !live_.empty()) {
    std::fputc('\n', out_);
    live_.clear();
  }
  for (auto const& one : rows) print(row(one));
}

KEEL_BODY std::string console::line(update_metrics const& m) const {
  std::string text = total_ > 0 ? detail::formatted("update %*lld/%lld", digits(total_), static_cast<long long>(m.update),
                                                    static_cast<long long>(total_))
                                : detail::formatted("update %lld", static_cast<long long>(m.update));
  text += detail::formatted("  loss %.4f", m.loss) + detail::zscore(m.measured[metrics::loss_zscore{}]);
  text += detail::formatted("  norm %.3f", m.gradient_norm) + detail::zscore(m.measured[metrics::gradient_norm_zscore{}]);
  text += detail::formatted("  lr %.2e", m.learning_rate);
  if (m.loss_scale != 1.0) text += detail::formatted("  scale %.0f", m.loss_scale);
  text += detail::formatted("  skipped %lld", static_cast<long long>(m.skipped));
  double const per_second = m.milliseconds > 0.0 ? 1000.0 * static_cast<double>(m.tokens) / m.milliseconds : 0.0;
  text += "  " + detail::quantity(per_second) + " " + unit_ + "/s" + detail::formatted("  %.0f ms", m.milliseconds);
  if (!m.skipped_because.empty()) text += "  SKIPPED: " + m.skipped_because;
  return text;
}

KEEL_BODY std::string console::bar(std::int64_t update) const {
  if (total_ <= 0) return {};
  constexpr std::int64_t width = 20;
  std::int64_t const full = std::min(width, update * width / total_);
  return "[" + std::string(static_cast<std::size_t>(full), '#') + std::string(static_cast<std::size_t>(width - full), '.') +
         detail::formatted("] %3lld%%  ", static_cast<long long>(update * 100 / total_)) + eta(update) + "  ";
}

KEEL_BODY int console::digits(std::int64_t number) {
  int count = 1;
  while (number >= 10) number /= 10, ++count;
  return count;
}

KEEL_BODY void console::live(std::string text) {
  winsize size = {};
  bool const known = ::ioctl(::fileno(out_), TIOCGWINSZ, &size) == 0 && size.ws_col > 1;
  if (known && text.size() >= size.ws_col) text.resize(size.ws_col - 1U);
  live_ = text;
  std::fprintf(out_, "\r\033[K%s", text.c_str());
  std::fflush(out_);
}

KEEL_BODY void console::clear_live() {
  if (live_.empty()) return;
  std::fputs("\r\033[K", out_);
  live_.clear();
}

}  // namespace keel::inline KEEL_MODE

#include <keel/libtorch/detail/body_end.inc>
