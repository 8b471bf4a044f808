// Opens the run directory that the options name.
#pragma once

#include <filesystem>
#include <keel/trainer/options.hpp>
#include <memory>

namespace keel::inline KEEL_MODE {

template <class Files>
class run_directory;

}  // namespace keel::inline KEEL_MODE

namespace keel::detail::inline KEEL_MODE {

template <class Files>
struct close_directory {
  void operator()(run_directory<Files>* directory) const;
};
template <class Files>
using opened_directory = std::unique_ptr<run_directory<Files>, close_directory<Files>>;

/// Null where the options name none; `saves`: the recipe has checkpoints. Throws error (E12) for options that do not fit,
/// file_error (E01, E02).
template <class Files>
opened_directory<Files> open_directory(trainer_options const& options, bool saves, Files const& files);
template <class Files>
std::filesystem::path const& root_of(run_directory<Files> const& directory);

}  // namespace keel::detail::inline KEEL_MODE

#ifndef KEEL_COMPILED
#include <keel/trainer/open_directory.ipp>
#endif
