// Observes a forward pass to find the operation that compares the model's output with the labels, and its operands.
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

/// The operands of a loss.
struct loss_operands {
  std::string operation;                 ///< such as "aten::cross_entropy_loss"; empty if none was found
  at::Tensor output;                     ///< the model's output, detached
  at::Tensor target;                     ///< undefined if the operation has no target
  std::set<std::size_t> target_is_from;  ///< indices of the batch's tensors from which the target was computed
  at::Tensor value;                      ///< the operation's result
  std::set<std::size_t> goes_in;         ///< indices of the batch's tensors that are combined with a parameter
  std::set<std::string> operations;      ///< names of all operations that ran
  std::int64_t attention_over = 0;       ///< the largest size of square attention scores in a softmax or fused attention
};

/// Finds the last loss function of LibTorch in a pass. Without one, finds the last operation on a result of the model and a tensor computed
/// from the labels, such as `(output - labels).pow(2)`; else the last log_softmax.
class loss_watch final : public operation_observer {
 public:
  /// `batch`: the tensors of the batch. If there are several, the last one is the labels.
  explicit loss_watch(std::vector<at::Tensor> const& batch);

  /// Runs a forward pass on this thread. Throws error (E12) if eight observers are already active in this process, and what `pass` throws.
  loss_operands look_at(std::function<void()> const& pass);

 private:
  struct begun : at::ObserverContext {
    bool is_loss = false;
    std::set<std::size_t> made_of;
  };
  std::unique_ptr<at::ObserverContext> began(at::RecordFunction const& operation) override;
  void ended(at::RecordFunction const& operation, at::ObserverContext& context) override;
  void look_at_softmax(std::string const& name, std::vector<at::Tensor> const& inputs);

  std::unordered_map<void const*, std::set<std::size_t>> made_of_;  ///< by storage: the batch's tensors it was computed from
  std::vector<at::Tensor> alive_;  ///< keeps storages alive, so that their addresses are not reused
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
