# What every target of this project is compiled with: link `gradcomp_flags`.
add_library(gradcomp_flags INTERFACE)
target_include_directories(gradcomp_flags INTERFACE "${PROJECT_SOURCE_DIR}/csrc")
# Equal bytes on every instruction set need no fused multiply-add; plain loops vectorise without
# errno and traps; -Werror is for us, not for whoever builds with a newer compiler.
target_compile_options(gradcomp_flags INTERFACE
  -Wall -Wextra -O3 -fno-math-errno -fno-trapping-math -ffp-contract=off
  $<$<NOT:$<BOOL:${SKBUILD}>>:-Werror>)

if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  if(GRADCOMP_ISA STREQUAL "dispatch")
    target_compile_definitions(gradcomp_flags INTERFACE GRADCOMP_DISPATCH=1)
  elseif(GRADCOMP_ISA STREQUAL "baseline")
    target_compile_options(gradcomp_flags INTERFACE -march=x86-64)
  elseif(GRADCOMP_ISA MATCHES "^v[34]$")
    target_compile_options(gradcomp_flags INTERFACE -march=x86-64-${GRADCOMP_ISA})
  else()
    message(FATAL_ERROR "GRADCOMP_ISA is ${GRADCOMP_ISA}, not dispatch, baseline, v3 or v4")
  endif()
  target_compile_options(gradcomp_flags INTERFACE -mprefer-vector-width=512)
endif()

if(GRADCOMP_SANITIZE)
  set(sanitizers -fsanitize=address,undefined -fno-sanitize-recover=all)
  target_compile_options(gradcomp_flags INTERFACE ${sanitizers} -g -fno-omit-frame-pointer)
  target_link_options(gradcomp_flags INTERFACE ${sanitizers})
endif()
