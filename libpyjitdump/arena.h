/* arena: where trampolines live.
 *
 * An arena is a list of blocks, each a run of slots, all written when the block is made and never
 * again: a uprobe or a breakpoint works on a copy of the page, and text written after that would be
 * missing from the copy. A block is twice as large as the one before it, up to ARENA_BLOCK_MOST. Blocks
 * are never writable and executable at once, and never unmapped: a thread may be running in one, and an
 * address never changes its meaning.
 *
 * Where a block's memory comes from is its backing. The arena tries the backings it was given in order
 * and stays with the first that works.
 *
 * Not thread-safe: the session's lock covers it.
 */
#ifndef PYJD_ARENA_H
#define PYJD_ARENA_H

#include <stddef.h>
#include <stdint.h>

enum { ARENA_BLOCK_FIRST = 512, ARENA_BLOCK_MOST = 16384 }; /* slots */

struct arena_block {
    uint8_t *slots;        /* the first slot */
    size_t capacity;       /* slots in this block */
    size_t used;           /* slots handed out */
    const struct arena_backing *backing;
    void *backing_data;    /* the backing's own, e.g. the image file */
};

/* One way to get a block. `map` makes `capacity` (or more) slots, every one written with
 * arch_write_slot and executable, and fills in the block; it returns 0 or a negative errno value. */
struct arena_backing {
    const char *name;
    int (*map)(struct arena_block *block, size_t capacity);
};

/* Private anonymous memory. The last resort, and what `perf` reads a perf map for. */
extern const struct arena_backing arena_anonymous;

enum { ARENA_BLOCKS_MOST = 2048, ARENA_BACKINGS_MOST = 4 };

struct arena {
    const struct arena_backing *backings[ARENA_BACKINGS_MOST]; /* ends with NULL if fewer */
    struct arena_block *blocks[ARENA_BLOCKS_MOST];
    size_t block_count;
};

struct arena_slot {
    uint8_t *code;              /* its first byte, ARCH_SLOT_SIZE of them are the function */
    struct arena_block *block;  /* the block it is in */
    size_t index;               /* its place there */
};

/* Hands out the next slot, making a block if the last one is full. */
int arena_take(struct arena *arena, struct arena_slot *slot);

#endif
