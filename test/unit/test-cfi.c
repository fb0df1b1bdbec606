/* The call frame information of a trampoline, as libdw understands it, against what its instructions
 * do: see cfi_model.h. */
#include "unit.h"

#include <stdio.h>

#if defined(__x86_64__)

#include "arch/arch.h"
#include "cfi_model.h"
#include "ehframe.h"
#include "elf_slot.h"

#include <dwarf.h>
#include <libelf.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* A slot and its unwind data, before they become an ELF file. */
struct sample {
    uint8_t code[ARCH_SLOT_STRIDE];
    uint8_t unwind[EHFRAME_FUNCTION_MAX];
    struct elf_slot slot;
    char trouble[CFI_TROUBLE];
};

static void make_sample(struct sample *s, uint64_t addr)
{
    struct bytes b = bytes_over(s->unwind, sizeof s->unwind);
    arch_write_slot(s->code, addr);
    ehframe_function(&b, ARCH_SLOT_SIZE);
    ck_assert(!b.overflow);
    s->slot = (struct elf_slot){.addr = addr, .code = s->code, .code_size = ARCH_SLOT_SIZE,
                                .unwind = s->unwind, .unwind_size = b.len,
                                .unwind_hdr_size = EHFRAME_HDR_SIZE, .name = "py::f:/a.py"};
    s->trouble[0] = '\0';
}

static int check(struct sample *s)
{
    int fd = elf_slot_make(&s->slot);
    ck_assert_int_ge(fd, 0);
    Elf *elf = elf_begin(fd, ELF_C_READ, NULL);
    ck_assert_ptr_nonnull(elf);
    int count = cfi_check_elf(elf, s->trouble);
    elf_end(elf);
    close(fd);
    return count;
}

/* With the table of .eh_frame_hdr, and by walking .eh_frame. */
static void expect_right(struct sample *s)
{
    ck_assert_msg(check(s) == 1, "%s", s->trouble);
    struct sample plain = *s;
    plain.slot.code = plain.code;
    plain.slot.unwind = plain.unwind;
    plain.slot.unwind_size -= EHFRAME_HDR_SIZE;
    plain.slot.unwind_hdr_size = 0;
    ck_assert_msg(check(&plain) == 1, "without the header: %s", plain.trouble);
}

START_TEST(every_byte_of_a_slot)
{
    static const uint64_t addresses[] = {0x1000, 0x7f1234567080, 0x555555554f80};
    for (size_t i = 0; i < sizeof addresses / sizeof addresses[0]; i++) {
        struct sample s;
        make_sample(&s, addresses[i]);
        expect_right(&s);
    }
}
END_TEST

/* The function is ARCH_SLOT_SIZE bytes: what comes before and behind is somebody else's. */
START_TEST(no_byte_more)
{
    struct sample s;
    make_sample(&s, 0x10000);
    int fd = elf_slot_make(&s.slot);
    Elf *elf = elf_begin(fd, ELF_C_READ, NULL);
    Dwarf_CFI *cfi = dwarf_getcfi_elf(elf);
    ck_assert_ptr_nonnull(cfi);
    for (uint64_t addr = 0x10000 - 300; addr < 0x10000 + 300; addr++) {
        Dwarf_Frame *frame = NULL;
        int err = dwarf_cfi_addrframe(cfi, addr, &frame);
        ck_assert_int_eq(err == 0, addr - 0x10000 < ARCH_SLOT_SIZE);
        free(frame);
    }
    dwarf_cfi_end(cfi);
    elf_end(elf);
    close(fd);
}
END_TEST

/* ---- that the check can fail ---- */

enum { CIE_INITIAL = 17, FDE_ROWS = 24 + 17 };

/* `table` with `count` bytes exchanged at `at` must not pass. */
static void expect_wrong(size_t at, const uint8_t *bytes, size_t count, const char *what)
{
    struct sample s;
    make_sample(&s, 0x7f0000001000);
    memcpy(s.unwind + at, bytes, count);
    ck_assert_msg(check(&s) < 0, "not noticed: %s", what);
    ck_assert_str_ne(s.trouble, "");
}

START_TEST(wrong_tables_fail)
{
    static const struct {
        size_t at;
        uint8_t bytes[2];
        size_t count;
        const char *what;
    } wrong[] = {
        {FDE_ROWS, {0x44}, 1, "the row for push one byte early: at push"},
        {FDE_ROWS, {0x46}, 1, "the row for push one byte late: in mov"},
        {FDE_ROWS + 5, {0x42}, 1, "the row for mov one byte early"},
        {FDE_ROWS + 5, {0x44}, 1, "the row for mov one byte late: in call"},
        {FDE_ROWS + 8, {0x42}, 1, "the row for pop one byte early: at pop"},
        {FDE_ROWS + 8, {0x44}, 1, "the row for pop one byte late: behind ret"},
        {FDE_ROWS + 1, {DW_CFA_def_cfa_offset, 24}, 2, "CFA too high after push"},
        {FDE_ROWS + 3, {DW_CFA_nop, DW_CFA_nop}, 2, "rbp not saved"},
        {FDE_ROWS + 3, {0x86, 3}, 2, "rbp saved in another place"},
        {FDE_ROWS + 3, {0x83, 2}, 2, "rbx saved in the place of rbp"},
        {FDE_ROWS + 12, {DW_CFA_nop}, 1, "rbp not restored at the end"},
        {CIE_INITIAL + 2, {16}, 1, "CFA too high at the entry"},
        {CIE_INITIAL + 3, {0x90, 2}, 2, "return address in another place"},
        {24 + 12, {31}, 1, "the last byte not covered"},
        {24 + 8, {0xbf}, 1, "pc_begin one byte early"},
    };
    struct sample s;
    make_sample(&s, 0x7f0000001000);
    ck_assert_uint_eq(s.unwind[CIE_INITIAL], DW_CFA_def_cfa);
    ck_assert_uint_eq(s.unwind[FDE_ROWS], 0x45);
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++)
        expect_wrong(wrong[i].at, wrong[i].bytes, wrong[i].count, wrong[i].what);
}
END_TEST

/* Each single bit of the instructions in the CIE and the FDE matters. */
START_TEST(every_bit_matters)
{
    struct sample s;
    make_sample(&s, 0x7f0000001000);
    for (size_t at = CIE_INITIAL; at < FDE_ROWS + 13; at++) {
        bool instructions = at < CIE_INITIAL + 5 || at >= FDE_ROWS;
        for (unsigned bit = 0; instructions && bit < 8; bit++) {
            if (at == CIE_INITIAL + 4 && bit == 7)
                continue; /* 81 00 is another spelling of the ULEB128 number 1 */
            if (at == FDE_ROWS + 7 && bit == 0)
                continue; /* between mov and pop rsp is what rbp is */
            uint8_t byte = s.unwind[at] ^ (uint8_t)(1u << bit);
            char what[64];
            snprintf(what, sizeof what, "bit %u of byte %zu", bit, at);
            expect_wrong(at, &byte, 1, what);
        }
    }
}
END_TEST

START_TEST(wrong_header_fails)
{
    struct sample s;
    make_sample(&s, 0x7f0000001000);
    size_t hdr = s.slot.unwind_size - EHFRAME_HDR_SIZE;
    for (size_t at = hdr; at < s.slot.unwind_size; at++) {
        uint8_t byte = s.unwind[at] ^ 1;
        char what[64];
        snprintf(what, sizeof what, "byte %zu of .eh_frame_hdr", at - hdr);
        expect_wrong(at, &byte, 1, what);
    }
}
END_TEST

/* The right table for other code. */
START_TEST(wrong_code_fails)
{
    static const struct {
        size_t at;
        const char *bytes;
        const char *what;
    } wrong[] = {
        {4, "\x90", "push left out"},
        {4, "\x53", "rbx pushed"},
        {5, "\x90\x90\x90", "no frame pointer set up"},
        {10, "\x90", "pop left out"},
        {10, "\x5b", "popped into rbx"},
        {11, "\xcc", "no ret"},
        {0, "\x55\x90\x90\x90\x90", "push before endbr64"},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        struct sample s;
        make_sample(&s, 0x7f0000001000);
        memcpy(s.code + wrong[i].at, wrong[i].bytes, strlen(wrong[i].bytes));
        ck_assert_msg(check(&s) < 0, "not noticed: %s", wrong[i].what);
    }
}
END_TEST

/* The model itself, on code and a table that have nothing to do with ours: a frame without frame
 * pointer that saves rbx and r12 and makes room for locals. */
START_TEST(model_knows_other_frames)
{
    static const uint8_t code[] = {
        0x53,                   /*  0 push %rbx */
        0x41, 0x54,             /*  1 push %r12 */
        0x48, 0x83, 0xec, 0x08, /*  3 sub $8,%rsp */
        0xff, 0xd0,             /*  7 call *%rax */
        0x48, 0x83, 0xc4, 0x08, /*  9 add $8,%rsp */
        0x41, 0x5c,             /* 13 pop %r12 */
        0x5b,                   /* 15 pop %rbx */
        0xc3,                   /* 16 ret */
    };
    static const uint8_t rows[] = {
        0x41, 0x0e, 16, 0x83, 2, /* at 1: cfa+16, rbx at cfa-16 */
        0x42, 0x0e, 24, 0x8c, 3, /* at 3: cfa+24, r12 at cfa-24 */
        0x44, 0x0e, 32,          /* at 7 */
        0x46, 0x0e, 24,          /* at 13 */
        0x42, 0x0e, 16, 0xcc,    /* at 15, r12 as it was */
        0x41, 0x0e, 8, 0xc3,     /* at 16, rbx as it was */
    };
    struct sample s;
    make_sample(&s, 0x20000);
    /* Take our CIE, and write an FDE behind it. */
    uint8_t *fde = s.unwind + 24;
    uint32_t words[4] = {12 + 1 + sizeof rows, 28, (uint32_t)-(24 + 32), sizeof code};
    memcpy(fde, words, sizeof words);
    fde[16] = 0;
    memcpy(fde + 17, rows, sizeof rows);
    memset(fde + 17 + sizeof rows, 0, 8);
    memcpy(s.code, code, sizeof code);
    s.slot.code_size = sizeof code;
    s.slot.unwind_size = 24 + 17 + sizeof rows + 4;
    s.slot.unwind_hdr_size = 0;
    ck_assert_msg(check(&s) == 1, "%s", s.trouble);

    fde[17 + 4] = 3; /* rbx elsewhere */
    ck_assert_int_lt(check(&s), 0);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("cfi");
    elf_version(EV_CURRENT);
    TCase *tcase = unit_case(suite, "cfi");
    tcase_add_test(tcase, every_byte_of_a_slot);
    tcase_add_test(tcase, no_byte_more);
    tcase_add_test(tcase, wrong_tables_fail);
    tcase_add_test(tcase, every_bit_matters);
    tcase_add_test(tcase, wrong_header_fails);
    tcase_add_test(tcase, wrong_code_fails);
    tcase_add_test(tcase, model_knows_other_frames);
    return unit_run(suite);
}

#else

int main(void)
{
    puts("SKIP cfi: the model knows x86-64 only");
    return 77;
}

#endif
