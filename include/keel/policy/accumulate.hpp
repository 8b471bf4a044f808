// accumulate<N>: N micro-batches form one update. Their gradients are averaged by weight, so that a ragged micro-batch counts in proportion
// to its content.
//   accumulate<1>                                     the default.
//   accumulate<N, micro_batch<M>, global_batch<G>>    also declares the batch sizes: G = M * N * world size (B01).
//   accumulate<N, sum>                                sums the micro-batches' losses instead of averaging them, like a program that calls
//                                                     backward() N times without scaling. Micro-batches of different sizes then have equal
//                                                     weight. Use it only to reproduce a paper or an older program.
//   accumulate<N, reduce_once>                        ranks average their gradients once per update instead of once per micro-batch. Causes
//                                                     less traffic; cannot be combined with ZeRO-2 or ZeRO-3 (B03).
// Left out: a mean of means (B06), and an accumulation factor that is applied twice (B04).
#pragma once

#include <keel/policy/given.hpp>
#include <keel/policy/slot.hpp>

namespace keel::slot {
struct accumulate;
}

namespace keel {

struct accumulate_settings {
  long long count = 1;         ///< micro-batches per update
  long long micro_batch = 0;   ///< rows per micro-batch; 0: not declared
  long long global_batch = 0;  ///< rows per update over all ranks; 0: not declared
  bool reduce_once = false;    ///< ranks exchange gradients only at the end of an update
  bool sum = false;            ///< sums the micro-batches' losses instead of averaging them
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
