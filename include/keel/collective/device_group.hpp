// A world that uses a separate group, such as NCCL's, for tensors on a device, and the host group for everything else. Control messages
// are host tensors, so exchanging them does not synchronize the device.
//     auto const hosts = keel::join();
//     auto const world = keel::over(hosts, [](auto const& store, int rank, int size) {
//       return c10::make_intrusive<c10d::ProcessGroupNCCL>(store, rank, size);
//     });
// The program creates the device group: keel is compiled without CUDA's headers, and only the program knows which device a rank uses.
#pragma once

#include <keel/libtorch/ivalue_first.hpp>

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <concepts>
#include <exception>
#include <keel/collective/process_group.hpp>
#include <keel/collective/world_of_ranks.hpp>
#include <keel/core/error.hpp>
#include <keel/core/out_of_memory.hpp>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>

namespace keel::detail::inline KEEL_MODE {

/// Dispatches each collective by the tensor's device: CPU tensors to the hosts' transport, others to the device group.
class device_transport final : public transport {
 public:
  device_transport(world_of_ranks hosts, std::unique_ptr<transport> devices)
      : hosts_(std::move(hosts)), devices_(std::move(devices)) {}

  int rank() const override { return hosts_.rank(); }
  int size() const override { return hosts_.size(); }
  std::chrono::milliseconds timeout() const override { return hosts_.timeout(); }

  void all_reduce(at::Tensor& tensor, reduction_kind how) override {
    call_or_abort_both([&] { backend(tensor).all_reduce(tensor, how); });
  }
  std::unique_ptr<pending_collective> begin_all_reduce(at::Tensor& tensor, reduction_kind how) override {
    return call_or_abort_both([&] { return wrap_pending(backend(tensor).begin_all_reduce(tensor, how)); });
  }
  void all_gather(at::Tensor const& local, at::Tensor& all) override {
    call_or_abort_both([&] { backend(local).all_gather(local, all); });
  }
  std::unique_ptr<pending_collective> begin_all_gather(at::Tensor const& local, at::Tensor& all) override {
    return call_or_abort_both([&] { return wrap_pending(backend(local).begin_all_gather(local, all)); });
  }
  std::unique_ptr<pending_collective> begin_small_all_gather(at::Tensor const& local, at::Tensor& all) override {
    return call_or_abort_both([&] { return wrap_pending(backend(local).begin_small_all_gather(local, all)); });
  }
  void broadcast(at::Tensor& tensor, int from) override {
    call_or_abort_both([&] { backend(tensor).broadcast(tensor, from); });
  }
  void all_to_all(at::Tensor const& from, at::Tensor& to) override {
    call_or_abort_both([&] { backend(from).all_to_all(from, to); });
  }
  std::unique_ptr<pending_collective> begin_all_to_all(at::Tensor const& from, at::Tensor& to) override {
    return call_or_abort_both([&] { return wrap_pending(backend(from).begin_all_to_all(from, to)); });
  }
  void barrier() override {
    call_or_abort_both([&] { hosts().barrier(); });
  }
  void abort(std::string const& why) noexcept override {
    hosts().abort(why);
    devices_->abort(why);
  }
  void post_abort_message(std::string const& why) noexcept override { hosts().post_abort_message(why); }
  std::optional<std::vector<std::int64_t>> exchange_heartbeats(std::int64_t local) override {
    return hosts().exchange_heartbeats(local);
  }
  bool supports_heartbeats() const override { return hosts().supports_heartbeats(); }
  void limit(std::chrono::milliseconds longest) override {
    hosts().limit(longest);
    devices_->limit(longest);
  }

 private:
  class tracked_work final : public pending_collective {
   public:
    tracked_work(device_transport& of, std::unique_ptr<pending_collective> begun) : transport_(of), begun_(std::move(begun)) {}
    bool is_done() override { return begun_->is_done(); }
    void wait() override {
      transport_.call_or_abort_both([this] { begun_->wait(); });
    }

   private:
    device_transport& transport_;
    std::unique_ptr<pending_collective> begun_;
  };

  /// Runs `call`. If it fails in one group, aborts both, because ranks may be waiting in either.
  template <class Call>
  std::invoke_result_t<Call const&> call_or_abort_both(Call const& call) {
    try {
      return call();
    } catch (std::exception const& thrown) {
      abort(first_line(thrown));
      throw;
    }
  }
  std::unique_ptr<pending_collective> wrap_pending(std::unique_ptr<pending_collective> begun) {
    if (begun == nullptr) return nullptr;
    return std::make_unique<tracked_work>(*this, std::move(begun));
  }
  transport& hosts() const { return *hosts_.backend(); }
  transport& backend(at::Tensor const& tensor) const { return tensor.is_cpu() ? hosts() : *devices_; }

  world_of_ranks hosts_;
  std::unique_ptr<transport> devices_;
};

}  // namespace keel::detail::inline KEEL_MODE

namespace keel::inline KEEL_MODE {

/// Returns a world that uses `hosts` for CPU tensors and a c10d group of any backend for tensors on devices.
/// `make_group(store, rank, size)` returns that group as an intrusive_ptr. `store` is the hosts' rendezvous store with a prefix for this
/// group; null if they have none.
/// Collective: all ranks must call it. Returns `hosts` unchanged for a single process. Throws world_error (E24) if the group's rank or size
/// differs.
template <class MakeGroup>
  requires std::invocable<MakeGroup const&, c10::intrusive_ptr<c10d::Store> const&, int, int>
world_of_ranks over(world_of_ranks const& hosts, MakeGroup const& make_group) {
  if (hosts.size() == 1) return hosts;
  c10::intrusive_ptr<c10d::Store> store;
  if (auto const* const provider = dynamic_cast<detail::store_provider const*>(hosts.backend())) store = provider->store();
  if (store) store = c10::make_intrusive<c10d::PrefixStore>("devices", std::move(store));
  auto group = make_group(store, hosts.rank(), hosts.size());
  using group_type = typename decltype(group)::element_type;
  if (group->getRank() != hosts.rank() || group->getSize() != hosts.size())
    throw world_error("E24", "rank " + std::to_string(hosts.rank()) + " of " + std::to_string(hosts.size()) + " has rank " +
                                 std::to_string(group->getRank()) + " of " + std::to_string(group->getSize()) +
                                 " in its device group. Create the group with the rank and the size passed to make_group.");
  return world_of_ranks(std::make_shared<detail::device_transport>(
      hosts, std::make_unique<detail::group_transport<group_type>>(std::move(group), hosts.timeout(), std::move(store),
                                                                   detail::group_transport<group_type>::place::on_device)));
}

}  // namespace keel::inline KEEL_MODE
