// Forward passes of one batch, with something of it changed, and what then became of the model's output and of the loss.
#pragma once

#include <keel/libtorch/ivalue_first.hpp>

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <cstddef>
#include <cstdint>
#include <keel/core/mode_scope.hpp>
#include <keel/diagnose/loss_watch.hpp>
#include <keel/diagnose/preflight_program.hpp>
#include <optional>
#include <string>
#include <vector>

namespace keel::detail::inline KEEL_MODE {

struct tried_pass {
  loss_operands operands;
  double loss = 0.0;
};

/// The first batch, as later looks compare with it.
struct tried_passes {
  preflight_program& program;
  std::vector<at::Tensor> tensors;  ///< of the first batch
  std::int64_t rows = 0;
  tried_pass first;
  bool is_repeatable = false;   ///< the same batch gave the same loss and output twice
  std::vector<bool> is_input;   ///< of each tensor: the output depends on it; the loss, where the output is not seen
  std::vector<bool> is_fixed;   ///< the program throws where it has other values
  bool is_autoencoder = false;  ///< the targets are what goes in

  /// Also finds out what of the batch is an input. Throws what the program throws.
  explicit tried_passes(preflight_program& of);

  bool has_output() const { return first.operands.output.defined(); }
  /// The last tensor, where there are several and it does not go into the model like the others.
  std::optional<std::size_t> labels() const;
  /// What the loss compares with, or the labels of the batch.
  at::Tensor target() const;
  tried_pass pass(std::vector<at::Tensor> const& instead) const;
  /// The first batch with another tensor in one place.
  std::vector<at::Tensor> with(std::size_t index, at::Tensor const& changed) const;
};

/// Each element is one of `values`, so that the program takes it, and their mean is another one.
at::Tensor drawn_from(at::Tensor const& values, std::uint64_t seed);
/// Both are as large: where they differ by more than rounding does. A bool tensor on the CPU.
at::Tensor where_changed(at::Tensor const& before, at::Tensor const& after);
bool is_changed(at::Tensor const& before, at::Tensor const& after);
bool is_changed(tried_pass const& before, tried_pass const& after);

}  // namespace keel::detail::inline KEEL_MODE

#ifndef KEEL_COMPILED
#include <keel/diagnose/preflight_passes.ipp>
#endif
