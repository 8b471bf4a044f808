// The records of a TensorBoard event file, by their specification: tensorflow/core/util/event.proto, framework/summary.proto, and
// lib/io/record_writer.cc for how a record is framed. Each function returns the bytes of one record.
#pragma once

#include <cstdint>
#include <keel/libtorch/mode.hpp>
#include <span>
#include <string>
#include <string_view>

namespace keel::inline KEEL_MODE {

/// Counts of values in buckets, the form in which TensorBoard shows a distribution.
struct histogram;

}  // namespace keel::inline KEEL_MODE

namespace keel::detail::inline KEEL_MODE {

/// CRC-32C (Castagnoli) of the bytes, masked as a record stores it: a checksum of bytes that hold checksums would be weak.
std::uint32_t masked_crc32c(std::string_view bytes);

/// `u64 length | u32 masked crc of it | event | u32 masked crc of that`, little-endian.
std::string framed(std::string_view event);

/// The first record of a file. `seconds`, here and below, since 1970.
std::string version_record(double seconds);
std::string scalar_record(double seconds, std::int64_t step, std::string_view tag, double value);
std::string histogram_record(double seconds, std::int64_t step, std::string_view tag, histogram const& values);
std::string text_record(double seconds, std::int64_t step, std::string_view tag, std::string_view words);
/// Says that the run abandoned what earlier records have of `step` and of later steps.
std::string restart_record(double seconds, std::int64_t step);

}  // namespace keel::detail::inline KEEL_MODE

#ifndef KEEL_COMPILED
#include <keel/metrics/event_record.ipp>
#endif
