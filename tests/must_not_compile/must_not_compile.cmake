# keel_must_not_compile(NAME CASE [LIBRARY]): a test that CASE does not compile, and says why, as `check.sh` beside this file describes;
# with KEEL_TWIN defined it must compile. For rules of one's own, as for keel's. LIBRARY gives the include folders: keel::recipe.
function(keel_must_not_compile name case)
  set(library keel::recipe)
  if(ARGC GREATER 2)
    set(library ${ARGV2})
  endif()
  get_filename_component(case ${case} ABSOLUTE)
  set(folders $<TARGET_PROPERTY:${library},INTERFACE_INCLUDE_DIRECTORIES>)
  add_test(NAME ${name} COMMAND sh ${CMAKE_CURRENT_FUNCTION_LIST_DIR}/check.sh ${CMAKE_CXX_COMPILER} ${case}
                                "-I$<JOIN:${folders},;-I>" COMMAND_EXPAND_LISTS)
endfunction()
