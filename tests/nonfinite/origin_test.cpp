// Where a value that is not finite began: planted in every place from which one comes, found by the update that ran again.
#include <torch/csrc/autograd/anomaly_mode.h>

#include <cmath>
#include <functional>
#include <limits>
#include <optional>

#include "../starving.hpp"
#include "../support.hpp"

using namespace keel_test;
using namespace keel::literals;
using keel::nonfinite_origin;
using keel::nonfinite_place;

namespace {

constexpr float infinity = std::numeric_limits<float>::infinity();

/// An operation that goes wrong for the rows that are marked: of one number a row, 1 where all is well.
struct plant {
  char const* name;
  char const* operation;  ///< that the origin names
  bool is_backward;
  float good;
  float bad;
  std::function<at::Tensor(at::Tensor const&)> compute;
};

at::Tensor softmax_of_masked(at::Tensor const& t) {
  at::Tensor const scores = at::stack({t, t * 0.5, t * 0.25}, 1);
  return at::softmax(scores.masked_fill((t < 0.0).unsqueeze(1), -infinity), 1).select(1, 0);
}

std::vector<plant> const& plants() {
  static std::vector<plant> const all{
      {"logarithm of 0", "aten::log", false, 1.0F, 0.0F, [](auto const& t) { return at::log(t); }},
      {"logarithm of -1", "aten::log", false, 1.0F, -1.0F, [](auto const& t) { return at::log(t); }},
      {"root of -1", "aten::sqrt", false, 1.0F, -1.0F, [](auto const& t) { return at::sqrt(t); }},
      {"0 over 0", "aten::div", false, 1.0F, 0.0F, [](auto const& t) { return at::div(t, t); }},
      {"1 over 0", "aten::reciprocal", false, 1.0F, 0.0F, [](auto const& t) { return at::reciprocal(t); }},
      {"overflow of exp", "aten::exp", false, 1.0F, 1000.0F, [](auto const& t) { return at::exp(t); }},
      {"exp over its sum", "aten::exp", false, 1.0F, 1000.0F,
       [](auto const& t) { return at::div(at::exp(t), at::exp(t) + 1.0); }},
      {"arc cosine of 2", "aten::acos", false, 0.5F, 2.0F, [](auto const& t) { return at::acos(t); }},
      {"power of a negative base", "aten::pow", false, 1.0F, -1.0F, [](auto const& t) { return at::pow(t, 0.5); }},
      {"overflow of a product", "aten::mul", false, 1.0F, 1e30F, [](auto const& t) { return at::mul(t, t); }},
      {"log1p of -2", "aten::log1p", false, 0.5F, -2.0F, [](auto const& t) { return at::log1p(t); }},
      {"softmax of a masked row", "aten::softmax", false, 1.0F, -1.0F, softmax_of_masked},
      {"reciprocal root of 0", "aten::rsqrt", false, 1.0F, 0.0F, [](auto const& t) { return at::rsqrt(t); }},
      {"root of 0", "SqrtBackward0", true, 1.0F, 0.0F, [](auto const& t) { return at::sqrt(t); }},
      {"norm of 0", "SqrtBackward0", true, 1.0F, 0.0F, [](auto const& t) { return at::sqrt(t * t); }},
      {"power of 0", "PowBackward0", true, 1.0F, 0.0F, [](auto const& t) { return at::pow(t, 0.5); }},
      {"arc cosine of 1", "AcosBackward0", true, 0.5F, 1.0F, [](auto const& t) { return at::acos(t); }},
      {"arc sine of 1", "AsinBackward0", true, 0.5F, 1.0F, [](auto const& t) { return at::asin(t); }},
      {"logarithm that where leaves out", "LogBackward0", true, 1.0F, 0.0F,
       [](auto const& t) { return at::where(t > 0.0, at::log(t), at::zeros_like(t)); }},
      {"angle of 0 and 0", "Atan2Backward0", true, 1.0F, 0.0F, [](auto const& t) { return at::atan2(t, t * 2.0); }},
  };
  return all;
}

/// Three blocks that are units, and a place after them; the rows whose last input is 7 are marked.
struct planted_module : torch::nn::Module {
  planted_module() {
    for (int i = 0; i < 3; ++i) blocks.push_back(register_module("block" + std::to_string(i), torch::nn::Linear(6, 6)));
    head = register_module("head", torch::nn::Linear(6, 1));
  }
  at::Tensor planted(at::Tensor const& h, at::Tensor const& marks) const {
    at::Tensor const wide = h.to(at::kFloat);
    at::Tensor const t = at::where(marks, at::full({}, what->bad), at::full({}, what->good)) + wide.mean(1) * 0.0;
    return wide + what->compute(t).unsqueeze(1) * 1e-3;
  }
  at::Tensor forward(at::Tensor const& x) {
    at::Tensor const marks = x.select(1, 5) == 7.0;
    at::Tensor h = x;
    // Reentrant units want inputs with gradients, as those of an embedding.
    if (inputs_need_gradients) h = x.detach().requires_grad_();
    for (int i = 0; i < 3; ++i) {
      h = keel::unit(
          [this, i, marks](at::Tensor const& given) {
            at::Tensor out = at::tanh(blocks[static_cast<std::size_t>(i)](given));
            return what != nullptr && at == i ? planted(out, marks) : out;
          },
          h);
    }
    if (what != nullptr && at == 3) h = planted(h, marks);
    return head(h).to(at::kFloat);
  }
  std::vector<torch::nn::Linear> blocks;
  torch::nn::Linear head{nullptr};
  plant const* what = nullptr;
  int at = 0;
  bool inputs_need_gradients = false;
};

struct seen {
  std::optional<nonfinite_origin> origin;
  std::string sentence;
};

/// A step's observer.
struct take_origin {
  seen* to = nullptr;
  template <class Event>
  void operator()(Event const& event) const {
    if constexpr (std::is_same_v<Event, keel::event::incident>) to->origin = event.traced.origin;
  }
};

using keel::oom::give_up;
using keel::oom::halve_micro_batch;
using skips = keel::nonfinite::skip<100>;
struct plain : keel::recipe<skips> {};
struct accumulated : keel::recipe<skips, keel::accumulate<3>> {};
struct low_precision : keel::recipe<skips, keel::precision::bf16, keel::recompute::non_reentrant> {};
struct reentrant : keel::recipe<skips, keel::precision::bf16, keel::recompute::reentrant, keel::accumulate<2>> {};
struct on_a_ladder : keel::recipe<skips, keel::accumulate<2>, keel::oom::ladder<halve_micro_batch, give_up>> {};
struct everything : keel::recipe<skips, keel::precision::bf16, keel::recompute::non_reentrant, keel::accumulate<2>,
                                 keel::oom::ladder<halve_micro_batch, give_up>, keel::clip::global_norm<1.0>> {};

enum class fault_kind : unsigned char { operation, input, label, loss, state };

struct planted_fault {
  fault_kind what;
  plant const* operation;
  int at;  ///< block, or 3: after all of them
  std::int64_t micro_batch;
  std::vector<std::int64_t> rows;
};

constexpr std::int64_t rows_of_batch = 8;

/// One good update, then one with the fault; the origin that the step found.
template <class Recipe>
seen run_with(planted_fault const& fault, std::uint64_t seed) {
  keel::libtorch::seed_random(at::kCPU, seed);
  auto const model = std::make_shared<planted_module>();
  constexpr auto count = keel::config_of<Recipe>.accumulate.count;
  model->inputs_need_gradients = keel::config_of<Recipe>.recompute.kind == keel::recompute_kind::reentrant;
  torch::optim::AdamW optimizer(model->parameters(), 1e-3);
  seen found;
  keel::step<Recipe, keel::step_environment, take_origin> step(*model, optimizer, 0, take_origin{&found});
  bool spoil_loss = false;
  auto const loss_of = [&](pair_batch const& batch) {
    at::Tensor const predicted = model->forward(batch.first);
    at::Tensor loss = at::mse_loss(predicted, batch.second);
    if (spoil_loss) loss = loss + at::log(at::where(batch.first.select(1, 5) == 7.0, 0.0, 1.0) + predicted.mean() * 0.0).mean();
    return loss;
  };
  for (std::int64_t i = 0; i < count; ++i) {
    auto const outcome = step(make_pair_batch(seed * 100 + static_cast<std::uint64_t>(i)), loss_of);
    if (i + 1 == count) REQUIRE(outcome.updated());
  }
  if (fault.what == fault_kind::state) {
    auto& state = *optimizer.state().at(keel::libtorch::state_key(model->blocks[1]->weight));
    static_cast<torch::optim::AdamWParamState&>(state).exp_avg().view({-1})[3] = NAN;
    for (std::int64_t i = 0; i < count; ++i) step(make_pair_batch(seed * 100 + 40 + static_cast<std::uint64_t>(i)), loss_of);
  }
  model->what = fault.what == fault_kind::operation ? fault.operation : nullptr;
  model->at = fault.at;
  spoil_loss = fault.what == fault_kind::loss;
  auto const before = copies_of(model->parameters());
  for (std::int64_t i = 0; i < count; ++i) {
    auto batch = make_pair_batch(seed * 100 + 50 + static_cast<std::uint64_t>(i));
    if (i == fault.micro_batch) {
      for (std::int64_t const row : fault.rows) {
        if (fault.what == fault_kind::input) batch.first[row][2] = row % 2 == 0 ? NAN : infinity;
        if (fault.what == fault_kind::label) batch.second[row][0] = NAN;
        if (fault.what == fault_kind::operation || fault.what == fault_kind::loss) batch.first[row][5] = 7.0;
      }
    }
    auto const outcome = step(batch, loss_of);
    if (i + 1 < count) continue;
    auto const* const skipped = outcome.skipped();
    REQUIRE(skipped);
    found.sentence = skipped->origin;
  }
  CHECK(same_bits(before, copies_of(model->parameters())));
  for (at::Tensor const& one : model->parameters()) CHECK(!one.grad().defined());
  return found;
}

/// What LibTorch's anomaly mode says of the same passes.
std::string anomaly_of(planted_fault const& fault, std::uint64_t seed) {
  keel::libtorch::seed_random(at::kCPU, seed);
  auto const model = std::make_shared<planted_module>();
  model->what = fault.operation;
  model->at = fault.at;
  auto batch = make_pair_batch(seed * 100 + 50);
  for (std::int64_t const row : fault.rows) batch.first[row][5] = 7.0;
  torch::autograd::AnomalyMode::set_enabled(true, true);
  std::string words;
  try {
    at::mse_loss(model->forward(batch.first), batch.second).backward();
  } catch (std::exception const& thrown) {
    words = thrown.what();
  }
  torch::autograd::AnomalyMode::set_enabled(false, true);
  return words;
}

template <class Recipe>
void check_fault(planted_fault fault, std::uint64_t seed) {
  constexpr auto count = keel::config_of<Recipe>.accumulate.count;
  fault.micro_batch %= count;
  INFO("seed " << seed << ", " << (fault.operation == nullptr ? "no operation" : fault.operation->name) << " at " << fault.at);
  seen const found = run_with<Recipe>(fault, seed);
  INFO(found.sentence);
  REQUIRE(found.origin);
  nonfinite_origin const& origin = *found.origin;
  if (fault.what == fault_kind::state) {
    CHECK(origin.place == nonfinite_place::optimizer_state);
    CHECK(origin.parameter == "block1.weight.exp_avg");
    return;
  }
  CHECK(origin.micro_batch == fault.micro_batch);
  CHECK(origin.rows == fault.rows);
  switch (fault.what) {
    case fault_kind::operation: {
      CHECK(origin.operation == fault.operation->operation);
      CHECK(origin.place == (fault.operation->is_backward ? nonfinite_place::backward : nonfinite_place::forward));
      CHECK(origin.unit == (fault.at < 3 ? "unit." + std::to_string(fault.at) : ""));
      if (!fault.operation->is_backward) break;
      std::string const anomaly = anomaly_of(fault, seed);
      INFO(anomaly);
      // Anomaly mode looks for NaN alone: of an infinity it names what came after.
      CHECK(!anomaly.empty());
      CHECK((origin.value != "nan" || anomaly.find(fault.operation->operation) != std::string::npos));
      break;
    }
    case fault_kind::input:
      CHECK(origin.place == nonfinite_place::batch);
      CHECK(origin.given == "an input of the batch");
      break;
    case fault_kind::label:
      CHECK(origin.place == nonfinite_place::batch);
      CHECK(origin.given == "a label of the batch");
      CHECK(origin.unit.empty());
      break;
    case fault_kind::loss:
      CHECK(origin.place == nonfinite_place::forward);
      CHECK(origin.operation == "aten::log");
      CHECK(origin.unit.empty());
      break;
    case fault_kind::state:
      break;
  }
}

}  // namespace

TEST_CASE("the operation, the unit and the rows of 240 planted values that are not finite are named") {
  std::mt19937_64 engine(20261124);
  auto const up_to = [&](std::uint64_t most) { return engine() % most; };
  for (std::uint64_t seed = 0; seed < 240; ++seed) {
    planted_fault fault{fault_kind::operation, nullptr, static_cast<int>(up_to(4)), static_cast<std::int64_t>(up_to(3)), {}};
    for (std::int64_t row = 0; row < rows_of_batch; ++row) {
      if (up_to(5) == 0) fault.rows.push_back(row);
    }
    if (fault.rows.empty()) fault.rows.push_back(static_cast<std::int64_t>(up_to(rows_of_batch)));
    if (fault.rows.size() > 6) fault.rows.resize(6);
    std::uint64_t const kind = up_to(plants().size() + 8);
    if (kind < plants().size()) {
      fault.operation = &plants()[kind];
    } else {
      constexpr fault_kind others[] = {fault_kind::input, fault_kind::label, fault_kind::loss, fault_kind::state};
      fault.what = others[(kind - plants().size()) % 4];
    }
    switch (seed % 6) {
      case 0: check_fault<plain>(fault, seed); break;
      case 1: check_fault<accumulated>(fault, seed); break;
      case 2: check_fault<low_precision>(fault, seed); break;
      case 3: check_fault<reentrant>(fault, seed); break;
      case 4: check_fault<on_a_ladder>(fault, seed); break;
      default: check_fault<everything>(fault, seed); break;
    }
  }
}
