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

#if defined(__AVX512F__)
/* Unpacking works within 128 bits: of each 32 columns of the sums, the first 16 are the dimensions
 * 0-3, 8-11, 16-19 and 24-27. Stores them in order. */
INLINE void store_unpacked(void *out, int64_t at, const float *acc, float scale) {
    __m512i low = _mm512_set_epi32(23, 22, 21, 20, 7, 6, 5, 4, 19, 18, 17, 16, 3, 2, 1, 0);
    __m512i high = _mm512_add_epi32(low, _mm512_set1_epi32(8));
    __m512 x = (__m512)(load(acc, 0, 0) * scale), y = (__m512)(load(acc, 16, 0) * scale);
    store(out, at, (vf)_mm512_permutex2var_ps(x, low, y), 1);
    store(out, at + 16, (vf)_mm512_permutex2var_ps(x, high, y), 1);
}
#endif

/* Both for bf16, B a multiple of 16, and D of 32. With AMX, where there are tiles at hand: */
void attend_by_tiles(const struct attention *a, const struct tile *tile);

/* With AVX-512 BF16: */
void attend_by_pairs(const struct attention *a, const struct tile *tile);

#if defined(__AVX512BF16__)
enum { HAS_PAIRS = 1 };
#else
enum { HAS_PAIRS = 0 };
#endif

#endif
