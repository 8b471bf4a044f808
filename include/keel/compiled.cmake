# keel::compiled: keel::keel with a library of what does not depend on a recipe, built by the project that links it, with its flags
# and its LibTorch. A program with an environment of its own, such as other files or another clock, links keel::keel.
if(NOT TARGET keel_compiled)
  add_library(keel_compiled STATIC EXCLUDE_FROM_ALL ${KEEL_COMPILED}/bodies.cpp)
  add_library(keel::compiled ALIAS keel_compiled)
  target_include_directories(keel_compiled BEFORE PUBLIC ${KEEL_COMPILED})
  target_link_libraries(keel_compiled PUBLIC keel::keel)
  set_target_properties(keel_compiled PROPERTIES POSITION_INDEPENDENT_CODE ON)
endif()
