// Wraps a TorchScript module as a module for a step or trainer: its named parameters and buffers, and its mode. The program calls the
// script module as before.
//
//     auto net = torch::jit::load("net.pt");
//     auto model = std::make_shared<keel::script_module>(net);
//     torch::optim::Adam optimizer(model->parameters(), 1e-3);
//
// Includes TorchScript's headers, so keel/keel.hpp does not include this header. Left out: scripts whose forward() replaces a buffer by
// another tensor; this module would keep the old one.
#pragma once

#include <keel/libtorch/ivalue_first.hpp>

#include <torch/csrc/jit/api/module.h>
#include <torch/nn/module.h>

#include <keel/libtorch/mode.hpp>
#include <memory>
#include <utility>

namespace keel::inline KEEL_MODE {

class script_module : public torch::nn::Module {
 public:
  explicit script_module(torch::jit::Module module) : torch::nn::Module("script_module"), module_(std::move(module)) {
    for (auto const& one : module_.named_parameters(/*recurse=*/false))
      register_parameter(one.name, one.value, one.value.requires_grad());
    for (auto const& one : module_.named_buffers(/*recurse=*/false)) register_buffer(one.name, one.value);
    for (auto const& one : module_.named_children()) register_module(one.name, std::make_shared<script_module>(one.value));
    torch::nn::Module::train(module_.is_training());
  }

  void train(bool on = true) override {
    module_.train(on);
    torch::nn::Module::train(on);
  }

 private:
  torch::jit::Module module_;
};

}  // namespace keel::inline KEEL_MODE
