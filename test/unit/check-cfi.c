/* check-cfi FILE...: is the .eh_frame of these ELF files true to the bytes of their code?
 *
 * For files that `perf inject --jit` has made of a jitdump (jitted-PID-INDEX.so). Prints a line for
 * each file that is wrong, and a count; the exit status is 0 if all are right. x86-64 only.
 */
#include "cfi_model.h"

#include <fcntl.h>
#include <libelf.h>
#include <stdio.h>
#include <unistd.h>

static int check_file(const char *path, char trouble[CFI_TROUBLE])
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        snprintf(trouble, CFI_TROUBLE, "cannot be opened");
        return -1;
    }
    Elf *elf = elf_begin(fd, ELF_C_READ_MMAP, NULL);
    int count = -1;
    if (!elf || elf_kind(elf) != ELF_K_ELF)
        snprintf(trouble, CFI_TROUBLE, "not an ELF file");
    else
        count = cfi_check_elf(elf, trouble);
    elf_end(elf);
    close(fd);
    return count;
}

int main(int argc, char **argv)
{
    int wrong = 0, functions = 0;
    if (argc < 2) {
        fprintf(stderr, "usage: %s FILE...\n", argv[0]);
        return 2;
    }
    elf_version(EV_CURRENT);
    for (int i = 1; i < argc; i++) {
        char trouble[CFI_TROUBLE] = "";
        int count = check_file(argv[i], trouble);
        if (count < 0) {
            fprintf(stderr, "%s: %s\n", argv[i], trouble);
            wrong++;
        } else {
            functions += count;
        }
    }
    printf("%d files, %d functions right, %d files wrong\n", argc - 1, functions, wrong);
    return wrong != 0;
}
