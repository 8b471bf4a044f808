// Saves an optimizer's state and options by parameter name, not by position. LibTorch's own format silently swaps momenta if
// parameters are registered in another order, and in version 1.13 loses the options.
// Supports SGD, Adam, AdamW, RMSprop, Adagrad and LBFGS. For other optimizers specialize optimizer_codec.
#pragma once

#include <keel/libtorch/ivalue_first.hpp>

#include <ATen/ops/empty_strided.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/optimizer.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <keel/checkpoint/archive.hpp>
#include <keel/core/parameters.hpp>
#include <keel/libtorch/compatibility.hpp>
#include <keel/optimizer/engine.hpp>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <tuple>
#include <utility>

namespace keel::inline KEEL_MODE {

/// Lists the fields of an optimizer's options and per-parameter state.
template <class Optimizer>
struct optimizer_codec;

}  // namespace keel::inline KEEL_MODE

namespace keel::detail::inline KEEL_MODE {
template <class Archive, class Options>
void visit_adam_options(Archive& archive, Options& options) {
  archive("lr", options.lr());
  archive("beta1", std::get<0>(options.betas()));
  archive("beta2", std::get<1>(options.betas()));
  archive("eps", options.eps());
  archive("weight_decay", options.weight_decay());
  archive("amsgrad", options.amsgrad());
}
template <class Archive, class State>
void visit_adam_state(Archive& archive, State& state) {
  archive("step", state.step());
  archive("exp_avg", state.exp_avg());
  archive("exp_avg_sq", state.exp_avg_sq());
  archive("max_exp_avg_sq", state.max_exp_avg_sq());
}
}  // namespace keel::detail::inline KEEL_MODE

namespace keel::inline KEEL_MODE {

template <>
struct optimizer_codec<torch::optim::AdamW> {
  using options = torch::optim::AdamWOptions;
  using state = torch::optim::AdamWParamState;
  static constexpr char const* name = "AdamW";
  static void visit_options(auto& archive, options& of) { detail::visit_adam_options(archive, of); }
  static void visit_state(auto& archive, state& of) { detail::visit_adam_state(archive, of); }
};

template <>
struct optimizer_codec<torch::optim::Adam> {
  using options = torch::optim::AdamOptions;
  using state = torch::optim::AdamParamState;
  static constexpr char const* name = "Adam";
  static void visit_options(auto& archive, options& of) { detail::visit_adam_options(archive, of); }
  static void visit_state(auto& archive, state& of) { detail::visit_adam_state(archive, of); }
};

template <>
struct optimizer_codec<torch::optim::SGD> {
  using options = torch::optim::SGDOptions;
  using state = torch::optim::SGDParamState;
  static constexpr char const* name = "SGD";
  static void visit_options(auto& archive, options& of) {
    archive("lr", of.lr());
    archive("momentum", of.momentum());
    archive("dampening", of.dampening());
    archive("weight_decay", of.weight_decay());
    archive("nesterov", of.nesterov());
  }
  static void visit_state(auto& archive, state& of) { archive("momentum_buffer", of.momentum_buffer()); }
};

template <>
struct optimizer_codec<torch::optim::RMSprop> {
  using options = torch::optim::RMSpropOptions;
  using state = torch::optim::RMSpropParamState;
  static constexpr char const* name = "RMSprop";
  static void visit_options(auto& archive, options& of) {
    archive("lr", of.lr());
    archive("alpha", of.alpha());
    archive("eps", of.eps());
    archive("weight_decay", of.weight_decay());
    archive("momentum", of.momentum());
    archive("centered", of.centered());
  }
  static void visit_state(auto& archive, state& of) {
    archive("step", of.step());
    archive("square_avg", of.square_avg());
    archive("momentum_buffer", of.momentum_buffer());
    archive("grad_avg", of.grad_avg());
  }
};

template <>
struct optimizer_codec<torch::optim::Adagrad> {
  using options = torch::optim::AdagradOptions;
  using state = torch::optim::AdagradParamState;
  static constexpr char const* name = "Adagrad";
  static void visit_options(auto& archive, options& of) {
    archive("lr", of.lr());
    archive("lr_decay", of.lr_decay());
    archive("weight_decay", of.weight_decay());
    archive("initial_accumulator_value", of.initial_accumulator_value());
    archive("eps", of.eps());
  }
  static void visit_state(auto& archive, state& of) {
    archive("step", of.step());
    archive("sum", of.sum());
  }
};

template <>
struct optimizer_codec<torch::optim::LBFGS> {
  using options = torch::optim::LBFGSOptions;
  using state = torch::optim::LBFGSParamState;
  static constexpr char const* name = "LBFGS";
  /// One state for all parameters, flattened into a vector and stored under the first parameter's name.
  static constexpr bool is_joint = true;
  static void visit_options(auto& archive, options& of) {
    std::optional<std::int64_t> max_eval;
    std::optional<std::string> line_search;
    if (of.max_eval()) max_eval = *of.max_eval();
    if (of.line_search_fn()) line_search = *of.line_search_fn();
    archive("lr", of.lr());
    archive("max_iter", of.max_iter());
    archive("max_eval", max_eval);
    archive("tolerance_grad", of.tolerance_grad());
    archive("tolerance_change", of.tolerance_change());
    archive("history_size", of.history_size());
    archive("line_search_fn", line_search);
    if (max_eval) of.max_eval(*max_eval);
    if (line_search) of.line_search_fn(*line_search);
  }
  static void visit_state(auto& archive, state& of) {
    archive("func_evals", of.func_evals());
    archive("n_iter", of.n_iter());
    archive("t", of.t());
    archive("prev_loss", of.prev_loss());
    archive("d", of.d());
    archive("H_diag", of.H_diag());
    archive("prev_flat_grad", of.prev_flat_grad());
    visit_list(archive, "old_dirs", of.old_dirs());
    visit_list(archive, "old_stps", of.old_stps());
    visit_list(archive, "ro", of.ro());
  }

 private:
  /// Converts LibTorch's deque to a vector and back. The archive either reads or writes it.
  static void visit_list(auto& archive, char const* field, auto& list) {
    std::vector<at::Tensor> all(list.begin(), list.end());
    archive(field, all);
    list.assign(all.begin(), all.end());
  }
};

}  // namespace keel::inline KEEL_MODE

namespace keel::detail::inline KEEL_MODE {

/// Calls `use(codec)` with the codec of the optimizer's dynamic type. Returns false if keel has no codec for it.
template <class Use>
bool with_known_codec(torch::optim::Optimizer& optimizer, Use&& use) {
  bool found = false;
  auto const try_one = [&](auto* typed, auto codec) {
    if (typed == nullptr || found) return;
    found = true;
    use(codec);
  };
  try_one(dynamic_cast<torch::optim::AdamW*>(&optimizer), optimizer_codec<torch::optim::AdamW>{});
  try_one(dynamic_cast<torch::optim::Adam*>(&optimizer), optimizer_codec<torch::optim::Adam>{});
  try_one(dynamic_cast<torch::optim::SGD*>(&optimizer), optimizer_codec<torch::optim::SGD>{});
  try_one(dynamic_cast<torch::optim::RMSprop*>(&optimizer), optimizer_codec<torch::optim::RMSprop>{});
  try_one(dynamic_cast<torch::optim::Adagrad*>(&optimizer), optimizer_codec<torch::optim::Adagrad>{});
  try_one(dynamic_cast<torch::optim::LBFGS*>(&optimizer), optimizer_codec<torch::optim::LBFGS>{});
  return found;
}

/// As above, but throws error (S05) if keel has no codec.
template <class Use>
void with_optimizer_codec(torch::optim::Optimizer& optimizer, Use&& use) {
  if (with_known_codec(optimizer, std::forward<Use>(use))) return;
  throw error("S05",
              "keel cannot save the state of this optimizer. Use SGD, Adam, AdamW, RMSprop, Adagrad or LBFGS, or "
              "keel::checkpoint::never.");
}

template <class Codec>
struct options_visitor {
  typename Codec::options& options;
  void visit(auto& archive) { Codec::visit_options(archive, options); }
};
template <class Codec>
struct state_visitor {
  typename Codec::state& state;
  void visit(auto& archive) { Codec::visit_state(archive, state); }
};

/// Returns a group's options by name; only the learning rate for an optimizer without a codec.
inline nlohmann::json options_of(torch::optim::Optimizer& optimizer, torch::optim::OptimizerParamGroup& group) {
  nlohmann::json options;
  tensor_map none;
  bool const is_known = with_known_codec(optimizer, [&]<class Codec>(Codec) {
    state_writer writer(options, none);
    options_visitor<Codec>{static_cast<typename Codec::options&>(group.options())}.visit(writer);
  });
  if (!is_known) options["lr"] = group.options().get_lr();
  return options;
}

/// True if the optimizer has one state for all parameters.
template <class Codec>
inline constexpr bool is_joint = requires { requires Codec::is_joint; };

/// Checks the shapes of a parameter's loaded state and moves it to the parameter's device.
struct state_placer {
  at::Tensor const& parameter;
  std::string const& name;
  std::string const& source;
  bool is_joint;

  void operator()(char const* /*field*/, std::vector<at::Tensor>& tensors) const {
    for (at::Tensor& one : tensors) one = one.to(parameter.device());
  }
  void operator()(char const* field, at::Tensor& tensor) const {
    if (!tensor.defined()) return;
    if (is_joint) {
      tensor = tensor.to(parameter.device());
      return;
    }
    if (tensor.dim() != 0 && tensor.sizes() != parameter.sizes()) {
      throw checkpoint_error(
          "E05", source + ": " + field + " of " + name + " does not have the shape of the parameter. Use an older checkpoint.");
    }
    tensor = tensor.to(parameter.device());
    // Restores the parameter's memory layout, which the state had before it was saved.
    if (tensor.dim() != 0 && tensor.strides() != parameter.strides() && parameter.is_non_overlapping_and_dense()) {
      tensor = at::empty_strided(parameter.sizes(), parameter.strides(), tensor.options()).copy_(tensor);
    }
  }
  template <class Other>
  void operator()(char const* /*field*/, Other& /*value*/) const {}
};

}  // namespace keel::detail::inline KEEL_MODE

namespace keel::inline KEEL_MODE {

/// Writes options to `object` and moments to `tensors`. The tensors are not copied.
inline void save_optimizer(torch::optim::Optimizer& optimizer, parameter_list const& parameters, nlohmann::json& object,
                           tensor_map& tensors) {
  detail::with_optimizer_codec(optimizer, [&]<class Codec>(Codec) {
    object["kind"] = Codec::name;
    object["groups"] = nlohmann::json::array();
    object["state"] = nlohmann::json::object();
    std::size_t index = 0;
    for (auto& group : optimizer.param_groups()) {
      nlohmann::json names = nlohmann::json::array();
      for (std::size_t i = 0; i < group.params().size(); ++i, ++index) {
        std::string const& name = parameters.names[index];
        names.push_back(name);
        if (auto* const engine = dynamic_cast<update_engine*>(&optimizer)) {
          at::Tensor const master = engine->master_of(group.params()[i]);
          if (master.defined()) tensors[name + ".master"] = master;
        }
        auto const found = optimizer.state().find(libtorch::state_key(group.params()[i]));
        if (found == optimizer.state().end()) continue;
        state_writer state(object["state"][name], tensors, name + ".");
        detail::state_visitor<Codec>{static_cast<typename Codec::state&>(*found->second)}.visit(state);
      }
      object["groups"].push_back({{"options", detail::options_of(optimizer, group)}, {"parameters", names}});
    }
  });
}

/// Restores what save_optimizer saved. Throws checkpoint_error: E04 for another optimizer or other parameters, E05 for missing
/// or misshapen state. The optimizer is changed only once all checks have passed.
inline void load_optimizer(torch::optim::Optimizer& optimizer, parameter_list const& parameters, nlohmann::json const& object,
                           tensor_map const& tensors, std::string const& source) {
  detail::with_optimizer_codec(optimizer, [&]<class Codec>(Codec) {
    auto const text = [](nlohmann::json const& value) { return value.is_string() ? value.get<std::string>() : value.dump(); };
    nlohmann::json const kind = object.value("kind", nlohmann::json());
    if (kind != Codec::name) {
      throw checkpoint_error("E04", source + " contains the state of " + text(kind) + ", but this run uses " + Codec::name +
                                        ". Use that optimizer, or another run directory.");
    }
    nlohmann::json const groups = object.value("groups", nlohmann::json::array());
    auto& live = optimizer.param_groups();
    if (!groups.is_array() || groups.size() != live.size()) {
      throw checkpoint_error("E04", source + " has " + std::to_string(groups.size()) +
                                        " parameter groups, but the optimizer has " + std::to_string(live.size()) +
                                        ". Build the same groups, or use another run directory.");
    }

    std::vector<std::unique_ptr<typename Codec::options>> new_options;
    std::vector<std::pair<at::Tensor, std::unique_ptr<typename Codec::state>>> new_states;
    std::vector<std::pair<at::Tensor, at::Tensor>> new_masters;
    nlohmann::json const states = object.value("state", nlohmann::json::object());
    std::size_t index = 0;
    for (std::size_t g = 0; g < live.size(); ++g) {
      auto const& held = live[g].params();
      auto options = std::make_unique<typename Codec::options>(static_cast<typename Codec::options&>(live[g].options()));
      nlohmann::json const saved_options = groups[g].value("options", nlohmann::json::object());
      state_reader reader(saved_options, tensors, source, "optimizer.");
      detail::options_visitor<Codec>{*options}.visit(reader);
      new_options.push_back(std::move(options));

      std::vector<std::string> names;
      names.reserve(held.size());
      for (std::size_t i = 0; i < held.size(); ++i) names.push_back(parameters.names[index + i]);
      if (groups[g].value("parameters", nlohmann::json::array()) != nlohmann::json(names)) {
        throw checkpoint_error("E04",
                               source + ": group " + std::to_string(g) +
                                   " of the optimizer had other parameters. Freeze and group the same parameters in the same "
                                   "order, convert the checkpoint with trainer::migrate, or use another run directory.");
      }
      for (at::Tensor const& parameter : held) {
        std::string const& name = parameters.names[index++];
        if (auto const master = tensors.find(name + ".master"); master != tensors.end()) {
          at::Tensor placed = master->second;
          detail::state_placer{parameter, name, source, false}("master", placed);
          new_masters.emplace_back(parameter, placed);
        }
        auto const found = states.find(name);
        if (found == states.end()) continue;
        auto state = std::make_unique<typename Codec::state>();
        state_reader state_archive(*found, tensors, source, name + ".");
        detail::state_visitor<Codec>{*state}.visit(state_archive);
        detail::state_placer place{parameter, name, source, detail::is_joint<Codec>};
        detail::state_visitor<Codec>{*state}.visit(place);
        new_states.emplace_back(parameter, std::move(state));
      }
    }

    for (std::size_t g = 0; g < live.size(); ++g) live[g].set_options(std::move(new_options[g]));
    optimizer.state().clear();
    if (auto* const engine = dynamic_cast<update_engine*>(&optimizer)) {
      engine->take_aside();
      for (auto& [parameter, master] : new_masters) engine->set_master(parameter, master);
    }
    for (auto& [parameter, state] : new_states) optimizer.state()[libtorch::state_key(parameter)] = std::move(state);
  });
}

}  // namespace keel::inline KEEL_MODE
