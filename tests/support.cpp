// unity: at global scope
#include "support.hpp"

#include <unistd.h>

#include <algorithm>
#include <iterator>
#include <keel/checkpoint/optimizer_state.hpp>
#include <keel/trainer/run_event_table.hpp>
#include <stdexcept>
#include <string_view>

namespace keel_test {

at::Device device() {
  char const* const named = std::getenv("KEEL_TEST_DEVICE");
  return at::Device(named == nullptr ? "cpu" : named);
}

scratch_directory::scratch_directory() {
  std::string name = (std::filesystem::temp_directory_path() / "keel-test-XXXXXX").string();
  if (::mkdtemp(name.data()) == nullptr) throw std::runtime_error("cannot make a scratch directory");
  path_ = name;
}
scratch_directory::~scratch_directory() {
  std::error_code ignored;  // a directory that stays behind fails no promise of a test
  std::filesystem::permissions(path_, std::filesystem::perms::owner_all, ignored);
  std::filesystem::remove_all(path_, ignored);
}

std::string read_file(std::filesystem::path const& path) {
  std::ifstream file(path, std::ios::binary);
  return std::string((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
}

void write_file(std::filesystem::path const& path, std::string const& content) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file << content;
}

std::vector<std::string> read_lines(std::filesystem::path const& path) {
  std::ifstream file(path);
  std::vector<std::string> lines;
  for (std::string line; std::getline(file, line);) lines.push_back(line);
  return lines;
}

/// Throws if the table of events lacks this one, or one of its fields.
static void require_listed(nlohmann::json const& line) {
  std::string const name = line.at("event");
  auto const* const end = std::end(keel::logged_event::all);
  auto const* const event = std::find_if(std::begin(keel::logged_event::all), end, [&](auto const& one) { return one.name == name; });
  if (event == end) throw std::runtime_error("run_event_table.hpp has no event " + name);
  for (auto const& item : line.items()) {
    bool const is_common = item.key() == "event" || item.key() == "update" || item.key() == "time";
    bool const is_listed = std::string_view(event->fields).find("`" + item.key() + "`") != std::string_view::npos;
    if (!is_common && !is_listed) throw std::runtime_error("run_event_table.hpp has no field " + item.key() + " of " + name);
  }
}

std::vector<nlohmann::json> events_of(std::filesystem::path const& directory, std::string const& name) {
  std::vector<nlohmann::json> found;
  for (std::string const& line : read_lines(directory / "events.jsonl")) {
    auto event = nlohmann::json::parse(line);
    require_listed(event);
    if (event.at("event") == name) found.push_back(std::move(event));
  }
  return found;
}

std::vector<std::string> timeless_metrics(std::filesystem::path const& run_directory) {
  auto lines = read_lines(run_directory / "metrics.jsonl");
  for (std::string& line : lines) line.resize(line.find("\"ms\":"));
  return lines;
}

bool same_bits(at::Tensor const& a, at::Tensor const& b) {
  if (a.defined() != b.defined()) return false;
  if (!a.defined()) return true;
  if (a.sizes() != b.sizes() || a.scalar_type() != b.scalar_type()) return false;
  at::Tensor const x = a.detach().cpu().contiguous();
  at::Tensor const y = b.detach().cpu().contiguous();
  return x.nbytes() == 0 || std::memcmp(x.data_ptr(), y.data_ptr(), x.nbytes()) == 0;
}

std::vector<at::Tensor> copies_of(std::vector<at::Tensor> const& tensors) {
  std::vector<at::Tensor> copies;
  for (at::Tensor const& one : tensors) copies.push_back(one.detach().clone());
  return copies;
}

bool same_bits(std::vector<at::Tensor> const& a, std::vector<at::Tensor> const& b) {
  if (a.size() != b.size()) return false;
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (!same_bits(a[i], b[i])) return false;
  }
  return true;
}

optimizer_image image_of(torch::nn::Module& model, torch::optim::Optimizer& optimizer) {
  nlohmann::json object;
  keel::tensor_map tensors;
  keel::save_optimizer(optimizer, keel::collect_parameters(model, optimizer), object, tensors);
  for (auto& [name, tensor] : tensors) tensor = tensor.clone();
  return {object.dump(), tensors};
}
bool same_bits(optimizer_image const& a, optimizer_image const& b) {
  if (a.options != b.options || a.moments.size() != b.moments.size()) return false;
  for (auto const& [name, tensor] : a.moments) {
    auto const found = b.moments.find(name);
    if (found == b.moments.end() || !same_bits(tensor, found->second)) return false;
  }
  return true;
}

small_module::small_module(double dropout)
    : first(register_module("first", torch::nn::Linear(6, 8))),
      drop(register_module("drop", torch::nn::Dropout(dropout))),
      second(register_module("second", torch::nn::Linear(8, 1))) {
  to(device());
}

std::shared_ptr<small_module> make_small(std::uint64_t seed, double dropout) {
  keel::libtorch::seed_random(at::kCPU, seed);
  if (!device().is_cpu()) keel::libtorch::seed_random(device().type(), seed);
  return std::make_shared<small_module>(dropout);
}

pair_batch make_pair_batch(std::uint64_t seed, std::int64_t rows) {
  std::mt19937_64 engine(seed);
  std::normal_distribution<float> normal;
  at::Tensor const x = at::empty({rows, 6});
  for (std::int64_t i = 0; i < x.numel(); ++i) x.data_ptr<float>()[i] = normal(engine);
  return {x.to(device()), x.sum(1, true).sin().to(device())};
}

}  // namespace keel_test
