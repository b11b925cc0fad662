/* Attention over the paged cache, in place: decoding rows and chunks of prompts in one call.
 *
 * A task is up to 16 query rows of one sequence and one key/value head, a row being a pair of token
 * and query head. With AMX or AVX-512 BF16, and sequences enough for all threads, a sequence of one
 * token takes several key/value heads in a task: their blocks lie side by side.
 *
 * A task walks over the blocks with an online softmax to the base 2: over the tokens seen so far,
 * `peak` is a row's largest score, `total` the sum of 2^(score - peak), `acc` that of
 * 2^(score - peak) * value. Runs of tokens begin at the same places for every row, and what a row
 * does not see adds zeros: what it gets does not depend on how its prompt was cut into chunks. */
#include <stdlib.h>

#include "attention.h"

enum {
    RUN = 32,     /* tokens taken at a time, at most */
    JOIN_FROM = 8 /* sequences: with fewer, some threads would have nothing to do */
};

struct sums {
    float peak[MAX_ROWS], total[MAX_ROWS];
    float q[MAX_ROWS * MAX_D], acc[MAX_ROWS * MAX_D];
};

/* The scores of `rows` rows, up to 4, against a run of keys. */
INLINE void score(const float *q, int rows, const void *k, int64_t count, int64_t D, int is_bf16,
                  float (*scores)[RUN]) {
    for (int64_t t = 0; t < count; t++) {
        vf products[4] = {{0}};
        for (int64_t d = 0; d < D; d += LANES) {
            vf key = load(k, t * D + d, is_bf16);
            for (int r = 0; r < rows; r++) products[r] += key * load(q, r * D + d, 0);
        }
        for (int r = 0; r < rows; r++) scores[r][t] = sum(products[r]);
    }
}

/* Turns a row's scores into weights, 0 outside of [low, high); returns the scale of older sums. */
INLINE float weigh(float *peak, float *total, float *scores, int64_t low, int64_t high, int64_t count) {
    float new_peak = *peak;
    for (int64_t t = low; t < high; t++) new_peak = MAX(new_peak, scores[t]);
    vf weights = {0};
    for (int64_t t = 0; t < count; t += LANES) {
        vi index = lanes_index() + (int32_t)t;
        vi seen = (index >= (int32_t)low) & (index < (int32_t)high);
        vf weight = power_of_two(blend(seen, load(scores, t, 0) - new_peak, splat(0.0f)));
        weight = blend(seen, weight, splat(0.0f));
        store(scores, t, weight, 0);
        weights += weight;
    }
    float rescale = new_peak == *peak ? 1.0f : power_of_two(splat(*peak - new_peak))[0];
    *total = *total * rescale + sum(weights);
    *peak = new_peak;
    return rescale;
}

/* Adds the values of a run to `rows` rows of the sums, `vectors` * 16 columns from `column`. */
INLINE void add_values(float *acc, float (*weights)[RUN], const float *rescale, int rows,
                       int vectors, const void *v, int64_t count, int64_t D, int64_t column,
                       int is_bf16) {
    vf sums[4][4];
    for (int r = 0; r < rows; r++)
        for (int i = 0; i < vectors; i++)
            sums[r][i] = load(acc, r * D + column + i * LANES, 0) * rescale[r];
    for (int64_t t = 0; t < count; t++)
        for (int i = 0; i < vectors; i++) {
            vf value = load(v, t * D + column + i * LANES, is_bf16);
            for (int r = 0; r < rows; r++) sums[r][i] += weights[r][t] * value;
        }
    for (int r = 0; r < rows; r++)
        for (int i = 0; i < vectors; i++)
            store(acc, r * D + column + i * LANES, sums[r][i], 0);
}

INLINE void add_run(const struct tile *tile, struct sums *sums, int64_t first, int rows,
                    const void *k, const void *v, int64_t start, int64_t count, int64_t D,
                    int is_bf16) {
    float scores[4][RUN], rescale[4];
    score(sums->q + first * D, rows, k, count, D, is_bf16, scores);
    for (int r = 0; r < rows; r++) {
        int64_t row = first + r, low = MAX(tile->starts[row] - start, (int64_t)0);
        int64_t high = MIN(tile->limits[row] - start, count);
        rescale[r] = weigh(sums->peak + row, sums->total + row, scores[r], low, high, count);
    }
    float *acc = sums->acc + first * D;
    int64_t column = 0;
    for (; column + 64 <= D; column += 64)
        add_values(acc, scores, rescale, rows, 4, v, count, D, column, is_bf16);
    for (; column < D; column += LANES)
        add_values(acc, scores, rescale, rows, 1, v, count, D, column, is_bf16);
}

INLINE void walk(const struct attention *a, const struct tile *tile, struct sums *sums, int is_bf16) {
    int64_t begin = tile->starts[0], end = tile->limits[tile->rows - 1], D = a->D;
    for (int64_t start = begin - begin % a->B % RUN, count; start < end; start += count) {
        count = MIN(MIN(a->B - start % a->B, (int64_t)RUN), end - start);
        const void *k = element(a->k_cache, cached(a, tile, tile->group, start), is_bf16);
        const void *v = element(a->v_cache, cached(a, tile, tile->group, start), is_bf16);
        for (int64_t first = 0; first < tile->rows; first += 4)
            switch (MIN(tile->rows - first, 4)) {
            case 1: add_run(tile, sums, first, 1, k, v, start, count, D, is_bf16); break;
            case 2: add_run(tile, sums, first, 2, k, v, start, count, D, is_bf16); break;
            case 3: add_run(tile, sums, first, 3, k, v, start, count, D, is_bf16); break;
            default: add_run(tile, sums, first, 4, k, v, start, count, D, is_bf16); break;
            }
    }
}

INLINE void attend_by_vectors(const struct attention *a, const struct tile *tile, int is_bf16) {
    struct sums sums;
    float scale = a->scale * LOG2_E;
    for (int64_t r = 0; r < tile->rows; r++) {
        sums.peak[r] = NO_SCORE;
        sums.total[r] = 0;
        for (int64_t d = 0; d < a->D; d += LANES) {
            store(sums.q, r * a->D + d, load(a->q, place(a, tile, r) + d, is_bf16) * scale, 0);
            store(sums.acc, r * a->D + d, splat(0), 0);
        }
    }
    walk(a, tile, &sums, is_bf16);
    for (int64_t r = 0; r < tile->rows; r++)
        for (int64_t d = 0; d < a->D; d += LANES) {
            vf row = load(sums.acc, r * a->D + d, 0) / sums.total[r];
            store(a->out, place(a, tile, r) + d, row, is_bf16);
        }
}

/* How many tiles the key/value heads of a sequence with so many tokens take. */
static int64_t columns_of(const struct attention *a, int64_t tokens) {
    return tokens == 1 ? (a->G + a->joined - 1) / a->joined : a->G;
}

static void prepare_tile(const struct attention *a, int64_t task, struct tile *tile) {
    int64_t low = 0, high = a->S; /* first_task[low] <= task < first_task[high] */
    while (high - low > 1) {
        int64_t middle = (low + high) / 2;
        if (a->first_task[middle] <= task)
            low = middle;
        else
            high = middle;
    }
    int64_t heads = a->H / a->G, tokens = a->cu_seqlens[low + 1] - a->cu_seqlens[low];
    int64_t joined = tokens == 1 ? a->joined : 1, columns = columns_of(a, tokens);
    int64_t tiles = (a->first_task[low + 1] - a->first_task[low]) / columns;
    int64_t index = tiles - 1 - (task - a->first_task[low]) / columns; /* the longest first */
    tile->table = a->tables + low * a->T;
    tile->group = (task - a->first_task[low]) % columns * joined;
    tile->groups = MIN(joined, a->G - tile->group);
    tile->first_token = a->cu_seqlens[low];
    tile->first_row = index * MAX_ROWS;
    memset(tile->starts, 0, sizeof tile->starts);
    memset(tile->limits, 0, sizeof tile->limits);
    tile->rows = MIN(tokens * heads * tile->groups - tile->first_row, (int64_t)MAX_ROWS);
    for (int64_t r = 0; r < tile->rows; r++) {
        int64_t limit = a->lengths[low] - tokens + (tile->first_row + r) / (heads * tile->groups) + 1;
        tile->limits[r] = (int32_t)limit;
        tile->starts[r] = (int32_t)(a->window ? MAX(limit - a->window, (int64_t)0) : 0);
    }
}

/* Whether one of the ways that take bf16 as it is can compute it. */
static int by_halves(const struct attention *a) {
    return a->is_bf16 && (has_tiles || HAS_PAIRS) && a->B % 16 == 0 && a->D % 32 == 0;
}

static void attention_task(int64_t task, void *argument) {
    const struct attention *a = argument;
    struct tile tile;
    prepare_tile(a, task, &tile);
    if (!a->is_bf16)
        attend_by_vectors(a, &tile, 0);
    else if (!by_halves(a))
        attend_by_vectors(a, &tile, 1);
    else if (has_tiles)
        attend_by_tiles(a, &tile);
    else
        attend_by_pairs(a, &tile);
}

EXPORT int attention(const void *q, const void *k_cache, const void *v_cache, const int32_t *tables,
                     const int32_t *cu_seqlens, const int32_t *lengths, void *out, int64_t S,
                     int64_t H, int64_t G, int64_t D, int64_t B, int64_t T, float scale,
                     int64_t window, int is_bf16) {
    int64_t *first_task = malloc((size_t)(S + 1) * sizeof *first_task);
    if (!first_task) return -1;
    struct attention a = {q, k_cache, v_cache, tables, cu_seqlens, lengths, out, S, H, G, D, B, T,
                          scale, window, is_bf16, 1, first_task};
    int64_t heads = H / G;
    if (by_halves(&a) && S >= JOIN_FROM && 2 * heads <= MAX_ROWS)
        a.joined = MIN(MIN(MAX_ROWS / heads, (int64_t)MAX_GROUPS), G);
    first_task[0] = 0;
    for (int64_t s = 0; s < S; s++) {
        int64_t tokens = cu_seqlens[s + 1] - cu_seqlens[s];
        int64_t tiles = (tokens * heads + MAX_ROWS - 1) / MAX_ROWS;
        first_task[s + 1] = first_task[s] + tiles * columns_of(&a, tokens);
    }
    run_tasks(first_task[S], attention_task, &a);
    free(first_task);
    return 0;
}
