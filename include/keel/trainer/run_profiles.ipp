// Definitions for run_profiles.hpp.
#pragma once

#include <algorithm>
#include <keel/core/error.hpp>
#include <keel/core/file_system.hpp>
#include <keel/core/remove_directory.hpp>
#include <keel/core/replace_file.hpp>
#include <keel/memory/recording.hpp>
#include <keel/memory/statistics.hpp>
#include <keel/metrics/console.hpp>
#include <keel/metrics/sink.hpp>
#include <keel/profile/profile_recorder.hpp>
#include <keel/profile/recorded_profile.hpp>
#include <keel/trainer/run_profiles.hpp>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <keel/libtorch/detail/body_begin.inc>

namespace keel::detail::inline KEEL_MODE {

/// A sink that ignores values: the thread that writes profiles only runs jobs.
struct no_sink : metric_sink {
  void scalars(std::int64_t, std::span<named_value const>) override {}
};

inline std::string name_of_profile(long long first_update) { return formatted("update-%09lld", first_update); }

/// Creates `folder` and removes the oldest profiles, so that `most` remain. Files that a person added are kept.
KEEL_BODY void make_room(file_system& files, std::filesystem::path const& folder, std::size_t most) {
  files.make_directories(folder);
  auto const parent = folder.parent_path();
  std::vector<std::string> all;
  for (auto const& entry : files.list(parent)) {
    std::string const name = entry.filename().string();
    std::string_view const digits = std::string_view(name).substr(std::min<std::size_t>(name.size(), 7));
    bool const is_profile = name.starts_with("update-") && digits.size() >= 9 && digits.size() < 19 &&
                            digits.find_first_not_of("0123456789") == std::string_view::npos;
    if (is_profile && entry != folder) all.push_back(name);
  }
  std::sort(all.begin(), all.end());
  auto const is_own = [](std::string const& file) { return file == "summary.md" || file == "memory.pickle"; };
  for (std::size_t i = 0; i + most <= all.size(); ++i)
    remove_directory_of(files, parent / all[i], all[i], is_own, "trace.json");
}

}  // namespace keel::detail::inline KEEL_MODE

namespace keel::inline KEEL_MODE {

struct run_profiles::open_profile {
  profile_recorder operations;
  std::optional<memory::recording> allocations;
};

KEEL_BODY run_profiles::run_profiles(profile::settings const& settings, std::filesystem::path directory)
    : settings_(settings), directory_(std::move(directory)) {
  if (settings_.kind == profile::kind::off) return;
  if (directory_.empty())
    throw error("E12",
                "the recipe records profiles but options.run_directory is empty. Name a directory, or use keel::profile::off.");
  writer_.emplace("the profile writer", std::make_shared<detail::no_sink>());
}

KEEL_BODY bool run_profiles::begin(std::int64_t update, std::int64_t attempt) {
  bool const is_due = settings_.kind == profile::kind::every && attempt % settings_.period == 0;
  bool const has_symptom = !symptom_.empty() && attempt - last_symptom_ >= between_symptoms;
  if (!is_due && !has_symptom) {
    // Drop a symptom that follows the last one too soon: the next profile will show the same.
    symptom_.clear();
    return false;
  }
  if (has_symptom) last_symptom_ = attempt;
  why_ = has_symptom ? "Recorded after a symptom: " + symptom_ + "." : "Recorded by keel::profile::every.";
  symptom_.clear();
  ended_ = 0;
  first_update_ = update + settings_.warmup;
  try {
    open_ = std::make_shared<open_profile>();
  } catch (error const& thrown) {
    // Other profilers of this process use all slots.
    trouble_ = std::string("could not record a profile: ") + thrown.what();
    return false;
  }
  if (settings_.warmup == 0) record_memory();
  return true;
}

KEEL_BODY void run_profiles::record_memory() {
  // Allocations are recorded on the CPU only, and only if the process counts them.
  if (!device_.is_cpu() || !memory::statistics_of(device_)) return;
  try {
    open_->allocations.emplace();
  } catch (std::logic_error const&) {
    // The program itself records allocations.
  }
}

KEEL_BODY bool run_profiles::should_continue() {
  ++ended_;
  if (ended_ == settings_.warmup) {
    open_->operations.restart();
    record_memory();
  }
  return ended_ < settings_.warmup + settings_.active;
}

KEEL_BODY void run_profiles::finish() {
  auto const open = std::exchange(open_, nullptr);
  auto const all = std::make_shared<recorded_profile>(open->operations.finish());
  std::string recording;
  if (auto const& allocations = open->allocations) recording = allocations->pickle();
  all->first_update = first_update_;
  all->updates = std::max<std::int64_t>(ended_ - settings_.warmup, 0);
  all->why = why_;
  if (all->updates == 0) return;
  long long const first = first_update_ + 1;
  auto const folder = directory_ / detail::name_of_profile(first);
  if (!writer_) return;
  writer_->post(
      [all, folder, recording = std::move(recording), ended = written_](metric_sink&) {
        file_system files;
        detail::make_room(files, folder, max_profiles);
        auto const write = [&](char const* name, std::string const& content) {
          detail::replace_file(files, folder / name, [&](auto const& sink) { sink(content.data(), content.size()); });
        };
        write("trace.json", chrome_trace(*all));
        write("summary.md", summary_of(*all));
        if (!recording.empty()) write("memory.pickle", recording);
        std::lock_guard<std::mutex> const lock(ended->mutex);
        ended->all.push_back({folder, all->first_update, all->why});
      },
      /*may_drop=*/false);
}

KEEL_BODY std::optional<run_profiles::written> run_profiles::take_written() {
  std::lock_guard<std::mutex> const lock(written_->mutex);
  if (written_->all.empty()) return std::nullopt;
  written one = std::move(written_->all.front());
  written_->all.pop_front();
  return one;
}

KEEL_BODY void run_profiles::phase_began(run_phase which) {
  if (!open_) return;
  open_->operations.phase_began(which);
  if (auto& allocations = open_->allocations) allocations->set_phase(to_string(which));
}

KEEL_BODY void run_profiles::phase_ended(run_phase which) {
  if (!open_) return;
  open_->operations.phase_ended(which);
  if (auto const all = memory::statistics_of(device_)) open_->operations.memory(all->allocated);
}

}  // namespace keel::inline KEEL_MODE

#include <keel/libtorch/detail/body_end.inc>
