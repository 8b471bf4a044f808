// Definitions for operation_watch.hpp.
#pragma once

#include <keel/libtorch/ivalue_first.hpp>

#include <ATen/SequenceNumber.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>
#include <keel/nonfinite/operation_watch.hpp>
#include <limits>
#include <string_view>

#include <keel/libtorch/detail/body_begin.inc>

namespace keel::detail::inline KEEL_MODE {

/// Calls `use` with each tensor of an operation's argument or result.
template <class Use>
void for_each_tensor(c10::IValue const& value, Use const& use) {
  if (value.isTensor()) {
    use(value.toTensor());
  } else if (value.isTensorList()) {
    for (at::Tensor const& one : value.toTensorVector()) use(one);
  } else if (value.isList()) {
    for (c10::IValue const& one : value.toListRef()) {
      if (one.isTensor()) use(one.toTensor());
    }
  }
}

/// Returns true for operations whose result is uninitialized.
KEEL_BODY bool leaves_memory_unset(std::string_view name) {
  return name.starts_with("aten::empty") || name.starts_with("aten::new_empty") || name.starts_with("aten::resize_") ||
         name == "aten::set_";
}

/// Returns true for softmax operations, which return NaN for a fully masked row, however the mask was built.
KEEL_BODY bool is_softmax(std::string_view name) {
  return name.find("softmax") != std::string_view::npos && name.find("backward") == std::string_view::npos;
}

/// Returns the name of a backward function, such as "LogBackward0", without a prefix that the engine adds.
KEEL_BODY std::string name_of_backward_function(std::string_view name) {
  auto const colon = name.rfind(": ");
  return std::string(colon == std::string_view::npos ? name : name.substr(colon + 2));
}

KEEL_BODY c10::StorageImpl const* storage_of(at::Tensor const& tensor) {
  return tensor.defined() && tensor.has_storage() ? tensor.storage().unsafeGetStorageImpl() : nullptr;
}

}  // namespace keel::detail::inline KEEL_MODE

namespace keel::inline KEEL_MODE {

KEEL_BODY operation_watch::operation_watch(torch::nn::Module& model, parameter_list const& parameters)
    : model_(model), parameters_(parameters) {
  for (std::size_t i = 0; i < parameters.tensors.size(); ++i)
    parameter_of_.emplace(parameters.tensors[i].unsafeGetTensorImpl(), i);
}

KEEL_BODY void operation_watch::look_at(std::function<void()> const& pass) {
  operation_observer::scope const observed(*this, {.inputs = true, .outputs = true, .backward_functions = true});
  pass();
}

KEEL_BODY std::string operation_watch::name_of(void const* module) {
  if (modules_.empty()) {
    // The model itself is excluded because a shared pointer need not own it.
    for (auto const& item : model_.named_modules("", /*include_self=*/false))
      modules_.emplace_back(item.value().get(), item.key());
    modules_.emplace_back(&model_, "model");
  }
  auto const found = std::find_if(modules_.begin(), modules_.end(), [&](auto const& one) { return one.first == module; });
  if (module == nullptr || found == modules_.end()) return "unit." + std::to_string(functions_++);
  return found->second;
}

KEEL_BODY void operation_watch::begin_unit(void const* module) {
  std::lock_guard<std::mutex> const lock(mutex_);
  open_units_.push_back(units_.size());
  units_.push_back({name_of(module), at::sequence_number::peek(), std::numeric_limits<std::uint64_t>::max()});
}

KEEL_BODY void operation_watch::end_unit() {
  std::lock_guard<std::mutex> const lock(mutex_);
  if (open_units_.empty()) return;
  units_[open_units_.back()].end = at::sequence_number::peek();
  open_units_.pop_back();
}

/// In a backward pass, returns the location at which the current node was created.
KEEL_BODY operation_watch::location operation_watch::where(std::vector<frame> const& frames) const {
  auto const node = std::find_if(frames.begin(), frames.end(), [](frame const& one) { return one.is_backward_function; });
  if (node == frames.end()) return {open_units_.empty() ? "" : units_[open_units_.back()].name, last_parameter_};
  location found;
  // Units are in order of their start, so the last match is the innermost one.
  for (unit_range const& unit : units_) {
    if (node->sequence >= 0 && static_cast<std::uint64_t>(node->sequence) >= unit.begin &&
        static_cast<std::uint64_t>(node->sequence) < unit.end)
      found.unit = unit.name;
  }
  auto const after = forward_.upper_bound(node->sequence);
  if (after != forward_.begin()) found.parameter = std::prev(after)->second.parameter;
  return found;
}

KEEL_BODY std::unique_ptr<at::ObserverContext> operation_watch::began(at::RecordFunction const& operation) {
  auto context = std::make_unique<begun>();
  bool const is_backward_function = operation.scope() == at::RecordScope::BACKWARD_FUNCTION;
  {
    std::lock_guard<std::mutex> const lock(mutex_);
    auto& frames = frames_[at::RecordFunction::currentThreadId()];
    bool const is_forward =
        std::none_of(frames.begin(), frames.end(), [](frame const& one) { return one.is_backward_function; });
    frames.push_back({is_backward_function ? detail::name_of_backward_function(operation.name()) : operation.name(),
                      operation.seqNr(), is_backward_function});
    if (is_backward_function) return context;
    if (is_forward) {
      for (c10::IValue const& input : inputs_of(operation)) {
        detail::for_each_tensor(input, [&](at::Tensor const& one) {
          auto const parameter = parameter_of_.find(one.defined() ? one.unsafeGetTensorImpl() : nullptr);
          if (parameter != parameter_of_.end()) last_parameter_ = parameters_.names[parameter->second];
        });
      }
    }
    // An operation creates a node only if gradients are recorded.
    if (operation.seqNr() >= 0 && at::GradMode::is_enabled())
      forward_.try_emplace(operation.seqNr(), forward_operation{operation.name(), last_parameter_});
  }
  try {
    for (c10::IValue const& input : inputs_of(operation)) {
      detail::for_each_tensor(input, [&](at::Tensor const& one) { look_at_input(one, *context); });
      context->is_meant |= input.isDouble() && std::isinf(input.toDouble());
    }
  } catch (std::exception const&) {
    // A tensor that cannot be inspected, or out of memory: the input counts as finite.
  }
  return context;
}

KEEL_BODY void operation_watch::look_at_input(at::Tensor const& input, begun& context) {
  nonfinite_values const values = nonfinite_values_of(input);
  if (!values.any()) return;
  auto const* const storage = detail::storage_of(input);
  std::lock_guard<std::mutex> const lock(mutex_);
  auto const made = made_by_.find(storage);
  context.inputs.push_back({values, made == made_by_.end() ? std::nullopt : std::optional(made->second), storage});
}

KEEL_BODY void operation_watch::ended(at::RecordFunction const& operation, at::ObserverContext& context) {
  auto const& begun_with = static_cast<begun&>(context);
  try {
    if (operation.scope() != at::RecordScope::BACKWARD_FUNCTION && !detail::leaves_memory_unset(operation.name())) {
      for (c10::IValue const& output : operation.outputs())
        detail::for_each_tensor(output, [&](at::Tensor const& one) { look_at_output(one, begun_with, operation.name()); });
    }
  } catch (std::exception const&) {
    // As for inputs.
  }
  std::lock_guard<std::mutex> const lock(mutex_);
  auto& frames = frames_[at::RecordFunction::currentThreadId()];
  if (!frames.empty()) frames.pop_back();
}

KEEL_BODY void operation_watch::look_at_output(at::Tensor const& output, begun const& context, std::string_view name) {
  nonfinite_values const values = nonfinite_values_of(output);
  if (!values.any()) return;
  auto const* const storage = detail::storage_of(output);
  bool const writes_in_place = name.ends_with('_');
  bool const aliases =
      std::any_of(context.inputs.begin(), context.inputs.end(), [&](bad_input const& one) { return one.storage == storage; });
  // A view of a tensor that was already non-finite.
  if (aliases && !writes_in_place) return;
  std::lock_guard<std::mutex> const lock(mutex_);
  findings_.push_back(make_finding(values, context, aliases, storage));
  made_by_[storage] = findings_.size() - 1;
  addresses_.push_back(output.storage().getWeakStorageImpl());
}

KEEL_BODY operation_watch::finding operation_watch::make_finding(nonfinite_values values, begun const& context, bool overwrites,
                                                                 c10::StorageImpl const* storage) {
  auto const& frames = frames_[at::RecordFunction::currentThreadId()];
  auto node = std::find_if(frames.rbegin(), frames.rend(), [](frame const& one) { return one.is_backward_function; });
  finding made;
  made.is_backward = node != frames.rend();
  auto const first_call = made.is_backward ? node.base() : frames.begin();
  made.operation = made.is_backward ? node->name : first_call->name;
  if (!frames.empty() && frames.back().name != made.operation) made.kernel = frames.back().name;
  if (made.is_backward) {
    auto const forward = forward_.find(node->sequence);
    if (forward != forward_.end()) made.forward_operation = forward->second.name;
  }
  made.where = where(frames);
  made.values = values;
  for (bad_input const& input : context.inputs) {
    // The previous contents were uninitialized memory, so they are not the cause.
    if (overwrites && input.storage == storage && !input.made_by) continue;
    made.inputs.push_back(input);
  }
  // A result computed only from intended infinities is intended too, such as a mask after where() or a product.
  bool const of_meant = !made.inputs.empty() && std::all_of(made.inputs.begin(), made.inputs.end(), [&](bad_input const& one) {
    return one.made_by && findings_[*one.made_by].is_meant;
  });
  made.is_meant = (context.is_meant || of_meant) && !values.nan;
  return made;
}

KEEL_BODY std::size_t operation_watch::cause_of(std::size_t index, bool& is_given) const {
  is_given = false;
  for (;;) {
    finding const& found = findings_[index];
    bool const makes_nan = found.values.nan && std::none_of(found.inputs.begin(), found.inputs.end(),
                                                            [](auto const& one) { return one.values.nan; });
    // All elements of a row are masked.
    if (makes_nan && detail::is_softmax(found.kernel.empty() ? found.operation : found.kernel)) return index;
    std::optional<std::size_t> before;
    bool began_here = false;
    for (bad_input const& input : found.inputs) {
      if (found.values.nan && !makes_nan && !input.values.nan) continue;
      began_here |= !input.made_by;
      // A nested operation may have made the value; later operations cannot be the cause.
      if (input.made_by && *input.made_by < index) before = std::min(before.value_or(index), *input.made_by);
    }
    if (began_here) {
      is_given = true;
      return index;
    }
    if (!before) return index;
    // An intended infinity becomes a NaN here.
    if (makes_nan && findings_[*before].is_meant) return index;
    index = *before;
  }
}

KEEL_BODY nonfinite_origin operation_watch::origin_of_finding(std::size_t index) const {
  bool is_given = false;
  finding const& found = findings_[cause_of(index, is_given)];
  nonfinite_origin origin;
  origin.place = is_given ? nonfinite_place::batch : found.is_backward ? nonfinite_place::backward : nonfinite_place::forward;
  origin.value = found.values.words();
  origin.operation = found.operation;
  origin.kernel = found.kernel;
  origin.forward_operation = found.forward_operation;
  origin.unit = found.where.unit;
  origin.parameter = found.where.parameter;
  return origin;
}

KEEL_BODY std::optional<std::size_t> operation_watch::made(at::Tensor const& tensor) const {
  auto const found = made_by_.find(detail::storage_of(tensor));
  return found == made_by_.end() ? std::nullopt : std::optional(found->second);
}

KEEL_BODY bool operation_watch::found_any() const {
  std::lock_guard const lock(mutex_);
  return std::any_of(findings_.begin(), findings_.end(),
                     [](finding const& one) { return one.values.nan || (one.values.positive && !one.is_meant); });
}

KEEL_BODY std::optional<nonfinite_origin> operation_watch::origin_of(at::Tensor const& value) const {
  nonfinite_values const values = nonfinite_values_of(value);
  if (!values.any()) return std::nullopt;
  std::lock_guard<std::mutex> const lock(mutex_);
  if (auto const last = made(value)) return origin_of_finding(*last);
  if (!findings_.empty()) return origin_of_finding(findings_.size() - 1);
  nonfinite_origin unseen;
  unseen.value = values.words();
  unseen.detail = "no operation of LibTorch made it";
  return unseen;
}

KEEL_BODY std::optional<nonfinite_origin> operation_watch::origin_of_gradients() const {
  std::optional<std::size_t> first;
  std::optional<nonfinite_values> values;
  for (at::Tensor const& parameter : parameters_.tensors) {
    at::Tensor const& gradient = parameter.grad();
    nonfinite_values const found = nonfinite_values_of(gradient);
    if (!found.any()) continue;
    if (!values) values = found;
    std::lock_guard<std::mutex> const lock(mutex_);
    bool is_given = false;
    if (auto const last = made(gradient)) first = std::min(first.value_or(findings_.size()), cause_of(*last, is_given));
  }
  if (!values) return std::nullopt;
  std::lock_guard<std::mutex> const lock(mutex_);
  if (!first) {
    auto const of_backward =
        std::find_if(findings_.begin(), findings_.end(), [](finding const& one) { return one.is_backward && !one.is_meant; });
    if (of_backward != findings_.end()) first = static_cast<std::size_t>(of_backward - findings_.begin());
  }
  if (first) return origin_of_finding(*first);
  nonfinite_origin unseen;
  unseen.value = values->words();
  unseen.detail = "no operation of LibTorch made it";
  return unseen;
}

}  // namespace keel::inline KEEL_MODE

#include <keel/libtorch/detail/body_end.inc>
