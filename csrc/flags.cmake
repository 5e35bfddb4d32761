# What every target of this project is compiled with: link `gradcomp_flags`.
add_library(gradcomp_flags INTERFACE)
find_package(Threads REQUIRED)
target_link_libraries(gradcomp_flags INTERFACE Threads::Threads)
target_include_directories(gradcomp_flags INTERFACE "${PROJECT_SOURCE_DIR}/csrc")
# Equal bytes on every instruction set need no fused multiply-add; plain loops vectorise without
# errno and traps; loops that copy a cache line or two stay loops, since the `rep movs` that GCC makes
# of them takes longer to start than to copy; -Werror is for us, not for whoever builds a wheel with a
# newer compiler.
target_compile_options(gradcomp_flags INTERFACE
  -Wall -Wextra -O3 -fno-math-errno -ffp-contract=off -fno-tree-loop-distribute-patterns
  $<$<NOT:$<BOOL:${SKBUILD}>>:-Werror>)
# Not for aarch64, where GCC 12 would turn float(int(-0.5)) into one instruction that gives -0.
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  target_compile_options(gradcomp_flags INTERFACE -fno-trapping-math)
endif()

if(GRADCOMP_SANITIZE)
  if(GRADCOMP_SANITIZE STREQUAL "thread")
    set(sanitizers -fsanitize=thread)
  else()
    set(sanitizers -fsanitize=address,undefined -fno-sanitize-recover=all)
  endif()
  # Checked accesses are not vectorised at any level, and a low one builds three times as fast.
  target_compile_options(gradcomp_flags INTERFACE ${sanitizers} -O1 -g1 -fno-omit-frame-pointer)
  target_link_options(gradcomp_flags INTERFACE ${sanitizers})
endif()

# Compiles `target` for the x86-64 level `isa`: baseline, v3, v4, or dispatch among these at load
# time; for tests v4-emulated, which is v4's intrinsics on a processor of v3, by SIMDe's headers.
# Other processors have one level.
function(gradcomp_set_isa target isa)
  if(NOT CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
    return()
  endif()
  if(isa STREQUAL "dispatch")
    target_compile_definitions(${target} PRIVATE GRADCOMP_DISPATCH=1)
  elseif(isa STREQUAL "baseline")
    target_compile_options(${target} PRIVATE -march=x86-64)
  elseif(isa MATCHES "^v[34]$")
    target_compile_options(${target} PRIVATE -march=x86-64-${isa})
  elseif(isa STREQUAL "v4-emulated")
    find_path(GRADCOMP_SIMDE simde/x86/avx512.h)
    if(NOT GRADCOMP_SIMDE)
      message(FATAL_ERROR "v4-emulated needs simde/x86/avx512.h (apt-get install libsimde-dev)")
    endif()
    target_include_directories(${target} PRIVATE "${PROJECT_SOURCE_DIR}/tests/native")
    target_include_directories(${target} SYSTEM PRIVATE "${GRADCOMP_SIMDE}")
    target_compile_definitions(${target} PRIVATE GRADCOMP_EMULATED_V4=1)
    # GCC notes that AVX-512's vectors are not passed to functions as with AVX-512.
    target_compile_options(${target} PRIVATE -march=x86-64-v3 -Wno-psabi)
  else()
    message(FATAL_ERROR "the instruction set is ${isa}, not dispatch, baseline, v3, v4 or v4-emulated")
  endif()
  target_compile_options(${target} PRIVATE -mprefer-vector-width=512)
endfunction()
