// manifest.json, the last file of a checkpoint to be written. It lists the files, their lengths, and the checksums of every
// file and tensor. The checksums are computed from the bytes in memory during the write, never by reading files back. The last
// line is the checksum of all text before it.
#pragma once

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <iterator>
#include <keel/checkpoint/checksum.hpp>
#include <keel/checkpoint/tensor_slice.hpp>
#include <keel/core/error.hpp>
#include <keel/json/text.hpp>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

namespace keel::inline KEEL_MODE {

struct file_record {
  std::uint64_t bytes = 0;
  std::string checksum;
  /// Only for safetensors files: the checksum of the bytes before the data, and below the checksums of all stored tensors.
  /// Together they cover the file, so that several threads can verify it.
  std::string header_checksum;
  std::map<std::string, std::string> tensor_checksums;
  slice_map slices;  ///< tensors of which the file has a slice, with one dimension; other files have the rest
};

struct manifest {
  static constexpr int format = 2;
  static constexpr int multi_rank_format = 3;  ///< has files written by ranks above 0
  static constexpr int sliced_format = 4;      ///< has slices of tensors
  std::int64_t update = 0;
  std::int64_t generation = 0;                       ///< number of rollbacks of the run so far
  std::int64_t attempt = 0;                          ///< number of updates attempted by the run so far
  std::string run;                                   ///< id of the run; empty in older checkpoints
  bool requested = false;                            ///< saved by request of a person or a signal, or at the end of the run
  std::vector<std::int64_t> best = {};               ///< updates of the best checkpoints at the time of this one
  std::string keel;                                  ///< version of keel that wrote it
  std::string libtorch;                              ///< version of LibTorch that wrote it
  nlohmann::json recipe = nlohmann::json::object();  ///< one entry per slot
  std::map<std::string, file_record> files;
};

}  // namespace keel::inline KEEL_MODE

namespace keel::detail::inline KEEL_MODE {

inline constexpr std::string_view manifest_seal = ",\n  \"xxh3\": \"";
inline constexpr std::string_view manifest_end = "\"\n}\n";

[[noreturn]] inline void throw_damaged_manifest(std::string const& name, std::string const& what) {
  throw checkpoint_error("E05", name + " " + what + ". Use an older checkpoint, and check the disk.");
}

/// Throws checkpoint_error (E17). A checkpoint of another version is not damaged and must not be skipped: this program cannot
/// continue the run.
[[noreturn]] inline void throw_unknown_format(std::string const& name, std::string const& format) {
  throw checkpoint_error("E17", name + " has format " + format + ", but this version of keel reads formats " +
                                    std::to_string(manifest::format) + " to " + std::to_string(manifest::sliced_format) +
                                    ". Use the version that wrote it, or use another run directory.");
}

inline nlohmann::json json_of(file_record const& record) {
  nlohmann::json entry = {{"bytes", record.bytes}, {"xxh3", record.checksum}};
  if (record.header_checksum.empty()) return entry;
  entry["header"] = record.header_checksum;
  entry["tensors"] = record.tensor_checksums;
  for (auto const& [name, slice] : record.slices) {
    // A string, which takes one line: there are as many as ranks and tensors.
    std::string numbers = std::to_string(slice.begin) + " " + std::to_string(slice.count);
    for (auto const* const list : {&slice.sizes, &slice.strides}) {
      for (std::int64_t const one : *list) numbers += " " + std::to_string(one);
    }
    entry["slices"][name] = numbers;
  }
  return entry;
}
/// Throws nlohmann::json::exception if `entry` does not have the structure that json_of writes.
inline file_record record_of_json(nlohmann::json const& entry) {
  file_record record;
  record.bytes = entry.at("bytes").get<std::uint64_t>();
  record.checksum = entry.at("xxh3").get<std::string>();
  if (entry.contains("tensors")) {
    record.header_checksum = entry.at("header").get<std::string>();
    record.tensor_checksums = entry.at("tensors").get<std::map<std::string, std::string>>();
  }
  if (entry.contains("slices")) {
    for (auto const& [name, slice] : entry["slices"].items()) {
      std::istringstream text(slice.get<std::string>());
      std::vector<std::int64_t> const numbers(std::istream_iterator<std::int64_t>(text), {});
      // check_slices() reports a list of another length.
      tensor_slice read;
      std::size_t const dimensions = std::max<std::size_t>(numbers.size() / 2, 1) - 1;
      for (std::size_t i = 2; i < numbers.size(); ++i) (i < 2 + dimensions ? read.sizes : read.strides).push_back(numbers[i]);
      if (numbers.size() >= 2) read.begin = numbers[0], read.count = numbers[1];
      record.slices.emplace(name, std::move(read));
    }
  }
  return record;
}

/// Returns the rank that wrote a file, parsed from its name: `model-1.safetensors`, `optimizer-1.safetensors`,
/// `state-1.safetensors`, or one of the temporary files of a save. Returns -1 for any other file.
inline int parse_rank_of_file(std::string_view name) {
  for (auto const& [begin, end] : {std::pair<std::string_view, std::string_view>{"model-", ".safetensors"},
                                   {"optimizer-", ".safetensors"},
                                   {"state-", ".safetensors"},
                                   {"rank-", ".json"},
                                   {"rank-", ".json.new"},
                                   {"rank-", ".alive"},
                                   {"rank-", ".sees"}}) {
    if (!name.starts_with(begin) || !name.ends_with(end) || name.size() <= begin.size() + end.size()) continue;
    std::string_view const digits = name.substr(begin.size(), name.size() - begin.size() - end.size());
    int rank = -1;
    auto const [stop, failed] = std::from_chars(digits.data(), digits.data() + digits.size(), rank);
    bool const is_number = failed == std::errc() && stop == digits.data() + digits.size();
    if (is_number && rank > 0 && std::to_string(rank) == digits) return rank;
  }
  return -1;
}

/// Returns what a checkpoint's file contains, by its name: "model", "optimizer" or "state".
inline std::string content_of_file(std::string_view name) { return std::string(name.substr(0, name.find_first_of("-."))); }

}  // namespace keel::detail::inline KEEL_MODE

namespace keel::inline KEEL_MODE {

/// The text of manifest.json.
inline std::string manifest_text(manifest const& of) {
  nlohmann::json files = nlohmann::json::object();
  int format = manifest::format;
  for (auto const& [name, record] : of.files) {
    files[name] = detail::json_of(record);
    if (detail::parse_rank_of_file(name) > 0) format = std::max(format, manifest::multi_rank_format);
    if (!record.slices.empty()) format = manifest::sliced_format;
  }
  nlohmann::json const all = {{"files", files},          {"extra", of.requested}, {"generation", of.generation},
                              {"format", format},        {"keel", of.keel},       {"best", of.best},
                              {"libtorch", of.libtorch}, {"recipe", of.recipe},   {"update", of.update},
                              {"attempt", of.attempt},   {"run", of.run}};
  std::string text = all.dump(2);
  text.resize(text.size() - 2);  // remove the line break and the brace
  std::string const digest = checksum_of(text);
  text += detail::manifest_seal;
  text += digest;
  text += detail::manifest_end;
  return text;
}

/// Throws checkpoint_error: E05 if the text differs in any bit from what was written, E17 for another format.
inline manifest parse_manifest(std::string const& text, std::string const& name) {
  using namespace detail;
  auto const fail = [&](std::string const& what) { throw_damaged_manifest(name, what); };
  auto const is_read = [](nlohmann::json const& format) {
    return format == manifest::format || format == manifest::multi_rank_format || format == manifest::sliced_format;
  };
  std::size_t const tail = manifest_seal.size() + 16 + manifest_end.size();
  std::string const body = text.substr(0, text.size() - std::min(tail, text.size()));
  if (text.substr(body.size()) != std::string(manifest_seal) + checksum_of(body) + std::string(manifest_end)) {
    // A manifest of another keel version is not damaged; report its format instead.
    try {
      nlohmann::json const other = parse_json(text);
      if (other.is_object() && !other.contains("xxh3") && other.contains("format") && !is_read(other["format"]))
        throw_unknown_format(name, other["format"].dump());
    } catch (json_text_error const&) {
      // Not JSON: damaged, reported below.
    }
    fail("is corrupted: its checksum does not match");
  }
  manifest read;
  try {
    nlohmann::json const all = parse_json(body + "\n}");
    if (!is_read(all.at("format"))) throw_unknown_format(name, all.at("format").dump());
    auto const integer = [&](nlohmann::json const& one) {
      if (!one.is_number_integer() || (one.is_number_unsigned() && one.get<std::uint64_t>() >> 63 != 0))
        fail("contains " + one.dump() + " where a count is expected");
      return one.get<std::int64_t>();
    };
    read.update = integer(all.at("update"));
    read.generation = integer(all.at("generation"));
    read.requested = all.at("extra").get<bool>();
    // Older checkpoints lack these fields.
    if (all.contains("attempt")) read.attempt = integer(all["attempt"]);
    if (all.contains("best")) {
      for (nlohmann::json const& one : all["best"]) read.best.push_back(integer(one));
    }
    read.run = all.value("run", std::string());
    read.keel = all.at("keel").get<std::string>();
    read.libtorch = all.at("libtorch").get<std::string>();
    read.recipe = all.at("recipe");
    for (auto const& [file, entry] : all.at("files").items()) {
      integer(entry.at("bytes"));
      read.files.emplace(file, record_of_json(entry));
    }
  } catch (json_text_error const& thrown) {
    fail(std::string("cannot be used: ") + thrown.what());
  } catch (nlohmann::json::exception const& thrown) {
    fail(std::string("is not a valid manifest (") + thrown.what() + ")");
  }
  return read;
}

}  // namespace keel::inline KEEL_MODE
