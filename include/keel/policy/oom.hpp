// oom: what happens when memory runs out in a forward or backward pass.
//   raise             the default: throws out_of_memory_error.
//   ladder<Rungs..>   takes the first remaining rung, restores random state, buffers and data to the beginning of the update, and runs the
//                     same batch again. The last rung is give_up (O05).
// Rungs, from the least to the most disruptive (O06):
//   transparent  halve_micro_batch (the same update in smaller pieces), enable_recompute<P>, offload_optimizer
//   numeric      fused_attention (different rounding)
//   semantic     quantize_base, shorten_sequence<N> (a different experiment; before the first update only)
//   terminal     give_up (saves a checkpoint and returns result::gave_up)
// A custom rung is a type with `static constexpr keel::oom::rung_settings rung{.kind = rung_kind::custom, .agreed = ..}` and
// `static bool take(torch::nn::Module& model)`, which returns false if it can free no more memory.
// Option: release_after<500_steps>, which releases the last rung after that many updates without running out of memory. If memory then runs
// out again, it waits twice as long the next time. Rungs that change the experiment, and custom ones, are never released.
// Left out: a rung that shrinks the batch without accumulating more; it silently changes the experiment (O02).
#pragma once

#include <keel/policy/attention.hpp>
#include <keel/policy/duration.hpp>
#include <keel/policy/offload.hpp>
#include <keel/policy/recompute.hpp>
#include <keel/policy/slot.hpp>

namespace keel::slot {
struct oom;
}

namespace keel::oom {

enum class kind : unsigned char { raise, ladder };
enum class rung_kind : unsigned char {
  none,
  halve_micro_batch,
  enable_recompute,
  offload_optimizer,
  fused_attention,
  quantize_base,
  shorten_sequence,
  give_up,
  custom
};
/// How much a rung changes the experiment; within a ladder it must not decrease (O06).
enum class disturbance : unsigned char { transparent, numeric, semantic, terminal };

/// Describes a rung; keel's and custom rungs have it as member `rung`.
struct rung_settings {
  rung_kind kind = rung_kind::none;
  oom::disturbance disturbance = disturbance::transparent;  ///< how much it changes the experiment
  recompute_kind recompute = recompute_kind::none;          ///< enable_recompute: the mode to turn on
  long long length = 0;                                     ///< shorten_sequence: number of tokens
  bool keeps_effective_batch = true;                        ///< the update has as many rows as before
  bool agreed = true;  ///< all ranks take the rung together; declared by a custom rung (O01)
  friend constexpr bool operator==(rung_settings const&, rung_settings const&) = default;
};

/// Maximum number of rungs on one ladder.
inline constexpr int max_rungs = 16;

struct settings {
  oom::kind kind = kind::raise;
  int count = 0;                        ///< number of rungs
  rung_settings rungs[max_rungs] = {};  ///< in the order in which they are taken
  int misfits = 0;        ///< entries that are not rungs, that exceed max_rungs, or that turn on anything but recompute (O23)
  bool releases = false;  ///< release_after was given
  long long release_after = 0;  ///< updates without running out of memory after which the last rung is released
  friend constexpr bool operator==(settings const&, settings const&) = default;
};

/// True if the ladder has a rung of this kind.
constexpr bool has_rung(settings const& ladder, rung_kind kind) {
  for (int i = 0; i < ladder.count; ++i) {
    if (ladder.rungs[i].kind == kind) return true;
  }
  return false;
}

/// True if release_after can release the rung.
constexpr bool is_releasable(rung_settings const& rung) {
  return rung.disturbance < disturbance::semantic && rung.kind != rung_kind::custom;
}

/// A rung: runs the same update in micro-batches of half the rows.
struct halve_micro_batch {
  static constexpr rung_settings rung{.kind = rung_kind::halve_micro_batch};
};
/// Matches a type that is not a policy of recompute; rejected (O23).
template <class Recompute>
struct enable_recompute {
  static constexpr rung_settings rung{.kind = rung_kind::none};
};
/// A rung: turns recompute on, in the mode of this policy, such as keel::recompute::non_reentrant.
template <policy Recompute>
  requires(std::is_same_v<typename Recompute::in_slot, slot::recompute>)
struct enable_recompute<Recompute> {
  static constexpr rung_settings rung{.kind = rung_kind::enable_recompute, .recompute = Recompute::configured.kind};
};
/// A rung: moves the optimizer's state to host memory.
struct offload_optimizer {
  static constexpr rung_settings rung{.kind = rung_kind::offload_optimizer};
};
/// A rung: switches to LibTorch's fused attention, which rounds differently.
struct fused_attention {
  static constexpr rung_settings rung{.kind = rung_kind::fused_attention, .disturbance = disturbance::numeric};
};
/// A rung: stores the frozen base of a LoRA model in 8 bits. Before the first update only.
struct quantize_base {
  static constexpr rung_settings rung{.kind = rung_kind::quantize_base, .disturbance = disturbance::semantic};
};
/// A rung: truncates sequences to this many tokens. Before the first update only.
template <long long Tokens>
struct shorten_sequence {
  static constexpr rung_settings rung{
      .kind = rung_kind::shorten_sequence, .disturbance = disturbance::semantic, .length = Tokens};
};
/// The last rung: saves a checkpoint and returns result::gave_up.
struct give_up {
  static constexpr rung_settings rung{.kind = rung_kind::give_up, .disturbance = disturbance::terminal};
};

/// A type with `static constexpr keel::oom::rung_settings rung`.
template <class Type>
concept rung = requires { requires std::is_same_v<std::remove_cvref_t<decltype(Type::rung)>, rung_settings>; };

struct raise : fills<slot::oom> {
  static constexpr settings configured{};
};
/// Releases the last rung after so many updates without running out of memory.
template <steps Updates>
struct release_after {
  static constexpr void apply(settings& to) { to.releases = true, to.release_after = Updates.count; }
};

/// True for an entry that does not belong on a ladder.
template <class Entry>
constexpr bool is_misfit() {
  if constexpr (rung<Entry>) {
    return Entry::rung.kind == rung_kind::none;
  } else {
    return !option_of<Entry, settings>;
  }
}

template <class... Entries>
struct ladder : fills<slot::oom> {
 private:
  template <class Entry>
  static constexpr void add(settings& to) {
    if constexpr (is_misfit<Entry>()) {
      ++to.misfits;
    } else if constexpr (rung<Entry>) {
      if (to.count < max_rungs) {
        to.rungs[to.count++] = Entry::rung;
      } else {
        ++to.misfits;
      }
    } else {
      Entry::apply(to);
    }
  }
  static constexpr settings fold() {
    settings result{.kind = kind::ladder};
    (add<Entries>(result), ...);
    return result;
  }
  static constexpr int options = (static_cast<int>(option_of<Entries, settings>) + ... + 0);

 public:
  static constexpr settings configured = fold();
  static constexpr bool options_agree = options <= 1;  ///< false if release_after is given twice
};

/// The rungs of a ladder, as read from files and printed.
struct rung_description {
  static constexpr policy_list<rung_settings, 8> policies() {
    return {{{"halve_micro_batch", halve_micro_batch::rung},
             {"enable_recompute", {.kind = rung_kind::enable_recompute}, " recompute ", "recompute", true},
             {"offload_optimizer", offload_optimizer::rung},
             {"fused_attention", fused_attention::rung},
             {"quantize_base", quantize_base::rung},
             {"shorten_sequence",
              {.kind = rung_kind::shorten_sequence, .disturbance = disturbance::semantic},
              " tokens ",
              "tokens",
              true},
             {"give_up", give_up::rung},
             {"custom", {.kind = rung_kind::custom}}}};
  }
  static constexpr bool is_same_policy(rung_settings const& a, rung_settings const& b) { return a.kind == b.kind; }
  static constexpr void fields(auto& s, auto& field) {
    field.choice("recompute", s.recompute, {"none", "reentrant", "non_reentrant"});
    field.number("tokens", s.length);
  }
};

}  // namespace keel::oom

namespace keel {

struct slot::oom : slot_description {
  using settings = keel::oom::settings;
  using default_policy = keel::oom::raise;
  static constexpr char const* name = "oom";
  static constexpr char const* given_twice = "D09";
  static constexpr policy_list<settings, 2> policies() {
    return {{{"raise", settings{}}, {"ladder", settings{.kind = keel::oom::kind::ladder}, "*", "rungs", true}}};
  }
  static constexpr void fields(auto& s, auto& field) {
    field.list("rungs", s.rungs, s.count, keel::oom::rung_description{});
    field.optional_updates("release_after", s.release_after, s.releases);
  }
};

}  // namespace keel
