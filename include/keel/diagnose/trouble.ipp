// Definitions for trouble.hpp.
#pragma once

#include <iterator>
#include <keel/diagnose/trouble.hpp>

#include <keel/libtorch/detail/body_begin.inc>

namespace keel::detail::inline KEEL_MODE {

inline constexpr trouble_facts facts_of_troubles[] = {
    {trouble::blow_up, trouble_family::not_finite, "optimisation blow-up",
     "events skipped, incident, failed; gradient_norm and loss before the first of them; alarms of a spike",
     "a longer warm-up; the peak learning rate 3 to 10 times lower; keel::clip::global_norm<1.0>; keel::precision::bf16 in "
     "place of "
     "fp16; options.resume_at a checkpoint before it"},
    {trouble::bad_sample, trouble_family::not_finite, "bad sample",
     "events incident (place, rows), skipped, batch_finding; a gradient_norm that is flat before",
     "look at the row that the incident names; leave it out or repair it; keel::batch_guard::check<>; keel::nonfinite::skip<>"},
    {trouble::layer_numerics, trouble_family::not_finite, "numerics of a layer",
     "events incident (operation, unit), skipped; a gradient_norm that is flat before",
     "an epsilon, a clamp or a mask before the operation that the incident names; that operation in fp32; "
     "run.replay(incident, loss_of) shows it again"},
    {trouble::loss_scale, trouble_family::not_finite, "loss scale",
     "events skipped with an overflow of the loss scale; loss_scale; the recipe's precision",
     "keel::precision::bf16, which needs no scale; keel::clip::global_norm<1.0>; a lower learning rate"},
    {trouble::hardware, trouble_family::not_finite, "hardware", "events incident of the place transient",
     "the same update again with run.replay; another device; a test of its memory"},
    {trouble::rate_too_low, trouble_family::not_learning, "learning rate too low", "loss; lr; update_ratio of layers.jsonl",
     "run.lr_range_test, and a rate at which the loss falls fastest; a shorter warm-up; check what the schedule ends at"},
    {trouble::rate_too_high, trouble_family::not_learning, "learning rate too high",
     "loss; gradient_norm; update_ratio of layers.jsonl",
     "the learning rate 3 to 10 times lower; a warm-up; keel::clip::global_norm<1.0>; run.lr_range_test"},
    {trouble::wrong_labels, trouble_family::not_learning, "labels",
     "loss that stays where chance is; update_ratio, gradient_norm as usual",
     "look at inputs and labels of one batch; run.overfit_one_batch; check the shift by one and the order after shuffling"},
    {trouble::untrained_parameters, trouble_family::not_learning, "frozen or forgotten parameters",
     "event begins (frozen); grad_norm, update_ratio of layers.jsonl that are 0",
     "requires_grad_(true) on what is to train; look for detach() and NoGradGuard in the forward pass; the layers named"},
    {trouble::wrong_mask, trouble_family::not_learning, "mask", "ignored_labels; padding; grad_norm of layers.jsonl",
     "look at the mask of one batch; give padding and prompts the ignored label, and nothing else; a causal mask in attention"},
    {trouble::bad_initialization, trouble_family::not_learning, "initialisation or normalisation",
     "grad_norm, param_norm and activations of the first line of layers.jsonl; loss and gradient_norm at the start",
     "the initialisation of the layers named; a LayerNorm before each block; a residual branch that begins at 0"},
    {trouble::overfitting, trouble_family::overfitting, "overfitting", "events evaluated; loss",
     "keel::evaluation::early_stop, and load_best; fewer epochs; weight decay of 0.01 to 0.1; dropout; more data"},
    {trouble::collapse, trouble_family::collapse, "collapse",
     "loss that became constant; grad_norm and std of layers.jsonl that became 0",
     "options.resume_at a checkpoint before it, with a lower rate; keel::clip::global_norm<1.0>; look at the output for two "
     "inputs"},
    {trouble::oscillation, trouble_family::oscillation, "oscillation", "loss that swings; lr; gradient_norm",
     "the learning rate 3 to 10 times lower; a lower momentum; a warm-up; keel::accumulate<4>; shuffled data"},
    {trouble::forgetting, trouble_family::forgetting, "forgetting", "events evaluated whose best is the first; loss",
     "a lower learning rate; keel::lora; old data mixed into the new; fewer updates"},
    {trouble::activations, trouble_family::out_of_memory, "activations",
     "memory of the events failed and rung (during, held, peaks); memory.held, memory.forward",
     "keel::recompute; a smaller micro-batch with keel::accumulate; keel::precision::bf16; keel::oom::ladder<>"},
    {trouble::optimizer_state, trouble_family::out_of_memory, "optimizer state",
     "memory of the events failed and rung: during the first update; event begins (trained_bytes)",
     "keel::sgd, or bf16 state; keel::offload; fewer trained parameters with keel::lora; examples/run estimate before a run"},
    {trouble::memory_leak, trouble_family::out_of_memory, "leak", "memory.held from update to update; event memory_grows",
     "keep loss.item<double>() or loss.detach() in place of the loss; look for a list that grows; keel::profile::on_symptom<>"},
    {trouble::fragmentation, trouble_family::out_of_memory, "fragmentation",
     "memory.reserved beside memory.held; event memory_grows with a slope",
     "expandable_segments:True of the allocator; batches of one shape; look for memory outside of LibTorch"},
    {trouble::graph_in_evaluation, trouble_family::out_of_memory, "evaluation with a graph",
     "memory of the event failed (during evaluating); memory.between beside memory.forward",
     "torch::NoGradGuard around an evaluation of your own, or run.evaluate; no tensor of a loss in a sum; smaller batches "
     "there"},
    {trouble::graphs_in_accumulation, trouble_family::out_of_memory, "accumulation keeps graphs",
     "memory.accumulated; memory of the event failed (pieces, accumulated); event begins (trained_bytes)",
     "no tensor of a micro-batch kept until the update; loss.detach(); no retain_graph"},
    {trouble::waiting_for_data, trouble_family::slow, "waiting for data", "time.data beside time.total; event slowdown",
     "batches prepared on a thread ahead of the update; more workers; pinned memory; a faster disk"},
    {trouble::host_waits, trouble_family::slow, "waits of the host", "idle time in the profile's summary; time of no phase",
     "no .item() and no printing in the loss function; log every N updates; work of hooks on another thread"},
    {trouble::communication, trouble_family::slow, "communication", "communication in the profile's summary",
     "a lower sharding stage that still fits; more accumulation; a look at the links"},
    {trouble::slow_kernels, trouble_family::slow, "slow kernels",
     "mfu; calls and times of operations in the profile's summary; event slowdown of forward or backward",
     "bf16; larger operations in place of many small ones; fused attention; sizes in multiples of 8; a cooler machine"},
    {trouble::padding, trouble_family::slow, "padding", "padding",
     "rows of like lengths in a batch; packing; a shorter maximum"},
    {trouble::collective_mismatch, trouble_family::hang, "ranks call different collectives",
     "ranks/RANK.jsonl: one sequence number with two operations, sizes or types",
     "the same collectives in the same order on all ranks; no collective inside a condition on the rank"},
    {trouble::uneven_data, trouble_family::hang, "uneven data", "ranks/RANK.jsonl: a rank's data ended while others wait",
     "as many micro-batches on every rank; drop the last incomplete batch; a sampler that pads"},
    {trouble::dead_rank, trouble_family::hang, "a rank is dead",
     "ranks/RANK.jsonl: a rank failed or fell silent while others wait",
     "the first error over all ranks' logs; memory of that rank's machine; keel::timeout"},
    {trouble::no_progress, trouble_family::hang, "a process hangs",
     "event failed with E27, of one rank or another; no_progress.txt, the stacks of its threads",
     "what the training thread waits for in no_progress.txt: a lock, a disk, a loader's worker; start it again from its newest "
     "checkpoint"},
    {trouble::rendezvous, trouble_family::hang, "the ranks do not meet", "ranks/RANK.jsonl: joining without joined",
     "address and port; the world size; a port that is blocked"},
    {trouble::optimizer_not_resumed, trouble_family::not_resumed, "optimizer not resumed",
     "state of the events resumed and begins; event resumed_from",
     "no new optimizer, and no state that is cleared, after the resume; options.resume_from in place of weights_from"},
    {trouble::schedule_not_resumed, trouble_family::not_resumed, "schedule not resumed",
     "rates of the events resumed and begins; lr before and after the resume",
     "a schedule of the recipe; register_state for one of your own"},
    {trouble::data_not_resumed, trouble_family::not_resumed, "data not resumed", "batch before and after the resume",
     "fit, which goes on by itself; in your own loop begin at run.cursor(); register_state for a loader of your own"},
    {trouble::random_state_not_resumed, trouble_family::not_resumed, "random state not resumed",
     "random, seed and is_reseeded of the events resumed and begins",
     "no seed after the resume; keel::determinism::seeded<> seeds where the run begins"},
    {trouble::ranks_drift, trouble_family::ranks_differ, "ranks drift apart",
     "ranks/RANK.jsonl: one update with two checksums of what all ranks have, or two clipping coefficients",
     "options.resume_at a checkpoint before it; the same norm, clipping and decisions on all ranks; the same seed where "
     "parameters begin"},
    {trouble::wrong_norm, trouble_family::ranks_differ, "a norm that is not that of all shards",
     "ranks/RANK.jsonl: gradient_norm beside the root of the sum of all shard_norm squared",
     "sum the squares over the ranks before the root; count what is replicated once"},
};

}  // namespace keel::detail::inline KEEL_MODE

namespace keel::inline KEEL_MODE {

KEEL_BODY std::span<trouble_facts const> all_troubles() { return detail::facts_of_troubles; }

KEEL_BODY trouble_facts const& facts_about(trouble which) { return detail::facts_of_troubles[static_cast<std::size_t>(which)]; }

KEEL_BODY char const* to_string(trouble_family which) {
  constexpr char const* names[] = {"not finite",    "not learning", "overfitting", "collapse",    "oscillation", "forgetting",
                                   "out of memory", "slow",         "hang",        "not resumed", "ranks differ"};
  return names[static_cast<std::size_t>(which)];
}

KEEL_BODY std::string trouble_table() {
  std::string text = "| family | cause | judged from | what to do |\n|---|---|---|---|\n";
  for (trouble_facts const& one : all_troubles())
    text += std::string("| ") + to_string(one.family) + " | " + one.name + " | " + one.fields + " | " + one.fixes + " |\n";
  return text;
}

}  // namespace keel::inline KEEL_MODE

#include <keel/libtorch/detail/body_end.inc>
