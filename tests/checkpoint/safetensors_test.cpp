// Promises of the safetensors reader and writer. Numbers in brackets are the rows of shared/formats.md.
// clang-format off: the prelude comes first
#include "../prelude.hpp"
// clang-format on

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

namespace {

std::string written(keel::tensor_map const& tensors, keel::string_map const& metadata = {}) {
  std::string file;
  keel::write_safetensors(tensors, metadata, [&](char const* bytes, std::size_t count) { file.append(bytes, count); });
  return file;
}

keel::safetensors_content parsed(std::string const& file) { return keel::parse_safetensors(file, "run/model.safetensors"); }

/// A file by hand: any header, any data.
std::string framed(std::string_view header, std::string_view data = {}) {
  std::uint64_t const length = header.size();
  std::string file(sizeof length, '\0');
  std::memcpy(file.data(), &length, sizeof length);
  return file.append(header).append(data);
}

std::string with_length(std::uint64_t length, std::string_view rest) {
  auto file = framed("", rest);
  std::memcpy(file.data(), &length, sizeof length);
  return file;
}

/// What the error says, without its end, which every error shares; empty if the file was accepted.
std::string refusal(std::string const& file) {
  try {
    parsed(file);
  } catch (keel::checkpoint_error const& error) {
    std::string const sentence = error.what();
    CHECK(error.id() == "E05");
    CHECK(sentence.find("run/model.safetensors") != std::string::npos);
    CHECK(sentence.find("take an older checkpoint") != std::string::npos);
    return sentence;
  }
  return {};
}

bool refused_for(std::string const& file, std::string const& reason) {
  auto const sentence = refusal(file);
  UNSCOPED_INFO("the sentence: " << sentence);
  return sentence.find(reason) != std::string::npos;
}

/// A header of one U8 tensor of four bytes, with its entry written by the caller.
std::string entry_file(std::string const& entry, std::string_view data = "abcd") {
  return framed("{\"w\":" + entry + "}", data);
}

bool same_bits(at::Tensor const& left, at::Tensor const& right) {
  auto const a = left.contiguous();
  auto const b = right.contiguous();
  return a.scalar_type() == b.scalar_type() && a.sizes() == b.sizes() &&
         (a.nbytes() == 0 || std::memcmp(a.data_ptr(), b.data_ptr(), a.nbytes()) == 0);
}

at::Tensor random_bytes(at::ScalarType type, std::vector<std::int64_t> const& shape) {
  auto tensor = at::empty(shape, type);
  std::mt19937 random(7);
  auto* const bytes = static_cast<unsigned char*>(tensor.data_ptr());
  for (std::size_t i = 0; i < tensor.nbytes(); ++i)
    bytes[i] = static_cast<unsigned char>(random() % (type == at::kBool ? 2 : 256));
  return tensor;
}

/// Small, with every part that a header can have.
keel::tensor_map small_checkpoint() {
  auto const tied = at::arange(3, at::kFloat);
  return {{"a.weight", tied},
          {"b.weight", tied},
          {"empty", at::empty({0, 2}, at::kDouble)},
          {"flag", at::ones({2}, at::kBool)},
          {"step", at::full({}, 7, at::kLong)}};
}

/// Whatever is accepted must be consistent: readable to its last byte, and writable again.
bool refused_or_valid(std::string const& file) {
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

}  // namespace

TEST_CASE("every dtype and shape comes back with the same bits") {
  keel::tensor_map tensors;
  for (std::size_t i = 0; i < keel::safetensors_dtypes.size(); ++i) {
    auto const type = keel::detail::safetensors_scalar_types[i];
    std::string const name(keel::safetensors_dtypes[i].name);
    CHECK(c10::elementSize(type) == keel::safetensors_dtypes[i].bytes);
    tensors[name + ".matrix"] = random_bytes(type, {3, 5});  // random bits: NaNs of every payload among them
    tensors[name + ".scalar"] = random_bytes(type, {});
    tensors[name + ".empty"] = at::empty({0}, type);
    tensors[name + ".zero_dimension"] = at::empty({2, 0, 3}, type);
    tensors[name + ".transposed"] = random_bytes(type, {4, 3}).t();
    tensors[name + ".strided"] = random_bytes(type, {9}).slice(0, 1, 9, 3);
    tensors[name + ".expanded"] = random_bytes(type, {1, 2}).expand({3, 2});
  }
  auto const content = parsed(written(tensors));
  REQUIRE(content.tensors.size() == tensors.size());
  for (auto const& [name, tensor] : tensors) {
    INFO(name);
    CHECK(same_bits(tensor, content.tensors.at(name)));
    CHECK(content.tensors.at(name).is_contiguous());
  }
}

TEST_CASE("NaN and infinity come back with the same bits") {  // [15]
  double const nan = std::numeric_limits<double>::quiet_NaN();
  double const infinity = std::numeric_limits<double>::infinity();
  auto const values = at::tensor({nan, -nan, infinity, -infinity, -0.0}, at::kDouble);
  for (auto const type : {at::kDouble, at::kFloat, at::kHalf, at::kBFloat16}) {
    auto const tensor = values.to(type);
    CHECK(same_bits(tensor, parsed(written({{"x", tensor}})).tensors.at("x")));
  }
}

TEST_CASE("lazily conjugated, channels-last and gradient-carrying tensors are stored as their values") {
  auto const complex = at::rand({4}, at::kComplexFloat);
  auto const image = at::rand({2, 3, 4, 4}).contiguous(at::MemoryFormat::ChannelsLast);
  auto const leaf = at::rand({3}).requires_grad_(true);
  auto const loaded = parsed(written({{"c", complex}, {"conj", complex.conj()}, {"image", image}, {"leaf", leaf}})).tensors;
  CHECK(at::equal(loaded.at("conj"), complex.conj().resolve_conj()));
  CHECK(at::equal(loaded.at("image"), image));
  CHECK(loaded.at("image").is_contiguous());
  CHECK_FALSE(loaded.at("leaf").requires_grad());
}

TEST_CASE("two names of one tensor are stored once and loaded as one tensor") {  // [16]
  auto const weight = at::rand({100, 10});
  auto const file =
      written({{"embedding", weight}, {"head", weight.view({100, 10})}, {"view", weight.t()}, {"zcopy", weight.clone()}});
  auto const once = written({{"embedding", weight}, {"view", weight.t()}, {"zcopy", weight.clone()}});
  CHECK(file.find("\"alias:head\":\"embedding\"") != std::string::npos);
  CHECK(file.size() < once.size() + 200);
  auto const content = parsed(file);
  CHECK(content.tensors.size() == 4);
  CHECK(content.tensors.at("head").is_same(content.tensors.at("embedding")));
  CHECK_FALSE(content.tensors.at("view").is_alias_of(content.tensors.at("embedding")));
  CHECK_FALSE(content.tensors.at("zcopy").is_alias_of(content.tensors.at("embedding")));
  CHECK(at::equal(content.tensors.at("view"), weight.t()));
  CHECK(content.metadata == keel::string_map{{"format", "pt"}});
}

TEST_CASE("loaded tensors own their memory") {
  auto file = written({{"x", at::arange(4)}});
  auto const content = parsed(file);
  std::fill(file.begin(), file.end(), '\xff');
  CHECK(at::equal(content.tensors.at("x"), at::arange(4)));
}

TEST_CASE("a written file begins its data at a multiple of 64, widest elements first, then by name") {  // [4] [10]
  for (std::size_t length = 1; length < 130; ++length) {
    auto const file = written({{std::string(length, 'n'), at::zeros({3}, at::kByte)}});
    CHECK((file.size() - 3) % 64 == 0);
    CHECK(file[8] == '{');
  }
  auto const file = written({{"a", at::ones({1}, at::kByte)},
                             {"d", at::ones({1}, at::kDouble)},
                             {"c", at::ones({1}, at::kDouble)},
                             {"b", at::ones({1}, at::kHalf)}});
  auto const at = [&](char const* name) { return file.find("\"" + std::string(name) + "\":{"); };
  CHECK(at("c") < at("d"));
  CHECK(at("d") < at("b"));
  CHECK(at("b") < at("a"));
}

TEST_CASE("metadata comes back, and says format pt whatever the caller says") {  // [6]
  keel::string_map const metadata{{"recipe", "line\n\"quoted\" \xc3\xa4 \xf0\x9f\x98\x80"}, {"", ""}, {"format", "np"}};
  auto expected = metadata;
  expected["format"] = "pt";
  CHECK(parsed(written({}, metadata)).metadata == expected);
  CHECK(parsed(written({})).tensors.empty());
}

TEST_CASE("names of any UTF-8 come back") {
  keel::tensor_map const tensors{
      {"", at::ones({1})}, {std::string("nul\0byte", 8), at::zeros({2})}, {"\xe2\x82\xac\"\\\n", at::ones({3})}};
  auto const loaded = parsed(written(tensors)).tensors;
  for (auto const& [name, tensor] : tensors) CHECK(at::equal(loaded.at(name), tensor));
}

TEST_CASE("a tensor that cannot be saved is named and nothing is written") {
  std::vector<std::pair<at::Tensor, std::string>> const bad{{at::Tensor(), "undefined"},
                                                            {at::ones({2, 2}).to_sparse(), "sparse"},
                                                            {at::ones({2}, at::kComplexDouble), "ComplexDouble"},
                                                            {at::ones({2}, at::TensorOptions().device(at::kMeta)), "memory"},
                                                            {at::full({2}, 2, at::kByte).view(at::kBool), "other than 0 and 1"},
                                                            {at::ones(std::vector<std::int64_t>(65, 1)), "shape"}};
  for (auto const& [tensor, reason] : bad) {
    std::size_t calls = 0;
    try {
      keel::write_safetensors({{"a", at::ones({1})}, {"layer.7", tensor}}, {}, [&](char const*, std::size_t) { ++calls; });
      FAIL_CHECK("accepted: " << reason);
    } catch (keel::data_error const& error) {
      CHECK(std::string(error.what()).find("'layer.7'") != std::string::npos);
      CHECK(std::string(error.what()).find(reason) != std::string::npos);
    }
    CHECK(calls == 0);
  }
  CHECK_THROWS_AS(written({{"__metadata__", at::ones({1})}}), keel::data_error);
  CHECK_THROWS_AS(written({{"\xff", at::ones({1})}}), keel::data_error);
  CHECK_THROWS_AS(written({}, {{"key", "\xc3"}}), keel::data_error);
  CHECK_THROWS_AS(written({}, {{"alias:x", "y"}}), keel::data_error);
}

TEST_CASE("a safetensors file whose length or header is out of bounds is refused") {  // [1] [2]
  for (std::size_t size = 0; size < 8; ++size) CHECK(refused_for(std::string(size, '\0'), "fewer than 8 bytes"));
  CHECK(refused_for(with_length(0, ""), "not a JSON object"));
  CHECK(refused_for(with_length(0, "{}"), "not a JSON object"));
  CHECK(refused_for(with_length(3, "{}"), "past the end"));
  CHECK(refused_for(with_length(100'000'000, "{}"), "past the end"));
  CHECK(refused_for(with_length(100'000'001, "{}"), "100,000,000"));
  for (std::uint64_t k = 1; k < 20; ++k) CHECK(refused_for(with_length(0 - k, "{}"), "100,000,000"));  // 8 + N overflows
}

TEST_CASE("a header that is not one JSON object in UTF-8 is refused") {  // [2]
  CHECK(refusal(framed("{}")).empty());
  for (auto const* header : {"[]", "null", "7", "\"x\"", "\xef\xbb\xbf{}", "x{}", "//c\n{}"})
    CHECK(refused_for(framed(header), "not a JSON object"));
  for (auto const* header :
       {"{}{}", "{},{}", "{/**/}", "{'a':1}", "{\"__metadata__\":{},}", "{\"a\"}", "{}}", "{\"__metadata__\":{}}}"})
    CHECK(refused_for(framed(header), "not JSON"));
  for (auto const* bytes : {"\xff", "\xc3", "\xc0\x80", "\xed\xa0\x80", "\xf4\x90\x80\x80", "\\ud800", "\x01", "\n", "\\x"}) {
    INFO(bytes);
    CHECK(refused_for(framed("{\"__metadata__\":{\"k\":\"" + std::string(bytes) + "\"}}"), "not JSON"));
    CHECK(refused_for(framed("{\"" + std::string(bytes) + "\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}}"),
                      "not JSON"));
  }
}

TEST_CASE("white space before the header is accepted, padding after it is spaces only") {  // [3] [4]
  CHECK(refusal(framed(" \t\r\n{}")).empty());
  CHECK(refusal(framed("{}     ")).empty());
  CHECK(refused_for(framed({"{}\0", 3}), "} and spaces"));
  CHECK(refused_for(framed({"{} \0 ", 5}), "} and spaces"));
  CHECK(refused_for(framed({"{}\0}", 4}), "NUL"));
  CHECK(refused_for(framed({"{\0}", 3}), "NUL"));
  CHECK(refused_for(framed("{}\n"), "} and spaces"));
  CHECK(refused_for(framed("{} x"), "} and spaces"));
  CHECK(refused_for(framed("     "), "not a JSON object"));
}

TEST_CASE("a name, field or metadata key that appears twice is refused") {  // [5]
  std::string const entry = R"({"dtype":"U8","shape":[0],"data_offsets":[0,0]})";
  CHECK(refused_for(framed("{\"w\":" + entry + ",\"w\":" + entry + "}"), "'w' twice"));
  CHECK(refused_for(framed("{\"w\":" + entry + ",\"v\":" + entry + ",\"\\u0077\":" + entry + "}"), "'w' twice"));
  CHECK(refused_for(framed(R"({"__metadata__":{},"__metadata__":{}})"), "twice"));
  CHECK(refused_for(framed(R"({"__metadata__":{"a":"1","a":"1"}})"), "twice"));
  CHECK(refused_for(entry_file(R"({"dtype":"U8","dtype":"U8","shape":[4],"data_offsets":[0,4]})"), "twice"));
  CHECK(refused_for(entry_file(R"({"dtype":"U8","shape":[4],"shape":[4],"data_offsets":[0,4]})"), "twice"));
  CHECK(refused_for(entry_file(R"({"dtype":"U8","shape":[4],"data_offsets":[0],"data_offsets":[4]})"), "twice"));
}

TEST_CASE("metadata other than strings or null is refused") {  // [6]
  CHECK(parsed(framed(R"({"__metadata__":null})")).metadata.empty());
  CHECK(parsed(framed(R"({"__metadata__":{"a":"b"}})")).metadata.at("a") == "b");
  for (auto const* value : {"7", "\"x\"", "[]", "true", "1.5", "-1"})
    CHECK(refused_for(framed("{\"__metadata__\":" + std::string(value) + "}"), "wrong place"));
  for (auto const* value : {"7", "null", "[]", "{}", "true", "1.5", "-1"})
    CHECK(refused_for(framed("{\"__metadata__\":{\"a\":" + std::string(value) + "}}"), "wrong place"));
}

TEST_CASE("unknown fields of an entry are ignored, whatever they hold") {  // [7]
  for (auto const* value :
       {"null", "-1", "4.5", "\"s\"", "[]", "{}", "[[{\"dtype\":[1,{}]}],2]", "{\"shape\":{\"data_offsets\":null}}"}) {
    INFO(value);
    std::string const field = "\"extra\":" + std::string(value);
    CHECK(refusal(entry_file("{" + field + R"(,"dtype":"U8","shape":[4],"data_offsets":[0,4]})")).empty());
    CHECK(refusal(entry_file(R"({"dtype":"U8","shape":[4],)" + field + R"(,"data_offsets":[0,4]})")).empty());
    CHECK(refusal(entry_file(R"({"dtype":"U8","shape":[4],"data_offsets":[0,4],)" + field + "}")).empty());
  }
}

TEST_CASE("a dtype that keel cannot load is named") {  // [8]
  for (auto const* dtype : {"F8_E4M3", "F8_E5M2", "U16", "U64", "F4", "f32", "", "F32 "}) {
    auto const file = entry_file(R"({"dtype":")" + std::string(dtype) + R"(","shape":[1],"data_offsets":[0,4]})");
    CHECK(refused_for(file, "'w' of dtype '" + std::string(dtype) + "'"));
  }
}

TEST_CASE("an entry without its fields or with fields of another kind is refused") {  // [9]
  for (auto const* entry : {"{}", "null", "7", "\"x\"", "[]", R"({"dtype":"U8","shape":[4]})",
                            R"({"dtype":"U8","data_offsets":[0,4]})", R"({"shape":[4],"data_offsets":[0,4]})"})
    CHECK_FALSE(refusal(entry_file(entry)).empty());
  for (auto const* dtype : {"null", "7", "[]", "[\"U8\"]", "{}", "true"})
    CHECK_FALSE(refusal(entry_file("{\"dtype\":" + std::string(dtype) + R"(,"shape":[4],"data_offsets":[0,4]})")).empty());
  for (auto const* shape : {"null",
                            "4",
                            "\"4\"",
                            "{}",
                            "[-4]",
                            "[4.0]",
                            "[4e0]",
                            "[\"4\"]",
                            "[null]",
                            "[true]",
                            "[[4]]",
                            "[{}]",
                            "[-0]",
                            "[04]",
                            "[18446744073709551616]",
                            "[18446744073709551615]",
                            "[9223372036854775808]",
                            "[5]",
                            "[]",
                            "[2,1]"}) {
    INFO(shape);
    CHECK_FALSE(refusal(entry_file(R"({"dtype":"U8","shape":)" + std::string(shape) + R"(,"data_offsets":[0,4]})")).empty());
  }
  for (auto const* offsets : {"null", "4", "\"0,4\"", "{}", "[]", "[0]", "[4]", "[0,4,4]", "[0,4.0]", "[-0,4]", "[0,-4]",
                              "[0,\"4\"]", "[[0,4]]", "[0,[4]]", "[0,18446744073709551620]"}) {
    INFO(offsets);
    CHECK_FALSE(refusal(entry_file(R"({"dtype":"U8","shape":[4],"data_offsets":)" + std::string(offsets) + "}")).empty());
  }
}

TEST_CASE("a shape or offsets that overflow are refused") {  // [9]
  for (auto const* shape :
       {"[4294967296,4294967296]", "[4294967296,4294967296,0]", "[0,4294967296,4294967296]", "[9223372036854775807,2]",
        "[4611686018427387904]", "[4611686018427387905]", "[3037000500,3037000500]"}) {
    INFO(shape);
    for (auto const* offsets : {"[0,0]", "[0,4]", "[0,18446744073709551615]", "[18446744073709551612,0]"}) {
      auto const file = entry_file(R"({"dtype":"F32","shape":)" + std::string(shape) + ",\"data_offsets\":" + offsets + "}");
      CHECK_FALSE(refusal(file).empty());
    }
  }
  CHECK(refused_for(framed(R"({"a":{"dtype":"U8","shape":[9223372036854775807],"data_offsets":[0,9223372036854775807]},)"
                           R"("b":{"dtype":"U8","shape":[1],"data_offsets":[9223372036854775807,9223372036854775808]}})",
                           "abcd"),
                    "end at byte"));
}

TEST_CASE("holes, overlaps and tensors that do not reach the end are refused") {  // [10] [11] [12]
  auto const pair = [](std::string const& a, std::string const& b, std::string_view data) {
    return framed(R"({"b":{"dtype":"U8","shape":[2],"data_offsets":)" + b +
                      R"(},"a":{"dtype":"U8","shape":[2],"data_offsets":)" + a + "}}",
                  data);
  };
  CHECK(refusal(pair("[0,2]", "[2,4]", "abcd")).empty());
  CHECK(refusal(pair("[2,4]", "[0,2]", "abcd")).empty());
  CHECK(refused_for(pair("[0,2]", "[3,5]", "abcde"), "hole"));  // a polyglot hides another format in the hole
  CHECK(refused_for(pair("[1,3]", "[3,5]", "abcde"), "hole"));
  CHECK(refused_for(pair("[0,2]", "[1,3]", "abc"), "overlap"));
  CHECK(refused_for(pair("[0,2]", "[0,2]", "ab"), "overlap"));
  CHECK(refused_for(pair("[2,0]", "[2,4]", "abcd"), "backwards"));
  CHECK(refused_for(pair("[0,3]", "[3,4]", "abcd"), "do not fit"));
  CHECK(refused_for(pair("[0,2]", "[2,4]", "abc"), "end at byte"));
  CHECK(refused_for(pair("[0,2]", "[2,4]", "abcde"), "end at byte"));
  CHECK(refused_for(framed("{}", "a"), "end at byte"));
}

TEST_CASE("scalars and empty tensors are accepted wherever their offsets fit") {  // [13]
  auto const content = parsed(framed(R"({"x":{"dtype":"I16","shape":[],"data_offsets":[0,2]},"e":{"dtype":"F64","shape":[3,0],)"
                                     R"("data_offsets":[2,2]},"d":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}})",
                                     {"\x07\0", 2}));
  CHECK(content.tensors.at("x").item<std::int16_t>() == 7);
  CHECK(content.tensors.at("e").sizes() == at::IntArrayRef({3, 0}));
  CHECK(refused_for(framed(R"({"e":{"dtype":"U8","shape":[0],"data_offsets":[1,1]}})", "a"), "hole"));
}

TEST_CASE("JSON deeper than eight levels is refused, however deep") {  // [14]
  auto const nested = [](std::size_t levels) {
    return entry_file("{\"x\":" + std::string(levels, '[') + std::string(levels, ']') +
                      R"(,"dtype":"U8","shape":[4],"data_offsets":[0,4]})");
  };
  CHECK(refusal(nested(6)).empty());
  CHECK(refused_for(nested(7), "8 levels"));
  CHECK(refused_for(nested(1'000'000), "8 levels"));
  CHECK_FALSE(refusal(framed(std::string(1'000'000, '{') + "}")).empty());
}

TEST_CASE("many names on the same bytes, many dimensions and long names are refused or cost no more than their text") {  // [17]
  std::string names = "{";
  for (int i = 0; i < 50'000; ++i)
    names += (i == 0 ? "\"" : ",\"") + std::to_string(i) + R"(":{"dtype":"U8","shape":[4],"data_offsets":[0,4]})";
  CHECK(refused_for(framed(names + "}", "abcd"), "overlap"));
  std::string ones = "1";
  for (int i = 0; i < 100'000; ++i) ones += ",1";
  CHECK(refused_for(entry_file(R"({"dtype":"U8","shape":[)" + ones + R"(],"data_offsets":[0,4]})"), "64 dimensions"));
  std::string const name(1'000'000, 'n');
  auto const sentence = refusal(framed("{\"" + name + "\":7}"));
  CHECK(sentence.find("nnn..'") != std::string::npos);
  CHECK(sentence.size() < 400);
}

TEST_CASE("a control character of a hostile name does not reach the terminal") {
  CHECK(refused_for(framed(R"({"\u001b[2J":7})"), "'?[2J'"));
}

TEST_CASE("bytes that are no bool are refused") {
  CHECK(refusal(entry_file(R"({"dtype":"BOOL","shape":[4],"data_offsets":[0,4]})", {"\0\1\1\0", 4})).empty());
  CHECK(refused_for(entry_file(R"({"dtype":"BOOL","shape":[4],"data_offsets":[0,4]})", {"\0\1\2\0", 4}), "other than 0 and 1"));
}

TEST_CASE("an alias of a tensor that is not stored is refused, and so is one that hides a tensor") {  // [16]
  auto const file = [](std::string const& aliases) {
    return framed("{\"__metadata__\":{" + aliases + R"(},"w":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}})", "abcd");
  };
  CHECK(parsed(file(R"("alias:v":"w")")).tensors.size() == 2);
  CHECK(refused_for(file(R"("alias:v":"x")"), "does not hold"));
  CHECK(refused_for(file(R"("alias:v":"w","alias:u":"v")"), "does not hold"));
  CHECK(refused_for(file(R"("alias:v":"v")"), "does not hold"));
  CHECK(refused_for(file(R"("alias:w":"w")"), "both as a tensor and as an alias"));
  CHECK(refused_for(file(R"("alias:__metadata__":"w")"), "alias"));
}

TEST_CASE("a safetensors file truncated at any length or one byte too long is refused") {  // [12]
  auto const file = written(small_checkpoint(), {{"recipe", "r"}});
  CHECK(refusal(file).empty());
  std::size_t refused = 0;
  for (std::size_t length = 0; length < file.size(); ++length) refused += refusal(file.substr(0, length)).empty() ? 0 : 1;
  CHECK(refused == file.size());
  CHECK_FALSE(refusal(file + '\0').empty());
}

TEST_CASE("one flipped bit at any position is refused or leaves a valid file") {
  auto const file = written(small_checkpoint(), {{"recipe", "r"}});
  std::size_t good = 0;
  for (std::size_t bit = 0; bit < file.size() * 8; ++bit) {
    auto flipped = file;
    flipped[bit / 8] = static_cast<char>(flipped[bit / 8] ^ (1 << (bit % 8)));
    good += refused_or_valid(flipped) ? 1 : 0;
  }
  CHECK(good == file.size() * 8);
}

TEST_CASE("random mutations are refused or leave a valid file") {
  auto const file = written(small_checkpoint(), {{"recipe", "r"}});
  std::string_view const pieces =
      "{}[]\",:0123456789-.eE \\u\0\xff\x80"
      "UIF8";
  std::mt19937 random(20260601);
  std::size_t good = 0;
  constexpr std::size_t rounds = 6000;
  for (std::size_t round = 0; round < rounds; ++round) {
    auto mutant = file;
    for (auto left = 1 + random() % 4; left > 0; --left) {
      auto const where = random() % mutant.size();
      auto const piece = pieces[random() % pieces.size()];
      auto const from = random() % mutant.size();
      auto const count = 1 + random() % 24;
      switch (random() % 6) {
        case 0:
          mutant[where] = static_cast<char>(random());
          break;
        case 1:
          mutant[where] = piece;
          break;
        case 2:
          mutant.insert(where, 1, piece);
          break;
        case 3:
          mutant.erase(where, 1 + random() % 3);
          break;
        case 4:
          mutant.insert(where, mutant.substr(from, count));
          break;
        default:
          mutant.replace(where, count, mutant.substr(from, count));
          break;
      }
      if (mutant.empty()) mutant = "x";
    }
    // Half of them get a true length, or most would die of the first rule.
    if (mutant.size() > 8 && random() % 2 == 0) {
      auto const end = mutant.rfind('}');
      std::uint64_t const length = end == std::string::npos || end < 8 ? 0 : end - 7;
      std::memcpy(mutant.data(), &length, sizeof length);
    }
    good += refused_or_valid(mutant) ? 1 : 0;
  }
  CHECK(good == rounds);
}

TEST_CASE("a file on disk holds what was written and loads again") {
  temporary_folder const folder;
  auto const path = folder.path / "model.safetensors";
  auto const tensors = small_checkpoint();
  keel::save_safetensors(path, tensors, {{"recipe", "r"}});
  std::ifstream stream(path, std::ios::binary);
  std::string const bytes{std::istreambuf_iterator<char>(stream), {}};
  CHECK(bytes == written(tensors, {{"recipe", "r"}}));
  auto const content = keel::load_safetensors(path);
  CHECK(content.metadata == keel::string_map{{"format", "pt"}, {"recipe", "r"}});
  REQUIRE(content.tensors.size() == tensors.size());
  for (auto const& [name, tensor] : tensors) CHECK(same_bits(tensor, content.tensors.at(name)));
  CHECK(content.tensors.at("a.weight").is_same(content.tensors.at("b.weight")));
}

TEST_CASE("a damaged file on disk is refused by its path") {
  temporary_folder const folder;
  auto const path = folder.path / "model.safetensors";
  auto const file = written(small_checkpoint());
  for (std::size_t length = 0; length < file.size(); length += 5) {
    std::ofstream(path, std::ios::binary | std::ios::trunc).write(file.data(), static_cast<std::streamsize>(length));
    try {
      keel::load_safetensors(path);
      FAIL_CHECK("accepted at length " << length);
    } catch (keel::checkpoint_error const& error) {
      CHECK(std::string(error.what()).find(path.string()) != std::string::npos);
    }
  }
}

TEST_CASE("a tensor that cannot be saved leaves the file on disk as it was") {
  temporary_folder const folder;
  auto const path = folder.path / "model.safetensors";
  keel::save_safetensors(path, {{"x", at::ones({2})}});
  CHECK_THROWS_AS(keel::save_safetensors(path, {{"x", at::Tensor()}}), keel::data_error);
  CHECK(keel::load_safetensors(path).tensors.size() == 1);
}

TEST_CASE("a failing disk is a file error that names the path and the system's reason") {
  temporary_folder const folder;
  auto const reason = [](auto&& action) -> std::string {
    try {
      action();
    } catch (keel::file_error const& error) {
      CHECK(error.id() == "E02");
      return error.what();
    }
    return "accepted";
  };
  auto const missing = reason([&] { keel::load_safetensors(folder.path / "none.safetensors"); });
  CHECK(missing.find((folder.path / "none.safetensors").string() + ": No such file or directory") != std::string::npos);
  CHECK(reason([&] { keel::load_safetensors(folder.path); }).find("Is a directory") != std::string::npos);
  CHECK(reason([&] { keel::save_safetensors(folder.path / "no/x", {}); }).find("No such file") != std::string::npos);
  if (std::filesystem::exists("/dev/full")) {  // small: fails at the close; large: at the write
    CHECK(reason([] { keel::save_safetensors("/dev/full", {}); }).find("No space left") != std::string::npos);
    CHECK(reason([] {
            keel::save_safetensors("/dev/full", {{"x", at::ones({100'000})}});
          }).find("No space left") != std::string::npos);
  }
}
