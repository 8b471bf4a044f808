#include <limits>

#include "../support.hpp"

using namespace keel_test;

TEST_CASE("nonfinite_does_not_blind_the_detector: after a NaN the z-score still finds a spike") {
  keel::window_statistics window(128, 8);
  keel::step_outcome const updated = keel::result::updated{};
  std::mt19937_64 engine(1);
  std::normal_distribution<double> normal(2.0, 0.1);
  for (int i = 0; i < 50; ++i) window.push(keel::accepted(updated, normal(engine)));
  window.push(keel::accepted(updated, std::numeric_limits<double>::quiet_NaN()));
  window.push(keel::accepted(updated, std::numeric_limits<double>::infinity()));
  window.push(keel::accepted(keel::result::skipped{keel::reason::nonfinite_gradient, ""}, 1000.0));
  CHECK_FALSE(window.zscore(keel::as_finite(std::numeric_limits<double>::quiet_NaN())).has_value());
  for (int i = 0; i < 200; ++i) window.push(keel::accepted(updated, normal(engine)));
  REQUIRE(window.zscore(keel::as_finite(3.0)).has_value());
  CHECK(*window.zscore(keel::as_finite(3.0)) > 6.0);
  CHECK(std::abs(*window.zscore(keel::as_finite(2.0))) < 2.0);
}

TEST_CASE("the z-score is the textbook one over the last values only") {
  keel::window_statistics window(4, 2);
  CHECK_FALSE(window.zscore(keel::as_finite(1.0)).has_value());
  for (double const value : {100.0, 1.0, 2.0, 3.0, 4.0}) window.push(keel::accepted(keel::result::updated{}, value));
  CHECK(*window.zscore(keel::as_finite(3.5)) == Approx(1.0 / std::sqrt(1.25)));
}

TEST_CASE("a line of the record is valid JSON whatever the numbers are") {
  keel::update_metrics m;
  m.loss = std::numeric_limits<double>::quiet_NaN();
  m.gradient_norm = -std::numeric_limits<double>::infinity();
  m.skipped_because = "non-finite loss in \"a\\b\"";
  auto const line = nlohmann::json::parse(keel::to_json(m).dump());
  CHECK(line["loss"] == "nan");
  CHECK(line["gradient_norm"] == "-inf");
  CHECK(line["loss_zscore"].is_null());
  CHECK(line["skipped_because"] == m.skipped_because);
}

namespace {
struct state {
  double number = 0.0;
  std::vector<double> list;
  std::int64_t count = 0;
  bool flag = false;
  std::string words;
  at::Tensor tensor;
  void visit(auto& archive) {
    archive("number", number);
    archive("list", list);
    archive("count", count);
    archive("flag", flag);
    archive("words", words);
    archive("tensor", tensor);
  }
};
}  // namespace

TEST_CASE("state that was written is read back to the bit, NaN and infinity included, and a missing field is named") {
  std::mt19937_64 engine(2);
  for (int round = 0; round < 200; ++round) {
    state from;
    std::uint64_t const bits = engine();
    std::memcpy(&from.number, &bits, sizeof bits);
    if (std::isnan(from.number)) from.number = std::numeric_limits<double>::quiet_NaN();
    from.list = {0.1, -0.0, std::numeric_limits<double>::infinity(), std::numeric_limits<double>::denorm_min()};
    from.count = static_cast<std::int64_t>(engine());
    from.flag = round % 2 == 0;
    from.words = "a \"quoted\" line\n";
    from.tensor = at::rand({3});
    nlohmann::json object;
    keel::tensor_map tensors;
    keel::state_writer writer(object, tensors);
    from.visit(writer);
    auto const parsed = nlohmann::json::parse(object.dump());
    state to;
    keel::state_reader reader(parsed, tensors, "a test");
    to.visit(reader);
    REQUIRE((std::memcmp(&to.number, &from.number, sizeof to.number) == 0 || std::isnan(from.number)));
    REQUIRE(std::memcmp(to.list.data(), from.list.data(), sizeof(double) * 4) == 0);
    REQUIRE(to.count == from.count);
    REQUIRE(to.flag == from.flag);
    REQUIRE(to.words == from.words);
    REQUIRE(same_bits(to.tensor, from.tensor));

    auto missing = parsed;
    missing.erase("count");
    keel::state_reader incomplete(missing, tensors, "a test");
    try {
      to.visit(incomplete);
      FAIL("a missing field was read");
    } catch (keel::checkpoint_error const& thrown) {
      REQUIRE(std::string(thrown.what()).find("the field count is missing") != std::string::npos);
    }
  }
}

TEST_CASE("elsewhere than on a terminal the console writes plain lines, with every figure that the record has") {
  scratch_directory const directory;
  auto const path = directory / "console.txt";
  std::FILE* const file = std::fopen(path.c_str(), "w");
  auto const model = make_small();
  torch::optim::SGD optimizer(model->parameters(), 0.1);
  struct warning : keel::recipe<keel::nonfinite::warn<3>> {};
  {
    keel::trainer<warning> run{model, optimizer, {.updates = 12, .console = file, .console_every = 3}};
    run.fit([](std::int64_t) { return std::vector<pair_batch>{make_pair_batch(1)}; },
            [&](pair_batch const& batch) {
              at::Tensor const loss = mean_squared_error(model)(batch);
              return run.updates() == 4 && run.skipped() == 0 ? loss * NAN : loss;
            });
  }
  std::fclose(file);
  auto const lines = read_lines(path);
  auto const whole = read_file(path);
  for (char const* const word :
       {"update  3/12", "update 12/12", "loss ", "(z ", "norm ", "lr 1.00e-01", "skipped 1", "rows/s", " ms", "eta 00:00",
        "warning: update 5 was skipped: non-finite loss", "SKIPPED: non-finite loss", "finished", "12 applied, 1 skipped"}) {
    INFO(word);
    CHECK(whole.find(word) != std::string::npos);
  }
  CHECK(whole.find('\033') == std::string::npos);
  CHECK(whole.find('\r') == std::string::npos);
}

TEST_CASE("on a terminal one live line is written over itself, and the summary stays") {
  scratch_directory const directory;
  auto const path = directory / "console.txt";
  std::FILE* const file = std::fopen(path.c_str(), "w");
  keel::console console(file, keel::console_mode::bar, 1);
  console.begin(4, "tokens");
  keel::update_metrics m;
  for (m.update = 1; m.update <= 4; ++m.update) {
    m.attempt = m.update;
    m.tokens = 100;
    m.milliseconds = 10.0;
    console.show(m);
    if (m.update == 2) console.notice("a checkpoint was saved");
  }
  console.summary({{"run", "finished"}});
  std::fclose(file);
  auto const text = read_file(path);
  CHECK(text.find("\r\033[K[##########..........]  50%") != std::string::npos);
  CHECK(text.find("\r\033[Ka checkpoint was saved\n") != std::string::npos);
  CHECK(text.find("[####################] 100%") != std::string::npos);
  CHECK(text.find("\n  run                    finished\n") != std::string::npos);
}

TEST_CASE("logged_gradient_norm_is_the_oracles: of the whole window, unscaled and before clipping") {
  using namespace keel::literals;
  struct clipped : keel::recipe<keel::accumulate<3>, keel::clip::global_norm<0.01>> {};
  struct scaled_in_fp32 : keel::environment {
    bool computes_in_half(at::DeviceType) const override { return true; }
    bool computes_in_bfloat16(at::DeviceType) const override { return true; }
    keel::precision::kind autocast(keel::precision::kind) const override { return keel::precision::kind::fp32; }
  };
  struct scaled
      : keel::recipe<keel::precision::fp16, keel::loss_scale::fixed<1024.0>, keel::accumulate<3>, keel::clip::value<0.01>> {};
  auto const check = [](auto recipe, auto environment) {
    scratch_directory const directory;
    auto const model = make_small();
    keel::sgd optimizer(model->parameters(), 0.1);
    keel::trainer<decltype(recipe), decltype(environment)> run{model, optimizer, quiet({.run_directory = directory.path()})};
    std::vector<double> expected;
    for (std::uint64_t window = 0; window < 5; ++window) {
      auto const oracle = make_small();
      oracle->to(at::kDouble);
      at::NoGradGuard no_grad;
      for (std::size_t i = 0; i < oracle->parameters().size(); ++i) oracle->parameters()[i].copy_(model->parameters()[i]);
      std::vector<at::Tensor> xs, ys;
      for (std::uint64_t part = 0; part < 3; ++part) {
        auto const batch = make_pair_batch(10 * window + part, 3 + static_cast<std::int64_t>(part) * 4);
        xs.push_back(batch.first.to(at::kDouble));
        ys.push_back(batch.second.to(at::kDouble));
        at::AutoGradMode with_gradients(true);
        run.step(batch, mean_squared_error(model));
      }
      at::AutoGradMode with_gradients(true);
      at::mse_loss(oracle->forward(at::cat(xs)), at::cat(ys)).backward();
      double squares = 0.0;
      for (auto const& one : oracle->parameters()) squares += one.grad().square().sum().item<double>();
      expected.push_back(std::sqrt(squares));
    }
    auto const lines = read_lines(directory / "metrics.jsonl");
    REQUIRE(lines.size() == 5);
    for (std::size_t i = 0; i < lines.size(); ++i) {
      auto const line = nlohmann::json::parse(lines[i]);
      CHECK(line["gradient_norm"].get<double>() == Approx(expected[i]).epsilon(1e-4));
      CHECK(line["clipped"] == true);
    }
  };
  check(clipped{}, keel::environment{});
  check(scaled{}, scaled_in_fp32{});
}

TEST_CASE("a window that is loaded at another length holds the last values, in their order") {
  auto const filled = [](std::size_t length, int count) {
    keel::window_statistics window(length, 2);
    for (int i = 1; i <= count; ++i) window.push(keel::accepted(keel::result::updated{}, static_cast<double>(i * i)));
    return window;
  };
  auto const loaded_at = [&](keel::window_statistics from, std::size_t length) {
    nlohmann::json state;
    keel::tensor_map tensors;
    keel::state_writer writer(state, tensors);
    from.visit(writer);
    keel::window_statistics window(length, 2);
    keel::state_reader reader(state, tensors, "a test");
    window.visit(reader);
    return window;
  };
  for (int count = 3; count <= 40; ++count) {
    auto shorter = loaded_at(filled(16, count), 4);
    CHECK(*shorter.zscore(keel::as_finite(7.0)) == Approx(*filled(4, count).zscore(keel::as_finite(7.0))));
    auto longer = loaded_at(filled(4, count), 16);
    for (int i = count + 1; i <= count + 12; ++i)
      longer.push(keel::accepted(keel::result::updated{}, static_cast<double>(i * i)));
    auto const expected = filled(std::min(16, std::min(4, count) + 12), count + 12);
    CHECK(*longer.zscore(keel::as_finite(7.0)) == Approx(*expected.zscore(keel::as_finite(7.0))));
  }
}
