/* RMS norm, rotary embedding with the cache write, and the gated activation. */
#include "kernels.h"

enum { ELEMENTS_OF_TASK = 16384 }; /* below that a second thread costs more than it gives */

struct rows {
    const void *x, *weight, *residual;
    void *out, *total;
    int64_t rows, width, rows_of_task;
    float eps;
    int is_bf16;
};

static void run_rows(struct rows *work, int64_t elements_of_row, task_body body) {
    work->rows_of_task = MAX((int64_t)1, ELEMENTS_OF_TASK / elements_of_row);
    run_tasks((work->rows + work->rows_of_task - 1) / work->rows_of_task, body, work);
}

INLINE void norm_row(const struct rows *w, int64_t row, int is_bf16) {
    int64_t start = row * w->width;
    vf squares = {0};
    for (int64_t i = 0; i < w->width; i += LANES) {
        vf x = load(w->x, start + i, is_bf16);
        if (w->residual) {
            store(w->total, start + i, x + load(w->residual, start + i, is_bf16), is_bf16);
            x = load(w->total, start + i, is_bf16); /* rounded */
        }
        squares += x * x;
    }
    vf scale = splat(1.0f / __builtin_sqrtf(sum(squares) / (float)w->width + w->eps));
    const void *total = w->residual ? w->total : w->x;
    for (int64_t i = 0; i < w->width; i += LANES) {
        vf x = load(total, start + i, is_bf16) * scale * load(w->weight, i, is_bf16);
        store(w->out, start + i, x, is_bf16);
    }
}

static void norm_task(int64_t task, void *argument) {
    const struct rows *w = argument;
    int64_t first = task * w->rows_of_task, last = MIN(first + w->rows_of_task, w->rows);
    for (int64_t row = first; row < last; row++)
        if (w->is_bf16)
            norm_row(w, row, 1);
        else
            norm_row(w, row, 0);
}

EXPORT void rms_norm(const void *x, const void *weight, const void *residual, void *out, void *total,
                     int64_t rows, int64_t width, float eps, int is_bf16) {
    struct rows work = {x, weight, residual, out, total, rows, width, 0, eps, is_bf16};
    run_rows(&work, width, norm_task);
}

INLINE void silu_row(const struct rows *w, int64_t row, int is_bf16) {
    for (int64_t i = 0; i < w->width; i += LANES) {
        vf gate = load(w->x, row * 2 * w->width + i, is_bf16);
        vf up = load(w->x, row * 2 * w->width + w->width + i, is_bf16);
        store(w->out, row * w->width + i, gate / (1.0f + power_of_two(gate * -LOG2_E)) * up, is_bf16);
    }
}

static void silu_task(int64_t task, void *argument) {
    const struct rows *w = argument;
    int64_t first = task * w->rows_of_task, last = MIN(first + w->rows_of_task, w->rows);
    for (int64_t row = first; row < last; row++)
        if (w->is_bf16)
            silu_row(w, row, 1);
        else
            silu_row(w, row, 0);
}

EXPORT void silu_mul(const void *gate_up, void *out, int64_t rows, int64_t width, int is_bf16) {
    struct rows work = {gate_up, NULL, NULL, out, NULL, rows, width, 0, 0, is_bf16};
    run_rows(&work, 2 * width, silu_task);
}

struct rotary {
    struct rows rows; /* x: qkv, out: q; width: of a row of qkv */
    const float *cos_sin;
    const int32_t *positions;
    const void *q_norm, *k_norm;
    void *k_cache, *v_cache;
    const int64_t *slots;
    int64_t H, G, D, B;
};

/* Normalises, where there are weights, and rotates one head. */
INLINE void turn(const struct rotary *a, const void *x, int64_t from, const void *norm,
                 const float *cos, void *out, int64_t to, int is_bf16) {
    int64_t half = a->D / 2;
    vf scale = splat(1.0f);
    if (norm) {
        vf squares = {0};
        for (int64_t d = 0; d < a->D; d += LANES) {
            vf value = load(x, from + d, is_bf16);
            squares += value * value;
        }
        scale = splat(1.0f / __builtin_sqrtf(sum(squares) / (float)a->D + a->rows.eps));
    }
    for (int64_t d = 0; d < half; d += LANES) {
        vf low = load(x, from + d, is_bf16) * scale, high = load(x, from + half + d, is_bf16) * scale;
        if (norm) low *= load(norm, d, is_bf16), high *= load(norm, half + d, is_bf16);
        vf c = load(cos, d, 0), s = load(cos, half + d, 0);
        store(out, to + d, low * c - high * s, is_bf16);
        store(out, to + half + d, high * c + low * s, is_bf16);
    }
}

INLINE void rotary_row(const struct rotary *a, int64_t row, int is_bf16) {
    int64_t H = a->H, G = a->G, D = a->D, slot = a->slots[row];
    const float *cos = a->cos_sin + a->positions[row] * D;
    int64_t from = row * (H + 2 * G) * D;
    for (int64_t h = 0; h < H; h++)
        turn(a, a->rows.x, from + h * D, a->q_norm, cos, a->rows.out, (row * H + h) * D, is_bf16);
    if (slot < 0) return;
    int64_t block = slot / a->B, offset = slot % a->B;
    for (int64_t g = 0; g < G; g++) {
        int64_t to = ((block * G + g) * a->B + offset) * D;
        turn(a, a->rows.x, from + (H + g) * D, a->k_norm, cos, a->k_cache, to, is_bf16);
        for (int64_t d = 0; d < D; d += LANES)
            store(a->v_cache, to + d, load(a->rows.x, from + (H + G + g) * D + d, is_bf16), is_bf16);
    }
}

static void rotary_task(int64_t task, void *argument) {
    const struct rotary *a = argument;
    int64_t first = task * a->rows.rows_of_task;
    int64_t last = MIN(first + a->rows.rows_of_task, a->rows.rows);
    for (int64_t row = first; row < last; row++)
        if (a->rows.is_bf16)
            rotary_row(a, row, 1);
        else
            rotary_row(a, row, 0);
}

EXPORT void rotary_kv_write(const void *qkv, const float *cos_sin, const int32_t *positions,
                            const void *q_norm, const void *k_norm, void *k_cache, void *v_cache,
                            const int64_t *slots, void *q, int64_t rows, int64_t H, int64_t G,
                            int64_t D, int64_t B, float eps, int is_bf16) {
    int64_t width = (H + 2 * G) * D;
    struct rotary work = {{qkv, NULL, NULL, q, NULL, rows, width, 0, eps, is_bf16},
                          cos_sin, positions, q_norm, k_norm, k_cache, v_cache, slots, H, G, D, B};
    run_rows(&work.rows, width, rotary_task);
}
