// A sink beside training: never waited for, never trusted, never without bounds.
#include "../support.hpp"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <keel/metrics/sink_thread.hpp>
#include <keel/metrics/tensorboard_sink.hpp>
#include <mutex>
#include <thread>

#include "event_reader.hpp"

using namespace keel_test;
using namespace std::chrono_literals;

namespace {

/// What a sink was given, and what it waits for.
struct notes {
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<std::string> all;
  bool held = false;
  std::atomic<bool> ended{false};

  void add(std::string words) {
    std::unique_lock<std::mutex> lock(mutex);
    changed.wait(lock, [this] { return !held; });
    all.push_back(std::move(words));
  }
  std::size_t size() {
    std::lock_guard<std::mutex> const lock(mutex);
    return all.size();
  }
  void hold() {
    std::lock_guard<std::mutex> const lock(mutex);
    held = true;
  }
  void release() {
    {
      std::lock_guard<std::mutex> const lock(mutex);
      held = false;
    }
    changed.notify_all();
  }
};

struct noting_sink : keel::metric_sink {
  std::shared_ptr<notes> to;
  int throws = 0;
  explicit noting_sink(std::shared_ptr<notes> made, int throws_at = 0) : to(std::move(made)), throws(throws_at) {}
  ~noting_sink() override { to->ended = true; }
  void scalars(std::int64_t update, std::span<keel::named_value const> values) override {
    if (throws == 1) throw std::runtime_error("the socket is closed");
    if (throws == 2) throw 7;
    to->add(std::to_string(update) + ":" + values.front().name);
  }
  void flush() override { to->add("flush"); }
};

keel::sink_thread::job scalar(std::int64_t update) {
  return [update](keel::metric_sink& sink) { sink.scalars(update, std::vector<keel::named_value>{{"loss", 1.0}}); };
}

}  // namespace

TEST_CASE("a sink gets everything in its order, and is flushed when it is drained") {
  auto const written = std::make_shared<notes>();
  {
    keel::sink_thread thread("notes", std::make_shared<noting_sink>(written));
    for (int i = 0; i < 500; ++i) thread.post(scalar(i));
    thread.drain();
    REQUIRE(written->all.size() == 501);
    for (int i = 0; i < 500; ++i) CHECK(written->all[static_cast<std::size_t>(i)] == std::to_string(i) + ":loss");
    CHECK(written->all.back() == "flush");
    CHECK(thread.take_trouble().empty());
    thread.post(scalar(500));
  }
  CHECK(written->all.size() == 503);
  CHECK(written->ended);
}

TEST_CASE("a slow sink keeps no caller waiting, misses values and says so once") {
  auto const written = std::make_shared<notes>();
  written->hold();
  keel::sink_thread thread("notes", std::make_shared<noting_sink>(written), 8);
  auto const began = std::chrono::steady_clock::now();
  for (int i = 0; i < 1000; ++i) thread.post(scalar(i));
  CHECK(std::chrono::steady_clock::now() - began < 5s);
  CHECK(thread.dropped() >= 1000 - 8 - 1);
  CHECK(thread.take_trouble().find("the sink notes is slower than the run") != std::string::npos);
  thread.post(scalar(1000));
  CHECK(thread.take_trouble().empty());
  written->release();
  thread.drain();
  CHECK(written->all.front() == "0:loss");
  CHECK(written->all.size() <= 8 + 1 + 1 + 1);
}

TEST_CASE("what must not be dropped takes the place of a value where the queue is full, and a hang is said beside slowness") {
  auto const written = std::make_shared<notes>();
  written->hold();
  keel::sink_thread thread("notes", std::make_shared<noting_sink>(written), 4);
  for (int i = 0; i < 20; ++i) thread.post(scalar(i));
  for (int i = 0; i < 6; ++i) thread.post([written, i](keel::metric_sink&) { written->add("restart " + std::to_string(i)); }, /*may_drop=*/false);
  CHECK(thread.take_trouble().find("is slower than the run") != std::string::npos);
  thread.drain(20ms);
  CHECK(thread.take_trouble().find("did not take the last values in time") != std::string::npos);
  written->release();

  auto const others = std::make_shared<notes>();
  others->hold();
  keel::sink_thread full("others", std::make_shared<noting_sink>(others), 4);
  for (int i = 0; i < 20; ++i) full.post(scalar(i));
  for (int i = 0; i < 6; ++i) full.post([others, i](keel::metric_sink&) { others->add("restart " + std::to_string(i)); }, /*may_drop=*/false);
  others->release();
  full.drain();
  std::vector<std::string> restarts;
  for (std::string const& one : others->all) {
    if (one.starts_with("restart")) restarts.push_back(one);
  }
  CHECK(restarts.size() == 6);
}

TEST_CASE("a sink that throws costs its values alone, whatever it throws, and says so once") {
  for (int const kind : {1, 2}) {
    auto const written = std::make_shared<notes>();
    keel::sink_thread thread("notes", std::make_shared<noting_sink>(written, kind));
    for (int i = 0; i < 20; ++i) thread.post(scalar(i));
    thread.drain();
    std::string const said = thread.take_trouble();
    CHECK(said.find(kind == 1 ? "fails: the socket is closed" : "fails: an exception that is not a std::exception") != std::string::npos);
    CHECK(said.find("fails", said.find("fails") + 1) == std::string::npos);
    thread.post(scalar(20));
    thread.drain();
    CHECK(thread.take_trouble().empty());
    CHECK(written->all == std::vector<std::string>{"flush", "flush"});
  }
}

TEST_CASE("a sink that hangs does not keep the run from its end, and may come back") {
  auto const written = std::make_shared<notes>();
  written->hold();
  {
    keel::sink_thread thread("notes", std::make_shared<noting_sink>(written));
    for (int i = 0; i < 5; ++i) thread.post(scalar(i));
    thread.drain(50ms);
    CHECK(thread.take_trouble().find("did not take the last values in time") != std::string::npos);
    thread.post(scalar(5));
    CHECK(thread.dropped() >= 5);
    auto const began = std::chrono::steady_clock::now();
    thread.drain(50ms);
    CHECK(std::chrono::steady_clock::now() - began < 5s);
    written->release();
    for (int tries = 0; tries < 1000 && written->size() == 0; ++tries) std::this_thread::sleep_for(5ms);
    for (int i = 6; written->size() < 2 && i < 1000; ++i) {
      thread.post(scalar(i));
      std::this_thread::sleep_for(5ms);
    }
    CHECK(written->size() >= 2);
    written->hold();
    thread.post(scalar(2000));
    thread.drain(50ms);
  }
  // Its owner is gone; the sink returns and ends.
  written->release();
  for (int tries = 0; tries < 1000 && !written->ended; ++tries) std::this_thread::sleep_for(5ms);
  CHECK(written->ended);
}

TEST_CASE("a sink that was never used makes no thread and no file") {
  scratch_directory const directory;
  { keel::sink_thread thread("tensorboard", std::make_shared<keel::tensorboard_sink>(directory / "run")); }
  CHECK_FALSE(std::filesystem::exists(directory / "run"));
}

TEST_CASE("a broken directory is said once and no exception reaches the run") {
  scratch_directory const directory;
  write_file(directory / "taken", "a file");
  keel::sink_thread thread("tensorboard", std::make_shared<keel::tensorboard_sink>(directory / "taken/run"));
  for (int i = 0; i < 10; ++i) thread.post(scalar(i));
  thread.drain();
  CHECK(thread.take_trouble().find("the sink tensorboard fails: ") == 0);
  CHECK(thread.take_trouble().empty());
}
