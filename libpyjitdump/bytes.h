/* bytes: a bounded writer over storage that the caller owns.
 *
 * Every put checks the room that is left. The first one that does not fit sets `overflow`, which
 * sticks: later puts write nothing, so a caller composes a whole record and checks once.
 * Multi-byte values are written in the byte order of this machine, which is what jitdump and the
 * ELF image, both read on the machine that made them, ask for.
 */
#ifndef PYJD_BYTES_H
#define PYJD_BYTES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct bytes {
    uint8_t *base;  /* start of the storage */
    size_t len;     /* bytes written so far */
    size_t cap;     /* bytes of storage */
    bool overflow;  /* something did not fit; the content is incomplete */
};

static inline struct bytes bytes_over(void *storage, size_t cap)
{
    return (struct bytes){.base = storage, .len = 0, .cap = cap, .overflow = false};
}

void bytes_put(struct bytes *b, const void *data, size_t size);
void bytes_fill(struct bytes *b, uint8_t value, size_t count);
void bytes_zeros(struct bytes *b, size_t count);

/* Writes zeros until `len` is a multiple of `alignment`, a power of two. */
void bytes_align(struct bytes *b, size_t alignment);

void bytes_u8(struct bytes *b, uint8_t v);
void bytes_u16(struct bytes *b, uint16_t v);
void bytes_u32(struct bytes *b, uint32_t v);
void bytes_i32(struct bytes *b, int32_t v);
void bytes_u64(struct bytes *b, uint64_t v);

/* Overwrites a u32 written earlier at `offset`, for a length known only at the end. */
void bytes_patch_u32(struct bytes *b, size_t offset, uint32_t v);

/* FNV-1a, 32 bits, going on from `hash`; begin with BYTES_HASH_START. */
#define BYTES_HASH_START 2166136261u
uint32_t bytes_hash(uint32_t hash, const void *data, size_t size);

/* The text, then a NUL byte. */
void bytes_cstr(struct bytes *b, const char *text, size_t length);

#endif
