// Definitions for update_trace.hpp.
#pragma once

#include <keel/libtorch/ivalue_first.hpp>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/isnan.h>

#include <algorithm>
#include <cmath>
#include <exception>
#include <keel/checkpoint/checksum.hpp>
#include <keel/checkpoint/optimizer_state.hpp>
#include <keel/core/buffers.hpp>
#include <keel/core/error.hpp>
#include <keel/core/loss_accumulator.hpp>
#include <keel/core/out_of_memory.hpp>
#include <keel/libtorch/host_value.hpp>
#include <keel/nonfinite/nonfinite_values.hpp>
#include <keel/nonfinite/operation_watch.hpp>
#include <keel/step/gradients.hpp>
#include <keel/step/update_trace.hpp>
#include <optional>
#include <utility>
#include <variant>

#include <keel/libtorch/detail/body_begin.inc>

namespace keel::inline KEEL_MODE {

/// Saves everything that forward and backward passes change, and restores it on destruction.
class update_trace::state_restorer {
 public:
  state_restorer(torch::nn::Module& model, std::vector<torch::nn::Module*> const& others, parameter_list const& parameters,
                 program_state* program)
      : parameters_(parameters), buffers_(model), random_(random_snapshot::take(parameters.device)), program_(program) {
    for (torch::nn::Module* const one : others) buffers_.add(*one);
    buffers_.take();
    if (program_ != nullptr) saved_copies_ = program_->capture_all();
    gradients_.reserve(parameters.tensors.size());
    for (at::Tensor const& one : parameters.tensors) gradients_.push_back(one.grad());
    clear_gradients(parameters.tensors);
  }
  state_restorer(state_restorer const&) = delete;
  state_restorer& operator=(state_restorer const&) = delete;
  ~state_restorer() {
    for (std::size_t i = 0; i < gradients_.size(); ++i) parameters_.tensors[i].mutable_grad() = gradients_[i];
    buffers_.restore();
    if (program_ != nullptr) program_->restore_all(saved_copies_);
    random_.restore();
  }

 private:
  parameter_list const& parameters_;
  buffer_snapshot buffers_;
  random_snapshot random_;
  program_state* program_;
  std::vector<field_copies> saved_copies_;
  std::vector<at::Tensor> gradients_;
};

KEEL_BODY update_inputs::update_inputs() = default;
KEEL_BODY update_inputs::update_inputs(update_inputs&&) noexcept = default;
KEEL_BODY update_inputs& update_inputs::operator=(update_inputs&&) noexcept = default;
KEEL_BODY update_inputs::~update_inputs() = default;
KEEL_BODY void update_inputs::clear() { *this = {}; }

KEEL_BODY update_trace::update_trace(incident::settings const& settings, torch::nn::Module& model,
                                     torch::optim::Optimizer& optimizer, parameter_list const& parameters)
    : settings_(settings), model_(model), optimizer_(optimizer), parameters_(parameters) {}

KEEL_BODY void update_trace::settled(bool is_open) { (is_open ? before_ : kept_).clear(); }

KEEL_BODY void update_trace::begin(bool is_previous_pending) {
  if (is_previous_pending) {
    before_ = std::move(kept_);
  } else {
    before_.clear();
  }
  kept_.clear();
}

KEEL_BODY void update_trace::end(bool is_previous_pending) {
  if (!is_previous_pending) {
    kept_.clear();
  } else if (!before_.micro_batches.empty()) {
    // The open update was discarded.
    kept_ = std::move(before_);
  }
  before_.clear();
}

KEEL_BODY void update_trace::add(std::unique_ptr<any_micro_batch> batch) {
  add(*batch);
  kept_.owned.push_back(std::move(batch));
}

KEEL_BODY void update_trace::add(any_micro_batch& batch) {
  try {
    kept_.micro_batches.push_back({&batch, random_snapshot::take(parameters_.device)});
  } catch (std::exception const& thrown) {
    if (!is_out_of_memory(thrown)) throw;
    // Do not take a rung for this: the inputs are only needed if the update is traced later.
    kept_.missing = "memory ran out while its random state was being saved";
  }
}

KEEL_BODY bool update_trace::start_trace(reason why) {
  bool const is_nonfinite =
      why == reason::nonfinite_loss || why == reason::nonfinite_gradient || why == reason::nonfinite_buffer;
  if (!is_nonfinite) return false;
  if (std::exchange(consecutive_, true) || !is_on()) return false;
  ++traced_;
  return true;
}

KEEL_BODY traced_update update_trace::locate_origin(update_inputs const& kept, forward_pass const& forward,
                                                    replay_settings const& settings) {
  traced_update traced;
  nonfinite_origin& origin = traced.origin;
  std::optional<nonfinite_origin> of_state;
  try {
    of_state = find_nonfinite_in_state();
    origin.detail = kept.missing;
    if (kept.micro_batches.empty() && origin.detail.empty()) origin.detail = "its batches were not kept";
    for (auto const& one : kept.micro_batches) {
      if (one.batch->was_changed()) origin.detail = "the program modified a batch after passing it to the step";
    }
    if (origin.detail.empty()) origin = run_again(kept, forward, settings, traced);
  } catch (std::exception const& thrown) {
    // A failed trace must not change what the run does with the update.
    origin.detail = "the update could not be rerun: " + first_line(thrown);
  }
  // A non-finite parameter or state is the origin even if the rerun threw because of it.
  if (of_state) origin = *of_state;
  return traced;
}

KEEL_BODY std::string update_trace::find_nonfinite_state(std::string const& parameter) const {
  nlohmann::json values;
  tensor_map tensors;
  try {
    save_optimizer(optimizer_, parameters_, values, tensors);
  } catch (error const&) {
    // keel has no codec for this optimizer.
    return "";
  }
  for (auto const& [name, tensor] : tensors) {
    if (name.starts_with(parameter + ".") && !name.ends_with(".master") && nonfinite_values_of(tensor).any()) return name;
  }
  return "";
}

KEEL_BODY std::optional<nonfinite_origin> update_trace::find_nonfinite_in_state() const {
  nonfinite_origin origin;
  for (std::size_t i = 0; i < parameters_.tensors.size(); ++i) {
    nonfinite_values const found = nonfinite_values_of(parameters_.tensors[i]);
    if (!found.any()) continue;
    std::string const state = find_nonfinite_state(parameters_.names[i]);
    origin.place = state.empty() ? nonfinite_place::parameter : nonfinite_place::optimizer_state;
    origin.parameter = state.empty() ? parameters_.names[i] : state;
    origin.value = found.words();
    return origin;
  }
  // Frozen parameters, then buffers: only NaN counts there, because an infinity may be a mask.
  for (auto const& item : model_.named_parameters()) {
    nonfinite_values const found = nonfinite_values_of(item.value());
    if (!found.any()) continue;
    origin.place = nonfinite_place::parameter;
    origin.parameter = item.key();
    origin.value = found.words();
    return origin;
  }
  for (auto const& item : model_.named_buffers()) {
    if (!nonfinite_values_of(item.value()).nan) continue;
    origin.place = nonfinite_place::buffer;
    origin.parameter = item.key();
    origin.value = "nan";
    return origin;
  }
  return std::nullopt;
}

}  // namespace keel::inline KEEL_MODE

namespace keel::detail::inline KEEL_MODE {

inline constexpr std::int64_t max_rows = 8;

KEEL_BODY std::string checksum_of_gradients(parameter_list const& parameters) {
  at::NoGradGuard const no_grad;
  checksum sum;
  for (at::Tensor const& one : parameters.tensors) {
    at::Tensor gradient = one.grad();
    if (!gradient.defined()) continue;
    if (gradient.is_sparse()) gradient = gradient.to_dense();
    gradient = gradient.detach().cpu().contiguous();
    sum.add(static_cast<char const*>(gradient.data_ptr()), gradient.nbytes());
  }
  return sum.digest();
}

/// Finds the non-finite tensor and rows of a batch; false if the batch is finite.
KEEL_BODY bool find_in_contents(batch_contents const& contents, std::int64_t rows, nonfinite_origin& origin) {
  auto const look = [&](std::vector<at::Tensor> const& tensors, char const* what) {
    for (at::Tensor const& one : tensors) {
      // Minus infinity may be a mask.
      nonfinite_values const found = nonfinite_values_of(one);
      if (!found.nan && !found.positive) continue;
      origin.given = what;
      origin.value = found.words();
      if (one.dim() == 0 || one.size(0) != rows) return true;
      std::int64_t bad = 0;
      for (std::int64_t row = 0; row < rows; ++row) {
        nonfinite_values const of_row = nonfinite_values_of(one.select(0, row));
        if (!of_row.nan && !of_row.positive) continue;
        if (++bad <= max_rows) origin.rows.push_back(row);
      }
      origin.every_row = bad == rows && rows > 1;
      if (origin.every_row) origin.rows.clear();
      return true;
    }
    return false;
  };
  if (look(contents.inputs, "an input of the batch") || look(contents.labels, "a label of the batch")) return true;
  origin.given = "a tensor captured by the loss function";
  return false;
}

}  // namespace keel::detail::inline KEEL_MODE

namespace keel::inline KEEL_MODE {

KEEL_BODY nonfinite_origin update_trace::origin_of_buffer(update_inputs const& kept, std::string const& name) {
  nonfinite_origin origin;
  origin.place = nonfinite_place::buffer;
  origin.parameter = name;
  at::NoGradGuard const no_grad;
  double largest = -1.0;
  try {
    for (std::size_t index = 0; index < kept.micro_batches.size(); ++index) {
      auto const& batch = *kept.micro_batches[index].batch;
      for (at::Tensor const& one : batch.contents().inputs) {
        bool const has_rows = one.defined() && one.dim() > 0 && one.size(0) == batch.rows() && one.numel() > 0;
        if (!has_rows || !one.is_floating_point() || one.layout() != at::kStrided) continue;
        auto const [value, row] = one.detach().reshape({one.size(0), -1}).abs().amax(1).max(0);
        if (!(value.item<double>() > largest)) continue;
        largest = value.item<double>();
        origin.micro_batch = static_cast<std::int64_t>(index);
        origin.rows = {row.item<std::int64_t>()};
      }
    }
  } catch (std::exception const&) {
    // The dtype lacks an operator, or memory ran out: report only the buffer's name.
  }
  if (largest >= 0.0) origin.value = c10::str(largest);
  return origin;
}

KEEL_BODY nonfinite_origin update_trace::run_again(update_inputs const& kept, forward_pass const& forward,
                                                   replay_settings const& settings, traced_update& to) {
  state_restorer const scope(model_, others_, parameters_, settings.program);
  auto gradients = keel::begin_update(parameters_.tensors, settings.scale, at::Tensor());
  detail::loss_accumulator sum;
  std::optional<nonfinite_origin> found;
  for (std::size_t index = 0; index < kept.micro_batches.size() && !found; ++index) {
    update_inputs::entry const& one = kept.micro_batches[index];
    one.random.restore();
    std::vector<field_copies> const program =
        settings.program != nullptr ? settings.program->capture() : std::vector<field_copies>();
    std::int64_t const rows = one.batch->rows();
    std::int64_t const granularity = one.batch->granularity();
    auto const run = [&](std::int64_t begin, std::int64_t end) {
      if (found) return;
      operation_watch watch(model_, parameters_);
      weighted_loss loss;
      watch.look_at([&] {
        loss = forward(*one.batch, begin, end, watch.units());
        // As in the update: the mean over nothing but padding may be NaN or have no graph.
        if (loss.weight == 0.0) return;
        double const value = host_value(loss.mean);
        sum.add(value, loss.weight);
        to.losses.push_back(value);
        if (std::isfinite(value)) gradients.add(loss.mean, loss.weight);
      });
      if (loss.weight == 0.0) return;
      found = watch.origin_of(loss.mean);
      if (!found) found = watch.origin_of_gradients();
      if (!found) return;
      to.gradients = detail::checksum_of_gradients(parameters_);
      found->micro_batch = static_cast<std::int64_t>(index);
      bool const adds_up = found->operation.find("AccumulateGrad") != std::string::npos;
      if (found->place == nonfinite_place::backward && adds_up) {
        found->place = nonfinite_place::sum;
        return;
      }
      if (found->place == nonfinite_place::batch && detail::find_in_contents(one.batch->contents(), rows, *found)) return;
      find_rows(one, begin, end, forward, settings, program, *found);
    };
    if (granularity == 0) {
      run(0, rows);
    } else if (settings.without_rows.empty()) {
      detail::for_each_range(rows, settings.pieces, granularity, run);
    } else {
      std::int64_t begin = 0;
      for (std::int64_t const row : settings.without_rows) {
        if (row > begin && row <= rows) run(begin, row);
        begin = row + 1;
      }
      if (begin < rows) run(begin, rows);
    }
  }
  if (found) return *found;
  to.gradients = detail::checksum_of_gradients(parameters_);
  nonfinite_origin whole;
  whole.place = nonfinite_place::sum;
  if (to.losses.empty()) {
    whole.place = nonfinite_place::unknown;
    whole.detail = "without_rows omits every row";
    return whole;
  }
  if (!std::isfinite(sum.mean())) return whole;
  auto result = std::move(gradients).complete().unscale().check();
  auto const* const checked = std::get_if<keel::gradients<stage::checked>>(&result);
  if (checked == nullptr || !std::isfinite(checked->norm())) return whole;
  whole.place = nonfinite_place::transient;
  return whole;
}

KEEL_BODY void update_trace::find_rows(update_inputs::entry const& at, std::int64_t begin, std::int64_t end,
                                       forward_pass const& forward, replay_settings const& settings,
                                       std::vector<field_copies> const& program, nonfinite_origin& origin) const {
  std::int64_t const granularity = at.batch->granularity();
  if (granularity == 0 || end - begin <= granularity) {
    if (end - begin == 1) origin.rows = {begin};
    return;
  }
  constexpr auto max_rows = static_cast<std::size_t>(detail::max_rows);
  bool const is_forward = origin.place != nonfinite_place::backward;
  auto const is_bad = [&](std::int64_t first, std::int64_t last) {
    if (settings.program != nullptr) settings.program->restore(program);
    at.random.restore();
    clear_gradients(parameters_.tensors);
    weighted_loss const loss = forward(*at.batch, first, last, nullptr);
    if (!loss.mean.defined() || loss.weight == 0.0) return false;
    if (!std::isfinite(host_value(loss.mean))) return true;
    if (is_forward || !loss.mean.requires_grad()) return false;
    auto gradients = keel::begin_update(parameters_.tensors, settings.scale, at::Tensor());
    gradients.add(loss.mean, loss.weight);
    return std::any_of(parameters_.tensors.begin(), parameters_.tensors.end(),
                       [](at::Tensor const& one) { return nonfinite_values_of(one.grad()).any(); });
  };
  std::vector<std::int64_t> bad;
  std::function<void(std::int64_t, std::int64_t)> const split = [&](std::int64_t first, std::int64_t last) {
    if (bad.size() >= max_rows) return;
    std::int64_t const units = (last - first) / granularity;
    if (units <= 1) {
      for (std::int64_t row = first; row < last; ++row) bad.push_back(row);
      return;
    }
    std::int64_t const middle = first + units / 2 * granularity;
    if (is_bad(first, middle)) split(first, middle);
    if (bad.size() < max_rows && is_bad(middle, last)) split(middle, last);
  };
  try {
    split(begin, end);
    std::int64_t const unit = granularity;
    bool const is_all = static_cast<std::int64_t>(bad.size()) == end - begin ||
                        (bad.size() >= max_rows && is_bad(end - unit, end) &&
                         is_bad(begin + (end - begin) / unit / 2 * unit, begin + (end - begin) / unit / 2 * unit + unit));
    if (is_all && at.batch->rows() > granularity) {
      origin.every_row = true;
    } else {
      if (bad.size() > max_rows) bad.resize(max_rows);
      if (bad.empty()) origin.detail = "each half of the batch is finite by itself";
      origin.rows = std::move(bad);
    }
  } catch (std::exception const& thrown) {
    // For example, batch norm rejects a single row. Keep the origin found so far.
    origin.detail = "its rows could not be tested separately: " + first_line(thrown);
  }
}

}  // namespace keel::inline KEEL_MODE

#include <keel/libtorch/detail/body_end.inc>
