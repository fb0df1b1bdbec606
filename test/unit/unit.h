/* unit: what the unit tests share. Each test runs in a process of its own (Check's fork mode), so a
 * test may change limits, descriptors and directories without putting them back. */
#ifndef UNIT_H
#define UNIT_H

#include <check.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* A test case of `suite`, with a time limit that suits a loaded machine. */
TCase *unit_case(Suite *suite, const char *name);

/* Runs the suite, prints Check's summary and a line for each test that was skipped, and removes what
 * unit_dir made. Returns the exit status of the program: 77, which meson shows as a skip, if it did
 * nothing but skip. */
int unit_run(Suite *suite);

/* Notes why this test cannot run here. The caller returns after it. */
void unit_skip(const char *test, const char *reason);

/* A fresh directory for the calling test; anyone may enter it. Static storage. */
const char *unit_dir(void);

/* DIR/NAME. One of four static buffers, used in turn. */
const char *unit_path(const char *dir, const char *name);

/* The whole file, malloc'ed, with a NUL byte behind it; the test fails if it cannot be read. */
uint8_t *unit_read(const char *path, size_t *size);
void unit_write(const char *path, const char *text);

/* Makes a file look as if it had been written before this process began. */
void unit_make_old(const char *path);
off_t unit_size(const char *path);

/* True if the file holds exactly this text. */
bool unit_holds(const char *path, const char *text);

/* Mounts a file system of `size` bytes on `dir`, for this test alone. Returns NULL, or why it cannot. */
const char *unit_mount_tmpfs(const char *dir, size_t size, unsigned long mount_flags);

/* Everything written to descriptor `fd` from begin to end. Packets: the writes are kept apart. */
struct unit_capture {
    int fd, saved, ends[2];
};
void unit_capture_begin(struct unit_capture *capture, int fd);

/* The next write of the captured, as a string; its length, or -1 if there is none left. */
ssize_t unit_capture_next(struct unit_capture *capture, char *text, size_t size);
void unit_capture_end(struct unit_capture *capture);

/* The permissions column ("r-xp") of the mapping that holds `address`, and the path behind it. "" if
 * nothing is mapped there. */
void unit_mapping(const void *address, char permissions[5], char *path, size_t path_size);

/* How many mappings of this process name `path`. */
int unit_mappings_of(const char *path);

#endif
