// Inner loops of the update engine over contiguous fp32. Uses AVX2 with FMA if the processor has it, detected at run time, so
// that no compiler flag is needed; otherwise plain loops. Both round every element identically, so results do not depend on
// vector boundaries or on the number of threads.
#pragma once

#include <cmath>
#include <cstdint>
#include <keel/optimizer/operands.hpp>

#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>
#endif

namespace keel::detail::inline KEEL_MODE {

// Plain loops. `largest`: the running maximum of amsgrad, or null.

inline void adam_plain(float* parameter, float const* gradient, float* average, float* square, float* largest,
                       std::int64_t count, adam_coefficients const& c) {
  for (std::int64_t i = 0; i < count; ++i) {
    float const g = gradient[i] * c.factor + c.coupled_decay * parameter[i];
    average[i] = average[i] * c.beta1 + c.one_minus_beta1 * g;
    square[i] = square[i] * c.beta2 + c.one_minus_beta2 * g * g;
    float second = square[i];
    if (largest != nullptr) second = largest[i] = largest[i] > second ? largest[i] : second;
    parameter[i] =
        parameter[i] * c.keep - c.step_size * (average[i] / (std::sqrt(second) * c.inverse_root_correction2 + c.eps));
  }
}

/// `buffer`: the momentum, or null. `fresh`: its initial value is the gradient.
inline void sgd_plain(float* parameter, float const* gradient, float* buffer, bool fresh, std::int64_t count,
                      sgd_coefficients const& c) {
  for (std::int64_t i = 0; i < count; ++i) {
    float g = gradient[i] * c.factor + c.weight_decay * parameter[i];
    if (buffer != nullptr) {
      buffer[i] = fresh ? g : buffer[i] * c.momentum + c.one_minus_dampening * g;
      g = c.nesterov ? g + c.momentum * buffer[i] : buffer[i];
    }
    parameter[i] -= c.lr * g;
  }
}

inline double sum_of_squares_plain(float const* values, std::int64_t count) {
  double sums[8] = {};
  std::int64_t i = 0;
  for (; i + 8 <= count; i += 8) {
    for (int lane = 0; lane < 8; ++lane)
      sums[lane] += static_cast<double>(values[i + lane]) * static_cast<double>(values[i + lane]);
  }
  for (int lane = 0; i < count; ++i, ++lane) sums[lane] += static_cast<double>(values[i]) * static_cast<double>(values[i]);
  return ((sums[0] + sums[4]) + (sums[2] + sums[6])) + ((sums[1] + sums[5]) + (sums[3] + sums[7]));
}

#if defined(__x86_64__) && defined(__GNUC__)

/// Prefetches the data that a loop over `stream` reaches half a page later. Hardware prefetchers stop at page boundaries, where
/// a single thread would then wait for memory. Harmless past the end of an array.
inline void read_ahead(void const* stream) {
  // NOLINTNEXTLINE(performance-no-int-to-ptr): past the array there is nothing to point to
  __builtin_prefetch(reinterpret_cast<void const*>(reinterpret_cast<std::uintptr_t>(stream) + 2048));
}

inline bool has_avx2() { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"); }

__attribute__((target("avx2,fma"))) inline void adam_avx2(float* parameter, float const* gradient, float* average,
                                                          float* square, float* largest, std::int64_t count,
                                                          adam_coefficients const& c) {
  __m256 const factor = _mm256_set1_ps(c.factor);
  __m256 const coupled_decay = _mm256_set1_ps(c.coupled_decay);
  __m256 const keep = _mm256_set1_ps(c.keep);
  __m256 const beta1 = _mm256_set1_ps(c.beta1);
  __m256 const one_minus_beta1 = _mm256_set1_ps(c.one_minus_beta1);
  __m256 const beta2 = _mm256_set1_ps(c.beta2);
  __m256 const one_minus_beta2 = _mm256_set1_ps(c.one_minus_beta2);
  __m256 const correction = _mm256_set1_ps(c.inverse_root_correction2);
  __m256 const eps = _mm256_set1_ps(c.eps);
  __m256 const step_size = _mm256_set1_ps(c.step_size);
  std::int64_t i = 0;
  for (; i + 8 <= count; i += 8) {
    read_ahead(parameter + i);
    read_ahead(gradient + i);
    read_ahead(average + i);
    read_ahead(square + i);
    __m256 const p = _mm256_loadu_ps(parameter + i);
    __m256 const g = _mm256_fmadd_ps(coupled_decay, p, _mm256_mul_ps(_mm256_loadu_ps(gradient + i), factor));
    __m256 const m = _mm256_fmadd_ps(one_minus_beta1, g, _mm256_mul_ps(_mm256_loadu_ps(average + i), beta1));
    __m256 const v = _mm256_fmadd_ps(_mm256_mul_ps(one_minus_beta2, g), g, _mm256_mul_ps(_mm256_loadu_ps(square + i), beta2));
    _mm256_storeu_ps(average + i, m);
    _mm256_storeu_ps(square + i, v);
    __m256 second = v;
    if (largest != nullptr) {
      read_ahead(largest + i);
      second = _mm256_max_ps(_mm256_loadu_ps(largest + i), v);
      _mm256_storeu_ps(largest + i, second);
    }
    __m256 const denominator = _mm256_fmadd_ps(_mm256_sqrt_ps(second), correction, eps);
    _mm256_storeu_ps(parameter + i, _mm256_fnmadd_ps(step_size, _mm256_div_ps(m, denominator), _mm256_mul_ps(p, keep)));
  }
  for (; i < count; ++i) {
    float const p = parameter[i];
    float const g = __builtin_fmaf(c.coupled_decay, p, gradient[i] * c.factor);
    float const m = __builtin_fmaf(c.one_minus_beta1, g, average[i] * c.beta1);
    float const v = __builtin_fmaf(c.one_minus_beta2 * g, g, square[i] * c.beta2);
    average[i] = m;
    square[i] = v;
    float second = v;
    if (largest != nullptr) second = largest[i] = largest[i] > v ? largest[i] : v;
    float const root = _mm_cvtss_f32(_mm_sqrt_ss(_mm_set_ss(second)));
    parameter[i] = __builtin_fmaf(-c.step_size, m / __builtin_fmaf(root, c.inverse_root_correction2, c.eps), p * c.keep);
  }
}

__attribute__((target("avx2,fma"))) inline void sgd_avx2(float* parameter, float const* gradient, float* buffer, bool fresh,
                                                         std::int64_t count, sgd_coefficients const& c) {
  __m256 const factor = _mm256_set1_ps(c.factor);
  __m256 const weight_decay = _mm256_set1_ps(c.weight_decay);
  __m256 const momentum = _mm256_set1_ps(c.momentum);
  __m256 const one_minus_dampening = _mm256_set1_ps(c.one_minus_dampening);
  __m256 const lr = _mm256_set1_ps(c.lr);
  std::int64_t i = 0;
  for (; i + 8 <= count; i += 8) {
    read_ahead(parameter + i);
    read_ahead(gradient + i);
    __m256 const p = _mm256_loadu_ps(parameter + i);
    __m256 g = _mm256_fmadd_ps(weight_decay, p, _mm256_mul_ps(_mm256_loadu_ps(gradient + i), factor));
    if (buffer != nullptr) {
      read_ahead(buffer + i);
      __m256 const b =
          fresh ? g : _mm256_fmadd_ps(one_minus_dampening, g, _mm256_mul_ps(_mm256_loadu_ps(buffer + i), momentum));
      _mm256_storeu_ps(buffer + i, b);
      g = c.nesterov ? _mm256_fmadd_ps(momentum, b, g) : b;
    }
    _mm256_storeu_ps(parameter + i, _mm256_fnmadd_ps(lr, g, p));
  }
  for (; i < count; ++i) {
    float const p = parameter[i];
    float g = __builtin_fmaf(c.weight_decay, p, gradient[i] * c.factor);
    if (buffer != nullptr) {
      float const b = fresh ? g : __builtin_fmaf(c.one_minus_dampening, g, buffer[i] * c.momentum);
      buffer[i] = b;
      g = c.nesterov ? __builtin_fmaf(c.momentum, b, g) : b;
    }
    parameter[i] = __builtin_fmaf(-c.lr, g, p);
  }
}

__attribute__((target("avx2,fma"))) inline double sum_of_squares_avx2(float const* values, std::int64_t count) {
  __m256d low = _mm256_setzero_pd();
  __m256d high = _mm256_setzero_pd();
  __m256d low2 = _mm256_setzero_pd();
  __m256d high2 = _mm256_setzero_pd();
  std::int64_t i = 0;
  for (; i + 16 <= count; i += 16) {
    read_ahead(values + i);
    __m256d const a = _mm256_cvtps_pd(_mm_loadu_ps(values + i));
    __m256d const b = _mm256_cvtps_pd(_mm_loadu_ps(values + i + 4));
    __m256d const c = _mm256_cvtps_pd(_mm_loadu_ps(values + i + 8));
    __m256d const d = _mm256_cvtps_pd(_mm_loadu_ps(values + i + 12));
    low = _mm256_fmadd_pd(a, a, low);
    high = _mm256_fmadd_pd(b, b, high);
    low2 = _mm256_fmadd_pd(c, c, low2);
    high2 = _mm256_fmadd_pd(d, d, high2);
  }
  double lanes[4];
  _mm256_storeu_pd(lanes, _mm256_add_pd(_mm256_add_pd(low, low2), _mm256_add_pd(high, high2)));
  double sum = (lanes[0] + lanes[2]) + (lanes[1] + lanes[3]);
  for (; i < count; ++i) sum += static_cast<double>(values[i]) * static_cast<double>(values[i]);
  return sum;
}

inline void adam(float* parameter, float const* gradient, float* average, float* square, float* largest, std::int64_t count,
                 adam_coefficients const& c) {
  (has_avx2() ? adam_avx2 : adam_plain)(parameter, gradient, average, square, largest, count, c);
}
inline void sgd(float* parameter, float const* gradient, float* buffer, bool fresh, std::int64_t count,
                sgd_coefficients const& c) {
  (has_avx2() ? sgd_avx2 : sgd_plain)(parameter, gradient, buffer, fresh, count, c);
}
/// Sums in double over fixed pieces, so that the result does not depend on the number of threads and finite fp32 values never
/// overflow.
inline double sum_of_squares_fp32(float const* values, std::int64_t count) {
  return (has_avx2() ? sum_of_squares_avx2 : sum_of_squares_plain)(values, count);
}

#else

inline void adam(float* parameter, float const* gradient, float* average, float* square, float* largest, std::int64_t count,
                 adam_coefficients const& c) {
  adam_plain(parameter, gradient, average, square, largest, count, c);
}
inline void sgd(float* parameter, float const* gradient, float* buffer, bool fresh, std::int64_t count,
                sgd_coefficients const& c) {
  sgd_plain(parameter, gradient, buffer, fresh, count, c);
}
inline double sum_of_squares_fp32(float const* values, std::int64_t count) { return sum_of_squares_plain(values, count); }

#endif

}  // namespace keel::detail::inline KEEL_MODE
