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
 * Making a block may take the dynamic loader's lock, and so must not happen under the lock that covers
 * publication. So it is two steps: arena_make, with no lock held and by one thread at a time, and
 * arena_give, under the session's lock like everything else here. A block is made when the one in use is
 * half full, and waits as the spare.
 */
#ifndef PYJD_ARENA_H
#define PYJD_ARENA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { ARENA_BLOCK_FIRST = 512, ARENA_BLOCK_MOST = 16384 }; /* slots */

struct arena_block {
    uint8_t *slots;        /* the first slot */
    size_t capacity;       /* slots in this block */
    size_t used;           /* slots handed out */
    size_t names_left;     /* bytes the backing has for names; SIZE_MAX where it has none to store */
    size_t names_half;     /* half of what that was at first: then it is time for another block */
    bool retired;          /* no slot of it is handed out any more, nor its backing written */
    const struct arena_backing *backing;
    void *backing_data;    /* the backing's own, e.g. the image file */
};

/* One way to get a block. */
struct arena_backing {
    const char *name;

    /* Makes `capacity` slots or more, every one written with arch_write_slot and executable, and fills in
     * slots, capacity, names_left and backing_data. 0, or a negative errno value and nothing is left. */
    int (*map)(struct arena_block *block, size_t capacity);

    /* In a forked child, or after an error: the block belongs to somebody else now. May be NULL: slots of
     * such a block can go on being used after a fork. */
    void (*retire)(struct arena_block *block);
};

/* Private anonymous memory. The last resort, and what `perf` reads a perf map for. */
extern const struct arena_backing arena_anonymous;

enum { ARENA_BLOCKS_MOST = 2048, ARENA_BACKINGS_MOST = 4 };

struct arena {
    const struct arena_backing *backings[ARENA_BACKINGS_MOST]; /* ends with NULL if fewer */
    struct arena_block *blocks[ARENA_BLOCKS_MOST];             /* the last one is in use */
    size_t block_count;
    struct arena_block *spare;                                 /* made and not yet used, or NULL */
};

struct arena_slot {
    uint8_t *code;              /* its first byte, ARCH_SLOT_SIZE of them are the function */
    struct arena_block *block;  /* the block it is in */
    size_t index;               /* its place there */
};

/* True when a block should be made now. */
bool arena_wants_block(const struct arena *arena);

/* Makes a block. 0, or the last backing's error. */
int arena_make(struct arena *arena, struct arena_block **block);

/* Adds what arena_make made. */
void arena_give(struct arena *arena, struct arena_block *block);

/* Hands out the next slot, with room for `names` bytes in its backing. -EAGAIN: a block must
 * be made; -ENOMEM, -ENOSPC: there will be none. */
int arena_take(struct arena *arena, size_t names, struct arena_slot *slot);

/* Retires all blocks whose backing has a way to. */
void arena_retire(struct arena *arena);

/* The same, for a backing that has failed; no more blocks come from it. */
void arena_give_up(struct arena *arena, const struct arena_backing *backing);

#endif
