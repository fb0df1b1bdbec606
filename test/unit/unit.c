#include <time.h>
#include "unit.h"

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

enum { TIME_LIMIT = 120, EXIT_SKIPPED = 77 };

static char base[64];

/* In a build with AddressSanitizer. Leaks are looked for with valgrind: a test that has given up its
 * privileges or its descriptors cannot run the search at its exit. */
const char *__asan_default_options(void);
const char *__asan_default_options(void)
{
    return "detect_leaks=0";
}

TCase *unit_case(Suite *suite, const char *name)
{
    TCase *tcase = tcase_create(name);
    tcase_set_timeout(tcase, TIME_LIMIT);
    suite_add_tcase(suite, tcase);
    return tcase;
}

static const char *skip_list(void)
{
    return unit_path(base, "skipped");
}

/* Prints what unit_skip noted; returns how many tests that were. */
static int print_skipped(void)
{
    char line[512];
    int count = 0;
    FILE *list = fopen(skip_list(), "r");
    while (list && fgets(line, sizeof line, list)) {
        printf("SKIP %s", line);
        count++;
    }
    if (list)
        fclose(list);
    return count;
}

static int remove_entry(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
    (void)st, (void)type, (void)ftw;
    remove(path);
    return 0;
}

int unit_run(Suite *suite)
{
    snprintf(base, sizeof base, "/tmp/pyjd-unit-XXXXXX");
    if (!mkdtemp(base) || chmod(base, 0755)) {
        perror(base);
        return EXIT_FAILURE;
    }
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    int ran = srunner_ntests_run(runner);
    srunner_free(runner);

    int skipped = print_skipped();
    nftw(base, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
    if (failed)
        return EXIT_FAILURE;
    return ran && skipped == ran ? EXIT_SKIPPED : EXIT_SUCCESS;
}

void unit_skip(const char *test, const char *reason)
{
    FILE *list = fopen(skip_list(), "a");
    ck_assert_ptr_nonnull(list);
    fprintf(list, "%s: %s\n", test, reason);
    fclose(list);
}

const char *unit_dir(void)
{
    static char dir[96];
    snprintf(dir, sizeof dir, "%s/XXXXXX", base);
    ck_assert_ptr_nonnull(mkdtemp(dir));
    ck_assert_int_eq(chmod(dir, 0755), 0);
    return dir;
}

const char *unit_path(const char *dir, const char *name)
{
    static char paths[4][512];
    static unsigned turn;
    char *path = paths[turn++ % 4];
    snprintf(path, sizeof paths[0], "%s/%s", dir, name);
    return path;
}

uint8_t *unit_read(const char *path, size_t *size)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    struct stat st;
    ck_assert_msg(fd >= 0 && fstat(fd, &st) == 0, "%s: %s", path, strerror(errno));
    uint8_t *data = malloc((size_t)st.st_size + 1);
    ck_assert_ptr_nonnull(data);
    ssize_t got = read(fd, data, (size_t)st.st_size);
    ck_assert_int_eq(got, st.st_size);
    data[got] = 0;
    close(fd);
    if (size)
        *size = (size_t)got;
    return data;
}

void unit_write(const char *path, const char *text)
{
    FILE *file = fopen(path, "w");
    ck_assert_msg(file != NULL, "%s: %s", path, strerror(errno));
    fputs(text, file);
    ck_assert_int_eq(fclose(file), 0);
}

off_t unit_size(const char *path)
{
    struct stat st;
    ck_assert_msg(stat(path, &st) == 0, "%s: %s", path, strerror(errno));
    return st.st_size;
}

bool unit_holds(const char *path, const char *text)
{
    size_t size = 0;
    uint8_t *data = unit_read(path, &size);
    bool same = size == strlen(text) && memcmp(data, text, size) == 0;
    free(data);
    return same;
}

/* Maps one id to itself in a new user namespace. */
static bool map_id(const char *path, unsigned id)
{
    char map[64];
    snprintf(map, sizeof map, "%u %u 1\n", id, id);
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    bool mapped = fd >= 0 && write(fd, map, strlen(map)) > 0;
    if (fd >= 0)
        close(fd);
    return mapped;
}

/* A mount namespace of our own, so that the mount goes away with the test. */
static bool enter_namespace(void)
{
    if (unshare(CLONE_NEWNS) == 0)
        return true;
    unsigned uid = geteuid(), gid = getegid();
    if (unshare(CLONE_NEWUSER | CLONE_NEWNS))
        return false;
    int fd = open("/proc/self/setgroups", O_WRONLY | O_CLOEXEC);
    bool denied = fd >= 0 && write(fd, "deny", 4) == 4; /* or gid_map may not be written */
    if (fd >= 0)
        close(fd);
    return denied && map_id("/proc/self/uid_map", uid) && map_id("/proc/self/gid_map", gid);
}

const char *unit_mount_tmpfs(const char *dir, size_t size, unsigned long mount_flags)
{
    char options[64];
    snprintf(options, sizeof options, "size=%zu,mode=755", size);
    if (!enter_namespace() || mount("none", "/", "none", MS_REC | MS_PRIVATE, NULL) ||
        mount("tmpfs", dir, "tmpfs", mount_flags, options))
        return "cannot mount a tmpfs (needs root, or user namespaces)";
    return NULL;
}

void unit_capture_begin(struct unit_capture *capture, int fd)
{
    capture->fd = fd;
    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, capture->ends), 0);
    capture->saved = fcntl(fd, F_DUPFD_CLOEXEC, 100);
    ck_assert_int_ge(capture->saved, 0);
    ck_assert_int_eq(dup2(capture->ends[1], fd), fd);
}

ssize_t unit_capture_next(struct unit_capture *capture, char *text, size_t size)
{
    ssize_t got = recv(capture->ends[0], text, size - 1, MSG_DONTWAIT);
    text[got > 0 ? got : 0] = '\0';
    return got;
}

void unit_capture_end(struct unit_capture *capture)
{
    ck_assert_int_eq(dup2(capture->saved, capture->fd), capture->fd);
    close(capture->saved);
    close(capture->ends[0]);
    close(capture->ends[1]);
}

/* Calls `see` for each line of /proc/self/maps until it returns true. */
static void each_mapping(bool (*see)(void *, uintptr_t, uintptr_t, const char *, const char *),
                         void *data)
{
    char line[1024];
    FILE *maps = fopen("/proc/self/maps", "r");
    ck_assert_ptr_nonnull(maps);
    while (fgets(line, sizeof line, maps)) {
        unsigned long low = 0, high = 0;
        char permissions[5] = "", path[512] = "";
        sscanf(line, "%lx-%lx %4s %*s %*s %*s %511[^\n]", &low, &high, permissions, path);
        if (see(data, low, high, permissions, path))
            break;
    }
    fclose(maps);
}

struct mapping_query {
    uintptr_t address;
    char *permissions, *path;
    size_t path_size;
    int count;
};

static bool see_address(void *data, uintptr_t low, uintptr_t high, const char *permissions,
                        const char *path)
{
    struct mapping_query *query = data;
    if (query->address < low || query->address >= high)
        return false;
    strcpy(query->permissions, permissions);
    if (query->path)
        snprintf(query->path, query->path_size, "%s", path);
    return true;
}

void unit_mapping(const void *address, char permissions[5], char *path, size_t path_size)
{
    struct mapping_query query = {.address = (uintptr_t)address, .permissions = permissions,
                                  .path = path, .path_size = path_size};
    permissions[0] = '\0';
    if (path)
        path[0] = '\0';
    each_mapping(see_address, &query);
}

static bool see_path(void *data, uintptr_t low, uintptr_t high, const char *permissions,
                     const char *path)
{
    struct mapping_query *query = data;
    (void)low, (void)high, (void)permissions;
    query->count += strcmp(path, query->path) == 0;
    return false;
}

int unit_mappings_of(const char *path)
{
    struct mapping_query query = {.path = (char *)(uintptr_t)path};
    each_mapping(see_path, &query);
    return query.count;
}

void unit_make_old(const char *path)
{
    const struct timespec hour_ago[2] = {{.tv_sec = time(NULL) - 3600}, {.tv_sec = time(NULL) - 3600}};
    ck_assert_int_eq(utimensat(AT_FDCWD, path, hour_ago, AT_SYMLINK_NOFOLLOW), 0);
}
