/* Attention by AVX-512's dot product of pairs of bf16: keys as they lie in the cache, two dimensions
 * at a time; values two tokens at a time. */
#include "attention.h"

#if defined(__AVX512BF16__)

enum { RUN = 16, AHEAD = 2 * RUN }; /* tokens taken at a time; asked for before they are needed */

struct work {
    bf16 q[MAX_ROWS * MAX_D];            /* [rows][D] */
    float acc[MAX_ROWS * MAX_D];         /* [rows][D], in the order that `store_unpacked` undoes */
    uint32_t weights[MAX_ROWS][RUN / 2]; /* of two tokens each */
    float peak[MAX_ROWS], total[MAX_ROWS], rescale[MAX_ROWS];
    bf16 values[RUN * MAX_D]; /* [tokens][D], where not all of a run are seen */
} __attribute__((aligned(64)));

INLINE __m512bh load_pairs(const bf16 *from) { return (__m512bh)_mm512_loadu_si512(from); }

/* Lane i: the sum over the lanes of x[i]. */
INLINE vf add_across(const __m512 *x) {
    __m512 fours[8], quarters[4];
    for (int i = 0; i < 8; i++)
        fours[i] = _mm512_add_ps(_mm512_unpacklo_ps(x[2 * i], x[2 * i + 1]),
                                 _mm512_unpackhi_ps(x[2 * i], x[2 * i + 1]));
    for (int i = 0; i < 4; i++) {
        __m512d a = (__m512d)fours[2 * i], b = (__m512d)fours[2 * i + 1];
        quarters[i] =
            _mm512_add_ps((__m512)_mm512_unpacklo_pd(a, b), (__m512)_mm512_unpackhi_pd(a, b));
    }
    __m512 halves[2];
    for (int i = 0; i < 2; i++)
        halves[i] = _mm512_add_ps(
            _mm512_shuffle_f32x4(quarters[2 * i], quarters[2 * i + 1], 0x88),
            _mm512_shuffle_f32x4(quarters[2 * i], quarters[2 * i + 1], 0xdd));
    return (vf)_mm512_add_ps(_mm512_shuffle_f32x4(halves[0], halves[1], 0x88),
                             _mm512_shuffle_f32x4(halves[0], halves[1], 0xdd));
}

/* The products of a row with 16 keys. What lies beyond the last token may be anything. */
INLINE vf score(const bf16 *q, const bf16 *k, int64_t D) {
    __m512 sums[RUN];
    for (int t = 0; t < RUN; t++) sums[t] = _mm512_setzero_ps();
    for (int64_t d = 0; d < D; d += 32) {
        __m512bh x = load_pairs(q + d);
        for (int t = 0; t < RUN; t++) sums[t] = _mm512_dpbf16_ps(sums[t], load_pairs(k + t * D + d), x);
    }
    return add_across(sums);
}

/* Turns a row's scores into weights, 0 for tokens that it does not see. */
INLINE void weigh(struct work *w, int64_t row, vf scores, vi seen) {
    float most = _mm512_reduce_max_ps((__m512)blend(seen, scores, splat(NO_SCORE)));
    float peak = MAX(w->peak[row], most);
    vf weights = blend(seen, power_of_two(blend(seen, scores - peak, splat(0.0f))), splat(0.0f));
    float rescale = peak == w->peak[row] ? 1.0f : power_of_two(splat(w->peak[row] - peak))[0];
    w->total[row] = w->total[row] * rescale + sum(weights);
    w->peak[row] = peak;
    w->rescale[row] = rescale;
    store(w->weights[row], 0, weights, 1);
}

/* Adds the values of a run to `rows` rows, `vectors` * 32 columns from `column`. */
INLINE void add_columns(struct work *w, int64_t first, int rows, int vectors, const bf16 *v, int64_t D,
                        int64_t column) {
    float *acc = w->acc + first * D + column;
    vf sums[4][4];
    for (int r = 0; r < rows; r++)
        for (int i = 0; i < 2 * vectors; i++)
            sums[r][i] = load(acc, r * D + i * LANES, 0) * w->rescale[first + r];
    for (int64_t t = 0; t < RUN; t += 2)
        for (int i = 0; i < vectors; i++) {
            __m512i even = _mm512_loadu_si512(v + t * D + column + i * 32);
            __m512i odd = _mm512_loadu_si512(v + (t + 1) * D + column + i * 32);
            __m512bh low = (__m512bh)_mm512_unpacklo_epi16(even, odd);
            __m512bh high = (__m512bh)_mm512_unpackhi_epi16(even, odd);
            for (int r = 0; r < rows; r++) {
                __m512bh weight = (__m512bh)_mm512_set1_epi32((int)w->weights[first + r][t / 2]);
                sums[r][2 * i] = (vf)_mm512_dpbf16_ps((__m512)sums[r][2 * i], low, weight);
                sums[r][2 * i + 1] = (vf)_mm512_dpbf16_ps((__m512)sums[r][2 * i + 1], high, weight);
            }
        }
    for (int r = 0; r < rows; r++)
        for (int i = 0; i < 2 * vectors; i++) store(acc, r * D + i * LANES, sums[r][i], 0);
}

INLINE void add_rows(const struct tile *tile, struct work *w, int64_t first, int rows, const bf16 *k,
                     const bf16 *v, int64_t start, int64_t D, float scale) {
    vi token = lanes_index() + (int32_t)start;
    for (int64_t row = first; row < first + rows; row++) {
        vi seen = (token >= tile->starts[row]) & (token < tile->limits[row]);
        weigh(w, row, score(w->q + row * D, k, D) * scale, seen);
    }
    int64_t column = 0;
    for (; column + 64 <= D; column += 64) add_columns(w, first, rows, 2, v, D, column);
    if (column < D) add_columns(w, first, rows, 1, v, D, column);
}

/* A run's values, 0 for tokens that no row sees: what lies there may be NaN, or be gone. */
INLINE const bf16 *seen_values(struct work *w, const bf16 *v, int64_t start, int64_t begin, int64_t end,
                               int64_t D) {
    if (start >= begin && start + RUN <= end) return v;
    int64_t low = MAX(begin - start, (int64_t)0), high = MIN(end - start, (int64_t)RUN);
    memset(w->values, 0, (size_t)(RUN * D) * sizeof *v);
    memcpy(w->values + low * D, v + low * D, (size_t)((high - low) * D) * sizeof *v);
    return w->values;
}

INLINE void prefetch(const struct attention *a, const struct tile *tile, int64_t group, int64_t token) {
    int64_t at = cached(a, tile, group, token);
    for (int64_t i = 0; i < RUN * a->D; i += 32) {
        __builtin_prefetch((const bf16 *)a->k_cache + at + i, 0, 2);
        __builtin_prefetch((const bf16 *)a->v_cache + at + i, 0, 2);
    }
}

static void walk(const struct attention *a, const struct tile *tile, struct work *w) {
    int64_t begin = tile->starts[0], end = tile->limits[tile->rows - 1], D = a->D;
    int64_t rows = tile->rows / tile->groups;
    float scale = a->scale * LOG2_E;
    for (int64_t start = begin / RUN * RUN; start < end; start += RUN)
        for (int64_t g = 0; g < tile->groups; g++) {
            int64_t at = cached(a, tile, tile->group + g, start);
            const bf16 *k = (const bf16 *)a->k_cache + at, *v = (const bf16 *)a->v_cache + at;
            if (start + AHEAD < end) prefetch(a, tile, tile->group + g, start + AHEAD);
            v = seen_values(w, v, start, begin, end, D);
            int64_t row = g * rows, last = row + rows;
            for (; row + 4 <= last; row += 4) add_rows(tile, w, row, 4, k, v, start, D, scale);
            switch (last - row) {
            case 3: add_rows(tile, w, row, 3, k, v, start, D, scale); break;
            case 2: add_rows(tile, w, row, 2, k, v, start, D, scale); break;
            case 1: add_rows(tile, w, row, 1, k, v, start, D, scale); break;
            default: break;
            }
        }
}

void attend_by_pairs(const struct attention *a, const struct tile *tile) {
    struct work w;
    for (int64_t r = 0; r < tile->rows; r++) {
        w.peak[r] = NO_SCORE;
        w.total[r] = 0.0f;
        memcpy(w.q + r * a->D, (const bf16 *)a->q + place(a, tile, r), (size_t)a->D * sizeof *w.q);
    }
    memset(w.acc, 0, (size_t)(tile->rows * a->D) * sizeof *w.acc);
    walk(a, tile, &w);
    for (int64_t r = 0; r < tile->rows; r++)
        for (int64_t d = 0; d < a->D; d += 32)
            store_unpacked(a->out, place(a, tile, r) + d, w.acc + r * a->D + d, 1.0f / w.total[r]);
}

#else

void attend_by_pairs(const struct attention *a, const struct tile *tile) { (void)a, (void)tile; }

#endif
