// Forward passes on one batch, possibly with changed tensors, and their effect on the model's output and the loss.
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

/// The reference pass on the first batch, which later checks compare with.
struct tried_passes {
  preflight_program& program;
  std::vector<at::Tensor> tensors;  ///< tensors of the first batch
  std::int64_t rows = 0;
  tried_pass first;
  bool is_repeatable = false;   ///< the same batch gave the same loss and output twice
  std::vector<bool> is_input;   ///< per tensor: the output depends on it, or the loss if the output was not found
  std::vector<bool> is_fixed;   ///< per tensor: the program throws for other values
  bool is_autoencoder = false;  ///< the inputs are the targets

  /// Also determines which tensors of the batch are inputs. Throws what the program throws.
  explicit tried_passes(preflight_program& of);

  bool has_output() const { return first.operands.output.defined(); }
  /// Returns the index of the last tensor if there are several and it is not combined with a parameter; else nullopt.
  std::optional<std::size_t> labels() const;
  /// Returns the loss operation's target, or the labels of the batch if it was not found.
  at::Tensor target() const;
  tried_pass pass(std::vector<at::Tensor> const& instead) const;
  /// Returns the tensors of the first batch with one of them replaced.
  std::vector<at::Tensor> with(std::size_t index, at::Tensor const& changed) const;
};

/// Draws each element from `values`, so that the program accepts it, with a different mean.
at::Tensor drawn_from(at::Tensor const& values, std::uint64_t seed);
/// Marks elements that differ by more than rounding, as a bool tensor on the CPU. Both tensors have the same size.
at::Tensor where_changed(at::Tensor const& before, at::Tensor const& after);
bool is_changed(at::Tensor const& before, at::Tensor const& after);
bool is_changed(tried_pass const& before, tried_pass const& after);

}  // namespace keel::detail::inline KEEL_MODE

#ifndef KEEL_COMPILED
#include <keel/diagnose/preflight_passes.ipp>
#endif
