/* Blocks that are ELF images: what the process, libelf and libdw see of one, before and after names are
 * published in it. Covers elfimage.c as well. */
#include "arch/arch.h"
#include "cfi_model.h"
#include "elfblock.h"
#include "elfimage.h"
#include "unit.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <gelf.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { CAPACITY = 64 };

static struct arena_block block;

static void make(const char *dir)
{
    elfblock_start(dir);
    block = (struct arena_block){.backing = &elfblock_backing};
    ck_assert_int_eq(elfblock_backing.map(&block, CAPACITY), 0);
    ck_assert_uint_ge(block.capacity, CAPACITY);
}

static struct arena_slot slot_at(size_t index)
{
    return (struct arena_slot){.code = block.slots + index * ARCH_SLOT_STRIDE, .block = &block,
                               .index = index};
}

static int publish(size_t index, const char *symbol, const char *path, int32_t line)
{
    struct arena_slot slot = slot_at(index);
    return elfblock_add(&slot, symbol, strlen(symbol), path, line);
}

START_TEST(image_is_a_private_file)
{
    struct stat st;
    char permissions[5], mapped[512], want[512];
    const char *dir = unit_dir();
    umask(0);
    make(dir);
    snprintf(want, sizeof want, "%s/pyjd-%d-1.so", dir, (int)getpid());
    ck_assert_str_eq(elfblock_path(&block), want);
    ck_assert_int_eq(lstat(want, &st), 0);
    ck_assert_uint_eq(st.st_mode, S_IFREG | 0600);
    for (size_t i = 0; i < block.capacity; i++) {
        uint8_t expected[ARCH_SLOT_STRIDE];
        const uint8_t *code = block.slots + i * ARCH_SLOT_STRIDE;
        ck_assert_mem_eq(code, block.slots, 16); /* the same code ... */
        for (size_t j = 0; j < i; j++)           /* ... and never the same salt */
            ck_assert_mem_ne(code, block.slots + j * ARCH_SLOT_STRIDE, ARCH_SLOT_SIZE);
        arch_write_slot(expected, 0);
        ck_assert_mem_eq(code, expected, 16);
    }
    unit_mapping(block.slots, permissions, mapped, sizeof mapped);
    ck_assert_str_eq(permissions, "r-xp");
    ck_assert_str_eq(mapped, want);
}
END_TEST

/* perf, eu-stack and gdb take the lowest mapping of a file for the place where it was loaded. */
START_TEST(lowest_mapping_is_the_code)
{
    char line[1024];
    for (int i = 0; i < 20; i++) {
        make(unit_dir());
        FILE *maps = fopen("/proc/self/maps", "r");
        while (fgets(line, sizeof line, maps))
            if (strstr(line, elfblock_path(&block)))
                break;
        fclose(maps);
        unsigned long low = 0, offset = 1;
        char permissions[5] = "";
        ck_assert_int_eq(sscanf(line, "%lx-%*x %4s %lx", &low, permissions, &offset), 3);
        ck_assert_str_eq(permissions, "r-xp");
        ck_assert_uint_eq(offset, 0);
    }
}
END_TEST

/* A name published in the child must not appear in the parent's image through an inherited mapping. */
START_TEST(child_has_no_writable_mapping)
{
    int status = -1;
    make(unit_dir());
    ck_assert_int_eq(publish(0, "py::f0:/a.py", "/a.py", 1), 0);
    pid_t child = fork();
    if (child == 0) {
        char line[1024];
        int writable = 0;
        FILE *maps = fopen("/proc/self/maps", "r");
        while (fgets(line, sizeof line, maps))
            writable += strstr(line, elfblock_path(&block)) && strstr(line, " rw-s ");
        _exit(writable);
    }
    waitpid(child, &status, 0);
    ck_assert_int_eq(status, 0);
}
END_TEST

START_TEST(cfi_of_every_slot)
{
    char trouble[CFI_TROUBLE] = "";
    make(unit_dir());
    elf_version(EV_CURRENT);
    int fd = open(elfblock_path(&block), O_RDONLY);
    Elf *elf = elf_begin(fd, ELF_C_READ, NULL);
    ck_assert_ptr_nonnull(elf);
    int count = cfi_check_elf(elf, trouble);
    ck_assert_msg(count == (int)block.capacity, "%d functions: %s", count, trouble);
    elf_end(elf);
    close(fd);
}
END_TEST

START_TEST(dladdr_knows_what_is_published)
{
    Dl_info info;
    make(unit_dir());
    uint8_t *code = slot_at(5).code;
    ck_assert(dladdr(code, &info) != 0);
    ck_assert_str_eq(info.dli_fname, elfblock_path(&block));
    ck_assert(!info.dli_sname || !*info.dli_sname);
    ck_assert_int_eq(publish(5, "py::f:/srv/app.py", "/srv/app.py", 7), 0);
    ck_assert_int_eq(publish(6, "py::g:/srv/app.py", "/srv/app.py", 9), 0);
    ck_assert(dladdr(code + 10, &info) != 0);
    ck_assert_str_eq(info.dli_sname, "py::f:/srv/app.py");
    ck_assert_ptr_eq(info.dli_saddr, code);
    ck_assert(dladdr(code + ARCH_SLOT_STRIDE, &info) != 0);
    ck_assert_str_eq(info.dli_sname, "py::g:/srv/app.py");
}
END_TEST

/* File and line of an address in the image, as a debugger or perf gets them from the file. */
static int line_of(const char *path, Dwarf_Addr addr, const char **file)
{
    static char name[512];
    int fd = open(path, O_RDONLY | O_CLOEXEC), number = -1;
    Dwarf *dwarf = dwarf_begin(fd, DWARF_C_READ);
    Dwarf_Off next = 0;
    size_t header = 0;
    Dwarf_Die unit;
    ck_assert_msg(dwarf != NULL, "%s", dwarf_errmsg(-1));
    ck_assert_int_eq(dwarf_nextcu(dwarf, 0, &next, &header, NULL, NULL, NULL), 0);
    if (dwarf_offdie(dwarf, header, &unit) && dwarf_haspc(&unit, addr) == 1) {
        Dwarf_Line *line = dwarf_getsrc_die(&unit, addr);
        if (line && dwarf_lineno(line, &number) == 0)
            snprintf(name, sizeof name, "%s", dwarf_linesrc(line, NULL, NULL));
    }
    *file = name;
    dwarf_end(dwarf);
    close(fd);
    return number;
}

START_TEST(lines_of_what_is_published)
{
    const char *file = NULL;
    make(unit_dir());
    uint8_t *code = slot_at(0).code;
    Dl_info info;
    ck_assert(dladdr(code, &info) != 0);
    Dwarf_Addr base = (uintptr_t)code - (uintptr_t)info.dli_fbase;
    ck_assert_int_eq(line_of(elfblock_path(&block), base, &file), 0); /* none */
    for (int i = 0; i < CAPACITY; i++) {
        char symbol[64], path[32];
        snprintf(path, sizeof path, "/srv/%d.py", i % 7);
        snprintf(symbol, sizeof symbol, "py::f%d:%s", i, path);
        ck_assert_int_eq(publish((size_t)i, symbol, path, i * 1000 + 1), 0);
    }
    for (int i = 0; i < CAPACITY; i++) {
        char path[32];
        snprintf(path, sizeof path, "/srv/%d.py", i % 7);
        Dwarf_Addr addr = base + (Dwarf_Addr)i * ARCH_SLOT_STRIDE;
        /* At the entry and at the return address less one, where unwinders look. */
        ck_assert_int_eq(line_of(elfblock_path(&block), addr, &file), i * 1000 + 1);
        ck_assert_str_eq(file, path);
        ck_assert_int_eq(line_of(elfblock_path(&block), addr + 9, &file), i * 1000 + 1);
        ck_assert_int_ne(line_of(elfblock_path(&block), addr + ARCH_SLOT_SIZE, &file), i * 1000 + 1);
    }
}
END_TEST

/* Names in the symbol table of the file, counted; each must be the one published. */
static int count_names(void)
{
    int count = 0;
    int fd = open(elfblock_path(&block), O_RDONLY);
    elf_version(EV_CURRENT);
    Elf *elf = elf_begin(fd, ELF_C_READ, NULL);
    Elf_Scn *scn = NULL;
    while ((scn = elf_nextscn(elf, scn))) {
        GElf_Shdr shdr;
        GElf_Sym sym;
        gelf_getshdr(scn, &shdr);
        if (shdr.sh_type != SHT_DYNSYM)
            continue;
        Elf_Data *data = elf_getdata(scn, NULL);
        for (int i = 1; gelf_getsym(data, i, &sym); i++) {
            const char *name = elf_strptr(elf, shdr.sh_link, sym.st_name);
            char want[64];
            snprintf(want, sizeof want, "py::f%d:/a.py", i - 1);
            ck_assert_ptr_nonnull(name);
            if (*name) {
                ck_assert_str_eq(name, want);
                ck_assert_uint_eq(sym.st_size, ARCH_SLOT_SIZE);
                ck_assert_int_eq(GELF_ST_TYPE(sym.st_info), STT_FUNC);
                count++;
            }
        }
    }
    elf_end(elf);
    close(fd);
    return count;
}

START_TEST(size_stays_and_names_grow)
{
    make(unit_dir());
    off_t size = unit_size(elfblock_path(&block));
    ck_assert_int_eq(count_names(), 0);
    for (int i = 0; i < CAPACITY; i++) {
        char symbol[64];
        snprintf(symbol, sizeof symbol, "py::f%d:/a.py", i);
        ck_assert_int_eq(publish((size_t)i, symbol, "/a.py", 1), 0);
        ck_assert_int_eq(count_names(), i + 1);
    }
    ck_assert_int_eq(unit_size(elfblock_path(&block)), size);
}
END_TEST

/* What elfimage_names_needed promises for a name is enough for it, to the last. */
START_TEST(names_needed_is_enough)
{
    static char symbol[1000], path[600];
    make(unit_dir());
    size_t left = block.names_left, index = 0;
    for (size_t length = 1; index < block.capacity; length = length * 3 % 590 + 1, index++) {
        memset(path, 'p', length);
        path[length] = '\0';
        snprintf(symbol, sizeof symbol, "py::f%zu:%s", index, path);
        size_t need = elfimage_names_needed(strlen(symbol), strlen(path));
        if (need > left)
            break;
        left -= need;
        ck_assert_int_eq(publish(index, symbol, path, INT32_MAX), 0);
    }
    ck_assert_uint_gt(index, 4);
    /* Far too much for what is left is refused, and spoils nothing. */
    int err = 0;
    for (int i = 0; i < 10000 && !err; i++)
        err = publish(0, symbol, path, 1);
    ck_assert_int_eq(err, -ENOSPC);
    Dl_info info;
    ck_assert(dladdr(slot_at(1).code, &info) != 0);
    ck_assert_int_eq(strncmp(info.dli_sname, "py::f1:p", 8), 0);
}
END_TEST

START_TEST(images_are_counted)
{
    const char *dir = unit_dir();
    char want[512];
    make(dir);
    struct arena_block first = block;
    make(dir);
    snprintf(want, sizeof want, "%s/pyjd-%d-2.so", dir, (int)getpid());
    ck_assert_str_eq(elfblock_path(&block), want);
    ck_assert_str_ne(elfblock_path(&first), want);
    ck_assert_mem_ne(block.slots, first.slots, ARCH_SLOT_SIZE);
}
END_TEST

START_TEST(retired_block_is_not_written)
{
    make(unit_dir());
    ck_assert_int_eq(publish(0, "py::f0:/a.py", "/a.py", 1), 0);
    size_t before_size = 0, after_size = 0;
    uint8_t *before = unit_read(elfblock_path(&block), &before_size);
    pid_t child = fork();
    if (child == 0) {
        elfblock_backing.retire(&block);
        make(unit_dir());
        _exit(publish(0, "py::f0:/b.py", "/b.py", 1) != 0);
    }
    int status = -1;
    waitpid(child, &status, 0);
    ck_assert_int_eq(status, 0);
    uint8_t *after = unit_read(elfblock_path(&block), &after_size);
    ck_assert_uint_eq(before_size, after_size);
    ck_assert_mem_eq(before, after, before_size);
    free(before);
    free(after);
    ck_assert_int_eq(publish(1, "py::f1:/a.py", "/a.py", 1), 0); /* the parent goes on */
}
END_TEST

/* A directory where `mount_flags` and `size` make an image impossible: an error, and no file left. */
static void expect_failure(const char *test, size_t size, unsigned long mount_flags, int error)
{
    const char *dir = unit_dir();
    const char *trouble = unit_mount_tmpfs(dir, size, mount_flags);
    if (trouble) {
        unit_skip(test, trouble);
        return;
    }
    elfblock_start(dir);
    ck_assert_int_eq(elfblock_backing.map(&block, 512), error);
    ck_assert_int_eq(rmdir(dir) == 0 || errno == EBUSY, 1);
    char name[64];
    snprintf(name, sizeof name, "pyjd-%d-1.so", (int)getpid());
    ck_assert_int_ne(access(unit_path(dir, name), F_OK), 0);
    ck_assert_int_eq(fcntl(512, F_GETFD), -1);
}

START_TEST(full_disk)
{
    expect_failure("full_disk", 16 << 10, 0, -ENOSPC);
}
END_TEST

START_TEST(noexec_file_system)
{
    expect_failure("noexec_file_system", 1 << 20, MS_NOEXEC, -ENOEXEC);
}
END_TEST

START_TEST(no_such_directory)
{
    elfblock_start("/nonexistent");
    ck_assert_int_eq(elfblock_backing.map(&block, 512), -ENOENT);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("elfblock");
    TCase *tcase = unit_case(suite, "image");
    tcase_add_test(tcase, image_is_a_private_file);
    tcase_add_test(tcase, lowest_mapping_is_the_code);
    tcase_add_test(tcase, child_has_no_writable_mapping);
#if defined(__x86_64__)
    tcase_add_test(tcase, cfi_of_every_slot);
#endif
    tcase_add_test(tcase, dladdr_knows_what_is_published);
    tcase_add_test(tcase, lines_of_what_is_published);
    tcase_add_test(tcase, size_stays_and_names_grow);
    tcase_add_test(tcase, names_needed_is_enough);
    tcase_add_test(tcase, images_are_counted);
    tcase_add_test(tcase, retired_block_is_not_written);
    tcase = unit_case(suite, "trouble");
    tcase_add_test(tcase, full_disk);
    tcase_add_test(tcase, noexec_file_system);
    tcase_add_test(tcase, no_such_directory);
    return unit_run(suite);
}
