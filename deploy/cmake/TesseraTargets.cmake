# Helpers that give every target of the project the same flags.
#
#   tessera_library(NAME [SRCS a.cc ...] [HDRS a.h ...] [DEPS target ...])
#     A static library, or an interface library when it has no sources. Headers are included by their path
#     from the repository root.
#   tessera_binary(NAME SRCS ... DEPS ... [OUTPUT name])
#     An executable in the top of the build directory.
#   tessera_test(NAME SRCS ... [DEPS ...] [TIMEOUT seconds] [LABELS ...])
#     A GoogleTest program, one ctest entry per program. Tests find files of the source tree through the
#     macro TESSERA_SOURCE_DIR and built programs through TESSERA_BINARY_DIR.
#   tessera_benchmark(NAME SRCS ... [DEPS ...])
#     A program in build/bench/; never run by ctest. Links Google Benchmark.

add_library(tessera_flags INTERFACE)
target_include_directories(tessera_flags INTERFACE ${PROJECT_SOURCE_DIR} ${PROJECT_BINARY_DIR}/generated)
# Not for nvcc, which has flags of its own.
target_compile_options(tessera_flags INTERFACE
  "$<$<COMPILE_LANGUAGE:C,CXX>:-Wall;-Wextra;-Wno-unused-parameter;-Wno-sign-compare;-Wno-missing-field-initializers;-Werror=return-type;-ffp-contract=off>"
  # GCC 12 warns of overlaps that cannot be, in std::string's own code (GCC bug 105651).
  $<$<AND:$<COMPILE_LANGUAGE:CXX>,$<CXX_COMPILER_ID:GNU>,$<VERSION_LESS:$<CXX_COMPILER_VERSION>,13>>:-Wno-restrict>)
target_compile_definitions(tessera_flags INTERFACE TESSERA_VERSION="${PROJECT_VERSION}")
if(TESSERA_SANITIZE)
  target_compile_options(tessera_flags INTERFACE
    "$<$<COMPILE_LANGUAGE:C,CXX>:-fsanitize=${TESSERA_SANITIZE};-fno-omit-frame-pointer;-g1;-O1>")
  target_link_options(tessera_flags INTERFACE -fsanitize=${TESSERA_SANITIZE})
  if(TESSERA_SANITIZE STREQUAL "thread" AND EXISTS ${PROJECT_SOURCE_DIR}/tests/sanitizers/absl_sync_for_tsan.cc)
    # In every program, before Abseil's own library.
    add_library(tessera_tsan OBJECT ${PROJECT_SOURCE_DIR}/tests/sanitizers/absl_sync_for_tsan.cc)
    set(TESSERA_PROGRAM_OBJECTS $<TARGET_OBJECTS:tessera_tsan>)
  endif()
endif()

function(tessera_library name)
  cmake_parse_arguments(arg "" "" "SRCS;HDRS;DEPS" ${ARGN})
  if(arg_SRCS)
    add_library(${name} STATIC ${arg_SRCS} ${arg_HDRS})
    target_link_libraries(${name} PUBLIC tessera_flags ${arg_DEPS})
  else()
    add_library(${name} INTERFACE)
    target_link_libraries(${name} INTERFACE tessera_flags ${arg_DEPS})
  endif()
endfunction()

function(tessera_binary name)
  cmake_parse_arguments(arg "" "OUTPUT" "SRCS;DEPS" ${ARGN})
  add_executable(${name} ${arg_SRCS} ${TESSERA_PROGRAM_OBJECTS})
  target_link_libraries(${name} PRIVATE tessera_flags ${arg_DEPS})
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR})
  if(arg_OUTPUT)
    set_target_properties(${name} PROPERTIES OUTPUT_NAME ${arg_OUTPUT})
  endif()
endfunction()

function(tessera_test name)
  cmake_parse_arguments(arg "" "TIMEOUT" "SRCS;DEPS;LABELS" ${ARGN})
  if(NOT TESSERA_TESTS)
    return()
  endif()
  add_executable(${name} ${arg_SRCS} ${TESSERA_PROGRAM_OBJECTS})
  target_link_libraries(${name} PRIVATE tessera_flags ${arg_DEPS} GTest::gtest GTest::gmock GTest::gtest_main)
  target_compile_definitions(${name} PRIVATE
    TESSERA_SOURCE_DIR="${PROJECT_SOURCE_DIR}" TESSERA_BINARY_DIR="${PROJECT_BINARY_DIR}")
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests)
  add_test(NAME ${name} COMMAND ${name})
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 300)
  endif()
  set_tests_properties(${name} PROPERTIES TIMEOUT ${arg_TIMEOUT} LABELS "${arg_LABELS}")
endfunction()

function(tessera_benchmark name)
  cmake_parse_arguments(arg "" "" "SRCS;DEPS" ${ARGN})
  if(NOT TESSERA_BENCH)
    return()
  endif()
  add_executable(${name} ${arg_SRCS} ${TESSERA_PROGRAM_OBJECTS})
  target_link_libraries(${name} PRIVATE tessera_flags ${arg_DEPS} benchmark::benchmark)
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/bench)
endfunction()
