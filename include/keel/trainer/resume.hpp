// Takes a snapshot of a run and restores a run from one. Both use the same list of parts, so a part that is saved cannot be forgotten on
// load.
#pragma once

#include <torch/version.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <keel/attention/attention.hpp>
#include <keel/checkpoint/archive.hpp>
#include <keel/checkpoint/model_state.hpp>
#include <keel/checkpoint/optimizer_state.hpp>
#include <keel/checkpoint/snapshot.hpp>
#include <keel/checkpoint/state_part.hpp>
#include <keel/checkpoint/store.hpp>
#include <keel/checkpoint/tensor_slice.hpp>
#include <keel/checkpoint/trained_optimizer.hpp>
#include <keel/config/describe.hpp>
#include <keel/core/version.hpp>
#include <keel/json/load_config.hpp>
#include <keel/json/write_config.hpp>
#include <keel/lora/lora.hpp>
#include <keel/shard/optimizer_shards.hpp>
#include <keel/trainer/options.hpp>
#include <optional>
#include <set>
#include <string>
#include <type_traits>
#include <vector>

namespace keel::inline KEEL_MODE {

/// Settings that may differ between a checkpoint and the program that loads it; the program's values are then used.
struct accepted_changes {
  bool all = false;
  std::vector<std::string> names = {};
  bool is_same_run = false;  ///< the checkpoint is from this run: recipes and options are not compared
  /// True if anything other than the learning rate is accepted: only then may the recipe add a policy whose state the checkpoint lacks.
  bool accepts_a_policy() const {
    return std::any_of(names.begin(), names.end(), [](std::string const& name) { return name != "lr"; });
  }
  bool operator()(std::string const& name) const { return all || std::find(names.begin(), names.end(), name) != names.end(); }
};

}  // namespace keel::inline KEEL_MODE

namespace keel::detail::inline KEEL_MODE {

/// JSON pointers to the state of an optimizer, its step and its recipe in a checkpoint.
struct state_paths {
  std::string optimizer = "/optimizer";
  std::string step = "/run/step";
  std::string recipe = "/recipe";
};
inline state_paths places_of(std::string const& name) {
  if (name.empty()) return {};
  return {"/optimizers/" + name, "/run/step/" + name, "/recipes/" + name};
}

/// True for slots that affect the trained parameters. The others may change between a run and its resume.
inline bool affects_result(std::string const& slot) {
  static std::set<std::string> const others = {"checkpoint", "oom",       "recompute", "offload", "health",
                                               "evaluation", "profile",   "incident",  "timeout", "batch_guard",
                                               "model",      "optimizer", "data",      "device",  "world"};
  return others.count(slot) == 0;
}

/// Throws checkpoint_error (E03) if the run was trained on truncated rows and this recipe lacks the rung that truncates them.
inline void require_rungs_fit(config const& value, nlohmann::json const& state, std::string const& source) {
  nlohmann::json const taken = state.value(nlohmann::json::json_pointer("/run/step/ladder/taken"), nlohmann::json::array());
  bool shortened = false;
  for (auto const& kind : taken) shortened |= kind == static_cast<int>(oom::rung_kind::shorten_sequence);
  if (!shortened || oom::has_rung(value.oom, oom::rung_kind::shorten_sequence)) return;
  throw checkpoint_error(
      "E03",
      source +
          " was saved after the ladder had taken oom::shorten_sequence, but this recipe has no such rung, so rows would no "
          "longer be truncated. Restore the rung, use another run directory, or set options.accept_changed_recipe.");
}

/// Returns the slots of a checkpoint's recipe; empty if the recipe is not a JSON object.
inline nlohmann::json saved_recipe(nlohmann::json const& state) {
  auto const found = state.find("recipe");
  return found != state.end() && found->is_object() ? *found : nlohmann::json::object();
}

/// Resolves an attention policy to its kernel: the default may select the kernel that an older recipe named.
inline attention_kind effective_attention(attention_settings const& policy, config const& value) {
  if (policy.kind == attention_kind::fused) return attention_kernel(attention_kind::fused);
  bool const automatic = policy.kind == attention_kind::automatic && !value.model.inner_gradients;
  return attention_kernel(automatic ? attention_kind::automatic : attention_kind::math);
}

/// True if training with either setting gives the same parameters.
template <class Slot>
bool is_equivalent(typename Slot::settings before, typename Slot::settings now, config const& value) {
  if constexpr (std::is_same_v<Slot, slot::attention>)
    return effective_attention(before, value) == effective_attention(now, value);
  // replicate and zero differ only in the placement of optimizer state.
  if constexpr (std::is_same_v<Slot, slot::shard>) return shard::is_distributed(before) && shard::is_distributed(now);
  if constexpr (std::is_same_v<Slot, slot::schedule>) {
    for (schedule::settings* one : {&before, &now}) {
      if (one->kind == schedule::kind::one_cycle && one->warmup == 0 && one->warmup_ratio == 0.0)
        one->warmup_ratio = schedule::one_cycle_warmup;
    }
  }
  return before == now;
}

/// Describes the settings of a slot in a checkpoint; empty if they are equivalent to those of the recipe.
template <class Slot>
std::string describe_changed_settings(nlohmann::json const& saved, config const& value) {
  if (saved.is_null()) return "not set";
  if (saved == slot_to_json<Slot>(value)) return "";
  try {
    config before;
    before.*place<Slot> = read_slot<Slot>(saved, "");
    if (is_equivalent<Slot>(before.*place<Slot>, value.*place<Slot>, value)) return "";
    return print_slot<Slot>(before, shown::set).c_str();
  } catch (config_error const&) {
    // A custom policy, settings of another version, or invalid settings: treat them as different.
  }
  return printable(saved.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace), 200);
}

template <class... Slots, class Visit>
void for_each_described_slot(slot_list<Slots...>, Visit&& visit) {
  (visit.template operator()<Slots>(), ...);
}

/// Throws checkpoint_error (E03), which names every slot that differs and is not accepted.
inline void require_same_recipe(config const& value, nlohmann::json const& state, std::string const& source,
                                accepted_changes const& accepts) {
  nlohmann::json const saved = saved_recipe(state);
  std::string differences;
  for_each_described_slot(slots{}, [&]<class Slot>() {
    std::string const name = Slot::name;
    bool const by_evaluations = name == "evaluation" && schedule::judges_evaluations(value.schedule);
    if ((!affects_result(name) && !by_evaluations) || accepts(name)) return;
    // A migration sets a slot to null to accept any settings.
    if (saved.contains(name) && saved[name].is_null()) return;
    std::string const before = describe_changed_settings<Slot>(saved.value(name, nlohmann::json()), value);
    if (before.empty()) return;
    differences += (differences.empty() ? "" : "; ") + name + " was " + before + " and is now " +
                   print_slot<Slot>(value, shown::set).c_str();
  });
  std::int64_t const length =
      state.contains("updates") && state["updates"].is_number_integer() ? state["updates"].get<std::int64_t>() : 0;
  bool const is_own = value.schedule.kind == schedule::kind::custom;
  bool const takes_length = value.schedule.total == 0 && (is_own || schedule::depends_on_length(value.schedule));
  // A replay has no batches from which the length could be derived.
  if (takes_length && !value.run.is_length_pending && length != value.run.updates && !accepts("schedule")) {
    differences += (differences.empty() ? "" : "; ") + std::string("the schedule was spread over ") + std::to_string(length) +
                   " updates and is now spread over " + std::to_string(value.run.updates);
  }
  if (!differences.empty()) {
    throw checkpoint_error("E03", source + " was saved with another recipe: " + differences +
                                      ". Use that recipe, another run directory, options.accept with these names, or "
                                      "options.accept_changed_recipe for all.");
  }
}

/// Throws checkpoint_error (E03) if the program's learning rates or optimizer options differ from the checkpoint's, which would otherwise
/// override them silently. Does not compare the current rate, because the schedule sets it.
inline void require_same_options(nlohmann::json const& live, nlohmann::json const& saved, state_paths const& at,
                                 std::string const& source) {
  using pointer = nlohmann::json::json_pointer;
  auto const options_of = [&](nlohmann::json const& state, std::size_t group) {
    auto options =
        state.value(pointer(at.optimizer + "/groups/" + std::to_string(group) + "/options"), nlohmann::json::object());
    auto const rates = state.value(pointer(at.step + "/schedule/highest_lr"), nlohmann::json::array());
    if (options.is_object()) options["lr"] = rates.is_array() && group < rates.size() ? rates[group] : nlohmann::json();
    return options;
  };
  // load_optimizer reports a different kind of optimizer.
  nlohmann::json const& optimizer = live.at(pointer(at.optimizer));
  if (saved.value(pointer(at.optimizer + "/kind"), nlohmann::json()) != optimizer.at("kind")) return;
  std::string differences;
  std::size_t const groups = optimizer.at("groups").size();
  for (std::size_t group = 0; group < groups; ++group) {
    auto const before = options_of(saved, group);
    auto const now = options_of(live, group);
    for (auto const& [name, value] : now.items()) {
      if (!before.is_object() || !before.contains(name) || before[name] == value) continue;
      if (!differences.empty()) differences += "; ";
      differences +=
          name + " of group " + std::to_string(group) + " was " + before[name].dump() + " and is now " + value.dump();
    }
  }
  if (differences.empty()) return;
  throw checkpoint_error("E03", source + " was saved with other optimizer options: " + differences +
                                    ". Use those options, another run directory, or options.accept with these names, such as "
                                    "{\"lr\"}, to use the program's values.");
}

/// Replaces options of the checkpoint with the program's if they differ and are accepted. An accepted learning rate also discards the
/// changes that schedules and rollbacks made to the old one.
inline void override_saved_options(nlohmann::json& saved, nlohmann::json const& live, config const& value,
                                   state_paths const& at, accepted_changes const& accepts) {
  using pointer = nlohmann::json::json_pointer;
  // If this recipe dropped the schedule, restore its peak rate: the last scheduled rate is not one that the program chose.
  nlohmann::json const schedule_before = saved.value(pointer(at.recipe + "/schedule"), nlohmann::json());
  bool const had_schedule = !schedule::changes_the_rate(value.schedule) && !schedule_before.is_null() &&
                            !describe_changed_settings<slot::schedule>(schedule_before, value).empty();
  std::size_t const groups = live.at(pointer(at.optimizer)).at("groups").size();
  for (std::size_t group = 0; group < groups; ++group) {
    pointer const place(at.optimizer + "/groups/" + std::to_string(group) + "/options");
    pointer const rate(at.step + "/schedule/highest_lr/" + std::to_string(group));
    if (!saved.contains(place) || !saved[place].is_object()) continue;
    nlohmann::json const& own = live.at(place);
    if (had_schedule && saved.contains(rate) && saved[place].contains("lr")) saved[place]["lr"] = saved[rate];
    for (auto const& [name, option] : own.items()) {
      if (!accepts(name) || !saved[place].contains(name)) continue;
      if (name != "lr") {
        saved[place][name] = option;
      } else if (saved.contains(rate) && saved[rate] != live.at(rate)) {
        saved[rate] = live.at(rate);
        saved[place][name] = option;
        saved[pointer(at.step + "/schedule/lowered")] = 1.0;
      }
    }
  }
}

/// Throws checkpoint_error (E04), which names a parameter that is frozen in the checkpoint but not in the program, or vice versa.
inline void require_same_frozen(torch::nn::Module& model, snapshot const& content, std::string const& source) {
  nlohmann::json const saved = content.state.value("frozen", nlohmann::json::array());
  auto const fail = [&](std::string const& name, char const* now) {
    throw checkpoint_error("E04", source + ": " + name + " is " + now +
                                      " frozen in this program. Freeze the same parameters, or use another run directory.");
  };
  std::set<std::string> const before = saved.is_array() ? saved.get<std::set<std::string>>() : std::set<std::string>();
  for (auto const& item : model.named_parameters()) {
    // A base that a ladder rung quantized to 8 bits is not stored as a parameter: skip it.
    auto const found = content.model.find(item.key());
    if (found == content.model.end() || found->second.scalar_type() != item.value().scalar_type()) continue;
    bool const was = before.count(item.key()) > 0;
    bool const is = !item.value().requires_grad();
    if (was != is) fail(item.key(), is ? "now" : "no longer");
  }
}

}  // namespace keel::detail::inline KEEL_MODE

namespace keel::detail::inline KEEL_MODE {

/// Throws checkpoint_error (E04) unless the checkpoint `state` has exactly the parts of this run, by name.
inline void require_same_parts(std::vector<trained_optimizer> const& trained, nlohmann::json const& state,
                               std::string const& source) {
  nlohmann::json const saved = state.value("optimizers", nlohmann::json::object());
  bool const is_joint = !trained.empty() && !trained.front().name.empty();
  std::string here, there;
  for (auto const& one : trained) here += (here.empty() ? "" : ", ") + one.name;
  for (auto const& [name, optimizer] : saved.items()) there += (there.empty() ? "" : ", ") + printable(name, 60);
  auto const fail = [&](std::string const& words) {
    throw checkpoint_error("E04", source + words + " Build the same parts with the same names, or use another run directory.");
  };
  if (!is_joint && !saved.empty()) fail(" was saved by a run of several parts, " + there + ", but this trainer has one model.");
  if (!is_joint) return;
  if (state.contains("optimizer")) fail(" was saved by a run with one model, but this run has the parts " + here + ".");
  for (auto const& one : trained) {
    if (!saved.contains(one.name))
      fail(" has no part " + one.name + ": its parts are " + there + ", and those of this run are " + here + ".");
  }
  for (auto const& [name, optimizer] : saved.items()) {
    bool const known = std::any_of(trained.begin(), trained.end(), [&](auto const& one) { return one.name == name; });
    if (!known)
      fail(" has the part " + printable(name, 60) + ": its parts are " + there + ", and those of this run are " + here + ".");
  }
}

}  // namespace keel::detail::inline KEEL_MODE

namespace keel::inline KEEL_MODE {

/// Returns the model's tensors by name; of parameters that shard::zero<3> shards, this rank's shards, and their slices.
inline tensor_map live_model_tensors(torch::nn::Module& model, std::vector<trained_optimizer> const& trained,
                                     slice_map& slices) {
  tensor_map tensors;
  for (auto const& item : model.named_parameters()) {
    at::Tensor value;
    for (trained_optimizer const& one : trained) {
      detail::parameter_shards const* const units = one.shards != nullptr ? one.shards->of_units() : nullptr;
      if (units == nullptr || units->are_all_gathered()) continue;
      value = units->shard_of(item.value());
      if (!value.defined()) continue;
      slices.emplace(item.key(), units->slice_of(item.value()));
      break;
    }
    tensors.emplace(item.key(), value.defined() ? value : item.value().detach());
  }
  for (auto const& item : model.named_buffers()) tensors.emplace(item.key(), item.value().detach());
  return tensors;
}

/// Takes a snapshot of the run in the form that a checkpoint stores. The tensors alias those of the run. Those that are divided among ranks
/// are this rank's slices.
inline snapshot take_snapshot(config const& value, torch::nn::Module& model, std::vector<trained_optimizer> const& trained,
                              std::vector<state_part> const& parts) {
  snapshot content;
  content.model = live_model_tensors(model, trained, content.model_slices);
  content.state["frozen"] = nlohmann::json::array();
  for (auto const& item : model.named_parameters()) {
    if (item.value().requires_grad()) {
      content.finite.push_back(item.key());
    } else {
      content.state["frozen"].push_back(item.key());
    }
  }
  content.state["keel"] = version;
  content.state["libtorch"] = TORCH_VERSION;
  content.state["recipe"] = detail::slots_to_json(value, slots{});
  content.state["updates"] = value.run.updates;
  for (trained_optimizer const& one : trained) {
    auto& object = one.name.empty() ? content.state["optimizer"] : content.state["optimizers"][one.name];
    tensor_map tensors;
    detail::optimizer_shards::scope const shards(one.shards);
    save_optimizer(*one.optimizer, *one.parameters, object, tensors);
    // The prefix separates optimizers that train the same parameters one after the other.
    for (auto& [name, tensor] : tensors) {
      auto const slice = one.shards != nullptr ? one.shards->slice_of(name, *one.parameters) : std::nullopt;
      if (slice && detail::count_elements(*slice)) {
        content.optimizer_slices.emplace(one.prefix() + name, *slice);
      } else if (slice) {
        // It has no elements that could be divided.
        tensor = tensor.view(slice->sizes);
      }
      content.optimizer.emplace(one.prefix() + name, tensor);
    }
    if (!one.name.empty()) content.state["recipes"][one.name] = detail::slots_to_json(one.value, slots{});
  }
  for (state_part const& part : parts) {
    state_writer writer(content.state["run"][part.name], content.tensors, std::string(part.name) + ".", &content.tensor_slices);
    part.write(writer);
  }
  return content;
}

/// Restores a run from a snapshot. Throws checkpoint_error: E03 for another recipe, E04 for another model or optimizer, E05 for damaged
/// data.
/// Writes the parameters last, after everything else was validated.
inline void apply_snapshot(snapshot content, config const& value, torch::nn::Module& model,
                           std::vector<trained_optimizer> const& trained, std::vector<state_part> const& parts,
                           std::string const& source, accepted_changes const& accepts) {
  if (!content.state.is_object())
    throw checkpoint_error("E05", source + ": state.json is not a JSON object. Use an older checkpoint.");
  detail::require_same_parts(trained, content.state, source);
  if (!accepts.is_same_run) {
    detail::require_same_recipe(value, content.state, source, accepts);
    for (trained_optimizer const& one : trained) {
      if (one.name.empty()) continue;
      nlohmann::json const recipes = content.state.value("recipes", nlohmann::json::object());
      nlohmann::json const of_part{{"recipe", recipes.value(one.name, nlohmann::json::object())},
                                   {"updates", content.state.value("updates", nlohmann::json())}};
      detail::require_same_recipe(one.value, of_part, source + ", part " + one.name + ",", accepts);
    }
  }
  if (!accepts.all) detail::require_rungs_fit(value, content.state, source);
  // Layers that a ladder rung had quantized when the checkpoint was saved are loaded in quantized form. They do not count as a different
  // model.
  auto const to_quantize = quantized_in(content.model, model);
  slice_map own_slices;
  tensor_map const own = live_model_tensors(model, trained, own_slices);
  tensor_map expected = detail::expand_slices(own, own_slices);
  for (auto const& [name, layer] : to_quantize) expected[name] = content.model.at(name);
  require_same_model(expected, detail::expand_slices(content.model, content.model_slices), source);
  if (!accepts.all) detail::require_same_frozen(model, content, source);
  snapshot const live = take_snapshot(value, model, trained, parts);
  for (trained_optimizer const& one : trained) {
    auto const places = detail::places_of(one.name);
    std::string const where = one.name.empty() ? source : source + ", part " + one.name + ",";
    detail::override_saved_options(content.state, live.state, one.value, places, accepts);
    if (!accepts.all && !accepts.is_same_run) detail::require_same_options(live.state, content.state, places, where);
  }
  nlohmann::json const run = content.state.value("run", nlohmann::json::object());
  for (state_part const& part : parts) {
    nlohmann::json const fields = run.is_object() ? run.value(part.name, nlohmann::json::object()) : nlohmann::json::object();
    // A policy that a changed recipe adds begins in its initial state.
    bool const is_step = std::string_view(part.name) == "step";
    bool const may_lack_fields = accepts.all || accepts.is_same_run || (is_step && accepts.accepts_a_policy());
    state_reader reader(fields, content.tensors, source, std::string(part.name) + ".", may_lack_fields);
    part.read(reader);
  }
  // Allocate all quantized weights first; load_model fills in the values.
  std::vector<at::Tensor> weights;
  weights.reserve(to_quantize.size());
  for (auto const& [name, layer] : to_quantize) weights.push_back(at::empty(layer->weight.sizes(), at::kChar));
  for (std::size_t i = 0; i < weights.size(); ++i)
    to_quantize[i].second->put(weights[i], to_quantize[i].second->scale.detach());
  for (trained_optimizer const& one : trained) {
    auto const object =
        content.state.value(nlohmann::json::json_pointer(detail::places_of(one.name).optimizer), nlohmann::json::object());
    tensor_map tensors;
    std::string const prefix = one.prefix();
    for (auto const& [name, tensor] : content.optimizer)
      if (name.starts_with(prefix)) tensors.emplace(name.substr(prefix.size()), tensor);
    if (one.shards != nullptr) one.shards->cut(tensors, *one.parameters, source);
    detail::optimizer_shards::scope const shards(one.shards);
    load_optimizer(*one.optimizer, *one.parameters, object, tensors, one.name.empty() ? source : source + ", part " + one.name);
  }
  at::NoGradGuard const no_grad;
  for (auto const& [name, tensor] : live_model_tensors(model, trained, own_slices)) tensor.copy_(content.model.at(name));
}

}  // namespace keel::inline KEEL_MODE

namespace keel::detail::inline KEEL_MODE {

/// Throws checkpoint_error (E04) unless `saved` contains exactly the registered states, by name.
inline void require_same_states(std::vector<std::string> const& registered, nlohmann::json const& saved,
                                std::string const& source) {
  for (std::string const& name : registered) {
    if (!saved.contains(name))
      throw checkpoint_error("E04", source + " contains no state " + name +
                                        ", which this program registers. Do not register it, use another run directory, or set "
                                        "options.accept_changed_recipe to keep its current value.");
  }
  for (auto const& [name, value] : saved.items()) {
    if (std::find(registered.begin(), registered.end(), name) == registered.end())
      throw checkpoint_error("E04", source + " contains the state " + name +
                                        ", which this program does not register. Call trainer::register_state(\"" + name +
                                        "\", ..) before the run, or set options.accept_changed_recipe to drop it.");
  }
}

/// Throws checkpoint_error (E03) if checkpoint and program have different fingerprints for a name that options.accept does not contain.
inline void require_same_fingerprints(trainer_options const& options, nlohmann::json const& state, std::string const& source) {
  if (options.accept_changed_recipe) return;
  nlohmann::json const saved = state.value("fingerprints", nlohmann::json::object());
  if (!saved.is_object()) return;
  for (auto const& [name, now] : options.fingerprints) {
    bool const accepts = std::find(options.accept.begin(), options.accept.end(), name) != options.accept.end();
    if (accepts || !saved.contains(name) || saved[name] == now) continue;
    throw checkpoint_error("E03", source + " was saved with another " + name + ": its fingerprint was " +
                                      printable(saved[name].dump(), 60) + " and is now \"" + now + "\". Use that " + name +
                                      ", another run directory, or options.accept with {\"" + name + "\"}.");
  }
}

}  // namespace keel::detail::inline KEEL_MODE
