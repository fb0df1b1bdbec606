/* arch: what differs between processors, and nothing else.
 *
 * An architecture is a pair of files here, NAME.c and NAME.h, that offer the same names; meson links
 * the one of the machine it builds for. To add one, write the pair and add it to the dictionary in
 * libpyjitdump/meson.build; nothing else changes.
 *
 * A slot is one trampoline, ARCH_SLOT_STRIDE bytes from the next:
 *
 *     0                     ARCH_SLOT_SIZE                                ARCH_SLOT_STRIDE
 *     | code, padding, salt | trap instructions                           |
 *
 * The first ARCH_SLOT_SIZE bytes are the function that profilers see. The stride is wider because
 * `perf inject` maps each function's unwind data behind its code (see ehframe.h) and mappings that
 * overlap cost perf the stack.
 *
 * A trampoline is called like the evaluator it stands for, with one argument more:
 *
 *     slot(tstate, frame, throwflag, target)     CPython 3.9 and later
 *     slot(frame, throwflag, unused, target)     CPython 3.8
 *
 * It calls `target` with the arguments as they came and returns what that returns. It keeps a frame
 * pointer chain, and its CFI rows below describe every instruction boundary exactly.
 */
#ifndef PYJD_ARCH_H
#define PYJD_ARCH_H

#include <stddef.h>
#include <stdint.h>

/* Distance between slots, and the bytes of each that count as its function. */
#define ARCH_SLOT_STRIDE 128u
#define ARCH_SLOT_SIZE   32u

/* The call frame information of a slot: what a CIE and an FDE say (DWARF 5, section 6.4.1). */
struct arch_cfi {
    uint8_t code_alignment;      /* code_alignment_factor */
    int8_t data_alignment;       /* data_alignment_factor, as SLEB128 of one byte */
    uint8_t return_register;     /* DWARF number of the return address column */
    const uint8_t *initial;      /* CIE instructions: the state at the slot's first byte */
    size_t initial_size;         /* bytes of these */
    const uint8_t *rows;         /* FDE instructions: how the state changes within the slot */
    size_t rows_size;            /* bytes of these */
};

struct arch {
    const char *name;            /* as in `uname -m` */
    uint16_t elf_machine;        /* EM_* of elf.h */
    struct arch_cfi cfi;
};

extern const struct arch arch;

/* Writes one whole slot of ARCH_SLOT_STRIDE bytes. `salt` is any value that no other slot has: it is
 * placed after the return instruction, where it never runs, so that no two slots have the same bytes
 * (perf 6.18 merges functions whose code, and so whose build-id, is equal). */
void arch_write_slot(uint8_t *slot, uint64_t salt);

#if defined(__x86_64__)
#include "x86_64.h"
#else
#error "no trampoline for this architecture yet: see arch.h for how to add one"
#endif

#endif
