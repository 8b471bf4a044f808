# keel::compiled: keel::keel with a library of what does not depend on a recipe. The project that links it builds it, with its LibTorch,
# its build type, CMAKE_CXX_FLAGS and earlier add_compile_options; flags of a single target do not reach it. A program with another
# environment, such as other files or another clock, links keel::keel, and so does a static library that is installed with an export.
# keel::training is the part of it that a run needs; keel::compiled has preflight, reports and triage beside it. keel::records reads what a
# run has written, and needs no LibTorch.
if(NOT TARGET keel_training)
  add_library(keel_host STATIC EXCLUDE_FROM_ALL ${KEEL_BODIES}/host.cpp)
  add_library(keel_records STATIC EXCLUDE_FROM_ALL ${KEEL_BODIES}/diagnose.cpp)
  foreach(area checkpoint kernels ranks run step)
    list(APPEND keel_training_bodies ${KEEL_BODIES}/${area}.cpp)
  endforeach()
  add_library(keel_training STATIC EXCLUDE_FROM_ALL ${keel_training_bodies})
  add_library(keel_compiled STATIC EXCLUDE_FROM_ALL ${KEEL_BODIES}/preflight.cpp)
  add_library(keel::records ALIAS keel_records)
  add_library(keel::training ALIAS keel_training)
  add_library(keel::compiled ALIAS keel_compiled)
  target_compile_definitions(keel_host PUBLIC KEEL_COMPILED)
  target_link_libraries(keel_host PUBLIC keel::recipe nlohmann_json::nlohmann_json)
  target_link_libraries(keel_records PUBLIC keel_host)
  target_link_libraries(keel_training PUBLIC keel::keel keel_host)
  target_link_libraries(keel_compiled PUBLIC keel_training keel_records)
  set_target_properties(keel_host keel_records keel_training keel_compiled PROPERTIES POSITION_INDEPENDENT_CODE ON)

  # The kernels' loops are worth what -O3 takes to compile, also where a project asks for no optimisation; nothing else is.
  foreach(area checkpoint diagnose host preflight ranks run step)
    list(APPEND keel_other_bodies ${KEEL_BODIES}/${area}.cpp)
  endforeach()
  set_property(SOURCE ${KEEL_BODIES}/kernels.cpp APPEND PROPERTY COMPILE_OPTIONS $<$<NOT:$<CONFIG:Debug>>:-O3>)
  set_property(SOURCE ${keel_other_bodies} APPEND PROPERTY COMPILE_OPTIONS $<$<CONFIG:Release>:-O1>)
endif()
