// The bodies of replication.hpp.
#pragma once

#include <keel/libtorch/ivalue_first.hpp>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/from_blob.h>
#include <c10/util/ScopeExit.h>
#include <c10/util/Type.h>
#include <torch/version.h>

#include <algorithm>
#include <keel/checkpoint/optimizer_state.hpp>
#include <keel/collective/collectives.hpp>
#include <keel/collective/words_of_rank.hpp>
#include <keel/config/describe.hpp>
#include <keel/core/error.hpp>
#include <keel/core/out_of_memory.hpp>
#include <keel/core/version.hpp>
#include <keel/shard/replication.hpp>
#include <typeinfo>
#include <utility>
#include <vector>

#include <keel/libtorch/detail/body_begin.inc>

namespace keel::detail::inline KEEL_MODE {

inline constexpr std::int64_t longest_words = 1000;

namespace of_window {
/// The places of the numbers that a rank packs.
enum number : std::int64_t {
  threw,
  nonfinite,
  loss,
  loss_weight,
  weight,
  unit,
  rows,
  tokens,
  updates,
  trains,
  signal,
  stops,
  saves,
  thrashes,
  ended,
  names,
  on_device,
  rates,
  sample,
  busy,
  count
};
static_assert(count + 2 == numbers_of_ranks::count);
}  // namespace of_window

inline constexpr char const* without_words = "an exception without words";
/// Never empty.
inline std::string words_for_ranks(std::exception const& thrown) {
  std::string const words = first_line(thrown);
  return words.empty() ? without_words : words;
}

/// A line for each option and each parameter of each group.
inline std::string lines_of_groups(parameter_list const& parameters, torch::optim::Optimizer& optimizer) {
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

/// What must be alike, a line each. `updates`: the length of the run.
inline std::string same_on_all_ranks(config const& recipe, parameter_list const& parameters, torch::nn::Module& model,
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
  return lines + "optimizer " + c10::demangle(typeid(typed).name()) + "\n" + lines_of_groups(parameters, optimizer) +
         "updates " + std::to_string(updates) + "\n";
}

/// A sum of some of the bits that the parameters have before an update, others in each; 0 of a device but now and then, since the host
/// would wait for it.
inline double sample_of(parameter_list const& parameters, std::int64_t update, bool on_device) {
  constexpr std::int64_t most = 1 << 14;
  auto const count = static_cast<std::int64_t>(parameters.tensors.size());
  if (count == 0) return 0.0;
  at::Tensor const whole = parameters.tensors[static_cast<std::size_t>(update % count)].detach();
  if (!whole.defined() || whole.numel() == 0 ||
      ((on_device || !whole.is_cpu()) && update % updates_between_looks != updates_between_looks - 1))
    return 0.0;
  at::Tensor const flat = in_memory_order(whole);
  std::int64_t const pieces = (flat.numel() + most - 1) / most;
  std::int64_t const begin = update / count % pieces * most;
  // As many bits as a double holds whole.
  constexpr std::int64_t bits = (std::int64_t{1} << 52) - 1;
  return static_cast<double>(sum_of_bits(flat.narrow(0, begin, std::min(most, flat.numel() - begin))) & bits);
}

KEEL_BODY replication::replication(world_of_ranks world)
    : rank_requests(std::move(world)), unwinding_(std::uncaught_exceptions()) {}

KEEL_BODY replication::~replication() {
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
    throw error(
        "E12",
        "an optimizer with a closure evaluates the loss itself, and ranks agree once an update. Use keel::adamw, adam or "
        "sgd, or one rank.");
  at::NoGradGuard const no_grad;
  if (recipe.timeout.collective > 0) world_.limit(std::chrono::seconds(recipe.timeout.collective));
  require_same_lines(world_, same_on_all_ranks(recipe, parameters, model, optimizer, updates));
  for (at::Tensor const& one : parameters.tensors) broadcast(world_, one);
  for (at::Tensor const& one : model.buffers()) broadcast(world_, one);
  numbers_.emplace(world_, "an update");
  sums_.emplace(world_, parameters, on_device);
  if (recipe.shard.stage == 1) shares_.emplace(world_, optimizer, parameters);
}

KEEL_BODY std::vector<double> replication::rates_of_groups() const {
  std::vector<double> all;
  all.reserve(optimizer_->param_groups().size());
  for (auto const& group : optimizer_->param_groups()) all.push_back(group.options().get_lr());
  return all;
}

KEEL_BODY void replication::begin_exchange(window_of_ranks const& mine, ending how) {
  using namespace of_window;
  if (how == ending::none) buffers_.prepare(models_);
  auto const real = [](auto const value) { return static_cast<double>(value); };
  double* const own = &numbers().mine(0);
  own[busy] = busy_.take(world_);
  own[of_window::threw] = real(how);
  own[nonfinite] = real(mine.nonfinite_on >= 0);
  own[loss] = mine.loss;
  own[loss_weight] = mine.loss_weight;
  own[weight] = mine.weight;
  own[unit] = mine.unit;
  own[rows] = real(mine.rows);
  own[tokens] = real(mine.tokens);
  own[updates] = real(mine.updates);
  world_.behind_update(mine.updates);
  // One that threw, or has no data, sums nothing.
  own[trains] = how != ending::none || mine.ended_on >= 0 ? 0.0 : real(sums().prepare());
  own[signal] = real(mine_.signal);
  own[stops] = real(mine_.stops);
  own[saves] = real(mine_.saves);
  own[thrashes] = real(thrashes_);
  own[ended] = real(mine.ended_on >= 0);
  own[names] = real(mine.names);
  own[of_window::on_device] = real(mine.on_device);
  own[rates] = 0.0;
  double place = 0.0;
  for (double const rate : rates_of_groups()) own[rates] += rate * ++place;
  own[sample] = how == ending::none ? sample_of(*parameters_, mine.updates, mine.on_device) : 0.0;
  // An exception before this is one that the others have yet to learn.
  told_ = true;
  numbers().begin(how != ending::none);
  is_exchanging_ = true;
}

KEEL_BODY window_of_ranks replication::window() const {
  auto const of = [this](int rank, of_window::number what) { return numbers().of(rank, what); };
  window_of_ranks all;
  for (int rank = 0; rank < world_.size(); ++rank) {
    if (all.nonfinite_on < 0 && of(rank, of_window::nonfinite) != 0.0) all.nonfinite_on = rank;
    if (all.ended_on < 0 && of(rank, of_window::ended) != 0.0) all.ended_on = rank;
    if (all.unit == 0.0) all.unit = of(rank, of_window::unit);
  }
  for (int rank = 0; rank < world_.size(); ++rank) {
    double const unit = of(rank, of_window::unit);
    all.loss += of(rank, of_window::loss);
    all.loss_weight += of(rank, of_window::loss_weight);
    all.weight += of(rank, of_window::weight) * (unit == 0.0 || unit == all.unit ? 1.0 : unit / all.unit);
    all.rows += static_cast<std::int64_t>(of(rank, of_window::rows));
    all.tokens += static_cast<std::int64_t>(of(rank, of_window::tokens));
  }
  all.updates = static_cast<std::int64_t>(of(0, of_window::updates));
  if (numbers().first_other(of_window::names) < 0) all.names = static_cast<std::uint32_t>(of(0, of_window::names));
  return all;
}

KEEL_BODY double replication::factor_in(window_of_ranks const& all) const {
  double const unit = numbers().of(world_.rank(), of_window::unit);
  return unit == 0.0 || unit == all.unit ? 1.0 : unit / all.unit;
}

KEEL_BODY std::optional<double> replication::may_sum() {
  if (!is_exchanging_ || !numbers().is_done()) return std::nullopt;
  for (int rank = 0; rank < world_.size(); ++rank) {
    if (numbers().of(rank, of_window::threw) != 0.0) return std::nullopt;
  }
  for (auto const one : {of_window::updates, of_window::rates, of_window::trains, of_window::on_device, of_window::sample}) {
    if (numbers().first_other(one) >= 0) return std::nullopt;
  }
  window_of_ranks const all = window();
  if (all.ended_on >= 0 || !all.is_finite()) return std::nullopt;
  return factor_in(all);
}

KEEL_BODY void replication::end_together(int first, std::string const& threw) {
  if (first == world_.size()) {
    if (!is_starved_) throw memory_of_other_rank();
    return;
  }
  std::string const words = words_of_rank(world_, threw.substr(0, longest_words), first);
  all_know_ = true;
  if (threw.empty())
    throw world_error("E25", "rank " + std::to_string(first) + " threw, and no rank makes this update: " + words);
}

KEEL_BODY window_of_ranks replication::finish_exchange(ending how, std::string const& words) {
  std::string const threw = how == ending::threw ? words : std::string();
  auto const of = [this](int rank, of_window::number what) { return numbers().of(rank, what); };
  is_exchanging_ = owes_sums_ = false;
  numbers().wait(words.substr(0, longest_words));
  int thrower = world_.size();
  bool is_out_of_memory = false;
  for (int rank = world_.size() - 1; rank >= 0; --rank) {
    if (of(rank, of_window::threw) == 0.0) continue;
    bool const has_words = of(rank, of_window::threw) != static_cast<double>(ending::out_of_memory);
    if (has_words) thrower = rank;
    is_out_of_memory = is_out_of_memory || !has_words;
  }
  if (thrower < world_.size()) {
    end_together(thrower, threw);
    // Its own exception is on its way.
    return {};
  }
  // Where one has no more data, the update is dropped, whatever else became of it.
  for (int rank = 0; is_out_of_memory && rank < world_.size(); ++rank) {
    if (of(rank, of_window::ended) != 0.0) return {.ended_on = rank};
  }
  if (is_out_of_memory) {
    end_together(thrower, threw);
    return {};
  }
  std::vector<double> milliseconds;
  milliseconds.reserve(static_cast<std::size_t>(world_.size()));
  for (int rank = 0; rank < world_.size(); ++rank) milliseconds.push_back(of(rank, of_window::busy));
  times_ = times_of(std::move(milliseconds));
  if (int const other = numbers().first_other(of_window::updates); other >= 0) {
    auto const update_of = [&](int rank) { return std::to_string(static_cast<long long>(of(rank, of_window::updates))); };
    throw world_error("E26", "rank " + std::to_string(other) + " is at update " + update_of(other) + " and rank 0 at " +
                                 update_of(0) +
                                 ": they are not of the same training any more. Make the same updates on all ranks, or "
                                 "resume all of them from one checkpoint.");
  }
  if (int const other = numbers().first_other(of_window::rates); other >= 0) {
    std::string const text = c10::str(c10::Join(", ", rates_of_groups()));
    std::string const first = words_of_rank(world_, text, 0);
    throw world_error("E26", "rank " + std::to_string(other) + " has the learning rates " + words_of_rank(world_, text, other) +
                                 " and rank 0 " + first + ": something changes them on some ranks alone. Set the same on all.");
  }
  asked_ = {};
  for (int rank = 0; rank < world_.size(); ++rank) {
    asked_.signal = std::max(asked_.signal, static_cast<int>(of(rank, of_window::signal)));
    asked_.stops = asked_.stops || of(rank, of_window::stops) != 0.0;
    asked_.saves = asked_.saves || of(rank, of_window::saves) != 0.0;
    asked_.thrashes = asked_.thrashes || of(rank, of_window::thrashes) != 0.0;
  }
  window_of_ranks const all = window();
  if (int const other = numbers().first_other(of_window::trains); other >= 0 && all.ended_on < 0)
    throw world_error("E26", "rank " + std::to_string(other) +
                                 " and rank 0 do not train the same parameters: some require grad on one of them alone. "
                                 "Freeze and unfreeze the same on all ranks.");
  if (int const other = numbers().first_other(of_window::on_device); other >= 0 && all.ended_on < 0)
    throw world_error(
        "E26", "rank " + std::to_string(other) +
                   " and rank 0 do not decide their updates at the same place: on one "
                   "the device does, and on the other the host, as it must where a trainer puts state of the program back. "
                   "Register the same state on all ranks.");
  if (int const other = numbers().first_other(of_window::sample); other >= 0 && all.ended_on < 0) {
    auto const looked_at = static_cast<std::size_t>(all.updates) % parameters_->names.size();
    throw world_error("E26", replica_differs("the parameter", parameters_->names[looked_at], other));
  }
  factor_ = factor_in(all);
  owes_sums_ = all.ended_on < 0 && all.is_finite() && all.loss_weight > 0.0;
  return all;
}

KEEL_BODY void replication::begin_agreement(window_of_ranks const& mine) {
  if (!is_shared()) return;
  begin_exchange(mine, ending::none);
  sums().begin_backward([this] { return may_sum(); });
}

KEEL_BODY window_of_ranks replication::agree(window_of_ranks const& mine) {
  if (!is_shared()) {
    told_ = true;
    asked_ = mine_;
    return mine;
  }
  if (!is_exchanging_) begin_exchange(mine, ending::none);
  auto const ends = c10::make_scope_exit([this] {
    if (!owes_sums_) sums().forget();
  });
  window_of_ranks const all = finish_exchange(ending::none, "");
  if (all.ended_on >= 0) throw data_ended{all.ended_on};
  return all;
}

KEEL_BODY void replication::end_of_data(std::int64_t updates) {
  if (!is_shared()) return;
  begin_call();
  begin_exchange({.updates = updates, .ended_on = world_.rank()}, ending::none);
  finish_exchange(ending::none, "");
}

KEEL_BODY void replication::sum_gradients() {
  if (!is_shared()) return;
  bool const all_summed = world_.waiting([this] { return sums().finish(factor_, false); });
  owes_sums_ = false;
  if (all_summed) return;
  std::exception_ptr const own = sums().take_failure();
  std::string words;
  bool is_out = false;
  if (own) {
    try {
      std::rethrow_exception(own);
    } catch (std::exception const& one) {
      words = words_for_ranks(one);
      is_out = has_ladder_ && is_out_of_memory(one);
    }
  }
  is_starved_ = is_starved_ || is_out;
  bool const threw = own && !is_out;
  end_together(world_.combine(reduce::min{}, threw ? world_.rank() : world_.size()), threw ? words : "");
  if (own) std::rethrow_exception(own);
}

KEEL_BODY void replication::tell(std::exception_ptr const& thrown) noexcept {
  if (!is_shared() || (told_ && !is_exchanging_ && !owes_sums_)) return;
  std::string words = without_words;
  try {
    try {
      std::rethrow_exception(thrown);
    } catch (std::exception const& one) {
      words = words_for_ranks(one);
    } catch (...) {
      // What it is, its own catcher says.
    }
    take_part(ending::threw, words);
    // The others skip the update, or have ended it, and are to end by this too.
    if (!all_know_) world_.abort(words);
  } catch (data_ended const&) {
    world_.abort(words);
  } catch (...) {
    // The other ranks are gone, or this one is: what it threw is on its way already.
  }
}

KEEL_BODY void replication::tell_out_of_memory() {
  if (!is_shared()) return;
  is_starved_ = true;
  take_part(ending::out_of_memory, "memory ran out in a micro-batch of this update");
}

KEEL_BODY void replication::take_part(ending how, std::string const& words) {
  // A backward pass that threw in one thread may still run in another, and look there whether the ranks have agreed.
  sums().forget();
  bool const is_untold = !std::exchange(told_, true);
  if (is_untold) begin_exchange({}, how);
  // It may have agreed before it threw: the others are in the sums then, or come to them, unless what the ranks agreed on says otherwise.
  if (is_exchanging_) {
    window_of_ranks const all = finish_exchange(how, words);
    if (all.ended_on >= 0) throw data_ended{all.ended_on};
  }
  if (!std::exchange(owes_sums_, false)) return;
  static_cast<void>(sums().finish(factor_, true));
  bool const threw = how == ending::threw;
  end_together(world_.combine(reduce::min{}, threw ? world_.rank() : world_.size()), threw ? words : "");
}

KEEL_BODY bool replication::all_have(bool open_update) const {
  return !is_shared() || world_.combine(reduce::min{}, open_update);
}

KEEL_BODY void replication::require_dense(parameter_list const& parameters) {
  for (std::size_t i = 0; i < parameters.tensors.size(); ++i) {
    at::Tensor const& gradient = parameters.tensors[i].grad();
    if (gradient.defined() && gradient.layout() != at::kStrided)
      throw error("E11", "the gradient of " + parameters.names[i] +
                             " is sparse, and ranks add up dense ones. Use an embedding with sparse = false.");
  }
}

KEEL_BODY void replication::look_at_replicas() {
  if (!is_shared() || ++updates_since_look_ < updates_between_looks) return;
  verify_replicas();
}

KEEL_BODY void replication::verify_replicas() {
  if (!is_shared()) return;
  updates_since_look_ = 0;
  require_live(world_);
  // A program may have run the model behind its last update, as to look at what it generates.
  buffers_.prepare(models_);
  buffers_.verify_sizes(world_);
  share_buffers();
  require_same_lines(world_, lines_of_groups(*parameters_, *optimizer_));
  tensor_map all;
  for (auto const& parameter : model_->named_parameters()) all.emplace(parameter.key(), parameter.value());
  for (auto const& buffer : model_->named_buffers()) all.emplace(buffer.key(), buffer.value());
  require_replicas(world_, "the parameter or buffer", all);
}

KEEL_BODY void replication::share_buffers() {
  if (is_shared()) buffers_.share(world_);
}

KEEL_BODY void replication::sum(std::vector<double>& numbers) const {
  if (!is_shared() || numbers.empty()) return;
  // In place: an allocation that failed would leave the others in the sum.
  all_reduce(world_, at::from_blob(numbers.data(), {static_cast<std::int64_t>(numbers.size())}, at::kDouble));
}

}  // namespace keel::detail::inline KEEL_MODE

#include <keel/libtorch/detail/body_end.inc>
