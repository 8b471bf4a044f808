#include <array>
#include <cstdlib>
#include <thread>

#include "../transformer.hpp"

using namespace keel_test;

TEST_CASE("a budget counts what LibTorch holds, its peak, and what it rejected") {
  keel::memory::budget budget;
  auto const before = budget.allocated();
  budget.reset_peak();
  at::Tensor kept = at::empty({1000}, at::kByte);
  { at::Tensor const gone = at::empty({5000}, at::kByte); }
  CHECK(budget.allocated() - before == 1000);
  CHECK(budget.peak() - before == 6000);
  budget.reset_peak();
  CHECK(budget.peak() == budget.allocated());
  auto const refused = budget.refused();
  budget.limit(budget.allocated() + 100);
  CHECK_THROWS_AS(at::empty({101}, at::kByte), c10::OutOfMemoryError);
  CHECK_NOTHROW(at::empty({100}, at::kByte));
  CHECK(budget.refused() == refused + 1);
  budget.limit(0);
  CHECK_NOTHROW(at::empty({101}, at::kByte));
  kept.reset();
  CHECK(budget.allocated() == before);
  CHECK_THROWS_AS(keel::memory::budget(), std::logic_error);
}

TEST_CASE("a rehearsal rejects the one allocation that it names, of its own thread") {
  keel::memory::budget budget;
  budget.refuse_allocation(3);
  CHECK_NOTHROW(at::empty({1}));
  std::thread([] {
    for (int i = 0; i < 5; ++i) at::empty({1});
  }).join();
  CHECK_NOTHROW(at::empty({1}));
  CHECK_THROWS_AS(at::empty({1}), c10::OutOfMemoryError);
  CHECK_NOTHROW(at::empty({1}));
  budget.refuse_allocation(1);
  budget.refuse_allocation(0);
  CHECK_NOTHROW(at::empty({1}));
}

TEST_CASE("two watches each see their own peaks, and without a budget nobody counts") {
  keel::memory::peak_watch first(c10::Device(at::kCPU));
  CHECK_FALSE(first.take());
  CHECK_FALSE(keel::memory::statistics_of(c10::Device(at::kCPU)));
  keel::memory::budget budget;
  keel::memory::peak_watch second(c10::Device(at::kCPU));
  first.take();
  second.take();
  auto const before = budget.allocated();
  { at::Tensor const gone = at::empty({4000}, at::kByte); }
  CHECK(*first.take() - before == 4000);
  { at::Tensor const gone = at::empty({1000}, at::kByte); }
  CHECK(*first.take() - before == 1000);
  CHECK(*second.take() - before == 4000);
  auto const all = *keel::memory::statistics_of(c10::Device(at::kCPU));
  CHECK(all.allocated == before);
  CHECK(all.reserved > 1 << 20);
}

namespace {

struct accumulating : keel::recipe<keel::accumulate<2>> {};

}  // namespace

TEST_CASE("every window says what its phases took: a wide loss is in the forward pass, a wide gradient in the backward pass") {
  keel::memory::budget budget;
  auto const model = make_small();
  keel::adamw optimizer(model->parameters(), 0.01);
  keel::trainer<accumulating> run{model, optimizer, quiet()};
  std::vector<keel::memory::usage> seen;
  run.on([&](keel::event::update_end const& e) { seen.push_back(e.memory.value()); });
  auto const loss = [&](pair_batch const& batch) {
    { at::Tensor const wide = at::empty({1 << 20}, at::kByte); }
    return at::mse_loss(model->forward(batch.first), batch.second);
  };
  for (std::uint64_t i = 0; i < 4; ++i) run.step(make_pair_batch(i), loss);
  REQUIRE(seen.size() == 2);
  using keel::memory::phase;
  auto const peak = [&](phase which) { return seen[1].peaks[static_cast<std::size_t>(which)]; };
  CHECK(peak(phase::forward) > peak(phase::backward) + (1 << 19));
  CHECK(peak(phase::forward) > peak(phase::update) + (1 << 19));
  CHECK(peak(phase::backward) > 0);
  CHECK(seen[1].highest() == phase::forward);
  CHECK(seen[1].held <= seen[1].peak());
  CHECK(run.memory_timeline().peak() == std::max(seen[0].peak(), seen[1].peak()));
  CHECK(run.memory_timeline().peak_phase() == phase::forward);
}

TEST_CASE("a kept tensor an update is a staircase, a growing remainder a slope, and noise is flat") {
  using keel::memory::growth;
  std::mt19937_64 engine(5);
  std::uniform_int_distribution<std::int64_t> noise(0, 1 << 22);
  auto const judged = [&](std::int64_t leak, std::int64_t fragments, int updates = 400) {
    keel::memory::timeline line;
    for (int i = 0; i < updates; ++i) {
      std::int64_t const held = (100 << 20) + leak * i + (i % 5 == 0 ? noise(engine) : 0);
      line.add(i, {held, held + (20 << 20) + fragments * i + noise(engine), {held, held, held}});
    }
    return line.judge();
  };
  CHECK(judged(0, 0) == growth::flat);
  CHECK(judged(1 << 16, 0) == growth::staircase);
  CHECK(judged(1 << 16, 1 << 18) == growth::staircase);
  CHECK(judged(0, 1 << 18) == growth::slope);
  CHECK(judged(1 << 16, 0, 15) == growth::unknown);
  int wrong = 0;
  for (int i = 0; i < 200; ++i) wrong += judged(0, 0) == growth::flat ? 0 : 1;
  CHECK(wrong == 0);
}

TEST_CASE("a run that keeps a tensor an update is told so, once, on the record") {
  scratch_directory directory;
  keel::memory::budget budget;
  auto const model = make_small();
  keel::adamw optimizer(model->parameters(), 0.01);
  keel::trainer<keel::recipe<>> run{model, optimizer, quiet({.run_directory = directory / "run"})};
  std::vector<at::Tensor> kept;
  auto const loss = [&](pair_batch const& batch) {
    kept.push_back(at::empty({1024}));
    return at::mse_loss(model->forward(batch.first), batch.second);
  };
  for (std::uint64_t i = 0; i < 60; ++i) run.step(make_pair_batch(i), loss);
  CHECK(run.memory_timeline().judge() == keel::memory::growth::staircase);
  int said = 0;
  for (auto const& line : read_lines(directory / "run/events.jsonl")) said += line.find("memory_grows") != std::string::npos;
  CHECK(said == 1);
  auto const last = nlohmann::json::parse(read_lines(directory / "run/metrics.jsonl").back());
  CHECK(last["memory"]["held"].get<std::int64_t>() > 60 * 4096);
  CHECK(last["memory"]["forward"].get<std::int64_t>() > 0);
}

namespace {

/// Reads the opcodes that keel::memory::recording writes, and no others.
struct unpickler {
  std::string const& bytes;
  std::size_t at = 0;

  std::uint64_t number(int count) {
    std::uint64_t value = 0;
    for (int i = 0; i < count; ++i) value |= static_cast<std::uint64_t>(static_cast<unsigned char>(bytes.at(at++))) << (8 * i);
    return value;
  }
  nlohmann::json read() {
    REQUIRE(bytes.substr(0, 2) == "\x80\x02");
    at = 2;
    nlohmann::json const value = item();
    REQUIRE(bytes.at(at++) == '.');
    REQUIRE(at == bytes.size());
    return value;
  }
  nlohmann::json item() {
    char const code = bytes.at(at++);
    if (code == 'J') return static_cast<std::int32_t>(number(4));
    if (code == 'X') {
      auto const size = number(4);
      at += size;
      return bytes.substr(at - size, size);
    }
    if (code == '\x8a') {
      REQUIRE(bytes.at(at++) == 8);
      return static_cast<std::int64_t>(number(8));
    }
    REQUIRE((code == '}' || code == ']'));
    REQUIRE(bytes.at(at++) == '(');
    nlohmann::json value = code == '}' ? nlohmann::json::object() : nlohmann::json::array();
    char const end = code == '}' ? 'u' : 'e';
    while (bytes.at(at) != end) {
      if (code == ']') {
        value.push_back(item());
      } else {
        std::string const key = item().get<std::string>();
        value[key] = item();
      }
    }
    ++at;
    return value;
  }
};

}  // namespace

TEST_CASE("a recording is a pickle of plain values whose events add up to the blocks that are left") {
  scratch_directory directory;
  keel::memory::budget budget;
  at::Tensor const from_before = at::empty({10});
  at::Tensor kept;
  {
    keel::memory::recording recording;
    CHECK_THROWS_AS(keel::memory::recording(), std::logic_error);
    recording.set_phase("backward");
    kept = at::empty({1000}, at::kByte);
    { at::Tensor const gone = at::empty({500}, at::kByte); }
    budget.refuse_allocation(1);
    CHECK_THROWS_AS(at::empty({7}, at::kByte), c10::OutOfMemoryError);
    recording.save(directory / "memory.pickle");
  }
  std::string const bytes = read_file(directory / "memory.pickle");
  // For recording.sh, which has Python read it.
  if (char const* const copy = std::getenv("KEEL_SNAPSHOT"); copy != nullptr) write_file(copy, bytes);
  auto const snapshot = unpickler{bytes}.read();
  REQUIRE(snapshot["segments"].size() == 1);
  CHECK(snapshot["segments"][0]["total_size"] == 1000);
  CHECK(snapshot["segments"][0]["blocks"][0]["state"] == "active_allocated");
  CHECK(snapshot["segments"][0]["blocks"][0]["frames"][0]["name"] == "backward");
  auto const& events = snapshot["device_traces"][0];
  std::vector<std::string> actions;
  std::int64_t left = 0;
  for (auto const& event : events) {
    actions.push_back(event["action"]);
    if (actions.back() == "alloc") left += event["size"].get<std::int64_t>();
    if (actions.back() == "free_completed") left -= event["size"].get<std::int64_t>();
  }
  CHECK(actions == std::vector<std::string>{"alloc", "alloc", "free_requested", "free_completed", "oom"});
  CHECK(left == 1000);
}

TEST_CASE("a recording keeps the newest events where there are too many") {
  keel::memory::budget budget;
  keel::memory::recording recording(4);
  for (int i = 0; i < 10; ++i) at::empty({100 + i}, at::kByte);
  std::string const bytes = recording.pickle();
  auto const events = unpickler{bytes}.read()["device_traces"][0];
  REQUIRE(events.size() == 4);
  CHECK(events[3]["action"] == "free_completed");
  CHECK(events[3]["size"] == 109);
}
