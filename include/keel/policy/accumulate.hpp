// accumulate<N>: N micro-batches make one update; their gradients are averaged by weight, so that a ragged micro-batch
// counts for what it holds and not for one Nth.
//   accumulate<1>                                     the default.
//   accumulate<N, micro_batch<M>, global_batch<G>>    also declares the batch algebra: G = M * N * world size (B01).
//   accumulate<N, sum>                                adds the micro-batches' losses up and does not average them, as a program does
//                                                     that calls backward() N times and scales nothing. Ragged micro-batches then
//                                                     count alike, so only where a paper or an older program asks for it.
//   accumulate<N, reduce_once>                        ranks average their gradients once an update and not once a
//                                                     micro-batch; less traffic, not with ZeRO-2 or 3 (B03).
// Left out: a mean of means (B06), and an accumulation factor that is applied twice (B04).
#pragma once

#include <keel/policy/given.hpp>
#include <keel/policy/slot.hpp>

namespace keel::slot {
struct accumulate;
}

namespace keel {

struct accumulate_settings {
  long long count = 1;         ///< micro-batches an update
  long long micro_batch = 0;   ///< rows a micro-batch; 0: not declared
  long long global_batch = 0;  ///< rows an update over all ranks; 0: not declared
  bool reduce_once = false;    ///< ranks exchange gradients at the end of an update only
  bool sum = false;            ///< of the micro-batches' losses, in place of their mean
  friend constexpr bool operator==(accumulate_settings const&, accumulate_settings const&) = default;
};

template <long long Rows>
struct micro_batch : sets<&accumulate_settings::micro_batch, Rows> {};
template <long long Rows>
struct global_batch : sets<&accumulate_settings::global_batch, Rows> {};
struct sum : sets<&accumulate_settings::sum, true> {};
struct reduce_once : sets<&accumulate_settings::reduce_once, true> {};

template <long long Count, option_of<accumulate_settings>... Options>
struct accumulate : configures<slot::accumulate, accumulate_settings{.count = Count}, Options...> {};

struct slot::accumulate : slot_description {
  using settings = accumulate_settings;
  using default_policy = keel::accumulate<1>;
  static constexpr char const* name = "accumulate";
  static constexpr char const* given_twice = "D02";
  static constexpr bool is_single = true;
  static constexpr char const* keep_one = "keep one keel::accumulate<N>";
  static constexpr bool is_same_policy(settings const&, settings const&) { return true; }
  static constexpr policy_list<settings, 1> policies() { return {{{"accumulate", {}, "*", "count"}}}; }
  static constexpr void fields(auto& s, auto& field) {
    field.number("count", s.count);
    field.number("micro_batch", s.micro_batch);
    field.number("global_batch", s.global_batch);
    field.truth("reduce_once", s.reduce_once);
    field.truth("sum", s.sum);
  }
};

}  // namespace keel
