// State of the program that an update which does not take place must leave as it was, such as the hidden state that an LSTM
// carries from batch to batch: a copy in memory of what lists its fields with `visit(archive)`, and the way back. What the program
// changes between the micro-batches of an update, such as a sampler that moved on with the data, stays as it is.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>

#include <any>
#include <cstddef>
#include <keel/step/tensor_mark.hpp>
#include <type_traits>
#include <utility>
#include <vector>

namespace keel {

/// What fields were, to see later which of them changed.
class field_marks {
 public:
  template <class State>
  static field_marks of(State& state) {
    field_marks marks;
    taker archive{marks.fields_};
    state.visit(archive);
    return marks;
  }
  /// One entry a field, in the order in which visit lists them.
  template <class State>
  std::vector<bool> changed(State& state) const {
    std::vector<bool> found;
    comparer archive{fields_, found};
    state.visit(archive);
    return found;
  }

 private:
  struct taker {
    std::vector<std::any>& fields;
    template <class Field>
    void operator()(char const* /*name*/, Field& field) {
      if constexpr (requires { field.visit(*this); }) {
        field.visit(*this);
      } else if constexpr (std::is_same_v<Field, at::Tensor>) {
        fields.emplace_back(tensor_mark(field));
      } else {
        fields.emplace_back(field);
      }
    }
  };
  struct comparer {
    std::vector<std::any> const& fields;
    std::vector<bool>& found;
    template <class Field>
    void operator()(char const* /*name*/, Field& field) {
      if constexpr (requires { field.visit(*this); }) {
        field.visit(*this);
      } else if constexpr (std::is_same_v<Field, at::Tensor>) {
        found.push_back(tensor_mark(field) != std::any_cast<tensor_mark const&>(fields.at(found.size())));
      } else {
        found.push_back(!(field == std::any_cast<Field const&>(fields.at(found.size()))));
      }
    }
  };

  std::vector<std::any> fields_;
};

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
  /// Fields that are not put back any more.
  void leave(std::vector<bool> const& which) {
    for (std::size_t i = 0; i < which.size() && i < fields_.size(); ++i) {
      if (which[i]) fields_[i].reset();
    }
  }
  /// Tensors that were written in place get their values back, and those that were replaced come back themselves. Allocates
  /// nothing: this may follow an out-of-memory.
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
        return;
      } else {
        std::any const& copy = fields.at(next++);
        if (!copy.has_value()) return;
        put(copy, field);
      }
    }
    template <class Field>
    static void put(std::any const& from, Field& field) {
      if constexpr (std::is_same_v<Field, at::Tensor>) {
        auto const& copy = std::any_cast<tensor_copy const&>(from);
        field = copy.live;
        if (!field.defined()) return;
        // An expanded tensor cannot be written to.
        if (field.sizes() == copy.values.sizes() && field.is_non_overlapping_and_dense()) {
          field.detach().copy_(copy.values);
        } else {
          field = copy.values;
        }
      } else {
        field = std::any_cast<Field const&>(from);
      }
    }
  };

  std::vector<std::any> fields_;  ///< empty ones are left as they are
};

/// What a step asks of the trainer, which registers the program's state.
class program_state {
 public:
  virtual ~program_state() = default;
  virtual bool empty() const = 0;
  virtual std::vector<field_copies> take() = 0;
  virtual void put_back(std::vector<field_copies> const& copies) = 0;
  virtual std::vector<field_marks> take_marks() = 0;
  /// Fields that changed since `marks` are not put back.
  virtual void leave_changes(std::vector<field_marks> const& marks, std::vector<field_copies>& copies) = 0;

 protected:
  program_state() = default;
  program_state(program_state const&) = default;
  program_state& operator=(program_state const&) = default;
};

}  // namespace keel
