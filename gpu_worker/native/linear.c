/* y = x W^T + b, with W packed so that every core streams it once and in order.
 *
 * 16 outputs make a panel, two panels a task. Packed W: [tasks][in / 2][2][16][2] in bf16, [tasks][in][2][16]
 * in float, zeros beyond `out`; the last task may have one panel. The pairs of inputs are the layout of the
 * dot product of pairs of bf16 in AVX-512 and of a tile of AMX. What a core reads in its tasks is one run of
 * memory: in two runs at a time, each as long as a panel, it had 60 % of the bandwidth. The sum over the inputs
 * of one row runs in one order, however many rows there are: what a row gets does not depend on who shares
 * its batch. */
#include "linear.h"

EXPORT void pack(const void *weight, void *packed, int64_t out, int64_t in, int is_bf16) {
    int64_t group = is_bf16 ? 2 : 1;
    for (int64_t panel = 0; panel < num_panels(out); panel++)
        for (int64_t o = 0; o < LANES; o++)
            for (int64_t k = 0; k < in; k++) {
                int64_t from = (panel * LANES + o) * in + k, is_there = panel * LANES + o < out;
                int64_t to = packed_place(out, in, panel, o, k, group);
                if (is_bf16)
                    ((bf16 *)packed)[to] = is_there ? ((const bf16 *)weight)[from] : 0;
                else
                    ((float *)packed)[to] = is_there ? ((const float *)weight)[from] : 0;
            }
}

/* sums + the products of a pair of inputs with 16 pairs of weights, or of one with 16. */
INLINE vf multiply_add(vf sums, const void *weights, int64_t i, const void *x, int64_t k, int is_bf16) {
    if (!is_bf16) return sums + load(weights, i * LANES, 0) * ((const float *)x)[k];
    vu pairs = ((const vu *)weights)[i];
#if defined(__AVX512BF16__)
    int32_t pair;
    memcpy(&pair, (const bf16 *)x + k, 4);
    return (vf)_mm512_dpbf16_ps((__m512)sums, (__m512bh)pairs, (__m512bh)_mm512_set1_epi32(pair));
#else
    sums += (vf)(pairs << 16) * widen(((const bf16 *)x)[k]);
    return sums + (vf)(pairs & 0xffff0000) * widen(((const bf16 *)x)[k + 1]);
#endif
}

INLINE void block(const struct linear *l, int64_t row, int rows, int64_t panel, int panels, int is_bf16) {
    vf sums[BLOCK_ROWS][PANELS] = {{{0}}};
    int64_t group = is_bf16 ? 2 : 1, panel_bytes = l->in * LANES * (is_bf16 ? 2 : 4);
    const char *weights = (const char *)l->packed + panel * panel_bytes;
    const char *x = (const char *)l->x + row * l->in * (is_bf16 ? 2 : 4);
    const char *next = next_weights(l, panel, row, panel_bytes);
    for (int64_t k = 0; k < l->in; k += group)
        for (int p = 0; p < panels; p++) {
            int64_t vector = k / group * panels + p;
            if (next) __builtin_prefetch(next + vector * 64, 0, 2);
            for (int r = 0; r < rows; r++) {
                const char *input = x + r * l->in * (is_bf16 ? 2 : 4);
                sums[r][p] = multiply_add(sums[r][p], weights, vector, input, k, is_bf16);
            }
        }
    for (int p = 0; p < panels; p++)
        for (int r = 0; r < rows; r++) finish(l, row + r, panel + p, sums[r][p], is_bf16);
}

INLINE void all_rows(const struct linear *l, int64_t panel, int panels, int is_bf16) {
    int64_t row = 0;
    for (; row + BLOCK_ROWS <= l->rows; row += BLOCK_ROWS)
        block(l, row, BLOCK_ROWS, panel, panels, is_bf16);
    if (row + 4 <= l->rows) block(l, row, 4, panel, panels, is_bf16), row += 4;
    for (; row < l->rows; row++) block(l, row, 1, panel, panels, is_bf16);
}

static void linear_by_vectors(const struct linear *l, int64_t first, int64_t last) {
    if (last - first == PANELS) {
        if (l->is_bf16)
            all_rows(l, first, PANELS, 1);
        else
            all_rows(l, first, PANELS, 0);
    } else if (l->is_bf16) {
        all_rows(l, first, 1, 1);
    } else {
        all_rows(l, first, 1, 0);
    }
}

static void linear_task(int64_t task, void *argument) {
    const struct linear *l = argument;
    int64_t first = task * PANELS, last = MIN(first + PANELS, num_panels(l->out));
    if (has_tiles && l->is_bf16 && l->in % 32 == 0)
        linear_by_tiles(l, first, last);
    else
        linear_by_vectors(l, first, last);
}

EXPORT void linear(const void *x, const void *packed, const float *bias, void *y, int64_t rows,
                   int64_t in, int64_t out, int is_bf16, int widens) {
    struct linear l = {x, packed, bias, y, rows, in, out, is_bf16, widens};
    run_tasks((num_panels(out) + PANELS - 1) / PANELS, linear_task, &l);
}
