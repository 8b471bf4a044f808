// Definitions for run_history.hpp.
#pragma once

#include <algorithm>
#include <cstddef>
#include <keel/core/error.hpp>
#include <keel/core/file_system.hpp>
#include <keel/diagnose/run_history.hpp>
#include <keel/diagnose/trace_figure.hpp>
#include <keel/json/text.hpp>
#include <limits>
#include <optional>
#include <string_view>
#include <system_error>
#include <utility>

#include <keel/libtorch/detail/body_begin.inc>

namespace keel::detail::inline KEEL_MODE {

/// Calls `use` with each object in a file of JSON lines; returns the number of invalid lines.
template <class Use>
std::int64_t for_each_object(std::string_view content, Use const& use) {
  std::int64_t unreadable = 0;
  while (!content.empty()) {
    std::size_t const end = content.find('\n');
    std::string_view const line = content.substr(0, end);
    content.remove_prefix(end == std::string_view::npos ? content.size() : end + 1);
    if (line.empty()) continue;
    try {
      nlohmann::json read = parse_json(line);
      if (read.is_object()) {
        replace_control_characters(read);
        use(std::move(read));
        continue;
      }
    } catch (json_text_error const&) {
      // Counted below and shown in the report.
    }
    ++unreadable;
  }
  return unreadable;
}

KEEL_BODY std::optional<double> number_in(nlohmann::json const& value) {
  if (value.is_number()) return value.get<double>();
  if (value.is_boolean()) return value.get<bool>() ? 1.0 : 0.0;
  if (value == "nan") return std::numeric_limits<double>::quiet_NaN();
  if (value == "inf") return std::numeric_limits<double>::infinity();
  if (value == "-inf") return -std::numeric_limits<double>::infinity();
  return std::nullopt;
}

KEEL_BODY std::int64_t integer_in(nlohmann::json const& object, char const* key) {
  auto const found = object.find(key);
  if (found == object.end() || !found->is_number_integer()) return 0;
  constexpr std::int64_t most = std::int64_t{1} << 53;
  if (found->is_number_unsigned()) return static_cast<std::int64_t>(std::min<std::uint64_t>(found->get<std::uint64_t>(), most));
  return std::max(found->get<std::int64_t>(), -most);
}

KEEL_BODY void abandon_after(std::map<std::string, run_curve>& curves, std::int64_t update, std::int64_t attempt) {
  for (auto& [key, curve] : curves) {
    std::size_t first = curve.kept.size();
    while (first > 0 && (curve.kept[first - 1].update > update || curve.kept[first - 1].attempt > attempt)) --first;
    if (first == curve.kept.size()) continue;
    curve.abandoned.emplace_back(curve.kept.begin() + static_cast<std::ptrdiff_t>(first), curve.kept.end());
    curve.kept.resize(first);
  }
}

KEEL_BODY void add_line(run_history& to, nlohmann::json const& line) {
  std::int64_t const update = integer_in(line, "update");
  if (line.contains("abandoned")) {
    constexpr std::int64_t all = std::numeric_limits<std::int64_t>::max();
    std::int64_t const kept = line.contains("kept_attempt") ? integer_in(line, "kept_attempt") : all;
    abandon_after(to.curves, update, kept);
    std::erase_if(to.batches, [&](seen_batch const& one) { return one.update > update || one.attempt > kept; });
    to.updates = update;
    return;
  }
  if (line.contains("evaluated")) return;
  to.updates = update;
  to.skipped = integer_in(line, "skipped");
  std::int64_t const attempt = integer_in(line, "attempt");
  if (line.contains("batch") && line["batch"].is_string())
    to.batches.push_back({update, attempt, integer_in(line, "epoch"), line["batch"].get<std::string>()});
  auto const updates = static_cast<double>(std::max<std::int64_t>(integer_in(line, "updates"), 1));
  bool const none_applied = line.contains("skipped_because") && integer_in(line, "applied") == 0;
  for (auto const& [key, value] : line.items()) {
    if (key == "update" || key == "attempt") continue;
    // The line of a skipped update has the number of the update before it, whose values it must not replace.
    if (none_applied && key != "skipped") continue;
    if (value.is_object()) {
      for (auto const& [inner, number] : value.items()) {
        auto const read = number_in(number);
        if (read) to.curves[key + "." + inner].kept.push_back({update, key == "time" ? *read / updates : *read, attempt});
      }
    } else if (auto const read = number_in(value)) {
      to.curves[key].kept.push_back({update, key == "ms" ? *read / updates : *read, attempt});
    }
  }
}

KEEL_BODY void add_layers(run_history& to, nlohmann::json const& line) {
  if (line.contains("restarted_after")) {
    abandon_after(to.layers, integer_in(line, "restarted_after"), std::numeric_limits<std::int64_t>::max());
    return;
  }
  std::int64_t const update = integer_in(line, "update");
  for (char const* const group : {"layers", "activations"}) {
    auto const all = line.find(group);
    if (all == line.end() || !all->is_object()) continue;
    for (auto const& [name, figures] : all->items()) {
      if (!figures.is_object()) continue;
      for (auto const& [figure, value] : figures.items()) {
        if (auto const read = number_in(value)) to.layers[figure + "/" + name].kept.push_back({update, *read});
      }
    }
  }
}

KEEL_BODY std::string without_control_codes(std::string text) {
  for (char& one : text) {
    auto const byte = static_cast<unsigned char>(one);
    if ((byte < 0x20 && one != '\n') || byte == 0x7f) one = '?';
  }
  return text;
}

/// Reads only the newest profiles, because each takes as much of a page as the rest of a run.
KEEL_BODY std::vector<run_profile> read_profiles(file_system& files, std::filesystem::path const& folder) {
  constexpr std::size_t max_profiles = 4;
  constexpr std::uintmax_t max_bytes = 64 << 20;
  std::vector<std::filesystem::path> all;
  std::error_code failed;
  for (std::filesystem::directory_iterator one(folder, failed), end; !failed && one != end; one.increment(failed)) {
    if (files.kind(one->path() / "trace.json") == file_kind::file) all.push_back(one->path());
  }
  std::sort(all.begin(), all.end());
  if (all.size() > max_profiles) all.erase(all.begin(), all.end() - max_profiles);
  std::vector<run_profile> found;
  for (auto const& path : all) {
    run_profile profile;
    profile.name = path.filename().string();
    // A link may point to files of another run, which do not belong on this page.
    if (files.kind(path / "summary.md") == file_kind::file) profile.summary = files.read(path / "summary.md");
    std::uintmax_t const bytes = std::filesystem::file_size(path / "trace.json", failed);
    if (!failed && bytes <= max_bytes) {
      try {
        profile.figure = trace_figure(profile.name, parse_json(files.read(path / "trace.json")));
      } catch (json_text_error const&) {
        // The figure remains empty.
      }
    }
    found.push_back(std::move(profile));
  }
  return found;
}

}  // namespace keel::detail::inline KEEL_MODE

namespace keel::inline KEEL_MODE {

KEEL_BODY run_history read_run_history(std::filesystem::path const& run_directory) {
  file_system files;
  bool const has_metrics = files.exists(run_directory / "metrics.jsonl");
  // A run that ends in its first update has no metrics.
  if (!has_metrics && !files.exists(run_directory / "events.jsonl")) {
    throw file_error("E02",
                     run_directory.string() +
                         " has no metrics.jsonl. Name the directory that options.run_directory named, after its first update.");
  }
  run_history found;
  auto const whole = std::filesystem::absolute(run_directory).lexically_normal();
  found.name = (whole.has_filename() ? whole : whole.parent_path()).filename().string();
  constexpr std::size_t most_kept = 8 << 20;
  std::string metrics =
      has_metrics ? files.read(run_directory / "metrics.jsonl", file_system::max_record_bytes) : std::string();
  found.bytes = metrics.size();
  found.unreadable = detail::for_each_object(metrics, [&](nlohmann::json const& line) { detail::add_line(found, line); });
  if (metrics.size() <= most_kept) found.metrics = std::move(metrics);
  if (files.exists(run_directory / "events.jsonl")) {
    found.unreadable += detail::for_each_object(files.read(run_directory / "events.jsonl", file_system::max_record_bytes),
                                                [&](nlohmann::json line) {
                                                  run_event event;
                                                  if (line.contains("event") && line["event"].is_string())
                                                    event.name = line["event"].get<std::string>();
                                                  event.update = detail::integer_in(line, "update");
                                                  if (line.contains("time") && line["time"].is_number())
                                                    event.time = line["time"].get<double>();
                                                  for (char const* const key : {"event", "update", "time"}) line.erase(key);
                                                  event.details = std::move(line);
                                                  if (event.name == "started") found.events.clear();
                                                  found.events.push_back(std::move(event));
                                                });
  }
  if (files.exists(run_directory / "layers.jsonl")) {
    found.unreadable += detail::for_each_object(files.read(run_directory / "layers.jsonl", file_system::max_record_bytes),
                                                [&](nlohmann::json const& line) { detail::add_layers(found, line); });
  }
  found.profiles = detail::read_profiles(files, run_directory / "profiles");
  if (files.exists(run_directory / "recipe.json")) {
    try {
      found.recipe = detail::parse_json(files.read(run_directory / "recipe.json"));
    } catch (detail::json_text_error const&) {
      ++found.unreadable;
    }
  }
  return found;
}

KEEL_BODY run_event const* ending_of(run_history const& run) {
  run_event const* found = nullptr;
  for (auto const& event : run.events) {
    bool const begins = event.name == "started" || event.name.starts_with("resumed") || event.name == "restarted";
    bool const ends = event.name == "finished" || event.name == "stopped" || event.name == "gave_up" || event.name == "failed";
    if (begins) found = nullptr;
    if (ends) found = &event;
  }
  return found;
}

}  // namespace keel::inline KEEL_MODE

#include <keel/libtorch/detail/body_end.inc>
