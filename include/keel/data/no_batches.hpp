// The source of a run without data: an endless sequence of keel::no_batch, which can start at any position.
#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <keel/core/batch.hpp>
#include <keel/policy/data.hpp>

namespace keel::inline KEEL_MODE {

struct no_batches {
  using facts = data::is<data::endless>;

  struct iterator {
    using value_type = no_batch;
    using difference_type = std::ptrdiff_t;
    no_batch operator*() const { return {}; }
    iterator& operator++() { return *this; }
    iterator operator++(int) { return *this; }
    friend bool operator==(iterator, std::default_sentinel_t) { return false; }
  };
  struct range {
    iterator begin() const { return {}; }
    std::default_sentinel_t end() const { return {}; }
  };
  range operator()(std::int64_t /*epoch*/, std::int64_t /*position*/) const { return {}; }
};

}  // namespace keel::inline KEEL_MODE
