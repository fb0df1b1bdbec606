#include "registry.h"

#include "bytes.h"

#include <stdlib.h>
#include <string.h>

enum { TABLE_FIRST = 1024, ENTRIES_FIRST = 512, TEXT_CHUNK = 64 << 10 };

static uint32_t hash_of(const char *symbol, size_t length, int32_t line)
{
    return bytes_hash(bytes_hash(BYTES_HASH_START, &line, sizeof line), symbol, length);
}

static void table_put(struct registry *r, uint32_t hash, size_t index)
{
    size_t at = hash & (r->table_size - 1);
    while (r->table[at])
        at = (at + 1) & (r->table_size - 1);
    r->table[at] = (uint32_t)index + 1;
}

/* At most half full, so that a search ends soon. */
static int table_reserve(struct registry *r)
{
    if (r->count + 1 <= r->table_size / 2)
        return 0;
    size_t size = r->table_size ? r->table_size * 2 : TABLE_FIRST;
    uint32_t *table = calloc(size, sizeof *table);
    if (!table)
        return -1;
    free(r->table);
    r->table = table;
    r->table_size = size;
    for (size_t i = 0; i < r->count; i++)
        table_put(r, r->entries[i].hash, i);
    return 0;
}

static int entries_reserve(struct registry *r)
{
    if (r->count < r->capacity)
        return 0;
    size_t capacity = r->capacity ? r->capacity * 2 : ENTRIES_FIRST;
    struct registry_entry *entries = realloc(r->entries, capacity * sizeof *entries);
    if (!entries)
        return -1;
    r->entries = entries;
    r->capacity = capacity;
    return 0;
}

/* Symbols live as long as the process, so they are packed into chunks that nobody frees. */
static char *copy_text(struct registry *r, const char *text, size_t length)
{
    if (length + 1 > r->text_left) {
        size_t chunk = length + 1 > TEXT_CHUNK ? length + 1 : TEXT_CHUNK;
        char *memory = malloc(chunk);
        if (!memory)
            return NULL;
        r->text = memory;
        r->text_left = chunk;
    }
    char *copy = r->text;
    memcpy(copy, text, length);
    copy[length] = '\0';
    r->text += length + 1;
    r->text_left -= length + 1;
    return copy;
}

struct registry_entry *registry_find(struct registry *r, const char *symbol, size_t length,
                                     int32_t line)
{
    if (!r->table_size)
        return NULL;
    uint32_t hash = hash_of(symbol, length, line);
    for (size_t at = hash & (r->table_size - 1); r->table[at]; at = (at + 1) & (r->table_size - 1)) {
        struct registry_entry *entry = &r->entries[r->table[at] - 1];
        if (entry->hash == hash && entry->line == line && entry->symbol_length == length &&
            memcmp(entry->symbol, symbol, length) == 0)
            return entry;
    }
    return NULL;
}

struct registry_entry *registry_add(struct registry *r, const char *symbol, size_t length,
                                    size_t file_offset, int32_t line,
                                    const struct arena_slot *slot)
{
    if (table_reserve(r) || entries_reserve(r))
        return NULL;
    const char *copy = copy_text(r, symbol, length);
    if (!copy)
        return NULL;
    uint32_t hash = hash_of(symbol, length, line);
    struct registry_entry *entry = &r->entries[r->count];
    *entry = (struct registry_entry){
        .symbol = copy,
        .symbol_length = (uint32_t)length,
        .file_offset = (uint32_t)file_offset,
        .line = line,
        .hash = hash,
        .slot = *slot,
    };
    table_put(r, hash, r->count++);
    return entry;
}
