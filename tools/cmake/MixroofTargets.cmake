# How targets of this project are declared. Sources are listed, never globbed; a target names what it links, and that is
# what forms the layers.

# Shared flags. Contraction is off so that the same source rounds the same way on every path; kernels that want fused
# multiply-adds name them.
add_library(mixroof_flags INTERFACE)
target_include_directories(mixroof_flags INTERFACE ${CMAKE_SOURCE_DIR})
target_compile_options(mixroof_flags INTERFACE -Wall -Wextra -Wshadow -ffp-contract=off -fno-math-errno)
# Highway compiles each kernel once per target; these two add build time and nothing that AVX2 and AVX-512 lack here.
target_compile_definitions(mixroof_flags INTERFACE HWY_DISABLED_TARGETS=\(HWY_SSSE3|HWY_SSE4|HWY_AVX3_DL\))
if(MIXROOF_WERROR)
  target_compile_options(mixroof_flags INTERFACE -Werror)
endif()
if(MIXROOF_SANITIZE)
  target_compile_options(mixroof_flags INTERFACE -fsanitize=${MIXROOF_SANITIZE} -fno-omit-frame-pointer
                                                 -fno-sanitize-recover=all)
  target_link_options(mixroof_flags INTERFACE -fsanitize=${MIXROOF_SANITIZE})
endif()

# Code in which no measured time is spent (options, documents, tables, tests): headers of JSON, command lines and tests take
# most of its build, and twice as long at -O3.
set(MIXROOF_GLUE_OPTIONS $<$<CONFIG:Release>:-O1>)

# mixroof_library(name [GLUE] SOURCES a.cc … LINK other …): static library mixroof_<name>.
function(mixroof_library name)
  cmake_parse_arguments(ARG "GLUE" "" "SOURCES;LINK" ${ARGN})
  add_library(mixroof_${name} STATIC ${ARG_SOURCES})
  target_link_libraries(mixroof_${name} PUBLIC mixroof_flags ${ARG_LINK})
  if(ARG_GLUE)
    target_compile_options(mixroof_${name} PRIVATE ${MIXROOF_GLUE_OPTIONS})
  endif()
endfunction()

# Tests labelled `memory` watch what touches tensors; `memory_tests` builds those alone, for the sanitizers.
add_custom_target(memory_tests)

# mixroof_test(name SOURCES x_test.cc … LINK mixroof_x … [LABELS slow] [TIMEOUT s]): one binary, one ctest of the same name.
function(mixroof_test name)
  if(NOT MIXROOF_TESTS)
    return()
  endif()
  cmake_parse_arguments(ARG "" "TIMEOUT" "SOURCES;LINK;LABELS" ${ARGN})
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 120)
  endif()
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE mixroof_flags ${ARG_LINK} GTest::gtest_main GTest::gmock fmt::fmt)
  target_compile_definitions(${name} PRIVATE MIXROOF_SOURCE_DIR="${CMAKE_SOURCE_DIR}")
  target_compile_options(${name} PRIVATE ${MIXROOF_GLUE_OPTIONS})
  if("memory" IN_LIST ARG_LABELS)
    add_dependencies(memory_tests ${name})
  endif()
  add_test(NAME ${name} COMMAND ${name})
  set_tests_properties(${name} PROPERTIES TIMEOUT ${ARG_TIMEOUT} LABELS "${ARG_LABELS}")
endfunction()

# mixroof_kernel(name SOURCES x.cc x_cpu.cc … TEST x_test.cc …): a kernel's one line. The registry is generated from them;
# each test file is a test of its own.
macro(mixroof_kernel name)
  cmake_parse_arguments(KERNEL "" "" "SOURCES;TEST" ${ARGN})
  list(APPEND MIXROOF_KERNELS ${name})
  list(TRANSFORM KERNEL_SOURCES PREPEND ${name}/)
  list(APPEND MIXROOF_KERNEL_SOURCES ${KERNEL_SOURCES})
  list(TRANSFORM KERNEL_TEST PREPEND ${name}/)
  list(APPEND MIXROOF_KERNEL_TESTS ${KERNEL_TEST})
endmacro()
