// What a program trains with. What reads or writes JSON, or looks into a checkpoint, it includes by name: json/load_config.hpp,
// json/write_config.hpp, checkpoint/read_checkpoint.hpp, checkpoint/verify.hpp, checkpoint/optimizer_state.hpp, profile/profile_recorder.hpp.
#pragma once

#include <keel/libtorch/ivalue_first.hpp>

#include <keel/recipe.hpp>

#include <keel/attention/attention.hpp>
#include <keel/batch_guard/batch_watch.hpp>
#include <keel/checkpoint/best_so_far.hpp>
#include <keel/checkpoint/fingerprint.hpp>
#include <keel/checkpoint/load_weights.hpp>
#include <keel/checkpoint/mapped_safetensors.hpp>
#include <keel/checkpoint/migrate.hpp>
#include <keel/checkpoint/model_state.hpp>
#include <keel/checkpoint/safetensors.hpp>
#include <keel/checkpoint/safetensors_file.hpp>
#include <keel/checkpoint/sharded_safetensors.hpp>
#include <keel/checkpoint/store.hpp>
#include <keel/collective/agreed.hpp>
#include <keel/core/error.hpp>
#include <keel/core/finite.hpp>
#include <keel/core/out_of_memory.hpp>
#include <keel/core/version.hpp>
#include <keel/data/shuffled_batches.hpp>
#include <keel/data/token_range.hpp>
#include <keel/determinism/seed.hpp>
#include <keel/diagnose/estimate.hpp>
#include <keel/diagnose/preflight.hpp>
#include <keel/ema/moving_average.hpp>
#include <keel/evaluation/predict.hpp>
#include <keel/health/alarm_watch.hpp>
#include <keel/lora/lora.hpp>
#include <keel/memory/budget.hpp>
#include <keel/memory/recording.hpp>
#include <keel/memory/saved_tensor_policies.hpp>
#include <keel/memory/saved_tensors.hpp>
#include <keel/memory/statistics.hpp>
#include <keel/memory/timeline.hpp>
#include <keel/metrics/console.hpp>
#include <keel/metrics/histogram.hpp>
#include <keel/metrics/layer_record.hpp>
#include <keel/metrics/metric.hpp>
#include <keel/metrics/operation_count.hpp>
#include <keel/metrics/phase_times.hpp>
#include <keel/metrics/run_metric.hpp>
#include <keel/metrics/sink.hpp>
#include <keel/metrics/tensorboard_writer.hpp>
#include <keel/metrics/unit.hpp>
#include <keel/metrics/update_metrics.hpp>
#include <keel/optimizer/adam.hpp>
#include <keel/optimizer/sgd.hpp>
#include <keel/recompute/recompute.hpp>
#include <keel/recompute/unit.hpp>
#include <keel/step/step.hpp>
#include <keel/trainer/trainer.hpp>
