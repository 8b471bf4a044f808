// Causes of trouble, each written once with its evidence and its fixes. Triage, the built-in alarms, the guide and explain derive from this
// table; keel/diagnose/README.md shows it.
#pragma once

#include <keel/policy/text.hpp>

namespace keel {

/// Families of trouble.
enum class trouble_family : unsigned char {
  not_finite,
  not_learning,
  overfitting,
  collapse,
  oscillation,
  forgetting,
  out_of_memory,
  slow,
  hang,
  not_resumed,
  ranks_differ
};

/// Causes of trouble, by family.
enum class trouble : unsigned char {
  blow_up,
  bad_sample,
  layer_numerics,
  loss_scale,
  hardware,
  low_precision,
  rate_too_low,
  rate_too_high,
  short_warmup,
  no_clipping,
  wrong_labels,
  untrained_parameters,
  wrong_mask,
  bad_initialization,
  strong_regularization,
  overfitting,
  collapse,
  oscillation,
  forgetting,
  activations,
  optimizer_state,
  memory_leak,
  fragmentation,
  graph_in_evaluation,
  graphs_in_accumulation,
  waiting_for_data,
  host_waits,
  communication,
  slow_kernels,
  padding,
  busy_machine,
  collective_mismatch,
  uneven_data,
  dead_rank,
  no_progress,
  rendezvous,
  optimizer_not_resumed,
  schedule_not_resumed,
  data_not_resumed,
  random_state_not_resumed,
  ranks_drift,
  wrong_norm
};

/// Maximum number of causes of one symptom, and of fixes of one cause, alarm or symptom.
inline constexpr int max_texts = 6;

/// Fixes, the least invasive first; null after the last.
struct fix_list {
  char const* texts[max_texts] = {};  ///< the fixes

  /// Returns the fix at this place, or null.
  constexpr char const* operator[](int place) const { return texts[place]; }
  constexpr char const* const* begin() const { return texts; }            ///< the first
  constexpr char const* const* end() const { return texts + max_texts; }  ///< behind the last place
};

struct trouble_facts {
  trouble cause;
  trouble_family family;
  char const* name;    ///< "learning rate too high"
  char const* fields;  ///< the evidence: fields of the run directory; empty for a cause that triage does not distinguish
  fix_list fixes;

  template <class... Fixes>
  constexpr trouble_facts(trouble which, trouble_family of, char const* text, char const* evidence, Fixes... remedies)
      : cause(which), family(of), name(text), fields(evidence), fixes{{remedies...}} {}
};

/// All causes, in the order of the enumeration.
inline constexpr trouble_facts all_troubles[] = {
    {trouble::blow_up, trouble_family::not_finite, "optimization blow-up",
     "events skipped, incident, failed; gradient_norm and loss before the first of them; spike alarms",
     "a warm-up of 5 to 10 % of the run", "a learning rate 3 to 10 times lower", "keel::clip::global_norm<1.0>",
     "keel::precision::bf16 instead of fp16", "restart from an earlier checkpoint (options.resume_at)"},
    {trouble::bad_sample, trouble_family::not_finite, "a bad sample",
     "events incident (place, rows), skipped, batch_finding; flat gradient_norm before them",
     "inspect the batch of that update: the incident of a non-finite update names the row", "remove or repair that sample",
     "keel::batch_guard::check<>", "keel::nonfinite::skip<> or keel::spike::skip<>"},
    {trouble::layer_numerics, trouble_family::not_finite,
     "numerics of a layer, such as log(0), 0/0 or the square root of a negative number",
     "events incident (operation, unit), skipped; flat gradient_norm before them",
     "an epsilon, clamp or mask before the operation named by the incident", "fp32 for the operation named by the incident",
     "run.replay(incident, loss_of), which reproduces it"},
    {trouble::loss_scale, trouble_family::not_finite, "fp16 overflow: the loss scale cannot settle",
     "events skipped with a loss scale overflow; loss_scale; precision of the recipe", "keel::precision::bf16 instead of fp16",
     "keel::clip::global_norm<1.0>", "a learning rate 3 to 10 times lower"},
    {trouble::hardware, trouble_family::not_finite, "a hardware fault, or a race between threads",
     "events incident with place `transient`", "repeat the update with run.replay", "try another device",
     "test the device's memory"},
    {trouble::low_precision, trouble_family::not_finite, "precision too low", "", "keel::precision::bf16 instead of fp16",
     "keel::precision::fp32, to see whether the problem goes away"},
    {trouble::rate_too_low, trouble_family::not_learning, "learning rate too low", "loss; lr; update_ratio in layers.jsonl",
     "run.lr_range_test, then the learning rate at which the loss falls fastest",
     "typical learning rates: 1e-5 to 5e-5 for all parameters, 1e-4 to 3e-4 with LoRA",
     "check the final learning rate of the schedule", "a shorter warm-up"},
    {trouble::rate_too_high, trouble_family::not_learning, "learning rate too high",
     "loss; gradient_norm; update_ratio in layers.jsonl", "a learning rate 3 to 10 times lower",
     "a warm-up of 5 to 10 % of the run", "keel::clip::global_norm<1.0>", "run.lr_range_test",
     "a falling schedule such as keel::schedule::cosine<>", "restart from an earlier checkpoint (options.resume_at)"},
    {trouble::short_warmup, trouble_family::not_learning, "no warm-up, or one that is too short", "",
     "a warm-up of 5 to 10 % of the run", "a learning rate 3 to 10 times lower"},
    {trouble::no_clipping, trouble_family::not_learning, "gradients are not clipped", "", "keel::clip::global_norm<1.0>"},
    {trouble::wrong_labels, trouble_family::not_learning, "labels that do not match the inputs",
     "loss at chance level; normal update_ratio and gradient_norm", "inspect the inputs and labels of one batch",
     "run.overfit_one_batch: a model that cannot memorize one batch has a bug",
     "check the order after shuffling, and the shift: inputs without the last element, targets without the first"},
    {trouble::untrained_parameters, trouble_family::not_learning, "frozen or forgotten parameters",
     "event begins (frozen); grad_norm or update_ratio of 0 in layers.jsonl", "requires_grad_(true) for parameters to train",
     "look for detach(), NoGradGuard and eval() in the forward pass",
     "check the layers with an update_ratio of 0 in layers.jsonl"},
    {trouble::wrong_mask, trouble_family::not_learning, "wrong mask", "ignored_labels; padding; grad_norm in layers.jsonl",
     "inspect the mask of one batch", "set the labels of padding and prompts, and only those, to the ignore index, -100",
     "use a causal mask in attention"},
    {trouble::bad_initialization, trouble_family::not_learning, "bad initialization or missing normalization",
     "grad_norm, param_norm and activations in the first line of layers.jsonl; loss and gradient_norm at the start",
     "check the initialization of the layers: layers.jsonl has their norms", "a LayerNorm before each block",
     "residual branches initialized to 0"},
    {trouble::strong_regularization, trouble_family::not_learning, "regularization too strong for the data", "",
     "weight decay of 0.01, with LoRA below 0.1", "label smoothing of at most 0.1", "less dropout"},
    {trouble::overfitting, trouble_family::overfitting,
     "overfitting: too many epochs for this amount of data, or too little regularization", "events evaluated; loss",
     "keel::evaluation::early_stop and load_best", "fewer epochs, or more data", "weight decay of 0.01 to 0.1",
     "dropout of 0.05", "a LoRA rank of 8 to 32"},
    {trouble::collapse, trouble_family::collapse, "collapse: the output no longer depends on the input",
     "loss that became constant; grad_norm and std in layers.jsonl that became 0",
     "compare the outputs for two different inputs",
     "restart from an earlier checkpoint (options.resume_at) with a lower learning rate", "keel::clip::global_norm<1.0>"},
    {trouble::oscillation, trouble_family::oscillation, "oscillation: learning rate or momentum too high, or batch too small",
     "oscillating loss; lr; gradient_norm", "a learning rate 3 to 10 times lower", "a lower momentum",
     "a warm-up of 5 to 10 % of the run", "keel::accumulate<4>", "shuffled data"},
    {trouble::forgetting, trouble_family::forgetting, "forgetting: training on new data alone",
     "events evaluated, with the best value first; loss", "a lower learning rate", "keel::lora, or fewer trainable layers",
     "old data mixed into the new", "fewer updates"},
    {trouble::activations, trouble_family::out_of_memory, "activations, which grow with batch size and sequence length",
     "memory of the events failed and rung (during, held, peaks); memory.held, memory.forward", "keel::recompute",
     "a smaller micro-batch with keel::accumulate", "keel::precision::bf16",
     "keel::oom::ladder<halve_micro_batch, enable_recompute<..>, offload_optimizer, give_up>"},
    {trouble::optimizer_state, trouble_family::out_of_memory,
     "optimizer state: two moments and, in low precision, a master copy of the weights",
     "memory of the events failed and rung, during the first update; event begins (trained_bytes)", "keel::sgd, or bf16 state",
     "keel::offload", "fewer trainable parameters with keel::lora", "examples/run estimate before a run"},
    {trouble::memory_leak, trouble_family::out_of_memory, "leak: tensors or graphs kept between updates",
     "growth of memory.held between updates; event memory_grows",
     "store loss.item<double>() or loss.detach() instead of the loss", "look for a list that grows",
     "keel::profile::on_symptom<>", "a checkpoint and a restart, until the leak is found"},
    {trouble::fragmentation, trouble_family::out_of_memory, "fragmentation",
     "memory.reserved compared with memory.held; event memory_grows with a slope", "expandable_segments:True for the allocator",
     "batches of one shape", "look for memory allocated outside LibTorch"},
    {trouble::graph_in_evaluation, trouble_family::out_of_memory, "the evaluation keeps the autograd graph",
     "memory of the event failed (during evaluating); memory.between compared with memory.forward",
     "torch::NoGradGuard around your own evaluation, or run.evaluate", "do not sum loss tensors", "smaller evaluation batches"},
    {trouble::graphs_in_accumulation, trouble_family::out_of_memory, "accumulation keeps graphs",
     "memory.accumulated; memory of the event failed (pieces, accumulated); event begins (trained_bytes)",
     "do not keep tensors of a micro-batch until the update", "loss.detach()", "do not set retain_graph"},
    {trouble::waiting_for_data, trouble_family::slow,
     "data arrives too slowly: too few workers, a slow disk or network, or preprocessing in the loop",
     "time.data compared with time.total; event slowdown", "prefetch batches on another thread", "more workers",
     "pinned memory", "a faster disk"},
    {trouble::host_waits, trouble_family::slow, "the device waits for the host",
     "idle time in the profile summary; time outside of all phases", "remove .item() and printing from the loss function",
     "log every N updates", "move hook work to another thread"},
    {trouble::communication, trouble_family::slow, "communication: ranks wait for each other or for the interconnect",
     "communication in the profile summary", "the lowest sharding stage that fits", "more accumulation",
     "check the links between devices"},
    {trouble::slow_kernels, trouble_family::slow, "slow kernels: small or odd sizes, fp32, or no fused attention",
     "mfu; calls and times of operations in the profile summary; event slowdown in forward or backward",
     "keel::precision::bf16, or TF32", "keel::attention::fused and keel's optimizers", "sizes in multiples of 8 or 16",
     "larger operations instead of many small ones", "better cooling"},
    {trouble::padding, trouble_family::slow, "padding: sequences of very different lengths in one batch", "padding",
     "batches of rows with similar lengths", "packing", "a shorter maximum length"},
    {trouble::busy_machine, trouble_family::slow, "another program, heat or swapping slows the machine", "",
     "look at the event slowdown, which names the phase", "keel::profile::on_symptom<>, and its summary.md", "better cooling",
     "fewer programs on the machine"},
    {trouble::collective_mismatch, trouble_family::hang, "ranks call different collectives",
     "ranks/RANK.jsonl: one sequence number with two operations, sizes or types",
     "the same collectives in the same order on all ranks", "no collective inside a condition on the rank"},
    {trouble::uneven_data, trouble_family::hang, "uneven data",
     "ranks/RANK.jsonl: the data of one rank ended while others wait", "the same number of micro-batches on every rank",
     "drop the last incomplete batch", "a sampler that pads"},
    {trouble::dead_rank, trouble_family::hang, "another rank failed or exited",
     "ranks/RANK.jsonl: a rank failed or stopped reporting while others wait",
     "find the first error in the logs of all ranks, then restart all ranks", "check the memory of that rank's machine",
     "keel::timeout"},
    {trouble::no_progress, trouble_family::hang, "a process hangs",
     "event failed with E27 on any rank; thread stacks in no_progress.txt",
     "see no_progress.txt for what the training thread waits for: a lock, a disk, a data worker",
     "restart from the newest checkpoint"},
    {trouble::rendezvous, trouble_family::hang, "the ranks do not meet: wrong address, port or world size",
     "ranks/RANK.jsonl: joining without joined", "compare MASTER_ADDR, MASTER_PORT and WORLD_SIZE on all ranks",
     "look for a firewall that blocks the port"},
    {trouble::optimizer_not_resumed, trouble_family::not_resumed, "optimizer state not resumed, such as its moments",
     "state of the events resumed and begins; event resumed_from",
     "do not create a new optimizer or clear its state after the resume", "options.resume_from instead of weights_from"},
    {trouble::schedule_not_resumed, trouble_family::not_resumed, "schedule not resumed",
     "rates of the events resumed and begins; lr before and after the resume", "a schedule in the recipe",
     "register_state for your own schedule"},
    {trouble::data_not_resumed, trouble_family::not_resumed, "data position not resumed", "batch before and after the resume",
     "fit, which continues by itself", "in your own loop start at run.cursor()", "register_state for your own loader"},
    {trouble::random_state_not_resumed, trouble_family::not_resumed, "random state not resumed",
     "random, seed and is_reseeded of the events resumed and begins", "do not set a seed after the resume",
     "keel::determinism::seeded<> seeds the start of the run"},
    {trouble::ranks_drift, trouble_family::ranks_differ, "ranks drift apart",
     "ranks/RANK.jsonl: one update with two checksums of replicated state, or with two clipping coefficients",
     "restart from an earlier checkpoint (options.resume_at)", "the same norm, clipping and decisions on all ranks",
     "the same seed for parameter initialization"},
    {trouble::wrong_norm, trouble_family::ranks_differ, "a norm that is not that of all shards",
     "ranks/RANK.jsonl: gradient_norm compared with the square root of the sum of all shard_norm squared",
     "sum the squares over the ranks before taking the square root", "count replicated parameters once"},
};

constexpr trouble_facts const& facts_about(trouble which) { return all_troubles[static_cast<int>(which)]; }

/// Returns a short name, such as "not finite".
constexpr char const* to_string(trouble_family which) {
  constexpr char const* names[] = {"not finite",    "not learning", "overfitting", "collapse",    "oscillation", "forgetting",
                                   "out of memory", "slow",         "hang",        "not resumed", "ranks differ"};
  return names[static_cast<int>(which)];
}

/// A likely cause of a symptom: a cause of the table with its fixes, or a text, which may bring a fix.
struct likely_cause {
  char const* text = nullptr;  ///< the cause; null: none
  fix_list fixes = {};         ///< its fixes

  /// No cause.
  constexpr likely_cause() = default;
  /// A cause of the table.
  constexpr likely_cause(trouble which) : text(facts_about(which).name), fixes(facts_about(which).fixes) {}
  /// A cause that the table lacks.
  constexpr likely_cause(char const* cause, char const* fix = nullptr) : text(cause), fixes{{fix}} {}
  /// Returns the text.
  constexpr operator char const*() const { return text; }
};

/// Returns the first fix of each cause, then the second of each, and so on, without repetitions.
constexpr fix_list fixes_of(likely_cause const (&causes)[max_texts]) {
  fix_list found;
  int count = 0;
  for (int place = 0; place < max_texts; ++place) {
    for (likely_cause const& cause : causes) {
      char const* const fix = cause.fixes.texts[place];
      if (fix == nullptr) continue;
      int same = 0;
      while (same < count && !detail::is_same(found.texts[same], fix)) ++same;
      if (same == count) found.texts[count++] = fix;
      if (count == max_texts) return found;
    }
  }
  return found;
}

}  // namespace keel
