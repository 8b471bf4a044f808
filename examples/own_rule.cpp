// Your own rule beside keel's, and facts that a model type states. Needs only the two lower floors.
// [own_rule]
#include <keel/recipe.hpp>

using namespace keel::literals;

/// What this team learned the hard way.
struct Q01 {
  static constexpr char const* id = "Q01";
  static constexpr char const* text = "[Q01] our cluster loses a disk a day. Fix: keel::checkpoint::keep<2>, or more.";
  static constexpr bool broken(keel::config const& c) { return c.checkpoint.keep < 2; }
};

struct nightly : keel::recipe<
    keel::model::has<keel::model::batch_norm>,             // a fact, stated; a trainer also looks by itself
    keel::oom::ladder<keel::oom::halve_micro_batch, keel::oom::give_up>,
    keel::accept<"O10">,                                   // halving and batch norm: known, and accepted by name
    keel::checkpoint::every<500_steps, keel::checkpoint::keep<2>>,
    Q01> {};

template struct keel::checked<nightly>;
// [own_rule]

#include <cstdio>

int main() {
  keel::config reckless = keel::config_of<nightly>;
  reckless.checkpoint.keep = 1;
  for (keel::violation const& broken : keel::check_as<nightly>(reckless)) std::puts(broken.text);
  return keel::check_as<nightly>(reckless).has("Q01") ? 0 : 1;
}
