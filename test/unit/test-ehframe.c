#include "arch/arch.h"
#include "ehframe.h"
#include "jitdump_format.h"
#include "unit.h"

#include <string.h>

#if defined(__x86_64__)

enum { EH_FRAME = 60, ALL = EH_FRAME + EHFRAME_HDR_SIZE };

/* What the documents (LSB Core 5.0, 10.6; DWARF 5, 6.4; AMD64 supplement) say the bytes are, written
 * down by hand for a function of 32 bytes. */
static const uint8_t expected[ALL] = {
    /* CIE */
    20, 0, 0, 0,            /* length of what follows */
    0, 0, 0, 0,             /* this is a CIE */
    1,                      /* version */
    'z', 'R', 0,            /* augmentation */
    1,                      /* code alignment */
    0x78,                   /* data alignment -8 */
    16,                     /* return address register */
    1, 0x1b,                /* FDE pointers: pcrel sdata4 */
    0x0c, 7, 8,             /* DW_CFA_def_cfa rsp+8 */
    0x90, 1,                /* DW_CFA_offset r16 at cfa-8 */
    0, 0,                   /* DW_CFA_nop */
    /* FDE */
    28, 0, 0, 0,            /* length */
    28, 0, 0, 0,            /* from here back to the CIE */
    0xc0, 0xff, 0xff, 0xff, /* pc_begin: 32 bytes of .eh_frame and 32 of code back from here */
    32, 0, 0, 0,            /* pc_range */
    0,                      /* augmentation length */
    0x45,                   /* DW_CFA_advance_loc 5 */
    0x0e, 16,               /* DW_CFA_def_cfa_offset 16 */
    0x86, 2,                /* DW_CFA_offset rbp at cfa-16 */
    0x43,                   /* DW_CFA_advance_loc 3 */
    0x0d, 6,                /* DW_CFA_def_cfa_register rbp */
    0x43,                   /* DW_CFA_advance_loc 3 */
    0x0c, 7, 8,             /* DW_CFA_def_cfa rsp+8 */
    0xc6,                   /* DW_CFA_restore rbp */
    0, 0,                   /* DW_CFA_nop */
    /* terminator */
    0, 0, 0, 0,
    /* .eh_frame_hdr */
    1, 0x1b, 0x03, 0x3b,
    0xc0, 0xff, 0xff, 0xff, /* -64: from here to .eh_frame */
    1, 0, 0, 0,             /* entries */
    0xa4, 0xff, 0xff, 0xff, /* -92: from the header to the code */
    0xdc, 0xff, 0xff, 0xff, /* -36: from the header to the FDE */
};

START_TEST(every_byte)
{
    uint8_t storage[EHFRAME_FUNCTION_MAX];
    struct bytes b = bytes_over(storage, sizeof storage);
    ck_assert_uint_eq(ehframe_function(&b, 32), EH_FRAME);
    ck_assert(!b.overflow);
    ck_assert_uint_eq(b.len, ALL);
    for (size_t i = 0; i < ALL; i++)
        ck_assert_msg(storage[i] == expected[i], "byte %zu is 0x%02x, not 0x%02x", i, storage[i],
                      expected[i]);
}
END_TEST

START_TEST(wherever_it_is_appended)
{
    for (size_t start = 0; start <= 24; start++) {
        uint8_t storage[EHFRAME_FUNCTION_MAX + 24];
        struct bytes b = bytes_over(storage, sizeof storage);
            bytes_zeros(&b, start);
        ck_assert_uint_eq(ehframe_function(&b, 32), EH_FRAME);
        ck_assert(!b.overflow);
        ck_assert_uint_eq(b.len, start + ALL);
        ck_assert_mem_eq(storage + start, expected, ALL);
    }
}
END_TEST

START_TEST(too_little_room)
{
    for (size_t room = 0; room < ALL; room++) {
        uint8_t storage[ALL];
        memset(storage, 0xa5, sizeof storage);
        struct bytes b = bytes_over(storage, room);
        ehframe_function(&b, 32);
        ck_assert(b.overflow);
        for (size_t i = room; i < ALL; i++)
            ck_assert_uint_eq(storage[i], 0xa5);
    }
}
END_TEST

static int32_t s32_at(const uint8_t *bytes)
{
    int32_t value;
    memcpy(&value, bytes, sizeof value);
    return value;
}

/* The sizes that facts of perf inject's layout are derived from, for code of any size. */
START_TEST(distances_follow_the_size_of_the_code)
{
    for (uint32_t size = 12; size < 300; size++) {
        uint8_t storage[EHFRAME_FUNCTION_MAX];
        struct bytes b = bytes_over(storage, sizeof storage);
        int32_t eh = (int32_t)ehframe_function(&b, size);
        int32_t rounded = (int32_t)((size + 7) / 8 * 8);
        int32_t cie = s32_at(storage) + 4;
        const uint8_t *hdr = storage + eh;
        ck_assert_int_eq(s32_at(storage + cie + 8), -(rounded + cie + 8));
        ck_assert_int_eq(s32_at(storage + cie + 12), (int32_t)size);
        ck_assert_int_eq(s32_at(hdr + 4), -(eh + 4));
        ck_assert_int_eq(s32_at(hdr + 12), -(rounded + eh));
        ck_assert_int_eq(s32_at(hdr + 16), -(eh - cie));
    }
}
END_TEST

/* Slots in a row, the sections some way behind them. */
START_TEST(table_of_slots)
{
    enum { COUNT = 100, CODE_AT = 64, GAP = 40 };
    static uint8_t storage[CODE_AT + COUNT * (ARCH_SLOT_STRIDE + EHFRAME_ENTRY_MOST) + 256];
    struct bytes b = bytes_over(storage, sizeof storage);
    bytes_zeros(&b, CODE_AT + COUNT * ARCH_SLOT_STRIDE + GAP);
    int32_t start = (int32_t)b.len;
    int32_t size = (int32_t)ehframe_table(&b, CODE_AT, COUNT);
    ck_assert(!b.overflow);
    ck_assert_int_eq(size, 24 + COUNT * 32 + 4);
    int32_t hdr = start + size;
    ck_assert_uint_eq(b.len, (size_t)hdr + 12 + COUNT * 8);
    ck_assert_mem_eq(storage + start, expected, 24); /* the CIE */
    ck_assert_mem_eq(storage + hdr - 4, "\0\0\0\0", 4);
    ck_assert_mem_eq(storage + hdr, expected + EH_FRAME, 4);
    ck_assert_int_eq(hdr + 4 + s32_at(storage + hdr + 4), start);
    ck_assert_int_eq(s32_at(storage + hdr + 8), COUNT);
    for (int32_t i = 0; i < COUNT; i++) {
        int32_t fde = start + 24 + i * 32, code = CODE_AT + i * (int32_t)ARCH_SLOT_STRIDE;
        const uint8_t *bytes = storage + fde, *entry = storage + hdr + 12 + i * 8;
        ck_assert_int_eq(s32_at(bytes), 28);
        ck_assert_int_eq(fde + 4 - s32_at(bytes + 4), start);
        ck_assert_int_eq(fde + 8 + s32_at(bytes + 8), code);
        ck_assert_int_eq(s32_at(bytes + 12), ARCH_SLOT_SIZE);
        ck_assert_mem_eq(bytes + 16, expected + 24 + 16, 16); /* the rows */
        ck_assert_int_eq(hdr + s32_at(entry), code);
        ck_assert_int_eq(hdr + s32_at(entry + 4), fde);
    }
}
END_TEST

START_TEST(table_with_too_little_room)
{
    static uint8_t storage[1000];
    for (size_t room = 0; room < 24 + 10 * 32 + 4 + 12 + 80; room++) {
        memset(storage, 0xa5, sizeof storage);
        struct bytes b = bytes_over(storage, room);
        ehframe_table(&b, 0, 10);
        ck_assert(b.overflow);
        for (size_t i = room; i < sizeof storage; i++)
            if (storage[i] != 0xa5)
                ck_abort_msg("byte %zu written, of %zu", i, room);
    }
}
END_TEST

#endif

/* perf inject maps code, rounded up to 8, and unwind data, rounded up to 16; the next slot must begin
 * behind that. */
START_TEST(fits_between_slots)
{
    uint8_t storage[EHFRAME_FUNCTION_MAX];
    struct bytes b = bytes_over(storage, sizeof storage);
    size_t eh_frame = ehframe_function(&b, ARCH_SLOT_SIZE);
    ck_assert(!b.overflow);
    ck_assert_uint_eq(b.len, eh_frame + EHFRAME_HDR_SIZE);
    ck_assert_uint_eq(eh_frame % 4, 0);
    size_t mapped = (b.len + JITDUMP_UNWIND_ALIGN - 1) / JITDUMP_UNWIND_ALIGN * JITDUMP_UNWIND_ALIGN;
    ck_assert_uint_le((ARCH_SLOT_SIZE + 7) / 8 * 8 + mapped, ARCH_SLOT_STRIDE);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("ehframe");
    TCase *tcase = unit_case(suite, "ehframe");
    tcase_add_test(tcase, fits_between_slots);
#if defined(__x86_64__)
    tcase_add_test(tcase, every_byte);
    tcase_add_test(tcase, wherever_it_is_appended);
    tcase_add_test(tcase, too_little_room);
    tcase_add_test(tcase, distances_follow_the_size_of_the_code);
    tcase_add_test(tcase, table_of_slots);
    tcase_add_test(tcase, table_with_too_little_room);
#endif
    return unit_run(suite);
}
