// data: facts about the batches that rules need. It declares facts and does nothing itself.
//   usual        the default: rows have equal weight; nothing is known about the end.
//   is<Facts..>  ragged (micro-batches differ in content, such as masked or packed tokens), token_weighted (the loss has its own weight,
//                keel::weighted_loss), packed (several samples in one row), grouped (the batch's slice() never splits a group), endless (no
//                end, no size), finite (ends, possibly at a different step on each rank), drops_last (every rank has the same number of
//                batches), single_pass (cannot be read again), rows<N>.
// A batch or source type declares its facts in one line, `using facts = keel::data::is<keel::data::ragged>;`. For a type of another
// library, specialize keel::facts_of.
// Left out: where the data is stored and how it is read.
#pragma once

#include <keel/policy/slot.hpp>

namespace keel::slot {
struct data;
}

namespace keel::data {

struct settings {
  bool ragged = false;          ///< micro-batches differ in content, such as masked or packed tokens
  bool token_weighted = false;  ///< the loss has its own weight, keel::weighted_loss
  bool packed = false;          ///< several samples in one row
  bool grouped = false;         ///< the batch's slice() never splits a group
  bool endless = false;         ///< no end and no size
  bool finite = false;          ///< ends, possibly at a different step on each rank
  bool drops_last = false;      ///< every rank has the same number of batches
  bool single_pass = false;     ///< cannot be read again
  long long rows = 0;           ///< rows of the whole data set; 0: not declared
  friend constexpr bool operator==(settings const&, settings const&) = default;
};

/// Merges the facts that two sources declare.
constexpr settings operator|(settings a, settings const& b) {
  a.ragged |= b.ragged;
  a.token_weighted |= b.token_weighted;
  a.packed |= b.packed;
  a.grouped |= b.grouped;
  a.endless |= b.endless;
  a.finite |= b.finite;
  a.drops_last |= b.drops_last;
  a.single_pass |= b.single_pass;
  if (a.rows == 0) a.rows = b.rows;
  return a;
}

template <class Fact>
concept fact = option_of<Fact, settings>;

struct ragged : sets<&settings::ragged, true> {};
struct token_weighted : sets<&settings::token_weighted, true> {};
struct packed : sets<&settings::packed, true> {};
struct grouped : sets<&settings::grouped, true> {};
struct endless : sets<&settings::endless, true> {};
struct finite : sets<&settings::finite, true> {};
struct drops_last : sets<&settings::drops_last, true> {};
struct single_pass : sets<&settings::single_pass, true> {};
template <long long Count>
struct rows : sets<&settings::rows, Count> {};

template <fact... Facts>
struct is : configures<slot::data, settings{}, Facts...> {};
using usual = is<>;

}  // namespace keel::data

namespace keel {

struct slot::data : slot_description {
  using settings = keel::data::settings;
  using default_policy = keel::data::usual;
  static constexpr char const* name = "data";
  static constexpr char const* given_twice = "D19";
  static constexpr bool is_single = true;
  static constexpr char const* unset = "usual";
  static constexpr char const* keep_one = "list all facts in one keel::data::is<..>";
  static constexpr bool is_same_policy(settings const&, settings const&) { return true; }
  static constexpr policy_list<settings, 1> policies() { return {{{"is", {}, "*"}}}; }
  static constexpr void fields(auto& s, auto& field) {
    field.truth("ragged", s.ragged);
    field.truth("token_weighted", s.token_weighted);
    field.truth("packed", s.packed);
    field.truth("grouped", s.grouped);
    field.truth("endless", s.endless);
    field.truth("finite", s.finite);
    field.truth("drops_last", s.drops_last);
    field.truth("single_pass", s.single_pass);
    field.number("rows", s.rows);
  }
};

}  // namespace keel
