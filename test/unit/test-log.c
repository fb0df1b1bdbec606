#include "log.h"
#include "unit.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static struct unit_capture err;

static void capture_stderr(void)
{
    unit_capture_begin(&err, STDERR_FILENO);
}

static void release_stderr(void)
{
    unit_capture_end(&err);
}

static char line[4096];

static const char *next_line(void)
{
    return unit_capture_next(&err, line, sizeof line) < 0 ? NULL : line;
}

START_TEST(one_write_for_a_line)
{
    log_line(LOG_WARN, "%s is %d", "answer", 42);
    log_line(LOG_ERROR, "no arguments");
    ck_assert_str_eq(next_line(), "pyjitdump: answer is 42\n");
    ck_assert_str_eq(next_line(), "pyjitdump: no arguments\n");
    ck_assert_ptr_null(next_line());
}
END_TEST

START_TEST(nothing_on_stdout)
{
    struct unit_capture out;
    unit_capture_begin(&out, STDOUT_FILENO);
    log_line(LOG_ERROR, "hello");
    fflush(stdout);
    ck_assert_int_lt(unit_capture_next(&out, line, sizeof line), 0);
    unit_capture_end(&out);
    ck_assert_str_eq(next_line(), "pyjitdump: hello\n");
}
END_TEST

/* How many of the four levels below get through. */
static int lines_shown(void)
{
    log_line(LOG_ERROR, "error");
    log_line(LOG_WARN, "warn");
    log_line(LOG_INFO, "info");
    log_line(LOG_DEBUG, "debug");
    int shown = 0;
    while (next_line())
        shown++;
    return shown;
}

START_TEST(levels)
{
    ck_assert_int_eq(lines_shown(), 2); /* warn, before anybody set it */
    log_set_level(LOG_OFF);
    ck_assert_int_eq(lines_shown(), 0);
    log_set_level(LOG_ERROR);
    ck_assert_int_eq(lines_shown(), 1);
    log_set_level(LOG_WARN);
    ck_assert_int_eq(lines_shown(), 2);
    log_set_level(LOG_INFO);
    ck_assert_int_eq(lines_shown(), 3);
    log_set_level(LOG_DEBUG);
    ck_assert_int_eq(lines_shown(), 4);
}
END_TEST

START_TEST(errno_is_kept)
{
    errno = EXDEV;
    log_line(LOG_ERROR, "written");
    ck_assert_int_eq(errno, EXDEV);
    log_line(LOG_DEBUG, "not shown");
    ck_assert_int_eq(errno, EXDEV);
    log_start();
    ck_assert_int_eq(errno, EXDEV);

    close(STDERR_FILENO); /* after the start: the write fails */
    log_line(LOG_ERROR, "nowhere");
    ck_assert_int_eq(errno, EXDEV);
    log_start();
    ck_assert_int_eq(errno, EXDEV);
}
END_TEST

START_TEST(control_characters_are_replaced)
{
    log_line(LOG_WARN, "%s", "/tmp/a\npyjitdump: forged\r\t\x1b[31m\x7f\x01 \xc3\xa9");
    ck_assert_str_eq(next_line(), "pyjitdump: /tmp/a?pyjitdump: forged???[31m?? \xc3\xa9\n");
    ck_assert_ptr_null(next_line());
}
END_TEST

START_TEST(newline_in_the_format_is_replaced_too)
{
    log_line(LOG_WARN, "two\nlines\n");
    ck_assert_str_eq(next_line(), "pyjitdump: two?lines?\n");
}
END_TEST

START_TEST(long_lines_are_cut)
{
    static char text[3000];
    for (size_t length = 900; length < sizeof text; length += length < 1100 ? 1 : 500) {
        memset(text, 'x', length);
        text[length] = '\0';
        log_line(LOG_WARN, "%s", text);
        ck_assert_ptr_nonnull(next_line());
        size_t got = strlen(line);
        ck_assert_uint_le(got, 1024);
        ck_assert_int_eq(line[got - 1], '\n');
        ck_assert_int_eq(line[got - 2], 'x');
        ck_assert_int_eq(strncmp(line, "pyjitdump: x", 12), 0);
        ck_assert_uint_eq(got, length + 12 <= 1023 ? length + 12 : got);
        ck_assert_uint_ge(got, length + 12 < 1020 ? length + 12 : 1020);
        ck_assert_ptr_null(next_line());
    }
}
END_TEST

START_TEST(no_stderr_at_start)
{
    const char *path = unit_path(unit_dir(), "of-the-program");
    close(STDERR_FILENO);
    log_start();
    int fd = open(path, O_WRONLY | O_CREAT, 0600);
    ck_assert_int_eq(fd, STDERR_FILENO); /* the number went to a file of the program's own */
    log_line(LOG_ERROR, "must not be in there");
    ck_assert_int_eq(unit_size(path), 0);
}
END_TEST

START_TEST(stderr_at_start)
{
    log_start();
    log_line(LOG_ERROR, "here");
    ck_assert_str_eq(next_line(), "pyjitdump: here\n");
}
END_TEST

/* `program 2>&1 >/dev/null | head -1`: what a program does about SIGPIPE is its own affair. */
START_TEST(reader_of_stderr_is_gone)
{
    int ends[2];
    signal(SIGPIPE, SIG_DFL);
    ck_assert_int_eq(pipe(ends), 0);
    ck_assert_int_eq(dup2(ends[1], STDERR_FILENO), STDERR_FILENO);
    close(ends[0]);
    close(ends[1]);
    log_line(LOG_ERROR, "nobody reads this"); /* the test dies here if the signal gets through */
    sigset_t pending;
    ck_assert_int_eq(sigpending(&pending), 0);
    ck_assert(!sigismember(&pending, SIGPIPE));
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("log");
    TCase *tcase = unit_case(suite, "log");
    tcase_add_checked_fixture(tcase, capture_stderr, release_stderr);
    tcase_add_test(tcase, one_write_for_a_line);
    tcase_add_test(tcase, nothing_on_stdout);
    tcase_add_test(tcase, levels);
    tcase_add_test(tcase, errno_is_kept);
    tcase_add_test(tcase, control_characters_are_replaced);
    tcase_add_test(tcase, newline_in_the_format_is_replaced_too);
    tcase_add_test(tcase, long_lines_are_cut);
    tcase_add_test(tcase, no_stderr_at_start);
    tcase_add_test(tcase, stderr_at_start);
    tcase_add_test(tcase, reader_of_stderr_is_gone);
    return unit_run(suite);
}
