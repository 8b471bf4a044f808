// Definitions for write_rank_record.hpp.
#pragma once

#include <exception>
#include <keel/collective/recent_collectives.hpp>
#include <keel/collective/write_rank_record.hpp>
#include <keel/core/file_system.hpp>
#include <keel/core/seconds_since_1970.hpp>
#include <nlohmann/json.hpp>

#include <keel/libtorch/detail/body_begin.inc>

namespace keel::detail::inline KEEL_MODE {

inline std::filesystem::path rank_records_path(world_of_ranks const& world, std::filesystem::path const& directory) {
  return (world.rank() == 0 ? directory : directory.parent_path()) / "ranks";
}

KEEL_BODY void write_rank_record(world_of_ranks const& world, std::filesystem::path const& directory,
                                 std::string const& why) noexcept {
  if (world.size() == 1 || directory.empty()) return;
  try {
    std::string text;
    auto const add = [&](char const* event, double time, nlohmann::ordered_json const& details) {
      nlohmann::ordered_json line{{"event", event}, {"time", time}};
      line.update(details);
      text += line.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
    };
    auto const all = world.last_collectives();
    double const first = all.empty() ? seconds_since_1970() : all.front().time;
    add("joining", first, {{"world", world.size()}});
    add("joined", first, nlohmann::ordered_json::object());
    for (recent_collective const& one : all) {
      add("collective", one.time,
          {{"sequence", one.sequence}, {"operation", one.operation}, {"elements", one.elements}, {"update", one.update}});
      if (one.is_completed) add("completed", one.time, {{"sequence", one.sequence}});
    }
    add("left", seconds_since_1970(), {{"why", why}});
    file_system files;
    auto const records = rank_records_path(world, directory);
    files.make_directories(records);
    auto const path = records / (std::to_string(world.rank()) + ".jsonl");
    auto const file = files.create(path);
    files.write(file, path, text.data(), text.size());
  } catch (std::exception const&) {
    // Ignored, as documented.
  }
}

KEEL_BODY void remove_rank_record(world_of_ranks const& world, std::filesystem::path const& directory) noexcept {
  if (world.size() == 1 || directory.empty()) return;
  try {
    file_system files;
    auto const records = rank_records_path(world, directory);
    auto const remove = [&](int rank) {
      auto const path = records / (std::to_string(rank) + ".jsonl");
      bool const is_there = files.exists(path);
      if (is_there) files.remove_file(path);
      return is_there;
    };
    remove(world.rank());
    for (int rank = world.size(); world.rank() == 0 && remove(rank);) ++rank;
  } catch (std::exception const&) {
    // Ignored: a stale record can be recognized by its times.
  }
}

}  // namespace keel::detail::inline KEEL_MODE

#include <keel/libtorch/detail/body_end.inc>
