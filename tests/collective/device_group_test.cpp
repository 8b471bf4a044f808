// Tensors on a device go by a separate group. A group that notes what it is asked for stands for NCCL's, and tensors without elements in
// memory for those of a device.
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include <map>

#include <ATen/ops/empty.h>
#include <keel/collective/collectives.hpp>
#include <keel/collective/device_group.hpp>
#include <keel/collective/in_process.hpp>

#include "../support.hpp"
#include "rank_error_messages.hpp"

using namespace keel_test;
using namespace std::chrono_literals;

namespace {

struct done_work {
  bool fails = false;
  bool isCompleted() const { return true; }
  bool isSuccess() const { return true; }
  void wait() const {
    if (fails) throw std::runtime_error("NCCL communicator was aborted");
  }
  void wait(std::chrono::milliseconds) const { throw std::logic_error("a host waits for its device"); }
};

class noting_group : public c10::intrusive_ptr_target {
 public:
  using work = std::shared_ptr<done_work>;
  noting_group(int rank, int size) : rank_(rank), size_(size) {}
  int getRank() const { return rank_; }
  int getSize() const { return size_; }
  work allreduce(std::vector<at::Tensor>&, c10d::AllreduceOptions const&) { return note("all_reduce"); }
  work allgather(std::vector<std::vector<at::Tensor>>&, std::vector<at::Tensor>&, c10d::AllgatherOptions const&) { return note("list_gather"); }
  work _allgather_base(at::Tensor&, at::Tensor&, c10d::AllgatherOptions const&) { return note("all_gather"); }
  work broadcast(std::vector<at::Tensor>&, c10d::BroadcastOptions const&) { return note("broadcast"); }
  work alltoall_base(at::Tensor&, at::Tensor&, std::vector<std::int64_t>&, std::vector<std::int64_t>&, c10d::AllToAllOptions const&) {
    return note("all_to_all");
  }
  work barrier(c10d::BarrierOptions const& = {}) { return note("barrier"); }

  std::string noted;
  bool fails = false;

 private:
  work note(char const* what) {
    noted += std::string(what) + " ";
    return std::make_shared<done_work>(done_work{fails});
  }
  int rank_, size_;
};

at::Tensor on_device() { return at::empty({4, 3}, at::TensorOptions(at::kMeta).dtype(at::kFloat)); }

}  // namespace

TEST_CASE("tensors on a device go by its group, those of the host and what ranks agree on by the hosts' world") {
  std::map<int, std::string> noted;
  keel::run_in_process(2, [&](keel::world_of_ranks const& hosts) {
    auto const group = c10::make_intrusive<noting_group>(hosts.rank(), 2);
    auto const world = keel::over(hosts, [&](c10::intrusive_ptr<c10d::Store> const& store, int rank, int size) {
      CHECK(!store);
      CHECK(rank == hosts.rank());
      CHECK(size == 2);
      return group;
    });
    keel::all_reduce(world, on_device());
    keel::broadcast(world, on_device());
    CHECK(keel::all_gather(world, on_device()).size(0) == 2);
    static_cast<void>(keel::all_to_all(world, on_device()));
    keel::barrier(world);
    at::Tensor const own = at::full({2}, world.rank() + 1.0);
    keel::all_reduce(world, own);
    CHECK(own[0].item<double>() == 3.0);
    CHECK(world.combine(keel::reduce::max{}, world.rank()) == 1);
    CHECK(keel::agree(world, world.rank() == 1).value());
    CHECK(world.collectives() == 8);
    noted[world.rank()] = group->noted;
  });
  for (auto const& [rank, words] : noted) CHECK(words == "all_reduce broadcast all_gather all_to_all ");
}

TEST_CASE("a group for devices gets the store in which the hosts met, and its failure names the collective") {
  auto const store = c10::make_intrusive<c10d::HashStore>();
  auto const of_hosts = c10::make_intrusive<noting_group>(1, 2), of_devices = c10::make_intrusive<noting_group>(1, 2);
  auto const world = keel::over(keel::over(of_hosts, 5s, store), [&](c10::intrusive_ptr<c10d::Store> const& met, int, int) {
    met->set("key", std::vector<std::uint8_t>{1});
    return of_devices;
  });
  CHECK(world.timeout() == 5s);
  CHECK(store->check({"keel/world/1/devices/key"}));
  CHECK(!store->check({"key"}));
  CHECK(world.supports_heartbeats());
  world.limit(2s);
  keel::all_reduce(world, on_device());
  of_devices->fails = true;
  try {
    keel::all_reduce(world, on_device());
    FAIL("a collective that fails was taken for done");
  } catch (keel::world_error const& thrown) {
    std::string const words = thrown.what();
    CAPTURE(words);
    CHECK(words.find("[E25] rank 1 of 2 cannot complete all_reduce, collective number 2") == 0);
    CHECK(words.find("NCCL communicator was aborted") != std::string::npos);
  }
  // Ranks may wait for this one in the hosts' group.
  CHECK_THROWS_AS(keel::barrier(world), keel::world_error);
  auto const left = store->get("keel/world/1/keel/given_up");
  CHECK(std::string(left.begin(), left.end()).find("rank 1 has given up: ") == 0);
}

TEST_CASE("a world of one process needs no group, and a group with another rank or size is named with both") {
  CHECK(keel::over(keel::world_of_ranks(), [](auto const&, int, int) -> c10::intrusive_ptr<noting_group> { throw std::logic_error("called"); }).size() == 1);
  for (std::string const& words : rank_error_messages(2, [](keel::world_of_ranks const& hosts) {
         keel::over(hosts, [](auto const&, int, int) { return c10::make_intrusive<noting_group>(0, 3); });
       })) {
    CAPTURE(words);
    CHECK(words.find("[E24] rank ") == 0);
    CHECK(words.find(" of 2 has rank 0 of 3 in its device group") != std::string::npos);
  }
}
