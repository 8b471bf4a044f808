// Text as tokens: one token a character, and the characters are those of the text.
#pragma once

#include <ATen/ATen.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <keel/core/error.hpp>
#include <string>
#include <vector>

namespace char_gpt {

inline constexpr char const* licenses = "/usr/share/common-licenses";

inline std::string read_text(std::filesystem::path const& path) {
  std::ifstream file(path, std::ios::binary);
  std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  if (!file.good() && !file.eof()) {
    throw keel::file_error("E02", "cannot read the text " + path.string() + ". Name a readable file with --text.");
  }
  return text;
}

/// A file, or all regular files of a folder in the order of their names; links are left out, so that no text comes twice.
inline std::string read_corpus(std::filesystem::path const& path) {
  std::error_code code;
  if (!std::filesystem::is_directory(path, code)) return read_text(path);
  std::vector<std::filesystem::path> files;
  std::filesystem::directory_iterator const entries(path, code);
  if (code) throw keel::file_error("E02", "cannot read the folder " + path.string() + ". Name a readable one with --text.");
  for (auto const& entry : entries) {
    if (entry.is_regular_file() && !entry.is_symlink()) files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  std::string text;
  for (auto const& file : files) text += read_text(file) + "\n";
  return text;
}

/// The distinct bytes of a text, numbered.
class vocabulary {
 public:
  explicit vocabulary(std::string const& text) {
    id_of_.fill(-1);
    std::array<bool, 256> seen{};
    for (unsigned char const letter : text) seen[letter] = true;
    for (int letter = 0; letter < 256; ++letter) {
      if (!seen[static_cast<std::size_t>(letter)]) continue;
      id_of_[static_cast<std::size_t>(letter)] = static_cast<std::int64_t>(letters_.size());
      letters_.push_back(static_cast<char>(letter));
    }
  }

  std::int64_t size() const { return static_cast<std::int64_t>(letters_.size()); }

  /// int64 of shape [length].
  at::Tensor encode(std::string const& text) const {
    at::Tensor tokens = at::empty({static_cast<std::int64_t>(text.size())}, at::kLong);
    auto* const out = tokens.data_ptr<std::int64_t>();
    for (std::size_t i = 0; i < text.size(); ++i) {
      out[i] = id_of_[static_cast<unsigned char>(text[i])];
      if (out[i] < 0) {
        throw keel::data_error("E06", "byte " + std::to_string(static_cast<unsigned char>(text[i])) +
                                          " is not in the vocabulary. Take a prompt from the characters of the text.");
      }
    }
    return tokens;
  }

  char letter(std::int64_t id) const { return letters_.at(static_cast<std::size_t>(id)); }

 private:
  std::string letters_;
  std::array<std::int64_t, 256> id_of_{};
};

/// The first nine tenths to train on, the rest to measure with.
struct split {
  at::Tensor train;
  at::Tensor validation;
};

/// Throws data_error if the text is too short for windows of `context` characters.
inline split split_tokens(at::Tensor const& tokens, std::int64_t context, std::string const& name) {
  std::int64_t const cut = tokens.numel() * 9 / 10;
  if (tokens.numel() - cut <= context) {
    throw keel::data_error("E06", name + " has " + std::to_string(tokens.numel()) + " characters, too few for windows of " +
                                      std::to_string(context) + ". Give --text a longer file, some 100 kB or more.");
  }
  return {tokens.slice(0, 0, cut), tokens.slice(0, cut)};
}

}  // namespace char_gpt
