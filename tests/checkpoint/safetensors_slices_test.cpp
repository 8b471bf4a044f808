// Single tensors, rows and names out of a file, and files that are larger than memory.
#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <keel/checkpoint/mapped_safetensors.hpp>
#include <keel/checkpoint/safetensors_file.hpp>

#include "safetensors_support.hpp"

using namespace safetensors_test;

namespace {

/// What an error of this type and id says; empty: nothing was thrown.
template <class Error>
std::string error_of(std::string const& id, auto const& action) {
  try {
    action();
  } catch (Error const& thrown) {
    CHECK(thrown.id() == id);
    return thrown.what();
  }
  return {};
}
bool contains(std::string const& text, std::string const& part) {
  INFO(text);
  CHECK(text.find(part) != std::string::npos);
  return text.find(part) != std::string::npos;
}

/// Sets the process's address space for as long as it lives, so that a machine which promises any memory refuses 1 TiB, too.
class address_space {
 public:
  explicit address_space(rlim_t bytes) {
    REQUIRE(::getrlimit(RLIMIT_AS, &before_) == 0);
    rlimit const now{std::min(bytes, before_.rlim_max), before_.rlim_max};
    REQUIRE(::setrlimit(RLIMIT_AS, &now) == 0);
  }
  address_space(address_space const&) = delete;
  address_space& operator=(address_space const&) = delete;
  ~address_space() { ::setrlimit(RLIMIT_AS, &before_); }

 private:
  rlimit before_{};
};

constexpr std::uint64_t one_tebibyte = std::uint64_t{1} << 40;

/// Declares 1 TiB of float32 in rows of 1 MiB and holds a hole; the last row begins with 1.5. False where the disk has no
/// holes.
bool make_large(std::filesystem::path const& path) {
  std::string header = R"({"large":{"dtype":"F32","shape":[1048576,262144],"data_offsets":[0,1099511627776]}})";
  header.resize((header.size() + 7) / 8 * 8, ' ');
  auto const head = framed(header);
  std::ofstream(path, std::ios::binary) << head;
  if (::truncate(path.c_str(), static_cast<off_t>(head.size() + one_tebibyte)) != 0) return false;
  int const file = ::open(path.c_str(), O_WRONLY | O_CLOEXEC);
  float const value = 1.5f;
  bool const written = ::pwrite(file, &value, sizeof value, static_cast<off_t>(head.size() + one_tebibyte - (1 << 20))) == 4;
  ::close(file);
  return written;
}

}  // namespace

TEST_CASE("a file says names, shapes, dtypes and metadata and gives single tensors") {
  temporary_folder const folder;
  auto const path = folder.path / "model.safetensors";
  auto const tensors = small_checkpoint();
  keel::save_safetensors(path, tensors, {{"recipe", "r"}});
  keel::safetensors_file const file(path);
  CHECK(file.names() == std::vector<std::string>{"a.weight", "b.weight", "empty", "flag", "step"});
  CHECK(file.metadata() == keel::string_map{{"format", "pt"}, {"recipe", "r"}});
  CHECK(file.shape("b.weight") == std::vector<std::int64_t>{3});
  CHECK(file.shape("empty") == std::vector<std::int64_t>{0, 2});
  CHECK(file.shape("step").empty());
  CHECK(file.dtype("a.weight") == "F32");
  CHECK(file.dtype("flag") == "BOOL");
  for (auto const& [name, tensor] : tensors) {
    CHECK(same_bits(file.tensor(name), tensor));
    CHECK(file.tensor(name).is_contiguous());
  }
}

TEST_CASE("rows of a tensor are those of the whole, for every range") {
  temporary_folder const folder;
  auto const path = folder.path / "model.safetensors";
  auto const matrix = at::arange(35, at::kShort).view({5, 7});
  auto const empty = at::zeros({4, 0, 2});
  keel::save_safetensors(path, {{"m", matrix}, {"e", empty}, {"other", at::rand({9})}, {"row", at::arange(6)}});
  keel::safetensors_file const file(path);
  for (std::int64_t begin = 0; begin <= 5; ++begin) {
    for (std::int64_t end = begin; end <= 5; ++end) CHECK(same_bits(file.rows("m", begin, end), matrix.slice(0, begin, end)));
  }
  CHECK(file.rows("e", 1, 3).sizes() == at::IntArrayRef({2, 0, 2}));
  CHECK(at::equal(file.rows("row", 2, 5), at::arange(2, 5)));
}

TEST_CASE("rows that are not there are rejected by their numbers") {
  temporary_folder const folder;
  auto const path = folder.path / "model.safetensors";
  keel::save_safetensors(path, {{"m", at::zeros({5, 7})}, {"s", at::full({}, 7)}});
  keel::safetensors_file const file(path);
  constexpr auto least = std::numeric_limits<std::int64_t>::min();
  constexpr auto most = std::numeric_limits<std::int64_t>::max();
  for (auto const& [begin, end] :
       std::vector<std::pair<std::int64_t, std::int64_t>>{{-1, 2}, {0, 6}, {3, 2}, {6, 6}, {least, most}, {most, least}}) {
    auto const words = error_of<keel::error>("E12", [&, from = begin, to = end] { file.rows("m", from, to); });
    contains(words, "rows " + std::to_string(begin) + " to " + std::to_string(end) + " of 'm'");
    contains(words, "it has 5 rows");
    contains(words, path.string());
  }
  contains(error_of<keel::error>("E12", [&] { file.rows("s", 0, 0); }), "scalar");
}

TEST_CASE("rows of packed elements are read where they begin and end at whole bytes") {
  temporary_folder const folder;
  auto const path = folder.path / "model.safetensors";
  std::ofstream(path, std::ios::binary) << entry_file(R"({"dtype":"F4","shape":[6,3],"data_offsets":[0,9]})", "abcdefghi");
  keel::safetensors_file const file(path);
  auto const bytes = [](at::Tensor const& tensor) {
    return std::string(static_cast<char const*>(tensor.data_ptr()), tensor.nbytes());
  };
  CHECK(file.shape("w") == std::vector<std::int64_t>{6, 3});
  CHECK(file.dtype("w") == "F4");
  CHECK(bytes(file.tensor("w")) == "abcdefghi");
  CHECK(bytes(file.rows("w", 2, 4)) == "def");
  CHECK(bytes(file.rows("w", 0, 6)) == "abcdefghi");
  CHECK(file.rows("w", 4, 4).numel() == 0);
  contains(error_of<keel::error>("E12", [&] { file.rows("w", 1, 4); }), "whole bytes");
  contains(error_of<keel::error>("E12", [&] { file.rows("w", 2, 3); }), "whole bytes");
}

TEST_CASE("a name that a file does not hold is answered with five close ones, or its first") {
  temporary_folder const folder;
  auto const path = folder.path / "model.safetensors";
  keel::tensor_map tensors;
  for (int i = 10; i < 60; ++i) tensors["layers." + std::to_string(i) + ".weight"] = at::zeros({1});
  keel::save_safetensors(path, tensors);
  keel::safetensors_file const file(path);
  auto const close = error_of<keel::checkpoint_error>("E04", [&] { file.tensor("layers.33.weigth"); });
  contains(close, "contains no tensor 'layers.33.weigth'");
  contains(close, "Similar names are 'layers.33.weight', ");
  CHECK(std::count(close.begin(), close.end(), '\'') == 2 * (1 + 5));
  auto const far = error_of<keel::checkpoint_error>("E04", [&] { file.shape("x"); });
  contains(far,
           "Its first names are 'layers.10.weight', 'layers.11.weight', 'layers.12.weight', 'layers.13.weight', "
           "'layers.14.weight'; names()");
  contains(error_of<keel::checkpoint_error>("E04", [&] { file.rows(std::string(5'000'000, 'n'), 0, 1); }), "nnn..'");
  contains(error_of<keel::checkpoint_error>("E04", [&] { file.dtype(""); }), "Its first names are");
  keel::save_safetensors(path, {});
  contains(error_of<keel::checkpoint_error>("E04", [&] { keel::safetensors_file(path).dtype("w"); }), "It is empty");
}

TEST_CASE("a damaged file is rejected when it is opened, and one that shrinks when it is read") {
  temporary_folder const folder;
  auto const path = folder.path / "model.safetensors";
  auto const good = written(small_checkpoint());
  for (std::size_t length = 0; length < good.size(); length += 5) {
    std::ofstream(path, std::ios::binary | std::ios::trunc) << good.substr(0, length);
    contains(error_of<keel::checkpoint_error>("E05", [&] { keel::safetensors_file{path}; }), path.string());
  }
  std::ofstream(path, std::ios::binary | std::ios::trunc) << good;
  keel::safetensors_file const file(path);
  std::filesystem::resize_file(path, good.size() - 1);
  contains(error_of<keel::checkpoint_error>("E05", [&] { file.tensor("flag"); }), "truncated");
  std::ofstream(path, std::ios::binary | std::ios::trunc)
      << entry_file(R"({"dtype":"BOOL","shape":[4],"data_offsets":[0,4]})", {"\0\1\2\0", 4});
  keel::safetensors_file const bools(path);
  CHECK(bools.rows("w", 0, 2).numel() == 2);
  contains(error_of<keel::checkpoint_error>("E05", [&] { bools.tensor("w"); }), "other than 0 and 1");
}

TEST_CASE("an open file goes on with its own tensors when another takes its place") {
  temporary_folder const folder;
  auto const path = folder.path / "model.safetensors";
  keel::save_safetensors(path, {{"x", at::ones({4})}});
  keel::safetensors_file const file(path);
  keel::save_safetensors(path, {{"y", at::zeros({100})}});
  CHECK(at::equal(file.tensor("x"), at::ones({4})));
  CHECK(keel::safetensors_file(path).names() == std::vector<std::string>{"y"});
}

TEST_CASE("a tensor larger than memory is an out-of-memory error with file, name, bytes and a way out") {
  if (keel_test::is_sanitized) {
    WARN("SKIPPED: a sanitizer itself needs more address space than this test leaves");
    return;
  }
  temporary_folder const folder;
  auto const path = folder.path / "model.safetensors";
  if (!make_large(path)) return;
  address_space const limited(std::uint64_t{1} << 39);
  for (int way = 0; way < 3; ++way) {
    auto const words = error_of<keel::out_of_memory_error>("E09", [&] {
      if (way == 0) keel::load_safetensors(path);
      if (way == 1) keel::safetensors_file(path).tensor("large");
      if (way == 2) keel::safetensors_file(path).rows("large", 0, 1'000'000);
    });
    contains(words, path.string());
    contains(words, "'large'");
    contains(words, way == 2 ? "1048576000000 bytes" : "1099511627776 bytes");
    contains(words, "keel::safetensors_file");
    contains(words, "keel::map_safetensors");
  }
  auto const words = error_of<keel::out_of_memory_error>("E09", [&] { keel::map_safetensors(path); });
  contains(words, path.string());
  contains(words, "keel::safetensors_file");
  // Another error is not called this one.
  CHECK_THROWS_AS(keel::load_safetensors(folder.path / "none"), keel::file_error);
}

TEST_CASE("slices of a file larger than memory are read, and it can be mapped") {
  temporary_folder const folder;
  auto const path = folder.path / "model.safetensors";
  if (!make_large(path)) return;
  keel::safetensors_file const file(path);
  auto const last = file.rows("large", 1'048'575, 1'048'576);
  CHECK(last.sizes() == at::IntArrayRef({1, 262'144}));
  CHECK(last[0][0].item<float>() == 1.5f);
  CHECK(file.rows("large", 500'000, 500'002).abs().sum().item<float>() == 0.0f);
  std::ifstream settings("/proc/sys/vm/overcommit_memory");
  int mode = 0;
  if ((settings >> mode) && mode == 2) return;  // a machine that promises no memory which it lacks
  auto const mapped = keel::map_safetensors(path).tensors.at("large");
  CHECK(mapped[1'048'575][0].item<float>() == 1.5f);
}
