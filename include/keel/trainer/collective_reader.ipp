// Definitions for collective_reader.hpp.
#pragma once

#include <keel/libtorch/ivalue_first.hpp>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <exception>
#include <keel/checkpoint/manifest.hpp>
#include <keel/checkpoint/model_state.hpp>
#include <keel/checkpoint/read_checkpoint.hpp>
#include <keel/collective/broadcast_string.hpp>
#include <keel/collective/collectives.hpp>
#include <keel/core/error.hpp>
#include <keel/trainer/collective_reader.hpp>
#include <nlohmann/json.hpp>
#include <tuple>
#include <unordered_map>
#include <utility>

#include <keel/libtorch/detail/body_begin.inc>

namespace keel::detail::inline KEEL_MODE {

KEEL_BODY std::string dump_message(nlohmann::json const& message) {
  return message.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

KEEL_BODY void broadcast_bytes(world_of_ranks const& world, at::Tensor const& tensor, int from) {
  if (tensor.numel() > 0) broadcast(world, tensor.view({-1}).view(at::kByte), from);
}

KEEL_BODY snapshot collective_reader::read(std::filesystem::path const& directory) {
  // Before the others are asked, because this may throw.
  manifest const all = read_manifest(directory, files_);
  snapshot content;
  content.state = read_state(files_, directory, all);
  for (std::string const& name : checkpoint_file_names(all))
    verify_size(files_, directory / name, record_of(all, directory, name.c_str()));
  nlohmann::json const request{{"read", directory.string()}, {"manifest", manifest_text(all)}, {"state", content.state}};
  failure failed;
  try {
    broadcast_string(world_, dump_message(request), 0);
    failed = read_together(directory, all, content);
  } catch (world_error const&) {
    throw;
  } catch (std::exception const& thrown) {
    // The others wait for tensors. A search must not go on.
    world_.abort(first_line(thrown));
    throw world_error("E25", directory.string() + " was not read: " + thrown.what());
  }
  if (failed.id == "E02") throw file_error("E02", failed.message);
  if (failed.id == "E09") throw out_of_memory_error("E09", failed.message);
  if (!failed.id.empty()) throw checkpoint_error(failed.id, failed.message);
  return content;
}

KEEL_BODY nlohmann::json collective_reader::follow(snapshot& content) {
  try {
    for (;;) {
      nlohmann::json request = nlohmann::json::parse(broadcast_string(world_, "", 0));
      if (!request.contains("read")) return request;
      std::filesystem::path const directory = request.at("read").get<std::string>();
      content = {};
      content.state = std::move(request.at("state"));
      // If it fails, rank 0 decides what follows.
      static_cast<void>(
          read_together(directory, parse_manifest(request.at("manifest").get<std::string>(), directory.string()), content));
    }
  } catch (world_error const&) {
    throw;
  } catch (std::exception const& thrown) {
    // The others wait for this rank.
    world_.abort(first_line(thrown));
    throw;
  }
}

KEEL_BODY void collective_reader::end(nlohmann::json const& result) const { broadcast_string(world_, dump_message(result), 0); }

KEEL_BODY collective_reader::failure collective_reader::read_together(std::filesystem::path const& directory,
                                                                      manifest const& all, snapshot& content) {
  at::NoGradGuard const no_grad;
  content.run = all.run;
  auto const sees = [&] {
    try {
      auto const path = directory / "manifest.json";
      return files_.exists(path) && files_.read(path) == manifest_text(all);
    } catch (error const&) {
      // Rank 0 then reads this rank's files.
      return false;
    }
  };
  bool const is_seen_by_all = world_.combine(reduce::min{}, world_.rank() == 0 || sees());
  slice_choice const choice = choose_(content.state);
  failure failed;
  for (auto const& [kind, tensors, slices] : {std::tuple("model", &content.model, &content.model_slices),
                                              {"optimizer", &content.optimizer, &content.optimizer_slices},
                                              {"state", &content.tensors, &content.tensor_slices}}) {
    if (failed.id.empty()) failed = read_content(directory, all, is_seen_by_all, choice, {kind, *tensors, *slices});
  }
  return failed;
}

KEEL_BODY collective_reader::loaded_file collective_reader::load(std::filesystem::path const& directory, manifest const& all,
                                                                 std::string const& name) const {
  try {
    return {read_tensors(files_, directory, name, all)};
  } catch (error const& thrown) {
    return {{}, {std::string(thrown.id()), without_id(thrown.what()), true}};
  }
}

KEEL_BODY collective_reader::failure collective_reader::read_content(std::filesystem::path const& directory,
                                                                     manifest const& all, bool is_seen_by_all,
                                                                     slice_choice const& choice, content_parts to) const {
  auto const names = tensor_file_names(all, to.kind);
  auto const reader_of = [&](std::string const& name) {
    return is_seen_by_all ? std::max(parse_rank_of_file(name), 0) % world_.size() : 0;
  };
  // All ranks read their first file at the same time; a later one when it is due, so that no rank holds two.
  auto const first =
      std::find_if(names.begin(), names.end(), [&](auto const& name) { return reader_of(name) == world_.rank(); });
  loaded_file begun = first == names.end() ? loaded_file() : load(directory, all, *first);
  for (auto name = names.begin(); name != names.end(); ++name) {
    auto const share = [&](int reader, bool is_begun) {
      loaded_file loaded = is_begun ? std::move(begun) : reader == world_.rank() ? load(directory, all, *name) : loaded_file();
      return share_file(all.files.at(*name), *name, reader, std::move(loaded), choice, to);
    };
    int const reader = reader_of(*name);
    failure failed = share(reader, name == first);
    // Only what rank 0 sees decides whether the checkpoint is damaged.
    if (reader > 0 && failed.may_read_on_rank0) failed = share(0, false);
    if (failed.id == "E05" && !failed.may_read_on_rank0)
      failed.message = (directory / *name).string() + " " + failed.message + ". Use an older checkpoint, and check the disk.";
    if (!failed.id.empty()) return failed;
  }
  finish(to);
  return {};
}

KEEL_BODY collective_reader::failure collective_reader::share_file(file_record const& record, std::string const& name,
                                                                   int reader, loaded_file loaded, slice_choice const& choice,
                                                                   content_parts& to) const {
  bool const is_reader = world_.rank() == reader;
  nlohmann::json list;
  if (is_reader && !loaded.failed.id.empty()) {
    list = {{"id", loaded.failed.id}, {"message", loaded.failed.message}};
  } else if (is_reader) {
    list["tensors"] = nlohmann::json::array();
    std::unordered_map<c10::TensorImpl const*, std::string> first_names;
    for (auto const& [tensor, values] : loaded.tensors) {
      auto const [first, is_first] = first_names.try_emplace(values.unsafeGetTensorImpl(), tensor);
      nlohmann::json form{{"name", tensor}, {"type", static_cast<int>(values.scalar_type())}, {"sizes", values.sizes().vec()}};
      if (!is_first) form["alias_of"] = first->second;
      list["tensors"].push_back(std::move(form));
    }
  }
  list = nlohmann::json::parse(broadcast_string(world_, dump_message(list), reader));
  if (list.contains("id")) return {list.at("id").get<std::string>(), list.at("message").get<std::string>(), true};
  int const writer = std::max(parse_rank_of_file(name), 0);
  failure failed;
  for (nlohmann::json const& form : list.at("tensors")) {
    auto const tensor = form.at("name").get<std::string>();
    auto const slice = record.slices.find(tensor);
    bool const is_of_rank = to.kind == "state" && writer > 0 && slice == record.slices.end();
    std::string const key = is_of_rank ? rank_prefix(writer) + tensor : tensor;
    if (form.contains("alias_of")) {
      auto const target = form.at("alias_of").get<std::string>();
      if (!is_of_rank || writer == world_.rank()) to.aliases.emplace(key, is_of_rank ? rank_prefix(writer) + target : target);
      loaded.tensors.erase(tensor);
      continue;
    }
    // State of one rank is sent only if that rank has not read it itself.
    bool const is_sent = !is_of_rank || (writer != reader && writer < world_.size());
    at::Tensor values = is_reader ? loaded.tensors.at(tensor) : at::Tensor();
    loaded.tensors.erase(tensor);
    if (is_sent && !is_reader)
      values =
          at::empty(form.at("sizes").get<std::vector<std::int64_t>>(), static_cast<at::ScalarType>(form.at("type").get<int>()));
    if (is_sent) broadcast_bytes(world_, values, reader);
    std::string wrong;
    if (!is_of_rank) {
      wrong = keep(tensor, slice == record.slices.end() ? nullptr : &slice->second, values, choice, to);
    } else if (writer == world_.rank()) {
      to.tensors.emplace(key, values);
    }
    // The same on all ranks, which receive the rest of the file first.
    if (!wrong.empty()) failed = {"E05", wrong};
  }
  return failed;
}

KEEL_BODY std::string collective_reader::keep(std::string const& name, tensor_slice const* part, at::Tensor const& values,
                                              slice_choice const& choice, content_parts& to) {
  if (part == nullptr) {
    auto const own = choice(to.kind, name, values.sizes().vec());
    if (own) to.slices.emplace(name, *own);
    return to.tensors.emplace(name, own ? cut_slice(values, *own) : values).second
               ? ""
               : "contains " + shown_name(name) + ", which another file of the checkpoint contains too";
  }
  auto const [known, is_new] = to.partial.try_emplace(name);
  partial_tensor& one = known->second;
  if (is_new) {
    one.own = choice(to.kind, name, part->sizes);
    // In another memory order the elements of this rank are spread over the saved slices.
    bool const fits = one.own && one.own->has_same_tensor(*part);
    // NOLINTNEXTLINE(bugprone-unchecked-optional-access): the manifest was verified, so its slices have a number of elements
    one.form = fits ? *one.own : tensor_slice{part->sizes, part->strides, 0, count_elements(*part).value()};
    one.values = at::empty({one.form.count}, values.options());
  }
  if (values.scalar_type() != one.values.scalar_type())
    return "contains a slice of " + shown_name(name) + " with another dtype than other files";
  copy_overlap(*part, values, one.form, one.values);
  return "";
}

KEEL_BODY void collective_reader::finish(content_parts& to) {
  for (auto& [name, one] : to.partial) {
    if (one.own && one.own->has_same_tensor(one.form)) {
      to.tensors.emplace(name, one.values);
    } else {
      at::Tensor const whole = one.values.as_strided(one.form.sizes, one.form.strides);
      to.tensors.emplace(name, one.own ? cut_slice(whole, *one.own) : whole);
    }
    if (one.own) to.slices.emplace(name, *one.own);
  }
  for (auto const& [name, target] : to.aliases) {
    auto const found = to.tensors.find(target);
    if (found == to.tensors.end()) continue;
    to.tensors.emplace(name, found->second);
    if (auto const slice = to.slices.find(target); slice != to.slices.end()) to.slices.emplace(name, slice->second);
  }
}

}  // namespace keel::detail::inline KEEL_MODE

#include <keel/libtorch/detail/body_end.inc>
