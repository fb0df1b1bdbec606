/* The part of codename that needs no Python: the text of a name. What it makes of code objects is tested
 * with real interpreters. */
#include "codename.h"
#include "unit.h"

#include <stdio.h>
#include <string.h>

static char out[4096];

static const char *escape(const char *text, size_t most, bool keep_end)
{
    memset(out, 0x7e, sizeof out);
    size_t length = codename_escape(out, most, text, strlen(text), keep_end);
    ck_assert_uint_le(length, most);
    out[length] = '\0';
    return out;
}

/* Nothing that breaks a line, and no half of a character. */
static bool is_clean(const char *text)
{
    for (size_t i = 0; text[i];) {
        unsigned char c = (unsigned char)text[i];
        size_t bytes = c < 0x80 ? 1 : c < 0xe0 ? 2 : c < 0xf0 ? 3 : 4;
        if (c < 0x20 || c == 0x7f || (c >= 0x80 && c < 0xc0))
            return false;
        for (size_t j = 1; j < bytes; j++)
            if (((unsigned char)text[i + j] & 0xc0) != 0x80)
                return false;
        i += bytes;
    }
    return true;
}

START_TEST(plain_text_stays)
{
    ck_assert_str_eq(escape("C.m.<locals>.<lambda>", 384, false), "C.m.<locals>.<lambda>");
    ck_assert_str_eq(escape("", 384, false), "");
    ck_assert_str_eq(escape("/srv/a b/\xc3\xa9\xe2\x82\xac\xf0\x9f\x90\x8d.py", 384, true),
                     "/srv/a b/\xc3\xa9\xe2\x82\xac\xf0\x9f\x90\x8d.py");
}
END_TEST

START_TEST(control_characters)
{
    ck_assert_str_eq(escape("a\nb\tc\rd\x01" "e\x7f" "f\x1b", 384, false),
                     "a\\nb\\tc\\rd\\x01e\\x7ff\\x1b");
    ck_assert_str_eq(escape("\xc2\x9b" "31m\xc2\xa0", 384, false), "\\x9b31m\xc2\xa0");
    size_t length = codename_escape(out, 384, "a\0b", 3, false);
    ck_assert_uint_eq(length, 6);
    ck_assert_mem_eq(out, "a\\x00b", 6);
}
END_TEST

/* A name from pyjd_add_code() may be anything. */
START_TEST(not_utf8)
{
    static const char *const names[] = {"a\xe2\n0 0 forged", "\xc3\n", "\xf0\n\n\n", "\xff\nx",
                                        "\xe2\x82\nx", "\x80\nx", "x\xe2"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        escape(names[i], 384, false);
        ck_assert_msg(!strpbrk(out, "\n\r\t"), "a newline came through in name %zu", i);
    }
}
END_TEST

START_TEST(bounded)
{
    static const char *const parts[] = {"x", "\n", "\xc3\xa9", "\xf0\x9f\x90\x8d", "a\x01\xe2\x82\xac",
                                        "\xc2\x80"};
    for (size_t p = 0; p < sizeof parts / sizeof parts[0]; p++) {
        char text[2000] = "";
        for (size_t length = 0; length < 250; length++, strcat(text, parts[p])) {
            for (size_t most = 11; most < 120; most += 13) {
                ck_assert(is_clean(escape(text, most, false)));
                ck_assert(is_clean(escape(text, most, true)));
            }
        }
    }
}
END_TEST

START_TEST(what_is_cut_is_marked)
{
    char text[1000];
    memset(text, 'x', sizeof text - 1);
    text[sizeof text - 1] = '\0';
    memcpy(text, "begin", 5);
    memcpy(text + sizeof text - 4, "end", 3);

    escape(text, 100, false);
    ck_assert_uint_eq(strlen(out), 100);
    ck_assert_int_eq(strncmp(out, "beginxxx", 8), 0);
    ck_assert_int_eq(out[90], '~');
    ck_assert_int_eq(out[99], '~');
    escape(text, 100, true);
    ck_assert_uint_eq(strlen(out), 100);
    ck_assert_int_eq(out[0], '~');
    ck_assert_int_eq(out[9], '~');
    ck_assert_str_eq(out + 96, "xend");
}
END_TEST

START_TEST(long_names_stay_distinct)
{
    char text[1000], first[200];
    memset(text, 'x', sizeof text - 1);
    text[sizeof text - 1] = '\0';
    strcpy(first, escape(text, 100, false));
    text[500] = 'y';
    ck_assert_str_ne(escape(text, 100, false), first);
    ck_assert_str_eq(escape(text, 100, false), escape(text, 100, false));
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("codename");
    TCase *tcase = unit_case(suite, "escape");
    tcase_add_test(tcase, plain_text_stays);
    tcase_add_test(tcase, control_characters);
    tcase_add_test(tcase, not_utf8);
    tcase_add_test(tcase, bounded);
    tcase_add_test(tcase, what_is_cut_is_marked);
    tcase_add_test(tcase, long_names_stay_distinct);
    return unit_run(suite);
}
