// The components of a step and the state of its open update, shared by step_engine and the implementations of update_strategy.
#pragma once

#include <keel/libtorch/ivalue_first.hpp>

#include <ATen/core/Tensor.h>
#include <c10/util/FunctionRef.h>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <cstdint>
#include <functional>
#include <keel/clip/clip_mechanism.hpp>
#include <keel/collective/world_of_ranks.hpp>
#include <keel/core/outcome.hpp>
#include <keel/core/parameters.hpp>
#include <keel/ema/moving_average.hpp>
#include <keel/gradients/interference.hpp>
#include <keel/loss_scale/device_scale.hpp>
#include <keel/loss_scale/grad_scaler.hpp>
#include <keel/oom/memory_ladder.hpp>
#include <keel/optimizer/engine.hpp>
#include <keel/schedule/lr_schedule.hpp>
#include <keel/shard/replication.hpp>
#include <keel/step/gradients.hpp>
#include <keel/step/observer.hpp>
#include <keel/step/recipe_context.hpp>
#include <keel/step/recipe_numbers.hpp>
#include <keel/step/step_environment.hpp>
#include <keel/step/update_decision.hpp>
#include <keel/step/update_guards.hpp>
#include <keel/step/update_pass.hpp>
#include <keel/step/update_trace.hpp>
#include <memory>
#include <optional>
#include <variant>
#include <vector>

namespace keel::detail::inline KEEL_MODE {

/// Functions of a recipe's custom policies.
struct custom_policies {
  std::unique_ptr<clip_mechanism> (*make_clip)(clip::settings const&);
  std::function<double(std::int64_t, std::int64_t)> schedule_factor;  ///< empty: use the settings
  take_custom_rung take_rung;
};

struct update_parts {
  /// Model, optimizer, observer and environment must outlive this object. Collective on `world`: throws recipe_error or error, as the
  /// constructor of a step does, on all ranks.
  update_parts(torch::nn::Module& its_model, torch::optim::Optimizer& its_optimizer, recipe_numbers const& its_numbers,
               recipe_rules const& rules, custom_policies const& custom, std::int64_t length, step_observer& listener,
               world_of_ranks const& world, step_environment const& machine);
  update_parts(update_parts const&) = delete;
  update_parts& operator=(update_parts const&) = delete;
  ~update_parts();

  config const& recipe() const { return numbers.value(); }
  config const& current() const { return numbers.current(); }
  /// Reads a scalar; waits if it is on a device.
  double read(at::Tensor const& one) const { return environment.host_value(one); }
  bool has_ladder() const { return recipe().oom.kind == oom::kind::ladder; }
  bool has_closure() const { return context.optimizer().closure; }
  /// Applied updates, including the one pending on a device.
  std::int64_t begun() const { return updates + (pending ? 1 : 0); }
  std::int64_t attempted() const { return begun() + skipped; }
  bool is_first() const { return updates == 0 && skipped == 0 && !pending; }
  /// The reason to skip for a non-finite gradient: scale_overflow under dynamic loss scaling, otherwise nonfinite_gradient.
  reason nonfinite_gradient_reason() const {
    return recipe().loss_scale.kind == loss_scale::kind::dynamic ? reason::scale_overflow : reason::nonfinite_gradient;
  }
  /// Throws error (M04) while the moving average is swapped into the model.
  void require_average_swapped_out() const {
    if (average) average->require_average_swapped_out();
  }

  /// Throws data_error (B01) if the complete update does not have the number of rows that the recipe declares.
  void require_declared_rows() const;
  /// Starts the decision with the facts known without gradients. Sets the reason to skip if the total weight is zero.
  update_decision begin_decision() const;
  /// Decides on the host, for a finite loss: sets the reason to skip, or clips and pre-allocates what the optimizer step needs.
  void judge(update_decision& decision, std::variant<gradients<stage::checked>, nonfinite_gradient> result);
  /// True if a buffer, such as a running statistic of batch norm, became non-finite although loss and gradients are finite; sets the
  /// reason to skip. Every later evaluation would use that buffer.
  bool find_nonfinite_buffer(update_decision& decision);
  /// Calls the observer while the parameters hold the unscaled gradients.
  void show_gradients(double norm, std::vector<at::Tensor> const& unscaled) const;

  /// Applies the learning rate; call just before parameters change. Throws learning_rate_error (E18) if the rate is invalid or was changed.
  void begin_update(update_facts& facts);
  void step_optimizer(c10::function_ref<void()> update);

  recipe_numbers numbers;
  torch::nn::Module& model;
  torch::optim::Optimizer& optimizer;
  update_engine* engine;  ///< the optimizer, if it is an update_engine; otherwise null
  step_environment const& environment;
  step_observer* observer;
  parameter_list parameters;
  recipe_context context;
  grad_scaler scaler;
  lr_schedule schedule;
  std::unique_ptr<clip_mechanism> clip;
  update_pass pass;
  update_trace trace;
  update_guards guards;
  repeated_step_watch repeated;
  memory_ladder ladder;
  std::optional<moving_average> average;
  replication ranks;

  std::int64_t updates = 0, skipped = 0, clipped = 0;
  std::int64_t micro_batches = 0;  ///< micro-batches of the open update
  bool half_updated = false;       ///< the optimizer threw inside its step
  // Device-decided updates: `pending` is the one whose result the host has not read; its loss scale is on the device.
  bool decides_on_device = false;
  bool losses_stay_on_device = false;  ///< even if the host decides; it then reads them together with the norm
  std::optional<pending_update> pending;
  std::optional<device_scale> scale_on_device;

 private:
  /// True if squaring the gradients would overflow and leave the optimizer state infinite; sets the reason to skip. False for clip policies
  /// that inspect elements: they bound each element.
  bool reject_if_square_overflows(update_decision& decision) const;
};

/// Decides and applies a complete update: on the host, on a device, with a closure, or on several ranks.
class update_strategy {
 public:
  update_strategy() = default;
  update_strategy(update_strategy const&) = delete;
  update_strategy& operator=(update_strategy const&) = delete;
  virtual ~update_strategy() = default;
  /// Decides whether to apply or skip the update. Modifies no parameters, except with a closure, and pre-allocates everything that
  /// apply() needs.
  virtual update_decision decide() = 0;
  /// Applies a decision that has no reason to skip.
  virtual void apply(update_decision& decision) = 0;
};

}  // namespace keel::detail::inline KEEL_MODE

#ifndef KEEL_COMPILED
#include <keel/step/update_parts.ipp>
#endif
