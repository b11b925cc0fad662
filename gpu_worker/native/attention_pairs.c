/* Attention by AVX-512's dot product of pairs of bf16: keys as they lie in the cache, two dimensions
 * at a time; values two tokens at a time.
 *
 * A run of tokens is scored in one of two ways. For few rows a vector holds a row's pairs of
 * dimensions, or its tokens; for many it holds the rows, all through the softmax, and nothing is
 * added up within a vector. Both take their sums in the same order, and give the same bits. */
#include "attention.h"

#if defined(__AVX512BF16__)

enum {
    RUN = 16,        /* tokens taken at a time */
    AHEAD = 8 * RUN, /* tokens that are asked for before they are needed */
    FEW_ROWS = 4
};

struct work {
    bf16 q[MAX_ROWS * MAX_D];    /* [rows][D], or of many rows [D / 2][rows][2] */
    float acc[MAX_ROWS * MAX_D]; /* [rows][D], in the order that `store_unpacked` undoes */
    uint32_t weights[RUN / 2][MAX_ROWS]; /* of two tokens each */
    float peak[MAX_ROWS], total[MAX_ROWS], rescale[MAX_ROWS];
    bf16 values[RUN * MAX_D]; /* [tokens][D], where not all of a run are seen */
} __attribute__((aligned(64)));

INLINE __m512bh load_pairs(const bf16 *from) { return (__m512bh)_mm512_loadu_si512(from); }

/* Lane i: the sum over the lanes of x[i], as `add_up` adds. */
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

/* The sum of 16 vectors. */
INLINE __m512 add_up(const __m512 *x) {
    __m512 quarters[4];
    for (int i = 0; i < 4; i++)
        quarters[i] = _mm512_add_ps(_mm512_add_ps(x[4 * i], x[4 * i + 2]),
                                    _mm512_add_ps(x[4 * i + 1], x[4 * i + 3]));
    return _mm512_add_ps(_mm512_add_ps(quarters[0], quarters[1]),
                         _mm512_add_ps(quarters[2], quarters[3]));
}

/* The products of a row with 16 keys. What lies beyond the last token may be anything. */
INLINE vf score_tokens(const bf16 *q, const bf16 *k, int64_t D) {
    __m512 sums[RUN];
    for (int t = 0; t < RUN; t++) sums[t] = _mm512_setzero_ps();
    for (int64_t d = 0; d < D; d += 32) {
        __m512bh x = load_pairs(q + d);
        for (int t = 0; t < RUN; t++) sums[t] = _mm512_dpbf16_ps(sums[t], load_pairs(k + t * D + d), x);
    }
    return add_across(sums);
}

/* The products of 16 rows with one key. */
INLINE vf score_rows(const bf16 *q, const bf16 *k, int64_t D) {
    __m512 sums[LANES];
    for (int i = 0; i < LANES; i++) sums[i] = _mm512_setzero_ps();
    for (int64_t d = 0; d < D; d += 32)
        for (int i = 0; i < LANES; i++) {
            int32_t pair;
            memcpy(&pair, k + d + 2 * i, 4);
            sums[i] = _mm512_dpbf16_ps(sums[i], (__m512bh)_mm512_set1_epi32(pair),
                                       load_pairs(q + (d / 2 + i) * LANES * 2));
        }
    return (vf)add_up(sums);
}

/* 2^(score * scale - peak), 0 where a token is not seen. One rounding, whoever inlines it. */
INLINE vf weight_of(vf score, float scale, vf peak, vi seen) {
    vf power = (vf)_mm512_fmsub_ps((__m512)score, _mm512_set1_ps(scale), (__m512)peak);
    return blend(seen, power_of_two(blend(seen, power, splat(0.0f))), splat(0.0f));
}

INLINE vf rescale_of(vf old_peak, vf peak) {
    return blend(old_peak == peak, splat(1.0f), power_of_two(old_peak - peak));
}

INLINE vf times_plus(vf x, vf y, vf z) {
    return (vf)_mm512_fmadd_ps((__m512)x, (__m512)y, (__m512)z);
}

/* The sum of the lanes, as `add_up` adds vectors; in each lane. */
INLINE vf add_lanes(vf x) {
    __m512 sum = (__m512)x;
    sum = _mm512_add_ps(sum, _mm512_shuffle_ps(sum, sum, 0x4e));
    sum = _mm512_add_ps(sum, _mm512_shuffle_ps(sum, sum, 0xb1));
    sum = _mm512_add_ps(sum, _mm512_shuffle_f32x4(sum, sum, 0xb1));
    return (vf)_mm512_add_ps(sum, _mm512_shuffle_f32x4(sum, sum, 0x4e));
}

/* Weights of a run for up to FEW_ROWS rows: of each row a vector, one lane a token. The rows go through
 * it side by side: one alone would wait for each of its own results. */
INLINE void weigh_tokens(const struct tile *tile, struct work *w, int64_t first, int rows, const bf16 *k,
                         int64_t start, int64_t D, float scale) {
    vf scores[FEW_ROWS], peak[FEW_ROWS], rescale[FEW_ROWS], weights[FEW_ROWS];
    vi token = lanes_index() + (int32_t)start, seen[FEW_ROWS];
    for (int r = 0; r < rows; r++) scores[r] = score_tokens(w->q + (first + r) * D, k, D);
    for (int r = 0; r < rows; r++) {
        seen[r] = (token >= tile->starts[first + r]) & (token < tile->limits[first + r]);
        vf seen_scores = blend(seen[r], scores[r] * scale, splat(NO_SCORE));
        peak[r] = splat(MAX(w->peak[first + r], _mm512_reduce_max_ps((__m512)seen_scores)));
    }
    for (int r = 0; r < rows; r++) {
        rescale[r] = rescale_of(splat(w->peak[first + r]), peak[r]);
        weights[r] = weight_of(scores[r], scale, peak[r], seen[r]);
    }
    for (int r = 0; r < rows; r++) {
        vf total = times_plus(splat(w->total[first + r]), rescale[r], add_lanes(weights[r]));
        union {
            vh halves;
            uint32_t pairs[RUN / 2];
        } narrowed = {narrow(weights[r])};
        for (int t = 0; t < RUN / 2; t++) w->weights[t][first + r] = narrowed.pairs[t];
        w->total[first + r] = total[0];
        w->peak[first + r] = peak[r][0];
        w->rescale[first + r] = rescale[r][0];
    }
}

/* The same for all rows of a tile at once. */
INLINE void weigh_rows(const struct tile *tile, struct work *w, const bf16 *k, int64_t start, int64_t D,
                       float scale) {
    vf scores[RUN], old_peak = load(w->peak, 0, 0), peak = old_peak;
    vi starts, limits, seen[RUN];
    memcpy(&starts, tile->starts, sizeof starts);
    memcpy(&limits, tile->limits, sizeof limits);
    for (int t = 0; t < RUN; t++) {
        vi token = (vi){0} + (int32_t)(start + t);
        seen[t] = (token >= starts) & (token < limits);
        scores[t] = score_rows(w->q, k + t * D, D);
        peak = larger(blend(seen[t], scores[t] * scale, splat(NO_SCORE)), peak);
    }
    vf rescale = rescale_of(old_peak, peak);
    __m512 weights[RUN];
    for (int t = 0; t < RUN; t++) weights[t] = (__m512)weight_of(scores[t], scale, peak, seen[t]);
    store(w->total, 0, times_plus(load(w->total, 0, 0), rescale, (vf)add_up(weights)), 0);
    store(w->peak, 0, peak, 0);
    store(w->rescale, 0, rescale, 0);
    for (int t = 0; t < RUN; t += 2) {
        vu even = __builtin_convertvector(narrow((vf)weights[t]), vu);
        vu odd = __builtin_convertvector(narrow((vf)weights[t + 1]), vu);
        vu pairs = even | odd << 16;
        memcpy(w->weights[t / 2], &pairs, sizeof pairs);
    }
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
                __m512bh weight = (__m512bh)_mm512_set1_epi32((int)w->weights[t / 2][first + r]);
                sums[r][2 * i] = (vf)_mm512_dpbf16_ps((__m512)sums[r][2 * i], low, weight);
                sums[r][2 * i + 1] = (vf)_mm512_dpbf16_ps((__m512)sums[r][2 * i + 1], high, weight);
            }
        }
    for (int r = 0; r < rows; r++)
        for (int i = 0; i < 2 * vectors; i++) store(acc, r * D + i * LANES, sums[r][i], 0);
}

INLINE void add_rows(struct work *w, int64_t first, int rows, const bf16 *v, int64_t D) {
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
            switch (rows) {
            case 1: weigh_tokens(tile, w, row, 1, k, start, D, scale); break;
            case 2: weigh_tokens(tile, w, row, 2, k, start, D, scale); break;
            case 3: weigh_tokens(tile, w, row, 3, k, start, D, scale); break;
            case 4: weigh_tokens(tile, w, row, 4, k, start, D, scale); break;
            default: weigh_rows(tile, w, k, start, D, scale);
            }
            for (; row + 4 <= last; row += 4) add_rows(w, row, 4, v, D);
            switch (last - row) {
            case 3: add_rows(w, row, 3, v, D); break;
            case 2: add_rows(w, row, 2, v, D); break;
            case 1: add_rows(w, row, 1, v, D); break;
            default: break;
            }
        }
}

static void load_queries(const struct attention *a, const struct tile *tile, struct work *w) {
    int is_by_rows = tile->rows / tile->groups > FEW_ROWS;
    if (is_by_rows) memset(w->q, 0, (size_t)(MAX_ROWS * a->D) * sizeof *w->q);
    for (int64_t r = 0; r < tile->rows; r++) {
        const bf16 *q = (const bf16 *)a->q + place(a, tile, r);
        for (int64_t d = 0; d < a->D; d += is_by_rows ? 2 : a->D)
            memcpy(w->q + (is_by_rows ? (d / 2 * LANES + r) * 2 : r * a->D), q + d,
                   is_by_rows ? 4 : (size_t)a->D * sizeof *q);
    }
}

void attend_by_pairs(const struct attention *a, const struct tile *tile) {
    struct work w;
    for (int64_t r = 0; r < MAX_ROWS; r++) {
        w.peak[r] = NO_SCORE;
        w.total[r] = 0.0f;
    }
    load_queries(a, tile, &w);
    memset(w.acc, 0, (size_t)(tile->rows * a->D) * sizeof *w.acc);
    walk(a, tile, &w);
    for (int64_t r = 0; r < tile->rows; r++)
        for (int64_t d = 0; d < a->D; d += 32)
            store_unpacked(a->out, place(a, tile, r) + d, w.acc + r * a->D + d, 1.0f / w.total[r]);
}

#else

void attend_by_pairs(const struct attention *a, const struct tile *tile) { (void)a, (void)tile; }

#endif
