/* Neighbourhood statistics on the CPU: one pass over the neighbours, and its gradient.
 *
 * cpu.py calls pna_run with a kernel, a problem, a range of rows and a range of tiles. A tile is
 * as many features as fit a cache line: the neighbour loop runs inside it, with accumulators in
 * registers. What a row and tile get depends on nothing else, so results are the same however
 * the work is shared.
 *
 * The file includes itself: what is common comes first, then the kernels, once for each index
 * type, number type and vector width. Vectors are those of GCC and Clang, on any processor.
 */
#if !defined(INDEX)

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define LINE 64     /* bytes of a tile */
#define BLOCK 64    /* slots summed in the type of the features; blocks are merged in double */
#define AHEAD 24    /* slots between asking for a row and reading it */
#define SHORT 255   /* longest row whose places fit a byte, where 255 means none */
#define SAMPLE 1024 /* receivers that the centre is taken from */
#define ROW_COST 4  /* what a row costs beside its slots, in slots */

enum { MEAN, SUM, VAR, STD, MAX, MIN, NORMALISED_MEAN, KINDS }; /* as in pna.ops.statistics */
enum { NO_EDGE, DENSE, TABLE, COEFFICIENTS };
enum { SPREAD = 1, EXTREMA = 2, WEIGHTED = 4, EDGE = 8 }; /* what a loop is compiled for */

/* Field by field as in cpu.py. Arrays are contiguous unless a stride is given. */
struct problem {
    int64_t is_double, is_long_index;
    /* the graph, as in pna.Adjacency */
    int64_t num_receivers, num_senders, num_edges;
    const void *indptr, *senders, *long_rank, *edge_ids;
    const void *out_indptr, *receivers, *out_slots;
    /* the messages */
    int64_t features, x_stride;
    const void *x;
    int64_t edge_form, edge_stride, edge_rows; /* rows: of the table or basis */
    const void *edge, *at;
    const void *weight; /* (senders,) 1/sqrt of the out-degree, for the normalised mean */
    /* the request */
    int64_t num_kinds, place[KINDS], clamp;
    double epsilon;
    /* the results of the forward pass; mean may be one of out's, or absent */
    int64_t mean_stride;
    void *out, *mean;
    uint8_t *places;
    int32_t *long_places;
    /* the backward pass */
    const void *grad;
    void *centre; /* (tiles × lanes,) */
    void *slopes; /* (tiles, receivers, parts, lanes): see the kernel of that name */
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

#define INDEX int32_t
#include "cpu.c"
#undef INDEX
#define INDEX int64_t
#include "cpu.c"
#undef INDEX

#define KERNELS(real, index, width)                                                              \
    {forward_##real##_##index##_##width,  centre_##real##_##index##_##width,                     \
     slopes_##real##_##index##_##width,   senders_##real##_##index##_##width,                    \
     extrema_##real##_##index##_##width,  edge_rows_##real##_##index##_##width,                  \
     edge_totals_##real##_##index##_##width, coefficients_##real##_##index##_##width}
#define EVERY_TYPE(width)                                                                        \
    {{KERNELS(float, int32_t, width), KERNELS(float, int64_t, width)},                           \
     {KERNELS(double, int32_t, width), KERNELS(double, int64_t, width)}}

static kernel *const baseline[2][2][8] = EVERY_TYPE(16);
#if defined(__x86_64__)
static kernel *const avx2[2][2][8] = EVERY_TYPE(32);
#endif

void pna_run(int64_t which, const struct problem *p, int64_t row, int64_t end_row, int64_t tile,
             int64_t end_tile)
{
    kernel *const(*kernels)[2][8] = baseline;
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) kernels = avx2;
#endif
    kernels[p->is_double != 0][p->is_long_index != 0][which](p, row, end_row, tile, end_tile);
}

/* What cpu.py must find, or the library was built from another version of this file. */
int64_t pna_problem_size(void) { return sizeof(struct problem); }

static int64_t work_before(const void *indptr, int is_long_index, int64_t row)
{
    int64_t slots = is_long_index ? ((const int64_t *)indptr)[row] : ((const int32_t *)indptr)[row];
    return slots + ROW_COST * row;
}

/* Cut rows in pieces of about equal work: piece k is rows bounds[k] to bounds[k+1]. */
void pna_split(const void *indptr, int64_t is_long_index, int64_t rows, int64_t pieces,
               int64_t *bounds)
{
    int64_t all = work_before(indptr, (int)is_long_index, rows);
    bounds[0] = 0;
    for (int64_t piece = 1; piece <= pieces; piece++) {
        int64_t low = bounds[piece - 1], high = rows;
        int64_t target = (int64_t)((double)all * (double)piece / (double)pieces);
        while (low < high) {
            int64_t middle = low + (high - low) / 2;
            if (work_before(indptr, (int)is_long_index, middle) < target) low = middle + 1;
            else high = middle;
        }
        bounds[piece] = piece == pieces ? rows : low;
    }
}

#elif !defined(REAL)

#define REAL float
#define WHOLE int32_t
#define ROOT sqrtf
#include "cpu.c"
#undef REAL
#undef WHOLE
#undef ROOT
#define REAL double
#define WHOLE int64_t
#define ROOT sqrt
#include "cpu.c"
#undef REAL
#undef WHOLE
#undef ROOT

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

#define LANES ((int)(LINE / sizeof(REAL))) /* features of a tile */
#define VECTORS (LINE / WIDTH)             /* vectors of a tile */
#define STEP (LANES / VECTORS)             /* features of a vector */
#define GROUP (VECTORS / 2)                /* vectors whose statistics fit the registers */

#define vec NAME(vec)
#define loose NAME(loose)
#define mask NAME(mask)
#define block NAME(block)
#define so_far NAME(so_far)

typedef REAL vec __attribute__((vector_size(WIDTH)));
typedef REAL loose __attribute__((vector_size(WIDTH), aligned(sizeof(REAL)), may_alias));
typedef WHOLE mask __attribute__((vector_size(WIDTH)));

/* Some slots of one receiver, and what is known of them after each step. */
struct block {
    const REAL *row[BLOCK]; /* their messages in this tile */
    REAL weight[BLOCK];
    REAL total[LANES], mean[LANES], spread[LANES], weighted[LANES];
    REAL top[LANES], low[LANES];
    WHOLE top_at[LANES], low_at[LANES];
    REAL stage[BLOCK][LANES]; /* where messages are made that lie nowhere as they are */
};

/* What is known of the blocks before, in a row that has several. */
struct so_far {
    double total[LANES], mean[LANES], spread[LANES], weighted[LANES];
};

INLINE vec NAME(load)(const REAL *from) { return *(const loose *)from; }

INLINE void NAME(store)(REAL *to, vec value) { *(loose *)to = value; }

INLINE mask NAME(where)(mask condition, mask yes, mask no)
{
    return (condition & yes) | (~condition & no);
}

INLINE void NAME(copy)(REAL *to, const REAL *from, int width)
{
    if (width == LANES) memcpy(to, from, LINE);
    else memcpy(to, from, (size_t)width * sizeof(REAL));
}

INLINE INDEX NAME(at)(const void *array, int64_t place) { return ((const INDEX *)array)[place]; }

INLINE int NAME(width_of)(const struct problem *p, int64_t column)
{
    return (int)least(LANES, p->features - column);
}

/* e of one edge, for `width` features. */
OUTLINE void NAME(edge_term)(const struct problem *p, int64_t edge, int64_t column, int width,
                             REAL *restrict term)
{
    const REAL *values = (const REAL *)p->edge + column;
    if (p->edge_form == DENSE) values += edge * p->edge_stride;
    if (p->edge_form == TABLE) values += NAME(at)(p->at, edge) * p->edge_stride;
    if (p->edge_form != COEFFICIENTS) {
        NAME(copy)(term, values, width);
        return;
    }
    const REAL *coefficients = (const REAL *)p->at + edge * p->edge_rows;
    memset(term, 0, LINE);
    for (int64_t k = 0; k < p->edge_rows; k++, values += p->edge_stride) {
        if (width == LANES)
            for (int f = 0; f < LANES; f++) term[f] += coefficients[k] * values[f];
        else
            for (int f = 0; f < width; f++) term[f] += coefficients[k] * values[f];
    }
}

/* Make the messages of `count` slots, with zeros after the last feature. */
OUTLINE void NAME(make_messages)(const struct problem *p, int64_t slot, int count, int64_t column,
                                 struct block *b)
{
    int width = NAME(width_of)(p, column);
    REAL term[LANES] = {0};
    for (int k = 0; k < count; k++) {
        int64_t sender = NAME(at)(p->senders, slot + k);
        REAL *restrict message = b->stage[k];
        for (int f = width; f < LANES; f++) message[f] = 0;
        NAME(copy)(message, (const REAL *)p->x + sender * p->x_stride + column, width);
        if (p->edge_form != NO_EDGE) {
            NAME(edge_term)(p, NAME(at)(p->edge_ids, slot + k), column, width, term);
            for (int f = 0; f < LANES; f++) message[f] += term[f];
        }
        b->row[k] = message;
    }
}

/* Point a block at the messages of `count` slots: rows of x, or made from them. */
INLINE void NAME(gather)(const struct problem *p, int64_t slot, int count, int64_t column,
                         struct block *b)
{
    const REAL *x = (const REAL *)p->x + column;
    int64_t last = p->num_edges - 1;
    for (int k = 0; k < count; k++) {
        int64_t later = least(slot + k + AHEAD, last);
        __builtin_prefetch(x + NAME(at)(p->senders, later) * p->x_stride);
        b->row[k] = x + NAME(at)(p->senders, slot + k) * p->x_stride;
    }
    if (p->edge_form != NO_EDGE || NAME(width_of)(p, column) < LANES)
        NAME(make_messages)(p, slot, count, column, b);
}

INLINE void NAME(gather_weights)(const struct problem *p, int64_t slot, int count, REAL *weight)
{
    for (int k = 0; k < count; k++)
        weight[k] = ((const REAL *)p->weight)[NAME(at)(p->senders, slot + k)];
}

/* What remains true of a block where a message is not finite, or a square overflows. */
OUTLINE void NAME(summarise_odd)(struct block *b, int count)
{
    for (int f = 0; f < LANES; f++) {
        REAL total = 0, spread = 0;
        int none = 0;
        for (int k = 0; k < count; k++) {
            total += b->row[k][f];
            none |= b->row[k][f] != b->row[k][f];
        }
        REAL mean = total / (REAL)count;
        for (int k = 0; k < count; k++)
            spread += (b->row[k][f] - mean) * (b->row[k][f] - mean);
        b->total[f] = total, b->mean[f] = mean, b->spread[f] = spread;
        if (none) b->top[f] = b->low[f] = total, b->top_at[f] = b->low_at[f] = -1;
    }
}

/* Total, mean and squared deviations of a block, and the extrema from the start of the row on.
 * Deviations are from the first message, then moved to the mean: no cancellation worse than the
 * length of the block, and none at all where the messages are equal. */
INLINE void NAME(summarise)(struct block *b, int count, int64_t first, int flags)
{
    REAL one_nth = 1 / (REAL)count;
    mask odd = {0};
    for (int lane = 0; lane < LANES; lane += GROUP * STEP) {
        vec shift[GROUP], total[GROUP], spread[GROUP], weighted[GROUP], top[GROUP], low[GROUP];
        mask top_at[GROUP], low_at[GROUP];
        for (int g = 0; g < GROUP; g++) {
            int at = lane + g * STEP;
            shift[g] = NAME(load)(b->row[0] + at);
            total[g] = spread[g] = weighted[g] = (vec){0};
            top[g] = low[g] = shift[g];
            top_at[g] = low_at[g] = (mask){0};
            if (first == 0) continue;
            top[g] = NAME(load)(b->top + at), low[g] = NAME(load)(b->low + at);
            memcpy(&top_at[g], b->top_at + at, WIDTH);
            memcpy(&low_at[g], b->low_at + at, WIDTH);
        }
        for (int k = 0; k < count; k++) {
            const REAL *row = b->row[k] + lane;
            mask place = (mask){0} + (WHOLE)(first + k);
            for (int g = 0; g < GROUP; g++) {
                vec m = NAME(load)(row + g * STEP);
                vec deviation = flags & SPREAD ? m - shift[g] : m;
                total[g] += deviation;
                if (flags & SPREAD) spread[g] += deviation * deviation;
                if (flags & WEIGHTED) weighted[g] += b->weight[k] * m;
                if (flags & EXTREMA) {
                    mask above = m > top[g], below = m < low[g];
                    top[g] = (vec)NAME(where)(above, (mask)m, (mask)top[g]);
                    low[g] = (vec)NAME(where)(below, (mask)m, (mask)low[g]);
                    top_at[g] = NAME(where)(above, place, top_at[g]);
                    low_at[g] = NAME(where)(below, place, low_at[g]);
                }
            }
        }
        for (int g = 0; g < GROUP; g++) {
            int at = lane + g * STEP;
            vec mean = total[g] * one_nth, check = flags & SPREAD ? spread[g] : total[g];
            odd |= check - check != 0;
            if (flags & SPREAD) {
                spread[g] -= total[g] * mean;
                spread[g] = (vec)((mask)spread[g] & (spread[g] > 0));
                mean += shift[g];
                total[g] += (REAL)count * shift[g];
                NAME(store)(b->spread + at, spread[g]);
            }
            NAME(store)(b->total + at, total[g]);
            NAME(store)(b->mean + at, mean);
            if (flags & WEIGHTED) NAME(store)(b->weighted + at, weighted[g]);
            if (flags & EXTREMA) {
                NAME(store)(b->top + at, top[g]);
                NAME(store)(b->low + at, low[g]);
                memcpy(b->top_at + at, &top_at[g], WIDTH);
                memcpy(b->low_at + at, &low_at[g], WIDTH);
            }
        }
    }
    WHOLE any = 0;
    for (int lane = 0; lane < STEP; lane++) any |= odd[lane];
    if (any) NAME(summarise_odd)(b, count);
}

/* Join a block to those before it, by the formula of Chan et al. */
OUTLINE void NAME(merge)(const struct block *b, int count, int64_t before, struct so_far *all)
{
    double share = (double)count / (double)(before + count);
    for (int f = 0; f < LANES; f++) {
        double apart = b->mean[f] - all->mean[f];
        all->total[f] += b->total[f];
        all->weighted[f] += b->weighted[f];
        all->spread[f] += b->spread[f] + apart * apart * (double)before * share;
        all->mean[f] += apart * share;
    }
}

OUTLINE void NAME(take_merged)(struct block *b, int64_t degree, const struct so_far *all)
{
    for (int f = 0; f < LANES; f++) {
        b->total[f] = (REAL)all->total[f];
        b->mean[f] = (REAL)(all->total[f] / (double)degree);
        b->spread[f] = (REAL)all->spread[f];
        b->weighted[f] = (REAL)all->weighted[f];
    }
}

/* Write what a block knows of a whole row. */
OUTLINE void NAME(finish)(const struct problem *p, int64_t row, int64_t degree, int64_t column,
                          struct block *b, int flags)
{
    int width = NAME(width_of)(p, column);
    REAL *out = (REAL *)p->out + row * p->num_kinds * p->features + column;
    REAL one_dth = 1 / (REAL)degree, epsilon = (REAL)p->epsilon, deviation[LANES];
    if (wants(p, MEAN)) NAME(copy)(out + p->place[MEAN] * p->features, b->mean, width);
    if (wants(p, SUM)) NAME(copy)(out + p->place[SUM] * p->features, b->total, width);
    if (flags & SPREAD) {
        for (int f = 0; f < LANES; f++) b->spread[f] *= one_dth;
        if (p->clamp)
            for (int f = 0; f < LANES; f++)
                deviation[f] = b->spread[f] > epsilon ? ROOT(b->spread[f]) : b->spread[f] * 0;
        else
            for (int f = 0; f < LANES; f++) deviation[f] = ROOT(b->spread[f] + epsilon);
        if (wants(p, VAR)) NAME(copy)(out + p->place[VAR] * p->features, b->spread, width);
        if (wants(p, STD)) NAME(copy)(out + p->place[STD] * p->features, deviation, width);
        if (p->mean)
            NAME(copy)((REAL *)p->mean + row * p->mean_stride + column, b->mean, width);
    }
    if (flags & WEIGHTED) {
        REAL share = ROOT(one_dth);
        for (int f = 0; f < LANES; f++) b->weighted[f] *= share;
        NAME(copy)(out + p->place[NORMALISED_MEAN] * p->features, b->weighted, width);
    }
    if (flags & EXTREMA) {
        uint8_t *places = p->places + 2 * row * p->features + column, bytes[2][LANES];
        if (wants(p, MAX)) NAME(copy)(out + p->place[MAX] * p->features, b->top, width);
        if (wants(p, MIN)) NAME(copy)(out + p->place[MIN] * p->features, b->low, width);
        for (int f = 0; f < LANES; f++) {
            bytes[0][f] = (uint8_t)b->top_at[f];
            bytes[1][f] = (uint8_t)b->low_at[f];
        }
        memcpy(places, bytes[0], (size_t)width);
        memcpy(places + p->features, bytes[1], (size_t)width);
        if (degree <= SHORT) return;
        int64_t rank = NAME(at)(p->long_rank, row);
        int32_t *long_places = p->long_places + 2 * rank * p->features + column;
        for (int f = 0; f < width; f++) {
            long_places[f] = (int32_t)b->top_at[f];
            long_places[p->features + f] = (int32_t)b->low_at[f];
        }
    }
}

/* What a receiver gets that nothing reaches. */
OUTLINE void NAME(finish_empty)(const struct problem *p, int64_t row, int64_t column)
{
    size_t width = (size_t)NAME(width_of)(p, column);
    REAL *out = (REAL *)p->out + row * p->num_kinds * p->features + column;
    for (int64_t k = 0; k < p->num_kinds; k++)
        memset(out + k * p->features, 0, width * sizeof(REAL));
    if (p->mean)
        memset((REAL *)p->mean + row * p->mean_stride + column, 0, width * sizeof(REAL));
    if (wants_extrema(p)) {
        uint8_t *places = p->places + 2 * row * p->features + column;
        memset(places, SHORT, width);
        memset(places + p->features, SHORT, width);
    }
}

INLINE void NAME(forward_for)(const struct problem *p, int64_t row, int64_t end_row, int64_t tile,
                              int64_t end_tile, int flags)
{
    struct block b = {.weight = {0}};
    for (; row < end_row; row++) {
        int64_t slot = NAME(at)(p->indptr, row), degree = NAME(at)(p->indptr, row + 1) - slot;
        for (int64_t t = tile; t < end_tile; t++) {
            int64_t column = t * LANES;
            /* the last tile reaches back over the one before it where it would not be full */
            if (p->features >= LANES) column = least(column, p->features - LANES);
            if (degree == 0) {
                NAME(finish_empty)(p, row, column);
                continue;
            }
            struct so_far all;
            if (degree > BLOCK) memset(&all, 0, sizeof all);
            for (int64_t first = 0; first < degree; first += BLOCK) {
                int count = (int)least(BLOCK, degree - first);
                NAME(gather)(p, slot + first, count, column, &b);
                if (flags & WEIGHTED) NAME(gather_weights)(p, slot + first, count, b.weight);
                NAME(summarise)(&b, count, first, flags);
                if (degree > BLOCK) NAME(merge)(&b, count, first, &all);
            }
            if (degree > BLOCK) NAME(take_merged)(&b, degree, &all);
            NAME(finish)(p, row, degree, column, &b, flags);
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

/* The gradient of a message m of a receiver i from a sender j is, but for max and min,
 *     A_i + B_i (m - c) + C_i / sqrt(d_j),      c the centre, one number a feature,
 *     B_i = (2 g_var + g_std / std_i) / d_i
 *     A_i = g_mean / d_i + g_sum - B_i (mean_i - c)
 *     C_i = g_normalised_mean / sqrt(d_i)
 * so a sender needs the sums of rows A, B, C over its receivers. A centre amid the means keeps
 * the two terms with B small where features are far from 0. */
static TARGET void NAME(centre)(const struct problem *p, int64_t row, int64_t end_row,
                                int64_t tile, int64_t end_tile)
{
    int64_t step = (end_row - row + SAMPLE - 1) / SAMPLE;
    for (int64_t column = tile * LANES; column < end_tile * LANES; column += LANES) {
        int width = NAME(width_of)(p, column);
        double total[LANES] = {0}, count[LANES] = {0};
        for (int64_t i = row; i < end_row; i += step) {
            if (NAME(at)(p->indptr, i) == NAME(at)(p->indptr, i + 1)) continue;
            const REAL *mean = (const REAL *)p->mean + i * p->mean_stride + column;
            for (int f = 0; f < width; f++) {
                if (mean[f] - mean[f] != 0) continue;
                total[f] += mean[f];
                count[f] += 1;
            }
        }
        for (int f = 0; f < LANES; f++)
            ((REAL *)p->centre)[column + f] = count[f] > 0 ? (REAL)(total[f] / count[f]) : 0;
    }
}

INLINE int64_t NAME(num_parts)(const struct problem *p)
{
    return 1 + wants_spread(p) + wants(p, NORMALISED_MEAN);
}

INLINE REAL *NAME(slopes_of)(const struct problem *p, int64_t row, int64_t tile)
{
    return (REAL *)p->slopes + (tile * p->num_receivers + row) * NAME(num_parts)(p) * LANES;
}

/* The rows A, B (with var or std) and C (with normalised_mean) of every receiver. */
static TARGET void NAME(slopes)(const struct problem *p, int64_t row, int64_t end_row,
                                int64_t tile, int64_t end_tile)
{
    int64_t F = p->features;
    for (; row < end_row; row++) {
        int64_t degree = NAME(at)(p->indptr, row + 1) - NAME(at)(p->indptr, row);
        if (degree == 0) continue;
        REAL one_dth = 1 / (REAL)degree;
        for (int64_t t = tile; t < end_tile; t++) {
            int64_t column = t * LANES, from = row * p->num_kinds * F + column;
            int width = NAME(width_of)(p, column);
            const REAL *grad = (const REAL *)p->grad + from, *out = (const REAL *)p->out + from;
            const REAL *centre = (const REAL *)p->centre + column;
            REAL *restrict part = NAME(slopes_of)(p, row, t), *restrict a = part;
            memset(part, 0, (size_t)NAME(num_parts)(p) * LINE);
            if (wants(p, MEAN))
                for (int f = 0; f < width; f++) a[f] = grad[p->place[MEAN] * F + f] * one_dth;
            if (wants(p, SUM))
                for (int f = 0; f < width; f++) a[f] += grad[p->place[SUM] * F + f];
            part += LANES;
            if (wants_spread(p)) {
                const REAL *mean = (const REAL *)p->mean + row * p->mean_stride + column;
                REAL *restrict b = part;
                if (wants(p, VAR))
                    for (int f = 0; f < width; f++)
                        b[f] = 2 * grad[p->place[VAR] * F + f] * one_dth;
                if (wants(p, STD))
                    for (int f = 0; f < width; f++) {
                        REAL std = out[p->place[STD] * F + f];
                        REAL slope = grad[p->place[STD] * F + f] * one_dth / std;
                        b[f] += std == 0 ? 0 : slope;
                    }
                for (int f = 0; f < width; f++) a[f] -= b[f] * (mean[f] - centre[f]);
                part += LANES;
            }
            if (wants(p, NORMALISED_MEAN))
                for (int f = 0; f < width; f++)
                    part[f] = grad[p->place[NORMALISED_MEAN] * F + f] * ROOT(one_dth);
        }
    }
}

/* Sums over a block of receivers of A, B and C, one after the other; with an edge term, which
 * every message has its own of, the first is the sum of A + B (m - c) and the second nothing. */
INLINE void NAME(add_slopes)(const struct problem *p, int64_t place, int count, int64_t tile,
                             const REAL *base, REAL *sums, int flags)
{
    vec linear[VECTORS], slope[VECTORS], weighted[VECTORS];
    const INDEX *receivers = (const INDEX *)p->receivers;
    int64_t parts = NAME(num_parts)(p), column = tile * LANES, last = p->num_edges - 1;
    const REAL *slopes = NAME(slopes_of)(p, 0, tile);
    REAL term[LANES] = {0};
    for (int v = 0; v < VECTORS; v++) linear[v] = slope[v] = weighted[v] = (vec){0};
    for (int k = 0; k < count; k++) {
        const REAL *part = slopes + receivers[place + k] * parts * LANES;
        const REAL *later = slopes + receivers[least(place + k + AHEAD, last)] * parts * LANES;
        __builtin_prefetch(later);
        if (flags & SPREAD) __builtin_prefetch(later + LANES);
        if (flags & EDGE) {
            int64_t edge = NAME(at)(p->edge_ids, NAME(at)(p->out_slots, place + k));
            NAME(edge_term)(p, edge, column, NAME(width_of)(p, column), term);
        }
        for (int v = 0; v < VECTORS; v++) {
            vec b = flags & SPREAD ? NAME(load)(part + LANES + v * STEP) : (vec){0};
            linear[v] += NAME(load)(part + v * STEP);
            if (flags & EDGE)
                linear[v] += b * (NAME(load)(base + v * STEP) + NAME(load)(term + v * STEP));
            else slope[v] += b;
            if (flags & WEIGHTED) weighted[v] += NAME(load)(part + (parts - 1) * LANES + v * STEP);
        }
    }
    for (int v = 0; v < VECTORS; v++) {
        NAME(store)(sums + v * STEP, linear[v]);
        NAME(store)(sums + LANES + v * STEP, slope[v]);
        NAME(store)(sums + 2 * LANES + v * STEP, weighted[v]);
    }
}

INLINE void NAME(senders_for)(const struct problem *p, int64_t row, int64_t end_row, int64_t tile,
                              int64_t end_tile, int flags)
{
    for (; row < end_row; row++) {
        int64_t place = NAME(at)(p->out_indptr, row), end = NAME(at)(p->out_indptr, row + 1);
        for (int64_t t = tile; t < end_tile; t++) {
            int64_t column = t * LANES;
            int width = NAME(width_of)(p, column);
            REAL base[LANES] = {0}, sums[3 * LANES] = {0};
            double all[3 * LANES];
            if (flags & SPREAD) {
                const REAL *x = (const REAL *)p->x + row * p->x_stride + column;
                const REAL *centre = (const REAL *)p->centre + column;
                NAME(copy)(base, x, width);
                for (int f = 0; f < LANES; f++) base[f] -= centre[f];
            }
            if (end - place > BLOCK) memset(all, 0, sizeof all);
            for (int64_t from = place; from < end; from += BLOCK) {
                NAME(add_slopes)(p, from, (int)least(BLOCK, end - from), t, base, sums, flags);
                if (end - place > BLOCK)
                    for (int f = 0; f < 3 * LANES; f++) all[f] += sums[f];
            }
            if (end - place > BLOCK)
                for (int f = 0; f < 3 * LANES; f++) sums[f] = (REAL)all[f];
            if (flags & SPREAD && !(flags & EDGE) && end > place)
                for (int f = 0; f < LANES; f++) sums[f] += base[f] * sums[LANES + f];
            if (flags & WEIGHTED)
                for (int f = 0; f < LANES; f++)
                    sums[f] += ((const REAL *)p->weight)[row] * sums[2 * LANES + f];
            NAME(copy)((REAL *)p->grad_x + row * p->features + column, sums, width);
        }
    }
}

/* The gradient of x but for max and min: one owner for each sender. */
static TARGET void NAME(senders)(const struct problem *p, int64_t row, int64_t end_row,
                                 int64_t tile, int64_t end_tile)
{
    int spread = wants_spread(p), edge = spread && p->edge_form != NO_EDGE;
    switch (SPREAD * spread | WEIGHTED * wants(p, NORMALISED_MEAN) | EDGE * edge) {
    case 0: NAME(senders_for)(p, row, end_row, tile, end_tile, 0); break;
    case SPREAD: NAME(senders_for)(p, row, end_row, tile, end_tile, SPREAD); break;
    case WEIGHTED: NAME(senders_for)(p, row, end_row, tile, end_tile, WEIGHTED); break;
    case SPREAD | WEIGHTED:
        NAME(senders_for)(p, row, end_row, tile, end_tile, SPREAD | WEIGHTED);
        break;
    case SPREAD | EDGE:
        NAME(senders_for)(p, row, end_row, tile, end_tile, SPREAD | EDGE);
        break;
    case SPREAD | WEIGHTED | EDGE:
        NAME(senders_for)(p, row, end_row, tile, end_tile, SPREAD | WEIGHTED | EDGE);
        break;
    }
}

/* Where in its row the maximum (which = 0) or minimum (1) of a receiver stands, or -1. */
INLINE int64_t NAME(place_of)(const struct problem *p, int64_t row, int64_t degree, int which,
                              int64_t feature)
{
    if (degree <= SHORT) {
        int place = p->places[(2 * row + which) * p->features + feature];
        return place == SHORT ? -1 : place;
    }
    return p->long_places[(2 * NAME(at)(p->long_rank, row) + which) * p->features + feature];
}

INLINE const REAL *NAME(grad_of)(const struct problem *p, int64_t row, int kind)
{
    return (const REAL *)p->grad + (row * p->num_kinds + p->place[kind]) * p->features;
}

/* Add the gradients of max and min to that of x, receiver by receiver: one owner a tile. */
static TARGET void NAME(extrema)(const struct problem *p, int64_t row, int64_t end_row,
                                 int64_t tile, int64_t end_tile)
{
    int64_t F = p->features, last = p->num_edges - 1;
    for (; row < end_row; row++) {
        int64_t slot = NAME(at)(p->indptr, row), degree = NAME(at)(p->indptr, row + 1) - slot;
        if (degree == 0) continue;
        const INDEX *senders = (const INDEX *)p->senders + slot;
        int64_t column = tile * LANES, end = least(end_tile * LANES, F);
        for (int64_t k = slot + AHEAD; k < least(slot + AHEAD + degree, last); k++)
            for (int64_t f = column; f < end; f += LANES)
                __builtin_prefetch((REAL *)p->grad_x + NAME(at)(p->senders, k) * F + f, 1);
        for (int which = 0; which < 2; which++) {
            if (!wants(p, MAX + which)) continue;
            const REAL *grad = NAME(grad_of)(p, row, MAX + which);
            for (int64_t f = column; f < end; f++) {
                int64_t place = NAME(place_of)(p, row, degree, which, f);
                if (place >= 0) ((REAL *)p->grad_x)[senders[place] * F + f] += grad[f];
            }
        }
    }
}

/* The gradient of some messages of a receiver, in b->stage. */
INLINE void NAME(differentiate)(const struct problem *p, int64_t row, int64_t first, int count,
                                int64_t tile, struct block *b)
{
    int64_t slot = NAME(at)(p->indptr, row), degree = NAME(at)(p->indptr, row + 1) - slot;
    int64_t column = tile * LANES;
    int width = NAME(width_of)(p, column);
    const REAL *part = NAME(slopes_of)(p, row, tile), *centre = (const REAL *)p->centre + column;
    const REAL *weighted = part + (NAME(num_parts)(p) - 1) * LANES;
    if (wants_spread(p)) {
        NAME(gather)(p, slot + first, count, column, b);
        for (int k = 0; k < count; k++)
            for (int f = 0; f < LANES; f++)
                b->stage[k][f] = part[f] + part[LANES + f] * (b->row[k][f] - centre[f]);
    } else {
        for (int k = 0; k < count; k++) memcpy(b->stage[k], part, LINE);
    }
    if (wants(p, NORMALISED_MEAN)) {
        NAME(gather_weights)(p, slot + first, count, b->weight);
        for (int k = 0; k < count; k++)
            for (int f = 0; f < LANES; f++) b->stage[k][f] += b->weight[k] * weighted[f];
    }
    for (int which = 0; which < 2; which++) {
        if (!wants(p, MAX + which)) continue;
        const REAL *grad = NAME(grad_of)(p, row, MAX + which) + column;
        for (int f = 0; f < width; f++) {
            int64_t place = NAME(place_of)(p, row, degree, which, column + f) - first;
            if (place >= 0 && place < count) b->stage[place][f] += grad[f];
        }
    }
}

/* The gradient of an edge term given for every edge. */
static TARGET void NAME(edge_rows)(const struct problem *p, int64_t row, int64_t end_row,
                                   int64_t tile, int64_t end_tile)
{
    struct block b;
    for (; row < end_row; row++) {
        int64_t slot = NAME(at)(p->indptr, row), degree = NAME(at)(p->indptr, row + 1) - slot;
        for (int64_t first = 0; first < degree; first += BLOCK) {
            int count = (int)least(BLOCK, degree - first);
            for (int64_t t = tile; t < end_tile; t++) {
                int width = NAME(width_of)(p, t * LANES);
                REAL *grad = (REAL *)p->grad_edge + t * LANES;
                NAME(differentiate)(p, row, first, count, t, &b);
                for (int k = 0; k < count; k++) {
                    int64_t edge = NAME(at)(p->edge_ids, slot + first + k);
                    NAME(copy)(grad + edge * p->features, b.stage[k], width);
                }
            }
        }
    }
}

/* The gradient of a table or basis, in double: one owner a tile. */
static TARGET void NAME(edge_totals)(const struct problem *p, int64_t row, int64_t end_row,
                                     int64_t tile, int64_t end_tile)
{
    struct block b;
    for (; row < end_row; row++) {
        int64_t slot = NAME(at)(p->indptr, row), degree = NAME(at)(p->indptr, row + 1) - slot;
        for (int64_t first = 0; first < degree; first += BLOCK) {
            int count = (int)least(BLOCK, degree - first);
            for (int64_t t = tile; t < end_tile; t++) {
                int width = NAME(width_of)(p, t * LANES);
                double *totals = p->totals + t * LANES;
                NAME(differentiate)(p, row, first, count, t, &b);
                if (p->edge_form == TABLE) {
                    for (int k = 0; k < count; k++) {
                        int64_t edge = NAME(at)(p->edge_ids, slot + first + k);
                        double *total = totals + NAME(at)(p->at, edge) * p->features;
                        for (int f = 0; f < width; f++) total[f] += b.stage[k][f];
                    }
                    continue;
                }
                for (int64_t d = 0; d < p->edge_rows; d++) {
                    REAL sum[LANES] = {0};
                    for (int k = 0; k < count; k++) {
                        int64_t edge = NAME(at)(p->edge_ids, slot + first + k);
                        REAL coefficient = ((const REAL *)p->at)[edge * p->edge_rows + d];
                        for (int f = 0; f < LANES; f++) sum[f] += coefficient * b.stage[k][f];
                    }
                    for (int f = 0; f < width; f++) totals[d * p->features + f] += sum[f];
                }
            }
        }
    }
}

/* The gradient of the coefficients: one owner for each receiver. */
static TARGET void NAME(coefficients)(const struct problem *p, int64_t row, int64_t end_row,
                                      int64_t tile, int64_t end_tile)
{
    struct block b;
    for (; row < end_row; row++) {
        int64_t slot = NAME(at)(p->indptr, row), degree = NAME(at)(p->indptr, row + 1) - slot;
        for (int64_t first = 0; first < degree; first += BLOCK) {
            int count = (int)least(BLOCK, degree - first);
            for (int64_t t = tile; t < end_tile; t++) {
                int width = NAME(width_of)(p, t * LANES);
                NAME(differentiate)(p, row, first, count, t, &b);
                for (int64_t d = 0; d < p->edge_rows; d++) {
                    REAL basis[LANES] = {0};
                    const REAL *values = (const REAL *)p->edge + d * p->edge_stride + t * LANES;
                    NAME(copy)(basis, values, width);
                    for (int k = 0; k < count; k++) {
                        int64_t edge = NAME(at)(p->edge_ids, slot + first + k);
                        REAL *grad = (REAL *)p->grad_at + edge * p->edge_rows + d;
                        vec dot = {0};
                        for (int v = 0; v < VECTORS; v++)
                            dot += NAME(load)(basis + v * STEP) *
                                   NAME(load)(b.stage[k] + v * STEP);
                        REAL sum = t == 0 ? 0 : *grad;
                        for (int lane = 0; lane < STEP; lane++) sum += dot[lane];
                        *grad = sum;
                    }
                }
            }
        }
    }
}

#undef LANES
#undef VECTORS
#undef STEP
#undef GROUP
#undef vec
#undef loose
#undef mask
#undef block
#undef so_far

#endif
