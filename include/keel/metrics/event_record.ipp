// Definitions for event_record.hpp.
#pragma once

#include <bit>
#include <boost/crc.hpp>
#include <cstddef>
#include <keel/metrics/event_record.hpp>
#include <keel/metrics/histogram.hpp>
#include <limits>

#include <keel/libtorch/detail/body_begin.inc>

namespace keel::detail::inline KEEL_MODE {

// The part of protocol buffers that an event needs: a field is a key, number * 8 + wire type, and its value.
KEEL_BODY void put_varint(std::string& to, std::uint64_t value) {
  for (; value >= 0x80; value >>= 7) to += static_cast<char>(value | 0x80);
  to += static_cast<char>(value);
}
template <class Integer>
std::string little_endian(Integer value) {
  std::string bytes(sizeof value, '\0');
  for (char& byte : bytes) {
    byte = static_cast<char>(value & 0xff);
    value >>= 8;
  }
  return bytes;
}
KEEL_BODY void put_integer(std::string& to, int field, std::int64_t value) {
  put_varint(to, static_cast<std::uint64_t>(field) * 8);
  put_varint(to, static_cast<std::uint64_t>(value));
}
KEEL_BODY void put_double(std::string& to, int field, double value) {
  put_varint(to, static_cast<std::uint64_t>(field) * 8 + 1);
  to += little_endian(std::bit_cast<std::uint64_t>(value));
}
KEEL_BODY void put_float(std::string& to, int field, float value) {
  put_varint(to, static_cast<std::uint64_t>(field) * 8 + 5);
  to += little_endian(std::bit_cast<std::uint32_t>(value));
}
/// Writes a string, a nested message, or packed numbers.
KEEL_BODY void put_bytes(std::string& to, int field, std::string_view bytes) {
  put_varint(to, static_cast<std::uint64_t>(field) * 8 + 2);
  put_varint(to, bytes.size());
  to += bytes;
}
KEEL_BODY void put_doubles(std::string& to, int field, std::span<double const> values) {
  std::string bytes;
  bytes.reserve(values.size() * sizeof(double));
  for (double const value : values) bytes += little_endian(std::bit_cast<std::uint64_t>(value));
  put_bytes(to, field, bytes);
}

/// Converts to float; values beyond its range become infinite.
KEEL_BODY float narrowed(double value) {
  constexpr double largest = std::numeric_limits<float>::max();
  if (value > largest) return std::numeric_limits<float>::infinity();
  if (value < -largest) return -std::numeric_limits<float>::infinity();
  return static_cast<float>(value);
}

KEEL_BODY std::string event_at(double seconds, std::int64_t step) {
  std::string event;
  put_double(event, 1, seconds);
  if (step != 0) put_integer(event, 2, step);
  return event;
}
/// Returns an event with a summary of one value.
KEEL_BODY std::string summary_record(double seconds, std::int64_t step, std::string_view value) {
  std::string summary;
  put_bytes(summary, 1, value);
  std::string event = event_at(seconds, step);
  put_bytes(event, 5, summary);
  return framed(event);
}

KEEL_BODY std::uint32_t masked_crc32c(std::string_view bytes) {
  boost::crc_optimal<32, 0x1EDC6F41, 0xFFFFFFFF, 0xFFFFFFFF, true, true> crc;
  crc.process_bytes(bytes.data(), bytes.size());
  auto const sum = static_cast<std::uint32_t>(crc.checksum());
  return ((sum >> 15) | (sum << 17)) + 0xa282ead8U;
}

KEEL_BODY std::string framed(std::string_view event) {
  std::string record = little_endian(static_cast<std::uint64_t>(event.size()));
  record += little_endian(masked_crc32c(record));
  record += event;
  return record + little_endian(masked_crc32c(event));
}

KEEL_BODY std::string version_record(double seconds) {
  std::string event = event_at(seconds, 0);
  put_bytes(event, 3, "brain.Event:2");
  return framed(event);
}

KEEL_BODY std::string scalar_record(double seconds, std::int64_t step, std::string_view tag, double value) {
  std::string summary_value;
  put_bytes(summary_value, 1, tag);
  put_float(summary_value, 2, narrowed(value));
  return summary_record(seconds, step, summary_value);
}

KEEL_BODY std::string histogram_record(double seconds, std::int64_t step, std::string_view tag, histogram const& values) {
  std::string inner;
  put_double(inner, 1, values.min);
  put_double(inner, 2, values.max);
  put_double(inner, 3, values.count);
  put_double(inner, 4, values.sum);
  put_double(inner, 5, values.sum_of_squares);
  put_doubles(inner, 6, values.limits);
  put_doubles(inner, 7, values.counts);
  std::string summary_value;
  put_bytes(summary_value, 1, tag);
  put_bytes(summary_value, 5, inner);
  return summary_record(seconds, step, summary_value);
}

KEEL_BODY std::string text_record(double seconds, std::int64_t step, std::string_view tag, std::string_view words) {
  constexpr int string_type = 7;
  std::string shape;
  std::string dimension;
  put_integer(dimension, 1, 1);
  put_bytes(shape, 2, dimension);
  std::string tensor;
  put_integer(tensor, 1, string_type);
  put_bytes(tensor, 2, shape);
  put_bytes(tensor, 8, words);
  std::string plugin;
  put_bytes(plugin, 1, "text");
  std::string metadata;
  put_bytes(metadata, 1, plugin);
  std::string summary_value;
  put_bytes(summary_value, 1, tag);
  put_bytes(summary_value, 9, metadata);
  put_bytes(summary_value, 8, tensor);
  return summary_record(seconds, step, summary_value);
}

KEEL_BODY std::string restart_record(double seconds, std::int64_t step) {
  constexpr int start = 1;
  std::string session;
  put_integer(session, 1, start);
  std::string event = event_at(seconds, step);
  put_bytes(event, 7, session);
  return framed(event);
}

}  // namespace keel::detail::inline KEEL_MODE

#include <keel/libtorch/detail/body_end.inc>
