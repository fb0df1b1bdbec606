#include "registry.h"
#include "unit.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct registry registry;

static struct registry_entry *add(const char *symbol, int32_t line)
{
    struct arena_slot slot = {.code = (uint8_t *)(uintptr_t)(0x1000 + registry.count),
                              .index = registry.count};
    return registry_add(&registry, symbol, strlen(symbol), 4, line, &slot);
}

static struct registry_entry *find(const char *symbol, int32_t line)
{
    return registry_find(&registry, symbol, strlen(symbol), line);
}

START_TEST(empty)
{
    ck_assert_ptr_null(find("py::f:/a.py", 1));
    ck_assert_ptr_null(find("", 0));
    ck_assert_uint_eq(registry.count, 0);
}
END_TEST

START_TEST(entry_holds_what_was_added)
{
    char text[] = "py::f:/a.pyXXX";
    struct arena_slot slot = {.code = (uint8_t *)text, .index = 77};
    struct registry_entry *entry = registry_add(&registry, text, 11, 6, 12, &slot);
    ck_assert_ptr_nonnull(entry);
    ck_assert_ptr_ne(entry->symbol, text);
    memset(text, 'Y', sizeof text - 1);
    memset(&slot, 0, sizeof slot);

    entry = registry_find(&registry, "py::f:/a.py", 11, 12);
    ck_assert_ptr_nonnull(entry);
    ck_assert_str_eq(entry->symbol, "py::f:/a.py"); /* a copy, cut and terminated */
    ck_assert_uint_eq(entry->symbol_length, 11);
    ck_assert_uint_eq(entry->file_offset, 6);
    ck_assert_int_eq(entry->line, 12);
    ck_assert_ptr_eq(entry->slot.code, text);
    ck_assert_uint_eq(entry->slot.index, 77);
}
END_TEST

START_TEST(symbol_and_line_together_are_the_key)
{
    struct registry_entry *entry;
    add("py::f:/a.py", 1);
    add("py::f:/a.py", 2);
    add("py::f:/a.pyc", 1);
    add("py::f:/a.p", 1);
    add("py::<lambda>:/a.py", INT32_MAX);
    add("py::<lambda>:/a.py", -1);
    for (size_t i = 0; i < registry.count; i++) {
        struct registry_entry *other = &registry.entries[i];
        entry = registry_find(&registry, other->symbol, other->symbol_length, other->line);
        ck_assert_ptr_eq(entry, other);
        ck_assert_uint_eq(entry->slot.index, i);
    }
    ck_assert_uint_eq(registry.count, 6);
    ck_assert_ptr_null(find("py::f:/a.py", 3));
    ck_assert_ptr_null(find("py::f:/a.", 1));
    ck_assert_ptr_null(find("py::f:/b.py", 1));
    ck_assert_ptr_null(find("py::<lambda>:/a.py", 0));
}
END_TEST

START_TEST(empty_symbol)
{
    ck_assert_ptr_nonnull(add("", 0));
    ck_assert_ptr_nonnull(find("", 0));
    ck_assert_ptr_null(find("", 1));
}
END_TEST

/* Pairs that have the same 32-bit FNV-1a hash of line and symbol, found by search: the hash alone must not
 * decide. */
START_TEST(equal_hashes)
{
    static const char *const longer[] = {"py::f:/a.pygv7@])", "py::f:/a.pywozC8o", "py::f:/a.pybwpElx"};
    ck_assert_ptr_nonnull(add(longer[0], 1));
    ck_assert_ptr_null(find("py::f:/a.py", 1));
    ck_assert_ptr_null(find(longer[1], 1));
    ck_assert_ptr_nonnull(add(longer[1], 1));
    ck_assert_ptr_nonnull(add("py::f:/a.py", 1));
    ck_assert_uint_eq(registry.entries[0].hash, registry.entries[1].hash);
    ck_assert_uint_eq(registry.entries[0].hash, registry.entries[2].hash);
    ck_assert_ptr_eq(find("py::f:/a.py", 1), &registry.entries[2]);
    ck_assert_ptr_eq(find(longer[1], 1), &registry.entries[1]);
    ck_assert_ptr_null(find(longer[2], 1));

    ck_assert_ptr_nonnull(add("py::g:/a.py", 3840));
    ck_assert_ptr_null(find("py::g:/a.py", 124010532));
    ck_assert_ptr_nonnull(add("py::g:/a.py", 124010532));
    ck_assert_uint_eq(registry.entries[3].hash, registry.entries[4].hash);
    ck_assert_ptr_eq(find("py::g:/a.py", 3840), &registry.entries[3]);
}
END_TEST

/* Through many times the first table and text chunk; 400,000 symbols are some 18 pairs of equal
 * 32-bit hashes. */
START_TEST(many)
{
    enum { MANY = 400000 };
    char symbol[64];
    int wrong = 0; /* an assertion is a write in Check, too slow for here */
    for (int i = 0; i < MANY; i++) {
        snprintf(symbol, sizeof symbol, "py::C%d.m:/srv/%d.py", i / 7, i);
        wrong += find(symbol, i % 3) != NULL;
        struct registry_entry *entry = add(symbol, i % 3);
        wrong += !entry || entry->slot.index != (size_t)i;
    }
    ck_assert_int_eq(wrong, 0);
    ck_assert_uint_eq(registry.count, MANY);
    for (int i = 0; i < MANY; i++) {
        snprintf(symbol, sizeof symbol, "py::C%d.m:/srv/%d.py", i / 7, i);
        struct registry_entry *entry = find(symbol, i % 3);
        wrong += entry != &registry.entries[i]; /* in order of arrival */
        wrong += !entry || entry->slot.index != (size_t)i || strcmp(entry->symbol, symbol) != 0;
        wrong += find(symbol, i % 3 + 1) != NULL;
    }
    ck_assert_int_eq(wrong, 0);
    ck_assert_uint_le(registry.count, registry.table_size / 2);
}
END_TEST

START_TEST(long_symbols)
{
    enum { LONG = 200000 };
    char *symbol = malloc(LONG + 1);
    static const size_t lengths[] = {LONG, 65535, 65536, 65537, 10, LONG - 1, 65534};
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
        memset(symbol, 'a' + (int)i, lengths[i]);
        symbol[lengths[i]] = '\0';
        ck_assert_ptr_nonnull(add(symbol, 1));
    }
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
        memset(symbol, 'a' + (int)i, lengths[i]);
        symbol[lengths[i]] = '\0';
        struct registry_entry *entry = find(symbol, 1);
        ck_assert_ptr_nonnull(entry);
        ck_assert_uint_eq(entry->slot.index, i);
        ck_assert_str_eq(entry->symbol, symbol);
    }
    free(symbol);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("registry");
    TCase *tcase = unit_case(suite, "registry");
    tcase_add_test(tcase, empty);
    tcase_add_test(tcase, entry_holds_what_was_added);
    tcase_add_test(tcase, symbol_and_line_together_are_the_key);
    tcase_add_test(tcase, empty_symbol);
    tcase_add_test(tcase, equal_hashes);
    tcase_add_test(tcase, many);
    tcase_add_test(tcase, long_symbols);
    return unit_run(suite);
}
