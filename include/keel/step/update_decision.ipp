// Definitions for update_decision.hpp.
#pragma once

#include <keel/libtorch/ivalue_first.hpp>

#include <ATen/TensorOperators.h>
#include <ATen/ops/full.h>
#include <ATen/ops/stack.h>

#include <cmath>
#include <functional>
#include <keel/step/update_decision.hpp>
#include <string>
#include <utility>
#include <vector>

#include <keel/libtorch/detail/body_begin.inc>

namespace keel::detail::inline KEEL_MODE {

KEEL_BODY named_sums::named_sums() = default;
KEEL_BODY named_sums::named_sums(named_sums const&) = default;
KEEL_BODY named_sums::named_sums(named_sums&&) noexcept = default;
KEEL_BODY named_sums& named_sums::operator=(named_sums const&) = default;
KEEL_BODY named_sums& named_sums::operator=(named_sums&&) noexcept = default;
KEEL_BODY named_sums::~named_sums() = default;

KEEL_BODY loss_accumulator& named_sums::named(std::string const& name) {
  for (named_loss_sum& known : all_) {
    if (known.name == name) return known.loss;
  }
  return all_.emplace_back(named_loss_sum{name, {}}).loss;
}

KEEL_BODY void named_sums::add(weighted_loss const& loss, at::Device device, bool stays_on_device, bool is_sum,
                               read_number read) {
  for (named_loss const& part : loss.parts) {
    loss_accumulator value;
    if (stays_on_device) {
      value.add_on_device(part.value.to(device), loss.weight);
    } else {
      value.add(read(part.value), loss.weight);
    }
    loss_accumulator& sum = named(part.name);
    is_sum ? sum.add_term(value) : sum.add(value);
  }
}

KEEL_BODY std::vector<std::pair<std::string, double>> named_sums::values(read_number read) const {
  std::vector<std::pair<std::string, double>> values;
  values.reserve(all_.size());
  for (named_loss_sum const& part : all_)
    values.emplace_back(part.name, part.loss.is_on_device() ? read(part.loss.mean_on_device()) : part.loss.mean());
  return values;
}

KEEL_BODY std::string named_sums::first_nonfinite(read_number read) const {
  for (auto const& [name, value] : values(read)) {
    if (!std::isfinite(value)) return "the loss " + name;
  }
  return "";
}

KEEL_BODY std::uint32_t named_sums::names_checksum() const {
  if (all_.empty()) return 0;
  std::string together;
  for (named_loss_sum const& part : all_) together += part.name + '\n';
  // Never 0, which means no names.
  return static_cast<std::uint32_t>(std::hash<std::string>{}(together)) | 1u;
}

KEEL_BODY std::vector<double> named_sums::sums(read_number read, bool is_sum) const {
  std::vector<double> all;
  for (named_loss_sum const& part : all_) {
    double const weight = is_sum ? 1.0 : part.loss.weight;
    all.push_back((part.loss.is_on_device() ? read(part.loss.mean_on_device()) : part.loss.mean()) * weight);
    all.push_back(weight);
  }
  return all;
}

KEEL_BODY void named_sums::set_sums(std::vector<double> const& sums, bool is_sum) {
  for (std::size_t i = 0; i < all_.size(); ++i) {
    double const weight = is_sum ? 1.0 : sums[2 * i + 1];
    all_[i].loss = {};
    all_[i].loss.add(sums[2 * i] / weight, weight);
  }
}

KEEL_BODY at::Tensor named_sums::sums_on_device(at::Device device, bool is_sum) const {
  auto const options = at::TensorOptions(at::kDouble).device(device);
  std::vector<at::Tensor> all;
  for (named_loss_sum const& part : all_) {
    double const weight = is_sum ? 1.0 : part.loss.weight;
    all.push_back(part.loss.mean_on_device() * weight);
    all.push_back(at::full({}, weight, options));
  }
  return at::stack(all);
}

KEEL_BODY void named_sums::set_sums_on_device(at::Tensor const& sums, bool is_sum) {
  for (std::size_t i = 0; i < all_.size(); ++i) {
    auto const place = static_cast<std::int64_t>(2 * i);
    all_[i].loss = {};
    all_[i].loss.add_on_device(is_sum ? sums[place] : sums[place] / sums[place + 1], 1.0);
  }
}

KEEL_BODY at::Tensor named_sums::means_on_device() const {
  std::vector<at::Tensor> all;
  all.reserve(all_.size());
  for (named_loss_sum const& part : all_) all.push_back(part.loss.mean_on_device());
  return at::stack(all);
}

KEEL_BODY void named_sums::set_means(std::span<double const> means) {
  for (std::size_t i = 0; i < means.size(); ++i) {
    all_[i].loss = {};
    all_[i].loss.add(means[i], 1.0);
  }
}

KEEL_BODY std::string origin_of(update_sums const& sums) {
  return sums.exception.empty() ? "" : "the loss function threw after computing a non-finite value: " + sums.exception;
}

}  // namespace keel::detail::inline KEEL_MODE

#include <keel/libtorch/detail/body_end.inc>
