// Compiled definitions of collectives and sharding.
#include <keel/libtorch/ivalue_first.hpp>

#include <keel/collective/broadcast_string.ipp>
#include <keel/collective/collectives.ipp>
#include <keel/collective/in_process.ipp>
#include <keel/collective/join.ipp>
#include <keel/collective/process_group.ipp>
#include <keel/collective/world_of_ranks.ipp>
#include <keel/collective/write_rank_record.ipp>
#include <keel/libtorch/ivalue_first.hpp>
#include <keel/shard/gradient_shards.ipp>
#include <keel/shard/gradient_sums.ipp>
#include <keel/shard/optimizer_shards.ipp>
#include <keel/shard/packed_agreement.ipp>
#include <keel/shard/parameter_shards.ipp>
#include <keel/shard/replicas.ipp>
#include <keel/shard/replication.ipp>
#include <keel/shard/replication_passes.ipp>
#include <keel/shard/shard_parameters.ipp>
#include <keel/shard/shared_buffers.ipp>
