#include "arena.h"

#include "arch/arch.h"
#include "log.h"
#include "platform.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static int map_anonymous(struct arena_block *block, size_t capacity)
{
    size_t page = platform_page_size();
    size_t size = (capacity * ARCH_SLOT_STRIDE + page - 1) & ~(page - 1);
    void *memory = NULL;
    int err = platform_map(size, &memory);
    if (err)
        return err;

    block->slots = memory;
    block->capacity = size / ARCH_SLOT_STRIDE;
    for (size_t i = 0; i < block->capacity; i++) {
        uint8_t *slot = block->slots + i * ARCH_SLOT_STRIDE;
        arch_write_slot(slot, (uintptr_t)slot);
    }
    err = platform_make_executable(memory, size);
    if (err)
        platform_unmap(memory, size);
    return err;
}

const struct arena_backing arena_anonymous = {.name = "anonymous memory", .map = map_anonymous};

static size_t next_capacity(const struct arena *arena)
{
    size_t capacity = ARENA_BLOCK_FIRST;
    for (size_t i = 0; i < arena->block_count && capacity < ARENA_BLOCK_MOST; i++)
        capacity *= 2;
    return capacity;
}

/* Asks the backings in turn. One that fails is not asked again. */
static int map_block(struct arena *arena, struct arena_block *block)
{
    int err = -ENOMEM;
    while (arena->backings[0]) {
        const struct arena_backing *backing = arena->backings[0];
        block->backing = backing;
        err = backing->map(block, next_capacity(arena));
        if (!err)
            return 0;
        log_line(LOG_WARN, "no room for trampolines in %s: %s", backing->name, strerror(-err));
        memmove(arena->backings, arena->backings + 1,
                (ARENA_BACKINGS_MOST - 1) * sizeof arena->backings[0]);
        arena->backings[ARENA_BACKINGS_MOST - 1] = NULL;
    }
    return err;
}

static int grow(struct arena *arena)
{
    if (arena->block_count == ARENA_BLOCKS_MOST)
        return -ENOSPC;
    struct arena_block *block = calloc(1, sizeof *block);
    if (!block)
        return -ENOMEM;
    int err = map_block(arena, block);
    if (err) {
        free(block);
        return err;
    }
    arena->blocks[arena->block_count++] = block;
    return 0;
}

int arena_take(struct arena *arena, struct arena_slot *slot)
{
    struct arena_block *last = arena->block_count ? arena->blocks[arena->block_count - 1] : NULL;
    if (!last || last->used == last->capacity) {
        int err = grow(arena);
        if (err)
            return err;
        last = arena->blocks[arena->block_count - 1];
    }
    slot->block = last;
    slot->index = last->used++;
    slot->code = last->slots + slot->index * ARCH_SLOT_STRIDE;
    return 0;
}
