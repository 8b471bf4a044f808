// What does not depend on a recipe, compiled once for a whole program: the target keel::compiled is this file, and its users' files
// then hold what their recipes ask for and nothing else. Beside this file stands the empty keel_bodies_are_compiled, by which the
// headers know.
#include <keel/libtorch/ivalue_first.hpp>

#include <keel/attention/attention.ipp>
#include <keel/batch_guard/batch_watch.ipp>
#include <keel/checkpoint/archive.ipp>
#include <keel/checkpoint/load_weights.ipp>
#include <keel/checkpoint/mapped_safetensors.ipp>
#include <keel/checkpoint/migrate.ipp>
#include <keel/checkpoint/model_state.ipp>
#include <keel/checkpoint/safetensors.ipp>
#include <keel/checkpoint/safetensors_file.ipp>
#include <keel/checkpoint/safetensors_header.ipp>
#include <keel/checkpoint/sharded_safetensors.ipp>
#include <keel/checkpoint/snapshot.ipp>
#include <keel/checkpoint/store.ipp>
#include <keel/collective/collectives.ipp>
#include <keel/collective/direct_messages.ipp>
#include <keel/collective/exit_code.ipp>
#include <keel/collective/in_process.ipp>
#include <keel/collective/join.ipp>
#include <keel/collective/launch.ipp>
#include <keel/collective/left_record.ipp>
#include <keel/collective/process_group.ipp>
#include <keel/collective/recent_collectives.ipp>
#include <keel/collective/words_of_rank.ipp>
#include <keel/collective/world_of_ranks.ipp>
#include <keel/core/buffers.ipp>
#include <keel/core/files.ipp>
#include <keel/core/loss_accumulator.ipp>
#include <keel/core/out_of_memory.ipp>
#include <keel/core/parameters.ipp>
#include <keel/diagnose/compare_runs.ipp>
#include <keel/diagnose/curve_values.ipp>
#include <keel/diagnose/event_timeline.ipp>
#include <keel/diagnose/explain.ipp>
#include <keel/diagnose/guide.ipp>
#include <keel/diagnose/heat_strip.ipp>
#include <keel/diagnose/loss_watch.ipp>
#include <keel/diagnose/page_text.ipp>
#include <keel/diagnose/plot.ipp>
#include <keel/diagnose/preflight.ipp>
#include <keel/diagnose/preflight_loss.ipp>
#include <keel/diagnose/preflight_passes.ipp>
#include <keel/diagnose/preflight_rehearsal.ipp>
#include <keel/diagnose/preflight_sequence.ipp>
#include <keel/diagnose/preflight_training.ipp>
#include <keel/diagnose/preflight_wiring.ipp>
#include <keel/diagnose/rank_record.ipp>
#include <keel/diagnose/report.ipp>
#include <keel/diagnose/run_history.ipp>
#include <keel/diagnose/trace_figure.ipp>
#include <keel/diagnose/triage.ipp>
#include <keel/diagnose/triage_learning.ipp>
#include <keel/diagnose/triage_memory.ipp>
#include <keel/diagnose/triage_nonfinite.ipp>
#include <keel/diagnose/triage_ranks.ipp>
#include <keel/diagnose/triage_resume.ipp>
#include <keel/diagnose/triage_speed.ipp>
#include <keel/diagnose/trouble.ipp>
#include <keel/ema/moving_average.ipp>
#include <keel/gradients/gradient_memory.ipp>
#include <keel/gradients/gradient_norm.ipp>
#include <keel/gradients/interference.ipp>
#include <keel/gradients/mixed_dtypes.ipp>
#include <keel/health/alarm_watch.ipp>
#include <keel/lora/lora.ipp>
#include <keel/loss_scale/device_scale.ipp>
#include <keel/memory/recording.ipp>
#include <keel/memory/statistics.ipp>
#include <keel/memory/timeline.ipp>
#include <keel/metrics/console.ipp>
#include <keel/metrics/console_log.ipp>
#include <keel/metrics/event_record.ipp>
#include <keel/metrics/gpu_state.ipp>
#include <keel/metrics/histogram.ipp>
#include <keel/metrics/layer_watch.ipp>
#include <keel/metrics/operation_count.ipp>
#include <keel/metrics/run_metric.ipp>
#include <keel/metrics/sink_thread.ipp>
#include <keel/metrics/slowdown.ipp>
#include <keel/metrics/tensorboard_writer.ipp>
#include <keel/metrics/update_interval.ipp>
#include <keel/metrics/update_metrics.ipp>
#include <keel/nonfinite/nonfinite_guard.ipp>
#include <keel/nonfinite/nonfinite_origin.ipp>
#include <keel/nonfinite/nonfinite_pass.ipp>
#include <keel/nonfinite/nonfinite_values.ipp>
#include <keel/nonfinite/operation_watch.ipp>
#include <keel/offload/mapped_memory.ipp>
#include <keel/oom/ladder_position.ipp>
#include <keel/optimizer/adam.ipp>
#include <keel/optimizer/parameter_state.ipp>
#include <keel/optimizer/sgd.ipp>
#include <keel/profile/profile_recorder.ipp>
#include <keel/profile/recorded_profile.ipp>
#include <keel/recompute/recompute.ipp>
#include <keel/schedule/lr_schedule.ipp>
#include <keel/shard/gradient_sums.ipp>
#include <keel/shard/numbers_of_ranks.ipp>
#include <keel/shard/optimizer_shares.ipp>
#include <keel/shard/replicas.ipp>
#include <keel/shard/replication.ipp>
#include <keel/shard/shared_buffers.ipp>
#include <keel/spike/spike_guard.ipp>
#include <keel/step/closure_backup.ipp>
#include <keel/step/device_update.ipp>
#include <keel/step/gradients.ipp>
#include <keel/step/recipe_numbers.ipp>
#include <keel/step/require_valid.hpp>
#include <keel/step/shown_gradients.ipp>
#include <keel/step/taken_batch.ipp>
#include <keel/step/training_mode.ipp>
#include <keel/step/update_decision.ipp>
#include <keel/step/update_trace.ipp>
#include <keel/timeout/run_watch.ipp>
#include <keel/timeout/thread_stacks.ipp>
#include <keel/trainer/checkpoint_manager.ipp>
#include <keel/trainer/checkpointed_step.ipp>
#include <keel/trainer/environment.hpp>
#include <keel/trainer/iterations_of_ranks.ipp>
#include <keel/trainer/late_parts.ipp>
#include <keel/trainer/open_directory.ipp>
#include <keel/trainer/options.ipp>
#include <keel/trainer/preflight_result.ipp>
#include <keel/trainer/replay.ipp>
#include <keel/trainer/run_beginning.ipp>
#include <keel/trainer/run_incidents.ipp>
#include <keel/trainer/run_log.ipp>
#include <keel/trainer/run_of_ranks.ipp>
#include <keel/trainer/run_part.ipp>
#include <keel/trainer/run_profiles.ipp>
#include <keel/trainer/run_sinks.ipp>
#include <keel/trainer/signals.ipp>
#include <keel/trainer/summary.ipp>

#if !__has_include(<keel_bodies_are_compiled>)
#error "keel/compiled/bodies.cpp is compiled with its own folder among those of the headers, as the target keel::compiled does."
#endif

namespace keel {

template void require_unbroken<detail::rules_about<recipe<>>>(config const&);
template void require_unbroken<detail::with_types_of<recipe<>>::rules<void>>(config const&);

template class checkpoint_store<posix_files>;
template void save_sharded_safetensors<posix_files>(std::filesystem::path const&, std::string const&, tensor_map const&,
                                                    std::uint64_t, string_map const&, posix_files);
template class run_log<posix_files>;
template written_incident write_incident<posix_files>(posix_files&, std::filesystem::path const&, std::int64_t, long long,
                                                      snapshot const&, nlohmann::ordered_json);
template class basic_tensorboard_writer<posix_files>;

namespace detail {

template class adam_engine<torch::optim::Adam>;
template class adam_engine<torch::optim::AdamW>;
template struct close_directory<posix_files>;
template opened_directory<posix_files> open_directory(trainer_options const&, bool, posix_files const&);
template std::filesystem::path const& root_of(run_directory<posix_files> const&);
template class checkpoint_manager<checkpoint_seams_of<environment>>;

}  // namespace detail

}  // namespace keel
