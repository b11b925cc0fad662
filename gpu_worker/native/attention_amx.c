/* Attention on AMX. The scores are computed as K Q^T, so that K's rows are tiles as they lie in the
 * cache, and the lanes of a vector are the tile's 16 query rows all through the softmax. */
#include "amx.h"
#include "attention.h"

#if defined(__AMX_BF16__)

enum { RUN = 64, PIECE = 16 }; /* tokens taken at a time; tokens of one tile of keys */

struct work {
    bf16 q[MAX_GROUPS][MAX_D / 32][16 * 32]; /* [groups][D / 32][pairs of dimensions][rows][2] */
    bf16 v[RUN / 32][MAX_D / 16][16 * 32]; /* [.][D / 16][pairs of tokens][16 dimensions][2] */
    vu pairs[RUN / 2];                  /* of weights of two tokens, by row */
    bf16 weights[RUN / 32][16 * 32];    /* [.][rows][tokens] */
    float scores[RUN][LANES];           /* [tokens][rows] */
    float acc[MAX_ROWS * MAX_D];        /* [rows][D] */
    vf peak, total;
    vi starts, limits;
} __attribute__((aligned(64)));

/* A row is 0 in all groups but its own, so that the scores of all groups add up in one tile. */
static void load_queries(const struct attention *a, const struct tile *tile, struct work *w) {
    memset(w->q, 0, (size_t)tile->groups * sizeof *w->q);
    int64_t rows_of_group = tile->rows / tile->groups;
    for (int64_t r = 0; r < tile->rows; r++) {
        const bf16 *q = (const bf16 *)a->q + place(a, tile, r);
        for (int64_t d = 0; d < a->D; d += 2)
            memcpy(&w->q[r / rows_of_group][d / 32][(d % 32 / 2 * LANES + r) * 2], q + d, 4);
    }
}

/* Asks for what lies 64 tokens ahead: a block is too short for the machine to foresee it. Little at
 * a time, between other work: more requests than a core keeps at once would make it wait. */
INLINE void prefetch(const struct attention *a, const struct tile *tile, const void *cache,
                     int64_t group, int64_t token, int64_t end) {
    if (token >= end) return;
    const bf16 *from = (const bf16 *)cache + cached(a, tile, group, token);
    for (int64_t i = 0; i < PIECE * a->D; i += 32) __builtin_prefetch(from + i, 0, 2);
}

/* Scores of two pieces of 16 tokens each. What lies beyond the last token may be anything. Instead of
 * pieces before the first token, whose blocks may be gone, or beyond the last, others are taken again. */
static void score_two(const struct attention *a, const struct tile *tile, struct work *w, int64_t start,
                      int64_t piece, int64_t end) {
    int64_t begin = tile->starts[0] / PIECE * PIECE;
    int64_t first = MAX(start + piece * PIECE, begin);
    int64_t second = MAX(start + (piece + 1) * PIECE, begin);
    if (second >= end) second = first;
    _tile_zero(0);
    _tile_zero(1);
    for (int64_t g = 0; g < tile->groups; g++) {
        const bf16 *k = (const bf16 *)a->k_cache + cached(a, tile, tile->group + g, first);
        const bf16 *k_next = (const bf16 *)a->k_cache + cached(a, tile, tile->group + g, second);
        prefetch(a, tile, a->k_cache, tile->group + g, first + RUN, end);
        prefetch(a, tile, a->k_cache, tile->group + g, first + RUN + PIECE, end);
        for (int64_t d = 0; d < a->D; d += 32) {
            _tile_loadd(6, w->q[g][d / 32], 64);
            _tile_loadd(4, k + d, a->D * 2);
            _tile_dpbf16ps(0, 4, 6);
            _tile_loadd(4, k_next + d, a->D * 2);
            _tile_dpbf16ps(1, 4, 6);
        }
    }
    _tile_stored(0, w->scores[piece * PIECE], 64);
    _tile_stored(1, w->scores[(piece + 1) * PIECE], 64);
}

static void score(const struct attention *a, const struct tile *tile, struct work *w, int64_t start,
                  int64_t end) {
    score_two(a, tile, w, start, 0, end);
    if (start + 2 * PIECE < end)
        score_two(a, tile, w, start, 2, end);
    else
        memset(w->scores[2 * PIECE], 0, 2 * PIECE * sizeof *w->scores);
}

/* The rows that see a token. */
INLINE vi seen(const struct work *w, int64_t token) {
    vi t = (vi){0} + (int32_t)token;
    return (t >= w->starts) & (t < w->limits);
}

/* Scaled scores of one token for the 16 rows; far below all others for rows that do not see it. */
INLINE vf scaled(const struct work *w, int t, int64_t start, float scale, int is_masked) {
    vf score = load(w->scores[t], 0, 0) * scale;
    return is_masked ? blend(seen(w, start + t), score, splat(NO_SCORE)) : score;
}

INLINE vf peak_of(const struct work *w, int64_t start, float scale, int is_masked) {
    vf peaks[4] = {w->peak, w->peak, w->peak, w->peak}; /* four at a time, not one after the other */
    for (int t = 0; t < RUN; t += 4)
        for (int i = 0; i < 4; i++)
            peaks[i] = larger(peaks[i], scaled(w, t + i, start, scale, is_masked));
    return larger(larger(peaks[0], peaks[1]), larger(peaks[2], peaks[3]));
}

INLINE vf weight_of(const struct work *w, int t, int64_t start, float scale, vf peak, int is_masked) {
    vf weight = power_of_two(load(w->scores[t], 0, 0) * scale - peak);
    return is_masked ? blend(seen(w, start + t), weight, splat(0.0f)) : weight;
}

INLINE vu rounded(vf x) { return (vu)x + 0x8000; }

/* Turns scores into weights, two tokens in a lane. Returns what older sums are to be scaled by. */
INLINE vf weigh(struct work *w, int64_t start, float scale, int is_masked) {
    vf peak = peak_of(w, start, scale, is_masked), total = {0};
    for (int t = 0; t < RUN; t += 2) {
        vf even = weight_of(w, t, start, scale, peak, is_masked);
        vf odd = weight_of(w, t + 1, start, scale, peak, is_masked);
        total += even + odd;
        w->pairs[t / 2] = rounded(even) >> 16 | (rounded(odd) & 0xffff0000);
    }
    vf rescale = blend(w->peak == peak, splat(1.0f), power_of_two(w->peak - peak));
    w->total = w->total * rescale + total;
    w->peak = peak;
    return rescale;
}

static void rescale_sums(struct work *w, vf rescale, int64_t rows, int64_t D) {
    for (int64_t r = 0; r < rows; r++)
        if (rescale[r] != 1.0f)
            for (int64_t d = 0; d < D; d += LANES)
                store(w->acc, r * D + d, load(w->acc, r * D + d, 0) * rescale[r], 0);
}

/* out[j][i] = in[i][j] for 16 by 16 words. */
static void transpose(const vu *in, vu *out) {
    __m512i a[16], b[16];
    for (int i = 0; i < 16; i += 2) {
        a[i] = _mm512_unpacklo_epi32((__m512i)in[i], (__m512i)in[i + 1]);
        a[i + 1] = _mm512_unpackhi_epi32((__m512i)in[i], (__m512i)in[i + 1]);
    }
    for (int i = 0; i < 16; i += 4) { /* b[i + j]: column 4 * lane + j of rows [i, i + 4) */
        b[i] = _mm512_unpacklo_epi64(a[i], a[i + 2]);
        b[i + 1] = _mm512_unpackhi_epi64(a[i], a[i + 2]);
        b[i + 2] = _mm512_unpacklo_epi64(a[i + 1], a[i + 3]);
        b[i + 3] = _mm512_unpackhi_epi64(a[i + 1], a[i + 3]);
    }
    for (int j = 0; j < 4; j++) {
        __m512i low = _mm512_shuffle_i32x4(b[j], b[j + 4], 0x88);
        __m512i low_odd = _mm512_shuffle_i32x4(b[j], b[j + 4], 0xdd);
        __m512i high = _mm512_shuffle_i32x4(b[j + 8], b[j + 12], 0x88);
        __m512i high_odd = _mm512_shuffle_i32x4(b[j + 8], b[j + 12], 0xdd);
        out[j] = (vu)_mm512_shuffle_i32x4(low, high, 0x88);
        out[j + 4] = (vu)_mm512_shuffle_i32x4(low_odd, high_odd, 0x88);
        out[j + 8] = (vu)_mm512_shuffle_i32x4(low, high, 0xdd);
        out[j + 12] = (vu)_mm512_shuffle_i32x4(low_odd, high_odd, 0xdd);
    }
}

/* Interleaves 32 dimensions of two tokens: pairs for two tiles; see `store_unpacked` for their order. */
INLINE void store_pairs(bf16 (*to)[16 * 32], int64_t t, __m512i first, __m512i second) {
    _mm512_store_si512(to[0] + t % 32 * LANES, _mm512_unpacklo_epi16(first, second));
    _mm512_store_si512(to[1] + t % 32 * LANES, _mm512_unpackhi_epi16(first, second));
}

/* Values of a run as tiles. Tokens outside of [begin, end) become 0: what lies there may be NaN. */
static void load_values(const struct attention *a, const struct tile *tile, struct work *w,
                        int64_t group, int64_t start, int64_t begin, int64_t end) {
    for (int64_t piece = 0; piece < RUN; piece += PIECE) {
        int64_t token = start + piece, last = MAX(MIN(token, end - 1), begin);
        const bf16 *v = (const bf16 *)a->v_cache + cached(a, tile, group, last / PIECE * PIECE);
        prefetch(a, tile, a->v_cache, group, token + RUN, end);
        int is_whole = token >= begin && token + PIECE <= end;
        for (int64_t t = 0; t < PIECE; t += 2)
            for (int64_t d = 0; d < a->D; d += 32) {
                const bf16 *from = v + t * a->D + d;
                __m512i x = _mm512_loadu_si512(from), y = _mm512_loadu_si512(from + a->D);
                if (!is_whole) {
                    if (token + t < begin || token + t >= end) x = _mm512_setzero_si512();
                    if (token + t + 1 < begin || token + t + 1 >= end) y = _mm512_setzero_si512();
                }
                store_pairs(w->v[piece / 32] + d / 16, piece + t, x, y);
            }
    }
}

/* Adds the values of a group, weighed, to the sums of its rows. */
static void add_values(const struct attention *a, struct work *w, int64_t first_row) {
    for (int64_t d = 0; d < a->D; d += 32) {
        float *low = w->acc + first_row * a->D + d, *high = low + 16;
        _tile_loadd(2, low, a->D * 4);
        _tile_loadd(3, high, a->D * 4);
        for (int i = 0; i < RUN / 32; i++) {
            _tile_loadd(5, w->weights[i] + first_row * 32, 64);
            _tile_loadd(7, w->v[i][d / 16], 64);
            _tile_dpbf16ps(2, 5, 7);
            _tile_loadd(7, w->v[i][d / 16 + 1], 64);
            _tile_dpbf16ps(3, 5, 7);
        }
        _tile_stored(2, low, a->D * 4);
        _tile_stored(3, high, a->D * 4);
    }
}

static void walk(const struct attention *a, const struct tile *tile, struct work *w) {
    int64_t last = tile->rows - 1, begin = tile->starts[0], end = tile->limits[last];
    float scale = a->scale * LOG2_E;
    for (int64_t start = begin / RUN * RUN; start < end; start += RUN) {
        score(a, tile, w, start, end);
        int is_masked = start < tile->starts[last] || start + RUN > tile->limits[0];
        vf rescale = is_masked ? weigh(w, start, scale, 1) : weigh(w, start, scale, 0);
        rescale_sums(w, rescale, tile->rows, a->D);
        for (int i = 0; i < RUN / 32; i++) transpose(w->pairs + i * 16, (vu *)w->weights[i]);
        for (int64_t g = 0; g < tile->groups; g++) {
            load_values(a, tile, w, tile->group + g, start, begin, end);
            add_values(a, w, g * tile->rows / tile->groups);
        }
    }
}

void attend_by_tiles(const struct attention *a, const struct tile *tile) {
    struct work w;
    /* 0 and 1: scores; 4: keys; 6: queries; 2 and 3: sums; 5: weights; 7: values */
    uint8_t rows = (uint8_t)(tile->rows / tile->groups);
    configure_tiles((uint8_t[8]){16, 16, rows, rows, 16, rows, 16, 16});
    load_queries(a, tile, &w);
    memset(w.acc, 0, (size_t)(MAX_ROWS * a->D) * sizeof *w.acc);
    w.peak = splat(NO_SCORE);
    w.total = splat(0.0f);
    memcpy(&w.starts, tile->starts, sizeof w.starts);
    memcpy(&w.limits, tile->limits, sizeof w.limits);
    walk(a, tile, &w);
    _tile_release();
    for (int64_t r = 0; r < tile->rows; r++)
        for (int64_t d = 0; d < a->D; d += 32)
            store_unpacked(a->out, place(a, tile, r) + d, w.acc + r * a->D + d, 1.0f / w.total[r]);
}

#else

void attend_by_tiles(const struct attention *a, const struct tile *tile) { (void)a, (void)tile; }

#endif
