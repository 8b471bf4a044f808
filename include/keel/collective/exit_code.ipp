// Definitions for exit_code.hpp.
#pragma once

#include <chrono>
#include <cstdio>
#include <fstream>
#include <keel/collective/exit_code.hpp>
#include <keel/collective/launch.hpp>
#include <keel/core/error.hpp>
#include <keel/core/out_of_memory.hpp>
#include <nlohmann/json.hpp>
#include <string>

#include <keel/libtorch/detail/body_begin.inc>

namespace keel::inline KEEL_MODE {

KEEL_BODY int exit_code_of(outcome const& ended) {
  if (auto const* const stopped = ended.stopped()) return stopped->signal == 0 ? exit_code::done : 128 + stopped->signal;
  if (ended.gave_up() == nullptr) return exit_code::done;
  return ended.gave_up()->why == reason::out_of_memory ? exit_code::out_of_memory : exit_code::not_finite;
}

KEEL_BODY int exit_code_of(std::exception const& thrown) {
  auto const is = [&]<class Type>(Type const*) { return dynamic_cast<Type const*>(&thrown) != nullptr; };
  if (auto const* const of_ranks = dynamic_cast<world_error const*>(&thrown)) {
    if (of_ranks->id() == "E24") return exit_code::rendezvous_failed;
    return of_ranks->id() == "E26" ? exit_code::ranks_diverged : exit_code::rank_failed;
  }
  if (is(static_cast<nonfinite_error const*>(nullptr)) || is(static_cast<diverged_error const*>(nullptr)))
    return exit_code::not_finite;
  if (is(static_cast<file_error const*>(nullptr)) || is(static_cast<checkpoint_error const*>(nullptr)))
    return exit_code::storage;
  if (is(static_cast<out_of_memory_error const*>(nullptr)) || is_out_of_memory(thrown)) return exit_code::out_of_memory;
  return exit_code::failed;
}

}  // namespace keel::inline KEEL_MODE

namespace keel::detail::inline KEEL_MODE {

KEEL_BODY void write_launcher_error(std::string const& message) {
  std::string path;
  try {
    path = read_launch_environment().error_file;
  } catch (error const&) {
    // The launcher's variables conflict, which may be the error being reported.
  }
  if (path.empty()) return;
  // The format of torch.distributed.elastic.
  using namespace std::chrono;
  auto const seconds = duration_cast<std::chrono::seconds>(system_clock::now().time_since_epoch()).count();
  nlohmann::json const error = {
      {"message", {{"message", message}, {"extraInfo", {{"py_callstack", message}, {"timestamp", std::to_string(seconds)}}}}}};
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file << error.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

KEEL_BODY void report_failed_exit(std::string message) {
  try {
    launch_info const started = read_launch_environment();
    if (started.size > 1)
      message = "rank " + std::to_string(started.rank) + " of " + std::to_string(started.size) + ": " + message;
  } catch (error const&) {
    // The launcher's variables conflict, which may be the error being reported: leave out the rank.
  }
  write_launcher_error(message);
  std::fprintf(stderr, "%s\n", message.c_str());
}

}  // namespace keel::detail::inline KEEL_MODE

namespace keel::inline KEEL_MODE {

KEEL_BODY int exit_code_of(std::function<outcome()> const& body) {
  return exit_code_of(std::function<int()>([&] {
    outcome const ended = body();
    if (auto const* const by = ended.gave_up()) detail::report_failed_exit(by->detail);
    return exit_code_of(ended);
  }));
}

KEEL_BODY int exit_code_of(std::function<int()> const& body) {
  try {
    return body();
  } catch (std::exception const& thrown) {
    detail::report_failed_exit(first_line(thrown));
    return exit_code_of(thrown);
  }
}

}  // namespace keel::inline KEEL_MODE

#include <keel/libtorch/detail/body_end.inc>
