// Dtypes that not every LibTorch has: as themselves where it has them, else as bytes that a program knows about.
#include <torch/version.h>

#include <keel/checkpoint/mapped_safetensors.hpp>
#include <keel/checkpoint/safetensors_file.hpp>
#include <keel/checkpoint/safetensors_scalar_types.hpp>

#include "safetensors_support.hpp"

using namespace safetensors_test;

namespace {

at::ScalarType type_of(std::string const& dtype) {
  return keel::detail::safetensors_scalar_types[keel::detail::safetensors_dtype_named(dtype)];
}
bool is_missing(std::string const& dtype) { return type_of(dtype) == at::ScalarType::Undefined; }

std::string entry_of(std::string const& dtype, std::string const& shape, std::size_t bytes, std::size_t begin = 0) {
  return R"({"dtype":")" + dtype + R"(","shape":)" + shape + R"(,"data_offsets":[)" + std::to_string(begin) + "," +
         std::to_string(begin + bytes) + "]}";
}

/// 0, 1, 2 ..
std::string counted(std::size_t bytes) {
  std::string data(bytes, '\0');
  for (std::size_t i = 0; i < bytes; ++i) data[i] = static_cast<char>(i);
  return data;
}

bool holds(at::Tensor const& tensor, std::string const& data) {
  return tensor.is_contiguous() && tensor.nbytes() == data.size() &&
         std::memcmp(tensor.data_ptr(), data.data(), data.size()) == 0;
}

}  // namespace

TEST_CASE("F8, wide unsigned and packed tensors are read, as themselves or as bytes whose dtype is said") {
  struct expected {
    char const* dtype;
    std::size_t bytes;                      ///< of a tensor of shape [2, 4]
    std::vector<std::int64_t> bytes_shape;  ///< where it comes as bytes
  };
  for (auto const& [dtype, bytes, bytes_shape] : std::vector<expected>{{"F8_E4M3", 8, {2, 4}},
                                                                       {"F8_E5M2", 8, {2, 4}},
                                                                       {"F8_E8M0", 8, {2, 4}},
                                                                       {"F8_E4M3FNUZ", 8, {2, 4}},
                                                                       {"F8_E5M2FNUZ", 8, {2, 4}},
                                                                       {"U16", 16, {2, 4, 2}},
                                                                       {"U32", 32, {2, 4, 4}},
                                                                       {"U64", 64, {2, 4, 8}},
                                                                       {"F4", 4, {4}},
                                                                       {"F6_E2M3", 6, {6}},
                                                                       {"F6_E3M2", 6, {6}}}) {
    INFO(dtype);
    auto const data = counted(bytes);
    auto const file = entry_file(entry_of(dtype, "[2,4]", bytes), data);
    temporary_folder const folder;
    auto const path = folder.path / "x.safetensors";
    std::ofstream(path, std::ios::binary) << file;
    for (auto const& content : {parsed(file), keel::load_safetensors(path), keel::map_safetensors(path)}) {
      auto const& tensor = content.tensors.at("w");
      CHECK(holds(tensor, data));
      if (is_missing(dtype)) {
        CHECK(tensor.scalar_type() == at::kByte);
        CHECK(tensor.sizes() == at::IntArrayRef(bytes_shape));
        CHECK(content.as_bytes == keel::string_map{{"w", dtype}});
      } else {
        CHECK(tensor.scalar_type() == type_of(dtype));
        CHECK(tensor.sizes() == at::IntArrayRef({2, 4}));
        CHECK(content.as_bytes.empty());
      }
    }
  }
}

TEST_CASE("packed elements are bytes in every LibTorch, and what 1.13 lacks 2.6 has") {
  for (auto const* dtype : {"F4", "F6_E2M3", "F6_E3M2"}) CHECK(is_missing(dtype));
  for (auto const* dtype : {"F8_E4M3", "F8_E5M2", "U16", "U32", "U64"}) CHECK(is_missing(dtype) == (TORCH_VERSION_MAJOR < 2));
  CHECK(type_of("C64") == at::kComplexFloat);
}

TEST_CASE("packed elements that do not fill whole bytes are rejected, as Hugging Face's reader does") {
  struct packed {
    char const* dtype;
    char const* shape;
    std::size_t bytes;
    bool good;
  };
  for (auto const& [dtype, shape, bytes, good] : std::vector<packed>{{"F4", "[3]", 1, false},
                                                                     {"F4", "[3]", 2, false},
                                                                     {"F4", "[2,3]", 3, true},
                                                                     {"F4", "[]", 0, false},
                                                                     {"F4", "[]", 1, false},
                                                                     {"F4", "[0]", 0, true},
                                                                     {"F4", "[3,0]", 0, true},
                                                                     {"F6_E2M3", "[2]", 1, false},
                                                                     {"F6_E2M3", "[2]", 2, false},
                                                                     {"F6_E2M3", "[8]", 6, true},
                                                                     {"F6_E3M2", "[8]", 5, false},
                                                                     {"F4", "[9223372036854775807,2]", 0, false},
                                                                     {"F4", "[2305843009213693952]", 0, false}}) {
    INFO(dtype << " " << shape << " in " << bytes);
    auto const sentence = refusal(entry_file(entry_of(dtype, shape, bytes), counted(bytes)));
    CHECK(sentence.empty() == good);
  }
  CHECK(refused_for(entry_file(entry_of("F4", "[3]", 2), "ab"), "do not fill whole bytes"));
}

TEST_CASE("a file of old and new dtypes loads whole, its aliases as well") {
  auto const data = counted(16 + 4 + 2);
  auto const file = framed(R"({"__metadata__":{"alias:scale2":"scale"},"f":)" + entry_of("F32", "[4]", 16) + R"(,"scale":)" +
                               entry_of("F4", "[8]", 4, 16) + R"(,"q":)" + entry_of("F8_E4M3", "[2]", 2, 20) + "}",
                           data);
  auto const content = parsed(file);
  REQUIRE(content.tensors.size() == 4);
  CHECK(content.tensors.at("f").scalar_type() == at::kFloat);
  CHECK(content.tensors.at("scale2").is_same(content.tensors.at("scale")));
  CHECK(content.as_bytes.at("scale") == "F4");
  CHECK(content.as_bytes.at("scale2") == "F4");
  CHECK(content.as_bytes.contains("q") == is_missing("F8_E4M3"));
}

TEST_CASE("an empty or scalar tensor of a dtype that LibTorch lacks keeps its shape and has an element's bytes") {
  if (!is_missing("U64")) return;
  CHECK(parsed(entry_file(entry_of("U64", "[0,3]", 0), "")).tensors.at("w").sizes() == at::IntArrayRef({0, 3, 8}));
  CHECK(parsed(entry_file(entry_of("U64", "[]", 8), counted(8))).tensors.at("w").sizes() == at::IntArrayRef({8}));
  CHECK(parsed(entry_file(entry_of("F8_E4M3", "[]", 1), "x")).tensors.at("w").dim() == 0);
  std::string ones = "1";
  for (int i = 1; i < 64; ++i) ones += ",1";
  CHECK(refused_for(entry_file(entry_of("U64", "[" + ones + "]", 8), counted(8)), "64 dimensions"));
}

TEST_CASE("a mapped tensor of bytes needs no alignment and is not copied") {
  if (!is_missing("U64")) return;
  temporary_folder const folder;
  auto const path = folder.path / "x.safetensors";
  std::string header = "{\"w\":" + entry_of("U64", "[2]", 16) + "}";
  header += std::string((8 - header.size() % 8 + 1) % 8 + 8, ' ');  // data at an odd byte
  std::ofstream(path, std::ios::binary) << framed(header, counted(16));
  auto const content = keel::map_safetensors(path);
  CHECK(holds(content.tensors.at("w"), counted(16)));
  CHECK(reinterpret_cast<std::uintptr_t>(content.tensors.at("w").data_ptr()) % 8 != 0);
}
