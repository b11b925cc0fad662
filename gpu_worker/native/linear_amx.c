/* Linear layers on AMX: 16 rows by 32 inputs times 32 inputs by 16 outputs in one instruction. */
#include "amx.h"
#include "linear.h"

#if defined(__AMX_BF16__)

/* Tiles 0 to 3 hold sums (rows 0-15 and 16-31, each by two panels), 4 and 5 inputs, 6 and 7 weights. */
static void configure(int64_t rows) {
    uint8_t low = (uint8_t)MIN(rows, 16), high = (uint8_t)MAX(rows - 16, 1);
    configure_tiles((uint8_t[8]){low, low, high, high, low, high, 16, 16});
}

typedef float sums16[16 * LANES] __attribute__((aligned(64)));

static void finish_tile(const struct linear *l, int64_t row, int64_t rows, int64_t panel,
                        const float *sums) {
    for (int64_t r = 0; r < rows; r++) finish(l, row + r, panel, load(sums, r * LANES, 0), 1);
}

/* Up to 16 rows by one panel. No prefetch by hand: measured slower on Sapphire Rapids. */
static void one_tile(const struct linear *l, int64_t row, int64_t rows, int64_t panel) {
    sums16 sums;
    const bf16 *x = (const bf16 *)l->x + row * l->in;
    const bf16 *w = (const bf16 *)l->packed + panel * l->in * LANES;
    _tile_zero(0);
    for (int64_t k = 0; k < l->in; k += 32) {
        _tile_loadd(4, x + k, l->in * 2);
        _tile_loadd(6, w + k * LANES, 64);
        _tile_dpbf16ps(0, 4, 6);
    }
    _tile_stored(0, sums, 64);
    finish_tile(l, row, rows, panel, sums);
}

/* Up to 16 rows by two panels, which lie side by side. */
static void two_tiles(const struct linear *l, int64_t row, int64_t rows, int64_t panel) {
    sums16 sums[2];
    const bf16 *x = (const bf16 *)l->x + row * l->in;
    const bf16 *w = (const bf16 *)l->packed + panel * l->in * LANES, *w_next = w + 2 * LANES;
    _tile_zero(0);
    _tile_zero(1);
    for (int64_t k = 0; k < l->in; k += 32) {
        _tile_loadd(4, x + k, l->in * 2);
        _tile_loadd(6, w + k * LANES * 2, 128);
        _tile_loadd(7, w_next + k * LANES * 2, 128);
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
    }
    _tile_stored(0, sums[0], 64);
    _tile_stored(1, sums[1], 64);
    finish_tile(l, row, rows, panel, sums[0]);
    finish_tile(l, row, rows, panel + 1, sums[1]);
}

/* 17 to 32 rows by two panels: four products for four loads. */
static void four_tiles(const struct linear *l, int64_t row, int64_t rows, int64_t panel) {
    sums16 sums[4];
    const bf16 *x = (const bf16 *)l->x + row * l->in, *x_high = x + 16 * l->in;
    const bf16 *w = (const bf16 *)l->packed + panel * l->in * LANES, *w_next = w + 2 * LANES;
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (int64_t k = 0; k < l->in; k += 32) {
        _tile_loadd(4, x + k, l->in * 2);
        _tile_loadd(6, w + k * LANES * 2, 128);
        _tile_loadd(7, w_next + k * LANES * 2, 128);
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        _tile_loadd(5, x_high + k, l->in * 2);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
    _tile_stored(0, sums[0], 64);
    _tile_stored(1, sums[1], 64);
    _tile_stored(2, sums[2], 64);
    _tile_stored(3, sums[3], 64);
    finish_tile(l, row, 16, panel, sums[0]);
    finish_tile(l, row, 16, panel + 1, sums[1]);
    finish_tile(l, row + 16, rows - 16, panel, sums[2]);
    finish_tile(l, row + 16, rows - 16, panel + 1, sums[3]);
}

void linear_by_tiles(const struct linear *l, int64_t first, int64_t last) {
    int64_t configured = 0;
    for (int64_t row = 0, rows; row < l->rows; row += rows) {
        int is_pair = last - first == 2;
        rows = MIN(l->rows - row, is_pair ? (int64_t)32 : 16);
        if (rows != configured) configure(configured = rows);
        if (!is_pair)
            one_tile(l, row, rows, first);
        else if (rows > 16)
            four_tiles(l, row, rows, first);
        else
            two_tiles(l, row, rows, first);
    }
    _tile_release();
}

#else

void linear_by_tiles(const struct linear *l, int64_t first, int64_t last) {
    (void)l, (void)first, (void)last;
}

#endif
