// Compiled definitions that do not need LibTorch: files, signals, launch, error messages.
#include <keel/collective/exit_code.ipp>
#include <keel/collective/launch.ipp>
#include <keel/collective/recent_collectives.ipp>
#include <keel/core/file_system.ipp>
#include <keel/json/load_numbers.ipp>
#include <keel/metrics/console_log.ipp>
#include <keel/metrics/number_format.ipp>
#include <keel/metrics/sink_thread.ipp>
#include <keel/nonfinite/nonfinite_guard.ipp>
#include <keel/nonfinite/nonfinite_origin.ipp>
#include <keel/oom/ladder_position.ipp>
#include <keel/spike/spike_guard.ipp>
#include <keel/step/recipe_numbers.ipp>
#include <keel/timeout/thread_stacks.ipp>
#include <keel/trainer/signals.ipp>
