#include "outfile.h"
#include "unit.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

enum { NOBODY = 65534 };

static struct outfile file;

static const char *create_in(const char *dir)
{
    ck_assert_int_eq(outfile_create(&file, dir, "x.dump"), 0);
    ck_assert_int_eq(outfile_append(&file, "first\n", 6), 0);
    return file.path;
}

static ino_t inode_of(const char *path)
{
    struct stat st;
    ck_assert_msg(lstat(path, &st) == 0, "%s: %s", path, strerror(errno));
    return st.st_ino;
}

/* Both ways to create must refuse what is under the name. */
static void expect_refusal(const char *dir, int error)
{
    ck_assert_int_eq(outfile_create(&file, dir, "x.dump"), error);
    ck_assert_int_eq(file.fd, -1);
    ck_assert_int_eq(outfile_create_shared(&file, dir, "x.dump"), error);
    ck_assert_int_eq(file.fd, -1);
}

/* ---- a new file ---- */

START_TEST(new_file)
{
    struct stat st;
    umask(0);
    const char *dir = unit_dir();
    create_in(dir);
    ck_assert_str_eq(file.path, unit_path(dir, "x.dump"));
    ck_assert_int_eq(file.kind, OUTFILE_OWN);
    ck_assert_int_eq(lstat(file.path, &st), 0);
    ck_assert_uint_eq(st.st_mode, S_IFREG | 0600);
    ck_assert_int_eq(fcntl(file.fd, F_GETFD), FD_CLOEXEC);
    ck_assert_int_eq(fcntl(file.fd, F_GETFL) & (O_APPEND | O_ACCMODE), O_APPEND | O_RDWR);
    ck_assert_int_ge(file.fd, 512);
    ck_assert(unit_holds(file.path, "first\n"));
    outfile_close(&file);
    ck_assert_int_eq(file.fd, -1);
    ck_assert(unit_holds(unit_path(dir, "x.dump"), "first\n"));
}
END_TEST

START_TEST(lowest_descriptors_are_left_to_the_program)
{
    int before = dup(0);
    close(before);
    create_in(unit_dir());
    int after = dup(0);
    ck_assert_int_eq(after, before);
}
END_TEST

START_TEST(low_limit_on_descriptors)
{
    struct rlimit limit = {.rlim_cur = 64, .rlim_max = 64};
    ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &limit), 0);
    create_in(unit_dir());
    ck_assert_int_lt(file.fd, 64);
    ck_assert_int_eq(fcntl(file.fd, F_GETFD), FD_CLOEXEC);
    ck_assert(unit_holds(file.path, "first\n"));
}
END_TEST

START_TEST(no_descriptor_left)
{
    struct rlimit limit = {.rlim_cur = 16, .rlim_max = 16};
    const char *dir = unit_dir();
    ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &limit), 0);
    while (dup(0) >= 0)
        ;
    expect_refusal(dir, -EMFILE);
}
END_TEST

START_TEST(appends_behind_what_others_append)
{
    create_in(unit_dir());
    int other = open(file.path, O_WRONLY | O_APPEND);
    ck_assert_int_eq(write(other, "theirs\n", 7), 7);
    ck_assert_int_eq(outfile_append(&file, "second\n", 7), 0);
    ck_assert(unit_holds(file.path, "first\ntheirs\nsecond\n"));
}
END_TEST

START_TEST(name_too_long)
{
    static char name[PATH_MAX];
    memset(name, 'n', sizeof name - 1);
    ck_assert_int_eq(outfile_create(&file, "/tmp", name), -ENAMETOOLONG);
    ck_assert_int_eq(file.fd, -1);
    name[300] = '\0'; /* fits the buffer, not the file system */
    ck_assert_int_eq(outfile_create(&file, "/tmp", name), -ENAMETOOLONG);
    ck_assert_int_eq(file.fd, -1);
}
END_TEST

START_TEST(no_such_directory)
{
    expect_refusal("/nonexistent", -ENOENT);
}
END_TEST

START_TEST(directory_not_writable)
{
    const char *dir = unit_dir();
    if (geteuid() == 0)
        ck_assert_int_eq(seteuid(NOBODY), 0);
    else
        ck_assert_int_eq(chmod(dir, 0555), 0);
    expect_refusal(dir, -EACCES);
}
END_TEST

/* ---- something under the name ---- */

START_TEST(symbolic_link)
{
    const char *dir = unit_dir();
    const char *target = unit_path(dir, "target");
    unit_write(target, "precious");
    ck_assert_int_eq(symlink(target, unit_path(dir, "x.dump")), 0);
    expect_refusal(dir, -EPERM);
    ck_assert(unit_holds(target, "precious"));
}
END_TEST

START_TEST(symbolic_link_to_a_file_this_process_has_open)
{
    const char *dir = unit_dir();
    const char *target = unit_path(dir, "target");
    unit_write(target, "precious");
    ck_assert_int_ge(open(target, O_WRONLY), 0);
    ck_assert_int_eq(symlink(target, unit_path(dir, "x.dump")), 0);
    expect_refusal(dir, -EPERM);
    ck_assert(unit_holds(target, "precious"));
}
END_TEST

START_TEST(dangling_symbolic_link)
{
    const char *dir = unit_dir();
    ck_assert_int_eq(symlink("not-yet-there", unit_path(dir, "x.dump")), 0);
    expect_refusal(dir, -EPERM);
    ck_assert_int_ne(access(unit_path(dir, "not-yet-there"), F_OK), 0);
}
END_TEST

START_TEST(hard_link_to_a_file_of_ours)
{
    const char *dir = unit_dir();
    const char *target = unit_path(dir, "target");
    unit_write(target, "precious");
    ck_assert_int_eq(link(target, unit_path(dir, "x.dump")), 0);
    int error = outfile_create(&file, dir, "x.dump");
    if (error == 0)
        ck_assert_int_eq(outfile_append(&file, "ours\n", 5), 0);
    ck_assert(unit_holds(target, "precious"));
}
END_TEST

/* The neighbour links a file that this program writes to (its log) under the name of the perf map. */
START_TEST(hard_link_to_a_file_this_process_has_open)
{
    const char *dir = unit_dir();
    const char *target = unit_path(dir, "target");
    unit_write(target, "precious");
    ck_assert_int_ge(open(target, O_WRONLY | O_APPEND), 0);
    ck_assert_int_eq(link(target, unit_path(dir, "x.dump")), 0);
    int error = outfile_create_shared(&file, dir, "x.dump");
    if (error == 0)
        outfile_append(&file, "ours\n", 5);
    ck_assert_msg(unit_holds(target, "precious"), "wrote into a file reached through a hard link");
}
END_TEST

static volatile sig_atomic_t stopped;

static void stop(int number)
{
    (void)number;
    stopped = 1;
}

/* The neighbour places the link between the look at the name and the creation. */
START_TEST(race_for_the_name)
{
    const char *dir = unit_dir();
    const char *target = unit_path(dir, "target"), *path = unit_path(dir, "x.dump");
    unit_write(target, "precious");
    signal(SIGTERM, stop);
    pid_t child = fork();
    if (child == 0) {
        while (!stopped) {
            link(target, path);
            unlink(path);
        }
        _exit(0);
    }
    int created = 0;
    for (int i = 0; i < 20000; i++) {
        if (outfile_create(&file, dir, "x.dump") == 0) {
            created++;
            outfile_append(&file, "ours", 4);
            outfile_close(&file);
        }
    }
    kill(child, SIGTERM);
    waitpid(child, NULL, 0);
    ck_assert_int_gt(created, 0);
    ck_assert(unit_holds(target, "precious"));
}
END_TEST

START_TEST(fifo)
{
    const char *dir = unit_dir();
    ck_assert_int_eq(mkfifo(unit_path(dir, "x.dump"), 0666), 0);
    expect_refusal(dir, -EPERM); /* and returns: an open would block until someone reads */
}
END_TEST

START_TEST(directory)
{
    const char *dir = unit_dir();
    ck_assert_int_eq(mkdir(unit_path(dir, "x.dump"), 0700), 0);
    expect_refusal(dir, -EPERM);
}
END_TEST

START_TEST(unix_socket)
{
    const char *dir = unit_dir();
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    snprintf(address.sun_path, sizeof address.sun_path, "%s/x.dump", dir);
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    ck_assert_int_eq(bind(fd, (struct sockaddr *)&address, sizeof address), 0);
    expect_refusal(dir, -EPERM);
}
END_TEST

START_TEST(file_of_another_user)
{
    if (geteuid() != 0) {
        unit_skip("file_of_another_user", "needs root");
        return;
    }
    const char *dir = unit_dir();
    const char *path = unit_path(dir, "x.dump");
    unit_write(path, "theirs");
    ck_assert_int_eq(chown(path, NOBODY, (gid_t)-1), 0);
    ck_assert_int_eq(chmod(path, 0666), 0);
    expect_refusal(dir, -EPERM); /* root might, and must not */
    ck_assert(unit_holds(path, "theirs"));

    ck_assert_int_eq(chown(path, 0, (gid_t)-1), 0);
    ck_assert_int_eq(chmod(dir, 0777), 0);
    ck_assert_int_eq(seteuid(NOBODY), 0);
    expect_refusal(dir, -EPERM); /* unlink would work in this directory */
    ck_assert(unit_holds(path, "theirs"));
}
END_TEST

START_TEST(file_of_another_user_in_a_sticky_directory)
{
    if (geteuid() != 0) {
        unit_skip("file_of_another_user_in_a_sticky_directory", "needs root");
        return;
    }
    const char *dir = unit_dir();
    const char *path = unit_path(dir, "x.dump");
    unit_write(path, "theirs");
    ck_assert_int_eq(chmod(path, 0666), 0);
    ck_assert_int_eq(chmod(dir, 01777), 0);
    ck_assert_int_eq(seteuid(NOBODY), 0);
    expect_refusal(dir, -EPERM);
    ck_assert(unit_holds(path, "theirs"));
}
END_TEST

START_TEST(stale_file_is_replaced)
{
    const char *dir = unit_dir();
    const char *path = unit_path(dir, "x.dump");
    unit_write(path, "of a dead process with this id");
    ck_assert_int_eq(chmod(path, 0444), 0);
    int reader = open(path, O_RDONLY);
    ino_t old = inode_of(path);
    close(reader);
    reader = -1;

    /* Somebody who keeps the old one open, for reading, from another process. */
    int ready[2];
    ck_assert_int_eq(pipe(ready), 0);
    pid_t child = fork();
    if (child == 0) {
        int fd = open(path, O_RDONLY);
        ssize_t told = write(ready[1], "", 1);
        pause();
        _exit(fd < 0 || told < 0);
    }
    char byte;
    ck_assert_int_eq(read(ready[0], &byte, 1), 1);
    unit_make_old(path);
    create_in(dir);
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);

    ck_assert_uint_ne(inode_of(path), old); /* the reader held the old inode, so it was not reused */
    ck_assert(unit_holds(path, "first\n"));
    struct stat st;
    ck_assert_int_eq(stat(path, &st), 0);
    ck_assert_uint_eq(st.st_mode & 07777, 0600);
}
END_TEST

/* ---- another process, in another pid namespace, with the same id ---- */

/* A child that makes its own outfile under the same name and lives until told. */
static pid_t holder(const char *dir, int *tell)
{
    int ready[2], done[2];
    ck_assert_int_eq(pipe(ready), 0);
    ck_assert_int_eq(pipe(done), 0);
    pid_t child = fork();
    if (child == 0) {
        char byte = 0;
        close(done[1]);
        create_in(dir);
        _exit(write(ready[1], &byte, 1) != 1 || read(done[0], &byte, 1) < 0);
    }
    char byte;
    ck_assert_int_eq(read(ready[0], &byte, 1), 1);
    *tell = done[1];
    return child;
}

START_TEST(file_of_a_living_process)
{
    const char *dir = unit_dir();
    int tell = -1;
    pid_t child = holder(dir, &tell);
    ino_t theirs = inode_of(unit_path(dir, "x.dump"));
    expect_refusal(dir, -EBUSY);
    ck_assert_uint_eq(inode_of(unit_path(dir, "x.dump")), theirs);
    ck_assert(unit_holds(unit_path(dir, "x.dump"), "first\n"));

    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    unit_make_old(unit_path(dir, "x.dump"));
    create_in(dir);
    ck_assert(unit_holds(file.path, "first\n"));
}
END_TEST

/* A program that calls exec has the same process id before and after. */
START_TEST(own_file_from_before_exec)
{
    const char *dir = unit_dir();
    create_in(dir);
    ino_t old = inode_of(file.path);
    outfile_close(&file);
    ck_assert_int_eq(outfile_continue(&file, dir, "x.dump", "fist", 4), -ENOENT);
    ck_assert_int_eq(outfile_continue(&file, dir, "x.dump", "first\n and more", 9), -ENOENT);
    ck_assert_int_eq(outfile_continue(&file, dir, "x.dump", "first", 5), 0);
    ck_assert_uint_eq(inode_of(file.path), old);
    ck_assert_int_eq(file.size_before, 6);
    ck_assert_int_eq(outfile_append(&file, "next\n", 5), 0);
    ck_assert(unit_holds(file.path, "first\nnext\n"));
    outfile_close(&file);
    unit_make_old(file.path);
    ck_assert_int_eq(outfile_continue(&file, dir, "x.dump", "first", 5), -ENOENT);
}
END_TEST

/* The same by way of a link is not trusted. */
START_TEST(own_file_with_two_names)
{
    const char *dir = unit_dir();
    unit_write(unit_path(dir, "precious"), "precious");
    ck_assert_int_eq(link(unit_path(dir, "precious"), unit_path(dir, "x.dump")), 0);
    ck_assert_int_eq(outfile_continue(&file, dir, "x.dump", "precious", 8), -ENOENT);
    create_in(dir);
    ck_assert(unit_holds(unit_path(dir, "precious"), "precious"));
    ck_assert(unit_holds(file.path, "first\n"));
}
END_TEST

START_TEST(lock_is_held_until_closed)
{
    create_in(unit_dir());
    int other = open(file.path, O_RDONLY);
    ck_assert_int_eq(flock(other, LOCK_EX | LOCK_NB), -1);
    ck_assert_int_eq(errno, EWOULDBLOCK);
    outfile_close(&file);
    ck_assert_int_eq(flock(other, LOCK_EX | LOCK_NB), 0);
}
END_TEST

START_TEST(child_that_closes_leaves_the_lock)
{
    create_in(unit_dir());
    pid_t child = fork();
    if (child == 0) {
        outfile_close(&file);
        _exit(0);
    }
    waitpid(child, NULL, 0);
    int other = open(file.path, O_RDONLY);
    ck_assert_int_eq(flock(other, LOCK_EX | LOCK_NB), -1);
}
END_TEST

/* ---- shared with another writer of this process ---- */

START_TEST(shared_with_this_process)
{
    const char *dir = unit_dir();
    const char *path = unit_path(dir, "x.dump");
    int other = open(path, O_WRONLY | O_CREAT, 0600);
    ck_assert_int_eq(write(other, "theirs\n", 7), 7);
    ck_assert_int_eq(outfile_create_shared(&file, dir, "x.dump"), 0);
    ck_assert_int_eq(file.kind, OUTFILE_SHARED);
    ck_assert_int_eq(outfile_append(&file, "ours\n", 5), 0);
    ck_assert_int_eq(lseek(other, 0, SEEK_END), 12);
    ck_assert_int_eq(write(other, "theirs\n", 7), 7);
    ck_assert_int_eq(outfile_append(&file, "ours\n", 5), 0);
    ck_assert(unit_holds(path, "theirs\nours\ntheirs\nours\n"));
    ck_assert_int_eq(fcntl(file.fd, F_GETFD), FD_CLOEXEC);
    ck_assert_int_ge(file.fd, 512);
}
END_TEST

START_TEST(not_shared_is_replaced)
{
    const char *dir = unit_dir();
    unit_write(unit_path(dir, "x.dump"), "stale");
    unit_make_old(unit_path(dir, "x.dump"));
    ck_assert_int_eq(outfile_create_shared(&file, dir, "x.dump"), 0);
    ck_assert_int_eq(outfile_append(&file, "ours\n", 5), 0);
    ck_assert(unit_holds(file.path, "ours\n"));
}
END_TEST

START_TEST(create_does_not_share)
{
    const char *dir = unit_dir();
    const char *path = unit_path(dir, "x.dump");
    ck_assert_int_ge(open(path, O_WRONLY | O_CREAT, 0600), 0);
    ino_t old = inode_of(path);
    unit_make_old(path);
    create_in(dir);
    ck_assert_uint_ne(inode_of(path), old);
}
END_TEST

/* ---- a program that closes descriptors it does not know ---- */

START_TEST(descriptor_closed)
{
    create_in(unit_dir());
    close(file.fd);
    ck_assert_int_eq(outfile_append(&file, "second\n", 7), 0);
    ck_assert(unit_holds(file.path, "first\nsecond\n"));
    ck_assert_int_ge(file.fd, 512);
    ck_assert_int_eq(fcntl(file.fd, F_GETFD), FD_CLOEXEC);
    int other = open(file.path, O_RDONLY); /* the lock is back too */
    ck_assert_int_eq(flock(other, LOCK_EX | LOCK_NB), -1);
}
END_TEST

START_TEST(descriptor_reused_by_a_socket)
{
    int ends[2];
    char byte;
    create_in(unit_dir());
    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
    int number = file.fd;
    ck_assert_int_eq(dup2(ends[0], number), number);

    ck_assert_int_eq(outfile_append(&file, "second\n", 7), 0);
    ck_assert_int_ne(file.fd, number);
    ck_assert(unit_holds(file.path, "first\nsecond\n"));
    ck_assert_int_eq(recv(ends[1], &byte, 1, MSG_DONTWAIT), -1);
    ck_assert_int_eq(errno, EAGAIN);
    ck_assert_int_eq(send(number, "x", 1, 0), 1); /* the program's socket is as it was */
    ck_assert_int_eq(recv(ends[1], &byte, 1, MSG_DONTWAIT), 1);
}
END_TEST

START_TEST(close_leaves_a_reused_descriptor)
{
    int ends[2];
    create_in(unit_dir());
    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
    int number = file.fd;
    ck_assert_int_eq(dup2(ends[0], number), number);
    outfile_close(&file);
    ck_assert_int_eq(file.fd, -1);
    ck_assert_int_eq(send(number, "x", 1, 0), 1);
}
END_TEST

START_TEST(descriptor_closed_and_file_gone)
{
    create_in(unit_dir());
    close(file.fd);
    ck_assert_int_eq(unlink(file.path), 0);
    ck_assert_int_eq(outfile_append(&file, "second\n", 7), -ENOENT);
    ck_assert_int_ne(access(file.path, F_OK), 0); /* not made anew: a dump without its header */
}
END_TEST

START_TEST(descriptor_closed_and_file_replaced)
{
    create_in(unit_dir());
    int keep = open(file.path, O_RDONLY); /* so that the inode is not handed out again */
    close(file.fd);
    ck_assert_int_eq(unlink(file.path), 0);
    unit_write(file.path, "theirs");
    ck_assert_int_eq(outfile_append(&file, "second\n", 7), -ESTALE);
    ck_assert(unit_holds(file.path, "theirs"));

    ck_assert_int_eq(unlink(file.path), 0);
    ck_assert_int_eq(mkfifo(file.path, 0600), 0);
    ck_assert_int_eq(outfile_append(&file, "second\n", 7), -ESTALE); /* and does not block */

    ck_assert_int_eq(unlink(file.path), 0);
    ck_assert_int_eq(symlink("/dev/null", file.path), 0);
    ck_assert_int_eq(outfile_append(&file, "second\n", 7), -ELOOP);
    close(keep);
}
END_TEST

START_TEST(failures_leak_no_descriptor)
{
    create_in(unit_dir());
    int keep = open(file.path, O_RDONLY);
    close(file.fd);
    unlink(file.path);
    unit_write(file.path, "theirs");
    int lowest = dup(0);
    close(lowest);
    for (int i = 0; i < 3; i++)
        ck_assert_int_eq(outfile_append(&file, "x", 1), -ESTALE);
    ck_assert_int_eq(dup(0), lowest);
    ck_assert_int_eq(fcntl(512, F_GETFD), -1);
    close(keep);
}
END_TEST

START_TEST(deleted_file_goes_on)
{
    create_in(unit_dir());
    ck_assert_int_eq(unlink(file.path), 0); /* tmp cleaners do; the descriptor is still ours */
    ck_assert_int_eq(outfile_append(&file, "second\n", 7), 0);
}
END_TEST

/* ---- no room ---- */

/* Check writes to a file of its own at each assertion, so the limit is lifted before the first. */
START_TEST(limit_on_file_size)
{
    struct rlimit old, limit;
    create_in(unit_dir());
    ck_assert_int_eq(getrlimit(RLIMIT_FSIZE, &old), 0);
    limit = old;
    limit.rlim_cur = 10;
    signal(SIGXFSZ, SIG_DFL);
    setrlimit(RLIMIT_FSIZE, &limit);
    int past = outfile_append(&file, "12345", 5); /* 6 + 5 > 10 */
    off_t size = lseek(file.fd, 0, SEEK_END);
    int fits = outfile_append(&file, "1234", 4);
    int full = outfile_append(&file, "1", 1);
    setrlimit(RLIMIT_FSIZE, &old);

    ck_assert_int_eq(past, -EFBIG);
    ck_assert_int_eq(size, 6);
    ck_assert_int_eq(fits, 0);
    ck_assert_int_eq(full, -EFBIG);
    ck_assert(unit_holds(file.path, "first\n1234"));
    ck_assert_int_eq(outfile_append(&file, "1", 1), 0);
}
END_TEST

static char much[1 << 20];

START_TEST(full_disk)
{
    const char *dir = unit_dir();
    const char *trouble = unit_mount_tmpfs(dir, 64 << 10, 0);
    if (trouble) {
        unit_skip("full_disk", trouble);
        return;
    }
    memset(much, 'm', sizeof much);
    create_in(dir);
    /* The tmpfs takes the first pages of this before it is full: a partial write. */
    ck_assert_int_eq(outfile_append(&file, much, sizeof much), -ENOSPC);
    ck_assert(unit_holds(file.path, "first\n"));
    ck_assert_int_eq(outfile_append(&file, "second\n", 7), 0);
    ck_assert(unit_holds(file.path, "first\nsecond\n"));

    int filler = open(unit_path(dir, "filler"), O_WRONLY | O_CREAT, 0600);
    while (write(filler, much, 4096) > 0)
        ;
    size_t rest = 4096 - 13; /* of the page that the file has */
    ck_assert_int_eq(outfile_append(&file, much, rest), 0);
    ck_assert_int_eq(outfile_append(&file, much, 1), -ENOSPC); /* not a byte left */
    ck_assert_int_eq(unit_size(file.path), 4096);
    ck_assert_int_eq(ftruncate(filler, 0), 0);
    ck_assert_int_eq(outfile_append(&file, much, 1), 0);
}
END_TEST

START_TEST(full_disk_shared)
{
    const char *dir = unit_dir();
    const char *trouble = unit_mount_tmpfs(dir, 64 << 10, 0);
    if (trouble) {
        unit_skip("full_disk_shared", trouble);
        return;
    }
    int other = open(unit_path(dir, "x.dump"), O_WRONLY | O_CREAT | O_APPEND, 0600);
    ck_assert_int_eq(write(other, "theirs\n", 7), 7);
    ck_assert_int_eq(outfile_create_shared(&file, dir, "x.dump"), 0);
    ck_assert_int_eq(outfile_append(&file, much, sizeof much), -ENOSPC);
    ck_assert_int_eq(unit_size(file.path), 7); /* nobody wrote behind it, so what was ours went */
}
END_TEST

/* ---- files that are changed in place ---- */

static void create_fixed(const char *dir)
{
    ck_assert_int_eq(outfile_create_fixed(&file, dir, "x.so"), 0);
    ck_assert_int_eq(outfile_append(&file, "0123456789", 10), 0);
}

START_TEST(fixed_file)
{
    struct stat st;
    umask(0);
    create_fixed(unit_dir());
    ck_assert_int_eq(lstat(file.path, &st), 0);
    ck_assert_uint_eq(st.st_mode, S_IFREG | 0600);
    ck_assert_int_eq(fcntl(file.fd, F_GETFD), FD_CLOEXEC);
    ck_assert_int_eq(fcntl(file.fd, F_GETFL) & O_APPEND, 0); /* pwrite would ignore the offset */
    ck_assert_int_ge(file.fd, 512);
    ck_assert_int_eq(outfile_write_at(&file, "abc", 3, 4), 0);
    ck_assert_int_eq(outfile_write_at(&file, "z", 1, 9), 0);
    ck_assert_int_eq(outfile_write_at(&file, "", 0, 0), 0);
    ck_assert(unit_holds(file.path, "0123abc78z"));
}
END_TEST

START_TEST(fixed_file_with_its_descriptor_reused)
{
    int ends[2];
    char byte;
    create_fixed(unit_dir());
    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
    int number = file.fd;
    ck_assert_int_eq(dup2(ends[0], number), number);
    ck_assert_int_eq(outfile_write_at(&file, "abc", 3, 4), 0);
    ck_assert(unit_holds(file.path, "0123abc789"));
    ck_assert_int_eq(recv(ends[1], &byte, 1, MSG_DONTWAIT), -1);

    ck_assert_int_eq(unlink(file.path), 0);
    close(file.fd);
    ck_assert_int_eq(outfile_write_at(&file, "abc", 3, 0), -ENOENT);
}
END_TEST

START_TEST(fixed_file_and_hostile_names)
{
    const char *dir = unit_dir();
    const char *target = unit_path(dir, "target");
    const char *path = unit_path(dir, "x.so");
    unit_write(target, "precious");
    ck_assert_int_eq(symlink(target, path), 0);
    ck_assert_int_eq(outfile_create_fixed(&file, dir, "x.so"), -EPERM);
    ck_assert_int_eq(unlink(path), 0);
    ck_assert_int_eq(mkfifo(path, 0600), 0);
    ck_assert_int_eq(outfile_create_fixed(&file, dir, "x.so"), -EPERM);
    ck_assert_int_eq(unlink(path), 0);
    unit_write(path, "before exec");
    ck_assert_int_eq(outfile_create_fixed(&file, dir, "x.so"), -EEXIST);
    ck_assert(unit_holds(path, "before exec"));
    unit_write(path, "stale and longer than the new one");
    unit_make_old(path);
    create_fixed(dir);
    ck_assert(unit_holds(path, "0123456789"));
    ck_assert(unit_holds(target, "precious"));
}
END_TEST

START_TEST(fixed_file_mapped)
{
    static char content[16384];
    void *memory = NULL;
    int status = -1;
    const char *dir = unit_dir();
    ck_assert_int_eq(outfile_create_fixed(&file, dir, "x.so"), 0);
    ck_assert_int_eq(outfile_append(&file, content, sizeof content), 0);
    int err = outfile_map(&file, 4096, 8192, &memory);
    if (err == -ENOTSUP) {
        unit_skip("fixed_file_mapped", "the file system of /tmp is not one that is mapped");
        return;
    }
    ck_assert_int_eq(err, 0);
    memcpy((char *)memory + 5, "abc", 3);
    uint8_t *data = unit_read(file.path, NULL);
    ck_assert_mem_eq(data + 4096 + 5, "abc", 3);
    free(data);

    pid_t child = fork();
    if (child == 0) {
        char permissions[5];
        unit_mapping(memory, permissions, NULL, 0);
        _exit(permissions[0] != '\0');
    }
    waitpid(child, &status, 0);
    ck_assert_int_eq(status, 0);
}
END_TEST

START_TEST(limit_on_file_size_in_place)
{
    struct rlimit old, limit;
    create_fixed(unit_dir());
    ck_assert_int_eq(getrlimit(RLIMIT_FSIZE, &old), 0);
    limit = old;
    limit.rlim_cur = 5;
    signal(SIGXFSZ, SIG_DFL);
    setrlimit(RLIMIT_FSIZE, &limit);
    int past = outfile_write_at(&file, "abc", 3, 4);
    int fits = outfile_write_at(&file, "abc", 3, 2);
    setrlimit(RLIMIT_FSIZE, &old);
    ck_assert_int_eq(past, -EFBIG);
    ck_assert_int_eq(fits, 0);
    ck_assert(unit_holds(file.path, "01abc56789"));
}
END_TEST

START_TEST(explanations)
{
    static const int errors[] = {EPERM, EBUSY, EACCES, EROFS, ENOSPC, EDQUOT, EFBIG,
                                 ESTALE, ENOENT, EIO, ENAMETOOLONG, EMFILE};
    for (size_t i = 0; i < sizeof errors / sizeof errors[0]; i++) {
        const char *text = outfile_explain(-errors[i]);
        ck_assert_ptr_nonnull(text);
        ck_assert_uint_gt(strlen(text), 4);
        ck_assert_ptr_null(strchr(text, '\n'));
    }
    ck_assert_ptr_nonnull(strstr(outfile_explain(-ENOSPC), "full"));
    ck_assert_ptr_nonnull(strstr(outfile_explain(-EPERM), "another user"));
}
END_TEST

static void add_hostile(Suite *suite)
{
    TCase *tcase = unit_case(suite, "taken name");
    tcase_add_test(tcase, symbolic_link);
    tcase_add_test(tcase, symbolic_link_to_a_file_this_process_has_open);
    tcase_add_test(tcase, dangling_symbolic_link);
    tcase_add_test(tcase, hard_link_to_a_file_of_ours);
    tcase_add_test(tcase, hard_link_to_a_file_this_process_has_open);
    tcase_add_test(tcase, race_for_the_name);
    tcase_add_test(tcase, fifo);
    tcase_add_test(tcase, directory);
    tcase_add_test(tcase, unix_socket);
    tcase_add_test(tcase, file_of_another_user);
    tcase_add_test(tcase, file_of_another_user_in_a_sticky_directory);
    tcase_add_test(tcase, stale_file_is_replaced);
    tcase_add_test(tcase, file_of_a_living_process);
    tcase_add_test(tcase, own_file_from_before_exec);
    tcase_add_test(tcase, own_file_with_two_names);
    tcase_add_test(tcase, lock_is_held_until_closed);
    tcase_add_test(tcase, child_that_closes_leaves_the_lock);
    tcase_add_test(tcase, shared_with_this_process);
    tcase_add_test(tcase, not_shared_is_replaced);
    tcase_add_test(tcase, create_does_not_share);
}

int main(void)
{
    Suite *suite = suite_create("outfile");
    TCase *tcase = unit_case(suite, "new file");
    tcase_add_test(tcase, new_file);
    tcase_add_test(tcase, lowest_descriptors_are_left_to_the_program);
    tcase_add_test(tcase, low_limit_on_descriptors);
    tcase_add_test(tcase, no_descriptor_left);
    tcase_add_test(tcase, appends_behind_what_others_append);
    tcase_add_test(tcase, name_too_long);
    tcase_add_test(tcase, no_such_directory);
    tcase_add_test(tcase, directory_not_writable);
    tcase_add_test(tcase, explanations);
    add_hostile(suite);
    tcase = unit_case(suite, "descriptor");
    tcase_add_test(tcase, descriptor_closed);
    tcase_add_test(tcase, descriptor_reused_by_a_socket);
    tcase_add_test(tcase, close_leaves_a_reused_descriptor);
    tcase_add_test(tcase, descriptor_closed_and_file_gone);
    tcase_add_test(tcase, descriptor_closed_and_file_replaced);
    tcase_add_test(tcase, failures_leak_no_descriptor);
    tcase_add_test(tcase, deleted_file_goes_on);
    tcase = unit_case(suite, "changed in place");
    tcase_add_test(tcase, fixed_file);
    tcase_add_test(tcase, fixed_file_with_its_descriptor_reused);
    tcase_add_test(tcase, fixed_file_and_hostile_names);
    tcase_add_test(tcase, fixed_file_mapped);
    tcase_add_test(tcase, limit_on_file_size_in_place);
    tcase = unit_case(suite, "no room");
    tcase_add_test(tcase, limit_on_file_size);
    tcase_add_test(tcase, full_disk);
    tcase_add_test(tcase, full_disk_shared);
    return unit_run(suite);
}
