// Controls how autograd saves tensors for the backward pass. A scope installs hooks on the current thread that may save a
// smaller form and restore the tensor when it is needed.
//     keel::saved_tensor_scope scope([] { return std::make_unique<my_hooks>(); });
// LibTorch's C++ interface offers such hooks only through its engine, so the first scope of a process installs an engine that
// consults the scopes of the current thread. A process with another engine, such as Python's, is rejected (E15).
#pragma once

#include <keel/libtorch/ivalue_first.hpp>

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/saved_variable_hooks.h>

#include <functional>
#include <keel/core/error.hpp>
#include <memory>
#include <utility>
#include <vector>

namespace keel::inline KEEL_MODE {

/// Hooks for the tensors that autograd saves on this thread during its lifetime. Throws error (E15) if the process has another
/// autograd engine.
class saved_tensor_scope {
 public:
  using hooks = std::unique_ptr<torch::autograd::SavedVariableHooks>;  ///< LibTorch's hooks
  /// Called for every saved tensor; a null result keeps the tensor unchanged.
  using maker = std::function<hooks()>;

  /// Only the innermost scope is used.
  explicit saved_tensor_scope(maker make) {
    install();
    scopes().push_back(std::move(make));
  }
  /// The function of this thread's innermost scope; empty if there is none.
  static maker innermost() { return scopes().empty() ? maker() : scopes().back(); }
  saved_tensor_scope(saved_tensor_scope const&) = delete;
  saved_tensor_scope& operator=(saved_tensor_scope const&) = delete;
  ~saved_tensor_scope() { scopes().pop_back(); }

 private:
  static std::vector<maker>& scopes() {
    thread_local std::vector<maker> of_this_thread;
    return of_this_thread;
  }

  /// Provides the hooks and delegates everything else to LibTorch's engine, because in later versions only the first engine
  /// that runs a backward pass gets device threads.
  class engine final : public torch::autograd::Engine {
    using variables = torch::autograd::variable_list;
    using edges = torch::autograd::edge_list;
    // A std::shared_ptr; in later LibTorch versions another pointer type.
    using node_pointer = decltype(torch::autograd::Edge::function);

    hooks get_default_saved_variable_hooks() override { return scopes().empty() ? nullptr : scopes().back()(); }
    variables execute(edges const& roots, variables const& inputs, bool keep_graph, bool create_graph, bool accumulate_grad,
                      edges const& outputs) override {
      return get_base_engine().execute(roots, inputs, keep_graph, create_graph, accumulate_grad, outputs);
    }
    c10::intrusive_ptr<at::ivalue::Future> execute_with_graph_task(std::shared_ptr<torch::autograd::GraphTask> const& task,
                                                                   node_pointer root,
                                                                   torch::autograd::InputBuffer&& inputs) override {
      return get_base_engine().execute_with_graph_task(task, std::move(root), std::move(inputs));
    }
    std::unique_ptr<torch::autograd::AnomalyMetadata> make_anomaly_metadata() override {
      return get_base_engine().make_anomaly_metadata();
    }
  };
  /// Never destroyed, like LibTorch's engine, whose threads may run until the process exits.
  static torch::autograd::Engine& instance() {
    static auto* const one = new engine;
    return *one;
  }
  static void install() {
    static bool const installed = [] {
      if (&torch::autograd::Engine::get_default_engine() != &torch::autograd::Engine::get_base_engine()) {
        throw error("E15",
                    "this process has another autograd engine, such as Python's, and saved tensors cannot be "
                    "watched beside it. Run it as a separate program, or without recompute.");
      }
      torch::autograd::set_default_engine_stub(&instance);
      return true;
    }();
    static_cast<void>(installed);
  }
};

}  // namespace keel::inline KEEL_MODE
