# agentspec_add_native(PACKAGE SOURCE...): a nanobind module `_native` inside agentspec/PACKAGE.
function(agentspec_add_native package)
  string(REPLACE "/" "_" target "${package}_native")
  nanobind_add_module(${target} NOMINSIZE LTO ${ARGN})
  target_compile_options(${target} PRIVATE -Wall -Wextra -O3)
  target_include_directories(${target} PRIVATE "${CMAKE_SOURCE_DIR}/agentspec")
  set_target_properties(${target} PROPERTIES OUTPUT_NAME _native)
  if(SKBUILD_STATE STREQUAL "editable")
    set_target_properties(${target} PROPERTIES
      LIBRARY_OUTPUT_DIRECTORY "${CMAKE_SOURCE_DIR}/agentspec/${package}")
  endif()
  install(TARGETS ${target} LIBRARY DESTINATION agentspec/${package})
endfunction()
