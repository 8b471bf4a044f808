// Definitions for iteration_sync.hpp.
#pragma once

#include <keel/libtorch/ivalue_first.hpp>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <exception>
#include <keel/config/describe.hpp>
#include <keel/shard/replicas.hpp>
#include <keel/trainer/iteration_sync.hpp>
#include <string>
#include <vector>

#include <keel/libtorch/detail/body_begin.inc>

namespace keel::detail::inline KEEL_MODE {

namespace of_iteration {
/// Indices of the values that each rank sends.
enum number : std::int64_t { ended, signal, stops, saves, busy };
}  // namespace of_iteration

KEEL_BODY iteration_sync::iteration_sync(world_of_ranks world, config const& recipe, trainer_options const& options)
    : rank_requests(std::move(world)), unwinding_(std::uncaught_exceptions()) {
  if (!is_shared()) return;
  if (!options.run_directory.empty()) directory_ = std::filesystem::absolute(options.run_directory);
  if (recipe.timeout.collective > 0) world_.limit(std::chrono::seconds(recipe.timeout.collective));
  require_same_lines(world_, "recipe:\n" + std::string(describe(recipe).c_str()) + "updates " +
                                 std::to_string(length_of(options, 1)) + "\nepochs " + std::to_string(options.epochs) + "\n");
  numbers_.emplace(world_, "the beginning of an iteration");
}

KEEL_BODY iteration_sync::~iteration_sync() {
  if (std::uncaught_exceptions() > unwinding_) abort_peers("an exception ended the run on this rank");
}

KEEL_BODY int iteration_sync::begin(bool has_batch, pending_requests const& local) {
  if (!numbers_) return has_batch ? -1 : 0;
  using namespace of_iteration;
  numbers_->set_location("the beginning of an iteration");
  numbers_->local(ended) = has_batch ? 0.0 : 1.0;
  numbers_->local(signal) = static_cast<double>(local.signal);
  numbers_->local(stops) = local.stops ? 1.0 : 0.0;
  numbers_->local(saves) = local.saves ? 1.0 : 0.0;
  numbers_->local(busy) = busy_.take(world_);
  numbers_->begin();
  numbers_->wait();
  requests_ = {};
  int first_exhausted_rank = -1;
  std::vector<double> milliseconds;
  milliseconds.reserve(static_cast<std::size_t>(world_.size()));
  for (int rank = 0; rank < world_.size(); ++rank) {
    if (first_exhausted_rank < 0 && numbers_->of(rank, ended) != 0.0) first_exhausted_rank = rank;
    requests_.signal = std::max(requests_.signal, static_cast<int>(numbers_->of(rank, signal)));
    requests_.stops = requests_.stops || numbers_->of(rank, stops) != 0.0;
    requests_.saves = requests_.saves || numbers_->of(rank, saves) != 0.0;
    milliseconds.push_back(numbers_->of(rank, busy));
  }
  // Discard the time before the first iteration of an epoch: it includes evaluation and setup.
  if (first_exhausted_rank < 0 && std::exchange(is_in_epoch_, true)) times_ = summarize_rank_times(std::move(milliseconds));
  if (first_exhausted_rank >= 0) is_in_epoch_ = false;
  return first_exhausted_rank;
}

KEEL_BODY void iteration_sync::end(std::int64_t iterations, bool is_inside_iteration, bool is_in_update) {
  if (!numbers_) return;
  numbers_->set_location("the end of the run after " + std::to_string(iterations) + " iterations" +
                         (is_inside_iteration ? ", in the middle of one" : "") + (is_in_update ? ", with an update open" : ""));
  numbers_->begin();
  numbers_->wait();
}

}  // namespace keel::detail::inline KEEL_MODE

#include <keel/libtorch/detail/body_end.inc>
