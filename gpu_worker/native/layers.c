/* All layers of a step in one call, and all that makes logits of them in another. From Python, some 270
 * calls of a step took longer than a sixth of a decoding step of 16 rows, and the cores had nothing to do
 * in between. Even few calls tell: what they need has left the caches while the layers read weights. */
#include <time.h>

#include "kernels.h"

/* All structures as `layers.py` has them. */
struct packed {
    const void *weight;
    const float *scale; /* of weights in eight bits, else NULL */
    const float *bias;
};

struct layer {
    const void *input_norm, *q_norm, *k_norm, *ffn_norm;
    struct packed qkv, out, gate_up, down;
    int64_t window;
};

struct step {
    const struct layer *layers;
    const float *cos_sin;
    const void *embedding; /* [V, E] */
    void *x;       /* [N, E] out: the residual of the last layer */
    void *hidden;  /* [N, E] out: what the last layer adds to it */
    void *scratch; /* [N, E + (H + 2G) D + H D + 3F] */
    const int32_t *tokens, *positions, *tables, *cu_seqlens, *lengths;
    const int64_t *slots;
    char *k_cache, *v_cache; /* of the first layer */
    void *bytes;             /* what `linear_int8` writes rows to, if any layer has eight bits */
    int64_t *nanoseconds;    /* that each kernel of `enum kernel` took is added to it, or NULL */
    int64_t L, N, E, F, V, S, T, H, G, D, B, cache_bytes, is_bf16;
    float eps, scale;
};

/* In the order of `KERNELS`. */
enum kernel { RMS_NORM, LINEAR, ROTARY_KV_WRITE, ATTENTION, SILU_MUL };

struct clock {
    int64_t *nanoseconds, last;
};

/* What passed since the last call belongs to a kernel. */
static void took(struct clock *clock, enum kernel kernel) {
    if (!clock->nanoseconds) return;
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    int64_t nanoseconds = now.tv_sec * 1000000000LL + now.tv_nsec;
    if (clock->last) clock->nanoseconds[kernel] += nanoseconds - clock->last;
    clock->last = nanoseconds;
}

struct head {
    const void *x, *residual; /* [N, E] */
    const int64_t *last;      /* [R] */
    const void *norm;
    struct packed weight;
    void *scratch; /* [3, R, E] */
    void *bytes;   /* as of a step */
    float *logits; /* [R, V] out */
    int64_t N, E, V, R, is_bf16;
    float eps;
};

static void apply_to(struct packed w, const void *x, void *y, void *bytes, int64_t rows, int64_t in,
                     int64_t out, int is_bf16, int widens) {
    if (w.scale)
        linear_int8(x, w.weight, w.scale, w.bias, y, bytes, rows, in, out, is_bf16, widens);
    else
        linear(x, w.weight, w.bias, y, rows, in, out, is_bf16, widens);
}

static void apply(const struct step *s, const void *x, struct packed w, void *y, int64_t in,
                  int64_t out) {
    apply_to(w, x, y, s->bytes, s->N, in, out, (int)s->is_bf16, 0);
}

/* Copies rows of `from` [N, bytes] to [rows, bytes]; -1 if one is not there. */
static int gather(void *to, const void *from, const void *index, int is_wide, int64_t rows, int64_t N,
                  int64_t bytes) {
    for (int64_t r = 0; r < rows; r++) {
        int64_t row = is_wide ? ((const int64_t *)index)[r] : ((const int32_t *)index)[r];
        if (row < 0 || row >= N) return -1;
        memcpy((char *)to + r * bytes, (const char *)from + row * bytes, (size_t)bytes);
    }
    return 0;
}

static void *after(const struct step *s, void *buffer, int64_t width) {
    return (char *)buffer + s->N * width * (s->is_bf16 ? 2 : 4);
}

/* Returns 0, or -1 without memory or for a token beyond V. */
EXPORT int layers(const struct step *s) {
    int64_t heads = s->H * s->D, qkv_width = heads + 2 * s->G * s->D;
    void *normed = s->scratch, *qkv = after(s, normed, s->E), *q = after(s, qkv, qkv_width);
    void *gate_up = after(s, q, heads), *ffn = after(s, gate_up, 2 * s->F), *attended = qkv;
    int is_bf16 = (int)s->is_bf16;
    if (gather(s->x, s->embedding, s->tokens, 0, s->N, s->V, s->E * (is_bf16 ? 2 : 4))) return -1;
    struct clock clock = {s->nanoseconds, 0};
    took(&clock, RMS_NORM); /* starts it */
    for (int64_t i = 0; i < s->L; i++) {
        const struct layer *l = s->layers + i;
        void *k_cache = s->k_cache + i * s->cache_bytes, *v_cache = s->v_cache + i * s->cache_bytes;
        rms_norm(i ? s->hidden : s->x, l->input_norm, i ? s->x : NULL, normed, s->x, s->N, s->E, s->eps,
                 is_bf16);
        took(&clock, RMS_NORM);
        apply(s, normed, l->qkv, qkv, s->E, qkv_width);
        took(&clock, LINEAR);
        rotary_kv_write(qkv, s->cos_sin, s->positions, l->q_norm, l->k_norm, k_cache, v_cache, s->slots,
                        q, s->N, s->H, s->G, s->D, s->B, s->eps, is_bf16);
        took(&clock, ROTARY_KV_WRITE);
        if (attention(q, k_cache, v_cache, s->tables, s->cu_seqlens, s->lengths, attended, s->S, s->H,
                      s->G, s->D, s->B, s->T, s->scale, l->window, is_bf16))
            return -1;
        took(&clock, ATTENTION);
        apply(s, attended, l->out, s->hidden, heads, s->E);
        took(&clock, LINEAR);
        rms_norm(s->hidden, l->ffn_norm, s->x, normed, s->x, s->N, s->E, s->eps, is_bf16);
        took(&clock, RMS_NORM);
        apply(s, normed, l->gate_up, gate_up, s->E, 2 * s->F);
        took(&clock, LINEAR);
        silu_mul(gate_up, ffn, s->N, s->F, is_bf16);
        took(&clock, SILU_MUL);
        apply(s, ffn, l->down, s->hidden, s->F, s->E);
        took(&clock, LINEAR);
    }
    return 0;
}

/* Returns 0, or -1 if a row of `last` is not there. */
EXPORT int logits(const struct head *h) {
    int is_bf16 = (int)h->is_bf16;
    int64_t bytes = h->E * (is_bf16 ? 2 : 4);
    char *x = h->scratch, *residual = x + h->R * bytes, *normed = residual + h->R * bytes;
    if (gather(x, h->x, h->last, 1, h->R, h->N, bytes) ||
        gather(residual, h->residual, h->last, 1, h->R, h->N, bytes))
        return -1;
    rms_norm(x, h->norm, residual, normed, residual, h->R, h->E, h->eps, is_bf16);
    apply_to(h->weight, normed, h->logits, h->bytes, h->R, h->E, h->V, is_bf16, 1);
    return 0;
}
