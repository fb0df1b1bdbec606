#include "codename.h"

#include "bytes.h"
#include "qualname.h"

#include <stdio.h>
#include <string.h>

enum { MARK_SIZE = 10 }; /* of "~01234567~" */

/* Stands for what was cut away. */
static size_t put_mark(char *out, const char *text, size_t length)
{
    return (size_t)sprintf(out, "~%08x~", bytes_hash(BYTES_HASH_START, text, length));
}

/* The character at `text`: how many bytes it takes there, and how it is written. C1 controls (U+0080 to
 * U+009F), which some terminals obey, are two bytes, c2 and 80 to 9f. */
static size_t escape_one(const char *text, size_t left, char out[8], size_t *size)
{
    unsigned char c = (unsigned char)text[0];
    unsigned char next = left > 1 ? (unsigned char)text[1] : 0;

    if (c == '\n' || c == '\t' || c == '\r') {
        *size = (size_t)sprintf(out, "\\%c", c == '\n' ? 'n' : c == '\t' ? 't' : 'r');
        return 1;
    }
    if (c < 0x20 || c == 0x7f) {
        *size = (size_t)sprintf(out, "\\x%02x", c);
        return 1;
    }
    if (c == 0xc2 && next >= 0x80 && next <= 0x9f) {
        *size = (size_t)sprintf(out, "\\x%02x", next);
        return 2;
    }
    size_t bytes = c < 0x80 ? 1 : c < 0xc0 ? 0 : c < 0xe0 ? 2 : c < 0xf0 ? 3 : c < 0xf8 ? 4 : 0;
    size_t whole = bytes ? 1 : 0;
    while (whole < bytes && whole < left && ((unsigned char)text[whole] & 0xc0) == 0x80)
        whole++;
    if (!whole || whole < bytes) { /* not UTF-8 */
        *size = (size_t)sprintf(out, "\\x%02x", c);
        return 1;
    }
    memcpy(out, text, bytes);
    *size = bytes;
    return bytes;
}

static bool is_plain(const char *text, size_t length)
{
    for (size_t i = 0; i < length; i++)
        if ((unsigned char)text[i] < 0x20 || (unsigned char)text[i] >= 0x7f)
            return false;
    return true;
}

/* Where to begin so that the rest of the text, escaped, fits into `most` bytes: the first character
 * boundary for which that holds. An escaped byte takes at most four. */
static size_t tail_start(const char *text, size_t length, size_t most)
{
    size_t start = length > most ? length - most : 0;
    char one[8];
    for (;; start++) {
        if (start < length && ((unsigned char)text[start] & 0xc0) == 0x80)
            continue; /* inside a character */
        size_t written = 0, size;
        for (size_t i = start; i < length && written <= most; written += size)
            i += escape_one(text + i, length - i, one, &size);
        if (written <= most)
            return start;
    }
}

size_t codename_escape(char *out, size_t most, const char *text, size_t length, bool keep_end)
{
    char one[8];
    size_t written = 0, size, i = 0;

    if (length <= most && is_plain(text, length)) { /* nearly always */
        memcpy(out, text, length);
        return length;
    }
    bool cut = tail_start(text, length, most) > 0;
    if (cut && keep_end) {
        written = put_mark(out, text, length);
        i = tail_start(text, length, most - MARK_SIZE);
    }
    size_t room = cut && !keep_end ? most - MARK_SIZE : most;
    for (;;) {
        size_t step = i < length ? escape_one(text + i, length - i, one, &size) : 0;
        if (!step || written + size > room)
            break;
        memcpy(out + written, one, size);
        written += size;
        i += step;
    }
    if (cut && !keep_end) {
        char mark[MARK_SIZE + 1];
        put_mark(mark, text, length);
        memcpy(out + written, mark, MARK_SIZE);
        written += MARK_SIZE;
    }
    return written;
}

/* Appends a str. PyUnicode_AsUTF8AndSize costs nothing for ASCII, but refuses surrogates. */
static size_t append_str(char *out, size_t most, struct py_object *str, bool keep_end)
{
    ptrdiff_t length = 0;
    const char *utf8 = str ? cpython.PyUnicode_AsUTF8AndSize(str, &length) : NULL;
    if (utf8)
        return codename_escape(out, most, utf8, (size_t)length, keep_end);

    struct py_object *encoded = NULL;
    char *text = NULL;
    size_t written;
    cpython.PyErr_Clear();
    if (str)
        encoded = cpython.PyUnicode_AsEncodedString(str, "utf-8", "backslashreplace");
    if (encoded && cpython.PyBytes_AsStringAndSize(encoded, &text, &length) == 0)
        written = codename_escape(out, most, text, (size_t)length, keep_end);
    else
        written = codename_escape(out, most, "?", 1, false);
    if (encoded)
        cpython.Py_DecRef(encoded);
    cpython.PyErr_Clear();
    return written;
}

/* Returns the bytes written. */
static size_t append_qualname(struct py_object *code, char *out)
{
    const struct cpython_layout *layout = cpython.layout;
    if (layout->co_qualname)
        return append_str(out, CODENAME_QUALNAME_MAX,
                          cpython_code_object(code, layout->co_qualname), false);

    const char *noted = qualname_of(code);
    struct py_object *name = cpython_code_object(code, layout->co_name);
    size_t written = noted ? codename_escape(out, CODENAME_QUALNAME_MAX, noted, strlen(noted), false)
                           : append_str(out, CODENAME_QUALNAME_MAX, name, false);
    qualname_note_children(code);
    return written;
}

void codename_read(struct py_object *code, struct codename *out)
{
    char *symbol = out->symbol;
    size_t at = 4;
    memcpy(symbol, "py::", 4);
    at += append_qualname(code, symbol + at);
    symbol[at++] = ':';
    out->file_offset = at;
    at += append_str(symbol + at, CODENAME_FILE_MAX,
                     cpython_code_object(code, cpython.layout->co_filename), true);
    symbol[at] = '\0';
    out->length = at;
    out->line = cpython_code_line(code);
}
