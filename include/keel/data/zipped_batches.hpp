// Iterates several sources of batches together, yielding a tuple of one batch per source, until the shortest ends.
//     run.fit(keel::zipped_batches(real_images, noise), [&](auto const& both) { auto const& [real, z] = both; .. });
// Each source is an input range or a LibTorch data loader; types may differ. An lvalue must outlive the result; an rvalue is
// moved into it.
#pragma once

#include <cstddef>
#include <keel/data/batch_source.hpp>
#include <tuple>
#include <type_traits>
#include <utility>

namespace keel::inline KEEL_MODE {

/// A range of tuples with one batch from each source. Ends with the first source that ends.
template <class... Sources>
  requires(batch_range<std::remove_reference_t<Sources>> && ...)
class zipped_batches {
  struct begins {
    template <class Source>
    auto operator()(Source& source) const {
      if constexpr (ranges::input_range<Source&>) {
        return ranges::begin(source);
      } else {
        return source.begin();
      }
    }
  };
  struct ends {
    template <class Source>
    auto operator()(Source& source) const {
      if constexpr (ranges::input_range<Source&>) {
        return ranges::end(source);
      } else {
        return source.end();
      }
    }
  };
  template <class Of>
  using all_of = std::tuple<std::invoke_result_t<Of, std::remove_reference_t<Sources>&>...>;

 public:
  using value_type = std::tuple<detail::batch_of<std::remove_reference_t<Sources>>...>;  ///< a batch from each source

  /// Stores rvalue sources and references lvalue sources.
  explicit zipped_batches(Sources&&... sources) : sources_(std::forward<Sources>(sources)...) {}

  class iterator;
  class sentinel {
   public:
    explicit sentinel(all_of<ends> at) : at_(std::move(at)) {}

   private:
    friend iterator;
    all_of<ends> at_;
  };
  class iterator {
   public:
    using value_type = zipped_batches::value_type;
    using difference_type = std::ptrdiff_t;
    explicit iterator(all_of<begins> at) : at_(std::move(at)) {}
    /// Returns one batch of each source, by value, as LibTorch's loaders do.
    value_type operator*() {
      return std::apply([](auto&... one) { return value_type(*one...); }, at_);
    }
    iterator& operator++() {
      std::apply([](auto&... one) { (++one, ...); }, at_);
      return *this;
    }
    bool operator!=(sentinel const& end) const { return has_more(end, std::index_sequence_for<Sources...>()); }
    bool operator==(sentinel const& end) const { return !(*this != end); }

   private:
    template <std::size_t... Index>
    bool has_more(sentinel const& end, std::index_sequence<Index...>) const {
      return ((std::get<Index>(at_) != std::get<Index>(end.at_)) && ...);
    }
    all_of<begins> at_;
  };

  /// Calls begin() on every source.
  iterator begin() {
    return iterator(std::apply([](auto&... source) { return all_of<begins>(begins()(source)...); }, sources_));
  }
  /// Compares equal when any source has ended.
  sentinel end() {
    return sentinel(std::apply([](auto&... source) { return all_of<ends>(ends()(source)...); }, sources_));
  }

 private:
  std::tuple<Sources...> sources_;
};

/// Deduces the source types from the arguments.
template <class... Sources>
zipped_batches(Sources&&...) -> zipped_batches<Sources...>;

}  // namespace keel::inline KEEL_MODE
