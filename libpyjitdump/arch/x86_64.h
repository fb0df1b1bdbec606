/* x86-64: the inline part of arch.h. */
#ifndef PYJD_ARCH_X86_64_H
#define PYJD_ARCH_X86_64_H

#include <stdint.h>

/* The stack pointer, without the frame pointer that __builtin_frame_address(0) would make the
 * compiler set up. Usable in an expression; costs no instruction of its own where the compiler can
 * compare with the register directly. */
static inline __attribute__((always_inline)) uintptr_t arch_stack_pointer(void)
{
    uintptr_t sp;
    __asm__("mov %%rsp, %0" : "=r"(sp));
    return sp;
}

#endif
