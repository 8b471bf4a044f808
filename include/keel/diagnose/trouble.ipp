// Definitions for trouble.hpp.
#pragma once

#include <iterator>
#include <keel/diagnose/trouble.hpp>

#include <keel/libtorch/detail/body_begin.inc>

namespace keel::detail::inline KEEL_MODE {

inline constexpr trouble_facts facts_of_troubles[] = {
    {trouble::blow_up, trouble_family::not_finite, "optimisation blow-up",
     "events skipped, incident, failed; gradient_norm and loss before the first of them; spike alarms",
     "a longer warm-up; a peak learning rate 3 to 10 times lower; keel::clip::global_norm<1.0>; keel::precision::bf16 instead "
     "of fp16; restart from an earlier checkpoint (options.resume_at)"},
    {trouble::bad_sample, trouble_family::not_finite, "bad sample",
     "events incident (place, rows), skipped, batch_finding; flat gradient_norm before them",
     "inspect the row named by the incident; remove or repair it; keel::batch_guard::check<>; keel::nonfinite::skip<>"},
    {trouble::layer_numerics, trouble_family::not_finite, "numerics of a layer",
     "events incident (operation, unit), skipped; flat gradient_norm before them",
     "an epsilon, clamp or mask before the operation named by the incident; run that operation in fp32; run.replay(incident, "
     "loss_of) reproduces it"},
    {trouble::loss_scale, trouble_family::not_finite, "loss scale",
     "events skipped with a loss scale overflow; loss_scale; precision of the recipe",
     "keel::precision::bf16, which needs no loss scaling; keel::clip::global_norm<1.0>; a lower learning rate"},
    {trouble::hardware, trouble_family::not_finite, "hardware", "events incident with place `transient`",
     "repeat the update with run.replay; try another device; test the device's memory"},
    {trouble::rate_too_low, trouble_family::not_learning, "learning rate too low", "loss; lr; update_ratio in layers.jsonl",
     "run.lr_range_test, then the learning rate at which the loss falls fastest; a shorter warm-up; check the final learning "
     "rate of the schedule"},
    {trouble::rate_too_high, trouble_family::not_learning, "learning rate too high",
     "loss; gradient_norm; update_ratio in layers.jsonl",
     "a learning rate 3 to 10 times lower; a warm-up; keel::clip::global_norm<1.0>; run.lr_range_test"},
    {trouble::wrong_labels, trouble_family::not_learning, "labels",
     "loss at chance level; normal update_ratio and gradient_norm",
     "inspect the inputs and labels of one batch; run.overfit_one_batch; check the shift by one and the order after shuffling"},
    {trouble::untrained_parameters, trouble_family::not_learning, "frozen or forgotten parameters",
     "event begins (frozen); grad_norm or update_ratio of 0 in layers.jsonl",
     "requires_grad_(true) for parameters to train; look for detach() and NoGradGuard in the forward pass; check the layers "
     "named"},
    {trouble::wrong_mask, trouble_family::not_learning, "mask", "ignored_labels; padding; grad_norm in layers.jsonl",
     "inspect the mask of one batch; set the labels of padding and prompts, and only those, to the ignore index; use a causal "
     "mask in attention"},
    {trouble::bad_initialization, trouble_family::not_learning, "initialisation or normalisation",
     "grad_norm, param_norm and activations in the first line of layers.jsonl; loss and gradient_norm at the start",
     "check the initialization of the layers named; a LayerNorm before each block; residual branches initialized to 0"},
    {trouble::overfitting, trouble_family::overfitting, "overfitting", "events evaluated; loss",
     "keel::evaluation::early_stop and load_best; fewer epochs; weight decay of 0.01 to 0.1; dropout; more data"},
    {trouble::collapse, trouble_family::collapse, "collapse",
     "loss that became constant; grad_norm and std in layers.jsonl that became 0",
     "restart from an earlier checkpoint (options.resume_at) with a lower learning rate; keel::clip::global_norm<1.0>; compare "
     "the outputs for two different inputs"},
    {trouble::oscillation, trouble_family::oscillation, "oscillation", "oscillating loss; lr; gradient_norm",
     "a learning rate 3 to 10 times lower; a lower momentum; a warm-up; keel::accumulate<4>; shuffled data"},
    {trouble::forgetting, trouble_family::forgetting, "forgetting", "events evaluated, with the best value first; loss",
     "a lower learning rate; keel::lora; old data mixed into the new; fewer updates"},
    {trouble::activations, trouble_family::out_of_memory, "activations",
     "memory of the events failed and rung (during, held, peaks); memory.held, memory.forward",
     "keel::recompute; a smaller micro-batch with keel::accumulate; keel::precision::bf16; keel::oom::ladder<>"},
    {trouble::optimizer_state, trouble_family::out_of_memory, "optimizer state",
     "memory of the events failed and rung, during the first update; event begins (trained_bytes)",
     "keel::sgd, or bf16 state; keel::offload; fewer trainable parameters with keel::lora; examples/run estimate before a run"},
    {trouble::memory_leak, trouble_family::out_of_memory, "leak", "growth of memory.held between updates; event memory_grows",
     "store loss.item<double>() or loss.detach() instead of the loss; look for a list that grows; keel::profile::on_symptom<>"},
    {trouble::fragmentation, trouble_family::out_of_memory, "fragmentation",
     "memory.reserved compared with memory.held; event memory_grows with a slope",
     "expandable_segments:True for the allocator; batches of one shape; look for memory allocated outside LibTorch"},
    {trouble::graph_in_evaluation, trouble_family::out_of_memory, "evaluation with a graph",
     "memory of the event failed (during evaluating); memory.between compared with memory.forward",
     "torch::NoGradGuard around your own evaluation, or run.evaluate; do not sum loss tensors; smaller evaluation batches"},
    {trouble::graphs_in_accumulation, trouble_family::out_of_memory, "accumulation keeps graphs",
     "memory.accumulated; memory of the event failed (pieces, accumulated); event begins (trained_bytes)",
     "do not keep tensors of a micro-batch until the update; loss.detach(); do not set retain_graph"},
    {trouble::waiting_for_data, trouble_family::slow, "waiting for data", "time.data compared with time.total; event slowdown",
     "prefetch batches on another thread; more workers; pinned memory; a faster disk"},
    {trouble::host_waits, trouble_family::slow, "waits of the host",
     "idle time in the profile summary; time outside of all phases",
     "remove .item() and printing from the loss function; log every N updates; move hook work to another thread"},
    {trouble::communication, trouble_family::slow, "communication", "communication in the profile summary",
     "the lowest sharding stage that fits; more accumulation; check the links between devices"},
    {trouble::slow_kernels, trouble_family::slow, "slow kernels",
     "mfu; calls and times of operations in the profile summary; event slowdown in forward or backward",
     "bf16; larger operations instead of many small ones; fused attention; sizes in multiples of 8; better cooling"},
    {trouble::padding, trouble_family::slow, "padding", "padding",
     "batches of rows with similar lengths; packing; a shorter maximum length"},
    {trouble::collective_mismatch, trouble_family::hang, "ranks call different collectives",
     "ranks/RANK.jsonl: one sequence number with two operations, sizes or types",
     "the same collectives in the same order on all ranks; no collective inside a condition on the rank"},
    {trouble::uneven_data, trouble_family::hang, "uneven data",
     "ranks/RANK.jsonl: the data of one rank ended while others wait",
     "the same number of micro-batches on every rank; drop the last incomplete batch; a sampler that pads"},
    {trouble::dead_rank, trouble_family::hang, "a rank is dead",
     "ranks/RANK.jsonl: a rank failed or stopped reporting while others wait",
     "find the first error in the logs of all ranks; check the memory of that rank's machine; keel::timeout"},
    {trouble::no_progress, trouble_family::hang, "a process hangs",
     "event failed with E27 on any rank; thread stacks in no_progress.txt",
     "see no_progress.txt for what the training thread waits for: a lock, a disk, a data worker; restart from the newest "
     "checkpoint"},
    {trouble::rendezvous, trouble_family::hang, "the ranks do not meet", "ranks/RANK.jsonl: joining without joined",
     "check address and port; the world size; a firewall that blocks the port"},
    {trouble::optimizer_not_resumed, trouble_family::not_resumed, "optimizer not resumed",
     "state of the events resumed and begins; event resumed_from",
     "do not create a new optimizer or clear its state after the resume; options.resume_from instead of weights_from"},
    {trouble::schedule_not_resumed, trouble_family::not_resumed, "schedule not resumed",
     "rates of the events resumed and begins; lr before and after the resume",
     "a schedule in the recipe; register_state for your own schedule"},
    {trouble::data_not_resumed, trouble_family::not_resumed, "data not resumed", "batch before and after the resume",
     "fit, which continues by itself; in your own loop start at run.cursor(); register_state for your own loader"},
    {trouble::random_state_not_resumed, trouble_family::not_resumed, "random state not resumed",
     "random, seed and is_reseeded of the events resumed and begins",
     "do not set a seed after the resume; keel::determinism::seeded<> seeds the start of the run"},
    {trouble::ranks_drift, trouble_family::ranks_differ, "ranks drift apart",
     "ranks/RANK.jsonl: one update with two checksums of replicated state, or with two clipping coefficients",
     "restart from an earlier checkpoint (options.resume_at); the same norm, clipping and decisions on all ranks; the same "
     "seed for parameter initialization"},
    {trouble::wrong_norm, trouble_family::ranks_differ, "a norm that is not that of all shards",
     "ranks/RANK.jsonl: gradient_norm compared with the square root of the sum of all shard_norm squared",
     "sum the squares over the ranks before taking the square root; count replicated parameters once"},
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
  std::string text = "| family | cause | evidence | fix |\n|---|---|---|---|\n";
  for (trouble_facts const& one : all_troubles())
    text += std::string("| ") + to_string(one.family) + " | " + one.name + " | " + one.fields + " | " + one.fixes + " |\n";
  return text;
}

}  // namespace keel::inline KEEL_MODE

#include <keel/libtorch/detail/body_end.inc>
