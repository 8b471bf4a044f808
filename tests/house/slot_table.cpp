// Prints the README's table of slots from their descriptions.
#include <iostream>
#include <keel/recipe.hpp>
#include <string>

namespace {

template <class Slot>
void print_row() {
  std::string policies;
  std::string before;
  for (auto const& policy : Slot::policies().all) {
    std::string const name = policy.typed != nullptr ? policy.typed : policy.name;
    if (name == before || name == "custom") continue;
    bool const has_arguments = *policy.fields != '\0' && !(policy.typed != nullptr && name == policy.name);
    policies += (policies.empty() ? "`" : ", `") + name + (has_arguments ? "<..>`" : "`");
    before = name;
  }
  std::string const unfilled = keel::detail::print_slot<Slot>(keel::config{}, keel::shown::set).c_str();
  std::cout << "| `" << Slot::name << "` | " << policies << " | " << unfilled << " |\n";
}

template <class... Slots>
void print_rows(keel::slot_list<Slots...>) {
  (print_row<Slots>(), ...);
}

}  // namespace

int main() {
  std::cout << "| slot | policies | default |\n|---|---|---|\n";
  print_rows(keel::slots{});
}
