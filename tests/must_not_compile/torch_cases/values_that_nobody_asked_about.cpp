// expect: N19 N26 E29 E30 M03 Y02
#include <keel/checkpoint/best_so_far.hpp>
#include <keel/metrics/metric.hpp>
#include <keel/core/window_statistics.hpp>
#include <keel/ema/moving_average.hpp>

bool after_a_step(keel::step_outcome const& result, std::vector<at::Tensor> const& parameters, double loss) {
  keel::world_of_one const world;
  keel::window_statistics window;
  keel::best_so_far best;
  keel::moving_average average(parameters, 0.999);
  auto const finite_loss = keel::as_finite(loss);
  if (!finite_loss) return false;

#ifdef KEEL_TWIN
  window.push(keel::accepted(result, loss));
  keel::agreed<bool> const stop = keel::agree(world, window.zscore(*finite_loss) > 6.0);
  bool is_best = best.offer(keel::agree(world, *finite_loss), 1);
  is_best = best.offer(keel::agree(world, *finite_loss), 2) || is_best;
  average.update(result);
  keel::metric<keel::reduce::mean> const accuracy("accuracy");
#else
  window.push(loss);
  keel::agreed<bool> const stop = window.zscore(*finite_loss) > 6.0;
  bool is_best = best.offer(*finite_loss, 1);
  is_best = best.offer(loss, 2) || is_best;
  average.update();
  keel::metric<> const accuracy("accuracy");
#endif
  return is_best && stop && result.is<keel::result::updated>() && accuracy.reduced(world, 0.93).value() > 0.5;
}
