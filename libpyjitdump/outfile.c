#include "outfile.h"

#include "platform.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

/* Descriptors are moved up here, out of the way of programs that count on the lowest free number. */
enum { FD_LOWEST = 512 };

static int is_ours(const struct outfile *file, int fd)
{
    struct stat st;
    return fd >= 0 && fstat(fd, &st) == 0 && st.st_dev == file->dev && st.st_ino == file->ino;
}

/* Takes over `fd`: moves it up where the limit allows, notes which file it is, and holds a lock on it,
 * which tells others that its process is alive. */
static int adopt(struct outfile *file, int fd, enum outfile_kind kind)
{
    struct stat st;
    int high = fcntl(fd, F_DUPFD_CLOEXEC, FD_LOWEST);
    if (high >= 0) {
        close(fd);
        fd = high;
    }
    if (fstat(fd, &st)) {
        int err = -errno;
        close(fd);
        return err;
    }
    file->fd = fd;
    file->kind = kind;
    file->dev = st.st_dev;
    file->ino = st.st_ino;
    file->size_before = st.st_size;
    flock(fd, LOCK_EX | LOCK_NB); /* where locks are not supported, nobody is told */
    return 0;
}

/* True when a descriptor of this process is open on the file that `st` describes. */
static bool process_has_open(const struct stat *st)
{
    DIR *fds = opendir("/proc/self/fd");
    if (!fds)
        return false;
    bool found = false;
    struct dirent *entry;
    while (!found && (entry = readdir(fds))) {
        struct stat other;
        int fd = atoi(entry->d_name);
        found = entry->d_name[0] != '.' && fstat(fd, &other) == 0 && other.st_dev == st->st_dev && other.st_ino == st->st_ino;
    }
    closedir(fds);
    return found;
}

/* True while a process holds the file. */
static bool is_in_use(const char *path)
{
    int fd = open(path, O_WRONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0)
        return false;
    bool in_use = flock(fd, LOCK_EX | LOCK_NB) && errno == EWOULDBLOCK;
    close(fd);
    return in_use;
}

/* True for a file of a program that this process was before it called exec: a dead process' file is older
 * than this process. */
static bool is_of_this_process(const struct stat *st)
{
    double start = platform_process_start();
    return start > 0 && (double)st->st_mtim.tv_sec + (double)st->st_mtim.tv_nsec / 1e9 >= start;
}

/* Opens a file of this process' own that `st` describes, to append to it. */
static int open_existing(struct outfile *file, const struct stat *st, enum outfile_kind kind)
{
    int fd = open(file->path, O_RDWR | O_APPEND | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0)
        return -errno;
    int err = adopt(file, fd, kind);
    if (!err && (file->dev != st->st_dev || file->ino != st->st_ino)) {
        outfile_close(file);
        err = -ESTALE;
    }
    return err;
}

/* What to do about a file that has the name already: 0: it is removed; 1: share it; or an error. */
static int settle_existing(const struct outfile *file, const struct stat *st, enum outfile_kind kind)
{
    if (!S_ISREG(st->st_mode) || st->st_uid != geteuid())
        return -EPERM;
    /* More names than one: somebody may have linked a file that matters to this process here. */
    if (kind == OUTFILE_SHARED && st->st_nlink == 1 && process_has_open(st))
        return 1;
    if (is_in_use(file->path))
        return -EBUSY;
    if (kind == OUTFILE_FIXED && is_of_this_process(st))
        return -EEXIST;
    return unlink(file->path) && errno != ENOENT ? -errno : 0;
}

static int make_path(struct outfile *file, const char *dir, const char *name)
{
    int length = snprintf(file->path, sizeof file->path, "%s/%s", dir, name);
    return length < 0 || (size_t)length >= sizeof file->path ? -ENAMETOOLONG : 0;
}

static int create(struct outfile *file, const char *dir, const char *name, enum outfile_kind kind)
{
    struct stat st;
    *file = OUTFILE_CLOSED;
    int err = make_path(file, dir, name);
    if (err)
        return err;
    if (lstat(file->path, &st) == 0) {
        int settled = settle_existing(file, &st, kind);
        if (settled)
            return settled < 0 ? settled : open_existing(file, &st, kind);
    }
    /* Readable too: the jitdump's marker is a mapping of it. */
    int flags = O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC;
    int fd = open(file->path, flags | (kind == OUTFILE_FIXED ? 0 : O_APPEND), 0600);
    return fd < 0 ? -errno : adopt(file, fd, kind);
}

static bool begins_with(int fd, const void *start, size_t size)
{
    char found[64];
    return size <= sizeof found && pread(fd, found, size, 0) == (ssize_t)size &&
           memcmp(found, start, size) == 0;
}

int outfile_continue(struct outfile *file, const char *dir, const char *name, const void *start,
                     size_t size)
{
    struct stat st;
    *file = OUTFILE_CLOSED;
    int err = make_path(file, dir, name);
    if (err)
        return err;
    if (lstat(file->path, &st) || !S_ISREG(st.st_mode) || st.st_uid != geteuid() ||
        st.st_nlink != 1 || is_in_use(file->path) || !is_of_this_process(&st))
        return -ENOENT;
    err = open_existing(file, &st, OUTFILE_OWN);
    if (!err && !begins_with(file->fd, start, size)) {
        outfile_close(file);
        err = -ENOENT;
    }
    return err;
}

int outfile_create(struct outfile *file, const char *dir, const char *name)
{
    return create(file, dir, name, OUTFILE_OWN);
}

int outfile_create_shared(struct outfile *file, const char *dir, const char *name)
{
    return create(file, dir, name, OUTFILE_SHARED);
}

int outfile_create_fixed(struct outfile *file, const char *dir, const char *name)
{
    return create(file, dir, name, OUTFILE_FIXED);
}

/* The program closed our descriptor: open the file again, if the name still leads to it. */
static int open_again(struct outfile *file)
{
    int append = file->kind == OUTFILE_FIXED ? 0 : O_APPEND;
    int fd = open(file->path, O_RDWR | append | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0)
        return -errno;
    if (!is_ours(file, fd)) {
        close(fd);
        return -ESTALE;
    }
    return adopt(file, fd, file->kind);
}

/* Makes sure that the descriptor is our file. *size is the file's. */
static int verify(struct outfile *file, off_t *size)
{
    struct stat st;
    if (fstat(file->fd, &st) || st.st_dev != file->dev || st.st_ino != file->ino) {
        int err = open_again(file);
        if (err)
            return err;
        if (fstat(file->fd, &st))
            return -errno;
    }
    *size = st.st_size;
    return 0;
}

/* Past this limit a write raises SIGXFSZ, which kills a program that does not expect it. */
static bool is_within_limit(size_t end)
{
    struct rlimit limit;
    return getrlimit(RLIMIT_FSIZE, &limit) || limit.rlim_cur == RLIM_INFINITY ||
           end <= limit.rlim_cur;
}

int outfile_append(struct outfile *file, const void *data, size_t size)
{
    off_t before;
    int err = verify(file, &before);
    if (err)
        return err;
    if (!is_within_limit((size_t)before + size))
        return -EFBIG;

    ssize_t wrote = write(file->fd, data, size);
    if (wrote == (ssize_t)size)
        return 0;
    err = wrote < 0 ? -errno : -ENOSPC;
    /* A part of a record spoils what follows. What another writer has put behind it is not ours to cut. */
    struct stat st;
    if (wrote > 0 && fstat(file->fd, &st) == 0 && st.st_size == before + wrote &&
        ftruncate(file->fd, before))
        err = -errno;
    return err;
}

int outfile_write_at(struct outfile *file, const void *data, size_t size, size_t offset)
{
    off_t before;
    int err = verify(file, &before);
    if (err)
        return err;
    if (!is_within_limit(offset + size))
        return -EFBIG;
    ssize_t wrote = pwrite(file->fd, data, size, (off_t)offset);
    if (wrote < 0)
        return -errno;
    return wrote == (ssize_t)size ? 0 : -ENOSPC;
}

int outfile_map(const struct outfile *file, size_t offset, size_t size, void **out)
{
    struct statfs fs;
    if (fstatfs(file->fd, &fs))
        return -errno;
    if (fs.f_type != EXT4_SUPER_MAGIC && fs.f_type != XFS_SUPER_MAGIC && fs.f_type != TMPFS_MAGIC)
        return -ENOTSUP;
    void *memory =
        mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, file->fd, (off_t)offset);
    if (memory == MAP_FAILED)
        return -errno;
    if (madvise(memory, size, MADV_DONTFORK)) {
        int err = -errno;
        munmap(memory, size);
        return err;
    }
    *out = memory;
    return 0;
}

void outfile_close(struct outfile *file)
{
    if (is_ours(file, file->fd))
        close(file->fd);
    file->fd = -1;
}

const char *outfile_explain(int err)
{
    switch (-err) {
    case EPERM:
        return "the name is taken by another user's file or by something that is not a regular "
               "file; remove it";
    case EBUSY:
        return "a living process of another container, with the same id, has a file of that name";
    case EACCES:
    case EROFS:
        return "the directory cannot be written to";
    case ENOEXEC:
        return "the file system is mounted noexec; set PYJD_DIR to a directory on another one";
    case ENOSPC:
    case EDQUOT:
        return "the file system is full";
    case EFBIG:
        return "the limit on file sizes (ulimit -f) is reached";
    case ENOENT:
        return "the directory, or the file whose descriptor the program has closed, is not there any "
               "more";
    case ESTALE:
        return "the name leads to another file by now";
    default:
        return strerror(-err);
    }
}
