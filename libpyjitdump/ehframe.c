#include "ehframe.h"

#include "arch/arch.h"

/* Pointer encodings (LSB Core 5.0, section 10.5). */
enum {
    PE_UDATA4 = 0x03,
    PE_PCREL_SDATA4 = 0x1b,
    PE_DATAREL_SDATA4 = 0x3b,
};

enum { DW_CFA_NOP_PADDING = 4 }; /* records are padded with DW_CFA_nop, which is 0, to this */

static int32_t distance(size_t from, size_t to)
{
    return (int32_t)((int64_t)to - (int64_t)from);
}

/* A record's length field counts what follows it. */
static void close_record(struct bytes *out, size_t start)
{
    while (!out->overflow && (out->len - start) % DW_CFA_NOP_PADDING != 0)
        bytes_u8(out, 0);
    bytes_patch_u32(out, start, (uint32_t)(out->len - start - 4));
}

static void put_cie(struct bytes *out)
{
    size_t start = out->len;
    bytes_u32(out, 0);                            /* length, patched below */
    bytes_u32(out, 0);                            /* CIE id */
    bytes_u8(out, 1);                             /* version */
    bytes_cstr(out, "zR", 2);                     /* augmentation: FDE pointer encoding follows */
    bytes_u8(out, arch.cfi.code_alignment);
    bytes_u8(out, (uint8_t)(arch.cfi.data_alignment & 0x7f)); /* SLEB128 of one byte */
    bytes_u8(out, arch.cfi.return_register);
    bytes_u8(out, 1);                             /* augmentation length */
    bytes_u8(out, PE_PCREL_SDATA4);
    bytes_put(out, arch.cfi.initial, arch.cfi.initial_size);
    /* Pad to 8 so that the FDE behind it, and a table of them, stays aligned. */
    while (!out->overflow && (out->len - start) % 8 != 0)
        bytes_u8(out, 0);
    close_record(out, start);
}

/* `code` and `cie` are positions in the same coordinates as out->len. */
static void put_fde(struct bytes *out, size_t cie, int64_t code, uint32_t code_size)
{
    size_t start = out->len;
    bytes_u32(out, 0);                            /* length, patched below */
    bytes_u32(out, (uint32_t)(out->len - cie));   /* back to the CIE */
    bytes_i32(out, (int32_t)(code - (int64_t)out->len));
    bytes_u32(out, code_size);
    bytes_u8(out, 0);                             /* augmentation length */
    bytes_put(out, arch.cfi.rows, arch.cfi.rows_size);
    close_record(out, start);
}

/* The header, and for each FDE the code it is for. FDEs have one size and stand in order of address. */
static void put_hdr(struct bytes *out, size_t eh_frame, size_t first_fde, size_t fde_size,
                    int64_t code, size_t count)
{
    size_t hdr = out->len;
    bytes_u8(out, 1);
    bytes_u8(out, PE_PCREL_SDATA4);
    bytes_u8(out, PE_UDATA4);
    bytes_u8(out, PE_DATAREL_SDATA4);
    bytes_i32(out, distance(out->len, eh_frame));
    bytes_u32(out, (uint32_t)count);
    for (size_t i = 0; i < count && !out->overflow; i++) {
        bytes_i32(out, (int32_t)(code + (int64_t)(i * ARCH_SLOT_STRIDE) - (int64_t)hdr));
        bytes_i32(out, distance(hdr, first_fde + i * fde_size));
    }
}

/* `code` is where the first function is, in the coordinates of out->len. */
static size_t put_sections(struct bytes *out, int64_t code, uint32_t code_size, size_t count)
{
    size_t start = out->len;
    put_cie(out);
    size_t first_fde = out->len;
    for (size_t i = 0; i < count && !out->overflow; i++)
        put_fde(out, start, code + (int64_t)(i * ARCH_SLOT_STRIDE), code_size);
    size_t fde_size = (out->len - first_fde) / count;
    bytes_u32(out, 0); /* terminator */
    size_t size = out->len - start;
    put_hdr(out, start, first_fde, fde_size, code, count);
    return size;
}

size_t ehframe_function(struct bytes *out, uint32_t code_size)
{
    return put_sections(out, (int64_t)out->len - ((code_size + 7) & ~7u), code_size, 1);
}

size_t ehframe_table(struct bytes *out, size_t code, size_t count)
{
    return put_sections(out, (int64_t)code, ARCH_SLOT_SIZE, count);
}
