// Included before any other header of LibTorch: in 1.13 those use c10::IValue before it is complete, which g++ lets pass and clang
// refuses. A program for clang begins with it, or with keel/keel.hpp.
#pragma once

#include <ATen/core/ivalue.h>
