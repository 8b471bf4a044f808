// keel's order for LibTorch's data loaders, with their worker threads and their fetching ahead:
//     run.fit([&](std::int64_t epoch, std::int64_t position) {
//       return torch::data::make_data_loader(dataset, keel::libtorch_sampler(order, epoch, position), options);
//     }, loss_of);
// The options' batch size is that of the order, and `enforce_ordering` stays on. Nothing of a loader need be saved: the
// position counts what was consumed.
#pragma once

#include <torch/data/samplers/base.h>
#include <torch/data/samplers/serialize.h>

#include <cstddef>
#include <cstdint>
#include <keel/data/shuffled_batches.hpp>
#include <keel/error.hpp>
#include <utility>
#include <vector>

namespace keel {

namespace libtorch {
template <class Class, class Argument>
Argument argument_of(void (Class::*)(Argument));
/// Of the standard's type or of LibTorch's own, by its version.
using optional_size = decltype(argument_of(&torch::data::samplers::Sampler<>::reset));
using optional_rows = decltype(std::declval<torch::data::samplers::Sampler<>&>().next(0));
}  // namespace libtorch

class libtorch_sampler : public torch::data::samplers::Sampler<> {
 public:
  /// The batches of `epoch` from `position` on.
  libtorch_sampler(shuffled_batches order, std::int64_t epoch, std::int64_t position = 0)
      : order_(order), epoch_(epoch), first_(position), next_(position) {}

  /// Throws error (E12) for another size: the order has its own.
  void reset(libtorch::optional_size new_size = {}) override {
    if (new_size) throw error("E12", "this sampler's number of rows is its order's. Make another keel::shuffled_batches.");
    next_ = first_;
  }
  libtorch::optional_rows next(std::size_t /*batch_size*/) override {
    if (next_ >= order_.size()) return {};
    row_numbers const rows = order_.batch(epoch_, next_++);
    return std::vector<std::size_t>(rows.begin(), rows.end());
  }
  void save(torch::serialize::OutputArchive& /*archive*/) const override {}
  void load(torch::serialize::InputArchive& /*archive*/) override {}

 private:
  shuffled_batches order_;
  std::int64_t epoch_;
  std::int64_t first_;
  std::int64_t next_;
};

}  // namespace keel
