// Tensors in several files with an index, and a file that is mapped.
#include "safetensors_support.hpp"

#include <chrono>
#include <fstream>
#include <keel/checkpoint/mapped_safetensors.hpp>
#include <keel/checkpoint/sharded_safetensors.hpp>

using namespace safetensors_test;

namespace {
keel::tensor_map many() {
  keel::tensor_map tensors;
  for (int i = 0; i < 12; ++i) tensors["layer." + std::to_string(i)] = at::randn({i + 1, 10});
  tensors["tied"] = tensors.at("layer.3");
  tensors["empty"] = at::empty({0, 4});
  return tensors;
}
std::string text_of(std::filesystem::path const& path) {
  std::ifstream stream(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), {}};
}
void put(std::filesystem::path const& path, std::string const& text) { std::ofstream(path, std::ios::binary | std::ios::trunc) << text; }
std::string refusal(std::filesystem::path const& index) {
  try {
    keel::load_sharded_safetensors(index);
  } catch (keel::error const& thrown) {
    return thrown.what();
  }
  return "accepted";
}
}  // namespace

TEST_CASE("shards hold what was saved at every size, tied tensors stay one, and no file is over the size") {
  auto const tensors = many();
  for (std::uint64_t const most : {1u, 200u, 480u, 1000u, 100'000u}) {
    temporary_folder const folder;
    keel::save_sharded_safetensors(folder.path, "model", tensors, most);
    auto const index = folder.path / "model.safetensors.index.json";
    bool const one_file = most == 100'000u;
    REQUIRE(std::filesystem::exists(index) != one_file);
    auto const content = one_file ? keel::load_safetensors(folder.path / "model.safetensors") : keel::load_sharded_safetensors(index);
    REQUIRE(content.tensors.size() == tensors.size());
    for (auto const& [name, tensor] : tensors) CHECK(same_bits(tensor, content.tensors.at(name)));
    CHECK(content.tensors.at("tied").is_same(content.tensors.at("layer.3")));
    if (one_file) continue;
    for (auto const& entry : std::filesystem::directory_iterator(folder.path)) {
      if (entry.path().extension() != ".safetensors") continue;
      auto const held = keel::load_safetensors(entry.path()).tensors;
      std::uint64_t bytes = 0;
      int stored = 0;
      for (auto const& [name, tensor] : held) {
        if (name == "tied" || tensor.nbytes() == 0) continue;
        bytes += tensor.nbytes();
        ++stored;
      }
      CHECK((bytes <= most || stored == 1));
    }
    CHECK(nlohmann::json::parse(text_of(index))["metadata"]["total_size"] == 78 * 40);
  }
}

TEST_CASE("an index that is damaged, incomplete or leads out of its folder is rejected in words") {
  temporary_folder const folder;
  keel::save_sharded_safetensors(folder.path, "model", many(), 480);
  auto const index = folder.path / "model.safetensors.index.json";
  std::string const good = text_of(index);
  auto const with = [&](auto change) {
    auto json = nlohmann::json::parse(good);
    change(json);
    put(index, json.dump());
    return refusal(index);
  };
  CHECK(with([](auto&) {}) == "accepted");
  CHECK(with([](auto& j) { j["weight_map"]["layer.1"] = "../etc/passwd"; }).find("names the file '../etc/passwd'") != std::string::npos);
  CHECK(with([](auto& j) { j["weight_map"]["layer.1"] = ".."; }).find("names the file") != std::string::npos);
  CHECK(with([](auto& j) { j["weight_map"]["layer.1"] = 7; }).find("names no file for 'layer.1'") != std::string::npos);
  CHECK(with([](auto& j) { j["weight_map"]["layer.99"] = j["weight_map"]["layer.1"]; }).find("does not contain it") != std::string::npos);
  CHECK(with([](auto& j) { j.erase("weight_map"); }).find("is not an index") != std::string::npos);
  put(index, good.substr(0, good.size() / 2));
  CHECK(refusal(index).find("[E05]") == 0);
  put(index, good);
  auto const shard = folder.path / nlohmann::json::parse(good)["weight_map"]["layer.11"].get<std::string>();
  std::string const bytes = text_of(shard);
  put(shard, bytes.substr(0, bytes.size() - 1));
  CHECK(refusal(index).find(shard.string()) != std::string::npos);
  std::filesystem::remove(shard);
  CHECK(refusal(index).find("which does not exist") != std::string::npos);
  CHECK_THROWS_AS(keel::save_sharded_safetensors(folder.path, "model", many(), 0), keel::error);
}

TEST_CASE("an index with a name twice, too deep, or of other bytes is rejected in words") {
  temporary_folder const folder;
  keel::save_sharded_safetensors(folder.path, "model", many(), 480);
  auto const index = folder.path / "model.safetensors.index.json";
  std::string good = text_of(index);
  auto const map = good.find("\"layer.1\"");
  REQUIRE(map != std::string::npos);
  auto twice = good;
  twice.insert(map, "\"layer.1\": \"other.safetensors\", ");
  put(index, twice);
  CHECK(refusal(index).find("the key 'layer.1' stands twice") != std::string::npos);
  for (char const* const part : {"[", "{\"a\":"}) {
    std::string deep;
    for (int i = 0; i < 200'000; ++i) deep += part;
    put(index, deep);
    CHECK(refusal(index).find("more than 64 levels") != std::string::npos);
  }
  put(index, good + std::string(1, '\0'));
  CHECK(refusal(index).find("NUL byte") != std::string::npos);
  put(index, good + "x");
  CHECK(refusal(index).find("[E05]") == 0);
  put(index, R"({"weight_map":{"w":"a\u0000b"}})");
  CHECK(refusal(index).find("names the file 'a?b'") != std::string::npos);
}

TEST_CASE("a shard's alias yields to the file that the index names, and two files with one alias are rejected") {
  temporary_folder const folder;
  auto const at = [&](char const* name) { return folder.path / name; };
  auto const x = at::ones({2});
  auto const y = at::zeros({2});
  keel::save_safetensors(at("1.safetensors"), {{"a", x}, {"b", x}});
  keel::save_safetensors(at("2.safetensors"), {{"b", y}, {"c", y}});
  put(at("index.json"), R"({"weight_map":{"a":"1.safetensors","b":"2.safetensors"}})");
  auto const content = keel::load_sharded_safetensors(at("index.json"));
  CHECK(at::equal(content.tensors.at("b"), y));
  CHECK(content.tensors.at("c").is_same(content.tensors.at("b")));
  keel::save_safetensors(at("2.safetensors"), {{"c", y}, {"b", y}, {"d", y}});
  put(at("index.json"), R"({"weight_map":{"a":"1.safetensors","c":"2.safetensors"}})");
  CHECK(refusal(at("index.json")).find("two files that both contain 'b'") != std::string::npos);
}

TEST_CASE("a sharded set says which tensors came as bytes") {
  temporary_folder const folder;
  put(folder.path / "1.safetensors", entry_file(R"({"dtype":"F4","shape":[8],"data_offsets":[0,4]})"));
  put(folder.path / "index.json", R"({"weight_map":{"w":"1.safetensors"}})");
  CHECK(keel::load_sharded_safetensors(folder.path / "index.json").as_bytes == keel::string_map{{"w", "F4"}});
}

TEST_CASE("reading an index of 15,000 tensors costs little more than reading their file") {
  temporary_folder const folder;
  keel::tensor_map tensors;
  auto const all = at::arange(15'000);
  for (int i = 0; i < 15'000; ++i) tensors["layer." + std::to_string(i) + ".weight"] = all.narrow(0, i, 1);
  for (int i = 0; i < 2'000; ++i) tensors["tied." + std::to_string(i)] = all.narrow(0, i, 1);
  tensors["zlast"] = at::zeros({1000});
  keel::save_sharded_safetensors(folder.path, "model", tensors, 120'000);
  using clock = std::chrono::steady_clock;
  auto const begin = clock::now();
  REQUIRE(keel::load_safetensors(folder.path / "model-00001-of-00002.safetensors").tensors.size() == 17'000);
  auto const of_file = clock::now() - begin;
  auto const content = keel::load_sharded_safetensors(folder.path / "model.safetensors.index.json");
  auto const of_index = clock::now() - begin - of_file;
  CHECK(of_index < 5 * of_file);  // a search in all names for each name is far beyond that
  REQUIRE(content.tensors.size() == 17'001);
  CHECK(content.tensors.at("layer.14999.weight").item<std::int64_t>() == 14'999);
  CHECK(content.tensors.at("tied.77").is_same(content.tensors.at("layer.77.weight")));
}

TEST_CASE("a mapped file has the tensors of a read one; what is written to them stays in the process, and they outlive each other") {
  temporary_folder const folder;
  auto const path = folder.path / "model.safetensors";
  auto const tensors = small_checkpoint();
  keel::save_safetensors(path, tensors, {{"recipe", "r"}});
  std::string const before = text_of(path);
  at::Tensor one;
  {
    auto const content = keel::map_safetensors(path);
    CHECK(content.metadata == keel::string_map{{"format", "pt"}, {"recipe", "r"}});
    REQUIRE(content.tensors.size() == tensors.size());
    for (auto const& [name, tensor] : tensors) CHECK(same_bits(tensor, content.tensors.at(name)));
    CHECK(content.tensors.at("a.weight").is_same(content.tensors.at("b.weight")));
    one = content.tensors.at("a.weight");
  }
  one.fill_(5.0);
  CHECK(one.min().item<double>() == 5.0);
  CHECK(text_of(path) == before);
}

TEST_CASE("a mapped file whose data is not aligned to its elements is copied, and every damaged one is rejected") {
  temporary_folder const folder;
  auto const path = folder.path / "odd.safetensors";
  std::string header = R"({"x":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})";
  header += std::string((8 - header.size() % 8 + 1) % 8 + 1, ' ');
  std::uint64_t const length = header.size();
  std::string file(8, '\0');
  std::memcpy(file.data(), &length, 8);
  float const values[2] = {1.5f, -2.0f};
  file += header + std::string(reinterpret_cast<char const*>(values), sizeof values);
  put(path, file);
  auto const content = keel::map_safetensors(path);
  CHECK(content.tensors.at("x")[0].item<float>() == 1.5f);
  CHECK(content.tensors.at("x")[1].item<float>() == -2.0f);
  CHECK(reinterpret_cast<std::uintptr_t>(content.tensors.at("x").data_ptr()) % 4 == 0);
  std::string const good = written(small_checkpoint());
  for (std::size_t cut = 0; cut < good.size(); cut += 7) {
    put(path, good.substr(0, cut));
    CHECK_THROWS_AS(keel::map_safetensors(path), keel::checkpoint_error);
  }
}
