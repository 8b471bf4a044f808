// Sources of batches: any input range, a LibTorch data loader, or a function of the epoch that returns either. To shuffle, use
// a function: its order can depend on the epoch, so that a resumed run repeats it.
#pragma once

#include <concepts>
#include <cstdint>
#include <functional>
#include <keel/libtorch/mode.hpp>
#include <keel/policy/data.hpp>
#include <keel/policy/facts.hpp>
#include <range/v3/iterator/operations.hpp>
#include <range/v3/range/access.hpp>
#include <range/v3/range/concepts.hpp>
#include <type_traits>
#include <utility>

namespace keel::inline KEEL_MODE {

/// A LibTorch data loader. Its iterators have no post-increment and model no standard iterator concept.
template <class Loader>
concept data_loader = !ranges::input_range<Loader&> && requires(Loader& loader) {
  *loader.begin();
  ++std::declval<decltype(loader.begin())&>();
  { loader.begin() != loader.end() } -> std::convertible_to<bool>;
};

/// A range of batches. Each element is one micro-batch.
template <class Range>
concept batch_range = ranges::input_range<Range&> || data_loader<Range>;

/// A valid return type of a function of the epoch: a range, a loader, or LibTorch's pointer to a loader.
template <class Result>
concept epoch_range = batch_range<std::remove_reference_t<Result>> ||
                      requires(Result result) { requires data_loader<std::remove_reference_t<decltype(*result)>>; };

/// A function of the epoch (from 0) that returns a range of batches.
template <class Source>
concept epoch_function = std::invocable<Source&, std::int64_t> && epoch_range<std::invoke_result_t<Source&, std::int64_t>>;

/// A function of the epoch and the position in it. The returned range starts at that position, so a resume reads no batch
/// twice.
template <class Source>
concept positioned_function = std::invocable<Source&, std::int64_t, std::int64_t> &&
                              epoch_range<std::invoke_result_t<Source&, std::int64_t, std::int64_t>>;

/// A source of batches for trainer::fit.
template <class Source>
concept batch_source = batch_range<Source> || epoch_function<Source> || positioned_function<Source>;

}  // namespace keel::inline KEEL_MODE

namespace keel::detail::inline KEEL_MODE {

/// True if the source can be iterated more than once.
template <class Source>
inline constexpr bool is_repeatable =
    epoch_function<Source> || positioned_function<Source> || data_loader<Source> || ranges::forward_range<Source&>;

/// Collects the data facts that the source's type, or the type that it returns, declares.
template <class Source>
constexpr data::settings source_facts() {
  data::settings known = facts<slot::data, Source>();
  if constexpr (positioned_function<Source>) {
    known = known | facts<slot::data, std::remove_cvref_t<std::invoke_result_t<Source&, std::int64_t, std::int64_t>>>();
  } else if constexpr (epoch_function<Source>) {
    known = known | facts<slot::data, std::remove_cvref_t<std::invoke_result_t<Source&, std::int64_t>>>();
  }
  known.single_pass |= !is_repeatable<Source>;
  return known;
}

/// Calls `use(iterator, sentinel)` with one epoch of the source. A positioned_function starts at `position`; other sources
/// ignore it.
template <class Source, class Use>
auto with_epoch(Source& source, std::int64_t epoch, Use&& use, std::int64_t position = 0) {
  if constexpr (epoch_function<Source> || positioned_function<Source>) {
    auto&& range = [&]() -> decltype(auto) {
      if constexpr (positioned_function<Source>) {
        return source(epoch, position);
      } else {
        return source(epoch);
      }
    }();
    if constexpr (batch_range<std::remove_reference_t<decltype(range)>>) {
      return with_epoch(range, epoch, std::forward<Use>(use));
    } else {
      return with_epoch(*range, epoch, std::forward<Use>(use));
    }
  } else if constexpr (ranges::input_range<Source&>) {
    return use(ranges::begin(source), ranges::end(source));
  } else {
    return use(source.begin(), source.end());
  }
}

struct element_type {
  template <class Iterator, class Sentinel>
  auto operator()(Iterator at, Sentinel const&) const {
    return std::type_identity<std::remove_cvref_t<decltype(*at)>>();
  }
};
/// The type of the batches that a source yields.
template <class Source>
using batch_of = typename decltype(with_epoch(std::declval<Source&>(), 0, element_type()))::type;

/// Advances by up to `count` batches without dereferencing them. Returns the number skipped.
template <class Iterator, class Sentinel>
std::int64_t skip_batches(Iterator& at, Sentinel const& end, std::int64_t count) {
  if constexpr (ranges::input_iterator<Iterator> && ranges::sentinel_for<Sentinel, Iterator>) {
    return count - static_cast<std::int64_t>(ranges::advance(at, static_cast<ranges::iter_difference_t<Iterator>>(count), end));
  } else {
    std::int64_t skipped = 0;
    for (; skipped < count && at != end; ++skipped) ++at;
    return skipped;
  }
}

}  // namespace keel::detail::inline KEEL_MODE
