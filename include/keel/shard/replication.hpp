// Data-parallel training: shard::replicate (full replicas), shard::zero<1> (optimizer state sharded, see optimizer_shards.hpp), zero<2>
// (gradients sharded too, see gradient_shards.hpp) and zero<3> (parameters sharded too, see parameter_shards.hpp). Once per update, or per
// micro-batch under zero<2>, the ranks exchange one packed control message and sum the gradients; under zero<3> they also exchange it before
// each gather and each bucket of gradients, unless the pass is the expected one (expected_passes.hpp). No rank skips a collective alone: a
// rank that throws still takes part and reports its failure. So does a rank whose loss is not finite, whose data has ended, or that is
// requested to stop or save.
// If the loss is known before the last backward pass of an update, or stays on the device that decides, the exchange and the all-reduce
// overlap that pass (gradient_sums.hpp). Otherwise both follow it. The all-reduce also follows it if a rank exchanged after its pass in the
// last update, as with a hook of micro_batch_end.
// Buffers, such as batch norm's statistics, are broadcast from rank 0 at the end of each update.
// Not supported: batch statistics over all ranks.
#pragma once

#include <keel/libtorch/ivalue_first.hpp>

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <c10/util/FunctionRef.h>

#include <cmath>
#include <cstdint>
#include <exception>
#include <functional>
#include <keel/collective/world_of_ranks.hpp>
#include <keel/config/config.hpp>
#include <keel/core/error.hpp>
#include <keel/core/out_of_memory.hpp>
#include <keel/core/parameters.hpp>
#include <keel/gradients/gradient_norm.hpp>
#include <keel/shard/expected_passes.hpp>
#include <keel/shard/gradient_sums.hpp>
#include <keel/shard/optimizer_shards.hpp>
#include <keel/shard/packed_agreement.hpp>
#include <keel/shard/parameter_shards.hpp>
#include <keel/shard/rank_requests.hpp>
#include <keel/shard/replicas.hpp>
#include <keel/shard/shared_buffers.hpp>
#include <keel/shard/straggler_watch.hpp>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace keel::detail::inline KEEL_MODE {

/// Summary of an update's micro-batches, on one rank or over all ranks.
struct update_summary {
  double loss = 0.0;  ///< weighted sum
  double loss_weight = 0.0;
  double weight = 0.0;  ///< weight of the gradients, in units of `unit`
  double unit = 0.0;    ///< unit of a micro-batch's weight
  std::int64_t rows = 0;
  std::int64_t tokens = 0;
  std::int64_t updates = 0;       ///< applied and skipped before this one
  int first_nonfinite_rank = -1;  ///< the first rank whose loss is not finite
  int first_exhausted_rank = -1;  ///< the first rank that has no more data
  std::uint32_t names = 0;        ///< checksum of the names of its losses; over all ranks: 0 if they differ
  bool on_device = false;         ///< the loss stays on the device, which decides whether the update is applied

  /// For a summary over all ranks: true if the loss is finite on all, so that gradients are summed.
  bool is_finite() const { return first_nonfinite_rank < 0 && std::isfinite(loss); }
};

/// Thrown if a rank's data ended during an update of the others, which then discard it. It ends an epoch and is not an error.
struct peer_data_exhausted {
  int rank;
};

/// Thrown from the forward or backward pass of a micro-batch that another rank has ended; replication::end_pass() throws the reason.
struct pass_cancelled : std::exception {
  char const* what() const noexcept override { return "another rank has ended this update"; }
};

/// Thrown on ranks that did not run out of memory when another one did and, by the recipe's ladder, all restart the update.
struct out_of_memory_on_peer : std::exception {
  char const* what() const noexcept override { return "memory ran out on another rank"; }
};

class replication final : public rank_requests {
 public:
  explicit replication(world_of_ranks world = {});
  /// Aborts the world if an exception is ending the training, so that the other ranks do not wait.
  ~replication();

  /// Sets the description of this step's updates, such as "an update of the part critic". Ranks that make different updates throw E26 with
  /// it.
  void set_location(std::string place) {
    if (numbers_) numbers_->set_location(std::move(place));
  }

  /// Checks that all ranks have the same setup and broadcasts rank 0's parameters and buffers. Collective: call before the first update.
  /// Throws world_error (E24) with both values if a rank differs in recipe, parameters, optimizer, its options, length, keel or LibTorch.
  /// Throws error (E12) for an optimizer with a closure; for shard::zero<1> also as optimizer_shards does. Model, optimizer and parameters
  /// must outlive this object. `updates`: the length of the run, or 0. `on_device`: losses stay on the device.
  void begin(config const& recipe, parameter_list const& parameters, torch::nn::Module& model,
             torch::optim::Optimizer& optimizer, std::int64_t updates, bool has_closure, bool on_device);

  /// Call when a run begins: clears the failure of an earlier run.
  void begin_run() { is_failure_collective_ = false; }
  /// Call when a call of the step begins: an exception from now on must be reported to the other ranks.
  void begin_call() {
    is_failure_reported_ = is_failure_collective_ = ran_out_of_memory_ = is_cancelled_ = overlaps_ = false;
    progress_ = pass_progress::none;
    early_factor_.reset();
    pass_ended_ = nullptr;
  }
  /// Call before the last backward pass of an update with whether begin_agreement() precedes that pass on this rank.
  void set_overlaps(bool overlaps) { overlaps_ = overlaps; }
  /// Stops starting sums from gradient hooks: later backward passes are others, such as that of a trace.
  void forget_backward() {
    if (sums_) sums_->forget();
  }
  /// Starts the agreement, and lets gradient sums start in the last backward pass. Call before that pass with the update's summary, whose
  /// loss is finite or stays on the device. `loss`: what the pass begins with; undefined: sums start from any backward pass. Collective.
  void begin_agreement(update_summary const& local, at::Tensor const& loss = {});
  /// Returns the summary over all ranks, in the unit of the first rank that has one. Collective: call once all micro-batches are done; if
  /// the result is finite, call sum_gradients() next. Throws world_error (E25) with the message of another rank that threw. Throws
  /// world_error (E26) if a rank is at another update, trains other parameters, or has other learning rates or parameter values (a sample
  /// is compared).
  update_summary agree(update_summary const& local);
  /// Sets this rank's requests, which are sent to the others in the next agreement.
  void ask(pending_requests const& local) { local_ = local; }
  /// Reports that this rank's data has ended, in the agreement that the others are in; their update is discarded. Collective. `updates`: as
  /// in update_summary.
  void end_of_data(std::int64_t updates);
  /// Call from a catch block: completes the collective the other ranks are waiting in, marking this rank as failed.
  void report_failure() noexcept { report_failure(std::current_exception()); }
  void report_failure(std::exception_ptr const& thrown) noexcept;
  /// Reports that memory ran out on this rank, in the collective the others are waiting in; they throw out_of_memory_on_peer. Throws as
  /// agree() if another rank threw.
  void report_out_of_memory();
  /// Reports in the next agreement whether this rank's allocator is thrashing.
  void request_rung(bool thrashes) { thrashes_ = thrashes; }
  /// Returns and clears whether any rank's allocator was thrashing at the last agreement, so that all take the rung after the same update.
  bool take_rung_request() { return std::exchange(requests_.thrashes, false); }
  /// Returns true if every rank has an open update; always true with one rank. Collective.
  bool all_have_open_update(bool open_update) const;

  /// Replaces the gradients by their sums over all ranks, in the unit of the first rank that has one, in float32 for half-precision
  /// parameters. A parameter with a gradient on any rank then has one on all. Collective: call after an agreement on a finite update.
  /// Throws world_error (E25) if another rank threw since.
  void sum_gradients();
  /// Throws error (E11) for a sparse gradient, before anything is summed.
  static void require_dense(parameter_list const& parameters);
  /// True under shard::zero<2>: the ranks agree on each micro-batch and sum its gradients, of which each keeps its shards.
  bool shards_gradients() const { return sums_ && sums_->shards() != nullptr; }
  /// Call when an update begins, once the gradients of the last one are cleared.
  void begin_update();
  /// True if a gradient of this rank was sent since the update began.
  bool has_sent_gradients() const { return sums_ && sums_->has_sent(); }
  /// Returns the shards of the parameters with the summed gradients; call under zero<2>, after the last sum_gradients() of an update.
  std::span<at::Tensor const> gradient_shards();
  /// Returns the measure of whole gradients, from that of this rank's shards, which `of_shards` returns. Collective. If it throws on a rank,
  /// all throw, as in sum_gradients().
  gradient_measure measure(c10::function_ref<gradient_measure()> of_shards);
  /// Under zero<2>, call after each micro-batch but the last, once its gradients are sent. Unless `is_finite`, discards them: the update will
  /// be skipped.
  void end_micro_batch(bool is_finite);
  /// True under shard::zero<3>, where units gather their parameters. All ranks then run the same units at the same time; a rank that has no
  /// such pass takes part in those of the others within agree().
  bool shards_parameters() const { return parameter_shards_ != nullptr; }
  /// Call before parameters are written: completes the gathers that were begun. Collective.
  void end_passes();
  /// Gathers all parameters until drop_parameters(), so that they can be read and written outside of their units. Collective, both.
  /// Throws error (E12) in a hook of micro_batch_end.
  void gather_parameters();
  /// Returns a copy of all of a parameter that is sharded now; undefined for other tensors. Collective, after end_passes(). All ranks throw
  /// std::bad_alloc if one has no memory for it.
  at::Tensor gather_parameter(at::Tensor const& parameter);
  void drop_parameters() {
    if (!parameter_shards_) return;
    parameter_shards_->drop_all();
    if (on_gathered_) on_gathered_();
  }
  /// Called after parameters were gathered or sharded again, on all ranks.
  void set_gathered_hook(std::function<void()> call) { on_gathered_ = std::move(call); }
  /// This rank's shard of a parameter under zero<3>; undefined while it is whole, or gathered.
  at::Tensor shard_of(at::Tensor const& parameter) const {
    return parameter_shards_->are_all_gathered() ? at::Tensor() : parameter_shards_->shard_of(parameter);
  }
  parameter_shards const* sharded_parameters() const { return parameter_shards_.get(); }
  /// Call before the passes of a micro-batch.
  void begin_pass();
  /// Call after each backward pass: frees what units have gathered.
  void end_backward() {
    if (parameter_shards_) parameter_shards_->end_backward();
  }
  /// Call after the passes, also if they threw `thrown`: frees what units have gathered. Returns true if they ended early because another rank's
  /// loss is not finite, which agree() reports next. Otherwise rethrows what ended them on another rank, or `thrown`.
  bool end_pass(std::exception_ptr thrown);
  /// Call before each batch of an evaluation.
  void begin_evaluation_batch();
  /// Call after an evaluation: ranks with fewer batches take part in the gathers of the others. Collective.
  void end_evaluation();
  /// Call if an evaluation threw: the other ranks may be in the gathers of this batch.
  void cancel_evaluation() noexcept;
  /// Makes all parameters whole for good, before the step is destroyed. Collective.
  void unshard_parameters() {
    if (!parameter_shards_) return;
    parameter_shards_->unshard();
    if (on_gathered_) on_gathered_();
  }
  /// The shards of the optimizer state; null if it is not sharded.
  optimizer_shards* shards() { return shards_ ? &*shards_ : nullptr; }
  optimizer_shards const* shards() const { return shards_ ? &*shards_ : nullptr; }
  /// Throws error (E11) if one of these tensors cannot be sharded. Call before they are unfrozen; changes nothing.
  void require_trainable(std::vector<at::Tensor> const& which) const {
    for (std::size_t i = 0; shards_ && i < which.size(); ++i)
      optimizer_shards::require_dense_memory(which[i], "number " + std::to_string(i) + " of those to unfreeze");
  }
  void parameters_changed() {
    follow_expected();
    passes_.forget();
    if (shards_) shards_->clear_gradients();
    if (sums_) sums_->parameters_changed();
    if (parameter_shards_) parameter_shards_->trained_changed();
    if (shards_) shards_->parameters_changed();
  }
  void require_no_full_state() const {
    if (shards_) shards_->require_no_full_state();
  }
  /// Replaces the optimizer's parameters by this rank's shards during the lifetime of the result, for access to its state.
  [[nodiscard]] optimizer_shards::scope sharded_state() { return optimizer_shards::scope(shards()); }
  /// As above, with the shards of the gradients.
  [[nodiscard]] optimizer_shards::scope sharded_gradients() {
    return optimizer_shards::scope(shards(), optimizer_shards::scope::gradients::with);
  }
  /// Allocates the buffers of update(); changes no parameter.
  void prepare_update() {
    if (shards_) shards_->prepare();
  }
  /// Runs `run`, which updates the parameters, then all-gathers the shards. If `run` throws, aborts the world of sharded ranks. Collective.
  template <class Run>
  void update(Run const& run) {
    notify_before_gather(run);
    if (shards_) shards_->gather_parameters();
  }
  /// Compares the replicas at every hundredth call. Collective: call after each update.
  void verify_replicas_periodically();
  /// Compares the replicas. Collective. Throws world_error with the rank: E26 for a parameter or buffer that differs, E24 for an optimizer
  /// option.
  void verify_replicas();
  /// Runs `run`. If this rank alone throws, aborts the world so that the others do not hang in a collective, unless
  /// `is_reported(exception)`.
  template <class Run, class IsReported>
  void abort_peers_on_exception(Run const& run, IsReported const& is_reported) {
    try {
      run();
    } catch (world_error const&) {
      has_diverged_ = has_diverged_ || !is_failure_collective_;
      throw;
    } catch (std::exception const& thrown) {
      // Ranks skip together, and so reach a limit together.
      if (auto const* const skips = dynamic_cast<skip_limit_error const*>(&thrown))
        is_failure_collective_ |= skips->limit().has_value();
      if (is_shared() && !is_failure_collective_ && !is_reported(thrown)) abort_world(first_line(thrown));
      throw;
    }
  }
  template <class Run>
  void abort_peers_on_exception(Run const& run) {
    abort_peers_on_exception(run, [](std::exception const&) { return false; });
  }
  /// Runs rank-local work that precedes the all-gather of shards; on an exception aborts the world so that peers do not hang in the
  /// all-gather.
  template <class Run>
  void notify_before_gather(Run const& run) {
    try {
      run();
    } catch (std::exception const& thrown) {
      if (shards_) abort_world(first_line(thrown));
      throw;
    } catch (...) {
      if (shards_) abort_world("an exception that is not a std::exception");
      throw;
    }
  }
  /// Broadcasts rank 0's buffers of the model and of the added models. Collective: call after an agreement.
  void share_buffers();
  /// Adds another model whose buffers are shared, such as one that loss functions use. It must outlive this object, or be removed first.
  void add_shared_model(torch::nn::Module const& other) { models_.push_back(&other); }
  void remove_shared_model(torch::nn::Module const& other) { std::erase(models_, &other); }
  /// Sums each number over all ranks, in place. Collective: all ranks must pass as many numbers.
  void sum(std::vector<double>& numbers) const;

 private:
  /// Aborts the world because this rank alone has failed: its parameters may be of another update than those of the others.
  void abort_world(std::string const& why) noexcept {
    has_diverged_ = true;
    world_.abort(why);
  }
  /// How far a micro-batch is, under zero<3>: its passes are running, or have ended, and the ranks have not agreed on it yet.
  enum class pass_progress : unsigned char { none, running, undecided };
  /// Why a rank takes part in an agreement without a valid update.
  enum class ending : unsigned char { none, threw, out_of_memory };

  void begin_exchange(update_summary const& local, ending how, double phase = 0.0);
  /// Under zero<3>, announces the next collective of a pass to the other ranks: the gather of unit `collective`, or that bucket.
  /// First takes part in those of ranks in a higher phase. Collective. Throws pass_cancelled if a rank has ended its update, and world_error
  /// (E26) if ranks in one phase name different collectives.
  void announce(double phase, double collective, std::string const& name);
  /// True if this rank, which is at `name`, is in the highest phase of the last exchange. Otherwise takes part in the collective of those
  /// that are. Throws as announce() does.
  bool is_next(double phase, std::string const& name);
  /// Under zero<3>, begins the expected pass if all ranks said in the last exchange that they expect the same.
  void begin_expected();
  /// The next collective of the expected pass; null if none is left.
  pass_collective const* next_expected();
  /// Starts that collective if it is a gather, and the next gather after it.
  void start_next_expected();
  /// Takes part in the remaining collectives of the expected pass, of which this rank does not have the next one. Collective.
  void follow_expected();
  /// Completes the exchange that was begun before the backward pass; true if the ranks' updates continue.
  bool complete_early_agreement();
  /// True if the last exchange ended the update.
  bool has_ended() const;
  /// Takes part in the collectives of the other ranks' passes until these reach the agreement, too.
  void follow_passes(std::string const& message);
  /// The first rank whose number in the last exchange is not 0; -1: none.
  int first_rank_with(std::int64_t number) const;
  /// Returns true if the last exchange is one of whole updates, not of passes.
  bool is_of_updates() const;
  /// Throws as agree() if the last exchange says that a rank threw or ran out of memory; returns true if it says so and this rank's own
  /// exception is on its way.
  bool propagate_failures(ending how, std::string const& message);
  /// Throws error (E12) between a pass and the agreement on its micro-batch, when `what` must not be gathered.
  void require_decided(std::string const& what) const;
  /// Ends the pass of this rank because the last exchange ended the update.
  [[noreturn]] void cancel_pass();
  /// `message`: the error of this rank, if it failed.
  update_summary finish_exchange(ending how, std::string const& message);
  void join_pending_collectives(ending how, std::string const& message);
  /// Returns the summary over all ranks; call if no rank threw.
  update_summary combine_summaries() const;
  /// Returns the factor of this rank's gradients if the exchange is complete and permits sums; else nullopt.
  std::optional<double> permitted_sum_factor();
  double relative_factor(update_summary const& all) const;
  /// Call on all ranks after at least one failed: throws `own`, the exception of this rank, or what the others threw. Collective.
  void share_failure(std::exception_ptr const& own);
  /// Allocates what measure() sends.
  void prepare_measure();
  /// Valid with several ranks, after begin().
  // NOLINTBEGIN(bugprone-unchecked-optional-access): set by begin()
  gradient_sums& sums() { return *sums_; }
  gradient_sums const& sums() const { return *sums_; }
  optimizer_shards& state_shards() { return *shards_; }
  packed_agreement& numbers() { return *numbers_; }
  packed_agreement const& numbers() const { return *numbers_; }
  // NOLINTEND(bugprone-unchecked-optional-access)
  /// Ends the update: ranks without an exception throw the message of rank `first`, the first that threw. If `first` is size(), none threw
  /// but memory ran out on one. Collective.
  void propagate_failure(int first, std::string const& threw);
  std::vector<double> group_learning_rates() const;

  torch::optim::Optimizer* optimizer_ = nullptr;
  parameter_list const* parameters_ = nullptr;
  torch::nn::Module* model_ = nullptr;
  bool has_ladder_ = false;
  std::int64_t updates_since_replica_check_ = 0;
  std::optional<gradient_sums> sums_;
  std::optional<optimizer_shards> shards_;
  std::shared_ptr<parameter_shards> parameter_shards_;
  std::function<void()> on_gathered_;
  std::optional<double>
      early_factor_;  ///< under zero<3>: the factor of this rank's gradients, once the backward pass was agreed on
  pass_progress progress_ = pass_progress::none;
  std::exception_ptr pass_ended_;  ///< under zero<3>: what ended a pass of this rank on another one
  expected_passes passes_;         ///< under zero<3>
  bool is_cancelled_ = false;      ///< under zero<3>: units no longer gather in this pass
  bool has_cancelled_ = false;     ///< under zero<3>: a pass of the open update was cancelled, so that it will be skipped
  pending_requests local_;
  busy_time busy_{world_};
  std::optional<packed_agreement> numbers_;
  bool is_exchanging_ = false;                    ///< an exchange has begun
  bool overlaps_ = false;                         ///< set_overlaps()
  bool all_overlapped_ = true;                    ///< in the last exchange
  bool has_pending_sums_ = false;                 ///< the others are in the gradient sums, or will start them
  double factor_ = 1.0;                           ///< factor of this rank's gradients in the sums
  std::int64_t trained_ = 0;                      ///< checksum of the parameters that require grad
  std::int64_t known_cuts_ = 0;                   ///< of the gradient sums, to which the expected passes belong
  double unit_ = 0.0;                             ///< unit of the weights in the open update; 0: no rank has one yet
  std::vector<torch::nn::Module const*> models_;  ///< models with shared buffers
  shared_buffers buffers_;
  at::Tensor own_measure_, all_measures_;  ///< squares, unit, first non-finite parameter and failure, of this rank and of all
  bool thrashes_ = false;
  bool ran_out_of_memory_ = false;  ///< memory ran out in this call
  bool is_set_up_ = false;          ///< begin() has returned
  bool has_diverged_ = false;       ///< this rank's parameters may be of another update than those of the others
  bool is_failure_reported_ = true;
  int unwinding_;  ///< uncaught exceptions at construction
};

}  // namespace keel::detail::inline KEEL_MODE

#ifndef KEEL_COMPILED
#include <keel/shard/replication.ipp>
#include <keel/shard/replication_passes.ipp>
#endif
