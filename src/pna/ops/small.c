/* The inputs of U of a PNA layer on the CPU, and their gradient, for graphs that fit in a cache.
 *
 * small_cpu.py calls pna_small with a direction, a problem, a range of rows and a range of columns.
 * A column is a feature of a tower. The backward pass sums over rows, so it takes all rows at once.
 * The result of a row and column depends on nothing else, so results do not depend on how the work
 * is split.
 *
 * Statistics are computed in double from messages in float: sums need no blocks, and all deviations
 * from the mean are exactly 0 if the messages are equal. The backward pass computes them again.
 *
 * The file includes itself, once for each instruction set. Loops have no branches, so that a
 * compiler vectorises them.
 */
#if !defined(TARGET)

#include <math.h>
#include <stdint.h>
#include <string.h>

#define CHUNK 128 /* columns that are processed together */
#define BLOCK 16  /* messages that are processed together */
#define AHEAD 8   /* prefetch distance in slots */
#define LANES 8   /* chunks are padded to a multiple of this */

enum { MEAN, SUM, VAR, STD, MAX, MIN, KINDS }; /* as in pna.ops.request */
enum { NO_EDGE, DENSE, TABLE };                /* as in small_cpu.py */

/* Field by field as in small_cpu.py. Arrays are contiguous. */
struct small {
    /* the layer */
    int64_t columns, width; /* width: columns of a tower */
    int64_t scalers, groups, place[KINDS];
    int64_t times[KINDS]; /* how often the receivers' part is added: 0, 1, or 2 for once per edge */
    int64_t clamp, edge_form, is_long_at;
    double epsilon;
    /* the graph, as in pna.Adjacency */
    int64_t nodes, edges, edge_rows; /* edge_rows: rows of the table */
    const int32_t *indptr, *senders, *edge_ids;
    /* the messages */
    const float *products; /* (nodes, columns, 2): a receiver's and a sender's part of a column */
    const float *edge;
    const void *at;
    const float *factors; /* (nodes, scalers); if NULL, the only scaler is the identity */
    const int32_t *order; /* (nodes,) the node of each row of inputs; if NULL, its own */
    /* the forward pass */
    const float *bias, *x; /* (columns,), (nodes, width) */
    float *inputs;         /* (nodes, columns / width, 1 + scalers · groups, width) */
    /* the backward pass */
    const float *grad;  /* of inputs */
    double *totals;     /* (nodes, columns): scratch space for the senders' sums */
    float *of_products; /* of products */
    float *of_bias;
    float *of_edge;     /* of a dense edge term, or NULL */
    double *of_table;   /* (edge_rows, columns), or NULL */
};

/* One row and chunk. Loops read and write up to a multiple of LANES; the rest is not used. */
struct row {
    int64_t slot, degree;
    float message[BLOCK][CHUNK];
    double mean[CHUNK], var[CHUNK];
    float top[CHUNK], low[CHUNK];
};

static inline int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

static inline int wants(const struct small *p, int kind) { return p->place[kind] >= 0; }

static inline int wants_spread(const struct small *p) { return wants(p, VAR) || wants(p, STD); }

static inline int padded(int width) { return (width + LANES - 1) / LANES * LANES; }

/* How many columns to process together from a column on: they belong to one tower. */
static inline int chunk_at(const struct small *p, int64_t column, int64_t end)
{
    int64_t tower_end = (column / p->width + 1) * p->width;
    return (int)least(CHUNK, least(end, tower_end) - column);
}

/* Where the inputs of a row and column begin, in an array with the shape of `inputs`. */
static inline int64_t input_of(const struct small *p, int64_t row, int64_t column)
{
    int64_t blocks = 1 + p->scalers * p->groups;
    return (row * p->columns + column / p->width * p->width) * blocks + column % p->width;
}

static inline int64_t row_of_table(const struct small *p, int64_t edge)
{
    return p->is_long_at ? ((const int64_t *)p->at)[edge] : ((const int32_t *)p->at)[edge];
}

#define PASTE(a, b) a##_##b
#define EXPAND(a, b) PASTE(a, b)
#define NAME(name) EXPAND(name, VARIANT)
#define INLINE static inline __attribute__((always_inline)) TARGET

#define VARIANT baseline
#define TARGET
#include "small.c"
#undef VARIANT
#undef TARGET

#if defined(__x86_64__)
#define VARIANT avx2
#define TARGET __attribute__((target("avx2,fma")))
#include "small.c"
#undef VARIANT
#undef TARGET
#if defined(__GNUC__) && !defined(__clang__) && __GNUC__ >= 8
#define WIDE ",prefer-vector-width=512" /* compilers that do not know it fail, or leave out all */
#else
#define WIDE ""
#endif
#define VARIANT avx512
#define TARGET __attribute__((target("avx512f,avx512dq,avx512vl,fma" WIDE)))
#include "small.c"
#undef VARIANT
#undef TARGET
#endif

void pna_small(const struct small *p, int64_t backward, int64_t row, int64_t end_row,
               int64_t column, int64_t end_column)
{
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512vl")) {
        if (backward) backward_avx512(p, column, end_column);
        else forward_avx512(p, row, end_row, column, end_column);
        return;
    }
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
        if (backward) backward_avx2(p, column, end_column);
        else forward_avx2(p, row, end_row, column, end_column);
        return;
    }
#endif
    if (backward) backward_baseline(p, column, end_column);
    else forward_baseline(p, row, end_row, column, end_column);
}

/* small_cpu.py compares this value, to detect a library built from another version of this file. */
#define INTERFACE 1 /* increment with every change that small_cpu.py must follow */

int64_t pna_small_interface(void) { return (INTERFACE << 16) + sizeof(struct small); }

#else /* the kernels of one instruction set */

/* Compute `count` messages of a row from slot `first` of it on. */
INLINE void NAME(load_messages)(const struct small *p, int64_t first, int count, int64_t column,
                                int width, struct row *r)
{
    for (int k = 0; k < count; k++) {
        int64_t slot = r->slot + first + k;
        const float *restrict sent = p->products + 2 * (p->senders[slot] * p->columns + column);
        const float *later = p->products +
            2 * (p->senders[least(slot + AHEAD, p->edges - 1)] * p->columns + column);
        float *restrict message = r->message[k];
        for (int64_t f = 0; f < 2 * width; f += 16) __builtin_prefetch(later + f);
        for (int64_t f = 0; f < width; f++) message[f] = sent[2 * f + 1];
        if (p->edge_form == NO_EDGE) continue;
        int64_t edge = p->edge_ids[slot];
        if (p->edge_form == TABLE) edge = row_of_table(p, edge);
        const float *restrict term = p->edge + edge * p->columns + column;
        for (int64_t f = 0; f < width; f++) message[f] += term[f];
    }
}

/* Set the extrema of features with a NaN among their messages to NaN. */
static __attribute__((noinline)) TARGET void NAME(spread_nan)(const struct small *p,
                                                              int64_t column, int width,
                                                              struct row *r)
{
    for (int64_t first = 0; first < r->degree; first += BLOCK) {
        int count = (int)least(BLOCK, r->degree - first);
        NAME(load_messages)(p, first, count, column, width, r);
        for (int k = 0; k < count; k++)
            for (int64_t f = 0; f < width; f++) {
                float m = r->message[k][f];
                if (m != m) r->top[f] = r->low[f] = m;
            }
    }
}

/* Compute the statistics of a row. Its messages stay in r if they fit in a block. */
INLINE void NAME(summarise)(const struct small *p, int64_t column, int width, struct row *r)
{
    int lanes = padded(width);
    double total[CHUNK], one_dth = 1 / (double)r->degree;
    for (int64_t first = 0; first < r->degree; first += BLOCK) {
        int count = (int)least(BLOCK, r->degree - first);
        NAME(load_messages)(p, first, count, column, width, r);
        for (int k = 0; k < count; k++) {
            const float *restrict m = r->message[k];
            if (first == 0 && k == 0) {
                for (int64_t f = 0; f < lanes; f++) total[f] = m[f], r->top[f] = r->low[f] = m[f];
                continue;
            }
            for (int64_t f = 0; f < lanes; f++) {
                total[f] += m[f];
                r->top[f] = m[f] > r->top[f] ? m[f] : r->top[f];
                r->low[f] = m[f] < r->low[f] ? m[f] : r->low[f];
            }
        }
    }
    double odd = 0;
    for (int64_t f = 0; f < lanes; f++) {
        r->mean[f] = total[f] / (double)r->degree;
        odd = total[f] - total[f] == 0 ? odd : 1;
    }
    if (odd != 0) NAME(spread_nan)(p, column, width, r);
    if (!wants_spread(p)) return;
    for (int64_t f = 0; f < lanes; f++) r->var[f] = 0;
    for (int64_t first = 0; first < r->degree; first += BLOCK) {
        int count = (int)least(BLOCK, r->degree - first);
        if (r->degree > BLOCK || odd != 0) NAME(load_messages)(p, first, count, column, width, r);
        for (int k = 0; k < count; k++) {
            const float *restrict m = r->message[k];
            for (int64_t f = 0; f < lanes; f++) {
                double deviation = m[f] - r->mean[f];
                r->var[f] += deviation * deviation;
            }
        }
    }
    for (int64_t f = 0; f < lanes; f++) r->var[f] *= one_dth;
}

/* Compute an aggregate from the statistics of a row, and add the receivers' part. */
INLINE void NAME(aggregate)(const struct small *p, int kind, int width, const struct row *r,
                            const float *restrict shift, float *restrict value)
{
    int lanes = padded(width);
    double degree = (double)r->degree, epsilon = p->epsilon;
    if (kind == MEAN)
        for (int64_t f = 0; f < lanes; f++) value[f] = (float)r->mean[f];
    if (kind == SUM)
        for (int64_t f = 0; f < lanes; f++) value[f] = (float)(degree * r->mean[f]);
    if (kind == VAR)
        for (int64_t f = 0; f < lanes; f++) value[f] = (float)r->var[f];
    if (kind == STD && !p->clamp)
        for (int64_t f = 0; f < lanes; f++) value[f] = sqrtf((float)(r->var[f] + epsilon));
    if (kind == STD && p->clamp)
        for (int64_t f = 0; f < lanes; f++)
            value[f] = r->var[f] > epsilon ? sqrtf((float)r->var[f]) : (float)r->var[f] * 0;
    if (kind == MAX) memcpy(value, r->top, (size_t)lanes * sizeof(float));
    if (kind == MIN) memcpy(value, r->low, (size_t)lanes * sizeof(float));
    if (!p->times[kind]) return;
    float times = p->times[kind] == 1 ? 1 : (float)degree;
    for (int64_t f = 0; f < lanes; f++) value[f] += times * shift[f];
}

/* One row and chunk of the inputs of U. */
INLINE void NAME(forward_row)(const struct small *p, int64_t row, int64_t column, int width,
                              struct row *r)
{
    float *to = p->inputs + input_of(p, row, column);
    int64_t node = p->order ? p->order[row] : row;
    const float *restrict own = p->products + 2 * (node * p->columns + column);
    float shift[CHUNK], value[KINDS][CHUNK];
    memcpy(to, p->x + node * p->width + column % p->width, (size_t)width * sizeof(float));
    r->slot = p->indptr[node], r->degree = p->indptr[node + 1] - r->slot;
    if (r->degree == 0) {
        for (int64_t block = 1; block <= p->scalers * p->groups; block++)
            memset(to + block * p->width, 0, (size_t)width * sizeof(float));
        return;
    }
    for (int64_t f = 0; f < width; f++) shift[f] = own[2 * f] + p->bias[column + f];
    for (int64_t f = width; f < padded(width); f++) shift[f] = 0;
    NAME(summarise)(p, column, width, r);
    for (int kind = 0; kind < KINDS; kind++)
        if (wants(p, kind)) NAME(aggregate)(p, kind, width, r, shift, value[p->place[kind]]);
    for (int64_t scaler = 0; scaler < p->scalers; scaler++)
        for (int64_t group = 0; group < p->groups; group++) {
            float factor = p->factors ? p->factors[node * p->scalers + scaler] : 1;
            float *restrict out = to + (1 + scaler * p->groups + group) * p->width;
            for (int64_t f = 0; f < width; f++) out[f] = factor * value[group][f];
        }
}

static TARGET void NAME(forward)(const struct small *p, int64_t row, int64_t end_row,
                                 int64_t column, int64_t end_column)
{
    struct row r;
    int width;
    memset(r.message, 0, sizeof r.message);
    for (; column < end_column; column += width) {
        width = chunk_at(p, column, end_column);
        for (int64_t k = row; k < end_row; k++) NAME(forward_row)(p, k, column, width, &r);
    }
}

/* The gradients of all aggregates: sums over scalers of factor times gradient. */
INLINE void NAME(unscale)(const struct small *p, int64_t node, int width, const float *from,
                          float (*restrict of)[CHUNK])
{
    for (int64_t scaler = 0; scaler < p->scalers; scaler++)
        for (int64_t group = 0; group < p->groups; group++) {
            float factor = p->factors ? p->factors[node * p->scalers + scaler] : 1;
            const float *restrict grad = from + (1 + scaler * p->groups + group) * p->width;
            if (scaler == 0)
                for (int64_t f = 0; f < width; f++) of[group][f] = factor * grad[f];
            else
                for (int64_t f = 0; f < width; f++) of[group][f] += factor * grad[f];
        }
}

/* The gradient of a message is flat + slope (m - mean), plus that of max and min. */
INLINE void NAME(differentiate)(const struct small *p, int width, const struct row *r,
                                float (*restrict of)[CHUNK], float *restrict flat,
                                float *restrict slope)
{
    int lanes = padded(width);
    float one_dth = 1 / (float)r->degree;
    double epsilon = p->epsilon;
    for (int64_t f = 0; f < lanes; f++) flat[f] = slope[f] = 0;
    if (wants(p, MEAN))
        for (int64_t f = 0; f < lanes; f++) flat[f] += one_dth * of[p->place[MEAN]][f];
    if (wants(p, SUM))
        for (int64_t f = 0; f < lanes; f++) flat[f] += of[p->place[SUM]][f];
    if (r->degree == 1) return; /* the only message is the mean */
    if (wants(p, VAR))
        for (int64_t f = 0; f < lanes; f++) slope[f] += 2 * one_dth * of[p->place[VAR]][f];
    if (wants(p, STD) && !p->clamp)
        for (int64_t f = 0; f < lanes; f++)
            slope[f] += one_dth * of[p->place[STD]][f] / sqrtf((float)(r->var[f] + epsilon));
    if (wants(p, STD) && p->clamp)
        for (int64_t f = 0; f < lanes; f++) {
            float steep = one_dth * of[p->place[STD]][f] / sqrtf((float)r->var[f]);
            slope[f] += r->var[f] <= epsilon ? 0 : steep;
        }
}

/* The messages that are equal to an extremum: the first of them takes its gradient. */
INLINE void NAME(give_first)(int lanes, const float *restrict m, const float *restrict extremum,
                             float *restrict of, float *restrict g)
{
    for (int64_t f = 0; f < lanes; f++) {
        g[f] += m[f] == extremum[f] ? of[f] : 0;
        of[f] = m[f] == extremum[f] ? 0 : of[f];
    }
}

/* The gradients of the messages of one row and chunk, added to the totals of their senders, and of
 * the receiver's part. */
INLINE void NAME(backward_row)(const struct small *p, int64_t row, int64_t column, int width,
                               struct row *r, float *restrict shift)
{
    int lanes = padded(width);
    int64_t node = p->order ? p->order[row] : row;
    float of[KINDS][CHUNK], flat[CHUNK], slope[CHUNK], g[CHUNK];
    for (int64_t f = 0; f < lanes; f++) shift[f] = 0;
    r->slot = p->indptr[node], r->degree = p->indptr[node + 1] - r->slot;
    if (r->degree == 0) return;
    int is_spread = wants_spread(p) && r->degree > 1;
    int is_read = is_spread || wants(p, MAX) || wants(p, MIN); /* whether messages are needed */
    if (is_read) NAME(summarise)(p, column, width, r);
    NAME(unscale)(p, node, width, p->grad + input_of(p, row, column), of);
    for (int kind = 0; kind < KINDS; kind++) {
        if (!wants(p, kind) || !p->times[kind]) continue;
        float times = p->times[kind] == 1 ? 1 : (float)r->degree;
        for (int64_t f = 0; f < lanes; f++) shift[f] += times * of[p->place[kind]][f];
    }
    NAME(differentiate)(p, width, r, of, flat, slope);
    for (int64_t first = 0; first < r->degree; first += BLOCK) {
        int count = (int)least(BLOCK, r->degree - first);
        if (is_read && r->degree > BLOCK) NAME(load_messages)(p, first, count, column, width, r);
        for (int k = 0; k < count; k++) {
            const float *restrict m = r->message[k];
            int64_t slot = r->slot + first + k, later = least(slot + AHEAD, p->edges - 1);
            double *restrict total = p->totals + p->senders[slot] * p->columns + column;
            const double *next = p->totals + p->senders[later] * p->columns + column;
            for (int64_t f = 0; f < width; f += 8) __builtin_prefetch(next + f, 1);
            for (int64_t f = 0; f < lanes; f++) g[f] = flat[f];
            if (is_spread)
                for (int64_t f = 0; f < lanes; f++) {
                    float term = slope[f] * (float)(m[f] - r->mean[f]);
                    g[f] += slope[f] == 0 ? 0 : term;
                }
            if (wants(p, MAX)) NAME(give_first)(lanes, m, r->top, of[p->place[MAX]], g);
            if (wants(p, MIN)) NAME(give_first)(lanes, m, r->low, of[p->place[MIN]], g);
            for (int64_t f = 0; f < width; f++) total[f] += g[f];
            if (p->of_edge)
                memcpy(p->of_edge + p->edge_ids[slot] * p->columns + column, g,
                       (size_t)width * sizeof(float));
            if (p->of_table) {
                int64_t type = row_of_table(p, p->edge_ids[slot]);
                double *restrict of_type = p->of_table + type * p->columns + column;
                for (int64_t f = 0; f < width; f++) of_type[f] += g[f];
            }
        }
    }
}

INLINE void NAME(backward_chunk)(const struct small *p, int64_t column, int width, struct row *r)
{
    float shift[CHUNK];
    double of_bias[CHUNK] = {0};
    for (int64_t type = 0; p->of_table && type < p->edge_rows; type++)
        memset(p->of_table + type * p->columns + column, 0, (size_t)width * sizeof(double));
    for (int64_t node = 0; node < p->nodes; node++)
        memset(p->totals + node * p->columns + column, 0, (size_t)width * sizeof(double));
    for (int64_t row = 0; row < p->nodes; row++) {
        int64_t node = p->order ? p->order[row] : row;
        NAME(backward_row)(p, row, column, width, r, shift);
        for (int64_t f = 0; f < width; f++) of_bias[f] += shift[f];
        memcpy(p->of_products + 2 * (node * p->columns + column), shift,
               (size_t)width * sizeof(float));
    }
    for (int64_t f = 0; f < width; f++) p->of_bias[column + f] = (float)of_bias[f];
    for (int64_t node = 0; node < p->nodes; node++) { /* the receiver's part is in place of both */
        float *restrict to = p->of_products + 2 * (node * p->columns + column);
        const double *restrict total = p->totals + node * p->columns + column;
        memcpy(shift, to, (size_t)width * sizeof(float));
        for (int64_t f = 0; f < width; f++) to[2 * f] = shift[f], to[2 * f + 1] = (float)total[f];
    }
}

static TARGET void NAME(backward)(const struct small *p, int64_t column, int64_t end_column)
{
    struct row r;
    int width;
    memset(r.message, 0, sizeof r.message);
    for (; column < end_column; column += width) {
        width = chunk_at(p, column, end_column);
        NAME(backward_chunk)(p, column, width, &r);
    }
}

#endif
