// The bodies of replication.hpp.
#pragma once

#include <keel/libtorch/ivalue_first.hpp>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <keel/collective/collectives.hpp>
#include <keel/collective/words_of_rank.hpp>
#include <keel/config/describe.hpp>
#include <keel/core/error.hpp>
#include <keel/shard/buckets.hpp>
#include <keel/shard/replication.hpp>
#include <map>
#include <utility>
#include <vector>

#include <keel/core/detail/body_begin.inc>

namespace keel::detail {

inline constexpr std::int64_t longest_words = 1000;

/// What must be alike, a line each.
inline std::string same_on_all_ranks(config const& recipe, parameter_list const& parameters, torch::nn::Module& model,
                                     torch::optim::Optimizer& optimizer) {
  config own = recipe;
  own.run = {};
  std::string lines = "recipe:\n" + std::string(describe(own).c_str());
  auto const add = [&](std::string const& name, at::Tensor const& one) {
    lines += name + " " + c10::toString(one.scalar_type()) + c10::str(one.sizes()) + "\n";
  };
  for (std::size_t i = 0; i < parameters.tensors.size(); ++i) add(parameters.names[i], parameters.tensors[i]);
  for (auto const& buffer : model.named_buffers()) add(buffer.key(), buffer.value());
  for (auto const& group : optimizer.param_groups())
    lines += "learning rate " + std::to_string(group.options().get_lr()) + "\n";
  return lines;
}

/// The first line in which they differ, of both.
inline std::pair<std::string, std::string> first_difference(std::string const& a, std::string const& b) {
  for (std::size_t at_a = 0, at_b = 0;;) {
    auto const line = [](std::string const& text, std::size_t& at) {
      if (at >= text.size()) return std::string("nothing");
      std::size_t const end = std::min(text.find('\n', at), text.size());
      std::string const found = text.substr(at, end - at);
      at = end + 1;
      return found;
    };
    std::string const of_a = line(a, at_a), of_b = line(b, at_b);
    if (of_a != of_b || (at_a >= a.size() && at_b >= b.size())) return {of_a, of_b};
  }
}

KEEL_BODY replication::replication(world_of_ranks world) : world_(std::move(world)), unwinding_(std::uncaught_exceptions()) {}

KEEL_BODY replication::~replication() {
  if (is_shared() && std::uncaught_exceptions() > unwinding_) world_.abort("an exception has ended its training");
}

KEEL_BODY void replication::begin(config const& recipe, parameter_list const& parameters, torch::nn::Module& model,
                                  torch::optim::Optimizer& optimizer, bool has_closure) {
  optimizer_ = &optimizer;
  if (!is_shared()) return;
  if (has_closure)
    throw error(
        "E12",
        "an optimizer with a closure evaluates the loss itself, and ranks agree once an update. Use keel::adamw, adam or "
        "sgd, or one rank.");
  at::NoGradGuard const no_grad;
  if (recipe.timeout.collective > 0) world_.limit(std::chrono::seconds(recipe.timeout.collective));
  std::string const mine = same_on_all_ranks(recipe, parameters, model, optimizer);
  std::string const first = words_of_rank(world_, mine, 0);
  std::int64_t const other = world_.combine(reduce::max{}, std::int64_t{mine == first ? -1 : world_.rank()});
  if (other >= 0) {
    std::string const theirs = words_of_rank(world_, mine, static_cast<int>(other));
    auto const [of_first, of_other] = first_difference(first, theirs);
    throw world_error(
        "E24", "rank 0 has \"" + of_first + "\" where rank " + std::to_string(other) + " has \"" + of_other +
                   "\": their updates would not be of the same training. Start the same program with the same options for "
                   "all ranks.");
  }
  for (at::Tensor const& one : parameters.tensors) broadcast(world_, one);
  for (at::Tensor const& one : model.buffers()) broadcast(world_, one);
  if (recipe.shard.stage == 1) shares_.emplace(world_, optimizer, parameters);
}

namespace of_window {
/// Of a number in what a rank packs.
enum number : std::size_t {
  threw,
  nonfinite,
  loss,
  loss_weight,
  weight,
  unit,
  rows,
  tokens,
  updates,
  without_gradient,
  signal,
  stops,
  saves,
  ended,
  names,
  rates,
  busy,
  count
};
}  // namespace of_window

KEEL_BODY std::vector<double> replication::rates_of_groups() const {
  std::vector<double> all;
  all.reserve(optimizer_->param_groups().size());
  for (auto const& group : optimizer_->param_groups()) all.push_back(group.options().get_lr());
  return all;
}

KEEL_BODY window_of_ranks replication::exchange(window_of_ranks const& mine, std::string const& threw) {
  using namespace of_window;
  told_ = true;
  auto const real = [](auto const value) { return static_cast<double>(value); };
  at::Tensor packed = at::empty({static_cast<std::int64_t>(count)}, at::kDouble);
  double* const own = packed.data_ptr<double>();
  own[of_window::threw] = real(!threw.empty());
  own[nonfinite] = real(mine.nonfinite_on >= 0);
  own[loss] = mine.loss;
  own[loss_weight] = mine.loss_weight;
  own[weight] = mine.weight;
  own[unit] = mine.unit;
  own[rows] = real(mine.rows);
  own[tokens] = real(mine.tokens);
  own[updates] = real(mine.updates);
  own[without_gradient] = real(mine.without_gradient);
  own[signal] = real(mine_.signal);
  own[stops] = real(mine_.stops);
  own[saves] = real(mine_.saves);
  own[ended] = real(mine.ended_on >= 0);
  own[names] = real(mine.names);
  std::vector<double> const all_rates = rates_of_groups();
  own[busy] = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - agreed_at_).count();
  own[of_window::rates] = 0.0;
  for (std::size_t i = 0; i < all_rates.size(); ++i) own[of_window::rates] += all_rates[i] * static_cast<double>(i + 1);
  at::Tensor const gathered = all_gather(world_, packed);
  auto const of = [&](int rank, of_window::number what) {
    return gathered.data_ptr<double>()[static_cast<std::size_t>(rank) * count + what];
  };
  for (int rank = 0; rank < world_.size(); ++rank) {
    if (of(rank, of_window::threw) == 0.0) continue;
    std::string const words = words_of_rank(world_, threw.substr(0, longest_words), rank);
    all_know_ = true;
    if (rank == world_.rank()) break;  // its own exception is on its way
    throw world_error("E25", "rank " + std::to_string(rank) + " threw, and no rank makes this update: " + words);
  }
  agreed_at_ = std::chrono::steady_clock::now();
  std::vector<double> milliseconds;
  milliseconds.reserve(static_cast<std::size_t>(world_.size()));
  for (int rank = 0; rank < world_.size(); ++rank) milliseconds.push_back(of(rank, busy));
  times_ = times_of(std::move(milliseconds));
  window_of_ranks all;
  asked_ = {};
  for (int rank = 0; rank < world_.size(); ++rank) {
    if (of(rank, updates) != of(0, updates))
      throw world_error("E26", "rank " + std::to_string(rank) + " is at update " +
                                   std::to_string(static_cast<long long>(of(rank, updates))) + " and rank 0 at " +
                                   std::to_string(static_cast<long long>(of(0, updates))) +
                                   ": they are not of the same training any more. Make the same updates on all ranks, or "
                                   "resume all of them from one checkpoint.");
    if (of(rank, of_window::rates) != of(0, of_window::rates)) {
      std::string const text = c10::str(c10::Join(", ", all_rates));
      std::string const first = words_of_rank(world_, text, 0);
      throw world_error("E26", "rank " + std::to_string(rank) + " has the learning rates " + words_of_rank(world_, text, rank) +
                                   " and rank 0 " + first +
                                   ": something changes them on some ranks alone. Set the same on all.");
    }
    if (all.nonfinite_on < 0 && of(rank, nonfinite) != 0.0) all.nonfinite_on = rank;
    if (all.ended_on < 0 && of(rank, ended) != 0.0) all.ended_on = rank;
    if (all.unit == 0.0) all.unit = of(rank, unit);
    asked_.signal = std::max(asked_.signal, static_cast<int>(of(rank, signal)));
    asked_.stops = asked_.stops || of(rank, stops) != 0.0;
    asked_.saves = asked_.saves || of(rank, saves) != 0.0;
  }
  for (int rank = 0; rank < world_.size(); ++rank) {
    double const relative = of(rank, unit) == 0.0 || of(rank, unit) == all.unit ? 1.0 : of(rank, unit) / all.unit;
    all.loss += of(rank, loss);
    all.loss_weight += of(rank, loss_weight);
    all.weight += of(rank, weight) * relative;
    all.rows += static_cast<std::int64_t>(of(rank, rows));
    all.tokens += static_cast<std::int64_t>(of(rank, tokens));
    all.without_gradient += static_cast<std::int64_t>(of(rank, without_gradient));
  }
  all.updates = mine.updates;
  all.names = mine.names;
  for (int rank = 0; rank < world_.size(); ++rank) {
    if (of(rank, names) != own[names]) all.names = 0;
  }
  return all;
}

KEEL_BODY window_of_ranks replication::agree(window_of_ranks const& mine) {
  if (!is_shared()) {
    told_ = true;
    asked_ = mine_;
    return mine;
  }
  window_of_ranks const all = exchange(mine, "");
  if (all.ended_on >= 0) throw data_ended{all.ended_on};
  return all;
}

KEEL_BODY void replication::end_of_data(std::int64_t updates) {
  if (!is_shared()) return;
  begin_call();
  exchange({.updates = updates, .ended_on = world_.rank()}, "");
}

KEEL_BODY void replication::tell(std::exception_ptr const& thrown) noexcept {
  if (!is_shared() || std::exchange(told_, true)) return;
  std::string words = "an exception without words";
  try {
    try {
      std::rethrow_exception(thrown);
    } catch (std::exception const& one) {
      words = one.what();
    } catch (...) {
      // What it is, its own catcher says.
    }
    exchange({}, words.empty() ? "an exception without words" : words);
  } catch (...) {
    // The other ranks are gone, or this one is: what it threw is on its way already.
  }
}

KEEL_BODY bool replication::all_have(bool open_update) const { return world_.combine(reduce::min{}, open_update); }

KEEL_BODY void replication::require_dense(parameter_list const& parameters) {
  for (std::size_t i = 0; i < parameters.tensors.size(); ++i) {
    at::Tensor const& gradient = parameters.tensors[i].grad();
    if (gradient.defined() && gradient.layout() != at::kStrided)
      throw error("E11", "the gradient of " + parameters.names[i] +
                             " is sparse, and ranks add up dense ones. Use an embedding with sparse = false.");
  }
}

KEEL_BODY void replication::sum_gradients(parameter_list const& parameters, double relative, bool all_have_all) const {
  if (!is_shared()) return;
  at::NoGradGuard const no_grad;
  auto const& tensors = parameters.tensors;
  auto const is_wanted = [](at::Tensor const& parameter) { return parameter.requires_grad(); };
  std::vector<bool> has(tensors.size(), true);
  if (!all_have_all) {
    at::Tensor mask = at::zeros({static_cast<std::int64_t>(tensors.size())}, at::kByte);
    for (std::size_t i = 0; i < tensors.size(); ++i) mask.data_ptr<std::uint8_t>()[i] = tensors[i].grad().defined() ? 1 : 0;
    all_reduce(world_, mask, reduce::max{});
    for (std::size_t i = 0; i < tensors.size(); ++i) has[i] = mask.data_ptr<std::uint8_t>()[i] != 0;
  }
  std::vector<std::size_t> summed;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (!has[i] || !is_wanted(tensors[i])) continue;
    summed.push_back(i);
    at::Tensor& gradient = tensors[i].mutable_grad();
    auto const own = tensors[i].scalar_type();
    auto const dtype = own == at::kHalf || own == at::kBFloat16 ? at::kFloat : own;
    if (!gradient.defined()) gradient = at::zeros(tensors[i].sizes(), tensors[i].options().dtype(dtype).requires_grad(false));
    if (gradient.scalar_type() != dtype) gradient = gradient.to(dtype);
  }
  auto const gradient_of = [&](std::size_t i) -> at::Tensor const& { return tensors[i].grad(); };
  for_each_bucket(summed, gradient_of, [&](std::vector<std::size_t> const& bucket) {
    std::vector<at::Tensor> flat;
    flat.reserve(bucket.size());
    for (std::size_t const i : bucket) flat.push_back(gradient_of(i).reshape(-1));
    at::Tensor all = bucket.size() == 1 ? flat.front().contiguous() : at::cat(flat);
    if (relative != 1.0) all.mul_(relative);
    all_reduce(world_, all);
    std::int64_t begin = 0;
    for (std::size_t const i : bucket) {
      at::Tensor const& gradient = gradient_of(i);
      gradient.copy_(all.slice(0, begin, begin + gradient.numel()).view(gradient.sizes()));
      begin += gradient.numel();
    }
  });
}

KEEL_BODY void replication::share_buffers(torch::nn::Module& model) const {
  if (!is_shared()) return;
  at::NoGradGuard const no_grad;
  // One collective a dtype: the buffers of batch normalisation are many and small.
  std::map<at::ScalarType, std::vector<at::Tensor>> by_dtype;
  for (at::Tensor const& one : model.buffers()) {
    if (one.defined() && one.layout() == at::kStrided && one.numel() > 0) by_dtype[one.scalar_type()].push_back(one);
  }
  for (auto const& [dtype, all] : by_dtype) {
    std::vector<at::Tensor> flat;
    flat.reserve(all.size());
    for (at::Tensor const& one : all) flat.push_back(one.reshape(-1).to(all.front().device()));
    at::Tensor const whole = at::cat(flat);
    broadcast(world_, whole, 0);
    if (world_.rank() == 0) continue;
    std::int64_t begin = 0;
    for (at::Tensor const& one : all) {
      one.copy_(whole.slice(0, begin, begin + one.numel()).view(one.sizes()));
      begin += one.numel();
    }
  }
}

KEEL_BODY void replication::sum(std::vector<double>& numbers) const {
  if (!is_shared()) return;
  at::Tensor const all = at::tensor(numbers, at::kDouble);
  all_reduce(world_, all);
  std::copy_n(all.data_ptr<double>(), numbers.size(), numbers.begin());
}

}  // namespace keel::detail

#include <keel/core/detail/body_end.inc>
