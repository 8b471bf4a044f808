// Every slot and every policy: floor 1 in one include.
#pragma once

#include <keel/policy/accumulate.hpp>
#include <keel/policy/attention.hpp>
#include <keel/policy/checkpoint.hpp>
#include <keel/policy/clip.hpp>
#include <keel/policy/determinism.hpp>
#include <keel/policy/duration.hpp>
#include <keel/policy/ema.hpp>
#include <keel/policy/health.hpp>
#include <keel/policy/loss_scale.hpp>
#include <keel/policy/model.hpp>
#include <keel/policy/nonfinite.hpp>
#include <keel/policy/objective.hpp>
#include <keel/policy/offload.hpp>
#include <keel/policy/oom.hpp>
#include <keel/policy/precision.hpp>
#include <keel/policy/recompute.hpp>
#include <keel/policy/schedule.hpp>
#include <keel/policy/shard.hpp>
#include <keel/policy/slot.hpp>
#include <keel/policy/spike.hpp>
