// The one setting of the ops, which Python makes.

#include "cpu/threads.h"

extern "C" __attribute__((visibility("default"))) void gradcomp_set_num_threads(int count) {
  gradcomp::SetNumThreads(count);
}
