#include "arch/arch.h"
#include "arena.h"
#include "outfile.h"
#include "unit.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#ifndef PR_SET_MDWE
#define PR_SET_MDWE 65 /* Linux 6.3: no memory that was writable becomes executable */
#endif

static struct arena arena = {.backings = {&arena_anonymous}};

/* As the session does: a block is made when the arena wants one. */
static int take_slot(size_t names, struct arena_slot *slot)
{
    struct arena_block *block = NULL;
    if (arena_wants_block(&arena)) {
        int err = arena_make(&arena, &block);
        if (err)
            return err;
        arena_give(&arena, block);
    }
    return arena_take(&arena, names, slot);
}

static struct arena_slot take(void)
{
    struct arena_slot slot = {0};
    ck_assert_int_eq(take_slot(100, &slot), 0);
    return slot;
}

START_TEST(slots_in_order)
{
    for (size_t i = 0; i < ARENA_BLOCK_FIRST; i++) {
        struct arena_slot slot = take();
        ck_assert_ptr_eq(slot.block, arena.blocks[0]);
        ck_assert_uint_eq(slot.index, i);
        ck_assert_ptr_eq(slot.code, slot.block->slots + i * ARCH_SLOT_STRIDE);
        ck_assert_uint_eq((uintptr_t)slot.code % ARCH_SLOT_STRIDE, 0);
        ck_assert_uint_eq(slot.block->used, i + 1);
    }
    ck_assert_uint_eq(arena.block_count, 1);
    ck_assert_ptr_eq(arena.blocks[0]->backing, &arena_anonymous);
}
END_TEST

START_TEST(blocks_double)
{
    static const size_t sizes[] = {512, 1024, 2048, 4096, 8192, 16384, 16384, 16384};
    enum { BLOCKS = sizeof sizes / sizeof sizes[0] };
    for (size_t i = 0; i < BLOCKS; i++) {
        struct arena_block *block = NULL;
        for (size_t j = 0; j < sizes[i]; j++) {
            struct arena_slot slot = take();
            ck_assert_uint_eq(arena.block_count, i + 1);
            ck_assert(j == 0 || slot.block == block);
            ck_assert_uint_eq(slot.index, j);
            block = slot.block;
        }
        ck_assert_uint_eq(block->capacity, sizes[i]);
    }
    ck_assert_int_eq(ARENA_BLOCK_MOST, 16384);
}
END_TEST

/* Every slot is complete before the first is handed out, and different from every other. */
START_TEST(prefilled)
{
    struct arena_block *block = take().block;
    for (size_t i = 0; i < block->capacity; i++) {
        const uint8_t *code = block->slots + i * ARCH_SLOT_STRIDE;
        uint8_t expected[ARCH_SLOT_STRIDE];
        arch_write_slot(expected, (uintptr_t)code);
        ck_assert_mem_eq(code, expected, sizeof expected);
        for (size_t j = 0; j < i; j++)
            ck_assert_mem_ne(code, block->slots + j * ARCH_SLOT_STRIDE, ARCH_SLOT_SIZE);
    }
}
END_TEST

START_TEST(never_writable_and_executable)
{
    char permissions[5];
    for (int i = 0; i < 512 + 1024 + 1; i++)
        take();
    for (size_t i = 0; i < arena.block_count; i++) {
        const struct arena_block *block = arena.blocks[i];
        unit_mapping(block->slots, permissions, NULL, 0);
        ck_assert_str_eq(permissions, "r-xp");
        unit_mapping(block->slots + block->capacity * ARCH_SLOT_STRIDE - 1, permissions, NULL, 0);
        ck_assert_str_eq(permissions, "r-xp");
    }
}
END_TEST

/* The spare is made while half of the block in use is left, so that nobody waits for it. */
START_TEST(spare_is_wanted_in_time)
{
    struct arena_block *block = NULL, *spare = NULL;
    struct arena_slot slot;
    ck_assert(arena_wants_block(&arena));
    ck_assert_int_eq(arena_take(&arena, 0, &slot), -EAGAIN);
    ck_assert_int_eq(arena_make(&arena, &block), 0);
    arena_give(&arena, block);
    for (size_t i = 0; i < ARENA_BLOCK_FIRST; i++) {
        ck_assert_int_eq(arena_wants_block(&arena), i >= ARENA_BLOCK_FIRST / 2 && !spare);
        if (arena_wants_block(&arena)) {
            ck_assert_int_eq(arena_make(&arena, &spare), 0);
            arena_give(&arena, spare);
            ck_assert(!arena_wants_block(&arena));
        }
        ck_assert_int_eq(arena_take(&arena, 0, &slot), 0);
        ck_assert_ptr_eq(slot.block, block);
    }
    ck_assert_int_eq(arena_take(&arena, 0, &slot), 0);
    ck_assert_ptr_eq(slot.block, spare);
    ck_assert_ptr_null(arena.spare);
}
END_TEST

START_TEST(no_spare_in_time)
{
    struct arena_block *block = NULL;
    struct arena_slot slot;
    ck_assert_int_eq(arena_make(&arena, &block), 0);
    arena_give(&arena, block);
    for (size_t i = 0; i < ARENA_BLOCK_FIRST; i++)
        ck_assert_int_eq(arena_take(&arena, 0, &slot), 0);
    ck_assert_int_eq(arena_take(&arena, 0, &slot), -EAGAIN);
    ck_assert_int_eq(arena_take(&arena, 0, &slot), -EAGAIN);
    ck_assert_int_eq(arena_make(&arena, &block), 0);
    arena_give(&arena, block);
    ck_assert_int_eq(arena_take(&arena, 0, &slot), 0);
    ck_assert_ptr_eq(slot.block, block);
}
END_TEST

/* ---- what the trampoline does ---- */

struct seen {
    void *args[3];
    const uint8_t *return_address;
    uintptr_t trampoline_frame;                 /* the frame pointer chain, one step out ... */
    uintptr_t caller_frame, caller_address;     /* ... and another */
} seen;

/* Stands for the default evaluator. __builtin_frame_address makes the compiler keep a frame. */
static __attribute__((noinline)) void *target(void *a, void *b, void *c)
{
    seen.args[0] = a;
    seen.args[1] = b;
    seen.args[2] = c;
    seen.return_address = __builtin_return_address(0);
    uintptr_t *frame = __builtin_frame_address(0); /* [0] the caller's, [1] the return address */
    uintptr_t *trampoline = (uintptr_t *)frame[0];
    seen.trampoline_frame = frame[0];
    seen.caller_frame = trampoline[0];
    seen.caller_address = trampoline[1];
    return (void *)0x123456789abcdef0;
}

typedef void *(*slot_function)(void *, void *, void *, void *(*)(void *, void *, void *));

static __attribute__((noinline)) void call(const uint8_t *code)
{
    slot_function function = (slot_function)(uintptr_t)code;
    void *mine = __builtin_frame_address(0);
    void *result = function((void *)1, (void *)2, (void *)-3, target);
    ck_assert_ptr_eq(result, (void *)0x123456789abcdef0);
    ck_assert_ptr_eq(seen.args[0], (void *)1);
    ck_assert_ptr_eq(seen.args[1], (void *)2);
    ck_assert_ptr_eq(seen.args[2], (void *)-3);
    ck_assert_uint_gt((uintptr_t)seen.return_address, (uintptr_t)code);
    ck_assert_uint_lt((uintptr_t)seen.return_address, (uintptr_t)code + ARCH_SLOT_SIZE);
    ck_assert_uint_eq(seen.trampoline_frame % 16, 0); /* the stack was aligned at the call */
    ck_assert_uint_eq(seen.caller_frame, (uintptr_t)mine);
    ck_assert_uint_ge(seen.caller_address, (uintptr_t)call);
    ck_assert_uint_lt(seen.caller_address, (uintptr_t)call + 4096);
}

START_TEST(a_slot_calls_its_target)
{
    call(take().code);
    for (int i = 0; i < 700; i++)
        take();
    call(take().code); /* of the second block */
}
END_TEST

START_TEST(a_slot_never_handed_out_works_too)
{
    struct arena_block *block = take().block;
    call(block->slots + (block->capacity - 1) * ARCH_SLOT_STRIDE);
}
END_TEST

/* ---- backings that fail ---- */

static int asked;

static int refuse(struct arena_block *block, size_t capacity)
{
    (void)block, (void)capacity;
    asked++;
    return -EACCES;
}

static const struct arena_backing refusing = {.name = "a refusing place", .map = refuse};
static const struct arena_backing refusing_too = {.name = "another", .map = refuse};

static uint8_t fake_memory[ARENA_BLOCK_FIRST * 2 * ARCH_SLOT_STRIDE];

static size_t fake_names = 1 << 20;
static int retired;

static int fake_map(struct arena_block *block, size_t capacity)
{
    asked++;
    if (asked > 1)
        return -ENOSPC;
    block->slots = fake_memory;
    block->capacity = capacity + 3; /* more than asked for, as a page-rounding backing gives */
    block->names_left = fake_names;
    block->backing_data = &asked;
    return 0;
}

static void fake_retire(struct arena_block *block)
{
    ck_assert_ptr_eq(block->backing_data, &asked);
    retired++;
}

static const struct arena_backing fake = {
    .name = "a fake", .map = fake_map, .retire = fake_retire};

START_TEST(next_backing_takes_over)
{
    struct unit_capture err;
    char line[1024];
    arena.backings[0] = &refusing;
    arena.backings[1] = &arena_anonymous;
    unit_capture_begin(&err, STDERR_FILENO);
    for (int i = 0; i < 600; i++)
        take();
    ck_assert_int_gt(unit_capture_next(&err, line, sizeof line), 0);
    ck_assert_ptr_nonnull(strstr(line, "a refusing place"));
    ck_assert_ptr_nonnull(strstr(line, outfile_explain(-EACCES)));
    ck_assert_ptr_nonnull(strstr(line, arena_anonymous.name));
    ck_assert_int_lt(unit_capture_next(&err, line, sizeof line), 0); /* said once */
    ck_assert_int_eq(asked, 1);                                      /* and asked once */
    ck_assert_ptr_eq(arena.blocks[0]->backing, &arena_anonymous);
    unit_capture_end(&err);
}
END_TEST

START_TEST(backing_fails_later)
{
    struct unit_capture err;
    arena.backings[0] = &fake;
    arena.backings[1] = &arena_anonymous;
    unit_capture_begin(&err, STDERR_FILENO);
    for (size_t i = 0; i < ARENA_BLOCK_FIRST + 3; i++) {
        struct arena_slot slot = take();
        ck_assert_ptr_eq(slot.code, fake_memory + i * ARCH_SLOT_STRIDE);
        ck_assert_ptr_eq(slot.block->backing_data, &asked);
        ck_assert_ptr_eq(slot.block->backing, &fake);
    }
    struct arena_slot slot = take();
    ck_assert_ptr_eq(slot.block->backing, &arena_anonymous);
    ck_assert_uint_eq(arena.block_count, 2);
    call(slot.code);
    unit_capture_end(&err);
}
END_TEST

START_TEST(all_backings_fail)
{
    struct unit_capture err;
    struct arena_slot slot;
    char line[1024];
    arena.backings[0] = &refusing;
    arena.backings[1] = &refusing_too;
    unit_capture_begin(&err, STDERR_FILENO);
    ck_assert_int_eq(take_slot(0, &slot), -EACCES);
    ck_assert_int_eq(asked, 2);
    ck_assert_int_eq(take_slot(0, &slot), -ENOMEM);
    ck_assert_int_eq(arena_take(&arena, 0, &slot), -ENOMEM);
    ck_assert_int_eq(asked, 2);
    ck_assert_uint_eq(arena.block_count, 0);
    ck_assert_int_gt(unit_capture_next(&err, line, sizeof line), 0);
    ck_assert_int_gt(unit_capture_next(&err, line, sizeof line), 0);
    ck_assert_int_lt(unit_capture_next(&err, line, sizeof line), 0);
    unit_capture_end(&err);
}
END_TEST

START_TEST(names_run_out)
{
    arena.backings[0] = &fake;
    arena.backings[1] = &arena_anonymous;
    fake_names = 250;
    struct unit_capture err;
    unit_capture_begin(&err, STDERR_FILENO);
    struct arena_block *first = take().block; /* 100 bytes each */
    ck_assert_ptr_eq(take().block, first);
    ck_assert_uint_eq(first->names_left, 50);
    struct arena_slot slot;
    ck_assert_int_eq(arena_take(&arena, 50, &slot), 0);
    ck_assert_ptr_eq(slot.block, first);
    ck_assert_int_eq(arena_take(&arena, 1, &slot), -EAGAIN); /* slots are left, names are not */
    unit_capture_end(&err);
}
END_TEST

START_TEST(retired_blocks_are_left_alone)
{
    struct unit_capture err;
    struct arena_slot slot;
    arena.backings[0] = &fake;
    arena.backings[1] = &arena_anonymous;
    unit_capture_begin(&err, STDERR_FILENO);
    struct arena_block *first = take().block;
    size_t used = first->used;
    arena_retire(&arena); /* as in a forked child */
    arena_retire(&arena);
    ck_assert_int_eq(retired, 1);
    ck_assert(first->retired);
    ck_assert(arena_wants_block(&arena));
    ck_assert_int_eq(arena_take(&arena, 0, &slot), -EAGAIN);
    struct arena_block *second = take().block;
    ck_assert_ptr_ne(second, first);
    ck_assert_ptr_eq(second->backing, &arena_anonymous);
    ck_assert_uint_eq(first->used, used);
    arena_retire(&arena); /* anonymous memory can go on being used */
    ck_assert(!second->retired);
    ck_assert_ptr_eq(take().block, second);
    ck_assert_int_eq(retired, 1);
    unit_capture_end(&err);
}
END_TEST

START_TEST(spare_is_retired_too)
{
    struct arena_block *block = NULL;
    arena.backings[0] = &fake;
    ck_assert_int_eq(arena_make(&arena, &block), 0);
    arena_give(&arena, block);
    ck_assert(!arena_wants_block(&arena));
    arena_retire(&arena);
    ck_assert_int_eq(retired, 1);
    ck_assert(arena_wants_block(&arena));
}
END_TEST

START_TEST(giving_up_a_backing)
{
    struct arena_block *block = NULL;
    arena.backings[0] = &fake;
    arena.backings[1] = &arena_anonymous;
    struct arena_block *first = take().block;
    ck_assert_ptr_eq(first->backing, &fake);
    arena_give_up(&arena, &fake);
    ck_assert(first->retired);
    ck_assert_ptr_eq(arena.backings[0], &arena_anonymous);
    ck_assert_ptr_null(arena.backings[1]);
    ck_assert_int_eq(arena_make(&arena, &block), 0);
    ck_assert_ptr_eq(block->backing, &arena_anonymous);
    ck_assert_int_eq(asked, 1);
}
END_TEST

static size_t mapped_pages(void)
{
    size_t pages = 0;
    FILE *statm = fopen("/proc/self/statm", "r");
    ck_assert_int_eq(fscanf(statm, "%zu", &pages), 1);
    fclose(statm);
    return pages;
}

/* systemd's MemoryDenyWriteExecute=, SELinux' execmem: a host that refuses executable memory. */
START_TEST(host_refuses_executable_memory)
{
    struct unit_capture err;
    struct arena_slot slot;
    if (prctl(PR_SET_MDWE, 1UL, 0UL, 0UL, 0UL)) {
        unit_skip("host_refuses_executable_memory", "the kernel has no PR_SET_MDWE");
        return;
    }
    unit_capture_begin(&err, STDERR_FILENO);
    size_t before = mapped_pages();
    ck_assert_int_eq(take_slot(0, &slot), -EACCES);
    ck_assert_uint_le(mapped_pages(), before); /* what was mapped is gone again */
    ck_assert_uint_eq(arena.block_count, 0);
    unit_capture_end(&err);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("arena");
    TCase *tcase = unit_case(suite, "slots");
    tcase_add_test(tcase, slots_in_order);
    tcase_add_test(tcase, blocks_double);
    tcase_add_test(tcase, prefilled);
    tcase_add_test(tcase, never_writable_and_executable);
    tcase_add_test(tcase, spare_is_wanted_in_time);
    tcase_add_test(tcase, no_spare_in_time);
    tcase_add_test(tcase, a_slot_calls_its_target);
    tcase_add_test(tcase, a_slot_never_handed_out_works_too);
    tcase = unit_case(suite, "backings");
    tcase_add_test(tcase, next_backing_takes_over);
    tcase_add_test(tcase, backing_fails_later);
    tcase_add_test(tcase, all_backings_fail);
    tcase_add_test(tcase, names_run_out);
    tcase_add_test(tcase, retired_blocks_are_left_alone);
    tcase_add_test(tcase, spare_is_retired_too);
    tcase_add_test(tcase, giving_up_a_backing);
    tcase_add_test(tcase, host_refuses_executable_memory);
    return unit_run(suite);
}
