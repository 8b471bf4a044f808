// Reads a checkpoint on all ranks together. Each file is read and verified by one rank: that with the number of its writer, or rank 0 if not
// all ranks see the directory, or if that rank cannot read the file. Its tensors are broadcast one at a time. Each rank keeps what it needs:
// its own slice, at the present number of ranks, of what is divided among them, and the rest whole. Beside that, a rank holds the file that
// it reads.
#pragma once

#include <keel/libtorch/ivalue_first.hpp>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <keel/checkpoint/snapshot.hpp>
#include <keel/checkpoint/tensor_slice.hpp>
#include <keel/collective/world_of_ranks.hpp>
#include <keel/core/file_system.hpp>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace keel::inline KEEL_MODE {
struct file_record;
struct manifest;
}  // namespace keel::inline KEEL_MODE

namespace keel::detail::inline KEEL_MODE {

/// Returns the slice that this rank needs of a tensor of a checkpoint; nullopt if it needs all of it. `content`: "model", "optimizer" or
/// "state".
using slice_choice = std::function<std::optional<tensor_slice>(std::string const& content, std::string const& name,
                                                               std::vector<std::int64_t> const& sizes)>;

/// As JSON text. Bytes of a message that are not UTF-8 are replaced.
std::string dump_message(nlohmann::json const& message);

/// Broadcasts a contiguous tensor of any dtype that a checkpoint can have, in place. Collective.
void broadcast_bytes(world_of_ranks const& world, at::Tensor const& tensor, int from);

class collective_reader {
 public:
  /// `choose`: called on each rank with the state of a checkpoint, before its tensors are read; may be collective. The references must
  /// outlive this.
  collective_reader(world_of_ranks const& world, file_system& files,
                    std::function<slice_choice(nlohmann::json const& state)> choose)
      : world_(world), files_(files), choose_(std::move(choose)) {}

  /// Reads the checkpoint in `directory`. Call it on rank 0, while each other rank is in follow(). Throws checkpoint_error (E05) if it is
  /// damaged, and file_error (E02) if rank 0 cannot read a file. If a rank throws anything else, all ranks throw, and the world is aborted:
  /// on rank 0 a world_error (E25).
  snapshot read(std::filesystem::path const& directory);
  /// Call on the other ranks: takes part in what rank 0 reads until it ends the search. Returns the result of the search. `content`: the
  /// checkpoint that rank 0 read last.
  nlohmann::json follow(snapshot& content);
  /// Ends the search. Call on rank 0.
  void end(nlohmann::json const& result) const;

 private:
  /// Why a file could not be read, with the id of the error; empty if it was.
  struct failure {
    std::string id = {}, message = {};
    bool may_read_on_rank0 = false;  ///< no tensor of the file was sent yet
  };
  /// A tensor of which slices have arrived.
  struct partial_tensor {
    std::optional<tensor_slice> own;  ///< what this rank needs; nullopt: all of it
    tensor_slice form;                ///< what is kept meanwhile
    at::Tensor values;                ///< its elements, of one dimension
  };
  struct content_parts {
    std::string kind;  ///< "model", "optimizer" or "state"
    tensor_map& tensors;
    slice_map& slices;
    std::map<std::string, partial_tensor> partial = {};
    std::map<std::string, std::string> aliases = {};
  };
  /// What this rank has read of a file.
  struct loaded_file {
    tensor_map tensors;
    failure failed = {};
  };

  failure read_together(std::filesystem::path const& directory, manifest const& all, snapshot& content);
  failure read_content(std::filesystem::path const& directory, manifest const& all, bool is_seen_by_all,
                       slice_choice const& choice, content_parts to) const;
  loaded_file load(std::filesystem::path const& directory, manifest const& all, std::string const& name) const;
  /// Broadcasts the tensors of a file from rank `reader`, which has loaded it.
  failure share_file(file_record const& record, std::string const& name, int reader, loaded_file loaded,
                     slice_choice const& choice, content_parts& to) const;
  /// Keeps what is needed of a tensor, or of its slice `part`. Returns what is wrong with it; empty if nothing is.
  static std::string keep(std::string const& name, tensor_slice const* part, at::Tensor const& values,
                          slice_choice const& choice, content_parts& to);
  static void finish(content_parts& to);

  world_of_ranks const& world_;
  file_system& files_;
  std::function<slice_choice(nlohmann::json const&)> choose_;
};

}  // namespace keel::detail::inline KEEL_MODE

#ifndef KEEL_COMPILED
#include <keel/trainer/collective_reader.ipp>
#endif
