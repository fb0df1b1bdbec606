/* The dump is compared byte for byte with what the tables of the jitdump specification ask for, put
 * together here from offsets and literal numbers, not with the library's writer or constants. */
#include "sink.h"
#include "unit.h"

#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static struct config config = {.outputs = OUTPUT_JITDUMP};
static char path[256];

static void open_in(const char *dir)
{
    snprintf(config.dir, sizeof config.dir, "%s", dir);
    snprintf(path, sizeof path, "%s/jit-%d.dump", dir, (int)getpid());
    ck_assert_int_eq(sink_jitdump.open(&config), 0);
    ck_assert_str_eq(sink_jitdump.path(), path);
}

static uint64_t monotonic(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

/* ---- the expectation: bytes at offsets ---- */

static uint8_t image[4 << 20];
static size_t image_size;

static void put32(size_t at, uint32_t value)
{
    memcpy(image + at, &value, 4);
}

static void put64(size_t at, uint64_t value)
{
    memcpy(image + at, &value, 8);
}

static size_t round8(size_t size)
{
    return (size + 7) / 8 * 8;
}

static void expect_header(uint64_t time)
{
    memset(image, 0, sizeof image);
    put32(0, 0x4A695444);
    put32(4, 1);
    put32(8, 40);
#if defined(__x86_64__)
    put32(12, EM_X86_64);
#elif defined(__aarch64__)
    put32(12, EM_AARCH64);
#endif
    put32(20, (uint32_t)getpid());
    put64(24, time);
    image_size = 40;
}

static void expect_prefix(uint32_t id, uint32_t size, uint64_t time)
{
    put32(image_size, id);
    put32(image_size + 4, size);
    put64(image_size + 8, time);
}

static void expect_debug_info(const struct sink_code *code, uint64_t time)
{
    size_t at = image_size + 32;
    put64(image_size + 16, code->addr);
    put64(image_size + 24, code->line_count + 1);
    for (size_t i = 0; i < code->line_count + 1; i++) {
        bool last = i == code->line_count;
        const struct sink_line *line = code->lines + (last ? i - 1 : i);
        put64(at, last ? code->addr + code->size : line->addr);
        put32(at + 8, (uint32_t)line->line);
        strcpy((char *)image + at + 16, line->file);
        at += 16 + strlen(line->file) + 1;
    }
    size_t size = round8(at - image_size);
    expect_prefix(2, (uint32_t)size, time);
    image_size += size;
}

static void expect_unwinding_info(const struct sink_code *code, uint64_t time)
{
    size_t size = round8(40 + code->unwind_size);
    expect_prefix(4, (uint32_t)size, time);
    put64(image_size + 16, code->unwind_size);
    put64(image_size + 24, code->unwind_hdr_size);
    put64(image_size + 32, (code->unwind_size + 15) / 16 * 16);
    memcpy(image + image_size + 40, code->unwind, code->unwind_size);
    image_size += size;
}

static void expect_load(const struct sink_code *code, uint64_t time)
{
    size_t name = code->name_length;
    size_t size = 56 + name + 1 + code->size;
    expect_prefix(0, (uint32_t)size, time);
    put32(image_size + 16, (uint32_t)getpid());
    put32(image_size + 20, (uint32_t)syscall(SYS_gettid));
    put64(image_size + 24, code->addr);
    put64(image_size + 32, code->addr);
    put64(image_size + 40, code->size);
    put64(image_size + 48, code->index);
    memcpy(image + image_size + 56, code->name, name);
    memcpy(image + image_size + 56 + name + 1, (const void *)(uintptr_t)code->addr, code->size);
    image_size += size;
}

/* The time in the record that the dump has where the expectation ends now. */
static uint64_t time_in(const uint8_t *dump, size_t size)
{
    uint64_t time;
    ck_assert_uint_ge(size, image_size + 16);
    memcpy(&time, dump + image_size + 8, 8);
    return time;
}

/* Adds `code`, and expects its records behind those expected so far, with one time for all three. */
static void add_and_expect(const struct sink_code *code)
{
    uint64_t before = monotonic();
    ck_assert_int_eq(sink_jitdump.add(code), 0);
    uint64_t after = monotonic();

    size_t size = 0;
    uint8_t *dump = unit_read(path, &size);
    uint64_t time = time_in(dump, size);
    ck_assert_uint_ge(time, before);
    ck_assert_uint_le(time, after);
    if (code->line_count)
        expect_debug_info(code, time);
    if (code->unwind)
        expect_unwinding_info(code, time);
    expect_load(code, time);

    ck_assert_uint_eq(size, image_size);
    size_t same = 0;
    while (same < size && dump[same] == image[same])
        same++;
    ck_assert_msg(same == size, "byte %zu is 0x%02x, not 0x%02x", same, dump[same], image[same]);
    free(dump);
}

static void open_and_expect(const char *dir)
{
    uint64_t before = monotonic(), time;
    size_t size = 0;
    open_in(dir);
    uint64_t after = monotonic();
    uint8_t *dump = unit_read(path, &size);
    ck_assert_uint_eq(size, 40);
    memcpy(&time, dump + 24, 8);
    ck_assert_uint_ge(time, before);
    ck_assert_uint_le(time, after);
    expect_header(time);
    ck_assert_mem_eq(dump, image, 40);
    free(dump);
}

/* ---- pieces of code ---- */

static uint8_t text[300000];
static uint8_t unwind_data[512];

static struct sink_code piece(uint32_t size, uint64_t index, const char *name)
{
    for (size_t i = 0; i < sizeof text; i++)
        text[i] = (uint8_t)(i * 7 + i / 256);
    for (size_t i = 0; i < sizeof unwind_data; i++)
        unwind_data[i] = (uint8_t)(255 - i);
    return (struct sink_code){.addr = (uintptr_t)text, .size = size, .index = index, .name = name,
                              .name_length = strlen(name)};
}

static struct sink_line one_line[1];

/* As the session describes a trampoline. */
static struct sink_code function(uint64_t index, const char *name)
{
    struct sink_code code = piece(32, index, name);
    one_line[0] = (struct sink_line){.addr = code.addr, .file = "/srv/app.py", .line = 12};
    code.lines = one_line;
    code.line_count = 1;
    code.unwind = unwind_data;
    code.unwind_size = 80;
    code.unwind_hdr_size = 20;
    return code;
}

START_TEST(words)
{
    ck_assert_str_eq(sink_jitdump.name, "jitdump");
    ck_assert_int_eq(sink_jitdump.output, OUTPUT_JITDUMP);
    ck_assert_str_eq(sink_jitdump.path(), "");
}
END_TEST

START_TEST(header)
{
    struct stat st;
    umask(0);
    open_and_expect(unit_dir());
    ck_assert_int_eq(stat(path, &st), 0);
    ck_assert_uint_eq(st.st_mode & 07777, 0600);
}
END_TEST

START_TEST(functions)
{
    open_and_expect(unit_dir());
    struct sink_code code = function(1, "py::handler:/srv/app.py");
    add_and_expect(&code);
    code = function(0x123456789abcdef, "py::C.m.<locals>.<lambda>:/srv/\xc3\xa9.py");
    one_line[0].line = INT32_MAX;
    add_and_expect(&code);
    code = function(3, "py::longer than name_length");
    code.name_length = 10;
    add_and_expect(&code);
}
END_TEST

/* Every length of name and file, so that every amount of padding occurs. */
START_TEST(padding)
{
    char name[32] = "n", file[32] = "f";
    open_and_expect(unit_dir());
    for (size_t i = 1; i < 20; i++) {
        struct sink_code code = function(i, name);
        memset(name, 'n', i);
        memset(file, 'f', 20 - i);
        file[20 - i] = '\0';
        code.name_length = i;
        one_line[0].file = file;
        code.unwind_size = (uint32_t)(40 + 4 * i);
        add_and_expect(&code);
    }
}
END_TEST

START_TEST(without_lines_or_unwind_data)
{
    open_and_expect(unit_dir());
    struct sink_code code = piece(1, 1, "stub");
    add_and_expect(&code);
    code = function(2, "no unwind data");
    code.unwind = NULL;
    code.unwind_size = code.unwind_hdr_size = 0;
    add_and_expect(&code);
    code = function(3, "no lines");
    code.lines = NULL;
    code.line_count = 0;
    add_and_expect(&code);
}
END_TEST

START_TEST(large_code_of_another_jit)
{
    enum { LINES = 1000 };
    static struct sink_line lines[LINES];
    static char files[LINES][64];
    open_and_expect(unit_dir());
    struct sink_code code = piece(sizeof text, 1, "regexp");
    add_and_expect(&code);
    for (size_t i = 0; i < LINES; i++) {
        snprintf(files[i], sizeof files[i], "/src/%.*s.js", (int)(i % 40),
                 "0123456789012345678901234567890123456789");
        lines[i] = (struct sink_line){.addr = code.addr + i * 100, .file = files[i],
                                      .line = (int32_t)i + 1};
    }
    code.index = 2;
    code.lines = lines;
    code.line_count = LINES;
    code.unwind = unwind_data;
    code.unwind_size = sizeof unwind_data;
    code.unwind_hdr_size = 28;
    add_and_expect(&code);
    code = function(3, "py::after:/a.py"); /* and small again */
    add_and_expect(&code);
}
END_TEST

/* Sizes just around what the writer keeps on its stack. */
START_TEST(sizes_around_the_usual)
{
    open_and_expect(unit_dir());
    for (uint32_t size = 3600; size < 4200; size += 3) {
        struct sink_code code = function(size, "py::f:/a.py");
        code.size = size;
        add_and_expect(&code);
        if (image_size > sizeof image - 10000)
            break;
    }
}
END_TEST

START_TEST(long_name)
{
    static char name[100001];
    memset(name, 'n', sizeof name - 1);
    open_and_expect(unit_dir());
    struct sink_code code = function(1, name);
    add_and_expect(&code);
}
END_TEST

START_TEST(too_large_for_a_record)
{
    open_and_expect(unit_dir());
    struct sink_code code = piece(1, 1, "huge");
    code.size = 0x80000000; /* not read: refused first */
    ck_assert_int_eq(sink_jitdump.add(&code), -EMSGSIZE);
    ck_assert_int_eq(unit_size(path), 40);
    code.size = 32;
    add_and_expect(&code);
}
END_TEST

/* ---- the marker ---- */

/* The permissions of the mapping of the dump, "" if there is none. */
static const char *marker(void)
{
    static char permissions[5];
    char line[1024];
    permissions[0] = '\0';
    FILE *maps = fopen("/proc/self/maps", "r");
    while (fgets(line, sizeof line, maps))
        if (strstr(line, path))
            sscanf(line, "%*s %4s", permissions);
    fclose(maps);
    return permissions;
}

START_TEST(marker_is_executable)
{
    open_in(unit_dir());
    ck_assert_str_eq(marker(), "r-xp");
    ck_assert_int_eq(unit_mappings_of(path), 1);
    sink_jitdump.drop();
    ck_assert_str_eq(marker(), "");
    ck_assert_ptr_nonnull(strstr(sink_jitdump.path(), "/jit-")); /* what it was */
    sink_jitdump.drop();
}
END_TEST

START_TEST(noexec_file_system)
{
    struct unit_capture err;
    char line[1024];
    const char *dir = unit_dir();
    const char *trouble = unit_mount_tmpfs(dir, 1 << 20, MS_NOEXEC);
    if (trouble) {
        unit_skip("noexec_file_system", trouble);
        return;
    }
    unit_capture_begin(&err, STDERR_FILENO);
    open_in(dir);
    ck_assert_int_gt(unit_capture_next(&err, line, sizeof line), 0);
    ck_assert_ptr_nonnull(strstr(line, "noexec"));
    ck_assert_int_lt(unit_capture_next(&err, line, sizeof line), 0);
    unit_capture_end(&err);
    ck_assert_str_eq(marker(), "r--p");
}
END_TEST

START_TEST(failed_open_leaves_nothing)
{
    const char *dir = unit_dir();
    snprintf(config.dir, sizeof config.dir, "%s", dir);
    snprintf(path, sizeof path, "%s/jit-%d.dump", dir, (int)getpid());
    ck_assert_int_eq(mkdir(path, 0700), 0);
    int lowest = dup(0);
    close(lowest);
    ck_assert_int_eq(sink_jitdump.open(&config), -EPERM);
    ck_assert_ptr_nonnull(strstr(sink_jitdump.path(), "/jit-")); /* for the log line */
    ck_assert_str_eq(marker(), "");
    ck_assert_int_eq(dup(0), lowest);
}
END_TEST

/* ---- forks and full disks ---- */

START_TEST(drop_and_open_again)
{
    const char *dir = unit_dir();
    open_and_expect(dir);
    struct sink_code code = function(1, "py::f:/a.py");
    add_and_expect(&code);
    sink_jitdump.drop();
    ck_assert_int_eq(unit_size(path), (off_t)image_size);
    unit_make_old(path);
    open_and_expect(dir);
    add_and_expect(&code);
}
END_TEST

/* After exec the process id, and so the file, is the same: records go behind those of the program before,
 * and no index comes twice. */
START_TEST(goes_on_after_exec)
{
    const char *dir = unit_dir();
    open_and_expect(dir);
    struct sink_code code = function(1, "py::f:/a.py");
    add_and_expect(&code);
    off_t before = unit_size(path);
    sink_jitdump.drop();
    open_in(dir);
    ck_assert_int_eq(unit_size(path), before); /* no second header */
    ck_assert_int_eq(sink_jitdump.add(&code), 0);
    size_t size = 0;
    uint8_t *dump = unit_read(path, &size);
    uint64_t index;
    const uint8_t *load = dump + size - code.size - code.name_length - 1 - 56;
    memcpy(&index, load + 48, 8);
    ck_assert_uint_eq(index, (uint64_t)before + code.index);
    free(dump);
}
END_TEST

/* Whole, with a header and records that name the child; run in the child. */
static int child_of(const char *dir)
{
    char parent[sizeof path];
    strcpy(parent, path);
    off_t size = unit_size(parent);
    sink_jitdump.drop();
    if (unit_mappings_of(parent) || unit_size(parent) != size)
        return 1;
    open_and_expect(dir);
    struct sink_code code = function(7, "py::child:/a.py");
    add_and_expect(&code);
    if (strcmp(path, parent) == 0 || strcmp(marker(), "r-xp"))
        return 2;
    return unit_size(parent) == size ? 0 : 3;
}

START_TEST(child_writes_a_dump_of_its_own)
{
    const char *dir = unit_dir();
    int status = -1;
    open_and_expect(dir);
    struct sink_code code = function(1, "py::parent:/a.py");
    add_and_expect(&code);
    pid_t child = fork();
    if (child == 0)
        _exit(child_of(dir));
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert_int_eq(status, 0);
    code.index = 2;
    add_and_expect(&code);
    ck_assert_str_eq(marker(), "r-xp");
}
END_TEST

START_TEST(killed_in_the_midst)
{
    const char *dir = unit_dir();
    pid_t child = fork();
    if (child == 0) {
        open_in(dir);
        for (uint64_t i = 1; i <= 100; i++) {
            struct sink_code code = function(i, "py::f:/a.py");
            if (sink_jitdump.add(&code))
                _exit(1);
        }
        raise(SIGKILL);
    }
    waitpid(child, NULL, 0);
    snprintf(path, sizeof path, "%s/jit-%d.dump", dir, (int)child);
    enum { DEBUG = 32 + 2 * (16 + 12), UNWIND = 40 + 80, LOAD = 56 + 12 + 32 };
    ck_assert_int_eq(unit_size(path), 40 + 100 * (DEBUG + UNWIND + LOAD));
}
END_TEST

START_TEST(full_disk)
{
    const char *dir = unit_dir();
    const char *trouble = unit_mount_tmpfs(dir, 64 << 10, 0);
    if (trouble) {
        unit_skip("full_disk", trouble);
        return;
    }
    open_and_expect(dir);
    struct sink_code code = function(1, "py::f:/a.py");
    add_and_expect(&code);
    code = piece(sizeof text, 2, "larger than what is left");
    ck_assert_int_eq(sink_jitdump.add(&code), -ENOSPC);
    ck_assert_int_eq(unit_size(path), (off_t)image_size); /* no half a record */
    code = function(3, "py::g:/a.py");
    add_and_expect(&code);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("jitdump");
    TCase *tcase = unit_case(suite, "records");
    tcase_add_test(tcase, words);
    tcase_add_test(tcase, header);
    tcase_add_test(tcase, functions);
    tcase_add_test(tcase, padding);
    tcase_add_test(tcase, without_lines_or_unwind_data);
    tcase_add_test(tcase, large_code_of_another_jit);
    tcase_add_test(tcase, sizes_around_the_usual);
    tcase_add_test(tcase, long_name);
    tcase_add_test(tcase, too_large_for_a_record);
    tcase = unit_case(suite, "marker");
    tcase_add_test(tcase, marker_is_executable);
    tcase_add_test(tcase, noexec_file_system);
    tcase_add_test(tcase, failed_open_leaves_nothing);
    tcase = unit_case(suite, "trouble");
    tcase_add_test(tcase, drop_and_open_again);
    tcase_add_test(tcase, goes_on_after_exec);
    tcase_add_test(tcase, child_writes_a_dump_of_its_own);
    tcase_add_test(tcase, killed_in_the_midst);
    tcase_add_test(tcase, full_disk);
    return unit_run(suite);
}
