// An exponential moving average of parameters, usable alone:
//     keel::moving_average average(parameters, 0.999);
//     average.update(step(batch, loss_of));                   // a skipped step does not change it (M03)
//     { auto averaged = average.swap_in(); evaluate(); }      // the parameters are restored at the end of the scope (M04)
//     keel::save_weights("ema.safetensors", average.swap_in(*model));
// average <- average + (1 - decay) * (parameter - average), once per applied update, in fp32 for fp16 and bf16 parameters.
#pragma once

#include <keel/libtorch/ivalue_first.hpp>

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <torch/nn/module.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <keel/checkpoint/tensor_map.hpp>
#include <keel/checkpoint/tensor_slice.hpp>
#include <keel/core/error.hpp>
#include <keel/core/outcome.hpp>
#include <keel/core/parameters.hpp>
#include <keel/libtorch/host_value.hpp>
#include <keel/optimizer/parameter_state.hpp>
#include <keel/rule/reject_call.hpp>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace keel::inline KEEL_MODE {

/// An exponential moving average of parameters, for any LibTorch program. Averages have the parameters' dtypes, or fp32 for bf16 and fp16.
class moving_average {
 public:
  /// Keeps the average in the parameters during its lifetime, then restores them. Training in the meantime is undone.
  class averaged_scope {
   public:
    /// The moved-from object restores nothing.
    averaged_scope(averaged_scope&& other) noexcept
        : average_(std::exchange(other.average_, nullptr)), model_(std::exchange(other.model_, nullptr)) {}
    averaged_scope& operator=(averaged_scope&&) = delete;
    ~averaged_scope() {
      if (average_ != nullptr) average_->put_back();
    }
    /// Returns the model's tensors by name, with the averages in place of the parameters; they are not copies. Without a model, returns
    /// only the averaged tensors. Throws error (E12) after a move.
    tensor_map tensors() const;

   private:
    friend moving_average;
    explicit averaged_scope(moving_average& average, torch::nn::Module* model) : average_(&average), model_(model) {
      average_->put_averages();
    }
    moving_average* average_;
    torch::nn::Module* model_;
  };

  /// `parameters` share their memory with the model's. `decay` is in (0, 1), as rule M10 requires; throws error (M10) otherwise. `names`:
  /// the names of the averages in a checkpoint; by default their indices.
  /// `expects_shards`: set_shards() makes the averages of parameters that are sharded already. Without it they are error (E12).
  moving_average(std::vector<at::Tensor> parameters, double decay, std::vector<std::string> names = {},
                 bool expects_shards = false);
  moving_average(moving_average const&) = delete;
  moving_average& operator=(moving_average const&) = delete;

  /// Before the first update, sets the average to the current parameters, for example after loading a checkpoint without an average.
  void begin();

  /// Updates the average if the step was applied. Throws error (M04) while the average is in the model.
  void update(step_outcome const& result);
  /// Rejected (M03): an outcome is needed to decide whether the parameters changed.
  template <class... Arguments>
  void update(Arguments const&...) {
    detail::reject_call<rule::M03, Arguments...>();
  }

  /// Puts the average into the parameters until the returned object is destroyed. Throws error (M04) if it already is.
  [[nodiscard]] averaged_scope swap_in() {
    require_average_swapped_out();
    return averaged_scope(*this, nullptr);
  }
  /// As above. `model` owns the averaged parameters and must outlive the returned object.
  [[nodiscard]] averaged_scope swap_in(torch::nn::Module& model) {
    require_average_swapped_out();
    return averaged_scope(*this, &model);
  }
  /// Returns true while the average is in the parameters.
  bool is_swapped_in() const { return !held_.empty(); }
  /// Throws error (M04) while the average is in the model.
  void require_average_swapped_out() const {
    if (is_swapped_in()) throw broken_rule<error, rule::M04>();
  }

  /// Adds the parameters of the list from `first` on. Their averages start at their current values.
  void add(parameter_list const& all, std::size_t first);
  /// Removes the last `count` parameters.
  void remove_last(std::size_t count);

  /// Access to parameters that shard::zero<3> shards. Each function takes the parameter first.
  struct shard_access {
    std::function<at::Tensor(at::Tensor const&)> find;  ///< this rank's shard; undefined while the parameter is whole
    std::function<at::Tensor(at::Tensor const&, at::Tensor const& whole)>
        cut;  ///< the elements of this rank's shard in another tensor
    std::function<at::Tensor(at::Tensor const&, at::Tensor const& shard)> assemble;  ///< the reverse; collective
    std::function<tensor_slice(at::Tensor const&)> slice;  ///< what part of the parameter this rank's shard is
  };
  /// From now on the averages of sharded parameters are sharded, too. Call follow_shards() after parameters were gathered or sharded again.
  void set_shards(shard_access access);
  /// Collective if parameters were gathered.
  void follow_shards();

  /// Returns one tensor per parameter, in the same order; under shard::zero<3> the shards of those that are sharded.
  std::vector<at::Tensor> const& averages() const { return averages_; }

  /// Saves or loads the state. Throws checkpoint_error (E05) for averages of other shapes or dtypes.
  template <class Archive>
  void visit(Archive& archive) {
    archive("taken", taken_);
    for (std::size_t i = 0; i < averages_.size(); ++i) {
      std::string const name = name_of(i);
      at::Tensor average = averages_[i];
      if constexpr (requires(tensor_slice const& slice) { archive.set_slice(name.c_str(), slice); }) {
        if (auto const slice = slice_of(i)) archive.set_slice(name.c_str(), *slice);
      }
      archive(name.c_str(), average);
      // Saved before the parameter was sharded.
      if (average.defined() && slice_of(i) && average.sizes() == whole_[i].sizes())
        average = shards_.cut(whole_[i], average).clone();
      bool const fits =
          average.defined() && average.sizes() == averages_[i].sizes() && average.scalar_type() == averages_[i].scalar_type();
      if (!fits) {
        throw checkpoint_error("E05", "the moving average of " + name +
                                          " has another shape or dtype than its parameter. Take an older checkpoint.");
      }
      averages_[i] = average.to(averages_[i].device());
    }
  }

 private:
  void put_averages();
  void put_back();
  /// Returns what part of a whole average this rank has; nullopt if all of it.
  std::optional<tensor_slice> slice_of(std::size_t at) const;
  /// Returns the name of an average in a checkpoint.
  std::string name_of(std::size_t at) const { return at < names_.size() ? names_[at] : std::to_string(at); }

  std::vector<at::Tensor> parameters_;  ///< or their shards
  std::vector<at::Tensor> whole_;       ///< with set_shards(): the parameters
  shard_access shards_;
  std::vector<std::string> names_;
  std::vector<at::Tensor> averages_;
  std::vector<at::Tensor> held_;  ///< the parameters while the average is in their place
  double decay_;
  std::int64_t taken_ = 0;  ///< number of updates
};

/// Saves the averaged weights as a safetensors file, for keel::load_weights or any other reader:
///     keel::save_weights("ema.safetensors", run.averaged());
/// Replaces an existing file atomically. With several ranks, call it on one of them. Throws as save_safetensors.
void save_weights(std::filesystem::path const& path, moving_average::averaged_scope const& averaged);

}  // namespace keel::inline KEEL_MODE

namespace keel::detail::inline KEEL_MODE {

/// Non-finite buffers are excluded: averaging a mask of minus infinity would give NaN.
inline bool is_averaged_buffer(at::Tensor const& buffer) {
  return buffer.defined() && buffer.is_floating_point() && buffer.layout() == at::kStrided &&
         host_value(at::isfinite(buffer).all()) != 0.0;
}
/// Returns the tensors to average: the trained parameters, and with `buffers` every floating-point buffer after them.
std::vector<at::Tensor> averaged_tensors(torch::nn::Module& model, parameter_list const& parameters, bool buffers);
std::vector<std::string> averaged_names(torch::nn::Module& model, parameter_list const& parameters, bool buffers);

}  // namespace keel::detail::inline KEEL_MODE

#ifndef KEEL_COMPILED
#include <keel/ema/moving_average.ipp>
#endif
