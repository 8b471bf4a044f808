// Definitions for store.hpp.
#pragma once

#include <algorithm>
#include <cstdio>
#include <iterator>
#include <keel/checkpoint/rank_files.hpp>
#include <keel/checkpoint/read_checkpoint.hpp>
#include <keel/checkpoint/snapshot.hpp>
#include <keel/checkpoint/store.hpp>
#include <keel/checkpoint/write_checkpoint.hpp>
#include <keel/core/error.hpp>
#include <keel/core/remove_directory.hpp>
#include <limits>
#include <map>
#include <set>
#include <tuple>

#include <keel/libtorch/detail/body_begin.inc>

namespace keel::inline KEEL_MODE {

KEEL_BODY std::string checkpoint_store::prepare() {
  files_.make_directories(directory_);
  std::string sync_failure = files_.sync_directory(directory_.parent_path());
  put_back();
  for (path const& entry : files_.list(directory_)) {
    std::string const name = name_in(entry.filename().string());
    if (!name.empty()) remove_files_of(entry, name);
  }
  return sync_failure;
}

KEEL_BODY saved_checkpoint checkpoint_store::save(std::int64_t update, snapshot const& content, retention const& keep) {
  pending_checkpoint const opened = open(update, content.run, keep);
  write(opened, content);
  return commit_checkpoint(opened, keep);
}

template <class Step>
auto checkpoint_store::discard_on_failure(pending_checkpoint const& opened, Step const& step) {
  try {
    return step();
  } catch (...) {
    // Remove the incomplete checkpoint and rethrow.
    if (!opened.directory.empty()) discard(opened);
    throw;
  }
}

KEEL_BODY pending_checkpoint checkpoint_store::open(std::int64_t update, std::string const& run, retention const& keep,
                                                    std::string const& mark) {
  pending_checkpoint opened;
  checkpoint_id& id = opened.id = update;
  discard_on_failure(opened, [&] {
    put_back();
    if (auto const there = look_at(id); there && !is_of_one_run(run, there->run)) move_aside("foreign-", id);
    bool const is_taken = files_.exists(path_of(id)) && !is_requested(id);
    id.requested = is_taken && (keep.requested || !keep.replaces);
    opened.directory = directory_ / (std::string(temporary_prefix) + name_of(id) + (mark.empty() ? "" : "." + mark));
    remove_files_of(opened.directory, name_of(id));
    files_.make_directories(opened.directory);
    opened.written = std::make_shared<manifest>();
    opened.written->update = update;
    opened.written->requested = keep.requested || id.requested;
  });
  return opened;
}

KEEL_BODY bool checkpoint_store::is_visible_to_ranks(pending_checkpoint const& opened, int ranks) {
  bool all = true;
  try {
    for (int rank = 1; rank < ranks; ++rank) {
      path const left = detail::rank_file_path(opened.directory, rank, ".sees");
      all = files_.exists(left) && all;
      files_.remove_file(left);
    }
  } catch (file_error const&) {
    // This rank then writes everything, and its save reports what is wrong with the disk.
    return false;
  }
  return all;
}

KEEL_BODY void checkpoint_store::write(pending_checkpoint const& opened, snapshot const& content) {
  discard_on_failure(opened, [&] { detail::write_files(files_, opened.directory, content, *opened.written); });
}

KEEL_BODY void checkpoint_store::add_rank_files(pending_checkpoint const& opened, int ranks,
                                                std::function<std::chrono::milliseconds()> const& patience) {
  discard_on_failure(
      opened, [&] { opened.written->files.merge(detail::collect_rank_files(files_, opened.directory, ranks, patience)); });
}

KEEL_BODY saved_checkpoint checkpoint_store::commit_checkpoint(pending_checkpoint const& opened, retention const& keep) {
  checkpoint_id const id = opened.id;
  saved_checkpoint saved;
  saved.path = path_of(id);
  discard_on_failure(opened, [&] {
    detail::check_slices(*opened.written, &detail::throw_unequal_slices);
    saved.bytes = detail::write_manifest(files_, opened.directory, *opened.written);
    // A finished checkpoint of this name is moved aside, not removed, so that put_back can restore it after a kill between the
    // renames.
    path const replaced = directory_ / (std::string(replaced_prefix) + name_of(id));
    remove_files_of(replaced, name_of(id));
    if (files_.exists(saved.path) && !look_at(id)) set_aside(id);
    if (files_.exists(saved.path)) files_.rename(saved.path, replaced);
    files_.rename(opened.directory, saved.path);
    saved.sync_failure = files_.sync_directory(directory_);
  });
  try {
    saved.removal_failure = remove_old(id, keep);
  } catch (file_error const& thrown) {
    // The save itself is durable; the caller reports that old checkpoints fill the disk.
    saved.removal_failure = thrown.what();
  }
  return saved;
}

KEEL_BODY std::vector<checkpoint_id> checkpoint_store::all() {
  std::vector<checkpoint_id> found;
  if (!files_.exists(directory_)) return found;
  for (path const& entry : files_.list(directory_)) {
    if (auto const id = id_of(entry.filename().string())) found.push_back(*id);
  }
  std::sort(found.begin(), found.end());
  return found;
}

KEEL_BODY std::vector<std::int64_t> checkpoint_store::updates() {
  std::vector<std::int64_t> found;
  for (checkpoint_id const& id : all()) {
    if (found.empty() || found.back() != id.update) found.push_back(id.update);
  }
  return found;
}

KEEL_BODY bool checkpoint_store::is_requested(checkpoint_id const& id) {
  auto const read = look_at(id);
  return !read || read->requested;
}

KEEL_BODY std::vector<checkpoint_id> checkpoint_store::newest_first() {
  using age = std::tuple<std::int64_t, std::int64_t, std::int64_t, checkpoint_id>;
  std::vector<age> found;
  for (checkpoint_id const& id : all()) {
    auto const read = look_at(id);
    constexpr auto most = std::numeric_limits<std::int64_t>::max();
    found.push_back(read ? age{read->generation, id.update, read->attempt, id} : age{most, id.update, most, id});
  }
  std::sort(found.rbegin(), found.rend());
  std::vector<checkpoint_id> order;
  order.reserve(found.size());
  for (auto const& one : found) order.push_back(std::get<3>(one));
  return order;
}

KEEL_BODY void checkpoint_store::rename_abandoned(checkpoint_id const& id) {
  move_aside("abandoned-", id);
  files_.sync_directory(directory_);
}

KEEL_BODY void checkpoint_store::remove_abandoned(checkpoint_id const& newest) {
  std::vector<checkpoint_id> leave;
  auto const kept = look_at(newest);
  for (checkpoint_id const& id : all()) {
    auto const read = look_at_own(id);
    if (kept && read && is_of_one_run(kept->run, read->run) && is_abandoned(id, *read, newest, *kept)) leave.push_back(id);
  }
  remove(leave);
}

KEEL_BODY nlohmann::json checkpoint_store::load_state(checkpoint_id const& id) {
  manifest const all = read_manifest(path_of(id), files_);
  detail::require_matching_name(path_of(id), all);
  return detail::read_state(files_, path_of(id), all);
}

KEEL_BODY snapshot checkpoint_store::load(checkpoint_id const& id, reader const& read) {
  detail::require_matching_name(path_of(id), read_manifest(path_of(id), files_));
  return read ? read(path_of(id)) : read_checkpoint(path_of(id), files_);
}

KEEL_BODY std::optional<manifest> checkpoint_store::look_at(checkpoint_id const& id) {
  try {
    auto read = read_manifest(path_of(id), files_);
    if (read.update != id.update) return std::nullopt;
    return read;
  } catch (checkpoint_error const& thrown) {
    if (thrown.id() != "E05") throw;
    return std::nullopt;
  }
}

KEEL_BODY std::optional<manifest> checkpoint_store::look_at_own(checkpoint_id const& id) {
  try {
    return look_at(id);
  } catch (checkpoint_error const&) {
    return std::nullopt;
  }
}

KEEL_BODY bool checkpoint_store::is_abandoned(checkpoint_id const& id, manifest const& of_id, checkpoint_id const& newest,
                                              manifest const& of_newest) {
  return id.update > newest.update && of_id.generation < of_newest.generation;
}

KEEL_BODY std::string checkpoint_store::name_of(checkpoint_id const& id) {
  char name[32];
  std::snprintf(name, sizeof name, "step-%09lld", static_cast<long long>(id.update));
  return name + std::string(id.requested ? requested_suffix : "");
}

KEEL_BODY std::optional<checkpoint_id> checkpoint_store::id_of(std::string const& name) {
  bool const requested = name.ends_with(requested_suffix);
  std::string const number = name.substr(0, name.size() - (requested ? requested_suffix.size() : 0));
  if (!number.starts_with("step-") || number.size() < 14) return std::nullopt;
  std::int64_t update = 0;
  for (char const letter : number.substr(5)) {
    if (letter < '0' || letter > '9' || update > std::int64_t{1} << 58) return std::nullopt;
    update = update * 10 + (letter - '0');
  }
  // A name with different zero padding was not given by a save.
  checkpoint_id const id(update, requested);
  if (name != name_of(id)) return std::nullopt;
  return id;
}

KEEL_BODY std::string checkpoint_store::name_in(std::string const& directory) {
  for (std::string_view const prefix : {replaced_prefix, removed_prefix, temporary_prefix}) {
    if (!directory.starts_with(prefix)) continue;
    std::string const name = directory.substr(prefix.size(), directory.find('.', prefix.size()) - prefix.size());
    if (id_of(name)) return name;
  }
  return {};
}

KEEL_BODY std::string checkpoint_store::remove_old(checkpoint_id const& newest, retention const& keep) {
  std::map<checkpoint_id, manifest> found;
  for (checkpoint_id const& id : all()) {
    if (auto read = look_at_own(id)) found.emplace(id, std::move(*read));
  }
  auto const of_newest = found.find(newest);
  if (of_newest == found.end()) return {};
  // Checkpoints that are damaged, renamed or moved here from another run may not belong to this run: keep them.
  std::string const run = of_newest->second.run;
  std::erase_if(found, [&](auto const& one) { return !is_of_one_run(run, one.second.run); });
  std::set<checkpoint_id> stay = {newest};
  std::vector<std::int64_t> best = keep.best;
  std::int64_t scheduled = 0;
  for (auto one = found.rbegin(); one != found.rend(); ++one) {
    auto const& [id, of] = *one;
    if (id.update > newest.update) {
      if (!is_abandoned(id, of, newest, of_newest->second)) stay.insert(id);
      continue;
    }
    bool const is_young = !of.requested && ++scheduled <= keep.newest;
    bool const is_one_of_many = !id.requested && keep.every > 0 && id.update % keep.every == 0;
    if (is_young || is_one_of_many) stay.insert(id);
  }
  if (keep.rollback_distance > 0) {
    std::optional<checkpoint_id> old, next;
    for (auto const& [id, of] : found) {
      if (of.requested || id.update > newest.update) continue;
      bool const is_old = id.update <= newest.update - keep.rollback_distance;
      if (is_old) old = id;
      if (!is_old && !next) next = id;
    }
    if (old) stay.insert(*old);
    if (next) stay.insert(*next);
  }
  // A run that rolls back to one of these needs the checkpoints that it lists as the best.
  for (checkpoint_id const& id : stay) best.insert(best.end(), found[id].best.begin(), found[id].best.end());
  for (auto const& [id, of] : found) {
    bool const is_best = id.update <= newest.update && std::find(best.begin(), best.end(), id.update) != best.end();
    if (is_best) stay.insert(id);
  }
  std::vector<checkpoint_id> leave;
  for (auto const& [id, of] : found) {
    if (stay.count(id) == 0) leave.push_back(id);
  }
  return remove(leave);
}

KEEL_BODY std::string checkpoint_store::remove(std::vector<checkpoint_id> const& leave) {
  for (checkpoint_id const& id : leave) {
    path const aside = directory_ / (std::string(removed_prefix) + name_of(id));
    remove_files_of(aside, name_of(id));
    files_.rename(path_of(id), aside);
  }
  if (!leave.empty()) files_.sync_directory(directory_);
  std::string stays;
  for (path const& entry : files_.list(directory_)) {
    std::string const name = entry.filename().string();
    for (std::string_view const prefix : {removed_prefix, replaced_prefix}) {
      if (!name.starts_with(prefix) || !id_of(name.substr(prefix.size()))) continue;
      std::string const why = remove_files_of(entry, name.substr(prefix.size()));
      if (stays.empty()) stays = why;
    }
  }
  return stays;
}

KEEL_BODY std::string checkpoint_store::remove_files_of(path const& directory, std::string const& name) {
  auto const is_own = [](std::string const& file) {
    auto const& names = detail::checkpoint_files;
    return std::find(std::begin(names), std::end(names), file) != std::end(names) || detail::parse_rank_of_file(file) > 0;
  };
  // Remove the manifest last, because it identifies the other files.
  return detail::remove_directory_of(files_, directory, name, is_own, "manifest.json");
}

KEEL_BODY checkpoint_store::path checkpoint_store::free_name(std::string const& name) {
  path free = directory_ / name;
  for (int again = 2; files_.kind(free) != file_kind::none; ++again) free = directory_ / (name + "-" + std::to_string(again));
  return free;
}

KEEL_BODY void checkpoint_store::put_back() {
  for (path const& entry : files_.list(directory_)) {
    std::string const name = entry.filename().string();
    if (!name.starts_with(replaced_prefix) || !id_of(name.substr(replaced_prefix.size()))) continue;
    path const back = directory_ / name.substr(replaced_prefix.size());
    if (!files_.exists(back)) files_.rename(entry, back);
  }
}

KEEL_BODY void checkpoint_store::clean_up_quietly(path const& directory, std::string const& name) {
  try {
    put_back();
    if (files_.kind(directory) == file_kind::none) return;
    // After the rename other ranks that still write notice that the save has ended, and create no further files.
    path const aside = directory_ / (std::string(removed_prefix) + name);
    remove_files_of(aside, name);
    files_.rename(directory, aside);
    remove_files_of(aside, name);
  } catch (file_error const&) {
    // The save has already failed with the error that matters; the next prepare() removes the remains.
  }
}

}  // namespace keel::inline KEEL_MODE

#include <keel/libtorch/detail/body_end.inc>
