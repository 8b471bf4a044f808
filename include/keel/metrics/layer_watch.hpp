// Looks at the layers of a model through one update, without a wait for a device: what it finds is on its way to the host while the
// run goes on. Of a large tensor an even sample of 4,096 values stands for all, so that a look costs little time and no memory to
// speak of; of gradients the norms are exact.
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
  /// Both outlive this.
  layer_watch(torch::nn::Module& model, parameter_list const& parameters);
  layer_watch(layer_watch const&) = delete;
  layer_watch& operator=(layer_watch const&) = delete;

  /// The list of parameters is another one.
  void parameters_changed();

  /// An update begins, or begins again.
  void begin(layer_detail detail);
  bool is_on() const { return detail_ != layer_detail::none; }
  /// Of the units of the first forward pass; null for others.
  unit_listener* units() { return is_on() && !std::exchange(has_forward_, true) ? this : nullptr; }

  /// The update's gradients are known, with the norm of each parameter's, and the factor that unscales what is in the parameters.
  void gradients(std::vector<double> const& norms, double factor);
  /// The same on a device that knows them: the factor is a double scalar there.
  void gradients(at::Tensor const& factor);
  /// Before the optimizer's step.
  void before_update();
  /// After it. `update`: applied, this one included.
  void after_update(std::int64_t update);
  /// The update does not take place, or nothing of it is wanted.
  void drop();

  /// What is on its way belongs to a run that is abandoned.
  void forget() { pending_.clear(); }
  /// The update of that number did not take place, as the host learns later.
  void forget(std::int64_t update);

  /// What has arrived, oldest first; with `wait`, what is still on its way too.
  std::optional<layer_record> take(bool wait);

 private:
  struct pending {
    std::int64_t update;
    std::vector<std::string> activations;
    std::vector<std::string> distributions;
    std::vector<double> elements;  ///< of each distribution's sample
    device_reading numbers;
  };

  void begin_unit(void const* /*module*/) override {}
  void end_unit() override {}
  void output_of_unit(void const* module, at::Tensor const& output) override;
  std::string name_of(void const* module);
  void add_distribution(std::string const& name, at::Tensor const& values, at::Tensor const& factor = {});
  /// Does it; where memory does not suffice, this update goes unwatched: a look is not worth a rung.
  template <class Look>
  void look(Look const& does);
  at::Tensor squares_of_gradients() const;
  layer_record figures_of(pending& from) const;

  torch::nn::Module& model_;
  parameter_list const& parameters_;
  std::vector<std::string> names_;                            ///< of the layers
  std::vector<std::size_t> layer_of_;                         ///< of each parameter
  std::vector<std::pair<void const*, std::string>> modules_;  ///< filled with the first unit

  layer_detail detail_ = layer_detail::none;
  bool has_forward_ = false;
  std::size_t functions_ = 0;  ///< units without a module, so far
  std::vector<std::string> activation_names_;
  std::vector<at::Tensor> activations_;  ///< mean and deviation of each
  std::vector<std::string> distribution_names_;
  std::vector<double> elements_;
  std::vector<at::Tensor> distributions_;
  at::Tensor gradient_squares_;
  std::vector<double> sampled_;     ///< of the parameters before the update, one after the other, on the CPU
  std::vector<at::Tensor> slices_;  ///< the same on a device
  std::vector<pending> pending_;
};

}  // namespace keel::inline KEEL_MODE

#ifndef KEEL_COMPILED
#include <keel/metrics/layer_watch.ipp>
#endif
