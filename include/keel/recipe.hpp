// The two lower floors in one include, without LibTorch: write a recipe, ask whether it is valid, print it.
#pragma once

// The rules before all that includes them: an error in one then names two files and not the chain between them.
#include <keel/rule/accumulate.hpp>
#include <keel/rule/attention.hpp>
#include <keel/rule/catalogue.hpp>
#include <keel/rule/checkpoint.hpp>
#include <keel/rule/clip.hpp>
#include <keel/rule/ema.hpp>
#include <keel/rule/evaluation.hpp>
#include <keel/rule/health.hpp>
#include <keel/rule/nonfinite.hpp>
#include <keel/rule/oom.hpp>
#include <keel/rule/precision.hpp>
#include <keel/rule/recompute.hpp>
#include <keel/rule/schedule.hpp>
#include <keel/rule/shard.hpp>
#include <keel/rule/slot.hpp>
#include <keel/rule/timeout.hpp>

#include <keel/config/config.hpp>
#include <keel/config/describe.hpp>
#include <keel/policy/state.hpp>
#include <keel/recipe/check.hpp>
#include <keel/recipe/config_of.hpp>
#include <keel/recipe/recipe.hpp>
#include <keel/recipe/valid.hpp>
