#include "config.h"
#include "unit.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static struct unit_capture err;
static struct config config;
static char line[4096];

static void clean_environment(void)
{
    unsetenv("PYJD_OUTPUT");
    unsetenv("PYJD_DIR");
    unsetenv("PYJD_ENABLE");
    unsetenv("PYJD_MAX_FUNCTIONS");
    unsetenv("PYJD_LOG");
    memset(&config, 0xa5, sizeof config); /* every field must be set */
    unit_capture_begin(&err, STDERR_FILENO);
}

static void release_stderr(void)
{
    unit_capture_end(&err);
}

/* Reads the environment; the test fails if that logged anything. */
static void read_silently(void)
{
    config_read(&config);
    ck_assert_msg(unit_capture_next(&err, line, sizeof line) < 0, "unexpected line: %s", line);
}

/* Reads the environment with `variable` set to what is not valid: one line that names both and what
 * would be. */
static void read_invalid(const char *variable, const char *value, const char *accepted)
{
    setenv(variable, value, 1);
    config_read(&config);
    ck_assert_msg(unit_capture_next(&err, line, sizeof line) > 0, "no line for %s=%s", variable,
                  value);
    ck_assert_msg(strstr(line, variable) && strstr(line, value) && strstr(line, accepted),
                  "not what is needed about %s=%s: %s", variable, value, line);
    ck_assert_int_lt(unit_capture_next(&err, line, sizeof line), 0);
    unsetenv(variable);
}

static void expect_defaults(void)
{
    ck_assert_uint_eq(config.outputs, OUTPUT_ELF | OUTPUT_JITDUMP | OUTPUT_MAP);
    ck_assert(config.enable);
    ck_assert_uint_eq(config.max_functions, 262144);
    ck_assert_str_eq(config.dir, "/tmp");
}

START_TEST(nothing_set)
{
    read_silently();
    expect_defaults();
}
END_TEST

START_TEST(all_empty)
{
    setenv("PYJD_OUTPUT", "", 1);
    setenv("PYJD_DIR", "", 1);
    setenv("PYJD_ENABLE", "", 1);
    setenv("PYJD_MAX_FUNCTIONS", "", 1);
    setenv("PYJD_LOG", "", 1);
    read_silently();
    expect_defaults();
}
END_TEST

START_TEST(errno_is_kept)
{
    setenv("PYJD_DIR", "/nonexistent", 1);
    setenv("PYJD_MAX_FUNCTIONS", "99999999999999999999999", 1);
    errno = EXDEV;
    config_read(&config);
    ck_assert_int_eq(errno, EXDEV);
}
END_TEST

START_TEST(outputs)
{
    static const struct {
        const char *value;
        unsigned outputs;
    } good[] = {
        {"elf", OUTPUT_ELF},
        {"jitdump", OUTPUT_JITDUMP},
        {"map", OUTPUT_MAP},
        {"map,jitdump", OUTPUT_MAP | OUTPUT_JITDUMP},
        {"elf,jitdump,map", OUTPUT_ELF | OUTPUT_JITDUMP | OUTPUT_MAP},
        {"map,map", OUTPUT_MAP},
    };
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        setenv("PYJD_OUTPUT", good[i].value, 1);
        read_silently();
        ck_assert_uint_eq(config.outputs, good[i].outputs);
    }
    static const char *const bad[] = {"all", "map,", ",map", "map,,elf", "MAP", "maps", "ma",
                                      "map jitdump", "map, elf", ","};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        read_invalid("PYJD_OUTPUT", bad[i], "elf, jitdump and map");
        expect_defaults();
    }
}
END_TEST

START_TEST(enable)
{
    setenv("PYJD_ENABLE", "0", 1);
    read_silently();
    ck_assert(!config.enable);
    setenv("PYJD_ENABLE", "1", 1);
    read_silently();
    ck_assert(config.enable);
    static const char *const bad[] = {"2", "yes", "00", "01", " 0", "-1", "false"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        read_invalid("PYJD_ENABLE", bad[i], "0 or 1");
        ck_assert(config.enable);
    }
}
END_TEST

START_TEST(max_functions)
{
    static const struct {
        const char *value;
        uint32_t number;
    } good[] = {{"1", 1}, {"1000", 1000}, {"16777216", 16777216}, {"007", 7}};
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        setenv("PYJD_MAX_FUNCTIONS", good[i].value, 1);
        read_silently();
        ck_assert_uint_eq(config.max_functions, good[i].number);
    }
    static const char *const bad[] = {"0", "16777217", "-1", "+5", " 5", "5 ", "5k", "1e3", "0x10",
                                      "99999999999999999999999", "18446744073709551617", "x"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        read_invalid("PYJD_MAX_FUNCTIONS", bad[i], "1 to 16777216");
        ck_assert_uint_eq(config.max_functions, 262144);
    }
}
END_TEST

START_TEST(dir_is_absolute_and_resolved)
{
    const char *dir = unit_dir();
    char expected[PATH_MAX];
    snprintf(expected, sizeof expected, "%s/real", dir);
    ck_assert_int_eq(mkdir(expected, 0700), 0);
    ck_assert_int_eq(symlink("real", unit_path(dir, "link")), 0);
    ck_assert_int_eq(chdir(dir), 0);

    static const char *const spellings[] = {"real", "./real/", "link", "link/../real//."};
    for (size_t i = 0; i < sizeof spellings / sizeof spellings[0]; i++) {
        setenv("PYJD_DIR", spellings[i], 1);
        read_silently();
        ck_assert_str_eq(config.dir, expected);
    }
    setenv("PYJD_DIR", unit_path(dir, "real///"), 1);
    read_silently();
    ck_assert_str_eq(config.dir, expected);
}
END_TEST

START_TEST(dir_that_is_none)
{
    const char *dir = unit_dir();
    unit_write(unit_path(dir, "file"), "");
    read_invalid("PYJD_DIR", unit_path(dir, "file"), "/tmp");
    ck_assert_str_eq(config.dir, "/tmp");
    read_invalid("PYJD_DIR", unit_path(dir, "missing"), "/tmp");
    ck_assert_str_eq(config.dir, "/tmp");
    symlink("loop", unit_path(dir, "loop"));
    read_invalid("PYJD_DIR", unit_path(dir, "loop"), "/tmp");
    ck_assert_str_eq(config.dir, "/tmp");
}
END_TEST

START_TEST(dir_too_long)
{
    static char value[PATH_MAX * 2];
    memset(value, 'd', sizeof value - 1);
    value[0] = '/';
    setenv("PYJD_DIR", value, 1);
    config_read(&config);
    ck_assert_int_gt(unit_capture_next(&err, line, sizeof line), 0);
    ck_assert_str_eq(config.dir, "/tmp");
}
END_TEST

/* "no slash at the end" says config.h; paths are made by adding one. */
START_TEST(dir_root)
{
    setenv("PYJD_DIR", "/", 1);
    read_silently();
    size_t length = strlen(config.dir);
    ck_assert_msg(length == 0 || config.dir[length - 1] != '/', "dir is \"%s\"", config.dir);
}
END_TEST

START_TEST(log_level)
{
    setenv("PYJD_LOG", "debug", 1);
    read_silently();
    log_line(LOG_DEBUG, "shown");
    ck_assert_int_gt(unit_capture_next(&err, line, sizeof line), 0);
    setenv("PYJD_LOG", "error", 1);
    read_silently();
    log_line(LOG_WARN, "not shown");
    ck_assert_int_lt(unit_capture_next(&err, line, sizeof line), 0);
    log_line(LOG_ERROR, "shown");
    ck_assert_int_gt(unit_capture_next(&err, line, sizeof line), 0);
}
END_TEST

START_TEST(log_level_invalid)
{
    read_invalid("PYJD_LOG", "verbose", "off, error, warn, info or debug");
    log_line(LOG_WARN, "shown");
    ck_assert_int_gt(unit_capture_next(&err, line, sizeof line), 0);
    log_line(LOG_INFO, "not shown");
    ck_assert_int_lt(unit_capture_next(&err, line, sizeof line), 0);
}
END_TEST

START_TEST(log_off_silences_the_rest)
{
    setenv("PYJD_LOG", "off", 1);
    setenv("PYJD_OUTPUT", "nonsense", 1);
    setenv("PYJD_DIR", "/nonexistent", 1);
    setenv("PYJD_ENABLE", "maybe", 1);
    setenv("PYJD_MAX_FUNCTIONS", "none", 1);
    read_silently();
    expect_defaults();
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("config");
    TCase *tcase = unit_case(suite, "config");
    tcase_add_checked_fixture(tcase, clean_environment, release_stderr);
    tcase_add_test(tcase, nothing_set);
    tcase_add_test(tcase, all_empty);
    tcase_add_test(tcase, errno_is_kept);
    tcase_add_test(tcase, outputs);
    tcase_add_test(tcase, enable);
    tcase_add_test(tcase, max_functions);
    tcase_add_test(tcase, dir_is_absolute_and_resolved);
    tcase_add_test(tcase, dir_that_is_none);
    tcase_add_test(tcase, dir_too_long);
    tcase_add_test(tcase, dir_root);
    tcase_add_test(tcase, log_level);
    tcase_add_test(tcase, log_level_invalid);
    tcase_add_test(tcase, log_off_silences_the_rest);
    return unit_run(suite);
}
