// Definitions for preflight_passes.hpp.
#pragma once

#include <ATen/ATen.h>

#include <cmath>
#include <keel/diagnose/preflight_passes.hpp>
#include <keel/libtorch/compatibility.hpp>
#include <keel/libtorch/host_value.hpp>
#include <random>

#include <keel/libtorch/detail/body_begin.inc>

namespace keel::detail::inline KEEL_MODE {

KEEL_BODY bool normalises_over_a_batch(torch::nn::Module& model) {
  // The model itself is excluded because a shared_ptr need not own it.
  for (auto const& one : model.modules(/*include_self=*/false)) {
    if (one->name().find("BatchNorm") != std::string::npos) return true;
  }
  return false;
}

KEEL_BODY at::Tensor drawn_from(at::Tensor const& values, std::uint64_t seed) {
  std::vector<std::int64_t> order(static_cast<std::size_t>(values.numel()));
  std::mt19937_64 engine(seed);
  for (std::int64_t& one : order) one = static_cast<std::int64_t>(engine() % order.size());
  at::Tensor const index = at::tensor(order, at::kLong).to(values.device());
  return values.reshape({-1}).index_select(0, index).reshape(values.sizes());
}

KEEL_BODY at::Tensor where_changed(at::Tensor const& before, at::Tensor const& after) {
  at::NoGradGuard const no_grad;
  at::Tensor const a = before.to(at::kCPU, at::kDouble), b = after.to(at::kCPU, at::kDouble);
  at::Tensor const finite = at::where(a.isfinite(), a.abs(), at::zeros_like(a));
  double const largest = a.numel() == 0 ? 0.0 : finite.max().item<double>();
  at::Tensor const both_lack = a.isfinite().logical_not().logical_and(b.isfinite().logical_not());
  return ((a - b).abs() <= 1e-5 * largest).logical_or(both_lack).logical_not();
}

KEEL_BODY bool is_changed(at::Tensor const& before, at::Tensor const& after) {
  if (before.defined() != after.defined()) return true;
  if (!before.defined()) return false;
  return before.sizes() != after.sizes() || where_changed(before, after).any().item<bool>();
}

KEEL_BODY bool is_changed(tried_pass const& before, tried_pass const& after) {
  if (std::isnan(before.loss) && std::isnan(after.loss)) return false;
  return !(std::abs(before.loss - after.loss) <= 1e-6 * std::abs(before.loss));
}

KEEL_BODY tried_pass tried_passes::pass(std::vector<at::Tensor> const& instead) const {
  tried_pass found;
  loss_watch watch(instead.empty() ? tensors : instead);
  found.operands = watch.look_at([&] { found.loss = host_value(program.loss({0, instead}).mean); });
  return found;
}

KEEL_BODY std::vector<at::Tensor> tried_passes::with(std::size_t index, at::Tensor const& changed) const {
  std::vector<at::Tensor> all = tensors;
  all[index] = changed;
  return all;
}

KEEL_BODY std::optional<std::size_t> tried_passes::labels() const {
  if (tensors.size() < 2 || first.operands.goes_in.count(tensors.size() - 1) > 0) return std::nullopt;
  return tensors.size() - 1;
}

KEEL_BODY at::Tensor tried_passes::target() const {
  if (first.operands.target.defined()) return first.operands.target;
  return labels() ? tensors.back() : at::Tensor();
}

KEEL_BODY tried_passes::tried_passes(preflight_program& of) : program(of), tensors(of.tensors(0)), rows(of.rows(0)) {
  mode_scope const modes(program.all_models());
  if (normalises_over_a_batch(program.all_models())) program.all_models().eval();
  first = pass({});
  tried_pass const again = pass({});
  is_repeatable = !is_changed(first, again) && !is_changed(first.operands.output, again.operands.output);
  is_input.assign(tensors.size(), false);
  is_fixed.assign(tensors.size(), false);
  if (!is_repeatable) return;
  at::Tensor const wanted = target();
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    try {
      tried_pass const other = pass(with(i, drawn_from(tensors[i], 1)));
      is_input[i] = has_output() ? is_changed(first.operands.output, other.operands.output) : is_changed(first, other);
    } catch (std::exception const&) {
      // Tensors such as offsets and lengths allow no other values; the program depends on them.
      is_input[i] = is_fixed[i] = true;
    }
    bool const is_made_of_it = first.operands.target_is_from.count(i) > 0;
    bool const is_labels = tensors.size() > 1 && i + 1 == tensors.size();
    if (is_input[i] && is_made_of_it && !is_labels && wanted.is_floating_point() && wanted.numel() == tensors[i].numel())
      is_autoencoder = true;
    // The labels are a copy of the inputs, as for an autoencoder.
    if (is_input[i] && tensors.size() > 1 && i + 1 < tensors.size() && tensors[i].is_floating_point() &&
        tensors[i].sizes() == tensors.back().sizes() && tensors[i].scalar_type() == tensors.back().scalar_type() &&
        tensors[i].equal(tensors.back()))
      is_autoencoder = true;
  }
  if (tensors.size() == 1 && !first.operands.target_is_from.empty() && first.operands.target.is_floating_point() &&
      first.operands.target.numel() == tensors[0].numel())
    is_autoencoder = true;
}

}  // namespace keel::detail::inline KEEL_MODE

#include <keel/libtorch/detail/body_end.inc>
