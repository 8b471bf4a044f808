// The bodies of run_part.hpp.
#pragma once

#include <keel/libtorch/ivalue_first.hpp>

#include <algorithm>
#include <keel/checkpoint/archive.hpp>
#include <keel/core/error.hpp>
#include <keel/trainer/run_part.hpp>
#include <unordered_map>

#include <keel/libtorch/detail/body_begin.inc>

namespace keel::detail::inline KEEL_MODE {

KEEL_BODY void run_parts::add(run_part& one, run_part const* follows) {
  bool const is_sound = !one.name().empty() && std::all_of(one.name().begin(), one.name().end(), [](char letter) {
    return (letter >= 'a' && letter <= 'z') || (letter >= 'A' && letter <= 'Z') || (letter >= '0' && letter <= '9') ||
           letter == '_';
  });
  if (!is_sound || one.name() == "updates") {
    throw error("E11",
                "the part \"" + one.name() +
                    "\" needs a name of letters, digits and underscores, by which checkpoints and the record know it, and not "
                    "\"updates\". Name it as what it trains, such as \"generator\".");
  }
  std::unordered_map<at::TensorImpl const*, std::string> owners;
  for (run_part const* const other : all_) {
    if (other->name() == one.name())
      throw error("E11", "two parts of this run have the name " + one.name() + ". Give the second one another.");
    if (other == follows) continue;
    auto const& list = other->named_parameters();
    for (std::size_t i = 0; i < list.tensors.size(); ++i)
      owners.emplace(list.tensors[i].unsafeGetTensorImpl(), other->name() + " as " + list.names[i]);
  }
  // What several parts have followed trained them one after the other.
  if (follows != nullptr) {
    for (auto const& tensor : follows->named_parameters().tensors) owners.erase(tensor.unsafeGetTensorImpl());
  }
  auto const& list = one.named_parameters();
  for (std::size_t i = 0; i < list.tensors.size(); ++i) {
    auto const found = owners.find(list.tensors[i].unsafeGetTensorImpl());
    if (found == owners.end()) continue;
    throw error("E11", "the parts " + one.name() + " and " + found->second.substr(0, found->second.find(' ')) +
                           " of this run share a parameter, which " + one.name() + " has as " + list.names[i] +
                           ": each update of the one would be undone by the moments of the other. Give it to one of their "
                           "optimizers, or say keel::after(..) where the one trains when the other has ended.");
  }
  for (run_part* const other : all_) {
    if (&other->model() == &one.model()) continue;
    other->restore_on_skip(one.model());
    one.restore_on_skip(other->model());
  }
  if (follows == nullptr)
    joint_->register_module(one.name(), std::shared_ptr<torch::nn::Module>(std::shared_ptr<void>(), &one.model()));
  all_.push_back(&one);
}

KEEL_BODY void run_parts::take_back(run_part& one) {
  std::erase(all_, &one);
  bool const is_gone =
      std::none_of(all_.begin(), all_.end(), [&](run_part* const other) { return &other->model() == &one.model(); });
  for (run_part* const other : all_) {
    if (is_gone) other->forget(one.model());
  }
  auto const children = joint_->named_children();
  auto const* const own = children.find(one.name());
  if (own != nullptr && own->get() == &one.model()) joint_->unregister_module(one.name());
}

KEEL_BODY void run_parts::remove(run_part& one) {
  take_back(one);
  if (updates_ > 0) gone_ = one.name();
}

KEEL_BODY run_part& run_parts::first() const {
  if (all_.empty())
    throw error(
        "E12",
        "this run has no parts. Make them before its loop begins: keel::part<recipe> one{run, \"model\", model, optimizer};");
  return *all_.front();
}

KEEL_BODY run_part& run_parts::named(std::string const& part) const {
  return **std::find_if(all_.begin(), all_.end(), [&](run_part const* one) { return one->name() == part; });
}

KEEL_BODY void run_parts::require_free(run_part const& wanted_by, std::vector<at::Tensor> const& which) const {
  for (run_part const* const other : all_) {
    if (other == &wanted_by) continue;
    auto const& list = other->named_parameters();
    for (std::size_t i = 0; i < list.tensors.size(); ++i) {
      bool const is_wanted =
          std::any_of(which.begin(), which.end(), [&](at::Tensor const& one) { return one.is_same(list.tensors[i]); });
      if (is_wanted)
        throw error(
            "E11",
            "the part " + wanted_by.name() + " unfreezes " + list.names[i] + ", which the part " + other->name() +
                " trains: each update of the one would be undone by the moments of the other. Unfreeze it in one of them.");
    }
  }
}

KEEL_BODY bool run_parts::at_boundary() const {
  return std::all_of(all_.begin(), all_.end(), [](run_part const* one) { return one->at_boundary(); });
}

KEEL_BODY bool run_parts::has_news() const {
  return std::any_of(all_.begin(), all_.end(), [](run_part const* one) { return one->has_news(); });
}

KEEL_BODY bool run_parts::is_half_updated() const {
  return std::any_of(all_.begin(), all_.end(), [](run_part const* one) { return one->is_half_updated(); });
}

KEEL_BODY std::int64_t run_parts::skipped() const {
  std::int64_t sum = 0;
  for (run_part const* const one : all_) sum += one->skipped();
  return sum;
}

KEEL_BODY std::vector<trained_optimizer> run_parts::trained(config const& /*present*/) {
  if (!gone_.empty())
    throw error("E12", "the part " + gone_ +
                           " was destroyed while its run goes on, and no checkpoint would hold it. Make parts where they live "
                           "until finish().");
  std::vector<trained_optimizer> list;
  for (run_part* const one : all_) {
    config value = one->recipe_value();
    value.run = one->facts();
    list.push_back({one->name(), &one->optimizer(), &one->named_parameters(), value, one->shares()});
  }
  return list;
}

KEEL_BODY std::optional<rollback_request> run_parts::take_rollback_request(config& by) {
  std::optional<rollback_request> first;
  for (run_part* const one : all_) {
    auto const request = one->take_rollback_request();
    if (!request || first) continue;
    first = request;
    first->why = one->name() + ": " + first->why;
    by = one->recipe_value();
  }
  return first;
}

KEEL_BODY std::int64_t run_parts::rollback_distance(config const& /*recipe*/) {
  std::int64_t longest = 0;
  for (run_part const* const one : all_) longest = std::max(longest, keel::rollback_distance(one->recipe_value()));
  return longest;
}

template <class Archive>
void run_parts::visit_all(Archive& archive) {
  archive("updates", updates_);
  for (run_part* const one : all_) {
    nested state{*one};
    archive(one->name().c_str(), state);
  }
}

}  // namespace keel::detail::inline KEEL_MODE

#include <keel/libtorch/detail/body_end.inc>
