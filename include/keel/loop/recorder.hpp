// What a run writes down as it goes: a line of the record for every window, an event for what is out of the ordinary, and the
// console's line.
#pragma once

#include <cstdint>
#include <keel/loop/progress.hpp>
#include <keel/loop/run_directory.hpp>
#include <keel/loop/summary.hpp>
#include <keel/loop/update_record.hpp>
#include <keel/memory/ladder.hpp>
#include <keel/memory/timeline.hpp>
#include <keel/observe/console.hpp>
#include <keel/observe/metric.hpp>
#include <keel/recipe/describe.hpp>
#include <keel/step/event.hpp>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace keel {

template <class Files>
class recorder {
 public:
  /// What the trainer knows of a window beside the event of its end.
  struct figures {
    std::int64_t epoch;
    double learning_rate;  ///< of the next update
    std::int64_t skipped;
    double milliseconds;
  };

  /// All three outlive the recorder; the directory may be none.
  recorder(std::unique_ptr<run_directory<Files>> const& directory, console& console, run_record& record)
      : directory_(directory), console_(console), record_(record) {}

  /// A run that is no continued one begins: an empty record, and its recipe.
  void begin(config const& recipe) {
    if (!directory_) return;
    directory_->metrics().resume_at(0);
    nlohmann::ordered_json slots;
    for_each_slot(recipe, [&](char const* name, slot_text const& text) { slots[name] = text.c_str(); });
    directory_->event("started", 0, {{"recipe", slots}});
  }
  /// The recipe asks for a kernel that this LibTorch does not have.
  void no_fused_attention(std::int64_t update) {
    console_.notice("this LibTorch has no fused attention; the math path is used, which needs more memory");
    if (directory_) directory_->event("no_fused_attention", update);
  }

  /// For the next line of the record.
  void log(reduced_value const& value) { own_.emplace_back(value.name(), value.value()); }

  /// `warns`: a window that was left out is said on the console too.
  void update(event::update_end const& event, figures const& known, bool warns) {
    update_metrics m = metrics_of(event, record_, known.epoch);
    auto const* const updated = event.result.get_if<outcome::updated>();
    m.learning_rate = updated != nullptr ? updated->learning_rate : known.learning_rate;
    m.loss_scale = event.loss_scale;
    m.skipped = known.skipped;
    m.milliseconds = known.milliseconds;
    m.own = std::exchange(own_, {});
    bool const left_out = !m.skipped_because.empty();
    if (directory_) {
      directory_->metrics().add(to_json(m));
      if (left_out) directory_->event("skipped", m.update, {{"why", m.skipped_because}, {"attempt", m.attempt}});
    }
    if (left_out && warns) {
      console_.notice("warning: update " + std::to_string(m.update + 1) + " was left out: " + m.skipped_because);
    }
    console_.show(m);
    if (m.memory) memory(m.update, *m.memory);
  }

  /// The run ends as `words` say.
  void ended(outcome const& result, std::int64_t update, std::string const& words) {
    if (!directory_) return;
    directory_->event(event_of_ending(result), update, {{"words", words}});
    directory_->metrics().sync();
  }

  /// The run ends with an exception, which goes on.
  void failed(std::int64_t update, std::string const& words) {
    console_.notice("the run ends at update " + std::to_string(update) + ": " + words);
    if (!directory_) return;
    try {
      directory_->event("failed", update, {{"message", words}});
    } catch (file_error const&) {
      // A full disk is often what failed; the first exception says so better.
    }
  }

  void evaluated(std::int64_t update, double loss) {
    if (directory_) directory_->event("evaluated", update, {{"loss", detail::number_to_json(loss)}});
    console_.notice(detail::formatted("evaluated at update %lld: loss %.4f", static_cast<long long>(update), loss));
  }

  /// Hears of checkpoints that are damaged and left out.
  auto passing_over() {
    return [this](std::int64_t update, std::string const& words) {
      console_.notice("passed over a damaged checkpoint: " + words);
      directory_->event("damaged", update, {{"message", words}});
    };
  }

  void rung_given_back(event::rung_given_back const& event) {
    console_.notice("memory is enough in update " + std::to_string(event.update + 1) + ": gave " + event.rung + " back");
    if (directory_) directory_->event("rung_given_back", event.update, {{"rung", event.rung}, {"pieces", event.pieces}});
  }

  /// What a window took of memory; says once where that grows.
  void memory(std::int64_t update, memory::usage const& of) {
    timeline_.add(update, of);
    auto const found = timeline_.judge();
    bool const grows = found == memory::growth::staircase || found == memory::growth::slope;
    if (!grows || warned_) return;
    warned_ = true;
    std::string const words = to_string(found);
    console_.notice("memory grows at update " + std::to_string(update) + " as " + words);
    if (directory_) directory_->event("memory_grows", update, {{"how", words}});
  }
  memory::timeline const& timeline() const { return timeline_; }

  void out_of_memory(event::out_of_memory const& event) {
    if (event.rung != keel::to_string(oom::rung_kind::give_up)) ++record_.rungs;
    console_.notice("out of memory in update " + std::to_string(event.update + 1) + ": took " + event.rung +
                    (event.rung == "halve_micro_batch"
                         ? ", each micro-batch now runs in " + std::to_string(event.pieces) + " pieces"
                         : ""));
    if (!directory_) return;
    directory_->event("rung", event.update, {{"rung", event.rung}, {"pieces", event.pieces}, {"message", event.message}});
  }

 private:
  std::unique_ptr<run_directory<Files>> const& directory_;
  console& console_;
  run_record& record_;
  std::vector<std::pair<std::string, double>> own_;
  memory::timeline timeline_;
  bool warned_ = false;
};

}  // namespace keel
