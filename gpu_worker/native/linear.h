/* What the ways to compute a linear layer share. */
#ifndef CHAIRLIFT_LINEAR_H
#define CHAIRLIFT_LINEAR_H

#include "kernels.h"

enum {
    PANELS = 2, /* of one task */
    BLOCK_ROWS = 8
};

struct linear {
    const void *x, *packed;
    const float *bias;
    void *y;
    int64_t rows, in, out;
    int is_bf16;
    int widens; /* y is float: of bf16, what was rounded to bf16 */
};

INLINE int64_t num_panels(int64_t out) { return (out + LANES - 1) / LANES; }

/* Where the weight of input k and output o of a panel lies in packed weights: the panels of a task side
 * by side, `group` inputs together. */
INLINE int64_t packed_place(int64_t out, int64_t in, int64_t panel, int64_t o, int64_t k, int64_t group) {
    int64_t first = panel / PANELS * PANELS, panels = MIN((int64_t)PANELS, num_panels(out) - first);
    int64_t vector = k / group * panels + panel - first;
    return first * in * LANES + (vector * LANES + o) * group + k % group;
}

/* Weights to ask for while those at hand are used again, for the second block of rows: those of the
 * thread's next task, or NULL. They come while it computes, not while it waits. */
INLINE const char *next_weights(const struct linear *l, int64_t panel, int64_t row, int64_t panel_bytes) {
    int64_t next = panel + PANELS;
    if (row != BLOCK_ROWS || (next + PANELS) * LANES > l->out) return NULL;
    return (const char *)l->packed + next * panel_bytes;
}

/* Writes up to 16 outputs of one row, those of a panel. */
INLINE void finish(const struct linear *l, int64_t row, int64_t panel, vf total, int is_bf16) {
    int64_t first = panel * LANES, at = row * l->out + first;
    if (l->bias) total += load(l->bias, first, 0);
    if (is_bf16 && l->widens) {
        total = (vf)(__builtin_convertvector(narrow(total), vu) << 16);
        is_bf16 = 0;
    }
    if (first + LANES <= l->out) {
        store(l->y, at, total, is_bf16);
        return;
    }
    vh half = narrow(total);
    for (int64_t o = 0; o < l->out - first; o++)
        if (is_bf16)
            ((bf16 *)l->y)[at + o] = half[o];
        else
            ((float *)l->y)[at + o] = total[o];
}

/* The panels [first, last) of bf16 by AMX. Only where `has_tiles`. */
void linear_by_tiles(const struct linear *l, int64_t first, int64_t last);

#endif
