// The bodies of world_of_ranks.hpp.
#pragma once

#include <keel/libtorch/ivalue_first.hpp>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/from_blob.h>

#include <keel/collective/world_of_ranks.hpp>

#include <keel/libtorch/detail/body_begin.inc>

namespace keel::inline KEEL_MODE {

KEEL_BODY world_of_ranks::world_of_ranks(std::shared_ptr<detail::transport> by) : of_(std::make_shared<shared>()) {
  of_->by = std::move(by);
}

KEEL_BODY detail::transport* world_of_ranks::begin(char const* what, std::int64_t elements) const {
  if (of_ == nullptr) return nullptr;
  ++of_->count;
  // FNV-1a, which is enough to tell two sequences of calls apart.
  auto const mix = [this](std::uint64_t byte) { of_->fingerprint = (of_->fingerprint ^ byte) * 0x100000001b3ull; };
  if (of_->fingerprint == 0) of_->fingerprint = 0xcbf29ce484222325ull;
  for (char const* letter = what; *letter != 0; ++letter) mix(static_cast<unsigned char>(*letter));
  for (int byte = 0; byte < 8; ++byte) mix(static_cast<std::uint64_t>(elements) >> (8 * byte) & 0xffu);
  of_->last.began(of_->count, what, elements);
  return of_->by.get();
}

}  // namespace keel::inline KEEL_MODE

namespace keel::detail::inline KEEL_MODE {

template <class Value>
std::vector<Value> gathered(transport& by, Value mine, at::ScalarType dtype) {
  at::NoGradGuard const no_grad;
  // LibTorch's allocator is not asked: ranks also agree on that it has nothing left.
  std::vector<Value> found(static_cast<std::size_t>(by.size()));
  at::Tensor all = at::from_blob(found.data(), {by.size(), 1}, at::TensorOptions(dtype));
  by.all_gather(at::from_blob(&mine, {1}, at::TensorOptions(dtype)), all);
  return found;
}

}  // namespace keel::detail::inline KEEL_MODE

namespace keel::inline KEEL_MODE {

KEEL_BODY std::vector<double> world_of_ranks::gather(double mine) const {
  auto const all = detail::gathered(*begin("combine", 1), mine, at::kDouble);
  completed();
  return all;
}

KEEL_BODY std::vector<std::int64_t> world_of_ranks::gather(std::int64_t mine) const {
  auto const all = detail::gathered(*begin("combine", 1), mine, at::kLong);
  completed();
  return all;
}

}  // namespace keel::inline KEEL_MODE

#include <keel/libtorch/detail/body_end.inc>
