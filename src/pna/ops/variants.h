/* Includes THIS_FILE, the one that includes this, once for each number type and vector width: with
 * REAL, WHOLE, WIDTH, TARGET and, of double, IS_DOUBLE. EVERY makes a table of what came of it.
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

/* KERNELS of every vector width, of float and of double. */
#define EVERY(KERNELS)                                                                           \
    {{KERNELS(float_16), KERNELS(double_16)}, {KERNELS(float_32), KERNELS(double_32)}}

/* The place of the widest that this processor has. */
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
