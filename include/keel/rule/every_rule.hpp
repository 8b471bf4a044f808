// All rules with a text in one list, for the table of rules and for tests that must cover all of them.
#pragma once

#include <keel/rule/catalogue.hpp>
#include <keel/rule/metric.hpp>
#include <keel/rule/not_implemented.hpp>

namespace keel::rule {

/// Rules that forbid a call or stop a running loop and therefore have no predicate over a recipe.
using order_rules = typename detail::joined<call_order_rules, metric_order_rules, call_rules>::type;

using every_rule = typename detail::joined<catalogue, accept_rules, order_rules, rules_not_implemented, trainer_only_rules,
                                           run_only_rules, part_only_rules>::type;

}  // namespace keel::rule
