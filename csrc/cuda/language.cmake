# The CUDA language, where there is a compiler for it; included at the top, where CMake wants it.
include(CheckLanguage)
check_language(CUDA)
if(NOT CMAKE_CUDA_COMPILER)
  message(STATUS "There is no CUDA compiler: the CUDA kernels are left out")
  return()
endif()
# Machine code for each, and for newer ones what their drivers compile.
set(CMAKE_CUDA_ARCHITECTURES 75-real 80-real 86-real 89-real 90-real 100-real 120)
enable_language(CUDA)
