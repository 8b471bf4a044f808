// Definitions for report.hpp.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <ctime>
#include <keel/diagnose/curve_values.hpp>
#include <keel/diagnose/event_timeline.hpp>
#include <keel/diagnose/heat_strip.hpp>
#include <keel/diagnose/page_text.hpp>
#include <keel/diagnose/plot.hpp>
#include <keel/diagnose/report.hpp>
#include <keel/json/load_config.hpp>
#include <keel/metrics/measured_metric.hpp>
#include <keel/recipe/check.hpp>
#include <limits>
#include <map>
#include <set>
#include <string_view>
#include <utility>

#include <keel/libtorch/detail/body_begin.inc>

namespace keel::detail::inline KEEL_MODE {

inline constexpr std::string_view style_of_reports = R"css(
:root{--ground:#fff;--ink:#1c2330;--faint:#667085;--line:#d9dee7;--card:#f7f8fa;--grey:#b6bdc9;--bad:#c62828;--good:#1f7a3d;
--warn:#9a6200;--s0:#1f5fbf;--s1:#c2570c;--s2:#15803d;--s3:#8e24aa;--s4:#b91c4b;--s5:#0e7490;--s6:#6b5b00;--s7:#4b5563}
@media (prefers-color-scheme:dark){:root{--ground:#12161d;--ink:#e6e9ef;--faint:#9aa4b5;--line:#2c3442;--card:#1a202a;--grey:#4d5666;
--bad:#ff7b72;--good:#5dd28b;--warn:#e5b454;--s0:#74a9ff;--s1:#ffa657;--s2:#5dd28b;--s3:#d39bff;--s4:#ff8fab;--s5:#5fd3e8;--s6:#d8c45c;
--s7:#aab4c4}}
*{box-sizing:border-box}
body{margin:0 auto;padding:1rem;max-width:90rem;background:var(--ground);color:var(--ink);font:16px/1.45 system-ui,sans-serif}
h1{font-size:1.35rem;margin:.2rem 0 .6rem;overflow-wrap:anywhere}
h2{font-size:1.05rem;margin:1.6rem 0 .5rem}
.verdict{border-left:.3rem solid var(--good);background:var(--card);padding:.5rem .8rem;margin:.4rem 0;overflow-wrap:anywhere}
.verdict.bad{border-color:var(--bad)}.verdict.open{border-color:var(--warn)}
.plots{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,22rem),1fr));gap:.8rem}
figure{margin:0;background:var(--card);border:1px solid var(--line);border-radius:.4rem;padding:.5rem;break-inside:avoid}
figcaption{font-size:.9rem;font-weight:600}
svg{width:100%;height:auto;display:block}
svg text{fill:var(--faint);font:11px system-ui,sans-serif}
.grid{stroke:var(--line)}.curve{fill:none;stroke-width:1.4;stroke-linejoin:round;stroke-linecap:round}
.curve.raw{opacity:.3}
.abandoned{stroke:var(--grey);stroke-dasharray:3 2}.bad{fill:var(--bad)}
.mark{stroke-width:1.2;stroke:var(--faint);stroke-dasharray:1 3}.mark.back{stroke:var(--bad);stroke-dasharray:none}
.mark.warn{stroke:var(--warn);stroke-dasharray:none}
.heat{fill:var(--s0)}.gone{fill:var(--warn)}
.happened{fill:var(--s7)}.happened.back{fill:var(--bad)}.happened.warn{fill:var(--warn)}
svg.trace{min-width:60rem}svg.timeline{max-width:50rem}svg text.inside{fill:var(--ground);pointer-events:none}.range{stroke:var(--card);stroke-width:.3}
)css"
                                                     R"css(.legend{margin:.2rem 0 0;font-size:.85rem}
.scroll{overflow-x:auto}
table{border-collapse:collapse;font-size:.9rem;width:100%}
th{white-space:nowrap}th,td{text-align:left;padding:.25rem .6rem .25rem 0;border-bottom:1px solid var(--line);vertical-align:top;overflow-wrap:anywhere}
th.number,td.number{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}
details{margin:.4rem 0}summary{cursor:pointer;font-weight:600}
pre{overflow-x:auto;background:var(--card);border:1px solid var(--line);padding:.6rem;font-size:.8rem;max-height:30rem}
footer{color:var(--faint);font-size:.85rem;margin-top:2rem}
@media print{body{max-width:none;padding:0;font-size:11pt}.plots{grid-template-columns:1fr 1fr}pre{max-height:none;white-space:pre-wrap}}
)css";

inline constexpr std::size_t report_colours = 8;

KEEL_BODY std::string style_of_run(std::size_t run) { return "s" + std::to_string(run % report_colours); }

KEEL_BODY std::int64_t count_of(run_history const& run, std::string_view name) {
  return std::count_if(run.events.begin(), run.events.end(), [&](run_event const& event) { return event.name == name; });
}

KEEL_BODY std::string counted(std::int64_t count, std::string_view one, std::string_view many) {
  return std::to_string(count) + " " + std::string(count == 1 ? one : many);
}

/// Returns the details of an event as text.
KEEL_BODY std::string event_message(run_event const& event) {
  for (char const* const key : {"why", "message", "words"}) {
    auto const found = event.details.find(key);
    if (found != event.details.end() && found->is_string()) return found->get<std::string>();
  }
  std::string words;
  for (auto const& [key, value] : event.details.items()) {
    if (key == "recipe") continue;
    words += (words.empty() ? "" : ", ") + key + " " + (value.is_string() ? value.get<std::string>() : value.dump());
  }
  return words;
}

KEEL_BODY std::string utc(double seconds) {
  // Empty for a date outside of the calendar's range.
  if (!(seconds > 0 && seconds < 2.5e11)) return {};
  auto const whole = static_cast<std::time_t>(seconds);
  std::tm parts{};
  std::array<char, 32> text{};
  if (::gmtime_r(&whole, &parts) == nullptr) return {};
  std::strftime(text.data(), text.size(), "%Y-%m-%d %H:%M:%S", &parts);
  return text.data();
}

KEEL_BODY std::string style_of_event(std::string_view name) {
  if (name == "rolled_back" || name == "restarted" || name == "failed" || name == "gave_up") return "back";
  constexpr std::array warns{"skipped",      "rung",  "checkpoint_failed", "checkpoint_dropped", "memory_grows", "damaged",
                             "sink_trouble", "alarm", "slowdown",          "batch_finding"};
  return std::find(warns.begin(), warns.end(), name) != warns.end() ? "warn" : "plain";
}

/// Returns the events; of each kind only the newest `most_of_a_kind`.
KEEL_BODY std::vector<run_event const*> chosen_events(run_history const& run, std::size_t most_of_a_kind) {
  std::map<std::string, std::size_t> left;
  for (auto const& event : run.events) ++left[event.name];
  std::vector<run_event const*> chosen;
  for (auto const& event : run.events) {
    if (left[event.name]-- <= most_of_a_kind) chosen.push_back(&event);
  }
  return chosen;
}

/// Returns the events to mark in the plots.
KEEL_BODY std::vector<plot_mark> marks_of(run_history const& run) {
  std::vector<plot_mark> marks;
  constexpr std::size_t most_of_a_kind = 50;
  for (run_event const* const one : chosen_events(run, most_of_a_kind)) {
    run_event const& event = *one;
    std::string const style = style_of_event(event.name);
    if (style == "plain") continue;
    auto const to = event.details.find("to");
    bool const goes_back = event.name == "rolled_back" && to != event.details.end();
    std::int64_t const update = goes_back ? integer_in(event.details, "to") : event.update;
    marks.push_back({update, event.name + " at update " + std::to_string(event.update) + ": " + event_message(event), style});
  }
  return marks;
}

/// Returns the trend of a noisy curve: a bias-corrected exponential mean of its finite values (as in Adam) whose half-life is a hundredth
/// of their number. Empty if there are too few values.
KEEL_BODY run_curve smoothed(run_curve const& curve) {
  run_curve smooth;
  constexpr std::size_t enough = 100;
  if (curve.kept.size() < enough) return smooth;
  double const keep = std::pow(0.5, 100.0 / static_cast<double>(std::max<std::size_t>(curve.kept.size(), 400)));
  double mean = 0.0;
  double weight = 0.0;
  for (curve_point const& point : curve.kept) {
    if (!std::isfinite(point.value)) continue;
    mean = keep * mean + (1.0 - keep) * point.value;
    weight = keep * weight + (1.0 - keep);
    smooth.kept.push_back({point.update, mean / weight, point.attempt});
  }
  return smooth;
}

/// Plots one key of all runs, with the raw values pale behind the trend.
KEEL_BODY std::string plot_trends(std::vector<run_history> const& runs, std::string const& key, std::string const& title,
                                  std::string_view unit) {
  std::vector<plotted_curve> curves;
  std::vector<run_curve> trends(runs.size());
  bool has_trend = false;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    auto const found = runs[i].curves.find(key);
    if (found == runs[i].curves.end()) continue;
    trends[i] = smoothed(found->second);
    has_trend |= !trends[i].kept.empty();
    curves.push_back({runs[i].name, trends[i].kept.empty() ? style_of_run(i) : "raw " + style_of_run(i), &found->second});
  }
  for (std::size_t i = 0; i < runs.size(); ++i) {
    if (!trends[i].kept.empty()) curves.push_back({"", style_of_run(i), &trends[i]});
  }
  return plot(title + (has_trend ? " and its trend" : ""), unit, curves,
              runs.size() == 1 ? marks_of(runs.front()) : std::vector<plot_mark>());
}

/// Plots one key of all runs.
KEEL_BODY std::string plot_key(std::vector<run_history> const& runs, std::string const& key, std::string_view title,
                               std::string_view unit) {
  std::vector<plotted_curve> curves;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    auto const found = runs[i].curves.find(key);
    if (found != runs[i].curves.end()) curves.push_back({runs[i].name, style_of_run(i), &found->second});
  }
  return plot(title, unit, curves);
}

KEEL_BODY bool varies(std::vector<run_history> const& runs, std::string const& key) {
  std::set<double> values;
  for (auto const& run : runs) {
    auto const found = run.curves.find(key);
    if (found == run.curves.end()) continue;
    for (auto const& point : found->second.kept) {
      values.insert(point.value);
      if (values.size() > 1) return true;
    }
  }
  return false;
}

/// Plots the milliseconds of an update by phase.
KEEL_BODY std::string time_plot(run_history const& run) {
  std::vector<plotted_curve> curves;
  std::size_t style = 0;
  for (char const* const phase : {"data", "forward", "backward", "update", "saving", "evaluating"}) {
    auto const found = run.curves.find(std::string("time.") + phase);
    bool const is_used = found != run.curves.end() && std::any_of(found->second.kept.begin(), found->second.kept.end(),
                                                                  [](auto const& p) { return p.value > 0.0; });
    if (is_used) curves.push_back({phase, style_of_run(style), &found->second});
    ++style;
  }
  return plot("time by phase of " + run.name, "ms per update", curves);
}

/// Draws the strips of one statistic with a common scale, so that runs can be compared.
KEEL_BODY std::string heat_strips(std::vector<run_history> const& runs) {
  std::string page;
  constexpr std::array<std::pair<char const*, char const*>, 4> figures{
      {{"grad_norm", "gradient norm of each layer"},
       {"update_ratio", "size of an update relative to the weights"},
       {"param_norm", "norm of each layer's weights"},
       {"std", "standard deviation of each unit's activations"}}};
  for (auto const& [figure, title] : figures) {
    std::string const group = std::string(figure) + "/";
    std::vector<std::vector<heat_row>> rows(runs.size());
    std::vector<heat_row> all;
    for (std::size_t i = 0; i < runs.size(); ++i) {
      for (auto const& [name, curve] : runs[i].layers) {
        if (name.starts_with(group)) rows[i].push_back({name.substr(group.size()), &curve});
      }
      std::stable_sort(rows[i].begin(), rows[i].end(),
                       [](heat_row const& a, heat_row const& b) { return natural_less(a.label, b.label); });
      all.insert(all.end(), rows[i].begin(), rows[i].end());
    }
    heat_scale const scale = heat_scale_of(all);
    for (std::size_t i = 0; i < runs.size(); ++i)
      page += heat_strip(std::string(title) + (runs.size() > 1 ? ", " + runs[i].name : ""), rows[i], scale);
  }
  return page;
}

/// Shows the summary of each profile.
KEEL_BODY std::string profiles_of(run_history const& run) {
  std::string page;
  for (run_profile const& one : run.profiles) {
    page += "<details class=\"profile\"" + std::string(&one == &run.profiles.back() ? " open" : "") + "><summary>" +
            escaped(one.name) + "</summary>" +
            (one.figure.empty() ? "<p>trace.json cannot be read, or is too large for a page.</p>" : one.figure) + "<pre>" +
            escaped(one.summary) + "</pre></details>";
  }
  if (!page.empty())
    page += "<p class=\"legend\">The traces open in Perfetto and chrome://tracing: profiles/" +
            escaped(run.profiles.back().name) + "/trace.json in the run directory.</p>";
  return page;
}

/// Shows each alarm with its values, likely causes and fixes.
KEEL_BODY std::string alarms_of(run_history const& run) {
  std::string page;
  auto const list = [](run_event const& event, char const* key, char const* title) {
    auto const found = event.details.find(key);
    if (found == event.details.end() || !found->is_array() || found->empty()) return std::string();
    std::string items;
    for (auto const& one : *found) {
      if (one.is_string()) items += "<li>" + escaped(one.get<std::string>()) + "</li>";
    }
    return std::string(title) + "<ol>" + items + "</ol>";
  };
  constexpr std::size_t most_of_a_kind = 100;
  std::set<std::string> shown;
  for (run_event const* const event : chosen_events(run, most_of_a_kind)) {
    if (event->name != "alarm") continue;
    auto const text = [&](char const* key) {
      auto const found = event->details.find(key);
      return found != event->details.end() && found->is_string() ? found->get<std::string>() : std::string();
    };
    std::string values;
    auto const measured = event->details.find("values");
    if (measured != event->details.end() && measured->is_object()) {
      for (auto const& [name, value] : measured->items()) {
        auto const read = number_in(value);
        if (read) values += (values.empty() ? " (" : ", ") + name + " " + short_number(*read);
      }
      if (!values.empty()) values += ")";
    }
    // A repeated alarm does not repeat its causes.
    bool const is_first = shown.insert(text("alarm")).second;
    page += std::string("<details class=\"alarm\"") + (is_first ? " open" : "") + "><summary>update " +
            std::to_string(event->update) + ": " + escaped(text("alarm")) + ", " + escaped(text("severity")) + "</summary><p>" +
            escaped(text("message") + values) + ".</p>" +
            (is_first ? list(*event, "causes", "<p>Likely causes:</p>") + list(*event, "fixes", "<p>Try, in this order:</p>")
                      : std::string()) +
            "</details>";
  }
  return page;
}

/// Shows the result of checking the recipe with the rules of this version of keel.
KEEL_BODY std::string rules_of(run_history const& run) {
  std::string words;
  try {
    config const recipe = parse_config(run.recipe.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
    verdict const judged = check(recipe);
    for (violation const& one : judged) words += "<li>" + escaped(describe(one).c_str()) + "</li>";
    words = words.empty() ? "<p>The recipe violates no rule of this version of keel.</p>"
                          : "<p>Rules that the recipe violates:</p><ul>" + words + "</ul>";
    if (recipe.accepted_count > 0)
      words += "<p>It accepts " + counted(recipe.accepted_count, "rule", "rules") + " by name.</p>";
  } catch (config_error const& thrown) {
    words = std::string("<p>This version of keel cannot read the recipe: ") + escaped(thrown.what()) + "</p>";
  }
  return words;
}

/// Returns the best value of the evaluation that the recipe monitors, else of the first evaluation's loss; empty without evaluations.
KEEL_BODY std::string best_evaluation_of(run_history const& run) {
  evaluation::settings judged;
  try {
    judged = parse_config(run.recipe.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace)).evaluation;
  } catch (config_error const&) {
    // The recipe is of another version: use the loss.
  }
  std::string wanted = judged.monitor.letters;
  std::replace(wanted.begin(), wanted.end(), '/', ' ');
  // As in the run: if several evaluations have the value, the first one to be evaluated counts.
  std::map<std::string, run_curve> const all = evaluations_of(run);
  std::string judged_name = all.count(wanted) > 0 ? wanted : "";
  for (run_event const& event : run.events) {
    if (!judged_name.empty() || event.name != "evaluated") continue;
    std::string const of = text_of(event, "name");
    std::string const name = (of.empty() ? "" : of + " ") + (wanted.empty() ? "loss" : wanted);
    if (all.count(name) > 0) judged_name = name;
  }
  auto const found = all.find(judged_name);
  if (found == all.end()) return "";
  curve_point const* best = nullptr;
  for (curve_point const& point : found->second.kept) {
    bool const is_better = best == nullptr || (judged.larger ? point.value > best->value : point.value < best->value);
    if (std::isfinite(point.value) && is_better) best = &point;
  }
  if (best == nullptr) return "";
  return judged_name + " " + short_number(best->value) + " at update " + std::to_string(best->update);
}

KEEL_BODY std::string memory_plot(run_history const& run) {
  std::vector<run_curve> in_mebibytes;
  std::vector<std::string> const keys{"forward", "backward", "update", "held", "reserved"};
  in_mebibytes.reserve(keys.size());
  std::vector<plotted_curve> curves;
  for (std::size_t i = 0; i < keys.size(); ++i) {
    auto const found = run.curves.find("memory." + keys[i]);
    if (found == run.curves.end()) continue;
    in_mebibytes.push_back(found->second);
    for (auto& point : in_mebibytes.back().kept) point.value /= 1024.0 * 1024.0;
    in_mebibytes.back().abandoned.clear();
    curves.push_back({keys[i], style_of_run(i), &in_mebibytes.back()});
  }
  return plot("memory of " + run.name, "MiB", curves);
}

KEEL_BODY std::string plots_of(std::vector<run_history> const& runs) {
  std::string page = plot_trends(runs, "loss", "loss", "") +
                     plot_trends(runs, "gradient_norm", "gradient norm", "before clipping") +
                     plot_key(runs, "lr", "learning rate", "");
  std::vector<std::map<std::string, run_curve>> evaluations;
  std::set<std::string> names;
  for (auto const& run : runs) {
    evaluations.push_back(evaluations_of(run));
    for (auto const& [name, curve] : evaluations.back()) names.insert(name);
  }
  for (auto const& name : names) {
    std::vector<plotted_curve> curves;
    for (std::size_t i = 0; i < runs.size(); ++i) {
      auto const found = evaluations[i].find(name);
      if (found != evaluations[i].end()) curves.push_back({runs[i].name, style_of_run(i), &found->second});
    }
    page += plot("evaluation: " + name, "", curves);
  }
  page += plot_key(runs, "ms", "time of an update", "ms");
  std::vector<std::pair<char const*, char const*>> others{
      {"clip_fraction", "share of clipped updates"}, {"loss_scale", "loss scale"}, {"skipped", "skipped updates"}};
  measured_metrics<double>::for_each_metric([&]<class Metric>(Metric) {
    if (Metric::title != nullptr) others.emplace_back(Metric::key, Metric::title);
  });
  for (auto const& [key, title] : others) {
    if (varies(runs, key)) page += plot_key(runs, key, title, "");
  }
  std::set<std::string> own;
  for (auto const& run : runs) {
    for (auto const& [key, curve] : run.curves) {
      if (key.starts_with("own.")) own.insert(key);
    }
  }
  for (auto const& key : own) page += plot_key(runs, key, key.substr(4), "");
  for (auto const& run : runs) page += time_plot(run) + memory_plot(run);
  return page;
}

KEEL_BODY std::string table_of_runs(std::vector<run_history> const& runs) {
  std::string page = "<div class=\"scroll\"><table><tr><th>run</th>";
  for (char const* const title :
       {"updates", "skipped", "rollbacks", "rungs", "checkpoints", "first loss", "last loss", "lowest loss"}) {
    page += "<th class=\"number\">" + std::string(title) + "</th>";
  }
  page += "</tr>";
  auto const cell = [](std::string const& words) { return "<td class=\"number\">" + words + "</td>"; };
  for (std::size_t i = 0; i < runs.size(); ++i) {
    auto const& run = runs[i];
    std::array<std::string, 3> losses{"", "", ""};
    auto const loss = run.curves.find("loss");
    if (loss != run.curves.end() && !loss->second.kept.empty()) {
      auto const& kept = loss->second.kept;
      auto const lowest = std::min_element(kept.begin(), kept.end(), [](curve_point const& a, curve_point const& b) {
        return a.value < b.value || (std::isnan(b.value) && !std::isnan(a.value));
      });
      losses = {short_number(kept.front().value), short_number(kept.back().value),
                short_number(lowest->value) + " at " + std::to_string(lowest->update)};
    }
    page += "<tr><td><span class=\"" + style_of_run(i) + "\">" + escaped(run.name) + "</span></td>" +
            cell(std::to_string(run.updates)) + cell(std::to_string(run.skipped)) +
            cell(std::to_string(count_of(run, "rolled_back"))) + cell(std::to_string(count_of(run, "rung"))) +
            cell(std::to_string(count_of(run, "checkpoint"))) + cell(losses[0]) + cell(losses[1]) + cell(losses[2]) + "</tr>";
  }
  return page + "</table></div>";
}

/// Lists all events except successful checkpoints and evaluations, the newest last.
KEEL_BODY std::string events_of(run_history const& run) {
  std::string rows;
  constexpr std::size_t most_of_a_kind = 200;
  std::size_t shown = 0;
  for (run_event const* const one : chosen_events(run, most_of_a_kind)) {
    run_event const& event = *one;
    ++shown;
    if (event.name == "checkpoint" || event.name == "evaluated") continue;
    rows += "<tr><td class=\"number\">" + std::to_string(event.update) + "</td><td>" + utc(event.time) + "</td><td>" +
            escaped(event.name) + "</td><td>" + escaped(event_message(event)) + "</td></tr>";
  }
  if (shown < run.events.size())
    rows += "<tr><td></td><td></td><td></td><td>Only the newest " + std::to_string(most_of_a_kind) +
            " events of each kind; events.jsonl has all of them.</td></tr>";
  std::vector<timeline_event> happened;
  for (run_event const* const one : chosen_events(run, most_of_a_kind))
    happened.push_back({one->name, one->update, event_message(*one), style_of_event(one->name)});
  return event_timeline("timeline of events", happened, run.updates) +
         "<div class=\"scroll\"><table><tr><th class=\"number\">update</th><th>UTC</th><th>event</th><th></th></tr>" + rows +
         "</table></div>";
}

KEEL_BODY std::string colours_of_styles() {
  std::string rules;
  for (std::size_t i = 0; i < report_colours; ++i) {
    std::string const name = style_of_run(i);
    rules += ".curve." + name + "{stroke:var(--" + name + ")}span." + name + "{color:var(--" + name + ")}.range." + name +
             "{fill:var(--" + name + ")}";
  }
  return rules;
}

}  // namespace keel::detail::inline KEEL_MODE

namespace keel::inline KEEL_MODE {

KEEL_BODY std::string verdict_of(run_history const& run) {
  run_event const* const ending = ending_of(run);
  std::string words;
  if (ending == nullptr) {
    words = "This run has not ended: it is still running, or was killed after update " + std::to_string(run.updates) + ".";
  } else if (ending->name == "finished") {
    std::string const why = detail::text_of(*ending, "why");
    words = "Finished after update " + std::to_string(run.updates) + (why.empty() ? "." : ": " + why + ".");
  } else if (ending->name == "stopped") {
    bool const can_resume = detail::count_of(run, "checkpoint") > 0;
    words = "Stopped after update " + std::to_string(run.updates) + (can_resume ? ", and can be resumed: " : ": ") +
            detail::event_message(*ending) + ".";
  } else if (ending->name == "gave_up") {
    words = "Gave up at update " + std::to_string(ending->update) + ": " + detail::event_message(*ending) + ".";
  } else {
    words = "Failed at update " + std::to_string(ending->update) + ": " + detail::event_message(*ending);
  }
  auto const add = [&](std::int64_t count, char const* one, char const* many) {
    if (count > 0) words += " " + detail::counted(count, one, many) + ".";
  };
  add(run.skipped, "update was skipped", "updates were skipped");
  add(detail::count_of(run, "rolled_back"), "rollback", "rollbacks");
  add(detail::count_of(run, "rung"), "rung of the memory ladder was taken", "rungs of the memory ladder were taken");
  add(detail::count_of(run, "checkpoint_failed"), "checkpoint could not be written", "checkpoints could not be written");
  add(detail::count_of(run, "alarm"), "alarm", "alarms");
  add(detail::count_of(run, "slowdown"), "lasting slowdown", "lasting slowdowns");
  add(detail::count_of(run, "batch_finding"), "batch finding", "batch findings");
  add(detail::count_of(run, "memory_grows"), "memory growth warning", "memory growth warnings");
  if (std::string const best = detail::best_evaluation_of(run); !best.empty()) words += " Best evaluation: " + best + ".";
  return detail::without_control_codes(std::move(words));
}

KEEL_BODY std::string report_page(std::vector<run_history> const& runs, std::size_t max_data) {
  std::string names;
  for (auto const& run : runs) names += (names.empty() ? "" : ", ") + escaped(run.name);
  std::string page =
      "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" "
      "content=\"width=device-width,initial-scale=1\"><meta name=\"color-scheme\" content=\"light dark\"><title>" +
      names + "</title><style>" + std::string(detail::style_of_reports) + detail::colours_of_styles() +
      "</style></head><body>\n<h1>" + names + "</h1>\n";
  for (auto const& run : runs) {
    run_event const* const ending = ending_of(run);
    bool const is_bad = ending != nullptr && (ending->name == "failed" || ending->name == "gave_up");
    bool const is_doubtful = std::any_of(run.events.begin(), run.events.end(), [](run_event const& event) {
      return event.name == "alarm" && event.details.value("severity", nlohmann::json()) == "critical";
    });
    page += "<p class=\"verdict" +
            std::string(is_bad                             ? " bad"
                        : ending == nullptr || is_doubtful ? " open"
                                                           : "") +
            "\">" + (runs.size() > 1 ? "<b>" + escaped(run.name) + "</b>: " : "") + escaped(verdict_of(run)) + "</p>\n";
  }
  page +=
      detail::table_of_runs(runs) + "<h2>Curves over updates</h2><div class=\"plots\">" + detail::plots_of(runs) + "</div>\n";
  if (std::string const strips = detail::heat_strips(runs); !strips.empty())
    page += "<h2>Layers</h2><div class=\"plots\">" + strips + "</div>";
  for (auto const& run : runs) {
    std::string const of = runs.size() > 1 ? " of " + escaped(run.name) : "";
    if (std::string const alarms = detail::alarms_of(run); !alarms.empty()) page += "<h2>Alarms" + of + "</h2>" + alarms;
    page += "<h2>Events" + of + "</h2>" + detail::events_of(run);
    if (std::string const profiles = detail::profiles_of(run); !profiles.empty())
      page += "<h2>Profiles" + of + "</h2>" + profiles;
    if (!run.recipe.is_null()) {
      page += "<details><summary>Recipe" + of + "</summary>" + detail::rules_of(run) + "<pre>" +
              escaped(run.recipe.dump(2, ' ', false, nlohmann::json::error_handler_t::replace)) + "</pre></details>";
    }
    page += "<details><summary>Record" + of + " (metrics.jsonl)</summary><pre>" +
            (run.bytes <= max_data && run.metrics.size() == run.bytes
                 ? escaped(run.metrics)
                 : "The record has " + std::to_string(run.bytes) +
                       " bytes, which is too large for this page: see metrics.jsonl in the run directory.") +
            "</pre></details>\n";
    if (run.unreadable > 0)
      page +=
          "<p>" + detail::counted(run.unreadable, "line was", "lines were") + " not readable, for example after a kill.</p>\n";
  }
  return page +
         "<footer>Grey and dashed: values that a rollback or restart abandoned. Red dot: NaN or "
         "infinity.</footer></body></html>\n";
}

}  // namespace keel::inline KEEL_MODE

#include <keel/libtorch/detail/body_end.inc>
