// keel::gathered_parameters: all parameters of a model that shard::zero<3> shards, for reading and writing them outside of their units.
//     {
//       auto const whole = run.gather_parameters();
//       if (world.rank() == 0) keel::save_safetensors("model.safetensors", *model);
//     }
// Each rank needs memory for the whole model meanwhile. What was written is in the shards afterwards; write the same on all ranks.
#pragma once

#include <keel/libtorch/ivalue_first.hpp>

#include <cstddef>
#include <exception>
#include <keel/shard/replication.hpp>
#include <utility>
#include <vector>

namespace keel::inline KEEL_MODE {

/// RAII: gathers the parameters of steps with shard::zero<3>; does nothing under other policies. Construction is collective, so all ranks
/// must make one. May be nested.
class gathered_parameters {
 public:
  /// The steps must outlive this object. Throws world_error if another rank failed.
  explicit gathered_parameters(std::vector<detail::replication*> steps) : steps_(std::move(steps)) {
    std::size_t gathered = 0;
    try {
      for (; gathered < steps_.size(); ++gathered) steps_[gathered]->gather_parameters();
    } catch (...) {
      // Rethrown once the earlier ones are sharded again.
      steps_.resize(gathered);
      drop();
      throw;
    }
  }
  gathered_parameters(gathered_parameters const&) = delete;
  gathered_parameters& operator=(gathered_parameters const&) = delete;
  ~gathered_parameters() {
    try {
      drop();
    } catch (std::exception const& thrown) {
      // Shards that could not be written are lost: the other ranks must not go on with theirs.
      for (detail::replication* const one : steps_) one->world().abort(thrown.what());
    }
  }

 private:
  void drop() {
    for (detail::replication* const one : steps_) one->drop_parameters();
  }

  std::vector<detail::replication*> steps_;
};

}  // namespace keel::inline KEEL_MODE
