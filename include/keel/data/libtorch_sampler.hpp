// keel's order for LibTorch's data loaders, with their worker threads and prefetching:
//     run.fit([&](std::int64_t epoch, std::int64_t position) {
//       return torch::data::make_data_loader(dataset, keel::libtorch_sampler(order, epoch, position), options);
//     }, loss_of);
// The options' batch size must be that of the order, and `enforce_ordering` must stay on. A keel::trainer saves nothing of a loader,
// because its position counts the consumed batches. A loop without a trainer saves the sampler with torch::save. The sampler only counts
// the batches that it handed out. With workers that is up to `max_jobs` ahead of the consumed ones, so save it at the end of an epoch, or
// use no workers.
#pragma once

#include <keel/libtorch/ivalue_first.hpp>

#include <ATen/core/ivalue.h>
#include <torch/data/samplers/base.h>
#include <torch/data/samplers/serialize.h>

#include <cstddef>
#include <cstdint>
#include <keel/core/error.hpp>
#include <keel/data/shuffled_batches.hpp>
#include <string>
#include <utility>
#include <vector>

namespace keel::libtorch::inline KEEL_MODE {
template <class Class, class Argument>
Argument argument_of(void (Class::*)(Argument));
/// std::optional or LibTorch's own optional, depending on its version.
using optional_size = decltype(argument_of(&torch::data::samplers::Sampler<>::reset));
using optional_rows = decltype(std::declval<torch::data::samplers::Sampler<>&>().next(0));
}  // namespace keel::libtorch::inline KEEL_MODE

namespace keel::inline KEEL_MODE {

class libtorch_sampler : public torch::data::samplers::Sampler<> {
 public:
  /// Samples the batches of `epoch` from `position` on. Throws error (E12) if either is negative.
  libtorch_sampler(shuffled_batches order, std::int64_t epoch, std::int64_t position = 0)
      : order_(order), epoch_(epoch), first_(position), next_(position) {
    if (epoch < 0 || position < 0)
      throw error("E12", "a sampler cannot start at epoch " + std::to_string(epoch) + ", position " + std::to_string(position) +
                             ": both are numbered from 0. Use the values from trainer::fit, or 0.");
  }

  /// Restarts at the first position. Throws error (E12) if a size is given, because the order determines it.
  void reset(libtorch::optional_size new_size = {}) override {
    if (new_size)
      throw error(
          "E12",
          "this sampler cannot change its number of rows, which its order determines. Make another keel::shuffled_batches.");
    next_ = first_;
  }
  /// Returns the rows of the next batch. Throws error (E12) if the loader's batch size is not the order's. The last batch of an epoch may
  /// have fewer rows.
  libtorch::optional_rows next(std::size_t batch_size) override {
    if (batch_size != static_cast<std::size_t>(order_.batch_size()))
      throw error("E12", "the loader asks for batches of " + std::to_string(batch_size) +
                             " rows, but the order has batches of " + std::to_string(order_.batch_size()) +
                             ". Set the batch size of DataLoaderOptions to that of keel::shuffle_settings.");
    if (next_ >= order_.size()) return {};
    row_numbers const rows = order_.batch(epoch_, next_++);
    return std::vector<std::size_t>(rows.begin(), rows.end());
  }
  /// Saves the epoch, the position after the last batch that was handed out, and the description of the order.
  void save(torch::serialize::OutputArchive& archive) const override {
    archive.write("epoch", c10::IValue(epoch_));
    archive.write("position", c10::IValue(next_));
    archive.write("order", c10::IValue(order_.describe()));
  }
  /// Loads the position, from which a loader that is started afterwards continues. Throws checkpoint_error: E04 if another sampler or order
  /// wrote it, E05 if it is damaged.
  void load(torch::serialize::InputArchive& archive) override {
    c10::IValue epoch;
    c10::IValue position;
    c10::IValue order;
    bool const is_whole = archive.try_read("epoch", epoch) && archive.try_read("position", position) &&
                          archive.try_read("order", order) && epoch.isInt() && position.isInt() && order.isString();
    if (!is_whole)
      throw checkpoint_error("E04",
                             "the archive was not saved by a keel::libtorch_sampler. Load it into the sampler that wrote it.");
    if (order.toStringRef() != order_.describe())
      throw checkpoint_error("E04", "the saved sampler used another data order: before " + order.toStringRef() + ", now " +
                                        order_.describe() + ". Use that order, or start a new run.");
    if (epoch.toInt() < 0 || position.toInt() < 0 || position.toInt() > order_.size())
      throw checkpoint_error("E05", "the position of the saved sampler is invalid: epoch " + std::to_string(epoch.toInt()) +
                                        ", position " + std::to_string(position.toInt()) + " of " +
                                        std::to_string(order_.size()) + ". Use an older checkpoint, and check the disk.");
    epoch_ = epoch.toInt();
    first_ = next_ = position.toInt();
  }

 private:
  shuffled_batches order_;
  std::int64_t epoch_;
  std::int64_t first_;  ///< the position at which a loader starts
  std::int64_t next_;
};

}  // namespace keel::inline KEEL_MODE
