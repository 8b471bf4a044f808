// A world whose tensors on a device go by a separate group, such as NCCL's, and all else by the world that the hosts have: what ranks decide
// together is numbers of the host, for which no device is waited for.
//     auto const hosts = keel::join();
//     auto const world = keel::over(hosts, [](auto const& store, int rank, int size) {
//       return c10::make_intrusive<c10d::ProcessGroupNCCL>(store, rank, size);
//     });
// Left out: a choice of the group. keel is compiled without CUDA's headers, and the program knows which of its devices the rank has.
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

/// Sends each tensor by where it is.
class transport_by_device final : public transport {
 public:
  transport_by_device(world_of_ranks hosts, std::unique_ptr<transport> devices)
      : hosts_(std::move(hosts)), devices_(std::move(devices)) {}

  int rank() const override { return hosts_.rank(); }
  int size() const override { return hosts_.size(); }
  std::chrono::milliseconds timeout() const override { return hosts_.timeout(); }

  void all_reduce(at::Tensor& tensor, reduction_kind how) override {
    for_both([&] { by(tensor).all_reduce(tensor, how); });
  }
  std::unique_ptr<collective_under_way> begin_all_reduce(at::Tensor& tensor, reduction_kind how) override {
    return for_both([&] { return with_end(by(tensor).begin_all_reduce(tensor, how)); });
  }
  void all_gather(at::Tensor const& mine, at::Tensor& all) override {
    for_both([&] { by(mine).all_gather(mine, all); });
  }
  std::unique_ptr<collective_under_way> begin_all_gather(at::Tensor const& mine, at::Tensor& all) override {
    return for_both([&] { return with_end(by(mine).begin_all_gather(mine, all)); });
  }
  std::unique_ptr<collective_under_way> begin_agreement(at::Tensor const& mine, at::Tensor& all) override {
    return for_both([&] { return with_end(by(mine).begin_agreement(mine, all)); });
  }
  void broadcast(at::Tensor& tensor, int from) override {
    for_both([&] { by(tensor).broadcast(tensor, from); });
  }
  void all_to_all(at::Tensor const& from, at::Tensor& to) override {
    for_both([&] { by(from).all_to_all(from, to); });
  }
  void barrier() override {
    for_both([&] { hosts().barrier(); });
  }
  void abort(std::string const& why) noexcept override {
    hosts().abort(why);
    devices_->abort(why);
  }
  void leave_last_words(std::string const& why) noexcept override { hosts().leave_last_words(why); }
  std::optional<std::vector<std::int64_t>> exchange_signs(std::int64_t mine) override { return hosts().exchange_signs(mine); }
  bool leaves_signs() const override { return hosts().leaves_signs(); }
  void limit(std::chrono::milliseconds longest) override {
    hosts().limit(longest);
    devices_->limit(longest);
  }

 private:
  class under_way final : public collective_under_way {
   public:
    under_way(transport_by_device& of, std::unique_ptr<collective_under_way> begun) : of_(of), begun_(std::move(begun)) {}
    bool is_done() override { return begun_->is_done(); }
    void wait() override {
      of_.for_both([this] { begun_->wait(); });
    }

   private:
    transport_by_device& of_;
    std::unique_ptr<collective_under_way> begun_;
  };

  /// What fails in one group ends the other: ranks may wait in either.
  template <class Call>
  std::invoke_result_t<Call const&> for_both(Call const& call) {
    try {
      return call();
    } catch (std::exception const& thrown) {
      abort(first_line(thrown));
      throw;
    }
  }
  std::unique_ptr<collective_under_way> with_end(std::unique_ptr<collective_under_way> begun) {
    if (begun == nullptr) return nullptr;
    return std::make_unique<under_way>(*this, std::move(begun));
  }
  transport& hosts() const { return *hosts_.by(); }
  transport& by(at::Tensor const& tensor) const { return tensor.is_cpu() ? hosts() : *devices_; }

  world_of_ranks hosts_;
  std::unique_ptr<transport> devices_;
};

}  // namespace keel::detail::inline KEEL_MODE

namespace keel::inline KEEL_MODE {

/// The hosts' world with a group for tensors on devices, which `make_group(store, rank, size)` returns as an intrusive_ptr, of any backend.
/// `store`: where the hosts met, for keys of the group alone; null where they did not meet in one. All ranks call it. A world of one
/// process is as it was. Throws world_error (E24) for a group of another size or with another rank.
template <class MakeGroup>
  requires std::invocable<MakeGroup const&, c10::intrusive_ptr<c10d::Store> const&, int, int>
world_of_ranks over(world_of_ranks const& hosts, MakeGroup const& make_group) {
  if (hosts.size() == 1) return hosts;
  c10::intrusive_ptr<c10d::Store> store;
  if (auto const* const met = dynamic_cast<detail::meets_in_store const*>(hosts.by())) store = met->store();
  if (store) store = c10::make_intrusive<c10d::PrefixStore>("devices", std::move(store));
  auto group = make_group(store, hosts.rank(), hosts.size());
  using group_type = typename decltype(group)::element_type;
  if (group->getRank() != hosts.rank() || group->getSize() != hosts.size())
    throw world_error("E24", "rank " + std::to_string(hosts.rank()) + " of " + std::to_string(hosts.size()) +
                                 " has a group for its device in which it is rank " + std::to_string(group->getRank()) +
                                 " of " + std::to_string(group->getSize()) +
                                 ". Make the group with the rank and the size that make_group gets.");
  return world_of_ranks(std::make_shared<detail::transport_by_device>(
      hosts, std::make_unique<detail::group_transport<group_type>>(std::move(group), hosts.timeout(), std::move(store),
                                                                   detail::group_transport<group_type>::place::on_device)));
}

}  // namespace keel::inline KEEL_MODE
