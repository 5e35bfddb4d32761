# Finds the TensorFlow of Python_EXECUTABLE, for libraries on its C++ API: sets
# GRADCOMP_TENSORFLOW_VERSION, empty where there is none, and makes the target
# gradcomp_tensorflow to link, last.
find_package(Python COMPONENTS Interpreter REQUIRED)
execute_process(
  COMMAND "${Python_EXECUTABLE}" -c
          "import tensorflow as tf; s = tf.sysconfig; print(tf.__version__, s.get_include(), s.get_lib(), s.CXX11_ABI_FLAG, sep=';')"
  OUTPUT_VARIABLE found ERROR_QUIET OUTPUT_STRIP_TRAILING_WHITESPACE)
set(GRADCOMP_TENSORFLOW_VERSION "")
list(LENGTH found parts)
if(parts EQUAL 4)
  list(GET found 0 GRADCOMP_TENSORFLOW_VERSION)
  list(GET found 1 include)
  list(GET found 2 folder)
  list(GET found 3 abi)
  add_library(gradcomp_tensorflow INTERFACE)
  target_include_directories(gradcomp_tensorflow SYSTEM INTERFACE "${include}")
  target_compile_definitions(gradcomp_tensorflow INTERFACE _GLIBCXX_USE_CXX11_ABI=${abi})
  target_link_libraries(gradcomp_tensorflow INTERFACE "${folder}/libtensorflow_framework.so.2")
endif()
