// Everything.
#pragma once

#include <keel/checkpoint/safetensors.hpp>
#include <keel/checkpoint/store.hpp>
#include <keel/error.hpp>
#include <keel/loop/seed.hpp>
#include <keel/loop/trainer.hpp>
#include <keel/memory/budget.hpp>
#include <keel/memory/out_of_memory.hpp>
#include <keel/observe/console.hpp>
#include <keel/observe/metrics.hpp>
#include <keel/recipe.hpp>
#include <keel/step/step.hpp>
#include <keel/step/token_range.hpp>
#include <keel/version.hpp>
