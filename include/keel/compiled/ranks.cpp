// Bodies of collectives and sharding.
#include <keel/libtorch/ivalue_first.hpp>

#include <keel/collective/collectives.ipp>
#include <keel/collective/in_process.ipp>
#include <keel/collective/join.ipp>
#include <keel/collective/left_record.ipp>
#include <keel/collective/process_group.ipp>
#include <keel/collective/words_of_rank.ipp>
#include <keel/collective/world_of_ranks.ipp>
#include <keel/libtorch/ivalue_first.hpp>
#include <keel/shard/gradient_sums.ipp>
#include <keel/shard/numbers_of_ranks.ipp>
#include <keel/shard/optimizer_shares.ipp>
#include <keel/shard/replicas.ipp>
#include <keel/shard/replication.ipp>
#include <keel/shard/shared_buffers.ipp>
