#include "bytes.h"

#include <string.h>

/* Room for `size` more bytes, or NULL with the error set. */
static uint8_t *take(struct bytes *b, size_t size)
{
    if (b->overflow || size > b->cap - b->len) {
        b->overflow = true;
        return NULL;
    }
    uint8_t *at = b->base + b->len;
    b->len += size;
    return at;
}

void bytes_put(struct bytes *b, const void *data, size_t size)
{
    uint8_t *at = take(b, size);
    if (at && size)
        memcpy(at, data, size);
}

void bytes_fill(struct bytes *b, uint8_t value, size_t count)
{
    uint8_t *at = take(b, count);
    if (at && count)
        memset(at, value, count);
}

void bytes_zeros(struct bytes *b, size_t count)
{
    bytes_fill(b, 0, count);
}

void bytes_align(struct bytes *b, size_t alignment)
{
    bytes_zeros(b, -b->len & (alignment - 1));
}

void bytes_u8(struct bytes *b, uint8_t v)
{
    bytes_put(b, &v, sizeof v);
}

void bytes_u16(struct bytes *b, uint16_t v)
{
    bytes_put(b, &v, sizeof v);
}

void bytes_u32(struct bytes *b, uint32_t v)
{
    bytes_put(b, &v, sizeof v);
}

void bytes_i32(struct bytes *b, int32_t v)
{
    bytes_put(b, &v, sizeof v);
}

void bytes_u64(struct bytes *b, uint64_t v)
{
    bytes_put(b, &v, sizeof v);
}

void bytes_patch_u32(struct bytes *b, size_t offset, uint32_t v)
{
    if (!b->overflow && offset <= b->len && sizeof v <= b->len - offset)
        memcpy(b->base + offset, &v, sizeof v);
    else
        b->overflow = true;
}

void bytes_cstr(struct bytes *b, const char *text, size_t length)
{
    bytes_put(b, text, length);
    bytes_u8(b, 0);
}

uint32_t bytes_hash(uint32_t hash, const void *data, size_t size)
{
    const uint8_t *at = data;
    for (size_t i = 0; i < size; i++)
        hash = (hash ^ at[i]) * 16777619u;
    return hash;
}
