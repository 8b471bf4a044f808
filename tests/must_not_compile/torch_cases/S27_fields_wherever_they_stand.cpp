// Each type once, however many fields have it and whatever visits them.
// expect: S27 S27 S27 S27 S27
#include <keel/checkpoint/archive.hpp>
#include <keel/trainer/registered_state.hpp>
#include <keel/step/program_state.hpp>
#include <optional>
#include <vector>

struct without_default {
#ifndef KEEL_TWIN
  explicit without_default(int) {}
#endif
  int value = 0;
  void visit(auto& archive) { archive("value", value); }
};

struct layer {
#ifdef KEEL_TWIN
  double scale = 1.0;
  std::vector<int> next;
  std::optional<int> maybe;
#else
  long double scale = 1.0L;
  std::vector<layer*> next;
  std::optional<std::optional<int> > maybe;
#endif
  void visit(auto& archive) {
    archive("scale", scale);
    archive("next", next);
    archive("maybe", maybe);
  }
};

struct net {
  std::vector<layer> layers;
  std::array<std::vector<without_default>, 2> lists;
#ifdef KEEL_TWIN
  double last = 0.0, first = 0.0;
  int count = 0;
#else
  long double last = 0.0L, first = 0.0L;
  int const count = 0;
#endif
  void visit(auto& archive) {
    archive("layers", layers);
    archive("lists", lists);
    archive("last", last);
    archive("first", first);
    archive("count", count);
  }
};

void every_visitor(net& state, nlohmann::json& object, keel::tensor_map& tensors) {
  keel::registered_states all;
  all.add("net", state);
  keel::state_writer writer(object, tensors);
  state.visit(writer);
  keel::state_reader reader(object, tensors, "a test");
  state.visit(reader);
  keel::field_copies::of(state).restore(state);
}
