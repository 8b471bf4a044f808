// Dry runs, preflight and replays of a part: they leave all models of the run as they were, and find what they find for a trainer.
#include <cmath>
#include <fstream>
#include <optional>

#include <ATen/ops/binary_cross_entropy_with_logits.h>
#include <torch/nn/modules/activation.h>

#include "../support.hpp"

using namespace keel_test;
using namespace keel::literals;

namespace {

struct whole : keel::recipe<keel::checkpoint::every<3_steps>, keel::determinism::seeded<3>, keel::incident::keep<4>> {};
struct skipping : keel::recipe<keel::nonfinite::skip<20>, keel::clip::global_norm<5.0>, keel::ema<0.9>> {};
struct returning : keel::recipe<keel::nonfinite::rollback<3>> {};
struct of_two : keel::recipe<keel::nonfinite::skip<20>, keel::accumulate<2>> {};

torch::nn::Sequential make(std::int64_t in, std::int64_t out) {
  return torch::nn::Sequential(torch::nn::Linear(in, 6), torch::nn::BatchNorm1d(6), torch::nn::ReLU(), torch::nn::Linear(6, out));
}

/// State of the program that a loss function changes.
struct counter {
  std::int64_t calls = 0;
  void visit(auto& archive) { archive("calls", calls); }
};

/// A GAN in a run.
template <class OfGenerator = skipping, class OfDiscriminator = skipping>
struct gan {
  explicit gan(keel::trainer_options options) : run(quiet(std::move(options))) { run.register_state("counter", count); }

  at::Tensor judge(at::Tensor const& points, double target) {
    at::Tensor const out = discriminator->forward(points);
    return at::binary_cross_entropy_with_logits(out, at::full_like(out, target));
  }
  auto d_loss() {
    return [this](at::Tensor const& real) {
      ++count.calls;
      at::Tensor const fake = generator->forward(at::randn({8, 4})).detach();
      return judge(real, 1) + judge(fake, 0);
    };
  }
  auto g_loss() {
    return [this] { return judge(generator->forward(at::randn({8, 4}) * factor), 1); };
  }
  /// Everything of the run that a dry run could leave a trace in.
  struct image {
    std::vector<at::Tensor> tensors, gradients;
    optimizer_image of_d, of_g;
    at::Tensor random;
    std::vector<std::string> metrics, events;
    std::int64_t calls, updates, skipped;
    bool is_training;
    bool operator==(image const& other) const {
      return same_bits(tensors, other.tensors) && same_bits(gradients, other.gradients) && same_bits(of_d, other.of_d) &&
             same_bits(of_g, other.of_g) && same_bits(random, other.random) && metrics == other.metrics && events == other.events &&
             calls == other.calls && updates == other.updates && skipped == other.skipped && is_training == other.is_training;
    }
  };
  image look(std::filesystem::path const& directory) {
    image now{{},
              {},
              image_of(*discriminator, d_optimizer),
              image_of(*generator, g_optimizer),
              keel::libtorch::random_state(at::kCPU),
              read_lines(directory / "metrics.jsonl"),
              read_lines(directory / "events.jsonl"),
              count.calls,
              run.updates(),
              run.skipped(),
              generator->is_training() && discriminator->is_training()};
    for (auto const& model : {generator, discriminator}) {
      for (at::Tensor const& one : copies_of(model->parameters())) now.tensors.push_back(one);
      for (at::Tensor const& one : copies_of(model->buffers())) now.tensors.push_back(one);
      for (at::Tensor const& one : model->parameters()) now.gradients.push_back(one.grad().defined() ? one.grad().clone() : one.grad());
    }
    return now;
  }

  counter count;
  double factor = 1.0;
  torch::nn::Sequential generator = (at::manual_seed(1), make(4, 2)), discriminator = make(2, 1);
  torch::optim::Adam d_optimizer{discriminator->parameters(), torch::optim::AdamOptions(0.02)};
  keel::adamw g_optimizer{generator->parameters(), torch::optim::AdamWOptions(0.01)};
  keel::run<whole> run;
  keel::part<OfDiscriminator> d{run, "discriminator", discriminator, d_optimizer};
  keel::part<OfGenerator> g{run, "generator", generator, g_optimizer};
};

std::vector<at::Tensor> real_data() {
  std::vector<at::Tensor> all;
  for (std::uint64_t i = 0; i < 7; ++i) all.push_back(make_pair_batch(i).first.slice(1, 0, 2).contiguous() + 2);
  return all;
}

constexpr keel::preflight_options brief{.batches = 4, .updates = 5, .seconds = 3.0};

std::vector<std::filesystem::path> incidents_in(std::filesystem::path const& directory) {
  std::vector<std::filesystem::path> all;
  for (auto const& event : events_of(directory, "incident")) all.emplace_back(event.at("path").template get<std::string>());
  return all;
}

std::string message_of(std::function<void()> const& call) {
  try {
    call();
  } catch (keel::error const& thrown) {
    return thrown.what();
  }
  return "no exception";
}

bool has(std::string const& message, std::string const& part) {
  UNSCOPED_INFO(message);
  return message.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("a range test, an overfitted batch and a preflight of a part leave every model of the run as it was, and train the same bits") {
  auto const train = [](bool tries) {
    scratch_directory const directory;
    gan<> of({.run_directory = directory.path()});
    auto const try_out = [&] {
      if (!tries) return;
      auto const before = of.look(directory.path());
      auto const unchanged = [&] { return of.look(directory.path()) == before; };
      CHECK(of.d.lr_range_test(real_data(), of.d_loss(), {.updates = 20}).points.size() > 5);
      CHECK(unchanged());
      CHECK(of.d.overfit_one_batch(real_data().front(), of.d_loss(), 10).losses.size() == 10);
      CHECK(unchanged());
      CHECK(of.d.preflight(real_data(), of.d_loss(), brief).rows.size() > 10);
      CHECK(unchanged());
      CHECK(of.g.preflight(of.g_loss(), brief).rows.size() > 5);
      CHECK(unchanged());
      CHECK_THROWS_AS(of.d.overfit_one_batch(real_data().front(),
                                             [&](at::Tensor const& real) -> at::Tensor {
                                               of.generator->eval();
                                               static_cast<void>(of.d_loss()(real));
                                               throw std::runtime_error("of the loss itself");
                                             }),
                      std::runtime_error);
      CHECK(unchanged());
    };
    try_out();
    std::int64_t iterations = 0;
    for (auto& real : of.run.epochs(real_data(), 2)) {
      of.d.update(real, of.d_loss());
      if (iterations++ == 4) try_out();  // between the updates of two parts
      of.g.update(of.g_loss());
    }
    of.run.finish();
    try_out();
    return of.look(directory.path()).tensors;
  };
  CHECK(same_bits(train(true), train(false)));
}

TEST_CASE("a dry run sees the checkpoints of the run that a part rolls back with") {
  scratch_directory const directory;
  gan<returning> of({.run_directory = directory.path()});
  CHECK(of.g.overfit_one_batch(keel::no_batch(), [&](keel::no_batch) { return of.g_loss()(); }, 5).losses.size() == 5);
  auto const found = of.g.preflight(of.g_loss(), brief);
  auto const* const resume = found.find("resume");
  REQUIRE(resume != nullptr);
  CHECK(resume->verdict == keel::preflight_verdict::passed);
}

TEST_CASE("a preflight of a part finds what is wired wrongly there, and passes the part beside it") {
  scratch_directory const directory;
  gan<> of({.run_directory = directory.path()});
  at::Tensor const outside = at::ones({2}).requires_grad_();
  auto const uses_another = [&](at::Tensor const& real) { return of.d_loss()(real * outside); };
  auto const wrong = of.d.preflight(real_data(), uses_another, brief);
  REQUIRE(wrong.find("parameters") != nullptr);
  CHECK(wrong.find("parameters")->verdict == keel::preflight_verdict::failed);
  // The generator's loss depends on parameters of the discriminator, and both have a batch norm.
  auto const right = of.g.preflight(of.g_loss(), brief);
  REQUIRE(right.find("parameters") != nullptr);
  CHECK(right.find("parameters")->verdict == keel::preflight_verdict::passed);
  auto const of_d = of.d.preflight(real_data(), of.d_loss(), brief);
  for (char const* const check : {"parameters", "rows", "same bits twice", "resume"}) {
    INFO(check);
    REQUIRE(of_d.find(check) != nullptr);
    CHECK(of_d.find(check)->verdict != keel::preflight_verdict::failed);
  }
  // Through the other model no gradient comes: the loss is detached.
  auto const cut = [&] { return of.judge(of.generator->forward(at::randn({8, 4})).detach(), 1); };
  auto const detached = of.g.preflight(cut, brief);
  CHECK_FALSE(detached.passed());
  of.generator->eval();
  auto const sleeping = of.g.preflight(of.g_loss(), brief);
  REQUIRE(sleeping.find("training mode") != nullptr);
  CHECK(sleeping.find("training mode")->verdict == keel::preflight_verdict::failed);
  CHECK_FALSE(of.generator->is_training());
}

TEST_CASE("the incident of a part is replayed bit for bit by that part, in another process's run too, which goes on as without it") {
  scratch_directory const directory;
  {
    gan<> of({.run_directory = directory.path()});
    for (auto& real : of.run.epochs(real_data(), 2)) {
      std::int64_t const at = of.run.cursor().consumed;
      at::Tensor spoiled = real.clone();
      if (at == 9) spoiled[3].fill_(NAN);
      of.d.update(spoiled, of.d_loss());
      of.factor = at == 5 ? NAN : 1.0;
      of.g.update(of.g_loss());
    }
    of.run.finish();
  }
  auto const kept = incidents_in(directory.path());
  REQUIRE(kept.size() == 2);
  auto const train = [&](bool replays) {
    scratch_directory const other;
    gan<> of({.run_directory = other.path()});
    std::int64_t iterations = 0;
    for (auto& real : of.run.epochs(real_data(), 2)) {
      of.d.update(real, of.d_loss());
      if (replays && iterations++ % 5 == 1) {
        auto const before = of.look(other.path());
        auto const of_d = of.d.replay(kept[1], of.d_loss());
        CHECK(of_d.is_bitwise_equal);
        CHECK_FALSE(of_d.is_finite());
        CHECK(of_d.origin.rows == std::vector<std::int64_t>{3});
        CHECK(of.d.replay(kept[1], of.d_loss(), {.without_rows = {3}}).is_finite());
        CHECK(of.look(other.path()) == before);
        of.factor = NAN;
        CHECK(of.g.replay(kept[0], of.g_loss()).is_bitwise_equal);
        of.factor = 1.0;
        CHECK(of.g.replay(kept[0], of.g_loss()).is_finite());
        CHECK(of.look(other.path()) == before);
        CHECK(of.d.narrow_down(kept[1], of.d_loss()).finite_experiments() == std::vector<std::string>{"without row 3", "synthetic inputs"});
        CHECK(of.look(other.path()) == before);
      }
      of.g.update(of.g_loss());
    }
    of.run.finish();
    return of.look(other.path()).tensors;
  };
  CHECK(same_bits(train(true), train(false)));
}

TEST_CASE("the incident of a part is refused to another part and to a trainer, and a replay or dry run inside an update to all") {
  scratch_directory const directory, of_trainer;
  gan<of_two> of({.run_directory = directory.path()});
  for (auto& real : of.run.epochs(real_data(), 1)) {
    at::Tensor spoiled = real.clone();
    if (of.run.cursor().consumed == 3) spoiled[0].fill_(NAN);
    of.d.update(spoiled, of.d_loss());
    of.g.update(of.g_loss());
    if (of.run.cursor().consumed % 2 == 0) {
      // The generator has accumulated half of an update.
      CHECK(has(message_of([&] { of.d.overfit_one_batch(real, of.d_loss(), 2); }), "an update is open"));
      CHECK(has(message_of([&] { of.d.preflight(real_data(), of.d_loss(), brief); }), "[E12]"));
    }
  }
  of.g.flush();
  of.run.finish();
  auto const kept = incidents_in(directory.path());
  REQUIRE(kept.size() == 1);
  CHECK(of.d.replay(kept[0], of.d_loss()).is_bitwise_equal);
  CHECK(has(message_of([&] { of.g.replay(kept[0], of.g_loss()); }),
            "[E03] " + kept[0].string() + " is an incident of part discriminator, but replay() was called on part generator. Call replay() on part discriminator."));
  keel::trainer<whole> alone(*of.discriminator, of.d_optimizer, quiet({.run_directory = of_trainer.path()}));
  CHECK(has(message_of([&] { alone.replay(kept[0], of.d_loss()); }), "but replay() was called on a trainer. Call replay() on part discriminator."));
}

TEST_CASE("a replay leaves the state of a part alone that the program has not made yet") {
  scratch_directory const directory;
  auto const train = [&](std::int64_t updates, bool replays) {
    gan<> of({.run_directory = directory.path(), .updates = updates});
    torch::nn::Sequential late_model = make(2, 1);
    torch::optim::Adam late_optimizer(late_model->parameters(), torch::optim::AdamOptions(0.01));
    std::optional<keel::part<skipping>> late;
    auto const loss = [&](at::Tensor const& x) { return late_model->forward(x).square().mean(); };
    bool const is_resumed = of.run.resume();
    if (replays) CHECK(of.d.replay(incidents_in(directory.path()).at(0), of.d_loss()).is_bitwise_equal);
    if (is_resumed) {
      late.emplace(of.run, "late", late_model, late_optimizer);
      CHECK(late->updates() == 4);
    }
    for (auto& real : of.run.epochs(real_data(), 3)) {
      if (!late && of.run.updates() >= 2) late.emplace(of.run, "late", late_model, late_optimizer);
      at::Tensor spoiled = real.clone();
      if (of.run.cursor().consumed == 4) spoiled[3].fill_(NAN);
      of.d.update(spoiled, of.d_loss());
      of.g.update(of.g_loss());
      if (late) late->update(real, loss);
    }
    of.run.finish();
    return copies_of(late_model->parameters());
  };
  train(6, false);
  scratch_directory const copy;
  std::filesystem::copy(directory.path(), copy.path(), std::filesystem::copy_options::recursive);
  auto const expected = train(9, false);
  std::filesystem::remove_all(directory.path());
  std::filesystem::copy(copy.path(), directory.path(), std::filesystem::copy_options::recursive);
  CHECK(same_bits(train(9, true), expected));
}

TEST_CASE("a dry run gives tied parameters their gradient back, and a module whose train() changes weights its weights") {
  struct merging : torch::nn::Module {
    at::Tensor weight = register_parameter("weight", at::ones({3}));
    at::Tensor tied = register_parameter("tied", weight);
    void train(bool on) override {
      at::NoGradGuard const no_grad;
      if (on != is_training()) weight.add_(on ? -0.5 : 0.5);
      torch::nn::Module::train(on);
    }
  };
  auto const model = std::make_shared<merging>();
  torch::optim::SGD optimizer({model->weight}, torch::optim::SGDOptions(0.1));
  keel::trainer<keel::recipe<>> run{*model, optimizer, quiet()};
  auto const loss = [&](at::Tensor const& x) { return (model->weight * x).square().mean(); };
  run.step(at::ones({2, 3}), loss);
  at::Tensor const before = model->weight.detach().clone(), gradient = model->weight.grad();
  CHECK_THROWS(run.overfit_one_batch(at::ones({2, 3}), [&](at::Tensor const&) -> at::Tensor {
    model->eval();
    throw std::runtime_error("of the loss itself");
  }));
  CHECK(same_bits(model->weight, before));
  CHECK(model->is_training());
  run.overfit_one_batch(at::ones({2, 3}), loss, 3);
  CHECK(same_bits(model->weight, before));
  CHECK(model->weight.grad().is_same(gradient));
}
