// Definitions for run_incidents.hpp.
#pragma once

#include <keel/libtorch/ivalue_first.hpp>

#include <ATen/Parallel.h>

#include <algorithm>
#include <cstdio>
#include <iterator>
#include <keel/checkpoint/archive.hpp>
#include <keel/checkpoint/read_checkpoint.hpp>
#include <keel/checkpoint/write_checkpoint.hpp>
#include <keel/core/error.hpp>
#include <keel/core/remove_directory.hpp>
#include <keel/core/version.hpp>
#include <keel/json/text.hpp>
#include <keel/trainer/run_incidents.hpp>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include <keel/libtorch/detail/body_begin.inc>

namespace keel::inline KEEL_MODE {

KEEL_BODY nlohmann::ordered_json describe_incident(event::incident const& event, std::int64_t attempt) {
  nlohmann::ordered_json object;
  object["update"] = event.update;
  object["attempt"] = attempt;
  object["why"] = to_string(event.why);
  if (!event.where.empty()) object["where"] = event.where;
  object["loss"] = detail::number_to_json(event.loss);
  object["gradient_norm"] = detail::number_to_json(event.gradient_norm);
  object["loss_scale"] = detail::number_to_json(event.loss_scale);
  object["origin"] = to_json(event.traced.origin);
  object["words"] = to_sentence(event.traced.origin);
  object["micro_batches"] = event.inputs.micro_batches.size();
  object["pieces"] = event.settings.pieces;
  object["length"] = event.settings.length;
  object["threads"] = at::get_num_threads();
  object["losses"] = nlohmann::ordered_json::array();
  for (double const loss : event.traced.losses)
    object["losses"].push_back(nlohmann::ordered_json(detail::number_to_json(loss)));
  object["gradients"] = event.traced.gradients;
  return object;
}

KEEL_BODY void add_incident(snapshot& to, event::incident const& event, nlohmann::ordered_json const& description) {
  nlohmann::json& all = to.state["incident"];
  all = nlohmann::json(description);
  all["batches"] = nlohmann::json::array();
  std::size_t index = 0;
  for (auto const& one : event.inputs.micro_batches) {
    std::string const prefix = "incident." + std::to_string(index++) + ".";
    nlohmann::json values = nlohmann::json::object();
    all["batches_are_written"] = one.batch->write(values, to.tensors, prefix);
    auto random = one.random;
    state_writer archive(values, to.tensors, prefix);
    archive("random", random);
    values["rows"] = one.batch->rows();
    auto const contents = one.batch->contents();
    values["device"] = contents.inputs.empty() ? "cpu" : contents.inputs.front().device().str();
    all["batches"].push_back(std::move(values));
  }
}

}  // namespace keel::inline KEEL_MODE

namespace keel::detail::inline KEEL_MODE {

KEEL_BODY std::string last_lines(std::string text, std::size_t most) {
  std::size_t begin = text.size();
  for (std::size_t lines = 0; begin > 0; --begin) {
    if (text[begin - 1] == '\n' && lines++ == most) break;
  }
  return text.substr(begin);
}

inline std::string name_of_incident(std::int64_t attempt) {
  char name[40];
  std::snprintf(name, sizeof name, "attempt-%09lld", static_cast<long long>(attempt));
  return name;
}

/// False for a copy that a user made under a different name.
inline bool is_name_of_incident(std::string const& name) {
  constexpr std::size_t prefix = std::string_view("attempt-").size();
  return name.size() > prefix && name.size() < prefix + 19 &&
         std::all_of(
             name.begin() + prefix, name.end(), [](char c) { return c >= '0' && c <= '9'; }) &&
         name == name_of_incident(std::stoll(name.substr(prefix)));
}

/// Removes incident.json last: a folder without it is not an incident, so a partial removal is not mistaken for one.
KEEL_BODY std::string remove_incident(file_system& files, std::filesystem::path const& folder, std::string const& name) {
  auto const is_own = [](std::string const& file) {
    return file == "manifest.json" || file == "records.jsonl" ||
           std::find(std::begin(checkpoint_files), std::end(checkpoint_files), file) != std::end(checkpoint_files);
  };
  return remove_directory_of(files, folder, name, is_own, "incident.json");
}

/// Returns why an old incident could not be removed completely; empty: all were.
KEEL_BODY std::string remove_old_incidents(file_system& files, std::filesystem::path const& folder, long long most) {
  std::vector<std::string> all;
  for (auto const& one : files.list(folder)) {
    std::string const name = one.filename().string();
    if (is_name_of_incident(name) && files.exists(one / "incident.json")) all.push_back(name);
  }
  std::sort(all.begin(), all.end());
  std::string stays;
  for (std::size_t i = 0; i + static_cast<std::size_t>(most) < all.size(); ++i) {
    std::string const why = remove_incident(files, folder / all[i], all[i]);
    if (stays.empty()) stays = why;
  }
  return stays;
}

}  // namespace keel::detail::inline KEEL_MODE

namespace keel::inline KEEL_MODE {

KEEL_BODY written_incident write_incident(file_system& files, std::filesystem::path const& run_directory, std::int64_t attempt,
                                          long long most, snapshot const& content, nlohmann::ordered_json description) {
  auto const folder = run_directory / "incidents";
  std::string const name = detail::name_of_incident(attempt);
  auto const beside = folder / (".writing-" + name);
  written_incident written;
  written.path = folder / name;
  try {
    files.make_directories(folder);
    detail::remove_incident(files, beside, name);
    files.make_directories(beside);
    written.bytes = detail::write_checkpoint(files, beside, description["update"].template get<std::int64_t>(), true, content);
    written.bytes += detail::write_text(files, beside / "incident.json",
                                        description.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n")
                         .bytes;
    if (files.exists(run_directory / "metrics.jsonl"))
      written.bytes += detail::write_text(
                           files, beside / "records.jsonl",
                           detail::last_lines(files.read(run_directory / "metrics.jsonl", file_system::max_record_bytes), 200))
                           .bytes;
    // An attempt repeated after a resume replaces its older incident.
    written.removal_failure = detail::remove_incident(files, written.path, name);
    files.rename(beside, written.path);
  } catch (std::exception const&) {
    // Remove the partial incident, then rethrow.
    try {
      detail::remove_incident(files, beside, name);
    } catch (file_error const&) {
      // The next incident of this attempt removes it.
    }
    throw;
  }
  try {
    std::string const stays = detail::remove_old_incidents(files, folder, most);
    if (written.removal_failure.empty()) written.removal_failure = stays;
  } catch (file_error const& thrown) {
    // Only the removal of old incidents failed; this one was written.
    written.removal_failure = thrown.what();
  }
  return written;
}

}  // namespace keel::inline KEEL_MODE

#include <keel/libtorch/detail/body_end.inc>
