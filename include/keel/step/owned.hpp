// A movable step or trainer that owns its model and optimizer, for members of movable classes and return values:
//
//     class agent {
//       keel::owned<keel::step<recipe>> step_;
//      public:
//       agent(net model, torch::optim::Adam optimizer) : step_(model, std::move(optimizer)) {}
//     };
//
// A plain step or trainer only refers to both, and cannot be moved (U51).
#pragma once

#include <keel/libtorch/ivalue_first.hpp>

#include <torch/optim/optimizer.h>

#include <concepts>
#include <keel/config/numbers.hpp>
#include <keel/core/error.hpp>
#include <keel/core/parameters.hpp>
#include <memory>
#include <type_traits>
#include <utility>

namespace keel::detail::inline KEEL_MODE {

/// Returns the optimizer, dereferencing a pointer to one.
template <class Optimizer>
auto& optimizer_in(Optimizer& held) {
  if constexpr (std::is_base_of_v<torch::optim::Optimizer, Optimizer>) {
    return held;
  } else {
    return *held;
  }
}

struct owned_parts {
  virtual ~owned_parts() = default;
};
template <class Runner, class Model, class Optimizer>
struct owned_parts_of final : owned_parts {
  template <class... Arguments>
  owned_parts_of(Model&& its_model, Optimizer&& its_optimizer, Arguments&&... arguments)
      : model(std::move(its_model)),
        optimizer(std::move(its_optimizer)),
        runner(model, optimizer_in(optimizer), std::forward<Arguments>(arguments)...) {}
  Model model;
  Optimizer optimizer;
  Runner runner;
};

/// A holder or shared pointer that keeps a module alive. A module by value would be sliced or copied.
template <class Model>
concept shared_model = !std::is_base_of_v<torch::nn::Module, Model> && requires(Model& model) { as_module(model); };
template <class Optimizer>
concept movable_optimizer = std::move_constructible<Optimizer> &&
                            requires(Optimizer& held) { static_cast<torch::optim::Optimizer&>(optimizer_in(held)); };

}  // namespace keel::detail::inline KEEL_MODE

namespace keel::inline KEEL_MODE {

/// `Runner` is a keel::step or keel::trainer. The constructors take its arguments after the model and the optimizer.
template <class Runner>
class owned {
  using options = typename Runner::options_type;

 public:
  /// `model`: a module holder or a shared pointer to a module. `optimizer`: an optimizer or a pointer to one; it is moved in.
  template <detail::shared_model Model, detail::movable_optimizer Optimizer>
  owned(Model model, Optimizer optimizer, options run_options = {}) {
    hold(std::move(model), std::move(optimizer), std::move(run_options));
  }
  /// Same as above, for a recipe that leaves numbers open.
  template <detail::shared_model Model, detail::movable_optimizer Optimizer>
  owned(Model model, Optimizer optimizer, numbers const& all, options run_options = {}) {
    hold(std::move(model), std::move(optimizer), all, std::move(run_options));
  }

  /// The step or trainer. Throws error (E12) if this object was moved from.
  Runner& operator*() const {
    if (all_ == nullptr) throw error("E12", "this step or trainer was moved from. Use the object that it was moved to.");
    return *runner_;
  }
  /// The step or trainer. Throws as operator* does.
  Runner* operator->() const { return &**this; }
  /// Calls the step.
  template <class... Arguments>
    requires std::invocable<Runner&, Arguments...>
  decltype(auto) operator()(Arguments&&... arguments) const {
    return (**this)(std::forward<Arguments>(arguments)...);
  }

 private:
  template <class Model, class Optimizer, class... Arguments>
  void hold(Model model, Optimizer optimizer, Arguments&&... arguments) {
    auto all = std::make_unique<detail::owned_parts_of<Runner, Model, Optimizer>>(std::move(model), std::move(optimizer),
                                                                                  std::forward<Arguments>(arguments)...);
    runner_ = &all->runner;
    all_ = std::move(all);
  }

  std::unique_ptr<detail::owned_parts> all_;
  Runner* runner_ = nullptr;
};

}  // namespace keel::inline KEEL_MODE
