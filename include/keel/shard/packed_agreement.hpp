// A fixed-size all-gather of numbers by which ranks decide together, such as on an update or on continuing the run. The first number
// identifies the rank's location in the program. So ranks at different locations detect the mismatch instead of misreading each other's
// numbers.
#pragma once

#include <keel/libtorch/ivalue_first.hpp>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <exception>
#include <keel/collective/transport.hpp>
#include <keel/collective/world_of_ranks.hpp>
#include <memory>
#include <string>

namespace keel::detail::inline KEEL_MODE {

class packed_agreement {
 public:
  /// Numbers per rank, including two that every exchange has: the location, and whether the rank threw.
  static constexpr std::int64_t count = 26;

  /// `place`: the location, as in "rank 1 is at an update".
  packed_agreement(world_of_ranks world, std::string place);
  void set_location(std::string place);

  /// This rank's number for the next exchange; `number` must be less than count - 2.
  double& local(std::int64_t number) { return local_.data_ptr<double>()[number + 2]; }
  /// A rank's number in the last completed exchange.
  double of(int rank, std::int64_t number) const {
    return all_.data_ptr<double>()[static_cast<std::int64_t>(rank) * count + number + 2];
  }
  /// Returns the first rank whose number differs from rank 0's; -1 if none does.
  int first_mismatch(std::int64_t number) const;

  /// Starts an exchange without waiting for the others. Collective. `threw`: this rank takes part because of an exception.
  void begin(bool threw = false);
  /// Returns true if the exchange has completed and all ranks are at the same location. Does not block.
  bool is_done();
  /// Waits for the numbers of all ranks without comparing locations; the time counts as waiting for other ranks. If a rank exited, returns
  /// false, and wait() throws. Not collective.
  bool complete() noexcept;
  /// Waits for the exchange; the time counts as waiting for other ranks. Collective. Throws world_error (E25) if a rank exited. If the
  /// locations differ, throws E25 with the `message` of a rank that threw, or else E26 with both locations.
  void wait(std::string const& message = "");

 private:
  static constexpr std::int64_t place = -2, threw = -1;

  world_of_ranks world_;
  std::string place_;
  at::Tensor local_, all_;
  std::unique_ptr<pending_collective> under_way_;
  std::exception_ptr failed_;  ///< thrown in complete()
};

}  // namespace keel::detail::inline KEEL_MODE

#ifndef KEEL_COMPILED
#include <keel/shard/packed_agreement.ipp>
#endif
