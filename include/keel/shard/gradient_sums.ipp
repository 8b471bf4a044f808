// Definitions for gradient_sums.hpp.
#pragma once

#include <keel/libtorch/ivalue_first.hpp>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>
#include <keel/collective/collectives.hpp>
#include <keel/core/error.hpp>
#include <keel/recompute/recompute_pass.hpp>
#include <keel/shard/bucket_flags.hpp>
#include <keel/shard/buckets.hpp>
#include <keel/shard/gradient_sums.hpp>

#include <keel/libtorch/detail/body_begin.inc>

namespace keel::detail::inline KEEL_MODE {

/// Elements to which the offsets of parameters in a bucket are aligned: a cache line of float32.
inline constexpr std::int64_t sum_alignment = 16;
inline std::int64_t round_up_to_line(std::int64_t elements) {
  return (elements + sum_alignment - 1) / sum_alignment * sum_alignment;
}

/// Flags after the parameters' flags in the last bucket: a rank threw; a gradient changed after its bucket started.
inline constexpr std::int64_t global_flag_count = 2;

class gradient_sums::ready_hook final : public torch::autograd::FunctionPostHook {
 public:
  ready_hook(gradient_sums& sums, std::size_t parameter) : sums_(sums), parameter_(parameter) {}
  torch::autograd::variable_list operator()(torch::autograd::variable_list const& outputs,
                                            torch::autograd::variable_list const& /*inputs*/) override {
    sums_.ready(parameter_);
    return outputs;
  }

 private:
  gradient_sums& sums_;
  std::size_t parameter_;
};

KEEL_BODY gradient_sums::gradient_sums(world_of_ranks world, parameter_list const& parameters, keeps which, bool flags_on_host)
    : world_(std::move(world)), flags_on_host_(flags_on_host), parameters_(parameters) {
  if (which == keeps::shards) shards_.emplace(world_, parameters_, flags_on_host_);
  cut();
}

KEEL_BODY gradient_sums::~gradient_sums() {
  for (auto const& [accumulator, key] : hooks_) accumulator->del_post_hook(key);
}

KEEL_BODY void gradient_sums::parameters_changed() {
  if (shards_) shards_->parameters_changed();
  cut();
}

KEEL_BODY void gradient_sums::cut() {
  ++cuts_;
  auto const& tensors = parameters_.tensors;
  for (auto const& [accumulator, key] : hooks_) accumulator->del_post_hook(key);
  hooks_.clear();
  buckets_.clear();
  places_.assign(tensors.size(), {});
  is_ready_.assign(tensors.size(), false);
  was_moved_.assign(tensors.size(), false);
  has_sum_.assign(tensors.size(), false);
  // Empty until cut() succeeds: after an exception prepare() calls it again.
  takes_part_.clear();
  std::vector<bool> takes_part;
  std::vector<std::size_t> all;
  std::int64_t bytes = 0;
  for (at::Tensor const& one : tensors) {
    takes_part.push_back(one.requires_grad());
    bytes += static_cast<std::int64_t>(one.nbytes());
  }
  for (std::size_t i = tensors.size(); i-- > 0;) {
    if (takes_part[i]) all.push_back(i);
  }
  for_each_bucket(
      all, [&](std::size_t i) -> at::Tensor const& { return tensors[i]; },
      [&](std::vector<std::size_t> const& which) {
        bucket& one = buckets_.emplace_back();
        one.which = which;
        one.begins.reserve(which.size());
        for (std::size_t const i : which) {
          places_[i] = {buckets_.size() - 1, one.begins.size()};
          one.begins.push_back(one.elements);
          one.elements += round_up_to_line(tensors[i].numel());
        }
      },
      shards_ ? shard_bucket_bytes(bytes, world_.size()) : sum_bucket_bytes(bytes));
  // The last bucket carries the flag for a rank that threw, so there must be one.
  if (buckets_.empty()) buckets_.emplace_back();
  if (shards_) {
    std::vector<std::vector<std::size_t>> which;
    which.reserve(buckets_.size());
    for (bucket const& one : buckets_) which.push_back(one.which);
    shards_->cut(which, global_flag_count);
  }
  for (std::size_t const i : all) {
    auto accumulator = torch::autograd::impl::grad_accumulator(tensors[i]);
    hooks_.emplace_back(accumulator, 0);
    hooks_.back().second = accumulator->add_post_hook(std::make_unique<ready_hook>(*this, i));
  }
  takes_part_ = std::move(takes_part);
}

KEEL_BODY bool gradient_sums::lacks_parameters() const {
  auto const& tensors = parameters_.tensors;
  bool lacks = takes_part_.size() != tensors.size();
  for (std::size_t i = 0; !lacks && i < tensors.size(); ++i) lacks = tensors[i].requires_grad() && !takes_part_[i];
  return lacks;
}

KEEL_BODY bool gradient_sums::is_in_watched_pass() const {
  return !watched_pass_ || recompute_pass::is_running() ||
         *watched_pass_ == torch::autograd::get_current_graph_task_exec_info();
}

KEEL_BODY bool gradient_sums::is_in_place(std::size_t parameter) const {
  auto const [number, place] = places_[parameter];
  bucket const& of = buckets_[number];
  at::Tensor const& like = parameters_.tensors[parameter];
  at::Tensor const& gradient = like.grad();
  // Without making a view, once a parameter and update.
  return gradient.is_alias_of(of.sum) && gradient.storage_offset() == of.begins[place] &&
         (like.is_non_overlapping_and_dense() ? gradient.strides() == like.strides() : gradient.is_contiguous());
}

KEEL_BODY void gradient_sums::separate_from_buckets() {
  for (std::size_t i = 0; i < parameters_.tensors.size(); ++i) {
    at::Tensor& gradient = parameters_.tensors[i].mutable_grad();
    if (!takes_part_[i] || !gradient.defined() || gradient.layout() != at::kStrided || is_in_place(i)) continue;
    bool const is_in_bucket =
        std::any_of(buckets_.begin(), buckets_.end(), [&](bucket const& one) { return gradient.is_alias_of(one.sum); });
    if (is_in_bucket) gradient = gradient.clone();
  }
}

KEEL_BODY void gradient_sums::point_flags(bucket& of, at::Tensor const& sum) const {
  if (!flags_on_host_) of.flags = sum.narrow(0, of.elements, sum.numel() - of.elements);
}

KEEL_BODY void gradient_sums::allocate_buckets() {
  for (bucket& one : buckets_) {
    auto options = at::TensorOptions(at::kFloat);
    if (!one.which.empty()) {
      at::Tensor const& first = parameters_.tensors[one.which.front()];
      options = options.dtype(sum_dtype(first)).device(first.device());
    }
    if (one.sum.defined() && one.sum.device() == options.device()) continue;
    std::size_t const flags = one.which.size() + (&one == &buckets_.back() ? global_flag_count : 0);
    one.sum = at::zeros({one.elements + (flags_on_host_ ? 0 : static_cast<std::int64_t>(flags))}, options);
  }
}

KEEL_BODY void gradient_sums::begin_update() {
  at::NoGradGuard const no_grad;
  // A parameter that was frozen since the last update may be unfrozen within this one, as those of a discriminator are.
  bool is_outdated = lacks_parameters();
  for (std::size_t i = 0; !is_outdated && i < was_frozen_.size(); ++i)
    is_outdated = takes_part_[i] && was_frozen_[i] && !parameters_.tensors[i].requires_grad();
  if (is_outdated) cut();
  if (shards_) return;
  std::lock_guard const lock(mutex_);
  for (bucket& one : buckets_) {
    if (!flags_on_host_) one.flags.reset();
    // Do not reuse the memory while the program still holds gradients of the last update, which are views of it.
    if (one.sum.defined() && one.sum.storage().use_count() > 1) one.sum.reset();
  }
  allocate_buckets();
  std::fill(was_moved_.begin(), was_moved_.end(), false);
  begun_ = 0;
  has_released_ = false;
  moves_gradients_ = true;
}

KEEL_BODY std::int64_t gradient_sums::prepare() {
  at::NoGradGuard const no_grad;
  auto const& tensors = parameters_.tensors;
  // One that was frozen within this update stays in its bucket, because it may have a gradient.
  if (lacks_parameters()) cut();
  was_frozen_.resize(tensors.size());
  // Less than 2^31, so that a double holds the checksum exactly.
  constexpr std::int64_t prime = 2147483647;
  std::int64_t checksum = static_cast<std::int64_t>(tensors.size()) + 1;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    was_frozen_[i] = !tensors[i].requires_grad();
    checksum = (checksum * 48271 + (was_frozen_[i] ? 1 : 2)) % prime;
  }
  std::int64_t flags = global_flag_count;
  for (bucket const& one : buckets_) flags += static_cast<std::int64_t>(one.which.size());
  if (flags_on_host_ && (!host_flags_.defined() || host_flags_.numel() != flags)) host_flags_ = at::zeros({flags}, at::kFloat);
  flags = 0;
  if (shards_) {
    shards_->prepare();
  } else {
    allocate_buckets();
    // The program may have given a parameter the gradient of another one, whose sum starts first.
    separate_from_buckets();
  }
  for (bucket& one : buckets_) {
    one.missing = static_cast<std::size_t>(
        std::count_if(one.which.begin(), one.which.end(), [this](std::size_t i) { return !was_frozen_[i]; }));
    one.pending.reset();
    bool const is_last = &one == &buckets_.back();
    std::int64_t const own = static_cast<std::int64_t>(one.which.size()) + (is_last ? global_flag_count : 0);
    if (flags_on_host_) one.flags = host_flags_.narrow(0, flags, own);
    if (!shards_) point_flags(one, one.sum);
    flags += own;
  }
  is_ready_ = was_frozen_;
  std::fill(has_sum_.begin(), has_sum_.end(), false);
  begun_ = 0;
  failed_ = nullptr;
  has_failed_collective_ = false;
  return checksum;
}

KEEL_BODY void gradient_sums::begin_backward(at::Tensor const& loss, permission may_begin) {
  std::lock_guard const lock(mutex_);
  watched_pass_ = nullptr;
  if (loss.defined() && loss.requires_grad()) {
    watched_pass_ = std::make_shared<std::atomic<void const*>>(nullptr);
    loss.register_hook([pass = watched_pass_](at::Tensor const& /*gradient*/) {
      *pass = torch::autograd::get_current_graph_task_exec_info();
    });
  }
  may_begin_ = std::move(may_begin);
}

KEEL_BODY void gradient_sums::forget() {
  std::lock_guard const lock(mutex_);
  may_begin_ = nullptr;
  moves_gradients_ = false;
}

KEEL_BODY void gradient_sums::ready(std::size_t parameter) noexcept {
  std::lock_guard const lock(mutex_);
  try {
    if (may_begin_ && !is_in_watched_pass()) return;
    if (moves_gradients_) move_into_bucket(parameter);
    if (!may_begin_ || failed_ || is_ready_[parameter]) return;
    is_ready_[parameter] = true;
    --buckets_[places_[parameter].bucket].missing;
    begin_ready();
  } catch (...) {
    // Kept for finish(), because autograd does not propagate every exception.
    failed_ = std::current_exception();
  }
}

template <class Call>
void gradient_sums::note_failed_collective(Call const& call) {
  try {
    call();
  } catch (...) {
    // Kept, so that a later finish() rethrows it.
    failed_ = std::current_exception();
    has_failed_collective_ = true;
    throw;
  }
}

KEEL_BODY void gradient_sums::begin_ready() {
  // The last bucket is started in finish(), when it is known whether this rank threw.
  while (begun_ + 1 < buckets_.size() && buckets_[begun_].missing == 0 && !failed_) {
    std::size_t const next = begun_;
    std::optional<double> const relative = may_begin_();
    if (!relative) return;
    // The agreement has begun it, for other ranks.
    if (begun_ != next) continue;
    if (shards_) world_.waiting([this] { note_failed_collective([this] { shards_->free_buffers(begun_); }); });
    begin_even_if_failed(begun_, *relative, false);
    ++begun_;
  }
}

KEEL_BODY bool gradient_sums::has_late_gradient(std::size_t end) const {
  for (std::size_t number = 0; number < end; ++number) {
    for (std::size_t const i : buckets_[number].which) {
      at::Tensor const& gradient = parameters_.tensors[i].grad();
      if (!gradient.defined() || gradient.layout() != at::kStrided) continue;
      if (!shards_ && gradient.is_alias_of(buckets_[number].sum))
        throw interference_error("E19", parameters_.names[i] +
                                            " got back a gradient that was set aside before its sum began, so it would be "
                                            "counted twice. Do not set gradients aside while a backward pass runs.");
      return true;
    }
  }
  return false;
}

KEEL_BODY at::Tensor gradient_sums::elements_of(bucket const& of, std::size_t place) const {
  at::Tensor const& like = parameters_.tensors[of.which[place]];
  if (like.is_non_overlapping_and_dense()) return of.sum.as_strided(like.sizes(), like.strides(), of.begins[place]);
  return of.sum.narrow(0, of.begins[place], like.numel()).view(like.sizes());
}

KEEL_BODY void gradient_sums::move_into_bucket(std::size_t parameter) {
  auto const [number, place] = places_[parameter];
  bucket const& of = buckets_[number];
  at::Tensor& gradient = parameters_.tensors[parameter].mutable_grad();
  // A gradient with a graph is the program's, which computes a second derivative.
  bool const is_movable = number >= begun_ && of.sum.defined() && gradient.defined() && gradient.layout() == at::kStrided &&
                          gradient.scalar_type() == of.sum.scalar_type() && !gradient.requires_grad();
  if (!is_movable || gradient.is_alias_of(of.sum)) return;
  // Another backward pass, as of a trace, may have set the first gradient aside, which is in the bucket.
  if (was_moved_[parameter]) return;
  was_moved_[parameter] = true;
  at::NoGradGuard const no_grad;
  // variable_data() is not a view for autograd; zero_grad() rejects views.
  at::Tensor const elements = elements_of(of, place).variable_data();
  elements.copy_(gradient);
  gradient = elements;
}

KEEL_BODY std::vector<double> gradient_sums::fill(bucket& of, double relative, bool threw) {
  at::NoGradGuard const no_grad;
  std::vector<double> flags(of.which.size(), 0.0);
  for (std::size_t place = 0; place < of.which.size(); ++place) {
    std::size_t const i = of.which[place];
    at::Tensor const& gradient = parameters_.tensors[i].grad();
    bool const has = !threw && gradient.defined() && gradient.layout() == at::kStrided;
    if (!has) {
      of.sum.narrow(0, of.begins[place], parameters_.tensors[i].numel()).zero_();
      continue;
    }
    if (!is_in_place(i)) elements_of(of, place).copy_(gradient);
    flags[place] = 1.0;
  }
  if (relative != 1.0) of.sum.narrow(0, 0, of.elements).mul_(relative);
  // Released only now, so that a bucket whose filling failed can be filled again.
  for (std::size_t place = 0; place < of.which.size(); ++place) {
    if (flags[place] == 0.0) continue;
    parameters_.tensors[of.which[place]].mutable_grad() = at::Tensor();
    has_released_ = true;
  }
  return flags;
}

KEEL_BODY void gradient_sums::begin(std::size_t number, double relative, bool threw) {
  bucket& one = buckets_[number];
  if (shards_) note_failed_collective([&] { shards_->free_buffers(number); });
  std::vector<double> flags = shards_ ? shards_->fill(number, relative, threw) : fill(one, relative, threw);
  if (&one == &buckets_.back()) {
    flags.push_back(threw ? 1.0 : 0.0);
    flags.push_back(!threw && has_late_gradient(buckets_.size() - 1) ? 1.0 : 0.0);
  }
  if (one.flags.defined()) write_flags(one.flags, flags);
  if (shards_ && !flags_on_host_) shards_->write_flags(number, flags);
  note_failed_collective([&] {
    if (shards_) {
      shards_->begin(number);
    } else if (one.sum.numel() > 0) {
      one.pending = begin_all_reduce(world_, one.sum);
    }
  });
}

/// Starts a bucket even if filling it fails on this rank, with the failure flag set, because the other ranks are in the same collective.
KEEL_BODY void gradient_sums::begin_even_if_failed(std::size_t number, double relative, bool threw) {
  try {
    begin(number, relative, threw || failed_);
  } catch (std::exception const&) {
    if (has_failed_collective_ || threw || failed_) throw;
    failed_ = std::current_exception();
    begin(number, relative, true);
  }
}

KEEL_BODY std::vector<bool> gradient_sums::flags_of(std::size_t number) const {
  if (!shards_ || flags_on_host_) return read_flags(buckets_[number].flags);
  std::vector<bool> found;
  for (double const flag : shards_->flags(number)) found.push_back(flag != 0.0);
  return found;
}

KEEL_BODY void gradient_sums::note_summed_parameters() {
  for (std::size_t number = 0; number < buckets_.size(); ++number) {
    auto const has = flags_of(number);
    std::vector<std::size_t> const& which = buckets_[number].which;
    for (std::size_t place = 0; place < which.size(); ++place) {
      if (!has[place]) continue;
      has_sum_[which[place]] = true;
      if (shards_) shards_->set_has_gradient(which[place]);
    }
  }
}

KEEL_BODY void gradient_sums::assign_sums() {
  for (bucket const& of : buckets_) {
    for (std::size_t place = 0; place < of.which.size(); ++place) {
      std::size_t const i = of.which[place];
      if (has_sum_[i]) parameters_.tensors[i].mutable_grad() = elements_of(of, place).variable_data();
    }
  }
}

KEEL_BODY void gradient_sums::wait() {
  note_failed_collective([&] {
    if (flags_on_host_) all_reduce(world_, host_flags_);
    if (shards_) shards_->finish();
  });
  for (bucket& one : buckets_) {
    if (one.pending) std::exchange(one.pending, nullptr)->wait();
  }
}

KEEL_BODY void gradient_sums::begin_next(double relative) {
  begin_even_if_failed(begun_, relative, false);
  ++begun_;
}

KEEL_BODY void gradient_sums::wait_for_begun() {
  at::NoGradGuard const no_grad;
  if (shards_) note_failed_collective([this] { shards_->finish(); });
}

KEEL_BODY bool gradient_sums::finish(double relative, bool threw) {
  forget();
  if (has_failed_collective_) std::rethrow_exception(failed_);
  at::NoGradGuard const no_grad;
  for (; begun_ < buckets_.size(); ++begun_) begin_even_if_failed(begun_, relative, threw);
  wait();
  if (has_global_flag(0)) return false;
  note_summed_parameters();
  if (has_global_flag(1) && !sum_late_gradients(relative)) return false;
  if (!shards_) assign_sums();
  return true;
}

KEEL_BODY bool gradient_sums::sum_late_gradients(double relative) {
  if (shards_) {
    for (std::size_t number = 0; number < buckets_.size(); ++number) begin_even_if_failed(number, relative, false);
  } else {
    std::vector<at::Tensor> spare;
    try {
      spare = allocate_largest_buckets();
    } catch (std::exception const&) {
      failed_ = std::current_exception();
    }
    if (world_.combine(reduce::max{}, failed_ != nullptr)) return false;
    for (std::size_t number = 0; number < buckets_.size(); ++number) {
      bucket& one = buckets_[number];
      at::Tensor const first = one.sum;
      at::Tensor const& bytes =
          *std::find_if(spare.begin(), spare.end(), [&](at::Tensor const& of) { return of.device() == first.device(); });
      one.sum = bytes.narrow(0, 0, static_cast<std::int64_t>(first.nbytes())).view(first.scalar_type());
      point_flags(one, one.sum);
      begin_even_if_failed(number, relative, false);
      if (one.pending) std::exchange(one.pending, nullptr)->wait();
      one.sum = first.add_(one.sum);
      point_flags(one, one.sum);
    }
  }
  wait();
  if (has_global_flag(0)) return false;
  note_summed_parameters();
  return true;
}

KEEL_BODY std::vector<at::Tensor> gradient_sums::allocate_largest_buckets() const {
  std::vector<at::Tensor> largest;
  for (bucket const& one : buckets_) {
    auto const on_device =
        std::find_if(largest.begin(), largest.end(), [&](at::Tensor const& of) { return of.device() == one.sum.device(); });
    if (on_device != largest.end() && on_device->nbytes() >= one.sum.nbytes()) continue;
    at::Tensor const bytes = at::zeros({static_cast<std::int64_t>(one.sum.nbytes())}, one.sum.options().dtype(at::kByte));
    if (on_device != largest.end()) {
      *on_device = bytes;
    } else {
      largest.push_back(bytes);
    }
  }
  return largest;
}

KEEL_BODY bool gradient_sums::has_global_flag(std::size_t number) const {
  return flags_of(buckets_.size() - 1)[buckets_.back().which.size() + number];
}

}  // namespace keel::detail::inline KEEL_MODE

#include <keel/libtorch/detail/body_end.inc>
