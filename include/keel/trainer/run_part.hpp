// One model of a run, independent of the recipe's type: its step, its name in checkpoints and in the record, and statistics of its updates
// since the last boundary.
#pragma once

#include <keel/libtorch/ivalue_first.hpp>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <keel/core/outcome.hpp>
#include <keel/core/parameters.hpp>
#include <keel/step/step_engine.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace keel::detail::inline KEEL_MODE {

/// Statistics of a part's updates since the last boundary of its run.
struct part_stats {
  std::int64_t applied = 0;
  std::int64_t skipped = 0;
  std::int64_t clipped = 0;
  std::int64_t rows = 0;
  std::int64_t tokens = 0;
  double loss = 0.0;                                   ///< summed over the applied updates
  double gradient_norm = 0.0;                          ///< summed over the applied updates
  std::vector<std::pair<std::string, double>> losses;  ///< named losses of the last update that had any
  std::optional<result::skipped> last_skipped;
};

class run_part {
 public:
  /// The only model of its run, which has no name. `step` must outlive this object.
  explicit run_part(step_engine& step) : step_(&step) {}
  run_part(run_part const&) = delete;
  run_part& operator=(run_part const&) = delete;
  ~run_part() = default;

  std::string const& name() const { return name_; }
  bool has_name() const { return !name_.empty(); }
  step_engine& step() const { return *step_; }
  /// The parameters, named as in checkpoints of the run.
  parameter_list const& parameters() const { return has_name() ? parameters_ : step_->parameters(); }

  part_stats take_stats() { return std::exchange(stats_, {}); }
  bool has_new_results() const { return stats_.applied + stats_.skipped > 0; }

  void unfreeze(std::vector<at::Tensor> const& which, double rate) {
    step_->unfreeze(which, rate);
    name_parameters();
  }
  /// Removes the last unfrozen parameter group; false if there is none.
  bool refreeze_last_group() {
    bool const was_unfrozen = step_->refreeze_last_group();
    name_parameters();
    return was_unfrozen;
  }

 protected:
  explicit run_part(std::string name) : name_(std::move(name)) {}
  /// `model_name`: name of the model in checkpoints. `step` must outlive this object.
  void use(step_engine& step, std::string model_name) {
    step_ = &step;
    model_name_ = std::move(model_name);
    name_parameters();
  }
  part_stats stats_;

 private:
  void name_parameters() {
    if (!has_name()) return;
    parameters_ = step_->parameters();
    for (std::string& name : parameters_.names) name = model_name_ + "." + name;
  }

  std::string name_;
  std::string model_name_;
  step_engine* step_ = nullptr;
  parameter_list parameters_;
};

}  // namespace keel::detail::inline KEEL_MODE
