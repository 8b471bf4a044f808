// Measures the layers of a model during an update without synchronizing with the device: results are copied to the host asynchronously. A
// large tensor is represented by an even sample of 4,096 values, so that a measurement takes little time and memory; the norms of gradients
// are exact.
#pragma once

#include <keel/libtorch/ivalue_first.hpp>

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <cstddef>
#include <cstdint>
#include <keel/core/parameters.hpp>
#include <keel/libtorch/device_reading.hpp>
#include <keel/metrics/layer_record.hpp>
#include <keel/recompute/unit_scope.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace keel::inline KEEL_MODE {

class layer_watch final : private unit_listener {
 public:
  /// `model` and `parameters` must outlive this object.
  layer_watch(torch::nn::Module& model, parameter_list const& parameters);
  layer_watch(layer_watch const&) = delete;
  layer_watch& operator=(layer_watch const&) = delete;

  /// Call after the list of parameters changed.
  void parameters_changed();

  /// Begins an update, or restarts it.
  void begin(layer_detail detail);
  bool is_on() const { return detail_ != layer_detail::none; }
  /// Returns the listener for the units of the first forward pass of an update; null for later ones.
  unit_listener* units() { return is_on() && !std::exchange(has_forward_, true) ? this : nullptr; }

  /// Records the gradients' norms, one per parameter. `factor` unscales the gradients in the parameters.
  void gradients(std::vector<double> const& norms, double factor);
  /// As above on a device; `factor` is a double scalar there.
  void gradients(at::Tensor const& factor);
  /// Call before the optimizer's step.
  void before_update();
  /// Call after the optimizer's step. `update`: number of applied updates, including this one.
  void after_update(std::int64_t update);
  /// Discards the measurements of the open update.
  void drop();

  /// Discards pending results, because their run is abandoned.
  void forget() { pending_.clear(); }
  /// Discards the pending results of an update that was skipped on the device.
  void forget(std::int64_t update);

  /// Returns the oldest result that has arrived; nullopt if there is none. With `wait`, also waits for a pending one.
  std::optional<layer_record> take(bool wait);

 private:
  struct pending {
    std::int64_t update;
    std::vector<std::string> activations;
    std::vector<std::string> distributions;
    std::vector<double> elements;  ///< sample size of each distribution
    device_reading numbers;
  };

  void begin_unit(void const* /*module*/) override {}
  void end_unit() override {}
  void output_of_unit(void const* module, at::Tensor const& output) override;
  std::string name_of(void const* module);
  void add_distribution(std::string const& name, at::Tensor const& values, at::Tensor const& factor = {});
  /// Calls `does`. If memory runs out, this update is not measured: a measurement must not cost a rung.
  template <class Look>
  void look(Look const& does);
  at::Tensor squares_of_gradients() const;
  layer_record figures_of(pending& from) const;

  torch::nn::Module& model_;
  parameter_list const& parameters_;
  std::vector<std::string> names_;                            ///< the layers' names
  std::vector<std::size_t> layer_of_;                         ///< per parameter
  std::vector<std::pair<void const*, std::string>> modules_;  ///< set at the first unit

  layer_detail detail_ = layer_detail::none;
  bool has_forward_ = false;
  std::size_t functions_ = 0;  ///< units without a module so far
  std::vector<std::string> activation_names_;
  std::vector<at::Tensor> activations_;  ///< mean and standard deviation per unit
  std::vector<std::string> distribution_names_;
  std::vector<double> elements_;
  std::vector<at::Tensor> distributions_;
  at::Tensor gradient_squares_;
  std::vector<double> sampled_;     ///< samples of the parameters before the update, concatenated, on the CPU
  std::vector<at::Tensor> slices_;  ///< the same samples on a device
  std::vector<pending> pending_;
};

}  // namespace keel::inline KEEL_MODE

#ifndef KEEL_COMPILED
#include <keel/metrics/layer_watch.ipp>
#endif
