// Definitions for any_micro_batch.hpp.
#pragma once

#include <keel/step/any_micro_batch.hpp>

#include <keel/libtorch/detail/body_begin.inc>

namespace keel::detail::inline KEEL_MODE {

KEEL_BODY std::vector<tensor_mark> marks_of(batch_contents const& contents) {
  std::vector<tensor_mark> marks;
  marks.reserve(contents.inputs.size() + contents.labels.size());
  for (at::Tensor const& one : contents.inputs) marks.emplace_back(one);
  for (at::Tensor const& one : contents.labels) marks.emplace_back(one);
  return marks;
}

}  // namespace keel::detail::inline KEEL_MODE

namespace keel::inline KEEL_MODE {

KEEL_BODY void any_micro_batch::mark() { marks_ = detail::marks_of(contents()); }

KEEL_BODY bool any_micro_batch::was_changed() const { return !marks_.empty() && !(marks_ == detail::marks_of(contents())); }

}  // namespace keel::inline KEEL_MODE

#include <keel/libtorch/detail/body_end.inc>
