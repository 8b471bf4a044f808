// Compiled definitions of checkpoints: formats, store, saves, restores.
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
#include <keel/trainer/replay.ipp>
#include <keel/trainer/trained_models.ipp>
