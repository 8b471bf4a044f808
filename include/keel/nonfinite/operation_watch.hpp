// Observes all operations of a forward and a backward pass and finds the origin of a non-finite value. Intended for a pass that is repeated
// for diagnosis: the inputs and outputs of every operation are read.
//
// Infinities are often intended: a mask uses them, and the following softmax removes them. Therefore the first non-finite value does not
// count. The search starts at the loss or at a gradient and follows the operations that produced it backwards.
#pragma once

#include <keel/libtorch/ivalue_first.hpp>

#include <ATen/core/Tensor.h>
#include <c10/util/intrusive_ptr.h>
#include <torch/nn/module.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <keel/core/operation_observer.hpp>
#include <keel/core/parameters.hpp>
#include <keel/nonfinite/nonfinite_origin.hpp>
#include <keel/nonfinite/nonfinite_values.hpp>
#include <keel/recompute/unit_scope.hpp>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace keel::inline KEEL_MODE {

class operation_watch final : private operation_observer, private unit_listener {
 public:
  /// `model` and `parameters` must outlive this object.
  operation_watch(torch::nn::Module& model, parameter_list const& parameters);
  operation_watch(operation_watch const&) = delete;
  operation_watch& operator=(operation_watch const&) = delete;

  /// Returns the listener for the unit_scope of the forward pass.
  unit_listener* units() { return this; }

  /// Runs a forward pass, a backward pass, or both, on this thread, and observes every operation. Throws error (E12) if eight observers are
  /// already active in this process, and what `pass` throws.
  void look_at(std::function<void()> const& pass);

  /// Returns true if an operation made a NaN, or an infinity that the program did not intend.
  bool found_any() const;
  /// Returns the origin of a non-finite tensor of the pass, such as its loss; nullopt if the tensor is finite.
  std::optional<nonfinite_origin> origin_of(at::Tensor const& value) const;
  /// Returns the origin of the first non-finite gradient; nullopt if all are finite.
  std::optional<nonfinite_origin> origin_of_gradients() const;

 private:
  /// A location in the program.
  struct location {
    std::string unit;
    std::string parameter;
  };
  struct forward_operation {
    std::string name;
    std::string parameter;
  };
  /// An operation in progress.
  struct frame {
    std::string name;
    std::int64_t sequence;  ///< number of its node in the graph
    bool is_backward_function;
  };
  /// An input that is not finite.
  struct bad_input {
    nonfinite_values values;
    std::optional<std::size_t> made_by;  ///< index in findings_; nullopt if no operation made it
    c10::StorageImpl const* storage;
  };
  /// An operation whose result is not finite.
  struct finding {
    std::string operation;
    std::string kernel;
    std::string forward_operation;
    bool is_backward;
    location where;
    nonfinite_values values;
    std::vector<bad_input> inputs;
    bool is_meant;  ///< it was given an infinity as a number, as by masked_fill
  };
  struct begun : at::ObserverContext {
    std::vector<bad_input> inputs;
    bool is_meant = false;
  };
  /// The half-open range of graph nodes created during a call of a unit.
  struct unit_range {
    std::string name;
    std::uint64_t begin;
    std::uint64_t end;
  };

  std::unique_ptr<at::ObserverContext> began(at::RecordFunction const& operation) override;
  void ended(at::RecordFunction const& operation, at::ObserverContext& context) override;
  void begin_unit(void const* module) override;
  void end_unit() override;

  void look_at_input(at::Tensor const& input, begun& context);
  void look_at_output(at::Tensor const& output, begun const& context, std::string_view name);
  /// Requires the lock.
  finding make_finding(nonfinite_values values, begun const& context, bool overwrites, c10::StorageImpl const* storage);
  location where(std::vector<frame> const& frames) const;
  std::string name_of(void const* module);
  nonfinite_origin origin_of_finding(std::size_t index) const;
  std::size_t cause_of(std::size_t index, bool& is_given) const;
  std::optional<std::size_t> made(at::Tensor const& tensor) const;

  torch::nn::Module& model_;
  parameter_list const& parameters_;
  std::unordered_map<c10::TensorImpl const*, std::size_t> parameter_of_;
  std::vector<std::pair<void const*, std::string>> modules_;
  std::size_t functions_ = 0;  ///< units without a module so far

  mutable std::mutex mutex_;                                      ///< backward passes run on several threads
  std::unordered_map<std::uint64_t, std::vector<frame>> frames_;  ///< by thread
  std::vector<std::size_t> open_units_;
  std::vector<unit_range> units_;
  std::string last_parameter_;
  std::map<std::int64_t, forward_operation> forward_;  ///< by the number of the node
  std::vector<finding> findings_;
  std::unordered_map<c10::StorageImpl const*, std::size_t> made_by_;
  std::vector<c10::weak_intrusive_ptr<c10::StorageImpl>> addresses_;  ///< keeps the addresses from being reused
};

}  // namespace keel::inline KEEL_MODE

#ifndef KEEL_COMPILED
#include <keel/nonfinite/operation_watch.ipp>
#endif
