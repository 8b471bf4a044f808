// The bodies of checkpointed_step.hpp.
#pragma once

#include <keel/libtorch/ivalue_first.hpp>

#include <algorithm>
#include <keel/trainer/checkpointed_step.hpp>
#include <keel/trainer/resume.hpp>
#include <nlohmann/json.hpp>

#include <keel/libtorch/detail/body_begin.inc>

namespace keel::detail::inline KEEL_MODE {

/// A group of an optimizer as a checkpoint has it.
struct saved_group {
  std::vector<std::string> names;
  double rate;  ///< its own, which a schedule multiplies
};

/// Empty where the checkpoint is not written so.
inline std::vector<saved_group> groups_in(nlohmann::json const& state, state_places const& places) {
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

inline void match_groups(checkpointed_step& step, trained_optimizer const& one, std::vector<saved_group> const& saved) {
  auto const here = [&] { return one.optimizer->param_groups().size(); };
  for (std::size_t i = 0; i < std::min(here(), saved.size()); ++i) {
    if (names_of_group(one, i) != saved[i].names) return;
  }
  auto const all = step.model().named_parameters();
  for (std::size_t i = here(); i < saved.size(); ++i) {
    std::vector<at::Tensor> tensors;
    for (std::string const& name : saved[i].names) {
      auto const* const found = all.find(name);
      if (found == nullptr) return;
      tensors.push_back(*found);
    }
    step.unfreeze(one.name, tensors, saved[i].rate);
  }
  while (here() > saved.size() && step.refreeze_last_group(one.name)) {
  }
}

KEEL_BODY void match_groups(checkpointed_step& step, config const& present, nlohmann::json const& state) {
  for (trained_optimizer const& one : step.trained(present)) {
    if (auto const saved = groups_in(state, places_of(one.name)); !saved.empty()) match_groups(step, one, saved);
  }
}

}  // namespace keel::detail::inline KEEL_MODE

#include <keel/libtorch/detail/body_end.inc>
