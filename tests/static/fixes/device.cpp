// X: captured graphs, and the kind of device.
#include "typed.hpp"

namespace data = keel::data;
using captured = keel::device::cuda_with<keel::device::graph_captured>;
using halving = keel::oom::ladder<keel::oom::halve_micro_batch, keel::oom::give_up>;

namespace fixed {

inline constexpr keel::run_facts on_a_gpu{.device = keel::device::kind::cuda};

template <>
inline constexpr auto fixes<rule::X03> = said(FIX("keel::device::cuda", keel::device::cuda, data::is<data::ragged, data::token_weighted>),
                                              FIX("keel::device::cuda", keel::device::cuda, halving),
                                              FIX("padded data and no rung that halves", captured),
                                              FIX("shortens", captured, keel::oom::raise));
template <>
inline constexpr auto fixes<rule::X10> = said(FIX_IN_RUN("model->to(device)", on_a_gpu, keel::device::cuda),
                                              FIX_IN_RUN("keel::device::any", on_a_gpu, keel::device::any));

template struct each_followed<rule::device_rules>;

}  // namespace fixed
