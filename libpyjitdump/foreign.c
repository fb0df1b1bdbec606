#include "foreign.h"

#include <stdlib.h>
#include <string.h>

/* Moves `size` bytes to *at and *at behind them. */
static void *place(char **at, const void *data, size_t size)
{
    void *copy = *at;
    if (size)
        memcpy(copy, data, size);
    *at += size;
    return copy;
}

struct foreign *foreign_copy(const struct sink_code *code)
{
    size_t lines_size = code->line_count * sizeof *code->lines;
    size_t size = sizeof(struct foreign) + lines_size + code->name_length + 1 + code->unwind_size;
    for (size_t i = 0; i < code->line_count; i++)
        size += strlen(code->lines[i].file) + 1;

    struct foreign *copy = malloc(size);
    if (!copy)
        return NULL;
    copy->next = NULL;
    copy->code = *code;
    char *at = (char *)(copy + 1);
    struct sink_line *lines = place(&at, code->lines, lines_size);
    copy->code.lines = lines;
    copy->code.name = place(&at, code->name, code->name_length + 1);
    if (code->unwind)
        copy->code.unwind = place(&at, code->unwind, code->unwind_size);
    for (size_t i = 0; i < code->line_count; i++)
        lines[i].file = place(&at, code->lines[i].file, strlen(code->lines[i].file) + 1);
    return copy;
}
