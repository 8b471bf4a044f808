// Definitions for loss_watch.hpp.
#pragma once

#include <algorithm>
#include <exception>
#include <keel/diagnose/loss_watch.hpp>
#include <string_view>
#include <utility>

#include <keel/libtorch/detail/body_begin.inc>

namespace keel::detail::inline KEEL_MODE {

KEEL_BODY bool is_loss_of_libtorch(std::string_view name) {
  constexpr std::string_view losses[] = {"aten::cross_entropy_loss",
                                         "aten::nll_loss",
                                         "aten::nll_loss2d",
                                         "aten::nll_loss_nd",
                                         "aten::mse_loss",
                                         "aten::l1_loss",
                                         "aten::smooth_l1_loss",
                                         "aten::huber_loss",
                                         "aten::kl_div",
                                         "aten::poisson_nll_loss",
                                         "aten::ctc_loss",
                                         "aten::binary_cross_entropy",
                                         "aten::soft_margin_loss",
                                         "aten::multi_margin_loss",
                                         "aten::hinge_embedding_loss",
                                         "aten::multilabel_margin_loss",
                                         "aten::binary_cross_entropy_with_logits"};
  return std::find(std::begin(losses), std::end(losses), name) != std::end(losses);
}

KEEL_BODY void const* storage_key(at::Tensor const& tensor) {
  return tensor.defined() && tensor.has_storage() ? tensor.storage().unsafeGetStorageImpl() : nullptr;
}

KEEL_BODY std::vector<at::Tensor> tensors_in(c10::ArrayRef<c10::IValue const> values) {
  std::vector<at::Tensor> found;
  for (c10::IValue const& value : values) {
    if (value.isTensor()) found.push_back(value.toTensor());
    if (value.isTensorList()) {
      for (at::Tensor const& one : value.toTensorVector()) found.push_back(one);
    }
  }
  return found;
}

}  // namespace keel::detail::inline KEEL_MODE

namespace keel::inline KEEL_MODE {

KEEL_BODY loss_watch::loss_watch(std::vector<at::Tensor> const& batch)
    : alive_(batch), labels_(batch.empty() ? 0 : batch.size() - 1), has_labels_(batch.size() > 1) {
  for (std::size_t i = 0; i < batch.size(); ++i) {
    if (auto const* const key = detail::storage_key(batch[i])) made_of_[key].insert(i);
  }
}

KEEL_BODY loss_operands loss_watch::look_at(std::function<void()> const& pass) {
  {
    operation_observer::scope const observed(*this, {.inputs = true, .outputs = true});
    pass();
  }
  // A tensor that the model also takes as input is not the target.
  if (has_labels_ && goes_in_.count(labels_) > 0) met_ = {};
  loss_operands found = !named_.operation.empty() ? std::move(named_)
                        : !met_.operation.empty() ? std::move(met_)
                                                  : std::move(softmax_);
  found.goes_in = std::move(goes_in_);
  found.operations = std::move(operations_);
  found.attention_over = attention_over_;
  return found;
}

KEEL_BODY void loss_watch::look_at_softmax(std::string const& name, std::vector<at::Tensor> const& inputs) {
  if (inputs.empty() || !inputs[0].defined()) return;
  at::Tensor const& first = inputs[0];
  bool const is_softmax = name == "aten::softmax" || name == "aten::_softmax";
  bool const is_fused = name.find("scaled_dot_product") != std::string::npos;
  if (is_softmax && first.dim() >= 2 && first.size(-1) == first.size(-2))
    attention_over_ = std::max(attention_over_, first.size(-1));
  if (is_fused && first.dim() >= 3) attention_over_ = std::max(attention_over_, first.size(-2));
}

KEEL_BODY std::unique_ptr<at::ObserverContext> loss_watch::began(at::RecordFunction const& operation) {
  auto context = std::make_unique<begun>();
  try {
    std::string const name = operation.name();
    operations_.insert(name);
    std::vector<at::Tensor> const inputs = detail::tensors_in(inputs_of(operation));
    look_at_softmax(name, inputs);
    bool has_graph = false;
    bool meets_labels = false;
    at::Tensor of_model;
    at::Tensor of_labels;
    for (at::Tensor const& one : inputs) {
      if (!one.defined()) continue;
      if (one.requires_grad()) {
        has_graph = true;
        if (!one.is_leaf() && !of_model.defined()) of_model = one;
        continue;
      }
      auto const known = made_of_.find(detail::storage_key(one));
      if (known == made_of_.end()) continue;
      context->made_of.insert(known->second.begin(), known->second.end());
      if (has_labels_ && known->second.count(labels_) > 0) meets_labels = true, of_labels = one;
    }
    bool const has_parameter = std::any_of(inputs.begin(), inputs.end(), [](at::Tensor const& one) {
      return one.defined() && one.requires_grad() && one.is_leaf();
    });
    if (has_parameter) goes_in_.insert(context->made_of.begin(), context->made_of.end());
    if (has_graph) context->made_of.clear();
    if (inside_loss_ > 0 || !of_model.defined()) return context;
    auto const take = [&](loss_operands& to, at::Tensor const& output, at::Tensor const& target) {
      to.operation = name;
      to.output = output.detach();
      to.target = target.defined() ? target.detach() : at::Tensor();
      to.target_is_from.clear();
      auto const known = made_of_.find(detail::storage_key(target));
      if (target.defined() && known != made_of_.end()) to.target_is_from = known->second;
      to.value = at::Tensor();
    };
    if (detail::is_loss_of_libtorch(name)) {
      context->is_loss = true;
      ++inside_loss_;
      // LibTorch's argument order is (input, target). If both come from the model, as in a difference, the first is the output.
      at::Tensor const target = inputs.size() > 1 ? inputs[1] : at::Tensor();
      bool const is_turned = target.defined() && !inputs[0].requires_grad() && target.requires_grad();
      take(named_, is_turned ? target : inputs[0], is_turned ? inputs[0] : target);
    } else if (meets_labels) {
      context->is_loss = false;
      take(met_, of_model, of_labels);
    } else if (name == "aten::log_softmax") {
      take(softmax_, of_model, {});
    }
  } catch (std::exception const&) {
    // An observer must not throw; an operation that cannot be inspected is ignored.
  }
  return context;
}

KEEL_BODY void loss_watch::ended(at::RecordFunction const& operation, at::ObserverContext& context) {
  auto const& begun_with = static_cast<begun&>(context);
  try {
    std::vector<at::Tensor> const outputs =
        detail::tensors_in(c10::ArrayRef<c10::IValue const>(operation.outputs().data(), operation.outputs().size()));
    if (begun_with.is_loss) {
      --inside_loss_;
      if (!outputs.empty() && outputs[0].defined()) named_.value = outputs[0].detach();
    }
    if (begun_with.made_of.empty()) return;
    for (at::Tensor const& one : outputs) {
      auto const* const key = detail::storage_key(one);
      if (key == nullptr || one.requires_grad()) continue;
      alive_.push_back(one);
      made_of_[key].insert(begun_with.made_of.begin(), begun_with.made_of.end());
    }
  } catch (std::exception const&) {
    // As above.
  }
}

}  // namespace keel::inline KEEL_MODE

#include <keel/libtorch/detail/body_end.inc>
