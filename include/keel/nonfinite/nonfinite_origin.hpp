// Where a value that is not finite came from, in fields for a program and in a sentence for a person.
#pragma once

#include <cstdint>
#include <keel/libtorch/mode.hpp>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace keel::inline KEEL_MODE {

/// Where it was first. What is asked first comes first.
enum class nonfinite_place : unsigned char {
  parameter,        ///< in a parameter before the update began
  optimizer_state,  ///< in the optimizer's state before the update began
  buffer,           ///< in a buffer of the model before the update began
  batch,            ///< in what the forward pass was given
  forward,          ///< an operation of the forward pass, the loss function included
  backward,         ///< a function of the backward pass
  sum,              ///< each operation is finite; what overflowed is the sum of gradients or their norm
  transient,        ///< the same update is finite the second time
  unknown           ///< the update could not run again, as `detail` says
};
/// The name of the place, as records have it.
char const* to_string(nonfinite_place which);

/// Where the first value that is not finite came from.
struct nonfinite_origin {
  nonfinite_place place = nonfinite_place::unknown;  ///< where it was found
  std::string value;      ///< "nan", "inf" or "-inf"; of a buffer that the update made non-finite the batch's largest number
  std::string operation;  ///< as the program calls it, "aten::log"; in a backward pass autograd's, "LogBackward0"
  std::string kernel;     ///< the operation inside that one which made the value, where it is another
  std::string forward_operation;   ///< that a backward function belongs to, where it is known
  std::string unit;                ///< the keel::unit in which it happened; empty: outside of every unit
  std::string parameter;           ///< the last that was used before; of the first three places the tensor that is not finite
  std::string given;               ///< of the place `batch`: which tensor it is in
  std::int64_t micro_batch = -1;   ///< of the update, from 0; -1: no one's
  std::vector<std::int64_t> rows;  ///< of the micro-batch, each of which is enough alone, at most 8; empty: not known
  bool every_row = false;          ///< all of its rows are so
  std::string detail;              ///< why no more is known
};

/// "the first value that is not finite, -inf, came from aten::log in unit blocks.1, after the parameter ..".
std::string to_sentence(nonfinite_origin const& origin);

/// An object of what is known.
nlohmann::ordered_json to_json(nonfinite_origin const& origin);

}  // namespace keel::inline KEEL_MODE

#ifndef KEEL_COMPILED
#include <keel/nonfinite/nonfinite_origin.ipp>
#endif
