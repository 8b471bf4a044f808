// Draws a recorded profile as SVG to embed in a page: a lane of phases, and the operations of each thread below it, nested ones lower. The
// trace itself opens in Perfetto.
#pragma once

#include <keel/libtorch/mode.hpp>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

namespace keel::inline KEEL_MODE {

/// Returns SVG of a trace in the Trace Event Format; empty if the trace has no operations. Omits operations that are too short to draw, and
/// those nested deeper than eight levels.
std::string trace_figure(std::string_view title, nlohmann::json const& trace);

}  // namespace keel::inline KEEL_MODE

#ifndef KEEL_COMPILED
#include <keel/diagnose/trace_figure.ipp>
#endif
