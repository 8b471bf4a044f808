// The records of a TensorBoard event file, as specified in tensorflow/core/util/event.proto, framework/summary.proto, and
// lib/io/record_writer.cc for the framing. Each function returns the bytes of one record.
#pragma once

#include <cstdint>
#include <keel/libtorch/mode.hpp>
#include <span>
#include <string>
#include <string_view>

namespace keel::inline KEEL_MODE {

/// A histogram, which TensorBoard shows as a distribution.
struct histogram;

}  // namespace keel::inline KEEL_MODE

namespace keel::detail::inline KEEL_MODE {

/// Returns the CRC-32C (Castagnoli) of the bytes, masked as a record stores it. Masking is needed because a CRC of data that contains CRCs
/// is weak.
std::uint32_t masked_crc32c(std::string_view bytes);

/// Frames an event: `u64 length | u32 masked crc of the length | event | u32 masked crc of the event`, little-endian.
std::string framed(std::string_view event);

/// Returns the first record of a file. `seconds`, here and below, is the time since 1970.
std::string version_record(double seconds);
std::string scalar_record(double seconds, std::int64_t step, std::string_view tag, double value);
std::string histogram_record(double seconds, std::int64_t step, std::string_view tag, histogram const& values);
std::string text_record(double seconds, std::int64_t step, std::string_view tag, std::string_view words);
/// Returns a record that marks earlier values at `step` and later steps as abandoned.
std::string restart_record(double seconds, std::int64_t step);

}  // namespace keel::detail::inline KEEL_MODE

#ifndef KEEL_COMPILED
#include <keel/metrics/event_record.ipp>
#endif
