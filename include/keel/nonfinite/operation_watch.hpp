// Looks at the results of all operations of a forward and a backward pass and says where a value that is not finite began. For a pass
// that runs again to be looked into: every operation costs a look at what it takes and what it makes.
//
// An infinity is often meant: a mask is made of it, and the softmax after it ends it. So the watch does not take the first value that is
// not finite: it goes from the loss, or from a gradient, back through the operations that it came from.
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
  /// Both outlive this.
  operation_watch(torch::nn::Module& model, parameter_list const& parameters);
  operation_watch(operation_watch const&) = delete;
  operation_watch& operator=(operation_watch const&) = delete;

  /// For the unit_scope of the forward pass.
  unit_listener* units() { return this; }

  /// Runs a forward pass, a backward pass, or both, on this thread, and looks at every operation. Throws error (E12) where eight others
  /// observe in this process, and what `pass` throws.
  void look_at(std::function<void()> const& pass);

  /// Some operation made a NaN, or an infinity that the program did not ask for.
  bool found_any() const;
  /// Where a tensor of the pass, such as its loss, became what it is; nothing where it is finite.
  std::optional<nonfinite_origin> origin_of(at::Tensor const& value) const;
  /// Where the first gradient that is not finite came from; nothing where all are finite.
  std::optional<nonfinite_origin> origin_of_gradients() const;

 private:
  /// Where in the program something happens.
  struct location {
    std::string unit;
    std::string parameter;
  };
  struct forward_operation {
    std::string name;
    std::string parameter;
  };
  /// An operation that is being run.
  struct frame {
    std::string name;
    std::int64_t sequence;  ///< of its node in the graph
    bool is_backward_function;
  };
  /// An input that is not finite.
  struct bad_input {
    nonfinite_values values;
    std::optional<std::size_t> made_by;  ///< which of the findings; nothing: by none
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
    bool is_meant;  ///< it was given an infinity as a number, as masked_fill is
  };
  struct begun : at::ObserverContext {
    std::vector<bad_input> inputs;
    bool is_meant = false;
  };
  /// Of a call of a unit: the nodes of the graph from the first to before the last are its.
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
  /// With the lock.
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
  std::size_t functions_ = 0;  ///< units without a module, so far

  mutable std::mutex mutex_;                                      ///< backward passes run on several threads
  std::unordered_map<std::uint64_t, std::vector<frame>> frames_;  ///< of each thread
  std::vector<std::size_t> open_units_;
  std::vector<unit_range> units_;
  std::string last_parameter_;
  std::map<std::int64_t, forward_operation> forward_;  ///< by the node's number
  std::vector<finding> findings_;
  std::unordered_map<c10::StorageImpl const*, std::size_t> made_by_;
  std::vector<c10::weak_intrusive_ptr<c10::StorageImpl>> addresses_;  ///< so that no later tensor has one of theirs
};

}  // namespace keel::inline KEEL_MODE

#ifndef KEEL_COMPILED
#include <keel/nonfinite/operation_watch.ipp>
#endif
