#include "arena.h"

#include "arch/arch.h"
#include "log.h"
#include "outfile.h"
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
    block->names_left = SIZE_MAX;
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

static void remove_backing(struct arena *arena, const struct arena_backing *backing)
{
    size_t kept = 0;
    for (size_t i = 0; i < ARENA_BACKINGS_MOST; i++)
        if (arena->backings[i] && arena->backings[i] != backing)
            arena->backings[kept++] = arena->backings[i];
    while (kept < ARENA_BACKINGS_MOST)
        arena->backings[kept++] = NULL;
}

bool arena_wants_block(const struct arena *arena)
{
    if (arena->spare || arena->block_count == ARENA_BLOCKS_MOST)
        return false;
    if (!arena->block_count)
        return true;
    const struct arena_block *last = arena->blocks[arena->block_count - 1];
    return last->retired || last->used >= last->capacity / 2 || last->names_left < last->names_half;
}

int arena_make(struct arena *arena, struct arena_block **made)
{
    struct arena_block *block = calloc(1, sizeof *block);
    int err = -ENOMEM;
    while (block && arena->backings[0]) {
        block->backing = arena->backings[0];
        err = block->backing->map(block, next_capacity(arena));
        if (!err) {
            block->names_half = block->names_left / 2;
            *made = block;
            return 0;
        }
        remove_backing(arena, block->backing);
        log_line(LOG_WARN, "no trampolines in %s: %s; going on with %s", block->backing->name,
                 outfile_explain(err),
                 arena->backings[0] ? arena->backings[0]->name : "no names for functions");
    }
    free(block);
    return err;
}

void arena_give(struct arena *arena, struct arena_block *block)
{
    arena->spare = block;
}

static bool has_room(const struct arena_block *block, size_t names)
{
    return !block->retired && block->used < block->capacity && block->names_left >= names;
}

int arena_take(struct arena *arena, size_t names, struct arena_slot *slot)
{
    struct arena_block *last = arena->block_count ? arena->blocks[arena->block_count - 1] : NULL;
    if (!last || !has_room(last, names)) {
        if (!arena->spare && !arena->backings[0])
            return -ENOMEM;
        if (!arena->spare)
            return arena->block_count == ARENA_BLOCKS_MOST ? -ENOSPC : -EAGAIN;
        last = arena->blocks[arena->block_count++] = arena->spare;
        arena->spare = NULL;
    }
    if (last->names_left != SIZE_MAX)
        last->names_left -= names;
    slot->block = last;
    slot->index = last->used++;
    slot->code = last->slots + slot->index * ARCH_SLOT_STRIDE;
    return 0;
}

static void retire(struct arena_block *block)
{
    if (block->retired || !block->backing->retire)
        return;
    block->retired = true;
    block->backing->retire(block);
}

/* A spare that is retired is of no use to anyone, but its memory is code: it stays. */
static void retire_matching(struct arena *arena, const struct arena_backing *backing)
{
    for (size_t i = 0; i < arena->block_count; i++)
        if (!backing || arena->blocks[i]->backing == backing)
            retire(arena->blocks[i]);
    if (arena->spare && (!backing || arena->spare->backing == backing)) {
        retire(arena->spare);
        if (arena->spare->retired)
            arena->spare = NULL;
    }
}

void arena_retire(struct arena *arena)
{
    retire_matching(arena, NULL);
}

void arena_give_up(struct arena *arena, const struct arena_backing *backing)
{
    remove_backing(arena, backing);
    retire_matching(arena, backing);
}
