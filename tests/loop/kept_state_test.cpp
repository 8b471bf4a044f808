// What is in a checkpoint beside keel's own state, and checkpoints of programs that have changed since.
#include "../support.hpp"

using namespace keel_test;
using namespace keel::literals;

namespace {

struct recipe : keel::recipe<keel::checkpoint::every<2_steps>, keel::determinism::seeded<3>, keel::ema<0.9>> {};

/// A program's own: how hard the next batch is.
struct curriculum {
  std::int64_t level = 0;
  double appetite = 1.0;
  at::Tensor weights = at::ones({3});
  std::vector<double> history;
  void visit(auto& archive) {
    archive("level", level);
    archive("appetite", appetite);
    archive("weights", weights);
    archive("history", history);
  }
};

std::vector<pair_batch> one_an_epoch(std::int64_t epoch) { return {make_pair_batch(static_cast<std::uint64_t>(epoch))}; }

std::string refusal(auto&& action) {
  try {
    action();
  } catch (keel::error const& thrown) {
    return thrown.what();
  }
  return "accepted";
}

std::vector<at::Tensor> learn(std::filesystem::path const& directory, int stop_after, curriculum& lessons) {
  keel::seed<recipe>();
  auto const model = std::make_shared<small_module>(0.1);
  torch::optim::AdamW optimizer(model->parameters(), 0.05);
  keel::trainer<recipe> run{model, optimizer, quiet({.run_directory = directory, .updates = 12})};
  run.keep_state("curriculum", lessons);
  int windows = 0;
  run.on([&](keel::event::update_end const& e) {
    ++lessons.level;
    lessons.appetite *= 0.9;
    lessons.weights = lessons.weights * 0.5;
    lessons.history.push_back(e.loss);
    if (++windows == stop_after) run.request_stop();
  });
  run.fit(one_an_epoch, [&](pair_batch const& batch) {
    return mean_squared_error(model)(batch) * (lessons.appetite + lessons.weights.sum().item<double>() + 0.01 * static_cast<double>(lessons.level));
  });
  return copies_of(model->parameters());
}

}  // namespace

TEST_CASE("stateful_iterator_forgotten: state that a program registers comes back with the run, bit by bit") {
  scratch_directory const directory;
  curriculum lessons;
  auto const expected = learn(directory / "whole", 100, lessons);
  std::vector<at::Tensor> last;
  curriculum again;
  for (int i = 0; i < 12; ++i) {
    again = {};
    last = learn(directory / "stopped", 1, again);
  }
  CHECK(same_bits(last, expected));
  CHECK(again.level == lessons.level);
  CHECK(again.appetite == lessons.appetite);
  CHECK(same_bits(again.weights, lessons.weights));
  CHECK(again.history == lessons.history);
}

TEST_CASE("registered state that one side lacks is refused by name, and so is one that comes too late") {
  scratch_directory const directory;
  curriculum lessons;
  learn(directory / "run", 5, lessons);
  auto const model = make_small();
  torch::optim::AdamW optimizer(model->parameters(), 0.05);
  auto const start = [&](auto with, bool accept = false) {
    keel::trainer<recipe> run{model, optimizer, quiet({.run_directory = directory / "run", .updates = 12, .accept_changed_recipe = accept})};
    with(run);
    run.resume();
  };
  CHECK(refusal([&] { start([](auto&) {}); }).find("holds the state curriculum, which this program does not register") != std::string::npos);
  auto const two = [&](auto& run) {
    run.keep_state("curriculum", lessons);
    run.keep_state("sampler", lessons);
  };
  CHECK(refusal([&] { start(two); }).find("holds no state sampler") != std::string::npos);
  CHECK(refusal([&] { start([](auto&) {}, true); }) == "accepted");
  CHECK(refusal([&] { start(two, true); }) == "accepted");
  CHECK(refusal([&] {
          start([&](auto& run) {
            run.keep_state("a", lessons);
            run.keep_state("a", lessons);
          });
        }).find("[E12] the state a is registered already") == 0);
  keel::trainer<recipe> run{model, optimizer, quiet({.run_directory = directory / "other", .updates = 12})};
  run.fit(one_an_epoch, mean_squared_error(model));
  CHECK(refusal([&] { run.keep_state("late", lessons); }).find("[E12] the state late comes too late") == 0);
}

TEST_CASE("a parameter that was frozen and is not, or the other way about, is refused by name") {
  scratch_directory const directory;
  struct plain : keel::recipe<keel::checkpoint::every<2_steps>> {};
  auto const go = [&](bool frozen) {
    auto const model = make_small();
    model->first->bias.set_requires_grad(!frozen);
    std::vector<at::Tensor> trained;
    for (auto const& one : model->parameters()) {
      if (one.requires_grad()) trained.push_back(one);
    }
    torch::optim::AdamW optimizer(trained, 0.05);
    keel::trainer<plain> run{model, optimizer, quiet({.run_directory = directory / (frozen ? "frozen" : "free"), .updates = 4})};
    run.fit(one_an_epoch, mean_squared_error(model));
  };
  go(true);
  go(false);
  std::filesystem::rename(directory / "frozen", directory / "aside");
  std::filesystem::rename(directory / "free", directory / "frozen");
  std::filesystem::rename(directory / "aside", directory / "free");
  CHECK(refusal([&] { go(true); }).find("first.bias is now frozen") != std::string::npos);
  CHECK(refusal([&] { go(false); }).find("first.bias is no longer frozen") != std::string::npos);
}

namespace {
/// The same net, whose second layer an older program called otherwise.
struct renamed_module : torch::nn::Module {
  renamed_module() : first(register_module("first", torch::nn::Linear(6, 8))), head(register_module("head", torch::nn::Linear(8, 1))) {}
  at::Tensor forward(at::Tensor const& x) { return head(at::tanh(first(x))); }
  torch::nn::Linear first;
  torch::nn::Linear head;
};
}  // namespace

TEST_CASE("a migration renames a layer with its moments and its average, and the run goes on to the same bits") {
  scratch_directory const directory;
  auto const begin = [&](std::filesystem::path const& where, std::int64_t updates) {
    keel::seed<recipe>();
    auto const model = std::make_shared<small_module>(0.0);
    torch::optim::AdamW optimizer(model->parameters(), 0.05);
    keel::trainer<recipe> run{model, optimizer, quiet({.run_directory = where, .updates = updates})};
    run.fit(one_an_epoch, mean_squared_error(model));
    return copies_of(model->parameters());
  };
  auto const expected = begin(directory / "whole", 10);
  begin(directory / "run", 5);
  auto const model = std::make_shared<renamed_module>();
  torch::optim::AdamW optimizer(model->parameters(), 0.05);
  auto const loss_of = [&](pair_batch const& batch) { return at::mse_loss(model->forward(batch.first), batch.second); };
  {
    keel::trainer<recipe> run{model, optimizer, quiet({.run_directory = directory / "run", .updates = 10})};
    CHECK(refusal([&] { run.fit(one_an_epoch, loss_of); }).find("[E04]") == 0);
  }
  keel::trainer<recipe> run{model, optimizer, quiet({.run_directory = directory / "run", .updates = 10})};
  run.migrate({"the head was called second", [](keel::migration& old) { old.rename("second", "head"); }});
  run.migrate({"drop left", [](keel::migration& old) { old.drop("first_and_more"); }});
  run.fit(one_an_epoch, loss_of);
  CHECK(same_bits(copies_of(model->parameters()), expected));
  std::string const events = read_file(directory / "run/events.jsonl");
  CHECK(events.find("\"migrated\"") != std::string::npos);
  CHECK(events.find("the head was called second") != std::string::npos);
  CHECK(events.find("drop left") == std::string::npos);
}

TEST_CASE("a migration drops what is gone, adds what is new, and accepts a changed slot") {
  scratch_directory const directory;
  struct old_recipe : keel::recipe<keel::checkpoint::every<2_steps>, keel::clip::global_norm<1.0>> {};
  struct new_recipe : keel::recipe<keel::checkpoint::every<2_steps>, keel::clip::global_norm<2.0>> {};
  {
    auto const model = make_small();
    model->register_buffer("scale", at::ones({2}));
    model->register_buffer("scale_unit", at::ones({2}));
    torch::optim::AdamW optimizer(model->parameters(), 0.05);
    keel::trainer<old_recipe> run{model, optimizer, quiet({.run_directory = directory / "run", .updates = 4})};
    run.fit(one_an_epoch, mean_squared_error(model));
  }
  auto const model = make_small(9);
  model->register_buffer("scale_unit", at::zeros({2}));
  model->register_buffer("shift", at::zeros({2}));
  torch::optim::AdamW optimizer(model->parameters(), 0.05);
  keel::trainer<new_recipe> run{model, optimizer, quiet({.run_directory = directory / "run", .updates = 8})};
  run.migrate({"v2", [](keel::migration& old) {
                 old.drop("scale");
                 old.add("shift", at::full({2}, 3.0));
                 old.accept_slot("clip");
               }});
  std::string const words = refusal([&] { CHECK(run.resume()); });
  INFO(words);
  CHECK(words == "accepted");
  CHECK(model->named_buffers()["shift"][0].item<double>() == 3.0);
  CHECK(model->named_buffers()["scale_unit"][0].item<double>() == 1.0);
}

namespace {
struct wide {
  std::vector<std::int64_t> some{(std::int64_t{1} << 53) + 1, std::numeric_limits<std::int64_t>::min(), -1};
  std::vector<std::uint64_t> others{std::numeric_limits<std::uint64_t>::max()};
  void visit(auto& archive) {
    archive("some", some);
    archive("others", others);
  }
};
}  // namespace

TEST_CASE("integers in a list of registered state come back with every bit") {
  wide before;
  nlohmann::json object;
  keel::tensor_map tensors;
  keel::state_writer writer(object, tensors);
  before.visit(writer);
  wide after{{}, {}};
  auto const read = nlohmann::json::parse(object.dump());
  keel::state_reader reader(read, tensors, "a test");
  after.visit(reader);
  CHECK(after.some == before.some);
  CHECK(after.others == before.others);
}
