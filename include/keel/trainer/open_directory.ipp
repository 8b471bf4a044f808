// The bodies of open_directory.hpp.
#pragma once

#include <keel/trainer/open_directory.hpp>
#include <keel/trainer/run_directory.hpp>

namespace keel::detail::inline KEEL_MODE {

template <class Files>
void close_directory<Files>::operator()(run_directory<Files>* directory) const {
  delete directory;
}

template <class Files>
opened_directory<Files> open_directory(trainer_options const& options, bool saves, Files const& files) {
  require_sound(options, saves);
  if (options.run_directory.empty()) return nullptr;
  return opened_directory<Files>(new run_directory<Files>(options.run_directory, files));
}

template <class Files>
std::filesystem::path const& root_of(run_directory<Files> const& directory) {
  return directory.root();
}

}  // namespace keel::detail::inline KEEL_MODE
