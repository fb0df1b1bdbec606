/* The x86-64 trampoline.
 *
 * System V ABI (AMD64 supplement, section 3.2): the first four integer arguments come in rdi, rsi,
 * rdx and rcx, rbp is preserved by whoever is called, and rsp + 8 is a multiple of 16 on entry.
 *
 *     offset  bytes        instruction       CFA      rbp        the stack here
 *     0       f3 0f 1e fa  endbr64           rsp+8    as it was  [rsp] return address
 *     4       55           push %rbp         rsp+8    as it was
 *     5       48 89 e5     mov  %rsp,%rbp    rsp+16   CFA-16     [rsp] caller's rbp
 *     8       ff d1        call *%rcx        rbp+16   CFA-16     rsp is a multiple of 16
 *     10      5d           pop  %rbp         rbp+16   CFA-16     <- the return address perf sees
 *     11      c3           ret               rsp+8    as it was
 *     12      cc cc cc cc  int3
 *     16      48 b8 salt8  movabs $salt,%rax                     never reached
 *     26      cc ...       int3, to the end of the stride
 *
 * A row holds from its offset on, so it stands at the offset of the first instruction that runs in
 * the state it describes. The salt is dressed as an instruction to keep disassemblers in step.
 */
#include "arch.h"

#include <elf.h>
#include <string.h>

enum { SALT_AT = 18, SALT_SIZE = 8 };

static const uint8_t code[] = {
    0xf3, 0x0f, 0x1e, 0xfa, /*  0 endbr64 */
    0x55,                   /*  4 push %rbp */
    0x48, 0x89, 0xe5,       /*  5 mov %rsp,%rbp */
    0xff, 0xd1,             /*  8 call *%rcx */
    0x5d,                   /* 10 pop %rbp */
    0xc3,                   /* 11 ret */
    0xcc, 0xcc, 0xcc, 0xcc, /* 12 int3 */
    0x48, 0xb8,             /* 16 movabs $salt,%rax */
};

_Static_assert(sizeof code == SALT_AT, "the salt follows the opcode of movabs");
_Static_assert(SALT_AT + SALT_SIZE <= ARCH_SLOT_SIZE, "the salt is part of the function");

/* DWARF register numbers (AMD64 supplement, figure 3.36) and call frame instructions (DWARF 5,
 * section 7.24) that the rows below are made of. */
enum { RBP = 6, RSP = 7, RA = 16 };
enum {
    ADVANCE_LOC = 0x40,          /* | delta */
    OFFSET = 0x80,               /* | register; then the factored offset */
    RESTORE = 0xc0,              /* | register */
    DEF_CFA = 0x0c,              /* register, offset */
    DEF_CFA_REGISTER = 0x0d,     /* register */
    DEF_CFA_OFFSET = 0x0e,       /* offset */
};

static const uint8_t initial[] = {
    DEF_CFA, RSP, 8,             /* CFA = rsp + 8 */
    OFFSET | RA, 1,              /* return address at CFA - 8 */
};

static const uint8_t rows[] = {
    ADVANCE_LOC | 5,             /* at 5, after push */
    DEF_CFA_OFFSET, 16,          /* CFA = rsp + 16 */
    OFFSET | RBP, 2,             /* rbp at CFA - 16 */
    ADVANCE_LOC | 3,             /* at 8, after mov */
    DEF_CFA_REGISTER, RBP,       /* CFA = rbp + 16 */
    ADVANCE_LOC | 3,             /* at 11, after pop */
    DEF_CFA, RSP, 8,             /* CFA = rsp + 8 */
    RESTORE | RBP,               /* rbp is the caller's again */
};

const struct arch arch = {
    .name = "x86_64",
    .elf_machine = EM_X86_64,
    .cfi = {
        .code_alignment = 1,
        .data_alignment = -8,
        .return_register = RA,
        .initial = initial,
        .initial_size = sizeof initial,
        .rows = rows,
        .rows_size = sizeof rows,
    },
};

void arch_write_slot(uint8_t *slot, uint64_t salt)
{
    memset(slot, 0xcc, ARCH_SLOT_STRIDE);
    memcpy(slot, code, sizeof code);
    memcpy(slot + SALT_AT, &salt, SALT_SIZE);
}
