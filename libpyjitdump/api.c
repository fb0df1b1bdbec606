#include "pyjitdump.h"

#include "arming.h"
#include "codename.h"
#include "cpython.h"
#include "session.h"

#include <errno.h>
#include <string.h>

int pyjd_enable(void)
{
    return arming_set_enabled(true);
}

int pyjd_disable(void)
{
    return arming_set_enabled(false);
}

int pyjd_is_enabled(void)
{
    return arming_is_enabled();
}

const char *pyjd_version(void)
{
    return PYJD_VERSION;
}

const char *pyjd_strerror(int error)
{
    switch (error < 0 && error >= -4095 ? -error : error) {
    case 0:
        return "no error";
    case ESRCH:
        return "there is no CPython in this process, or none is initialised";
    case EPERM:
        return "the calling thread does not hold the GIL";
    case ENOTSUP:
        return "this CPython is of a version or build that the library does not know";
    case EBUSY:
        return "CPython's own perf support is on";
    case EINVAL:
        return "an argument is out of range";
    case EIO:
        return "every output has failed; stderr has a line about each";
    case ENOMEM:
        return "out of memory";
    default:
        return "unknown error";
    }
}

static void copy_path(char *out, size_t size, const char *path)
{
    size_t length = strlen(path);
    if (length < size)
        memcpy(out, path, length + 1);
    else
        out[0] = '\0';
}

int pyjd_get_status(struct pyjd_status *status, size_t size)
{
    struct pyjd_status full = {0};
    struct session_status now;
    if (!status || !size)
        return -EINVAL;

    session_get_status(&now);
    full.enabled = pyjd_is_enabled();
    full.python_minor = cpython.minor > 0 ? cpython.minor : 0;
    full.functions = now.functions;
    full.overflowed = now.overflowed;
    full.foreign = now.foreign;
    full.arena_bytes = now.arena_bytes;
    full.outputs_wanted = now.wanted;
    full.outputs_failed = now.failed;
    copy_path(full.image_path, sizeof full.image_path, now.image_path);
    copy_path(full.jitdump_path, sizeof full.jitdump_path, now.jitdump_path);
    copy_path(full.map_path, sizeof full.map_path, now.map_path);
    memset(status, 0, size);
    memcpy(status, &full, size < sizeof full ? size : sizeof full);
    return 0;
}

enum { LINES_MOST = 4096 };

static int is_valid(const struct pyjd_code *code)
{
    if (!code->addr || !code->size || code->size > PYJD_CODE_SIZE_MAX || !code->name || !*code->name)
        return 0;
    if (code->line_count > LINES_MOST || (code->line_count && !code->lines))
        return 0;
    for (size_t i = 0; i < code->line_count; i++)
        if (!code->lines[i].file)
            return 0;
    if (code->unwind)
        return code->unwind_size % 4 == 0 && code->unwind_hdr_size <= code->unwind_size;
    return code->unwind_size == 0;
}

int pyjd_add_code(const struct pyjd_code *code, size_t size)
{
    enum { NAME_MAX_BYTES = CODENAME_SYMBOL_MAX - 1 };
    char name[CODENAME_SYMBOL_MAX];

    if (!code || size != sizeof *code || !is_valid(code))
        return -EINVAL;
    size_t length = codename_escape(name, NAME_MAX_BYTES, code->name, strlen(code->name), false);
    name[length] = '\0';
    struct sink_code added = {
        .addr = (uintptr_t)code->addr,
        .size = code->size,
        .name = name,
        .name_length = length,
        .lines = code->line_count ? (const struct sink_line *)code->lines : NULL,
        .line_count = code->line_count,
        .unwind = code->unwind,
        .unwind_size = code->unwind_size,
        .unwind_hdr_size = code->unwind_hdr_size,
    };
    return session_add_foreign(&added);
}

/* A public line is handed on as it is. */
_Static_assert(sizeof(struct pyjd_line) == sizeof(struct sink_line), "the same layout");
_Static_assert(offsetof(struct pyjd_line, addr) == offsetof(struct sink_line, addr), "as above");
_Static_assert(offsetof(struct pyjd_line, file) == offsetof(struct sink_line, file), "as above");
_Static_assert(offsetof(struct pyjd_line, line) == offsetof(struct sink_line, line), "as above");
