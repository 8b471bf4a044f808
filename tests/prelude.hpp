// The first include of every run-time test. LibTorch and Catch2 both define CHECK; with LibTorch's in force a CHECK of a
// test would silently stop being an assertion, so LibTorch comes first and its macro goes.
#pragma once

#include <ATen/ATen.h>
#include <c10/util/Logging.h>

#undef CHECK

// Catch2 2 first: a machine may have the headers of 3 elsewhere, too.
#if __has_include(<catch2/catch.hpp>)
#include <catch2/catch.hpp>
#else
#include <catch2/catch_approx.hpp>
#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
using Catch::Approx;
#endif
