// Definitions for world_of_ranks.hpp.
#pragma once

#include <keel/libtorch/ivalue_first.hpp>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/from_blob.h>

#include <keel/collective/world_of_ranks.hpp>

#include <keel/libtorch/detail/body_begin.inc>

namespace keel::inline KEEL_MODE {

KEEL_BODY world_of_ranks::world_of_ranks(std::shared_ptr<detail::transport> backend) : state_(std::make_shared<shared>()) {
  state_->backend = std::move(backend);
}

KEEL_BODY detail::transport* world_of_ranks::begin(char const* what, std::int64_t elements) const {
  if (state_ == nullptr) return nullptr;
  ++state_->count;
  // FNV-1a.
  auto const mix = [this](std::uint64_t byte) { state_->fingerprint = (state_->fingerprint ^ byte) * 0x100000001b3ull; };
  if (state_->fingerprint == 0) state_->fingerprint = 0xcbf29ce484222325ull;
  for (char const* letter = what; *letter != 0; ++letter) mix(static_cast<unsigned char>(*letter));
  for (int byte = 0; byte < 8; ++byte) mix(static_cast<std::uint64_t>(elements) >> (8 * byte) & 0xffu);
  state_->last.began(state_->count, what, elements);
  return state_->backend.get();
}

}  // namespace keel::inline KEEL_MODE

namespace keel::detail::inline KEEL_MODE {

template <class Value>
std::vector<Value> gathered(transport& backend, Value local, at::ScalarType dtype) {
  at::NoGradGuard const no_grad;
  // No tensor is allocated, because ranks also use this to agree that memory has run out.
  std::vector<Value> found(static_cast<std::size_t>(backend.size()));
  at::Tensor all = at::from_blob(found.data(), {backend.size(), 1}, at::TensorOptions(dtype));
  backend.all_gather(at::from_blob(&local, {1}, at::TensorOptions(dtype)), all);
  return found;
}

}  // namespace keel::detail::inline KEEL_MODE

namespace keel::inline KEEL_MODE {

KEEL_BODY std::vector<double> world_of_ranks::gather(double local) const {
  auto const all = detail::gathered(*begin("combine", 1), local, at::kDouble);
  mark_completed();
  return all;
}

KEEL_BODY std::vector<std::int64_t> world_of_ranks::gather(std::int64_t local) const {
  auto const all = detail::gathered(*begin("combine", 1), local, at::kLong);
  mark_completed();
  return all;
}

}  // namespace keel::inline KEEL_MODE

#include <keel/libtorch/detail/body_end.inc>
