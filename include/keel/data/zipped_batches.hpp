// Several sources of batches in one iteration: a batch of each at a time, as a tuple, until the shortest ends.
//     run.fit(keel::zipped_batches(real_images, noise), [&](auto const& both) { auto const& [real, z] = both; .. });
// Each is an input range or a LibTorch data loader, the same type or another. An lvalue outlives the result; an rvalue is kept in it.
#pragma once

#include <cstddef>
#include <keel/data/batch_source.hpp>
#include <tuple>
#include <type_traits>
#include <utility>

namespace keel::inline KEEL_MODE {

/// Batches of several sources side by side, as tuples; it ends with the first source that ends.
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
  using value_type = std::tuple<detail::batch_of<std::remove_reference_t<Sources>>...>;  ///< a batch of each source

  /// Holds sources that are given as values, and refers to the others.
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
    /// A batch of each. LibTorch's loaders give theirs as values, and so does this.
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

  /// Begins all sources.
  iterator begin() {
    return iterator(std::apply([](auto&... source) { return all_of<begins>(begins()(source)...); }, sources_));
  }
  /// Where the first of them ends.
  sentinel end() {
    return sentinel(std::apply([](auto&... source) { return all_of<ends>(ends()(source)...); }, sources_));
  }

 private:
  std::tuple<Sources...> sources_;
};

/// The sources' types from the arguments.
template <class... Sources>
zipped_batches(Sources&&...) -> zipped_batches<Sources...>;

}  // namespace keel::inline KEEL_MODE
