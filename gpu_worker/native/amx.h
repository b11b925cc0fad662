/* How tiles are configured. */
#ifndef CHAIRLIFT_AMX_H
#define CHAIRLIFT_AMX_H

#include "kernels.h"

struct tile_config {
    uint8_t palette, start_row, reserved[14];
    uint16_t bytes[16];
    uint8_t rows[16];
};

#if defined(__AMX_BF16__)
/* Eight tiles of so many rows of 64 bytes. */
INLINE void configure_tiles(const uint8_t rows[8]) {
    struct tile_config config = {.palette = 1};
    for (int t = 0; t < 8; t++) {
        config.rows[t] = rows[t];
        config.bytes[t] = 64;
    }
    __asm__ volatile("" : : "r"(&config) : "memory"); /* gcc 12 believes that 8 bytes of it are read */
    _tile_loadconfig(&config);
}
#endif

#endif
