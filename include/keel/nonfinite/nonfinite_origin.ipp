// Definitions for nonfinite_origin.hpp.
#pragma once

#include <keel/nonfinite/nonfinite_origin.hpp>
#include <nlohmann/json.hpp>

#include <keel/libtorch/detail/body_begin.inc>

namespace keel::inline KEEL_MODE {

KEEL_BODY char const* to_string(nonfinite_place which) {
  constexpr char const* names[] = {"parameter", "optimizer_state", "buffer", "batch", "forward", "backward",
                                   "sum",       "transient",       "unknown"};
  return names[static_cast<int>(which)];
}

KEEL_BODY std::string to_sentence(nonfinite_origin const& origin) {
  std::string const value = origin.value.empty() ? "" : ", " + origin.value + ",";
  std::string const first = "the first value that is not finite" + value;
  std::string words;
  switch (origin.place) {
    case nonfinite_place::parameter:
      return "the parameter " + origin.parameter + " was not finite before the update began";
    case nonfinite_place::optimizer_state:
      return "the optimizer's state " + origin.parameter + " was not finite before the update began, and the parameter took it";
    case nonfinite_place::buffer:
      if (origin.micro_batch >= 0)
        return "the forward pass made " + (origin.parameter.empty() ? "a buffer" : "the buffer " + origin.parameter) +
               " non-finite from a batch that is finite; its largest number, " + origin.value + ", is in micro-batch " +
               std::to_string(origin.micro_batch) + ", row " + std::to_string(origin.rows.front());
      if (origin.value.empty()) return "the forward pass made the buffer " + origin.parameter + " non-finite";
      return "the buffer " + origin.parameter + " was not finite before the update began";
    case nonfinite_place::sum:
      return "every operation is finite, and the sum of the gradients or their norm is not";
    case nonfinite_place::transient:
      return "the same update is finite when it runs again: suspect the device, another thread, or state of the loss function "
             "that is not registered";
    case nonfinite_place::unknown:
      return "where it began is not known: " + origin.detail;
    case nonfinite_place::batch:
      words = first + " is in " + (origin.given.empty() ? "what the forward pass was given" : origin.given);
      if (!origin.operation.empty()) words += ", which " + origin.operation + " takes";
      break;
    case nonfinite_place::forward:
      words = first + " came from " + origin.operation;
      break;
    case nonfinite_place::backward:
      words = first + " came from " + origin.operation + " in the backward pass";
      if (!origin.forward_operation.empty()) words += ", of " + origin.forward_operation;
      break;
  }
  if (!origin.kernel.empty()) words += " (" + origin.kernel + ")";
  if (!origin.unit.empty()) words += " in unit " + origin.unit;
  if (!origin.parameter.empty()) words += ", after the parameter " + origin.parameter;
  if (origin.micro_batch >= 0) words += ", in micro-batch " + std::to_string(origin.micro_batch);
  if (origin.every_row) {
    words += ", in every row";
  } else if (!origin.rows.empty()) {
    words += origin.rows.size() == 1 ? ", row " : ", rows ";
    for (std::size_t i = 0; i < origin.rows.size(); ++i) words += (i == 0 ? "" : ", ") + std::to_string(origin.rows[i]);
  }
  if (!origin.detail.empty()) words += " (" + origin.detail + ")";
  return words;
}

KEEL_BODY nlohmann::ordered_json to_json(nonfinite_origin const& origin) {
  nlohmann::ordered_json object;
  object["place"] = to_string(origin.place);
  auto const text = [&](char const* key, std::string const& value) {
    if (!value.empty()) object[key] = value;
  };
  text("value", origin.value);
  text("operation", origin.operation);
  text("kernel", origin.kernel);
  text("forward_operation", origin.forward_operation);
  text("unit", origin.unit);
  text("parameter", origin.parameter);
  text("given", origin.given);
  if (origin.micro_batch >= 0) object["micro_batch"] = origin.micro_batch;
  if (!origin.rows.empty()) object["rows"] = origin.rows;
  if (origin.every_row) object["every_row"] = true;
  text("detail", origin.detail);
  return object;
}

}  // namespace keel::inline KEEL_MODE

#include <keel/libtorch/detail/body_end.inc>
