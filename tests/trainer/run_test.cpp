// A run of several models: the bits of a loop by hand, one checkpoint for all, and what of one part leaves the others alone.
#include <cmath>

#include <ATen/ops/binary_cross_entropy_with_logits.h>
#include <torch/nn/modules/activation.h>
#include <torch/optim/lbfgs.h>

#include "../support.hpp"

using namespace keel_test;
using namespace keel::literals;

namespace {

struct saved : keel::recipe<keel::checkpoint::every<3_steps>, keel::determinism::seeded<3>> {};
struct skipping : keel::recipe<keel::nonfinite::skip<20>> {};
struct of_two : keel::recipe<keel::nonfinite::skip<20>, keel::accumulate<2>> {};

/// A GAN of two small models with batch norms.
struct models {
  torch::nn::Sequential generator{nullptr}, discriminator{nullptr};
  std::unique_ptr<torch::optim::Adam> of_generator, of_discriminator;
  models() {
    at::manual_seed(1);
    generator = torch::nn::Sequential(torch::nn::Linear(4, 6), torch::nn::BatchNorm1d(6), torch::nn::ReLU(), torch::nn::Linear(6, 2));
    discriminator = torch::nn::Sequential(torch::nn::Linear(2, 6), torch::nn::BatchNorm1d(6), torch::nn::ReLU(), torch::nn::Linear(6, 1));
    of_generator = std::make_unique<torch::optim::Adam>(generator->parameters(), torch::optim::AdamOptions(0.01));
    of_discriminator = std::make_unique<torch::optim::Adam>(discriminator->parameters(), torch::optim::AdamOptions(0.02));
  }
  std::vector<at::Tensor> state() const {
    std::vector<at::Tensor> all;
    for (auto const& model : {generator, discriminator}) {
      for (at::Tensor const& one : copies_of(model->parameters())) all.push_back(one);
      for (at::Tensor const& one : copies_of(model->buffers())) all.push_back(one);
    }
    return all;
  }
};

at::Tensor judged(models& of, at::Tensor const& x, double target) {
  at::Tensor const out = of.discriminator->forward(x);
  return at::binary_cross_entropy_with_logits(out, at::full_like(out, target));
}
at::Tensor noise() { return at::randn({8, 4}); }
auto discriminator_loss(models& of) {
  return [&of](at::Tensor const& real) {
    at::Tensor const fake = of.generator->forward(noise()).detach();
    return keel::losses{{"real", judged(of, real, 1)}, {"fake", judged(of, fake, 0)}};
  };
}
std::vector<at::Tensor> real_data(std::int64_t count = 7) {
  std::vector<at::Tensor> all;
  for (std::int64_t i = 0; i < count; ++i) all.push_back(make_pair_batch(static_cast<std::uint64_t>(i)).first.slice(1, 0, 2).contiguous() + 2);
  return all;
}

struct replay {
  std::vector<double> rewards;
  void visit(auto& archive) { archive("rewards", rewards); }
};

enum class spoils : unsigned char { nothing, generator, discriminator };

/// Trains to `until` iterations, in which iteration `bad` has a NaN in one part.
template <class GeneratorRecipe = skipping>
std::vector<at::Tensor> train(std::filesystem::path const& directory, std::int64_t until, std::int64_t bad = -1,
                              spoils which = spoils::nothing) {
  models of;
  keel::run<saved> run{quiet({.run_directory = directory})};
  keel::part<skipping> d{run, "discriminator", of.discriminator, *of.of_discriminator};
  keel::part<GeneratorRecipe> g{run, "generator", of.generator, *of.of_generator};
  for (auto& real : run.epochs(real_data(), 4)) {
    bool const is_bad = run.cursor().consumed == bad;
    d.update(is_bad && which == spoils::discriminator ? real * NAN : real, discriminator_loss(of));
    g.update([&] { return judged(of, of.generator->forward(is_bad && which == spoils::generator ? noise() * NAN : noise()), 1); });
    if (run.cursor().consumed + 1 >= until) run.request_stop();
  }
  run.finish();
  return of.state();
}

std::string words_of(std::function<void()> const& call) {
  try {
    call();
  } catch (keel::error const& thrown) {
    return thrown.what();
  }
  return "";
}
bool has(std::string const& words, char const* part) {
  UNSCOPED_INFO(words);
  return words.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("two models in one run have the bits of a loop by hand over 100 iterations") {
  struct unsaved : keel::recipe<> {};
  models mine, theirs;
  keel::run<unsaved> run{quiet()};
  keel::part<skipping> d{run, "discriminator", mine.discriminator, *mine.of_discriminator};
  keel::part<skipping> g{run, "generator", mine.generator, *mine.of_generator};
  auto const data = real_data(20);
  at::manual_seed(5);
  for (auto& real : run.epochs(data, 5)) {
    d.update(real, discriminator_loss(mine));
    g.update([&] { return judged(mine, mine.generator->forward(noise()), 1); });
  }
  CHECK(run.finish().finished()->updates == 100);
  at::manual_seed(5);
  for (int epoch = 0; epoch < 5; ++epoch) {
    for (auto const& real : data) {
      theirs.of_discriminator->zero_grad();
      at::Tensor const fake = theirs.generator->forward(noise()).detach();
      at::Tensor const of_real = judged(theirs, real, 1), of_fake = judged(theirs, fake, 0);
      (of_real + of_fake).backward();
      theirs.of_discriminator->step();
      theirs.of_generator->zero_grad();
      judged(theirs, theirs.generator->forward(noise()), 1).backward();
      theirs.of_generator->step();
    }
  }
  CHECK(same_bits(mine.state(), theirs.state()));
  CHECK(d.updates() == 100);
}

TEST_CASE("a run of parts that stops after any iteration goes on with the bits of one that does not stop") {
  scratch_directory const directory;
  for (spoils const which : {spoils::nothing, spoils::generator, spoils::discriminator}) {
    CAPTURE(static_cast<int>(which));
    std::string const name = std::to_string(static_cast<int>(which));
    auto const whole = train(directory / ("whole" + name), 28, 9, which);
    for (std::int64_t at = 1; at < 28; at += which == spoils::nothing ? 1 : 4) train(directory / ("cut" + name), at, 9, which);
    CHECK(same_bits(whole, train(directory / ("cut" + name), 28, 9, which)));
  }
}

TEST_CASE("a NaN in one part leaves the parameters, moments and buffers of all as they were") {
  models of;
  keel::run<> run{quiet()};
  keel::part<skipping> d{run, "discriminator", of.discriminator, *of.of_discriminator};
  keel::part<skipping> g{run, "generator", of.generator, *of.of_generator};
  int iteration = 0;
  for (auto& real : run.epochs(real_data())) {
    bool const bad = ++iteration > 3;
    if (bad) {
      auto const before = of.state();
      auto const moments = image_of(*of.generator, *of.of_generator);
      CHECK(g.update([&] { return judged(of, of.generator->forward(noise() * NAN), 1); }).skipped() != nullptr);
      CHECK(same_bits(before, of.state()));
      CHECK(d.update(real * INFINITY, discriminator_loss(of)).skipped() != nullptr);
      CHECK(same_bits(before, of.state()));
      CHECK(same_bits(moments, image_of(*of.generator, *of.of_generator)));
    } else {
      d.update(real, discriminator_loss(of));
      g.update([&] { return judged(of, of.generator->forward(noise()), 1); });
    }
  }
  run.finish();
  CHECK(run.updates() == 3);
  CHECK(run.skipped() == 8);
}

TEST_CASE("a part that accumulates beside one that does not keeps its gradients, and is saved whole") {
  models mine, theirs;
  keel::run<> run{quiet()};
  keel::part<of_two> d{run, "discriminator", mine.discriminator, *mine.of_discriminator};
  keel::part<skipping> g{run, "generator", mine.generator, *mine.of_generator};
  auto const data = real_data(20);
  at::manual_seed(5);
  for (auto& real : run.epochs(data)) {
    d.update(real, discriminator_loss(mine));
    g.update([&] { return judged(mine, mine.generator->forward(noise()), 1); });
  }
  run.finish();
  CHECK(run.updates() == 10);
  at::manual_seed(5);
  for (std::size_t i = 0; i < data.size(); ++i) {
    if (i % 2 == 0) theirs.of_discriminator->zero_grad();
    at::Tensor const fake = theirs.generator->forward(noise()).detach();
    at::Tensor const of_real = judged(theirs, data[i], 1), of_fake = judged(theirs, fake, 0);
    (of_real + of_fake).backward();
    if (i % 2 == 1) {
      for (auto const& one : theirs.discriminator->parameters()) one.mutable_grad().mul_(0.5);
      theirs.of_discriminator->step();
    }
    // By hand the generator's backward pass would add to the discriminator's sum.
    std::vector<at::Tensor> kept;
    for (auto const& one : theirs.discriminator->parameters()) kept.push_back(one.grad().clone());
    theirs.of_generator->zero_grad();
    judged(theirs, theirs.generator->forward(noise()), 1).backward();
    theirs.of_generator->step();
    std::size_t place = 0;
    for (auto const& one : theirs.discriminator->parameters()) one.mutable_grad() = kept[place++];
  }
  CHECK(same_bits(mine.state(), theirs.state()));

  scratch_directory const directory;
  auto const whole = train<of_two>(directory / "whole", 28);
  for (std::int64_t at = 1; at < 28; at += 3) train<of_two>(directory / "cut", at);
  CHECK(same_bits(whole, train<of_two>(directory / "cut", 28)));
}

TEST_CASE("an exception in the middle of an iteration is not saved: a resume takes the whole batch again") {
  scratch_directory const directory;
  auto const whole = train(directory / "whole", 28);
  for (std::int64_t const at : {4, 5, 11}) {
    models of;
    keel::run<saved> run{quiet({.run_directory = directory / "cut"})};
    keel::part<skipping> d{run, "discriminator", of.discriminator, *of.of_discriminator};
    keel::part<skipping> g{run, "generator", of.generator, *of.of_generator};
    CHECK_THROWS_AS(
        [&] {
          for (auto& real : run.epochs(real_data(), 4)) {
            d.update(real, discriminator_loss(of));
            g.update([&]() -> at::Tensor {
              if (run.cursor().consumed == at) throw std::runtime_error("of the program");
              return judged(of, of.generator->forward(noise()), 1);
            });
          }
        }(),
        std::runtime_error);
    if (at == 5) run.finish();
  }
  CHECK(same_bits(whole, train(directory / "cut", 28)));
}

TEST_CASE("parts by the same name, with a shared parameter, or others than the checkpoint's are errors that name both") {
  scratch_directory const directory;
  train(directory / "gan", 5);
  models of;
  {
    keel::run<> run{quiet()};
    keel::part<skipping> d{run, "critic", of.discriminator, *of.of_discriminator};
    CHECK(has(words_of([&] { keel::part<skipping>(run, "critic", of.generator, *of.of_generator); }), "two parts of this run have the name critic"));
    CHECK(has(words_of([&] { keel::part<skipping>(run, "a.b", of.generator, *of.of_generator); }), "letters, digits and underscores"));
    torch::optim::SGD second(of.discriminator->parameters(), 0.1);
    auto const shared = words_of([&] { keel::part<skipping>(run, "other", of.discriminator, second); });
    CHECK(has(shared, "parts other and critic of this run share a parameter"));
    CHECK(has(shared, "keel::after"));
  }
  {
    keel::run<> run{quiet()};
    CHECK(has(words_of([&] { for ([[maybe_unused]] auto& real : run.epochs(real_data())) {} }), "has no parts"));
    CHECK(has(words_of([&] { run.iterations(); }), "needs a length"));
  }
  {
    keel::run<saved> run{quiet({.run_directory = directory / "gan"})};
    keel::part<skipping> d{run, "discriminator", of.discriminator, *of.of_discriminator};
    auto const words = words_of([&] { run.resume(); });
    CHECK(has(words, "has the part generator: its parts are discriminator, generator, and those of this run are discriminator"));
  }
  {
    keel::run<saved> run{quiet({.run_directory = directory / "gan"})};
    keel::part<skipping> d{run, "discriminator", of.discriminator, *of.of_discriminator};
    keel::part<of_two> g{run, "generator", of.generator, *of.of_generator};
    CHECK(has(words_of([&] { run.resume(); }), "part generator, was saved with another recipe: accumulate was 1 and is now 2"));
  }
  {
    // With one model of this run a trainer says what it found.
    keel::trainer<saved> run{of.generator, *of.of_generator, quiet({.run_directory = directory / "gan"})};
    CHECK(has(words_of([&] { run.resume(); }), "was saved by a run of several parts, discriminator, generator"));
  }
}

TEST_CASE("Adam and then LBFGS on one model resume wherever they stand") {
  struct fine : keel::recipe<keel::nonfinite::skip<5>> {};
  auto const train_both = [](std::filesystem::path const& directory, std::int64_t until) {
    at::manual_seed(2);
    auto const model = make_small();
    torch::optim::Adam adam(model->parameters(), 0.01);
    torch::optim::LBFGS lbfgs(model->parameters(), torch::optim::LBFGSOptions(0.2).max_iter(3).history_size(4));
    keel::run<saved> run{quiet({.run_directory = directory})};
    keel::part<skipping> first{run, "adam", model, adam};
    keel::part<fine> second{run, "lbfgs", model, lbfgs, keel::after(first)};
    at::Tensor const x = make_pair_batch(3).first;
    auto const loss_of = [&] { return (model->forward(x) - x.sum(1, true).sin()).square().mean(); };
    for ([[maybe_unused]] std::int64_t const i : run.iterations(std::min<std::int64_t>(8, until))) first.update(loss_of);
    for ([[maybe_unused]] std::int64_t const i : run.iterations(until)) second.update(loss_of);
    run.finish();
    return copies_of(model->parameters());
  };
  scratch_directory const directory;
  auto const whole = train_both(directory / "whole", 16);
  for (std::int64_t const at : {3, 7, 8, 9, 12, 15}) train_both(directory / "cut", at);
  CHECK(same_bits(whole, train_both(directory / "cut", 16)));
}

TEST_CASE("a stop in one loop is a stop of the loops behind it") {
  auto const model = make_small();
  torch::optim::Adam adam(model->parameters(), 0.01);
  torch::optim::SGD sgd(model->parameters(), 0.01);
  keel::run<> run{quiet()};
  keel::part<skipping> first{run, "adam", model, adam};
  keel::part<skipping> second{run, "sgd", model, sgd, keel::after(first)};
  auto const loss_of = [&] { return model->forward(make_pair_batch(1).first).square().mean(); };
  for (std::int64_t const i : run.iterations(8)) {
    first.update(loss_of);
    if (i == 3) run.request_stop();
  }
  for ([[maybe_unused]] std::int64_t const i : run.iterations(16)) second.update(loss_of);
  CHECK(run.finish().stopped() != nullptr);
  CHECK(first.updates() == 4);
  CHECK(second.updates() == 0);
}

TEST_CASE("what a part has accumulated at the end of the data is flushed and saved, or is not consumed") {
  scratch_directory const directory;
  auto const train_odd = [](std::filesystem::path const& where, bool flushes) {
    auto const model = make_small();
    torch::optim::Adam adam(model->parameters(), 0.01);
    keel::run<saved> run{quiet({.run_directory = where})};
    keel::part<of_two> part{run, "model", model, adam};
    std::vector<pair_batch> batches;
    for (std::uint64_t i = 0; i < 5; ++i) batches.push_back(make_pair_batch(i));
    for (auto& batch : run.epochs(batches)) part.update(batch, mean_squared_error(model));
    if (flushes) part.flush();
    run.finish();
    return std::pair(run.cursor().consumed, part.updates());
  };
  CHECK(train_odd(directory / "flushed", true) == std::pair<std::int64_t, std::int64_t>(5, 3));
  CHECK(train_odd(directory / "flushed", true) == std::pair<std::int64_t, std::int64_t>(5, 3));
  CHECK(train_odd(directory / "dropped", false) == std::pair<std::int64_t, std::int64_t>(4, 2));
}

TEST_CASE("a plateau of a part judges the run's evaluations") {
  struct judging : keel::recipe<keel::evaluation::every<1_steps>> {};
  struct plateau : keel::recipe<keel::schedule::plateau<keel::schedule::evaluations<2>>> {};
  auto const model = make_small();
  torch::optim::Adam adam(model->parameters(), 0.01);
  keel::run<judging> run{quiet()};
  keel::part<plateau> part{run, "model", model, adam};
  run.evaluate_on(std::vector<pair_batch>{make_pair_batch(1)}, [&](pair_batch const&) { return at::ones({}); });
  for ([[maybe_unused]] std::int64_t const i : run.iterations(6))
    part.update([&] { return model->forward(make_pair_batch(1).first).square().mean(); });
  run.finish();
  CHECK(part.learning_rate() < 0.01);
}

TEST_CASE("a target network and a replay buffer are the run's: saved, resumed, and whole behind a skipped update") {
  auto const train_with = [](std::filesystem::path const& directory, std::int64_t until) {
    at::manual_seed(2);
    auto const critic = make_small(), target = make_small();
    torch::optim::Adam optimizer(critic->parameters(), 0.01);
    keel::run<saved> run{quiet({.run_directory = directory})};
    keel::part<skipping> part{run, "critic", critic, optimizer};
    keel::target_network follows{critic, target, 0.1};
    replay buffer;
    run.register_state("target", follows);
    run.register_state("replay", buffer, keel::state_scope::checkpoints);
    for (std::int64_t const i : run.iterations(until)) {
      buffer.rewards.push_back(at::randn({}).item<double>());
      auto const batch = make_pair_batch(static_cast<std::uint64_t>(i));
      auto const before = copies_of(target->parameters());
      auto const outcome = part.update(batch, [&](pair_batch const& one) {
        at::Tensor const wanted = one.second + 0.9 * target->forward(one.first) + buffer.rewards.back();
        return at::mse_loss(critic->forward(one.first), i == 5 ? wanted * NAN : wanted);
      });
      CHECK(same_bits(before, copies_of(target->parameters())));
      if (outcome.updated()) follows.follow();
    }
    run.finish();
    auto all = copies_of(critic->parameters());
    for (at::Tensor const& one : copies_of(target->parameters())) all.push_back(one);
    all.push_back(at::tensor(buffer.rewards));
    CHECK(follows.followed() == (until > 5 ? until - 1 : until));
    return all;
  };
  scratch_directory const directory;
  auto const whole = train_with(directory / "whole", 12);
  for (std::int64_t const at : {2, 5, 6, 9}) train_with(directory / "cut", at);
  CHECK(same_bits(whole, train_with(directory / "cut", 12)));

  auto const model = make_small();
  torch::nn::Linear other(3, 1);
  CHECK(has(words_of([&] { keel::target_network(model, other, 0.1); }), "lacks"));
  CHECK(has(words_of([&] { keel::target_network(model, model, 0.1); }), "is the model itself"));
  auto const twin = make_small();
  CHECK(has(words_of([&] { keel::target_network(model, twin, 0.0); }), "above 0"));
}

TEST_CASE("a part rolls the whole run back, and evaluations judge it between iterations") {
  struct judging : keel::recipe<keel::checkpoint::every<2_steps, keel::checkpoint::keep<4>, keel::checkpoint::keep_best,
                                                          keel::checkpoint::by_evaluation_loss>,
                                keel::evaluation::every<2_steps>> {};
  struct rolling : keel::recipe<keel::nonfinite::rollback<2>> {};
  scratch_directory const directory;
  models of;
  keel::run<judging> run{quiet({.run_directory = directory / "run"})};
  keel::part<skipping> d{run, "discriminator", of.discriminator, *of.of_discriminator};
  keel::part<rolling> g{run, "generator", of.generator, *of.of_generator};
  int evaluations = 0, rollbacks = 0;
  run.evaluate_on(real_data(2), [&](at::Tensor const& x) {
    CHECK(!of.discriminator->is_training());
    CHECK(!of.generator->is_training());
    return judged(of, x, 1);
  });
  run.on([&](keel::event::evaluated const&) { ++evaluations; });
  run.on([&](keel::event::rolled_back const& event) {
    ++rollbacks;
    CHECK(event.why.find("generator: ") == 0);
  });
  for (auto& real : run.epochs(real_data(), 3)) {
    bool const bad = run.cursor().consumed == 8 || run.cursor().consumed == 9;
    d.update(real, discriminator_loss(of));
    g.update([&] { return judged(of, of.generator->forward(bad ? noise() * NAN : noise()), 1); });
  }
  run.finish();
  CHECK(rollbacks == 1);
  CHECK(evaluations >= 8);
  REQUIRE(run.best());
  auto const now = of.state();
  run.load_best();
  CHECK(!same_bits(now, of.state()));
}

TEST_CASE("the record has a line an iteration with what each part came to") {
  scratch_directory const directory;
  train(directory / "run", 6, 4, spoils::generator);
  auto const lines = read_lines(directory / "run" / "metrics.jsonl");
  REQUIRE(lines.size() == 6);
  auto const line = nlohmann::json::parse(lines[2]);
  double const d = line["own"]["discriminator/loss"], g = line["own"]["generator/loss"], loss = line["loss"];
  CHECK(loss == Approx(d + g));
  CHECK(line["own"].contains("discriminator/loss/fake"));
  CHECK(line["own"]["generator/lr"] == 0.01);
  CHECK(nlohmann::json::parse(lines[4])["own"]["generator/skipped"] == 1.0);
  CHECK(has(read_file(directory / "run" / "events.jsonl"), "\"part_skipped\""));
}

TEST_CASE("an exception that ends the loop of several models is in their record, from a loss, a hook and the program itself") {
  enum class thrower { loss, hook, program };
  for (thrower const where : {thrower::loss, thrower::hook, thrower::program}) {
    scratch_directory const directory;
    auto const train = [&] {
      models of;
      keel::run<saved> run{quiet({.run_directory = directory.path()})};
      keel::part<skipping> d{run, "discriminator", of.discriminator, *of.of_discriminator};
      if (where == thrower::hook)
        run.on([](keel::event::update_end const& e) {
          if (e.update == 2) throw std::runtime_error("from a hook");
        });
      std::int64_t count = 0;
      for (auto const& real : run.epochs(real_data())) {
        ++count;
        if (where == thrower::program && count == 2) throw std::runtime_error("from the program");
        d.update(real, [&](at::Tensor const& x) {
          if (where == thrower::loss && count == 2) throw std::runtime_error("from a loss");
          return judged(of, x, 1);
        });
      }
      run.finish();
    };
    CHECK_THROWS_AS(train(), std::runtime_error);
    auto const failed = events_of(directory.path(), "failed");
    REQUIRE(failed.size() == 1);
    auto const words = failed.front().at("message").get<std::string>();
    CHECK(words.find(where == thrower::loss   ? "from a loss"
                     : where == thrower::hook ? "from a hook"
                                              : "an exception thrown by the program") != std::string::npos);
  }
}

namespace {

/// Of a metric of one part.
struct generator_learns {
  static constexpr keel::health::alarm configured{.name = "generator_learns",
                                                  .conditions = {{"generator/loss", keel::health::is::below, 1000.0, 5}},
                                                  .symptom = "the loss of the generator is finite",
                                                  .causes = {"a test"},
                                                  .fixes = {"none"}};
};
struct stops_early : keel::recipe<keel::checkpoint::every<100_steps>, keel::determinism::seeded<3>,
                                  keel::health::watch<keel::health::then<generator_learns, keel::health::stop>>> {};
struct keeps_and_profiles : keel::recipe<keel::determinism::seeded<3>, keel::incident::keep<2>,
                                         keel::profile::every<10_steps, keel::profile::warmup<1>, keel::profile::active<2>>> {};

}  // namespace

TEST_CASE("an alarm of a run of several models watches the metrics of its parts, stops the run and saves it") {
  scratch_directory const directory;
  models of;
  keel::run<stops_early> run{quiet({.run_directory = directory.path()})};
  keel::part<skipping> d{run, "discriminator", of.discriminator, *of.of_discriminator};
  keel::part<skipping> g{run, "generator", of.generator, *of.of_generator};
  std::string raised;
  run.on([&](keel::event::alarm_raised const& e) { raised = e.alarm.what->name; });
  for (auto& real : run.epochs(real_data(20), 20)) {
    d.update(real, discriminator_loss(of));
    g.update([&] { return judged(of, of.generator->forward(noise()), 1); });
  }
  CHECK(run.finish().stopped() != nullptr);
  CHECK(raised == "generator_learns");
  CHECK(run.updates() < 50);
  CHECK(events_of(directory.path(), "alarm").size() == 1);
  CHECK(!std::filesystem::is_empty(directory / "checkpoints"));
}

TEST_CASE("a run of several models keeps the incident of a part, from which a run can begin, and profiles the phases of its parts") {
  scratch_directory const directory, other;
  std::vector<at::Tensor> before;
  models of;
  {
    keel::run<keeps_and_profiles> run{quiet({.run_directory = directory.path()})};
    keel::part<skipping> d{run, "discriminator", of.discriminator, *of.of_discriminator};
    keel::part<skipping> g{run, "generator", of.generator, *of.of_generator};
    for (auto& real : run.epochs(real_data(7), 4)) {
      bool const is_bad = run.cursor().consumed == 5;
      d.update(real, discriminator_loss(of));
      if (is_bad) before = of.state();
      g.update([&] { return judged(of, of.generator->forward(is_bad ? noise() * NAN : noise()), 1); });
      if (is_bad) CHECK(same_bits(before, of.state()));
    }
    CHECK(run.finish().finished() != nullptr);
  }
  auto const incidents = events_of(directory.path(), "incident");
  REQUIRE(incidents.size() == 1);
  CHECK(incidents.front().at("part") == "generator");
  std::filesystem::path const kept = incidents.front().at("path").get<std::string>();
  auto const words = nlohmann::json::parse(std::ifstream(kept / "incident.json"));
  CHECK(words.at("part") == "generator");
  CHECK(words.at("position") == 5);
  std::set<std::string> profiles;
  for (auto const& one : std::filesystem::directory_iterator(directory / "profiles")) profiles.insert(one.path().filename().string());
  CHECK(profiles == std::set<std::string>{"update-000000002", "update-000000012", "update-000000022"});
  CHECK(has(read_file(directory / "profiles/update-000000002/summary.md"), "backward"));

  models again;
  keel::run<saved> run{quiet({.run_directory = other.path(), .resume_from = kept, .accept_changed_recipe = true})};
  keel::part<skipping> d{run, "discriminator", again.discriminator, *again.of_discriminator};
  keel::part<skipping> g{run, "generator", again.generator, *again.of_generator};
  CHECK(run.resume());
  CHECK(run.cursor().position == 5);
  CHECK(same_bits(before, again.state()));
}

namespace {

struct evaluates_averages : keel::recipe<keel::evaluation::every<2_steps, keel::evaluation::averaged>,
                                         keel::checkpoint::every<4_steps, keel::checkpoint::keep_best, keel::checkpoint::by_evaluation_loss>,
                                         keel::determinism::seeded<3>> {};
struct averaging : keel::recipe<keel::nonfinite::skip<20>, keel::ema<0.5>> {};
struct drops_rows : keel::recipe<keel::batch_guard::drop<>, keel::determinism::seeded<3>> {};

}  // namespace

TEST_CASE("an averaged evaluation of a run sees the average of each part that keeps one, and load_best loads these") {
  scratch_directory const directory;
  models of;
  keel::run<evaluates_averages> run{quiet({.run_directory = directory.path()})};
  keel::part<skipping> d{run, "discriminator", of.discriminator, *of.of_discriminator};
  keel::part<averaging> g{run, "generator", of.generator, *of.of_generator};
  std::map<std::int64_t, std::vector<at::Tensor>> seen;
  run.evaluate_on(real_data(2), [&](at::Tensor const& real) {
    seen[run.updates()] = of.state();
    return judged(of, real, 1);
  });
  for (auto& real : run.epochs(real_data(), 2)) {
    d.update(real, discriminator_loss(of));
    g.update([&] { return judged(of, of.generator->forward(noise()), 1); });
  }
  run.finish();
  auto const average_of = [&] {
    auto const scope = g.averaged();
    return of.state();
  };
  CHECK(same_bits(seen.at(14), average_of()));
  CHECK_FALSE(same_bits(seen.at(14), of.state()));
  std::int64_t const best = run.load_best().update;
  CHECK(same_bits(seen.at(best), of.state()));
}

TEST_CASE("an averaged evaluation of a run whose parts keep no average is an error that says so") {
  scratch_directory const directory;
  models of;
  keel::run<evaluates_averages> run{quiet({.run_directory = directory.path()})};
  keel::part<skipping> d{run, "discriminator", of.discriminator, *of.of_discriminator};
  run.evaluate_on(real_data(2), [&](at::Tensor const& real) { return judged(of, real, 1); });
  CHECK(has(words_of([&] {
              for (auto& real : run.epochs(real_data(), 1)) d.update(real, discriminator_loss(of));
            }),
            "[E12] the run evaluates moving averages, but none of its parts keeps one"));
}

TEST_CASE("a run drops the bad rows of a batch before its parts see it, and trains the bits of a batch without them") {
  auto const train = [](bool spoils) {
    models of;
    keel::run<drops_rows> run{quiet()};
    keel::part<skipping> d{run, "discriminator", of.discriminator, *of.of_discriminator};
    std::vector<at::Tensor> data = real_data(4);
    if (spoils) {
      data[2] = at::cat({data[2].slice(0, 0, 3), at::full({1, 2}, NAN), data[2].slice(0, 3)});
    }
    std::vector<std::int64_t> rows;
    d.on([&](keel::event::update_end const& e) { rows.push_back(e.rows); });
    for (auto& real : run.epochs(data, 1)) {
      CHECK(at::isfinite(real).all().item<bool>());
      d.update(real, discriminator_loss(of));
    }
    CHECK(run.skipped() == 0);
    CHECK(rows == std::vector<std::int64_t>(4, data[0].size(0)));
    return of.state();
  };
  CHECK(same_bits(train(true), train(false)));
}

TEST_CASE("an averaged evaluation of parts that train one after the other leaves their parameters as they were") {
  scratch_directory const directory;
  models of;
  torch::optim::Adam another(of.generator->parameters(), torch::optim::AdamOptions(0.001));
  keel::run<evaluates_averages> run{quiet({.run_directory = directory.path()})};
  keel::part<averaging> first{run, "first", of.generator, *of.of_generator};
  keel::part<averaging> second{run, "second", of.generator, another, keel::after(first)};
  auto const loss = [&] { return of.generator->forward(noise()).square().mean(); };
  std::vector<at::Tensor> trained, judged_last;
  run.evaluate_on(real_data(1), [&](at::Tensor const&) {
    judged_last = of.state();
    return of.generator->forward(at::ones({8, 4})).square().mean();
  });
  for (std::int64_t i : run.iterations(8)) {
    if (i > 0) CHECK(same_bits(trained, of.state()));
    first.update(loss);
    second.update(loss);
    trained = of.state();
  }
  run.finish();
  CHECK(same_bits(trained, of.state()));
  {
    auto const average = second.averaged();
    CHECK(same_bits(judged_last, of.state()));
  }
  CHECK_NOTHROW(run.load_best());
}
