/* Set2Set on the CPU, computed in blocks of graphs; set2set.py gives the equations.
 *
 * set2set_cpu.py calls pna_set2set with one chunk of graphs of one member. The graphs of a block
 * take each step together, so they share the reads of the weight. Each chunk has its own partial
 * sums of the parameters' gradients, so the result does not depend on the number of threads.
 *
 * variants.h includes this file once for each number type and vector width.
 */
#if !defined(REAL)

#include <math.h>
#include <stdint.h>
#include <string.h>

#define CHUNK 64  /* graphs per partial sum */
#define BLOCK 16  /* graphs that take a step together */
#define WIDEST 64 /* most features of a node */

/* The fields match those in set2set_cpu.py. Arrays are contiguous. */
struct set2set {
    int64_t is_double, nodes, graphs, members, width; /* every STEP divides width */
    const int64_t *indptr, *steps;                    /* (graphs + 1,), (graphs,) */
    const void *x;                                    /* (nodes, members, width) */
    const void *weight; /* (members, 2·width, 4·width); backward: (members, 4·width, 2·width) */
    const void *bias;   /* (members, 4·width) */
    void *out;          /* (graphs, members, 2·width) */
    void *z;            /* (steps, members, graphs, 2·width) */
    void *cells;        /* (steps, members, graphs, 5·width): σ(i), σ(f), tanh(g), σ(o), c */
    void *shares;       /* (members, nodes): scratch space for the softmax */
    void *slopes;       /* (members, nodes): scratch space for its gradient */
    const void *grad;   /* the shape of out */
    void *grad_x;       /* the shape of x, filled with 0 */
    void *partial;      /* (members, chunks, 4·width · 2·width + 4·width): weight, then bias */
};

typedef void kernel(const struct set2set *p, int64_t member, int64_t chunk);

static inline int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

/* The largest number of steps of the graphs first..end. */
static int64_t most_steps(const struct set2set *p, int64_t first, int64_t end)
{
    int64_t most = 0;
    for (; first < end; first++)
        if (p->steps[first] > most) most = p->steps[first];
    return most;
}

#define THIS_FILE "set2set.c"
#include "variants.h"

#define KERNELS(type)                                                                            \
    {                                                                                            \
        forward_##type, backward_##type                                                          \
    }

static kernel *const kernels[][2][2] = EVERY(KERNELS);

void pna_set2set(const struct set2set *p, int64_t backward, int64_t member, int64_t chunk)
{
    kernels[best_width()][p->is_double != 0][backward != 0](p, member, chunk);
}

/* set2set_cpu.py compares this value, to detect a library built from another version of this
 * file. */
#define INTERFACE 1 /* increment with every change that set2set_cpu.py must follow */

int64_t pna_set2set_interface(void) { return (INTERFACE << 16) + sizeof(struct set2set); }

#else /* the kernels of one number type and vector width */

#include "dense.h"

/* The row of a graph in z and cells. */
INLINE int64_t NAME(row_of)(const struct set2set *p, int64_t step, int64_t member, int64_t graph)
{
    return (step * p->members + member) * p->graphs + graph;
}

INLINE REAL NAME(dot)(const REAL *a, const REAL *b, int64_t width)
{
    vec sum = {0};
    for (int64_t f = 0; f < width; f += STEP) sum += NAME(load)(a + f) * NAME(load)(b + f);
    return NAME(sum_of)(sum);
}

/* to += factor · from */
INLINE void NAME(add)(REAL *to, REAL factor, const REAL *from, int64_t width)
{
    for (int64_t f = 0; f < width; f += STEP)
        NAME(store)(to + f, NAME(load)(to + f) + factor * NAME(load)(from + f));
}

/* The softmax of x_n · h over the nodes of a graph. */
INLINE void NAME(share)(const REAL *x, int64_t down, int64_t nodes, const REAL *h, int64_t width,
                        REAL *shares)
{
    REAL top = 0, total = 0;
    for (int64_t n = 0; n < nodes; n++) {
        shares[n] = NAME(dot)(x + n * down, h, width);
        if (n == 0 || shares[n] > top) top = shares[n];
    }
    for (int64_t n = 0; n < nodes; n += STEP) {
        vec below = NAME(load_of)(shares, n, nodes) - top;
        NAME(store_of)(shares, n, nodes, NAME(exponential)(below));
    }
    for (int64_t n = 0; n < nodes; n++) total += shares[n];
    for (int64_t n = 0; n < nodes; n++) shares[n] /= total;
}

/* Compute c and h of one graph from its gates before sigmoid and tanh. */
INLINE void NAME(remember)(const REAL *gates, const REAL *c_before, int64_t width, REAL *cells,
                           REAL *h)
{
    for (int64_t f = 0; f < 2 * width; f += STEP)
        NAME(store)(cells + f, NAME(sigmoid)(NAME(load)(gates + f)));
    for (int64_t f = 2 * width; f < 3 * width; f += STEP)
        NAME(store)(cells + f, NAME(tangent)(NAME(load)(gates + f)));
    for (int64_t f = 3 * width; f < 4 * width; f += STEP)
        NAME(store)(cells + f, NAME(sigmoid)(NAME(load)(gates + f)));
    for (int64_t f = 0; f < width; f += STEP) {
        vec i = NAME(load)(cells + f), g = NAME(load)(cells + 2 * width + f), c = i * g;
        if (c_before) c += NAME(load)(cells + width + f) * NAME(load)(c_before + f);
        NAME(store)(cells + 4 * width + f, c);
        NAME(store)(h + f, NAME(load)(cells + 3 * width + f) * NAME(tangent)(c));
    }
}

static TARGET void NAME(forward)(const struct set2set *p, int64_t member, int64_t chunk)
{
    REAL gates[BLOCK * 4 * WIDEST], now[BLOCK * 2 * WIDEST];
    int64_t width = p->width, down = p->members * width, both = 2 * width;
    const REAL *weight = (const REAL *)p->weight + member * both * 4 * width;
    struct matrix bias = {(const REAL *)p->bias + member * 4 * width, 0, 1};
    int64_t end = least((chunk + 1) * CHUNK, p->graphs);
    for (int64_t first = chunk * CHUNK; first < end; first += BLOCK) {
        int64_t count = least(BLOCK, end - first), most = most_steps(p, first, first + count);
        struct matrix z = {now, both, 1};
        memset(now, 0, sizeof(now));
        for (int64_t step = 0; step < most; step++) {
            NAME(product)(bias, z, weight, 4 * width, gates, 4 * width, count, both, 4 * width);
            for (int64_t i = 0; i < count; i++) {
                int64_t graph = first + i, row = NAME(row_of)(p, step, member, graph);
                if (p->steps[graph] <= step) continue;
                int64_t node = p->indptr[graph], nodes = p->indptr[graph + 1] - node;
                const REAL *x = (const REAL *)p->x + (node * p->members + member) * width;
                REAL *cells = (REAL *)p->cells + row * 5 * width, *h = now + i * both;
                REAL *shares = (REAL *)p->shares + member * p->nodes + node, *r = h + width;
                int64_t a_step = p->members * p->graphs * 5 * width;
                const REAL *c_before = step > 0 ? cells - a_step + 4 * width : 0;
                NAME(remember)(gates + i * 4 * width, c_before, width, cells, h);
                NAME(share)(x, down, nodes, h, width, shares);
                memset(r, 0, (size_t)width * sizeof(REAL));
                for (int64_t n = 0; n < nodes; n++) NAME(add)(r, shares[n], x + n * down, width);
                memcpy((REAL *)p->z + row * both, h, (size_t)both * sizeof(REAL));
            }
        }
        for (int64_t i = 0; i < count; i++) { /* `now` is still 0 if no step was taken */
            REAL *out = (REAL *)p->out + ((first + i) * p->members + member) * both;
            memcpy(out, now + i * both, (size_t)both * sizeof(REAL));
        }
    }
}

/* Add the gradient of the nodes of a graph to grad_x, and that of h through the scores to to_z,
 * given the gradient to_z of [h, r]. */
INLINE void NAME(to_nodes)(const struct set2set *p, int64_t member, int64_t graph, const REAL *z,
                           REAL *to_z)
{
    int64_t width = p->width, down = p->members * width;
    int64_t node = p->indptr[graph], nodes = p->indptr[graph + 1] - node;
    const REAL *x = (const REAL *)p->x + (node * p->members + member) * width;
    REAL *grad_x = (REAL *)p->grad_x + (node * p->members + member) * width;
    REAL *shares = (REAL *)p->shares + member * p->nodes + node;
    REAL *slopes = (REAL *)p->slopes + member * p->nodes + node;
    const REAL *h = z, *r = z + width, *to_r = to_z + width;
    REAL mean = NAME(dot)(r, to_r, width);
    NAME(share)(x, down, nodes, h, width, shares);
    for (int64_t n = 0; n < nodes; n++)
        slopes[n] = shares[n] * (NAME(dot)(x + n * down, to_r, width) - mean);
    for (int64_t n = 0; n < nodes; n++)
        for (int64_t f = 0; f < width; f += STEP) {
            REAL *to = grad_x + n * down + f;
            vec sum = shares[n] * NAME(load)(to_r + f) + slopes[n] * NAME(load)(h + f);
            NAME(store)(to, NAME(load)(to) + sum);
        }
    for (int64_t n = 0; n < nodes; n++) NAME(add)(to_z, slopes[n], x + n * down, width);
}

/* Compute the gradients of the gates and of the previous c from those of h and c. */
INLINE void NAME(to_gates)(const REAL *cells, const REAL *c_before, int64_t width,
                           const REAL *to_h, REAL *to_c, REAL *to)
{
    for (int64_t k = 0; k < width; k += STEP) {
        vec i = NAME(load)(cells + k), f = NAME(load)(cells + width + k);
        vec g = NAME(load)(cells + 2 * width + k), o = NAME(load)(cells + 3 * width + k);
        vec tanh_c = NAME(tangent)(NAME(load)(cells + 4 * width + k)), before = {0};
        vec h = NAME(load)(to_h + k), c = NAME(load)(to_c + k) + h * o * (1 - tanh_c * tanh_c);
        if (c_before) before = NAME(load)(c_before + k);
        NAME(store)(to + k, c * g * i * (1 - i));
        NAME(store)(to + width + k, c * before * f * (1 - f));
        NAME(store)(to + 2 * width + k, c * i * (1 - g * g));
        NAME(store)(to + 3 * width + k, h * tanh_c * o * (1 - o));
        NAME(store)(to_c + k, c * f);
    }
}

static TARGET void NAME(backward)(const struct set2set *p, int64_t member, int64_t chunk)
{
    REAL to_gates[BLOCK * 4 * WIDEST], before[BLOCK * 2 * WIDEST];
    REAL to_z[BLOCK * 2 * WIDEST], to_c[BLOCK * WIDEST];
    int64_t width = p->width, both = 2 * width, four = 4 * width;
    int64_t chunks = (p->graphs + CHUNK - 1) / CHUNK, size = four * both + four;
    const REAL *weight = (const REAL *)p->weight + member * four * both;
    REAL *to_weight = (REAL *)p->partial + (member * chunks + chunk) * size;
    REAL *to_bias = to_weight + four * both;
    int64_t end = least((chunk + 1) * CHUNK, p->graphs);
    memset(to_weight, 0, (size_t)size * sizeof(REAL));
    for (int64_t first = chunk * CHUNK; first < end; first += BLOCK) {
        int64_t count = least(BLOCK, end - first), most = most_steps(p, first, first + count);
        struct matrix none = {0, 0, 0}, a = {to_gates, four, 1}, across = {to_gates, 1, four};
        struct matrix so_far = {to_weight, both, 1};
        memset(to_z, 0, sizeof(to_z));
        memset(to_c, 0, sizeof(to_c));
        for (int64_t step = most - 1; step >= 0; step--) {
            memset(to_gates, 0, (size_t)(count * four) * sizeof(REAL));
            memset(before, 0, (size_t)(count * both) * sizeof(REAL));
            for (int64_t i = 0; i < count; i++) {
                int64_t graph = first + i, row = NAME(row_of)(p, step, member, graph);
                if (p->steps[graph] <= step) continue;
                int64_t last = row - p->members * p->graphs; /* the previous step */
                const REAL *cells = (const REAL *)p->cells + row * 5 * width, *c_before = 0;
                const REAL *grad = (const REAL *)p->grad + (graph * p->members + member) * both;
                if (p->steps[graph] == step + 1) NAME(add)(to_z + i * both, 1, grad, both);
                NAME(to_nodes)(p, member, graph, (const REAL *)p->z + row * both, to_z + i * both);
                if (step > 0) {
                    const REAL *z = (const REAL *)p->z + last * both;
                    memcpy(before + i * both, z, (size_t)both * sizeof(REAL));
                    c_before = (const REAL *)p->cells + last * 5 * width + 4 * width;
                }
                NAME(to_gates)(cells, c_before, width, to_z + i * both, to_c + i * width,
                               to_gates + i * four);
                NAME(add)(to_bias, 1, to_gates + i * four, four);
            }
            NAME(product)(none, a, weight, both, to_z, both, count, four, both);
            if (step > 0)
                NAME(product)(so_far, across, before, both, to_weight, both, four, count, both);
        }
    }
}

#endif
