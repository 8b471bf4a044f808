// The bodies of run_sinks.hpp.
#pragma once

#include <algorithm>
#include <keel/trainer/run_sinks.hpp>

#include <keel/core/detail/body_begin.inc>

namespace keel {

KEEL_BODY std::vector<named_value> named_values(update_metrics const& m) {
  std::vector<named_value> values;
  bool const applied = m.skipped_because.empty();
  double const seconds = m.milliseconds / 1e3;
  if (applied) {
    values.push_back({"train/loss", m.loss});
    values.push_back({"train/grad_norm", m.gradient_norm});
    values.push_back({"train/learning_rate", m.learning_rate});
    values.push_back({"train/epoch", static_cast<double>(m.epoch)});
    if (seconds > 0.0) values.push_back({"train/tokens_per_sec", static_cast<double>(m.tokens) / seconds});
    values.push_back({"train/step_time_sec", seconds});
    values.push_back({"stability/clipped", m.clipped ? 1.0 : 0.0});
  }
  values.push_back({"stability/skipped", static_cast<double>(m.skipped)});
  values.push_back({"stability/loss_scale", m.loss_scale});
  if (m.memory) {
    values.push_back(
        {"memory/max_alloc", static_cast<double>(*std::max_element(m.memory->peaks.begin(), m.memory->peaks.end()))});
    values.push_back({"memory/max_reserved", static_cast<double>(m.memory->reserved)});
  }
  for (auto const& [name, value] : m.own) values.push_back({name, value});
  return values;
}

KEEL_BODY void run_sinks::scalars(std::int64_t update, std::vector<named_value> values) {
  if (threads_.empty()) return;
  // One list for all of them.
  auto const all = std::make_shared<std::vector<named_value> const>(std::move(values));
  for (sink_thread& one : threads_) one.post([update, all](metric_sink& sink) { sink.scalars(update, *all); });
}

KEEL_BODY void run_sinks::update(update_metrics const& m) {
  if (!threads_.empty()) scalars(m.update, named_values(m));
}

KEEL_BODY void run_sinks::evaluated(std::int64_t update, std::string const& evaluation, evaluation_result const& result) {
  std::string const group = evaluation.empty() ? "eval/" : "eval/" + evaluation + "/";
  std::vector<named_value> values;
  for (auto const& [name, value] : result.values) values.push_back({group + (name.empty() ? "loss" : name), value});
  scalars(update, std::move(values));
}

KEEL_BODY void run_sinks::text(std::int64_t update, std::string const& name, std::string const& words) {
  for (sink_thread& one : threads_) one.post([=](metric_sink& sink) { sink.text(update, name, words); });
}

KEEL_BODY void run_sinks::restarted_after(std::int64_t update) {
  for (sink_thread& one : threads_) one.post([update](metric_sink& sink) { sink.restarted_after(update); });
}

KEEL_BODY void run_sinks::flush() {
  for (sink_thread& one : threads_) one.post([](metric_sink& sink) { sink.flush(); });
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

}  // namespace keel

#include <keel/core/detail/body_end.inc>
