// JSON of any origin: read, or refused in words.
#include <chrono>
#include <keel/json/text.hpp>
#include <string>
#include <string_view>

#include "../prelude.hpp"

using keel::detail::parse_json;

namespace {

std::string repeated(std::string_view part, std::size_t times) {
  std::string text;
  for (std::size_t i = 0; i < times; ++i) text += part;
  return text;
}

/// Why it is refused; empty: it is not.
std::string refusal(std::string_view text) {
  try {
    parse_json(text);
  } catch (keel::detail::json_text_error const& thrown) {
    return thrown.what();
  }
  return {};
}

bool refused_for(std::string_view text, std::string const& reason) {
  std::string const words = refusal(text);
  INFO(words);
  return words.find(reason) != std::string::npos;
}

}  // namespace

TEST_CASE("JSON text becomes the tree that nlohmann-json makes of it") {
  for (auto const* text : {"null", "true", "-7", "18446744073709551615", "0.5", "1e300", R"("a\u00e4\n\ud83d\ude00")", "[]",
                           "{}", "[[],{},[1,[2]]]", R"({"b":[1,2.5,null,{"c":{}}],"a":{"a":{"a":"x"}},"":false})",
                           " \t\r\n[ 1 , 2 ] \n", R"([{"a":1},{"a":2}])"}) {
    INFO(text);
    CHECK(parse_json(text) == nlohmann::json::parse(text));
  }
}

TEST_CASE("text that is not JSON is rejected with the parser's words, short and printable") {
  for (auto const* text :
       {"", " ", "{", "[1,]", "{}{}", "nul", "{'a':1}", "1e999", "\"\x01\"", "\"\xff\"", "// c\n{}", "[1] x"}) {
    INFO(text);
    CHECK_FALSE(refusal(text).empty());
  }
  CHECK(refused_for("[1,]", "parse error at line 1, column 4"));
  CHECK(refusal("[1,]").find("json.exception") == std::string::npos);
  CHECK(refused_for(std::string_view("{}\0x", 4), "NUL byte at position 2"));
  CHECK(refused_for(std::string_view("\0", 1), "NUL byte at position 0"));
  std::string const words = refusal("\"" + repeated("\x1b[2J\xc3\xa4 long ", 100'000));
  CHECK(words.size() < 400);
  for (char const c : words) CHECK((c >= ' ' && c <= '~'));
}

TEST_CASE("JSON of 64 levels is read, and deeper is rejected, however deep") {
  auto const lists = [](std::size_t levels) { return repeated("[", levels) + repeated("]", levels); };
  auto const objects = [](std::size_t levels) { return repeated("{\"a\":", levels) + "1" + repeated("}", levels); };
  CHECK(parse_json(lists(64)) == nlohmann::json::parse(lists(64)));
  CHECK(parse_json(objects(64)) == nlohmann::json::parse(objects(64)));
  // Depth is what is open, not what was.
  CHECK(parse_json("[" + repeated("[[]],", 1000) + "1]").size() == 1001);
  for (std::size_t const levels : {65u, 200'000u}) {
    CHECK(refused_for(lists(levels), "more than 64 levels"));
    CHECK(refused_for(objects(levels), "more than 64 levels"));
    CHECK(refused_for(repeated("[", levels), "more than 64 levels"));
    CHECK(refused_for(repeated("{\"a\":[", levels), "more than 64 levels"));
  }
}

TEST_CASE("a key that stands twice in one object is rejected by its name") {
  CHECK(refused_for(R"({"a":1,"a":1})", "the key 'a' stands twice"));
  CHECK(refused_for(R"({"b":{"a":1,"c":2,"\u0061":3}})", "the key 'a' stands twice"));
  CHECK(refused_for(R"([0,{"":1,"":2}])", "the key '' stands twice"));
  CHECK(refusal(R"({"a":{"a":1},"b":{"a":2},"c":[{"a":1},{"a":1}]})").empty());
  CHECK(refused_for("{\"\\u001b[2J\xc3\xa4\":1,\"\\u001b[2J\xc3\xa4\":2}", "the key '?[2J?\?' stands twice"));
  std::string const key(1'000'000, 'k');
  CHECK(refusal("{\"" + key + "\":1,\"" + key + "\":2}").size() < 200);
}

TEST_CASE("looking for a key that stands twice takes no search through the keys before it") {
  std::string text = "{";
  for (int i = 0; i < 20'000; ++i) text += "\"key." + std::to_string(i * 7919 % 20'000) + "\":" + std::to_string(i) + ",";
  using clock = std::chrono::steady_clock;
  auto const begin = clock::now();
  REQUIRE(nlohmann::json::parse(text + "\"last\":0}").size() == 20'001);
  auto const without = clock::now() - begin;
  REQUIRE(parse_json(text + "\"last\":0}").size() == 20'001);
  CHECK(clock::now() - begin - without < 10 * without);
  CHECK(refused_for(text + "\"key.77\":0}", "'key.77' stands twice"));
}
