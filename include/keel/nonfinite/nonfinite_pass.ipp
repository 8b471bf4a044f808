// Definitions for nonfinite_pass.hpp.
#pragma once

#include <keel/libtorch/ivalue_first.hpp>

#include <c10/util/Exception.h>

#include <keel/nonfinite/nonfinite_pass.hpp>
#include <keel/nonfinite/operation_watch.hpp>

#include <keel/libtorch/detail/body_begin.inc>

namespace keel::inline KEEL_MODE {

KEEL_BODY bool makes_nonfinite_values(torch::nn::Module& model, parameter_list const& parameters,
                                      std::function<void(unit_listener*)> const& pass) {
  operation_watch watch(model, parameters);
  try {
    watch.look_at([&] { pass(watch.units()); });
  } catch (c10::Error const&) {
    // Only the values before the exception matter.
  }
  return watch.found_any();
}

}  // namespace keel::inline KEEL_MODE

#include <keel/libtorch/detail/body_end.inc>
