// Bytes of unknown origin: each is refused by name or harmless. Numbers in brackets are rows of the format's list.
#include "safetensors_support.hpp"

using namespace safetensors_test;

TEST_CASE("a safetensors file whose length or header is out of bounds is rejected") {
  for (std::size_t size = 0; size < 8; ++size) CHECK(refused_for(std::string(size, '\0'), "fewer than 8 bytes"));
  CHECK(refused_for(with_length(0, ""), "not a JSON object"));
  CHECK(refused_for(with_length(0, "{}"), "not a JSON object"));
  CHECK(refused_for(with_length(3, "{}"), "past the end"));
  CHECK(refused_for(with_length(100'000'000, "{}"), "past the end"));
  CHECK(refused_for(with_length(100'000'001, "{}"), "100,000,000"));
  for (std::uint64_t k = 1; k < 20; ++k) CHECK(refused_for(with_length(0 - k, "{}"), "100,000,000"));  // 8 + N overflows
}

TEST_CASE("a header that is not one JSON object in UTF-8 is rejected") {
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

TEST_CASE("white space before and after the header is what Hugging Face's reader takes: space, tab, newline, carriage return") {
  for (auto const* header : {" {}", "\t\r\n {}", "{}     ", "{}\n", "{}\t\r\n \n", "{\r\n}", " \n{}\n "}) {
    INFO(header);
    CHECK(refusal(framed(header)).empty());
  }
  for (auto const* header : {"{}\v", "{}\f", "{}\xa0", "{}\xc2\xa0", "{}\xe2\x80\xa8", "{} x", "{}\n,"}) {
    INFO(header);
    CHECK(refused_for(framed(header), "} and white space"));
  }
  for (auto const* header : {"\v{}", "\f{}", "\xc2\xa0{}", "     ", "\n"})
    CHECK(refused_for(framed(header), "not a JSON object"));
  CHECK(refused_for(framed({"{}\0", 3}), "} and white space"));
  CHECK(refused_for(framed({"{} \0 ", 5}), "} and white space"));
  CHECK(refused_for(framed({"{}\0}", 4}), "NUL"));
  CHECK(refused_for(framed({"{\0}", 3}), "NUL"));
}

TEST_CASE("a name, field or metadata key that appears twice is rejected") {
  std::string const entry = R"({"dtype":"U8","shape":[0],"data_offsets":[0,0]})";
  CHECK(refused_for(framed("{\"w\":" + entry + ",\"w\":" + entry + "}"), "'w' twice"));
  CHECK(refused_for(framed("{\"w\":" + entry + ",\"v\":" + entry + ",\"\\u0077\":" + entry + "}"), "'w' twice"));
  CHECK(refused_for(framed(R"({"__metadata__":{},"__metadata__":{}})"), "twice"));
  CHECK(refused_for(framed(R"({"__metadata__":{"a":"1","a":"1"}})"), "twice"));
  CHECK(refused_for(entry_file(R"({"dtype":"U8","dtype":"U8","shape":[4],"data_offsets":[0,4]})"), "twice"));
  CHECK(refused_for(entry_file(R"({"dtype":"U8","shape":[4],"shape":[4],"data_offsets":[0,4]})"), "twice"));
  CHECK(refused_for(entry_file(R"({"dtype":"U8","shape":[4],"data_offsets":[0],"data_offsets":[4]})"), "twice"));
}

TEST_CASE("metadata other than strings or null is rejected") {
  CHECK(parsed(framed(R"({"__metadata__":null})")).metadata.empty());
  CHECK(parsed(framed(R"({"__metadata__":{"a":"b"}})")).metadata.at("a") == "b");
  for (auto const* value : {"7", "\"x\"", "[]", "true", "1.5", "-1"})
    CHECK(refused_for(framed("{\"__metadata__\":" + std::string(value) + "}"), "wrong place"));
  for (auto const* value : {"7", "null", "[]", "{}", "true", "1.5", "-1"})
    CHECK(refused_for(framed("{\"__metadata__\":{\"a\":" + std::string(value) + "}}"), "wrong place"));
}

TEST_CASE("unknown fields of an entry are ignored, whatever they hold") {
  for (auto const* value :
       {"null", "-1", "4.5", "\"s\"", "[]", "{}", "[[{\"dtype\":[1,{}]}],2]", "{\"shape\":{\"data_offsets\":null}}"}) {
    INFO(value);
    std::string const field = "\"extra\":" + std::string(value);
    CHECK(refusal(entry_file("{" + field + R"(,"dtype":"U8","shape":[4],"data_offsets":[0,4]})")).empty());
    CHECK(refusal(entry_file(R"({"dtype":"U8","shape":[4],)" + field + R"(,"data_offsets":[0,4]})")).empty());
    CHECK(refusal(entry_file(R"({"dtype":"U8","shape":[4],"data_offsets":[0,4],)" + field + "}")).empty());
  }
}

TEST_CASE("a dtype that keel cannot load is named") {
  for (auto const* dtype : {"F8", "C128", "I4", "F128", "f32", "", "F32 "}) {
    auto const file = entry_file(R"({"dtype":")" + std::string(dtype) + R"(","shape":[1],"data_offsets":[0,4]})");
    CHECK(refused_for(file, "'w' of dtype '" + std::string(dtype) + "'"));
  }
}

TEST_CASE("an entry without its fields or with fields of another kind is rejected") {
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

TEST_CASE("a shape or offsets that overflow are rejected") {
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

TEST_CASE("holes, overlaps and tensors that do not reach the end are rejected") {
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

TEST_CASE("scalars and empty tensors are accepted wherever their offsets fit") {
  auto const content = parsed(framed(R"({"x":{"dtype":"I16","shape":[],"data_offsets":[0,2]},"e":{"dtype":"F64","shape":[3,0],)"
                                     R"("data_offsets":[2,2]},"d":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}})",
                                     {"\x07\0", 2}));
  CHECK(content.tensors.at("x").item<std::int16_t>() == 7);
  CHECK(content.tensors.at("e").sizes() == at::IntArrayRef({3, 0}));
  CHECK(refused_for(framed(R"({"e":{"dtype":"U8","shape":[0],"data_offsets":[1,1]}})", "a"), "hole"));
}

TEST_CASE("JSON deeper than eight levels is rejected, however deep") {
  auto const nested = [](std::size_t levels) {
    return entry_file("{\"x\":" + std::string(levels, '[') + std::string(levels, ']') +
                      R"(,"dtype":"U8","shape":[4],"data_offsets":[0,4]})");
  };
  CHECK(refusal(nested(6)).empty());
  CHECK(refused_for(nested(7), "8 levels"));
  CHECK(refused_for(nested(1'000'000), "8 levels"));
  CHECK_FALSE(refusal(framed(std::string(1'000'000, '{') + "}")).empty());
}

TEST_CASE("many names on the same bytes, many dimensions and long names are rejected or cost no more than their text") {
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

TEST_CASE("bytes that are not bools are rejected") {
  CHECK(refusal(entry_file(R"({"dtype":"BOOL","shape":[4],"data_offsets":[0,4]})", {"\0\1\1\0", 4})).empty());
  CHECK(refused_for(entry_file(R"({"dtype":"BOOL","shape":[4],"data_offsets":[0,4]})", {"\0\1\2\0", 4}), "other than 0 and 1"));
}

TEST_CASE("an alias of a tensor that is not stored is rejected, and so is one that hides a tensor") {
  auto const file = [](std::string const& aliases) {
    return framed("{\"__metadata__\":{" + aliases + R"(},"w":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}})", "abcd");
  };
  CHECK(parsed(file(R"("alias:v":"w")")).tensors.size() == 2);
  CHECK(refused_for(file(R"("alias:v":"x")"), "does not contain"));
  CHECK(refused_for(file(R"("alias:v":"w","alias:u":"v")"), "does not contain"));
  CHECK(refused_for(file(R"("alias:v":"v")"), "does not contain"));
  CHECK(refused_for(file(R"("alias:w":"w")"), "both as a tensor and as an alias"));
  CHECK(refused_for(file(R"("alias:__metadata__":"w")"), "alias"));
}

TEST_CASE("a safetensors file truncated at any length or one byte too long is rejected") {
  auto const file = written(small_checkpoint(), {{"recipe", "r"}});
  CHECK(refusal(file).empty());
  std::size_t refused = 0;
  for (std::size_t length = 0; length < file.size(); ++length) refused += refusal(file.substr(0, length)).empty() ? 0 : 1;
  CHECK(refused == file.size());
  CHECK_FALSE(refusal(file + '\0').empty());
}

TEST_CASE("one flipped bit at any position is rejected or leaves a valid file") {
  auto const file = written(small_checkpoint(), {{"recipe", "r"}});
  std::size_t good = 0;
  for (std::size_t bit = 0; bit < file.size() * 8; ++bit) {
    auto flipped = file;
    flipped[bit / 8] = static_cast<char>(flipped[bit / 8] ^ (1 << (bit % 8)));
    good += refused_or_valid(flipped) ? 1 : 0;
  }
  CHECK(good == file.size() * 8);
}

TEST_CASE("random mutations are rejected or leave a valid file") {
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
