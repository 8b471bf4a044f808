# keel::compiled: keel::keel with a library of what does not depend on a recipe. The project that links it builds it, with its LibTorch,
# its build type, CMAKE_CXX_FLAGS and earlier add_compile_options; flags of a single target do not reach it. A program with another
# environment, such as other files or another clock, links keel::keel, and so does a static library that is installed with an export.
# keel::training is the part of it that a run needs; keel::compiled has preflight, reports and triage beside it.
if(NOT TARGET keel_training)
  foreach(area checkpoint host kernels ranks run step)
    list(APPEND KEEL_TRAINING_BODIES ${KEEL_BODIES}/${area}.cpp)
  endforeach()
  foreach(area diagnose preflight)
    list(APPEND KEEL_DIAGNOSE_BODIES ${KEEL_BODIES}/${area}.cpp)
  endforeach()
  add_library(keel_training STATIC EXCLUDE_FROM_ALL ${KEEL_TRAINING_BODIES})
  add_library(keel_compiled STATIC EXCLUDE_FROM_ALL ${KEEL_DIAGNOSE_BODIES})
  add_library(keel::training ALIAS keel_training)
  add_library(keel::compiled ALIAS keel_compiled)
  target_compile_definitions(keel_training PUBLIC KEEL_COMPILED)
  target_link_libraries(keel_training PUBLIC keel::keel)
  target_link_libraries(keel_compiled PUBLIC keel_training)
  set_target_properties(keel_training keel_compiled PROPERTIES POSITION_INDEPENDENT_CODE ON)

  # The kernels' loops are worth what -O3 takes to compile, also where a project asks for no optimisation; nothing else is.
  set(keel_other_bodies ${KEEL_TRAINING_BODIES} ${KEEL_DIAGNOSE_BODIES})
  list(REMOVE_ITEM keel_other_bodies ${KEEL_BODIES}/kernels.cpp)
  set_property(SOURCE ${KEEL_BODIES}/kernels.cpp APPEND PROPERTY COMPILE_OPTIONS $<$<NOT:$<CONFIG:Debug>>:-O3>)
  set_property(SOURCE ${keel_other_bodies} APPEND PROPERTY COMPILE_OPTIONS $<$<CONFIG:Release>:-O1>)
endif()
