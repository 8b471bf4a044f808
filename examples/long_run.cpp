// A run that is to last for weeks: it saves beside training as often as failures make it worth while, rolls back by itself when
// something breaks, and goes on after any kill. Stop it with Ctrl-C, or kill it, and start it again.
// [long_run]
#include <keel/data/shuffled_batches.hpp>
#include <keel/keel.hpp>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>

using namespace keel::literals;
namespace checkpoint = keel::checkpoint;

struct for_weeks : keel::recipe<
    checkpoint::young_daly<checkpoint::mean_time_between_failures<6_h>, checkpoint::asynchronous, checkpoint::keep<3>,
                           checkpoint::on_best, checkpoint::by_evaluation_loss>,
    keel::evaluation::every<50_steps>,
    keel::nonfinite::rollback<5, keel::nonfinite::attempts<3>>,   // five bad updates in a row: roll back, skip that data, go on
    keel::timeout::set<keel::timeout::grace<60_s>>,               // what the scheduler leaves between its signal and its kill
    keel::determinism::seeded<1>> {};

/// State of the program: registered, it is in every checkpoint.
struct curriculum {
  double difficulty = 0.0;
  void visit(auto& archive) { archive("difficulty", difficulty); }
};

int main(int count, char** words) {
  keel::seed<for_weeks>();
  torch::nn::Sequential model(torch::nn::Linear(8, 32), torch::nn::Tanh(), torch::nn::Linear(32, 1));
  keel::adamw optimizer(model->parameters(), 1e-2);
  keel::trainer<for_weeks> run{model, optimizer, {.run_directory = count > 1 ? words[1] : "runs/long_run", .updates = 300, .console_every = 50}};

  curriculum lessons;
  run.register_state("curriculum", lessons);

  at::Tensor const rows = at::randn({1000, 8}), answers = rows.sin().sum(1, true);
  at::Tensor const unseen = at::randn({200, 8}), unseen_answers = unseen.sin().sum(1, true);
  auto const loss_of = [&](keel::row_numbers const& batch) {
    at::Tensor const index = at::tensor(at::ArrayRef<std::int64_t>(batch));
    return at::mse_loss(model->forward(rows.index_select(0, index)), answers.index_select(0, index)) * (1.0 + lessons.difficulty);
  };
  run.on([&](keel::event::update_end const&) { lessons.difficulty += 1e-3; });
  run.on([](keel::event::rolled_back const& e) { std::printf("rolled back to update %lld: %s\n", static_cast<long long>(e.to), e.why.c_str()); });

  run.evaluate_on(std::vector<at::Tensor>{unseen}, [&](at::Tensor const& x) { return at::mse_loss(model->forward(x), unseen_answers); });
  keel::shuffled_batches const order{{.rows = 1000, .batch = 50, .seed = 7}};   // rows by seed, epoch and position alone
  keel::outcome const result = run.fit(order, loss_of);
  return result.finished() ? 0 : 1;
}
// [long_run]
