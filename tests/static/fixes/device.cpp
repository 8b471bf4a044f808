// X: the kind of device.
#include "typed.hpp"

namespace fixed {

inline constexpr keel::run_facts on_a_gpu{.device = keel::device::kind::cuda};

template <>
inline constexpr auto fixes<rule::X10> = said(FIX_IN_RUN("model->to(device)", on_a_gpu, keel::device::cuda),
                                              FIX_IN_RUN("keel::device::any", on_a_gpu, keel::device::any));

template struct each_followed<rule::device_rules>;

}  // namespace fixed
