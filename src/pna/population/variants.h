/* Includes THIS_FILE, the file that includes this one, once for each number type and vector width.
 * Defines REAL, WHOLE, WIDTH, TARGET and, for double, IS_DOUBLE. EVERY makes a table of the
 * resulting kernels.
 */
#if !defined(WIDTH)

#define WIDTH 16
#define TARGET
#include "variants.h"
#undef WIDTH
#undef TARGET

#if defined(__x86_64__)

#define WIDTH 32
#define TARGET __attribute__((target("avx2,fma")))
#include "variants.h"
#undef WIDTH
#undef TARGET

/* KERNELS for every vector width, for float and for double. */
#define EVERY(KERNELS)                                                                           \
    {{KERNELS(float_16), KERNELS(double_16)}, {KERNELS(float_32), KERNELS(double_32)}}

/* The index of the widest vectors that this processor supports. */
static int best_width(void)
{
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}

#else

#define EVERY(KERNELS) {{KERNELS(float_16), KERNELS(double_16)}}

static int best_width(void) { return 0; }

#endif

#else

#define REAL float
#define WHOLE int32_t
#include THIS_FILE
#undef REAL
#undef WHOLE
#define REAL double
#define WHOLE int64_t
#define IS_DOUBLE
#include THIS_FILE
#undef REAL
#undef WHOLE
#undef IS_DOUBLE

#endif
