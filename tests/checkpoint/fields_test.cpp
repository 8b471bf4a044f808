// What a field of saved state may be: written and read to the bit, refused by name where it cannot be held, and put back.
#include "../prelude.hpp"

#include <ATen/core/grad_mode.h>

#include <array>
#include <bit>
#include <cstring>
#include <keel/checkpoint/archive.hpp>
#include <keel/trainer/registered_state.hpp>
#include <keel/step/program_state.hpp>
#include <limits>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace {

enum class color : std::uint8_t { red, green, blue };
enum class direction : std::int16_t { back = -1, none, forth };
enum class answer : bool { no, yes };
enum plain { first, second };

/// Holds others of its type.
struct tree {
  std::int8_t level = 0;
  at::Tensor weights;
  std::vector<tree> children;
  void visit(auto& archive) {
    archive("level", level);
    archive("weights", weights);
    archive("children", children);
  }
};

struct everything {
  bool flag = false;
  char letter = 'a';
  std::int8_t i8 = 0;
  std::uint8_t u8 = 0;
  std::int16_t i16 = 0;
  std::uint16_t u16 = 0;
  std::int32_t i32 = 0;
  std::uint32_t u32 = 0;
  std::int64_t i64 = 0;
  std::uint64_t u64 = 0;
  long long longest = 0;
  unsigned long long longest_unsigned = 0;
  wchar_t wide = 0;
  color hue = color::red;
  direction way = direction::none;
  answer reply = answer::no;
  plain order = first;
  float f32 = 0.0F;
  double f64 = 0.0;
  std::string text;
  at::Tensor tensor;
  tree nested;
  std::vector<bool> flags;
  std::vector<std::uint8_t> bytes;
  std::vector<std::int64_t> counts;
  std::vector<direction> ways;
  std::vector<float> floats;
  std::vector<double> doubles;
  std::vector<std::string> texts;
  std::vector<at::Tensor> tensors;
  std::vector<tree> trees;
  std::vector<std::vector<std::vector<bool>>> deep;
  std::array<bool, 3> three{};
  std::array<at::Tensor, 2> pair;
  std::array<tree, 2> two_trees;
  std::optional<bool> maybe_flag;
  std::optional<double> maybe_number;
  std::optional<at::Tensor> maybe_tensor;
  std::optional<tree> maybe_tree;
  std::optional<std::vector<at::Tensor>> maybe_tensors;
  std::map<std::string, bool> flags_by_name;
  std::map<std::string, float, std::less<>> by_name;
  std::map<std::string, at::Tensor, std::greater<>> tensors_by_name;
  std::map<std::string, tree> trees_by_name;
  std::vector<std::map<std::string, std::optional<std::vector<at::Tensor>>>> mixed;

  void visit(auto& archive) {
    archive("flag", flag);
    archive("letter", letter);
    archive("i8", i8);
    archive("u8", u8);
    archive("i16", i16);
    archive("u16", u16);
    archive("i32", i32);
    archive("u32", u32);
    archive("i64", i64);
    archive("u64", u64);
    archive("longest", longest);
    archive("longest_unsigned", longest_unsigned);
    archive("wide", wide);
    archive("hue", hue);
    archive("way", way);
    archive("reply", reply);
    archive("order", order);
    archive("f32", f32);
    archive("f64", f64);
    archive("text", text);
    archive("tensor", tensor);
    archive("nested", nested);
    archive("flags", flags);
    archive("bytes", bytes);
    archive("counts", counts);
    archive("ways", ways);
    archive("floats", floats);
    archive("doubles", doubles);
    archive("texts", texts);
    archive("tensors", tensors);
    archive("trees", trees);
    archive("deep", deep);
    archive("three", three);
    archive("pair", pair);
    archive("two_trees", two_trees);
    archive("maybe_flag", maybe_flag);
    archive("maybe_number", maybe_number);
    archive("maybe_tensor", maybe_tensor);
    archive("maybe_tree", maybe_tree);
    archive("maybe_tensors", maybe_tensors);
    archive("flags_by_name", flags_by_name);
    archive("by_name", by_name);
    archive("tensors_by_name", tensors_by_name);
    archive("trees_by_name", trees_by_name);
    archive("mixed", mixed);
  }
};

constexpr at::ScalarType dtypes[] = {at::kBool, at::kByte,     at::kChar,  at::kShort,  at::kInt,          at::kLong,
                                     at::kHalf, at::kBFloat16, at::kFloat, at::kDouble, at::kComplexFloat, at::kComplexDouble};

/// Random values, with more of the limits than chance would give. It walks through a state by overloads, so that keel's walk is not
/// judged by keel's walk.
class randomizer {
 public:
  explicit randomizer(std::mt19937_64& engine, int depth = 0) : engine_(engine), depth_(depth) {}

  template <class Field>
  void operator()(char const* /*name*/, Field& field) {
    fill(field);
  }

  void fill(bool& field) { field = draw(2) == 1; }
  void fill(color& field) { field = static_cast<color>(draw(3)); }
  void fill(direction& field) { field = static_cast<direction>(static_cast<int>(draw(3)) - 1); }
  void fill(answer& field) { field = static_cast<answer>(draw(2) == 1); }
  void fill(plain& field) { field = static_cast<plain>(draw(2)); }
  template <std::integral Integer>
  void fill(Integer& field) {
    using limits = std::numeric_limits<Integer>;
    Integer const values[] = {limits::min(), limits::max(), 0, 1, static_cast<Integer>(engine_())};
    field = values[draw(5)];
  }
  template <std::floating_point Number>
  void fill(Number& field) {
    using limits = std::numeric_limits<Number>;
    using bits = std::conditional_t<sizeof(Number) == 4, std::uint32_t, std::uint64_t>;
    Number const values[] = {0,
                             -Number{0},
                             limits::infinity(),
                             -limits::infinity(),
                             limits::quiet_NaN(),
                             limits::denorm_min(),
                             limits::max(),
                             limits::lowest(),
                             std::bit_cast<Number>(static_cast<bits>(engine_()))};
    field = values[draw(9)];
  }
  void fill(std::string& field) {
    static std::string const values[] = {"",
                                         "plain",
                                         "\"quoted\"\\\n",
                                         "gr\xc3\xb6\xc3\x9f"
                                         "er",
                                         "\xff\xfe",
                                         "\xed\xa0\x80",
                                         std::string("a\0b", 3),
                                         "{\"base16\": \"00\"}",
                                         "a.b",
                                         "a%2eb",
                                         "0",
                                         "nan",
                                         "%"};
    field = values[draw(std::size(values))];
    if (draw(4) != 0) return;
    for (std::uint64_t i = draw(6); i > 0; --i) field += static_cast<char>(engine_());
  }
  void fill(at::Tensor& field) {
    if (draw(6) == 0) {
      field = at::Tensor();
      return;
    }
    std::vector<std::int64_t> sizes(draw(4));
    for (std::int64_t& one : sizes) one = static_cast<std::int64_t>(draw(4));
    field = at::empty(sizes, dtypes[draw(std::size(dtypes))]);
    auto* const bytes = static_cast<unsigned char*>(field.data_ptr());
    for (std::size_t i = 0; i < field.nbytes(); ++i) {
      bytes[i] = static_cast<unsigned char>(engine_());
      if (field.scalar_type() == at::kBool) bytes[i] &= 1U;
    }
    if (field.dim() >= 2 && draw(3) == 0) field = field.transpose(0, 1);
    if (field.dim() >= 1 && draw(4) == 0) field = field.slice(0, 1);
    if (field.is_complex() && draw(3) == 0) field = field.conj();
  }
  template <class Element>
  void fill(std::vector<Element>& field) {
    field.clear();
    for (std::uint64_t i = depth_ > 2 ? 0 : draw(4); i > 0; --i) {
      Element element{};
      fill(element);
      field.push_back(std::move(element));
    }
  }
  template <class Element, std::size_t Count>
  void fill(std::array<Element, Count>& field) {
    for (Element& one : field) fill(one);
  }
  template <class Element>
  void fill(std::optional<Element>& field) {
    field.reset();
    if (draw(3) != 0) fill(field.emplace());
  }
  template <class Element, class Order>
  void fill(std::map<std::string, Element, Order>& field) {
    field.clear();
    for (std::uint64_t i = draw(4); i > 0; --i) {
      std::string key;
      fill(key);
      fill(field[key]);
    }
  }
  template <class Nested>
  requires requires(Nested& nested, randomizer& archive) { nested.visit(archive); }
  void fill(Nested& field) {
    randomizer inner(engine_, depth_ + 1);
    field.visit(inner);
  }

 private:
  std::uint64_t draw(std::uint64_t below) { return engine_() % below; }

  std::mt19937_64& engine_;
  int depth_;
};

std::string bytes_of(void const* from, std::size_t count) { return {static_cast<char const*>(from), count}; }

/// All that a state holds, bit by bit, one text a field; of NaN, that it is one.
class image {
 public:
  template <class State>
  static std::map<std::string, std::string> of(State& state) {
    image taken;
    state.visit(taken);
    return taken.fields_;
  }
  template <class Field>
  void operator()(char const* name, Field& field) {
    text_.clear();
    put(field);
    fields_.emplace(name, std::exchange(text_, {}));
  }

 private:
  template <class Value>
  requires(std::is_integral_v<Value> || std::is_enum_v<Value>) void put(Value const& field) {
    text_ += bytes_of(&field, sizeof field);
  }
  template <std::floating_point Number>
  void put(Number const& field) {
    text_ += std::isnan(field) ? "nan" : bytes_of(&field, sizeof field);
  }
  void put(std::string const& field) { text_ += std::to_string(field.size()) + ":" + field; }
  void put(at::Tensor const& field) {
    if (!field.defined()) {
      text_ += "undefined";
      return;
    }
    at::Tensor const plain = field.detach().resolve_conj().resolve_neg().contiguous();
    text_ += std::string(c10::toString(plain.scalar_type())) + std::to_string(plain.dim());
    for (std::int64_t const one : plain.sizes()) put(one);
    text_ += bytes_of(plain.data_ptr(), plain.nbytes());
  }
  template <class Element>
  void put(std::vector<Element> const& field) {
    text_ += "[" + std::to_string(field.size());
    for (auto const& one : field) {
      Element copy = one;
      put(copy);
    }
  }
  template <class Element, std::size_t Count>
  void put(std::array<Element, Count> const& field) {
    for (Element const& one : field) put(one);
  }
  template <class Element>
  void put(std::optional<Element> const& field) {
    text_ += field ? "+" : "-";
    if (field) put(*field);
  }
  template <class Element, class Order>
  void put(std::map<std::string, Element, Order> const& field) {
    text_ += "{" + std::to_string(field.size());
    for (auto const& [key, element] : field) {
      put(key);
      put(element);
    }
  }
  void put(tree const& field) {
    put(field.level);
    put(field.weights);
    put(field.children);
  }

  std::map<std::string, std::string> fields_;
  std::string text_;
};

/// As state.json and state.safetensors hold it.
struct written {
  std::string json;
  std::string tensors;
};
template <class State>
written write(State& state) {
  nlohmann::json object;
  keel::tensor_map tensors;
  keel::state_writer writer(object, tensors, "part.");
  state.visit(writer);
  written result{object.dump(), {}};
  keel::write_safetensors(tensors, {}, [&](char const* bytes, std::size_t count) { result.tensors.append(bytes, count); });
  return result;
}
template <class State>
void read(written const& from, State& state) {
  auto const object = nlohmann::json::parse(from.json);
  auto const tensors = keel::parse_safetensors(from.tensors, "a test").tensors;
  keel::state_reader reader(object, tensors, "a test", "part.");
  state.visit(reader);
}

/// One field of a type, under the name `field`.
template <class Field>
struct holds {
  Field field{};
  void visit(auto& archive) { archive("field", field); }
};

/// What the error of reading that JSON says; "read" if it is read.
template <class Field>
std::string refusal(std::string const& json, keel::tensor_map const& tensors = {}, Field before = {}) {
  auto const object = nlohmann::json::parse("{\"field\": " + json + "}");
  holds<Field> state{std::move(before)};
  keel::state_reader reader(object, tensors, "a test");
  try {
    state.visit(reader);
  } catch (keel::checkpoint_error const& thrown) {
    REQUIRE(thrown.id() == "E04");
    std::string words = thrown.what();
    words.erase(0, words.find("the field "));
    return words.substr(0, words.find(". Another version"));
  }
  return "read";
}

std::string decimal(__int128 value) {
  bool const negative = value < 0;
  std::string digits;
  do {
    digits.insert(digits.begin(), static_cast<char>('0' + static_cast<int>(negative ? -(value % 10) : value % 10)));
    value /= 10;
  } while (value != 0);
  return (negative ? "-" : "") + digits;
}

template <class Integer>
void check_limits() {
  using limits = std::numeric_limits<Integer>;
  __int128 const least = limits::min();
  __int128 const most = limits::max();
  INFO("from " << decimal(least) << " to " << decimal(most));
  std::string const words = "the field field is not an integer between " + decimal(least) + " and " + decimal(most);
  for (__int128 const value : {least, least + 1, most - 1, most}) {
    holds<Integer> state;
    auto const object = nlohmann::json::parse("{\"field\": " + decimal(value) + "}");
    keel::tensor_map const none;
    keel::state_reader reader(object, none, "a test");
    state.visit(reader);
    CHECK(state.field == static_cast<Integer>(value));
  }
  __int128 const word = static_cast<__int128>(1) << 64;
  for (__int128 const value : {least - 1, most + 1, least - 1000, most + 1000, most + word, -word, 3 * word}) {
    CHECK(refusal<Integer>(decimal(value)) == words);
    CHECK(refusal<std::vector<Integer>>("[0, 1, " + decimal(value) + "]").find("the field field.2 is not an integer between") ==
          0);
  }
  for (char const* const text : {"0.5", "1e300", "-1e300", "2.0"}) CHECK(refusal<Integer>(text) == words);
  for (char const* const text : {"true", "\"1\"", "null", "[1]", "{}"})
    CHECK(refusal<Integer>(text) == "the field field is not an integer");
}

template <class State>
std::vector<at::TensorImpl const*> handles_of(State& state) {
  std::vector<at::TensorImpl const*> handles;
  keel::detail::for_each_leaf(state, "", [&]<class Leaf>(auto const&, Leaf& leaf) {
    if constexpr (std::is_same_v<Leaf, at::Tensor>) handles.push_back(leaf.unsafeGetTensorImpl());
  });
  return handles;
}

/// Gives the fields at some places new values, which differ from the old ones.
struct changer {
  std::mt19937_64& engine;
  std::set<std::size_t> const& which;
  std::size_t next = 0;
  template <class Field>
  void operator()(char const* /*name*/, Field& field) {
    if (which.count(next++) == 0) return;
    holds<Field> now{field};
    auto const before = image::of(now);
    randomizer random(engine);
    while (image::of(now) == before) random.fill(now.field);
    field = now.field;
  }
};

}  // namespace

TEST_CASE("every type of field comes back bit by bit through the bytes of a checkpoint, over fresh state and over used") {
  std::mt19937_64 engine(11);
  for (int round = 0; round < 100; ++round) {
    everything from, fresh, used;
    randomizer random(engine);
    from.visit(random);
    used.visit(random);
    auto const bytes = write(from);
    read(bytes, fresh);
    read(bytes, used);
    auto const expected = image::of(from);
    for (auto const& [name, text] : image::of(fresh)) {
      INFO(round << " " << name);
      REQUIRE(text == expected.at(name));
    }
    REQUIRE(image::of(used) == expected);
    // What was read is written as what it was read from.
    auto const again = write(fresh);
    REQUIRE(again.json == bytes.json);
    REQUIRE(again.tensors.size() == bytes.tensors.size());
  }
}

namespace {

struct inner_of_old {
  double best = -0.5;
  std::vector<double> values{1, 0.1, NAN, INFINITY, -INFINITY};
  at::Tensor weights = at::ones({2});
  void visit(auto& archive) {
    archive("best", best);
    archive("values", values);
    archive("weights", weights);
  }
};
/// The types that versions before this one could save.
struct old {
  std::int64_t level = -3;
  std::uint64_t many = std::numeric_limits<std::uint64_t>::max();
  int small = 7;
  std::size_t next = 4;
  char letter = 'A';
  bool flag = true;
  double rate = 1e-3, whole = 5, unknown = NAN, none = INFINITY, below = -INFINITY, zero = -0.0;
  std::string words =
      "a \"quoted\" line\ngr\xc3\xb6\xc3\x9f"
      "er";
  at::Tensor tensor = at::ones({1}), undefined, complex = at::ones({1}, at::kComplexFloat);
  std::vector<std::int64_t> counts{1, -2};
  std::vector<float> floats{0.1F, NAN};
  std::vector<double> empty;
  std::vector<bool> flags{true, false, true};
  inner_of_old inner;
  void visit(auto& archive) {
    archive("level", level);
    archive("many", many);
    archive("small", small);
    archive("next", next);
    archive("letter", letter);
    archive("flag", flag);
    archive("rate", rate);
    archive("whole", whole);
    archive("unknown", unknown);
    archive("none", none);
    archive("below", below);
    archive("zero", zero);
    archive("words", words);
    archive("tensor", tensor);
    archive("undefined", undefined);
    archive("complex", complex);
    archive("counts", counts);
    archive("floats", floats);
    archive("empty", empty);
    archive("flags", flags);
    archive("inner", inner);
  }
};
// Written by the version before this one.
constexpr char const* old_text =
    R"({"below":"-inf","complex":true,"counts":[1,-2],"empty":[],"flag":true,"flags":[true,false,true],)"
    R"("floats":[0.10000000149011612,"nan"],"inner":{"best":-0.5,"values":[1.0,0.1,"nan","inf","-inf"],"weights":true},)"
    R"("letter":65,"level":-3,"many":18446744073709551615,"next":4,"none":"inf","rate":0.001,"small":7,"tensor":true,)"
    R"("undefined":false,"unknown":"nan","whole":5.0,"words":"a \"quoted\" line\ngrößer","zero":-0.0})";

}  // namespace

TEST_CASE("what could always be saved is saved as the same text, and what older versions wrote is read") {
  old from;
  nlohmann::json object;
  keel::tensor_map tensors;
  keel::state_writer writer(object, tensors);
  from.visit(writer);
  CHECK(object.dump() == old_text);
  CHECK(tensors.size() == 3);
  CHECK(tensors.count("tensor") == 1);
  CHECK(tensors.count("complex") == 1);
  CHECK(tensors.count("inner.weights") == 1);

  old to;
  to.level = 0;
  to.words = "other";
  to.counts = {9, 9, 9};
  to.flags = {};
  to.inner.values.clear();
  auto const parsed = nlohmann::json::parse(old_text);
  keel::state_reader reader(parsed, tensors, "a test");
  to.visit(reader);
  // Read again over what was read: nothing is left of what a field held before.
  to.visit(reader);
  nlohmann::json again;
  keel::tensor_map tensors_again;
  keel::state_writer second(again, tensors_again);
  to.visit(second);
  CHECK(again.dump() == old_text);
  CHECK(to.flags == std::vector<bool>{true, false, true});
  CHECK(tensors_again.at("complex").scalar_type() == at::kComplexFloat);
}

TEST_CASE("an integer that its field cannot hold is rejected by name, at both ends of every type") {
  check_limits<std::int8_t>();
  check_limits<std::uint8_t>();
  check_limits<std::int16_t>();
  check_limits<std::uint16_t>();
  check_limits<std::int32_t>();
  check_limits<std::uint32_t>();
  check_limits<std::int64_t>();
  check_limits<std::uint64_t>();
  check_limits<long long>();
  check_limits<unsigned long long>();
  check_limits<char>();
  check_limits<wchar_t>();
  CHECK(refusal<color>("2") == "read");
  CHECK(refusal<color>("256") == "the field field is not an integer between 0 and 255");
  CHECK(refusal<color>("-1") == "the field field is not an integer between 0 and 255");
  CHECK(refusal<direction>("-32769") == "the field field is not an integer between -32768 and 32767");
  CHECK(refusal<answer>("true") == "read");
  CHECK(refusal<answer>("1") == "the field field is not true or false");
  // Where it stands, whatever it stands in.
  using small = std::uint8_t;
  CHECK(refusal<std::array<small, 2>>("[1, 256]") == "the field field.1 is not an integer between 0 and 255");
  CHECK(refusal<std::optional<small>>("-1") == "the field field is not an integer between 0 and 255");
  CHECK(refusal<std::map<std::string, small>>(R"({"a": 1, "b": 300})") ==
        "the field field.b is not an integer between 0 and 255");
  CHECK(refusal<std::vector<std::vector<small>>>("[[], [1, 2], [-1]]") ==
        "the field field.2.0 is not an integer between 0 and 255");
  CHECK(refusal<tree>(R"({"level": 300})") == "the field field.level is not an integer between -128 and 127");
  CHECK(refusal<std::vector<tree>>(R"([{"level": 1, "weights": false, "children": [{"level": -129}]}])") ==
        "the field field.0.children.0.level is not an integer between -128 and 127");
  // A program built by hand gives JSON's integers a sign that files do not.
  nlohmann::json const built = {{"field", std::int64_t{200}}};
  keel::tensor_map const none;
  keel::state_reader reader(built, none, "a test");
  holds<small> state;
  state.visit(reader);
  CHECK(state.field == 200);
}

TEST_CASE("a number beyond the largest float is rejected by name, and infinity is a word") {
  std::string const words = "the field field is not a number between -3.4028235e+38 and 3.4028235e+38";
  for (char const* const text :
       {"3.4028234663852886e38", "-3.4028234663852886e38", "1e-60", "0", "\"inf\"", "\"-inf\"", "\"nan\""})
    CHECK(refusal<float>(text) == "read");
  for (char const* const text : {"3.4028235e38", "3.41e38", "-3.41e38", "1e300"}) {
    CHECK(refusal<float>(text) == words);
    CHECK(refusal<double>(text) == "read");
    CHECK(refusal<std::vector<float>>(std::string("[1.0, ") + text + "]").find("the field field.1 is not a number between") ==
          0);
  }
  for (char const* const text : {"\"Inf\"", "true", "null", "[]"})
    CHECK(refusal<float>(text) == "the field field is not a number");
}

TEST_CASE("what is of another type than its field is rejected by name") {
  CHECK(refusal<bool>("1") == "the field field is not true or false");
  CHECK(refusal<double>("\"0.5\"") == "the field field is not a number");
  CHECK(refusal<double>("null") == "the field field is not a number");
  CHECK(refusal<std::string>("5") == "the field field is not a string");
  CHECK(refusal<std::vector<std::int64_t>>("5") == "the field field is not a list of integers");
  CHECK(refusal<std::vector<std::int64_t>>("[1, \"2\"]") == "the field field.1 is not an integer");
  CHECK(refusal<std::vector<double>>("{}") == "the field field is not a list of numbers");
  CHECK(refusal<std::vector<double>>("[0.5, null]") == "the field field.1 is not a number");
  CHECK(refusal<std::vector<bool>>("[true, 1]") == "the field field.1 is not true or false");
  CHECK(refusal<std::vector<std::string>>("\"text\"") == "the field field is not a list");
  CHECK(refusal<std::array<double, 2>>("[1, 2, 3]") == "the field field is not a list of 2");
  CHECK(refusal<std::array<double, 2>>("[1]") == "the field field is not a list of 2");
  CHECK(refusal<std::array<bool, 2>>("true") == "the field field is not a list of 2");
  CHECK(refusal<std::map<std::string, double>>("[1]") == "the field field is not an object");
  CHECK(refusal<tree>("null") == "the field field is not an object");
  CHECK(refusal<tree>("{}") == "the field field.level is missing");
  CHECK(refusal<std::optional<double>>("null") == "read");
  CHECK(refusal<std::optional<double>>("\"text\"") == "the field field is not a number");
  CHECK(refusal<at::Tensor>("1") == "the field field is not true or false");
  CHECK(refusal<at::Tensor>("\"complex64\"") == "the field field is not true or false");
  CHECK(refusal<at::Tensor>("true") == "the field field is not among the tensors");
  CHECK(refusal<at::Tensor>("false", {{"field", at::ones({1})}}) == "the field field is not an undefined tensor");
  CHECK(refusal<std::vector<at::Tensor>>("[false, true]", {{"field.0", at::ones({1})}}) ==
        "the field field.0 is not an undefined tensor");
}

TEST_CASE("a text that is not UTF-8 is saved in base 16, and damage in it is rejected") {
  holds<std::string> state{std::string("\xff\x00z", 3)};
  nlohmann::json object;
  keel::tensor_map tensors;
  keel::state_writer writer(object, tensors);
  state.visit(writer);
  CHECK(object.dump() == R"({"field":{"base16":"ff007a"}})");
  for (char const* const text : {R"({"base16":"ff0"})", R"({"base16":"fg"})", R"({"base16":"FF"})", R"({"base16":5})", R"({})",
                                 R"({"base16":"ff","more":1})", R"({"base64":"ff"})", R"(["ff"])"})
    CHECK(refusal<std::string>(text) == "the field field is not a string");
  CHECK(refusal<std::string>(R"({"base16":""})") == "read");
  // Truncated, overlong, a surrogate, beyond the last code point.
  for (char const* const bytes : {"\xc3", "\xc0\xaf", "\xed\xa0\x80", "\xf4\x90\x80\x80"}) {
    holds<std::vector<std::string>> from{{"kept", bytes}}, to;
    read(write(from), to);
    CHECK(to.field == from.field);
  }
}

TEST_CASE("a complex128 tensor is saved as its parts, whatever it looks like in memory, and comes back complex") {
  auto const options = at::TensorOptions().dtype(at::kComplexDouble);
  at::Tensor const square = at::complex(at::arange(6, at::kDouble).view({2, 3}), at::arange(6, at::kDouble).view({2, 3}) - 9.0);
  for (at::Tensor const& one :
       {square, square.t(), square.conj(), square.select(0, 1), square[1][2], square.expand({2, 2, 3}),
        at::empty({0, 2}, options), square.clone().requires_grad_(), at::imag(square.conj()) * square}) {
    holds<at::Tensor> from{one}, to;
    auto const bytes = write(from);
    CHECK(bytes.json == R"({"field":"complex128"})");
    read(bytes, to);
    CHECK(image::of(to) == image::of(from));
    CHECK(to.field.scalar_type() == at::kComplexDouble);
    CHECK_FALSE(to.field.requires_grad());
  }
  // Of another dtype, scalar or with another last dimension, it is not what keel wrote.
  for (at::Tensor const& one : {at::ones({2}), at::ones({}, at::kDouble), at::ones({2, 3}, at::kDouble), square})
    CHECK(refusal<at::Tensor>("\"complex128\"", {{"field", one}}) == "the field field is not a tensor of complex numbers");
  CHECK(refusal<at::Tensor>("\"complex128\"") == "the field field is not among the tensors");
  // Two names of one tensor are one tensor after it too.
  holds<std::vector<at::Tensor>> both{{square, square}}, back;
  read(write(both), back);
  back.field[0].mul_(2.0);
  CHECK(at::equal(back.field[0], back.field[1]));
}

TEST_CASE("no two keys of maps share a place, whatever bytes they hold") {
  holds<std::map<std::string, std::map<std::string, at::Tensor>>> from, to;
  double value = 0.0;
  for (char const* const outer : {"", "a", "a.b", "a%2eb", "%", "%25", "\xff", "\xc3\xb6", "\n"}) {
    for (char const* const inner : {"", "b", "b.c", "c", ".", "%2e"}) from.field[outer][inner] = at::full({1}, ++value);
  }
  read(write(from), to);
  CHECK(image::of(to) == image::of(from));
  for (char const* const key : {"a.b", "%", "%2", "%zz", "%41", "%2E", "\\u0000", "%ff%"}) {
    INFO(key);
    std::string const words = refusal<std::map<std::string, int>>("{\"" + std::string(key) + "\": 1}");
    CHECK(words == "the field field is not an object with valid keys");
  }
  // What the checkpoint does not have goes, and elements that it has keep their other members.
  std::map<std::string, tree> before;
  before["stays"].level = 1;
  before["goes"].level = 2;
  holds<std::map<std::string, tree>> state{before};
  auto const object = nlohmann::json::parse(R"({"field": {"stays": {"level": 3, "weights": false, "children": []}}})");
  keel::tensor_map const none;
  keel::state_reader reader(object, none, "a test");
  state.visit(reader);
  CHECK(state.field.size() == 1);
  CHECK(state.field.at("stays").level == 3);
}

TEST_CASE("a tensor in a list comes back to the device of the one that it replaces") {
  holds<std::vector<at::Tensor>> from{{at::ones({2}), at::ones({3})}};
  auto const bytes = write(from);
  holds<std::vector<at::Tensor>> to{{at::empty({2}, at::device(at::kMeta))}};
  read(bytes, to);
  REQUIRE(to.field.size() == 2);
  CHECK(to.field[0].is_meta());
  CHECK(at::equal(to.field[1], at::ones({3})));
}

namespace {

struct newer {
  std::int64_t level = 7, added = 8;
  void visit(auto& archive) {
    archive("level", level);
    archive.optional_field("added", added);
  }
};

struct newer_states {
  std::vector<newer> list{newer{}};
  double other = 0.5;
  void visit(auto& archive) {
    archive("list", list);
    archive("other", other);
  }
};

}  // namespace

TEST_CASE("a field that the checkpoint lacks stays where that was asked for, deep in lists too") {
  auto const object = nlohmann::json::parse(R"({"list": [{"level": 1}, {}]})");
  keel::tensor_map const none;
  newer_states to;
  keel::state_reader lenient(object, none, "a test", "", true);
  to.visit(lenient);
  REQUIRE(to.list.size() == 2);
  CHECK(to.list[0].level == 1);
  CHECK(to.list[0].added == 8);
  CHECK(to.list[1].level == 7);
  CHECK(to.other == 0.5);
  keel::state_reader strict(object, none, "a test");
  CHECK_THROWS_AS(to.visit(strict), keel::checkpoint_error);
  // Copies take such a field too.
  auto const copies = keel::field_copies::of(to);
  to.list.clear();
  copies.restore(to);
  CHECK(to.list.at(0).added == 8);
}

TEST_CASE("every type of field is put back as it was, lists to their old length, and tensors as themselves") {
  std::mt19937_64 engine(12);
  for (int round = 0; round < 100; ++round) {
    everything state;
    randomizer random(engine);
    state.visit(random);
    auto const expected = image::of(state);
    auto const handles = handles_of(state);
    auto const copies = keel::field_copies::of(state);
    // In place, and then by others.
    at::NoGradGuard no_grad;
    keel::detail::for_each_leaf(state, "", [&]<class Leaf>(auto const&, Leaf& leaf) {
      if constexpr (std::is_same_v<Leaf, at::Tensor>) {
        if (leaf.defined()) leaf.zero_();
      }
    });
    if (round % 3 != 0) state.visit(random);
    if (round % 3 == 2) state.visit(random);
    copies.restore(state);
    for (auto const& [name, text] : image::of(state)) {
      INFO(round << " " << name);
      REQUIRE(text == expected.at(name));
    }
    REQUIRE(handles_of(state) == handles);
    // Once more: putting back uses nothing up.
    state.visit(random);
    copies.restore(state);
    REQUIRE(image::of(state) == expected);
  }
}

namespace {

struct names {
  std::vector<std::string> all;
  void operator()(char const* name, auto& /*field*/) { all.emplace_back(name); }
};

}  // namespace

TEST_CASE("a field that the program changed since the marks stays, and all others are put back, of every type") {
  std::mt19937_64 engine(13);
  std::size_t const count = [] {
    everything state;
    return image::of(state).size();
  }();
  auto const some = [&] {
    std::set<std::size_t> which;
    for (std::size_t i = 0; i < count; ++i) {
      if (engine() % 3 == 0) which.insert(i);
    }
    return which;
  };
  for (int round = 0; round < 100; ++round) {
    everything state;
    randomizer random(engine);
    state.visit(random);
    auto const before = image::of(state);
    auto copies = keel::field_copies::of(state);
    auto const by_loss = some();
    changer loss{engine, by_loss};
    state.visit(loss);
    auto const marks = keel::field_marks::of(state);
    auto const by_program = some();
    changer program{engine, by_program};
    state.visit(program);
    auto const after = image::of(state);
    copies.exclude_changed(marks, state);
    copies.restore(state);
    auto const now = image::of(state);
    names listed;
    state.visit(listed);
    for (std::size_t i = 0; i < count; ++i) {
      std::string const& name = listed.all[i];
      // Of a nested state each field is judged by itself.
      if (name == "nested") continue;
      INFO(round << " " << name << (by_program.count(i) ? " by the program" : ""));
      REQUIRE(now.at(name) == (by_program.count(i) ? after : before).at(name));
    }
  }
}

namespace {

struct sampler {
  std::int64_t next = 0, seen = 0;
  double unknown = NAN;
  std::vector<double> values{NAN, 1.0};
  std::map<std::string, float> by_name{{"a", NAN}};
  void visit(auto& archive) {
    archive("next", next);
    archive("seen", seen);
    archive("unknown", unknown);
    archive("values", values);
    archive("by_name", by_name);
  }
};

}  // namespace

TEST_CASE("in a nested state the fields that the program changed stay, and NaN that stays NaN counts as unchanged") {
  holds<sampler> state;
  auto copies = keel::field_copies::of(state);
  state.field.seen = 5;
  auto const marks = keel::field_marks::of(state);
  state.field.next = 3;
  copies.exclude_changed(marks, state);
  state.field.seen = 6;
  state.field.unknown = 1.0;
  state.field.values = {};
  state.field.by_name.clear();
  copies.restore(state);
  CHECK(state.field.next == 3);
  CHECK(state.field.seen == 0);
  CHECK(std::isnan(state.field.unknown));
  REQUIRE(state.field.values.size() == 2);
  CHECK(std::isnan(state.field.values[0]));
  CHECK(std::isnan(state.field.by_name.at("a")));
}

namespace {

struct listed {
  std::int64_t count = 0;
  std::vector<at::Tensor> slots;
  void visit(auto& archive) {
    archive("count", count);
    slots.resize(static_cast<std::size_t>(count));
    for (std::size_t i = 0; i < slots.size(); ++i) archive(("slot" + std::to_string(i)).c_str(), slots[i]);
  }
  void push(double value) {
    slots.push_back(at::full({1}, value));
    ++count;
  }
};

}  // namespace

TEST_CASE("a state that lists more fields or fewer than before is put back as far as it lists them") {
  listed state;
  state.push(1.0);
  state.push(2.0);
  auto copies = keel::field_copies::of(state);
  state.push(3.0);
  state.slots[0].fill_(9.0);
  copies.restore(state);
  REQUIRE(state.slots.size() == 2);
  CHECK(state.slots[0].item<double>() == 1.0);
  // A third slot that the program adds stays, and what the loss then does to the others goes.
  auto const marks = keel::field_marks::of(state);
  state.push(4.0);
  copies.exclude_changed(marks, state);
  state.slots[1].fill_(9.0);
  copies.restore(state);
  REQUIRE(state.slots.size() == 3);
  CHECK(state.slots[1].item<double>() == 2.0);
  CHECK(state.slots[2].item<double>() == 4.0);
}

namespace {

struct finite_state {
  std::vector<double> rates{0.5, NAN, 1.0};
  std::vector<float> scores{1.0F};
  std::vector<tree> trees = std::vector<tree>(2);
  std::map<std::string, at::Tensor> by_name{{"a.b", at::ones({2})}};
  std::optional<double> best;
  std::array<at::Tensor, 2> pair{at::full({1}, -INFINITY), at::ones({1})};
  at::Tensor complex = at::ones({2}, at::kComplexDouble);
  void visit(auto& archive) {
    archive("rates", rates);
    archive("scores", scores);
    archive("trees", trees);
    archive("by_name", by_name);
    archive("best", best);
    archive("pair", pair);
    archive("complex", complex);
  }
};

}  // namespace

TEST_CASE("NaN in a list, a map or a complex tensor of registered state is found where it stands (N13)") {
  auto const found = [](auto const& spoil) -> std::string {
    finite_state held;
    keel::registered_states all;
    all.add("held", held);
    all.require_finite();
    spoil(held);
    try {
      all.require_finite();
    } catch (keel::nonfinite_error const& thrown) {
      std::string const words = thrown.what();
      return words.substr(6, words.find(" is not finite") - 6);
    }
    return "nothing";
  };
  CHECK(found([](finite_state&) {}) == "nothing");
  CHECK(found([](finite_state& one) { one.rates[1] = NAN; }) == "nothing");
  CHECK(found([](finite_state& one) { one.pair[0].fill_(NAN); }) == "nothing");
  CHECK(found([](finite_state& one) { one.best = INFINITY; }) == "nothing");
  CHECK(found([](finite_state& one) { one.rates[2] = NAN; }) == "held.rates.2");
  CHECK(found([](finite_state& one) { one.scores.push_back(NAN); }) == "held.scores.1");
  CHECK(found([](finite_state& one) { one.trees[1].weights = at::full({1}, INFINITY); }) == "held.trees.1.weights");
  CHECK(found([](finite_state& one) {
          one.trees[0].children.resize(1);
          one.trees[0].children[0].weights = at::full({1}, NAN);
        }) == "held.trees.0.children.0.weights");
  CHECK(found([](finite_state& one) { one.by_name["a.b"].fill_(NAN); }) == "held.by_name.a%2eb");
  CHECK(found([](finite_state& one) { one.best = NAN; }) == "held.best");
  CHECK(found([](finite_state& one) { one.pair[1].fill_(NAN); }) == "held.pair.1");
  CHECK(found([](finite_state& one) { at::view_as_real(one.complex)[1][1].fill_(NAN); }) == "held.complex");
}

namespace {

struct tensors_anywhere {
  at::Tensor weights = at::ones({1});
  std::vector<at::Tensor> list{at::ones({1}), at::Tensor()};
  std::vector<tree> trees = std::vector<tree>(2);
  std::map<std::string, std::optional<at::Tensor>> by_name{{"a", at::ones({1})}, {"b", std::nullopt}};
  void visit(auto& archive) {
    archive("weights", weights);
    archive("list", list);
    archive("trees", trees);
    archive("by_name", by_name);
  }
};

}  // namespace

TEST_CASE("a tensor that no checkpoint can hold is rejected when its state is registered, wherever it stands") {
  struct refused {
    at::Tensor tensor;
    char const* way_out;
  };
  at::Tensor of_bytes = at::full({2}, 2, at::kByte);
  refused const all[] = {{at::eye(2).to_sparse(), "to_dense()"},
                         {at::eye(2, at::kComplexDouble).to_sparse(), "to_dense()"},
                         {at::quantize_per_tensor(at::ones({2}), 0.1, 0, at::kQInt8), "convert it"},
                         {at::empty({2}, at::device(at::kMeta)), "materialize it"},
                         {at::empty({2}, at::device(at::kMeta).dtype(at::kComplexDouble)), "materialize it"},
                         {of_bytes.view(at::kBool), "save it as uint8"}};
  for (refused const& one : all) {
    auto const words = [&](auto const& put) -> std::string {
      tensors_anywhere held;
      put(held);
      keel::registered_states states;
      try {
        states.add("held", held);
      } catch (keel::data_error const& thrown) {
        CHECK(thrown.id() == "E05");
        CHECK(std::string(thrown.what()).find(one.way_out) != std::string::npos);
        CHECK(states.empty());
        // Without it, the name is still free.
        held = {};
        states.add("held", held);
        return thrown.what();
      }
      return "registered";
    };
    CHECK(words([](tensors_anywhere&) {}) == "registered");
    CHECK(words([&](tensors_anywhere& held) { held.weights = one.tensor; }).find("'held.weights'") != std::string::npos);
    CHECK(words([&](tensors_anywhere& held) { held.list[1] = one.tensor; }).find("'held.list.1'") != std::string::npos);
    CHECK(words([&](tensors_anywhere& held) { held.trees[1].weights = one.tensor; }).find("'held.trees.1.weights'") !=
          std::string::npos);
    CHECK(words([&](tensors_anywhere& held) { held.by_name["b"] = one.tensor; }).find("'held.by_name.b'") != std::string::npos);
  }
}

namespace {

template <class... Types>
constexpr bool all_are_fields = (keel::field<Types> && ...);
template <class... Types>
constexpr bool none_is_a_field = !(keel::field<Types> || ...);

struct without_visit {};
class with_private_visit {
  void visit(auto&) {}
};
struct without_default {
  explicit without_default(int) {}
  void visit(auto&) {}
};
struct pinned {
  pinned() = default;
  pinned(pinned const&) = delete;
  void visit(auto&) {}
};

static_assert(all_are_fields<bool, char, signed char, unsigned char, short, long, unsigned long long, wchar_t, char16_t, color,
                             plain, float, double, std::string, at::Tensor, tree, without_default, pinned>);
static_assert(all_are_fields<std::vector<bool>, std::vector<tree>, std::array<pinned, 2>, std::array<without_default, 1>,
                             std::optional<pinned>, std::map<std::string, pinned>>);
static_assert(
    none_is_a_field<long double, int*, char const*, void (*)(), std::nullptr_t, without_visit, with_private_visit, int const,
                    int volatile, std::string const, double volatile, at::Tensor const, std::vector<int> const, double[3]>);
static_assert(none_is_a_field<std::vector<long double>, std::vector<without_default>, std::vector<pinned>, std::vector<int*>,
                              std::optional<std::optional<int>>, std::optional<without_default>, std::map<int, int>,
                              std::map<std::string, without_visit>, std::set<int>, std::pair<int, int>,
                              std::vector<std::pair<int, int>>>);

}  // namespace
