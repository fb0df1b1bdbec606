/* The ELF image as a sink: names go into the image that a function's slot is in (elfblock.h).
 *
 * There is no file to open here: images come with the arena's blocks. Code that is not in a slot, such as
 * another JIT's, is not part of any image and has the other sinks.
 */
#include "sink.h"

#include "elfblock.h"

static const char *newest = "";

static int elf_open(const struct config *config)
{
    (void)config;
    return 0;
}

static int elf_add(const struct sink_code *code)
{
    const struct arena_block *block = code->slot ? code->slot->block : NULL;
    if (!block || block->backing != &elfblock_backing || block->retired)
        return 0;
    newest = elfblock_path(block);
    bool has_line = code->line_count > 0;
    return elfblock_add(code->slot, code->name, code->name_length,
                        has_line ? code->lines->file : NULL, has_line ? code->lines->line : 0);
}

/* A forked child reads its parent's image on; the arena sees to it that nothing is written there. */
static void elf_drop(void)
{
    newest = "";
}

static const char *elf_path(void)
{
    return newest;
}

const struct sink sink_elf = {
    .name = "elf",
    .output = OUTPUT_ELF,
    .open = elf_open,
    .add = elf_add,
    .drop = elf_drop,
    .path = elf_path,
};
