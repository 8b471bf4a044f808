// Watches a forward pass for the place where the model's output meets the labels: the operands of its loss.
#pragma once

#include <keel/libtorch/ivalue_first.hpp>

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <keel/core/operation_observer.hpp>
#include <memory>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

namespace keel::inline KEEL_MODE {

/// What a loss was computed from.
struct loss_operands {
  std::string operation;                 ///< "aten::cross_entropy_loss"; empty: none was found
  at::Tensor output;                     ///< of the model, without its graph
  at::Tensor target;                     ///< undefined where the operation takes none
  std::set<std::size_t> target_is_from;  ///< the tensors of the batch that the target was made of
  at::Tensor value;                      ///< what the operation returned
  std::set<std::size_t> goes_in;         ///< tensors of the batch that meet a parameter
  std::set<std::string> operations;      ///< names of all that ran
  std::int64_t attention_over = 0;       ///< the longest square of scores that a softmax or fused attention ran over
};

/// The last of LibTorch's losses counts; in a pass without one, the last operation that takes a result of the model and what was made of
/// the labels, as `(output - labels).pow(2)` does; else the last log_softmax.
class loss_watch final : public operation_observer {
 public:
  /// `batch`: its tensors, the labels last if there are several.
  explicit loss_watch(std::vector<at::Tensor> const& batch);

  /// Runs a forward pass on this thread. Throws error (E12) where eight others observe in this process, and what `pass` throws.
  loss_operands look_at(std::function<void()> const& pass);

 private:
  struct begun : at::ObserverContext {
    bool is_loss = false;
    std::set<std::size_t> made_of;
  };
  std::unique_ptr<at::ObserverContext> began(at::RecordFunction const& operation) override;
  void ended(at::RecordFunction const& operation, at::ObserverContext& context) override;
  void look_at_softmax(std::string const& name, std::vector<at::Tensor> const& inputs);

  std::unordered_map<void const*, std::set<std::size_t>> made_of_;  ///< by storage: tensors of the batch
  std::vector<at::Tensor> alive_;                                   ///< so that no later tensor has the address of one of them
  std::size_t labels_;
  bool has_labels_;
  int inside_loss_ = 0;
  loss_operands named_;
  loss_operands met_;
  loss_operands softmax_;
  std::set<std::size_t> goes_in_;
  std::set<std::string> operations_;
  std::int64_t attention_over_ = 0;
};

}  // namespace keel::inline KEEL_MODE

#ifndef KEEL_COMPILED
#include <keel/diagnose/loss_watch.ipp>
#endif
