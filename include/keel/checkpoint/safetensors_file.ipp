// Definitions for safetensors_file.hpp.
#pragma once

#include <algorithm>
#include <keel/checkpoint/open_safetensors.hpp>
#include <keel/checkpoint/safetensors_file.hpp>
#include <keel/checkpoint/safetensors_reader.hpp>
#include <keel/core/error.hpp>
#include <keel/json/fields.hpp>
#include <utility>

#include <keel/libtorch/detail/body_begin.inc>

namespace keel::inline KEEL_MODE {

KEEL_BODY safetensors_file::safetensors_file(std::filesystem::path const& path) : path_(path) {
  file_system files;
  auto opened = detail::open_safetensors(files, path);
  file_ = std::move(opened.file);
  entries_ = std::move(opened.header.entries);
  metadata_ = std::move(opened.header.metadata);
  data_begin_ = opened.data_begin;
  for (std::size_t i = 0; i < entries_.size(); ++i) entry_of_.emplace(entries_[i].name, i);
  auto const aliases =
      detail::take_aliases(metadata_, path_.string(), [&](std::string const& name) { return entry_of_.contains(name); });
  for (auto const& [alias, target] : aliases) entry_of_.emplace(alias, entry_of_.at(target));
}

KEEL_BODY std::vector<std::string> safetensors_file::names() const {
  std::vector<std::string> all;
  all.reserve(entry_of_.size());
  for (auto const& [name, entry] : entry_of_) all.push_back(name);
  return all;
}

KEEL_BODY at::Tensor safetensors_file::rows(std::string const& name, std::int64_t begin, std::int64_t end) const {
  auto part = entry(name);
  auto const fail = [&](std::string const& what) {
    throw error("E12", "rows " + std::to_string(begin) + " to " + std::to_string(end) + " of " + detail::shown_name(name) +
                           " in " + path_.string() + " cannot be read: " + what + ".");
  };
  if (part.shape.empty()) fail("it is a scalar. Read it with tensor()");
  std::int64_t const count = part.shape[0];
  if (begin < 0 || end < begin || end > count)
    fail("it has " + std::to_string(count) +
         " rows. Begin and end must be between 0 and that number, and end must not be less than begin");
  if (part.begin < part.end) {
    // Offsets of packed elements are computed in bits; the header check has ruled out overflow.
    std::uint64_t const parts_of_byte = safetensors_dtypes[part.dtype].bits % 8 == 0 ? 1 : 8;
    std::uint64_t const row = (part.end - part.begin) * parts_of_byte / static_cast<std::uint64_t>(count);
    std::uint64_t const first = row * static_cast<std::uint64_t>(begin);
    std::uint64_t const last = row * static_cast<std::uint64_t>(end);
    if (first % parts_of_byte != 0 || last % parts_of_byte != 0)
      fail("its packed elements do not fill whole bytes there. Read other rows");
    part.end = part.begin + last / parts_of_byte;
    part.begin += first / parts_of_byte;
  }
  part.shape[0] = end - begin;
  return read(part);
}

KEEL_BODY safetensors_entry const& safetensors_file::entry(std::string const& name) const {
  auto const found = entry_of_.find(name);
  if (found == entry_of_.end()) throw_unknown_name(name);
  return entries_[found->second];
}

KEEL_BODY at::Tensor safetensors_file::read(safetensors_entry const& part) const {
  auto const file = path_.string();
  auto const form = detail::form_of(part, file);
  auto tensor = detail::memory_for(form, part, file, detail::read_slices_or_map);
  auto* const memory = static_cast<char*>(tensor.data_ptr());
  auto const count = static_cast<std::size_t>(part.end - part.begin);
  if (count == 0) return tensor;
  file_system files;
  if (files.read_at(file_, path_, memory, count, data_begin_ + part.begin) != count)
    detail::throw_damaged_safetensors(file, "it was truncated while it was read");
  detail::require_bools(part, memory, count, file);
  return tensor;
}

KEEL_BODY void safetensors_file::throw_unknown_name(std::string const& name) const {
  constexpr std::size_t max_shown = 5;
  constexpr std::size_t longest = 200;  // a longer name is malicious: the comparison takes quadratic time
  constexpr std::size_t most_compared = 20'000;
  std::size_t const near = std::max<std::size_t>(2, name.size() / 3);
  std::vector<std::pair<std::size_t, std::string>> shown;
  std::size_t compared = 0;
  for (auto const& [known, entry] : entry_of_) {
    if (name.size() > longest || known.size() > longest || known.size() > name.size() + near ||
        name.size() > known.size() + near)
      continue;
    if (++compared > most_compared) break;
    std::size_t const apart = detail::distance(name, known);
    if (apart <= near) shown.emplace_back(apart, known);
  }
  std::ranges::sort(shown);
  bool const close = !shown.empty();
  for (auto at = entry_of_.begin(); !close && at != entry_of_.end() && shown.size() < max_shown; ++at)
    shown.emplace_back(0, at->first);
  shown.resize(std::min(shown.size(), max_shown));
  std::string words = path_.string() + " contains no tensor " + detail::shown_name(name) + ". ";
  words += close ? "Similar names are" : shown.empty() ? "It is empty" : "Its first names are";
  for (char const* comma = " "; auto const& [apart, known] : shown) {
    words += comma + detail::shown_name(known);
    comma = ", ";
  }
  throw checkpoint_error("E04", words + "; names() lists all " + std::to_string(entry_of_.size()) + ".");
}

}  // namespace keel::inline KEEL_MODE

#include <keel/libtorch/detail/body_end.inc>
