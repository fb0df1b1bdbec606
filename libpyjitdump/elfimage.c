#include "elfimage.h"

#include "arch/arch.h"
#include "ehframe.h"
#include "platform.h"

#include <limits.h>
#include <string.h>
#include <unistd.h>

/* DWARF 4, sections 7.21, 7.5.4 and 7.12; and 7.7.1 for the line number unit's version. */
enum {
    DW_LNS_copy = 1,
    DW_LNS_advance_pc = 2,
    DW_LNS_advance_line = 3,
    DW_LNS_set_file = 4,
    DW_LNS_set_basic_block = 7,
    DW_LNE_end_sequence = 1,
    DW_LNE_set_address = 2,
    DW_TAG_compile_unit = 0x11,
    DW_AT_stmt_list = 0x10,
    DW_AT_low_pc = 0x11,
    DW_AT_high_pc = 0x12,
    DW_AT_language = 0x13,
    DW_AT_comp_dir = 0x1b,
    DW_AT_producer = 0x25,
    DW_FORM_addr = 0x01,
    DW_FORM_data8 = 0x07,
    DW_FORM_data2 = 0x05,
    DW_FORM_string = 0x08,
    DW_FORM_sec_offset = 0x17,
    DW_LANG_Python = 0x14,
    DWARF_VERSION = 4,
};

/* Bytes of names a slot has on average; a block whose share is used up is left. */
enum { NAMES_PER_SLOT = 160 };

enum { PHDR_COUNT = 5, DYN_COUNT = 6 };

static void begin(struct bytes *b, struct elfimage_layout *l, int section, size_t alignment)
{
    bytes_align(b, alignment);
    l->begin[section] = b->len;
}

static void put_text(struct bytes *b, struct elfimage_layout *l, uint64_t salt)
{
    begin(b, l, ELFIMAGE_TEXT, platform_page_size());
    for (size_t i = 0; i < l->capacity && !b->overflow; i++) {
        uint8_t slot[ARCH_SLOT_STRIDE];
        arch_write_slot(slot, salt + i);
        bytes_put(b, slot, sizeof slot);
    }
    l->end[ELFIMAGE_TEXT] = b->len;
}

static void put_unwind(struct bytes *b, struct elfimage_layout *l)
{
    begin(b, l, ELFIMAGE_EH_FRAME, 8);
    l->end[ELFIMAGE_EH_FRAME] = l->begin[ELFIMAGE_EH_FRAME_HDR] =
        b->len + ehframe_table(b, l->begin[ELFIMAGE_TEXT], l->capacity);
    l->end[ELFIMAGE_EH_FRAME_HDR] = b->len;
}

static void put_symbols(struct bytes *b, struct elfimage_layout *l)
{
    begin(b, l, ELFIMAGE_HASH, 8);
    bytes_u32(b, 1);                                /* nbucket */
    bytes_u32(b, (uint32_t)l->capacity + 1);        /* nchain */
    bytes_zeros(b, 4 + 4 * (l->capacity + 1));      /* bucket, chain: nothing to be found */
    l->end[ELFIMAGE_HASH] = b->len;

    begin(b, l, ELFIMAGE_DYNSYM, 8);
    bytes_zeros(b, sizeof(Elf64_Sym));
    for (size_t i = 0; i < l->capacity; i++) {
        Elf64_Sym symbol = {
            .st_info = ELF64_ST_INFO(STB_GLOBAL, STT_FUNC),
            .st_shndx = ELFIMAGE_TEXT,
            .st_value = l->begin[ELFIMAGE_TEXT] + i * ARCH_SLOT_STRIDE,
            .st_size = ARCH_SLOT_SIZE,
        };
        bytes_put(b, &symbol, sizeof symbol);
    }
    l->end[ELFIMAGE_DYNSYM] = b->len;
}

static void put_line_record(struct bytes *b, uint64_t addr)
{
    static const uint8_t set_address[] = {0, 1 + sizeof addr, DW_LNE_set_address};
    static const uint8_t rest[] = {DW_LNS_copy, DW_LNS_advance_pc, ARCH_SLOT_SIZE,
                                   0, 1, DW_LNE_end_sequence};
    size_t start = b->len;
    bytes_put(b, set_address, sizeof set_address);
    bytes_u64(b, addr);
    bytes_fill(b, DW_LNS_set_basic_block, start + ELFIMAGE_LINE_WORD - 1 - b->len);
    bytes_u8(b, DW_LNS_set_file);
    bytes_u64(b, elfimage_line_word(ELFIMAGE_NO_FILE, 0));
    bytes_put(b, rest, sizeof rest);
    bytes_fill(b, DW_LNS_set_basic_block, start + ELFIMAGE_LINE_RECORD - b->len);
}

/* .dynstr begins with the empty string, as it must. */
static void put_names_and_lines(struct bytes *b, struct elfimage_layout *l)
{
    static const uint8_t operands[] = {0, 1, 1, 1, 1, 0, 0, 0, 1, 0, 0, 1}; /* of opcodes 1 to 12 */
    enum { END_OF_LIST = 5 }; /* of the last name: NUL, three bytes; and the empty name */
    static const char no_file[] = "<no function yet>";

    begin(b, l, ELFIMAGE_DYNSTR, 8);
    bytes_zeros(b, 4);
    size_t unit = l->begin[ELFIMAGE_DEBUG_LINE] = b->len;
    bytes_u32(b, 0);                       /* unit_length */
    bytes_u16(b, DWARF_VERSION);
    size_t header_length = b->len;
    bytes_u32(b, 0);                       /* header_length */
    bytes_u8(b, 1);                        /* minimum_instruction_length */
    bytes_u8(b, 1);                        /* maximum_operations_per_instruction */
    bytes_u8(b, 1);                        /* default_is_stmt */
    bytes_u8(b, (uint8_t)-1);              /* line_base; special opcodes are not used */
    bytes_u8(b, 4);                        /* line_range */
    bytes_u8(b, sizeof operands + 1);      /* opcode_base */
    bytes_put(b, operands, sizeof operands);
    bytes_u8(b, 0);                        /* no include_directories */
    elfimage_put_name(b, no_file, sizeof no_file - 1);
    l->names = b->len;
    bytes_fill(b, '.', l->capacity * NAMES_PER_SLOT);
    bytes_fill(b, '.', -(b->len + END_OF_LIST) & 7); /* the line records are aligned */
    l->names_end = b->len - 1;
    bytes_zeros(b, END_OF_LIST);
    l->end[ELFIMAGE_DYNSTR] = l->lines = b->len;
    bytes_patch_u32(b, header_length, (uint32_t)(b->len - header_length - 4));
    for (size_t i = 0; i < l->capacity && !b->overflow; i++)
        put_line_record(b, l->begin[ELFIMAGE_TEXT] + i * ARCH_SLOT_STRIDE);
    bytes_patch_u32(b, unit, (uint32_t)(b->len - unit - 4));
    l->end[ELFIMAGE_DEBUG_LINE] = l->loaded = b->len;
}

static void put_dynamic(struct bytes *b, struct elfimage_layout *l)
{
    begin(b, l, ELFIMAGE_DYNAMIC, platform_page_size());
    const Elf64_Dyn entries[DYN_COUNT] = {
        {DT_HASH, {l->begin[ELFIMAGE_HASH]}},
        {DT_SYMTAB, {l->begin[ELFIMAGE_DYNSYM]}},
        {DT_STRTAB, {l->begin[ELFIMAGE_DYNSTR]}},
        {DT_STRSZ, {l->end[ELFIMAGE_DYNSTR] - l->begin[ELFIMAGE_DYNSTR]}},
        {DT_SYMENT, {sizeof(Elf64_Sym)}},
        {DT_NULL, {0}},
    };
    bytes_put(b, entries, sizeof entries);
    l->end[ELFIMAGE_DYNAMIC] = b->len;
}

static void put_debug(struct bytes *b, struct elfimage_layout *l)
{
    static const uint8_t abbreviation[] = {
        1, DW_TAG_compile_unit, 0, /* no children */
        DW_AT_producer, DW_FORM_string, DW_AT_comp_dir, DW_FORM_string,
        DW_AT_language, DW_FORM_data2,
        DW_AT_low_pc, DW_FORM_addr, DW_AT_high_pc, DW_FORM_data8,
        DW_AT_stmt_list, DW_FORM_sec_offset, 0, 0,
        0,
    };
    static const char producer[] = "libpyjitdump " PYJD_VERSION;
    char directory[PATH_MAX];

    begin(b, l, ELFIMAGE_DEBUG_ABBREV, 1);
    bytes_put(b, abbreviation, sizeof abbreviation);
    l->end[ELFIMAGE_DEBUG_ABBREV] = b->len;

    begin(b, l, ELFIMAGE_DEBUG_INFO, 4);
    bytes_u32(b, 0);                                            /* unit_length */
    bytes_u16(b, DWARF_VERSION);
    bytes_u32(b, 0);                                            /* debug_abbrev_offset */
    bytes_u8(b, sizeof(uint64_t));                              /* address_size */
    bytes_u8(b, 1);                                             /* the abbreviation above */
    bytes_put(b, producer, sizeof producer);
    /* Where file names that are relative begin. libdw of 2026 takes it for granted that there is one. */
    if (!getcwd(directory, sizeof directory))
        strcpy(directory, "/");
    bytes_cstr(b, directory, strlen(directory));
    bytes_u16(b, DW_LANG_Python);
    bytes_u64(b, l->begin[ELFIMAGE_TEXT]);
    bytes_u64(b, l->end[ELFIMAGE_TEXT] - l->begin[ELFIMAGE_TEXT]);
    bytes_u32(b, 0);                                            /* the only line number unit */
    l->end[ELFIMAGE_DEBUG_INFO] = b->len;
    bytes_patch_u32(b, l->begin[ELFIMAGE_DEBUG_INFO],
                    (uint32_t)(b->len - l->begin[ELFIMAGE_DEBUG_INFO] - 4));

    /* DWARF 4, section 6.1.2: readers that look up addresses begin here. */
    enum { ARANGES_REST = 2 + 4 + 1 + 1 + 4 + 4 * sizeof(uint64_t) };
    begin(b, l, ELFIMAGE_DEBUG_ARANGES, 16);
    bytes_u32(b, ARANGES_REST);
    bytes_u16(b, 2);                                            /* version */
    bytes_u32(b, 0);                                            /* the only compilation unit */
    bytes_u8(b, sizeof(uint64_t));                              /* address_size */
    bytes_u8(b, 0);                                             /* segment_size */
    bytes_align(b, 16);
    bytes_u64(b, l->begin[ELFIMAGE_TEXT]);
    bytes_u64(b, l->end[ELFIMAGE_TEXT] - l->begin[ELFIMAGE_TEXT]);
    bytes_zeros(b, 2 * sizeof(uint64_t));
    l->end[ELFIMAGE_DEBUG_ARANGES] = b->len;
}

static void put_section_headers(struct bytes *b, struct elfimage_layout *l)
{
    static const struct {
        const char *name;
        uint32_t type, link, info;
        uint64_t flags, alignment, entry_size;
    } sections[ELFIMAGE_SECTIONS] = {
        [ELFIMAGE_NULL] = {.name = ""},
        [ELFIMAGE_TEXT] = {".text", SHT_PROGBITS, 0, 0, SHF_ALLOC | SHF_EXECINSTR, 4096, 0},
        [ELFIMAGE_EH_FRAME] = {".eh_frame", SHT_PROGBITS, 0, 0, SHF_ALLOC, 8, 0},
        [ELFIMAGE_EH_FRAME_HDR] = {".eh_frame_hdr", SHT_PROGBITS, 0, 0, SHF_ALLOC, 4, 0},
        [ELFIMAGE_HASH] = {".hash", SHT_HASH, ELFIMAGE_DYNSYM, 0, SHF_ALLOC, 8, 4},
        [ELFIMAGE_DYNSYM] = {".dynsym", SHT_DYNSYM, ELFIMAGE_DYNSTR, 1, SHF_ALLOC, 8, sizeof(Elf64_Sym)},
        [ELFIMAGE_DYNSTR] = {".dynstr", SHT_STRTAB, 0, 0, SHF_ALLOC, 1, 0},
        [ELFIMAGE_DYNAMIC] = {".dynamic", SHT_DYNAMIC, ELFIMAGE_DYNSTR, 0, SHF_ALLOC | SHF_WRITE, 8,
                          sizeof(Elf64_Dyn)},
        [ELFIMAGE_DEBUG_LINE] = {".debug_line", SHT_PROGBITS, 0, 0, 0, 1, 0},
        [ELFIMAGE_DEBUG_ABBREV] = {".debug_abbrev", SHT_PROGBITS, 0, 0, 0, 1, 0},
        [ELFIMAGE_DEBUG_INFO] = {".debug_info", SHT_PROGBITS, 0, 0, 0, 1, 0},
        [ELFIMAGE_DEBUG_ARANGES] = {".debug_aranges", SHT_PROGBITS, 0, 0, 0, 16, 0},
        [ELFIMAGE_SHSTRTAB] = {".shstrtab", SHT_STRTAB, 0, 0, 0, 1, 0},
    };
    uint32_t names[ELFIMAGE_SECTIONS];

    begin(b, l, ELFIMAGE_SHSTRTAB, 1);
    for (int i = 0; i < ELFIMAGE_SECTIONS; i++) {
        names[i] = (uint32_t)(b->len - l->begin[ELFIMAGE_SHSTRTAB]);
        bytes_cstr(b, sections[i].name, strlen(sections[i].name));
    }
    l->end[ELFIMAGE_SHSTRTAB] = b->len;

    bytes_align(b, 8);
    l->headers = b->len;
    for (int i = 0; i < ELFIMAGE_SECTIONS; i++) {
        Elf64_Shdr header = {
            .sh_name = names[i],
            .sh_type = sections[i].type,
            .sh_flags = sections[i].flags,
            .sh_addr = sections[i].flags & SHF_ALLOC ? l->begin[i] : 0,
            .sh_offset = l->begin[i],
            .sh_size = l->end[i] - l->begin[i],
            .sh_link = sections[i].link,
            .sh_info = sections[i].info,
            .sh_addralign = sections[i].alignment,
            .sh_entsize = sections[i].entry_size,
        };
        bytes_put(b, &header, sizeof header);
    }
}

static Elf64_Phdr segment(uint32_t type, uint32_t flags, size_t from, size_t to, size_t alignment)
{
    return (Elf64_Phdr){.p_type = type, .p_flags = flags, .p_offset = from, .p_vaddr = from,
                        .p_paddr = from, .p_filesz = to - from, .p_memsz = to - from,
                        .p_align = alignment};
}

static void put_headers(struct bytes *b, const struct elfimage_layout *l)
{
    size_t page = platform_page_size();
    const Elf64_Ehdr elf = {
        .e_ident = {ELFMAG0, ELFMAG1, ELFMAG2, ELFMAG3, ELFCLASS64,
                    __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__ ? ELFDATA2LSB : ELFDATA2MSB,
                    EV_CURRENT, ELFOSABI_NONE},
        .e_type = ET_DYN, .e_machine = arch.elf_machine, .e_version = EV_CURRENT,
        .e_phoff = sizeof elf, .e_shoff = l->headers, .e_ehsize = sizeof elf,
        .e_phentsize = sizeof(Elf64_Phdr), .e_phnum = PHDR_COUNT,
        .e_shentsize = sizeof(Elf64_Shdr), .e_shnum = ELFIMAGE_SECTIONS, .e_shstrndx = ELFIMAGE_SHSTRTAB,
    };
    size_t dynamic = l->begin[ELFIMAGE_DYNAMIC], dynamic_end = l->end[ELFIMAGE_DYNAMIC];
    size_t hdr = l->begin[ELFIMAGE_EH_FRAME_HDR], hdr_end = l->end[ELFIMAGE_EH_FRAME_HDR];
    const Elf64_Phdr segments[PHDR_COUNT] = {
        segment(PT_LOAD, PF_R | PF_X, 0, l->loaded, page),
        segment(PT_LOAD, PF_R | PF_W, dynamic, dynamic_end, page),
        segment(PT_DYNAMIC, PF_R | PF_W, dynamic, dynamic_end, 8),
        segment(PT_GNU_EH_FRAME, PF_R, hdr, hdr_end, 4),
        segment(PT_GNU_STACK, PF_R | PF_W, 0, 0, 16),
    };
    bytes_put(b, &elf, sizeof elf);
    bytes_put(b, segments, sizeof segments);
}

size_t elfimage_size_most(size_t capacity)
{
    enum { PER_SLOT = ARCH_SLOT_STRIDE + EHFRAME_ENTRY_MOST + 4 + sizeof(Elf64_Sym) + NAMES_PER_SLOT +
           ELFIMAGE_LINE_RECORD };
    return capacity * PER_SLOT + 2 * platform_page_size() + PATH_MAX + 4096;
}

void elfimage_compose(struct bytes *out, struct elfimage_layout *layout, size_t capacity,
                      uint64_t salt)
{
    *layout = (struct elfimage_layout){.capacity = capacity};
    bytes_zeros(out, sizeof(Elf64_Ehdr) + PHDR_COUNT * sizeof(Elf64_Phdr));
    put_text(out, layout, salt);
    put_unwind(out, layout);
    put_symbols(out, layout);
    put_names_and_lines(out, layout);
    put_dynamic(out, layout);
    put_debug(out, layout);
    put_section_headers(out, layout);
    struct bytes start = bytes_over(out->base, out->overflow ? 0 : out->len);
    put_headers(&start, layout);
}

/* ------------------------------------------------------------------------------------- publishing */

size_t elfimage_names_needed(size_t symbol_length, size_t path_length)
{
    enum { BEHIND_A_NAME = 4 };
    return symbol_length + BEHIND_A_NAME + path_length + BEHIND_A_NAME;
}

void elfimage_put_name(struct bytes *b, const char *name, size_t length)
{
    bytes_cstr(b, name, length);
    bytes_zeros(b, 3); /* directory, time and length of the file: not known */
}

/* LEB128 of a fixed size: a value takes as many bytes as it is given (DWARF 4, section 7.6). */
static void put_padded_leb(uint8_t *out, size_t size, uint32_t value)
{
    for (size_t i = 0; i < size; i++)
        out[i] = (uint8_t)((value >> (7 * i) & 0x7f) | (i + 1 < size ? 0x80 : 0));
}

uint64_t elfimage_line_word(uint32_t file, int32_t line)
{
    enum { FILE_SIZE = 3, FILE_MOST = 1 << 21, LINE_MOST = 1 << 27 };
    uint8_t bytes[sizeof(uint64_t)];
    uint64_t word;
    if (file >= FILE_MOST || line < 0 || line >= LINE_MOST) {
        file = ELFIMAGE_NO_FILE;
        line = 0;
    }
    put_padded_leb(bytes, FILE_SIZE, file);
    bytes[FILE_SIZE] = DW_LNS_advance_line;
    put_padded_leb(bytes + FILE_SIZE + 1, sizeof bytes - FILE_SIZE - 1, (uint32_t)(line - 1));
    memcpy(&word, bytes, sizeof word);
    return word;
}
