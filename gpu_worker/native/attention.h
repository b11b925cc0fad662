/* What the two ways to compute attention share: the arguments, and one task's rows. */
#ifndef CHAIRLIFT_ATTENTION_H
#define CHAIRLIFT_ATTENTION_H

#include "kernels.h"

enum { MAX_ROWS = LANES, MAX_D = 256, MAX_GROUPS = 4 };

struct attention {
    const void *q, *k_cache, *v_cache;
    const int32_t *tables, *cu_seqlens, *lengths;
    void *out;
    int64_t S, H, G, D, B, T;
    float scale;
    int64_t window;
    int is_bf16;
    int64_t joined;            /* groups in one tile of a sequence that has one token */
    const int64_t *first_task; /* [S + 1] */
};

#define NO_SCORE -1e30f

/* Up to 16 rows. Each sees the cached tokens [start, limit); both grow from row to row. */
struct tile {
    const int32_t *table;
    int64_t group, rows, first_row; /* of the sequence's pairs of token and head of the group */
    int64_t groups;                 /* from `group` on; more than one only where there is one token */
    int64_t first_token;            /* of the sequence, in q */
    int32_t starts[MAX_ROWS], limits[MAX_ROWS];
};

INLINE const void *element(const void *array, int64_t i, int is_bf16) {
    return (const char *)array + i * (is_bf16 ? 2 : 4);
}

/* Where row r of the tile lies in q and in out. */
INLINE int64_t place(const struct attention *a, const struct tile *tile, int64_t r) {
    int64_t heads = a->H / a->G * tile->groups, pair = tile->first_row + r;
    int64_t first_head = tile->group * (a->H / a->G);
    return ((tile->first_token + pair / heads) * a->H + first_head + pair % heads) * a->D;
}

/* The index of the first element of a cached token's row of a group. */
INLINE int64_t cached(const struct attention *a, const struct tile *tile, int64_t group,
                      int64_t token) {
    return ((tile->table[token / a->B] * a->G + group) * a->B + token % a->B) * a->D;
}

/* Walks over the tile's tokens with AMX: bf16, B a multiple of 16, D of 32, and tiles at hand. */
void attend_by_tiles(const struct attention *a, const struct tile *tile);

#endif
