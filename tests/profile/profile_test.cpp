// Profiles: traces that nest, summaries that add up, and when a run records them.
#include "../support.hpp"

#include <keel/profile/profile_recorder.hpp>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <thread>

using namespace keel_test;
using namespace keel::literals;

namespace {

namespace profile = keel::profile;

/// Throws where a track's events overlap without one being inside the other.
void require_nested(nlohmann::json const& trace) {
  std::map<int, std::vector<std::pair<double, double>>> tracks;
  for (auto const& event : trace["traceEvents"]) {
    if (event["ph"] != "X") continue;
    double const begin = event["ts"].get<double>();
    tracks[event["tid"].get<int>()].emplace_back(begin, begin + event["dur"].get<double>());
  }
  constexpr double rounding = 1e-6;
  for (auto& [track, all] : tracks) {
    std::sort(all.begin(), all.end(), [](auto const& a, auto const& b) { return a.first != b.first ? a.first < b.first : a.second > b.second; });
    std::vector<double> open;
    for (auto const& [begin, end] : all) {
      while (!open.empty() && open.back() <= begin + rounding) open.pop_back();
      if (!open.empty() && end > open.back() + rounding) throw std::runtime_error("track " + std::to_string(track) + " does not nest");
      open.push_back(end);
    }
  }
}

nlohmann::json read_json(std::filesystem::path const& path) {
  std::ifstream file(path);
  return nlohmann::json::parse(file);
}
std::string read_text(std::filesystem::path const& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::set<std::string> profiles_of(std::filesystem::path const& run) {
  std::set<std::string> all;
  if (!std::filesystem::exists(run / "profiles")) return all;
  for (auto const& entry : std::filesystem::directory_iterator(run / "profiles")) all.insert(entry.path().filename().string());
  return all;
}

struct each_ten : keel::recipe<profile::every<10_steps, profile::warmup<1>, profile::active<2>>, keel::checkpoint::every<4_steps>> {};
struct on_symptoms : keel::recipe<profile::on_symptom<profile::warmup<0>, profile::active<1>>, keel::nonfinite::skip<100>,
                                  keel::health::watch<keel::health::updates_are_skipped>> {};

template <class Recipe>
std::shared_ptr<small_module> train(std::filesystem::path const& directory, std::int64_t updates, bool has_bad = false) {
  auto const model = make_small(1, 0.1);
  torch::optim::AdamW optimizer(model->parameters(), torch::optim::AdamWOptions(0.01));
  keel::trainer<Recipe> run{model, optimizer, quiet({.run_directory = directory, .updates = updates})};
  std::vector<pair_batch> batches;
  for (std::int64_t i = 0; i < 2 * updates; ++i) batches.push_back(make_pair_batch(static_cast<std::uint64_t>(i)));
  run.fit(batches, [&, n = 0](pair_batch const& batch) mutable {
    at::Tensor const loss = mean_squared_error(model)(batch);
    return has_bad && ++n > 30 && n % 3 == 0 ? loss * NAN : loss;
  });
  return model;
}

}  // namespace

TEST_CASE("names are classified by whole words") {
  using keel::operation_kind;
  auto const kind = [](char const* name) { return keel::kind_of_operation(name); };
  for (char const* const name : {"aten::mm", "aten::addmm", "aten::convolution_backward", "aten::linear", "aten::_scaled_dot_product_attention"})
    CHECK(kind(name) == operation_kind::matrix_product);
  for (char const* const name : {"aten::copy_", "aten::_to_copy", "aten::cat", "aten::contiguous", "aten::index_select", "aten::zero_"})
    CHECK(kind(name) == operation_kind::memory);
  for (char const* const name : {"aten::softmax", "aten::_log_softmax_backward_data", "aten::add", "aten::comma", "aten::commit"})
    CHECK(kind(name) == operation_kind::other);
  for (char const* const name : {"c10d::allreduce_", "nccl:all_reduce", "gloo:broadcast"}) CHECK(kind(name) == operation_kind::communication);
}

TEST_CASE("a recording nests on every track, and its summary adds up to all time") {
  auto const model = make_small(1);
  keel::profile_recorder recorder;
  recorder.phase_began(keel::run_phase::forward);
  auto const loss = mean_squared_error(model)(make_pair_batch(1));
  recorder.phase_ended(keel::run_phase::forward);
  recorder.phase_began(keel::run_phase::backward);
  loss.backward();
  recorder.memory(1000);
  auto const all = recorder.finish();
  CHECK(all.ranges.size() > 20);
  auto const trace = nlohmann::json::parse(keel::chrome_trace(all));
  require_nested(trace);
  std::set<std::string> names;
  for (auto const& event : trace["traceEvents"]) names.insert(event["name"].get<std::string>());
  for (char const* const wanted : {"forward", "backward", "aten::addmm", "aten::mm", "memory", "thread_name"}) {
    CAPTURE(wanted);
    CHECK(names.count(wanted) == 1);
  }
  std::string const summary = keel::summary_of(all);
  double sum = 0.0;
  for (char const* const row : {"| matrix products | ", "| communication | ", "| memory operations | ", "| other operations | ", "| idle: outside of LibTorch's operations | "}) {
    CAPTURE(row, summary);
    auto const at = summary.find(row);
    REQUIRE(at != std::string::npos);
    sum += std::stod(summary.substr(at + std::string(row).size()));
  }
  CHECK(sum == Approx(static_cast<double>(all.length) / 1e6).margin(0.005));
}

TEST_CASE("a recorder that is full keeps what it has, and says how much it lacks") {
  keel::profile_recorder recorder(10);
  at::Tensor const x = at::rand({2});
  for (int i = 0; i < 100; ++i) x.add(1.0);
  auto const all = recorder.finish();
  CHECK(all.ranges.size() == 10);
  CHECK(all.left_out >= 90);
  CHECK(keel::summary_of(all).find("are left out, because this profile is full") != std::string::npos);
}

TEST_CASE("recorders of two threads see their own thread alone") {
  std::vector<std::thread> threads;
  std::atomic<int> wrong{0};
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&, i] {
      keel::profile_recorder recorder;
      at::Tensor const x = at::rand({2}).requires_grad_(true);
      for (int n = 0; n < 50; ++n) (i % 2 == 0 ? x.add(1.0) : x.mul(2.0)).sum().backward();
      for (auto const& range : recorder.finish().ranges) {
        if (range.name == (i % 2 == 0 ? "aten::mul" : "aten::add")) ++wrong;
      }
    });
  }
  for (auto& thread : threads) thread.join();
  CHECK(wrong == 0);
}

TEST_CASE("profile::every records what its policy says, changes no bit, and its files open") {
  scratch_directory const directory;
  auto const with = train<each_ten>(directory / "run", 25);
  auto const without = train<keel::recipe<keel::checkpoint::every<4_steps>>>(directory / "plain", 25);
  CHECK(same_bits(with->parameters(), without->parameters()));
  CHECK(profiles_of(directory / "run") == std::set<std::string>{"update-000000002", "update-000000012", "update-000000022"});
  for (auto const& name : profiles_of(directory / "run")) {
    auto const trace = read_json(directory / "run/profiles" / name / "trace.json");
    require_nested(trace);
    std::multiset<std::string> phases;
    for (auto const& event : trace["traceEvents"]) {
      if (event["ph"] == "X" && event["cat"] == "phase") phases.insert(event["name"].get<std::string>());
    }
    CHECK(phases.count("forward") == 2);
    CHECK(phases.count("backward") == 2);
    CHECK(phases.count("update") == 2);
    CHECK(phases.count("saving") >= 2);
    std::string const summary = read_text(directory / "run/profiles" / name / "summary.md");
    CHECK(summary.find("# Updates ") == 0);
  }
  CHECK(read_text(directory / "run/profiles/update-000000012/summary.md").find("# Updates 12 to 13") == 0);
}

TEST_CASE("an older profile goes without what a person put beside it") {
  scratch_directory const directory;
  auto const older = [&](int update) { return directory / keel::detail::formatted("run/profiles/update-%09d", update); };
  for (int update = 101; update < 170; update += 2) {
    std::filesystem::create_directories(older(update));
    write_file(older(update) / "trace.json", "{}");
    write_file(older(update) / "summary.md", "");
  }
  write_file(older(101) / "notes.txt", "why");
  std::filesystem::create_directories(directory / "run/profiles/update-000000103-copy");
  write_file(directory / "run/profiles/update-000000103-copy/trace.json", "{}");
  train<each_ten>(directory / "run", 15);
  CHECK(!std::filesystem::exists(older(101)));
  CHECK(!std::filesystem::exists(older(103)));
  CHECK(read_text(directory / "run/profiles/kept-update-000000101/notes.txt") == "why");
  CHECK(!std::filesystem::exists(directory / "run/profiles/kept-update-000000101/trace.json"));
  CHECK(std::filesystem::exists(directory / "run/profiles/update-000000103-copy/trace.json"));
}

TEST_CASE("the event of a profile comes when its files are there") {
  scratch_directory const directory;
  auto const model = make_small(1, 0.1);
  torch::optim::SGD optimizer(model->parameters(), 0.01);
  keel::trainer<each_ten> run{model, optimizer, quiet({.run_directory = directory / "run", .updates = 60})};
  std::size_t seen = 0;
  run.on([&](keel::event::update_end const&) {
    std::size_t said = 0;
    for (std::string const& line : read_lines(directory / "run/events.jsonl")) {
      auto const event = nlohmann::json::parse(line);
      if (event["event"] != "profile") continue;
      ++said;
      for (char const* const name : {"trace.json", "summary.md"}) CHECK(std::filesystem::exists(std::filesystem::path(event["path"].get<std::string>()) / name));
    }
    CHECK(said >= seen);
    seen = said;
  });
  std::vector<pair_batch> batches;
  for (std::uint64_t i = 0; i < 60; ++i) batches.push_back(make_pair_batch(i));
  run.fit(batches, mean_squared_error(model));
  CHECK(seen > 0);
  std::size_t all = 0;
  for (std::string const& line : read_lines(directory / "run/events.jsonl")) all += nlohmann::json::parse(line)["event"] == "profile" ? 1 : 0;
  CHECK(all == profiles_of(directory / "run").size());
}

TEST_CASE("a symptom is profiled, and those that follow too soon are not") {
  scratch_directory const directory;
  train<on_symptoms>(directory / "run", 120, true);
  CHECK(profiles_of(directory / "run").size() == 1);
  bool said = false;
  for (std::string const& line : read_lines(directory / "run/events.jsonl")) {
    auto const event = nlohmann::json::parse(line);
    if (event["event"] == "profile") said = event["message"].get<std::string>().find("alarm updates_are_skipped") != std::string::npos;
  }
  CHECK(said);
}

TEST_CASE("a recipe with profiles and no run directory is rejected by name") {
  auto const model = make_small(1);
  torch::optim::SGD optimizer(model->parameters(), 0.01);
  struct mine : keel::recipe<profile::every<10_steps>> {};
  CHECK_THROWS_AS((keel::trainer<mine>{model, optimizer}), keel::error);
}
