// Numbers that ranks exchange where they decide something together, an update or whether their run goes on. The first says where a rank is, and every
// such exchange has as many: so ranks that have come to different places learn it, and do not take each other's numbers for something else.
#pragma once

#include <keel/libtorch/ivalue_first.hpp>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <keel/collective/transport.hpp>
#include <keel/collective/world_of_ranks.hpp>
#include <memory>
#include <string>

namespace keel::detail::inline KEEL_MODE {

class packed_agreement {
 public:
  /// Of one rank, with the two that all exchanges have: its place, and whether it threw.
  static constexpr std::int64_t count = 22;

  /// `place`: as in "rank 1 is at an update".
  packed_agreement(world_of_ranks world, std::string place);
  void set_location(std::string place);

  /// This rank's, for the next exchange; `number` is less than count - 2.
  double& local(std::int64_t number) { return local_.data_ptr<double>()[number + 2]; }
  /// Of an exchange that has come to its end.
  double of(int rank, std::int64_t number) const {
    return all_.data_ptr<double>()[static_cast<std::int64_t>(rank) * count + number + 2];
  }
  /// The first rank for which this differs from rank 0's; -1: none.
  int first_mismatch(std::int64_t number) const;

  /// All ranks. Goes on beside this rank's own work. `threw`: it comes here with an exception.
  void begin(bool threw = false);
  /// It has begun, and come to its end, and all ranks are at this place.
  bool is_done();
  /// Returns at its end; the time counts as waiting for other ranks. Throws world_error: E25 where one is gone; where ranks have come to different
  /// places, E25 with the words of one that threw, whose `message` these are on it, or E26 that names both places.
  void wait(std::string const& message = "");

 private:
  static constexpr std::int64_t place = -2, threw = -1;

  world_of_ranks world_;
  std::string place_;
  at::Tensor local_, all_;
  std::unique_ptr<pending_collective> under_way_;
};

}  // namespace keel::detail::inline KEEL_MODE

#ifndef KEEL_COMPILED
#include <keel/shard/packed_agreement.ipp>
#endif
