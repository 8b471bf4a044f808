// Definitions for machine_check.hpp.
#pragma once

#include <keel/libtorch/ivalue_first.hpp>

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/randn.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/ScopeExit.h>

#include <netinet/in.h>
#include <sched.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <exception>
#include <keel/collective/collectives.hpp>
#include <keel/collective/join.hpp>
#include <keel/collective/tcp_socket.hpp>
#include <keel/core/error.hpp>
#include <keel/diagnose/machine_check.hpp>
#include <thread>
#include <utility>

#include <keel/libtorch/detail/body_begin.inc>

namespace keel::detail::inline KEEL_MODE {

template <class... Values>
std::string format_finding(char const* format, Values... values) {
  char line[256];
  std::snprintf(line, sizeof line, format, values...);
  return line;
}

/// Returns the median of `runs`; one more, before them, does not count.
template <class Call>
double median_seconds(int runs, Call const& call) {
  std::vector<double> seconds;
  for (int run = -1; run < runs; ++run) {
    auto const begin = std::chrono::steady_clock::now();
    call();
    if (run >= 0) seconds.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
  }
  std::sort(seconds.begin(), seconds.end());
  return seconds[seconds.size() / 2];
}

/// Width of the matrices whose products are timed: milliseconds with one thread.
inline constexpr std::int64_t matrix_width = 768;

inline double time_matrix_product() {
  at::Tensor const a = at::randn({matrix_width, matrix_width}), b = at::randn({matrix_width, matrix_width});
  return median_seconds(7, [&] { static_cast<void>(at::matmul(a, b)); });
}

inline double time_matrix_product_with(int threads) {
  int const before = at::get_num_threads();
  auto const restore = c10::make_scope_exit([before] { at::set_num_threads(before); });
  at::set_num_threads(threads);
  return time_matrix_product();
}

KEEL_BODY machine_finding judge_threads(thread_speed const& found, bool is_launched) {
  double const gain = found.seconds_of_one / found.seconds_of_all;
  machine_finding result{"threads", machine_verdict::ok,
                         format_finding("%d of LibTorch, on %d cores", found.threads, found.cores)};
  int const timed = std::max(found.threads, found.cores);
  if (timed > 1) result.measured += format_finding("; a matrix product is %.1f times as fast with %d as with one", gain, timed);
  if (found.threads > found.cores) {
    result.advice = "More threads than cores wait for each other. Set OMP_NUM_THREADS to the number of cores of a rank.";
  } else if (found.threads == 1 && gain > 1.3 && !is_launched) {
    result.advice = "LibTorch uses one of the cores. Set OMP_NUM_THREADS to the number of cores.";
  } else if (found.threads > 1 && gain < 0.9) {
    result.advice =
        "More threads make it slower: other processes use the cores, or a container limits the time on them. Compare the load "
        "(uptime) and the limit (cpu.max of the control group), and set OMP_NUM_THREADS to the number of free cores.";
  }
  if (!result.advice.empty()) result.verdict = machine_verdict::slow;
  return result;
}

KEEL_BODY machine_finding check_threads(bool is_launched) {
  cpu_set_t allowed;
  int const cores = ::sched_getaffinity(0, sizeof allowed, &allowed) == 0
                        ? CPU_COUNT(&allowed)
                        : static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  int const threads = at::get_num_threads();
  double const of_all = time_matrix_product_with(std::max(threads, cores));
  return judge_threads({threads, cores, time_matrix_product_with(1), of_all}, is_launched);
}

KEEL_BODY machine_finding check_matrix_product() {
  double const seconds = time_matrix_product_with(1);
  double const speed = 2.0 * matrix_width * matrix_width * matrix_width / seconds / 1e9;
  at::Tensor const a = at::randn({matrix_width, matrix_width}), b = at::randn({matrix_width, matrix_width});
  at::Tensor const exact = at::matmul(a.to(at::kDouble), b.to(at::kDouble));
  double const error = ((at::matmul(a, b).to(at::kDouble) - exact).abs().max() / exact.abs().max()).item<double>();
  std::string const measured =
      format_finding("%.1f GFLOP/s of float32 with one thread; largest relative error %.0e", speed, error);
  if (!(error < 1e-4))
    return {"matrix", machine_verdict::wrong, measured,
            "Results are wrong. Replace the BLAS library, and test the memory of this machine."};
  if (speed < 3.0)
    return {
        "matrix", machine_verdict::slow, measured,
        "A reference BLAS, or a busy machine, is as slow. Install an optimized BLAS; Debian's package is libopenblas0-openmp."};
  return {"matrix", machine_verdict::ok, measured};
}

KEEL_BODY machine_finding check_memory() {
  at::Tensor const from = at::full({std::int64_t{1} << 26}, 1, at::kByte), to = at::empty_like(from);
  double const speed = static_cast<double>(from.nbytes()) / median_seconds(7, [&] { to.copy_(from); });
  std::string const measured = format_finding("copies %.1f GB/s", speed / 1e9);
  if (speed > 1e9) return {"memory", machine_verdict::ok, measured};
  return {"memory", machine_verdict::slow, measured,
          "The machine is busy, swaps, or is a virtual one that shares its memory bus. Look at the load (uptime) and at "
          "swapping (vmstat 1)."};
}

KEEL_BODY machine_finding check_disk(file_system& files, std::filesystem::path const& directory) {
  std::filesystem::path const folder = directory / (".keel-doctor-" + std::to_string(::getpid()));
  std::string bytes(std::size_t{1} << 25, 'k'), read;
  for (std::size_t i = 0; i < bytes.size(); i += 512) bytes[i] = static_cast<char>(i >> 9);
  auto const save = [&](std::string const& content) {
    {
      auto const file = files.create(folder / "new");
      files.write(file, folder / "new", content.data(), content.size());
      files.sync(file, folder / "new");
    }
    files.rename(folder / "new", folder / "saved");
    static_cast<void>(files.sync_directory(folder));
  };
  files.make_directories(folder);
  auto const remove = c10::make_scope_exit([&] {
    std::error_code ignored;  // what stays behind is in a separate folder
    std::filesystem::remove_all(folder, ignored);
  });
  double const speed = static_cast<double>(bytes.size()) / median_seconds(3, [&] { save(bytes); });
  read = files.read(folder / "saved");
  double const small = median_seconds(15, [&] { save("k"); });
  std::string const measured =
      format_finding("saves at %.0f MB/s; synchronizes and renames a small file in %.1f ms", speed / 1e6, 1e3 * small);
  if (read != bytes)
    return {"disk", machine_verdict::wrong, measured, "What was read is not what was written. Save on another disk."};
  if (small > 0.1 || speed < 2e7)
    return {"disk", machine_verdict::slow, measured,
            "Every save waits for it. Put the run directory on a local disk, or add keel::checkpoint::asynchronous."};
  return {"disk", machine_verdict::ok, measured};
}

inline machine_finding check_device(at::Device device) {
  c10::impl::VirtualGuardImpl const guard(device.type());
  auto const synchronize = [&] { guard.getStream(device).synchronize(); };
  constexpr std::int64_t large = 4096;
  auto const time_product = [&](at::ScalarType dtype) {
    at::Tensor const a = at::randn({large, large}, at::TensorOptions().device(device)).to(dtype), b = a.t().contiguous();
    synchronize();
    return median_seconds(5, [&] {
      static_cast<void>(at::matmul(a, b));
      synchronize();
    });
  };
  double const work = 2.0 * large * large * large / 1e12;
  double const of_float = work / time_product(at::kFloat), of_bfloat16 = work / time_product(at::kBFloat16);
  at::Tensor const host = at::arange(std::int64_t{1} << 25, at::kInt);
  at::Tensor on_device;
  double const copy = median_seconds(5, [&] {
    on_device = host.to(device);
    synchronize();
  });
  bool const is_kept = on_device.cpu().equal(host);
  at::Tensor const small = at::randn({512, 512});
  at::Tensor const product = at::matmul(small.to(device), small.to(device)).cpu(),
                   expected = at::matmul(small.to(at::kDouble), small.to(at::kDouble));
  double const error = ((product.to(at::kDouble) - expected).abs().max() / expected.abs().max()).item<double>();
  machine_finding found{
      device.str(), machine_verdict::ok,
      format_finding("%.1f TFLOP/s of float32, %.1f of bfloat16; host to device %.1f GB/s; largest relative error %.0e",
                     of_float, of_bfloat16, static_cast<double>(host.nbytes()) / copy / 1e9, error)};
  // TF32 has 10 bits.
  if (!is_kept || !(error < 1e-2)) {
    found.verdict = machine_verdict::wrong;
    found.advice = "Results or memory are wrong. Take the device out of service, and read its errors with nvidia-smi -q.";
  } else if (of_float < 0.5 || static_cast<double>(host.nbytes()) / copy < 1e9) {
    found.verdict = machine_verdict::slow;
    found.advice =
        "Another process may use it, or its clock or its bus is throttled. Compare nvidia-smi and nvidia-smi -q -d "
        "PERFORMANCE.";
  }
  return found;
}

KEEL_BODY std::vector<machine_finding> check_devices() {
  if (!at::globalContext().hasCUDA()) return {{"devices", machine_verdict::absent, "LibTorch sees no CUDA device"}};
  std::vector<machine_finding> all;
  int const count = c10::impl::VirtualGuardImpl(at::kCUDA).deviceCount();
  for (int i = 0; i < count; ++i) all.push_back(check_device(at::Device(at::kCUDA, static_cast<at::DeviceIndex>(i))));
  return all;
}

/// True if this rank has the right results.
inline bool has_right_results(world_of_ranks const& world) {
  bool is_right = true;
  std::int64_t const ranks = world.size();
  auto const require = [&](at::Tensor const& found, at::Tensor const& expected) {
    is_right = is_right && found.scalar_type() == expected.scalar_type() && found.equal(expected);
  };
  for (at::ScalarType const dtype : {at::kFloat, at::kDouble, at::kBFloat16, at::kLong}) {
    // Each rank has its own numbers, of which sums are exact in all dtypes.
    auto const numbers_of = [dtype](std::int64_t rank) { return (at::arange(1000, at::kLong).remainder(5) + rank).to(dtype); };
    at::Tensor const own = numbers_of(world.rank());
    at::Tensor sum = numbers_of(0);
    for (std::int64_t rank = 1; rank < ranks; ++rank) sum = sum + numbers_of(rank);
    at::Tensor const reduced = own.clone();
    all_reduce(world, reduced);
    require(reduced, sum);
    at::Tensor const gathered = all_gather(world, own);
    for (std::int64_t rank = 0; rank < ranks; ++rank) require(gathered[rank], numbers_of(rank));
    at::Tensor const sent = own.clone();
    broadcast(world, sent, static_cast<int>(ranks - 1));
    require(sent, numbers_of(ranks - 1));
    at::Tensor const parts = at::arange(ranks, at::kLong).unsqueeze(1).add(100 * world.rank()).to(dtype);
    require(all_to_all(world, parts), at::arange(ranks, at::kLong).unsqueeze(1).mul(100).add(world.rank()).to(dtype));
  }
  return is_right;
}

KEEL_BODY link_speed measure_link(world_of_ranks const& world) {
  link_speed found;
  found.is_right = world.combine(reduce::min{}, has_right_results(world));
  at::Tensor const small = at::full({8}, 1.0, at::kDouble), large = at::full({std::int64_t{1} << 22}, 1.0, at::kFloat);
  found.seconds = median_seconds(50, [&] { static_cast<void>(all_gather(world, small)); });
  found.bytes_per_second = static_cast<double>(large.nbytes()) / median_seconds(5, [&] { all_reduce(world, large); });
  return found;
}

KEEL_BODY machine_finding judge_link(link_speed const& found, int ranks, std::string const& where) {
  // In keel plan, n ranks exchange a few numbers in n - 1 messages, and send 2 (n - 1)/n of what they all-reduce.
  double const messages = ranks - 1, sent = 2.0 * (ranks - 1) / ranks;
  std::string const measured = format_finding(
      "%d ranks %s: a small all-gather takes %.0f us; all-reduce of 16 MiB at %.2f GB/s (keel plan --latency %.2g --bandwidth "
      "%.2g)",
      ranks, where.c_str(), 1e6 * found.seconds, found.bytes_per_second / 1e9, found.seconds / messages,
      found.bytes_per_second * sent);
  if (!found.is_right)
    return {"collectives", machine_verdict::wrong, measured,
            "Results are wrong. Update LibTorch and the driver of the network; until then train on one rank."};
  if (found.seconds > 5e-3 || found.bytes_per_second < 5e7)
    return {"collectives", machine_verdict::slow, measured,
            "Ranks will wait for each other. Check the load of each machine, the route between them, and the interface that "
            "Gloo uses "
            "(GLOO_SOCKET_IFNAME)."};
  return {"collectives", machine_verdict::ok, measured};
}

inline int find_free_loopback_port() {
  unique_socket const socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  bool const is_bound = socket.get() >= 0 && ::bind(socket.get(), reinterpret_cast<sockaddr*>(&address), length) == 0 &&
                        ::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&address), &length) == 0;
  if (!is_bound)
    throw world_error("E24",
                      "the loopback interface has no free port, which the ranks of one machine need for their rendezvous.");
  return ntohs(address.sin_port);
}

KEEL_BODY machine_finding check_local_ranks(int ranks) {
  link_speed found;
  std::vector<std::exception_ptr> failed(static_cast<std::size_t>(ranks));
  try {
    int const port = find_free_loopback_port();
    {
      // They are joined where this block ends, also if one cannot be started.
      std::vector<std::jthread> threads;
      for (int rank = 0; rank < ranks; ++rank) {
        threads.emplace_back([&, rank] {
          try {
            at::set_num_threads(1);
            link_speed const own = measure_link(join({.rank = rank, .size = ranks, .address = "127.0.0.1", .port = port},
                                                     {.timeout = std::chrono::seconds(30)}));
            if (rank == 0) found = own;
          } catch (...) {
            // Kept, and rethrown in the thread that waits for all.
            failed[static_cast<std::size_t>(rank)] = std::current_exception();
          }
        });
      }
    }
    for (std::exception_ptr const& one : failed) {
      if (one) std::rethrow_exception(one);
    }
  } catch (world_error const& thrown) {
    return {"collectives", machine_verdict::wrong, std::to_string(ranks) + " ranks of this machine cannot connect",
            thrown.what()};
  }
  return judge_link(found, ranks, "of this machine");
}

KEEL_BODY std::string describe(std::vector<machine_finding> const& all) {
  std::string lines;
  for (machine_finding const& one : all) {
    char const* const verdict = one.verdict == machine_verdict::ok      ? "ok"
                                : one.verdict == machine_verdict::slow  ? "slow"
                                : one.verdict == machine_verdict::wrong ? "WRONG"
                                                                        : "none";
    lines += format_finding("%-12s %-6s ", one.what.c_str(), verdict) + one.measured + "\n";
    if (!one.advice.empty()) lines += std::string(20, ' ') + one.advice + "\n";
  }
  return lines;
}

KEEL_BODY bool is_sound(std::vector<machine_finding> const& all) {
  return std::none_of(all.begin(), all.end(), [](machine_finding const& one) {
    return one.verdict == machine_verdict::slow || one.verdict == machine_verdict::wrong;
  });
}

}  // namespace keel::detail::inline KEEL_MODE

#include <keel/libtorch/detail/body_end.inc>
