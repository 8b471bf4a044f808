// Definitions for replication.hpp.
#pragma once

#include <keel/libtorch/ivalue_first.hpp>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>
#include <c10/util/ScopeExit.h>
#include <c10/util/Type.h>
#include <torch/version.h>

#include <algorithm>
#include <cmath>
#include <keel/checkpoint/optimizer_state.hpp>
#include <keel/collective/broadcast_string.hpp>
#include <keel/collective/collectives.hpp>
#include <keel/config/describe.hpp>
#include <keel/core/error.hpp>
#include <keel/core/out_of_memory.hpp>
#include <keel/core/version.hpp>
#include <keel/shard/replication.hpp>
#include <keel/shard/replication_message.hpp>
#include <limits>
#include <typeinfo>
#include <utility>
#include <vector>

#include <keel/libtorch/detail/body_begin.inc>

namespace keel::detail::inline KEEL_MODE {

/// Describes the optimizer's groups, one line per option and per parameter.
inline std::string describe_param_groups(parameter_list const& parameters, torch::optim::Optimizer& optimizer) {
  std::string lines;
  std::size_t group_number = 0, parameter = 0;
  for (auto& group : optimizer.param_groups()) {
    std::string const of_group = "the optimizer's group " + std::to_string(group_number++) + ": ";
    nlohmann::json const options = options_of(optimizer, group);
    for (auto const& [name, value] : options.items()) lines += of_group + name + " " + value.dump() + "\n";
    for (std::size_t i = 0; i < group.params().size(); ++i, ++parameter) {
      bool const is_known = parameter < parameters.names.size();
      lines += of_group + "parameter " + (is_known ? parameters.names[parameter] : "that the step does not know") + "\n";
    }
  }
  return lines;
}

/// Describes the settings that must be equal on all ranks, one per line. `updates`: the length of the run.
inline std::string describe_replicated_setup(config const& recipe, parameter_list const& parameters, torch::nn::Module& model,
                                             torch::optim::Optimizer& optimizer, std::int64_t updates) {
  config own = recipe;
  own.run = {};
  std::string lines = std::string("keel ") + version + "\nLibTorch " + TORCH_VERSION + "\nrecipe:\n" + describe(own).c_str();
  auto const add = [&](std::string const& name, at::Tensor const& one) {
    lines += name + " " + c10::toString(one.scalar_type()) + c10::str(one.sizes());
    lines += (one.is_cpu() ? "" : " on " + c10::DeviceTypeName(one.device().type(), true)) + "\n";
  };
  for (std::size_t i = 0; i < parameters.tensors.size(); ++i) add(parameters.names[i], parameters.tensors[i]);
  for (auto const& buffer : model.named_buffers()) add(buffer.key(), buffer.value());
  torch::optim::Optimizer const& typed = optimizer;
  return lines + "optimizer " + c10::demangle(typeid(typed).name()) + "\n" + describe_param_groups(parameters, optimizer) +
         "updates " + std::to_string(updates) + "\n";
}

/// Returns a checksum of a sample of the parameters before an update, a different sample in each. On a device it is 0 except before each
/// hundredth update, because it synchronizes the host.
inline double sample_parameter_bits(parameter_list const& parameters, std::int64_t update, bool on_device,
                                    c10::function_ref<bool(at::Tensor const&)> is_sharded) {
  constexpr std::int64_t most = 1 << 14;
  auto const count = static_cast<std::int64_t>(parameters.tensors.size());
  if (count == 0) return 0.0;
  at::Tensor const& parameter = parameters.tensors[static_cast<std::size_t>(update % count)];
  if (is_sharded(parameter)) return 0.0;
  at::Tensor const whole = parameter.detach();
  if (!whole.defined() || whole.numel() == 0 ||
      ((on_device || !whole.is_cpu()) && update % replica_check_interval != replica_check_interval - 1))
    return 0.0;
  at::Tensor const flat = in_memory_order(whole);
  std::int64_t const pieces = (flat.numel() + most - 1) / most;
  std::int64_t const begin = update / count % pieces * most;
  // Keep only bits that a double represents exactly.
  constexpr std::int64_t bits = (std::int64_t{1} << 52) - 1;
  return static_cast<double>(bit_checksum(flat.narrow(0, begin, std::min(most, flat.numel() - begin))) & bits);
}

KEEL_BODY replication::replication(world_of_ranks world)
    : rank_requests(std::move(world)), unwinding_(std::uncaught_exceptions()) {}

KEEL_BODY replication::~replication() {
  // After an exception the shards of the ranks may be of different updates.
  bool const has_failed = std::uncaught_exceptions() > unwinding_ || has_diverged_;
  if (parameter_shards_) parameter_shards_->close(/*keeps_shards=*/!has_failed || !is_set_up_);
  if (is_shared() && std::uncaught_exceptions() > unwinding_) world_.abort("an exception has ended its training");
}

KEEL_BODY void replication::begin(config const& recipe, parameter_list const& parameters, torch::nn::Module& model,
                                  torch::optim::Optimizer& optimizer, std::int64_t updates, bool has_closure, bool on_device) {
  optimizer_ = &optimizer;
  parameters_ = &parameters;
  model_ = &model;
  models_.push_back(&model);
  has_ladder_ = recipe.oom.kind == oom::kind::ladder;
  if (!is_shared()) return;
  if (has_closure)
    throw error("E12",
                "an optimizer with a closure cannot train on several ranks: it evaluates the loss itself, but ranks agree once "
                "per update. Use keel::adamw, adam or sgd, or one rank.");
  at::NoGradGuard const no_grad;
  if (recipe.timeout.collective > 0) world_.limit(std::chrono::seconds(recipe.timeout.collective));
  require_same_lines(world_, describe_replicated_setup(recipe, parameters, model, optimizer, updates));
  // Before the broadcasts, which may still refer to a parameter's memory.
  if (recipe.shard.stage >= 3) {
    parameter_shards_ = on_all_ranks(world_, [&] {
      for (at::Tensor const& one : model.parameters()) {
        if (one.device() == parameters.tensors.front().device()) continue;
        throw error("E11",
                    "parameters are on several devices, but keel::shard::zero<3> gathers those of one. Move the model to one "
                    "device.");
      }
      return parameter_shards::make(world_, model, parameters,
                                    [this](parameter_shards::pass of, double collective, std::string const& name) {
                                      announce(of == parameter_shards::pass::backward ? pass_phase::backward
                                               : passes_.is_in_evaluation()           ? pass_phase::evaluation
                                                                                      : pass_phase::forward,
                                               collective, "the unit " + name);
                                    });
    });
    require_same_lines(world_, parameter_shards_->describe());
    parameter_shards_->trained_changed();
  }
  // A frozen parameter that differs between ranks would be gathered from shards of different values.
  for (at::Tensor const& one : recipe.shard.stage >= 3 ? model.parameters() : parameters.tensors) {
    // Those that were sharded before are rank 0's.
    if (!unit_parameters::is_freed(one)) broadcast(world_, one);
  }
  for (at::Tensor const& one : model.buffers()) broadcast(world_, one);
  numbers_.emplace(world_, "an update");
  auto const kept = recipe.shard.stage >= 2 ? gradient_sums::keeps::shards : gradient_sums::keeps::all;
  sums_.emplace(world_, parameters, kept, on_device);
  if (recipe.shard.stage >= 1) shards_.emplace(world_, optimizer, parameters, parameter_shards_.get());
  is_set_up_ = true;
}

KEEL_BODY void replication::begin_update() {
  has_cancelled_ = false;
  unit_ = 0.0;
  if (sums_) sums_->begin_update();
  if (!shards_gradients()) return;
  sums().shards()->reset();
  state_shards().clear_gradients();
}

KEEL_BODY std::span<at::Tensor const> replication::gradient_shards() {
  std::vector<at::Tensor> gradients;
  gradients.reserve(parameters_->tensors.size());
  for (std::size_t i = 0; i < parameters_->tensors.size(); ++i) gradients.push_back(sums().shards()->sum(i));
  state_shards().set_gradients(gradients);
  return state_shards().tensors();
}

KEEL_BODY void replication::end_micro_batch(bool is_finite) {
  if (!is_finite) {
    for (at::Tensor const& one : parameters_->tensors) one.mutable_grad() = at::Tensor();
    sums().shards()->discarded();
  }
  // The next agreement reports what fails until then.
  is_failure_reported_ = false;
}

KEEL_BODY void replication::prepare_measure() {
  auto const numbers = static_cast<std::int64_t>(parameters_->tensors.size()) + 3;
  if (own_measure_.defined() && own_measure_.numel() == numbers) return;
  // The one that is looked at comes last, so that an exception leaves both to be allocated.
  all_measures_ = at::zeros({world_.size(), numbers}, at::kDouble);
  own_measure_ = at::zeros({numbers}, at::kDouble);
}

KEEL_BODY gradient_measure replication::measure(c10::function_ref<gradient_measure()> of_shards) {
  gradient_measure own;
  std::exception_ptr failed;
  try {
    own = of_shards();
  } catch (...) {
    // Shared with the other ranks, which are in the all-gather, and rethrown.
    failed = std::current_exception();
  }
  std::int64_t const count = own_measure_.numel() - 3;
  double* const values = own_measure_.data_ptr<double>();
  std::copy(own.squares.begin(), own.squares.end(), values);
  values[count] = own.unit;
  values[count + 1] = static_cast<double>(own.first_nonfinite);
  values[count + 2] = failed ? 1.0 : 0.0;
  world_.waiting([this] {
    if (auto const pending = begin_all_gather(world_, own_measure_, all_measures_)) pending->wait();
  });
  auto const of = [&](int rank) { return all_measures_.data_ptr<double>() + rank * (count + 3); };
  bool has_failed = false;
  for (int rank = 0; rank < world_.size(); ++rank) has_failed = has_failed || of(rank)[count + 2] != 0.0;
  if (has_failed) share_failure(failed);
  gradient_measure whole;
  whole.squares.resize(static_cast<std::size_t>(count));
  for (int rank = 0; rank < world_.size(); ++rank) {
    whole.unit = std::max(whole.unit, of(rank)[count]);
    auto const bad = static_cast<std::int64_t>(of(rank)[count + 1]);
    if (bad >= 0 && (whole.first_nonfinite < 0 || bad < whole.first_nonfinite)) whole.first_nonfinite = bad;
  }
  auto const add_up = [&] {
    double total = 0.0;
    std::fill(whole.squares.begin(), whole.squares.end(), 0.0);
    for (int rank = 0; rank < world_.size(); ++rank) {
      double const relative = of(rank)[count] / whole.unit;
      for (std::int64_t i = 0; i < count; ++i) {
        double const square = of(rank)[i] * relative * relative;
        whole.squares[static_cast<std::size_t>(i)] += square;
        total += square;
      }
    }
    whole.norm = whole.unit * std::sqrt(total);
  };
  add_up();
  if (whole.first_nonfinite >= 0) {
    whole.norm = std::numeric_limits<double>::quiet_NaN();
  } else if (!std::isfinite(whole.norm)) {
    // The squares of one rank fit into a double, and those of all do not.
    for (int rank = 0; rank < world_.size(); ++rank) {
      for (std::int64_t i = 0; i < count; ++i) whole.unit = std::max(whole.unit, of(rank)[count] * std::sqrt(of(rank)[i]));
    }
    add_up();
  }
  return whole;
}

KEEL_BODY std::vector<double> replication::group_learning_rates() const {
  std::vector<double> all;
  all.reserve(optimizer_->param_groups().size());
  for (auto const& group : optimizer_->param_groups()) all.push_back(group.options().get_lr());
  return all;
}

KEEL_BODY void replication::begin_exchange(update_summary const& local, ending how, double phase) {
  using namespace packed_field;
  follow_expected();
  if (how == ending::none) buffers_.prepare(models_);
  auto const real = [](auto const value) { return static_cast<double>(value); };
  double* const own = &numbers().local(0);
  own[busy] = busy_.take(world_);
  own[packed_field::threw] = real(how);
  own[nonfinite] = local.first_nonfinite_rank >= 0 ? has_nonfinite_loss : has_cancelled_ ? has_cancelled_pass : 0.0;
  own[loss] = local.loss;
  own[loss_weight] = local.loss_weight;
  own[weight] = local.weight;
  own[unit] = local.unit;
  own[rows] = real(local.rows);
  own[tokens] = real(local.tokens);
  own[updates] = real(local.updates);
  world_.set_current_update(local.updates);
  if (shards_gradients()) prepare_measure();
  // A rank that failed or has no data takes part in no sums.
  bool const takes_part = how == ending::none && local.first_exhausted_rank < 0;
  if (takes_part && parameter_shards_) parameter_shards_->prepare_buffers();
  // Under zero<3> the backward pass that was agreed on has begun sums.
  if (takes_part && !early_factor_) {
    trained_ = sums().prepare();
    if (std::exchange(known_cuts_, sums().cuts()) != sums().cuts()) passes_.forget_backward();
  }
  own[trains] = takes_part ? real(trained_) : 0.0;
  own[packed_field::phase] = phase;
  own[packed_field::collective] = 0.0;
  own[sequence] = phase == pass_phase::backward_begins ? passes_.backward_checksum() : 0.0;
  own[signal] = real(local_.signal);
  own[stops] = real(local_.stops);
  own[saves] = real(local_.saves);
  own[thrashes] = real(thrashes_);
  own[overlaps] = real(overlaps_);
  own[ended] = real(local.first_exhausted_rank >= 0);
  own[names] = real(local.names);
  own[packed_field::on_device] = real(local.on_device);
  own[rates] = 0.0;
  double place = 0.0;
  for (double const rate : group_learning_rates()) own[rates] += rate * ++place;
  auto const is_sharded = [this](at::Tensor const& one) {
    // Not whether it is: before this exchange a unit may have been called on some ranks only.
    return parameter_shards_ && parameter_shards_->may_shard(one);
  };
  own[sample] = how == ending::none ? sample_parameter_bits(*parameters_, local.updates, local.on_device, is_sharded) : 0.0;
  // An exception before this line has not been reported to the others yet.
  is_failure_reported_ = true;
  numbers().begin(how != ending::none);
  is_exchanging_ = true;
}

KEEL_BODY update_summary replication::combine_summaries() const {
  auto const of = [this](int rank, packed_field::number what) { return numbers().of(rank, what); };
  update_summary all;
  all.unit = unit_;
  for (int rank = 0; rank < world_.size(); ++rank) {
    if (all.first_nonfinite_rank < 0 && of(rank, packed_field::nonfinite) == has_nonfinite_loss)
      all.first_nonfinite_rank = rank;
    if (all.first_exhausted_rank < 0 && of(rank, packed_field::ended) != 0.0) all.first_exhausted_rank = rank;
    if (all.unit == 0.0) all.unit = of(rank, packed_field::unit);
  }
  for (int rank = 0; rank < world_.size(); ++rank) {
    double const unit = of(rank, packed_field::unit);
    all.loss += of(rank, packed_field::loss);
    all.loss_weight += of(rank, packed_field::loss_weight);
    all.weight += of(rank, packed_field::weight) * (unit == 0.0 || unit == all.unit ? 1.0 : unit / all.unit);
    all.rows += static_cast<std::int64_t>(of(rank, packed_field::rows));
    all.tokens += static_cast<std::int64_t>(of(rank, packed_field::tokens));
  }
  if (all.first_nonfinite_rank < 0) all.first_nonfinite_rank = first_rank_with(packed_field::nonfinite);
  all.updates = static_cast<std::int64_t>(of(0, packed_field::updates));
  if (numbers().first_mismatch(packed_field::names) < 0) all.names = static_cast<std::uint32_t>(of(0, packed_field::names));
  return all;
}

KEEL_BODY double replication::relative_factor(update_summary const& all) const {
  double const unit = numbers().of(world_.rank(), packed_field::unit);
  return unit == 0.0 || unit == all.unit ? 1.0 : unit / all.unit;
}

KEEL_BODY std::optional<double> replication::permitted_sum_factor() {
  if (parameter_shards_) {
    auto const bucket = sums().next_bucket();
    if (is_exchanging_ && !complete_early_agreement()) return std::nullopt;
    if (early_factor_) announce(pass_phase::bucket, static_cast<double>(bucket), "a bucket of gradients");
    return early_factor_;
  }
  // If a rank exchanges only after its backward pass, do not block the others inside theirs.
  if (!all_overlapped_ && !shards_gradients()) return std::nullopt;
  // Block: polling would make the set of late gradients, and with it the order of sums, depend on timing.
  if (!is_exchanging_ || !numbers().complete() || !numbers().is_done()) return std::nullopt;
  for (int rank = 0; rank < world_.size(); ++rank) {
    if (numbers().of(rank, packed_field::threw) != 0.0) return std::nullopt;
  }
  for (auto const one :
       {packed_field::updates, packed_field::rates, packed_field::trains, packed_field::on_device, packed_field::sample}) {
    if (numbers().first_mismatch(one) >= 0) return std::nullopt;
  }
  update_summary const all = combine_summaries();
  if (all.first_exhausted_rank >= 0 || !all.is_finite()) return std::nullopt;
  return relative_factor(all);
}

KEEL_BODY void replication::propagate_failure(int first, std::string const& threw) {
  if (first == world_.size()) {
    if (!ran_out_of_memory_) throw out_of_memory_on_peer();
    return;
  }
  std::string const message = broadcast_string(world_, threw.substr(0, max_message_length), first);
  is_failure_collective_ = true;
  if (threw.empty())
    throw world_error("E25", "rank " + std::to_string(first) + " threw; the update was discarded on all ranks: " + message);
}

KEEL_BODY int replication::first_rank_with(std::int64_t number) const {
  for (int rank = 0; rank < world_.size(); ++rank) {
    if (numbers().of(rank, number) != 0.0) return rank;
  }
  return -1;
}

KEEL_BODY bool replication::is_of_updates() const {
  for (int rank = 0; rank < world_.size(); ++rank) {
    double const phase = numbers().of(rank, packed_field::phase);
    if (phase != pass_phase::agreement && phase != pass_phase::backward_begins) return false;
  }
  return true;
}

KEEL_BODY bool replication::has_ended() const {
  for (auto const one : {packed_field::threw, packed_field::nonfinite, packed_field::ended}) {
    if (first_rank_with(one) >= 0) return true;
  }
  if (!is_of_updates()) return false;
  for (auto const one :
       {packed_field::updates, packed_field::rates, packed_field::trains, packed_field::on_device, packed_field::sample}) {
    if (numbers().first_mismatch(one) >= 0) return true;
  }
  return !combine_summaries().is_finite();
}

KEEL_BODY bool replication::propagate_failures(ending how, std::string const& message) {
  std::string const threw = how == ending::threw ? message : std::string();
  auto const of = [this](int rank, packed_field::number what) { return numbers().of(rank, what); };
  int thrower = world_.size();
  bool is_out_of_memory = false;
  for (int rank = world_.size() - 1; rank >= 0; --rank) {
    if (of(rank, packed_field::threw) == 0.0) continue;
    bool const has_words = of(rank, packed_field::threw) != static_cast<double>(ending::out_of_memory);
    if (has_words) thrower = rank;
    is_out_of_memory = is_out_of_memory || !has_words;
  }
  if (thrower == world_.size() && !is_out_of_memory) return false;
  // If a rank has no more data, the update is discarded, even if memory ran out on another.
  if (thrower == world_.size() && first_rank_with(packed_field::ended) >= 0) return false;
  // Buckets that were begun before are complete on all ranks; gradients are discarded.
  if (parameter_shards_) {
    sums().wait_for_begun();
    sums().take_failure();
  }
  propagate_failure(thrower, threw);
  return true;
}

KEEL_BODY bool replication::is_next(double phase, std::string const& name) {
  auto const phase_of = [this](int rank) { return numbers().of(rank, packed_field::phase); };
  auto const collective_of = [this](int rank) { return numbers().of(rank, packed_field::collective); };
  auto const has_deviated = [&](int rank) { return numbers().of(rank, packed_field::sequence) == has_deviated_pass; };
  auto const order_of = [&](int rank) {
    return std::pair(phase_of(rank), pass_phase::takes_turns(phase_of(rank)) ? collective_of(rank) : 0.0);
  };
  int first = 0;
  for (int rank = 1; rank < world_.size(); ++rank) {
    if (order_of(rank) > order_of(first)) first = rank;
  }
  double const highest = phase_of(first), next = collective_of(first);
  for (int rank = 0; rank < world_.size(); ++rank) {
    bool const differs = phase_of(rank) == highest && collective_of(rank) != next && !pass_phase::takes_turns(highest);
    bool const has_other_units =
        has_deviated(rank) && phase_of(rank) == pass_phase::forward && highest == pass_phase::backward_begins;
    if (!differs && !has_other_units) continue;
    // All ranks throw it.
    is_exchanging_ = has_pending_sums_ = false;
    is_failure_reported_ = is_failure_collective_ = true;
    std::string const of_first = broadcast_string(world_, name, first);
    world_error const thrown(
        "E26", "rank " + std::to_string(rank) + " is at " + broadcast_string(world_, name, rank) + ", and rank " +
                   std::to_string(first) + " at " + of_first +
                   ". Under keel::shard::zero<3> all ranks must call the same units in the same order: choose between units by "
                   "what all ranks know.");
    // The loss function may catch it.
    if (progress_ == pass_progress::running) pass_ended_ = std::make_exception_ptr(thrown);
    throw thrown;
  }
  if (phase == highest && collective_of(world_.rank()) == next) return true;
  if (highest == pass_phase::backward_begins) {
    update_summary const all = combine_summaries();
    unit_ = all.unit;
    // A rank that is in its forward pass has not prepared the sums yet.
    if (phase == pass_phase::forward && !early_factor_) trained_ = sums().prepare();
    // Another bucket may need a gradient that this rank has, although it has not all of the bucket.
    if (!early_factor_) early_factor_ = relative_factor(all);
  } else if (highest == pass_phase::bucket) {
    sums().begin_next(early_factor_.value_or(1.0));
  } else {
    parameter_shards_->follow_gather(next);
  }
  return false;
}

KEEL_BODY bool replication::complete_early_agreement() {
  for (;;) {
    if (!numbers().complete() || !numbers().is_done() || has_ended()) return false;
    if (is_next(pass_phase::backward_begins, "its backward pass")) break;
    numbers().begin();
  }
  update_summary const all = combine_summaries();
  unit_ = all.unit;
  early_factor_ = relative_factor(all);
  is_exchanging_ = false;
  passes_.begin_backward();
  begin_expected();
  // What fails from now on is not in the numbers.
  is_failure_reported_ = false;
  return true;
}

KEEL_BODY void replication::cancel_pass() {
  is_cancelled_ = true;
  try {
    propagate_failures(ending::none, "");
    if (int const exhausted = first_rank_with(packed_field::ended); exhausted >= 0) throw peer_data_exhausted{exhausted};
  } catch (...) {
    // Thrown by end_pass(): what the pass calls may change an exception, or catch it.
    is_failure_reported_ = true;
    pass_ended_ = std::current_exception();
  }
  if (progress_ != pass_progress::running && pass_ended_) {
    is_cancelled_ = false;
    std::rethrow_exception(std::exchange(pass_ended_, nullptr));
  }
  throw pass_cancelled();
}

KEEL_BODY update_summary replication::finish_exchange(ending how, std::string const& message) {
  auto const of = [this](int rank, packed_field::number what) { return numbers().of(rank, what); };
  is_exchanging_ = has_pending_sums_ = false;
  progress_ = pass_progress::none;
  numbers().wait(message.substr(0, max_message_length));
  if (parameter_shards_) follow_passes(message.substr(0, max_message_length));
  early_factor_.reset();
  // This rank's own exception is already propagating.
  if (propagate_failures(how, message)) return {};
  if (int const exhausted = first_rank_with(packed_field::ended);
      exhausted >= 0 && (first_rank_with(packed_field::threw) >= 0 || !is_of_updates()))
    return {.first_exhausted_rank = exhausted};
  std::vector<double> milliseconds;
  milliseconds.reserve(static_cast<std::size_t>(world_.size()));
  for (int rank = 0; rank < world_.size(); ++rank) milliseconds.push_back(of(rank, packed_field::busy));
  times_ = summarize_rank_times(std::move(milliseconds));
  if (int const other = numbers().first_mismatch(packed_field::updates); other >= 0) {
    auto const update_of = [&](int rank) { return std::to_string(static_cast<long long>(of(rank, packed_field::updates))); };
    throw world_error(
        "E26", "rank " + std::to_string(other) + " is at update " + update_of(other) + " and rank 0 at " + update_of(0) +
                   ": the ranks have diverged. Make the same updates on all ranks, or resume all of them from one checkpoint.");
  }
  if (int const other = numbers().first_mismatch(packed_field::rates); other >= 0) {
    std::string const text = c10::str(c10::Join(", ", group_learning_rates()));
    std::string const first = broadcast_string(world_, text, 0);
    throw world_error("E26", "rank " + std::to_string(other) + " has the learning rates " +
                                 broadcast_string(world_, text, other) + " and rank 0 " + first +
                                 ": the program changed them on some ranks only. Set the same learning rates on all ranks.");
  }
  requests_ = {};
  for (int rank = 0; rank < world_.size(); ++rank) {
    requests_.signal = std::max(requests_.signal, static_cast<int>(of(rank, packed_field::signal)));
    requests_.stops = requests_.stops || of(rank, packed_field::stops) != 0.0;
    requests_.saves = requests_.saves || of(rank, packed_field::saves) != 0.0;
    requests_.thrashes = requests_.thrashes || of(rank, packed_field::thrashes) != 0.0;
  }
  update_summary const all = combine_summaries();
  // The end of the data is not an update, and must not change how the first one of the next epoch is summed.
  if (all.first_exhausted_rank < 0) {
    all_overlapped_ = true;
    for (int rank = 0; rank < world_.size(); ++rank)
      all_overlapped_ = all_overlapped_ && of(rank, packed_field::overlaps) != 0.0;
  }
  if (int const other = numbers().first_mismatch(packed_field::trains); other >= 0 && all.first_exhausted_rank < 0)
    throw world_error("E26", "rank " + std::to_string(other) +
                                 " and rank 0 do not train the same parameters: some require grad on only one of them. Freeze "
                                 "and unfreeze the same parameters on all ranks.");
  if (int const other = numbers().first_mismatch(packed_field::on_device); other >= 0 && all.first_exhausted_rank < 0)
    throw world_error("E26", "rank " + std::to_string(other) +
                                 " and rank 0 disagree on where updates are decided, on the device or on the host. Registered "
                                 "program state forces the host to decide: register the same state on all ranks.");
  if (int const other = numbers().first_mismatch(packed_field::sample); other >= 0 && all.first_exhausted_rank < 0) {
    auto const looked_at = static_cast<std::size_t>(all.updates) % parameters_->names.size();
    throw world_error("E26", replica_mismatch_message("the parameter", parameters_->names[looked_at], other));
  }
  factor_ = relative_factor(all);
  // Sums of earlier micro-batches are in this unit.
  unit_ = all.unit;
  has_pending_sums_ = all.first_exhausted_rank < 0 && all.is_finite() && all.loss_weight > 0.0;
  if (parameter_shards_ && !has_pending_sums_) sums().wait_for_begun();
  return all;
}

KEEL_BODY void replication::begin_agreement(update_summary const& local, at::Tensor const& loss) {
  if (!is_shared()) return;
  // The pass went on although a unit threw this.
  if (is_cancelled_) throw pass_cancelled();
  begin_exchange(local, ending::none, parameter_shards_ ? pass_phase::backward_begins : pass_phase::agreement);
  sums().begin_backward(loss, [this] { return permitted_sum_factor(); });
}

KEEL_BODY update_summary replication::agree(update_summary const& local) {
  if (!is_shared()) {
    is_failure_reported_ = true;
    requests_ = local_;
    return local;
  }
  // The backward pass had no collective that would have completed it.
  if (parameter_shards_ && is_exchanging_) static_cast<void>(complete_early_agreement());
  if (!is_exchanging_) begin_exchange(local, ending::none);
  auto const ends = c10::make_scope_exit([this] {
    if (!has_pending_sums_) sums().forget();
  });
  update_summary const all = finish_exchange(ending::none, "");
  if (all.first_exhausted_rank >= 0) throw peer_data_exhausted{all.first_exhausted_rank};
  return all;
}

KEEL_BODY void replication::end_of_data(std::int64_t updates) {
  if (!is_shared()) return;
  begin_call();
  sums().forget();
  begin_exchange({.updates = updates, .first_exhausted_rank = world_.rank()}, ending::none);
  finish_exchange(ending::none, "");
}

KEEL_BODY void replication::sum_gradients() {
  if (!is_shared()) return;
  bool const all_summed = world_.waiting([this] { return sums().finish(factor_, false); });
  has_pending_sums_ = false;
  if (!all_summed) share_failure(sums().take_failure());
}

KEEL_BODY void replication::share_failure(std::exception_ptr const& own) {
  std::string message;
  bool is_out = false;
  if (own) {
    try {
      std::rethrow_exception(own);
    } catch (std::exception const& one) {
      message = peer_message(one);
      is_out = has_ladder_ && is_out_of_memory(one);
    }
  }
  ran_out_of_memory_ = ran_out_of_memory_ || is_out;
  bool const threw = own && !is_out;
  propagate_failure(world_.combine(reduce::min{}, threw ? world_.rank() : world_.size()), threw ? message : "");
  if (own) std::rethrow_exception(own);
}

KEEL_BODY void replication::report_failure(std::exception_ptr const& thrown) noexcept {
  if (!is_shared() || (is_failure_reported_ && !is_exchanging_ && !has_pending_sums_)) return;
  std::string message = unknown_exception_message;
  try {
    try {
      std::rethrow_exception(thrown);
    } catch (std::exception const& one) {
      message = peer_message(one);
    } catch (...) {
      // Not a std::exception: it has no message to report.
    }
    join_pending_collectives(ending::threw, message);
    // The others skipped or completed the update; abort so that they end with this error too.
    if (!is_failure_collective_) abort_world(message);
  } catch (peer_data_exhausted const&) {
    abort_world(message);
  } catch (...) {
    // A rank exited: this rank's own exception is already propagating.
    has_diverged_ = true;
  }
}

KEEL_BODY void replication::report_out_of_memory() {
  if (!is_shared()) return;
  ran_out_of_memory_ = true;
  join_pending_collectives(ending::out_of_memory, "memory ran out in a micro-batch of this update");
}

KEEL_BODY void replication::join_pending_collectives(ending how, std::string const& message) {
  // A backward pass that threw in one thread may still run in another, and start sums there.
  sums().forget();
  // The other ranks continue with their passes, and learn of the failure in the next exchange.
  if (parameter_shards_ && is_exchanging_) static_cast<void>(complete_early_agreement());
  bool const is_unreported = !std::exchange(is_failure_reported_, true);
  if (is_unreported) begin_exchange({}, how);
  // This rank may have agreed before it threw. Then the others are in the sums, or will be, unless the agreement rules them out.
  if (is_exchanging_) {
    update_summary const all = finish_exchange(how, message);
    if (all.first_exhausted_rank >= 0) throw peer_data_exhausted{all.first_exhausted_rank};
  }
  if (!std::exchange(has_pending_sums_, false)) return;
  static_cast<void>(sums().finish(factor_, true));
  bool const threw = how == ending::threw;
  propagate_failure(world_.combine(reduce::min{}, threw ? world_.rank() : world_.size()), threw ? message : "");
}

KEEL_BODY bool replication::all_have_open_update(bool open_update) const {
  return !is_shared() || world_.combine(reduce::min{}, open_update);
}

KEEL_BODY void replication::require_dense(parameter_list const& parameters) {
  for (std::size_t i = 0; i < parameters.tensors.size(); ++i) {
    at::Tensor const& gradient = parameters.tensors[i].grad();
    if (gradient.defined() && gradient.layout() != at::kStrided)
      throw error("E11", "the gradient of " + parameters.names[i] +
                             " is sparse, but several ranks require dense gradients. Use an embedding with sparse = false.");
  }
}

KEEL_BODY void replication::verify_replicas_periodically() {
  if (!is_shared() || ++updates_since_replica_check_ < replica_check_interval) return;
  verify_replicas();
}

KEEL_BODY void replication::verify_replicas() {
  if (!is_shared()) return;
  updates_since_replica_check_ = 0;
  require_matching_collectives(world_);
  // The program may have run the model since its last update, which changes buffers.
  buffers_.prepare(models_);
  buffers_.verify_sizes(world_);
  share_buffers();
  require_same_lines(world_, describe_param_groups(*parameters_, *optimizer_));
  tensor_map all;
  for (auto const& parameter : model_->named_parameters()) {
    if (!parameter_shards_ || !parameter_shards_->shard_of(parameter.value()).defined())
      all.emplace(parameter.key(), parameter.value());
  }
  for (auto const& buffer : model_->named_buffers()) all.emplace(buffer.key(), buffer.value());
  require_replicas(world_, "the parameter or buffer", all);
}

KEEL_BODY void replication::share_buffers() {
  if (is_shared()) buffers_.share(world_);
}

KEEL_BODY void replication::sum(std::vector<double>& numbers) const {
  if (!is_shared() || numbers.empty()) return;
  // Without an allocation, whose failure would leave the others blocked in the all-reduce.
  all_reduce(world_, at::from_blob(numbers.data(), {static_cast<std::int64_t>(numbers.size())}, at::kDouble));
}

}  // namespace keel::detail::inline KEEL_MODE

#include <keel/libtorch/detail/body_end.inc>
