// What a run finds in its layers: right by a second computation, without a wait for a device, and gone where its update is.
#include "../deciding_device.hpp"
#include "../support.hpp"

#include <cmath>
#include <keel/metrics/layer_watch.hpp>
#include <map>
#include <nlohmann/json.hpp>

#include "../transformer.hpp"
#include "event_reader.hpp"

using namespace keel_test;
using namespace keel::literals;

namespace {

struct plain : keel::recipe<keel::clip::global_norm<0.01>> {};
// Which update is spoiled is counted by the loss function, so it must not be called again.
struct skips : keel::recipe<keel::nonfinite::skip<10>, keel::incident::off> {};
struct rolls_back
    : keel::recipe<keel::nonfinite::rollback<2>, keel::checkpoint::every<4_steps, keel::checkpoint::keep<3>>, keel::incident::off> {};

/// Counts the numbers that the host asks a device for.
struct reads_counted : on_a_device {
  double host_value(at::Tensor const& one) const override {
    ++reads;
    return keel::host_value(one);
  }
  inline static int reads = 0;
};

std::vector<pair_batch> batches_of(int count) {
  std::vector<pair_batch> all;
  for (int i = 0; i < count; ++i) all.push_back(make_pair_batch(static_cast<std::uint64_t>(i)));
  return all;
}

template <class Recipe, class Environment = keel::environment, class Optimizer = torch::optim::SGD>
std::vector<keel::layer_record> records_of(keel::trainer_options options, int count, std::set<int> const& bad = {}) {
  auto const model = make_small(1);
  std::vector<keel::layer_record> all;
  auto const run_with = [&](auto& optimizer) {
    keel::trainer<Recipe, Environment> run{model, optimizer, quiet(options)};
    run.on([&](keel::event::layers_measured const& e) { all.push_back(e.record); });
    run.fit(batches_of(count), [&, n = 0](pair_batch const& batch) mutable {
      at::Tensor const loss = mean_squared_error(model)(batch);
      return bad.count(n++) != 0 ? loss * NAN : loss;
    });
  };
  if constexpr (std::is_same_v<Optimizer, torch::optim::SGD>) {
    torch::optim::SGD optimizer(model->parameters(), 0.1);
    run_with(optimizer);
  } else {
    Optimizer optimizer(model->parameters(), torch::optim::SGDOptions(0.1));
    run_with(optimizer);
  }
  return all;
}

std::vector<nlohmann::json> layer_lines(std::filesystem::path const& run) {
  std::vector<nlohmann::json> all;
  for (std::string const& line : read_lines(run / "layers.jsonl")) all.push_back(nlohmann::json::parse(line));
  return all;
}

double norm_of(std::vector<at::Tensor> const& all) {
  double sum = 0.0;
  for (at::Tensor const& one : all) sum += one.detach().to(at::kDouble).square().sum().item<double>();
  return std::sqrt(sum);
}

}  // namespace

TEST_CASE("norms and the change of an update are those of a second computation") {
  auto const model = make_small(1);
  torch::optim::SGD optimizer(model->parameters(), 0.1);
  struct measured {
    double gradient, parameter, change;
  };
  std::map<std::int64_t, measured> wanted;
  std::map<std::int64_t, measured> found;
  keel::trainer<plain> run{model, optimizer, quiet({.layers_every = 2})};
  std::vector<at::Tensor> before;
  double gradient = 0.0;
  auto const own = [&] { return std::vector<at::Tensor>{model->first->weight, model->first->bias}; };
  run.on([&](keel::event::gradients_ready const&) {
    before = copies_of(own());
    gradient = norm_of({model->first->weight.grad(), model->first->bias.grad()});
  });
  run.on([&](keel::event::update_end const& e) {
    auto const now = own();
    wanted[e.update] = {gradient, norm_of(now), norm_of({now[0].detach() - before[0], now[1].detach() - before[1]})};
  });
  run.on([&](keel::event::layers_measured const& e) {
    REQUIRE(e.record.layers.size() == 2);
    CHECK(e.record.layers[0].name == "first");
    CHECK(e.record.layers[1].name == "second");
    auto const& one = e.record.layers[0];
    found[e.update] = {one.gradient_norm, one.parameter_norm, one.update_ratio * one.parameter_norm};
  });
  run.fit(batches_of(7), mean_squared_error(model));
  REQUIRE(found.size() == 3);
  for (auto const& [update, one] : found) {
    CHECK(update % 2 == 0);
    CHECK(one.gradient == Approx(wanted[update].gradient).epsilon(1e-5));
    CHECK(one.parameter == Approx(wanted[update].parameter).epsilon(1e-6));
    CHECK(one.change == Approx(wanted[update].change).epsilon(1e-3));
  }
}

TEST_CASE("what is decided on a device is measured alike, and no number more is asked for") {
  keel::trainer_options const options{.layers_every = 2};
  scratch_directory const directory;
  auto with_place = options;
  with_place.run_directory = directory / "device";
  auto on_device = records_of<plain, on_a_device, keel::sgd>(with_place, 9);
  with_place.run_directory = directory / "host";
  auto on_host = records_of<plain, keel::environment, keel::sgd>(with_place, 9);
  REQUIRE(on_device.size() == on_host.size());
  REQUIRE(on_host.size() == 4);
  for (std::size_t i = 0; i < on_host.size(); ++i) {
    CHECK(on_device[i].update == on_host[i].update);
    for (std::size_t layer = 0; layer < on_host[i].layers.size(); ++layer) {
      auto const& a = on_device[i].layers[layer];
      auto const& b = on_host[i].layers[layer];
      CHECK(a.gradient_norm == Approx(b.gradient_norm).epsilon(1e-5));
      CHECK(a.parameter_norm == Approx(b.parameter_norm).epsilon(1e-5));
      CHECK(a.update_ratio == Approx(b.update_ratio).epsilon(1e-3));
    }
  }
  auto const reads = [&](std::int64_t every, std::int64_t histograms) {
    reads_counted::reads = 0;
    auto const model = make_small(1);
    keel::sgd optimizer(model->parameters(), torch::optim::SGDOptions(0.1));
    scratch_directory const inner;
    keel::trainer<keel::recipe<keel::health::sft>, reads_counted> run{
        model, optimizer, quiet({.run_directory = inner / "run", .layers_every = every, .histograms_every = histograms})};
    run.fit(batches_of(20), mean_squared_error(model));
    return reads_counted::reads;
  };
  CHECK(reads(1, 1) == reads(0, 0));
}

TEST_CASE("a skipped update has no figures, on the host and on a device") {
  keel::trainer_options const options{.layers_every = 1};
  scratch_directory const directory;
  auto with_place = options;
  for (bool const is_device : {false, true}) {
    with_place.run_directory = directory / (is_device ? "device" : "host");
    auto const all = is_device ? records_of<skips, on_a_device, keel::sgd>(with_place, 6, {2, 3})
                               : records_of<skips, keel::environment, keel::sgd>(with_place, 6, {2, 3});
    std::vector<std::int64_t> updates;
    for (auto const& one : all) {
      updates.push_back(one.update);
      for (auto const& layer : one.layers) CHECK(std::isfinite(layer.gradient_norm));
    }
    CHECK(updates == std::vector<std::int64_t>{1, 2, 3, 4});
  }
}

TEST_CASE("activations of units have their mean and deviation, and histograms hold every value") {
  auto const model = make_transformer();
  torch::optim::SGD optimizer(model->parameters(), 0.1);
  scratch_directory const directory;
  std::vector<keel::layer_record> all;
  keel::trainer<keel::recipe<keel::recompute::non_reentrant>> run{
      model, optimizer, quiet({.run_directory = directory / "run", .histograms_every = 2})};
  run.on([&](keel::event::layers_measured const& e) { all.push_back(e.record); });
  std::vector<at::Tensor> batches;
  for (int i = 0; i < 5; ++i) batches.push_back(at::randint(0, transformer::vocabulary, {2, 6}, at::kLong).to(device()));
  run.fit(batches, [&](at::Tensor const& ids) { return model->forward(ids).square().mean(); });
  REQUIRE(all.size() == 2);
  REQUIRE(all[0].activations.size() == 2);
  for (auto const& one : all[0].activations) {
    CHECK(std::isfinite(one.mean));
    CHECK(one.deviation > 0.0);
  }
  std::set<std::string> kinds;
  for (auto const& [name, values] : all[0].distributions) {
    CAPTURE(name);
    kinds.insert(name.substr(0, name.find('/')));
    double sum = 0.0;
    for (double const count : values.counts) sum += count;
    CHECK(sum == values.count);
    CHECK(values.count > 0.0);
    CHECK(values.min <= values.max);
    CHECK(values.limits.size() == values.counts.size());
    CHECK(std::is_sorted(values.limits.begin(), values.limits.end()));
    CHECK(values.limits.back() >= values.max);
  }
  CHECK(kinds == std::set<std::string>{"activations", "gradients", "weights"});
  auto const board = board_in(directory / "run/tensorboard");
  CHECK(board.scalars.count("grad_norm/head") == 1);
  CHECK(board.scalars.count("activation_std/unit.0") == 1);
  CHECK(layer_lines(directory / "run")[0]["activations"].size() == 2);
}

TEST_CASE("a run that looks at its layers trains to the same bits as one that does not") {
  auto const trained = [](std::int64_t every) {
    auto const model = make_small(1, 0.2);
    torch::optim::AdamW optimizer(model->parameters(), torch::optim::AdamWOptions(0.01));
    scratch_directory const directory;
    keel::trainer<plain> run{
        model, optimizer, quiet({.run_directory = directory / "run", .layers_every = every, .histograms_every = every})};
    run.fit(batches_of(12), mean_squared_error(model));
    return copies_of(model->parameters());
  };
  CHECK(same_bits(trained(0), trained(1)));
}

TEST_CASE("after a rollback layers.jsonl says which lines are abandoned") {
  scratch_directory const directory;
  keel::trainer_options const options{.run_directory = directory / "run", .layers_every = 1};
  records_of<rolls_back>(options, 20, {6, 7});
  std::map<std::int64_t, int> kept;
  bool has_mark = false;
  for (auto const& line : layer_lines(directory / "run")) {
    if (line.contains("restarted_after")) {
      has_mark = true;
      kept.erase(kept.upper_bound(line["restarted_after"]), kept.end());
    } else {
      ++kept[line["update"]];
    }
  }
  CHECK(has_mark);
  for (auto const& [update, count] : kept) CHECK(count == 1);
}
