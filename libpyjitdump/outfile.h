/* outfile: files that other programs read while we append, in directories that others may write to.
 *
 * What a hostile neighbour in a shared /tmp can do is place something under the name we are about to
 * use: a symbolic or hard link to a file worth destroying, a FIFO that blocks, a directory, a file of
 * their own that they go on reading. So a file is always new (O_EXCL), never reached through a link
 * (O_NOFOLLOW), and only its owner can open it (0600).
 *
 * What the program around us can do is close every descriptor it does not know and have the number
 * handed out again, for a socket of its own: so each append makes sure first that the descriptor is
 * still our file, and opens it again by name if it is not.
 *
 * All functions return 0 or a negative errno value. None is thread-safe for the same file.
 */
#ifndef PYJD_OUTFILE_H
#define PYJD_OUTFILE_H

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

enum outfile_kind {
    OUTFILE_OWN,           /* grows at its end */
    OUTFILE_SHARED,        /* others of this process append to it too */
    OUTFILE_FIXED,         /* written once, then changed in place */
};

struct outfile {
    int fd;                /* -1: not open */
    enum outfile_kind kind;
    off_t size_before;     /* bytes it had when it was opened: 0 for one created */
    dev_t dev;             /* with ino: which file it is */
    ino_t ino;
    char path[PATH_MAX];   /* absolute */
};

#define OUTFILE_CLOSED ((struct outfile){.fd = -1})

/* Creates DIR/NAME, empty, with O_APPEND, O_CLOEXEC and mode 0600. What may be there already:
 *   - a regular file of this user: of a dead process whose id has come round again, or of the program that
 *     this process was before it called exec; it is replaced
 *   - one that a living process, in another pid namespace, holds: -EBUSY
 *   - anything else: it is left alone, -EPERM */
int outfile_create(struct outfile *file, const char *dir, const char *name);

/* Opens the file that this process wrote under that name before it called exec, to append to it: one of this
 * user, younger than the process, with no other name, that nobody has open, and that begins with the `size`
 * bytes at `start`, 64 at most. -ENOENT: there is none. */
int outfile_continue(struct outfile *file, const char *dir, const char *name, const void *start,
                     size_t size);

/* The same as outfile_create, except that a file that this very program has open already (another JIT's perf map) is opened
 * to append to. */
int outfile_create_shared(struct outfile *file, const char *dir, const char *name);

/* The same as outfile_create, for a file whose size does not change once it is written: without O_APPEND,
 * for which pwrite(2) on Linux ignores the offset. outfile_append writes its content, once. -EEXIST: this
 * process wrote it before it called exec. */
int outfile_create_fixed(struct outfile *file, const char *dir, const char *name);

/* Appends all of it or, as far as the file system lets us take it back, nothing. Never raises SIGXFSZ. */
int outfile_append(struct outfile *file, const void *data, size_t size);

/* Overwrites bytes within a fixed file. All of them, or as many as fit the limits: an error says so. */
int outfile_write_at(struct outfile *file, const void *data, size_t size, size_t offset);

/* Maps bytes of a fixed file for reading and writing, so that changing them costs no system call. Only
 * where a store into a mapped page cannot need space that the file system does not have, for that would be
 * a SIGBUS: ext4, XFS and tmpfs write in place; a copy-on-write file system is -ENOTSUP. `offset` is a
 * multiple of the page size. A forked child does not inherit the mapping. */
int outfile_map(const struct outfile *file, size_t offset, size_t size, void **memory);

/* Closes the descriptor; the file stays. Leaves alone a descriptor that is no longer ours. */
void outfile_close(struct outfile *file);

/* One sentence for a user about why `err` came from outfile_create or outfile_append. */
const char *outfile_explain(int err);

#endif
