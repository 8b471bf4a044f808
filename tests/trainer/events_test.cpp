#include "../support.hpp"

#include <range/v3/view/iota.hpp>
#include <range/v3/view/transform.hpp>

using namespace keel_test;
using namespace keel::literals;

namespace {

struct whole : keel::recipe<keel::checkpoint::every<2_steps>, keel::nonfinite::skip<3>> {};
struct in_fours : keel::recipe<keel::accumulate<4>> {};

/// Writes each event as one short line.
struct scribe {
  std::vector<std::string>* lines;
  void operator()(keel::event::run_begin const& e) const { add("run_begin " + std::to_string(e.update)); }
  void operator()(keel::event::epoch_begin const& e) const { add("epoch_begin " + std::to_string(e.epoch)); }
  void operator()(keel::event::update_begin const& e) const { add("update_begin " + std::to_string(e.update)); }
  void operator()(keel::event::micro_batch_begin const& e) const { add("micro_batch_begin " + std::to_string(e.micro_batch)); }
  void operator()(keel::event::micro_batch_end const& e) const { add("micro_batch_end " + std::to_string(e.micro_batch)); }
  void operator()(keel::event::gradients_ready const&) const { add("gradients_ready"); }
  void operator()(keel::event::update_end const& e) const {
    add("update_end " + std::to_string(e.update) + (e.result.is<keel::result::updated>() ? " updated" : " skipped"));
  }
  void operator()(keel::event::out_of_memory const& e) const { add("out_of_memory " + e.rung); }
  void operator()(keel::event::checkpoint_saved const& e) const { add("checkpoint_saved " + std::to_string(e.update)); }
  void operator()(keel::event::epoch_end const& e) const { add("epoch_end " + std::to_string(e.epoch)); }
  void operator()(keel::event::run_end const& e) const {
    add(std::string("run_end") + (e.result.is<keel::result::finished>() ? " finished" : ""));
  }
  void add(std::string line) const { lines->push_back(std::move(line)); }
};

auto batches(int count) {
  return ranges::views::iota(0, count) | ranges::views::transform([](int i) { return make_pair_batch(static_cast<std::uint64_t>(i)); });
}

}  // namespace

TEST_CASE("events come in the documented order: accumulation 1, a skipped update, a checkpoint, two epochs") {
  scratch_directory const directory;
  auto const model = make_small();
  torch::optim::SGD optimizer(model->parameters(), 0.1);
  keel::trainer<whole> run{model, optimizer, quiet({.run_directory = directory, .epochs = 2})};
  std::vector<std::string> lines;
  run.on(scribe{&lines});
  int call = 0;
  run.fit(batches(2), [&](pair_batch const& batch) {
    at::Tensor const loss = mean_squared_error(model)(batch);
    return call++ == 1 ? loss * NAN : loss;
  });
  CHECK(lines == std::vector<std::string>{
                     "run_begin 0",
                     "epoch_begin 0",
                     "update_begin 0", "micro_batch_begin 0", "micro_batch_end 0", "gradients_ready", "update_end 1 updated",
                     "update_begin 1", "micro_batch_begin 0", "micro_batch_end 0", "update_end 1 skipped",
                     "epoch_end 0",
                     "epoch_begin 1",
                     "update_begin 1", "micro_batch_begin 0", "micro_batch_end 0", "gradients_ready", "update_end 2 updated",
                     "checkpoint_saved 2",
                     "update_begin 2", "micro_batch_begin 0", "micro_batch_end 0", "gradients_ready", "update_end 3 updated",
                     "epoch_end 1",
                     "checkpoint_saved 3",
                     "run_end finished"});
}

TEST_CASE("events come in the documented order: accumulation 4, a window over the end of an epoch, a last one left incomplete") {
  auto const model = make_small();
  torch::optim::SGD optimizer(model->parameters(), 0.1);
  keel::trainer<in_fours> run{model, optimizer, quiet({.epochs = 2})};
  std::vector<std::string> lines;
  run.on(scribe{&lines});
  run.fit(batches(3), mean_squared_error(model));
  CHECK(lines == std::vector<std::string>{
                     "run_begin 0",
                     "epoch_begin 0",
                     "update_begin 0",
                     "micro_batch_begin 0", "micro_batch_end 0",
                     "micro_batch_begin 1", "micro_batch_end 1",
                     "micro_batch_begin 2", "micro_batch_end 2",
                     "epoch_end 0",
                     "epoch_begin 1",
                     "micro_batch_begin 3", "micro_batch_end 3", "gradients_ready", "update_end 1 updated",
                     "update_begin 1",
                     "micro_batch_begin 0", "micro_batch_end 0",
                     "micro_batch_begin 1", "micro_batch_end 1",
                     "epoch_end 1",
                     "gradients_ready", "update_end 2 updated",
                     "run_end finished"});
}

TEST_CASE("a rung shows as an event, and the window begins again with its first micro-batch") {
  struct climbing : keel::recipe<keel::accumulate<2>, keel::oom::ladder<keel::oom::halve_micro_batch, keel::oom::give_up>> {};
  auto const model = make_small();
  torch::optim::SGD optimizer(model->parameters(), 0.1);
  keel::trainer<climbing> run{model, optimizer, quiet()};
  std::vector<std::string> lines;
  run.on(scribe{&lines});
  int call = 0;
  run.fit(batches(2), [&](pair_batch const& batch) {
    if (call++ == 1) throw std::bad_alloc();
    return mean_squared_error(model)(batch);
  });
  CHECK(lines == std::vector<std::string>{"run_begin 0", "epoch_begin 0", "update_begin 0",
                                          "micro_batch_begin 0", "micro_batch_end 0", "micro_batch_begin 1",
                                          "out_of_memory halve_micro_batch",
                                          "micro_batch_begin 0", "micro_batch_end 0", "micro_batch_begin 1", "micro_batch_end 1",
                                          "gradients_ready", "update_end 1 updated", "epoch_end 0", "run_end finished"});
  CHECK(run.rungs_taken() == 1);
}

TEST_CASE("a generic hook hears every event, and hooks of one event run in the order in which they were added") {
  auto const model = make_small();
  torch::optim::SGD optimizer(model->parameters(), 0.1);
  keel::trainer<keel::recipe<>> run{model, optimizer, quiet()};
  int heard = 0;
  std::vector<int> order;
  run.on([&](auto const&) { ++heard; });
  run.on([&](keel::event::run_end const&) { order.push_back(1); });
  run.on([&](keel::event::run_end const&) { order.push_back(2); });
  run.fit(batches(1), mean_squared_error(model));
  CHECK(heard == 9);
  CHECK(order == std::vector<int>{1, 2});
}
