/* The public interface in a process without Python: errors, status, and the writer interface. */
#include "pyjitdump.h"
#include "unit.h"

#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <regex.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static char jitdump[256], map[256];

/* Files in a directory of the test's own; the perf map has its fixed place. */
static void choose_files(void)
{
    const char *dir = unit_dir();
    unsetenv("PYJD_OUTPUT");
    unsetenv("PYJD_ENABLE");
    unsetenv("PYJD_MAX_FUNCTIONS");
    unsetenv("PYJD_LOG");
    setenv("PYJD_DIR", dir, 1);
    snprintf(jitdump, sizeof jitdump, "%s/jit-%d.dump", dir, (int)getpid());
    snprintf(map, sizeof map, "/tmp/perf-%d.map", (int)getpid());
    if (unlink(map) && errno != ENOENT)
        ck_abort_msg("%s, of another user's process of this id, is in the way", map);
}

static void remove_map(void)
{
    unlink(map);
}

static struct pyjd_status get_status(void)
{
    struct pyjd_status status;
    memset(&status, 0xa5, sizeof status);
    ck_assert_int_eq(pyjd_get_status(&status, sizeof status), 0);
    return status;
}

static const uint8_t text[4096] = {0xc3, 1, 2, 3, 4, 5, 6, 7, 8};

static struct pyjd_code piece(const char *name)
{
    return (struct pyjd_code){.addr = text, .size = 32, .name = name};
}

static int add(const struct pyjd_code *code)
{
    errno = EXDEV;
    int result = pyjd_add_code(code, sizeof *code);
    ck_assert_int_eq(errno, EXDEV);
    return result;
}

static void expect_no_files(void)
{
    ck_assert_int_ne(access(jitdump, F_OK), 0);
    ck_assert_int_ne(access(map, F_OK), 0);
}

/* ---- without Python ---- */

START_TEST(version)
{
    regex_t form;
    ck_assert_int_eq(regcomp(&form, "^[0-9]+\\.[0-9]+\\.[0-9]+$", REG_EXTENDED | REG_NOSUB), 0);
    ck_assert_int_eq(regexec(&form, pyjd_version(), 0, NULL, 0), 0);
    regfree(&form);
}
END_TEST

START_TEST(enable_and_disable)
{
    for (int i = 0; i < 3; i++) {
        errno = EXDEV;
        ck_assert_int_eq(pyjd_enable(), -ESRCH);
        ck_assert_int_eq(pyjd_disable(), -ESRCH);
        ck_assert_int_eq(pyjd_is_enabled(), 0);
        ck_assert_int_eq(errno, EXDEV);
    }
    expect_no_files();
}
END_TEST

START_TEST(strerror_has_a_sentence_for_each)
{
    static const int errors[] = {0, -ESRCH, -EPERM, -ENOTSUP, -EBUSY, -EINVAL, -EIO, -ENOMEM};
    enum { COUNT = sizeof errors / sizeof errors[0] };
    for (size_t i = 0; i < COUNT; i++) {
        const char *sentence = pyjd_strerror(errors[i]);
        ck_assert_ptr_nonnull(sentence);
        ck_assert_uint_gt(strlen(sentence), 5);
        ck_assert_ptr_null(strchr(sentence, '\n'));
        for (size_t j = 0; j < i; j++)
            ck_assert_str_ne(sentence, pyjd_strerror(errors[j]));
    }
    static const int others[] = {1, ESRCH, -12345, INT_MAX, INT_MIN + 1, INT_MIN};
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++)
        ck_assert_ptr_nonnull(pyjd_strerror(others[i]));
}
END_TEST

START_TEST(status_before_anything)
{
    struct pyjd_status now = get_status();
    ck_assert_int_eq(now.enabled, 0);
    ck_assert_int_eq(now.python_minor, 0);
    ck_assert_uint_eq(now.functions, 0);
    ck_assert_uint_eq(now.overflowed, 0);
    ck_assert_uint_eq(now.foreign, 0);
    ck_assert_uint_eq(now.arena_bytes, 0);
    ck_assert_uint_eq(now.outputs_wanted,
                      PYJD_OUTPUT_ELF | PYJD_OUTPUT_JITDUMP | PYJD_OUTPUT_MAP);
    ck_assert_uint_eq(now.outputs_failed, 0);
    ck_assert_str_eq(now.image_path, "");
    ck_assert_str_eq(now.jitdump_path, "");
    ck_assert_str_eq(now.map_path, "");
    expect_no_files();
}
END_TEST

START_TEST(status_of_another_size)
{
    struct pyjd_status status;
    ck_assert_int_eq(pyjd_get_status(NULL, sizeof status), -EINVAL);
    ck_assert_int_eq(pyjd_get_status(&status, 0), -EINVAL);

    memset(&status, 0xa5, sizeof status); /* a program with an older header */
    ck_assert_int_eq(pyjd_get_status(&status, offsetof(struct pyjd_status, foreign)), 0);
    ck_assert_uint_eq(status.overflowed, 0);
    ck_assert_uint_eq(status.foreign, 0xa5a5a5a5a5a5a5a5);

    struct {
        struct pyjd_status status;
        uint64_t newer;
    } larger; /* and one with a newer header */
    memset(&larger, 0xa5, sizeof larger);
    ck_assert_int_eq(pyjd_get_status(&larger.status, sizeof larger), 0);
    ck_assert_uint_eq(larger.newer, 0);
}
END_TEST

START_TEST(outputs_wanted)
{
    setenv("PYJD_OUTPUT", "map", 1);
    ck_assert_uint_eq(get_status().outputs_wanted, PYJD_OUTPUT_MAP);
}
END_TEST

/* ---- the writer interface ---- */

START_TEST(invalid_code)
{
    static const struct pyjd_line good_line = {.addr = 1, .file = "f", .line = 1};
    static const struct pyjd_line no_file = {.addr = 1, .file = NULL, .line = 1};
    struct pyjd_code code = piece("name"), bad;

    ck_assert_int_eq(pyjd_add_code(NULL, sizeof code), -EINVAL);
    ck_assert_int_eq(pyjd_add_code(&code, 0), -EINVAL);
    ck_assert_int_eq(pyjd_add_code(&code, sizeof code - 1), -EINVAL);
    bad = code, bad.addr = NULL;
    ck_assert_int_eq(add(&bad), -EINVAL);
    bad = code, bad.size = 0;
    ck_assert_int_eq(add(&bad), -EINVAL);
    bad = code, bad.name = NULL;
    ck_assert_int_eq(add(&bad), -EINVAL);
    bad = code, bad.name = "";
    ck_assert_int_eq(add(&bad), -EINVAL);
    bad = code, bad.line_count = 1;
    ck_assert_int_eq(add(&bad), -EINVAL);
    bad = code, bad.line_count = SIZE_MAX, bad.lines = &good_line;
    ck_assert_int_eq(add(&bad), -EINVAL);
    bad = code, bad.line_count = 1, bad.lines = &no_file;
    ck_assert_int_eq(add(&bad), -EINVAL);
    bad = code, bad.unwind = text, bad.unwind_size = 42, bad.unwind_hdr_size = 20;
    ck_assert_int_eq(add(&bad), -EINVAL);
    bad = code, bad.unwind = text, bad.unwind_size = 40, bad.unwind_hdr_size = 44;
    ck_assert_int_eq(add(&bad), -EINVAL);
    bad = code, bad.unwind_size = 40;
    ck_assert_int_eq(add(&bad), -EINVAL);
    ck_assert_uint_eq(get_status().foreign, 0);
    expect_no_files();
}
END_TEST

START_TEST(code_is_in_every_output)
{
    char line[256], dump_name[] = "JIT::sum";
    struct pyjd_line lines[] = {{.addr = (uintptr_t)text, .file = "/src/sum.js", .line = 3},
                                {.addr = (uintptr_t)text + 8, .file = "/src/sum.js", .line = 4}};
    struct pyjd_code code = piece(dump_name);
    code.lines = lines;
    code.line_count = 2;
    ck_assert_int_eq(add(&code), 0);
    memset(dump_name, 'X', 3); /* it was copied */

    snprintf(line, sizeof line, "%lx 20 JIT::sum\n", (unsigned long)(uintptr_t)text);
    ck_assert(unit_holds(map, line));
    size_t size = 0, name_at = 40 + 32 + 3 * (16 + 12) + 4 + 56; /* 4: to a multiple of 8 */
    uint8_t *dump = unit_read(jitdump, &size);
    ck_assert_uint_eq(size, name_at + 9 + 32);
    ck_assert_str_eq((char *)dump + name_at, "JIT::sum");
    ck_assert_mem_eq(dump + name_at + 9, text, 32);
    free(dump);

    struct pyjd_status now = get_status();
    ck_assert_uint_eq(now.foreign, 1);
    ck_assert_uint_eq(now.functions, 0);
    ck_assert_str_eq(now.jitdump_path, jitdump);
    ck_assert_str_eq(now.map_path, map);
    ck_assert_uint_eq(now.outputs_failed, 0);
}
END_TEST

START_TEST(only_the_outputs_wanted)
{
    setenv("PYJD_OUTPUT", "map", 1);
    struct pyjd_code code = piece("stub");
    ck_assert_int_eq(add(&code), 0);
    ck_assert_int_ne(access(jitdump, F_OK), 0);
    ck_assert_int_eq(access(map, F_OK), 0);
}
END_TEST

START_TEST(control_characters_in_a_name)
{
    struct pyjd_code code = piece("a\nb\x7f\x1b");
    ck_assert_int_eq(add(&code), 0);
    uint8_t *lines = unit_read(map, NULL);
    ck_assert_ptr_eq(strchr((char *)lines, '\n'), strchr((char *)lines, '\0') - 1);
    ck_assert_ptr_nonnull(strstr((char *)lines, "a\\nb\\x7f\\x1b\n"));
    free(lines);
}
END_TEST

START_TEST(long_names_harm_nobody)
{
    static char name[100000];
    struct pyjd_code code = piece(name);
    for (size_t length = 500; length < sizeof name; length = length * 5 / 4) {
        memset(name, 'n', length);
        name[length] = '\0';
        ck_assert_int_eq(add(&code), 0);
        ck_assert_uint_eq(get_status().outputs_failed, 0);
    }
    code.name = "after";
    ck_assert_int_eq(add(&code), 0);
    uint8_t *lines = unit_read(map, NULL);
    ck_assert_ptr_nonnull(strstr((char *)lines, " 20 after\n"));
    free(lines);
}
END_TEST

/* One caller's absurd range must not take the outputs from everybody else. */
START_TEST(huge_code_harms_nobody)
{
    size_t size = 0x80000000;
    void *memory = mmap(NULL, size, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) {
        unit_skip("huge_code_harms_nobody", "no 2 GiB of address space");
        return;
    }
    struct pyjd_code huge = piece("huge"), code = piece("after");
    huge.addr = memory;
    huge.size = (uint32_t)size;
    int result = add(&huge);
    ck_assert_msg(result == 0 || result == -EINVAL, "result %d", result);
    ck_assert_uint_eq(get_status().outputs_failed, 0);
    ck_assert_int_eq(add(&code), 0);
    uint8_t *lines = unit_read(map, NULL);
    ck_assert_ptr_nonnull(strstr((char *)lines, " 20 after\n"));
    free(lines);
    ck_assert_int_gt(unit_size(jitdump), 40);
}
END_TEST

START_TEST(all_outputs_fail)
{
    struct unit_capture err;
    char line[1024];
    struct pyjd_code code = piece("stub");
    setenv("PYJD_OUTPUT", "jitdump,map", 1);
    ck_assert_int_eq(mkdir(jitdump, 0700), 0);
    ck_assert_int_eq(mkdir(map, 0700), 0);
    unit_capture_begin(&err, STDERR_FILENO);
    int first = add(&code), second = add(&code);
    rmdir(map);
    ck_assert_int_eq(first, -EIO);
    ck_assert_int_eq(second, -EIO);
    ck_assert_int_gt(unit_capture_next(&err, line, sizeof line), 0);
    ck_assert_ptr_nonnull(strstr(line, jitdump));
    ck_assert_int_gt(unit_capture_next(&err, line, sizeof line), 0);
    ck_assert_ptr_nonnull(strstr(line, map));
    ck_assert_int_lt(unit_capture_next(&err, line, sizeof line), 0); /* each said once */
    unit_capture_end(&err);
    ck_assert_uint_eq(get_status().outputs_failed, PYJD_OUTPUT_JITDUMP | PYJD_OUTPUT_MAP);
}
END_TEST

START_TEST(one_output_fails)
{
    struct unit_capture err;
    struct pyjd_code code = piece("stub");
    ck_assert_int_eq(mkdir(jitdump, 0700), 0);
    unit_capture_begin(&err, STDERR_FILENO);
    ck_assert_int_eq(add(&code), 0);
    unit_capture_end(&err);
    ck_assert_uint_eq(get_status().outputs_failed, PYJD_OUTPUT_JITDUMP);
    struct pyjd_status status = get_status();
    ck_assert_str_eq(status.jitdump_path, "");
    ck_assert_int_gt(unit_size(map), 0);
}
END_TEST

/* ---- forks and threads ---- */

START_TEST(child_has_all_its_parent_had)
{
    int status = -1;
    char theirs[64], want[512];
    struct pyjd_code one = piece("one"), two = piece("two");
    two.addr = text + 1024;
    ck_assert_int_eq(add(&one), 0);
    off_t dump_size = unit_size(jitdump), map_size = unit_size(map);
    pid_t child = fork();
    if (child == 0) {
        alarm(10);
        _exit(pyjd_add_code(&two, sizeof two) != 0);
    }
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert_int_eq(status, 0);
    ck_assert_int_eq(unit_size(jitdump), dump_size);
    ck_assert_int_eq(unit_size(map), map_size);

    snprintf(theirs, sizeof theirs, "/tmp/perf-%d.map", (int)child);
    snprintf(want, sizeof want, "%lx 20 one\n%lx 20 two\n", (unsigned long)(uintptr_t)text,
             (unsigned long)(uintptr_t)text + 1024);
    bool same = unit_holds(theirs, want);
    unlink(theirs);
    ck_assert(same);
}
END_TEST

START_TEST(silent_child_leaves_no_file)
{
    char theirs[64];
    struct pyjd_code one = piece("one");
    ck_assert_int_eq(add(&one), 0);
    pid_t child = fork();
    if (child == 0) {
        snprintf(theirs, sizeof theirs, "/tmp/perf-%d.map", (int)getpid());
        unlink(theirs); /* of an earlier process of this id */
        _exit(0);
    }
    waitpid(child, NULL, 0);
    snprintf(theirs, sizeof theirs, "/tmp/perf-%d.map", (int)child);
    ck_assert_int_ne(access(theirs, F_OK), 0);
}
END_TEST

enum { THREADS = 8, EACH = 500 };

static void *add_many(void *data)
{
    char name[32];
    intptr_t failed = 0;
    struct pyjd_code code = piece(name);
    for (int i = 0; i < EACH; i++) {
        snprintf(name, sizeof name, "thread%d-%d", (int)(intptr_t)data, i);
        failed += pyjd_add_code(&code, sizeof code) != 0;
    }
    return (void *)failed;
}

/* Whole records, each index once. */
static void check_dump_of_threads(void)
{
    static bool seen[THREADS * EACH + 1];
    size_t size = 0, at = 40, loads = 0;
    uint8_t *dump = unit_read(jitdump, &size);
    while (at < size) {
        uint32_t head[2];
        uint64_t index;
        memcpy(head, dump + at, sizeof head);
        memcpy(&index, dump + at + 48, sizeof index);
        ck_assert_uint_eq(head[0], 0);
        ck_assert_uint_ge(index, 1);
        ck_assert_uint_le(index, THREADS * EACH);
        ck_assert(!seen[index]);
        ck_assert_mem_eq(dump + at + 56, "thread", 6);
        seen[index] = true;
        at += head[1];
        loads++;
    }
    ck_assert_uint_eq(at, size);
    ck_assert_uint_eq(loads, THREADS * EACH);
    free(dump);
}

START_TEST(threads)
{
    pthread_t thread[THREADS];
    for (intptr_t i = 0; i < THREADS; i++)
        ck_assert_int_eq(pthread_create(&thread[i], NULL, add_many, (void *)i), 0);
    for (int i = 0; i < THREADS; i++) {
        void *failed = NULL;
        pthread_join(thread[i], &failed);
        ck_assert_ptr_null(failed);
    }
    ck_assert_uint_eq(get_status().foreign, THREADS * EACH);
    check_dump_of_threads();
    size_t size = 0, lines = 0;
    uint8_t *all = unit_read(map, &size);
    for (size_t i = 0; i < size; i++)
        lines += all[i] == '\n';
    ck_assert_uint_eq(lines, THREADS * EACH);
    free(all);
}
END_TEST

/* Forks while other threads publish: the child must neither hang nor find half a state. */
START_TEST(fork_under_threads)
{
    pthread_t thread[THREADS];
    for (intptr_t i = 0; i < THREADS; i++)
        ck_assert_int_eq(pthread_create(&thread[i], NULL, add_many, (void *)i), 0);
    for (int i = 0; i < 20; i++) {
        char theirs[64];
        int status = -1;
        pid_t child = fork();
        if (child == 0) {
            struct pyjd_code code = piece("child");
            alarm(10);
            _exit(pyjd_add_code(&code, sizeof code) != 0);
        }
        ck_assert_int_eq(waitpid(child, &status, 0), child);
        snprintf(theirs, sizeof theirs, "/tmp/perf-%d.map", (int)child);
        unlink(theirs);
        ck_assert_int_eq(status, 0);
    }
    for (int i = 0; i < THREADS; i++)
        pthread_join(thread[i], NULL);
    check_dump_of_threads();
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("api");
    TCase *tcase = unit_case(suite, "without Python");
    tcase_add_checked_fixture(tcase, choose_files, remove_map);
    tcase_add_test(tcase, version);
    tcase_add_test(tcase, enable_and_disable);
    tcase_add_test(tcase, strerror_has_a_sentence_for_each);
    tcase_add_test(tcase, status_before_anything);
    tcase_add_test(tcase, status_of_another_size);
    tcase_add_test(tcase, outputs_wanted);
    tcase = unit_case(suite, "writer");
    tcase_add_checked_fixture(tcase, choose_files, remove_map);
    tcase_add_test(tcase, invalid_code);
    tcase_add_test(tcase, code_is_in_every_output);
    tcase_add_test(tcase, only_the_outputs_wanted);
    tcase_add_test(tcase, control_characters_in_a_name);
    tcase_add_test(tcase, long_names_harm_nobody);
    tcase_add_test(tcase, huge_code_harms_nobody);
    tcase_add_test(tcase, all_outputs_fail);
    tcase_add_test(tcase, one_output_fails);
    tcase_add_test(tcase, child_has_all_its_parent_had);
    tcase_add_test(tcase, silent_child_leaves_no_file);
    tcase_add_test(tcase, threads);
    tcase_add_test(tcase, fork_under_threads);
    return unit_run(suite);
}
