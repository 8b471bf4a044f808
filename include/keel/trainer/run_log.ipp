// Definitions for run_log.hpp.
#pragma once

#include <cmath>
#include <keel/checkpoint/archive.hpp>
#include <keel/checkpoint/checksum.hpp>
#include <keel/checkpoint/saver.hpp>
#include <keel/config/describe.hpp>
#include <keel/core/error.hpp>
#include <keel/core/version.hpp>
#include <keel/json/write_config.hpp>
#include <keel/metrics/console_log.hpp>
#include <keel/metrics/layer_metric.hpp>
#include <keel/metrics/tensorboard_sink.hpp>
#include <keel/metrics/update_metrics.hpp>
#include <keel/oom/ladder_position.hpp>
#include <keel/trainer/describe_run.hpp>
#include <keel/trainer/options.hpp>
#include <keel/trainer/run_directory.hpp>
#include <keel/trainer/run_log.hpp>
#include <keel/trainer/summary.hpp>
#include <keel/trainer/update_record.hpp>
#include <memory>
#include <nlohmann/json.hpp>
#include <string_view>
#include <type_traits>
#include <utility>

#include <keel/libtorch/detail/body_begin.inc>

namespace keel::inline KEEL_MODE {

KEEL_BODY run_log::run_log(run_directory* directory, console& console, run_record& record, trainer_options const& options)
    : directory_(directory), console_(console), record_(record), every_(options.record_every) {
  // The threads of these sinks write real files, so they are omitted when a test replaces the file system.
  bool const are_real = directory_ != nullptr && &directory_->files() == &real_files();
  if (are_real) {
    console_log_.emplace("console.log", std::make_shared<console_log>(directory_->root() / "console.log"));
    console_.log_to([this](std::string const& line) {
      console_log_->post([dated = console_log::dated(line)](metric_sink& log) { log.text(0, "", dated); });
    });
  }
  if (are_real && options.tensorboard)
    sinks_.add("tensorboard", std::make_shared<tensorboard_sink>(directory_->root() / "tensorboard"));
  for (std::size_t i = 0; i < options.sinks.size(); ++i) {
    if (options.sinks[i]) sinks_.add("options.sinks[" + std::to_string(i) + "]", options.sinks[i]);
  }
}

KEEL_BODY void run_log::emit(logged_event_id id, std::int64_t update) { emit(id, update, nlohmann::ordered_json::object()); }

KEEL_BODY void run_log::emit(logged_event_id id, std::int64_t update, nlohmann::ordered_json details, std::string text) {
  logged_event const& event = *id.event;
  std::string_view rest = text.empty() ? event.text : "";
  for (std::size_t open; (open = rest.find('{')) != std::string_view::npos;) {
    std::size_t const close = rest.find('}', open);
    std::string const name(rest.substr(open + 1, close - open - 1));
    nlohmann::ordered_json const value = name == "update" ? nlohmann::ordered_json(update) : details.at(name);
    text.append(rest.substr(0, open)).append(value.is_string() ? value.get<std::string>() : value.dump());
    rest.remove_prefix(close + 1);
  }
  text += rest;
  if (!text.empty()) console_.notice((event.on_console == logged_event::warning ? "warning: " : "") + text);
  bool const lists_message = std::string_view(event.fields).find("`message`") != std::string_view::npos;
  if (lists_message && !details.contains("message")) details["message"] = text;
  if (directory_) directory_->event(event.name, update, details);
}

KEEL_BODY void run_log::begin(config const& recipe) {
  // Values of an evaluation before the run belong to this run, so do not restart sinks that have them.
  if (!sinks_.has_posted()) sinks_.restarted_after(-1);
  if (!directory_) return;
  record_.lines = 0;
  auto const earlier = directory_->metrics().set_aside();
  if (!earlier.empty()) {
    directory_->layers().set_aside();
    emit("record_set_aside", 0, {{"path", earlier.string()}});
  }
  nlohmann::ordered_json printed;
  for_each_slot(recipe, [&](char const* name, slot_text const& text) { printed[name] = text.c_str(); });
  emit("started", 0, {{"recipe", printed}});
}

KEEL_BODY void run_log::write_recipe(config const& recipe) {
  sinks_.text(0, "recipe",
              "```json\n" + to_json(recipe).dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n```\n");
  if (!directory_) return;
  try {
    directory_->write("recipe.json", to_json(recipe).dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n");
  } catch (file_error const& thrown) {
    // The file is not essential: a run with nothing left to do must not fail on a full disk.
    directory_->warn(std::string("the recipe of this run could not be written to recipe.json: ") + thrown.what());
  }
}

KEEL_BODY void run_log::partial_update(std::int64_t update, std::int64_t micro_batches) {
  emit("partial_update", update, {{"micro_batches", micro_batches}},
       "the last, partial update has " + std::to_string(micro_batches) +
           (micro_batches == 1 ? " micro-batch" : " micro-batches") +
           " and is not applied. Call flush() before finish() to apply it; a resume repeats its micro-batches");
}

KEEL_BODY void run_log::update(event::update_end const& event, figures const& known, bool warns) {
  update_metrics m = record_metrics(event, record_, known.epoch);
  auto const* const updated = event.result.get_if<result::updated>();
  m.learning_rate = updated != nullptr ? updated->learning_rate : known.learning_rate;
  m.loss_scale = event.loss_scale;
  m.skipped = known.skipped;
  m.milliseconds = known.milliseconds;
  m.rollbacks = known.rollbacks;
  m.gpu = known.gpu;
  m.measured[metrics::padding{}] = padding_.take(known.is_late);
  m.measured[metrics::ignored_labels{}] = ignored_labels_.take(known.is_late);
  m.batch = known.is_late ? batch_before_ : batch_;
  if (known.operations_per_token > 0.0 && known.peak > 0.0 && m.milliseconds > 0.0)
    m.measured[metrics::mfu{}] =
        known.operations_per_token * static_cast<double>(m.tokens) * 1e3 / (m.milliseconds * known.peak);
  auto const own = std::exchange(own_, {});
  if (auto const line = record_.interval.add(m, own, every_)) write(*line);
  auto const slowed = slowdowns_.add(m.times, m.tokens);
  if (slowed) record_slowdown(m.update, *slowed);
  if (m.memory) memory(m.update, *m.memory);
  if (!record_.alarms.is_empty()) {
    record_.alarms.event("event/slowdown", slowed.has_value());
    record_.alarms.event("event/memory_grows", warned_);
    for (reduced_value const& value : own) m.own.emplace_back(value.name(), value.value());
    for (raised_alarm const& one : record_.alarms.update(m)) raise(one);
  }
  if (!m.skipped_because.empty()) {
    nlohmann::ordered_json details{{"why", m.skipped_because}, {"attempt", m.attempt}};
    if (auto const* const why = event.result.get_if<result::skipped>()) {
      if (!why->where.empty()) details["where"] = why->where;
      if (!why->origin.empty()) details["origin"] = why->origin;
    }
    emit("skipped", m.update, details,
         warns ? "update " + std::to_string(m.update + 1) + " was skipped: " + m.skipped_because : "");
  }
  console_.show(m);
  report_sink_failures(m.update);
}

KEEL_BODY void run_log::part_skipped(std::int64_t update, std::string const& part, result::skipped const& why) {
  nlohmann::ordered_json details{{"part", part}, {"why", to_string(why.why) + (why.where.empty() ? "" : " in " + why.where)}};
  if (!why.origin.empty()) details["origin"] = why.origin;
  emit("part_skipped", update, details);
}

KEEL_BODY void run_log::log_weaker_guarantees(std::int64_t update) {
  for (std::string const& message : directory_->take_warnings()) {
    if (warnings_.insert(message).second) emit("weaker_promise", update, {{"message", message}});
  }
}

KEEL_BODY void run_log::saved(save_report const& report) {
  auto const milliseconds = [](double seconds) { return std::round(seconds * 1e4) / 10.0; };
  if (report.dropped) {
    emit("checkpoint_dropped", report.update);
  } else if (!report.failure.empty()) {
    emit("checkpoint_failed", report.update, {{"message", report.failure}});
  } else {
    // Flush, so that sinks rarely have a gap after a run is killed and resumed from this checkpoint.
    sinks_.flush();
    emit("checkpoint", report.update,
         {{"bytes", report.saved.bytes},
          {"stall_ms", milliseconds(report.stall)},
          {"written_ms", milliseconds(report.written)}});
  }
  directory_->warn(report.saved.sync_failure);
  log_weaker_guarantees(report.update);
  if (!report.saved.removal_failure.empty())
    emit("checkpoint_not_removed", report.update, {{"message", report.saved.removal_failure}});
}

KEEL_BODY void run_log::rolled_back(event::rolled_back const& event, char const* change, std::int64_t kept) {
  emit("rolled_back", event.from, {{"to", event.to}, {"count", event.count}, {"change", change}, {"why", event.why}});
  abandon({{"rolled_back", event.count}}, event.from, event.to, kept);
}

KEEL_BODY void run_log::restarted(std::int64_t from, std::int64_t to, double rate, std::int64_t kept) {
  emit("restarted", to, {{"from", from}, {"learning_rate", rate}},
       detail::formatted("restarted at update %lld (was at %lld) with learning rate %.4g", static_cast<long long>(to),
                         static_cast<long long>(from), rate));
  abandon({{"restarted", to}}, from, to, kept);
}

KEEL_BODY void run_log::abandon(nlohmann::ordered_json mark, std::int64_t from, std::int64_t to, std::int64_t kept) {
  restart_sinks_after(to);
  mark.update({{"update", to}, {"abandoned", from - to}, {"kept_attempt", kept}, {"attempt", record_.attempts}});
  add_line(mark);
}

KEEL_BODY void run_log::other_ranks(std::string const& source, std::int64_t before, std::int64_t now) {
  emit("other_ranks", 0, nlohmann::ordered_json::object(),
       source + " was saved with " + std::to_string(before) + (before == 1 ? " rank" : " ranks") + " and is resumed with " +
           std::to_string(now) + "; the data position is kept if the global batch size is unchanged");
}

KEEL_BODY void run_log::record_rank_timing(std::int64_t update, rank_timing const& times) {
  log(metric<reduce::mean>("ranks/slowest_ms").reduced(world_of_one{}, times.slowest_ms));
  log(metric<reduce::mean>("ranks/others_ms").reduced(world_of_one{}, times.others_ms));
  if (!stragglers_.take(times)) return;
  emit("straggler", update, {{"rank", times.slowest}, {"ms", times.slowest_ms}, {"others_ms", times.others_ms}},
       detail::formatted("straggler: rank %d took %.1f ms for its last update, and the median of the others is %.1f ms; the "
                         "other ranks waited for this rank in %lld consecutive updates",
                         times.slowest, times.slowest_ms, times.others_ms,
                         static_cast<long long>(detail::straggler_watch::updates)));
}

KEEL_BODY void run_log::begins_with(std::filesystem::path const& checkpoint, std::int64_t update, std::string const& message,
                                    nlohmann::ordered_json const& state) {
  sinks_.restarted_after(-1);
  emit("resumed_from", update, {{"checkpoint", checkpoint.string()}, {"state", state}},
       "starting at update " + std::to_string(update) + " with " + checkpoint.string() + message);
}

KEEL_BODY void run_log::resumed(std::int64_t update, nlohmann::ordered_json const& state) {
  restart_sinks_after(update);
  emit("resumed", update, {{"state", state}});
}

KEEL_BODY void run_log::ended(outcome const& result, std::int64_t update, std::string const& message,
                              std::string const& why_finished) {
  write_rest();
  for (auto const& [alarm, metric] : record_.alarms.never_seen())
    console_.notice("warning: the alarm " + alarm + " watches " + metric + ", which this run never measured");
  nlohmann::ordered_json details = {{"words", message}};
  if (result.is<result::finished>()) details["why"] = why_finished;
  emit(ending_event(result), update, details);
  if (directory_) {
    directory_->metrics().flush();
    directory_->metrics().sync();
  }
  // Last, because a sink may hang, and a preempted process has little time.
  sinks_.drain();
  report_sink_failures(update);
  if (console_log_) console_log_->drain();
}

KEEL_BODY void run_log::failed(std::int64_t update, std::string const& message, nlohmann::ordered_json const& memory) {
  nlohmann::ordered_json details = {{"message", message}};
  if (!memory.is_null()) details["memory"] = memory;
  try {
    emit("failed", update, details);
    write_rest();
  } catch (file_error const&) {
    // A full disk is often the cause of the first exception, which describes the problem better.
  }
  sinks_.drain();
  if (console_log_) console_log_->drain();
}

KEEL_BODY void run_log::record_exception_exit(std::int64_t update, std::string const& message) noexcept {
  try {
    failed(update, message.empty() ? "an exception thrown by the program" : message, {});
  } catch (std::exception const&) {
    // The exception that ends the run is already in flight.
  }
}

KEEL_BODY void run_log::evaluated(std::int64_t update, std::string const& evaluation, evaluation_result const& result,
                                  std::optional<double> milliseconds) {
  nlohmann::ordered_json details;
  if (!evaluation.empty()) details["name"] = evaluation;
  std::string message = "evaluated" + (evaluation.empty() ? "" : " " + evaluation) + " at update " + std::to_string(update);
  for (auto const& [name, value] : result.values) {
    std::string const shown = name.empty() ? "loss" : name;
    details["values"][shown] = detail::number_to_json(value);
    if (shown == "loss") details["loss"] = detail::number_to_json(value);
    message += (&name == &result.values.front().first ? ": " : ", ") + shown + detail::formatted(" %.4f", value);
  }
  emit("evaluated", update, details, message);
  // Evaluations by the program get no line: one may come before the run, or at a point that a resumed run does not reach again.
  if (directory_ && milliseconds)
    add_line({{"evaluated", evaluation},
              {"update", update},
              {"attempt", record_.attempts},
              {"values", details["values"]},
              {"ms", *milliseconds}});
  sinks_.evaluated(update, evaluation, result);
  if (!milliseconds) return;
  for (raised_alarm const& one : record_.alarms.evaluated(update, evaluation, result.values)) raise(one);
}

inline std::string of_part(std::string const& part) { return part.empty() ? "" : " of part " + part; }

KEEL_BODY void run_log::rung_released(event::rung_released const& event, std::string const& part) {
  nlohmann::ordered_json details = {{"rung", event.rung}, {"pieces", event.pieces}};
  if (!part.empty()) details["part"] = part;
  emit("rung_released", event.update, details,
       "memory is sufficient again in update " + std::to_string(event.update + 1) + of_part(part) + ": released " + event.rung);
}

KEEL_BODY void run_log::memory(std::int64_t update, memory::usage const& of) {
  timeline_.add(update, of);
  auto const found = timeline_.judge();
  bool const grows = found == memory::growth::staircase || found == memory::growth::slope;
  if (!grows || warned_) return;
  warned_ = true;
  emit("memory_grows", update, {{"how", to_string(found)}});
}

KEEL_BODY void run_log::out_of_memory(event::out_of_memory const& event, std::string const& part) {
  bool const gives_up = event.rung == keel::to_string(oom::rung_kind::give_up);
  bool const cuts = event.rung == keel::to_string(oom::rung_kind::halve_micro_batch);
  if (!gives_up) ++record_.rungs;
  std::string const update = "update " + std::to_string(event.update + 1) + of_part(part);
  nlohmann::ordered_json details = {{"rung", event.rung}, {"pieces", event.pieces}, {"message", event.message}};
  if (event.where) details["memory"] = describe_shortage(*event.where);
  if (!part.empty()) details["part"] = part;
  emit("rung", event.update, details,
       (event.is_allocator_slow ? "before " + update + ", " + event.message : "out of memory in " + update) + ": " +
           (gives_up ? "the ladder has no rung left" : "took " + event.rung) +
           (cuts ? "; each micro-batch now runs in " + std::to_string(event.pieces) + " pieces" : ""));
}

KEEL_BODY void run_log::batch(bool begins_update, std::optional<double> const& padding,
                              std::optional<double> const& ignored_labels, std::uint64_t checksum) {
  if (begins_update) {
    batch_before_ = std::exchange(batch_, 0);
    padding_.begin();
    ignored_labels_.begin();
  }
  padding_.add(padding);
  ignored_labels_.add(ignored_labels);
  batch_ = checksum_with(batch_, checksum);
}

KEEL_BODY void run_log::record_batch_finding(std::int64_t update, batch_finding const& finding) {
  emit("batch_finding", update,
       {{"what", to_string(finding.what)}, {"micro_batch", finding.batch}, {"row", finding.row}, {"message", finding.words}});
}

KEEL_BODY void run_log::incident(std::int64_t update, nlohmann::ordered_json const& description, std::string const& path,
                                 std::uint64_t bytes) {
  nlohmann::ordered_json details;
  for (char const* const key : {"attempt", "part", "why", "where", "origin", "words"}) {
    if (description.contains(key)) details[key] = description[key];
  }
  if (!path.empty()) details["path"] = path;
  if (!path.empty()) details["bytes"] = bytes;
  emit("incident", update, details,
       description["why"].get<std::string>() + " at update " + std::to_string(update + 1) + ": " +
           description["words"].get<std::string>() +
           (path.empty()                   ? ""
            : description.contains("part") ? "; the state of the run before this update is in " + path
                                           : "; run.replay(\"" + path + "\", loss_of) reproduces it"));
}

KEEL_BODY void run_log::layers(layer_record const& record) {
  sinks_.layers(record);
  record_.alarms.layers(record);
  if (!directory_) return;
  nlohmann::ordered_json line = {{"update", record.update}};
  auto const add = [&](char const* group, auto const& all, auto metrics) {
    for (auto const& one : all) {
      auto& values = line[group][one.name];
      for_each_metric_of(metrics, one,
                         [&](auto metric, auto const& of) { values[metric.key] = detail::number_to_json(metric.of(of)); });
    }
  };
  add("layers", record.layers, layer_metrics{});
  add("activations", record.activations, activation_metrics{});
  directory_->layers().add(line);
}

KEEL_BODY void run_log::raise(raised_alarm const& alarm) {
  raised_.push_back(alarm);
  health::alarm const& what = *alarm.what;
  auto const listed = [](auto const& message) {
    auto all = nlohmann::ordered_json::array();
    for (char const* const one : message) {
      if (one != nullptr) all.push_back(one);
    }
    return all;
  };
  std::string shown = std::string("alarm ") + what.name + " (" + health::to_string(what.severity) + ") after update " +
                      std::to_string(alarm.update) + ": " + what.symptom;
  nlohmann::ordered_json details = {{"alarm", what.name},
                                    {"severity", health::to_string(what.severity)},
                                    {"action", health::to_string(alarm.does)},
                                    {"message", what.symptom},
                                    {"causes", listed(what.causes)},
                                    {"fixes", listed(what.fixes)}};
  for (auto const& [name, value] : alarm.values) {
    details["values"][name] = detail::number_to_json(value);
    shown += (&name == &alarm.values.front().first ? " (" : ", ") + name + detail::formatted(" %.4g", value);
  }
  if (!alarm.values.empty()) shown += ")";
  if (what.causes[0] != nullptr) shown += std::string(". Likely: ") + what.causes[0].text;
  if (what.fixes[0] != nullptr) shown += std::string(". First try: ") + what.fixes[0];
  emit("alarm", alarm.update, details, shown);
  sinks_.text(alarm.update, "alarms", shown);
  if (directory_ && alarm.does == health::action::incident) write_incident(alarm, details);
}

KEEL_BODY void run_log::write_incident(raised_alarm const& alarm, nlohmann::ordered_json details) {
  std::string const name = "incident-" + std::string(alarm.what->name) + "-" + std::to_string(alarm.update) + ".json";
  details.update({{"update", alarm.update}, {"attempt", record_.attempts}, {"keel", version}});
  auto& windows = details["windows"];
  for (health::condition const& condition : alarm.what->conditions) {
    if (condition.metric == nullptr) continue;
    auto& values = windows[condition.metric];
    values = nlohmann::ordered_json::array();
    for (double const value : record_.alarms.window(condition))
      values.push_back(nlohmann::ordered_json(detail::number_to_json(value)));
  }
  try {
    directory_->write(name.c_str(), details.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n");
  } catch (file_error const& thrown) {
    // The event `alarm` has the same fields without the values.
    console_.notice(std::string("warning: the incident could not be written: ") + thrown.what());
  }
}

KEEL_BODY void run_log::numbers_changed(std::int64_t update, config const& before, config const& now, std::string const& part) {
  std::string message;
  auto const compare = [&](char const* name, auto was, auto is) {
    if (was == is) return;
    message += (message.empty() ? "" : ", ") +
               detail::formatted("%s %g -> %g", name, static_cast<double>(was), static_cast<double>(is));
  };
  compare("accumulate", before.accumulate.count, now.accumulate.count);
  compare("clip", before.clip.limit, now.clip.limit);
  if (!message.empty()) emit("numbers_changed", update, {{"message", (part.empty() ? "" : part + ": ") + message}});
}

KEEL_BODY void run_log::record_slowdown(std::int64_t update, slowdown const& found) {
  slowdown_ = describe(found);
  emit("slowdown", update,
       {{"before_ms", found.before},
        {"now_ms", found.now},
        {"phase", found.phase ? to_string(*found.phase) : "none"},
        {"message", slowdown_}});
}

KEEL_BODY void run_log::write(update_metrics const& line) {
  sinks_.update(line);
  if (directory_) add_line(to_json(line));
}

KEEL_BODY void run_log::add_line(nlohmann::ordered_json const& line) {
  directory_->metrics().add(line);
  ++record_.lines;
  std::string const& trouble = directory_->metrics().trouble();
  if (!trouble.empty() && !has_pending_lines_)
    console_.notice("metrics.jsonl cannot be written; its lines are buffered in memory: " + trouble);
  has_pending_lines_ = !trouble.empty();
}

KEEL_BODY void run_log::write_rest() {
  if (auto const line = record_.interval.take()) write(*line);
}

KEEL_BODY void run_log::restart_sinks_after(std::int64_t update) {
  sinks_.restarted_after(record_.interval.is_open() ? record_.interval.begins_after_update() : update);
  // layers.jsonl is never truncated: readers discard the lines of later updates before this mark.
  if (directory_ && directory_->layers().size() > 0) directory_->layers().add({{"restarted_after", update}});
}

KEEL_BODY void run_log::report_sink_failures(std::int64_t update) {
  auto troubles = sinks_.take_troubles();
  if (console_log_) {
    if (std::string message = console_log_->take_trouble(); !message.empty()) troubles.push_back(std::move(message));
  }
  for (std::string const& message : troubles) emit("sink_trouble", update, {{"message", message}});
}

}  // namespace keel::inline KEEL_MODE

#include <keel/libtorch/detail/body_end.inc>
