#include <ATen/Parallel.h>
#include <torch/nn/utils/clip_grad.h>

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

/// The p-norm, or the largest magnitude where the order is infinite.
long double reference_norm(std::vector<at::Tensor> const& tensors, double order) {
  long double sum = 0.0L;
  for (at::Tensor const& tensor : tensors) {
    at::Tensor const flat = tensor.to(at::kDouble).contiguous().view({-1});
    for (std::int64_t i = 0; i < flat.numel(); ++i) {
      long double const magnitude = std::abs(static_cast<long double>(flat.data_ptr<double>()[i]));
      sum = std::isinf(order) ? std::max(sum, magnitude) : sum + std::pow(magnitude, static_cast<long double>(order));
    }
  }
  return std::isinf(order) ? sum : std::pow(sum, 1.0L / static_cast<long double>(order));
}

constexpr double infinite = std::numeric_limits<double>::infinity();

/// Parameters with these gradients.
std::vector<at::Tensor> parameters_with(std::vector<at::Tensor> const& gradients) {
  std::vector<at::Tensor> parameters;
  for (at::Tensor const& gradient : gradients) {
    parameters.push_back(at::zeros(gradient.sizes(), gradient.options()).requires_grad_());
    parameters.back().mutable_grad() = gradient.clone();
  }
  return parameters;
}

std::vector<at::Tensor> gradients_of(std::vector<at::Tensor> const& parameters) {
  std::vector<at::Tensor> gradients;
  for (at::Tensor const& parameter : parameters) gradients.push_back(parameter.grad());
  return gradients;
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
  if (is_thread_sanitized) {
    WARN("SKIPPED: ThreadSanitizer does not see that OpenMP's threads wait for each other");
    return;
  }
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

TEST_CASE("a norm of any order equals a long double reference over random lists of tensors") {
  std::mt19937_64 engine(12);
  at::manual_seed(12);
  for (int round = 0; round < 60; ++round) {
    auto const tensors = random_tensors(engine);
    for (double const order : {1.0, 1.5, 3.0, 12.0, infinite}) {
      CAPTURE(round, order);
      REQUIRE(keel::joint_norm(tensors, order) == Approx(static_cast<double>(reference_norm(tensors, order))).epsilon(1e-12));
    }
    REQUIRE(keel::joint_norm(tensors, 2.0) == keel::measure_gradients(tensors).norm);
  }
  CHECK(keel::joint_norm(std::vector<at::Tensor>{}, 1.0) == 0.0);
  CHECK(keel::joint_norm(std::vector<at::Tensor>{at::Tensor(), at::zeros({0}), at::zeros({3})}, infinite) == 0.0);
}

TEST_CASE("a norm of any order is not finite where one element is not, wherever it stands") {
  for (double const order : {1.0, 3.0, infinite}) {
    for (float const bad : {std::nanf(""), INFINITY, -INFINITY}) {
      for (std::int64_t const position : {0, 7, 8, 18}) {
        for (bool const last : {false, true}) {
          std::vector<at::Tensor> tensors = {at::ones({19}), at::ones({19})};
          tensors[last ? 1 : 0][position] = bad;
          CAPTURE(order, bad, position, last);
          double const norm = keel::joint_norm(tensors, order);
          REQUIRE_FALSE(std::isfinite(norm));
          REQUIRE(std::isnan(norm) == std::isnan(bad));
        }
      }
    }
  }
}

TEST_CASE("a norm of any order has the same bits for any number of threads, and reads every dtype and layout") {
  at::manual_seed(3);
  std::vector<at::Tensor> const tensors = {at::randn({1000003}), at::randn({70000}), at::randn({5})};
  int const before = at::get_num_threads();
  for (double const order : {1.0, 3.0, infinite}) {
    at::set_num_threads(1);
    double const one = keel::joint_norm(tensors, order);
    at::set_num_threads(4);
    CHECK(one == keel::joint_norm(tensors, order));
    at::set_num_threads(before);

    for (auto const type : {at::kBFloat16, at::kHalf, at::kDouble}) {
      std::vector<at::Tensor> const narrow = {at::randn({1001}).to(type)};
      CHECK(keel::joint_norm(narrow, order) == Approx(static_cast<double>(reference_norm(narrow, order))).epsilon(1e-12));
    }
    // What no loop of keel's reads, as on a device, LibTorch does.
    at::Tensor const strange = at::randn({9, 10}, at::kComplexDouble);
    double const of_magnitudes = static_cast<double>(reference_norm({strange.abs(), at::ones({3})}, order));
    CHECK(keel::joint_norm(std::vector<at::Tensor>{strange, at::ones({3})}, order) == Approx(of_magnitudes).epsilon(1e-12));
    // Row 1 twice: a sparse gradient counts what its rows add up to.
    at::Tensor const places = at::tensor({1, 1, 3}, at::kLong).view({1, 3});
    at::Tensor const sparse = at::sparse_coo_tensor(places, at::tensor({2.0f, -5.0f, 1.0f}), {6});
    std::vector<at::Tensor> const dense = {sparse.to_dense()};
    CHECK(keel::joint_norm(std::vector<at::Tensor>{sparse}, order) == Approx(keel::joint_norm(dense, order)));
  }
}

TEST_CASE("magnitudes whose powers overflow a double or vanish from it have their norm all the same") {
  for (double const magnitude : {1e-300, 1e-200, 1e-40, 1e100, 1e200, 1e300}) {
    for (double const order : {1.0, 1.5, 3.0, 50.0, infinite}) {
      CAPTURE(magnitude, order);
      std::vector<at::Tensor> const tensors = {at::full({4}, magnitude, at::kDouble)};
      double const expected = magnitude * (std::isinf(order) ? 1.0 : std::pow(4.0, 1.0 / order));
      CHECK(keel::joint_norm(tensors, order) == Approx(expected).epsilon(1e-12));
    }
  }
}

TEST_CASE("clip_grad_norm_ does what LibTorch's does, for lists and single tensors of every order") {
  at::manual_seed(8);
  std::mt19937_64 engine(8);
  for (int round = 0; round < 40; ++round) {
    std::vector<at::Tensor> gradients;
    for (std::uint64_t i = 0; i < 1 + engine() % 4; ++i)
      gradients.push_back(at::randn({static_cast<std::int64_t>(1 + engine() % 50), 3}) * std::pow(10.0, engine() % 5 - 2.0));
    for (double const order : {1.0, 2.0, 3.0, infinite}) {
      double const limit = static_cast<double>(reference_norm(gradients, order)) * (engine() % 2 == 0 ? 0.3 : 3.0);
      auto const ours = parameters_with(gradients), theirs = parameters_with(gradients);
      double const norm = keel::clip_grad_norm_(ours, limit, order);
      double const expected = torch::nn::utils::clip_grad_norm_(theirs, limit, order);
      CAPTURE(round, order, limit);
      REQUIRE(norm == Approx(expected).epsilon(1e-5));
      for (std::size_t i = 0; i < gradients.size(); ++i) REQUIRE(at::allclose(ours[i].grad(), theirs[i].grad(), 1e-4, 0.0));

      at::Tensor const one = parameters_with({gradients[0]})[0], other = parameters_with({gradients[0]})[0];
      double const norm_of_one = keel::clip_grad_norm_(one, limit, order);
      REQUIRE(norm_of_one == Approx(torch::nn::utils::clip_grad_norm_(other, limit, order)).epsilon(1e-5));
      REQUIRE(at::allclose(one.grad(), other.grad(), 1e-4, 0.0));
    }
  }
  at::Tensor const without = at::zeros({3}).requires_grad_();
  CHECK(keel::clip_grad_norm_(without, 1.0) == 0.0);
  CHECK(keel::clip_grad_norm_(std::vector<at::Tensor>{}, 1.0, 1.0) == 0.0);
}

TEST_CASE("clip_grad_norm_ without an order is the one of order 2 in every bit") {
  at::manual_seed(9);
  std::vector<at::Tensor> const gradients = {at::randn({300, 7}), at::randn({11}), at::randn({40000})};
  auto const plain = parameters_with(gradients), of_two = parameters_with(gradients);
  CHECK(keel::clip_grad_norm_(plain, 1.0) == keel::clip_grad_norm_(of_two, 1.0, 2.0));
  CHECK(same_bits(gradients_of(plain), gradients_of(of_two)));
  // By hand: the measured norm, and one factor on all.
  auto by_hand = copies_of(gradients);
  double const norm = keel::measure_gradients(by_hand).norm;
  for (at::Tensor& gradient : by_hand) gradient.mul_(1.0 / norm);
  CHECK(same_bits(gradients_of(plain), by_hand));
}

TEST_CASE("clip_grad_norm_ with error_if_nonfinite names the parameter and changes nothing; without it the norm says so") {
  for (double const order : {1.0, 2.0, infinite}) {
    for (float const bad : {std::nanf(""), INFINITY}) {
      std::vector<at::Tensor> gradients = {at::ones({2}), at::ones({4}), at::ones({2, 3})};
      gradients[2][1][0] = bad;
      auto parameters = parameters_with(gradients);
      parameters[0].mutable_grad() = at::Tensor();
      auto const before = copies_of({parameters[1].grad(), parameters[2].grad()});
      try {
        keel::clip_grad_norm_(parameters, 0.1, order, /*error_if_nonfinite=*/true);
        FAIL("a gradient that is not finite went unnoticed");
      } catch (keel::nonfinite_error const& thrown) {
        CHECK(thrown.id() == "E08");
        CHECK(std::string(thrown.what()).find("the gradient of parameter 2 of 3, of shape [2, 3], is not finite") !=
              std::string::npos);
      }
      CHECK_FALSE(std::isfinite(keel::clip_grad_norm_(parameters, 0.1, order)));
      CHECK(same_bits({parameters[1].grad(), parameters[2].grad()}, before));
      CHECK_THROWS_AS(keel::clip_grad_norm_(parameters[2], 0.1, order, true), keel::nonfinite_error);
      CHECK(keel::clip_grad_norm_(parameters[1], 10.0, order, true) > 0.0);
    }
  }
  auto const huge = parameters_with({at::full({4}, 1.7e308, at::kDouble)});
  try {
    keel::clip_grad_norm_(huge, 1.0, 1.0, true);
    FAIL("a norm that overflows went unnoticed");
  } catch (keel::nonfinite_error const& thrown) {
    CHECK(std::string(thrown.what()).find("overflows, although each of them is finite") != std::string::npos);
  }
}

TEST_CASE("clip_grad_norm_ with an order below 1 or a bound below 0 is an error before anything changes") {
  auto const parameters = parameters_with({at::ones({4})});
  for (double const order : {0.0, 0.5, -1.0, -infinite, std::nan("")}) {
    try {
      keel::clip_grad_norm_(parameters, 1.0, order);
      FAIL("order " << order << " went unnoticed");
    } catch (keel::error const& thrown) {
      CHECK(thrown.id() == "E12");
    }
  }
  for (double const bound : {-1.0, std::nan("")}) CHECK_THROWS_AS(keel::clip_grad_norm_(parameters, bound), keel::error);
  CHECK(at::equal(parameters[0].grad(), at::ones({4})));
  // To measure and not clip.
  CHECK(keel::clip_grad_norm_(parameters, infinite) == 2.0);
  CHECK(at::equal(parameters[0].grad(), at::ones({4})));
}
