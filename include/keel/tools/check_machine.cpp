// keel doctor: what a run needs of this machine, measured.
#include <keel/libtorch/ivalue_first.hpp>

#include <cstdio>
#include <keel/collective/join.hpp>
#include <keel/diagnose/machine_check.hpp>
#include <keel/tools/commands.hpp>
#include <optional>

namespace keel::tools {

int check_machine(std::filesystem::path const& directory, int ranks) {
  launch_info const launched = read_launch_environment();
  // Ranks meet first, so that none waits for one whose directory cannot be written.
  std::optional<world_of_ranks> world;
  if (launched.size > 1) world = join(launched);
  std::vector<detail::machine_finding> all;
  auto const print = [&](std::vector<detail::machine_finding> const& found) {
    std::fputs(detail::describe(found).c_str(), stdout);
    std::fflush(stdout);
    all.insert(all.end(), found.begin(), found.end());
  };
  if (world) std::printf("rank %d of %d\n", world->rank(), world->size());
  print({detail::check_threads(world.has_value())});
  print({detail::check_matrix_product()});
  print({detail::check_memory()});
  print({detail::check_disk(real_files(), directory)});
  print(detail::check_devices());
  if (world) {
    print({detail::judge_link(detail::measure_link(*world), world->size(), "of this launch")});
  } else {
    for (int count = 2; count <= ranks; count *= 2) print({detail::check_local_ranks(count)});
  }
  return detail::is_sound(all) ? 0 : 1;
}

}  // namespace keel::tools
