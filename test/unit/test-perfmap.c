#include "sink.h"
#include "unit.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static struct config config = {.outputs = OUTPUT_MAP, .dir = "/nonexistent"};
static char path[64];

/* The place is fixed, and the id of the process that a test runs in is new to each. */
static void choose_path(void)
{
    snprintf(path, sizeof path, "/tmp/perf-%d.map", (int)getpid());
    if (unlink(path) && errno != ENOENT)
        ck_abort_msg("%s, of another user's process of this id, is in the way", path);
}

static void remove_path(void)
{
    remove(path);
}

static int add(uint64_t addr, uint32_t size, const char *name, size_t length)
{
    struct sink_code code = {.addr = addr, .size = size, .index = 1, .name = name,
                             .name_length = length};
    return sink_perfmap.add(&code);
}

START_TEST(one_line_for_each)
{
    ck_assert_str_eq(sink_perfmap.name, "map");
    ck_assert_int_eq(sink_perfmap.output, OUTPUT_MAP);
    ck_assert_str_eq(sink_perfmap.path(), "");
    ck_assert_int_eq(sink_perfmap.open(&config), 0);
    ck_assert_str_eq(sink_perfmap.path(), path);
    ck_assert_int_eq(unit_size(path), 0);

    ck_assert_int_eq(add(0x7f0012345680, 32, "py::f:/a.pyXXX", 11), 0);
    ck_assert(unit_holds(path, "7f0012345680 20 py::f:/a.py\n")); /* at once */
    ck_assert_int_eq(add(0xffffffffffffff80, 0xffffffff, "py::a b.<locals>.\xc3\xa9:/x y.py", 27), 0);
    ck_assert(unit_holds(path, "7f0012345680 20 py::f:/a.py\n"
                               "ffffffffffffff80 ffffffff py::a b.<locals>.\xc3\xa9:/x y.py\n"));
}
END_TEST

START_TEST(percent_signs_are_text)
{
    ck_assert_int_eq(sink_perfmap.open(&config), 0);
    ck_assert_int_eq(add(0x1000, 1, "py::%s%n:/%d.py", 15), 0);
    ck_assert(unit_holds(path, "1000 1 py::%s%n:/%d.py\n"));
}
END_TEST

START_TEST(mode_is_private)
{
    struct stat st;
    umask(0);
    ck_assert_int_eq(sink_perfmap.open(&config), 0);
    ck_assert_int_eq(stat(path, &st), 0);
    ck_assert_uint_eq(st.st_mode & 07777, 0600);
}
END_TEST

START_TEST(name_too_long_writes_nothing)
{
    static char name[8192];
    memset(name, 'n', sizeof name);
    ck_assert_int_eq(sink_perfmap.open(&config), 0);
    ck_assert_int_eq(add(0x1000, 1, name, sizeof name), -EMSGSIZE);
    ck_assert_int_eq(unit_size(path), 0);
    ck_assert_int_eq(add(0x1000, 1, name, 4000), 0);
    ck_assert_int_eq(unit_size(path), 7 + 4000 + 1);
}
END_TEST

/* A whole line with its end, or nothing: at every length around the longest. */
START_TEST(lines_end)
{
    static char name[8192];
    memset(name, 'n', sizeof name);
    ck_assert_int_eq(sink_perfmap.open(&config), 0);
    off_t before = 0;
    for (size_t length = 4050; length < 4130; length++) {
        int err = add(0x1000, 1, name, length);
        off_t size = unit_size(path);
        ck_assert_int_eq(size - before, err ? 0 : (off_t)length + 8);
        before = size;
    }
    uint8_t *lines = unit_read(path, NULL);
    ck_assert_int_eq(lines[before - 1], '\n');
    free(lines);
}
END_TEST

START_TEST(another_writer_of_this_process)
{
    int other = open(path, O_WRONLY | O_CREAT | O_APPEND, 0600);
    ck_assert_int_eq(write(other, "10 10 theirs\n", 13), 13);
    ck_assert_int_eq(sink_perfmap.open(&config), 0);
    ck_assert_int_eq(add(0x1000, 1, "ours", 4), 0);
    ck_assert_int_eq(write(other, "20 10 theirs\n", 13), 13);
    ck_assert_int_eq(add(0x2000, 1, "ours", 4), 0);
    ck_assert(unit_holds(path, "10 10 theirs\n1000 1 ours\n20 10 theirs\n2000 1 ours\n"));
}
END_TEST

/* The other writer came second: PyUnstable_PerfMapState_Init opens with O_APPEND and O_CREAT. */
START_TEST(another_writer_comes_later)
{
    ck_assert_int_eq(sink_perfmap.open(&config), 0);
    ck_assert_int_eq(add(0x1000, 1, "ours", 4), 0);
    int other = open(path, O_WRONLY | O_CREAT | O_APPEND | O_NOFOLLOW | O_CLOEXEC, 0600);
    ck_assert_int_eq(write(other, "10 10 theirs\n", 13), 13);
    ck_assert_int_eq(add(0x2000, 1, "ours", 4), 0);
    ck_assert(unit_holds(path, "1000 1 ours\n10 10 theirs\n2000 1 ours\n"));
}
END_TEST

START_TEST(stale_map_is_replaced)
{
    unit_write(path, "10 10 of a dead process\n");
    unit_make_old(path);
    ck_assert_int_eq(sink_perfmap.open(&config), 0);
    ck_assert_int_eq(add(0x1000, 1, "ours", 4), 0);
    ck_assert(unit_holds(path, "1000 1 ours\n"));
}
END_TEST

START_TEST(name_is_taken)
{
    const char *target = unit_path(unit_dir(), "target");
    unit_write(target, "precious");
    ck_assert_int_eq(symlink(target, path), 0);
    ck_assert_int_eq(sink_perfmap.open(&config), -EPERM);
    ck_assert_ptr_nonnull(strstr(sink_perfmap.path(), "/perf-")); /* for the log line */
    ck_assert(unit_holds(target, "precious"));
}
END_TEST

START_TEST(drop_and_open_again)
{
    ck_assert_int_eq(sink_perfmap.open(&config), 0);
    ck_assert_int_eq(add(0x1000, 1, "ours", 4), 0);
    sink_perfmap.drop();
    ck_assert_ptr_nonnull(strstr(sink_perfmap.path(), "/perf-")); /* what it was */
    sink_perfmap.drop(); /* nothing there */
    ck_assert(unit_holds(path, "1000 1 ours\n"));
    ck_assert_int_eq(sink_perfmap.open(&config), 0);
    ck_assert_int_eq(add(0x2000, 1, "again", 5), 0);
    ck_assert(unit_holds(path, "2000 1 again\n")); /* the session adds again what it had */
}
END_TEST

START_TEST(child_writes_a_map_of_its_own)
{
    int status = -1;
    ck_assert_int_eq(sink_perfmap.open(&config), 0);
    ck_assert_int_eq(add(0x1000, 1, "parent", 6), 0);
    pid_t child = fork();
    if (child == 0) {
        sink_perfmap.drop();
        _exit(sink_perfmap.open(&config) || add(0x2000, 1, "child", 5));
    }
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert_int_eq(status, 0);
    char theirs[64];
    snprintf(theirs, sizeof theirs, "/tmp/perf-%d.map", (int)child);
    ck_assert(unit_holds(theirs, "2000 1 child\n"));
    unlink(theirs);
    ck_assert(unit_holds(path, "1000 1 parent\n"));
    ck_assert_int_eq(add(0x3000, 1, "parent", 6), 0);
    ck_assert(unit_holds(path, "1000 1 parent\n3000 1 parent\n"));
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("perfmap");
    TCase *tcase = unit_case(suite, "perfmap");
    tcase_add_checked_fixture(tcase, choose_path, remove_path);
    tcase_add_test(tcase, one_line_for_each);
    tcase_add_test(tcase, percent_signs_are_text);
    tcase_add_test(tcase, mode_is_private);
    tcase_add_test(tcase, name_too_long_writes_nothing);
    tcase_add_test(tcase, lines_end);
    tcase_add_test(tcase, another_writer_of_this_process);
    tcase_add_test(tcase, another_writer_comes_later);
    tcase_add_test(tcase, stale_map_is_replaced);
    tcase_add_test(tcase, name_is_taken);
    tcase_add_test(tcase, drop_and_open_again);
    tcase_add_test(tcase, child_writes_a_map_of_its_own);
    return unit_run(suite);
}
