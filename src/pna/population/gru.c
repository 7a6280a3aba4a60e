/* A gated recurrent unit on the CPU, computed in blocks of rows; gru.py gives the equations.
 *
 * gru_cpu.py calls pna_gru with a range of chunks of rows of one member. Each chunk has its own
 * partial sums of the parameters' gradients, so the result does not depend on the number of
 * threads.
 *
 * In the arrays of this file the columns of a gate are zero-padded to whole vectors. The four gates
 * are r, z, the contribution of x to n, and the contribution of h to n. variants.h includes this
 * file once for each number type and vector width.
 */
#if !defined(REAL)

#include <math.h>
#include <stdint.h>
#include <string.h>

#define CHUNK 512 /* rows per partial sum */
#define BLOCK 32  /* rows computed together */
#define WIDEST 64 /* largest width of input and state */

/* The fields match those in gru_cpu.py. Arrays are contiguous. */
struct gru {
    int64_t is_double, rows, members, inputs, hidden;
    int64_t across, padded;            /* inputs and hidden, padded to whole vectors of any width */
    const void *x, *h;                 /* (rows, members, inputs or hidden) */
    const void *weight_ih, *weight_hh; /* (members, 3·hidden, inputs or hidden) */
    const void *bias_ih, *bias_hh;     /* (members, 3·hidden) */
    void *packed;                      /* (members, size): weights, repacked for the kernels */
    void *out;                         /* the shape of h */
    void *gates;           /* (rows, members, 4·padded): r, z, n, W_hn h + b_hn; or NULL */
    const void *grad;      /* the shape of h */
    void *grad_x, *grad_h; /* the shapes of x and h, or NULL */
    void *partial;         /* (members, chunks, size), or NULL */
    void *grad_weight_ih, *grad_weight_hh, *grad_bias_ih, *grad_bias_hh; /* as the parameters */
};

#define parts NAME(parts)

enum { PACK, FORWARD, PACK_BACKWARD, BACKWARD, FINISH }; /* as in gru_cpu.py */

typedef void kernel(const struct gru *p, int64_t member, int64_t chunk, int64_t end_chunk);

static inline int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

#define THIS_FILE "gru.c"
#include "variants.h"

#define KERNELS(type)                                                                            \
    {pack_##type, forward_##type, pack_backward_##type, backward_##type, finish_##type}

static kernel *const kernels[][2][5] = EVERY(KERNELS);

void pna_gru(const struct gru *p, int64_t which, int64_t member, int64_t chunk, int64_t end_chunk)
{
    kernels[best_width()][p->is_double != 0][which](p, member, chunk, end_chunk);
}

/* gru_cpu.py compares this value, to detect a library built from another version of this file. */
#define INTERFACE 1 /* increment with every change that gru_cpu.py must follow */

int64_t pna_gru_interface(void) { return (INTERFACE << 16) + sizeof(struct gru); }

#else /* the kernels of one number type and vector width */

#include "dense.h"

/* Parts of the packed parameters of the forward pass, or of the partial sums of a chunk. */
struct parts {
    REAL *x;    /* (inputs, 3·padded) */
    REAL *h;    /* (hidden, 3·padded) */
    REAL *bias; /* (4·padded,) */
};

/* Elements of an array that is large enough for `parts`, and also for the packed weights of the
 * backward pass: (3·padded, across) and (3·padded, padded). */
INLINE int64_t NAME(size)(const struct gru *p)
{
    return 3 * p->padded * (p->across + p->padded) + 4 * p->padded;
}

INLINE struct parts NAME(parts_at)(const struct gru *p, void *array, int64_t place)
{
    REAL *at = (REAL *)array + place * NAME(size)(p);
    REAL *h = at + p->inputs * 3 * p->padded;
    return (struct parts){at, h, h + p->hidden * 3 * p->padded};
}

INLINE int64_t NAME(chunks)(const struct gru *p) { return (p->rows + CHUNK - 1) / CHUNK; }

/* Pack the transposed weights of a member, with one row per input, and its biases. */
static TARGET void NAME(pack)(const struct gru *p, int64_t member, int64_t unused, int64_t none)
{
    (void)unused, (void)none;
    int64_t hidden = p->hidden, padded = p->padded;
    struct parts to = NAME(parts_at)(p, p->packed, member);
    const REAL *weight[2] = {p->weight_ih, p->weight_hh}, *bias[2] = {p->bias_ih, p->bias_hh};
    for (int side = 0; side < 2; side++) {
        int64_t width = side ? hidden : p->inputs;
        REAL *rows = side ? to.h : to.x;
        const REAL *from = weight[side] + member * 3 * hidden * width;
        memset(rows, 0, (size_t)(width * 3 * padded) * sizeof(REAL));
        for (int gate = 0; gate < 3; gate++)
            for (int64_t f = 0; f < hidden; f++)
                for (int64_t k = 0; k < width; k++)
                    rows[k * 3 * padded + gate * padded + f] = *from++;
    }
    memset(to.bias, 0, (size_t)(4 * padded) * sizeof(REAL));
    for (int64_t f = 0; f < hidden; f++) {
        const REAL *of_x = bias[0] + member * 3 * hidden + f, *of_h = bias[1] + (of_x - bias[0]);
        to.bias[f] = of_x[0] + of_h[0];
        to.bias[padded + f] = of_x[hidden] + of_h[hidden];
        to.bias[2 * padded + f] = of_x[2 * hidden];
        to.bias[3 * padded + f] = of_h[2 * hidden];
    }
}

/* Compute the four gates of a block of rows, before sigmoid and tanh. */
INLINE void NAME(add_up)(const struct gru *p, struct parts weights, struct matrix x,
                         struct matrix h, int64_t count, REAL *gates, int64_t stride)
{
    int64_t padded = p->padded;
    struct matrix bias = {weights.bias, 0, 1}, so_far = {gates, stride, 1};
    struct matrix last_bias = {weights.bias + 3 * padded, 0, 1};
    NAME(product)(bias, x, weights.x, 3 * padded, gates, stride, count, p->inputs, 3 * padded);
    NAME(product)(so_far, h, weights.h, 3 * padded, gates, stride, count, p->hidden, 2 * padded);
    NAME(product)(last_bias, h, weights.h + 2 * padded, 3 * padded, gates + 3 * padded, stride,
                  count, p->hidden, padded);
}

static TARGET void NAME(forward)(const struct gru *p, int64_t member, int64_t chunk,
                                 int64_t end_chunk)
{
    REAL room[BLOCK * 4 * WIDEST];
    int64_t hidden = p->hidden, padded = p->padded;
    struct parts weights = NAME(parts_at)(p, p->packed, member);
    int64_t end = least(end_chunk * CHUNK, p->rows);
    for (int64_t first = chunk * CHUNK; first < end; first += BLOCK) {
        int64_t count = least(BLOCK, end - first), place = first * p->members + member;
        int64_t stride = (p->gates ? p->members : 1) * 4 * padded;
        REAL *gates = p->gates ? (REAL *)p->gates + place * 4 * padded : room;
        const REAL *h = (const REAL *)p->h + place * hidden;
        REAL *out = (REAL *)p->out + place * hidden;
        struct matrix of_x = {(const REAL *)p->x + place * p->inputs, p->members * p->inputs, 1};
        struct matrix of_h = {h, p->members * hidden, 1};
        NAME(add_up)(p, weights, of_x, of_h, count, gates, stride);
        for (int64_t i = 0; i < count; i++, gates += stride) {
            /* one function per loop: the processor overlaps more iterations of short loops */
            for (int64_t f = 0; f < 2 * padded; f += STEP)
                NAME(store)(gates + f, NAME(sigmoid)(NAME(load)(gates + f)));
            for (int64_t f = 0; f < padded; f += STEP) {
                vec r = NAME(load)(gates + f), n = NAME(load)(gates + 2 * padded + f);
                n = NAME(tangent)(n + r * NAME(load)(gates + 3 * padded + f));
                NAME(store)(gates + 2 * padded + f, n);
            }
            for (int64_t f = 0; f < padded; f += STEP) {
                vec z = NAME(load)(gates + padded + f), n = NAME(load)(gates + 2 * padded + f);
                vec before = NAME(load_of)(h + i * of_h.down, f, hidden);
                NAME(store_of)(out + i * of_h.down, f, hidden, n + z * (before - n));
            }
        }
    }
}

/* Pack the weights of a member with one row per gate and unit. */
static TARGET void NAME(pack_backward)(const struct gru *p, int64_t member, int64_t unused,
                                       int64_t none)
{
    (void)unused, (void)none;
    int64_t hidden = p->hidden, padded = p->padded;
    REAL *to = (REAL *)p->packed + member * NAME(size)(p);
    const REAL *weight[2] = {p->weight_ih, p->weight_hh};
    for (int side = 0; side < 2; side++) {
        int64_t width = side ? hidden : p->inputs, across = side ? padded : p->across;
        const REAL *from = weight[side] + member * 3 * hidden * width;
        memset(to, 0, (size_t)(3 * padded * across) * sizeof(REAL));
        for (int gate = 0; gate < 3; gate++)
            for (int64_t f = 0; f < hidden; f++)
                for (int64_t k = 0; k < width; k++)
                    to[(gate * padded + f) * across + k] = *from++;
        to += 3 * padded * across;
    }
}

/* Compute the gradient with respect to every gate of a block of rows, before sigmoid and tanh, and
 * the direct part of the gradient of h, which is grad · z. */
INLINE void NAME(differentiate)(const struct gru *p, int64_t place, int64_t count, REAL *slopes,
                                REAL *grad_h)
{
    int64_t hidden = p->hidden, padded = p->padded;
    for (int64_t i = 0; i < count; i++, place += p->members, slopes += 4 * padded) {
        const REAL *gates = (const REAL *)p->gates + place * 4 * padded;
        const REAL *h = (const REAL *)p->h + place * hidden;
        const REAL *grad = (const REAL *)p->grad + place * hidden;
        for (int64_t f = 0; f < padded; f += STEP) {
            vec r = NAME(load)(gates + f), z = NAME(load)(gates + padded + f);
            vec n = NAME(load)(gates + 2 * padded + f), of_h = NAME(load)(gates + 3 * padded + f);
            vec up = NAME(load_of)(grad, f, hidden), before = NAME(load_of)(h, f, hidden);
            vec to_n = up * (1 - z) * (1 - n * n);
            NAME(store)(slopes + f, to_n * of_h * r * (1 - r));
            NAME(store)(slopes + padded + f, up * (before - n) * z * (1 - z));
            NAME(store)(slopes + 2 * padded + f, to_n);
            NAME(store)(slopes + 3 * padded + f, to_n * r);
            NAME(store)(grad_h + i * padded + f, up * z);
        }
    }
}

INLINE void NAME(copy_rows)(REAL *to, int64_t to_down, const REAL *from, int64_t from_down,
                            int64_t rows, int64_t numbers)
{
    for (int64_t i = 0; i < rows; i++)
        for (int64_t f = 0; f < numbers; f += STEP)
            NAME(store_of)(to + i * to_down, f, numbers, NAME(load)(from + i * from_down + f));
}

/* Add the contribution of a block of rows to the partial sums of its chunk. */
INLINE void NAME(sum_up)(const struct gru *p, struct parts sums, struct matrix x, struct matrix h,
                         int64_t count, const REAL *slopes)
{
    int64_t padded = p->padded, down = 4 * padded;
    struct matrix x_across = {x.at, 1, x.down}, h_across = {h.at, 1, h.down};
    struct matrix of_x = {sums.x, 3 * padded, 1}, of_h = {sums.h, 3 * padded, 1}, of_n = of_h;
    of_n.at += 2 * padded;
    NAME(product)(of_x, x_across, slopes, down, sums.x, 3 * padded, p->inputs, count, 3 * padded);
    NAME(product)(of_h, h_across, slopes, down, sums.h, 3 * padded, p->hidden, count, 2 * padded);
    NAME(product)(of_n, h_across, slopes + 3 * padded, down, sums.h + 2 * padded, 3 * padded,
                  p->hidden, count, padded);
    for (int64_t f = 0; f < down; f += STEP) {
        vec sum = NAME(load)(sums.bias + f);
        for (int64_t i = 0; i < count; i++) sum += NAME(load)(slopes + i * down + f);
        NAME(store)(sums.bias + f, sum);
    }
}

static TARGET void NAME(backward)(const struct gru *p, int64_t member, int64_t chunk,
                                  int64_t end_chunk)
{
    REAL slopes[BLOCK * 4 * WIDEST], to_x[BLOCK * WIDEST], to_h[BLOCK * WIDEST];
    int64_t inputs = p->inputs, hidden = p->hidden, padded = p->padded, down = 4 * padded;
    int64_t across = p->across;
    const REAL *weight_x = (const REAL *)p->packed + member * NAME(size)(p);
    const REAL *weight_h = weight_x + 3 * padded * across;
    for (; chunk < end_chunk; chunk++) {
        struct parts sums = {0, 0, 0};
        if (p->partial) {
            sums = NAME(parts_at)(p, p->partial, member * NAME(chunks)(p) + chunk);
            memset(sums.x, 0, (size_t)NAME(size)(p) * sizeof(REAL));
        }
        int64_t end = least((chunk + 1) * CHUNK, p->rows);
        for (int64_t first = chunk * CHUNK; first < end; first += BLOCK) {
            int64_t count = least(BLOCK, end - first), place = first * p->members + member;
            struct matrix x = {(const REAL *)p->x + place * inputs, p->members * inputs, 1};
            struct matrix h = {(const REAL *)p->h + place * hidden, p->members * hidden, 1};
            struct matrix of_gates = {slopes, down, 1}, of_last = {slopes + 3 * padded, down, 1};
            struct matrix none = {0, 0, 0}, so_far = {to_h, padded, 1};
            NAME(differentiate)(p, place, count, slopes, to_h);
            if (p->grad_x) {
                REAL *grad_x = (REAL *)p->grad_x + place * inputs;
                NAME(product)(none, of_gates, weight_x, across, to_x, across, count, 3 * padded,
                              across);
                NAME(copy_rows)(grad_x, x.down, to_x, across, count, inputs);
            }
            if (p->grad_h) {
                REAL *grad_h = (REAL *)p->grad_h + place * hidden;
                NAME(product)(so_far, of_gates, weight_h, padded, to_h, padded, count, 2 * padded,
                              padded);
                NAME(product)(so_far, of_last, weight_h + 2 * padded * padded, padded, to_h,
                              padded, count, padded, padded);
                NAME(copy_rows)(grad_h, h.down, to_h, padded, count, hidden);
            }
            if (p->partial) NAME(sum_up)(p, sums, x, h, count, slopes);
        }
    }
}

/* Add the partial sums of all chunks of a member and write the gradients of its parameters. */
static TARGET void NAME(finish)(const struct gru *p, int64_t member, int64_t unused, int64_t none)
{
    (void)unused, (void)none;
    int64_t hidden = p->hidden, padded = p->padded, chunks = NAME(chunks)(p);
    struct parts all = NAME(parts_at)(p, p->partial, member * chunks);
    for (int64_t chunk = 1; chunk < chunks; chunk++) {
        const REAL *other = NAME(parts_at)(p, p->partial, member * chunks + chunk).x;
        for (int64_t i = 0; i < NAME(size)(p); i++) all.x[i] += other[i];
    }
    REAL *weight[2] = {p->grad_weight_ih, p->grad_weight_hh};
    for (int side = 0; side < 2; side++) {
        int64_t width = side ? hidden : p->inputs;
        const REAL *rows = side ? all.h : all.x;
        REAL *to = weight[side] + member * 3 * hidden * width;
        for (int gate = 0; gate < 3; gate++)
            for (int64_t f = 0; f < hidden; f++)
                for (int64_t k = 0; k < width; k++)
                    *to++ = rows[k * 3 * padded + gate * padded + f];
    }
    REAL *bias_ih = (REAL *)p->grad_bias_ih + member * 3 * hidden;
    REAL *bias_hh = (REAL *)p->grad_bias_hh + member * 3 * hidden;
    for (int gate = 0; gate < 3; gate++)
        for (int64_t f = 0; f < hidden; f++) {
            bias_ih[gate * hidden + f] = all.bias[gate * padded + f];
            bias_hh[gate * hidden + f] = all.bias[(gate == 2 ? 3 : gate) * padded + f];
        }
}

#endif
