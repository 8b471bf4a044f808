// The origin of a non-finite value, as fields and as a sentence.
#pragma once

#include <cstdint>
#include <keel/libtorch/mode.hpp>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace keel::inline KEEL_MODE {

/// The place at which the value first occurred. Places are checked in this order.
enum class nonfinite_place : unsigned char {
  parameter,        ///< in a parameter before the update began
  optimizer_state,  ///< in the optimizer's state before the update began
  buffer,           ///< in a buffer of the model before the update began
  batch,            ///< in the inputs of the forward pass
  forward,          ///< in an operation of the forward pass, including the loss function
  backward,         ///< in a function of the backward pass
  sum,              ///< all operations are finite; the sum of gradients or their norm overflowed
  transient,        ///< the same update was finite when it was repeated
  unknown           ///< the update could not be repeated; `detail` gives the reason
};
/// Returns the name of the place in the record.
char const* to_string(nonfinite_place which);

/// The origin of the first non-finite value.
struct nonfinite_origin {
  nonfinite_place place = nonfinite_place::unknown;  ///< the place
  std::string value;      ///< "nan", "inf" or "-inf"; for a buffer that the update made non-finite, the batch's largest number
  std::string operation;  ///< the operation that the program called, "aten::log"; in a backward pass autograd's, "LogBackward0"
  std::string kernel;     ///< the nested operation that made the value, if it is a different one
  std::string forward_operation;   ///< the operation that a backward function belongs to, if known
  std::string unit;                ///< the keel::unit in which it happened; empty if outside of every unit
  std::string parameter;           ///< the last one used before; for the first three places the tensor that is not finite
  std::string given;               ///< for the place `batch`: the tensor that contains it
  std::int64_t micro_batch = -1;   ///< index within the update, from 0; -1 if it belongs to none
  std::vector<std::int64_t> rows;  ///< rows of the micro-batch that cause the value on their own, at most 8; empty if unknown
  bool every_row = false;          ///< true if every row does
  std::string detail;              ///< the reason if no more is known
};

/// Returns "the first value that is not finite, -inf, came from aten::log in unit blocks.1, after the parameter ..".
std::string to_sentence(nonfinite_origin const& origin);

/// Returns an object of the known fields.
nlohmann::ordered_json to_json(nonfinite_origin const& origin);

}  // namespace keel::inline KEEL_MODE

#ifndef KEEL_COMPILED
#include <keel/nonfinite/nonfinite_origin.ipp>
#endif
