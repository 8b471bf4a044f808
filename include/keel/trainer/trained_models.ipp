// Definitions for trained_models.hpp.
#pragma once

#include <keel/libtorch/ivalue_first.hpp>

#include <algorithm>
#include <keel/checkpoint/archive.hpp>
#include <keel/core/error.hpp>
#include <keel/schedule/lr_schedule.hpp>
#include <keel/trainer/resume.hpp>
#include <keel/trainer/rollback.hpp>
#include <keel/trainer/trained_models.hpp>
#include <nlohmann/json.hpp>
#include <type_traits>
#include <unordered_map>
#include <utility>

#include <keel/libtorch/detail/body_begin.inc>

namespace keel::detail::inline KEEL_MODE {

KEEL_BODY void trained_models::add(run_part& one, run_part const* follows) {
  bool const is_sound = !one.name().empty() && std::all_of(one.name().begin(), one.name().end(), [](char letter) {
    return (letter >= 'a' && letter <= 'z') || (letter >= 'A' && letter <= 'Z') || (letter >= '0' && letter <= '9') ||
           letter == '_';
  });
  if (!is_sound || one.name() == "updates") {
    throw error("E11", "the part name \"" + one.name() +
                           "\" is invalid. Use letters, digits and underscores, but not the name \"updates\". Name the "
                           "part after what it trains, such as \"generator\".");
  }
  std::unordered_map<at::TensorImpl const*, std::string> owners;
  for (run_part const* const other : all_) {
    if (other->name() == one.name())
      throw error("E11", "two parts of this run have the name " + one.name() + ". Rename one of them.");
    if (other == follows) continue;
    auto const& list = other->parameters();
    for (std::size_t i = 0; i < list.tensors.size(); ++i)
      owners.emplace(list.tensors[i].unsafeGetTensorImpl(), other->name() + " as " + list.names[i]);
  }
  // Several parts may follow the same one, and train its parameters one after the other.
  if (follows != nullptr) {
    for (auto const& tensor : follows->parameters().tensors) owners.erase(tensor.unsafeGetTensorImpl());
  }
  auto const& list = one.parameters();
  for (std::size_t i = 0; i < list.tensors.size(); ++i) {
    auto const found = owners.find(list.tensors[i].unsafeGetTensorImpl());
    if (found == owners.end()) continue;
    throw error("E11", "parts " + one.name() + " and " + found->second.substr(0, found->second.find(' ')) +
                           " of this run share a parameter, which " + one.name() + " has as " + list.names[i] +
                           ": their optimizers would overwrite each other's updates. Give the parameter to one of them, or use "
                           "keel::after(..) if they train one after the other.");
  }
  for (run_part* const other : all_) {
    if (&other->step().model() == &one.step().model()) continue;
    other->step().restore_on_skip(one.step().model());
    one.step().restore_on_skip(other->step().model());
  }
  if (follows == nullptr)
    joint_->register_module(one.name(), std::shared_ptr<torch::nn::Module>(std::shared_ptr<void>(), &one.step().model()));
  all_.push_back(&one);
}

KEEL_BODY void trained_models::remove_unfinished(run_part& one) {
  std::erase(all_, &one);
  bool const is_gone = std::none_of(all_.begin(), all_.end(),
                                    [&](run_part* const other) { return &other->step().model() == &one.step().model(); });
  for (run_part* const other : all_) {
    if (is_gone) other->step().forget(one.step().model());
  }
  auto const children = joint_->named_children();
  auto const* const own = children.find(one.name());
  if (own != nullptr && own->get() == &one.step().model()) joint_->unregister_module(one.name());
}

KEEL_BODY void trained_models::remove(run_part& one) {
  remove_unfinished(one);
  if (updates_ > 0) destroyed_part_ = one.name();
}

KEEL_BODY run_part& trained_models::first() const {
  if (all_.empty())
    throw error(
        "E12",
        "this run has no parts. Create one before the loop starts: keel::part<recipe> one{run, \"model\", model, optimizer};");
  return *all_.front();
}

KEEL_BODY void trained_models::require_unowned(run_part const& wanted_by, std::vector<at::Tensor> const& which) const {
  for (run_part const* const other : all_) {
    if (other == &wanted_by) continue;
    auto const& list = other->parameters();
    for (std::size_t i = 0; i < list.tensors.size(); ++i) {
      bool const is_wanted =
          std::any_of(which.begin(), which.end(), [&](at::Tensor const& one) { return one.is_same(list.tensors[i]); });
      if (is_wanted)
        throw error("E11", "part " + wanted_by.name() + " unfreezes " + list.names[i] + ", which part " + other->name() +
                               " trains: their optimizers would overwrite each other's updates. Unfreeze it in one of them.");
    }
  }
}

KEEL_BODY bool trained_models::at_boundary() const {
  return std::all_of(all_.begin(), all_.end(), [](run_part const* one) { return one->step().at_boundary(); });
}

KEEL_BODY bool trained_models::has_new_results() const {
  return std::any_of(all_.begin(), all_.end(), [](run_part const* one) { return one->has_new_results(); });
}

KEEL_BODY bool trained_models::is_half_updated() const {
  return std::any_of(all_.begin(), all_.end(), [](run_part const* one) { return one->step().is_half_updated(); });
}

KEEL_BODY std::int64_t trained_models::skipped() const {
  std::int64_t sum = 0;
  for (run_part const* const one : all_) sum += one->step().skipped();
  return sum;
}

KEEL_BODY void trained_models::settle() {
  for (run_part* const one : all_) one->step().settle();
}

KEEL_BODY void trained_models::drop_updates() {
  for (run_part* const one : all_) one->step().drop_update();
}

KEEL_BODY void trained_models::flush_layer_metrics() {
  for (run_part* const one : all_) one->step().flush_layer_metrics();
}

KEEL_BODY gathered_parameters trained_models::gather_parameters() {
  std::vector<replication*> steps;
  steps.reserve(all_.size());
  for (run_part* const one : all_) steps.push_back(&one->step().ranks());
  return gathered_parameters(std::move(steps));
}

KEEL_BODY whole_tensor_function trained_models::whole_tensor_access() {
  if (!shards_parameters()) return {};
  end_passes();
  return [this](at::Tensor const& one) {
    at::Tensor whole = one;
    for (run_part* const part : all_) {
      if (at::Tensor const gathered = part->step().ranks().gather_parameter(one); gathered.defined()) whole = gathered;
    }
    return whole;
  };
}

KEEL_BODY void trained_models::end_passes() {
  for (run_part* const one : all_) one->step().ranks().end_passes();
}

KEEL_BODY bool trained_models::shards_parameters() const {
  return std::any_of(all_.begin(), all_.end(), [](run_part const* one) { return one->step().ranks().shards_parameters(); });
}

KEEL_BODY void trained_models::begin_evaluation_batch() {
  for (run_part* const one : all_) one->step().ranks().begin_evaluation_batch();
}

KEEL_BODY void trained_models::end_evaluation() {
  for (run_part* const one : all_) one->step().ranks().end_evaluation();
}

KEEL_BODY void trained_models::cancel_evaluation() noexcept {
  for (run_part* const one : all_) one->step().ranks().cancel_evaluation();
}

KEEL_BODY void trained_models::verify_replicas() {
  for (run_part* const one : all_) one->step().verify_replicas();
}

KEEL_BODY std::vector<moving_average*> trained_models::averages() const {
  std::vector<moving_average*> found;
  for (run_part* const one : all_) {
    if (auto* const average = one->step().average_or_null()) found.push_back(average);
  }
  return found;
}

KEEL_BODY void trained_models::require_average_swapped_out() {
  for (moving_average const* const average : averages()) average->require_average_swapped_out();
}

KEEL_BODY std::vector<trained_optimizer> trained_models::trained() {
  if (!destroyed_part_.empty())
    throw error(
        "E12",
        "the part " + destroyed_part_ +
            " was destroyed before its run ended, so checkpoints would not contain it. Keep each part alive until finish().");
  std::vector<trained_optimizer> list;
  for (run_part* const one : all_) {
    step_engine& step = one->step();
    config value = step.recipe_value();
    value.run = step.facts();
    list.push_back({one->name(), &step.optimizer(), &one->parameters(), value, step.ranks().shards()});
  }
  return list;
}

/// A parameter group of an optimizer in a checkpoint.
struct saved_group {
  std::vector<std::string> names;
  double rate;  ///< base learning rate, which a schedule scales
};

/// Empty if the checkpoint has no such groups.
inline std::vector<saved_group> groups_in(nlohmann::json const& state, state_paths const& places) {
  using pointer = nlohmann::json::json_pointer;
  if (!state.is_object()) return {};
  std::vector<saved_group> all;
  auto const at = [&](std::string const& where) {
    pointer const place(where);
    return state.contains(place) ? state.at(place) : nlohmann::json();
  };
  auto const groups = at(places.optimizer + "/groups");
  auto const rates = at(places.step + "/schedule/highest_lr");
  if (!groups.is_array() || !rates.is_array() || rates.size() != groups.size()) return {};
  for (std::size_t i = 0; i < groups.size(); ++i) {
    auto const names = groups[i].is_object() ? groups[i].value("parameters", nlohmann::json()) : nlohmann::json();
    bool const sound = names.is_array() && rates[i].is_number() &&
                       std::all_of(names.begin(), names.end(), [](auto const& one) { return one.is_string(); });
    if (!sound) return {};
    all.push_back({names.get<std::vector<std::string>>(), rates[i].get<double>()});
  }
  return all;
}

inline std::vector<std::string> names_of_group(trained_optimizer const& one, std::size_t group) {
  auto const& groups = one.optimizer->param_groups();
  std::ptrdiff_t begin = 0;
  for (std::size_t i = 0; i < group; ++i) begin += static_cast<std::ptrdiff_t>(groups[i].params().size());
  auto const first = one.parameters->names.begin() + begin;
  return {first, first + static_cast<std::ptrdiff_t>(groups[group].params().size())};
}

KEEL_BODY void trained_models::match_groups(nlohmann::json const& state) {
  auto const models = model().named_parameters();
  auto const match = [&](run_part& part, trained_optimizer const& one, std::vector<saved_group> const& saved) {
    auto const here = [&] { return one.optimizer->param_groups().size(); };
    for (std::size_t i = 0; i < std::min(here(), saved.size()); ++i) {
      if (names_of_group(one, i) != saved[i].names) return;
    }
    for (std::size_t i = here(); i < saved.size(); ++i) {
      std::vector<at::Tensor> tensors;
      for (std::string const& name : saved[i].names) {
        auto const* const found = models.find(name);
        if (found == nullptr) return;
        tensors.push_back(*found);
      }
      part.unfreeze(tensors, saved[i].rate);
    }
    while (here() > saved.size() && part.refreeze_last_group()) {
    }
  };
  auto const optimizers = trained();
  for (std::size_t i = 0; i < optimizers.size(); ++i) {
    if (auto const saved = groups_in(state, places_of(optimizers[i].name)); !saved.empty())
      match(*all_[i], optimizers[i], saved);
  }
}

KEEL_BODY bool trained_models::has_groups_of(nlohmann::json const& state) {
  auto const optimizers = trained();
  return std::all_of(optimizers.begin(), optimizers.end(), [&](trained_optimizer const& one) {
    auto const saved = groups_in(state, places_of(one.name));
    return saved.empty() || saved.size() == one.optimizer->param_groups().size();
  });
}

KEEL_BODY std::optional<rollback_request> trained_models::take_rollback_request(config& by) {
  std::optional<rollback_request> first;
  for (run_part* const one : all_) {
    auto const request = one->step().guards().take_rollback_request();
    if (!request || first) continue;
    first = request;
    if (one->has_name()) first->why = one->name() + ": " + first->why;
    by = one->step().recipe_value();
  }
  return first;
}

KEEL_BODY std::int64_t trained_models::rollback_distance() const {
  std::int64_t longest = 0;
  for (run_part const* const one : all_) longest = std::max(longest, keel::rollback_distance(one->step().recipe_value()));
  return longest;
}

KEEL_BODY void trained_models::lower_learning_rates(double factor) {
  for (run_part* const one : all_) one->step().schedule().lower(factor);
}

KEEL_BODY void trained_models::adopt_loaded_rates() {
  for (run_part* const one : all_) one->step().schedule().adopt_loaded_rates();
}

KEEL_BODY void trained_models::evaluated(double value, bool larger_is_better) {
  for (run_part* const one : all_) {
    if (schedule::judges_evaluations(one->step().recipe_value().schedule))
      one->step().schedule().evaluated(value, larger_is_better);
  }
}

KEEL_BODY std::int64_t trained_models::warmup_updates() const {
  std::int64_t longest = 0;
  for (run_part const* const one : all_)
    longest = std::max<std::int64_t>(
        longest, schedule::warmup_updates(one->step().recipe_value().schedule, one->step().facts().updates));
  return longest;
}

/// Makes the fields of a part's step one field of the run.
struct part_state {
  step_engine& step;
  template <class Archive>
  void visit(Archive& archive) {
    if constexpr (std::is_same_v<Archive, state_writer> || std::is_same_v<Archive, state_reader>) step.visit(archive);
  }
};

template <class Archive>
void trained_models::visit_all(Archive& archive) {
  if (only_) return only_->step().visit(archive);
  archive("updates", updates_);
  for (run_part* const one : all_) {
    part_state state{one->step()};
    archive(one->name().c_str(), state);
  }
}

}  // namespace keel::detail::inline KEEL_MODE

#include <keel/libtorch/detail/body_end.inc>
