/* Attention on AMX. The scores are computed as K Q^T, so that K's rows are tiles as they lie in the
 * cache, and the lanes of a vector are the tile's 16 query rows all through the softmax. */
#include "amx.h"
#include "attention.h"

#if defined(__AMX_BF16__)

enum { RUN = 64, PIECE = 16 }; /* tokens taken at a time; tokens of one tile of keys */

struct work {
    bf16 q[MAX_D / 32][16 * 32];        /* [D / 32][pairs of dimensions][rows][2] */
    bf16 v[RUN / 32][MAX_D / 16][16 * 32]; /* [.][D / 16][pairs of tokens][16 dimensions][2] */
    vu pairs[RUN / 2];                  /* of weights of two tokens, by row */
    bf16 weights[RUN / 32][16 * 32];    /* [.][rows][tokens] */
    float scores[RUN][LANES];           /* [tokens][rows] */
    float acc[MAX_ROWS * MAX_D];        /* [rows][D] */
    vf peak, total;
    vi starts, limits;
} __attribute__((aligned(64)));

static void load_queries(const struct attention *a, const struct tile *tile, struct work *w) {
    memset(w->q, 0, (size_t)(a->D / 32) * sizeof *w->q);
    for (int64_t r = 0; r < tile->rows; r++) {
        const bf16 *q = (const bf16 *)a->q + place(a, tile, r);
        for (int64_t d = 0; d < a->D; d += 2)
            memcpy(&w->q[d / 32][(d % 32 / 2 * LANES + r) * 2], q + d, 4);
    }
}

/* Scores of up to four pieces of 16 tokens each. What lies beyond the last token may be anything. */
static void score(const struct attention *a, const struct tile *tile, struct work *w, int64_t start,
                  int64_t pieces) {
    const bf16 *k[RUN / PIECE];
    for (int64_t i = 0; i < RUN / PIECE; i++) /* a piece that is missing repeats the last one */
        k[i] = (const bf16 *)a->k_cache + cached(a, tile, start + MIN(i, pieces - 1) * PIECE);
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (int64_t d = 0; d < a->D; d += 32) {
        _tile_loadd(6, w->q[d / 32], 64);
        _tile_loadd(4, k[0] + d, a->D * 2);
        _tile_dpbf16ps(0, 4, 6);
        _tile_loadd(5, k[1] + d, a->D * 2);
        _tile_dpbf16ps(1, 5, 6);
        _tile_loadd(4, k[2] + d, a->D * 2);
        _tile_dpbf16ps(2, 4, 6);
        _tile_loadd(5, k[3] + d, a->D * 2);
        _tile_dpbf16ps(3, 5, 6);
    }
    _tile_stored(0, w->scores[0], 64);
    _tile_stored(1, w->scores[16], 64);
    _tile_stored(2, w->scores[32], 64);
    _tile_stored(3, w->scores[48], 64);
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

/* Interleaves 32 dimensions of two tokens: pairs for two tiles; see `store_row` for their order. */
INLINE void store_pairs(bf16 (*to)[16 * 32], int64_t t, __m512i first, __m512i second) {
    _mm512_store_si512(to[0] + t % 32 * LANES, _mm512_unpacklo_epi16(first, second));
    _mm512_store_si512(to[1] + t % 32 * LANES, _mm512_unpackhi_epi16(first, second));
}

/* Values of a run as tiles. Tokens outside of [begin, end) become 0: what lies there may be NaN. */
static void load_values(const struct attention *a, const struct tile *tile, struct work *w,
                        int64_t start, int64_t begin, int64_t end) {
    for (int64_t piece = 0; piece < RUN; piece += PIECE) {
        int64_t token = start + piece, last = MAX(MIN(token, end - 1), (int64_t)0);
        const bf16 *v = (const bf16 *)a->v_cache + cached(a, tile, last / PIECE * PIECE);
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

static void add_values(const struct attention *a, struct work *w) {
    for (int64_t d = 0; d < a->D; d += 32) {
        float *low = w->acc + d, *high = low + 16;
        _tile_loadd(0, low, a->D * 4);
        _tile_loadd(1, high, a->D * 4);
        for (int i = 0; i < RUN / 32; i++) {
            _tile_loadd(4, w->weights[i], 64);
            _tile_loadd(6, w->v[i][d / 16], 64);
            _tile_dpbf16ps(0, 4, 6);
            _tile_loadd(7, w->v[i][d / 16 + 1], 64);
            _tile_dpbf16ps(1, 4, 7);
        }
        _tile_stored(0, low, a->D * 4);
        _tile_stored(1, high, a->D * 4);
    }
}

/* Asks for the keys and values of a run ahead: a block is too short for the machine to foresee it. */
static void prefetch(const struct attention *a, const struct tile *tile, int64_t start, int64_t end) {
    for (int64_t token = start; token < MIN(start + RUN, end); token += PIECE) {
        int64_t at = cached(a, tile, token);
        const bf16 *k = (const bf16 *)a->k_cache + at, *v = (const bf16 *)a->v_cache + at;
        for (int64_t i = 0; i < PIECE * a->D; i += 32) {
            __builtin_prefetch(k + i);
            __builtin_prefetch(v + i);
        }
    }
}

static void walk(const struct attention *a, const struct tile *tile, struct work *w) {
    int64_t last = tile->rows - 1, begin = tile->starts[0], end = tile->limits[last];
    float scale = a->scale * LOG2_E;
    for (int64_t start = begin / PIECE * PIECE; start < end; start += RUN) {
        prefetch(a, tile, start + RUN, end);
        score(a, tile, w, start, (MIN(end - start, (int64_t)RUN) + PIECE - 1) / PIECE);
        load_values(a, tile, w, start, begin, end); /* here, while the scores leave the tiles */
        int is_masked = start < tile->starts[last] || start + RUN > tile->limits[0];
        vf rescale = is_masked ? weigh(w, start, scale, 1) : weigh(w, start, scale, 0);
        rescale_sums(w, rescale, tile->rows, a->D);
        for (int i = 0; i < RUN / 32; i++) transpose(w->pairs + i * 16, (vu *)w->weights[i]);
        add_values(a, w);
    }
}

/* Unpacking works within 128 bits: of each 32 columns of the sums, the first 16 are the dimensions
 * 0-3, 8-11, 16-19 and 24-27. Stores them in order. */
static void store_row(void *out, int64_t at, const float *acc, float scale) {
    __m512i low = _mm512_set_epi32(23, 22, 21, 20, 7, 6, 5, 4, 19, 18, 17, 16, 3, 2, 1, 0);
    __m512i high = _mm512_add_epi32(low, _mm512_set1_epi32(8));
    __m512 x = (__m512)(load(acc, 0, 0) * scale), y = (__m512)(load(acc, 16, 0) * scale);
    store(out, at, (vf)_mm512_permutex2var_ps(x, low, y), 1);
    store(out, at + 16, (vf)_mm512_permutex2var_ps(x, high, y), 1);
}

void attend_by_tiles(const struct attention *a, const struct tile *tile) {
    struct work w;
    struct tile_config config = tiles_of_rows((uint8_t[8]){16, 16, 16, 16, 16, 16, 16, 16});
    _tile_loadconfig(&config);
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
            store_row(a->out, place(a, tile, r) + d, w.acc + r * a->D + d, 1.0f / w.total[r]);
}

#else

void attend_by_tiles(const struct attention *a, const struct tile *tile) { (void)a, (void)tile; }

#endif
