/* y = x W^T + b in eight bits: W rounded by output, x by row and group of 32 inputs as it comes.
 *
 * Packed W: [tasks][in / 4][2][16][4] (see linear.c), each weight + 128, so that the products of an unsigned
 * and a signed byte, which AVX-512 VNNI adds up four at a time, can take it; x is corrected for that:
 * sum(w x) = sum((w + 128) x) - 128 sum(x). Sums of a group are whole numbers, exact in any order, and
 * groups are added up in one order: what a row gets does not depend on who shares its batch. */
#include "linear.h"

enum { GROUP = 32 };

/* Inputs as bytes: values [N, in], scales and shifts [N, in / GROUP] lie one after the other. */
struct bytes {
    int8_t *values;
    float *scales;
    int32_t *shifts; /* -128 times the sum of the group's values */
};

struct linear_int8 {
    struct linear l; /* `x` in its own type, `packed` as above */
    const float *scale;
    struct bytes x;
};

EXPORT void pack_int8(const int8_t *weight, uint8_t *packed, int64_t out, int64_t in) {
    for (int64_t panel = 0; panel < num_panels(out); panel++)
        for (int64_t o = 0; o < LANES; o++)
            for (int64_t k = 0; k < in; k++) {
                int64_t from = (panel * LANES + o) * in + k, is_there = panel * LANES + o < out;
                int64_t to = packed_place(out, in, panel, o, k, 4);
                packed[to] = (uint8_t)(128 + (is_there ? weight[from] : 0));
            }
}

INLINE void store_bytes(int8_t *to, vi x) {
#if defined(__AVX512F__)
    _mm_storeu_si128((__m128i *)to, _mm512_cvtepi32_epi8((__m512i)x));
#else
    for (int i = 0; i < LANES; i++) to[i] = (int8_t)x[i];
#endif
}

INLINE float most_of(vf x) {
#if defined(__AVX512F__)
    return _mm512_reduce_max_ps((__m512)x);
#else
    float most = x[0];
    for (int i = 1; i < LANES; i++) most = MAX(most, x[i]);
    return most;
#endif
}

INLINE int32_t total_of(vi x) {
#if defined(__AVX512F__)
    return _mm512_reduce_add_epi32((__m512i)x);
#else
    int32_t total = 0;
    for (int i = 0; i < LANES; i++) total += x[i];
    return total;
#endif
}

/* To the nearest whole number, ties to even, of what is at most 127; some byte of what is not. */
INLINE vi nearest(vf x) {
#if defined(__AVX512F__)
    vi whole = (vi)_mm512_cvtps_epi32((__m512)x);
#else
    vi whole = (vi)(x + 12582912.0f); /* 1.5 * 2^23: the low bits of the sum are the number */
#endif
    return (whole << 24) >> 24;
}

/* One group. Where it holds a NaN or an infinity its scale is a NaN, and so is the row's output. */
INLINE void round_group(const void *x, int64_t at, int64_t group, struct bytes to, int is_bf16) {
    vf low = load(x, at, is_bf16), high = load(x, at + LANES, is_bf16);
    float most = most_of(larger(larger(low, -low), larger(high, -high)));
    float poison = sum((low + high) * 0.0f), inverse = most > 0.0f ? 127.0f / most : 0.0f;
    vi a = nearest(low * inverse), b = nearest(high * inverse);
    store_bytes(to.values + at, a);
    store_bytes(to.values + at + LANES, b);
    to.scales[group] = most * (1.0f / 127.0f) + poison;
    to.shifts[group] = -128 * total_of(a + b);
}

static void round_row(int64_t row, void *argument) {
    const struct linear_int8 *i = argument;
    int64_t groups = i->l.in / GROUP, first = row * groups;
    for (int64_t g = first; g < first + groups; g++)
        if (i->l.is_bf16)
            round_group(i->l.x, g * GROUP, g, i->x, 1);
        else
            round_group(i->l.x, g * GROUP, g, i->x, 0);
}

/* sums + 4 inputs with the 4 weights of each of 16 outputs. */
INLINE vi multiply_add(vi sums, vu weights, const int8_t *x) {
#if defined(__AVX512VNNI__)
    int32_t four;
    memcpy(&four, x, 4);
    return (vi)_mm512_dpbusd_epi32((__m512i)sums, (__m512i)weights, _mm512_set1_epi32(four));
#else
    sums += (vi)(weights & 0xff) * x[0] + (vi)(weights >> 8 & 0xff) * x[1];
    return sums + (vi)(weights >> 16 & 0xff) * x[2] + (vi)(weights >> 24) * x[3];
#endif
}

INLINE void block(const struct linear_int8 *i, int64_t row, int rows, int64_t panel, int panels) {
    vf sums[BLOCK_ROWS][PANELS] = {{{0}}};
    int64_t in = i->l.in, groups = in / GROUP;
    const uint8_t *packed = (const uint8_t *)i->l.packed + panel * in * LANES;
    const int8_t *x = i->x.values + row * in;
    const char *next = next_weights(&i->l, panel, row, in * LANES);
    for (int64_t g = 0; g < groups; g++) {
        vi parts[BLOCK_ROWS][PANELS];
        for (int r = 0; r < rows; r++)
            for (int p = 0; p < panels; p++) parts[r][p] = i->x.shifts[(row + r) * groups + g] - (vi){0};
        for (int64_t k = g * GROUP; k < (g + 1) * GROUP; k += 4)
            for (int p = 0; p < panels; p++) {
                int64_t vector = k / 4 * panels + p;
                vu weights = *(const vu *)(packed + vector * 64);
                if (next) __builtin_prefetch(next + vector * 64, 0, 2);
                for (int r = 0; r < rows; r++)
                    parts[r][p] = multiply_add(parts[r][p], weights, x + r * in + k);
            }
        for (int r = 0; r < rows; r++)
            for (int p = 0; p < panels; p++)
                sums[r][p] += __builtin_convertvector(parts[r][p], vf) *
                              i->x.scales[(row + r) * groups + g];
    }
    for (int r = 0; r < rows; r++)
        for (int p = 0; p < panels; p++) {
            vf total = sums[r][p] * load(i->scale, (panel + p) * LANES, 0);
            if (i->l.is_bf16)
                finish(&i->l, row + r, panel + p, total, 1);
            else
                finish(&i->l, row + r, panel + p, total, 0);
        }
}

INLINE void all_rows(const struct linear_int8 *i, int64_t panel, int panels) {
    int64_t row = 0;
    for (; row + BLOCK_ROWS <= i->l.rows; row += BLOCK_ROWS) block(i, row, BLOCK_ROWS, panel, panels);
    if (row + 4 <= i->l.rows) block(i, row, 4, panel, panels), row += 4;
    if (row + 2 <= i->l.rows) block(i, row, 2, panel, panels), row += 2;
    if (row < i->l.rows) block(i, row, 1, panel, panels);
}

static void linear_task(int64_t task, void *argument) {
    const struct linear_int8 *i = argument;
    int64_t first = task * PANELS;
    if (first + PANELS <= num_panels(i->l.out))
        all_rows(i, first, PANELS);
    else
        all_rows(i, first, 1);
}

/* `scratch`: rows * in bytes, and 8 more for each group. */
EXPORT void linear_int8(const void *x, const void *packed, const float *scale, const float *bias,
                        void *y, void *scratch, int64_t rows, int64_t in, int64_t out, int is_bf16,
                        int widens) {
    int64_t groups = rows * in / GROUP;
    struct bytes bytes = {scratch, (float *)((char *)scratch + rows * in), NULL};
    bytes.shifts = (int32_t *)(bytes.scales + groups);
    struct linear_int8 i = {{x, packed, bias, y, rows, in, out, is_bf16, widens}, scale, bytes};
    run_tasks(rows, round_row, &i);
    run_tasks((num_panels(out) + PANELS - 1) / PANELS, linear_task, &i);
}
