# What keel::keel links, for its own build and for find_package(keel). Nothing is downloaded.
include(CMakeFindDependencyMacro)

find_dependency(Torch)
find_dependency(Boost)
find_dependency(range-v3)
find_dependency(nlohmann_json)
# at::parallel_for is serial, without a word, in code that is compiled without OpenMP.
find_dependency(OpenMP COMPONENTS CXX)

if(NOT TARGET keel::xxhash)
  find_path(KEEL_XXHASH_INCLUDE xxhash.h REQUIRED)
  find_library(KEEL_XXHASH_LIBRARY xxhash REQUIRED)
  add_library(keel::xxhash UNKNOWN IMPORTED GLOBAL)
  set_target_properties(keel::xxhash PROPERTIES IMPORTED_LOCATION "${KEEL_XXHASH_LIBRARY}"
                                                INTERFACE_INCLUDE_DIRECTORIES "${KEEL_XXHASH_INCLUDE}")
endif()

# Gloo, by which ranks talk, is there or not: asked here, once for all files, and asked again when a folder of headers changes.
find_path(KEEL_GLOO_INCLUDE gloo/algorithm.h HINTS ${TORCH_INCLUDE_DIRS})
if(KEEL_GLOO_INCLUDE AND NOT EXISTS ${KEEL_GLOO_INCLUDE}/gloo/algorithm.h)
  unset(KEEL_GLOO_INCLUDE CACHE)
  find_path(KEEL_GLOO_INCLUDE gloo/algorithm.h HINTS ${TORCH_INCLUDE_DIRS})
endif()
set(KEEL_GLOO 0)
if(KEEL_GLOO_INCLUDE)
  set(KEEL_GLOO 1)
endif()
foreach(directory /usr/include ${TORCH_INCLUDE_DIRS})
  if(IS_DIRECTORY ${directory})
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${directory})
  endif()
endforeach()

# Before LibTorch: its binaries for Python's pip, from 2.5 on, export the functions of std::filesystem, and a program that finds those
# before the compiler's ends in a segmentation fault.
set(keel_standard_library "")
if(UNIX AND NOT APPLE AND NOT CMAKE_CXX_FLAGS MATCHES "-stdlib=libc\\+\\+")
  set(keel_standard_library stdc++)
endif()

set(KEEL_DEPENDENCIES ${keel_standard_library} torch Boost::headers range-v3::range-v3 nlohmann_json::nlohmann_json OpenMP::OpenMP_CXX keel::xxhash)
