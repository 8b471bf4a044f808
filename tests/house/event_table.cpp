// Prints the table of the events of events.jsonl.
#include <iostream>
#include <keel/trainer/run_event_table.hpp>
#include <string_view>

int main() {
  constexpr char const* levels[] = {"", "notice", "warning"};
  std::cout << "| `event` | fields | when, or the printed line | console |\n|---|---|---|---|\n";
  for (keel::logged_event const& one : keel::logged_event::all) {
    std::string_view const when = one.when;
    std::cout << "| `" << one.name << "` | " << one.fields << " | " << (when.empty() ? one.text : when) << " | "
              << levels[one.on_console] << " |\n";
  }
}
