// Prints the call chains of a run at three places, as addresses: a micro-batch at the optimizer, a NaN where the skipped update is
// reported, and a checkpoint at its first file. tests/house/journeys.sh converts them to files.
#include <execinfo.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include <cmath>
#include <cstdio>
#include <filesystem>
#include <keel/keel.hpp>
#include <memory>
#include <vector>

namespace {

using namespace keel::literals;

void print_chain(char const* journey) {
  void* frames[256];
  int const count = ::backtrace(frames, 256);
  std::printf("%s", journey);
  // A frame has the address to which it returns, behind the call.
  for (int i = 1; i < count; ++i) std::printf(" %p", static_cast<void*>(static_cast<char*>(frames[i]) - 1));
  std::printf("\n");
}

/// Prints the chain of its first update.
struct traced_sgd : torch::optim::SGD {
  using torch::optim::SGD::SGD;
  at::Tensor step(LossClosure closure) override {
    if (std::exchange(is_first, false)) print_chain("batch");
    return torch::optim::SGD::step(std::move(closure));
  }
  bool is_first = true;
};

/// Prints the chain of the first file of a checkpoint.
struct traced_files : keel::file_system {
  void write(keel::file_handle const& to, path const& file, char const* bytes, std::size_t count) override {
    if (is_first && file.string().find("checkpoints") != std::string::npos) {
      is_first = false;
      print_chain("checkpoint");
    }
    keel::file_system::write(to, file, bytes, count);
  }
  bool is_first = true;
};

struct traced : keel::recipe<keel::nonfinite::skip<3>, keel::checkpoint::every<4_steps>> {};

}  // namespace

int main(int, char** arguments) {
  at::manual_seed(1);
  torch::nn::Linear model(2, 1);
  traced_sgd optimizer(model->parameters(), torch::optim::SGDOptions(0.01));
  keel::trainer<traced> run{model,
                            optimizer,
                            {.run_directory = arguments[1], .updates = 4, .console = nullptr, .own_files = std::make_shared<traced_files>()}};
  run.on([](keel::event::update_end const& e) {
    if (!e.result.is<keel::result::updated>()) print_chain("NaN");
  });
  run.fit([](std::int64_t) { return std::vector<at::Tensor>(5, at::ones({3, 2})); },
          [&](at::Tensor const& batch) {
            at::Tensor const loss = model->forward(batch).square().mean();
            return run.updates() == 1 && run.skipped() == 0 ? loss * NAN : loss;
          });
}
