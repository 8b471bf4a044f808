// The run that kill_test.sh kills.
#include <chrono>
#include <cstdlib>
#include <string>
#include <thread>

#include "small_run.hpp"

/// victim RUN_DIRECTORY UPDATES MICROSECONDS_A_MICRO_BATCH [daly|rollback]: with `daly` it saves beside training, for a failure a
/// minute; with `rollback` it goes back twice and keeps the best checkpoint.
int main(int count, char** words) {
  if (count != 4 && count != 5) return 2;
  using namespace keel::literals;
  namespace checkpoint = keel::checkpoint;
  using by_steps = checkpoint::every<5_steps, checkpoint::keep<2>>;
  using by_failures = checkpoint::young_daly<checkpoint::mean_time_between_failures<60_s>, checkpoint::asynchronous>;
  auto const pause = std::chrono::microseconds(std::atoi(words[3]));
  auto const wait = [&] { std::this_thread::sleep_for(pause); };
  auto const nothing = [](auto&) {};
  if (count == 5 && std::string(words[4]) == "rollback") {
    using and_the_best = checkpoint::every<5_steps, checkpoint::keep<3>, checkpoint::keep_best, checkpoint::by_training_loss>;
    soak::train<and_the_best, keel::nonfinite::rollback<2>>(words[1], std::atoll(words[2]), nothing, wait);
  } else if (count == 5) {
    soak::train<by_failures>(words[1], std::atoll(words[2]), nothing, wait);
  } else {
    soak::train<by_steps>(words[1], std::atoll(words[2]), nothing, wait);
  }
  return 0;
}
