/* `degree_linear` of few features on the CPU, chunk by chunk of nodes of one degree.
 *
 * cpu.py calls the kernels with a range of chunks. All nodes of a chunk share the weight, the sum
 * of those of all factors, so that a node costs one product. Four nodes at a time share what is
 * read of it. Sums of the weight's gradient are kept for each chunk, and are the same however the
 * work is shared.
 */
#include <stdint.h>
#include <string.h>

#define LANES 4 /* floats of a vector */
#define NODES 4 /* nodes that are worked on together */
#define INLINE static inline __attribute__((always_inline))

typedef float vec __attribute__((vector_size(16)));
typedef float loose __attribute__((vector_size(16), aligned(4), may_alias));

/* Field by field as in cpu.py. Arrays are contiguous. */
struct narrow {
    int64_t groups, towers, width, outputs; /* outputs are a multiple of LANES */
    const int64_t *nodes;                   /* in the order of their degrees */
    const int64_t *bounds;                  /* (chunks, 3): first and last node, which weight */
    const float *often;                     /* (nodes, groups): how often the shift is added */
    const float *z;                         /* (nodes, groups, towers, width) */
    const float *shift;                     /* (nodes, towers, width) */
    const float *weight;                    /* (weights, towers, groups × width, outputs) */
    const float *base;                      /* (nodes, towers, outputs), or absent */
    float *out;                             /* as base */
    const float *grad;                      /* as base */
    float *grad_z, *grad_shift;             /* as z and shift */
    float *partial;                         /* (chunks, towers, groups × width, outputs) */
};

INLINE vec load(const float *from) { return *(const loose *)from; }

INLINE void store(float *to, vec value) { *(loose *)to = value; }

INLINE void forward_nodes(const struct narrow *p, const float *weight, const int64_t *node,
                          int64_t tower, int vectors)
{
    int64_t width = p->width, outputs = vectors * LANES;
    vec total[NODES][8];
    for (int i = 0; i < NODES; i++)
        for (int v = 0; v < vectors; v++) {
            int64_t at = (node[i] * p->towers + tower) * outputs + v * LANES;
            vec none = {0};
            total[i][v] = p->base ? load(p->base + at) : none;
        }
    for (int64_t group = 0; group < p->groups; group++) {
        const float *z[NODES], *shift[NODES];
        float often[NODES];
        for (int i = 0; i < NODES; i++) {
            z[i] = p->z + ((node[i] * p->groups + group) * p->towers + tower) * width;
            shift[i] = p->shift + (node[i] * p->towers + tower) * width;
            often[i] = p->often[node[i] * p->groups + group];
        }
        for (int64_t k = 0; k < width; k++, weight += outputs) {
            vec row[8];
            for (int v = 0; v < vectors; v++) row[v] = load(weight + v * LANES);
            for (int i = 0; i < NODES; i++) {
                float value = z[i][k] + often[i] * shift[i][k];
                for (int v = 0; v < vectors; v++) total[i][v] += value * row[v];
            }
        }
    }
    for (int i = 0; i < NODES; i++)
        for (int v = 0; v < vectors; v++)
            store(p->out + (node[i] * p->towers + tower) * outputs + v * LANES, total[i][v]);
}

INLINE void backward_nodes(const struct narrow *p, const float *weight, float *sums,
                           const int64_t *node, int count, int64_t tower, int vectors)
{
    int64_t width = p->width, outputs = vectors * LANES;
    vec grad[NODES][8];
    for (int i = 0; i < NODES; i++)
        for (int v = 0; v < vectors; v++) {
            vec none = {0};
            int64_t at = (node[i] * p->towers + tower) * outputs + v * LANES;
            grad[i][v] = i < count ? load(p->grad + at) : none;
        }
    for (int i = 0; i < count; i++)
        memset(p->grad_shift + (node[i] * p->towers + tower) * width, 0, width * sizeof(float));
    for (int64_t group = 0; group < p->groups; group++) {
        const float *z[NODES], *shift[NODES];
        float *grad_z[NODES], *grad_shift[NODES], often[NODES];
        for (int i = 0; i < NODES; i++) {
            int64_t of_z = ((node[i] * p->groups + group) * p->towers + tower) * width;
            int64_t of_shift = (node[i] * p->towers + tower) * width;
            z[i] = p->z + of_z, grad_z[i] = p->grad_z + of_z;
            shift[i] = p->shift + of_shift, grad_shift[i] = p->grad_shift + of_shift;
            often[i] = p->often[node[i] * p->groups + group];
        }
        for (int64_t k = 0; k < width; k++, weight += outputs, sums += outputs) {
            vec row[8], sum[8];
            for (int v = 0; v < vectors; v++) {
                row[v] = load(weight + v * LANES);
                sum[v] = load(sums + v * LANES);
            }
            for (int i = 0; i < NODES; i++) {
                float value = z[i][k] + often[i] * shift[i][k];
                vec product = {0};
                for (int v = 0; v < vectors; v++) {
                    product += grad[i][v] * row[v];
                    sum[v] += value * grad[i][v];
                }
                if (i < count) {
                    float slope = (product[0] + product[1]) + (product[2] + product[3]);
                    grad_z[i][k] = slope;
                    grad_shift[i][k] += often[i] * slope;
                }
            }
            for (int v = 0; v < vectors; v++) store(sums + v * LANES, sum[v]);
        }
    }
}

INLINE void work(const struct narrow *p, int64_t chunk, int64_t end_chunk, int backward,
                 int vectors)
{
    int64_t size = p->groups * p->width * vectors * LANES;
    for (; chunk < end_chunk; chunk++) {
        const int64_t *bounds = p->bounds + 3 * chunk;
        const float *weight = p->weight + bounds[2] * p->towers * size;
        float *sums = backward ? p->partial + chunk * p->towers * size : 0;
        if (backward) memset(sums, 0, p->towers * size * sizeof(float));
        for (int64_t first = bounds[0]; first < bounds[1]; first += NODES) {
            int count = bounds[1] - first < NODES ? (int)(bounds[1] - first) : NODES;
            int64_t node[NODES]; /* the last one again, where there are no more */
            for (int i = 0; i < NODES; i++) node[i] = p->nodes[first + (i < count ? i : count - 1)];
            for (int64_t tower = 0; tower < p->towers; tower++) {
                if (backward)
                    backward_nodes(p, weight + tower * size, sums + tower * size, node, count,
                                   tower, vectors);
                else
                    forward_nodes(p, weight + tower * size, node, tower, vectors);
            }
        }
    }
}

/* The number of vectors is known to the compiler, so that they stay in registers. */
void pna_narrow(const struct narrow *p, int64_t chunk, int64_t end_chunk, int64_t backward)
{
    switch ((p->outputs / LANES) * 2 + (backward != 0)) {
    case 2: work(p, chunk, end_chunk, 0, 1); break;
    case 3: work(p, chunk, end_chunk, 1, 1); break;
    case 4: work(p, chunk, end_chunk, 0, 2); break;
    case 5: work(p, chunk, end_chunk, 1, 2); break;
    case 6: work(p, chunk, end_chunk, 0, 3); break;
    case 7: work(p, chunk, end_chunk, 1, 3); break;
    case 8: work(p, chunk, end_chunk, 0, 4); break;
    case 9: work(p, chunk, end_chunk, 1, 4); break;
    case 10: work(p, chunk, end_chunk, 0, 5); break;
    case 11: work(p, chunk, end_chunk, 1, 5); break;
    case 16: work(p, chunk, end_chunk, 0, 8); break;
    case 17: work(p, chunk, end_chunk, 1, 8); break;
    }
}

int64_t pna_narrow_size(void) { return sizeof(struct narrow); }
