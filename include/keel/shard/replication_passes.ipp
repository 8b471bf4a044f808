// Definitions for replication.hpp: the passes of shard::zero<3>, in which ranks take part in each other's collectives.
#pragma once

#include <keel/libtorch/ivalue_first.hpp>

#include <keel/core/error.hpp>
#include <keel/shard/replication.hpp>
#include <keel/shard/replication_message.hpp>
#include <utility>

#include <keel/libtorch/detail/body_begin.inc>

namespace keel::detail::inline KEEL_MODE {

KEEL_BODY void replication::announce(double phase, double collective, std::string const& name) {
  if (!is_shared()) return;
  if (running_step() != nullptr && running_step() != this)
    throw error("E12", name +
                           " belongs to another step with keel::shard::zero<3> than the one whose loss is computed. Use "
                           "keel::shard::zero<2> for models that call each other.");
  require_decided(name);
  if (is_cancelled_) throw pass_cancelled();
  if (auto const failed = sums().failure()) std::rethrow_exception(failed);
  if (is_exchanging_ && !complete_early_agreement()) {
    is_cancelled_ = true;
    throw pass_cancelled();
  }
  pass_collective const one{phase, collective};
  if (auto const* const next = next_expected()) {
    if (*next == one) {
      start_next_expected();
      passes_.record(one);
      return;
    }
    passes_.deviate();
    follow_expected();
  }
  auto const is_begun = [&] { return phase == pass_phase::bucket && collective < static_cast<double>(sums().next_bucket()); };
  bool const may_expect = passes_.may_begin_with(one);
  if (may_expect) parameter_shards_->prepare_buffers();
  do {
    // For the other ranks, whose sums have it.
    if (is_begun()) return;
    for (std::int64_t i = 0; i < packed_field::count; ++i) numbers().local(i) = 0.0;
    numbers().local(packed_field::phase) = phase;
    numbers().local(packed_field::collective) = collective;
    numbers().local(packed_field::sequence) = passes_.has_deviated() ? has_deviated_pass
                                              : may_expect           ? passes_.checksum()
                                                                     : 0.0;
    numbers().begin();
    numbers().wait();
    if (has_ended()) cancel_pass();
  } while (!is_next(phase, name));
  if (may_expect) begin_expected();
  if (next_expected() != nullptr) start_next_expected();
  passes_.record(one);
}

KEEL_BODY void replication::begin_expected() {
  for (auto const one : {packed_field::phase, packed_field::collective, packed_field::sequence}) {
    if (numbers().first_mismatch(one) >= 0) return;
  }
  passes_.expect(numbers().of(0, packed_field::sequence));
}

KEEL_BODY pass_collective const* replication::next_expected() {
  return passes_.next(parameter_shards_ ? sums().next_bucket() : 0);
}

KEEL_BODY void replication::start_next_expected() {
  pass_collective const& next = *next_expected();
  if (!next.is_bucket()) parameter_shards_->begin_gather(next.number);
  if (auto const* const after = passes_.gather_after_next()) parameter_shards_->begin_gather(after->number);
  if (!next.is_bucket()) passes_.pop();
}

KEEL_BODY void replication::follow_expected() {
  while (auto const* const next = next_expected()) {
    pass_collective const one = *next;
    start_next_expected();
    if (one.is_bucket()) {
      sums().begin_next(early_factor_.value_or(1.0));
    } else {
      parameter_shards_->follow_gather(one.number);
    }
  }
}

KEEL_BODY void replication::require_decided(std::string const& what) const {
  if (progress_ != pass_progress::undecided) return;
  throw error("E12",
              what +
                  " was gathered in a hook of micro_batch_end, but under keel::shard::zero<3> the ranks have not agreed on the "
                  "micro-batch yet. Read parameters and evaluate in a hook of update_end, or between micro-batches.");
}

KEEL_BODY void replication::end_passes() {
  if (!parameter_shards_) return;
  follow_expected();
  if (passes_.is_inside()) passes_.forget();
  passes_.leave();
}

KEEL_BODY void replication::gather_parameters() {
  if (!parameter_shards_) return;
  require_decided("the model");
  end_passes();
  parameter_shards_->gather_all();
  if (!on_gathered_) return;
  try {
    on_gathered_();
  } catch (std::exception const& thrown) {
    // The other ranks may wait in the same collective.
    abort_world(first_line(thrown));
    parameter_shards_->drop_all();
    throw;
  }
}

KEEL_BODY at::Tensor replication::gather_parameter(at::Tensor const& parameter) {
  if (!parameter_shards_) return {};
  at::Tensor const shard = shard_of(parameter);
  if (!shard.defined()) return {};
  at::NoGradGuard const no_grad;
  std::optional<parameter_shards::whole_buffers> buffers;
  try {
    buffers = parameter_shards_->allocate_whole(parameter, shard);
  } catch (std::exception const& thrown) {
    // Thrown by all ranks, below.
    if (!is_out_of_memory(thrown)) throw;
  }
  if (!world_.combine(reduce::min{}, buffers.has_value())) throw std::bad_alloc();
  return parameter_shards_->assemble(parameter, shard, *std::move(buffers));
}

KEEL_BODY void replication::begin_pass() {
  if (!parameter_shards_) return;
  if (parameter_shards_->are_all_gathered())
    throw error("E12",
                "a micro-batch was begun while the result of gather_parameters() exists, which would undo its update. End that "
                "scope before.");
  follow_expected();
  sums().take_failure();
  is_cancelled_ = false;
  passes_.begin_forward();
  progress_ = pass_progress::running;
  running_step() = this;
}

KEEL_BODY bool replication::end_pass(std::exception_ptr thrown) {
  if (!parameter_shards_) return false;
  running_step() = nullptr;
  progress_ = pass_progress::none;
  passes_.leave();
  parameter_shards_->end_backward();
  bool const is_cancelled = std::exchange(is_cancelled_, false);
  // All ranks threw what the hook of a bucket did, and autograd did not propagate it.
  if (!thrown && is_failure_collective_) thrown = sums().take_failure();
  // What a bucket's hook threw has ended the pass, too; if it did not, sum_gradients() reports it.
  if (thrown || is_cancelled) sums().take_failure();
  if (pass_ended_ || (thrown && !is_cancelled)) {
    sums().forget();
    if (pass_ended_) early_factor_.reset();
  }
  if (pass_ended_) std::rethrow_exception(std::exchange(pass_ended_, nullptr));
  if (!is_cancelled && thrown) std::rethrow_exception(thrown);
  if (!is_cancelled) {
    follow_expected();
    passes_.end_micro_batch();
    progress_ = pass_progress::undecided;
    return false;
  }
  sums().wait_for_begun();
  for (at::Tensor const& one : parameters_->tensors) one.mutable_grad() = at::Tensor();
  sums().shards()->discarded();
  has_cancelled_ = true;
  progress_ = pass_progress::undecided;
  return true;
}

KEEL_BODY void replication::follow_passes(std::string const& message) {
  for (;;) {
    if (first_rank_with(packed_field::threw) >= 0 || first_rank_with(packed_field::ended) >= 0) return;
    if (is_of_updates() && has_ended()) return;
    // A loss that is not finite cancels the passes of the other ranks, which then come here, too.
    bool const is_cancelled = first_rank_with(packed_field::nonfinite) >= 0;
    if (!is_cancelled && is_next(pass_phase::agreement, "the end of its micro-batch")) return;
    numbers().begin();
    numbers().wait(message);
  }
}

KEEL_BODY void replication::cancel_evaluation() noexcept {
  try {
    follow_expected();
  } catch (...) {
    // The evaluation's own exception is already propagating, and this one has the same cause or comes from a world that is broken.
  }
  passes_.leave();
  if (progress_ != pass_progress::running) is_cancelled_ = false;
}

KEEL_BODY void replication::begin_evaluation_batch() {
  if (!parameter_shards_ || !is_shared()) return;
  require_decided("a unit of an evaluation");
  follow_expected();
  passes_.begin_evaluation();
}

KEEL_BODY void replication::end_evaluation() {
  if (!parameter_shards_ || !is_shared()) return;
  follow_expected();
  passes_.end_evaluation();
  for (std::int64_t i = 0; i < packed_field::count; ++i) numbers().local(i) = 0.0;
  numbers().begin();
  numbers().wait();
  follow_passes("");
  propagate_failures(ending::none, "");
}

}  // namespace keel::detail::inline KEEL_MODE

#include <keel/libtorch/detail/body_end.inc>
