// A stateless data order. The rows of batch `position` in epoch `epoch` depend only on the seed, these two numbers and the
// rank. A resumed run therefore continues at its position at once, regardless of prefetching. If batch size times ranks is
// constant, any number of ranks sees the same global batches.
//     keel::shuffled_batches const order{{.rows = 50'000, .batch = 32, .seed = 7}};
//     run.fit([&](std::int64_t epoch, std::int64_t position) {
//       return order(epoch, position) | ranges::views::transform([&](keel::row_numbers const& rows) { return load(rows); });
//     }, loss_of);
// Not supported: sample weights and sampling with replacement, which need one more draw per row.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <keel/core/error.hpp>
#include <range/v3/view/iota.hpp>
#include <range/v3/view/transform.hpp>
#include <string>
#include <utility>
#include <vector>

namespace keel::inline KEEL_MODE {

/// The row indices of a batch, from 0.
using row_numbers = std::vector<std::int64_t>;

/// A permutation of 0 .. size - 1 that needs no memory: a Feistel network over the next even power of two. It is applied
/// repeatedly until the result is below `size` (cycle walking). Mitchell, Stokes, Frank, Holmes 2022, "Bandwidth-optimal random
/// shuffling for GPUs".
/// A network over four or more bits is always an even permutation. For 16, 64, 256, .. rows it never reaches the odd half of
/// the orders, and for few rows the distribution is uneven. Sizes from 5 to 64 therefore use a Fisher-Yates shuffle.
/// Over two bits the network reaches every order equally often. Over eight or more bits only the parity is restricted, which
/// does not affect training.
class permutation {
 public:
  /// Requires `size` >= 1.
  permutation(std::uint64_t size, std::uint64_t key) : size_(size) {
    if (is_listed(size)) {
      list(key);
      return;
    }
    half_ = (static_cast<unsigned>(std::bit_width(size - 1)) + 1) / 2;
    half_ = std::max(half_, 1u);
    for (auto& round : rounds_) round = key = mixed(key + 0x9e3779b97f4a7c15ull);
  }
  /// Returns the image of `index`, which must be below the size.
  std::uint64_t operator()(std::uint64_t index) const {
    if (is_listed(size_)) return list_[index];
    do index = once(index);
    while (index >= size_);
    return index;
  }
  /// Returns true if this size uses a Fisher-Yates shuffle.
  static constexpr bool is_listed(std::uint64_t size) { return size > 4 && size <= max_listed; }
  /// Mixes all bits: the finalizer of SplitMix64 (Steele, Lea, Flood 2014).
  static constexpr std::uint64_t mixed(std::uint64_t x) {
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
    return x ^ (x >> 31);
  }

 private:
  static constexpr std::uint64_t max_listed = 64;

  void list(std::uint64_t key) {
    for (std::uint64_t i = 0; i < size_; ++i) list_[i] = static_cast<std::uint8_t>(i);
    // The modulo bias is one part in 2^58.
    for (std::uint64_t left = size_; left > 1; --left)
      std::swap(list_[left - 1], list_[mixed(key += 0x9e3779b97f4a7c15ull) % left]);
  }

  std::uint64_t once(std::uint64_t index) const {
    std::uint64_t const mask = (std::uint64_t{1} << half_) - 1;
    std::uint64_t left = index >> half_;
    std::uint64_t right = index & mask;
    for (std::uint64_t const round : rounds_) {
      std::uint64_t const next = left ^ (mixed(right ^ round) & mask);
      left = right;
      right = next;
    }
    return left << half_ | right;
  }

  std::uint64_t size_;
  unsigned half_ = 0;                   ///< bits of each half
  std::uint64_t rounds_[12] = {};       ///< keys
  std::uint8_t list_[max_listed] = {};  ///< the permutation itself, if is_listed
};

/// The settings that determine the order.
struct shuffle_settings {
  std::int64_t rows = 0;   ///< rows of the data set
  std::int64_t batch = 1;  ///< rows per batch and rank
  std::uint64_t seed = 0;  ///< must be the same on all ranks
  bool shuffle = true;     ///< false: rows in index order in every epoch
  bool drop_last = false;  ///< drop an incomplete last batch; always true with several ranks
  int rank = 0;            ///< rank of this process
  int ranks = 1;           ///< number of ranks that share the data
};

/// A source of row indices for trainer::fit.
class shuffled_batches {
 public:
  /// Throws error (E12) for invalid settings, and data_error (E06) if there are too few rows for one batch.
  explicit shuffled_batches(shuffle_settings const& settings) : settings_(settings) {
    auto const& s = settings_;
    constexpr std::int64_t most = std::int64_t{1} << 40;
    if (s.batch < 1 || s.batch > most || s.ranks < 1 || s.rank < 0 || s.rank >= s.ranks || s.ranks > 1 << 20)
      throw error(
          "E12",
          "a batch must have 1 to 2^40 rows, and a rank must be between 0 and ranks - 1. Correct keel::shuffle_settings.");
    if (size() < 1)
      throw data_error("E06", std::to_string(s.rows) + " rows do not fill a batch of " + std::to_string(s.batch) + " on " +
                                  std::to_string(s.ranks) + " ranks. Use a smaller batch, or check the data path.");
  }

  /// Returns the number of batches of an epoch.
  std::int64_t size() const {
    std::int64_t const global = settings_.batch * settings_.ranks;
    bool const whole = settings_.drop_last || settings_.ranks > 1;
    return settings_.rows / global + (!whole && settings_.rows % global > 0 ? 1 : 0);
  }

  /// Describes the settings that determine the order. A trainer rejects a checkpoint whose source has another description. Text
  /// that was added later appears only for orders that older checkpoints cannot have. The number of ranks is excluded: it may
  /// change if the global batch size is constant.
  std::string describe() const {
    auto const& s = settings_;
    std::string words = std::to_string(s.rows) + " rows in batches of " + std::to_string(s.batch * s.ranks);
    words += s.shuffle ? ", shuffled by seed " + std::to_string(s.seed) : ", in their own order";
    // Version 1 used a Feistel network for these sizes, too.
    if (s.shuffle && permutation::is_listed(static_cast<std::uint64_t>(s.rows))) words += ", version 2 of the order";
    if (s.drop_last && s.rows % (s.batch * s.ranks) > 0) words += ", without a last batch that is not full";
    return words;
  }

  /// Returns the rows per batch and rank. The last batch of an epoch may have fewer.
  std::int64_t batch_size() const { return settings_.batch; }

  /// Returns the row indices of one batch. Throws data_error (E06) if the position is outside of the epoch.
  row_numbers batch(std::int64_t epoch, std::int64_t position) const {
    auto const& s = settings_;
    if (position < 0 || position >= size())
      throw data_error("E06", "an epoch has " + std::to_string(size()) + " batches, but batch " + std::to_string(position) +
                                  " was requested. Request 0 to size() - 1.");
    permutation const order = order_of(epoch);
    std::int64_t const begin = (position * s.ranks + s.rank) * s.batch;
    std::int64_t const end = std::min(begin + s.batch, s.rows);
    row_numbers rows;
    rows.reserve(static_cast<std::size_t>(end - begin));
    for (std::int64_t i = begin; i < end; ++i)
      rows.push_back(s.shuffle ? static_cast<std::int64_t>(order(static_cast<std::uint64_t>(i))) : i);
    return rows;
  }

  /// Returns the batches of an epoch from a position on, as a random access range. The range may outlive this object.
  auto operator()(std::int64_t epoch, std::int64_t position = 0) const {
    auto const last = std::max(position, size());
    return ranges::views::iota(position, last) |
           ranges::views::transform([self = *this, epoch](std::int64_t at) { return self.batch(epoch, at); });
  }

 private:
  permutation order_of(std::int64_t epoch) const {
    std::uint64_t const key = permutation::mixed(settings_.seed) ^ static_cast<std::uint64_t>(epoch);
    return permutation(static_cast<std::uint64_t>(settings_.rows), permutation::mixed(key));
  }

  shuffle_settings settings_;
};

}  // namespace keel::inline KEEL_MODE
