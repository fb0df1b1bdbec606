/* codename: a code object's symbol name, `py::QUALNAME:FILENAME`, and its first line.
 *
 * The form is CPython's own (`-X perf`), which tools recognise. Names may hold anything a str can:
 * control characters, which would break a perf map's lines and a terminal, and '\x7f' become \n, \t or
 * \xNN; surrogates become \udcNN. A qualified name keeps its beginning and a file name its end, where
 * they tell most; what is cut away is replaced by "~HASH~", so that long names stay distinct.
 */
#ifndef PYJD_CODENAME_H
#define PYJD_CODENAME_H

#include "cpython.h"

enum {
    CODENAME_QUALNAME_MAX = 384, /* bytes of each part, after escaping */
    CODENAME_FILE_MAX = 512,
    CODENAME_SYMBOL_MAX = 4 + CODENAME_QUALNAME_MAX + 1 + CODENAME_FILE_MAX + 1,
};

struct codename {
    char symbol[CODENAME_SYMBOL_MAX]; /* NUL-terminated */
    size_t length;
    size_t file_offset;               /* where the file name begins in it */
    int line;
};

/* Reads the names of `code`. Needs the GIL; leaves no exception; does not fail: what cannot be read is
 * named "?". On 3.8 to 3.10 it also notes the names of what `code` defines. */
void codename_read(struct py_object *code, struct codename *out);

/* Appends UTF-8 text to `out` with control characters escaped, at most `most` bytes, cut at its end (or
 * its beginning, with `keep_end`). Returns the bytes written; `out` has room for `most`. */
size_t codename_escape(char *out, size_t most, const char *text, size_t length, bool keep_end);

#endif
