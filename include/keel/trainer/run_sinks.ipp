// Definitions for run_sinks.hpp.
#pragma once

#include <cmath>
#include <keel/metrics/layer_metric.hpp>
#include <keel/metrics/run_metric.hpp>
#include <keel/trainer/run_sinks.hpp>

#include <keel/libtorch/detail/body_begin.inc>

namespace keel::inline KEEL_MODE {

KEEL_BODY void run_sinks::post(sink_thread::job const& one, bool may_drop) {
  has_posted_ = true;
  for (sink_thread& thread : threads_) thread.post(one, may_drop);
}

KEEL_BODY void run_sinks::scalars(std::int64_t update, std::vector<named_value> values) {
  if (threads_.empty()) return;
  // All sinks share one list.
  auto const all = std::make_shared<std::vector<named_value> const>(std::move(values));
  post([update, all](metric_sink& sink) { sink.scalars(update, *all); });
}

KEEL_BODY void run_sinks::update(update_metrics const& m) {
  if (threads_.empty()) return;
  // Names are formatted on the sink's thread, so that training does not wait for it.
  auto const line = std::make_shared<update_metrics const>(m);
  post([line](metric_sink& sink) { sink.scalars(line->update, named_values(*line)); });
}

KEEL_BODY void run_sinks::evaluated(std::int64_t update, std::string const& evaluation, evaluation_result const& result) {
  std::string const group = evaluation_group(evaluation);
  std::vector<named_value> values;
  values.reserve(result.values.size());
  for (auto const& [name, value] : result.values) {
    values.push_back({group + (name.empty() ? metrics::evaluation_loss::name : name), value});
    if (name.empty() && shows_perplexity_) values.push_back({group + metrics::evaluation_perplexity::name, std::exp(value)});
  }
  scalars(update, std::move(values));
}

KEEL_BODY void run_sinks::layers(layer_record const& record) {
  if (threads_.empty()) return;
  auto const all = std::make_shared<layer_record const>(record);
  post([all](metric_sink& sink) {
    std::vector<named_value> values;
    values.reserve(3 * all->layers.size() + 2 * all->activations.size());
    for_each_value(*all, [&](std::string const& name, double value) { values.push_back({name, value}); });
    sink.scalars(all->update, values);
    for (auto const& [name, distribution] : all->distributions) sink.distribution(all->update, name, distribution);
  });
}

KEEL_BODY void run_sinks::text(std::int64_t update, std::string const& name, std::string const& words) {
  post([=](metric_sink& sink) { sink.text(update, name, words); }, /*may_drop=*/false);
}

KEEL_BODY void run_sinks::restarted_after(std::int64_t update) {
  post([update](metric_sink& sink) { sink.restarted_after(update); }, /*may_drop=*/false);
}

KEEL_BODY void run_sinks::flush() {
  post([](metric_sink& sink) { sink.flush(); });
}

KEEL_BODY std::vector<std::string> run_sinks::take_troubles() {
  std::vector<std::string> all;
  for (sink_thread& one : threads_) {
    if (std::string words = one.take_trouble(); !words.empty()) all.push_back(std::move(words));
  }
  return all;
}

KEEL_BODY void run_sinks::drain() {
  for (sink_thread& one : threads_) one.drain();
}

}  // namespace keel::inline KEEL_MODE

#include <keel/libtorch/detail/body_end.inc>
