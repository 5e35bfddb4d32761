// Switching between stacks: what swapcontext does, without its system call and without what
// AddressSanitizer adds to it.

#ifndef GRADCOMP_TESTS_CUDA_CONTEXT_H_
#define GRADCOMP_TESTS_CUDA_CONTEXT_H_

#include <cstddef>
#include <cstdint>

#if defined(__x86_64__)

namespace emulation {

// Where a stack that is not running left off.
struct Context {
  void* stack_pointer;
};

// Pushes the registers that a function preserves, and pops those of the other stack.
extern "C" void emulated_cuda_switch(void** from, void* to) __attribute__((visibility("hidden")));
__asm__(
    ".text\n"
    ".hidden emulated_cuda_switch\n"
    ".globl emulated_cuda_switch\n"
    ".type emulated_cuda_switch, @function\n"
    "emulated_cuda_switch:\n"
    "  push %rbp\n  push %rbx\n  push %r12\n  push %r13\n  push %r14\n  push %r15\n"
    "  mov %rsp, (%rdi)\n"
    "  mov %rsi, %rsp\n"
    "  pop %r15\n  pop %r14\n  pop %r13\n  pop %r12\n  pop %rbx\n  pop %rbp\n"
    "  ret\n");

// Makes `context` begin with `entry`, which never returns.
inline void Prepare(Context* context, char* stack, size_t size, void (*entry)()) {
  uintptr_t* top = reinterpret_cast<uintptr_t*>(stack + size / 16 * 16);
  *--top = 0;  // the return address of entry
  *--top = reinterpret_cast<uintptr_t>(entry);
  for (int i = 0; i < 6; ++i) *--top = 0;
  context->stack_pointer = top;
}

inline void Switch(Context* from, const Context* to) {
  emulated_cuda_switch(&from->stack_pointer, to->stack_pointer);
}

}  // namespace emulation

#else

#include <ucontext.h>

namespace emulation {

using Context = ucontext_t;

inline void Prepare(Context* context, char* stack, size_t size, void (*entry)()) {
  getcontext(context);
  context->uc_stack.ss_sp = stack;
  context->uc_stack.ss_size = size;
  context->uc_link = nullptr;
  makecontext(context, entry, 0);
}

inline void Switch(Context* from, const Context* to) { swapcontext(from, to); }

}  // namespace emulation

#endif

#endif  // GRADCOMP_TESTS_CUDA_CONTEXT_H_
