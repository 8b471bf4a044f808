// Copies and restores program state that a skipped update must not change, such as the hidden state that an LSTM carries between batches.
// State lists its fields with `visit(archive)`. Changes that the program makes between the micro-batches of an update, such as an advanced
// sampler, are kept. A list, array, optional or map counts as one field: if the program changed it, all of it is kept, because elements may
// have moved.
#pragma once

#include <ATen/MemoryOverlap.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <any>
#include <cmath>
#include <cstddef>
#include <exception>
#include <keel/checkpoint/fields.hpp>
#include <keel/core/tensor_mark.hpp>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace keel::detail::inline KEEL_MODE {

/// The captured fields of a state, in the order of `visit`. An empty capture is ignored.
using field_list = std::vector<std::pair<std::string, std::any>>;

/// Finds fields by name, each after the previous match. `visit` may list a name twice, or omit fields that it listed before.
template <class Fields>
class field_cursor {
 public:
  explicit field_cursor(Fields& fields) : fields_(fields) {}
  /// Returns null if the field was not captured.
  auto* find(std::string_view name) {
    for (std::size_t i = next_; i < fields_.size(); ++i) {
      if (fields_[i].first != name) continue;
      next_ = i + 1;
      return &fields_[i].second;
    }
    return static_cast<decltype(&fields_[0].second)>(nullptr);
  }
  bool at_end() const { return next_ == fields_.size(); }

 private:
  Fields& fields_;
  std::size_t next_ = 0;
};

/// Captures a field: constructs `TensorCapture` from a tensor, copies a value, recurses into the rest.
template <class TensorCapture, class Field>
std::any capture_field(Field& field);
template <class TensorCapture, class State>
field_list capture_fields(State& state) {
  field_list taken;
  for_each_field(state, [&](char const* name, auto& field) { taken.emplace_back(name, capture_field<TensorCapture>(field)); });
  return taken;
}
template <class TensorCapture, class Field>
std::any capture_field(Field& field) {
  constexpr field_kind kind = kind_of_field<Field>;
  if constexpr (kind == field_kind::tensor) {
    return TensorCapture(field);
  } else if constexpr (holds_values<Field>) {
    return field;
  } else if constexpr (kind == field_kind::nested) {
    return capture_fields<TensorCapture>(field);
  } else if constexpr (kind == field_kind::map) {
    field_list elements;
    for (auto& [key, element] : field) elements.emplace_back(key, capture_field<TensorCapture>(element));
    return elements;
  } else {
    std::vector<std::any> elements;
    for (auto& element : elements_of(field)) elements.push_back(capture_field<TensorCapture>(element));
    return elements;
  }
}

/// True if two values are the same. NaN equals NaN, because a placeholder that is still NaN did not change.
template <class Field>
bool same_values(Field const& a, Field const& b) {
  constexpr field_kind kind = kind_of_field<Field>;
  auto const same = [](auto const& x, auto const& y) { return same_values(x, y); };
  if constexpr (std::is_floating_point_v<Field>) {
    return (a == b && std::signbit(a) == std::signbit(b)) || (std::isnan(a) && std::isnan(b));
  } else if constexpr (kind == field_kind::value) {
    return a == b;
  } else if constexpr (kind == field_kind::optional) {
    return a.has_value() == b.has_value() && (!a || same(*a, *b));
  } else if constexpr (kind == field_kind::map) {
    return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                      [&](auto const& x, auto const& y) { return x.first == y.first && same(x.second, y.second); });
  } else {
    return std::equal(a.begin(), a.end(), b.begin(), b.end(), same);
  }
}

template <class Field>
bool is_unchanged(std::any const& mark, Field& field) {
  constexpr field_kind kind = kind_of_field<Field>;
  if constexpr (kind == field_kind::tensor) {
    return std::any_cast<tensor_mark const&>(mark) == tensor_mark(field);
  } else if constexpr (holds_values<Field>) {
    return same_values(std::any_cast<Field const&>(mark), field);
  } else if constexpr (kind == field_kind::nested || kind == field_kind::map) {
    field_cursor marks(std::any_cast<field_list const&>(mark));
    bool same = true;
    auto const compare = [&](std::string_view name, auto& one) {
      std::any const* const found = same ? marks.find(name) : nullptr;
      same = found != nullptr && is_unchanged(*found, one);
    };
    if constexpr (kind == field_kind::nested) {
      for_each_field(field, compare);
    } else {
      for (auto& [key, element] : field) compare(key, element);
    }
    return same && marks.at_end();
  } else {
    auto const& marks = std::any_cast<std::vector<std::any> const&>(mark);
    auto const elements = elements_of(field);
    return std::equal(marks.begin(), marks.end(), elements.begin(), elements.end(),
                      [](std::any const& one, auto& element) { return is_unchanged(one, element); });
  }
}

/// A tensor's handle, and a copy of its values.
struct tensor_copy {
  at::Tensor live;
  at::Tensor values;

  explicit tensor_copy(at::Tensor const& tensor)
      : live(tensor), values(tensor.defined() ? tensor.detach().clone() : at::Tensor()) {}
  void restore(at::Tensor& field) const {
    field = live;
    if (!field.defined()) return;
    // An expanded tensor cannot be written to.
    bool const writable = field.layout() == at::kStrided && at::has_internal_overlap(field) != at::MemOverlap::Yes;
    if (writable && field.sizes() == values.sizes()) {
      field.detach().copy_(values);
    } else {
      field = values;
    }
  }
};

template <class Field>
void restore_field(std::any const& copy, Field& field);
template <class State>
void restore_fields(field_list const& copies, State& state) {
  field_cursor at(copies);
  for_each_field(state, [&](char const* name, auto& field) {
    std::any const* const copy = at.find(name);
    if (copy != nullptr && copy->has_value()) restore_field(*copy, field);
  });
}
template <class Field>
void restore_field(std::any const& copy, Field& field) {
  constexpr field_kind kind = kind_of_field<Field>;
  if constexpr (kind == field_kind::tensor) {
    std::any_cast<tensor_copy const&>(copy).restore(field);
  } else if constexpr (holds_values<Field>) {
    field = std::any_cast<Field const&>(copy);
  } else if constexpr (kind == field_kind::nested) {
    restore_fields(std::any_cast<field_list const&>(copy), field);
  } else if constexpr (kind == field_kind::map) {
    auto const& elements = std::any_cast<field_list const&>(copy);
    std::erase_if(field, [&](auto const& present) {
      return !std::ranges::binary_search(elements, present.first, field.key_comp(), &field_list::value_type::first);
    });
    for (auto const& [key, element] : elements) restore_field(element, field.try_emplace(key).first->second);
  } else {
    auto const& elements = std::any_cast<std::vector<std::any> const&>(copy);
    resize_list(field, elements.size());
    auto const live = elements_of(field);
    for (std::size_t i = 0; i < live.size(); ++i) restore_field(elements[i], live[i]);
  }
}

}  // namespace keel::detail::inline KEEL_MODE

namespace keel::inline KEEL_MODE {

/// Records the current state of fields, to detect later which of them changed.
class field_marks {
 public:
  template <class State>
  static field_marks of(State& state) {
    field_marks marks;
    marks.fields_ = detail::capture_fields<tensor_mark>(state);
    return marks;
  }

 private:
  friend class field_copies;
  detail::field_list fields_;
};

/// Copies of fields. restore() resizes lists to their old length; it default-constructs missing elements and restores their fields.
class field_copies {
 public:
  template <class State>
  static field_copies of(State& state) {
    field_copies copies;
    at::NoGradGuard no_grad;
    copies.fields_ = detail::capture_fields<detail::tensor_copy>(state);
    return copies;
  }
  /// Excludes fields that changed since `marks` from restore().
  template <class State>
  void exclude_changed(field_marks const& marks, State& state) {
    exclude_changed(marks.fields_, fields_, state);
  }
  /// Restores all fields. Copies values back into tensors, and restores the handles of tensors that were replaced. Allocates no device
  /// memory, because it may run after an out-of-memory error.
  template <class State>
  void restore(State& state) const {
    at::NoGradGuard no_grad;
    detail::restore_fields(fields_, state);
  }

 private:
  template <class State>
  static void exclude_changed(detail::field_list const& marks, detail::field_list& copies, State& state) {
    detail::field_cursor mark_at(marks);
    detail::field_cursor copy_at(copies);
    detail::for_each_field(state, [&]<class Field>(char const* name, Field& field) {
      std::any const* const mark = mark_at.find(name);
      std::any* const copy = copy_at.find(name);
      if (copy == nullptr || !copy->has_value()) return;
      if constexpr (detail::kind_of_field<Field> == detail::field_kind::nested) {
        if (mark != nullptr) {
          exclude_changed(std::any_cast<detail::field_list const&>(*mark), std::any_cast<detail::field_list&>(*copy), field);
          return;
        }
      }
      if (mark == nullptr || !detail::is_unchanged(*mark, field)) copy->reset();
    });
  }

  detail::field_list fields_;
};

/// Interface of the registered program state. The trainer implements it; the step uses it.
class program_state {
 public:
  virtual ~program_state() = default;
  virtual bool empty() const = 0;
  /// Copies the state that a skipped update restores.
  virtual std::vector<field_copies> capture() = 0;
  virtual void restore(std::vector<field_copies> const& copies) = 0;
  /// Copies all registered state, even state that skipped updates do not restore. For a trace, which must have no side effects.
  virtual std::vector<field_copies> capture_all() = 0;
  virtual void restore_all(std::vector<field_copies> const& copies) = 0;
  virtual std::vector<field_marks> capture_marks() = 0;
  /// Removes the fields that changed since `marks` from `copies`.
  virtual void exclude_changes(std::vector<field_marks> const& marks, std::vector<field_copies>& copies) = 0;

 protected:
  program_state() = default;
  program_state(program_state const&) = default;
  program_state& operator=(program_state const&) = default;
};

/// Copies the program state, and restores it on destruction. `state` may be null.
class program_state_guard {
 public:
  explicit program_state_guard(program_state* state) : state_(state != nullptr && !state->empty() ? state : nullptr) {
    if (state_ != nullptr) saved_copies_ = state_->capture();
  }
  program_state_guard(program_state_guard const&) = delete;
  program_state_guard& operator=(program_state_guard const&) = delete;
  ~program_state_guard() noexcept(false) {
    if (state_ == nullptr) return;
    try {
      state_->restore(saved_copies_);
    } catch (std::exception const&) {
      // An exception already in flight is more informative.
      if (std::uncaught_exceptions() == unwinding_) throw;
    }
  }

 private:
  program_state* state_;
  std::vector<field_copies> saved_copies_;
  int unwinding_ = std::uncaught_exceptions();
};

}  // namespace keel::inline KEEL_MODE
