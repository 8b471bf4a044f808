// A second reader of TensorBoard event files, written from the specification and not from the writer: a CRC bit by bit, and fields of
// protocol buffers in the order in which they come.
#pragma once

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

#include "../support.hpp"

namespace keel_test {

inline std::uint32_t crc32c_by_bits(std::string const& bytes) {
  std::uint32_t crc = 0xffffffffU;
  for (char const byte : bytes) {
    crc ^= static_cast<unsigned char>(byte);
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1U) != 0 ? 0x82f63b78U : 0U);
  }
  return ~crc;
}
inline std::uint32_t masked(std::uint32_t crc) { return ((crc >> 15) | (crc << 17)) + 0xa282ead8U; }

template <class Number>
Number number_at(std::string const& bytes, std::size_t at) {
  if (at + sizeof(Number) > bytes.size()) throw std::runtime_error("a number beyond the end");
  Number value;
  std::memcpy(&value, bytes.data() + at, sizeof value);
  return value;
}

/// The fields of a message: by number, what stands there as bytes (a varint as its value).
struct message {
  std::multimap<int, std::string> bytes;
  std::multimap<int, std::uint64_t> integers;

  bool has(int field) const { return bytes.count(field) + integers.count(field) > 0; }
  message inner(int field) const { return message(bytes.find(field)->second); }
  std::string const& text(int field) const { return bytes.find(field)->second; }
  double number(int field) const { return number_at<double>(text(field), 0); }
  std::vector<double> numbers(int field) const {
    std::vector<double> all;
    for (std::size_t at = 0; at < text(field).size(); at += 8) all.push_back(number_at<double>(text(field), at));
    return all;
  }

  message() = default;
  explicit message(std::string const& from) {
    std::size_t at = 0;
    auto const varint = [&] {
      std::uint64_t value = 0;
      for (int shift = 0;; shift += 7) {
        auto const byte = number_at<unsigned char>(from, at++);
        value |= std::uint64_t{byte & 0x7fU} << shift;
        if (byte < 0x80) return value;
      }
    };
    while (at < from.size()) {
      std::uint64_t const key = varint();
      int const field = static_cast<int>(key >> 3);
      std::size_t length = 0;
      switch (key & 7U) {
        case 0: integers.emplace(field, varint()); continue;
        case 1: length = 8; break;
        case 2: length = varint(); break;
        case 5: length = 4; break;
        default: throw std::runtime_error("an unknown wire type");
      }
      if (at + length > from.size()) throw std::runtime_error("a field beyond the end");
      bytes.emplace(field, from.substr(at, length));
      at += length;
    }
  }
};

/// The events of a file up to its last whole record. Throws for a checksum that is wrong.
inline std::vector<message> events_in(std::string const& file) {
  std::vector<message> events;
  std::size_t at = 0;
  while (at + 12 <= file.size()) {
    auto const length = number_at<std::uint64_t>(file, at);
    if (number_at<std::uint32_t>(file, at + 8) != masked(crc32c_by_bits(file.substr(at, 8)))) throw std::runtime_error("length");
    if (at + 16 + length > file.size()) break;
    std::string const data = file.substr(at + 12, length);
    if (number_at<std::uint32_t>(file, at + 12 + length) != masked(crc32c_by_bits(data))) throw std::runtime_error("data");
    events.emplace_back(data);
    at += 16 + length;
  }
  return events;
}

/// What TensorBoard shows of a directory: by tag and step the last value, without what a restart dropped.
struct shown_board {
  std::map<std::string, std::map<std::int64_t, float>> scalars;
  std::map<std::string, std::map<std::int64_t, message>> histograms;
  std::map<std::string, std::map<std::int64_t, std::string>> texts;
  int files = 0;
};
/// `honours_restarts`: as TensorBoard's reader in Python; otherwise as its faster one, which knows no restarts, and drops of a tag what
/// stands at or above a step that comes again.
inline shown_board board_in(std::filesystem::path const& directory, bool honours_restarts = true) {
  std::vector<std::filesystem::path> files;
  for (auto const& entry : std::filesystem::directory_iterator(directory)) {
    if (entry.path().filename().string().find("tfevents") != std::string::npos) files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  shown_board board;
  board.files = static_cast<int>(files.size());
  auto const drop = [](auto& all, std::int64_t step) {
    for (auto& [tag, values] : all) values.erase(values.lower_bound(step), values.end());
  };
  for (auto const& file : files) {
    for (message const& event : events_in(read_file(file))) {
      auto const step = event.integers.count(2) == 0 ? 0 : static_cast<std::int64_t>(event.integers.find(2)->second);
      if (event.has(7) && honours_restarts) {
        drop(board.scalars, step);
        drop(board.histograms, step);
        drop(board.texts, step);
      }
      if (!event.has(5)) continue;
      message const value = event.inner(5).inner(1);
      if (value.has(2)) {
        auto& tag = board.scalars[value.text(1)];
        if (!honours_restarts) tag.erase(tag.lower_bound(step), tag.end());
        tag[step] = number_at<float>(value.text(2), 0);
      }
      if (value.has(5)) board.histograms[value.text(1)][step] = value.inner(5);
      if (value.has(8)) board.texts[value.text(1)][step] = value.inner(8).text(8);
    }
  }
  return board;
}

}  // namespace keel_test
