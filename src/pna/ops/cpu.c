/* Neighbourhood statistics on the CPU: one pass over the neighbours, and its gradient.
 *
 * cpu.py calls pna_run with a kernel, a problem, a range of rows and a range of tiles. A tile is
 * as many features as fill a cache line. The result of a row and tile depends on nothing else, so
 * results do not depend on how the work is split. Neighbour loops process a few vectors of
 * features at a time, with accumulators in registers.
 *
 * The file includes itself: common code comes first, then the kernels, once for each number type
 * and vector width. Vectors use the extension of GCC and Clang, on any processor. The kernels for
 * long indices are in cpu_long.c, which includes this file: both halves are compiled at a time.
 */
#if !defined(INDEX)

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define LINE 64      /* bytes in a tile */
#define PANEL 4      /* tiles that are processed together */
#define BLOCK 64     /* slots summed in the type of the features; blocks are merged in double */
#define AHEAD 24     /* prefetch distance in slots, for rows in random order */
#define ROWS_AHEAD 4 /* prefetch distance in rows, for rows in sequential order */
#define SHORT 255    /* longest row whose positions fit in a byte; 255 means none */
#define FAR 16       /* mean/std above which the gradient takes deviations from the mean */
#define REMOTE 64    /* mean/std above which the rounding of the mean affects the gradient */
#define ROW_COST 4   /* cost of a row in addition to its slots, in slots */

enum { MEAN, SUM, VAR, STD, MAX, MIN, NORMALISED_MEAN, KINDS }; /* as in pna.ops.request */
enum { NO_EDGE, DENSE, TABLE, COEFFICIENTS, WEIGHTS };           /* as in pna.ops.request */
/* flags that a loop is compiled for */
enum { SPREAD = 1, EXTREMA = 2, WEIGHTED = 4, EDGE = 8, PRODUCT = 16 };

/* Field by field as in cpu.py. Arrays are contiguous unless a stride is given. */
struct problem {
    int64_t is_double, is_long_index;
    /* the graph, as in pna.Adjacency */
    int64_t num_receivers, num_senders, num_edges;
    const void *indptr, *senders, *long_rank, *edge_ids;
    const void *out_indptr, *receivers, *out_ranks;
    /* the messages */
    int64_t features, x_stride;
    const void *x;
    int64_t edge_form;
    int64_t product; /* whether the edge term multiplies x, instead of being added */
    int64_t edge_stride, edge_rows; /* edge_rows: rows of the table or basis, or heads of weights */
    const void *edge, *at;
    const void *weight; /* (senders,) 1/sqrt of the out-degree, for the normalised mean */
    /* the request */
    int64_t num_kinds, place[KINDS], clamp;
    double epsilon;
    /* the results of the forward pass; mean may be a part of out, or absent */
    int64_t mean_stride;
    void *out, *mean;
    uint8_t *argmax;
    int32_t *long_argmax;
    /* the backward pass */
    const void *grad;
    int64_t slopes_stride; /* features rounded up to whole tiles */
    void *slopes;          /* (receivers, parts, slopes_stride): see the kernel `slopes` */
    uint8_t *far;          /* (receivers, tiles): whether any feature of a tile is far from 0 */
    void *grad_x, *grad_edge, *grad_at;
    double *totals; /* (edge_rows, features): gradient of the table or basis */
};

typedef void kernel(const struct problem *p, int64_t row, int64_t end_row, int64_t tile,
                    int64_t end_tile);

static inline int wants(const struct problem *p, int kind) { return p->place[kind] >= 0; }

static inline int wants_spread(const struct problem *p) { return wants(p, VAR) || wants(p, STD); }

static inline int wants_extrema(const struct problem *p) { return wants(p, MAX) || wants(p, MIN); }

static inline int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

#define INLINE static inline __attribute__((always_inline)) TARGET
#define OUTLINE static __attribute__((noinline)) TARGET
#define PASTE(a, b, c, d) a##_##b##_##c##_##d
#define EXPAND(a, b, c, d) PASTE(a, b, c, d)
#define NAME(name) EXPAND(name, REAL, INDEX, WIDTH)

#if defined(LONG_INDEX)
#define INDEX int64_t
#define KERNELS_OF_INDEX pna_kernels_long
#else
#define INDEX int32_t
#define KERNELS_OF_INDEX pna_kernels_short
#endif
#include "cpu.c"

#define KERNELS(real, width)                                                                     \
    {EXPAND(forward, real, INDEX, width), EXPAND(slopes, real, INDEX, width),                    \
     EXPAND(senders, real, INDEX, width), EXPAND(extrema, real, INDEX, width),                   \
     EXPAND(edges, real, INDEX, width), EXPAND(coefficients, real, INDEX, width)}

/* by vector width, and whether numbers are double */
kernel *const KERNELS_OF_INDEX[][2][6] = {
    {KERNELS(float, 16), KERNELS(double, 16)},
#if defined(__x86_64__)
    {KERNELS(float, 32), KERNELS(double, 32)},
#endif
};

#if !defined(LONG_INDEX)

extern kernel *const pna_kernels_long[][2][6];

void pna_run(int64_t which, const struct problem *p, int64_t row, int64_t end_row, int64_t tile,
             int64_t end_tile)
{
    int width = 0;
#if defined(__x86_64__)
    width = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
#endif
    kernel *const(*kernels)[2][6] = p->is_long_index ? pna_kernels_long : pna_kernels_short;
    kernels[width][p->is_double != 0][which](p, row, end_row, tile, end_tile);
}

/* If cpu.py finds another size, the library was built from another version of this file. */
int64_t pna_problem_size(void) { return sizeof(struct problem); }

static int64_t work_before(const void *indptr, int64_t is_long_index, int64_t row)
{
    int64_t slots = is_long_index ? ((const int64_t *)indptr)[row] : ((const int32_t *)indptr)[row];
    return slots + ROW_COST * row;
}

/* Split rows into pieces of about equal work: piece k is rows bounds[k] to bounds[k+1]. Returns
 * the ratio of the largest piece to the average: one row may be most of the graph. */
double pna_split(const void *indptr, int64_t is_long_index, int64_t rows, int64_t pieces,
                 int64_t *bounds)
{
    int64_t all = work_before(indptr, is_long_index, rows), done = 0, largest = 0;
    double average = (double)all / (double)pieces;
    bounds[0] = 0;
    for (int64_t k = 1; k <= pieces; k++) {
        int64_t low = bounds[k - 1], high = rows;
        int64_t target = k == pieces ? all : (int64_t)(average * (double)k);
        while (low < high) {
            int64_t middle = low + (high - low) / 2;
            if (work_before(indptr, is_long_index, middle) < target) low = middle + 1;
            else high = middle;
        }
        int64_t work = work_before(indptr, is_long_index, low);
        if (work - done > largest) largest = work - done;
        bounds[k] = low, done = work;
    }
    return (double)largest / average;
}

#endif /* !LONG_INDEX */

#elif !defined(REAL)

#define REAL float
#define WHOLE int32_t
#define ROOT sqrtf
#define LAST_PLACE 2.4e-7f
#include "cpu.c"
#undef REAL
#undef WHOLE
#undef ROOT
#undef LAST_PLACE
#define REAL double
#define WHOLE int64_t
#define ROOT sqrt
#define LAST_PLACE 4.5e-16
#include "cpu.c"
#undef REAL
#undef WHOLE
#undef ROOT
#undef LAST_PLACE

#elif !defined(WIDTH)

#define WIDTH 16
#define TARGET
#include "cpu.c"
#undef WIDTH
#undef TARGET
#if defined(__x86_64__)
#define WIDTH 32
#define TARGET __attribute__((target("avx2,fma")))
#include "cpu.c"
#undef WIDTH
#undef TARGET
#endif

#else /* the kernels of one index type, number type and vector width */

#define LANES ((int)(LINE / sizeof(REAL))) /* features in a tile */
#define WIDE (PANEL * LANES)               /* features that are processed together */
#define STEP ((int)(WIDTH / sizeof(REAL))) /* features in a vector */
#define GROUP (LINE / WIDTH / 2)           /* vectors whose statistics fit in registers */
#define TILE (LINE / WIDTH)                /* vectors in a tile */

#define vec NAME(vec)
#define loose NAME(loose)
#define mask NAME(mask)
#define block NAME(block)
#define so_far NAME(so_far)

typedef REAL vec __attribute__((vector_size(WIDTH)));
typedef REAL loose __attribute__((vector_size(WIDTH), aligned(sizeof(REAL)), may_alias));
typedef WHOLE mask __attribute__((vector_size(WIDTH)));

/* Some slots of one row, and their statistics. */
struct block {
    const REAL *row[BLOCK];  /* their messages, or other rows to sum */
    const REAL *term[BLOCK]; /* their edge terms */
    REAL weight[BLOCK];      /* 1/sqrt of the out-degree of their senders */
    REAL stage[BLOCK][WIDE]; /* buffer for rows that are computed or padded */
    const REAL *centre[BLOCK];       /* means of receivers if far from 0, or NULL */
    REAL centre_stage[BLOCK][LANES]; /* buffer for a mean that is not whole tiles */
    REAL total[WIDE], mean[WIDE], spread[WIDE], weighted[WIDE], top[WIDE], low[WIDE];
    WHOLE top_at[WIDE], low_at[WIDE];
    REAL drift[WIDE]; /* mean deviation from the first message; without SPREAD, the mean */
    REAL check[WIDE]; /* not finite where the other statistics are invalid */
};

/* Merged statistics of the blocks so far, in a row of several blocks. */
struct so_far {
    double total[WIDE], mean[WIDE], spread[WIDE], weighted[WIDE];
};

INLINE vec NAME(load)(const REAL *from) { return *(const loose *)from; }

INLINE void NAME(store)(REAL *to, vec value) { *(loose *)to = value; }

INLINE mask NAME(where)(mask condition, mask yes, mask no)
{
    return ((yes ^ no) & condition) ^ no;
}

INLINE void NAME(copy)(REAL *to, const REAL *from, int width)
{
    memcpy(to, from, (size_t)width * sizeof(REAL));
}

INLINE INDEX NAME(at)(const void *array, int64_t place) { return ((const INDEX *)array)[place]; }

/* A statistic of a receiver, in an array with the shape of `out`. */
INLINE REAL *NAME(row_of)(const struct problem *p, const void *array, int64_t row, int kind)
{
    return (REAL *)array + (row * p->num_kinds + p->place[kind]) * p->features;
}

INLINE REAL *NAME(mean_of)(const struct problem *p, int64_t row)
{
    return (REAL *)p->mean + row * p->mean_stride;
}

/* How many features to process together from a column on: whole tiles, or a partial one. */
INLINE int NAME(width_at)(int64_t column, int64_t end)
{
    int64_t whole = (end - column) / LANES * LANES;
    return (int)(whole > 0 ? least(whole, WIDE) : end - column);
}

INLINE int NAME(whole_tiles)(int width) { return (width + LANES - 1) / LANES * LANES; }

INLINE int64_t NAME(end_column)(const struct problem *p, int64_t end_tile)
{
    return least(end_tile * LANES, p->features);
}

INLINE void NAME(prefetch)(const REAL *row, int width)
{
    for (int f = 0; f < width; f += LANES) __builtin_prefetch(row + f);
}

INLINE void NAME(combine_vectors)(const REAL *basis, int64_t stride, const REAL *factors,
                                  int64_t rows, int vectors, REAL *sum)
{
    vec total[2 * TILE];
    for (int v = 0; v < vectors; v++) total[v] = (vec){0};
    for (int64_t d = 0; d < rows; d++)
        for (int v = 0; v < vectors; v++)
            total[v] += factors[d] * NAME(load)(basis + d * stride + v * STEP);
    for (int v = 0; v < vectors; v++) NAME(store)(sum + v * STEP, total[v]);
}

/* Σ_d factors[d] · basis[d] over the rows of a basis. */
OUTLINE void NAME(combine)(const REAL *basis, int64_t stride, const REAL *factors, int64_t rows,
                           int width, REAL *sum)
{
    int f = 0;
    for (; f + 2 * LANES <= width; f += 2 * LANES)
        NAME(combine_vectors)(basis + f, stride, factors, rows, 2 * TILE, sum + f);
    for (; f + STEP <= width; f += STEP)
        NAME(combine_vectors)(basis + f, stride, factors, rows, 1, sum + f);
    for (; f < width; f++) {
        sum[f] = 0;
        for (int64_t d = 0; d < rows; d++) sum[f] += factors[d] * basis[d * stride + f];
    }
}

INLINE void NAME(prefetch_edge)(const struct problem *p, int64_t edge, int64_t column, int width)
{
    if (p->edge_form == DENSE)
        NAME(prefetch)((const REAL *)p->edge + edge * p->edge_stride + column, width);
    if (p->edge_form == WEIGHTS)
        __builtin_prefetch((const REAL *)p->edge + edge * p->edge_stride);
    if (p->edge_form == COEFFICIENTS)
        __builtin_prefetch((const REAL *)p->at + edge * p->edge_rows);
}

/* The weight of a feature of an edge. */
INLINE REAL NAME(weight_of)(const struct problem *p, int64_t edge, int64_t feature)
{
    int64_t head = p->edge_rows == 1 ? 0 : feature / (p->features / p->edge_rows);
    return ((const REAL *)p->edge)[edge * p->edge_stride + head];
}

/* One feature of e for one edge. */
INLINE REAL NAME(edge_value)(const struct problem *p, int64_t edge, int64_t feature)
{
    const REAL *values = (const REAL *)p->edge + feature;
    if (p->edge_form == WEIGHTS) return NAME(weight_of)(p, edge, feature);
    if (p->edge_form != COEFFICIENTS)
        return values[(p->edge_form == TABLE ? NAME(at)(p->at, edge) : edge) * p->edge_stride];
    const REAL *factors = (const REAL *)p->at + edge * p->edge_rows;
    REAL sum = 0;
    for (int64_t d = 0; d < p->edge_rows; d++) sum += factors[d] * values[d * p->edge_stride];
    return sum;
}

/* `width` features of e for one edge: a pointer to the input, or to `stage`, which has room for
 * whole tiles. */
INLINE const REAL *NAME(edge_term)(const struct problem *p, int64_t edge, int64_t column,
                                   int width, REAL *stage)
{
    const REAL *values = (const REAL *)p->edge + column;
    if (p->edge_form == COEFFICIENTS) {
        const REAL *factors = (const REAL *)p->at + edge * p->edge_rows;
        NAME(combine)(values, p->edge_stride, factors, p->edge_rows, width, stage);
        return stage;
    }
    if (p->edge_form == WEIGHTS) {
        vec weight = (vec){0} + NAME(weight_of)(p, edge, column);
        if (p->edge_rows == 1)
            for (int f = 0; f < NAME(whole_tiles)(width); f += STEP)
                NAME(store)(stage + f, weight);
        else
            for (int f = 0; f < width; f++) stage[f] = NAME(weight_of)(p, edge, column + f);
        return stage;
    }
    values += (p->edge_form == TABLE ? NAME(at)(p->at, edge) : edge) * p->edge_stride;
    if (width % LANES == 0) return values;
    NAME(copy)(stage, values, width);
    return stage;
}

INLINE void NAME(add)(REAL *to, const REAL *x, const REAL *y, int width)
{
    int f = 0;
    for (; f + STEP <= width; f += STEP)
        NAME(store)(to + f, NAME(load)(x + f) + NAME(load)(y + f));
    for (; f < width; f++) to[f] = x[f] + y[f];
}

INLINE void NAME(multiply)(REAL *to, const REAL *x, const REAL *y, int width)
{
    int f = 0;
    for (; f + STEP <= width; f += STEP)
        NAME(store)(to + f, NAME(load)(x + f) * NAME(load)(y + f));
    for (; f < width; f++) to[f] = x[f] * y[f];
}

/* Compute the messages of `count` slots from rows of x, padded with zeros to whole tiles. */
OUTLINE void NAME(make_messages)(const struct problem *p, int64_t slot, int count, int64_t column,
                                 int width, struct block *b)
{
    const INDEX *edges = (const INDEX *)p->edge_ids + slot;
    int64_t last = p->num_edges - 1 - slot;
    for (int k = 0; k < count; k++) {
        const REAL *x = b->row[k];
        REAL *message = b->stage[k];
        b->row[k] = message;
        int whole = NAME(whole_tiles)(width);
        if (p->edge_form == NO_EDGE) {
            NAME(copy)(message, x, width);
        } else {
            NAME(prefetch_edge)(p, edges[least(k + AHEAD, last)], column, width);
            const REAL *term = NAME(edge_term)(p, edges[k], column, width, message);
            if (p->product) NAME(multiply)(message, x, term, width);
            else NAME(add)(message, x, term, width);
        }
        for (int f = width; f < whole; f++) message[f] = 0;
    }
}

/* Point a block at the messages of `count` slots: rows of x, or messages computed from them. */
INLINE void NAME(gather)(const struct problem *p, int64_t slot, int count, int64_t column,
                         int width, struct block *b)
{
    const REAL *x = (const REAL *)p->x + column;
    const INDEX *senders = (const INDEX *)p->senders + slot;
    int64_t last = p->num_edges - 1 - slot;
    for (int k = 0; k < count; k++) {
        NAME(prefetch)(x + senders[least(k + AHEAD, last)] * p->x_stride, width);
        b->row[k] = x + senders[k] * p->x_stride;
    }
    if (p->edge_form != NO_EDGE || width % LANES)
        NAME(make_messages)(p, slot, count, column, width, b);
}

INLINE void NAME(gather_weights)(const struct problem *p, int64_t slot, int count, REAL *weight)
{
    for (int k = 0; k < count; k++)
        weight[k] = ((const REAL *)p->weight)[NAME(at)(p->senders, slot + k)];
}

/* Recompute the statistics of a block where a message is not finite, or a sum or square
 * overflows. */
OUTLINE void NAME(summarise_odd)(struct block *b, int count, int lanes, int flags)
{
    for (int f = 0; f < lanes; f++) {
        double total = 0, weighted = 0;
        REAL spread = 0;
        int any_nan = 0;
        if (b->check[f] - b->check[f] == 0) continue;
        for (int k = 0; k < count; k++) {
            total += b->row[k][f];
            if (flags & WEIGHTED) weighted += (double)b->weight[k] * b->row[k][f];
            any_nan |= b->row[k][f] != b->row[k][f];
        }
        REAL mean = (REAL)(total / count);
        for (int k = 0; k < count; k++)
            spread += (b->row[k][f] - mean) * (b->row[k][f] - mean);
        b->total[f] = (REAL)total, b->mean[f] = mean, b->spread[f] = spread;
        b->weighted[f] = (REAL)(weighted / count);
        b->drift[f] = flags & SPREAD ? mean - b->row[0][f] : mean;
        if (any_nan) b->top[f] = b->low[f] = mean, b->top_at[f] = b->low_at[f] = -1;
    }
}

/* Total, mean and squared deviations of a block, and the extrema since the start of the row. The
 * mean for the deviations is computed from deviations from the first message, so that all of them
 * are exactly 0 if the messages are equal. */
INLINE void NAME(summarise)(struct block *b, int count, int64_t first, int lanes, int flags)
{
    REAL one_nth = 1 / (REAL)count;
    mask odd = {0};
    for (int lane = 0; lane < lanes; lane += GROUP * STEP) {
        vec shift[GROUP], drift[GROUP], total[GROUP], weighted[GROUP];
        mask top[GROUP], low[GROUP], top_at[GROUP], low_at[GROUP]; /* extrema as bit patterns */
        for (int g = 0; g < GROUP; g++) {
            int at = lane + g * STEP;
            vec m = shift[g] = NAME(load)(b->row[0] + at);
            total[g] = m;
            drift[g] = m - m; /* NaN instead of 0 if m is infinite */
            if (flags & WEIGHTED) weighted[g] = b->weight[0] * m;
            top[g] = low[g] = (mask)m;
            top_at[g] = low_at[g] = (mask){0} + (WHOLE)first;
            if (!(flags & EXTREMA) || first == 0) continue;
            mask old_top, old_low, old_top_at, old_low_at;
            memcpy(&old_top, b->top + at, WIDTH), memcpy(&old_top_at, b->top_at + at, WIDTH);
            memcpy(&old_low, b->low + at, WIDTH), memcpy(&old_low_at, b->low_at + at, WIDTH);
            mask above = (mask)(m > (vec)old_top), below = (mask)(m < (vec)old_low);
            top[g] = NAME(where)(above, top[g], old_top);
            low[g] = NAME(where)(below, low[g], old_low);
            top_at[g] = NAME(where)(above, top_at[g], old_top_at);
            low_at[g] = NAME(where)(below, low_at[g], old_low_at);
        }
        for (int k = 1; k < count; k++) {
            const REAL *row = b->row[k] + lane;
            mask place = (mask){0} + (WHOLE)(first + k);
            for (int g = 0; g < GROUP; g++) {
                vec m = NAME(load)(row + g * STEP);
                total[g] += m;
                if (flags & SPREAD) drift[g] += m - shift[g];
                if (flags & WEIGHTED) weighted[g] += b->weight[k] * m;
                if (flags & EXTREMA) {
                    mask above = (mask)(m > (vec)top[g]), below = (mask)(m < (vec)low[g]);
                    top[g] = NAME(where)(above, (mask)m, top[g]);
                    low[g] = NAME(where)(below, (mask)m, low[g]);
                    top_at[g] = NAME(where)(above, place, top_at[g]);
                    low_at[g] = NAME(where)(below, place, low_at[g]);
                }
            }
        }
        vec spread[GROUP], rest[GROUP];
        for (int g = 0; g < GROUP; g++) {
            spread[g] = rest[g] = drift[g] - drift[g];
            drift[g] *= one_nth, shift[g] += drift[g];
        }
        for (int k = 0; k < count && flags & SPREAD; k++)
            for (int g = 0; g < GROUP; g++) {
                vec deviation = NAME(load)(b->row[k] + lane + g * STEP) - shift[g];
                rest[g] += deviation;
                spread[g] += deviation * deviation;
            }
        for (int g = 0; g < GROUP; g++) {
            int at = lane + g * STEP;
            vec mean = total[g] / (REAL)count, check = total[g];
            if (flags & SPREAD) check = spread[g] + (check - check);
            if (flags & WEIGHTED) check += weighted[g] - weighted[g];
            odd |= (mask)(check - check != (vec){0});
            NAME(store)(b->check + at, check);
            NAME(store)(b->drift + at, flags & SPREAD ? drift[g] : mean);
            if (flags & SPREAD) {
                spread[g] -= rest[g] * rest[g] * one_nth;
                spread[g] = (vec)((mask)spread[g] & (mask)(spread[g] > (vec){0}));
                NAME(store)(b->spread + at, spread[g]);
            }
            NAME(store)(b->total + at, total[g]);
            NAME(store)(b->mean + at, mean);
            if (flags & WEIGHTED) NAME(store)(b->weighted + at, weighted[g] * one_nth);
            if (flags & EXTREMA) {
                NAME(store)(b->top + at, (vec)top[g]);
                NAME(store)(b->low + at, (vec)low[g]);
                memcpy(b->top_at + at, &top_at[g], WIDTH);
                memcpy(b->low_at + at, &low_at[g], WIDTH);
            }
        }
    }
    WHOLE any = 0;
    for (int lane = 0; lane < STEP; lane++) any |= odd[lane];
    if (any) NAME(summarise_odd)(b, count, lanes, flags);
}

/* Merge a block with those before it, by the formula of Chan et al. */
OUTLINE void NAME(merge)(const struct block *b, int count, int64_t before, int lanes, int flags,
                         struct so_far *all)
{
    double share = (double)count / (double)(before + count);
    for (int f = 0; f < lanes; f++) {
        double mean = (flags & SPREAD ? b->row[0][f] : 0) + (double)b->drift[f];
        if (mean - mean != 0) mean = b->mean[f]; /* the drift overflowed */
        double apart = mean - all->mean[f];
        all->total[f] += b->total[f] - b->total[f] == 0 ? b->total[f] : b->mean[f] * (double)count;
        all->mean[f] += apart * share;
        if (flags & SPREAD) all->spread[f] += b->spread[f];
        if (flags & SPREAD && before) /* else the term is 0, but its square may overflow */
            all->spread[f] += apart * apart * (double)before * share;
        if (flags & WEIGHTED) all->weighted[f] += b->weighted[f] * (double)count;
    }
}

OUTLINE void NAME(take_merged)(struct block *b, int64_t degree, int lanes,
                               const struct so_far *all)
{
    for (int f = 0; f < lanes; f++) {
        double mean = all->mean[f], total = mean * (double)degree;
        if (mean - mean != 0) total = all->total[f], mean = total / (double)degree;
        b->total[f] = (REAL)total, b->mean[f] = (REAL)mean;
        b->spread[f] = (REAL)all->spread[f];
        b->weighted[f] = (REAL)(all->weighted[f] / (double)degree);
    }
}

/* Write the results of a row from the statistics of the whole row in b. */
OUTLINE void NAME(finish)(const struct problem *p, int64_t row, int64_t degree, int64_t column,
                          int width, const struct block *b)
{
    int64_t F = p->features;
    REAL one_dth = 1 / (REAL)degree, root = ROOT((REAL)degree), epsilon = (REAL)p->epsilon;
    if (wants(p, MEAN)) NAME(copy)(NAME(row_of)(p, p->out, row, MEAN) + column, b->mean, width);
    if (wants(p, SUM)) NAME(copy)(NAME(row_of)(p, p->out, row, SUM) + column, b->total, width);
    if (wants(p, MAX)) NAME(copy)(NAME(row_of)(p, p->out, row, MAX) + column, b->top, width);
    if (wants(p, MIN)) NAME(copy)(NAME(row_of)(p, p->out, row, MIN) + column, b->low, width);
    if (p->mean) NAME(copy)(NAME(mean_of)(p, row) + column, b->mean, width);
    if (wants(p, VAR)) {
        REAL *restrict var = NAME(row_of)(p, p->out, row, VAR) + column;
        for (int f = 0; f < width; f++) var[f] = b->spread[f] * one_dth;
    }
    if (wants(p, STD)) {
        REAL *restrict std = NAME(row_of)(p, p->out, row, STD) + column;
        if (p->clamp)
            for (int f = 0; f < width; f++) {
                REAL var = b->spread[f] * one_dth;
                std[f] = var > epsilon ? ROOT(var) : var * 0;
            }
        else { /* ROOT(epsilon) marks equal messages, which have no gradient */
            REAL least_std = ROOT(epsilon), next = least_std * (1 + LAST_PLACE);
            for (int f = 0; f < width; f++) {
                REAL value = ROOT(b->spread[f] * one_dth + epsilon);
                std[f] = b->spread[f] > 0 && value <= least_std ? next : value;
            }
        }
    }
    if (wants(p, NORMALISED_MEAN)) {
        REAL *restrict normalised = NAME(row_of)(p, p->out, row, NORMALISED_MEAN) + column;
        for (int f = 0; f < width; f++) normalised[f] = b->weighted[f] * root;
    }
    if (!wants_extrema(p)) return;
    uint8_t *restrict argmax = p->argmax + 2 * row * F + column;
    for (int f = 0; f < width; f++) argmax[f] = (uint8_t)b->top_at[f];
    for (int f = 0; f < width; f++) argmax[F + f] = (uint8_t)b->low_at[f];
    if (degree <= SHORT) return;
    int32_t *restrict long_argmax = p->long_argmax + 2 * NAME(at)(p->long_rank, row) * F + column;
    for (int f = 0; f < width; f++) long_argmax[f] = (int32_t)b->top_at[f];
    for (int f = 0; f < width; f++) long_argmax[F + f] = (int32_t)b->low_at[f];
}

/* Write the results of a receiver without messages. */
OUTLINE void NAME(finish_empty)(const struct problem *p, int64_t row, int64_t column, int width)
{
    int64_t F = p->features;
    size_t bytes = (size_t)width * sizeof(REAL);
    REAL *out = (REAL *)p->out + row * p->num_kinds * F + column;
    for (int64_t k = 0; k < p->num_kinds; k++) memset(out + k * F, 0, bytes);
    if (p->mean) memset(NAME(mean_of)(p, row) + column, 0, bytes);
    if (!wants_extrema(p)) return;
    memset(p->argmax + 2 * row * F + column, SHORT, (size_t)width);
    memset(p->argmax + (2 * row + 1) * F + column, SHORT, (size_t)width);
}

INLINE void NAME(forward_for)(const struct problem *p, int64_t row, int64_t end_row, int64_t tile,
                              int64_t end_tile, int flags)
{
    struct block b;
    struct so_far all;
    int width;
    for (; row < end_row; row++) {
        int64_t slot = NAME(at)(p->indptr, row), degree = NAME(at)(p->indptr, row + 1) - slot;
        int64_t column = tile * LANES, end = NAME(end_column)(p, end_tile);
        for (; column < end; column += width) {
            width = NAME(width_at)(column, end);
            if (width < LANES && p->features > LANES) /* overlap the previous columns */
                column = p->features - LANES, width = LANES;
            if (degree == 0) NAME(finish_empty)(p, row, column, width);
            if (degree == 0) continue;
            if (degree > BLOCK) memset(&all, 0, sizeof all);
            int lanes = NAME(whole_tiles)(width);
            for (int64_t first = 0; first < degree; first += BLOCK) {
                int count = (int)least(BLOCK, degree - first);
                NAME(gather)(p, slot + first, count, column, width, &b);
                if (flags & WEIGHTED) NAME(gather_weights)(p, slot + first, count, b.weight);
                NAME(summarise)(&b, count, first, lanes, flags);
                if (degree > BLOCK) NAME(merge)(&b, count, first, lanes, flags, &all);
            }
            if (degree > BLOCK) NAME(take_merged)(&b, degree, lanes, &all);
            NAME(finish)(p, row, degree, column, width, &b);
        }
    }
}

static TARGET void NAME(forward)(const struct problem *p, int64_t row, int64_t end_row,
                                 int64_t tile, int64_t end_tile)
{
    int flags = SPREAD * wants_spread(p) | EXTREMA * wants_extrema(p) |
                WEIGHTED * wants(p, NORMALISED_MEAN);
    switch (flags) {
    case 0: NAME(forward_for)(p, row, end_row, tile, end_tile, 0); break;
    case 1: NAME(forward_for)(p, row, end_row, tile, end_tile, 1); break;
    case 2: NAME(forward_for)(p, row, end_row, tile, end_tile, 2); break;
    case 3: NAME(forward_for)(p, row, end_row, tile, end_tile, 3); break;
    case 4: NAME(forward_for)(p, row, end_row, tile, end_tile, 4); break;
    case 5: NAME(forward_for)(p, row, end_row, tile, end_tile, 5); break;
    case 6: NAME(forward_for)(p, row, end_row, tile, end_tile, 6); break;
    case 7: NAME(forward_for)(p, row, end_row, tile, end_tile, 7); break;
    }
}

/* Apart from max and min, the gradient of a message m from sender j to receiver i is
 *     A_i + B_i (m - c_i) + C_i / sqrt(d_j)
 *     B_i = (2 g_var + g_std / std_i) / d_i
 *     A_i = g_mean / d_i + g_sum - B_i (mean_i - c_i)
 *     C_i = g_normalised_mean / sqrt(d_i)
 * A sender sums it over its receivers. Usually c_i is 0, so that two rows are read per edge. If
 * the mean is FAR from 0, the terms with B_i would cancel, and c_i is the mean. The last bit of
 * B_i says which. So a receiver's gradient depends on its own messages only. */
INLINE int64_t NAME(num_parts)(const struct problem *p)
{
    return 1 + wants_spread(p) + wants(p, NORMALISED_MEAN);
}

INLINE REAL *NAME(slopes_of)(const struct problem *p, int64_t row)
{
    return (REAL *)p->slopes + row * NAME(num_parts)(p) * p->slopes_stride;
}

/* Whether the gradient of a feature with this slope takes deviations from the mean. */
INLINE mask NAME(is_far)(vec slope) { return -((mask)slope & 1); }

/* Compute offset = mean - c of every feature, and mark the slopes of features whose mean is far
 * from 0; their offset is 0. Returns whether any mean is so far from 0 that its rounding error
 * must be computed from the messages. */
INLINE int NAME(take_centres)(const struct problem *p, int64_t row, int64_t column, int width,
                              REAL *restrict slope, REAL *restrict offset, WHOLE *restrict remote)
{
    const REAL *restrict mean = NAME(mean_of)(p, row) + column;
    const REAL *restrict out = NAME(row_of)(p, p->out, row, wants(p, STD) ? STD : VAR) + column;
    uint8_t *far_tiles = p->far + (row * p->slopes_stride + column) / LANES;
    REAL std[WIDE];
    WHOLE bits[WIDE], far[WIDE] = {0}, any = 0;
    if (wants(p, STD)) NAME(copy)(std, out, width);
    else
        for (int f = 0; f < width; f++) std[f] = ROOT(out[f]);
    for (int f = 0; f < width; f++) {
        REAL size = mean[f] < 0 ? -mean[f] : mean[f];
        far[f] = (size > FAR * std[f]) & (slope[f] != 0);
        remote[f] = (size > REMOTE * std[f]) & (slope[f] != 0);
        offset[f] = far[f] | (slope[f] == 0) ? 0 : mean[f];
        any |= remote[f];
    }
    memcpy(bits, slope, (size_t)width * sizeof(REAL));
    for (int f = 0; f < width; f++) bits[f] = (bits[f] & ~(WHOLE)1) | far[f];
    memcpy(slope, bits, (size_t)width * sizeof(REAL));
    for (int f = 0; f < width; f += LANES) {
        WHOLE tile = 0;
        for (int lane = 0; lane < LANES; lane++) tile |= far[f + lane];
        far_tiles[f / LANES] = (uint8_t)tile;
    }
    return any != 0;
}

/* Compute the rounding error of the mean from the messages, into offset; set the slope to 0 where
 * all messages are equal. */
OUTLINE void NAME(correct)(const struct problem *p, int64_t row, int64_t column, int width,
                           const WHOLE *remote, REAL *restrict slope, REAL *restrict offset)
{
    int64_t slot = NAME(at)(p->indptr, row), degree = NAME(at)(p->indptr, row + 1) - slot;
    const REAL *mean = NAME(mean_of)(p, row) + column;
    struct block b;
    double total[WIDE] = {0};
    REAL start[WIDE];
    int differ[WIDE] = {0};
    for (int64_t first = 0; first < degree; first += BLOCK) {
        int count = (int)least(BLOCK, degree - first);
        REAL sum[WIDE] = {0};
        NAME(gather)(p, slot + first, count, column, width, &b);
        if (first == 0) NAME(copy)(start, b.row[0], width);
        for (int k = 0; k < count; k++)
            for (int f = 0; f < width; f++) {
                REAL deviation = b.row[k][f] - start[f];
                sum[f] += deviation;
                differ[f] |= deviation != 0;
            }
        for (int f = 0; f < width; f++) total[f] += sum[f];
    }
    for (int f = 0; f < width; f++) {
        if (!remote[f]) continue;
        offset[f] = start[f] - mean[f] + (REAL)(total[f] / (double)degree);
        if (!differ[f]) slope[f] = 0;
    }
}

INLINE void NAME(add_grad)(const struct problem *p, int64_t row, int kind, int64_t column,
                           int width, REAL factor, REAL *restrict to)
{
    const REAL *restrict grad = NAME(row_of)(p, p->grad, row, kind) + column;
    for (int f = 0; f < width; f++) to[f] += factor * grad[f];
}

/* Compute rows A, B (for var or std) and C (for normalised_mean) of every receiver. */
static TARGET void NAME(slopes)(const struct problem *p, int64_t row, int64_t end_row,
                                int64_t tile, int64_t end_tile)
{
    int64_t stride = p->slopes_stride, parts = NAME(num_parts)(p);
    REAL offset[WIDE];
    WHOLE remote[WIDE];
    int width;
    for (; row < end_row; row++) {
        int64_t slot = NAME(at)(p->indptr, row), degree = NAME(at)(p->indptr, row + 1) - slot;
        int64_t column = tile * LANES, end = NAME(end_column)(p, end_tile);
        REAL one_dth = 1 / (REAL)degree;
        for (; degree > 0 && column < end; column += width) {
            REAL *restrict a = NAME(slopes_of)(p, row) + column, *restrict b = a + stride;
            REAL *restrict c = a + (parts - 1) * stride;
            width = NAME(width_at)(column, end);
            for (int64_t part = 0; part < parts; part++)
                memset(a + part * stride, 0, (size_t)NAME(whole_tiles)(width) * sizeof(REAL));
            if (wants(p, MEAN)) NAME(add_grad)(p, row, MEAN, column, width, one_dth, a);
            if (wants(p, SUM)) NAME(add_grad)(p, row, SUM, column, width, 1, a);
            if (wants(p, NORMALISED_MEAN))
                NAME(add_grad)(p, row, NORMALISED_MEAN, column, width, ROOT(one_dth), c);
            if (!wants_spread(p)) continue;
            if (degree == 1) { /* the only message is the mean */
                memset(p->far + (row * stride + column) / LANES, 0,
                       (size_t)NAME(whole_tiles)(width) / LANES);
                continue;
            }
            if (wants(p, VAR)) NAME(add_grad)(p, row, VAR, column, width, 2 * one_dth, b);
            if (wants(p, STD)) {
                const REAL *restrict std = NAME(row_of)(p, p->out, row, STD) + column;
                const REAL *restrict grad = NAME(row_of)(p, p->grad, row, STD) + column;
                REAL flat = p->clamp ? 0 : ROOT((REAL)p->epsilon);
                for (int f = 0; f < width; f++) {
                    REAL slope = grad[f] * one_dth / std[f];
                    b[f] += std[f] == flat ? 0 : slope;
                }
            }
            if (NAME(take_centres)(p, row, column, width, b, offset, remote))
                NAME(correct)(p, row, column, width, remote, b, offset);
            for (int f = 0; f < width; f++) a[f] -= b[f] * offset[f];
        }
    }
}

/* Index in the given order of the edge at a place in the order of outgoing edges. */
INLINE INDEX NAME(edge_at)(const struct problem *p, int64_t place)
{
    INDEX receiver = NAME(at)(p->receivers, place);
    return NAME(at)(p->edge_ids, NAME(at)(p->indptr, receiver) + NAME(at)(p->out_ranks, place));
}

/* Sums of A + B (m - c), and of C, over a block, for `vectors` vectors of features. If messages
 * are products, both are multiplied by the edge term. */
INLINE void NAME(sum_slopes)(struct block *b, int count, int lane, int vectors, int64_t stride,
                             int flags)
{
    vec linear[2 * TILE], weighted[2 * TILE], sent[2 * TILE];
    for (int v = 0; v < vectors; v++) {
        linear[v] = weighted[v] = (vec){0};
        if (flags & SPREAD) sent[v] = NAME(load)(b->mean + lane + v * STEP);
    }
    for (int k = 0; k < count; k++) {
        const REAL *row = b->row[k] + lane, *term = flags & EDGE ? b->term[k] + lane : row;
        const REAL *c = row + (flags & SPREAD ? 2 : 1) * stride;
        if (flags & SPREAD && b->centre[k]) {
            const REAL *centre = b->centre[k] + lane;
            for (int v = 0; v < vectors; v++) {
                vec slope = NAME(load)(row + stride + v * STEP), m = sent[v];
                vec e = flags & EDGE ? NAME(load)(term + v * STEP) : m;
                if (flags & EDGE) m = flags & PRODUCT ? m * e : m + e;
                m -= (vec)((mask)NAME(load)(centre + v * STEP) & NAME(is_far)(slope));
                m = NAME(load)(row + v * STEP) + slope * m;
                linear[v] += flags & PRODUCT ? m * e : m;
            }
        } else {
            for (int v = 0; v < vectors; v++) {
                vec slope = NAME(load)(row + v * STEP);
                vec e = flags & EDGE ? NAME(load)(term + v * STEP) : slope;
                if (flags & SPREAD) {
                    vec m = sent[v];
                    if (flags & EDGE) m = flags & PRODUCT ? m * e : m + e;
                    slope += NAME(load)(row + stride + v * STEP) * m;
                }
                if (flags & PRODUCT) slope *= e;
                linear[v] += slope; /* rounded once, so that equal edges round alike */
            }
        }
        for (int v = 0; v < vectors && flags & WEIGHTED; v++) {
            vec share = NAME(load)(c + v * STEP);
            weighted[v] += flags & PRODUCT ? share * NAME(load)(term + v * STEP) : share;
        }
    }
    for (int v = 0; v < vectors; v++) {
        NAME(store)(b->total + lane + v * STEP, linear[v]);
        if (flags & WEIGHTED) NAME(store)(b->weighted + lane + v * STEP, weighted[v]);
    }
}

/* The mean of a receiver if it is far from 0 in any of these features, else NULL. */
INLINE const REAL *NAME(centre_of)(const struct problem *p, int64_t receiver, int64_t column,
                                   int width, REAL *stage)
{
    const uint8_t *far_tiles = p->far + (receiver * p->slopes_stride + column) / LANES;
    int far = 0;
    for (int tile = 0; tile < NAME(whole_tiles)(width) / LANES; tile++) far |= far_tiles[tile];
    if (!far) return NULL;
    const REAL *mean = NAME(mean_of)(p, receiver) + column;
    if (width % LANES == 0) return mean;
    NAME(copy)(stage, mean, width);
    return stage;
}

/* Sums over `count` receivers of a sender: of A + B (m - c) into b->total, of C into b->weighted.
 * b->mean holds the sender's row of x. */
INLINE void NAME(add_slopes)(const struct problem *p, int64_t place, int count, int64_t column,
                             int width, struct block *b, int flags)
{
    const REAL *slopes = (const REAL *)p->slopes + column;
    const INDEX *receivers = (const INDEX *)p->receivers + place;
    int64_t stride = p->slopes_stride, parts = NAME(num_parts)(p), last = p->num_edges - 1 - place;
    for (int k = 0; k < count; k++) {
        int64_t ahead = least(k + AHEAD, last);
        const REAL *later = slopes + receivers[ahead] * parts * stride;
        NAME(prefetch)(later, width);
        b->row[k] = slopes + receivers[k] * parts * stride;
        if (flags & SPREAD) {
            NAME(prefetch)(later + stride, width);
            b->centre[k] = NAME(centre_of)(p, receivers[k], column, width, b->centre_stage[k]);
        }
        if (!(flags & EDGE)) continue;
        int64_t edge = NAME(edge_at)(p, place + k);
        b->term[k] = NAME(edge_term)(p, edge, column, width, b->stage[k]);
        NAME(prefetch_edge)(p, NAME(edge_at)(p, place + ahead), column, width);
    }
    int lane = 0;
    for (; lane + LANES < width; lane += 2 * LANES)
        NAME(sum_slopes)(b, count, lane, 2 * TILE, stride, flags);
    if (lane < width) NAME(sum_slopes)(b, count, lane, TILE, stride, flags);
}

INLINE void NAME(senders_for)(const struct problem *p, int64_t row, int64_t end_row, int64_t tile,
                              int64_t end_tile, int flags)
{
    struct block b;
    struct so_far all;
    int width;
    memset(b.mean, 0, sizeof b.mean);
    memset(b.weighted, 0, sizeof b.weighted);
    memset(b.stage, 0, sizeof b.stage);
    memset(b.centre_stage, 0, sizeof b.centre_stage);
    for (; row < end_row; row++) {
        int64_t place = NAME(at)(p->out_indptr, row);
        int64_t degree = NAME(at)(p->out_indptr, row + 1) - place;
        int64_t column = tile * LANES, end = NAME(end_column)(p, end_tile);
        for (; column < end; column += width) {
            const REAL *restrict x = (const REAL *)p->x + row * p->x_stride + column;
            REAL *restrict grad_x = (REAL *)p->grad_x + row * p->features + column;
            width = NAME(width_at)(column, end);
            if (flags & SPREAD && row + ROWS_AHEAD < end_row)
                NAME(prefetch)(x + ROWS_AHEAD * p->x_stride, width);
            if (degree == 0) memset(grad_x, 0, (size_t)width * sizeof(REAL));
            if (degree == 0) continue;
            if (flags & SPREAD) NAME(copy)(b.mean, x, width);
            if (degree > BLOCK) memset(&all, 0, sizeof all);
            for (int64_t first = 0; first < degree; first += BLOCK) {
                int count = (int)least(BLOCK, degree - first);
                NAME(add_slopes)(p, place + first, count, column, width, &b, flags);
                if (degree > BLOCK)
                    for (int f = 0; f < width; f++) {
                        all.total[f] += b.total[f];
                        all.weighted[f] += b.weighted[f];
                    }
            }
            if (degree > BLOCK)
                for (int f = 0; f < width; f++) {
                    b.total[f] = (REAL)all.total[f];
                    b.weighted[f] = (REAL)all.weighted[f];
                }
            NAME(copy)(grad_x, b.total, width);
            if (flags & WEIGHTED)
                for (int f = 0; f < width; f++)
                    grad_x[f] += ((const REAL *)p->weight)[row] * b.weighted[f];
        }
    }
}

/* The gradient of x without max and min; each sender has one owner. */
static TARGET void NAME(senders)(const struct problem *p, int64_t row, int64_t end_row,
                                 int64_t tile, int64_t end_tile)
{
    int spread = wants_spread(p), edge = p->edge_form != NO_EDGE && (spread || p->product);
    switch (SPREAD * spread | WEIGHTED * wants(p, NORMALISED_MEAN) | EDGE * edge |
            PRODUCT * (p->product != 0)) {
    case 0: NAME(senders_for)(p, row, end_row, tile, end_tile, 0); break;
    case 1: NAME(senders_for)(p, row, end_row, tile, end_tile, 1); break;
    case 4: NAME(senders_for)(p, row, end_row, tile, end_tile, 4); break;
    case 5: NAME(senders_for)(p, row, end_row, tile, end_tile, 5); break;
    case 9: NAME(senders_for)(p, row, end_row, tile, end_tile, 9); break;
    case 13: NAME(senders_for)(p, row, end_row, tile, end_tile, 13); break;
    case 24: NAME(senders_for)(p, row, end_row, tile, end_tile, 24); break;
    case 25: NAME(senders_for)(p, row, end_row, tile, end_tile, 25); break;
    case 28: NAME(senders_for)(p, row, end_row, tile, end_tile, 28); break;
    case 29: NAME(senders_for)(p, row, end_row, tile, end_tile, 29); break;
    }
}

/* Position of the maximum (which = 0) or minimum (1) in the row of a receiver, or -1. */
INLINE int64_t NAME(place_of)(const struct problem *p, int64_t row, int64_t degree, int which,
                              int64_t feature)
{
    if (degree <= SHORT) {
        int place = p->argmax[(2 * row + which) * p->features + feature];
        return place == SHORT ? -1 : place;
    }
    return p->long_argmax[(2 * NAME(at)(p->long_rank, row) + which) * p->features + feature];
}

/* Add the gradients of max and min to that of x, receiver by receiver; each tile has one owner. */
static TARGET void NAME(extrema)(const struct problem *p, int64_t row, int64_t end_row,
                                 int64_t tile, int64_t end_tile)
{
    int64_t F = p->features, column = tile * LANES, end = NAME(end_column)(p, end_tile);
    int64_t last = p->num_edges - 1;
    REAL *restrict grad_x = (REAL *)p->grad_x;
    for (; row < end_row; row++) {
        int64_t slot = NAME(at)(p->indptr, row), degree = NAME(at)(p->indptr, row + 1) - slot;
        const INDEX *senders = (const INDEX *)p->senders + slot;
        const INDEX *edges = (const INDEX *)p->edge_ids + slot;
        for (int64_t k = AHEAD; k < least(AHEAD + degree, last - slot); k++)
            for (int64_t f = column; f < end; f += LANES)
                __builtin_prefetch(grad_x + senders[k] * F + f, 1);
        for (int which = 0; which < 2; which++) {
            if (degree == 0 || !wants(p, MAX + which)) continue;
            const REAL *restrict grad = NAME(row_of)(p, p->grad, row, MAX + which);
            const REAL *later = grad + ROWS_AHEAD * p->num_kinds * F;
            for (int64_t f = column; f < end; f += LANES) __builtin_prefetch(later + f);
            for (int64_t f = column; f < end; f++) {
                int64_t place = NAME(place_of)(p, row, degree, which, f);
                if (place < 0) continue;
                REAL slope = p->product ? NAME(edge_value)(p, edges[place], f) : 1;
                grad_x[senders[place] * F + f] += slope * grad[f];
            }
        }
    }
}

/* Compute the gradients of the edge terms of some slots of a receiver into b->stage: those of
 * their messages, times x if messages are products. */
OUTLINE void NAME(differentiate)(const struct problem *p, int64_t row, int64_t first, int count,
                                 int64_t column, int width, struct block *b)
{
    int64_t slot = NAME(at)(p->indptr, row), degree = NAME(at)(p->indptr, row + 1) - slot;
    const REAL *restrict a = NAME(slopes_of)(p, row) + column;
    const REAL *restrict slope = a + p->slopes_stride;
    const REAL *restrict weighted = a + (NAME(num_parts)(p) - 1) * p->slopes_stride;
    REAL stage[LANES];
    const REAL *centre = wants_spread(p) ? NAME(centre_of)(p, row, column, width, stage) : NULL;
    if (wants_spread(p)) NAME(gather)(p, slot + first, count, column, width, b);
    if (wants(p, NORMALISED_MEAN)) NAME(gather_weights)(p, slot + first, count, b->weight);
    for (int k = 0; k < count; k++) {
        REAL *message = b->stage[k];
        if (wants_spread(p))
            for (int f = 0; f < NAME(whole_tiles)(width); f += STEP) {
                vec m = NAME(load)(b->row[k] + f), steep = NAME(load)(slope + f);
                if (centre) m -= (vec)((mask)NAME(load)(centre + f) & NAME(is_far)(steep));
                NAME(store)(message + f, NAME(load)(a + f) + steep * m);
            }
        else
            NAME(copy)(message, a, width);
        if (wants(p, NORMALISED_MEAN))
            for (int f = 0; f < width; f++) message[f] += b->weight[k] * weighted[f];
    }
    for (int which = 0; which < 2; which++) {
        if (!wants(p, MAX + which)) continue;
        const REAL *grad = NAME(row_of)(p, p->grad, row, MAX + which) + column;
        for (int f = 0; f < width; f++) {
            int64_t place = NAME(place_of)(p, row, degree, which, column + f) - first;
            if (place >= 0 && place < count) b->stage[place][f] += grad[f];
        }
    }
    for (int k = 0; k < count && p->product; k++) {
        const REAL *x = (const REAL *)p->x + NAME(at)(p->senders, slot + first + k) * p->x_stride;
        NAME(multiply)(b->stage[k], b->stage[k], x + column, width);
    }
}

/* The gradient of a dense edge term; each receiver has one owner. */
INLINE void NAME(to_edges)(const struct problem *p, const INDEX *edges, int count, int64_t column,
                           int width, const struct block *b)
{
    for (int k = 0; k < count; k++)
        NAME(copy)((REAL *)p->grad_edge + edges[k] * p->features + column, b->stage[k], width);
}

/* The gradient of a table, in double; each tile has one owner. */
INLINE void NAME(to_table)(const struct problem *p, const INDEX *edges, int count, int64_t column,
                           int width, const struct block *b)
{
    for (int k = 0; k < count; k++) {
        double *total = p->totals + NAME(at)(p->at, edges[k]) * p->features + column;
        for (int f = 0; f < width; f++) total[f] += b->stage[k][f];
    }
}

/* The gradient of a basis, in double; each tile has one owner. */
INLINE void NAME(to_basis)(const struct problem *p, const INDEX *edges, int count, int64_t column,
                           int width, const struct block *b)
{
    for (int64_t d = 0; d < p->edge_rows; d++) {
        double *total = p->totals + d * p->features + column;
        REAL factors[BLOCK], sum[WIDE];
        for (int k = 0; k < count; k++)
            factors[k] = ((const REAL *)p->at)[edges[k] * p->edge_rows + d];
        NAME(combine)(b->stage[0], WIDE, factors, count, width, sum);
        for (int f = 0; f < width; f++) total[f] += sum[f];
    }
}

/* The gradient of the coefficients; each receiver, with all its tiles, has one owner. */
INLINE void NAME(to_coefficients)(const struct problem *p, const INDEX *edges, int count,
                                  int64_t column, int width, const struct block *b)
{
    for (int64_t d = 0; d < p->edge_rows; d++) {
        const REAL *basis = (const REAL *)p->edge + d * p->edge_stride + column;
        for (int k = 0; k < count; k++) {
            REAL *grad = (REAL *)p->grad_at + edges[k] * p->edge_rows + d;
            REAL sum = column == 0 ? 0 : *grad;
            vec dot[TILE];
            int f = 0;
            for (int v = 0; v < TILE; v++) dot[v] = (vec){0};
            for (; f + LANES <= width; f += LANES)
                for (int v = 0; v < TILE; v++)
                    dot[v] += NAME(load)(basis + f + v * STEP) *
                              NAME(load)(b->stage[k] + f + v * STEP);
            for (; f < width; f++) sum += basis[f] * b->stage[k][f];
            for (int v = 1; v < TILE; v++) dot[0] += dot[v];
            for (int lane = 0; lane < STEP; lane++) sum += dot[0][lane];
            *grad = sum;
        }
    }
}

INLINE REAL NAME(sum_row)(const REAL *row, int64_t width)
{
    vec total[TILE];
    REAL sum = 0;
    int64_t f = 0;
    for (int v = 0; v < TILE; v++) total[v] = (vec){0};
    for (; f + LANES <= width; f += LANES)
        for (int v = 0; v < TILE; v++) total[v] += NAME(load)(row + f + v * STEP);
    for (; f < width; f++) sum += row[f];
    for (int v = 1; v < TILE; v++) total[0] += total[v];
    for (int lane = 0; lane < STEP; lane++) sum += total[0][lane];
    return sum;
}

/* The gradient of weights; each receiver, with all its tiles, has one owner. */
INLINE void NAME(to_weights)(const struct problem *p, const INDEX *edges, int count,
                             int64_t column, int width, const struct block *b)
{
    int64_t each = p->features / p->edge_rows; /* features with the same weight */
    for (int k = 0; k < count; k++) {
        REAL *grad = (REAL *)p->grad_at + edges[k] * p->edge_rows;
        for (int64_t f = column; f < column + width;) {
            int64_t end = least(column + width, (f / each + 1) * each);
            REAL before = f % each ? grad[f / each] : 0;
            grad[f / each] = before + NAME(sum_row)(b->stage[k] + f - column, end - f);
            f = end;
        }
    }
}

INLINE void NAME(edges_for)(const struct problem *p, int64_t row, int64_t end_row, int64_t tile,
                            int64_t end_tile, int to_coefficients)
{
    struct block b;
    int width;
    for (; row < end_row; row++) {
        int64_t slot = NAME(at)(p->indptr, row), degree = NAME(at)(p->indptr, row + 1) - slot;
        for (int64_t first = 0; first < degree; first += BLOCK) {
            int count = (int)least(BLOCK, degree - first);
            const INDEX *edges = (const INDEX *)p->edge_ids + slot + first;
            int64_t column = tile * LANES, end = NAME(end_column)(p, end_tile);
            for (; column < end; column += width) {
                width = NAME(width_at)(column, end);
                for (int k = 0; k < count && p->edge_form == DENSE; k++)
                    NAME(prefetch)((REAL *)p->grad_edge + edges[k] * p->features + column, width);
                NAME(differentiate)(p, row, first, count, column, width, &b);
                if (p->edge_form == WEIGHTS) NAME(to_weights)(p, edges, count, column, width, &b);
                else if (to_coefficients) NAME(to_coefficients)(p, edges, count, column, width, &b);
                else if (p->edge_form == DENSE) NAME(to_edges)(p, edges, count, column, width, &b);
                else if (p->edge_form == TABLE) NAME(to_table)(p, edges, count, column, width, &b);
                else NAME(to_basis)(p, edges, count, column, width, &b);
            }
        }
    }
}

static TARGET void NAME(edges)(const struct problem *p, int64_t row, int64_t end_row,
                               int64_t tile, int64_t end_tile)
{
    NAME(edges_for)(p, row, end_row, tile, end_tile, 0);
}

static TARGET void NAME(coefficients)(const struct problem *p, int64_t row, int64_t end_row,
                                      int64_t tile, int64_t end_tile)
{
    NAME(edges_for)(p, row, end_row, tile, end_tile, 1);
}

#undef LANES
#undef WIDE
#undef STEP
#undef GROUP
#undef TILE
#undef vec
#undef loose
#undef mask
#undef block
#undef so_far

#endif
