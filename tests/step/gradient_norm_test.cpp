#include <ATen/Parallel.h>

#include <cmath>
#include <limits>

#include "../support.hpp"

using namespace keel_test;

namespace {

double reference_norm(std::vector<at::Tensor> const& tensors) {
  long double sum = 0.0L;
  for (at::Tensor const& tensor : tensors) {
    at::Tensor const flat = tensor.to(at::kDouble).contiguous().view({-1});
    for (std::int64_t i = 0; i < flat.numel(); ++i) {
      long double const value = flat.data_ptr<double>()[i];
      sum += value * value;
    }
  }
  return static_cast<double>(std::sqrt(sum));
}

/// Empty, zero-dimensional, strided and ordinary tensors of magnitudes from 1e-30 to 1e+30.
std::vector<at::Tensor> random_tensors(std::mt19937_64& engine) {
  std::vector<at::Tensor> tensors;
  auto const count = static_cast<int>(engine() % 6);
  for (int i = 0; i <= count; ++i) {
    double const magnitude = std::pow(10.0, static_cast<double>(engine() % 61) - 30.0);
    at::Tensor one;
    switch (engine() % 6) {
      case 0:
        one = at::empty({0, 3});
        break;
      case 1:
        one = at::randn({});
        break;
      case 2:
        one = at::randn({static_cast<std::int64_t>(engine() % 40) + 1, 7}).t();
        break;
      case 3:
        one = at::randn({9, 10}).slice(1, 0, 10, 2);
        break;
      case 4:
        one = at::randn({static_cast<std::int64_t>(engine() % (engine() % 20 == 0 ? 90000 : 900)) + 1});
        break;
      default:
        one = at::randn({5, 5}).to(at::kDouble);
        break;
    }
    tensors.push_back(one * magnitude);
  }
  return tensors;
}

}  // namespace

TEST_CASE("the norm equals a float64 reference over 10,000 random lists of tensors, whole and by parameter") {
  std::mt19937_64 engine(11);
  at::manual_seed(11);
  for (int round = 0; round < 10000; ++round) {
    auto const tensors = random_tensors(engine);
    auto const measure = keel::measure_gradients(tensors);
    REQUIRE(measure.norm == Approx(reference_norm(tensors)).epsilon(1e-12));
    REQUIRE(measure.first_nonfinite == -1);
    REQUIRE(measure.squares.size() == tensors.size());
    auto const one = engine() % tensors.size();
    REQUIRE(std::sqrt(measure.squares[one]) == Approx(reference_norm({tensors[one]})).epsilon(1e-12));
    // One bad element anywhere, and the list says where.
    if (tensors[one].numel() == 0) continue;
    double const bad =
        engine() % 3 == 0 ? std::numeric_limits<double>::quiet_NaN() : (engine() % 2 == 0 ? INFINITY : -INFINITY);
    tensors[one].copy_(
        tensors[one]
            .clone()
            .flatten()
            .index_fill(0, at::full({1}, static_cast<std::int64_t>(engine() % tensors[one].numel()), at::kLong), bad)
            .view(tensors[one].sizes()));
    auto const broken = keel::measure_gradients(tensors);
    REQUIRE(broken.first_nonfinite == static_cast<std::int64_t>(one));
    REQUIRE_FALSE(std::isfinite(broken.norm));
  }
}

TEST_CASE("the norm has the same bits for any number of threads") {
  at::manual_seed(3);
  std::vector<at::Tensor> const tensors = {at::randn({1000003}), at::randn({70000}), at::randn({5})};
  int const before = at::get_num_threads();
  at::set_num_threads(1);
  double const one = keel::measure_gradients(tensors).norm;
  at::set_num_threads(4);
  double const four = keel::measure_gradients(tensors).norm;
  at::set_num_threads(before);
  CHECK(one == four);
}

TEST_CASE("NaN and infinity are found at every position, and the first tensor is named") {
  for (float const bad : {std::nanf(""), INFINITY, -INFINITY}) {
    for (std::int64_t tensor = 0; tensor < 3; ++tensor) {
      for (std::int64_t position = 0; position < 17; ++position) {
        std::vector<at::Tensor> tensors = {at::ones({17}), at::ones({17}), at::ones({17})};
        tensors[static_cast<std::size_t>(tensor)][position] = bad;
        auto const measure = keel::measure_gradients(tensors);
        REQUIRE(measure.first_nonfinite == tensor);
        REQUIRE_FALSE(std::isfinite(measure.norm));
      }
    }
  }
}

TEST_CASE("finite_gradient_of_1e19_is_no_false_alarm") {
  for (int exponent = -30; exponent <= 38; ++exponent) {
    std::vector<at::Tensor> const tensors = {at::full({4}, static_cast<float>(std::pow(10.0, exponent)))};
    auto const measure = keel::measure_gradients(tensors);
    INFO("1e" << exponent);
    CHECK(measure.first_nonfinite == -1);
    CHECK(measure.norm == Approx(reference_norm(tensors)));
  }
}

TEST_CASE("doubles whose squares overflow are large and not non-finite") {
  std::vector<at::Tensor> const tensors = {at::full({4}, 1e200, at::kDouble)};
  CHECK(keel::measure_gradients(tensors).first_nonfinite == -1);
}

TEST_CASE("half precision gradients are measured in double") {
  at::manual_seed(5);
  for (auto const type : {at::kBFloat16, at::kHalf}) {
    std::vector<at::Tensor> const tensors = {at::randn({1001}).to(type)};
    CHECK(keel::measure_gradients(tensors).norm == Approx(reference_norm(tensors)).epsilon(1e-12));
  }
}

TEST_CASE("norm_of_gradients_from_1e_minus_30_to_1e_30: clipping equals the float64 reference, only true non-finite triggers") {
  at::manual_seed(6);
  at::Tensor const base = at::randn({1000});
  for (int power = -30; power <= 30; ++power) {
    at::Tensor const parameter = at::zeros({1000}).requires_grad_();
    parameter.mutable_grad() = base * std::pow(10.0, power);
    at::Tensor const wide = parameter.grad().to(at::kDouble);
    double const norm = std::sqrt(wide.square().sum().item<double>());
    std::vector<at::Tensor> const parameters = {parameter};
    REQUIRE(keel::clip_grad_norm_(parameters, 1.0) == Approx(norm).epsilon(1e-12));
    at::Tensor const expected = norm > 1.0 ? wide / norm : wide;
    REQUIRE(at::allclose(parameter.grad().to(at::kDouble), expected, 1e-6, 0.0));
  }
}
