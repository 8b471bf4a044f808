// expect: O10 O10 B06 B06 B06
// says: reached by rung 1 of oom::ladder: [B06]
#include <torch/nn/modules/linear.h>
#include <torch/optim/adamw.h>

#include <keel/step/step.hpp>

#ifdef KEEL_TWIN
using normalised = keel::model::has<>;
using loss_type = keel::weighted_loss;
#else
using normalised = keel::model::has<keel::model::batch_norm>;
using loss_type = at::Tensor;
#endif

struct own_net : torch::nn::Module {
  using facts = normalised;
};
struct their_net : torch::nn::Module {};
template <>
struct keel::facts_of<their_net> {
  using facts = normalised;
};

struct sequences {
  using facts = keel::data::is<keel::data::ragged>;
  at::Tensor tokens_of_rows;
  std::int64_t rows() const { return tokens_of_rows.size(0); }
  std::int64_t tokens() const { return tokens_of_rows.numel(); }
  sequences slice(std::int64_t begin, std::int64_t end) const { return {tokens_of_rows.slice(0, begin, end)}; }
};

struct halves : keel::recipe<keel::oom::ladder<keel::oom::halve_micro_batch, keel::oom::give_up>> {};
struct accumulates : keel::recipe<keel::accumulate<2>> {};
struct declares : keel::recipe<keel::accumulate<2>, keel::data::is<keel::data::ragged, keel::data::token_weighted>> {};
struct accepts : keel::recipe<keel::accumulate<2>, keel::accept<"B06">> {};

void build(own_net& own, std::shared_ptr<their_net>& theirs, torch::optim::AdamW& optimizer) {
  keel::step<halves> first{own, optimizer};
  keel::step<halves> second{theirs, optimizer};
}

void train(torch::nn::Linear& model, torch::optim::AdamW& optimizer, sequences const& batch) {
  auto loss_of = [&](sequences const& rows) -> loss_type {
    at::Tensor const mean = model->forward(rows.tokens_of_rows).mean();
#ifdef KEEL_TWIN
    return {mean, static_cast<double>(rows.tokens())};
#else
    return mean;
#endif
  };
  keel::step<accumulates> accumulating{model, optimizer};
  keel::step<halves> halving{model, optimizer};
  keel::step<declares> declaring{model, optimizer};
  keel::step<accepts> accepting{model, optimizer};
  keel::step_outcome result = accumulating(batch, loss_of);
  result = halving(batch, loss_of);
  result = declaring(batch, loss_of);
  result = accepting(batch, [&](sequences const& rows) { return model->forward(rows.tokens_of_rows).mean(); });
}
