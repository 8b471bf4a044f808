# keel::compiled: keel::keel with a library of what does not depend on a recipe. The project that links it builds it, with its LibTorch,
# its build type, CMAKE_CXX_FLAGS and earlier add_compile_options; flags of a single target do not reach it. A program with another
# environment, such as other files or another clock, links keel::keel, and so does a static library that is installed with an export.
if(NOT TARGET keel_compiled)
  add_library(keel_compiled STATIC EXCLUDE_FROM_ALL ${KEEL_COMPILED}/bodies.cpp)
  add_library(keel::compiled ALIAS keel_compiled)
  target_include_directories(keel_compiled BEFORE PUBLIC ${KEEL_COMPILED})
  target_link_libraries(keel_compiled PUBLIC keel::keel)
  set_target_properties(keel_compiled PROPERTIES POSITION_INDEPENDENT_CODE ON)
endif()
