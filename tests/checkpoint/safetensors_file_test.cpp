// The same on a disk, which may fail.
#include "safetensors_support.hpp"

using namespace safetensors_test;

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

TEST_CASE("a damaged file on disk is rejected by its path") {
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
