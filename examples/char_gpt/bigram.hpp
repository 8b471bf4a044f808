// The model to beat: the next character given the last one, by counting.
#pragma once

#include <ATen/ATen.h>

#include <cmath>
#include <cstdint>
#include <vector>

namespace char_gpt {

/// Mean negative log likelihood in nats a character of `validation`, from the pairs of `train` with one added to each count.
inline double bigram_loss(at::Tensor const& train, at::Tensor const& validation, std::int64_t vocabulary) {
  std::vector<double> pairs(static_cast<std::size_t>(vocabulary * vocabulary), 1.0);
  std::vector<double> firsts(static_cast<std::size_t>(vocabulary), static_cast<double>(vocabulary));
  auto const count = [&](at::Tensor const& tokens, auto&& visit) {
    auto const* const ids = tokens.data_ptr<std::int64_t>();
    for (std::int64_t i = 1; i < tokens.numel(); ++i) visit(static_cast<std::size_t>(ids[i - 1]), static_cast<std::size_t>(ids[i]));
  };
  auto const width = static_cast<std::size_t>(vocabulary);
  count(train, [&](std::size_t first, std::size_t second) {
    pairs[first * width + second] += 1.0;
    firsts[first] += 1.0;
  });
  double sum = 0.0;
  count(validation,
        [&](std::size_t first, std::size_t second) { sum -= std::log(pairs[first * width + second] / firsts[first]); });
  return sum / static_cast<double>(validation.numel() - 1);
}

}  // namespace char_gpt
