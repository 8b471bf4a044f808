// Applies the rungs of an oom::ladder to a model and its optimizer. The step itself cuts batches, recomputes and selects attention kernels,
// according to relief(), before every pass. This class moves the optimizer's state, quantizes, and calls custom rungs.
#pragma once

#include <keel/libtorch/ivalue_first.hpp>

#include <torch/nn/module.h>

#include <bit>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <filesystem>
#include <keel/config/config.hpp>
#include <keel/core/error.hpp>
#include <keel/core/out_of_memory.hpp>
#include <keel/libtorch/compatibility.hpp>
#include <keel/lora/lora.hpp>
#include <keel/offload/mapped_memory.hpp>
#include <keel/oom/ladder_position.hpp>
#include <keel/optimizer/engine.hpp>
#include <keel/rule/not_implemented.hpp>
#include <keel/rule/oom.hpp>
#include <keel/rule/reject_call.hpp>
#include <memory>
#include <optional>
#include <string>
#include <utility>

namespace keel::inline KEEL_MODE {

/// A custom rung, with a function `take`.
template <class Rung>
concept custom_rung = oom::rung<Rung> && requires(torch::nn::Module& model) {
  { Rung::take(model) } -> std::convertible_to<bool>;
};

}  // namespace keel::inline KEEL_MODE

namespace keel::detail::inline KEEL_MODE {

/// The custom rungs, by their position on the ladder.
template <class Policy>
struct custom_rungs {
  static constexpr void require_callable() {}
  static bool take(int, torch::nn::Module&) { return false; }
};
template <class... Entries>
struct custom_rungs<oom::ladder<Entries...>> {
  /// Does not compile (U35) if a custom rung cannot be taken.
  static constexpr void require_callable() { (require<Entries>(), ...); }
  /// Returns false if the rung at this position is not a custom one, or frees nothing.
  static bool take(int index, torch::nn::Module& model) {
    int place = 0;
    bool taken = false;
    (take_if<Entries>(place, index, model, taken), ...);
    return taken;
  }

 private:
  template <class Entry>
  static constexpr bool is_own() {
    if constexpr (oom::rung<Entry>) {
      return Entry::rung.kind == oom::rung_kind::custom;
    } else {
      return false;
    }
  }
  template <class Entry>
  static constexpr void require() {
    if constexpr (is_own<Entry>() && !custom_rung<Entry>) reject_call<rule::U35, Entry>();
  }
  template <class Entry>
  static void take_if(int& place, int index, torch::nn::Module& model, bool& taken) {
    if constexpr (oom::rung<Entry>) {
      if constexpr (is_own<Entry>() && custom_rung<Entry>) {
        if (place == index) taken = Entry::take(model);
      }
      ++place;
    }
  }
};

}  // namespace keel::detail::inline KEEL_MODE

namespace keel::inline KEEL_MODE {

/// Takes the custom rung at this position; returns false if it is not a custom one, or frees nothing.
using take_custom_rung = bool (*)(int index, torch::nn::Module& model);

class memory_ladder {
 public:
  /// `engine`: the optimizer, if it is one of keel's. `take_custom`: that of the recipe's policy. Throws recipe_error if a rung can never
  /// be taken: O20, U33.
  memory_ladder(config const& recipe, torch::nn::Module& model, update_engine* engine, at::DeviceType device,
                take_custom_rung take_custom)
      : ladder_(recipe.oom),
        take_custom_(take_custom),
        position_(recipe),
        model_(model),
        engine_(engine),
        device_(device),
        differentiates_twice_(recipe.model.inner_gradients) {
    if (oom::has_rung(ladder_, oom::rung_kind::quantize_base) && lora_layers(model).empty())
      throw broken_rule<recipe_error, rule::O20>();
    require_engine();
  }

  memory_settings const& relief() const { return position_.relief(); }
  std::size_t taken() const { return position_.taken(); }
  /// Sets the directory for offloaded state of parameters on the CPU; empty or a directory in memory: see memory::mapped_memory.
  void offload_to(std::filesystem::path directory) { directory_ = std::move(directory); }

  /// Copies the position of another ladder, for a dry run. Afterwards no rung that changes the experiment is taken.
  void copy_position(memory_ladder const& other) {
    position_ = other.position_;
    directory_ = other.directory_;
    is_dry_run_ = true;
  }

  /// Call before an update. Throws file_error (E02) if the recipe offloads and no disk is available; recipe_error (U33) if a checkpoint
  /// contains a rung that this optimizer cannot take.
  void prepare() {
    require_engine();
    if (relief().offload && !offloaded_) offload();
    if (!relief().offload && offloaded_) bring_back();
  }

  /// Takes the next rung; see ladder_position::take_next. `on_all(bool)` returns whether all ranks can take it, and whether any can. Throws
  /// out_of_memory_error (E09) if only some of them took one that cannot be undone.
  template <class OnAll>
  oom::rung_kind take_next(std::int64_t max_pieces, std::int64_t updates, OnAll const& on_all) {
    return position_.take_next(max_pieces, updates, [&](int index) {
      bool const mine = can_take(index);
      auto const [all, any] = on_all(mine);
      if (all == any) return all;
      auto const kind = ladder_.rungs[index].kind;
      if (kind == oom::rung_kind::quantize_base || kind == oom::rung_kind::custom)
        throw out_of_memory_error("E09", std::string("some ranks alone could take the rung ") + to_string(kind) +
                                             ", which cannot be taken back. Put it where all of them have memory for it.");
      if (offloaded_ && !relief().offload) bring_back();
      return false;
    });
  }

  /// Counts an applied update; returns the rung that was released, if any.
  std::optional<oom::rung_kind> updated() { return position_.updated(); }

  /// Records whether the allocator had to free its cache and retry during an update, which costs time without an error. Returns true at the
  /// third such update among ten, and then not before three more (O14).
  bool thrashes(std::int64_t retries) {
    if (seen_retries_ < 0) seen_retries_ = retries;
    history_ = (history_ << 1 | (retries > seen_retries_ ? 1U : 0U)) & 0x3FFU;
    seen_retries_ = retries;
    if (std::popcount(history_) < 3) return false;
    history_ = 0;
    return true;
  }

  template <class Archive>
  void visit(Archive& archive) {
    position_.visit(archive);
  }

 private:
  bool may_offload() const { return relief().offload || oom::has_rung(ladder_, oom::rung_kind::offload_optimizer); }
  std::shared_ptr<state_storage> make_storage() const {
    if (device_ != at::kCPU) return std::make_shared<memory::host_memory>();
    if (!directory_.empty() && !memory::is_kept_in_memory(directory_))
      return std::make_shared<memory::mapped_memory>(directory_);
    return std::make_shared<memory::mapped_memory>();
  }
  void require_engine() const {
    if (may_offload() && engine_ == nullptr) throw broken_rule<recipe_error, rule::U33>();
  }
  void offload() {
    if (home_ == nullptr) home_ = make_storage();
    offloaded_ = true;  // at least partly, even if an exception follows
    engine_->move_state_to(home_);
  }
  /// Moves the state back. If memory does not suffice, the state stays where it is, and a later update tries again.
  void bring_back() {
    if (wait_ > 0) {
      --wait_;
      return;
    }
    try {
      engine_->move_state_to(nullptr);
      offloaded_ = false;
      return;
    } catch (std::exception const& thrown) {
      if (!is_out_of_memory(thrown)) throw;
    }
    engine_->move_state_to(home_);
    wait_ = ladder_.release_after;
  }

  /// Takes the rung if it is applied here. Returns false if that runs out of memory itself.
  bool can_take(int index) {
    // A dry run could not undo the rung.
    auto const& rung = ladder_.rungs[index];
    if (is_dry_run_ && !oom::is_releasable(rung)) return false;
    try {
      return take(index);
    } catch (file_error const&) {
      // Without a disk, or if it is full, the ladder skips the rung.
      if (rung.kind != oom::rung_kind::offload_optimizer) throw;
    } catch (std::exception const& thrown) {
      if (!is_out_of_memory(thrown)) throw;
    }
    // Restores what was moved already, so that the engine does not continue to move state.
    if (offloaded_ && !relief().offload) bring_back();
    return false;
  }
  bool take(int index) {
    switch (ladder_.rungs[index].kind) {
      case oom::rung_kind::fused_attention:
        return libtorch::has_fused_attention && relief().attention == attention_kind::math && !differentiates_twice_;
      case oom::rung_kind::offload_optimizer:
        offload();
        return true;
      case oom::rung_kind::quantize_base:
        return quantize_base(model_) > 0;
      case oom::rung_kind::custom:
        return take_custom_(index, model_);
      default:
        return true;
    }
  }

  oom::settings ladder_;
  take_custom_rung take_custom_;
  ladder_position position_;
  torch::nn::Module& model_;
  update_engine* engine_;
  at::DeviceType device_;
  bool differentiates_twice_;  ///< fused kernels do not support that
  std::filesystem::path directory_;
  std::shared_ptr<state_storage> home_;
  bool offloaded_ = false;
  bool is_dry_run_ = false;
  long long wait_ = 0;              ///< updates before moving back state that had no room is tried again
  unsigned history_ = 0;            ///< bit i: the allocator retried i updates ago
  std::int64_t seen_retries_ = -1;  ///< -1: no update yet
};

}  // namespace keel::inline KEEL_MODE
