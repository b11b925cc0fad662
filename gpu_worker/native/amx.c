/* Whether AMX may be used: the compiler knows it and the system grants it. */
#include "kernels.h"

int has_tiles;

#if defined(__AMX_BF16__) && defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>

enum { ARCH_REQ_XCOMP_PERM = 0x1023, XFEATURE_XTILEDATA = 18 };

/* The tiles are the whole process's from then on. */
EXPORT void prepare(void) {
    has_tiles = syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0;
}
#else
EXPORT void prepare(void) {}
#endif
