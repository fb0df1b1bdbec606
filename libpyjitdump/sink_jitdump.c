/* The jitdump: PYJD_DIR/jit-PID.dump. See jitdump_format.h for every byte.
 *
 * A function's records are composed in memory and appended by one write(2), so a reader, or a process
 * that died, has whole functions only, up to the last one published.
 *
 * perf finds the file by the marker: an executable mapping of its first page, which the kernel reports
 * to `perf record` like the loading of a library.
 */
#include "sink.h"

#include "arch/arch.h"
#include "bytes.h"
#include "jitdump_format.h"
#include "log.h"
#include "outfile.h"
#include "platform.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* A Python function's records fit; larger ones, of other JITs, get memory for the occasion. */
enum { RECORDS_USUAL = 4096 };

static struct outfile file = OUTFILE_CLOSED;
static void *marker = MAP_FAILED;
static pid_t pid;            /* of the process that the file is for */
static uint64_t first_index; /* what is added to indexes: those below are of the program before exec */

static void put_prefix(struct bytes *b, uint32_t id, uint64_t now)
{
    bytes_u32(b, id);
    bytes_u32(b, 0); /* total_size: see close_record */
    bytes_u64(b, now);
}

static void close_record(struct bytes *b, size_t start)
{
    bytes_patch_u32(b, start + 4, (uint32_t)(b->len - start));
}

static void put_debug_info(struct bytes *b, const struct sink_code *code, uint64_t now)
{
    size_t start = b->len;
    put_prefix(b, JITDUMP_DEBUG_INFO, now);
    bytes_u64(b, code->addr);
    bytes_u64(b, code->line_count + 1);
    for (size_t i = 0; i <= code->line_count; i++) {
        bool end = i == code->line_count;
        const struct sink_line *line = &code->lines[end ? i - 1 : i];
        bytes_u64(b, end ? code->addr + code->size : line->addr);
        bytes_i32(b, line->line);
        bytes_i32(b, 0); /* discriminator */
        bytes_cstr(b, line->file, strlen(line->file));
    }
    bytes_zeros(b, -(b->len - start) & 7);
    close_record(b, start);
}

static void put_unwinding_info(struct bytes *b, const struct sink_code *code, uint64_t now)
{
    size_t start = b->len;
    uint64_t mapped = (code->unwind_size + JITDUMP_UNWIND_ALIGN - 1) / JITDUMP_UNWIND_ALIGN *
                      JITDUMP_UNWIND_ALIGN;
    put_prefix(b, JITDUMP_UNWINDING_INFO, now);
    bytes_u64(b, code->unwind_size);
    bytes_u64(b, code->unwind_hdr_size);
    bytes_u64(b, mapped);
    bytes_put(b, code->unwind, code->unwind_size);
    bytes_zeros(b, -(b->len - start) & 7);
    close_record(b, start);
}

static void put_load(struct bytes *b, const struct sink_code *code, uint64_t now)
{
    size_t start = b->len;
    put_prefix(b, JITDUMP_LOAD, now);
    bytes_u32(b, (uint32_t)pid);
    bytes_u32(b, (uint32_t)platform_tid());
    bytes_u64(b, code->addr); /* vma */
    bytes_u64(b, code->addr);
    bytes_u64(b, code->size);
    bytes_u64(b, first_index + code->index);
    bytes_cstr(b, code->name, code->name_length);
    bytes_put(b, (const void *)(uintptr_t)code->addr, code->size);
    close_record(b, start);
}

static void put_function(struct bytes *b, const struct sink_code *code)
{
    uint64_t now = platform_now();
    if (code->line_count)
        put_debug_info(b, code, now);
    if (code->unwind)
        put_unwinding_info(b, code, now);
    put_load(b, code, now);
}

/* An upper bound of what put_function writes. */
static size_t records_size(const struct sink_code *code)
{
    size_t size = 3 * 64 + code->unwind_size + code->name_length + code->size;
    for (size_t i = 0; i < code->line_count; i++)
        size += 2 * (17 + strlen(code->lines[i].file)); /* the last one is written twice */
    return size;
}

static int jitdump_add(const struct sink_code *code)
{
    uint8_t usual[RECORDS_USUAL];
    struct bytes b = bytes_over(usual, sizeof usual);
    void *large = NULL;

    size_t size = records_size(code);
    if (size > sizeof usual) {
        if (size > INT32_MAX)
            return -EMSGSIZE;
        large = malloc(size);
        if (!large)
            return -ENOMEM;
        b = bytes_over(large, size);
    }
    put_function(&b, code);
    int err = b.overflow ? -EMSGSIZE : outfile_append(&file, b.base, b.len);
    free(large);
    return err;
}

static struct bytes make_header(uint8_t header[JITDUMP_HEADER_SIZE])
{
    struct bytes b = bytes_over(header, JITDUMP_HEADER_SIZE);
    bytes_u32(&b, JITDUMP_MAGIC);
    bytes_u32(&b, JITDUMP_VERSION);
    bytes_u32(&b, JITDUMP_HEADER_SIZE);
    bytes_u32(&b, arch.elf_machine);
    bytes_u32(&b, 0);
    bytes_u32(&b, (uint32_t)pid);
    bytes_u64(&b, platform_now());
    bytes_u64(&b, 0);
    return b;
}

/* An executable mapping is refused on a noexec file system. A readable one serves all the same when
 * perf records data mappings, as it does for --call-graph dwarf. */
static int map_marker(void)
{
    size_t page = platform_page_size();
    marker = mmap(NULL, page, PROT_READ | PROT_EXEC, MAP_PRIVATE, file.fd, 0);
    if (marker == MAP_FAILED && errno == EPERM) {
        marker = mmap(NULL, page, PROT_READ, MAP_PRIVATE, file.fd, 0);
        if (marker != MAP_FAILED)
            log_line(LOG_WARN,
                     "%s is on a noexec file system: perf finds it only with --call-graph dwarf or "
                     "--data; set PYJD_DIR to another directory",
                     file.path);
    }
    return marker == MAP_FAILED ? -errno : 0;
}

static void jitdump_drop(void)
{
    if (marker != MAP_FAILED)
        munmap(marker, platform_page_size());
    marker = MAP_FAILED;
    outfile_close(&file);
}

static int jitdump_open(const struct config *config)
{
    char name[64];
    uint8_t bytes[JITDUMP_HEADER_SIZE];
    pid = getpid();
    snprintf(name, sizeof name, "jit-%d.dump", (int)pid);
    struct bytes header = make_header(bytes);
    /* A program that this process was before it called exec has samples of its own, whose names are in its
     * records: they stay. The header is the same up to its time. */
    int err = outfile_continue(&file, config->dir, name, bytes, JITDUMP_TIME_AT);
    if (err == -ENOENT) {
        err = outfile_create(&file, config->dir, name);
        if (!err)
            err = outfile_append(&file, header.base, header.len);
    }
    first_index = (uint64_t)file.size_before; /* more than there are records before */
    if (!err)
        err = map_marker();
    if (err)
        jitdump_drop();
    return err;
}

static const char *jitdump_path(void)
{
    return file.path;
}

const struct sink sink_jitdump = {
    .name = "jitdump",
    .output = OUTPUT_JITDUMP,
    .open = jitdump_open,
    .add = jitdump_add,
    .drop = jitdump_drop,
    .path = jitdump_path,
};
