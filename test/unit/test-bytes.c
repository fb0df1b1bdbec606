#include "bytes.h"
#include "unit.h"

#include <string.h>

enum { GUARD = 0xa5 };

START_TEST(values_in_machine_order)
{
    uint8_t storage[64];
    struct bytes b = bytes_over(storage, sizeof storage);
    bytes_u8(&b, 0x11);
    bytes_u16(&b, 0x2233);
    bytes_u32(&b, 0x44556677);
    bytes_i32(&b, -2);
    bytes_u64(&b, 0x8899aabbccddeeff);
    ck_assert(!b.overflow);
    ck_assert_uint_eq(b.len, 1 + 2 + 4 + 4 + 8);

    uint16_t u16 = 0x2233;
    uint32_t u32 = 0x44556677;
    int32_t i32 = -2;
    uint64_t u64 = 0x8899aabbccddeeff;
    ck_assert_uint_eq(storage[0], 0x11);
    ck_assert_mem_eq(storage + 1, &u16, 2);
    ck_assert_mem_eq(storage + 3, &u32, 4);
    ck_assert_mem_eq(storage + 7, &i32, 4);
    ck_assert_mem_eq(storage + 11, &u64, 8);
}
END_TEST

START_TEST(fills_to_the_last_byte)
{
    uint8_t storage[9];
    memset(storage, GUARD, sizeof storage);
    struct bytes b = bytes_over(storage, 8);
    bytes_put(&b, "abcdefgh", 8);
    ck_assert(!b.overflow);
    ck_assert_uint_eq(b.len, 8);
    ck_assert_mem_eq(storage, "abcdefgh", 8);
    ck_assert_uint_eq(storage[8], GUARD);

    bytes_put(&b, "", 0); /* nothing fits anywhere */
    ck_assert(!b.overflow);
    bytes_u8(&b, 1);
    ck_assert(b.overflow);
    ck_assert_uint_eq(b.len, 8);
    ck_assert_uint_eq(storage[8], GUARD);
}
END_TEST

START_TEST(overflow_sticks)
{
    uint8_t storage[8];
    memset(storage, GUARD, sizeof storage);
    struct bytes b = bytes_over(storage, sizeof storage);
    bytes_u32(&b, 0);
    bytes_u64(&b, 0);
    ck_assert(b.overflow);
    ck_assert_uint_eq(b.len, 4);

    bytes_u8(&b, 1); /* would fit */
    bytes_zeros(&b, 1);
    bytes_align(&b, 8);
    bytes_patch_u32(&b, 0, 0xffffffff);
    ck_assert(b.overflow);
    ck_assert_uint_eq(b.len, 4);
    ck_assert_mem_eq(storage, "\0\0\0\0\xa5\xa5\xa5\xa5", 8);
}
END_TEST

START_TEST(sizes_near_the_end_of_the_address_space)
{
    uint8_t storage[8];
    struct bytes b = bytes_over(storage, sizeof storage);
    bytes_u32(&b, 0);
    bytes_put(&b, storage, SIZE_MAX - 2); /* len + size wraps round */
    ck_assert(b.overflow);
    ck_assert_uint_eq(b.len, 4);

    b = bytes_over(storage, sizeof storage);
    bytes_u32(&b, 0);
    bytes_zeros(&b, SIZE_MAX);
    ck_assert(b.overflow);
    ck_assert_uint_eq(b.len, 4);
}
END_TEST

START_TEST(align_pads_with_zeros)
{
    for (size_t start = 0; start <= 16; start++) {
        uint8_t storage[40];
        memset(storage, GUARD, sizeof storage);
        struct bytes b = bytes_over(storage, sizeof storage);
        for (size_t i = 0; i < start; i++)
            bytes_u8(&b, 0xff);
        bytes_align(&b, 8);
        ck_assert_uint_eq(b.len, (start + 7) / 8 * 8);
        for (size_t i = start; i < b.len; i++)
            ck_assert_uint_eq(storage[i], 0);
        ck_assert_uint_eq(storage[b.len], GUARD);
    }
}
END_TEST

START_TEST(patch_stays_within_what_was_written)
{
    uint8_t storage[16] = {0};
    struct bytes b = bytes_over(storage, sizeof storage);
    bytes_u64(&b, 0);
    bytes_patch_u32(&b, 4, 0x01020304);
    ck_assert(!b.overflow);
    uint32_t value = 0x01020304;
    ck_assert_mem_eq(storage, "\0\0\0\0", 4);
    ck_assert_mem_eq(storage + 4, &value, 4);
    ck_assert_uint_eq(b.len, 8);

    static const size_t bad[] = {5, 8, 9, 100, SIZE_MAX, SIZE_MAX - 3};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        b = bytes_over(storage, sizeof storage);
        bytes_u64(&b, 0);
        bytes_patch_u32(&b, bad[i], 0xffffffff);
        ck_assert(b.overflow);
        ck_assert_mem_eq(storage, "\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0", 16);
    }
}
END_TEST

START_TEST(cstr_is_terminated)
{
    uint8_t storage[8];
    memset(storage, GUARD, sizeof storage);
    struct bytes b = bytes_over(storage, sizeof storage);
    bytes_cstr(&b, "abcdef", 3);
    bytes_cstr(&b, "", 0);
    ck_assert(!b.overflow);
    ck_assert_mem_eq(storage, "abc\0\0\xa5\xa5\xa5", 8);

    b = bytes_over(storage, 3);
    bytes_cstr(&b, "abc", 3); /* no room for the NUL */
    ck_assert(b.overflow);
}
END_TEST

/* Vectors of FNV-1a's authors (draft-eastlake-fnv, appendix C). */
START_TEST(hash_is_fnv_1a)
{
    ck_assert_uint_eq(bytes_hash(BYTES_HASH_START, "", 0), 0x811c9dc5);
    ck_assert_uint_eq(bytes_hash(BYTES_HASH_START, "a", 1), 0xe40c292c);
    ck_assert_uint_eq(bytes_hash(BYTES_HASH_START, "foobar", 6), 0xbf9cf968);
    uint32_t hash = bytes_hash(BYTES_HASH_START, "foo", 3);
    ck_assert_uint_eq(bytes_hash(hash, "bar", 3), 0xbf9cf968);
    ck_assert_uint_eq(bytes_hash(BYTES_HASH_START, "\xff\0", 2), bytes_hash(
        bytes_hash(BYTES_HASH_START, "\xff", 1), "", 1));
}
END_TEST

START_TEST(empty_storage)
{
    struct bytes b = bytes_over(NULL, 0);
    bytes_put(&b, NULL, 0);
    bytes_zeros(&b, 0);
    bytes_align(&b, 8);
    ck_assert(!b.overflow);
    bytes_u8(&b, 0);
    ck_assert(b.overflow);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("bytes");
    TCase *tcase = unit_case(suite, "bytes");
    tcase_add_test(tcase, values_in_machine_order);
    tcase_add_test(tcase, fills_to_the_last_byte);
    tcase_add_test(tcase, overflow_sticks);
    tcase_add_test(tcase, sizes_near_the_end_of_the_address_space);
    tcase_add_test(tcase, align_pads_with_zeros);
    tcase_add_test(tcase, patch_stays_within_what_was_written);
    tcase_add_test(tcase, cstr_is_terminated);
    tcase_add_test(tcase, hash_is_fnv_1a);
    tcase_add_test(tcase, empty_storage);
    return unit_run(suite);
}
