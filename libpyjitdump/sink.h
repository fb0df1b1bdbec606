/* sink: one way of telling profilers what an address means.
 *
 * A sink is a table of functions over state of its own. The session owns the sinks, calls them under
 * its lock, and stops calling one that has failed. A failed call has logged nothing: the session says
 * once which sink is off and why. All functions return 0 or a negative errno value.
 */
#ifndef PYJD_SINK_H
#define PYJD_SINK_H

#include "arena.h"
#include "config.h"

#include <stddef.h>
#include <stdint.h>

/* From this address on, the code is this line. */
struct sink_line {
    uint64_t addr;
    const char *file;
    int32_t line;
};

/* One piece of code as the sinks are told of it; valid only during the call. */
struct sink_code {
    uint64_t addr;                 /* where its first byte is */
    uint32_t size;                 /* bytes of code */
    uint64_t index;                /* unique in this process; counts up from 1 */
    const char *name;              /* the symbol: no control characters, not empty */
    size_t name_length;            /* bytes of it */
    const struct sink_line *lines; /* in order of address */
    size_t line_count;
    const uint8_t *unwind;         /* .eh_frame followed by .eh_frame_hdr, or NULL: none */
    uint32_t unwind_size;          /* bytes of both */
    uint32_t unwind_hdr_size;      /* bytes of the latter */
    const struct arena_slot *slot; /* the slot it is, or NULL: another JIT's code */
};

struct sink {
    const char *name;                        /* its word in PYJD_OUTPUT */
    enum config_output output;

    /* Creates the sink's file, named for this process. */
    int (*open)(const struct config *config);

    /* Makes `code` known. It is complete for readers when this returns. */
    int (*add)(const struct sink_code *code);

    /* In a forked child: let go of the parent's file without writing to it. An `open` follows when the
     * child has something to say, and then an `add` for all it inherited. */
    void (*drop)(void);

    /* The absolute path of the file that is written, or could not be; "" when there is none. */
    const char *(*path)(void);
};

extern const struct sink sink_elf;
extern const struct sink sink_jitdump;
extern const struct sink sink_perfmap;

#endif
