#include "../starving.hpp"

using namespace keel_test;
using namespace keel::literals;
namespace oom = keel::oom;
using oom::rung_kind;

namespace {

template <class... Entries>
keel::ladder_position position_of() {
  return keel::ladder_position(keel::config_of<keel::recipe<oom::ladder<Entries...>>>);
}
constexpr auto anything = [](int) { return true; };

}  // namespace

TEST_CASE("rungs are taken in the ladder's order, and those that free nothing are passed over") {
  auto at = position_of<oom::halve_micro_batch, oom::enable_recompute<keel::recompute::reentrant>, oom::offload_optimizer,
                        oom::fused_attention, oom::give_up>();
  CHECK(at.take_next(4, 9, anything) == rung_kind::halve_micro_batch);
  CHECK(at.take_next(4, 9, anything) == rung_kind::halve_micro_batch);
  CHECK(at.relief().pieces == 4);
  CHECK(at.take_next(4, 9, anything) == rung_kind::enable_recompute);
  CHECK(at.relief().recompute == keel::recompute_kind::reentrant);
  // What cannot do anything here is passed over, too.
  CHECK(at.take_next(4, 9, [](int index) { return index != 2; }) == rung_kind::fused_attention);
  CHECK(at.relief() == keel::memory_settings{4, keel::recompute_kind::reentrant, keel::attention_kind::fused, false, false, 0});
  CHECK(at.take_next(4, 9, anything) == rung_kind::give_up);
  CHECK(at.take_next(4, 9, anything) == rung_kind::give_up);
}

TEST_CASE("rungs that change the experiment are taken before the first update and never later") {
  using first = keel::ladder_position;
  auto const make = [] {
    return position_of<oom::quantize_base, oom::shorten_sequence<8>, oom::shorten_sequence<4>, oom::give_up>();
  };
  first before = make();
  CHECK(before.take_next(8, 0, anything) == rung_kind::quantize_base);
  CHECK(before.take_next(8, 0, anything) == rung_kind::shorten_sequence);
  CHECK(before.relief().length == 8);
  CHECK(before.take_next(8, 0, anything) == rung_kind::shorten_sequence);
  CHECK(before.relief().length == 4);
  CHECK(before.take_next(8, 0, anything) == rung_kind::give_up);
  first running = make();
  CHECK(running.take_next(8, 1, anything) == rung_kind::give_up);
}

TEST_CASE("a rung is given back after the updates that the recipe says, and after twice as many where that was too early") {
  auto at = position_of<oom::halve_micro_batch, oom::release_after<3_steps>, oom::give_up>();
  auto const updates_until_given_back = [&] {
    for (int updates = 1; updates < 100; ++updates) {
      if (at.updated()) return updates;
    }
    return 0;
  };
  at.take_next(8, 0, anything);
  at.take_next(8, 0, anything);
  CHECK(updates_until_given_back() == 3);
  CHECK(at.relief().pieces == 2);
  CHECK(updates_until_given_back() == 3);
  CHECK(at.relief().pieces == 1);
  CHECK(updates_until_given_back() == 0);
  at.take_next(8, 0, anything);
  CHECK(updates_until_given_back() == 6);
  at.take_next(8, 0, anything);
  CHECK(updates_until_given_back() == 12);

  auto stays = position_of<oom::shorten_sequence<4>, oom::release_after<1_steps>, oom::give_up>();
  stays.take_next(8, 0, anything);
  CHECK_FALSE(stays.updated());
}

TEST_CASE("where a run stands on its ladder is saved and restored, also onto another ladder, and damage becomes no rung") {
  auto at = position_of<oom::halve_micro_batch, oom::enable_recompute<keel::recompute::non_reentrant>, oom::give_up>();
  for (int i = 0; i < 3; ++i) at.take_next(4, 5, anything);
  nlohmann::json object;
  keel::tensor_map tensors;
  keel::state_writer writer(object, tensors);
  at.visit(writer);
  auto const read = [&](auto position) {
    keel::state_reader reader(object, tensors, "a test");
    position.visit(reader);
    return position;
  };
  auto same = read(position_of<oom::halve_micro_batch, oom::enable_recompute<keel::recompute::non_reentrant>, oom::give_up>());
  CHECK(same.relief() == at.relief());
  CHECK(same.take_next(4, 5, anything) == rung_kind::give_up);
  auto longer = read(position_of<oom::halve_micro_batch, oom::enable_recompute<keel::recompute::non_reentrant>,
                                 oom::offload_optimizer, oom::give_up>());
  CHECK(longer.take_next(4, 5, anything) == rung_kind::offload_optimizer);
  CHECK(longer.relief().pieces == 4);
  object["taken"] = {1, 77, -3};
  object["patience"] = -5;
  auto damaged = read(position_of<oom::halve_micro_batch, oom::give_up>());
  CHECK(damaged.relief().pieces == 2);
  CHECK(damaged.taken() == 1);
}

namespace {

struct releases : keel::recipe<oom::ladder<oom::halve_micro_batch, oom::release_after<2_steps>, oom::give_up>,
                                  keel::checkpoint::every<1_steps>> {};

}  // namespace

TEST_CASE("a run says which rungs it took and gave back, and a resumed one stands where it stood") {
  scratch_directory directory;
  auto const path = directory / "run";
  std::vector<std::string> said;
  for (int part = 0; part < 2; ++part) {
    auto const model = make_small();
    keel::adamw optimizer(model->parameters(), 0.01);
    keel::trainer<releases> run{model, optimizer, quiet({.run_directory = path})};
    run.on([&](keel::event::out_of_memory const& e) { said.push_back(e.rung + " " + std::to_string(e.update)); });
    run.on([&](keel::event::rung_released const& e) { said.push_back("back " + std::to_string(e.update)); });
    bool starve = part == 0;
    auto const loss = starving(mean_squared_error(model), [&] { return std::exchange(starve, false); });
    run.resume();
    if (part == 1) CHECK(run.relief().pieces == 2);
    run.step(make_pair_batch(1), loss);
    if (part == 1) {
      CHECK(run.rungs_taken() == 1);
      for (std::uint64_t i = 2; i < 4; ++i) run.step(make_pair_batch(i), loss);
      CHECK(run.relief().pieces == 1);
    }
  }
  CHECK(said == std::vector<std::string>{"halve_micro_batch 0", "back 2"});
  auto const events = read_file(path / "events.jsonl");
  CHECK(events.find("\"event\":\"rung\"") != std::string::npos);
  CHECK(events.find("rung_released") != std::string::npos);
}
