#include "session.h"

#include "arch/arch.h"
#include "ehframe.h"
#include "elfblock.h"
#include "elfimage.h"
#include "foreign.h"
#include "lock.h"
#include "log.h"
#include "outfile.h"
#include "registry.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* Every way of telling the world, in the order in which they are told. */
static const struct sink *const sinks[] = {&sink_elf, &sink_jitdump, &sink_perfmap};
enum { SINKS = sizeof sinks / sizeof *sinks };

static struct {
    struct config config;
    pid_t pid;                /* of the process whose files are open; 0: none yet */
    unsigned failed;          /* outputs that are switched off */
    uint64_t next_index;      /* of sink_code */
    struct arena arena;
    _Atomic bool wants_room;  /* a block should be made before the next function */
    bool making_room;         /* some thread is at it */
    struct registry registry;
    struct arena_slot overflow;
    uint64_t overflowed;
    struct foreign *foreign;  /* newest first */
    uint64_t foreign_count;
    uint8_t unwind[EHFRAME_FUNCTION_MAX]; /* the same for every slot: all distances are relative */
    uint32_t unwind_size;
} session = {.pid = 0, .next_index = 1, .wants_room = true};

/* In the place of a file name: who says so. */
static const char overflow_name[] = "py::<functions beyond PYJD_MAX_FUNCTIONS>:<libpyjitdump>";
enum { OVERFLOW_FILE_AT = sizeof "py::<functions beyond PYJD_MAX_FUNCTIONS>:" - 1 };

/* ------------------------------------------------------------------------------------------- start */

static void start_once(void)
{
    lock_start();

    config_read(&session.config);
    size_t backings = 0;
    if (session.config.outputs & OUTPUT_ELF) {
        elfblock_start(session.config.dir);
        session.arena.backings[backings++] = &elfblock_backing;
    }
    session.arena.backings[backings] = &arena_anonymous;

    struct bytes out = bytes_over(session.unwind, sizeof session.unwind);
    ehframe_function(&out, ARCH_SLOT_SIZE);
    session.unwind_size = (uint32_t)out.len;
}

const struct config *session_config(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, start_once);
    return &session.config;
}

/* -------------------------------------------------------------------------------------- the sinks */

static bool is_on(const struct sink *sink)
{
    return (session.config.outputs & sink->output) && !(session.failed & sink->output);
}

static void switch_off(const struct sink *sink, int err)
{
    const char *path = sink->path();
    const char *advice = sink == &sink_perfmap ? "" : " (PYJD_DIR chooses another directory)";
    log_line(LOG_WARN, "%s is off: %s%s%s%s", sink->name, path, *path ? ": " : "",
             outfile_explain(err), advice);
    sink->drop();
    session.failed |= sink->output;
    /* What an image cannot name, perf can still find in a perf map, if it is in anonymous memory. */
    if (sink == &sink_elf)
        arena_give_up(&session.arena, &elfblock_backing);
}

static void announce(const struct sink_code *code)
{
    for (int i = 0; i < SINKS; i++) {
        int err = is_on(sinks[i]) ? sinks[i]->add(code) : 0;
        if (err)
            switch_off(sinks[i], err);
    }
}

static void announce_slot(const struct registry_entry *entry)
{
    const char *file = entry->symbol + entry->file_offset;
    struct sink_line line = {
        .addr = (uintptr_t)entry->slot.code, .file = file, .line = entry->line};
    struct sink_code code = {
        .addr = (uintptr_t)entry->slot.code,
        .size = ARCH_SLOT_SIZE,
        .index = session.next_index++,
        .name = entry->symbol,
        .name_length = entry->symbol_length,
        .lines = &line,
        .line_count = *file && entry->line > 0, /* or it is nowhere in particular */
        .unwind = session.unwind,
        .unwind_size = session.unwind_size,
        .unwind_hdr_size = EHFRAME_HDR_SIZE,
        .slot = &entry->slot,
    };
    announce(&code);
}

/* What a forked child inherited, for the files of its own. */
static void announce_inherited(void)
{
    for (size_t i = 0; i < session.registry.count; i++)
        announce_slot(&session.registry.entries[i]);
    for (struct foreign *f = session.foreign; f; f = f->next)
        announce(&f->code);
}

/* Begins the work for this process, unless it has begun: opens its files and, in a forked child, writes
 * what it inherited. The id is asked for each time: a child made by clone(2) runs no fork handlers. */
static void begin_process(void)
{
    pid_t pid = getpid();
    if (session.pid == pid)
        return;
    bool inherited = session.pid != 0;
    session.pid = pid;
    if (inherited) {
        arena_retire(&session.arena);
        session.wants_room = true;
        session.making_room = false; /* whoever it was is not in this process */
    }
    for (int i = 0; i < SINKS; i++) {
        if (inherited)
            sinks[i]->drop();
        int err = is_on(sinks[i]) ? sinks[i]->open(&session.config) : 0;
        if (err)
            switch_off(sinks[i], err);
        else if (is_on(sinks[i]) && *sinks[i]->path())
            log_line(LOG_INFO, "writing %s", sinks[i]->path());
    }
    if (inherited)
        announce_inherited();
}

static bool is_alive(void)
{
    return (session.config.outputs & ~session.failed) != 0;
}

bool session_is_alive(void)
{
    session_config();
    lock_take();
    bool alive = is_alive();
    lock_release();
    return alive;
}

/* ------------------------------------------------------------------------------------ publication */

/* Makes a block ahead of need, with the lock released: see arena.h. */
static void make_room(void)
{
    struct arena_block *block = NULL;
    lock_take();
    begin_process();
    bool mine = !session.making_room && is_alive() && arena_wants_block(&session.arena);
    if (mine)
        session.making_room = true;
    else
        session.wants_room = session.making_room;
    lock_release();
    if (!mine)
        return;

    int err = arena_make(&session.arena, &block);

    lock_take();
    if (!err)
        arena_give(&session.arena, block);
    session.making_room = false;
    session.wants_room = false;
    lock_wake();
    if (session.arena.backings[0] != &elfblock_backing)
        session.failed |= session.config.outputs & OUTPUT_ELF; /* arena_make has logged why */
    lock_release();
}

/* Takes a slot and makes it known under a name. */
static int publish_new(const char *symbol, size_t length, size_t file_offset, int line,
                       struct arena_slot *slot)
{
    size_t names = elfimage_names_needed(length, length - file_offset);
    int err = arena_take(&session.arena, names, slot);
    if (arena_wants_block(&session.arena))
        session.wants_room = true;
    if (err)
        return err;
    struct registry_entry *entry =
        registry_add(&session.registry, symbol, length, file_offset, line, slot);
    if (!entry)
        return -ENOMEM;
    announce_slot(entry);
    return 0;
}

static int publish_overflow(struct arena_slot *slot)
{
    int err = 0;
    if (!session.overflow.code)
        err = publish_new(overflow_name, sizeof overflow_name - 1, OVERFLOW_FILE_AT, 1,
                          &session.overflow);
    if (session.overflowed++ == 0)
        log_line(LOG_WARN,
                 "%u functions have names of their own, the most that PYJD_MAX_FUNCTIONS allows; "
                 "all further ones share one",
                 session.config.max_functions);
    *slot = session.overflow;
    return err;
}

static int find_or_publish(const struct codename *name, struct arena_slot *slot)
{
    struct registry_entry *known =
        registry_find(&session.registry, name->symbol, name->length, name->line);
    if (known) {
        *slot = known->slot;
        return 0;
    }
    if (session.registry.count >= session.config.max_functions)
        return publish_overflow(slot);
    return publish_new(name->symbol, name->length, name->file_offset, name->line, slot);
}

/* The block in use is full before there is another: makes one, or waits for the thread that does, but not for
 * ever: it may be waiting for the dynamic loader, and that for this thread. False: there is no room yet. */
static bool get_room(void)
{
    bool woken = true;
    if (!session.making_room) {
        lock_release();
        make_room();
        lock_take();
    }
    while (woken && session.making_room)
        woken = lock_wait();
    return woken;
}

int session_publish(const struct codename *name, void **code)
{
    enum { TRIES = 4 }; /* other threads may fill what was made meanwhile */
    static bool out_of_room;
    struct arena_slot slot = {0};
    int saved = errno;

    session_config();
    if (session.wants_room || session.pid != getpid())
        make_room();
    lock_take();
    int err = is_alive() ? find_or_publish(name, &slot) : -EIO;
    for (int i = 0; i < TRIES && err == -EAGAIN && get_room(); i++)
        err = find_or_publish(name, &slot);
    if (err && err != -EIO && err != -EAGAIN && !out_of_room) {
        out_of_room = true;
        log_line(LOG_WARN, "functions called from now on have no names: %s", strerror(-err));
    }
    lock_release();
    *code = slot.code;
    errno = saved;
    return err;
}

int session_add_foreign(const struct sink_code *code)
{
    int saved = errno, err = 0;
    session_config();
    lock_take();
    begin_process();
    struct foreign *copy = foreign_copy(code);
    if (!copy) {
        err = -ENOMEM;
    } else {
        copy->code.index = session.next_index++;
        copy->next = session.foreign;
        session.foreign = copy;
        session.foreign_count++;
        announce(&copy->code);
        err = is_alive() ? 0 : -EIO;
    }
    lock_release();
    errno = saved;
    return err;
}

/* ------------------------------------------------------------------------------------------ status */

static void put_path(char out[PATH_MAX], const struct sink *sink)
{
    bool is_open = session.pid == getpid() && is_on(sink);
    snprintf(out, PATH_MAX, "%s", is_open ? sink->path() : "");
}

void session_get_status(struct session_status *status)
{
    int saved = errno;
    session_config();
    lock_take();
    memset(status, 0, sizeof *status);
    status->functions = session.registry.count;
    status->overflowed = session.overflowed;
    status->foreign = session.foreign_count;
    for (size_t i = 0; i < session.arena.block_count; i++)
        status->arena_bytes += session.arena.blocks[i]->capacity * ARCH_SLOT_STRIDE;
    status->wanted = session.config.outputs;
    status->failed = session.failed;
    put_path(status->image_path, &sink_elf);
    put_path(status->jitdump_path, &sink_jitdump);
    put_path(status->map_path, &sink_perfmap);
    lock_release();
    errno = saved;
}
