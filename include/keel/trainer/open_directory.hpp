// Opens the run directory that the options name.
#pragma once

#include <filesystem>
#include <keel/trainer/options.hpp>
#include <memory>

namespace keel::inline KEEL_MODE {

class run_directory;

}  // namespace keel::inline KEEL_MODE

namespace keel::detail::inline KEEL_MODE {

struct close_directory {
  void operator()(run_directory* directory) const;
};
using opened_directory = std::unique_ptr<run_directory, close_directory>;

/// Opens and locks the run directory of the options; returns null if they name none. `saves`: the recipe saves checkpoints. Throws error
/// (E12) for invalid options, and file_error (E01, E02).
opened_directory open_directory(trainer_options const& options, bool saves);
std::filesystem::path const& root_of(run_directory const& directory);

}  // namespace keel::detail::inline KEEL_MODE

#ifndef KEEL_COMPILED
#include <keel/trainer/open_directory.ipp>
#endif
