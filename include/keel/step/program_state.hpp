// State of the program that an update which does not take place must leave as it was, such as the hidden state that an LSTM
// carries from batch to batch: a copy in memory of whatever lists its fields with `visit(archive)`, and the way back.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>

#include <any>
#include <cstddef>
#include <type_traits>
#include <utility>
#include <vector>

namespace keel {

/// Copies of fields, in the order in which visit lists them.
class field_copies {
 public:
  template <class State>
  static field_copies of(State& state) {
    field_copies copies;
    at::NoGradGuard no_grad;
    taker archive{copies.fields_};
    state.visit(archive);
    return copies;
  }
  /// Tensors that were written in place get their values back, and those that were replaced come back themselves.
  template <class State>
  void put_back(State& state) const {
    at::NoGradGuard no_grad;
    restorer archive{fields_};
    state.visit(archive);
  }

 private:
  struct tensor_copy {
    at::Tensor live;
    at::Tensor values;
  };
  struct taker {
    std::vector<std::any>& fields;
    template <class Field>
    void operator()(char const* /*name*/, Field& field) {
      if constexpr (requires { field.visit(*this); }) {
        field.visit(*this);
      } else if constexpr (std::is_same_v<Field, at::Tensor>) {
        fields.emplace_back(tensor_copy{field, field.defined() ? field.detach().clone() : at::Tensor()});
      } else {
        fields.emplace_back(field);
      }
    }
  };
  struct restorer {
    std::vector<std::any> const& fields;
    std::size_t next = 0;
    template <class Field>
    void operator()(char const* /*name*/, Field& field) {
      if constexpr (requires { field.visit(*this); }) {
        field.visit(*this);
      } else if constexpr (std::is_same_v<Field, at::Tensor>) {
        auto const& copy = std::any_cast<tensor_copy const&>(fields.at(next++));
        field = copy.live;
        if (!field.defined()) return;
        if (field.sizes() == copy.values.sizes()) {
          field.detach().copy_(copy.values);
        } else {
          field = copy.values.clone();
        }
      } else {
        field = std::any_cast<Field const&>(fields.at(next++));
      }
    }
  };

  std::vector<std::any> fields_;
};

/// What a step asks of whoever registers the program's state: the trainer.
class program_state {
 public:
  virtual ~program_state() = default;
  virtual bool empty() const = 0;
  virtual std::vector<field_copies> take() = 0;
  virtual void put_back(std::vector<field_copies> const& copies) = 0;

 protected:
  program_state() = default;
  program_state(program_state const&) = default;
  program_state& operator=(program_state const&) = default;
};

}  // namespace keel
