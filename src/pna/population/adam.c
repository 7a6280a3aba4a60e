/* A step of Adam on the CPU, for one member of a population; optimiser.py gives the equations.
 *
 * The first pass checks that all new weights are finite. The second computes them again, which
 * costs less than storing them, and writes them. Loops have no branches, so that a compiler
 * vectorises them. variants.h includes this file once for each number type and vector width.
 */
#if !defined(REAL)

#include <math.h>
#include <stdint.h>

/* Numbers of a member: factors of the gradient, of the weight in the gradient (0 for AdamW) and of
 * the weight (1 for Adam); learning rate / (1 - beta1^t); 1 / (1 - beta2^t); 1 - beta1; 1 - beta2;
 * epsilon. */
enum { OF_GRADIENT, DECAY, OF_WEIGHT, RATE, OF_SQUARE, TO_MEAN, TO_SQUARE, EPSILON, NUMBERS };

/* The fields match those in adam_cpu.py. Arrays are contiguous. */
struct adam {
    int64_t is_double, parameters;
    void *weights, *mean, *square; /* (members, parameters) */
    const void *grad;              /* the same shape */
    const double *numbers;         /* (members, NUMBERS) */
    uint8_t *moves;                /* (members,): cleared if a new weight would not be finite */
};

typedef void kernel(const struct adam *p, int64_t member);

#define THIS_FILE "adam.c"
#include "variants.h"

#define KERNELS(type) step_##type

static kernel *const kernels[][2] = EVERY(KERNELS);

void pna_adam(const struct adam *p, int64_t member)
{
    kernels[best_width()][p->is_double != 0](p, member);
}

/* adam_cpu.py compares this value, to detect a library built from another version of this file. */
#define INTERFACE 1 /* increment with every change that adam_cpu.py must follow */

int64_t pna_adam_interface(void) { return (INTERFACE << 16) + sizeof(struct adam); }

#else /* the kernels of one number type and vector width */

#define PASTE(a, b, c) a##_##b##_##c
#define EXPAND(a, b, c) PASTE(a, b, c)
#define NAME(name) EXPAND(name, REAL, WIDTH)

/* The new weight; writes the new mean and square. */
static inline __attribute__((always_inline)) TARGET REAL NAME(moved)(const REAL *numbers,
                                                                     REAL weight, REAL grad,
                                                                     REAL *mean, REAL *square)
{
    grad = numbers[OF_GRADIENT] * grad + numbers[DECAY] * weight;
    *mean += numbers[TO_MEAN] * (grad - *mean);
    *square += numbers[TO_SQUARE] * (grad * grad - *square);
    REAL ratio = *square * numbers[OF_SQUARE];
    REAL root = sizeof ratio == 4 ? (REAL)sqrtf((float)ratio) : (REAL)sqrt((double)ratio);
    return numbers[OF_WEIGHT] * weight - numbers[RATE] * *mean / (root + numbers[EPSILON]);
}

static TARGET void NAME(step)(const struct adam *p, int64_t member)
{
    int64_t count = p->parameters, at = member * count;
    REAL *restrict weights = (REAL *)p->weights + at, *restrict mean = (REAL *)p->mean + at;
    REAL *restrict square = (REAL *)p->square + at, numbers[NUMBERS];
    const REAL *restrict grad = (const REAL *)p->grad + at;
    WHOLE odd = 0;
    if (!p->moves[member]) return;
    for (int k = 0; k < NUMBERS; k++) numbers[k] = (REAL)p->numbers[member * NUMBERS + k];
    for (int64_t i = 0; i < count; i++) {
        REAL new_mean = mean[i], new_square = square[i];
        REAL weight = NAME(moved)(numbers, weights[i], grad[i], &new_mean, &new_square);
        odd |= !(weight - weight == 0);
    }
    if (odd) {
        p->moves[member] = 0;
        return;
    }
    for (int64_t i = 0; i < count; i++)
        weights[i] = NAME(moved)(numbers, weights[i], grad[i], mean + i, square + i);
}

#undef PASTE
#undef EXPAND
#undef NAME

#endif
