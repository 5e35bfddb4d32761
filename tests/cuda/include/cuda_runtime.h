// Found by the .cu files' #include <cuda_runtime.h> in place of CUDA's.
#include "emulation.h"
#include "runtime.h"
