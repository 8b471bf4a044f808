// Prints what training comes to; the same with keel::keel and with keel::compiled.
#include <torch/nn/modules/linear.h>
#include <torch/optim/adamw.h>

#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <keel/keel.hpp>
#include <vector>

using namespace keel::literals;

struct saving : keel::recipe<keel::clip::global_norm<1.0>, keel::checkpoint::every<4_steps>, keel::ema<0.9>,
                             keel::determinism::seeded<3>> {};

struct Q02 {
  static constexpr char const* id = "Q02";
  static constexpr char const* text = "[Q02] this team trains for more than a moment. Fix: options.updates of 2 or more.";
  static constexpr bool broken(keel::config const& c) { return c.run.known && c.run.updates == 1; }
};
struct with_rule : keel::recipe<Q02> {};

struct sampler_state {
  std::int64_t draws = 0;
  at::Tensor hidden = at::zeros({2});
  void visit(auto& archive) {
    archive("draws", draws);
    archive("hidden", hidden);
  }
};

double loss_of_the_other_file();

int main(int, char** arguments) {
  std::filesystem::path const directory = arguments[1];
  keel::seed<saving>();
  std::vector<at::Tensor> const batches = at::randn({40, 4}).split(4);
  for (std::int64_t updates : {6, 10}) {
    torch::nn::Linear model(4, 2);
    torch::optim::AdamW optimizer(model->parameters(), 0.1);
    keel::trainer<saving> run{model, optimizer, {.run_directory = directory, .updates = updates, .console = nullptr}};
    sampler_state sampler;
    run.register_state("sampler", sampler);
    run.migrate({"nothing to change", [](keel::migration& old) { old.drop("absent"); }});
    auto const loss_of = [&](at::Tensor const& x) {
      ++sampler.draws;
      return model->forward(x).square().mean();
    };
    bool const finished = run.fit(batches, loss_of).finished() != nullptr;
    std::printf("%d after %" PRId64 " updates, %" PRId64 " draws\n", finished, run.updates(), sampler.draws);
    for (at::Tensor const& one : model->parameters()) {
      at::Tensor const values = one.detach().contiguous();
      for (std::int64_t i = 0; i < values.numel(); ++i) {
        std::uint32_t bits = 0;
        std::memcpy(&bits, values.data_ptr<float>() + i, sizeof bits);
        std::printf("%08x\n", bits);
      }
    }
  }
  torch::nn::Linear weights(4, 2);
  keel::load_weights(*weights, directory);
  keel::save_safetensors(directory / "weights.safetensors", {{"weight", weights->weight.detach()}});
  std::printf("%zu tensors, %zu saves\n", keel::load_safetensors(directory / "weights.safetensors").tensors.size(),
              keel::checkpoint_store(directory / "checkpoints").all().size());
  try {
    torch::optim::AdamW optimizer(weights->parameters(), 0.1);
    keel::step<with_rule> rejected{weights, optimizer, 1};
  } catch (keel::recipe_error const& thrown) {
    std::printf("%s\n", thrown.what());
  }
  std::printf("%.9f\n", loss_of_the_other_file());
}
