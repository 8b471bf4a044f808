// The bodies of iterations_of_ranks.hpp.
#pragma once

#include <keel/libtorch/ivalue_first.hpp>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <exception>
#include <keel/config/describe.hpp>
#include <keel/shard/replicas.hpp>
#include <keel/trainer/iterations_of_ranks.hpp>
#include <string>
#include <vector>

#include <keel/libtorch/detail/body_begin.inc>

namespace keel::detail::inline KEEL_MODE {

namespace of_iteration {
/// The places of the numbers that a rank packs.
enum number : std::int64_t { ended, signal, stops, saves, busy };
}  // namespace of_iteration

KEEL_BODY iterations_of_ranks::iterations_of_ranks(world_of_ranks world, config const& recipe, trainer_options const& options)
    : rank_requests(std::move(world)), unwinding_(std::uncaught_exceptions()) {
  if (!is_shared()) return;
  if (!options.run_directory.empty()) directory_ = std::filesystem::absolute(options.run_directory);
  if (recipe.timeout.collective > 0) world_.limit(std::chrono::seconds(recipe.timeout.collective));
  require_same_lines(world_, "recipe:\n" + std::string(describe(recipe).c_str()) + "updates " +
                                 std::to_string(length_of(options, 1)) + "\nepochs " + std::to_string(options.epochs) + "\n");
  numbers_.emplace(world_, "the beginning of an iteration");
}

KEEL_BODY iterations_of_ranks::~iterations_of_ranks() {
  if (std::uncaught_exceptions() > unwinding_) leave("an exception has ended its run");
}

KEEL_BODY int iterations_of_ranks::begin(bool has_batch, asked_of_ranks const& mine) {
  if (!numbers_) return has_batch ? -1 : 0;
  using namespace of_iteration;
  numbers_->move_to("the beginning of an iteration");
  numbers_->mine(ended) = has_batch ? 0.0 : 1.0;
  numbers_->mine(signal) = static_cast<double>(mine.signal);
  numbers_->mine(stops) = mine.stops ? 1.0 : 0.0;
  numbers_->mine(saves) = mine.saves ? 1.0 : 0.0;
  numbers_->mine(busy) = busy_.take(world_);
  numbers_->begin();
  numbers_->wait();
  asked_ = {};
  int ended_on = -1;
  std::vector<double> milliseconds;
  milliseconds.reserve(static_cast<std::size_t>(world_.size()));
  for (int rank = 0; rank < world_.size(); ++rank) {
    if (ended_on < 0 && numbers_->of(rank, ended) != 0.0) ended_on = rank;
    asked_.signal = std::max(asked_.signal, static_cast<int>(numbers_->of(rank, signal)));
    asked_.stops = asked_.stops || numbers_->of(rank, stops) != 0.0;
    asked_.saves = asked_.saves || numbers_->of(rank, saves) != 0.0;
    milliseconds.push_back(numbers_->of(rank, busy));
  }
  // Not of what is between two epochs, or before the first iteration.
  if (ended_on < 0 && std::exchange(is_in_epoch_, true)) times_ = times_of(std::move(milliseconds));
  if (ended_on >= 0) is_in_epoch_ = false;
  return ended_on;
}

KEEL_BODY void iterations_of_ranks::end(std::int64_t iterations, bool is_in_one, bool is_in_update) {
  if (!numbers_) return;
  numbers_->move_to("the end of the run behind " + std::to_string(iterations) + " iterations" +
                    (is_in_one ? ", in the middle of one" : "") + (is_in_update ? ", with an update open" : ""));
  numbers_->begin();
  numbers_->wait();
}

}  // namespace keel::detail::inline KEEL_MODE

#include <keel/libtorch/detail/body_end.inc>
