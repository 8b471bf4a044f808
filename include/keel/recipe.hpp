// The two lower floors in one include, without LibTorch: write a recipe, ask whether it is valid, print it.
#pragma once

#include <keel/policy/policies.hpp>
#include <keel/policy/state.hpp>
#include <keel/recipe/check.hpp>
#include <keel/recipe/config.hpp>
#include <keel/recipe/config_of.hpp>
#include <keel/recipe/describe.hpp>
#include <keel/recipe/recipe.hpp>
#include <keel/recipe/valid.hpp>
#include <keel/rule/catalogue.hpp>
