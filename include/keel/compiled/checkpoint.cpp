// Bodies of checkpoints: formats, store, saves, restores.
#include <keel/libtorch/ivalue_first.hpp>

#include <keel/checkpoint/archive.ipp>
#include <keel/checkpoint/load_weights.ipp>
#include <keel/checkpoint/mapped_safetensors.ipp>
#include <keel/checkpoint/migrate.ipp>
#include <keel/checkpoint/model_state.ipp>
#include <keel/checkpoint/safetensors.ipp>
#include <keel/checkpoint/safetensors_file.ipp>
#include <keel/checkpoint/safetensors_header.ipp>
#include <keel/checkpoint/sharded_safetensors.ipp>
#include <keel/checkpoint/snapshot.ipp>
#include <keel/checkpoint/store.ipp>
#include <keel/libtorch/ivalue_first.hpp>
#include <keel/trainer/checkpoint_manager.ipp>
#include <keel/trainer/checkpointed_step.ipp>
#include <keel/trainer/environment.hpp>
#include <keel/trainer/replay.ipp>

namespace keel {

template class checkpoint_store<posix_files>;
template void save_sharded_safetensors<posix_files>(std::filesystem::path const&, std::string const&, tensor_map const&,
                                                    std::uint64_t, string_map const&, posix_files);

namespace detail {

template class checkpoint_manager<checkpoint_seams_of<environment>>;

}  // namespace detail

}  // namespace keel
