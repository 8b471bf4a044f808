// A: recomputation of activations.
#include "example.hpp"

namespace judged {

namespace model = keel::model;
namespace shard = keel::shard;
using model::partly_frozen;
using none = keel::recompute::none;
using reentrant = keel::recompute::reentrant;
using non_reentrant = keel::recompute::non_reentrant;

template <>
struct example<rule::A01> : recipes<recipe<non_reentrant, shard::zero<3>>, recipe<non_reentrant, shard::zero<2>>> {};
static_assert(keeps(of<reentrant, shard::zero<3>>) && keeps(of<shard::zero<3>>));

template <>
struct example<rule::A02> : recipes<recipe<reentrant, partly_frozen>, recipe<non_reentrant, partly_frozen>> {};
static_assert(breaks<rule::A02>(of<reentrant, partly_frozen, shard::zero<2>>));
static_assert(breaks<rule::A02>(of<reentrant, model::has<model::adapters>>));
static_assert(keeps(of<reentrant>) && keeps(of<partly_frozen>));
// Where what enters each block requires grad, a frozen block passes it on: adapters in all their recipes.
using adapted = model::has<model::adapters, model::inputs_require_grad>;
static_assert(keeps(of<reentrant, adapted>) && keeps(of<reentrant, adapted, shard::zero<2>>));
static_assert(keeps(of<reentrant, adapted, shard::zero<3>>) && keeps(of<non_reentrant, adapted>));
static_assert(breaks<rule::A01>(of<non_reentrant, adapted, shard::zero<3>>));

// Under ZeRO-3 a partly frozen model has no recompute left, and this rule says so in A02's place.
template <>
struct example<rule::A03>
    : recipes<recipe<reentrant, partly_frozen, shard::zero<3>>, recipe<none, partly_frozen, shard::zero<3>>> {};
static_assert(breaks<rule::A01, rule::A03>(of<non_reentrant, partly_frozen, shard::zero<3>>));
static_assert(keeps(of<non_reentrant, partly_frozen, shard::zero<2>>));

using inner_gradients = model::has<model::inner_gradients>;
template <>
struct example<rule::A04> : recipes<recipe<reentrant, inner_gradients>, recipe<non_reentrant, inner_gradients>> {};
static_assert(keeps(of<inner_gradients>));

using routing = model::has<model::routing>;
template <>
struct example<rule::A16> : recipes<recipe<reentrant, routing>, recipe<none, routing>> {};
static_assert(breaks<rule::A16>(of<non_reentrant, routing>));
static_assert(keeps(of<non_reentrant, routing, keel::accept<"A16">>));
static_assert(keeps(of<non_reentrant>));

using batch_norm = model::has<model::batch_norm>;
template <>
struct example<rule::A17> : recipes<recipe<reentrant, batch_norm>, recipe<none, batch_norm>> {};
static_assert(breaks<rule::A17>(of<non_reentrant, batch_norm>));
static_assert(keeps(of<reentrant, batch_norm, keel::accept<"A17">>));

template struct each_shown<rule::recompute_rules>;

}  // namespace judged
