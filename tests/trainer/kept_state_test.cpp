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
  run.register_state("curriculum", lessons);
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

TEST_CASE("registered state that one side lacks is rejected by name, and so is one that comes too late") {
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
  CHECK(refusal([&] { start([](auto&) {}); }).find("contains the state curriculum, which this program does not register") != std::string::npos);
  auto const two = [&](auto& run) {
    run.register_state("curriculum", lessons);
    run.register_state("sampler", lessons);
  };
  CHECK(refusal([&] { start(two); }).find("contains no state sampler") != std::string::npos);
  CHECK(refusal([&] { start([](auto&) {}, true); }) == "accepted");
  CHECK(refusal([&] { start(two, true); }) == "accepted");
  CHECK(refusal([&] {
          start([&](auto& run) {
            run.register_state("a", lessons);
            run.register_state("a", lessons);
          });
        }).find("[E12] the state a is already registered") == 0);
  keel::trainer<recipe> run{model, optimizer, quiet({.run_directory = directory / "other", .updates = 12})};
  run.fit(one_an_epoch, mean_squared_error(model));
  CHECK(refusal([&] { run.register_state("late", lessons); }).find("[E12] cannot register state late: the run has already started") == 0);
}

TEST_CASE("a parameter that was frozen and is not, or the other way about, is rejected by name") {
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

namespace {

enum class stage : std::uint8_t { warm, hot };
struct layer {
  float scale = 1.0F;
  at::Tensor cache;
  void visit(auto& archive) {
    archive("scale", scale);
    archive("cache", cache);
  }
};
/// A bit of every type that a field may have.
struct belongings {
  stage now = stage::warm;
  float temperature = 1.0F;
  std::string bytes = "\xff\xfe";
  std::vector<bool> seen;
  at::Tensor spectrum = at::zeros({2}, at::kComplexDouble);
  std::vector<at::Tensor> hidden{at::zeros({2})};
  std::vector<layer> layers;
  std::array<double, 2> betas{};
  std::optional<std::int32_t> best;
  std::map<std::string, at::Tensor> by_name;
  void visit(auto& archive) {
    archive("now", now);
    archive("temperature", temperature);
    archive("bytes", bytes);
    archive("seen", seen);
    archive("spectrum", spectrum);
    archive("hidden", hidden);
    archive("layers", layers);
    archive("betas", betas);
    archive("best", best);
    archive("by_name", by_name);
  }
};

/// Moves everything on, by numbers that depend on where it stands.
void move_on(belongings& state, double loss) {
  state.now = state.now == stage::warm ? stage::hot : stage::warm;
  state.temperature *= 0.9F;
  state.bytes += static_cast<char>(0x80 + state.seen.size());
  state.seen.push_back(state.seen.size() % 3 == 0);
  state.spectrum = state.spectrum * c10::complex<double>(0.5, 0.25) + loss;
  state.hidden.push_back(state.hidden.back() + loss);
  if (state.hidden.size() > 4) state.hidden.erase(state.hidden.begin());
  state.layers.push_back({state.temperature, state.layers.size() % 2 == 0 ? at::full({1}, loss) : at::Tensor()});
  state.betas = {state.betas[1], loss};
  state.best = state.best ? std::optional<std::int32_t>() : static_cast<std::int32_t>(state.seen.size());
  state.by_name["gr\xc3\xb6\xc3\x9f" "e." + std::to_string(state.seen.size() % 3)] = state.hidden.back() * 2.0;
}

/// What state.json and state.safetensors would hold of it.
std::pair<std::string, keel::tensor_map> image_of(belongings& state) {
  nlohmann::json object;
  keel::tensor_map tensors;
  keel::state_writer writer(object, tensors);
  state.visit(writer);
  return {object.dump(), tensors};
}

struct wide_level {
  std::int64_t level = 300;
  void visit(auto& archive) { archive("level", level); }
};

struct narrow_level {
  std::int8_t level = 0;
  void visit(auto& archive) { archive("level", level); }
};

}  // namespace

TEST_CASE("registered state with every type of field comes back with a run that is stopped after each update, bit by bit") {
  scratch_directory const directory;
  auto const go = [&](std::filesystem::path const& where, int stop_after, belongings& state) {
    keel::seed<recipe>();
    auto const model = std::make_shared<small_module>(0.1);
    torch::optim::AdamW optimizer(model->parameters(), 0.05);
    keel::trainer<recipe> run{model, optimizer, quiet({.run_directory = where, .updates = 10})};
    run.register_state("belongings", state);
    int updates = 0;
    run.on([&](keel::event::update_end const& e) {
      move_on(state, e.loss);
      if (++updates == stop_after) run.request_stop();
    });
    run.fit(one_an_epoch, mean_squared_error(model));
  };
  belongings whole, stopped;
  go(directory / "whole", 100, whole);
  for (int i = 0; i < 10; ++i) {
    stopped = {};
    go(directory / "stopped", 1, stopped);
  }
  auto const expected = image_of(whole);
  auto const found = image_of(stopped);
  CHECK(found.first == expected.first);
  CHECK(found.second.size() == expected.second.size());
  for (auto const& [name, tensor] : expected.second) {
    INFO(name);
    CHECK(same_bits(found.second.at(name), tensor));
  }
  CHECK(stopped.bytes == whole.bytes);
  CHECK(stopped.spectrum.scalar_type() == at::kComplexDouble);
}

TEST_CASE("a tensor that no checkpoint can hold is rejected by register_state, and not by the first save") {
  struct saving : keel::recipe<keel::checkpoint::every<2_steps>> {};
  scratch_directory const directory;
  auto const model = make_small();
  torch::optim::AdamW optimizer(model->parameters(), 0.05);
  keel::trainer<saving> run{model, optimizer, quiet({.run_directory = directory / "run", .updates = 2})};
  belongings state;
  state.hidden.push_back(at::eye(2).to_sparse());
  std::string const words = refusal([&] { run.register_state("belongings", state); });
  CHECK(words.find("[E05] the tensor 'belongings.hidden.1' is sparse") == 0);
  CHECK(words.find("to_dense()") != std::string::npos);
  state.hidden[1] = state.hidden[1].to_dense();
  run.register_state("belongings", state);
  CHECK(refusal([&] { run.fit(one_an_epoch, mean_squared_error(model)); }) == "accepted");
}

TEST_CASE("a checkpoint whose numbers the program's fields cannot hold any more is rejected by name") {
  scratch_directory const directory;
  auto const model = make_small();
  torch::optim::AdamW optimizer(model->parameters(), 0.05);
  wide_level before;
  {
    keel::trainer<recipe> run{model, optimizer, quiet({.run_directory = directory / "run", .updates = 2})};
    run.register_state("lessons", before);
    run.fit(one_an_epoch, mean_squared_error(model));
  }
  narrow_level after;
  keel::trainer<recipe> run{model, optimizer, quiet({.run_directory = directory / "run", .updates = 4})};
  run.register_state("lessons", after);
  std::string const words = refusal([&] { run.resume(); });
  CHECK(words.find("lessons.level is not an integer between -128 and 127") != std::string::npos);
  CHECK(after.level == 0);
}
