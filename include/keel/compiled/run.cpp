// Bodies of the run: metrics, events, alarms, profiles, directories.
#include <keel/libtorch/ivalue_first.hpp>

#include <keel/health/alarm_watch.ipp>
#include <keel/libtorch/ivalue_first.hpp>
#include <keel/metrics/console.ipp>
#include <keel/metrics/event_record.ipp>
#include <keel/metrics/gpu_state.ipp>
#include <keel/metrics/layer_watch.ipp>
#include <keel/metrics/operation_count.ipp>
#include <keel/metrics/run_metric.ipp>
#include <keel/metrics/slowdown.ipp>
#include <keel/metrics/tensorboard_writer.ipp>
#include <keel/metrics/update_interval.ipp>
#include <keel/metrics/update_metrics.ipp>
#include <keel/profile/profile_recorder.ipp>
#include <keel/profile/recorded_profile.ipp>
#include <keel/timeout/run_watch.ipp>
#include <keel/trainer/iterations_of_ranks.ipp>
#include <keel/trainer/late_parts.ipp>
#include <keel/trainer/open_directory.ipp>
#include <keel/trainer/options.ipp>
#include <keel/trainer/preflight_result.ipp>
#include <keel/trainer/run_beginning.ipp>
#include <keel/trainer/run_incidents.ipp>
#include <keel/trainer/run_log.ipp>
#include <keel/trainer/run_of_ranks.ipp>
#include <keel/trainer/run_part.ipp>
#include <keel/trainer/run_profiles.ipp>
#include <keel/trainer/run_sinks.ipp>
#include <keel/trainer/summary.ipp>

namespace keel {

template class run_log<posix_files>;
template written_incident write_incident<posix_files>(posix_files&, std::filesystem::path const&, std::int64_t, long long,
                                                      snapshot const&, nlohmann::ordered_json);
template class basic_tensorboard_writer<posix_files>;

namespace detail {

template struct close_directory<posix_files>;
template opened_directory<posix_files> open_directory(trainer_options const&, bool, posix_files const&);
template std::filesystem::path const& root_of(run_directory<posix_files> const&);

}  // namespace detail

}  // namespace keel
