// What is written comes back.
#include "safetensors_support.hpp"
#include <keel/checkpoint/safetensors_scalar_types.hpp>

using namespace safetensors_test;

TEST_CASE("every dtype and shape comes back with the same bits") {
  keel::tensor_map tensors;
  for (std::size_t i = 0; i < keel::safetensors_dtypes.size(); ++i) {
    auto const type = keel::detail::safetensors_scalar_types[i];
    if (type == at::ScalarType::Undefined) continue;
    std::string const name(keel::safetensors_dtypes[i].name);
    CHECK(c10::elementSize(type) * 8 == keel::safetensors_dtypes[i].bits);
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
  CHECK(content.as_bytes.empty());
  for (auto const& [name, tensor] : tensors) {
    INFO(name);
    CHECK(same_bits(tensor, content.tensors.at(name)));
    CHECK(content.tensors.at(name).is_contiguous());
  }
}

TEST_CASE("NaN and infinity come back with the same bits") {
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

TEST_CASE("two names of one tensor are stored once and loaded as one tensor") {
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

TEST_CASE("a written file begins its data at a multiple of 64, widest elements first, then by name") {
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

TEST_CASE("metadata comes back, and says format pt whatever the caller says") {
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

TEST_CASE("a model's parameters and buffers are saved by its name, and load again") {
  using namespace keel_test;
  scratch_directory const directory;
  auto const model = make_small();
  keel::save_safetensors(directory / "model.safetensors", *model, {{"kind", "small"}});
  auto const file = keel::load_safetensors(directory / "model.safetensors");
  CHECK(file.tensors.size() == keel::model_tensors(*model).size());
  CHECK(file.metadata.at("kind") == "small");
  auto const other = make_small();
  {
    at::NoGradGuard no_grad;
    for (at::Tensor& one : other->parameters()) one.add_(1.0);
  }
  keel::load_weights(*other, directory / "model.safetensors");
  CHECK(same_bits(copies_of(other->parameters()), copies_of(model->parameters())));
}
