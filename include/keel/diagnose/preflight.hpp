// A preflight checks a trainer, or a part of a run, for mistakes before it starts, in about a minute. The run's state is unchanged
// afterwards.
//     run.evaluate_on("validation", held_out, loss_of);                        // to include the evaluation
//     keel::preflight_result const found = run.preflight(batches, loss_of);
//     std::fputs(found.table().c_str(), stdout);
// Each check is a row that passed, failed (with the reason and a fix) or is not applicable (with the reason):
//     an update                one update succeeds; the row appears only on failure
//     training mode            no module is in evaluation mode, before and after a call of the loss function
//     same bits twice          repeating an update gives bitwise equal parameters
//     parameters               the loss depends on no tensor that requires grad and is not registered in the model
//     gradients, rates         each trained parameter gets a gradient within six updates, and each group has a learning rate
//     batches                  the findings of keel::batch_guard; data that is sorted by class
//     inputs, labels           the output changes with the inputs, the loss with the labels
//     rows                     a row's output does not change with another row
//     shift of targets         in a sequence, the target is the next input
//     look-ahead               no output depends on its own target or later inputs
//     targets in inputs        no input column reveals the target
//     masks                    masked positions have no effect, others do; padding's labels are ignored; attention reaches other positions
//     loss at the start        compared with the loss of a constant guess
//     loss and output          no double softmax, no probabilities in place of log-probabilities, no ReLU before logits, equal shapes
//     overfit one batch        succeeds at some learning rate
//     learning rate            compared with a range test
//     labels belong to inputs  training with permuted labels does worse on unseen batches
//     evaluation               builds no graph
//     memory                   the estimate of keel::memory::estimate, compared with the budget or the host's memory
//     threads                  another number of threads gives the same gradients, up to rounding
//     out of memory            simulated in the forward and in the backward pass, for each rung of the ladder that can be undone
//     resume                   save to the run directory's disk, load into changed parameters: the next update is the same
// The model's output is found where it is compared with the labels: in one of LibTorch's losses, or in the last operation on both. The last
// tensor of a batch is its labels; a user-defined batch lists its fields with `void visit(auto& archive)`. The loss function is called
// about a thousand times. Not checked: the quality of the data, which would need a model, and behaviour that needs several
// ranks.
#pragma once

#include <keel/libtorch/ivalue_first.hpp>

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <keel/attention/attention_scope.hpp>
#include <keel/core/buffers.hpp>
#include <keel/core/mode_scope.hpp>
#include <keel/core/out_of_memory.hpp>
#include <keel/data/batch_source.hpp>
#include <keel/diagnose/estimate.hpp>
#include <keel/diagnose/preflight_program.hpp>
#include <keel/libtorch/random.hpp>
#include <keel/recompute/unit_scope.hpp>
#include <keel/step/step.hpp>
#include <keel/trainer/dry_run.hpp>
#include <keel/trainer/options.hpp>
#include <keel/trainer/preflight_result.hpp>
#include <keel/trainer/registered_state.hpp>
#include <keel/trainer/replay.hpp>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace keel::detail::inline KEEL_MODE {

/// Runs all checks, in the order of the table.
preflight_result preflight_of_program(preflight_program& program, preflight_options const& options);

/// Calls the loss function, and throws out-of-memory errors on request.
template <class Batch, class LossOf>
class striking_loss {
 public:
  explicit striking_loss(LossOf& of) : of_(of) {}
  void strike(tried_fault fault) { fault_ = fault; }
  auto operator()(Batch const& batch) {
    auto loss = of_(batch);
    tried_fault const fault = std::exchange(fault_, tried_fault::none);
    auto const fail = [] { TORCH_CHECK_WITH(OutOfMemoryError, false, "memory runs out in a rehearsal"); };
    if (fault == tried_fault::memory_after_forward) fail();
    if (fault == tried_fault::memory_in_backward) {
      at::Tensor const mean = as_weighted_loss(loss, 1).mean;
      if (mean.requires_grad()) {
        mean.register_hook([fail](at::Tensor const& gradient) {
          fail();
          return gradient;
        });
      }
    }
    return loss;
  }

 private:
  LossOf& of_;
  tried_fault fault_ = tried_fault::none;
};

template <class Subject, class Batch, class LossOf>
class preflight_program_of final : public preflight_program {
  using step_type = typename Subject::step_type;
  static constexpr bool lists_tensors = writable_batch<Batch> && std::copy_constructible<Batch>;

 public:
  preflight_program_of(Subject const& subject, std::vector<Batch> batches, LossOf& loss_of)
      : subject_(subject),
        recipe_(subject.observer.with_run_facts(subject.step.recipe_value())),
        batches_(std::move(batches)),
        loss_of_(loss_of),
        buffers_(subject.loop.models().model()),
        random_(random_snapshot::take(subject.step.parameters().device)) {
    recipe_.run = subject.step.facts();
    recipe_.batch_guard = subject.loop.recipe().batch_guard;
  }

  config const& recipe() const override { return recipe_; }
  torch::nn::Module& model() override { return subject_.step.model(); }
  torch::nn::Module& all_models() override { return subject_.loop.models().model(); }
  torch::optim::Optimizer& optimizer() override { return subject_.step.optimizer(); }
  parameter_list const& parameters() override { return subject_.step.parameters(); }
  std::int64_t updates_of_run() const override { return subject_.length; }
  std::int64_t updates_so_far() const override { return subject_.step.updates(); }
  double highest_rate() const override { return subject_.step.schedule().highest(0); }
  std::FILE* console() const override { return subject_.loop.options().console; }
  std::string run_directory() const override { return subject_.loop.options().run_directory.string(); }
  bool begins_with_weights() const override { return !subject_.loop.options().weights_from.empty(); }

  std::size_t batches() const override { return batches_.size(); }
  std::int64_t rows(std::size_t batch) const override { return batch_traits<Batch>::rows(batches_[batch]); }
  std::vector<at::Tensor> tensors(std::size_t batch) override {
    std::vector<at::Tensor> all;
    if constexpr (lists_tensors) {
      change_batch(batches_[batch], [&](at::Tensor const& one) {
        all.push_back(one);
        return one;
      });
    }
    return all;
  }
  batch_contents contents(std::size_t batch) const override { return contents_of(batches_[batch]); }

  weighted_loss loss(tried_batch const& batch) override {
    std::vector<random_snapshot> const now = random_state_of(subject_.loop.models());
    std::vector<field_copies> const state = registered().capture_all();
    buffers_.take();
    struct at_end {
      preflight_program_of& of;
      std::vector<random_snapshot> const& now;
      std::vector<field_copies> const& state;
      ~at_end() {
        of.registered().restore_all(state);
        of.buffers_.restore();
        for (random_snapshot const& one : now) one.restore();
      }
    } const ends{*this, now, state};
    // Same random numbers in each pass, so that results differ only because of the changed batch.
    random_.restore();
    autocast_scope const autocast(parameters().device,
                                  subject_.step.environment().autocast(step_type::configured.precision.kind));
    unit_scope const units(recompute_kind::none);
    attention_scope const attention(subject_.step.relief().attention);
    Batch const made = make(batch);
    return as_weighted_loss(loss_of_(made), batch_traits<Batch>::rows(made));
  }

  void aside(std::function<void()> const& run) override {
    deterministic_scope const deterministic(step_type::configured.determinism.kind == determinism::kind::strict);
    saved_state const saved(subject_);
    run();
  }

  void with_step(std::function<void(tried_step&)> const& use) override {
    aside([&] {
      set_base_rates(subject_.step);
      tried tries(*this);
      use(tries);
    });
  }

  lr_range_result range(lr_range_options const& options) override {
    // Not collective: a preflight's length depends on time, which differs between ranks.
    return dry_run<step_type>(subject_, dry_run_ranks::this_rank).lr_range_test(batches_, loss_of_, options);
  }

  std::vector<tried_evaluation> evaluations() override {
    std::vector<tried_evaluation> all;
    subject_.loop.evaluations().for_each_evaluation(
        [&](std::string const& name, std::function<void(std::int64_t)> const& run) { all.push_back({name, run}); });
    return all;
  }

  std::optional<std::int64_t> peak_memory([[maybe_unused]] int state_per_parameter) override {
    if constexpr (sliceable_batch<Batch>) {
      std::int64_t peak = 0;
      aside([&] {
        // Activations are measured with one row, for which a training-mode batch norm has no variance.
        if (normalises_over_a_batch(all_models())) all_models().eval();
        peak = memory::estimate<typename step_type::recipe>(model(), batches_.front(), loss_of_,
                                                            {.state_per_parameter = state_per_parameter}, recipe_)
                   .peak();
      });
      return peak;
    } else {
      return std::nullopt;
    }
  }

 private:
  registered_states& registered() const { return subject_.loop.checkpoints().registered(); }

  /// Lives during one call of with_step.
  class tried final : public tried_step {
   public:
    explicit tried(preflight_program_of& program)
        : program_(program), loss_(program.loss_of_), trial_(program.subject_, world_of_ranks()) {
      for (auto& group : program.optimizer().param_groups()) rates_.push_back(group.options().get_lr());
    }

    tried_update update(std::span<tried_batch const> batches, tried_fault fault) override {
      memory_settings const before = step_.relief();
      loss_.strike(fault);
      tried_update found;
      try {
        found = take(batches);
      } catch (nonfinite_error const& thrown) {
        // Failures that would end a run are results here.
        found.words = first_line(thrown);
      } catch (diverged_error const& thrown) {
        found.words = first_line(thrown);
      }
      loss_.strike(tried_fault::none);
      note_rung(before, step_.relief());
      return found;
    }

    void use_rate(double factor) override {
      auto& groups = program_.optimizer().param_groups();
      for (std::size_t i = 0; i < groups.size(); ++i) groups[i].options().set_lr(rates_[i] * factor);
      step_.schedule() = lr_schedule(program_.optimizer(), schedule::constant::configured, 0);
    }
    std::size_t rungs_taken() override { return step_.ladder().taken(); }
    std::string last_rung() const override { return rung_; }

    void save(std::string const& directory) override {
      step_.settle();
      random_ = random_snapshot::take(program_.parameters().device);
      buffers_of_others_.clear();
      auto const own = program_.model().buffers();
      for (at::Tensor const& one : program_.all_models().buffers()) {
        bool const is_own = std::any_of(own.begin(), own.end(), [&](at::Tensor const& other) { return other.is_same(one); });
        if (!is_own) buffers_of_others_.emplace_back(one, one.clone());
      }
      save_rehearsal(program_, parts(), step_.updates(), directory);
    }
    void load(std::string const& directory) override {
      load_rehearsal(program_, parts(), directory);
      at::NoGradGuard const no_grad;
      for (auto const& [buffer, copy] : buffers_of_others_) buffer.copy_(copy);
      random_.restore();
    }

   private:
    tried_update take(std::span<tried_batch const> batches) {
      auto const count = static_cast<std::size_t>(step_.recipe_value().accumulate.count);
      tried_update found;
      for (std::size_t i = 0; i < count; ++i) {
        Batch const batch = program_.make(batches[i % batches.size()]);
        step_outcome const launched = step_(batch, std::ref(loss_));
        step_outcome const outcome = step_.settle().value_or(launched);
        if (outcome.template is<result::accumulated>()) continue;
        if (auto const* const updated = outcome.updated()) {
          found.is_applied = true;
          found.loss = updated->loss;
        } else if (auto const* const skipped = outcome.skipped()) {
          found.is_overflow = skipped->why == reason::scale_overflow;
          found.words =
              std::string("skipped: ") + to_string(skipped->why) + (skipped->where.empty() ? "" : " in " + skipped->where);
        } else if (auto const* const ended = outcome.gave_up()) {
          found.gave_up = true;
          found.words = "memory ran out: " + ended->detail;
        }
        return found;
      }
      found.words = "it is not complete";
      return found;
    }
    void note_rung(memory_settings const& before, memory_settings const& now) {
      if (now.pieces > before.pieces) rung_ = "halve_micro_batch";
      if (now.recompute != before.recompute) rung_ = "enable_recompute";
      if (now.attention != before.attention) rung_ = "fused_attention";
      if (now.offload && !before.offload) rung_ = "offload_optimizer";
      if (now.length != before.length) rung_ = "shorten_sequence";
    }
    std::vector<state_part> parts() {
      return {state_part::of("step", step_), state_part::of("random", random_),
              state_part::of("registered", program_.registered())};
    }

    preflight_program_of& program_;
    striking_loss<Batch, LossOf> loss_;
    dry_run_step<step_type> trial_;
    step_type& step_ = *trial_;
    std::vector<double> rates_;
    random_snapshot random_;
    std::vector<std::pair<at::Tensor, at::Tensor>>
        buffers_of_others_;  ///< those of other parts, which the files lack, and copies
    std::string rung_;
  };

  Batch make(tried_batch const& of) const {
    Batch batch = batches_[of.index];
    if constexpr (lists_tensors) {
      std::size_t place = 0;
      if (!of.instead.empty())
        change_batch(batch, [&](at::Tensor const& one) { return place < of.instead.size() ? of.instead[place++] : one; });
    }
    return batch;
  }

  Subject subject_;
  config recipe_;
  std::vector<Batch> batches_;
  LossOf& loss_of_;
  buffer_snapshot buffers_;
  random_snapshot random_;
};

/// Called by dry_run_calls::preflight, which finds it by argument-dependent lookup.
template <class Subject, class Batches, class LossOf>
preflight_result preflight_of(Subject const& subject, Batches& batches, LossOf& loss_of, preflight_options const& options) {
  using batch = batch_of<Batches>;
  static_assert(
      std::copy_constructible<batch>,
      "keel keeps some batches while it looks at them, and this type cannot be copied. Fix: a batch that can be copied.");
  static_assert(loss_function<LossOf, batch>,
                "keel cannot take a loss from this function. Fix: it takes a batch and returns its mean loss.");
  subject.loop.require_no_open_update("a preflight");
  if (options.batches < 1 || options.updates < 1)
    throw error("E12", "a preflight takes at least one batch and one update. Leave the numbers out for 64 and 150.");
  std::vector<batch> taken;
  with_epoch(batches, 0, [&](auto at, auto const& end) {
    for (; at != end && taken.size() < options.batches; ++at) {
      taken.push_back(*at);
      // A loader may reuse its memory.
      if constexpr (writable_batch<batch>) change_batch(taken.back(), [](at::Tensor const& one) { return one.clone(); });
    }
  });
  if (taken.empty())
    throw data_error("E06", "there is nothing to look at: the batches are empty. Give the call at least one batch.");
  preflight_program_of<Subject, batch, LossOf> program(subject, std::move(taken), loss_of);
  return preflight_of_program(program, options);
}

}  // namespace keel::detail::inline KEEL_MODE

#ifndef KEEL_COMPILED
#include <keel/diagnose/preflight.ipp>
#endif
