// A window's micro-batches as functions that can run again: after an out-of-memory the whole window begins anew, because part
// of its gradients is lost.
#pragma once

#include <algorithm>
#include <cstdint>
#include <exception>
#include <functional>
#include <keel/memory/out_of_memory.hpp>
#include <keel/step/outcome.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace keel {

class window_replay {
 public:
  /// One more micro-batch of so many rows; `run(index)` does its forward and backward pass.
  void add(std::int64_t rows, std::function<void(std::int64_t)> run) {
    most_rows_ = std::max(most_rows_, rows);
    runs_.push_back(std::move(run));
  }
  void clear() {
    runs_.clear();
    most_rows_ = 0;
  }
  /// Of the largest micro-batch.
  std::int64_t most_rows() const { return most_rows_; }

  /// Runs the newest micro-batch. After an out-of-memory calls `climb(message)`, which puts the window back to its beginning,
  /// and runs all of it again; what climb returns ends it.
  template <class Climb>
  std::optional<outcome> run_newest(Climb const& climb) {
    std::size_t next = runs_.size() - 1;
    while (next < runs_.size()) {
      std::optional<std::string> message;
      try {
        runs_[next](static_cast<std::int64_t>(next));
      } catch (std::exception const& thrown) {
        if (!is_out_of_memory(thrown)) throw;
        message = first_line(thrown);
      }
      // Recovery stands out here because a caught exception may keep frames and tensors alive.
      if (!message) {
        ++next;
      } else if (auto gave_up = climb(*message)) {
        return gave_up;
      } else {
        next = 0;
      }
    }
    return std::nullopt;
  }

 private:
  std::vector<std::function<void(std::int64_t)>> runs_;
  std::int64_t most_rows_ = 0;
};

}  // namespace keel
