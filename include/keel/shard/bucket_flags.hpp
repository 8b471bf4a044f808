// Flags that travel with a bucket of gradients, as numbers of its dtype.
#pragma once

#include <keel/libtorch/ivalue_first.hpp>

#include <ATen/core/Tensor.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <cstddef>
#include <keel/libtorch/mode.hpp>
#include <vector>

namespace keel::detail::inline KEEL_MODE {

/// Writes the flags of a bucket to the device where they are. Allocates nothing on the host, so that running out of memory here cannot make
/// the ranks diverge.
inline void write_flags(at::Tensor const& flags, std::vector<double> const& values) {
  if (!flags.is_cpu()) {
    flags.copy_(at::tensor(values, flags.scalar_type()));
  } else if (flags.scalar_type() == at::kDouble) {
    std::copy(values.begin(), values.end(), flags.data_ptr<double>());
  } else {
    std::transform(values.begin(), values.end(), flags.data_ptr<float>(),
                   [](double value) { return static_cast<float>(value); });
  }
}
inline std::vector<bool> read_flags(at::Tensor const& flags) {
  at::Tensor const host = flags.is_cpu() ? flags : flags.to(at::kCPU);
  std::vector<bool> found(static_cast<std::size_t>(flags.numel()));
  for (std::size_t i = 0; i < found.size(); ++i)
    found[i] = host.scalar_type() == at::kDouble ? host.data_ptr<double>()[i] != 0.0 : host.data_ptr<float>()[i] != 0.0F;
  return found;
}

/// Adds the flags to numbers. Allocates nothing if they are on the host.
inline void add_flags(at::Tensor const& flags, std::vector<double>& to) {
  at::Tensor const host = flags.is_cpu() ? flags : flags.to(at::kCPU);
  for (std::size_t i = 0; i < to.size(); ++i)
    to[i] += host.scalar_type() == at::kDouble ? host.data_ptr<double>()[i] : static_cast<double>(host.data_ptr<float>()[i]);
}

}  // namespace keel::detail::inline KEEL_MODE
