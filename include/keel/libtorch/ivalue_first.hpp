// Include before any other header of LibTorch: in 1.13 those use c10::IValue before it is complete, which g++ accepts and clang rejects. A
// program for clang must include it, or keel/keel.hpp, first.
#pragma once

#include <ATen/core/ivalue.h>
