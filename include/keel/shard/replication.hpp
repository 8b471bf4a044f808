// shard::replicate: everything everywhere. What the ranks of a step decide together, in one packed collective an update, and the sum of
// their gradients. No rank takes a branch before a collective by itself: one that throws takes part with what it threw, and so does one
// whose loss is not finite.
// Left out: sums that begin while the backward pass runs; they are made at the window's end.
#pragma once

#include <keel/libtorch/ivalue_first.hpp>

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <cstdint>
#include <exception>
#include <keel/collective/world_of_ranks.hpp>
#include <keel/config/config.hpp>
#include <keel/core/parameters.hpp>
#include <string>
#include <type_traits>

namespace keel::detail {

/// What the micro-batches of an update came to, on one rank or on all.
struct window_of_ranks {
  double loss = 0.0;  ///< times its weight, summed
  double loss_weight = 0.0;
  double weight = 0.0;  ///< of the gradients, in units of `unit`
  double unit = 0.0;    ///< what a micro-batch's weight counts in
  std::int64_t rows = 0;
  std::int64_t tokens = 0;
  std::int64_t updates = 0;           ///< applied and skipped before this one
  std::int64_t without_gradient = 0;  ///< parameters
  int nonfinite_on = -1;              ///< the first rank whose loss is not finite
};

class replication {
 public:
  explicit replication(world_of_ranks world = {});
  replication(replication const&) = delete;
  replication& operator=(replication const&) = delete;
  /// Where an exception ends the step, the other ranks learn it.
  ~replication();

  world_of_ranks const& world() const { return world_; }
  bool is_shared() const { return world_.size() > 1; }

  /// All ranks, before the first update: rank 0's parameters and buffers are everyone's. Throws world_error (E24) on every rank for one
  /// with another recipe, other parameters or other learning rates, and says both.
  void begin(config const& recipe, parameter_list const& parameters, torch::nn::Module& model,
             torch::optim::Optimizer& optimizer);

  /// A call of the step begins: if it throws, the other ranks are to know.
  void begin_call() { told_ = false; }
  /// All ranks, at the end of a window: what it came to on all of them, in the unit of the first rank that has one. Throws world_error
  /// (E25) where another rank threw, with its words, or is at another update, with both numbers.
  window_of_ranks agree(window_of_ranks const& mine);
  /// This rank's call ends with an exception, in whose handler this is: takes part in the agreement that the others are in, or come to.
  void tell() noexcept { tell(std::current_exception()); }
  void tell(std::exception_ptr const& thrown) noexcept;
  /// All ranks: false where one of them has no open update.
  bool all_have(bool open_update) const;

  /// The sum of the gradients of all ranks, each times `relative`, in float32 where they are narrower. A parameter that has one on any rank has
  /// one on all.
  void sum_gradients(parameter_list const& parameters, double relative, bool all_have_all) const;
  /// Throws error (E11) for a sparse gradient, before anything is summed.
  static void require_dense(parameter_list const& parameters);

 private:
  window_of_ranks exchange(window_of_ranks const& mine, std::string const& threw);

  world_of_ranks world_;
  bool told_ = true;
  int unwinding_;  ///< exceptions when it was built
};

/// Of a recipe that does not replicate.
struct no_replication {
  template <class World>
  explicit no_replication(World const& /*world*/) {}
  static constexpr bool is_shared() { return false; }
  static void begin_call() {}
  static void tell() noexcept {}
  static void tell(std::exception_ptr const& /*thrown*/) noexcept {}
  static bool all_have(bool /*open_update*/) { return true; }
};
template <bool Replicates>
using replication_if = std::conditional_t<Replicates, replication, no_replication>;

/// How many a recipe's step is one of, or how many processes there are that it knows nothing of (W01).
template <bool Replicates, class Environment, class World>
std::int64_t ranks_of([[maybe_unused]] World const& world) {
  if constexpr (Replicates) {
    return world.size();
  } else {
    return Environment::ranks();
  }
}

}  // namespace keel::detail

#if !__has_include(<keel_bodies_are_compiled>)
#include <keel/shard/replication.ipp>
#endif
