/* The perf map: /tmp/perf-PID.map, a line of text per function (Linux, tools/perf/Documentation/
 * jit-interface.txt):
 *
 *     START SIZE symbol name\n          START and SIZE in hexadecimal, without 0x
 *
 * The place is fixed, whatever PYJD_DIR says: this is where readers look. The format has no time, so an
 * address must never mean two things. Other JITs of the process write to the same file; each append is
 * one write(2) of one whole line to a descriptor in append mode.
 */
#include "sink.h"

#include "outfile.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { LINE_MAX_BYTES = 4096 };

static struct outfile file = OUTFILE_CLOSED;

static int perfmap_open(const struct config *config)
{
    (void)config;
    char name[64];
    snprintf(name, sizeof name, "perf-%d.map", (int)getpid());
    return outfile_create_shared(&file, "/tmp", name);
}

static int perfmap_add(const struct sink_code *code)
{
    char line[LINE_MAX_BYTES];
    int length = snprintf(line, sizeof line, "%llx %x %.*s\n", (unsigned long long)code->addr,
                          code->size, (int)code->name_length, code->name);
    if (length < 0 || (size_t)length >= sizeof line)
        return -EMSGSIZE;
    return outfile_append(&file, line, (size_t)length);
}

static void perfmap_drop(void)
{
    outfile_close(&file);
}

static const char *perfmap_path(void)
{
    return file.path;
}

const struct sink sink_perfmap = {
    .name = "map",
    .output = OUTPUT_MAP,
    .open = perfmap_open,
    .add = perfmap_add,
    .drop = perfmap_drop,
    .path = perfmap_path,
};
