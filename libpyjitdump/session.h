/* session: the sole owner of what this process has published.
 *
 * It holds the arena, the registry, the sinks and the one lock over them. Files are opened at the first
 * publication, in this process and again in each forked child, so a process that publishes nothing
 * leaves nothing behind.
 *
 * Thread-safe. The lock is taken last: nothing here calls Python or waits for the GIL. Functions keep
 * errno.
 */
#ifndef PYJD_SESSION_H
#define PYJD_SESSION_H

#include "codename.h"
#include "sink.h"

#include <stdint.h>

/* Reads the environment, once. Idempotent; everything below calls it. */
const struct config *session_config(void);

/* The slot for a function, made and announced to all sinks if it is new. 0; -EAGAIN: another thread is
 * making room, ask again at the next call; -ENOMEM, -ENOSPC, or -EIO: no sink works; it has been logged. */
int session_publish(const struct codename *name, void **slot);

/* Announces another JIT's code; index and slot are set here. 0, -ENOMEM, or -EIO: no sink works. */
int session_add_foreign(const struct sink_code *code);

/* False once every sink has failed. */
bool session_is_alive(void);

struct session_status {
    uint64_t functions;
    uint64_t overflowed;
    uint64_t foreign;
    uint64_t arena_bytes;
    unsigned wanted, failed;      /* sets of enum config_output */
    char image_path[PATH_MAX];    /* "": none yet; the newest */
    char jitdump_path[PATH_MAX];  /* "": not open */
    char map_path[PATH_MAX];
};

void session_get_status(struct session_status *status);

#endif
