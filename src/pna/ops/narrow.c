/* `degree_linear` of few features on the CPU, chunk by chunk of nodes of one degree.
 *
 * narrow_cpu.py calls pna_narrow with a range of chunks. All nodes of a chunk share the weight,
 * the sum of those of all factors, so that a node costs one product. For the backward pass, which
 * has two, what is known of some nodes is first put side by side. Sums of the weight's gradient
 * are kept for each chunk, and are the same however the work is shared.
 */
#include <math.h>
#include <stdint.h>
#include <string.h>

#define REAL float
#define WHOLE int32_t
#define WIDTH 16
#define TARGET
#include "dense.h"

#define BLOCK 32   /* nodes that are worked on together */
#define MOST 512   /* groups × width, up to whole vectors */
#define OUTPUTS 64 /* the most of them */

/* Field by field as in narrow_cpu.py. Arrays are contiguous; `inner` is groups × width up to whole
 * vectors. */
struct narrow {
    int64_t groups, towers, width, inner, outputs; /* outputs are whole vectors */
    const int64_t *nodes;                          /* in the order of their degrees */
    const int64_t *bounds;      /* (chunks, 3): first and last node, which weight */
    const float *often;         /* (nodes, groups): how often the shift is added */
    const float *z;             /* (nodes, groups, towers, width) */
    const float *shift;         /* (nodes, towers, width) */
    const float *weight;        /* (weights, towers, groups × width, outputs) */
    const float *across;        /* (weights, towers, outputs, inner), for the backward pass */
    const float *base;          /* (nodes, towers, outputs), or absent */
    float *out;                 /* as base */
    const float *grad;          /* as base */
    float *grad_z, *grad_shift; /* as z and shift */
    float *partial;             /* (chunks, towers, groups × width, outputs) */
};

/* A vector of a row of `width` numbers; `whole`, known to the compiler: all of them are. */
INLINE vec take(const float *row, int64_t column, int64_t width, int whole)
{
    return whole ? NAME(load)(row + column) : NAME(load_of)(row, column, width);
}

INLINE void put(float *row, int64_t column, int64_t width, vec value, int whole)
{
    if (whole) NAME(store)(row + column, value);
    else NAME(store_of)(row, column, width, value);
}

/* Shifted z of some nodes, a row each. */
INLINE void gather(const struct narrow *p, const int64_t *nodes, int64_t count, int64_t tower,
                   float *values, int whole)
{
    int64_t width = p->width;
    for (int64_t i = 0; i < count; i++) {
        const float *shift = p->shift + (nodes[i] * p->towers + tower) * width;
        for (int64_t group = 0; group < p->groups; group++, values += width) {
            int64_t at = nodes[i] * p->groups + group;
            const float *z = p->z + (at * p->towers + tower) * width;
            float often = p->often[at];
            for (int64_t k = 0; k < width; k += STEP) {
                vec value = take(z, k, width, whole) + often * take(shift, k, width, whole);
                put(values, k, width, value, whole);
            }
        }
    }
}

/* Gradients of z and of shift from those of shifted z. */
INLINE void scatter(const struct narrow *p, const int64_t *nodes, int64_t count, int64_t tower,
                    const float *slopes, int whole)
{
    int64_t width = p->width;
    for (int64_t i = 0; i < count; i++, slopes += p->inner) {
        float *grad_shift = p->grad_shift + (nodes[i] * p->towers + tower) * width;
        for (int64_t k = 0; k < width; k += STEP) {
            vec total = {0};
            for (int64_t group = 0; group < p->groups; group++) {
                int64_t at = nodes[i] * p->groups + group;
                vec slope = take(slopes + group * width, k, width, whole);
                put(p->grad_z + (at * p->towers + tower) * width, k, width, slope, whole);
                total += p->often[at] * slope;
            }
            put(grad_shift, k, width, total, whole);
        }
    }
}

/* Some vectors of outputs, from a column on, of TALL nodes that share what is read of the weight.
 */
INLINE void forward_nodes(const struct narrow *p, const float *weight, const int64_t *nodes,
                          int64_t tower, int64_t column, int vectors)
{
    int64_t width = p->width, outputs = p->outputs;
    vec total[TALL][BROAD];
    for (int i = 0; i < TALL; i++)
        for (int v = 0; v < vectors; v++) {
            int64_t at = (nodes[i] * p->towers + tower) * outputs + column + v * STEP;
            vec none = {0};
            total[i][v] = p->base ? NAME(load)(p->base + at) : none;
        }
    for (int64_t group = 0; group < p->groups; group++) {
        const float *z[TALL], *shift[TALL];
        float often[TALL];
        for (int i = 0; i < TALL; i++) {
            z[i] = p->z + ((nodes[i] * p->groups + group) * p->towers + tower) * width;
            shift[i] = p->shift + (nodes[i] * p->towers + tower) * width;
            often[i] = p->often[nodes[i] * p->groups + group];
        }
        for (int64_t k = 0; k < width; k++, weight += outputs) {
            vec row[BROAD];
            for (int v = 0; v < vectors; v++) row[v] = NAME(load)(weight + column + v * STEP);
            for (int i = 0; i < TALL; i++) {
                float value = z[i][k] + often[i] * shift[i][k];
                for (int v = 0; v < vectors; v++) total[i][v] += value * row[v];
            }
        }
    }
    for (int i = 0; i < TALL; i++)
        for (int v = 0; v < vectors; v++) {
            int64_t at = (nodes[i] * p->towers + tower) * outputs + column + v * STEP;
            NAME(store)(p->out + at, total[i][v]);
        }
}

static void forward(const struct narrow *p, const float *weight, const int64_t *nodes,
                    int64_t count, int64_t tower)
{
    for (int64_t first = 0; first < count; first += TALL) {
        int64_t some[TALL]; /* the last one again, where there are no more */
        for (int i = 0; i < TALL; i++) some[i] = nodes[first + i < count ? first + i : count - 1];
        int64_t column = 0;
        for (; column + BROAD * STEP <= p->outputs; column += BROAD * STEP)
            forward_nodes(p, weight, some, tower, column, BROAD);
        for (; column < p->outputs; column += STEP)
            forward_nodes(p, weight, some, tower, column, 1);
    }
}

static void backward(const struct narrow *p, const float *across, float *sums,
                     const int64_t *nodes, int64_t count, int64_t tower)
{
    float values[BLOCK * MOST], slopes[BLOCK * MOST], grad[BLOCK * OUTPUTS];
    int64_t outputs = p->outputs, width = p->groups * p->width;
    struct matrix none = {0, 0, 0}, so_far = {sums, outputs, 1};
    struct matrix of_grad = {grad, outputs, 1}, of_values = {values, 1, width};
    for (int64_t i = 0; i < count; i++)
        memcpy(grad + i * outputs, p->grad + (nodes[i] * p->towers + tower) * outputs,
               (size_t)outputs * sizeof(float));
    if (p->width % STEP == 0) gather(p, nodes, count, tower, values, 1);
    else gather(p, nodes, count, tower, values, 0);
    NAME(product)(none, of_grad, across, p->inner, slopes, p->inner, count, outputs, p->inner);
    NAME(product)(so_far, of_values, grad, outputs, sums, outputs, width, count, outputs);
    if (p->width % STEP == 0) scatter(p, nodes, count, tower, slopes, 1);
    else scatter(p, nodes, count, tower, slopes, 0);
}

void pna_narrow(const struct narrow *p, int64_t chunk, int64_t end_chunk, int64_t is_backward)
{
    int64_t size = p->groups * p->width * p->outputs, size_across = p->inner * p->outputs;
    for (; chunk < end_chunk; chunk++) {
        const int64_t *bounds = p->bounds + 3 * chunk;
        int64_t weight = bounds[2] * p->towers;
        float *sums = is_backward ? p->partial + chunk * p->towers * size : 0;
        if (is_backward) memset(sums, 0, (size_t)(p->towers * size) * sizeof(float));
        for (int64_t first = bounds[0]; first < bounds[1]; first += BLOCK) {
            int64_t count = bounds[1] - first < BLOCK ? bounds[1] - first : BLOCK;
            const int64_t *nodes = p->nodes + first;
            for (int64_t tower = 0; tower < p->towers; tower++) {
                if (is_backward)
                    backward(p, p->across + (weight + tower) * size_across, sums + tower * size,
                             nodes, count, tower);
                else forward(p, p->weight + (weight + tower) * size, nodes, count, tower);
            }
        }
    }
}

/* What narrow_cpu.py must find, or the library was built from another version of this file. */
#define INTERFACE 1 /* one more with every change that narrow_cpu.py must make too */

int64_t pna_narrow_interface(void) { return (INTERFACE << 16) + sizeof(struct narrow); }
