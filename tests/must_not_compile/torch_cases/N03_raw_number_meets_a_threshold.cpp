// expect: N03 N03 N03
#include <keel/core/finite.hpp>

bool is_spike(double loss, float norm, double deviations) {
  auto const looked_at = keel::as_finite(loss);
  if (!looked_at) return true;
#ifdef KEEL_TWIN
  auto const finite_norm = keel::as_finite(norm);
  auto const finite_deviations = keel::as_finite(deviations);
  if (!finite_norm || !finite_deviations) return true;
  return keel::exceeds(*looked_at, 10.0) || keel::exceeds(*finite_norm, 5.0F) || *finite_deviations > *looked_at;
#else
  keel::finite<double> const built = static_cast<long double>(deviations);
  return keel::exceeds(loss, 10.0) || keel::exceeds(norm, 5.0) || built > *looked_at;
#endif
}
