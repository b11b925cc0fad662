/* Types, vectors and threads that the kernels share. Plain C with GCC's vector extensions: what the
 * machine has beyond that (AVX-512 BF16, AMX) is used where the compiler says that it is there. */
#ifndef CHAIRLIFT_KERNELS_H
#define CHAIRLIFT_KERNELS_H

#include <stdint.h>
#include <string.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#define EXPORT __attribute__((visibility("default")))
#define INLINE static inline __attribute__((always_inline))
#define MIN(a, b) ((a) < (b) ? (a) : (b))
#define MAX(a, b) ((a) > (b) ? (a) : (b))

enum { LANES = 16 };
#define LOG2_E 1.44269504f

typedef uint16_t bf16;
typedef float vf __attribute__((vector_size(64)));
typedef uint32_t vu __attribute__((vector_size(64)));
typedef int32_t vi __attribute__((vector_size(64)));
typedef uint16_t vh __attribute__((vector_size(32)));

/* Calls body(task, argument) for each task of [0, count), on up to the threads that torch uses. */
typedef void (*task_body)(int64_t task, void *argument);
void run_tasks(int64_t count, task_body body, void *argument);

/* What Python calls, and `layers.c` too. */
EXPORT void linear(const void *x, const void *packed, const float *bias, void *y, int64_t rows,
                   int64_t in, int64_t out, int is_bf16, int widens);
EXPORT void linear_int8(const void *x, const void *packed, const float *scale, const float *bias,
                        void *y, void *scratch, int64_t rows, int64_t in, int64_t out, int is_bf16,
                        int widens);
EXPORT void rms_norm(const void *x, const void *weight, const void *residual, void *out, void *total,
                     int64_t rows, int64_t width, float eps, int is_bf16);
EXPORT void silu_mul(const void *gate_up, void *out, int64_t rows, int64_t width, int is_bf16);
EXPORT void rotary_kv_write(const void *qkv, const float *cos_sin, const int32_t *positions,
                            const void *q_norm, const void *k_norm, void *k_cache, void *v_cache,
                            const int64_t *slots, void *q, int64_t rows, int64_t H, int64_t G,
                            int64_t D, int64_t B, float eps, int is_bf16);
EXPORT int attention(const void *q, const void *k_cache, const void *v_cache, const int32_t *tables,
                     const int32_t *cu_seqlens, const int32_t *lengths, void *out, int64_t S,
                     int64_t H, int64_t G, int64_t D, int64_t B, int64_t T, float scale,
                     int64_t window, int is_bf16);

/* Whether AMX is there and the system lets us use it. */
extern int has_tiles;

INLINE float widen(bf16 x) {
    uint32_t bits = (uint32_t)x << 16;
    float out;
    memcpy(&out, &bits, 4);
    return out;
}

INLINE vf splat(float x) { return x - (vf){0}; }

/* 16 elements from index i of an array of bf16 or float. */
INLINE vf load(const void *array, int64_t i, int is_bf16) {
    if (!is_bf16) {
        vf out;
        memcpy(&out, (const float *)array + i, 64);
        return out;
    }
#if defined(__AVX512F__) /* gcc 12 makes four instructions of the conversion below */
    __m256i half = _mm256_loadu_si256((const __m256i *)((const bf16 *)array + i));
    return (vf)_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16);
#else
    vh half;
    memcpy(&half, (const bf16 *)array + i, 32);
    return (vf)(__builtin_convertvector(half, vu) << 16);
#endif
}

/* The bits of x rounded to bf16, ties to even; a NaN stays one. */
INLINE vh narrow(vf x) {
#if defined(__AVX512BF16__)
    return (vh)_mm512_cvtneps_pbh((__m512)x);
#else
    vu bits = (vu)x;
    vu rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    vu is_nan = (vu)((bits & 0x7fffffff) > 0x7f800000);
    return __builtin_convertvector((rounded & ~is_nan) | (0x7fc0 & is_nan), vh);
#endif
}

INLINE void store(void *array, int64_t i, vf x, int is_bf16) {
    if (!is_bf16) {
        memcpy((float *)array + i, &x, 64);
        return;
    }
    vh half = narrow(x);
    memcpy((bf16 *)array + i, &half, 32);
}

INLINE vi lanes_index(void) { return (vi){0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}; }

INLINE float sum(vf x) {
#if defined(__AVX512F__)
    return _mm512_reduce_add_ps((__m512)x);
#else
    float lanes[LANES];
    memcpy(lanes, &x, 64);
    for (int width = LANES / 2; width; width /= 2)
        for (int i = 0; i < width; i++) lanes[i] += lanes[i + width];
    return lanes[0];
#endif
}

INLINE vf larger(vf a, vf b) {
#if defined(__AVX512F__)
    return (vf)_mm512_max_ps((__m512)a, (__m512)b);
#else
    vi is_larger = a > b;
    return (vf)(((vi)a & is_larger) | ((vi)b & ~is_larger));
#endif
}

INLINE vf blend(vi mask, vf yes, vf no) { return (vf)(((vi)yes & mask) | ((vi)no & ~mask)); }

/* 2^x to 2 ulp between 2^-126 and 2^127; beyond them it may stay there or go on to 0 or infinity. */
INLINE vf power_of_two(vf x) {
#if defined(__AVX512F__)
    vf whole = (vf)_mm512_roundscale_ps((__m512)x, _MM_FROUND_TO_NEAREST_INT);
    vf rest = x - whole;
#else
    x = -larger(-larger(x, splat(-126.0f)), splat(-127.0f));
    vf shifted = x + 12582912.0f; /* 1.5 * 2^23: the low bits of the sum are the nearest integer */
    vf rest = x - (shifted - 12582912.0f);
#endif
    vf p = splat(1.535336188e-4f);
    p = p * rest + 1.339887440e-3f;
    p = p * rest + 9.618437357e-3f;
    p = p * rest + 5.550332471e-2f;
    p = p * rest + 2.402264791e-1f;
    p = p * rest + 6.931472028e-1f;
    p = p * rest + 1.0f;
#if defined(__AVX512F__)
    return (vf)_mm512_scalef_ps((__m512)p, (__m512)whole);
#else
    return (vf)((vi)p + ((vi)shifted << 23)); /* the constant's own bits shift out */
#endif
}

#endif
