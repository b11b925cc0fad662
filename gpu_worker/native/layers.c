/* All layers of a step in one call. From Python, some 270 calls of a step took longer than a sixth of
 * a decoding step of 16 rows, and the cores had nothing to do in between. */
#include "kernels.h"

/* Both structures as `layers.py` has them. */
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
    void *x;       /* [N, E] in: the embeddings; out: the residual of the last layer */
    void *hidden;  /* [N, E] out: what the last layer adds to it */
    void *scratch; /* [N, E + (H + 2G) D + H D + 3F] */
    const int32_t *positions, *tables, *cu_seqlens, *lengths;
    const int64_t *slots;
    char *k_cache, *v_cache; /* of the first layer */
    void *bytes;             /* what `linear_int8` writes rows to, if any layer has eight bits */
    int64_t L, N, E, F, S, T, H, G, D, B, cache_bytes, is_bf16;
    float eps, scale;
};

static void apply(const struct step *s, const void *x, struct packed w, void *y, int64_t in,
                  int64_t out) {
    int is_bf16 = (int)s->is_bf16;
    if (w.scale)
        linear_int8(x, w.weight, w.scale, w.bias, y, s->bytes, s->N, in, out, is_bf16);
    else
        linear(x, w.weight, w.bias, y, s->N, in, out, is_bf16);
}

static void *after(const struct step *s, void *buffer, int64_t width) {
    return (char *)buffer + s->N * width * (s->is_bf16 ? 2 : 4);
}

/* Returns 0, or -1 without memory. */
EXPORT int layers(const struct step *s) {
    int64_t heads = s->H * s->D, qkv_width = heads + 2 * s->G * s->D;
    void *normed = s->scratch, *qkv = after(s, normed, s->E), *q = after(s, qkv, qkv_width);
    void *gate_up = after(s, q, heads), *ffn = after(s, gate_up, 2 * s->F), *attended = qkv;
    int is_bf16 = (int)s->is_bf16;
    for (int64_t i = 0; i < s->L; i++) {
        const struct layer *l = s->layers + i;
        void *k_cache = s->k_cache + i * s->cache_bytes, *v_cache = s->v_cache + i * s->cache_bytes;
        rms_norm(i ? s->hidden : s->x, l->input_norm, i ? s->x : NULL, normed, s->x, s->N, s->E, s->eps,
                 is_bf16);
        apply(s, normed, l->qkv, qkv, s->E, qkv_width);
        rotary_kv_write(qkv, s->cos_sin, s->positions, l->q_norm, l->k_norm, k_cache, v_cache, s->slots,
                        q, s->N, s->H, s->G, s->D, s->B, s->eps, is_bf16);
        if (attention(q, k_cache, v_cache, s->tables, s->cu_seqlens, s->lengths, attended, s->S, s->H,
                      s->G, s->D, s->B, s->T, s->scale, l->window, is_bf16))
            return -1;
        apply(s, attended, l->out, s->hidden, heads, s->E);
        rms_norm(s->hidden, l->ffn_norm, s->x, normed, s->x, s->N, s->E, s->eps, is_bf16);
        apply(s, normed, l->gate_up, gate_up, s->E, 2 * s->F);
        silu_mul(gate_up, ffn, s->N, s->F, is_bf16);
        apply(s, ffn, l->down, s->hidden, s->F, s->E);
    }
    return 0;
}
