/* The bytes of an image, as libelf and libdw read them, and an image as the arena uses it. */
#include "unit.h"

#include "arch/arch.h"
#include "elfblock.h"
#include "elfimage.h"
#include "platform.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <gelf.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <elfutils/libdw.h>

#if defined(__x86_64__)
#include "cfi_model.h"
#endif

/* An image in memory, which the tests publish in. */
struct image {
    struct elfimage_layout layout;
    struct bytes bytes;
    size_t next;          /* as in elfblock.c */
    uint32_t next_file;
};

static struct image compose(size_t capacity)
{
    struct image image = {.next_file = ELFIMAGE_FIRST_FILE};
    size_t most = elfimage_size_most(capacity);
    image.bytes = bytes_over(calloc(1, most), most);
    elfimage_compose(&image.bytes, &image.layout, capacity, 0x1122334455667788);
    ck_assert(!image.bytes.overflow);
    image.next = image.layout.names;
    return image;
}

/* Returns where it is. */
static size_t add_name(struct image *image, const char *name)
{
    size_t at = image->next, length = strlen(name);
    struct bytes out = bytes_over(image->bytes.base + at, image->layout.names_end - at);
    elfimage_put_name(&out, name, length);
    ck_assert(!out.overflow);
    image->next += out.len;
    image->next_file++;
    return at;
}

/* As elfblock_add does. `path` NULL: that of file number `file`. Returns the file's number. */
static uint32_t publish(struct image *image, size_t slot, const char *symbol, const char *path,
                        uint32_t file, int32_t line)
{
    uint32_t st_name = (uint32_t)(add_name(image, symbol) - image->layout.begin[ELFIMAGE_DYNSTR]);
    if (path) {
        file = image->next_file;
        add_name(image, path);
    }
    uint64_t word = elfimage_line_word(file, line);
    memcpy(image->bytes.base + elfimage_line_field(&image->layout, slot), &word, sizeof word);
    memcpy(image->bytes.base + elfimage_name_field(&image->layout, slot), &st_name, sizeof st_name);
    return file;
}

static Elf *open_image(struct image *image)
{
    elf_version(EV_CURRENT);
    Elf *elf = elf_memory((char *)image->bytes.base, image->bytes.len);
    ck_assert_ptr_nonnull(elf);
    return elf;
}

/* ---- layout ---- */

static const size_t capacities[] = {1, 2, 3, 31, 32, 33, 512, 1024, 5000, 16384};
enum { CAPACITIES = sizeof capacities / sizeof *capacities };

START_TEST(fits_its_bound)
{
    struct image image = compose(capacities[_i]);
    ck_assert_uint_le(image.bytes.len, elfimage_size_most(capacities[_i]));
    ck_assert_uint_eq(image.layout.capacity, capacities[_i]);
    free(image.bytes.base);
}
END_TEST

START_TEST(too_little_room)
{
    static uint8_t buffer[400000];
    size_t whole = compose(512).bytes.len;
    for (size_t room = 0; room < whole; room += 997) {
        memset(buffer, 0x5a, sizeof buffer);
        struct bytes out = bytes_over(buffer, room);
        struct elfimage_layout layout;
        elfimage_compose(&out, &layout, 512, 1);
        ck_assert(out.overflow);
        for (size_t i = room; i < room + 64; i++)
            ck_assert_uint_eq(buffer[i], 0x5a);
    }
}
END_TEST

static const char *const section_names[ELFIMAGE_SECTIONS] = {
    [ELFIMAGE_TEXT] = ".text", [ELFIMAGE_EH_FRAME] = ".eh_frame",
    [ELFIMAGE_EH_FRAME_HDR] = ".eh_frame_hdr", [ELFIMAGE_HASH] = ".hash",
    [ELFIMAGE_DYNSYM] = ".dynsym", [ELFIMAGE_DYNSTR] = ".dynstr",
    [ELFIMAGE_DYNAMIC] = ".dynamic", [ELFIMAGE_DEBUG_LINE] = ".debug_line",
    [ELFIMAGE_DEBUG_ABBREV] = ".debug_abbrev", [ELFIMAGE_DEBUG_INFO] = ".debug_info",
    [ELFIMAGE_DEBUG_ARANGES] = ".debug_aranges", [ELFIMAGE_SHSTRTAB] = ".shstrtab"};

START_TEST(sections_are_where_the_layout_says)
{
    struct image image = compose(512);
    Elf *elf = open_image(&image);
    size_t count = 0, names = 0;
    ck_assert_int_eq(elf_getshdrnum(elf, &count), 0);
    ck_assert_int_eq(elf_getshdrstrndx(elf, &names), 0);
    ck_assert_uint_eq(count, ELFIMAGE_SECTIONS);
    for (size_t i = 1; i < count; i++) {
        GElf_Shdr shdr;
        ck_assert_ptr_nonnull(gelf_getshdr(elf_getscn(elf, i), &shdr));
        if (section_names[i])
            ck_assert_str_eq(elf_strptr(elf, names, shdr.sh_name), section_names[i]);
        ck_assert_uint_eq(shdr.sh_offset, image.layout.begin[i]);
        ck_assert_uint_eq(shdr.sh_offset + shdr.sh_size, image.layout.end[i]);
        /* Virtual address and file offset are the same: perf, gdb and uprobes rely on it. */
        ck_assert_uint_eq(shdr.sh_addr, shdr.sh_flags & SHF_ALLOC ? shdr.sh_offset : 0);
        if (shdr.sh_addralign > 1)
            ck_assert_uint_eq(shdr.sh_offset % shdr.sh_addralign, 0);
    }
    elf_end(elf);
}
END_TEST

START_TEST(segments)
{
    struct image image = compose(512);
    Elf *elf = open_image(&image);
    size_t count = 0, loads = 0;
    ck_assert_int_eq(elf_getphdrnum(elf, &count), 0);
    for (size_t i = 0; i < count; i++) {
        GElf_Phdr phdr;
        ck_assert_ptr_nonnull(gelf_getphdr(elf, (int)i, &phdr));
        ck_assert_uint_eq(phdr.p_vaddr, phdr.p_offset);
        ck_assert_uint_eq(phdr.p_memsz, phdr.p_filesz);
        ck_assert_uint_ne(phdr.p_flags & (PF_W | PF_X), PF_W | PF_X);
        if (phdr.p_type == PT_NOTE)
            ck_abort_msg("a note: a build-id would make tools keep a copy");
        if (phdr.p_type != PT_LOAD)
            continue;
        ck_assert_uint_eq(phdr.p_offset % platform_page_size(), 0);
        if (loads++ == 0) { /* the lowest is the code: tools take it for the base */
            ck_assert_uint_eq(phdr.p_offset, 0);
            ck_assert_uint_eq(phdr.p_filesz, image.layout.loaded);
            ck_assert_uint_eq(phdr.p_flags, PF_R | PF_X);
        }
    }
    ck_assert_uint_eq(loads, 2);
    elf_end(elf);
}
END_TEST

START_TEST(slots_are_those_of_the_architecture)
{
    struct image image = compose(64);
    for (size_t i = 0; i < 64; i++) {
        uint8_t slot[ARCH_SLOT_STRIDE];
        arch_write_slot(slot, 0x1122334455667788 + i);
        const uint8_t *in_image =
            image.bytes.base + image.layout.begin[ELFIMAGE_TEXT] + i * ARCH_SLOT_STRIDE;
        ck_assert_int_eq(memcmp(slot, in_image, sizeof slot), 0);
    }
}
END_TEST

/* ---- unwind data ---- */

#if defined(__x86_64__)
START_TEST(cfi_of_every_slot)
{
    static const size_t some[] = {1, 33, 512, 2048};
    struct image image = compose(some[_i]);
    char trouble[CFI_TROUBLE] = "", name[64];
    for (size_t slot = 0; slot < some[_i]; slot += 3) {
        snprintf(name, sizeof name, "py::f%zu:/a.py", slot);
        publish(&image, slot, name, "/a.py", 0, 1);
    }
    Elf *elf = open_image(&image);
    int checked = cfi_check_elf(elf, trouble);
    ck_assert_msg(checked == (int)some[_i], "%d functions; %s", checked, trouble);
    elf_end(elf);
}
END_TEST

/* That the check above can fail. */
START_TEST(wrong_cfi_is_noticed)
{
    struct image image = compose(32);
    char trouble[CFI_TROUBLE] = "";
    size_t begin = image.layout.begin[ELFIMAGE_EH_FRAME];
    size_t wrong = 0, tried = 0;
    for (size_t at = begin + 24; at < image.layout.end[ELFIMAGE_EH_FRAME_HDR]; at += 7, tried++) {
        image.bytes.base[at] ^= 1;
        Elf *elf = open_image(&image);
        wrong += cfi_check_elf(elf, trouble) < 0;
        elf_end(elf);
        image.bytes.base[at] ^= 1;
    }
    /* Padding, and the number of a register that is not asked for, may be anything. */
    ck_assert_uint_ge(wrong, tried / 2);
}
END_TEST
#endif

/* ---- symbols ---- */

static GElf_Sym symbol_of(Elf *elf, size_t slot, const char **name)
{
    GElf_Shdr shdr;
    GElf_Sym symbol;
    Elf_Scn *scn = elf_getscn(elf, ELFIMAGE_DYNSYM);
    ck_assert_ptr_nonnull(gelf_getshdr(scn, &shdr));
    ck_assert_ptr_nonnull(gelf_getsym(elf_getdata(scn, NULL), (int)slot + 1, &symbol));
    *name = elf_strptr(elf, shdr.sh_link, symbol.st_name);
    ck_assert_ptr_nonnull(*name);
    return symbol;
}

START_TEST(symbols)
{
    struct image image = compose(512);
    publish(&image, 0, "py::first:/srv/a.py", "/srv/a.py", 0, 1);
    publish(&image, 511, "py::last:/srv/b.py", "/srv/b.py", 0, 2);
    Elf *elf = open_image(&image);
    for (size_t slot = 0; slot < 512; slot++) {
        const char *name;
        GElf_Sym symbol = symbol_of(elf, slot, &name);
        ck_assert_str_eq(name, slot == 0 ? "py::first:/srv/a.py" : slot == 511 ? "py::last:/srv/b.py" : "");
        ck_assert_uint_eq(symbol.st_value, image.layout.begin[ELFIMAGE_TEXT] + slot * ARCH_SLOT_STRIDE);
        ck_assert_uint_eq(symbol.st_size, ARCH_SLOT_SIZE);
        ck_assert_uint_eq(symbol.st_shndx, ELFIMAGE_TEXT);
        ck_assert_uint_eq(GELF_ST_TYPE(symbol.st_info), STT_FUNC);
        ck_assert_uint_eq(elfimage_name_field(&image.layout, slot) % 4, 0); /* one store writes it */
    }
    elf_end(elf);
}
END_TEST

START_TEST(names_may_be_what_they_like)
{
    static const char *const names[] = {
        "py::<lambda>:<string>", "py::f.<locals>.<genexpr>:/a b.py", "py::\xc3\xa9\xe2\x82\xac:/\xf0\x9f\x90\x8d.py",
        "p", "py:::", "py::f:C:\\x.py"};
    struct image image = compose(8);
    for (size_t i = 0; i < 6; i++)
        publish(&image, i, names[i], "/x.py", 0, 1);
    Elf *elf = open_image(&image);
    for (size_t i = 0; i < 6; i++) {
        const char *name;
        symbol_of(elf, i, &name);
        ck_assert_str_eq(name, names[i]);
    }
    elf_end(elf);
}
END_TEST

/* ---- lines ---- */

/* File and line of an address, as a debugger asks for them. */
static int line_of(Dwarf *dwarf, uint64_t addr, const char **file)
{
    Dwarf_Die die;
    int line = -1;
    *file = NULL;
    ck_assert_ptr_nonnull(dwarf_offdie(dwarf, 11, &die)); /* the only compilation unit's */
    Dwarf_Line *found = dwarf_getsrc_die(&die, addr);
    if (found) {
        *file = dwarf_linesrc(found, NULL, NULL);
        dwarf_lineno(found, &line);
    }
    return line;
}

START_TEST(lines)
{
    static const int32_t numbers[] = {1, 2, 0, 63, 64, 65, 127, 128, 8191, 8192, 1000000, (1 << 27) - 1};
    enum { COUNT = sizeof numbers / sizeof *numbers };
    struct image image = compose(64);
    for (size_t i = 0; i < COUNT; i++) {
        char symbol[96], path[64];
        snprintf(path, sizeof path, "/srv/file_%zu.py", i);
        snprintf(symbol, sizeof symbol, "py::f%zu:%s", i, path);
        publish(&image, i, symbol, path, 0, numbers[i]);
    }
    Elf *elf = open_image(&image);
    Dwarf *dwarf = dwarf_begin_elf(elf, DWARF_C_READ, NULL);
    ck_assert_ptr_nonnull(dwarf);
    for (size_t i = 0; i < 64; i++) {
        uint64_t addr = image.layout.begin[ELFIMAGE_TEXT] + i * ARCH_SLOT_STRIDE;
        char path[64];
        const char *file;
        snprintf(path, sizeof path, "/srv/file_%zu.py", i);
        for (uint64_t at = addr; at < addr + ARCH_SLOT_SIZE; at++) {
            int line = line_of(dwarf, at, &file);
            ck_assert_int_eq(line, i < COUNT ? numbers[i] : 0);
            if (i < COUNT)
                ck_assert_str_eq(file, path);
            else
                ck_assert_ptr_nonnull(strstr(file, "<no function yet>"));
        }
        ck_assert_int_eq(line_of(dwarf, addr + ARCH_SLOT_SIZE, &file), -1);
    }
    dwarf_end(dwarf);
    elf_end(elf);
}
END_TEST

/* More files than a number of one byte, or two, can tell. */
START_TEST(many_files_and_functions_in_each)
{
    enum { COUNT = 16384, FILES = COUNT / 2 };
    struct image image = compose(COUNT);
    uint32_t number = 0;
    for (size_t i = 0; i < COUNT; i++) {
        char symbol[64], path[32];
        snprintf(path, sizeof path, "/srv/file_%zu.py", i / 2);
        snprintf(symbol, sizeof symbol, "py::f%zu:%s", i, path);
        number = publish(&image, i, symbol, i % 2 ? NULL : path, number, (int32_t)i + 1);
    }
    Elf *elf = open_image(&image);
    Dwarf *dwarf = dwarf_begin_elf(elf, DWARF_C_READ, NULL);
    Dwarf_Die die;
    Dwarf_Lines *rows = NULL;
    size_t count = 0;
    ck_assert_ptr_nonnull(dwarf_offdie(dwarf, 11, &die));
    ck_assert_int_eq(dwarf_getsrclines(&die, &rows, &count), 0);
    ck_assert_uint_eq(count, 2 * COUNT); /* each a row and an end */
    for (size_t i = 0; i < COUNT; i += 111) {
        char path[32];
        const char *file;
        snprintf(path, sizeof path, "/srv/file_%zu.py", i / 2);
        uint64_t addr = image.layout.begin[ELFIMAGE_TEXT] + i * ARCH_SLOT_STRIDE;
        ck_assert_int_eq(line_of(dwarf, addr + 10, &file), (int)i + 1);
        ck_assert_str_eq(file, path);
    }
    dwarf_end(dwarf);
    elf_end(elf);
}
END_TEST

/* Tools that use libdw's accelerated look-up find the unit by .debug_aranges only. */
START_TEST(addresses_lead_to_the_unit)
{
    struct image image = compose(32);
    publish(&image, 5, "py::f:/a.py", "/a.py", 0, 7);
    Elf *elf = open_image(&image);
    Dwarf *dwarf = dwarf_begin_elf(elf, DWARF_C_READ, NULL);
    Dwarf_Die die;
    uint64_t begin = image.layout.begin[ELFIMAGE_TEXT], end = image.layout.end[ELFIMAGE_TEXT];
    ck_assert_ptr_nonnull(dwarf_addrdie(dwarf, begin, &die));
    ck_assert_ptr_nonnull(dwarf_addrdie(dwarf, end - 1, &die));
    ck_assert_ptr_null(dwarf_addrdie(dwarf, begin - 1, &die));
    ck_assert_ptr_null(dwarf_addrdie(dwarf, end, &die));
    dwarf_end(dwarf);
    elf_end(elf);
}
END_TEST

/* What has no name yet has no line either, and the list of files is whole after every name. */
START_TEST(every_stage_is_valid)
{
    struct image image = compose(512);
    for (size_t i = 0; i < 60; i++) {
        char symbol[64], path[200];
        const char *file;
        snprintf(path, sizeof path, "/srv/%0*zu.py", (int)(3 * i), i);
        snprintf(symbol, sizeof symbol, "py::f%zu", i);
        publish(&image, i, symbol, path, 0, (int32_t)i + 1);
        Elf *elf = open_image(&image);
        Dwarf *dwarf = dwarf_begin_elf(elf, DWARF_C_READ, NULL);
        uint64_t addr = image.layout.begin[ELFIMAGE_TEXT] + i * ARCH_SLOT_STRIDE;
        ck_assert_int_eq(line_of(dwarf, addr, &file), (int)i + 1);
        ck_assert_str_eq(file, path);
        ck_assert_int_le(line_of(dwarf, addr + ARCH_SLOT_STRIDE, &file), 0);
        dwarf_end(dwarf);
        elf_end(elf);
    }
}
END_TEST

START_TEST(needed_is_enough)
{
    static char name[2000];
    uint8_t list[5000];
    memset(name, 'n', sizeof name);
    for (size_t symbol = 1; symbol < sizeof name; symbol += 61) {
        for (size_t path = 1; path < sizeof name; path += 61) {
            struct bytes out = bytes_over(list, sizeof list);
            elfimage_put_name(&out, name, symbol);
            elfimage_put_name(&out, name, path);
            ck_assert_uint_le(out.len, elfimage_names_needed(symbol, path));
        }
    }
}
END_TEST

START_TEST(the_directory_it_is_made_in_may_be_long)
{
    char name[201];
    memset(name, 'd', sizeof name - 1);
    name[sizeof name - 1] = '\0';
    ck_assert_int_eq(chdir(unit_dir()), 0);
    for (int i = 0; i < 30; i++) { /* beyond PATH_MAX, too */
        ck_assert_int_eq(mkdir(name, 0700), 0);
        ck_assert_int_eq(chdir(name), 0);
        struct image image = compose(1);
        Elf *elf = open_image(&image);
        ck_assert_ptr_nonnull(dwarf_begin_elf(elf, DWARF_C_READ, NULL));
        elf_end(elf);
    }
}
END_TEST

/* ---- as the arena uses it ---- */

static struct arena_block make_block(size_t capacity)
{
    struct arena_block block = {.backing = &elfblock_backing};
    static char dir[4096];
    snprintf(dir, sizeof dir, "%s", unit_dir());
    elfblock_start(dir);
    ck_assert_int_eq(elfblock_backing.map(&block, capacity), 0);
    return block;
}

static struct arena_slot slot_of(struct arena_block *block, size_t index)
{
    return (struct arena_slot){.code = block->slots + index * ARCH_SLOT_STRIDE, .block = block, .index = index};
}

START_TEST(a_block_is_a_library)
{
    struct arena_block block = make_block(512);
    const char *path = elfblock_path(&block);
    char permissions[5], mapped[4096];
    Dl_info info;

    ck_assert_uint_ge(block.capacity, 512);
    unit_mapping(block.slots, permissions, mapped, sizeof mapped);
    ck_assert_str_eq(permissions, "r-xp");
    ck_assert_str_eq(mapped, path);
    for (size_t i = 0; i < 512; i += 50) {
        struct arena_slot slot = slot_of(&block, i);
        char name[64];
        snprintf(name, sizeof name, "py::f%zu:/a.py", i);
        ck_assert(dladdr(slot.code + 10, &info));
        ck_assert(!info.dli_sname || !*info.dli_sname);
        ck_assert_int_eq(elfblock_add(&slot, name, strlen(name), "/a.py", 3), 0);
        ck_assert(dladdr(slot.code + 10, &info));
        ck_assert_str_eq(info.dli_sname, name);
        ck_assert_str_eq(info.dli_fname, path);
        ck_assert_ptr_eq(info.dli_saddr, slot.code);
    }
    /* It has all its names in its symbol table, but none that a look-up would find: it must not come
     * into the way of the program's own symbols. */
    void *handle = dlopen(path, RTLD_LAZY | RTLD_NOLOAD);
    ck_assert_ptr_nonnull(handle);
    ck_assert_ptr_null(dlsym(handle, "py::f0:/a.py"));
}
END_TEST

START_TEST(a_block_is_used_up)
{
    struct arena_block block = make_block(512);
    static char name[900];
    size_t size = (size_t)unit_size(elfblock_path(&block)), i = 0;
    int err = 0;
    memset(name, 'x', sizeof name);
    for (; i < 512 && !err; i++) {
        struct arena_slot slot = slot_of(&block, i);
        err = elfblock_add(&slot, name, sizeof name, "/a.py", 1);
    }
    ck_assert_int_eq(err, -ENOSPC);
    ck_assert_uint_ge(i, block.names_left / elfimage_names_needed(sizeof name, 5));
    ck_assert_uint_eq(unit_size(elfblock_path(&block)), size);
    size_t read = 0;
    uint8_t *bytes = unit_read(elfblock_path(&block), &read);
    struct image image = {.bytes = {.base = bytes, .len = read}};
    Elf *elf = open_image(&image);
    const char *last;
    symbol_of(elf, i - 2, &last);
    ck_assert_uint_eq(strlen(last), sizeof name);
    symbol_of(elf, i - 1, &last); /* the one that did not fit */
    ck_assert_str_eq(last, "");
    elf_end(elf);
    free(bytes);
}
END_TEST

START_TEST(nowhere_to_put_it)
{
    struct arena_block block = {.backing = &elfblock_backing};
    static char dir[4096];
    snprintf(dir, sizeof dir, "%s/not there", unit_dir());
    elfblock_start(dir);
    ck_assert_int_eq(elfblock_backing.map(&block, 512), -ENOENT);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("elfimage");
    elf_version(EV_CURRENT);
    TCase *tcase = unit_case(suite, "layout");
    tcase_add_loop_test(tcase, fits_its_bound, 0, CAPACITIES);
    tcase_add_test(tcase, too_little_room);
    tcase_add_test(tcase, sections_are_where_the_layout_says);
    tcase_add_test(tcase, segments);
    tcase_add_test(tcase, slots_are_those_of_the_architecture);
#if defined(__x86_64__)
    tcase = unit_case(suite, "unwind data");
    tcase_add_loop_test(tcase, cfi_of_every_slot, 0, 4);
    tcase_add_test(tcase, wrong_cfi_is_noticed);
#endif
    tcase = unit_case(suite, "symbols and lines");
    tcase_add_test(tcase, symbols);
    tcase_add_test(tcase, names_may_be_what_they_like);
    tcase_add_test(tcase, lines);
    tcase_add_test(tcase, many_files_and_functions_in_each);
    tcase_add_test(tcase, addresses_lead_to_the_unit);
    tcase_add_test(tcase, every_stage_is_valid);
    tcase_add_test(tcase, needed_is_enough);
    tcase_add_test(tcase, the_directory_it_is_made_in_may_be_long);
    tcase = unit_case(suite, "blocks");
    tcase_add_test(tcase, a_block_is_a_library);
    tcase_add_test(tcase, a_block_is_used_up);
    tcase_add_test(tcase, nowhere_to_put_it);
    return unit_run(suite);
}
