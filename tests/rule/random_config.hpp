// Random configurations for sweeps, made from the descriptions of the slots: a policy of each slot, and for its fields values from
// both sides of every threshold that a rule asks about.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <iterator>
#include <keel/recipe.hpp>
#include <limits>
#include <random>
#include <type_traits>

namespace keel_test {

class random_config {
 public:
  /// `as_typed`: nothing that a recipe could not say, where a tool that fills a configuration sets what its policy does not take.
  explicit random_config(std::uint64_t seed, bool as_typed = false) : engine_(seed), as_typed_(as_typed) {}

  /// Each slot keeps its default with the given probability, so that a configuration breaks few rules or many.
  keel::config next(double keep) {
    keel::config c;
    [&]<class... Slots>(keel::slot_list<Slots...>) {
      ((chance(keep) ? void() : void(c.*keel::place<Slots> = policy<Slots>())), ...);
    }
    (keel::slots{});
    beside_the_fields(c.oom);
    if (!chance(keep)) c.run = {true, of({1LL, 2LL, 8LL, most}), of({0LL, 50LL, 100LL, 1000LL, most}), of({1e-5, 1e-3}), flag(), flag(),
                                of({keel::device::kind::any, keel::device::kind::cpu, keel::device::kind::cuda})};
    // A minimum at the rate itself, which whatever lowers the rate then passes.
    if (c.run.known && c.schedule.min_lr > 0.0 && chance(0.5)) c.schedule.min_lr = c.run.learning_rate;
    list_itself(c, keep);
    return c;
  }

 private:
  static constexpr long long most = std::numeric_limits<long long>::max();

  /// Visits the fields of a policy.
  class fields {
   public:
    fields(random_config& random, char const* taken) : random_(random), taken_(taken) {}
    void truth(char const* name, bool& to) {
      if (takes(name)) to = random_.flag();
    }
    void number(char const* name, double& to) {
      if (changes(name))
        to = random_.of({-1.0, -0.1, 0.0, 1e-40, 1e-5, 1e-4, 0.04, 0.1, 0.5, 0.999, 1.0, 1.1, 2.0, 4.0, 6.0, 100.0, 1024.0, 65536.0, 1e39, 1.79e308,
                         std::numeric_limits<double>::infinity()});
    }
    template <class Integer>
    requires std::is_integral_v<Integer>
    void number(char const* name, Integer& to) {
      if (changes(name)) to = static_cast<Integer>(random_.count());
    }
    void number_between(char const* name, int& to, int least, int most) {
      if (takes(name)) to = std::uniform_int_distribution<int>(least, most < least + 3 ? most : least + 3)(random_.engine_);
    }
    void number_or_infinity(char const* name, double& to) { number(name, to); }
    void optional_number(char const* name, double& to, bool& given) {
      if (!takes(name)) return;
      given = random_.flag();
      if (given) number(name, to);
    }
    void updates(char const* name, long long& to) { number(name, to); }
    void optional_updates(char const* name, long long& to, bool& given) {
      if (!takes(name)) return;
      given = random_.flag();
      to = given ? random_.count() : 0;
    }
    void epochs(char const* name, long long& to) { number(name, to); }
    void tokens(char const* name, long long& to) { number(name, to); }
    void seconds(char const* name, long long& to) { number(name, to); }
    template <int Size>
    void list_of_updates(char const* name, long long (&to)[Size], int& count) {
      if (!changes(name)) return;
      count = random_.of({1, 2, 2, Size, Size + 1});
      for (long long& one : to) one = 0;
      for (int i = 0; i < count && i < Size; ++i) to[i] = random_.chance(0.8) ? 50 * (i + 1) : random_.count();
    }
    void name(char const* name, char* letters) {
      if (changes(name)) letters[0] = 'a';
    }
    template <class Enum, int Size>
    void choice(char const* name, Enum& to, char const* const (&)[Size]) {
      if (changes(name)) to = static_cast<Enum>(std::uniform_int_distribution<int>(0, Size - 1)(random_.engine_));
    }
    template <class Settings, int Size, class Description>
    void list(char const* name, Settings (&to)[Size], int& count, Description) {
      if (!takes(name)) return;
      count = random_.of({0, 1, 2, 3, 4, 5});
      for (int i = 0; i < count; ++i) to[i] = random_.policy<Description>();
    }

   private:
    bool takes(char const* name) const { return keel::detail::takes(taken_, name); }
    /// Most fields stay as the policy has them.
    bool changes(char const* name) { return takes(name) && random_.chance(0.4); }

    random_config& random_;
    char const* taken_;
  };

  template <class Description>
  std::remove_cvref_t<decltype(Description::policies().all[0].start)> policy() {
    constexpr auto policies = Description::policies();
    auto const& entry = policies.all[std::uniform_int_distribution<std::size_t>(0, std::size(policies.all) - 1)(engine_)];
    auto settings = entry.start;
    fields visitor(*this, !as_typed_ && chance(0.05) ? "*" : entry.fields);
    Description::fields(settings, visitor);
    return settings;
  }

  bool chance(double probability) { return std::uniform_real_distribution<>(0.0, 1.0)(engine_) < probability; }
  bool flag() { return chance(0.3); }
  long long count() {
    return of({-1LL, 0LL, 1LL, 2LL, 3LL, 4LL, 6LL, 8LL, 10LL, 16LL, 32LL, 50LL, 60LL, 100LL, 128LL, 250LL, 500LL, 512LL, 600LL, 1000LL, 1250LL, 2000LL,
               3600LL, most});
  }
  template <class Value>
  Value of(std::initializer_list<Value> values) {
    return values.begin()[std::uniform_int_distribution<std::size_t>(0, values.size() - 1)(engine_)];
  }

  /// What a rung of one's own says of itself, and entries of a ladder that are not rungs.
  void beside_the_fields(keel::oom::settings& ladder) {
    if (ladder.kind != keel::oom::kind::ladder) return;
    for (int i = 0; i < ladder.count; ++i) {
      if (chance(0.05)) ladder.rungs[i].keeps_effective_batch = false;
      if (chance(0.05)) ladder.rungs[i].agreed = false;
    }
    if (chance(0.05)) ladder.misfits = 1;
    if (ladder.count > 0 && chance(0.7)) ladder.rungs[ladder.count - 1] = keel::oom::give_up::rung;
  }
  void list_itself(keel::config& c, double keep) {
    if (chance(keep)) return;
    if (chance(0.3)) c.repeated = 1U << std::uniform_int_distribution<int>(0, keel::slot_count - 1)(engine_);
    c.unknown_entries = chance(0.1);
    c.disagreeing_options = chance(0.1);
    c.unitless_intervals = chance(0.1);
    c.unsaved_states = chance(0.1);
    c.malformed_rules = chance(0.1);
    if (chance(0.3)) {
      c.accepted_count = of({1, 2});
      for (int i = 0; i < c.accepted_count; ++i)
        c.accepted[i] = keel::rule_id(of({"B06", "O10", "A17", "P06", "H07", "A02", "Z99"}));
    }
  }

  std::mt19937_64 engine_;
  bool as_typed_;
};

}  // namespace keel_test
