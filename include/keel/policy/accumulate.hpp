// accumulate<N>: N micro-batches make one update; their gradients are averaged by weight, so that a ragged micro-batch
// counts for what it holds and not for one Nth.
//   accumulate<1>                                     the default.
//   accumulate<N, micro_batch<M>, global_batch<G>>    also declares the batch algebra: G = M * N * world size (B01).
//   accumulate<N, reduce_once>                        ranks average their gradients once an update and not once a
//                                                     micro-batch; less traffic, not with ZeRO-2 or 3 (B03).
// Left out: a mean of means (B06), and an accumulation factor that somebody else applies once more (B04).
#pragma once

#include <keel/policy/slot.hpp>

namespace keel {

struct accumulate_settings {
  long long count = 1;         ///< micro-batches an update
  long long micro_batch = 0;   ///< rows a micro-batch; 0: not declared
  long long global_batch = 0;  ///< rows an update over all ranks; 0: not declared
  bool reduce_once = false;    ///< ranks exchange gradients at the end of a window only
  friend constexpr bool operator==(accumulate_settings const&, accumulate_settings const&) = default;
};

template <long long Rows>
struct micro_batch {
  static constexpr void apply(accumulate_settings& to) { to.micro_batch = Rows; }
};
template <long long Rows>
struct global_batch {
  static constexpr void apply(accumulate_settings& to) { to.global_batch = Rows; }
};

struct reduce_once {
  static constexpr void apply(accumulate_settings& to) { to.reduce_once = true; }
};

template <long long Count, option_of<accumulate_settings>... Options>
struct accumulate : fills<slot::accumulate> {
  static constexpr accumulate_settings configured =
      with_options<accumulate_settings, Options...>(accumulate_settings{.count = Count});
  static constexpr bool options_agree = keel::options_agree<accumulate_settings, Options...>({});
};

template <>
struct settings_of<slot::accumulate> {
  using type = accumulate_settings;
};
template <>
struct default_policy<slot::accumulate> {
  using type = accumulate<1>;
};

}  // namespace keel
