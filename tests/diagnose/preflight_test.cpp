// Bugs of wiring that a preflight finds, each by the row that it belongs to, and sound programs that it passes.
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/normalization.h>
#include <torch/nn/modules/rnn.h>

#include <functional>

#include "../transformer.hpp"

using namespace keel_test;
using namespace keel::literals;

namespace {

using keel::preflight_verdict;

struct guarded : keel::recipe<keel::nonfinite::skip<20>, keel::clip::global_norm<5.0>> {};
struct laddered
    : keel::recipe<keel::nonfinite::skip<20>, keel::clip::global_norm<5.0>,
                   keel::oom::ladder<keel::oom::halve_micro_batch, keel::oom::offload_optimizer, keel::oom::give_up>> {};

/// A model of whatever modules a program registers.
struct free_module : torch::nn::Module {
  template <class Holder>
  Holder add(char const* name, Holder module) {
    return register_module(name, std::move(module));
  }
};

using pair_loss = std::function<at::Tensor(pair_batch const&)>;
using tensor_loss = std::function<at::Tensor(at::Tensor const&)>;

/// What is tried out: a model, its loss, its batches.
template <class Batch>
struct program {
  std::shared_ptr<free_module> model = std::make_shared<free_module>();
  std::function<at::Tensor(Batch const&)> loss;
  std::vector<Batch> batches;
  double rate = 1e-2;
  std::function<void(torch::optim::Optimizer&)> prepare = {};
};

template <class Recipe = guarded, class Batch>
keel::preflight_result preflight_of(program<Batch> const& tried, keel::preflight_options const& options = {.updates = 100}) {
  keel::adamw optimizer(tried.model->parameters(), tried.rate);
  if (tried.prepare) tried.prepare(optimizer);
  keel::trainer<Recipe> run{*tried.model, optimizer, quiet({.updates = 500})};
  return run.preflight(tried.batches, tried.loss, options);
}

at::Generator chance(std::uint64_t seed) { return at::detail::createCPUGenerator(seed); }

/// Points of four clusters.
pair_batch points(std::uint64_t seed, std::int64_t rows = 16) {
  auto law = chance(99), here = chance(seed + 1000);
  at::Tensor const centres = at::randn({4, 6}, law) * 1.5;
  at::Tensor const labels = at::randint(4, {rows}, here, at::kLong);
  return {centres.index_select(0, labels) + at::randn({rows, 6}, here), labels};
}
std::vector<pair_batch> many(std::function<pair_batch(std::uint64_t)> const& make, std::uint64_t count = 40) {
  std::vector<pair_batch> all;
  for (std::uint64_t i = 0; i < count; ++i) all.push_back(make(i));
  return all;
}

/// The next id follows from the last one.
at::Tensor sentences(std::uint64_t seed, std::int64_t rows = 8, std::int64_t length = 10) {
  auto law = chance(7), here = chance(seed + 5000);
  at::Tensor const next = at::randint(1, 12, {12}, law, at::kLong);
  at::Tensor const ids = at::randint(1, 12, {rows, length}, here, at::kLong);
  at::Tensor const keeps = at::rand({rows, length}, here);
  for (std::int64_t row = 0; row < rows; ++row) {
    for (std::int64_t t = 1; t < length; ++t) {
      if (keeps[row][t].item<float>() < 0.7F) ids[row][t].copy_(next[ids[row][t - 1].item<std::int64_t>()]);
    }
  }
  return ids;
}
std::vector<pair_batch> next_ids(std::int64_t shift = 1) {
  return many([shift](std::uint64_t seed) {
    at::Tensor const ids = sentences(seed, 8, 14);
    return pair_batch{ids.slice(1, 2, 12).contiguous(), ids.slice(1, 2 + shift, 12 + shift).contiguous()};
  });
}

program<pair_batch> classifier(std::function<at::Tensor(at::Tensor const&)> const& at_the_end = {}) {
  program<pair_batch> made;
  auto first = made.model->add("first", torch::nn::Linear(6, 24));
  auto head = made.model->add("head", torch::nn::Linear(24, 4));
  made.loss = [=](pair_batch const& batch) mutable {
    at::Tensor logits = head(at::relu(first(batch.first)));
    if (at_the_end) logits = at_the_end(logits);
    return at::cross_entropy_loss(logits, batch.second);
  };
  made.batches = many([](std::uint64_t seed) { return points(seed); });
  return made;
}

program<pair_batch> predictor(std::function<at::Tensor(at::Tensor const&, at::Tensor const&)> const& loss) {
  program<pair_batch> made;
  auto first = made.model->add("first", torch::nn::Linear(6, 24));
  auto head = made.model->add("head", torch::nn::Linear(24, 1));
  made.loss = [=](pair_batch const& batch) mutable { return loss(head(at::tanh(first(batch.first))), batch.second); };
  made.batches = many([](std::uint64_t seed) { return make_pair_batch(seed, 16); });
  return made;
}

/// Attention over ids; `mask` gets the scores.
program<pair_batch> language_model(std::function<at::Tensor(at::Tensor const&)> const& mask) {
  program<pair_batch> made;
  constexpr std::int64_t width = 16;
  auto ids = made.model->add("ids", torch::nn::Embedding(12, width));
  auto places = made.model->add("places", torch::nn::Embedding(16, width));
  auto attention = made.model->add("attention", torch::nn::Linear(width, 3 * width));
  auto wide = made.model->add("wide", torch::nn::Linear(width, 12));
  made.loss = [=](pair_batch const& batch) mutable {
    at::Tensor const x = ids(batch.first) * 0.5 + places(at::arange(batch.first.size(1))) * 0.5;
    auto const parts = attention(x).chunk(3, 2);
    at::Tensor const scores = mask(parts[0].matmul(parts[1].transpose(1, 2)) / 4.0);
    return at::cross_entropy_loss(wide(x + at::softmax(scores, 2).matmul(parts[2])).flatten(0, 1), batch.second.flatten());
  };
  made.batches = next_ids();
  return made;
}
at::Tensor causal(at::Tensor const& scores) {
  return scores.masked_fill(at::ones_like(scores).tril() == 0, -std::numeric_limits<float>::infinity());
}

program<pair_batch> recurrent(bool both_ways) {
  program<pair_batch> made;
  auto ids = made.model->add("ids", torch::nn::Embedding(12, 12));
  auto lstm =
      made.model->add("lstm", torch::nn::LSTM(torch::nn::LSTMOptions(12, 16).batch_first(true).bidirectional(both_ways)));
  auto head = made.model->add("head", torch::nn::Linear(both_ways ? 32 : 16, 12));
  made.loss = [=](pair_batch const& batch) mutable {
    at::Tensor const hidden = std::get<0>(lstm(ids(batch.first)));
    return at::cross_entropy_loss(head(hidden).transpose(1, 2), batch.second);
  };
  made.batches = next_ids();
  return made;
}

/// Sums up the ids of rows of several lengths, filled with zeros, as their mean under a mask says.
program<std::tuple<at::Tensor, at::Tensor, at::Tensor>> masked(std::function<at::Tensor(at::Tensor const&)> const& change) {
  program<std::tuple<at::Tensor, at::Tensor, at::Tensor>> made;
  auto ids = made.model->add("ids", torch::nn::Embedding(12, 12));
  auto head = made.model->add("head", torch::nn::Linear(12, 2));
  made.loss = [=](std::tuple<at::Tensor, at::Tensor, at::Tensor> const& batch) mutable {
    auto const& [tokens, mask, labels] = batch;
    at::Tensor const counts = change(mask.to(at::kFloat)).unsqueeze(2);
    at::Tensor const mean = (ids(tokens) * counts).sum(1) / counts.sum(1).clamp_min(1.0);
    return at::cross_entropy_loss(head(mean), labels);
  };
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    at::Tensor const tokens = sentences(seed, 16, 9);
    auto here = chance(seed);
    at::Tensor const lengths = at::randint(3, 9, {16, 1}, here, at::kLong);
    at::Tensor const mask = at::arange(9).unsqueeze(0) < lengths;
    at::Tensor const filled = at::where(mask, tokens, at::zeros_like(tokens));
    made.batches.emplace_back(filled, mask, filled.eq(5).any(1).to(at::kLong));
  }
  return made;
}

template <class Batch>
void finds(program<Batch> const& tried, char const* check, char const* words = "") {
  auto const found = preflight_of(tried);
  auto const* const row = found.find(check);
  INFO(found.table());
  REQUIRE(row != nullptr);
  CHECK(row->verdict == preflight_verdict::failed);
  CHECK(row->message.find(words) != std::string::npos);
  CHECK(!row->fix.empty());
  CHECK(!found.passed());
}

template <class Recipe = guarded, class Batch>
void passes(program<Batch> const& tried) {
  auto const found = preflight_of<Recipe>(tried);
  INFO(found.table());
  CHECK(found.passed());
}

}  // namespace

TEST_CASE("preflight finds targets that the model sees") {
  finds(language_model([](at::Tensor const& scores) { return scores; }), "look-ahead", "label leak");
  finds(recurrent(true), "look-ahead", "label leak");
  auto leaks = classifier();
  for (auto& [x, y] : leaks.batches) x = at::cat({x.slice(1, 0, 5), y.to(at::kFloat).unsqueeze(1) * 3.0 - 1.0}, 1);
  finds(leaks, "targets in inputs", "column 5");
  auto regresses = predictor([](at::Tensor const& out, at::Tensor const& y) { return at::mse_loss(out, y); });
  for (auto& [x, y] : regresses.batches) x = at::cat({x.slice(1, 0, 2), y * 0.5 + 1.0, x.slice(1, 3)}, 1);
  finds(regresses, "targets in inputs", "column 2");
}

TEST_CASE("preflight finds targets at the wrong place") {
  auto same = recurrent(false), two = recurrent(false), before = recurrent(false);
  same.batches = next_ids(0);
  two.batches = next_ids(2);
  before.batches = next_ids(-1);
  finds(same, "shift of targets", "at that position");
  finds(two, "shift of targets", "2 positions later");
  finds(before, "shift of targets", "before it");
  auto rolled = classifier();
  for (auto& [x, y] : rolled.batches) y = y.roll(1);
  finds(rolled, "labels belong to inputs");
}

// Models begin at random, and two that learn nothing of use differ. Of these 40 none may seem to learn.
TEST_CASE("labels of other rows are found whatever the model begins with") {
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    at::manual_seed(seed);
    auto rolled = classifier();
    for (auto& [x, y] : rolled.batches) y = y.roll(1);
    INFO("seed " << seed);
    finds(rolled, "labels belong to inputs");
  }
}

TEST_CASE("preflight finds what does not train") {
  auto detached = classifier();
  auto branch = detached.model->add("branch", torch::nn::Linear(6, 4));
  auto const loss = detached.loss;
  detached.loss = [=](pair_batch const& batch) mutable {
    return loss(batch) + 0.1 * branch(batch.first).detach().pow(2).mean();
  };
  finds(detached, "gradients", "branch.weight");

  auto forgotten = classifier();
  auto hidden = std::make_shared<torch::nn::Linear>(6, 6);
  auto const of_rest = forgotten.loss;
  forgotten.loss = [=](pair_batch const& batch) { return of_rest({(*hidden)(batch.first), batch.second}); };
  finds(forgotten, "parameters", "does not register");

  auto asleep = classifier();
  asleep.prepare = [](torch::optim::Optimizer& optimizer) { optimizer.param_groups()[0].options().set_lr(0.0); };
  finds(asleep, "rates");

  auto other = classifier();
  other.loss = classifier().loss;
  finds(other, "an update", "E07");

  auto dead = classifier();
  {
    at::NoGradGuard const no_grad;
    for (at::Tensor const& one : dead.model->parameters()) one.zero_();
  }
  finds(dead, "gradients");
}

TEST_CASE("preflight finds modes, masks and losses that do not fit") {
  auto evaluates = classifier();
  auto drop = evaluates.model->add("drop", torch::nn::Dropout(0.1));
  evaluates.model->eval();
  finds(evaluates, "training mode", "before the first update");
  auto leaves = classifier();
  auto const loss = leaves.loss;
  leaves.loss = [=, model = leaves.model](pair_batch const& batch) {
    at::Tensor const found = loss(batch);
    model->eval();
    return found;
  };
  finds(leaves, "training mode", "after a call");

  finds(masked([](at::Tensor const& mask) { return 1.0 - mask; }), "masks", "hides positions whose inputs");
  finds(masked([](at::Tensor const& mask) { return at::ones_like(mask); }), "masks", "changes neither");
  finds(language_model([](at::Tensor const& scores) {
          return scores.masked_fill(at::eye(scores.size(1)).to(at::kBool).logical_not(), -1e9);
        }),
        "masks", "only on that position");

  finds(classifier([](at::Tensor const& logits) { return at::softmax(logits, 1); }), "loss and output", "softmax twice");
  finds(classifier([](at::Tensor const& logits) { return at::relu(logits); }), "loss and output", "ReLU");
  finds(predictor([](at::Tensor const& out, at::Tensor const& y) {
          return at::binary_cross_entropy_with_logits(at::sigmoid(out), y.gt(0).to(at::kFloat));
        }),
        "loss and output", "sigmoid twice");
  finds(predictor([](at::Tensor const& out, at::Tensor const& y) { return (out - y.squeeze(1)).pow(2).mean(); }),
        "loss and output", "shape");
  auto sums = classifier();
  auto const mean = sums.loss;
  sums.loss = [mean](pair_batch const& batch) { return mean(batch); };
  for (auto& [x, y] : sums.batches) x = x * 200.0;
  finds(sums, "loss at the start", "a uniform guess among 4 classes");
}

TEST_CASE("preflight finds batches, rows and rates that cannot be meant") {
  auto mixes = program<pair_batch>();
  auto first = mixes.model->add("first", torch::nn::Linear(6, 8));
  auto head = mixes.model->add("head", torch::nn::Linear(8, 4));
  mixes.loss = [=](pair_batch const& batch) mutable {
    at::Tensor const hidden = at::tanh(first(batch.first));
    return at::cross_entropy_loss(head(hidden.t().reshape(hidden.sizes())), batch.second);
  };
  mixes.batches = classifier().batches;
  finds(mixes, "rows", "mixes the rows");

  auto sorted = classifier();
  for (std::size_t i = 0; i < sorted.batches.size(); ++i) sorted.batches[i].second.fill_(static_cast<std::int64_t>(i % 4));
  finds(sorted, "batches", "sorted");
  auto blind = classifier();
  auto const of_input = blind.loss;
  blind.loss = [=](pair_batch const& batch) { return of_input({at::ones_like(batch.first), batch.second}); };
  finds(blind, "inputs");
  auto deaf = classifier();
  auto const of_labels = deaf.loss;
  deaf.loss = [=](pair_batch const& batch) { return of_labels({batch.first, at::zeros_like(batch.second)}); };
  finds(deaf, "labels");
  auto high = classifier();
  high.rate = 300.0;
  finds(high, "learning rate");
  auto low = classifier();
  low.rate = 1e-8;
  finds(low, "learning rate");

  auto spoiled = classifier();
  spoiled.batches[3].first[2][1] = NAN;
  finds(spoiled, "batches", "row 2");
}

TEST_CASE("preflight finds what does not repeat, resume or bear a smaller batch") {
  auto forgets = classifier();
  auto const loss = forgets.loss;
  auto const calls = std::make_shared<double>(0.0);
  forgets.loss = [=](pair_batch const& batch) { return loss(batch) * (1.0 + 0.01 * ++*calls); };
  finds(forgets, "same bits twice", "repeating an update");
  finds(forgets, "resume");

  auto fixed = classifier();
  auto const of_rows = fixed.loss;
  fixed.loss = [=](pair_batch const& batch) { return of_rows({batch.first.view({16, 6}), batch.second}); };
  auto const found = preflight_of<laddered>(fixed);
  INFO(found.table());
  REQUIRE(found.find("out of memory") != nullptr);
  CHECK(found.find("out of memory")->verdict == preflight_verdict::failed);

  auto summed = classifier();
  auto const of_mean = summed.loss;
  summed.loss = [=](pair_batch const& batch) { return of_mean(batch) * batch.first.size(0) / 16.0; };
  auto const of_sum = preflight_of<laddered>(summed);
  INFO(of_sum.table());
  CHECK(of_sum.find("out of memory")->verdict == preflight_verdict::failed);

  struct evaluated : keel::recipe<keel::evaluation::every<10_steps>> {};
  auto const tried = classifier();
  keel::adamw optimizer(tried.model->parameters(), 1e-2);
  keel::trainer<evaluated> run{*tried.model, optimizer, quiet({.updates = 50})};
  run.evaluate_on("sound", tried.batches, tried.loss);
  CHECK(run.preflight(tried.batches, tried.loss, {.updates = 30}).find("evaluation")->verdict == preflight_verdict::passed);
  run.evaluate_on("graph", tried.batches, [&](pair_batch const& batch) {
    at::AutoGradMode const with_graph(true);
    return tried.loss(batch);
  });
  auto const with_graph = run.preflight(tried.batches, tried.loss, {.updates = 30});
  CHECK(with_graph.find("evaluation")->message.find("graph keeps a graph") != std::string::npos);
}

TEST_CASE("preflight passes sound programs") {
  passes(classifier());
  passes<laddered>(classifier());
  passes(predictor([](at::Tensor const& out, at::Tensor const& y) { return at::mse_loss(out, y); }));
  passes(predictor([](at::Tensor const& out, at::Tensor const& y) { return (out - y).pow(2).mean(); }));
  passes(predictor([](at::Tensor const& out, at::Tensor const& y) {
    return at::binary_cross_entropy_with_logits(out, y.gt(0).to(at::kFloat));
  }));
  passes(language_model(causal));
  passes(recurrent(false));
  passes(masked([](at::Tensor const& mask) { return mask; }));

  auto drops = classifier();
  auto drop = drops.model->add("drop", torch::nn::Dropout(0.3));
  auto norm = drops.model->add("norm", torch::nn::BatchNorm1d(6));
  auto const loss = drops.loss;
  drops.loss = [=](pair_batch const& batch) mutable { return loss({drop(norm(batch.first)), batch.second}); };
  passes(drops);

  program<at::Tensor> encodes;
  auto in = encodes.model->add("in", torch::nn::Linear(6, 12));
  auto out = encodes.model->add("out", torch::nn::Linear(12, 6));
  encodes.loss = [=](at::Tensor const& x) mutable { return at::mse_loss(out(at::relu(in(x))), x); };
  for (std::uint64_t seed = 0; seed < 40; ++seed) encodes.batches.push_back(points(seed).first);
  passes(encodes);

  auto const with_adapters = make_transformer(3);
  keel::adamw optimizer(with_adapters->parameters(), 3e-3);
  struct recomputes : keel::recipe<keel::recompute::non_reentrant, keel::accumulate<2>, keel::clip::global_norm<1.0>> {};
  keel::trainer<recomputes> run{*with_adapters, optimizer, quiet({.updates = 100})};
  std::vector<at::Tensor> ids;
  for (std::uint64_t seed = 0; seed < 30; ++seed) ids.push_back(sentences(seed, 8, 9).remainder(11));
  auto const found = run.preflight(ids, next_token_loss(with_adapters), {.updates = 60});
  INFO(found.table());
  CHECK(found.passed());
  CHECK(found.find("look-ahead")->verdict == preflight_verdict::passed);
}

TEST_CASE("a preflight leaves the run as it was, before it, in its middle, and after an exception") {
  auto const train = [](bool looks) {
    scratch_directory directory;
    auto const model = make_small(4, 0.2);
    keel::adamw optimizer(model->parameters(), 1e-2);
    struct full
        : keel::recipe<keel::accumulate<2>, keel::clip::global_norm<1.0>, keel::nonfinite::skip<5>, keel::ema<0.9>,
                       keel::schedule::cosine<keel::schedule::warmup<5_steps>>, keel::checkpoint::every<10_steps>,
                       keel::oom::ladder<keel::oom::halve_micro_batch, keel::oom::offload_optimizer, keel::oom::give_up>,
                       keel::determinism::seeded<3>> {};
    keel::trainer<full> run{model, optimizer, quiet({.run_directory = directory.path(), .updates = 40})};
    std::vector<pair_batch> batches;
    for (std::uint64_t i = 0; i < 30; ++i) batches.push_back(make_pair_batch(i));
    auto const loss_of = mean_squared_error(model);
    std::int64_t calls = 0;
    auto const look = [&] {
      if (!looks) return;
      auto const files = [&] {
        std::vector<std::string> all;
        for (auto const& one : std::filesystem::recursive_directory_iterator(directory.path())) {
          // A thread of its own writes this one.
          if (one.path().filename() != "console.log") all.push_back(one.path().string());
        }
        std::sort(all.begin(), all.end());
        return all;
      };
      auto const before = copies_of(model->parameters());
      auto const moments = image_of(*model, optimizer);
      auto const random = keel::libtorch::random_state(at::kCPU);
      auto const there = files();
      auto const events = read_file(directory / "events.jsonl");
      auto const found = run.preflight(batches, loss_of, {.updates = 20});
      INFO(found.table());
      CHECK(found.rows.size() > 15);
      auto const throws = [&](pair_batch const& batch) {
        if (++calls % 7 == 0) throw std::runtime_error("the loss itself");
        return loss_of(batch);
      };
      CHECK(!run.preflight(batches, throws, {.updates = 20}).passed());
      CHECK(same_bits(before, copies_of(model->parameters())));
      CHECK(same_bits(moments, image_of(*model, optimizer)));
      CHECK(same_bits(random, keel::libtorch::random_state(at::kCPU)));
      CHECK(there == files());
      CHECK(events == read_file(directory / "events.jsonl"));
    };
    look();
    for (auto const& batch : batches) run.step(batch, loss_of);
    look();
    run.fit(batches, loss_of);
    look();
    return std::make_pair(copies_of(model->parameters()), timeless_metrics(directory.path()));
  };
  auto const with = train(true);
  auto const without = train(false);
  CHECK(same_bits(with.first, without.first));
  CHECK(with.second == without.second);
}

TEST_CASE("a preflight in the middle of an update, or of nothing, is an error") {
  auto const model = make_small();
  keel::adamw optimizer(model->parameters(), 1e-2);
  keel::trainer<keel::recipe<keel::accumulate<2>>> run{model, optimizer, quiet()};
  auto const loss_of = mean_squared_error(model);
  std::vector<pair_batch> const batches{make_pair_batch(1), make_pair_batch(2)};
  CHECK_THROWS_AS(run.preflight(std::vector<pair_batch>(), loss_of), keel::data_error);
  CHECK_THROWS_AS(run.preflight(batches, loss_of, {.batches = 0}), keel::error);
  run.step(batches[0], loss_of);
  CHECK_THROWS_AS(run.preflight(batches, loss_of), keel::error);
  CHECK(run.step(batches[1], loss_of).is<keel::result::updated>());
}

TEST_CASE("a preflight says in a table what it saw, and where the run is outside of what is usual") {
  auto const model = make_transformer(1);
  keel::freeze_base(*model);
  keel::adamw optimizer(model->parameters(), torch::optim::AdamWOptions(0.5).weight_decay(0.3));
  struct plain : keel::recipe<keel::schedule::cosine<keel::schedule::warmup<90_steps>>> {};
  keel::trainer<plain> run{*model, optimizer, quiet({.updates = 100})};
  auto const found = run.preflight(std::vector<at::Tensor>{some_ids(1), some_ids(2)}, next_token_loss(model), {.updates = 20});
  std::string const table = found.table();
  INFO(table);
  CHECK(table.find("advice: the warm-up is 90.0 % of the run") != std::string::npos);
  CHECK(table.find("advice: an adapter has rank 2") != std::string::npos);
  CHECK(table.find("advice: the weight decay is 0.3") != std::string::npos);
  CHECK(table.find("advice: the learning rate is 0.5") != std::string::npos);
  CHECK(table.find("not applicable") != std::string::npos);
}

TEST_CASE("what a loss function logs while it is tried out stays out of the record") {
  scratch_directory directory;
  auto const model = make_small();
  keel::adamw optimizer(model->parameters(), 1e-2);
  keel::trainer<guarded> run{model, optimizer, quiet({.run_directory = directory.path(), .updates = 3})};
  keel::metric<keel::reduce::sum> calls{"calls"};
  auto const plain = mean_squared_error(model);
  auto const loss_of = [&](pair_batch const& batch) {
    run.log(calls.reduced(keel::world_of_one{}, 1.0));
    return plain(batch);
  };
  std::vector<pair_batch> const batches{make_pair_batch(1), make_pair_batch(2), make_pair_batch(3)};
  run.preflight(batches, loss_of, {.updates = 20});
  run.lr_range_test(batches, loss_of, {.updates = 5});
  run.overfit_one_batch(batches[0], loss_of, 5);
  run.fit(batches, loss_of);
  auto const lines = read_lines(directory / "metrics.jsonl");
  REQUIRE(lines.size() == 3);
  for (auto const& line : lines) CHECK(nlohmann::json::parse(line)["own"]["calls"] == 1.0);
}

TEST_CASE("of updates that are too slow for it a preflight says so, and looks at what takes few of them") {
  auto slow = classifier();
  auto const loss = slow.loss;
  slow.loss = [loss](pair_batch const& batch) {
    at::Tensor const work = at::randn({300, 300});
    for (int i = 0; i < 30; ++i) work.matmul(work);
    return loss(batch);
  };
  auto const found = preflight_of(slow, {.seconds = 0.01});
  INFO(found.table());
  CHECK(found.find("learning rate")->verdict == preflight_verdict::not_applicable);
  CHECK(found.find("labels belong to inputs")->verdict == preflight_verdict::not_applicable);
  CHECK(found.find("gradients")->verdict == preflight_verdict::passed);
}

TEST_CASE("a check that is cut short by its time says so and fails nothing, and one that has its updates fails") {
  auto constant = classifier();
  auto const loss = constant.loss;
  constant.loss = [loss](pair_batch const& batch) { return loss(batch) * 0.0 + 1.0; };
  auto const cut = preflight_of(constant, {.updates = 1'000'000'000, .seconds = 0.01});
  INFO(cut.table());
  REQUIRE(cut.find("overfit one batch") != nullptr);
  CHECK(cut.find("overfit one batch")->verdict == preflight_verdict::not_applicable);
  CHECK(cut.find("overfit one batch")->message.find("not enough time") == 0);
  CHECK(cut.find("labels belong to inputs")->verdict == preflight_verdict::not_applicable);
  CHECK(cut.seconds < 60.0);
  auto const whole = preflight_of(constant, {.updates = 30});
  CHECK(whole.find("overfit one batch")->verdict == preflight_verdict::failed);
}

TEST_CASE("a recipe without checkpoints may have an optimizer that none holds") {
  struct own_optimizer : torch::optim::Optimizer {
    explicit own_optimizer(std::vector<at::Tensor> parameters)
        : Optimizer({torch::optim::OptimizerParamGroup(std::move(parameters))},
                    std::make_unique<torch::optim::SGDOptions>(0.1)) {}
    at::Tensor step(LossClosure) override {
      at::NoGradGuard const no_grad;
      for (at::Tensor const& one : param_groups()[0].params()) one.sub_(one.grad() * param_groups()[0].options().get_lr());
      return {};
    }
    void save(torch::serialize::OutputArchive&) const override {}
    void load(torch::serialize::InputArchive&) override {}
  };
  auto const model = make_small();
  own_optimizer optimizer(model->parameters());
  keel::trainer<guarded> run{model, optimizer, quiet({.updates = 50})};
  std::vector<pair_batch> batches;
  for (std::uint64_t i = 0; i < 30; ++i) batches.push_back(make_pair_batch(i));
  auto const found = run.preflight(batches, mean_squared_error(model), {.updates = 60});
  INFO(found.table());
  CHECK(found.passed());
}
