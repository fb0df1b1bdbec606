#include "elf_slot.h"

#include <gelf.h>
#include <libelf.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* The file: headers, then what is loaded, then symbols. Virtual addresses are absolute. */
enum { LOADED_AT = 256, PHDRS = 2 };

static const char section_names[] =
    "\0.text\0.eh_frame\0.eh_frame_hdr\0.symtab\0.strtab\0.shstrtab";
enum { N_TEXT = 1, N_EH_FRAME = 7, N_HDR = 17, N_SYMTAB = 31, N_STRTAB = 39, N_SHSTRTAB = 47 };

static size_t round8(size_t size)
{
    return (size + 7) / 8 * 8;
}

size_t elf_slot_span(const struct elf_slot *slot)
{
    return slot->unwind ? round8(slot->code_size) + slot->unwind_size : slot->code_size;
}

/* Where the next section goes. */
struct place {
    Elf *elf;
    size_t offset;
};

static Elf_Scn *add(struct place *at, GElf_Shdr shdr, const void *data, size_t align)
{
    Elf_Scn *scn = elf_newscn(at->elf);
    Elf_Data *d = scn ? elf_newdata(scn) : NULL;
    GElf_Shdr unused;
    if (!d || !gelf_getshdr(scn, &unused))
        return NULL;
    at->offset = (at->offset + align - 1) / align * align;
    d->d_buf = (void *)(uintptr_t)data;
    d->d_size = shdr.sh_size;
    d->d_align = 1;
    d->d_type = shdr.sh_type == SHT_SYMTAB ? ELF_T_SYM : ELF_T_BYTE;
    d->d_version = EV_CURRENT;
    shdr.sh_offset = at->offset;
    shdr.sh_addralign = align;
    at->offset += shdr.sh_size;
    return gelf_update_shdr(scn, &shdr) ? scn : NULL;
}

static GElf_Shdr section(unsigned name, unsigned type, unsigned long flags, uint64_t addr, size_t size)
{
    return (GElf_Shdr){.sh_name = name, .sh_type = type, .sh_flags = flags, .sh_addr = addr,
                       .sh_size = size};
}

static int add_loaded(struct place *at, const struct elf_slot *slot)
{
    size_t eh_frame = slot->unwind_size - slot->unwind_hdr_size;
    uint64_t behind = slot->addr + round8(slot->code_size);
    int ok = !!add(at, section(N_TEXT, SHT_PROGBITS, SHF_ALLOC | SHF_EXECINSTR, slot->addr,
                               slot->code_size), slot->code, 1);
    if (slot->unwind) {
        at->offset = LOADED_AT + round8(slot->code_size);
        ok &= !!add(at, section(N_EH_FRAME, SHT_PROGBITS, SHF_ALLOC, behind, eh_frame),
                    slot->unwind, 1);
    }
    if (slot->unwind && slot->unwind_hdr_size)
        ok &= !!add(at, section(N_HDR, SHT_PROGBITS, SHF_ALLOC, behind + eh_frame,
                                slot->unwind_hdr_size), slot->unwind + eh_frame, 1);
    return ok;
}

static int add_symbols(struct place *at, const struct elf_slot *slot, char *strings)
{
    static Elf64_Sym symbols[2];
    size_t length = strlen(slot->name);
    memset(symbols, 0, sizeof symbols);
    symbols[1] = (Elf64_Sym){.st_name = 1, .st_info = ELF64_ST_INFO(STB_GLOBAL, STT_FUNC),
                             .st_shndx = 1, .st_value = slot->addr, .st_size = slot->code_size};
    strings[0] = '\0';
    memcpy(strings + 1, slot->name, length + 1);

    GElf_Shdr shdr = section(N_SYMTAB, SHT_SYMTAB, 0, 0, sizeof symbols);
    shdr.sh_entsize = sizeof symbols[0];
    shdr.sh_info = 1;
    Elf_Scn *symtab = add(at, shdr, symbols, 8);
    Elf_Scn *strtab = add(at, section(N_STRTAB, SHT_STRTAB, 0, 0, length + 2), strings, 1);
    if (!symtab || !strtab || !gelf_getshdr(symtab, &shdr))
        return 0;
    shdr.sh_link = (unsigned)elf_ndxscn(strtab);
    return gelf_update_shdr(symtab, &shdr) != 0;
}

static int add_program_headers(Elf *elf, const struct elf_slot *slot)
{
    size_t span = elf_slot_span(slot), hdr = slot->unwind ? slot->unwind_hdr_size : 0;
    size_t hdr_at = span - hdr;
    GElf_Phdr load = {.p_type = PT_LOAD, .p_flags = PF_R | PF_X, .p_offset = LOADED_AT,
                      .p_vaddr = slot->addr, .p_paddr = slot->addr, .p_filesz = span,
                      .p_memsz = span, .p_align = 1};
    GElf_Phdr eh = {.p_type = hdr ? PT_GNU_EH_FRAME : PT_NULL, .p_flags = PF_R,
                    .p_offset = LOADED_AT + hdr_at, .p_vaddr = slot->addr + hdr_at,
                    .p_paddr = slot->addr + hdr_at, .p_filesz = hdr, .p_memsz = hdr, .p_align = 1};
    return gelf_newphdr(elf, PHDRS) && gelf_update_phdr(elf, 0, &load) &&
           gelf_update_phdr(elf, 1, &eh);
}

static int write_elf(Elf *elf, const struct elf_slot *slot)
{
    static char strings[8192];
    struct place at = {.elf = elf, .offset = LOADED_AT};
    GElf_Ehdr ehdr;
    if (strlen(slot->name) + 2 > sizeof strings || !gelf_newehdr(elf, ELFCLASS64) ||
        !add_program_headers(elf, slot) || !add_loaded(&at, slot) ||
        !add_symbols(&at, slot, strings))
        return 0;
    Elf_Scn *names = add(&at, section(N_SHSTRTAB, SHT_STRTAB, 0, 0, sizeof section_names),
                         section_names, 1);
    if (!names || !gelf_getehdr(elf, &ehdr))
        return 0;
    ehdr.e_ident[EI_DATA] = ELFDATA2LSB;
    ehdr.e_type = ET_DYN;
    ehdr.e_machine = EM_X86_64;
    ehdr.e_version = EV_CURRENT;
    ehdr.e_phoff = sizeof(Elf64_Ehdr);
    ehdr.e_shoff = round8(at.offset);
    ehdr.e_shstrndx = (uint16_t)elf_ndxscn(names);
    elf_flagelf(elf, ELF_C_SET, ELF_F_LAYOUT);
    return gelf_update_ehdr(elf, &ehdr) && elf_update(elf, ELF_C_WRITE) > 0;
}

int elf_slot_make(const struct elf_slot *slot)
{
    elf_version(EV_CURRENT);
    int fd = memfd_create("slot", MFD_CLOEXEC);
    if (fd < 0) {
        perror("memfd_create");
        return -1;
    }
    Elf *elf = elf_begin(fd, ELF_C_WRITE, NULL);
    int ok = elf && write_elf(elf, slot);
    if (!ok)
        fprintf(stderr, "libelf: %s\n", elf_errmsg(-1));
    elf_end(elf);
    if (!ok) {
        close(fd);
        return -1;
    }
    return fd;
}
