// data: facts about the batches that rules ask for. Not a mechanism: a statement.
//   usual        the default: rows count alike, nothing is known of the end.
//   is<Facts..>  ragged (micro-batches differ in how much they hold: masked or packed tokens), token_weighted (the loss comes
//                with its own weight, keel::weighted_loss), packed (several samples in one row), grouped (the batch's slice()
//                never cuts a group), endless (no end, no size), finite (ends, maybe at another step on each rank),
//                drops_last (every rank has the same number of batches), single_pass (cannot be read again), rows<N>.
// A batch or source type says it of itself with one line, `using facts = keel::data::is<keel::data::ragged>;`, and for a type
// that is not one's own there is keel::facts_of.
// Left out: where the data lies and how it is read.
#pragma once

#include <keel/policy/slot.hpp>

namespace keel::data {

struct settings {
  bool ragged = false;
  bool token_weighted = false;
  bool packed = false;
  bool grouped = false;
  bool endless = false;
  bool finite = false;
  bool drops_last = false;
  bool single_pass = false;
  long long rows = 0;  ///< in the whole data set; 0: not declared
  friend constexpr bool operator==(settings const&, settings const&) = default;
};

/// What either of two sources says.
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

struct ragged {
  static constexpr void apply(settings& to) { to.ragged = true; }
};
struct token_weighted {
  static constexpr void apply(settings& to) { to.token_weighted = true; }
};
struct packed {
  static constexpr void apply(settings& to) { to.packed = true; }
};
struct grouped {
  static constexpr void apply(settings& to) { to.grouped = true; }
};
struct endless {
  static constexpr void apply(settings& to) { to.endless = true; }
};
struct finite {
  static constexpr void apply(settings& to) { to.finite = true; }
};
struct drops_last {
  static constexpr void apply(settings& to) { to.drops_last = true; }
};
struct single_pass {
  static constexpr void apply(settings& to) { to.single_pass = true; }
};
template <long long Count>
struct rows {
  static constexpr void apply(settings& to) { to.rows = Count; }
};

template <fact... Facts>
struct is : fills<slot::data> {
  static constexpr settings configured = with_options<settings, Facts...>({});
  static constexpr bool options_agree = keel::options_agree<settings, Facts...>({});
};
using usual = is<>;

}  // namespace keel::data

namespace keel {
template <>
struct settings_of<slot::data> {
  using type = data::settings;
};
template <>
struct default_policy<slot::data> {
  using type = data::usual;
};
}  // namespace keel
