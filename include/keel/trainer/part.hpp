// keel::part, one of the models of a keel::run: a model, an optimizer and a recipe.
//     keel::part<critic_recipe> critic{run, "critic", critic_model, critic_optimizer};
//     keel::step_outcome outcome = critic.update(batch, loss_of);          or update(loss_of), or open() and close()
// Where one optimizer trains behind another, as LBFGS behind Adam, the second part says so and may have the same parameters:
//     keel::part<fine> lbfgs{run, "lbfgs", model, lbfgs_optimizer, keel::after(adam)};
#pragma once

#include <concepts>
#include <cstdint>
#include <exception>
#include <functional>
#include <keel/core/out_of_memory.hpp>
#include <keel/shard/replicas.hpp>
#include <keel/trainer/run.hpp>
#include <optional>
#include <string>
#include <utility>

namespace keel::inline KEEL_MODE {

/// The part that another one trains behind.
struct after {
  /// The other part.
  detail::run_part& part;
  /// The other part, which outlives the new one.
  explicit after(detail::run_part& one) : part(one) {}
};

/// A model with its optimizer and recipe in a keel::run. All ranks make the same calls.
template <class Recipe, class Environment = environment>
class part final : public detail::run_part, private step_observer, private detail::own_backward_runner {
  using admission = detail::admission<Recipe, detail::at_part>;
  using recipe_type = typename admission::recipe;
  using step_type = detail::step_of<Recipe, Environment, detail::at_part>;

 public:
  /// The recipe's configuration, without numbers that are given later.
  static constexpr config configured = step_type::configured;

  /// The run, model and optimizer outlive the part. `name` is letters, digits and underscores. In the middle of the run too, between two
  /// updates; a program that resumes behind that place makes it before its loop, or in the first iteration before that draws random
  /// numbers, and it is what the checkpoint holds. Throws error (E11) for a name or a parameter that another part has, checkpoint_error
  /// for what does not fit to the checkpoint's, and what a step throws.
  template <class Run, class Model, std::derived_from<torch::optim::Optimizer> Optimizer>
  part(Run& of, std::string name, Model& model, Optimizer& optimizer)
      : part(of, std::move(name), model, optimizer, nullptr, without_numbers()) {}
  /// The same for a part that trains behind another one.
  template <class Run, class Model, std::derived_from<torch::optim::Optimizer> Optimizer>
  part(Run& of, std::string name, Model& model, Optimizer& optimizer, after follows)
      : part(of, std::move(name), model, optimizer, &follows.part, without_numbers()) {}
  /// For a recipe that leaves numbers open.
  template <class Run, class Model, std::derived_from<torch::optim::Optimizer> Optimizer>
  part(Run& of, std::string name, Model& model, Optimizer& optimizer, numbers const& all)
      : part(of, std::move(name), model, optimizer, nullptr, detail::recipe_numbers(config_of<recipe_type>, all)) {}
  /// The same for a recipe that leaves numbers open, behind another part.
  template <class Run, class Model, std::derived_from<torch::optim::Optimizer> Optimizer>
  part(Run& of, std::string name, Model& model, Optimizer& optimizer, after follows, numbers const& all)
      : part(of, std::move(name), model, optimizer, &follows.part, detail::recipe_numbers(config_of<recipe_type>, all)) {}
  ~part() override { owner_.remove(*this); }

  /// As a step's call. Throws as a step does.
  template <class Batch, class LossOf>
  step_outcome update(Batch const& batch, LossOf&& loss_of) {
    return taken([&] { return step_(batch, loss_of); });
  }
  /// The same without a batch.
  template <class LossOf>
    requires std::invocable<std::remove_reference_t<LossOf>&>
  step_outcome update(LossOf&& loss_of) {
    return taken([&] { return step_(loss_of); });
  }
  /// A micro-batch whose backward passes the program runs (step/own_backward.hpp).
  [[nodiscard]] own_backward open(std::int64_t rows = 1, std::int64_t tokens = 0) {
    detail::reject_own_backward<Recipe, configured>();
    return {*this, step_.parameters().device,  step_.environment().autocast(configured.precision.kind), step_.relief(),
            rows,  tokens == 0 ? rows : tokens};
  }
  /// Applies what an accumulation left incomplete; behind the loop it is recorded and saved as an iteration is.
  std::optional<step_outcome> flush() {
    bool const is_alone = !owner_.in_iteration();
    auto const last = owner_.inside(*this, [this] { return step_.flush(); });
    if (is_alone) owner_.end();
    return last;
  }

  /// Trains more of this part's model from here on, as trainer::unfreeze does. Throws as step::unfreeze, and error (E11) for a
  /// parameter that another part trains.
  template <class Module>
  void unfreeze(Module& module, double rate = 0.0) {
    auto const which = as_module(module).parameters();
    owner_.parts().require_free(*this, which);
    unfreeze(which, rate > 0.0 ? rate : step_.schedule().highest(0));
  }
  /// As trainer::change.
  void change(numbers const& some)
    requires(detail::leaves_numbers_open<recipe_type>)
  {
    config const before = step_.present_value();
    step_.change(some);
    owner_.note_change(name(), before, step_.present_value());
  }
  /// A hook for the events of this part's updates.
  template <class Hook>
  void on(Hook hook) {
    hooks_.add(std::move(hook));
  }
  /// Puts the moving average into the model for as long as the returned value lives, where the recipe has keel::ema.
  [[nodiscard]] auto averaged()
    requires(step_type::averages)
  {
    return step_.average().swap_in(step_.model());
  }

  /// Updates that were applied.
  std::int64_t updates() const override { return step_.updates(); }
  /// Updates that were skipped.
  std::int64_t skipped() const override { return step_.skipped(); }
  /// Share of the applied updates that the clip policy changed.
  double clip_fraction() const { return step_.clip_fraction(); }
  /// Of the first parameter group.
  double learning_rate() const override { return step_.learning_rate(); }
  /// Factor on the next update's loss.
  double loss_scale() const override { return step_.loss_scale(); }
  /// The recipe with this part's numbers in it.
  config const& recipe_value() const override { return step_.recipe_value(); }
  /// What the recipe does for memory.
  memory_settings const& relief() const override { return step_.relief(); }

 private:
  /// Rejected (U47) for a recipe that leaves numbers open.
  static detail::recipe_numbers without_numbers() {
    if constexpr (detail::leaves_numbers_open<recipe_type>) {
      detail::reject_call<rule::U47, Recipe>();
      return detail::recipe_numbers(config_of<recipe_type>, numbers{});
    } else {
      return detail::recipe_numbers(config_of<recipe_type>);
    }
  }

  /// What a part asks of its run, whatever that run's recipe.
  class owner {
   public:
    template <class Run>
    explicit owner(Run& of)
        : parts_(&of.parts_),
          registered_(&of.checkpoints_.registered()),
          ranks_(&of.ranks_),
          threw_(&of.threw_),
          recipe_(&of.recipe_value()),
          begin_([&of] {
            of.leaving_if_it_throws([&of] {
              if (!of.begun_) of.begin_run();
              of.begin_iteration();
            });
          }),
          in_iteration_(&of.in_iteration_),
          end_([&of] { of.leaving_if_it_throws([&of] { of.end_iteration(false, 0); }); }),
          added_([&of](std::string const& name, detail::run_parts& alone) { of.checkpoints_.part_added(name, alone); }),
          note_change_([&of](std::string const& name, config const& before, config const& now) {
            of.log_.numbers_changed(of.updates(), before, now, name);
          }) {}
    void add(part& one, detail::run_part const* follows) {
      parts_->add(one, follows);
      one.step_.restore_on_skip(*registered_);
      try {
        detail::run_parts alone;
        alone.add(one, follows);
        added_(one.name(), alone);
      } catch (...) {
        parts_->take_back(one);
        throw;
      }
    }
    void remove(part& one) { parts_->remove(one); }
    /// Gradients of another part's open update are set aside meanwhile: this one's backward pass runs through its model too.
    template <class Call>
    auto inside(part& one, Call const& call) {
      begin_();
      set_aside const others(*parts_, one);
      ranks_->begin_call();
      threw_->clear();
      try {
        return call();
      } catch (std::exception const& thrown) {
        *threw_ = first_line(thrown);
        ranks_->threw(one.step_.ranks().all_know(), threw_->c_str());
        throw;
      }
    }
    /// What is thrown next, all ranks throw, or this one.
    void throws(bool all_ranks) { ranks_->threw(all_ranks, ""); }
    detail::run_parts& parts() const { return *parts_; }
    config const& recipe() const { return *recipe_; }
    bool in_iteration() const { return *in_iteration_; }
    void end() { end_(); }
    void note_change(std::string const& name, config const& before, config const& now) const {
      note_change_(name, before, now);
    }

   private:
    class set_aside {
     public:
      set_aside(detail::run_parts const& all, part const& one) {
        for (detail::run_part* const other : all.all()) {
          if (other == &one || other->at_boundary()) continue;
          for (at::Tensor const& parameter : other->named_parameters().tensors) {
            kept_.emplace_back(parameter, parameter.grad());
            parameter.mutable_grad() = at::Tensor();
          }
        }
      }
      set_aside(set_aside const&) = delete;
      set_aside& operator=(set_aside const&) = delete;
      ~set_aside() {
        for (auto& [parameter, gradient] : kept_) parameter.mutable_grad() = gradient;
      }

     private:
      std::vector<std::pair<at::Tensor, at::Tensor>> kept_;
    };

    detail::run_parts* parts_;
    registered_states* registered_;
    detail::iterations_of_ranks* ranks_;
    std::string* threw_;
    config const* recipe_;
    std::function<void()> begin_;
    bool const* in_iteration_;
    std::function<void()> end_;
    std::function<void(std::string const&, detail::run_parts&)> added_;
    std::function<void(std::string const&, config const&, config const&)> note_change_;
  };

  template <class Run, class Model, class Optimizer>
  part(Run& of, std::string name, Model& model, Optimizer& optimizer, detail::run_part* follows,
       detail::recipe_numbers const& all)
      : run_part(std::move(name)), owner_(of), step_(model, optimizer, all, of.length(), *this, world_in(of, this->name())) {
    // Also what only both recipes together break.
    if constexpr (!std::same_as<recipe_type, detail::inert> && !std::same_as<typename Run::recipe_type, detail::inert>)
        [[maybe_unused]]
      detail::verdict_of<detail::in_a_run<Recipe, typename Run::recipe_type>> said;
    if constexpr (step_type::replicates) step_.ranks().move_to("an update of the part " + this->name());
    step_.phases().use(of.options_.clock());
    step_.phases().listen(&of.shown_);
    name_model(owner_.parts().model_name(*this, follows));
    name_parameters(step_.parameters());
    owner_.add(*this, follows);
  }

  /// Rejected (U59) where only one of them trains on several ranks.
  template <class Run>
  static world_of_ranks world_in(Run const& of, std::string const& name) {
    constexpr bool is_rejected =
        std::same_as<recipe_type, detail::inert> || std::same_as<typename Run::recipe_type, detail::inert>;
    if constexpr (!is_rejected && step_type::replicates != Run::is_of_ranks)
      detail::reject_call<rule::U59, Recipe, typename Run::recipe_type>();
    if constexpr (step_type::replicates) detail::require_same_lines(of.ranks_.world(), "part " + name + "\n");
    return of.ranks_.world();
  }

  template <class Call>
  step_outcome taken(Call const& call) {
    step_outcome const outcome = owner_.inside(*this, call);
    if (auto const* const ended = outcome.gave_up()) {
      owner_.throws(true);
      throw out_of_memory_error("E09", "memory ran out in the part " + name() + ", and its ladder has no further rung: " +
                                           ended->detail + ". Make its batches smaller.");
    }
    return outcome;
  }

  void observe(event::update_begin const& event) override { hooks_(event); }
  void observe(event::micro_batch_begin const& event) override { hooks_(event); }
  void observe(event::micro_batch_end const& event) override { hooks_(event); }
  void observe(event::gradients_ready const& event) override { hooks_(event); }
  void observe(event::incident const& event) override { hooks_(event); }
  void observe(event::layers_measured const& event) override { hooks_(event); }
  void observe(event::out_of_memory const& event) override { hooks_(event); }
  void observe(event::rung_released const& event) override { hooks_(event); }
  void observe(event::update_end const& event) override {
    figures_.rows += event.rows;
    figures_.tokens += event.tokens;
    if (auto const* const updated = event.result.updated()) {
      ++figures_.applied;
      figures_.clipped += updated->clipped ? 1 : 0;
      figures_.loss += event.loss;
      figures_.gradient_norm += event.gradient_norm;
      if (!event.losses.empty()) figures_.losses.assign(event.losses.begin(), event.losses.end());
    } else if (auto const* const skipped = event.result.skipped()) {
      ++figures_.skipped;
      figures_.why = *skipped;
    }
    hooks_(event);
  }
  bool reads_losses() const override { return hooks_.template has_hook_for<event::micro_batch_end>(); }
  bool reads_gradients() const override { return hooks_.template has_hook_for<event::gradients_ready>(); }
  config judged(config const& value) const override { return detail::joined_with_run(value, owner_.recipe()); }

  // A micro-batch whose backward passes the program runs.
  void begin_own() override {
    owner_.inside(*this, [this] { step_.begin_own(); });
  }
  step_outcome end_own(weighted_loss const& loss, std::int64_t rows, std::int64_t tokens) override {
    return taken([&] { return step_.end_own(loss, rows, tokens); });
  }
  void abandon_own() override {
    step_.abandon_own();
    owner_.throws(step_.ranks().all_know());
  }

  // As the run sees it.
  torch::nn::Module& model() override { return step_.model(); }
  torch::optim::Optimizer& optimizer() override { return step_.optimizer(); }
  run_facts const& facts() override { return step_.facts(); }
  detail::optimizer_shares* shares() override { return step_.ranks().shares(); }
  bool at_boundary() const override { return step_.at_boundary(); }
  bool is_half_updated() const override { return step_.is_half_updated(); }
  void settle() override { step_.settle(); }
  void verify_replicas() override { step_.verify_replicas(); }
  void drop_update() override { step_.drop_update(); }
  std::optional<rollback_request> take_rollback_request() override { return step_.guards().take_rollback_request(); }
  double highest_rate() override { return step_.schedule().highest(0); }
  double lowered() override { return step_.schedule().lowered(); }
  void lower(double factor) override { step_.schedule().lower(factor); }
  void take_loaded_rates() override { step_.schedule().take_loaded_rates(); }
  void evaluated(double value, bool larger_is_better) override { step_.schedule().evaluated(value, larger_is_better); }
  void require_parameters_in_place() override {
    if constexpr (step_type::averages) step_.average().require_parameters_in_place();
  }
  void unfreeze(std::vector<at::Tensor> const& which, double rate) override {
    step_.unfreeze(which, rate);
    name_parameters(step_.parameters());
  }
  bool refreeze_last_group() override {
    bool const was_unfrozen = step_.refreeze_last_group();
    name_parameters(step_.parameters());
    return was_unfrozen;
  }
  void restore_on_skip(program_state& state) override { step_.restore_on_skip(state); }
  void restore_on_skip(torch::nn::Module& other) override { step_.restore_on_skip(other); }
  void forget(torch::nn::Module& other) override { step_.forget(other); }
  void visit(state_writer& archive) override { step_.visit(archive); }
  void visit(state_reader& archive) override { step_.visit(archive); }

  hooks hooks_;
  owner owner_;
  step_type step_;
};

}  // namespace keel::inline KEEL_MODE
