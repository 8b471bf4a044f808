// Definitions for gradient_shards.hpp.
#pragma once

#include <keel/libtorch/ivalue_first.hpp>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <keel/collective/collectives.hpp>
#include <keel/shard/buckets.hpp>
#include <keel/shard/gradient_shards.hpp>
#include <keel/shard/shard_range.hpp>
#include <utility>

#include <keel/libtorch/detail/body_begin.inc>

namespace keel::detail::inline KEEL_MODE {

KEEL_BODY gradient_shards::gradient_shards(world_of_ranks world, parameter_list const& parameters, bool flags_on_host)
    : world_(std::move(world)), parameters_(parameters), flags_on_host_(flags_on_host) {}

KEEL_BODY void gradient_shards::cut(std::vector<std::vector<std::size_t>> const& buckets, std::size_t more_flags) {
  auto const& tensors = parameters_.tensors;
  buckets_.clear();
  buffers_.clear();
  std::vector<std::size_t> used;  // buckets of a pair of buffers so far
  for (std::vector<std::size_t> const& which : buckets) {
    bucket& one = buckets_.emplace_back();
    one.which = which;
    for (int rank = 0; rank < world_.size(); ++rank) {
      std::int64_t row = 0;
      for (std::size_t const i : which) row += compute_shard_range(tensors[i].numel(), i, rank, world_.size()).count;
      one.row = std::max(one.row, row);
    }
    one.flag_count = static_cast<std::int64_t>(which.size() + (&which == &buckets.back() ? more_flags : 0));
    c10::Device const device = which.empty() ? c10::Device(at::kCPU) : tensors[which.front()].device();
    // Buckets of a device take turns with two pairs of buffers.
    auto first = std::find_if(buffers_.begin(), buffers_.end(), [&](buffer_pair const& pair) { return pair.device == device; });
    if (first == buffers_.end()) {
      buffers_.insert(buffers_.end(), 2, buffer_pair{.device = device});
      used.resize(buffers_.size(), 0);
      first = buffers_.end() - 2;
    }
    auto const place = static_cast<std::size_t>(first - buffers_.begin());
    one.buffers = place + used[place]++ % 2;
    std::int64_t const columns = one.row + (flags_on_host_ ? 0 : one.flag_count);
    auto const size =
        static_cast<std::int64_t>(which.empty() ? sizeof(float) : c10::elementSize(sum_dtype(tensors[which.front()])));
    buffer_pair& pair = buffers_[one.buffers];
    pair.bytes = std::max(pair.bytes, columns * world_.size() * size);
  }
  // Kept where parameters were only frozen: an open update has sums of earlier micro-batches.
  sums_.resize(tensors.size());
  is_begun_.resize(tensors.size(), false);
  has_gradient_.resize(tensors.size(), false);
}

KEEL_BODY void gradient_shards::parameters_changed() {
  sums_.clear();
  is_begun_.clear();
  has_gradient_.clear();
}

KEEL_BODY void gradient_shards::prepare() {
  for (buffer_pair& pair : buffers_) {
    pair.user = -1;
    auto const options = at::TensorOptions(at::kByte).device(pair.device);
    for (at::Tensor* const one : {&pair.sent, &pair.received}) {
      if (!one->defined()) *one = at::empty({pair.bytes}, options);
    }
  }
  for (bucket& one : buckets_) {
    one.pending.reset();
    one.is_sent = false;
    one.flags.assign(static_cast<std::size_t>(one.flag_count), 0.0);
    for (std::size_t const i : one.which) {
      if (sums_[i].defined()) continue;
      at::Tensor const& like = parameters_.tensors[i];
      std::int64_t const count = compute_shard_range(like.numel(), i, world_.rank(), world_.size()).count;
      sums_[i] = at::empty({count}, like.options().dtype(sum_dtype(like)).requires_grad(false));
    }
  }
}

KEEL_BODY at::Tensor gradient_shards::rows_of(bucket const& one, at::Tensor const& bytes) const {
  at::ScalarType const dtype = one.which.empty() ? at::kFloat : sum_dtype(parameters_.tensors[one.which.front()]);
  std::int64_t const columns = one.row + (flags_on_host_ ? 0 : one.flag_count);
  auto const needed = columns * world_.size() * static_cast<std::int64_t>(c10::elementSize(dtype));
  return bytes.narrow(0, 0, needed).view(dtype).view({world_.size(), columns});
}

KEEL_BODY void gradient_shards::free_buffers(std::size_t number) {
  buffer_pair const& pair = buffers_[buckets_[number].buffers];
  if (pair.user >= 0) complete(static_cast<std::size_t>(pair.user));
}

KEEL_BODY std::vector<double> gradient_shards::fill(std::size_t number, double relative, bool sends_nothing) {
  at::NoGradGuard const no_grad;
  bucket& one = buckets_[number];
  buffer_pair const& pair = buffers_[one.buffers];
  at::Tensor const rows = rows_of(one, pair.sent);
  std::vector<double> flags(one.which.size(), 0.0);
  std::vector<std::int64_t> at(static_cast<std::size_t>(world_.size()), 0);
  for (std::size_t place = 0; place < one.which.size(); ++place) {
    std::size_t const i = one.which[place];
    at::Tensor const& parameter = parameters_.tensors[i];
    at::Tensor const& gradient = parameter.grad();
    bool const has = !sends_nothing && gradient.defined() && gradient.layout() == at::kStrided;
    at::Tensor const flat = has ? in_memory_order(gradient, parameter) : at::Tensor();
    for (int rank = 0; rank < world_.size(); ++rank) {
      auto const [begin, count] = compute_shard_range(parameter.numel(), i, rank, world_.size());
      if (count == 0) continue;
      std::int64_t& offset = at[static_cast<std::size_t>(rank)];
      at::Tensor const to = rows[rank].narrow(0, offset, count);
      has ? to.copy_(flat.narrow(0, begin, count)) : to.zero_();
      offset += count;
    }
    if (has) flags[place] = 1.0;
  }
  if (relative != 1.0) rows.narrow(1, 0, one.row).mul_(relative);
  // Released only now, so that a bucket whose filling failed can be filled again.
  for (std::size_t place = 0; place < one.which.size(); ++place) {
    if (flags[place] == 0.0) continue;
    parameters_.tensors[one.which[place]].mutable_grad() = at::Tensor();
    has_sent_ = true;
  }
  return flags;
}

KEEL_BODY void gradient_shards::write_flags(std::size_t number, std::vector<double> const& flags) {
  bucket const& one = buckets_[number];
  at::Tensor const sent = rows_of(one, buffers_[one.buffers].sent);
  for (int rank = 0; rank < world_.size(); ++rank) detail::write_flags(sent[rank].narrow(0, one.row, one.flag_count), flags);
}

KEEL_BODY void gradient_shards::begin(std::size_t number) {
  at::NoGradGuard const no_grad;
  bucket& one = buckets_[number];
  buffer_pair& pair = buffers_[one.buffers];
  at::Tensor const sent = rows_of(one, pair.sent);
  pair.user = static_cast<std::ptrdiff_t>(number);
  one.is_sent = true;
  if (sent.numel() == 0) return;
  at::Tensor received = rows_of(one, pair.received);
  one.pending = begin_all_to_all(world_, sent, received);
}

KEEL_BODY void gradient_shards::complete(std::size_t number) {
  at::NoGradGuard const no_grad;
  bucket& one = buckets_[number];
  buffer_pair& pair = buffers_[one.buffers];
  if (!std::exchange(one.is_sent, false)) return;
  if (one.pending) std::exchange(one.pending, nullptr)->wait();
  pair.user = -1;
  at::Tensor const rows = rows_of(one, pair.received);
  if (rows.numel() == 0) return;
  at::Tensor const sum = rows[0];
  for (int rank = 1; rank < world_.size(); ++rank) sum.add_(rows[rank]);
  std::int64_t at = 0;
  for (std::size_t const i : one.which) {
    at::Tensor const part = sum.narrow(0, at, sums_[i].numel());
    at += sums_[i].numel();
    // Not added to zero, which would lose the sign of a zero.
    is_begun_[i] ? sums_[i].add_(part) : sums_[i].copy_(part);
    is_begun_[i] = true;
  }
  if (flags_on_host_) return;
  add_flags(sum.narrow(0, one.row, one.flag_count), one.flags);
}

KEEL_BODY void gradient_shards::finish() {
  for (std::size_t number = 0; number < buckets_.size(); ++number) complete(number);
}

KEEL_BODY void gradient_shards::reset() {
  std::fill(is_begun_.begin(), is_begun_.end(), false);
  std::fill(has_gradient_.begin(), has_gradient_.end(), false);
  has_sent_ = false;
}

}  // namespace keel::detail::inline KEEL_MODE

#include <keel/libtorch/detail/body_end.inc>
