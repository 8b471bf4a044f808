// Files made by hand, and what the reader says of them.
#pragma once

#include "../support.hpp"

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <keel/checkpoint/safetensors.hpp>
#include <limits>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace safetensors_test {

using keel_test::same_bits;

inline std::string written(keel::tensor_map const& tensors, keel::string_map const& metadata = {}) {
  std::string file;
  keel::write_safetensors(tensors, metadata, [&](char const* bytes, std::size_t count) { file.append(bytes, count); });
  return file;
}

inline keel::safetensors_content parsed(std::string const& file) { return keel::parse_safetensors(file, "run/model.safetensors"); }

/// A file by hand: any header, any data.
inline std::string framed(std::string_view header, std::string_view data = {}) {
  std::uint64_t const length = header.size();
  std::string file(sizeof length, '\0');
  std::memcpy(file.data(), &length, sizeof length);
  return file.append(header).append(data);
}

inline std::string with_length(std::uint64_t length, std::string_view rest) {
  auto file = framed("", rest);
  std::memcpy(file.data(), &length, sizeof length);
  return file;
}

/// What the error says, without its end, which every error shares; empty if the file was accepted.
inline std::string refusal(std::string const& file) {
  try {
    parsed(file);
  } catch (keel::checkpoint_error const& error) {
    std::string const sentence = error.what();
    CHECK(error.id() == "E05");
    CHECK(sentence.find("run/model.safetensors") != std::string::npos);
    CHECK(sentence.find("use an older checkpoint") != std::string::npos);
    return sentence;
  }
  return {};
}

inline bool refused_for(std::string const& file, std::string const& reason) {
  auto const sentence = refusal(file);
  UNSCOPED_INFO("the sentence: " << sentence);
  return sentence.find(reason) != std::string::npos;
}

/// A header of one U8 tensor of four bytes, with its entry written by the caller.
inline std::string entry_file(std::string const& entry, std::string_view data = "abcd") {
  return framed("{\"w\":" + entry + "}", data);
}

inline at::Tensor random_bytes(at::ScalarType type, std::vector<std::int64_t> const& shape) {
  auto tensor = at::empty(shape, type);
  std::mt19937 random(7);
  auto* const bytes = static_cast<unsigned char*>(tensor.data_ptr());
  for (std::size_t i = 0; i < tensor.nbytes(); ++i)
    bytes[i] = static_cast<unsigned char>(random() % (type == at::kBool ? 2 : 256));
  return tensor;
}

/// Small, with every part that a header can have.
inline keel::tensor_map small_checkpoint() {
  auto const tied = at::arange(3, at::kFloat);
  return {{"a.weight", tied},
          {"b.weight", tied},
          {"empty", at::empty({0, 2}, at::kDouble)},
          {"flag", at::ones({2}, at::kBool)},
          {"step", at::full({}, 7, at::kLong)}};
}

/// Whatever is accepted must be consistent: readable to its last byte, and writable again.
inline bool refused_or_valid(std::string const& file) {
  try {
    auto const content = parsed(file);
    auto const again = parsed(written(content.tensors, content.metadata));
    bool same = again.tensors.size() == content.tensors.size();
    for (auto const& [name, tensor] : content.tensors) same = same && same_bits(tensor, again.tensors.at(name));
    return same;
  } catch (keel::checkpoint_error const& error) {
    return error.id() == "E05";
  }
}

struct temporary_folder {
  std::filesystem::path path;
  temporary_folder() {
    std::string name = (std::filesystem::temp_directory_path() / "keel-safetensors-XXXXXX").string();
    REQUIRE(::mkdtemp(name.data()) != nullptr);
    path = name;
  }
  ~temporary_folder() { std::filesystem::remove_all(path); }
  temporary_folder(temporary_folder const&) = delete;
  temporary_folder& operator=(temporary_folder const&) = delete;
};

}  // namespace safetensors_test
