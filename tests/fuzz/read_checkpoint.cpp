// What reads bytes of a checkpoint, given any bytes: a value or one of keel's exceptions, and nothing else. Built for libFuzzer
// with the address and undefined-behaviour sanitizers. The first byte says which reader.
#include <ATen/core/ivalue.h>  // first: clang cannot parse LibTorch 1.13 in another order

#include <cstdint>
#include <keel/checkpoint/manifest.hpp>
#include <keel/checkpoint/safetensors.hpp>
#include <span>
#include <string>

namespace {

/// A checksum that a flipped bit never matches would keep the fuzzer out of everything behind it.
std::string sealed(std::string const& body) {
  return body + std::string(keel::detail::manifest_seal) + keel::checksum_of(body) + std::string(keel::detail::manifest_end);
}

void read_tensors(std::span<char const> bytes) {
  auto const content = keel::parse_safetensors(bytes, "fuzzed");
  std::string again;
  keel::write_safetensors(content.tensors, {}, [&](char const* at, std::size_t count) { again.append(at, count); });
  auto const back = keel::parse_safetensors(again, "written again");
  if (back.tensors.size() != content.tensors.size()) __builtin_trap();
  for (auto const& [name, tensor] : content.tensors) {
    auto const found = back.tensors.find(name);
    if (found == back.tensors.end() || found->second.sizes() != tensor.sizes()) __builtin_trap();
    if (tensor.nbytes() > 0 && std::memcmp(tensor.data_ptr(), found->second.data_ptr(), tensor.nbytes()) != 0) __builtin_trap();
  }
}

void read_manifest(std::string const& text) {
  auto const all = keel::parse_manifest(text, "fuzzed");
  auto const back = keel::parse_manifest(keel::manifest_text(all), "written again");
  if (back.update != all.update || back.files.size() != all.files.size()) __builtin_trap();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(std::uint8_t const* data, std::size_t size) {
  if (size == 0) return 0;
  std::string const bytes(reinterpret_cast<char const*>(data) + 1, size - 1);
  try {
    if (data[0] % 3 == 0) read_tensors(bytes);
    if (data[0] % 3 == 1) read_manifest(bytes);
    if (data[0] % 3 == 2) read_manifest(sealed(bytes));
  } catch (keel::error const&) {
    // Refused in words.
  }
  return 0;
}
