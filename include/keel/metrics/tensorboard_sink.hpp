// Writes a run's values as TensorBoard event files.
#pragma once

#include <filesystem>
#include <keel/metrics/sink.hpp>
#include <keel/metrics/tensorboard_writer.hpp>
#include <optional>
#include <utility>

namespace keel::inline KEEL_MODE {

class tensorboard_sink : public metric_sink {
 public:
  /// Creates no file before the first value.
  explicit tensorboard_sink(std::filesystem::path directory) : directory_(std::move(directory)) {}

  void scalars(std::int64_t update, std::span<named_value const> values) override { writer().scalars(values, update); }
  void distribution(std::int64_t update, std::string_view name, histogram const& values) override {
    writer().histogram(name, values, update);
  }
  void text(std::int64_t update, std::string_view name, std::string_view words) override { writer().text(name, words, update); }
  void restarted_after(std::int64_t update) override { writer().restarted_after(update); }
  void flush() override {
    if (writer_) writer_->flush();
  }

 private:
  tensorboard_writer& writer() {
    if (!writer_) writer_.emplace(directory_);
    return *writer_;
  }

  std::filesystem::path directory_;
  std::optional<tensorboard_writer> writer_;
};

}  // namespace keel::inline KEEL_MODE
