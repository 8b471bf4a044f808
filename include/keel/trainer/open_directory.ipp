// Definitions for open_directory.hpp.
#pragma once

#include <keel/trainer/open_directory.hpp>
#include <keel/trainer/run_directory.hpp>

#include <keel/libtorch/detail/body_begin.inc>

namespace keel::detail::inline KEEL_MODE {

KEEL_BODY void close_directory::operator()(run_directory* directory) const { delete directory; }

KEEL_BODY opened_directory open_directory(trainer_options const& options, bool saves) {
  require_sound(options, saves);
  if (options.run_directory.empty()) return nullptr;
  return opened_directory(new run_directory(options.run_directory, options.files()));
}

KEEL_BODY std::filesystem::path const& root_of(run_directory const& directory) { return directory.root(); }

}  // namespace keel::detail::inline KEEL_MODE

#include <keel/libtorch/detail/body_end.inc>
