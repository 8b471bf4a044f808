// The program keel: inspects runs, checkpoints and recipes without the training program.
#include <CLI/CLI.hpp>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <keel/core/version.hpp>
#include <keel/diagnose/plan.hpp>
#include <keel/tools/commands.hpp>
#include <string>
#include <vector>

int main(int count, char** words) {
  using path = std::filesystem::path;
  CLI::App program("Looks at runs, checkpoints and recipes of keel. What cannot be read is exit status 2.", "keel");
  program.set_version_flag("--version", std::string(keel::version));
  program.require_subcommand(1);
  int status = 0;
  std::vector<path> paths;
  path first, second, output = "report.html";
  std::vector<std::string> asked;
  double seconds = 0.0;

  auto* const report = program.add_subcommand("report", "writes a page about runs, which any browser opens, without a network");
  report->add_option("RUN_DIRECTORY", paths, "directories that hold metrics.jsonl")->required();
  report->add_option("--output,-o", output, "the page")->capture_default_str();
  report->callback([&] { status = keel::tools::report(paths, output); });

  auto* const triage = program.add_subcommand("triage",
                                              "judges a run, also while it runs: the family of trouble, the likely causes with "
                                              "their evidence, and what to do. Exit status: 0 "
                                              "healthy, 1 in trouble, 3 not enough data, 4 it did not end");
  triage->add_option("RUN_DIRECTORY", first, "a directory that holds metrics.jsonl or events.jsonl")->required();
  triage->add_option("--every", seconds, "judge again and again, with so many seconds between, until the run is in trouble");
  triage->callback([&] { status = keel::tools::triage(first, seconds); });

  auto* const compare = program.add_subcommand("compare",
                                               "says where two runs part: settings, the first update whose record differs, and "
                                               "the distance of their weights. Exit status: 0 the "
                                               "same, 1 they part");
  compare->add_option("RUN_A", first, "a directory that holds metrics.jsonl, as of a run that is fine")->required();
  compare->add_option("RUN_B", second, "another one")->required();
  compare->callback([&] { status = keel::tools::compare(first, second); });

  auto* const explain = program.add_subcommand(
      "explain", "says what a message, a symptom or an id of keel means and what to do. Exit status: 0 found, 1 nothing fits");
  explain->add_option("WORDS", asked, "a message, a symptom as \"loss jumps after a resume\", or an id as A01")->required();
  explain->callback([&] {
    std::string all;
    for (std::string const& word : asked) all += word + " ";
    status = keel::tools::explain(all);
  });

  auto* const check = program.add_subcommand(
      "check", "judges recipes in JSON files by keel's rules. Exit status: 0 good, 1 a rule is broken, 2 not a recipe");
  check->add_option("FILE", paths, "recipes to judge")->required();
  check->callback([&] { status = keel::tools::check(paths); });

  std::vector<std::string> frozen;
  int ranks = 0, state_per_parameter = 2;
  auto* const estimate = program.add_subcommand(
      "estimate", "says how much memory parameters, gradients and the optimizer's state take under a recipe");
  estimate->add_option("RECIPE", first, "a recipe in JSON")->required();
  estimate->add_option("WEIGHTS", second, "a safetensors file, a checkpoint, or a run directory for its newest")->required();
  estimate->add_option("--frozen", frozen, "beginnings of the names of tensors that are not trained");
  estimate->add_option("--ranks", ranks, "processes that train together")->check(CLI::Range(1, 65536));
  estimate
      ->add_option("--state-per-parameter", state_per_parameter,
                   "fp32 numbers that the optimizer keeps of a parameter: 2 for Adam, 1 for SGD with momentum, 0 without")
      ->check(CLI::Range(0, 16))
      ->capture_default_str();
  estimate->callback([&] { status = keel::tools::estimate(first, second, frozen, ranks, state_per_parameter); });

  int tried_ranks = 2;
  first = ".";
  auto* const doctor = program.add_subcommand(
      "doctor",
      "measures threads, BLAS, memory, disk, devices and collectives as a run uses them, and says what is slow or wrong. Under "
      "torchrun, mpirun or srun it measures the links among the ranks. Exit status: 0 all is well, 1 something is slow or "
      "wrong");
  doctor->add_option("DIRECTORY", first, "where runs are saved")->capture_default_str();
  doctor->add_option("--ranks", tried_ranks, "ranks to try on this machine: 2, 4, .. up to this number")
      ->check(CLI::Range(1, 64))
      ->capture_default_str();
  doctor->callback([&] { status = keel::tools::check_machine(first, tried_ranks); });

  keel::plan_inputs planned;
  double memory_gib = 0.0, activations_gib = 0.0, failure_hours = 0.0;
  std::vector<std::int64_t> planned_ranks{8, 32, 128, 512, 2048, 8192, 16384};
  auto* const plan = program.add_subcommand(
      "plan",
      "computes the time, memory and waste of a run on many ranks from measured numbers, for each stage of keel::shard, and "
      "the "
      "best interval between checkpoints. keel doctor measures --latency and --bandwidth. Sizes in bytes, times in seconds");
  plan->add_option("--parameters", planned.parameters, "number of parameters, such as 7e9")->required();
  plan->add_option("--micro-batch-seconds", planned.micro_batch_seconds,
                   "forward and backward pass of a micro-batch on one rank, while all ranks of its host compute")
      ->required();
  plan->add_option("--optimizer-seconds", planned.optimizer_seconds, "a step of the optimizer on one rank, for all parameters")
      ->capture_default_str();
  plan->add_option("--micro-batches", planned.micro_batches, "of an update, as in keel::accumulate")->capture_default_str();
  plan->add_option("--ranks", planned_ranks, "numbers of ranks")->capture_default_str();
  plan->add_option("--unit-parameters", planned.unit_parameters, "parameters of the largest keel::unit; 0: an eighth of all")
      ->capture_default_str();
  plan->add_option("--parameter-bytes", planned.parameter_bytes, "of a parameter and of its gradient: 2 for bf16")
      ->capture_default_str();
  plan->add_option("--state-bytes", planned.state_bytes,
                   "of the optimizer for a parameter: 8 for Adam, 12 if it has master copies of bf16 parameters")
      ->capture_default_str();
  plan->add_option("--activations-gib", activations_gib, "activations of a micro-batch, in GiB")->capture_default_str();
  plan->add_option("--memory-gib", memory_gib, "memory of a rank, in GiB; 0: not limited")->capture_default_str();
  plan->add_option("--latency", planned.latency, "of a message")->capture_default_str();
  plan->add_option("--bandwidth", planned.bandwidth, "bytes a second that a rank sends while all do")->capture_default_str();
  plan->add_option("--network-bandwidth", planned.network_bandwidth, "the same between hosts; 0: as --bandwidth")
      ->capture_default_str();
  plan->add_option("--ranks-per-host", planned.ranks_per_host, "ranks of a host")->capture_default_str();
  plan->add_option(
          "--overlap", planned.overlap,
          "part of the communication that can proceed while a rank computes: 0 if it takes the rank's only core, (k - 1)/k "
          "if k ranks share a core")
      ->capture_default_str();
  plan->add_option("--disk-bandwidth", planned.disk_bandwidth, "bytes a second that a rank writes")->capture_default_str();
  plan->add_option("--storage-bandwidth", planned.storage_bandwidth, "bytes a second that all ranks write; 0: not limited")
      ->capture_default_str();
  plan->add_option("--failure-hours", failure_hours, "mean time between failures of one rank, in hours; 0: it never fails")
      ->capture_default_str();
  plan->add_option("--restart-seconds", planned.restart_seconds, "from a failure until the run trains again")
      ->capture_default_str();
  plan->callback([&] {
    planned.memory = memory_gib * (1 << 30);
    planned.activations = activations_gib * (1 << 30);
    planned.failure_seconds = failure_hours * 3600.0;
    status = keel::tools::plan(planned, planned_ranks);
  });

  auto* const checkpoint = program.add_subcommand("checkpoint", "looks into checkpoints");
  checkpoint->require_subcommand(1);
  auto* const verify =
      checkpoint->add_subcommand("verify", "compares every byte with the manifest. Exit status: 0 whole, 1 one is damaged");
  verify->add_option("DIR", paths, "checkpoints or run directories")->required();
  verify->callback([&] { status = keel::tools::verify_checkpoints(paths); });
  auto* const show = checkpoint->add_subcommand("show", "who wrote it, of which recipe, where the run stood, and the tensors");
  show->add_option("DIR", first, "a checkpoint, or a run directory for its newest")->required();
  show->callback([&] { status = keel::tools::show_checkpoint(first); });
  auto* const diff = checkpoint->add_subcommand("diff", "how two checkpoints differ. Exit status: 0 the same, 1 they differ");
  diff->add_option("FIRST", first, "a checkpoint, or a run directory for its newest")->required();
  diff->add_option("SECOND", second, "the other one")->required();
  diff->callback([&] { status = keel::tools::diff_checkpoints(first, second); });
  bool is_best = false, is_averaged = false;
  auto* const merge =
      checkpoint->add_subcommand("merge", "writes the weights as one safetensors file, also those that ranks wrote in slices");
  merge->add_option("FROM", first, "a checkpoint, or a run directory for its newest")->required();
  merge->add_option("FILE", second, "the file to write")->required();
  merge->add_flag("--best", is_best, "of a run directory: its best checkpoint");
  merge->add_flag("--averaged", is_averaged, "the moving average in place of the parameters");
  merge->callback([&] { status = keel::tools::merge_checkpoint(first, second, is_best, is_averaged); });

  try {
    program.parse(count, words);
    return status;
  } catch (CLI::ParseError const& thrown) {
    return program.exit(thrown);
  } catch (std::exception const& thrown) {
    std::fprintf(stderr, "%s\n", thrown.what());
    return 2;
  }
}
