/* What the two ways to compute attention share: the arguments, and one task's rows. */
#ifndef CHAIRLIFT_ATTENTION_H
#define CHAIRLIFT_ATTENTION_H

#include "kernels.h"

enum { MAX_ROWS = 16, MAX_D = 256, RUN = 32 }; /* RUN: tokens taken at a time, at most */

struct attention {
    const void *q, *k_cache, *v_cache;
    const int32_t *tables, *cu_seqlens, *lengths;
    void *out;
    int64_t S, H, G, D, B, T;
    float scale;
    int64_t window;
    int is_bf16;
    const int64_t *first_task; /* [S + 1] */
};

/* A row sees the cached tokens [start, limit). Both grow from row to row, by 1 at most. */
struct tile {
    const int32_t *table;
    int64_t group, rows, first_row; /* of the sequence's pairs of token and head of the group */
    int64_t first_token;            /* of the sequence, in q */
    int64_t starts[MAX_ROWS], limits[MAX_ROWS];
    float peak[MAX_ROWS], total[MAX_ROWS];
    float q[MAX_ROWS * MAX_D], acc[MAX_ROWS * MAX_D];
};

INLINE const void *element(const void *array, int64_t i, int is_bf16) {
    return (const char *)array + i * (is_bf16 ? 2 : 4);
}

/* Where row r of the tile lies in q and in out. */
INLINE int64_t place(const struct attention *a, const struct tile *tile, int64_t r) {
    int64_t heads = a->H / a->G, pair = tile->first_row + r;
    return ((tile->first_token + pair / heads) * a->H + tile->group * heads + pair % heads) * a->D;
}

#endif
