// Definitions for preflight_rehearsal.hpp.
#pragma once

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <keel/checkpoint/optimizer_state.hpp>
#include <keel/core/error.hpp>
#include <keel/core/operation_observer.hpp>
#include <keel/core/out_of_memory.hpp>
#include <keel/diagnose/preflight_passes.hpp>
#include <keel/diagnose/preflight_rehearsal.hpp>
#include <keel/memory/counting_allocator.hpp>
#include <keel/metrics/number_format.hpp>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include <keel/libtorch/detail/body_begin.inc>

namespace keel::detail::inline KEEL_MODE {

/// Returns a snapshot of the parameters, buffers and gradients.
KEEL_BODY std::vector<at::Tensor> image_of(preflight_program& program) {
  at::NoGradGuard const no_grad;
  std::vector<at::Tensor> all;
  for (at::Tensor const& one : program.model().parameters()) all.push_back(one.detach().clone());
  for (at::Tensor const& one : program.model().buffers()) all.push_back(one.detach().clone());
  return all;
}

KEEL_BODY std::vector<at::Tensor> gradients_of(preflight_program& program) {
  std::vector<at::Tensor> all;
  all.reserve(program.parameters().tensors.size());
  for (at::Tensor const& one : program.parameters().tensors)
    all.push_back(one.grad().defined() ? one.grad().detach().clone() : at::Tensor());
  return all;
}

KEEL_BODY bool have_same_bits(at::Tensor const& a, at::Tensor const& b) {
  if (a.defined() != b.defined()) return false;
  if (!a.defined()) return true;
  if (a.sizes() != b.sizes() || a.scalar_type() != b.scalar_type() || a.layout() != b.layout()) return false;
  if (a.layout() != at::kStrided) return a.to_dense().equal(b.to_dense());
  at::Tensor const x = a.cpu().contiguous(), y = b.cpu().contiguous();
  return x.nbytes() == 0 || std::memcmp(x.data_ptr(), y.data_ptr(), x.nbytes()) == 0;
}

KEEL_BODY bool have_same_bits(std::vector<at::Tensor> const& a, std::vector<at::Tensor> const& b) {
  if (a.size() != b.size()) return false;
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (!have_same_bits(a[i], b[i])) return false;
  }
  return true;
}

/// Returns the distance between the directions of two lists of tensors: 0 for equal, 2 for opposite ones. A common factor has no
/// effect, because the gradients in memory may not be unscaled.
KEEL_BODY double distance_of(std::vector<at::Tensor> const& a, std::vector<at::Tensor> const& b) {
  double of_a = 0.0, of_b = 0.0, product = 0.0;
  for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    if (!a[i].defined() || !b[i].defined() || !a[i].is_floating_point()) continue;
    at::Tensor const x = (a[i].is_sparse() ? a[i].to_dense() : a[i]).to(at::kCPU, at::kDouble);
    at::Tensor const y = (b[i].is_sparse() ? b[i].to_dense() : b[i]).to(at::kCPU, at::kDouble);
    of_a += x.pow(2).sum().item<double>();
    of_b += y.pow(2).sum().item<double>();
    product += (x * y).sum().item<double>();
  }
  if (of_a == 0.0 && of_b == 0.0) return 0.0;
  if (of_a == 0.0 || of_b == 0.0) return 2.0;
  return std::sqrt(std::max(0.0, 2.0 - 2.0 * product / std::sqrt(of_a * of_b)));
}

KEEL_BODY std::vector<tried_batch> batches_from(preflight_program& program, std::size_t begin) {
  std::vector<tried_batch> all;
  auto const count = static_cast<std::size_t>(std::max<long long>(1, program.recipe().accumulate.count));
  all.reserve(count);
  for (std::size_t i = 0; i < count; ++i) all.push_back({(begin + i) % program.batches()});
  return all;
}

/// The state after one update on the first batches; empty if the update was not applied.
struct after_update {
  std::vector<at::Tensor> image;
  std::vector<at::Tensor> gradients;
  double loss = 0.0;
};
KEEL_BODY after_update one_update(preflight_program& program) {
  after_update found;
  program.with_step([&](tried_step& step) {
    tried_update const update = step.update(batches_from(program, 0));
    found.loss = update.loss;
    found.image = image_of(program);
    found.gradients = gradients_of(program);
  });
  return found;
}

KEEL_BODY void check_same_bits(preflight_program& program, preflight_table& table) {
  constexpr char const* check = "same bits twice";
  after_update const first = one_update(program);
  after_update const second = one_update(program);
  if (have_same_bits(first.image, second.image) && first.loss == second.loss) {
    table.passed(check, "repeating an update gives the same parameters");
    return;
  }
  table.failed(check,
               formatted("repeating an update from the same state gives the losses %.9g and %.9g, and different parameters",
                         first.loss, second.loss),
               "call register_state for everything the loss function or the model changes besides buffers; draw random numbers "
               "only from LibTorch's generators; use keel::determinism::strict<1> for nondeterministic kernels");
}

/// Sets LibTorch's number of threads for its lifetime.
class thread_scope {
 public:
  explicit thread_scope(int threads) : before_(at::get_num_threads()) { at::set_num_threads(threads); }
  thread_scope(thread_scope const&) = delete;
  thread_scope& operator=(thread_scope const&) = delete;
  ~thread_scope() { at::set_num_threads(before_); }

 private:
  int before_;
};

KEEL_BODY void check_threads(preflight_program& program, preflight_table& table) {
  constexpr char const* check = "threads";
  int const present = at::get_num_threads();
  int const other = present > 1 ? 1 : 2;
  after_update const first = one_update(program);
  after_update second;
  {
    thread_scope const threads(other);
    second = one_update(program);
  }
  if (have_same_bits(first.gradients, second.gradients)) {
    table.passed(check, formatted("the gradients are equal with %d and %d threads", present, other));
    return;
  }
  double const distance = distance_of(first.gradients, second.gradients);
  std::string const words = formatted("with %d and %d threads the gradients differ by %.2g", present, other, distance);
  constexpr double rounding = 1e-2;
  if (distance < rounding) {
    table.passed(check, words + ", within rounding: a run is bitwise reproducible only with the same number of threads");
  } else {
    table.failed(check, words, "look for threads that write to the same tensor or draw from the same generator");
  }
}

/// Observes whether an evaluation builds a graph.
class graph_watch final : public operation_observer {
 public:
  std::string first;

 private:
  struct begun : at::ObserverContext {};
  std::unique_ptr<at::ObserverContext> began(at::RecordFunction const&) override { return std::make_unique<begun>(); }
  void ended(at::RecordFunction const& operation, at::ObserverContext&) override {
    if (!first.empty()) return;
    for (c10::IValue const& output : operation.outputs()) {
      if (output.isTensor() && output.toTensor().defined() && output.toTensor().requires_grad() && !output.toTensor().is_leaf())
        first = operation.name();
    }
  }
};

KEEL_BODY void check_evaluation(preflight_program& program, preflight_table& table) {
  constexpr char const* check = "evaluation";
  auto const evaluations = program.evaluations();
  if (evaluations.empty()) {
    table.not_applicable(check, "no evaluation is registered; evaluate_on(batches, loss_of) adds one");
    return;
  }
  for (tried_evaluation const& one : evaluations) {
    graph_watch watch;
    program.aside([&] {
      operation_observer::scope const observed(watch, {.outputs = true});
      one.run(2);
    });
    if (watch.first.empty()) continue;
    std::string const name = one.name.empty() ? "the evaluation" : "the evaluation " + one.name;
    table.failed(
        check, name + " keeps a graph, which takes more memory with every batch; its first operation is " + watch.first,
        "remove AutoGradMode and passes with gradients from the evaluation; store numbers instead of tensors with a graph");
    return;
  }
  table.passed(check, std::to_string(evaluations.size()) +
                          (evaluations.size() == 1 ? " evaluation keeps" : " evaluations keep") + " no graph");
}

/// Returns the memory available to this process in bytes; 0 if unknown.
KEEL_BODY std::int64_t available_memory() {
  std::ifstream file("/proc/meminfo");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("MemAvailable:")) return std::strtoll(line.c_str() + 13, nullptr, 10) * 1024;
  }
  return 0;
}

KEEL_BODY int counted_state(preflight_program& program) {
  double numbers = 0.0;
  program.with_step([&](tried_step& step) {
    step.update(batches_from(program, 0));
    nlohmann::json values;
    tensor_map moments;
    try {
      save_optimizer(program.optimizer(), program.parameters(), values, moments);
    } catch (error const&) {
      // An optimizer that cannot be saved is assumed to keep two moments.
      numbers = std::numeric_limits<double>::infinity();
    }
    for (auto const& [name, tensor] : moments) numbers += static_cast<double>(tensor.numel());
  });
  double trained = 0.0;
  for (at::Tensor const& one : program.parameters().tensors) trained += static_cast<double>(one.numel());
  if (std::isinf(numbers)) return 2;
  return trained > 0.0 ? static_cast<int>(std::lround(numbers / trained)) : 0;
}

KEEL_BODY void check_memory(preflight_program& program, int state_per_parameter, preflight_table& table) {
  constexpr char const* check = "memory";
  if (program.parameters().device != at::kCPU) {
    table.not_applicable(check, "keel knows only the limit of host memory");
    return;
  }
  int const state = state_per_parameter < 0 ? counted_state(program) : state_per_parameter;
  std::optional<std::int64_t> peak;
  try {
    peak = program.peak_memory(state);
  } catch (std::exception const& thrown) {
    // An estimate runs one and two rows; a loss function may require the whole batch.
    table.not_applicable(check, "the loss function does not accept a part of a batch: " + first_line(thrown));
    return;
  }
  if (!peak) {
    table.not_applicable(check, "the batch cannot be split into rows, which the estimate needs");
    return;
  }
  auto const& counts = memory::detail::process_counts::instance();
  bool const has_budget = counts.counting && counts.limit > 0;
  std::int64_t parameters = 0;
  for (at::Tensor const& one : program.model().parameters()) parameters += static_cast<std::int64_t>(one.nbytes());
  // The parameters are already allocated.
  std::int64_t const limit = has_budget ? counts.limit - counts.allocated + parameters : available_memory() + parameters;
  constexpr double mega = 1024.0 * 1024.0;
  std::string const words =
      formatted("an update needs about %.1f MiB, and %.1f MiB are available%s", static_cast<double>(*peak) / mega,
                static_cast<double>(limit) / mega, has_budget ? " in the budget" : "");
  if (limit <= 0) {
    table.not_applicable(check, "the available memory is unknown");
  } else if (*peak > limit) {
    table.failed(
        check, words,
        "use smaller micro-batches with keel::accumulate, keel::recompute, keel::precision::bf16, keel::offload::optimizer");
  } else {
    table.passed(check, words);
  }
}

/// A temporary directory, removed on destruction.
class rehearsal_directory {
 public:
  explicit rehearsal_directory(std::string const& beside) {
    // On the disk of the checkpoints, if the run has any.
    std::filesystem::path const parent =
        beside.empty() ? std::filesystem::temp_directory_path() : std::filesystem::path(beside);
    std::string name = (parent / "preflight-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr)
      throw file_error("E02", "a preflight cannot create a directory in " + parent.string() + " (" +
                                  std::generic_category().message(errno) + "). Check its permissions and the free disk space.");
    path_ = name;
  }
  rehearsal_directory(rehearsal_directory const&) = delete;
  rehearsal_directory& operator=(rehearsal_directory const&) = delete;
  ~rehearsal_directory() {
    // A directory that cannot be removed must not fail the run.
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  std::string path() const { return path_.string(); }

 private:
  std::filesystem::path path_;
};

KEEL_BODY void check_resume(preflight_program& program, preflight_table& table) {
  constexpr char const* check = "resume";
  std::vector<at::Tensor> without, with;
  double first_loss = 0.0, second_loss = 0.0;
  std::unique_ptr<rehearsal_directory> directory;
  try {
    directory = std::make_unique<rehearsal_directory>(program.run_directory());
    program.with_step([&](tried_step& step) {
      step.update(batches_from(program, 0));
      step.update(batches_from(program, 1));
      step.save(directory->path());
      first_loss = step.update(batches_from(program, 2)).loss;
      without = image_of(program);
      // Like a new process: other parameters and random numbers.
      step.update(batches_from(program, 3));
      {
        at::NoGradGuard const no_grad;
        for (at::Tensor const& one : program.model().parameters()) {
          if (one.is_floating_point()) one.detach().mul_(0.5).add_(0.01);
        }
      }
      at::rand({17});
      step.load(directory->path());
      second_loss = step.update(batches_from(program, 2)).loss;
      with = image_of(program);
    });
  } catch (error const& thrown) {
    if (program.recipe().checkpoint.kind != checkpoint::kind::never) throw;
    table.not_applicable(check,
                         std::string("the recipe writes no checkpoints, and none could be written: ") + first_line(thrown));
    return;
  }
  if (have_same_bits(without, with)) {
    table.passed(check, "after a save and a load, the next update is bitwise identical");
    return;
  }
  table.failed(check,
               formatted("after a save and a load, the next update has the loss %.9g instead of %.9g", second_loss, first_loss),
               "call register_state for everything the program changes between updates besides model and optimizer");
}

KEEL_BODY void check_out_of_memory(preflight_program& program, preflight_table& table) {
  constexpr char const* check = "out of memory";
  bool const has_ladder = program.recipe().oom.kind == oom::kind::ladder;
  std::vector<at::Tensor> const before = image_of(program);
  std::vector<at::Tensor> usual;
  double usual_loss = 0.0;
  program.with_step([&](tried_step& step) {
    step.use_rate(0.0);
    usual_loss = step.update(batches_from(program, 0)).loss;
    usual = gradients_of(program);
  });
  std::string rungs;
  std::string wrong;
  std::string fix = "check what the loss function assumes about the batch size";
  auto const judge = [&](tried_step& step, tried_update const& update, char const* where) {
    if (update.gave_up) return false;
    if (!update.is_applied) {
      wrong = std::string("running out of memory in the ") + where + " pass skips the update: " + update.words;
      return false;
    }
    double const distance = distance_of(usual, gradients_of(program));
    bool const same_loss = std::abs(update.loss - usual_loss) <= 0.01 * std::abs(usual_loss);
    constexpr double rounding = 0.05;
    if ((distance > rounding || !same_loss) && step.last_rung() != "shorten_sequence") {
      wrong = formatted(
          "after the rung %s the same update differs: its loss is %.5g instead of %.5g, and its gradients differ by %.2g",
          step.last_rung().c_str(), update.loss, usual_loss, distance);
      fix =
          "return the mean over rows, or keel::weighted_loss with its weight; dropout and batch norm also change the result of "
          "a split batch";
    }
    return true;
  };
  for (auto const fault : {tried_fault::memory_after_forward, tried_fault::memory_in_backward}) {
    char const* const where = fault == tried_fault::memory_after_forward ? "forward" : "backward";
    try {
      program.with_step([&](tried_step& step) {
        constexpr int most = 12;
        // A rate of 0, so that every update starts from the run's parameters and gradients are comparable.
        step.use_rate(0.0);
        for (int i = 0; i < most; ++i) {
          std::size_t const taken = step.rungs_taken();
          tried_update const update = step.update(batches_from(program, 0), fault);
          if (!judge(step, update, where)) break;
          if (update.gave_up || step.rungs_taken() == taken) break;
          if (fault == tried_fault::memory_after_forward) rungs += (rungs.empty() ? "" : ", ") + step.last_rung();
        }
      });
    } catch (out_of_memory_error const&) {
      // A recipe without a ladder throws here; nothing has changed.
    }
    if (!have_same_bits(before, image_of(program)))
      wrong = std::string("running out of memory in the ") + where + " pass changes parameters or buffers";
  }
  if (!wrong.empty()) {
    bool const may_differ = wrong.find("the same update differs") != std::string::npos;
    bool const is_random = may_differ && (normalises_over_a_batch(program.all_models()) || [&] {
                             for (auto const& one : program.all_models().modules(/*include_self=*/false)) {
                               if (one->name().find("Dropout") != std::string::npos) return true;
                             }
                             return false;
                           }());
    if (is_random) {
      table.passed(check, "the update succeeded on " + rungs + "; dropout and batch norm change the result of a split batch");
    } else {
      table.failed(check, wrong, fix);
    }
  } else if (!has_ladder) {
    table.passed(check,
                 "the run would end with its parameters intact; with keel::oom::ladder<keel::oom::halve_micro_batch, "
                 "keel::oom::give_up> it would continue");
  } else if (rungs.empty()) {
    table.failed(check, "no rung of the ladder is applicable",
                 "halve_micro_batch needs a batch of more than one row, and recompute needs keel::unit");
  } else {
    table.passed(check, "the same update succeeded on " + rungs);
  }
}

}  // namespace keel::detail::inline KEEL_MODE

#include <keel/libtorch/detail/body_end.inc>
