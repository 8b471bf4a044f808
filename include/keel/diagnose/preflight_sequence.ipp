// Definitions for preflight_sequence.hpp.
#pragma once

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <keel/core/out_of_memory.hpp>
#include <keel/diagnose/preflight_sequence.hpp>
#include <keel/metrics/number_format.hpp>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <keel/libtorch/detail/body_begin.inc>

namespace keel::detail::inline KEEL_MODE {

/// A tensor of the batch whose values, shifted in time, are the targets.
struct sequence_relation {
  std::size_t tensor = 0;
  std::int64_t time = 1;           ///< its time dimension
  bool target_is_by_time = false;  ///< the target was flattened time by time: all rows of one time, then the next
  std::int64_t shift = 0;          ///< the target at t is the tensor's value at t + shift
  std::int64_t rows = 0;
  std::int64_t length = 0;  ///< length of the target
  double share = 0.0;       ///< share of the counted targets for which this holds
};

/// Returns a tensor of a batch as [rows, time, ..].
KEEL_BODY at::Tensor by_row(at::Tensor const& tensor, std::int64_t time) { return tensor.transpose(1, time); }

/// Returns an output or a target as [rows, length, features]; undefined if it has another shape.
KEEL_BODY at::Tensor by_row_and_time(at::Tensor const& of, std::int64_t rows, std::int64_t length, bool flat_by_time) {
  if (of.dim() >= 1 && of.size(0) == rows * length) {
    return flat_by_time ? of.reshape({length, rows, -1}).transpose(0, 1) : of.reshape({rows, length, -1});
  }
  if (of.dim() >= 2 && flat_by_time && of.size(0) == length && of.size(1) == rows)
    return of.transpose(0, 1).reshape({rows, length, -1});
  if (of.dim() >= 2 && of.size(0) == rows && of.size(1) == length) return of.reshape({rows, length, -1});
  if (of.dim() == 3 && of.size(0) == rows && of.size(2) == length) return of.transpose(1, 2);
  if (of.dim() >= 2 && of.size(0) == length && of.size(1) == rows) return of.transpose(0, 1).reshape({rows, length, -1});
  return {};
}

/// Returns the share of `counted` positions of [rows, length] at which the target equals the value `shift` positions later; below 0 if
/// there are too few.
KEEL_BODY double share_at(at::Tensor const& values, at::Tensor const& target, at::Tensor const& counted, std::int64_t shift) {
  std::int64_t const begin = std::max<std::int64_t>(0, -shift);
  std::int64_t const end = std::min(target.size(1), values.size(1) - shift);
  if (end - begin < 2) return -1.0;
  at::Tensor const here = target.slice(1, begin, end);
  at::Tensor const there = values.slice(1, begin + shift, end + shift);
  at::Tensor const counts = counted.slice(1, begin, end);
  double const all = counts.sum().item<double>();
  if (all < 8.0) return -1.0;
  return here.eq(there).logical_and(counts).sum().item<double>() / all;
}

KEEL_BODY std::optional<sequence_relation> relation_of(tried_passes const& passes) {
  at::Tensor target = passes.target();
  if (!target.defined() || target.numel() < 16) return std::nullopt;
  target = target.detach().cpu();
  std::int64_t const ignored = passes.program.recipe().batch_guard.ignored;
  std::optional<sequence_relation> best;
  for (std::size_t i = 0; i < passes.tensors.size(); ++i) {
    bool const is_labels = passes.labels() == i;
    if (!passes.is_input[i] || passes.is_fixed[i] || is_labels) continue;
    at::Tensor const tensor = passes.tensors[i].detach().cpu();
    if (tensor.dim() < 2 || tensor.dim() > 3 || tensor.is_floating_point() != target.is_floating_point()) continue;
    for (std::int64_t const time : {1, 0, 2}) {
      if (time == 2 && tensor.dim() < 3) continue;
      at::Tensor const values = by_row(tensor, time);
      std::int64_t const rows = values.size(0);
      if (values.size(1) < 3) continue;
      // The target may be one feature, or all of them.
      std::int64_t const features = values.dim() == 3 ? values.size(2) : 1;
      for (bool const by_time : {false, true}) {
        for (std::int64_t feature = features > 1 ? -1 : 0; feature < std::min<std::int64_t>(features, 32); ++feature) {
          std::int64_t const wide = feature < 0 ? features : 1;
          if (target.numel() % (rows * wide) != 0) continue;
          std::int64_t const length = target.numel() / (rows * wide);
          if (length < 3 || length > values.size(1) + 1) continue;
          // If channels precede time in the input, they do in the target too.
          at::Tensor const wanted = by_time     ? target.reshape({length, rows, wide}).transpose(0, 1)
                                    : time == 2 ? target.reshape({rows, wide, length}).transpose(1, 2)
                                                : target.reshape({rows, length, wide});
          at::Tensor const chosen = feature < 0         ? values.reshape({rows, values.size(1), features})
                                    : values.dim() == 3 ? values.select(2, feature).unsqueeze(2)
                                                        : values.unsqueeze(2);
          at::Tensor const counted = target.is_floating_point() ? at::ones_like(wanted, at::kBool) : wanted.ne(ignored);
          for (std::int64_t shift = -1; shift <= 4; ++shift) {
            double const share = share_at(chosen, wanted, counted, shift);
            if (share < 0.95 || (best && share <= best->share)) continue;
            // If nearly all values are equal, every shift matches.
            double const other = share_at(chosen, wanted, counted, shift + (shift < 4 ? 1 : -1));
            if (other > 0.8) continue;
            best = sequence_relation{i, time, by_time, shift, rows, length, share};
          }
        }
      }
    }
  }
  return best;
}

/// Returns the first position in [rows, length] at which two outputs differ; nullopt if there is none.
KEEL_BODY std::optional<std::int64_t> first_changed_time(at::Tensor const& before, at::Tensor const& after, std::int64_t end) {
  if (end <= 0) return std::nullopt;
  at::Tensor const changed = where_changed(before, after).any(2).any(0).slice(0, 0, end);
  if (!changed.any().item<bool>()) return std::nullopt;
  return changed.nonzero()[0].item<std::int64_t>();
}

KEEL_BODY at::Tensor with_other_times(at::Tensor const& tensor, std::int64_t time, std::int64_t begin, std::int64_t end) {
  at::Tensor changed = tensor.clone();
  at::Tensor const values = by_row(changed, time);
  values.slice(1, begin, end).copy_(drawn_from(by_row(tensor, time), 7).slice(1, begin, end));
  return changed;
}

KEEL_BODY void check_look_ahead(tried_passes const& passes, preflight_table& table) {
  constexpr char const* check = "look-ahead";
  constexpr char const* shift_check = "shift of targets";
  if (passes.is_autoencoder || !passes.has_output()) {
    table.not_applicable(check, passes.is_autoencoder ? "the inputs are the targets, as in an autoencoder"
                                                      : "the model's output cannot be found in the loss");
    return;
  }
  auto const relation = relation_of(passes);
  if (!relation) {
    table.not_applicable(check, "the targets are not later inputs of a sequence");
    return;
  }
  mode_scope const modes(passes.program.all_models());
  if (normalises_over_a_batch(passes.program.all_models())) passes.program.all_models().eval();
  auto const output_of = [&](tried_pass const& one) {
    return one.operands.output.defined()
               ? by_row_and_time(one.operands.output.cpu(), relation->rows, relation->length, relation->target_is_by_time)
               : at::Tensor();
  };
  at::Tensor const before = output_of(passes.first);
  at::Tensor const& tensor = passes.tensors[relation->tensor];
  std::int64_t const length = by_row(tensor, relation->time).size(1);
  std::int64_t const shift = relation->shift;
  auto const after_change = [&](std::int64_t begin, std::int64_t end) {
    return output_of(passes.pass(passes.with(relation->tensor, with_other_times(tensor, relation->time, begin, end))));
  };
  if (shift < 1) {
    // The target is the input at this or an earlier position. That is a mistake only if the output depends on it.
    std::int64_t const place = length / 2;
    at::Tensor const after = before.defined() ? after_change(place, place + 1) : at::Tensor();
    bool const is_seen = !before.defined() ||
                         (after.defined() && after.sizes() == before.sizes() &&
                          where_changed(before, after).any(2).any(0)[std::max<std::int64_t>(0, place - shift)].item<bool>());
    if (is_seen) {
      table.failed(shift_check,
                   shift == 0 ? "the target at each position is the input at that position, which the model sees"
                              : "the target at each position is the input before it, which the model has seen",
                   "use the sequence without its last element as inputs, and without its first as targets");
    } else {
      table.passed(shift_check, "the model does not see the input that is the target");
    }
    return;
  }
  if (shift > 1) {
    table.failed(
        shift_check,
        "the target at each position is the input " + std::to_string(shift) + " positions later: the next one is skipped",
        "shift by one: use the sequence without its last element as inputs, and without its first as targets");
  } else {
    table.passed(shift_check, formatted("the target is the next input, at %.0f %% of the positions", 100.0 * relation->share));
  }
  if (!before.defined()) {
    table.not_applicable(check, "the output has no time dimension");
    return;
  }
  std::int64_t const cuts[] = {length - 1, length / 2, std::max<std::int64_t>(1, length / 4), 1};
  for (std::int64_t const cut : cuts) {
    if (cut < 1 || cut >= length) continue;
    at::Tensor const after = after_change(cut, length);
    if (!after.defined() || after.sizes() != before.sizes()) continue;
    // The output at t may depend on inputs before t + shift.
    auto const seen = first_changed_time(before, after, std::min(relation->length, cut - shift + 1));
    if (!seen) continue;
    table.failed(check,
                 "label leak: the output at position " + std::to_string(*seen) + " depends on inputs from position " +
                     std::to_string(cut) + " on, which include its target",
                 "use a causal mask in attention (scores of later positions minus infinity before the softmax), causal "
                 "convolutions, or a unidirectional RNN");
    return;
  }
  table.passed(check, "no output depends on a later input");
}

/// Returns the column of [rows, columns] that is constant within each class and not constant overall; nullopt if there is none.
KEEL_BODY std::optional<std::int64_t> column_that_names_the_class(at::Tensor const& inputs, at::Tensor const& labels) {
  std::map<std::int64_t, std::int64_t> counts;
  at::Tensor const flat = labels.to(at::kLong).contiguous();
  auto const* const label = flat.data_ptr<std::int64_t>();
  for (std::int64_t i = 0; i < flat.numel(); ++i) ++counts[label[i]];
  if (counts.size() < 2) return std::nullopt;
  at::Tensor is_constant = at::ones({inputs.size(1)}, at::kBool);
  std::vector<at::Tensor> values;
  std::int64_t judged = 0;
  for (auto const& [name, count] : counts) {
    at::Tensor const of_class = inputs.index_select(0, flat.eq(name).nonzero().squeeze(1));
    values.push_back(of_class[0]);
    if (count < 2) continue;
    judged += count;
    is_constant = is_constant.logical_and(of_class.eq(of_class[0].unsqueeze(0)).all(0));
  }
  constexpr std::int64_t enough = 24;
  if (judged < enough) return std::nullopt;
  at::Tensor const all = at::stack(values);
  at::Tensor const differs = all.ne(all[0].unsqueeze(0)).any(0);
  at::Tensor const found = is_constant.logical_and(differs).nonzero();
  if (found.size(0) == 0) return std::nullopt;
  return found[0][0].item<std::int64_t>();
}

/// Returns the column of the inputs that is an affine function of the target; nullopt if there is none.
KEEL_BODY std::optional<std::int64_t> column_that_is_the_target(at::Tensor const& inputs, at::Tensor const& targets) {
  auto const standard = [](at::Tensor const& of) {
    at::Tensor const centred = of - of.mean(0, true);
    return centred / centred.norm(2, 0, true).clamp_min(1e-12);
  };
  at::Tensor const correlation = standard(inputs).t().matmul(standard(targets)).abs();
  at::Tensor const found = correlation.gt(0.999999).any(1).nonzero();
  if (found.size(0) == 0) return std::nullopt;
  return found[0][0].item<std::int64_t>();
}

KEEL_BODY void check_targets_in_inputs(tried_passes const& passes, preflight_table& table) {
  constexpr char const* check = "targets in inputs";
  preflight_program& program = passes.program;
  auto const labels = passes.labels();
  if (!labels || passes.is_autoencoder) {
    table.not_applicable(
        check, passes.is_autoencoder ? "the inputs are the targets, as in an autoencoder" : "the batch is one tensor");
    return;
  }
  if (relation_of(passes)) {
    table.not_applicable(check, "the targets are inputs of a sequence; see look-ahead");
    return;
  }
  constexpr std::int64_t enough_rows = 1024;
  constexpr std::int64_t max_columns = 4096;
  std::vector<std::vector<at::Tensor>> inputs(*labels);
  std::vector<at::Tensor> targets;
  std::int64_t rows = 0;
  for (std::size_t i = 0; i < program.batches() && rows < enough_rows; ++i) {
    std::vector<at::Tensor> const tensors = program.tensors(i);
    if (tensors.size() != passes.tensors.size()) continue;
    at::Tensor const target = tensors.back().detach().cpu();
    if (target.dim() == 0 || target.size(0) == 0) continue;
    bool fits = targets.empty() || targets[0].size(1) == target.numel() / target.size(0);
    for (std::size_t k = 0; k < *labels; ++k) {
      fits = fits && tensors[k].dim() > 0 && tensors[k].size(0) == target.size(0) &&
             (inputs[k].empty() || inputs[k][0].size(1) == tensors[k].numel() / tensors[k].size(0));
    }
    if (!fits) continue;
    targets.push_back(target.reshape({target.size(0), -1}));
    for (std::size_t k = 0; k < *labels; ++k) inputs[k].push_back(tensors[k].detach().cpu().reshape({tensors[k].size(0), -1}));
    rows += target.size(0);
  }
  if (targets.empty()) {
    table.not_applicable(check, "inputs and labels have different numbers of rows");
    return;
  }
  at::Tensor const target = at::cat(targets);
  constexpr std::int64_t most_targets = 16;
  if (rows < 24 || target.size(1) > most_targets) {
    table.not_applicable(check, rows < 24 ? "at least 24 rows are needed" : "a row has more than 16 targets");
    return;
  }
  std::int64_t looked_at = 0;
  for (std::size_t k = 0; k < *labels; ++k) {
    if (!passes.is_input[k]) continue;
    at::Tensor const input = at::cat(inputs[k]).slice(1, 0, max_columns).to(at::kDouble);
    // A single input column may legitimately determine the target.
    if (input.size(1) < 2) continue;
    looked_at += input.size(1);
    std::optional<std::int64_t> column;
    if (target.is_floating_point()) {
      column = column_that_is_the_target(input, target.to(at::kDouble));
    } else if (target.size(1) == 1) {
      column = column_that_names_the_class(input, target.squeeze(1));
    }
    if (!column) continue;
    table.failed(check,
                 "label leak: column " + std::to_string(*column) + " of tensor " + std::to_string(k + 1) +
                     " of the batch determines the target in all " + std::to_string(rows) + " rows",
                 "remove it from the inputs; look for a feature that is derived from the target, or known only after it");
    return;
  }
  table.passed(check, formatted("none of %lld columns determines the target in %lld rows", static_cast<long long>(looked_at),
                                static_cast<long long>(rows)));
}

/// Returns the id that pads rows at their end; nullopt if rows do not look padded.
KEEL_BODY std::optional<std::int64_t> padding_of(at::Tensor const& ids, config const& recipe) {
  if (recipe.batch_guard.padding >= 0) return recipe.batch_guard.padding;
  std::int64_t const rows = ids.size(0), length = ids.size(1);
  at::Tensor const flat = ids.to(at::kLong).contiguous();
  auto const* const id = flat.data_ptr<std::int64_t>();
  std::map<std::int64_t, std::int64_t> filled;
  std::map<std::int64_t, std::vector<std::int64_t>> lengths;
  for (std::int64_t row = 0; row < rows; ++row) {
    std::int64_t const* const last = id + row * length + length - 1;
    std::int64_t run = 1;
    while (run < length && last[-run] == *last) ++run;
    if (run >= 2) ++filled[*last];
    lengths[*last].push_back(run);
  }
  for (auto const& [value, count] : filled) {
    auto const [least, most] = std::minmax_element(lengths[value].begin(), lengths[value].end());
    // Only padding ends half of the rows with repetitions of the same id.
    if (rows >= 4 && 2 * count >= rows && *most >= 3 && *most > *least && *most < length) return value;
  }
  return std::nullopt;
}

struct mask_findings {
  std::vector<std::string> seen;
  std::string wrong;
  std::string fix;
};

/// Checks a mask: a tensor of the batch of the size of the ids that marks each position as visible or hidden.
KEEL_BODY void look_at_mask(tried_passes const& passes, std::size_t ids, std::size_t mask, mask_findings& to) {
  at::Tensor const values = passes.tensors[mask].detach().cpu().to(at::kDouble);
  at::Tensor const tokens = passes.tensors[ids].detach().cpu();
  at::Tensor const ones = values.ne(0);
  auto const most_common_share = [&](at::Tensor const& where) {
    at::Tensor const chosen = tokens.masked_select(where);
    if (chosen.numel() == 0) return 0.0;
    at::Tensor const sorted = std::get<0>(chosen.to(at::kDouble).sort());
    return sorted.eq(sorted[sorted.numel() / 2]).sum().item<double>() / static_cast<double>(sorted.numel());
  };
  double const of_ones = most_common_share(ones), of_zeros = most_common_share(ones.logical_not());
  // If rows are padded, all hidden ids are equal; otherwise 1 is assumed to mean visible.
  bool const hides_ones = of_ones > 0.95 && of_zeros < 0.8;
  at::Tensor const hidden = hides_ones ? ones : ones.logical_not();
  std::string const name = "the mask, tensor " + std::to_string(mask + 1) + " of the batch,";
  tried_pass const without = passes.pass(passes.with(mask, drawn_from(passes.tensors[mask], 9)));
  if (!passes.is_input[mask] && !is_changed(passes.first, without)) {
    to.wrong = name + " changes neither the output nor the loss";
    to.fix = "apply it: in attention before the softmax, in means over positions, in the mean of the loss";
    return;
  }
  // A mask that affects only the loss hides targets; one that affects the model hides inputs.
  auto const labels = passes.labels();
  std::size_t const of = passes.is_input[mask] || !labels || passes.tensors[*labels].sizes() != tokens.sizes() ? ids : *labels;
  if (of == ids && !passes.is_input[mask]) return;
  char const* const what = of == ids ? "inputs" : "labels";
  at::Tensor const device_hidden = hidden.to(passes.tensors[of].device());
  at::Tensor const other = drawn_from(passes.tensors[of], 11);
  auto const changes = [&](at::Tensor const& where) {
    tried_pass const now = passes.pass(passes.with(of, at::where(where, other, passes.tensors[of])));
    return is_changed(passes.first, now);
  };
  if (changes(device_hidden)) {
    to.wrong = name + " hides positions whose " + what + " still change the loss";
    to.fix = "apply it in attention before the softmax, in means, and to the loss; check whether 1 means visible or hidden";
  } else if (!changes(device_hidden.logical_not())) {
    to.wrong = name + " shows positions whose " + what + " do not change the loss";
    to.fix = "check whether 1 means visible or hidden";
  } else {
    to.seen.push_back(std::string("hidden positions do not change the loss, and visible ones do (") + what + ")");
  }
}

KEEL_BODY void look_at_padding(tried_passes const& passes, std::size_t ids, std::int64_t padding, mask_findings& to) {
  at::Tensor const tokens = passes.tensors[ids].detach().cpu();
  std::int64_t const rows = tokens.size(0), length = tokens.size(1);
  at::Tensor const is_padding = tokens.eq(padding);
  if (!is_padding.any().item<bool>()) return;
  auto const labels = passes.labels();
  std::int64_t const ignored = passes.program.recipe().batch_guard.ignored;
  if (labels && passes.tensors[*labels].sizes() == tokens.sizes() && !passes.tensors[*labels].is_floating_point()) {
    // Positions at which the input is padding and the label is not ignored.
    at::Tensor const target = passes.tensors[*labels].detach().cpu();
    at::Tensor const where = is_padding.logical_and(target.ne(ignored));
    at::Tensor const other = at::where(where, drawn_from(target.clamp_min(0), 13), target).to(passes.tensors[*labels].device());
    if (where.any().item<bool>() && is_changed(passes.first, passes.pass(passes.with(*labels, other)))) {
      to.wrong = formatted("labels count in the loss where the inputs are padding (id %lld)", static_cast<long long>(padding));
      to.fix = "set these labels to the ignore index, " + std::to_string(ignored) + ", or exclude them from the mean";
      return;
    }
    to.seen.push_back("labels of padding are ignored");
  }
  // One row alone, with and without its padding.
  at::Tensor const lengths = is_padding.logical_not().sum(1);
  std::int64_t row = -1;
  for (std::int64_t i = 0; i < rows && row < 0; ++i) {
    std::int64_t const there = lengths[i].item<std::int64_t>();
    bool const is_at_the_end = there >= 2 && there < length && !is_padding[i].slice(0, 0, there).any().item<bool>();
    if (is_at_the_end) row = i;
  }
  if (row < 0 || !passes.has_output()) return;
  std::int64_t const there = lengths[row].item<std::int64_t>();
  // Without dropout, whose random numbers depend on the shape.
  mode_scope const modes(passes.program.all_models());
  passes.program.all_models().eval();
  auto const cut = [&](std::int64_t to_length) {
    std::vector<at::Tensor> instead;
    for (at::Tensor const& one : passes.tensors) {
      at::Tensor part = one.dim() > 0 && one.size(0) == rows ? one.slice(0, row, row + 1) : one;
      if (part.dim() > 1 && part.size(1) == length) part = part.slice(1, 0, to_length);
      instead.push_back(part.contiguous());
    }
    return passes.pass(instead).operands.output;
  };
  try {
    at::Tensor whole = cut(length), alone = cut(there);
    if (!whole.defined() || !alone.defined()) return;
    if (whole.sizes() != alone.sizes()) {
      whole = by_row_and_time(whole.cpu(), 1, length, false);
      alone = by_row_and_time(alone.cpu(), 1, there, false);
      if (!whole.defined() || !alone.defined()) return;
      whole = whole.slice(1, 0, there);
    }
    if (whole.sizes() != alone.sizes()) return;
    double const scale = alone.to(at::kDouble).abs().max().item<double>();
    double const off = (whole.to(at::kDouble) - alone.to(at::kDouble)).abs().max().item<double>();
    if (off > 0.01 * scale) {
      to.wrong = formatted("padding (id %lld) changes the output at other positions", static_cast<long long>(padding));
      to.fix = "mask the padding in attention and in means";
    } else {
      to.seen.push_back("padding does not change the output at other positions");
    }
  } catch (std::exception const&) {
    // The model accepts rows of only one length.
  }
}

KEEL_BODY void check_masks(tried_passes const& passes, preflight_table& table) {
  constexpr char const* check = "masks";
  mode_scope const modes(passes.program.all_models());
  if (normalises_over_a_batch(passes.program.all_models())) passes.program.all_models().eval();
  mask_findings found;
  auto const labels = passes.labels();
  for (std::size_t i = 0; i < passes.tensors.size() && found.wrong.empty(); ++i) {
    at::Tensor const& ids = passes.tensors[i];
    if (!passes.is_input[i] || (labels && i == *labels) || ids.dim() < 2) continue;
    bool const are_ids = at::isIntegralType(ids.scalar_type(), /*includeBool=*/false);
    for (std::size_t k = 0; k < passes.tensors.size() && found.wrong.empty(); ++k) {
      at::Tensor const& mask = passes.tensors[k];
      if (k == i || (labels && k == *labels && mask.scalar_type() != at::kBool) || mask.sizes() != ids.sizes()) continue;
      bool const is_mask = mask.scalar_type() == at::kBool || mask.eq(0).logical_or(mask.eq(1)).all().item<bool>();
      if (is_mask && mask.ne(0).any().item<bool>() && mask.eq(0).any().item<bool>()) look_at_mask(passes, i, k, found);
    }
    if (!are_ids || ids.dim() != 2 || !found.wrong.empty()) continue;
    if (auto const padding = padding_of(ids.detach().cpu(), passes.program.recipe()))
      look_at_padding(passes, i, *padding, found);
  }
  // Attention that reaches only its own position.
  auto const relation = found.wrong.empty() && passes.has_output() ? relation_of(passes) : std::nullopt;
  if (relation && passes.first.operands.attention_over > 1) {
    at::Tensor const& tensor = passes.tensors[relation->tensor];
    std::int64_t const length = by_row(tensor, relation->time).size(1);
    auto const output_of = [&](tried_pass const& one) {
      return by_row_and_time(one.operands.output.cpu(), relation->rows, relation->length, relation->target_is_by_time);
    };
    at::Tensor const before = output_of(passes.first);
    std::int64_t const place = std::min(length / 2, relation->length - 2);
    at::Tensor const after =
        place < 0
            ? at::Tensor()
            : output_of(passes.pass(passes.with(relation->tensor, with_other_times(tensor, relation->time, place, place + 1))));
    if (before.defined() && after.defined() && after.sizes() == before.sizes()) {
      at::Tensor changed = where_changed(before, after).any(2).any(0);
      bool const itself = changed[place].item<bool>();
      changed[place].fill_(false);
      if (!changed.any().item<bool>()) {
        found.wrong = itself
                          ? "the model has attention, but the output at a position depends only on that position"
                          : "the model has attention, but no output depends on the input at position " + std::to_string(place);
        found.fix = "check the attention mask: each position must see itself and those before it";
      } else {
        found.seen.push_back("attention reaches other positions");
      }
    }
  }
  if (!found.wrong.empty()) {
    table.failed(check, found.wrong, found.fix);
  } else if (found.seen.empty()) {
    table.not_applicable(check, "the batch has no mask and no padding, and there is no attention over later targets");
  } else {
    std::string words;
    for (std::string const& one : found.seen) words += (words.empty() ? "" : "; ") + one;
    table.passed(check, words);
  }
}

}  // namespace keel::detail::inline KEEL_MODE

#include <keel/libtorch/detail/body_end.inc>
