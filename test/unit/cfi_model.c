#include "cfi_model.h"

#include <dwarf.h>
#include <gelf.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int fail(char trouble[CFI_TROUBLE], const char *format, ...)
    __attribute__((format(printf, 2, 3)));

static int fail(char trouble[CFI_TROUBLE], const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(trouble, CFI_TROUBLE, format, args);
    va_end(args);
    return -1;
}

/* ---- the machine ---- */

/* DWARF numbers of the registers, in the order of the instruction encoding. */
enum { RBX = 3, RBP = 6, RSP = 7, R12 = 12, R15 = 15, RA = 16, REGISTERS = 17 };
static const uint8_t dwarf_number[16] = {0, 2, 1, 3, 7, 6, 4, 5, 8, 9, 10, 11, 12, 13, 14, 15};

enum { STACK_WORDS = 64, ENTRY_WORD = 40 };
static const uint64_t stack_low = 0x7ffc00001000;

struct machine {
    uint64_t reg[REGISTERS];       /* RA: where ret went, 0 before that */
    uint64_t stack[STACK_WORDS];
};

static bool on_stack(uint64_t addr)
{
    return addr >= stack_low && addr % 8 == 0 && (addr - stack_low) / 8 < STACK_WORDS;
}

static uint64_t *stack_word(struct machine *m, uint64_t addr)
{
    return &m->stack[(addr - stack_low) / 8];
}

/* As a caller leaves it: every register and word different, the return address on top. */
static void enter(struct machine *m)
{
    for (unsigned i = 0; i < REGISTERS; i++)
        m->reg[i] = 0x1111000000000000 + i * 0x10001;
    for (unsigned i = 0; i < STACK_WORDS; i++)
        m->stack[i] = 0x2222000000000000 + i * 0x10001;
    m->reg[RSP] = stack_low + 8 * ENTRY_WORD;
    m->reg[RA] = 0;
    *stack_word(m, m->reg[RSP]) = 0x5555555500001234;
}

enum kind { BAD, NOTHING, PUSH, POP, MOV_RSP_RBP, ADJUST_RSP, CALL, LEAVE, RET, TRAP, LOAD_IMM };

struct instruction {
    enum kind kind;
    size_t size;
    unsigned reg;   /* DWARF number */
    int8_t imm;
};

static struct instruction one(enum kind kind, size_t size, unsigned encoded, int imm)
{
    return (struct instruction){kind, size, dwarf_number[encoded & 15], (int8_t)imm};
}

/* The instruction at `code`, of at most `room` bytes (Intel SDM, volume 2). */
static struct instruction decode(const uint8_t *code, size_t room)
{
    uint8_t b[10] = {0};
    memcpy(b, code, room < sizeof b ? room : sizeof b);
    unsigned high = 0; /* REX.B: registers 8 to 15 */
    size_t rex = 0;
    struct instruction found = {BAD, 1, 0, 0};

    if (memcmp(b, "\xf3\x0f\x1e\xfa", 4) == 0)
        found = one(NOTHING, 4, 0, 0);
    else if (memcmp(b, "\x48\x89\xe5", 3) == 0)
        found = one(MOV_RSP_RBP, 3, 0, 0);
    else if (b[0] == 0x48 && (b[1] & 0xf8) == 0xb8)
        found = one(LOAD_IMM, 10, b[1] & 7, 0);
    else if (memcmp(b, "\x48\x83\xec", 3) == 0)
        found = one(ADJUST_RSP, 4, 0, -(int8_t)b[3]);
    else if (memcmp(b, "\x48\x83\xc4", 3) == 0)
        found = one(ADJUST_RSP, 4, 0, (int8_t)b[3]);
    else {
        if (b[0] == 0x41) {
            high = 8;
            rex = 1;
        }
        const uint8_t *op = b + rex;
        if ((op[0] & 0xf8) == 0x50)
            found = one(PUSH, rex + 1, high + (op[0] & 7), 0);
        else if ((op[0] & 0xf8) == 0x58)
            found = one(POP, rex + 1, high + (op[0] & 7), 0);
        else if (op[0] == 0xff && (op[1] & 0xf8) == 0xd0)
            found = one(CALL, rex + 2, high + (op[1] & 7), 0);
        else if (!rex && op[0] == 0xc9)
            found = one(LEAVE, 1, 0, 0);
        else if (!rex && op[0] == 0xc3)
            found = one(RET, 1, 0, 0);
        else if (!rex && op[0] == 0xcc)
            found = one(TRAP, 1, 0, 0);
        else if (!rex && op[0] == 0x90)
            found = one(NOTHING, 1, 0, 0);
    }
    if (found.size > room)
        found.kind = BAD;
    return found;
}

static bool push(struct machine *m, uint64_t value)
{
    m->reg[RSP] -= 8;
    if (!on_stack(m->reg[RSP]))
        return false;
    *stack_word(m, m->reg[RSP]) = value;
    return true;
}

/* What was popped is gone: a profiler copies the stack from rsp upwards. */
static bool pop(struct machine *m, uint64_t *value)
{
    if (!on_stack(m->reg[RSP]))
        return false;
    *value = *stack_word(m, m->reg[RSP]);
    *stack_word(m, m->reg[RSP]) = 0x9999999999999999;
    m->reg[RSP] += 8;
    return true;
}

/* The callee may do what the ABI lets it: change every register it need not preserve, and what is below
 * the stack pointer. */
static bool call(struct machine *m)
{
    if (!push(m, 0x6666))
        return false;
    for (uint64_t at = stack_low; at < m->reg[RSP]; at += 8)
        *stack_word(m, at) = 0x7777000000000000 + at;
    m->reg[RSP] += 8;
    for (unsigned i = 0; i < RA; i++)
        if (i != RBX && i != RBP && i != RSP && i < R12)
            m->reg[i] = 0x8888000000000000 + i;
    return true;
}

static bool run(struct machine *m, struct instruction i)
{
    switch (i.kind) {
    case NOTHING:
        return true;
    case PUSH:
        return push(m, m->reg[i.reg]);
    case POP: {
        uint64_t value = 0;
        bool ok = pop(m, &value);
        m->reg[i.reg] = value;
        return ok;
    }
    case MOV_RSP_RBP:
        m->reg[RBP] = m->reg[RSP];
        return true;
    case ADJUST_RSP:
        m->reg[RSP] += (uint64_t)(int64_t)i.imm;
        return true;
    case CALL:
        return call(m);
    case LEAVE:
        m->reg[RSP] = m->reg[RBP];
        return pop(m, &m->reg[RBP]);
    case RET:
        return pop(m, &m->reg[RA]);
    case LOAD_IMM:
        m->reg[i.reg] = 0;
        return true;
    case TRAP:
    case BAD:
        break;
    }
    return false;
}

/* ---- what libdw says ---- */

/* A DWARF expression's stack, and what kind of thing its result is. */
struct evaluation {
    uint64_t stack[16];
    unsigned depth;
    bool is_value;   /* else the address of it */
};

static bool step(struct evaluation *e, const Dwarf_Op *op, struct machine *m, uint64_t cfa)
{
    uint64_t *top = e->depth ? &e->stack[e->depth - 1] : NULL;
    if (e->depth == 16)
        return false;
    if (op->atom >= DW_OP_breg0 && op->atom < DW_OP_breg0 + RA) {
        e->stack[e->depth++] = m->reg[op->atom - DW_OP_breg0] + op->number;
        return true;
    }
    if (op->atom >= DW_OP_reg0 && op->atom < DW_OP_reg0 + RA) {
        e->stack[e->depth++] = m->reg[op->atom - DW_OP_reg0];
        e->is_value = true;
        return true;
    }
    switch (op->atom) {
    case DW_OP_bregx:
        if (op->number >= RA)
            return false;
        e->stack[e->depth++] = m->reg[op->number] + op->number2;
        return true;
    case DW_OP_call_frame_cfa:
        e->stack[e->depth++] = cfa;
        return true;
    case DW_OP_consts:
    case DW_OP_constu:
        e->stack[e->depth++] = op->number;
        return true;
    case DW_OP_plus_uconst:
        if (top)
            *top += op->number;
        return top != NULL;
    case DW_OP_plus:
        if (e->depth < 2)
            return false;
        e->stack[e->depth - 2] += *top;
        e->depth--;
        return true;
    case DW_OP_stack_value:
        e->is_value = true;
        return true;
    default:
        return false;
    }
}

static bool evaluate(const Dwarf_Op *ops, size_t count, struct machine *m, uint64_t cfa,
                     struct evaluation *e)
{
    *e = (struct evaluation){.depth = 0};
    for (size_t i = 0; i < count; i++)
        if (!step(e, &ops[i], m, cfa))
            return false;
    return e->depth == 1;
}

/* The caller's value of a register. */
static bool caller_register(Dwarf_Frame *frame, int regno, struct machine *m, uint64_t cfa,
                            uint64_t *value)
{
    Dwarf_Op memory[3], *ops = NULL;
    size_t count = 0;
    struct evaluation e;
    if (dwarf_frame_register(frame, regno, memory, &ops, &count))
        return false;
    if (count == 0) {
        /* The same value, or undefined. A preserved register that the CFI does not mention is the former
         * by the ABI, but the defaults of elfutils up to 0.188 at least (backends/x86_64_cfi.c) name
         * register 0 where rbx is meant. */
        *value = m->reg[regno];
        return ops == NULL || regno == RBX;
    }
    if (!evaluate(ops, count, m, cfa, &e))
        return false;
    if (!e.is_value && !on_stack(e.stack[0]))
        return false;
    *value = e.is_value ? e.stack[0] : *stack_word(m, e.stack[0]);
    return true;
}

/* Compares at one address: `now` is the machine there, `start` the machine at the function's entry. */
static int compare(Dwarf_Frame *frame, struct machine *now, struct machine *start, size_t offset,
                   char trouble[CFI_TROUBLE])
{
    static const uint8_t preserved[] = {RBX, RBP, 12, 13, 14, R15};
    Dwarf_Op *ops = NULL;
    size_t count = 0;
    struct evaluation e;
    uint64_t cfa = start->reg[RSP] + 8, value = 0;

    if (dwarf_frame_cfa(frame, &ops, &count) || !evaluate(ops, count, now, 0, &e))
        return fail(trouble, "offset %zu: no CFA that can be computed", offset);
    if (e.stack[0] != cfa)
        return fail(trouble, "offset %zu: CFA is at %+lld, not where the caller's frame begins",
                    offset, (long long)(e.stack[0] - cfa));
    int column = dwarf_frame_info(frame, NULL, NULL, NULL);
    if (column != RA)
        return fail(trouble, "offset %zu: return address in column %d", offset, column);
    if (!caller_register(frame, RA, now, cfa, &value) ||
        value != *stack_word(start, start->reg[RSP]))
        return fail(trouble, "offset %zu: wrong return address %#llx", offset,
                    (unsigned long long)value);
    if (!caller_register(frame, RSP, now, cfa, &value) || value != cfa)
        return fail(trouble, "offset %zu: wrong rsp of the caller", offset);
    for (size_t i = 0; i < sizeof preserved; i++)
        if (!caller_register(frame, preserved[i], now, cfa, &value) ||
            value != start->reg[preserved[i]])
            return fail(trouble, "offset %zu: wrong value of register %d%s: %#llx", offset,
                        preserved[i], preserved[i] == RBP ? " (rbp)" : "",
                        (unsigned long long)value);
    return 0;
}

static int compare_at(Dwarf_CFI *cfi, uint64_t addr, size_t offset, struct machine *now,
                      struct machine *start, char trouble[CFI_TROUBLE])
{
    Dwarf_Frame *frame = NULL;
    if (dwarf_cfi_addrframe(cfi, addr + offset, &frame))
        return fail(trouble, "offset %zu: libdw finds no frame information: %s", offset,
                    dwarf_errmsg(-1));
    int err = compare(frame, now, start, offset, trouble);
    free(frame);
    return err;
}

/* Does the code, once it has returned, leave what the ABI asks for? Else the model is no reference. */
static int check_return(struct machine *m, struct machine *start, char trouble[CFI_TROUBLE])
{
    bool ok = m->reg[RSP] == start->reg[RSP] + 8 &&
              m->reg[RA] == *stack_word(start, start->reg[RSP]) && m->reg[RBX] == start->reg[RBX] &&
              m->reg[RBP] == start->reg[RBP];
    for (unsigned i = R12; i <= R15; i++)
        ok = ok && m->reg[i] == start->reg[i];
    return ok ? 0 : fail(trouble, "the code does not return to its caller as the ABI asks");
}

int cfi_check_function(Dwarf_CFI *cfi, uint64_t addr, const uint8_t *code, size_t size,
                       char trouble[CFI_TROUBLE])
{
    struct machine start, now;
    bool returned = false;
    enter(&start);
    now = start;
    for (size_t offset = 0; offset < size;) {
        struct instruction i = decode(code + offset, size - offset);
        struct machine before = now;
        if (i.kind == BAD)
            return fail(trouble, "offset %zu: no instruction that the model knows (0x%02x)", offset,
                        code[offset]);
        if (!returned && !run(&now, i))
            return fail(trouble, "offset %zu: the instruction does not run in the model", offset);
        for (size_t byte = 0; byte < i.size; byte++)
            if (compare_at(cfi, addr, offset + byte, &before, &start, trouble))
                return -1;
        if (!returned && i.kind == RET) {
            returned = true;
            if (check_return(&now, &start, trouble))
                return -1;
            now = before; /* for what follows and never runs */
        }
        offset += i.size;
    }
    return returned ? 0 : fail(trouble, "the code has no ret");
}

/* ---- ELF files ---- */

struct section {
    GElf_Shdr shdr;
    Elf_Data *data;
};

/* The section of this name, or, without a name, the executable one that holds `addr`. */
static bool find_section(Elf *elf, const char *name, uint64_t addr, struct section *found)
{
    size_t names = 0;
    Elf_Scn *scn = NULL;
    if (elf_getshdrstrndx(elf, &names))
        return false;
    while ((scn = elf_nextscn(elf, scn))) {
        if (!gelf_getshdr(scn, &found->shdr))
            continue;
        const char *its = elf_strptr(elf, names, found->shdr.sh_name);
        bool match = name ? its && strcmp(its, name) == 0
                          : (found->shdr.sh_flags & SHF_EXECINSTR) &&
                                addr - found->shdr.sh_addr < found->shdr.sh_size;
        if (match && (found->data = elf_rawdata(scn, NULL)))
            return true;
    }
    return false;
}

static int32_t s32_at(const void *at)
{
    int32_t value;
    memcpy(&value, at, sizeof value);
    return value;
}

struct fde {
    uint64_t addr, start, size; /* of the FDE itself, and of the code it is for */
};

/* The binary search table of .eh_frame_hdr (LSB Core 5.0, 10.6.2) against the FDEs, which are in the
 * order of their code. */
static int check_header(const struct section *hdr, const struct section *eh_frame,
                        const struct fde *fdes, size_t count, char trouble[CFI_TROUBLE])
{
    static const uint8_t opening[] = {1, DW_EH_PE_pcrel | DW_EH_PE_sdata4, DW_EH_PE_udata4,
                                      DW_EH_PE_datarel | DW_EH_PE_sdata4};
    const uint8_t *base = hdr->data->d_buf;
    uint64_t addr = hdr->shdr.sh_addr;
    if (hdr->data->d_size < 12 || memcmp(base, opening, sizeof opening) != 0)
        return fail(trouble, ".eh_frame_hdr does not begin as it should");
    if (addr + 4 + (uint64_t)s32_at(base + 4) != eh_frame->shdr.sh_addr)
        return fail(trouble, ".eh_frame_hdr does not lead to .eh_frame");
    if ((uint32_t)s32_at(base + 8) != count || hdr->data->d_size < 12 + 8 * count)
        return fail(trouble, ".eh_frame_hdr has %d entries for %zu FDEs", s32_at(base + 8), count);
    for (size_t i = 0; i < count; i++) {
        const uint8_t *entry = base + 12 + 8 * i;
        if (addr + (uint64_t)s32_at(entry) != fdes[i].start ||
            addr + (uint64_t)s32_at(entry + 4) != fdes[i].addr)
            return fail(trouble, ".eh_frame_hdr: entry %zu does not lead to its FDE", i);
    }
    return 0;
}

static int check_fde(Elf *elf, Dwarf_CFI *cfi, const struct fde *fde, char trouble[CFI_TROUBLE])
{
    struct section text;
    char what[CFI_TROUBLE] = "";
    if (!find_section(elf, NULL, fde->start, &text) ||
        fde->start - text.shdr.sh_addr + fde->size > text.data->d_size)
        return fail(trouble, "function at %#llx: outside of the code",
                    (unsigned long long)fde->start);
    const uint8_t *code = (const uint8_t *)text.data->d_buf + (fde->start - text.shdr.sh_addr);
    if (cfi_check_function(cfi, fde->start, code, fde->size, what))
        return fail(trouble, "function at %#llx, %.180s", (unsigned long long)fde->start, what);
    return 0;
}

/* Reads the FDEs of .eh_frame, of which pc_begin must be pcrel|sdata4. Returns how many, or -1. */
static long read_fdes(Elf *elf, const struct section *eh_frame, struct fde *fdes, size_t room,
                      char trouble[CFI_TROUBLE])
{
    const uint8_t *base = eh_frame->data->d_buf;
    const unsigned char *ident = (const unsigned char *)elf_getident(elf, NULL);
    Dwarf_Off offset = 0, next = 0;
    size_t count = 0;
    int more;
    for (;; offset = next) {
        Dwarf_CFI_Entry entry;
        more = dwarf_next_cfi(ident, eh_frame->data, true, offset, &next, &entry);
        if (more)
            break;
        if (dwarf_cfi_cie_p(&entry)) {
            if (strcmp(entry.cie.augmentation, "zR") != 0 ||
                *entry.cie.augmentation_data != (DW_EH_PE_pcrel | DW_EH_PE_sdata4))
                return fail(trouble, ".eh_frame: a CIE other than zR, pcrel sdata4");
            continue;
        }
        if (count == room)
            return fail(trouble, ".eh_frame: more FDEs than there is room for");
        uint64_t field = eh_frame->shdr.sh_addr + (uint64_t)(entry.fde.start - base);
        fdes[count++] = (struct fde){.addr = eh_frame->shdr.sh_addr + offset,
                                     .start = field + (uint64_t)s32_at(entry.fde.start),
                                     .size = (uint32_t)s32_at(entry.fde.start + 4)};
    }
    return more < 0 ? fail(trouble, ".eh_frame: %s", dwarf_errmsg(-1)) : (long)count;
}

/* Each function of the symbol table has an FDE of exactly its bytes. */
static int check_symbols(Elf *elf, const struct fde *fdes, size_t count, char trouble[CFI_TROUBLE])
{
    struct section symtab;
    if (!find_section(elf, ".symtab", 0, &symtab))
        return 0;
    size_t symbols = symtab.data->d_size / sizeof(Elf64_Sym);
    for (size_t i = 0; i < symbols; i++) {
        Elf64_Sym raw;
        memcpy(&raw, (const char *)symtab.data->d_buf + i * sizeof raw, sizeof raw);
        if (ELF64_ST_TYPE(raw.st_info) != STT_FUNC)
            continue;
        size_t at = 0;
        while (at < count && (fdes[at].start != raw.st_value || fdes[at].size != raw.st_size))
            at++;
        if (at == count)
            return fail(trouble, "no FDE for just the function at %#llx, %llu bytes",
                        (unsigned long long)raw.st_value, (unsigned long long)raw.st_size);
    }
    return 0;
}

int cfi_check_elf(Elf *elf, char trouble[CFI_TROUBLE])
{
    static struct fde fdes[1 << 16];
    struct section eh_frame, hdr;
    if (!find_section(elf, ".eh_frame", 0, &eh_frame))
        return fail(trouble, "no .eh_frame");
    Dwarf_CFI *cfi = dwarf_getcfi_elf(elf);
    if (!cfi)
        return fail(trouble, "libdw finds no frame information: %s", dwarf_errmsg(-1));

    long count = read_fdes(elf, &eh_frame, fdes, sizeof fdes / sizeof fdes[0], trouble);
    int err = count < 0 ? -1 : 0;
    if (count == 0)
        err = fail(trouble, ".eh_frame is empty");
    if (!err && find_section(elf, ".eh_frame_hdr", 0, &hdr))
        err = check_header(&hdr, &eh_frame, fdes, (size_t)count, trouble);
    if (!err)
        err = check_symbols(elf, fdes, (size_t)count, trouble);
    for (long i = 0; i < count && !err; i++)
        err = check_fde(elf, cfi, &fdes[i], trouble);
    dwarf_cfi_end(cfi);
    return err ? -1 : (int)count;
}
