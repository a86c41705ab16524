// Fibers: how one OS thread changes between stacks, and what sanitizers must be told about it.
#pragma once
#include <cstddef>
#include <cstdint>
// The C library's contexts save the signal mask by a system call at every change, so they are only the second choice.
#if !defined(__x86_64__) && !defined(EMULATOR_UCONTEXT)
#define EMULATOR_UCONTEXT
#endif
#ifdef EMULATOR_UCONTEXT
#include <ucontext.h>
#endif

// The sanitizers' interfaces for fibers. They are there only in a build with a sanitizer.
extern "C" {
__attribute__((weak)) void* __tsan_create_fiber(unsigned);
__attribute__((weak)) void __tsan_destroy_fiber(void*);
__attribute__((weak)) void __tsan_switch_to_fiber(void*, unsigned);
__attribute__((weak)) void* __tsan_get_current_fiber(void);
__attribute__((weak)) void __tsan_acquire(void*);
__attribute__((weak)) void __tsan_release(void*);
__attribute__((weak)) void __tsan_read16(void*);
__attribute__((weak)) void __tsan_write16(void*);
__attribute__((weak)) void __sanitizer_start_switch_fiber(void**, const void*, size_t);
__attribute__((weak)) void __sanitizer_finish_switch_fiber(void*, const void**, size_t*);
}

namespace emulator {

#ifndef EMULATOR_UCONTEXT
// Saves the registers that a callee keeps, changes stacks, restores them.
extern "C" __attribute__((visibility("hidden"))) void oarlock_switch(void** save, void* load);
#ifdef EMULATOR_DEFINES_SWITCH
asm(R"(
.text
.globl oarlock_switch
.hidden oarlock_switch
.type oarlock_switch, @function
oarlock_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size oarlock_switch, . - oarlock_switch
)");
#endif

class Context {
 public:
  // Will run `entry` on this stack, whose end is a multiple of 16.
  void prepare(char* stack, size_t bytes, void (*entry)()) {
    void** top = (void**)(stack + bytes) - 2;
    *top = (void*)entry;
    sp = top - 6;
  }
  void go(Context& to) { oarlock_switch(&sp, to.sp); }

 private:
  void* sp = nullptr;
};
#else
class Context {
 public:
  void prepare(char* stack, size_t bytes, void (*entry)()) {
    getcontext(&context);
    context.uc_stack.ss_sp = stack;
    context.uc_stack.ss_size = bytes;
    context.uc_link = nullptr;
    makecontext(&context, entry, 0);
  }
  void go(Context& to) { swapcontext(&context, &to.context); }

 private:
  ucontext_t context;
};
#endif

// A stack, its context, and its names in the sanitizers.
struct Strand {
  Context context;
  const void* bottom = nullptr;
  size_t bytes = 0;
  void* tsan = nullptr;
  void* fake_stack = nullptr;
};

// Goes on with `to`; where `from` never runs again, its fake stack is given up.
inline void go(Strand& from, Strand& to, bool for_good) {
  if (__tsan_switch_to_fiber) __tsan_switch_to_fiber(to.tsan, 1);
  if (__sanitizer_start_switch_fiber)
    __sanitizer_start_switch_fiber(for_good ? nullptr : &from.fake_stack, to.bottom, to.bytes);
  from.context.go(to.context);
  if (__sanitizer_finish_switch_fiber) __sanitizer_finish_switch_fiber(from.fake_stack, nullptr, nullptr);
}

inline void acquire(void* p) {
  if (__tsan_acquire) __tsan_acquire(p);
}
inline void release(void* p) {
  if (__tsan_release) __tsan_release(p);
}

}  // namespace emulator
