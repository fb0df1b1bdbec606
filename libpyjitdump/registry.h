/* registry: which functions are known, and the slot of each.
 *
 * A function is its symbol and its first line; the symbol holds the qualified name and the file. Code
 * objects that come and go under the same three (exec, namedtuple, dataclass, templates, reloads) are
 * one function here, so memory grows with the number of functions. Entries are never removed.
 *
 * Not thread-safe: the session's lock covers it.
 */
#ifndef PYJD_REGISTRY_H
#define PYJD_REGISTRY_H

#include "arena.h"

#include <stddef.h>
#include <stdint.h>

struct registry_entry {
    const char *symbol;      /* NUL-terminated, the registry's own copy */
    uint32_t symbol_length;
    uint32_t file_offset;    /* where in the symbol the file name begins */
    int32_t line;            /* first line of the function */
    uint32_t hash;
    struct arena_slot slot;
};

struct registry {
    struct registry_entry *entries; /* in order of arrival */
    size_t count;
    size_t capacity;
    uint32_t *table;                /* open addressing: 0, or 1 + index of an entry */
    size_t table_size;              /* a power of two */
    char *text;                     /* where the next symbol is copied to */
    size_t text_left;
};

/* The entry of (symbol, line), or NULL. */
struct registry_entry *registry_find(struct registry *registry, const char *symbol, size_t length,
                                     int32_t line);

/* Adds what registry_find did not find. NULL: out of memory, nothing changed. The pointer is good
 * until the next call. */
struct registry_entry *registry_add(struct registry *registry, const char *symbol, size_t length,
                                    size_t file_offset, int32_t line,
                                    const struct arena_slot *slot);

#endif
