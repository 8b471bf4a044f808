// A recorded profile as a figure that stands in a page: a lane of phases, and under it what each thread runs, the inner operations below
// the outer ones. For a first look without another program; the trace itself opens in Perfetto.
#pragma once

#include <keel/libtorch/mode.hpp>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

namespace keel::inline KEEL_MODE {

/// SVG of a trace in the Trace Event Format, as profiles have it. Operations that are too short for the width are left out, as those are
/// that lie deeper than eight others. Empty where the trace has none.
std::string trace_figure(std::string_view title, nlohmann::json const& trace);

}  // namespace keel::inline KEEL_MODE

#ifndef KEEL_COMPILED
#include <keel/diagnose/trace_figure.ipp>
#endif
