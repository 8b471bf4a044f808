// An exponential moving average of parameters, usable alone:
//     keel::moving_average average(parameters, 0.999);
//     average.update(step(batch, loss_of));                   a skipped step leaves it as it is (M03)
//     { auto averaged = average.swap_in(); evaluate(); }      the parameters come back at the end of the scope (M04)
//     keel::save_weights("ema.safetensors", average.swap_in(*model));
// average <- average + (1 - decay) * (parameter - average), once an applied update, in fp32 for fp16 and bf16 parameters.
#pragma once

#include <keel/libtorch/ivalue_first.hpp>

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <torch/nn/module.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <keel/checkpoint/tensor_map.hpp>
#include <keel/core/error.hpp>
#include <keel/core/outcome.hpp>
#include <keel/core/parameters.hpp>
#include <keel/libtorch/host_value.hpp>
#include <keel/optimizer/parameter_state.hpp>
#include <keel/rule/reject_call.hpp>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace keel::inline KEEL_MODE {

/// An exponential moving average of parameters, usable in any LibTorch program: in their dtypes, of bf16 and fp16 in fp32.
class moving_average {
 public:
  /// The average is in the parameters for as long as this lives; what trains them meanwhile is undone at its end.
  class averaged_scope {
   public:
    /// The other one puts nothing back.
    averaged_scope(averaged_scope&& other) noexcept
        : average_(std::exchange(other.average_, nullptr)), model_(std::exchange(other.model_, nullptr)) {}
    averaged_scope& operator=(averaged_scope&&) = delete;
    ~averaged_scope() {
      if (average_ != nullptr) average_->put_back();
    }
    /// The model's tensors by name, not copies, the averages in their places; without a model those that are averaged. Throws error (E12)
    /// once this was moved from.
    tensor_map tensors() const;

   private:
    friend moving_average;
    explicit averaged_scope(moving_average& average, torch::nn::Module* model) : average_(&average), model_(model) {
      average_->put_averages();
    }
    moving_average* average_;
    torch::nn::Module* model_;
  };

  /// `decay` in (0, 1), as rule M10 says for recipes. The parameters share their memory with the model's. Throws error (M10).
  /// `names` are what a checkpoint calls the averages; without them it counts.
  moving_average(std::vector<at::Tensor> parameters, double decay, std::vector<std::string> names = {});
  moving_average(moving_average const&) = delete;
  moving_average& operator=(moving_average const&) = delete;

  /// Until the first update the average is the parameters as they are, such as those that a checkpoint without an average left.
  void begin();

  /// Takes the parameters in if the step updated them. Throws error (M04) while the average is in the model.
  void update(step_outcome const& result);
  /// Rejected (M03): only an outcome says whether the parameters moved.
  template <class... Arguments>
  void update(Arguments const&...) {
    detail::reject_call<rule::M03, Arguments...>();
  }

  /// Puts the average into the parameters until the returned value goes. Throws error (M04) if it is there already.
  [[nodiscard]] averaged_scope swap_in() {
    require_parameters_in_place();
    return averaged_scope(*this, nullptr);
  }
  /// `model`, which must outlive the returned value, is the one whose parameters are averaged.
  [[nodiscard]] averaged_scope swap_in(torch::nn::Module& model) {
    require_parameters_in_place();
    return averaged_scope(*this, &model);
  }
  /// True while the average is in the parameters.
  bool is_swapped_in() const { return !held_.empty(); }
  /// Throws error (M04) while the average is in the model.
  void require_parameters_in_place() const {
    if (is_swapped_in()) throw broken_rule<error, rule::M04>();
  }

  /// More parameters, those of the list from `first` on, whose averages begin as they are now.
  void add(parameter_list const& all, std::size_t first);
  /// The last ones that were added go again.
  void remove_last(std::size_t count);

  /// One tensor a parameter, in their order.
  std::vector<at::Tensor> const& averages() const { return averages_; }

  /// Throws checkpoint_error (E05) for averages of other shapes or dtypes.
  template <class Archive>
  void visit(Archive& archive) {
    archive("taken", taken_);
    for (std::size_t i = 0; i < averages_.size(); ++i) {
      std::string const name = name_of(i);
      at::Tensor average = averages_[i];
      archive(name.c_str(), average);
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
  /// What a checkpoint calls an average.
  std::string name_of(std::size_t at) const { return at < names_.size() ? names_[at] : std::to_string(at); }

  std::vector<at::Tensor> parameters_;
  std::vector<std::string> names_;
  std::vector<at::Tensor> averages_;
  std::vector<at::Tensor> held_;  ///< the parameters while the average is in their place
  double decay_;
  std::int64_t taken_ = 0;  ///< updates
};

/// The averaged weights as a safetensors file, for keel::load_weights or any other reader:
///     keel::save_weights("ema.safetensors", run.averaged());
/// Replaces a file of this name as a whole. On several ranks one of them calls it. Throws as save_safetensors.
void save_weights(std::filesystem::path const& path, moving_average::averaged_scope const& averaged);

}  // namespace keel::inline KEEL_MODE

namespace keel::detail::inline KEEL_MODE {

/// A mask of minus infinity would become NaN.
inline bool is_averaged_buffer(at::Tensor const& buffer) {
  return buffer.defined() && buffer.is_floating_point() && buffer.layout() == at::kStrided &&
         host_value(at::isfinite(buffer).all()) != 0.0;
}
/// What an average is of: the parameters that are trained, and with `buffers` every floating-point buffer after them.
std::vector<at::Tensor> averaged_tensors(torch::nn::Module& model, parameter_list const& parameters, bool buffers);
std::vector<std::string> averaged_names(torch::nn::Module& model, parameter_list const& parameters, bool buffers);

}  // namespace keel::detail::inline KEEL_MODE

#ifndef KEEL_COMPILED
#include <keel/ema/moving_average.ipp>
#endif
