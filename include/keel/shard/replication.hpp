// shard::replicate: everything everywhere, and shard::zero<1>, where optimizer_shards.hpp cuts the optimizer's state. What the ranks of a
// step decide together, in one packed collective an update, and the sum of their gradients. No rank takes a branch before a collective by
// itself: one that throws takes part with what it threw, and so does one whose loss is not finite, whose data has ended, or that was asked to
// stop or to save.
// Where the host knows the loss before the last backward pass of an update, or leaves it on the device that decides, the ranks agree while
// that pass runs, and the sums begin in it (gradient_sums.hpp); otherwise both follow it.
// Buffers, such as the statistics of batch normalisation, are rank 0's on all of them, from the end of an update on.
// Left out: batch statistics over all ranks.
#pragma once

#include <keel/libtorch/ivalue_first.hpp>

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <cmath>
#include <cstdint>
#include <exception>
#include <keel/collective/world_of_ranks.hpp>
#include <keel/config/config.hpp>
#include <keel/core/error.hpp>
#include <keel/core/out_of_memory.hpp>
#include <keel/core/parameters.hpp>
#include <keel/shard/gradient_sums.hpp>
#include <keel/shard/optimizer_shards.hpp>
#include <keel/shard/packed_agreement.hpp>
#include <keel/shard/rank_requests.hpp>
#include <keel/shard/replicas.hpp>
#include <keel/shard/shared_buffers.hpp>
#include <keel/shard/straggler_watch.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace keel::detail::inline KEEL_MODE {

/// What the micro-batches of an update came to, on one rank or on all.
struct update_summary {
  double loss = 0.0;  ///< times its weight, summed
  double loss_weight = 0.0;
  double weight = 0.0;  ///< of the gradients, in units of `unit`
  double unit = 0.0;    ///< what a micro-batch's weight counts in
  std::int64_t rows = 0;
  std::int64_t tokens = 0;
  std::int64_t updates = 0;       ///< applied and skipped before this one
  int first_nonfinite_rank = -1;  ///< the first rank whose loss is not finite
  int first_exhausted_rank = -1;  ///< the first rank that has no more data
  std::uint32_t names = 0;        ///< a checksum of those of its losses; of all ranks 0 where they differ
  bool on_device = false;         ///< its loss stays there, and whether the update takes place is decided there

  /// Of all ranks: the gradients are added up.
  bool is_finite() const { return first_nonfinite_rank < 0 && std::isfinite(loss); }
};

/// Thrown where the data of a rank has ended in the middle of an update of the others, which then drop it. No error: it ends an epoch.
struct peer_data_exhausted {
  int rank;
};

/// Thrown on the ranks that had memory enough, where an update of a recipe with a ladder begins again on all.
struct out_of_memory_on_peer : std::exception {
  char const* what() const noexcept override { return "memory ran out on another rank"; }
};

class replication final : public rank_requests {
 public:
  explicit replication(world_of_ranks world = {});
  /// Where an exception ends the step, the other ranks learn it.
  ~replication();

  /// What its updates are of, such as "an update of the part critic", by which ranks that make different ones learn it.
  void set_location(std::string place) {
    if (numbers_) numbers_->set_location(std::move(place));
  }

  /// All ranks, before the first update: rank 0's parameters and buffers are everyone's. Throws world_error (E24) on every rank for one
  /// with another recipe, other parameters, another optimizer or other options of it, another length, keel or LibTorch, and says both;
  /// error (E12) for an optimizer with a closure; of shard::zero<1> what optimizer_shards throws. Model, optimizer and parameters outlive
  /// this. `updates`: the length of the run, or 0. `on_device`: losses stay there.
  void begin(config const& recipe, parameter_list const& parameters, torch::nn::Module& model,
             torch::optim::Optimizer& optimizer, std::int64_t updates, bool has_closure, bool on_device);

  /// A run begins: what ended the one before it is over.
  void begin_run() { is_failure_collective_ = false; }
  /// A call of the step begins: if it throws, the other ranks are to know.
  void begin_call() { is_failure_reported_ = is_failure_collective_ = ran_out_of_memory_ = false; }
  /// Before the last backward pass of a window, what the window comes to with it, which is finite here or on the device: the agreement
  /// begins, and the sums of gradients that are complete.
  void begin_agreement(update_summary const& local);
  /// All ranks, at the end of a window: what it came to on all of them, in the unit of the first rank that has one. Where it is finite, each
  /// sums the gradients next. Throws world_error where another rank threw, with its words (E25), or is at another update, trains other
  /// parameters, has other learning rates or, by a sample, other values of the parameters (E26).
  update_summary agree(update_summary const& local);
  /// What this rank is asked for, which the others learn at the next agreement.
  void ask(pending_requests const& local) { local_ = local; }
  /// This rank's data has ended: takes part in an agreement of the others, whose update is dropped unless theirs ended too. `updates`: as in
  /// update_summary.
  void end_of_data(std::int64_t updates);
  /// This rank's call ends with an exception, in whose handler this is: takes part in the agreement that the others are in, or come to.
  void report_failure() noexcept { report_failure(std::current_exception()); }
  void report_failure(std::exception_ptr const& thrown) noexcept;
  /// Memory ran out on this rank, which takes part in what the others are in, or come to: theirs throw out_of_memory_on_peer. Throws as agree()
  /// does where another rank threw.
  void report_out_of_memory();
  /// The allocator of this rank loses time, which the others learn at the next agreement.
  void request_rung(bool thrashes) { thrashes_ = thrashes; }
  /// The allocator of one of them did, as of the last agreement; said once, so that all take the rung behind the same update.
  bool take_rung_request() { return std::exchange(requests_.thrashes, false); }
  /// All ranks: false where one of several has no open update.
  bool all_have_open_update(bool open_update) const;

  /// All ranks, where they agreed on an update that is finite: the gradients are the sums of all, in the unit of the first rank, in float32 where
  /// they are narrower. A parameter that has one on any rank has one on all. Throws world_error (E25) where another rank threw meanwhile.
  void sum_gradients();
  /// Throws error (E11) for a sparse gradient, before anything is summed.
  static void require_dense(parameter_list const& parameters);
  /// Of shard::zero<1>; null: the optimizer's state is whole.
  optimizer_shards* shards() { return shards_ ? &*shards_ : nullptr; }
  /// Before these are trained too: throws error (E11) for one that cannot be cut, while nothing has changed yet.
  void require_trainable(std::vector<at::Tensor> const& which) const {
    for (std::size_t i = 0; shards_ && i < which.size(); ++i)
      optimizer_shards::require_dense_memory(which[i], "number " + std::to_string(i) + " of those to unfreeze");
  }
  void parameters_changed() {
    if (sums_) sums_->parameters_changed();
    if (shards_) shards_->parameters_changed();
  }
  void require_no_full_state() const {
    if (shards_) shards_->require_no_full_state();
  }
  /// The optimizer has its shares in the places of its parameters; `run` touches their state.
  template <class Run>
  void with_sharded_state(Run const& run) {
    optimizer_shards::scope const shards(this->shards());
    run();
  }
  template <class Run>
  void with_sharded_gradients(Run const& run) {
    optimizer_shards::scope const shards(this->shards(), optimizer_shards::scope::gradients::with);
    run();
  }
  /// What update() allocates, while nothing has changed yet.
  void prepare_update() {
    if (shards_) shards_->prepare();
  }
  /// An update of the parameters, after which each rank has the shares of the others. Where `run` throws, they learn it at once.
  template <class Run>
  void update(Run const& run) {
    notify_before_gather(run);
    if (shards_) shards_->gather_parameters();
  }
  /// All ranks, behind an update: every hundredth compares the replicas.
  void verify_replicas_periodically();
  /// All ranks: throws world_error that names what differs and the rank: E26 of a parameter or buffer, E24 of an option of the optimizer.
  void verify_replicas();
  /// The others wait in a collective that a rank which throws by itself does not come to, unless they know, or `is_reported(exception)`.
  template <class Run, class IsReported>
  void abort_peers_on_exception(Run const& run, IsReported const& is_reported) {
    try {
      run();
    } catch (world_error const&) {
      throw;
    } catch (std::exception const& thrown) {
      // Ranks skip together, and so reach a limit together.
      if (auto const* const skips = dynamic_cast<skip_limit_error const*>(&thrown))
        is_failure_collective_ |= skips->limit().has_value();
      if (is_shared() && !is_failure_collective_ && !is_reported(thrown)) world_.abort(first_line(thrown));
      throw;
    }
  }
  template <class Run>
  void abort_peers_on_exception(Run const& run) {
    abort_peers_on_exception(run, [](std::exception const&) { return false; });
  }
  /// What a rank does alone before its shares are wanted: where it throws, the others do not wait for them.
  template <class Run>
  void notify_before_gather(Run const& run) {
    try {
      run();
    } catch (std::exception const& thrown) {
      if (shards_) world_.abort(first_line(thrown));
      throw;
    } catch (...) {
      if (shards_) world_.abort("an exception without words");
      throw;
    }
  }
  /// All ranks, behind an agreement: rank 0's buffers are everyone's, of the model and of those that were added.
  void share_buffers();
  /// Another model that loss functions run through.
  void add_shared_model(torch::nn::Module const& other) { models_.push_back(&other); }
  void remove_shared_model(torch::nn::Module const& other) { std::erase(models_, &other); }
  /// The ranks' sums of numbers that all of them have, in their order.
  void sum(std::vector<double>& numbers) const;

 private:
  /// How a rank comes to an agreement that it cannot make.
  enum class ending : unsigned char { none, threw, out_of_memory };

  void begin_exchange(update_summary const& local, ending how);
  /// `message`: of what this rank came here with.
  update_summary finish_exchange(ending how, std::string const& message);
  void join_pending_collectives(ending how, std::string const& message);
  /// What all of them come to, where no rank threw.
  update_summary combine_summaries() const;
  /// The factor of this rank's gradients in the sums, where the exchange is complete and permits them.
  std::optional<double> permitted_sum_factor();
  double relative_factor(update_summary const& all) const;
  /// Of several ranks, once begin() was there.
  // NOLINTBEGIN(bugprone-unchecked-optional-access): begin() makes them
  gradient_sums& sums() { return *sums_; }
  packed_agreement& numbers() { return *numbers_; }
  packed_agreement const& numbers() const { return *numbers_; }
  // NOLINTEND(bugprone-unchecked-optional-access)
  /// All ranks: the update ends. `first`: the first rank that threw, whose words those without an exception throw; size(): none did, but memory
  /// ran out on one.
  void propagate_failure(int first, std::string const& threw);
  std::vector<double> group_learning_rates() const;

  torch::optim::Optimizer* optimizer_ = nullptr;
  parameter_list const* parameters_ = nullptr;
  torch::nn::Module* model_ = nullptr;
  bool has_ladder_ = false;
  std::int64_t updates_since_replica_check_ = 0;
  std::optional<gradient_sums> sums_;
  std::optional<optimizer_shards> shards_;
  pending_requests local_;
  busy_time busy_{world_};
  std::optional<packed_agreement> numbers_;
  bool is_exchanging_ = false;                    ///< an exchange has begun
  bool has_pending_sums_ = false;                 ///< the others are in the sums, or come to them
  double factor_ = 1.0;                           ///< of this rank's gradients there
  std::vector<torch::nn::Module const*> models_;  ///< whose buffers are shared
  shared_buffers buffers_;
  bool thrashes_ = false;
  bool ran_out_of_memory_ = false;  ///< memory ran out in this call
  bool is_failure_reported_ = true;
  int unwinding_;  ///< exceptions when it was built
};

}  // namespace keel::detail::inline KEEL_MODE

#ifndef KEEL_COMPILED
#include <keel/shard/replication.ipp>
#endif
