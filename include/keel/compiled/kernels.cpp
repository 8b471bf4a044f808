// Compiled definitions that loop over the elements of tensors: the only ones that depend on compiler optimization for speed.
#include <keel/libtorch/ivalue_first.hpp>

#include <keel/gradients/gradient_norm.ipp>
#include <keel/libtorch/ivalue_first.hpp>
#include <keel/metrics/histogram.ipp>
#include <keel/optimizer/adam.ipp>
#include <keel/optimizer/first_states.ipp>
#include <keel/optimizer/sgd.ipp>

namespace keel::detail {

template class adam_engine<torch::optim::Adam>;
template class adam_engine<torch::optim::AdamW>;

}  // namespace keel::detail
