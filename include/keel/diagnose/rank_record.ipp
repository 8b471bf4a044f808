// Definitions for rank_record.hpp.
#pragma once

#include <algorithm>
#include <keel/core/file_system.hpp>
#include <keel/diagnose/rank_record.hpp>
#include <keel/diagnose/run_history.hpp>
#include <keel/json/text.hpp>
#include <nlohmann/json.hpp>
#include <system_error>

#include <keel/libtorch/detail/body_begin.inc>

namespace keel::detail::inline KEEL_MODE {

KEEL_BODY std::string text_in(nlohmann::json const& object, char const* key) {
  auto const found = object.find(key);
  return found != object.end() && found->is_string() ? found->get<std::string>() : std::string();
}

KEEL_BODY void add_line(rank_record& to, nlohmann::json const& line) {
  std::string const event = text_in(line, "event");
  if (line.contains("time") && line["time"].is_number()) to.last = std::max(to.last, line["time"].get<double>());
  if (event == "joining") to.world = integer_in(line, "world");
  if (event == "joined") to.has_joined = true;
  if (event == "data_ended") to.data_ended = integer_in(line, "update");
  if (event == "left") to.left = text_in(line, "why");
  if (event == "completed") to.collectives[integer_in(line, "sequence")].is_completed = true;
  if (event == "update") {
    auto const number = [&](char const* key) {
      auto const found = line.find(key);
      return found == line.end() ? std::optional<double>() : number_in(*found);
    };
    to.updates[integer_in(line, "update")] = {number("gradient_norm"), number("coefficient"), number("shard_norm"),
                                              text_in(line, "state")};
  }
  if (event == "collective") {
    auto& one = to.collectives[integer_in(line, "sequence")];
    one = {integer_in(line, "sequence"),
           text_in(line, "operation"),
           text_in(line, "of"),
           text_in(line, "dtype"),
           integer_in(line, "elements"),
           integer_in(line, "update"),
           to.last,
           one.is_completed};
  }
}

}  // namespace keel::detail::inline KEEL_MODE

namespace keel::inline KEEL_MODE {

KEEL_BODY std::vector<rank_record> read_rank_records(std::filesystem::path const& run_directory) {
  file_system files;
  std::vector<rank_record> found;
  std::error_code failed;
  for (std::filesystem::directory_iterator one(run_directory / "ranks", failed), end; !failed && one != end;
       one.increment(failed)) {
    std::string const stem = one->path().stem().string();
    bool const is_rank = one->path().extension() == ".jsonl" && !stem.empty() && stem.size() < 8 &&
                         std::all_of(stem.begin(), stem.end(), [](char c) { return c >= '0' && c <= '9'; });
    if (!is_rank) continue;
    rank_record record;
    record.rank = std::stoll(stem);
    std::string const content = files.read(one->path(), file_system::max_record_bytes);
    for (std::size_t begin = 0; begin < content.size();) {
      std::size_t const end_of_line = std::min(content.find('\n', begin), content.size());
      try {
        nlohmann::json line = detail::parse_json(std::string_view(content).substr(begin, end_of_line - begin));
        detail::replace_control_characters(line);
        if (line.is_object()) detail::add_line(record, line);
      } catch (detail::json_text_error const&) {
        // An incomplete line of a killed rank.
      }
      begin = end_of_line + 1;
    }
    found.push_back(std::move(record));
  }
  std::sort(found.begin(), found.end(), [](auto const& a, auto const& b) { return a.rank < b.rank; });
  return found;
}

}  // namespace keel::inline KEEL_MODE

#include <keel/libtorch/detail/body_end.inc>
