// Event files as TensorBoard reads them, and distributions of tensors.
#include "../support.hpp"

#include <cmath>
#include <keel/metrics/event_record.hpp>
#include <keel/metrics/tensorboard_writer.hpp>
#include <limits>
#include <numeric>

#include "event_reader.hpp"

using namespace keel_test;

namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();

/// A disk that takes nothing while `full`.
struct full_files : keel::file_system {
  std::shared_ptr<bool> full = std::make_shared<bool>(false);
  void write(keel::file_handle const& file, path const& name, char const* bytes, std::size_t count) override {
    if (*full) {
      file_system::write(file, name, bytes, count / 2);
      throw keel::file_error("E02", "the disk is full");
    }
    file_system::write(file, name, bytes, count);
  }
};

}  // namespace

TEST_CASE("the records of an event file have the checksums of the specification") {
  std::string length(8, '\0');
  length[0] = 24;
  CHECK(keel::detail::masked_crc32c(length) == 0x224b7fa3U);
  CHECK(keel::detail::masked_crc32c(std::string("\x09\x00\x00\x80\x38\x99\xd6\xd7\x41\x1a\x0d" "brain.Event:2", 24)) == 0xab364b12U);
  CHECK(crc32c_by_bits("123456789") == 0xe3069283U);
  CHECK(keel::detail::masked_crc32c("123456789") == masked(0xe3069283U));
}

TEST_CASE("scalars, histograms and text are read back as they were written") {
  scratch_directory const directory;
  {
    keel::tensorboard_writer board(directory / "deep/run");
    board.scalar("train/loss", 0.25, 0);
    board.scalar("train/loss", 1e300, 1);
    board.scalar("train/loss", -1e300, 2);
    board.scalar("train/loss", std::nan(""), 3);
    board.scalar("train/loss", -0.0, std::numeric_limits<std::int64_t>::max());
    board.scalar("a tag with \"quotes\" and \xc3\xa9", 7.0, 300);
    board.text("recipe", "# Title\n\nwords", 5);
    board.histogram("weights", keel::histogram_of(at::arange(100).to(at::kFloat), 4), 6);
  }
  // For protoc, by tests/metrics/protoc_reads_events.sh.
  if (char const* const folder = std::getenv("KEEL_EVENTS"); folder != nullptr) {
    std::filesystem::copy(directory / "deep/run", folder, std::filesystem::copy_options::recursive);
  }
  auto const board = board_in(directory / "deep/run");
  REQUIRE(board.files == 1);
  auto const& loss = board.scalars.at("train/loss");
  CHECK(loss.size() == 5);
  CHECK(loss.at(0) == 0.25f);
  CHECK(loss.at(1) == static_cast<float>(infinity));
  CHECK(loss.at(2) == -static_cast<float>(infinity));
  CHECK(std::isnan(loss.at(3)));
  CHECK(std::signbit(loss.at(std::numeric_limits<std::int64_t>::max())));
  CHECK(board.scalars.at("a tag with \"quotes\" and \xc3\xa9").at(300) == 7.0f);
  CHECK(board.texts.at("recipe").at(5) == "# Title\n\nwords");
  auto const& weights = board.histograms.at("weights").at(6);
  CHECK(weights.number(1) == 0.0);
  CHECK(weights.number(2) == 99.0);
  CHECK(weights.number(3) == 100.0);
  CHECK(weights.number(4) == 4950.0);
  CHECK(weights.number(5) == 328350.0);
  CHECK(weights.numbers(6) == std::vector<double>{24.75, 49.5, 74.25, 99.0});
  CHECK(weights.numbers(7) == std::vector<double>{25, 25, 25, 25});
}

TEST_CASE("a file that a kill tore is read up to its last whole record, at every length") {
  scratch_directory const directory;
  std::filesystem::path file;
  {
    keel::tensorboard_writer board(directory / "run");
    for (int i = 0; i < 5; ++i) board.scalar("loss", i, i);
    file = board.file();
  }
  std::string const whole = read_file(file);
  std::size_t most = 0;
  for (std::size_t length = 0; length <= whole.size(); ++length) {
    std::size_t const events = events_in(whole.substr(0, length)).size();
    CHECK(events >= most);
    most = events;
  }
  CHECK(most == 6);
}

TEST_CASE("what a rollback or a resume abandoned is hidden, also where it is in the file of a process before") {
  scratch_directory const directory;
  {
    keel::tensorboard_writer board(directory / "run");
    for (int i = 1; i <= 5; ++i) board.scalar("loss", i, i);
    board.restarted_after(3);
    board.scalar("loss", 40, 4);
  }
  CHECK(board_in(directory / "run").scalars.at("loss") == std::map<std::int64_t, float>{{1, 1}, {2, 2}, {3, 3}, {4, 40}});
  // In the same second, as a process that is started again at once.
  for (int round = 0; round < 12; ++round) {
    keel::tensorboard_writer board(directory / "run");
    board.restarted_after(1);
    board.scalar("loss", 100 + round, 2);
  }
  auto const board = board_in(directory / "run");
  CHECK(board.files == 13);
  CHECK(board.scalars.at("loss") == std::map<std::int64_t, float>{{1, 1}, {2, 111}});
}

TEST_CASE("two writers of one directory have a file each") {
  scratch_directory const directory;
  keel::tensorboard_writer one(directory / "run");
  keel::tensorboard_writer other(directory / "run");
  CHECK(one.file() != other.file());
  one.scalar("one", 1, 1);
  other.scalar("other", 2, 1);
  other.flush();
  one.flush();
  CHECK(board_in(directory / "run").scalars.size() == 2);
}

TEST_CASE("a full disk is a file_error, and what waited is written once it takes bytes again") {
  scratch_directory const directory;
  full_files files;
  keel::tensorboard_writer board(directory / "run", files);
  board.scalar("loss", 1, 1);
  board.flush();
  *files.full = true;
  board.scalar("loss", 2, 2);
  CHECK_THROWS_AS(board.flush(), keel::file_error);
  CHECK_THROWS_AS(board.flush(), keel::file_error);
  *files.full = false;
  board.scalar("loss", 3, 3);
  board.flush();
  CHECK(board_in(directory / "run").scalars.at("loss") == std::map<std::int64_t, float>{{1, 1}, {2, 2}, {3, 3}});
}

TEST_CASE("memory stays bounded where the disk never takes anything") {
  scratch_directory const directory;
  full_files files;
  keel::tensorboard_writer board(directory / "run", files);
  *files.full = true;
  std::string const words(1 << 20, 'x');
  int thrown = 0;
  for (int i = 0; i < 40; ++i) {
    try {
      board.text("words", words, i);
    } catch (keel::file_error const&) {
      ++thrown;
    }
  }
  CHECK(thrown == 40);
  *files.full = false;
  board.flush();
  auto const kept = board_in(directory / "run").texts.at("words").size();
  CHECK(kept >= 14);
  CHECK(kept <= 16);
}

TEST_CASE("a directory that cannot be made is a file_error that names it") {
  scratch_directory const directory;
  write_file(directory / "taken", "a file");
  CHECK_THROWS_AS(keel::tensorboard_writer(directory / "taken/run"), keel::file_error);
}

TEST_CASE("a histogram agrees with counting one by one, for any dtype, shape and values") {
  auto const seed = GENERATE(range(0, 60));
  at::manual_seed(seed);
  auto const dtype = std::vector<at::ScalarType>{at::kFloat, at::kDouble, at::kHalf, at::kBFloat16, at::kLong, at::kBool}[seed % 6];
  at::Tensor values = at::randn({seed % 7 + 1, 13}).mul(std::pow(10.0, seed % 5 - 2)).to(dtype);
  if (seed % 5 == 2 && values.is_floating_point()) {
    values[0][0] = std::nan("");
    values[0][1] = infinity;
    values[0][2] = -infinity;
  }
  if (seed % 4 == 1) values = values.t();
  if (seed == 59) values = at::full({3}, 7.0);
  std::int64_t const buckets = seed % 3 == 0 ? 1 : 8;
  auto const found = keel::histogram_of(values.to(device()), buckets);

  at::Tensor const flat = values.to(at::kDouble).reshape({-1});
  double count = 0, nonfinite = 0, sum = 0, squares = 0, least = infinity, most = -infinity;
  std::vector<double> counts(found.limits.size());
  for (std::int64_t i = 0; i < flat.numel(); ++i) {
    double const value = flat[i].item<double>();
    if (!std::isfinite(value)) {
      ++nonfinite;
      continue;
    }
    ++count;
    sum += value;
    squares += value * value;
    least = std::min(least, value);
    most = std::max(most, value);
    // A value at a limit may fall on either side of it by a rounding.
    std::size_t bucket = 0;
    while (bucket + 1 < found.limits.size() && value > found.limits[bucket]) ++bucket;
    ++counts[bucket];
  }
  CHECK(found.count == count);
  CHECK(found.nonfinite == nonfinite);
  CHECK(found.min == least);
  CHECK(found.max == most);
  CHECK(std::abs(found.sum - sum) <= 1e-9 * (1 + std::abs(sum)));
  CHECK(std::abs(found.sum_of_squares - squares) <= 1e-9 * (1 + squares));
  CHECK(found.limits.back() == most);
  double apart = 0, all = 0;
  for (std::size_t i = 0; i < counts.size(); ++i) {
    apart += std::abs(counts[i] - found.counts[i]);
    all += found.counts[i];
  }
  CHECK(all == count);
  CHECK(apart <= (dtype == at::kLong || dtype == at::kBool ? 0.0 : 2.0));
}

TEST_CASE("a histogram of extremes: nothing finite, no element, the widest range, sparse") {
  CHECK(keel::histogram_of(at::full({4}, std::nan(""))).count == 0.0);
  CHECK(keel::histogram_of(at::full({4}, std::nan(""))).nonfinite == 4.0);
  CHECK(keel::histogram_of(at::empty({0})).limits.empty());
  auto const wide = keel::histogram_of(at::tensor(std::vector<double>{-1.7e308, 0.0, 1.7e308}), 2);
  CHECK(wide.counts == std::vector<double>{2, 1});
  auto const tiny = keel::histogram_of(at::tensor(std::vector<double>{5e-324, 1e-323}), 4);
  CHECK(std::accumulate(tiny.counts.begin(), tiny.counts.end(), 0.0) == 2.0);
  CHECK(keel::histogram_of(at::eye(3).to_sparse()).count == 3.0);
  CHECK_THROWS_AS(keel::histogram_of(at::ones({2}), 0), keel::error);
  CHECK_THROWS_AS(keel::histogram_of(at::Tensor()), keel::error);
  CHECK_THROWS_AS(keel::histogram_of(at::ones({2}).to(at::kComplexFloat)), keel::error);
}
