// model: facts about the model that rules need. It declares facts and does nothing itself; the trainer adds the facts that it detects.
//   all_trainable    the default: every parameter requires grad, and none of the facts below applies.
//   partly_frozen    some parameters do not require grad: adapters, a frozen backbone (A02, A03). The same as has<frozen>.
//   has<Facts..>     frozen, adapters, batch_norm, dropout, tied_weights, routing (the data determines which rows are processed where),
//                    inner_gradients (calls autograd's grad in its forward pass), half_parameters, bfloat16_parameters, sequence_boundaries
//                    (attention stops at the boundary of packed sequences), inputs_require_grad (the inputs of each keel::unit require grad
//                    although earlier parameters are frozen).
// A model type declares its facts in one line, `using facts = keel::model::has<keel::model::batch_norm>;`. For a type of another library,
// specialize keel::facts_of.
// Left out: facts that are easily detected and affect no rule, such as the number of parameters.
#pragma once

#include <keel/policy/slot.hpp>

namespace keel::slot {
struct model;
}

namespace keel::model {

struct settings {
  bool partly_frozen = false;        ///< some parameters do not require grad
  bool adapters = false;             ///< the trained parameters are adapters of frozen ones
  bool batch_norm = false;           ///< contains batch norms
  bool dropout = false;              ///< contains dropout
  bool tied_weights = false;         ///< several modules share one parameter
  bool routing = false;              ///< the data determines which rows are processed where
  bool inner_gradients = false;      ///< calls autograd's grad in its forward pass
  bool half_parameters = false;      ///< has parameters in fp16
  bool bfloat16_parameters = false;  ///< has parameters in bf16
  bool sequence_boundaries = false;  ///< attention stops at the boundary of packed sequences
  bool inputs_require_grad = false;  ///< the inputs of each keel::unit require grad although earlier parameters are frozen
  friend constexpr bool operator==(settings const&, settings const&) = default;
};

/// Merges the facts of two sources.
constexpr settings operator|(settings a, settings const& b) {
  a.partly_frozen |= b.partly_frozen;
  a.adapters |= b.adapters;
  a.batch_norm |= b.batch_norm;
  a.dropout |= b.dropout;
  a.tied_weights |= b.tied_weights;
  a.routing |= b.routing;
  a.inner_gradients |= b.inner_gradients;
  a.half_parameters |= b.half_parameters;
  a.bfloat16_parameters |= b.bfloat16_parameters;
  a.sequence_boundaries |= b.sequence_boundaries;
  a.inputs_require_grad |= b.inputs_require_grad;
  return a;
}

template <class Fact>
concept fact = option_of<Fact, settings>;

struct frozen : sets<&settings::partly_frozen, true> {};
/// The trained parameters are adapters of frozen ones.
struct adapters {
  static constexpr void apply(settings& to) { to.partly_frozen = to.adapters = true; }
};
struct batch_norm : sets<&settings::batch_norm, true> {};
struct dropout : sets<&settings::dropout, true> {};
struct tied_weights : sets<&settings::tied_weights, true> {};
struct routing : sets<&settings::routing, true> {};
struct inner_gradients : sets<&settings::inner_gradients, true> {};
struct half_parameters : sets<&settings::half_parameters, true> {};
struct bfloat16_parameters : sets<&settings::bfloat16_parameters, true> {};
struct sequence_boundaries : sets<&settings::sequence_boundaries, true> {};
struct inputs_require_grad : sets<&settings::inputs_require_grad, true> {};

template <fact... Facts>
struct has : configures<slot::model, settings{}, Facts...> {};
using all_trainable = has<>;
using partly_frozen = has<frozen>;

}  // namespace keel::model

namespace keel {

struct slot::model : slot_description {
  using settings = keel::model::settings;
  using default_policy = keel::model::all_trainable;
  static constexpr char const* name = "model";
  static constexpr char const* given_twice = "D14";
  static constexpr bool is_single = true;
  static constexpr char const* unset = "all_trainable";
  static constexpr char const* keep_one = "list all facts in one keel::model::has<..>";
  static constexpr bool is_same_policy(settings const&, settings const&) { return true; }
  static constexpr policy_list<settings, 1> policies() { return {{{"has", {}, "*"}}}; }
  static constexpr void fields(auto& s, auto& field) {
    field.truth("partly_frozen", s.partly_frozen);
    field.truth("adapters", s.adapters);
    // As keel::model::adapters: the parameters that adapters modify are frozen.
    s.partly_frozen |= s.adapters;
    field.truth("batch_norm", s.batch_norm);
    field.truth("dropout", s.dropout);
    field.truth("tied_weights", s.tied_weights);
    field.truth("routing", s.routing);
    field.truth("inner_gradients", s.inner_gradients);
    field.truth("half_parameters", s.half_parameters);
    field.truth("bfloat16_parameters", s.bfloat16_parameters);
    field.truth("sequence_boundaries", s.sequence_boundaries);
    field.truth("inputs_require_grad", s.inputs_require_grad);
  }
};

}  // namespace keel
