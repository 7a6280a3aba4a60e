/* An Adjacency from an edge_index on the CPU: three counting sorts instead of sorts by comparison.
 *
 * native.py calls pna_count, allocates the arrays of long rows, and calls pna_fill. Both take the
 * same struct. Indices are checked before anything is written.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define WINDOW_BITS 12 /* rows are ordered by length within windows of 2^12 rows */

/* One direction: rows, their slots, and the rows that are cut into segments. */
struct rows {
    int32_t *indptr, *neighbours, *long_rows, *long_rank, *long_indptr, *segment_owner, *order;
};

struct build {
    int64_t num_edges, num_senders, num_receivers;
    int64_t segment;                    /* slots of a segment; longer rows are cut */
    const int64_t *senders, *receivers; /* of every edge, in the given order */
    struct rows incoming, outgoing;
    int32_t *edge_ids, *out_ranks, *by_degree, *degree;
    int64_t is_bad;       /* out: whether an index is out of range */
    int64_t longs[2];     /* out: long rows of incoming and outgoing */
    int64_t segments[2];  /* out: their segments */
};

static int64_t is_bad(const int64_t *index, int64_t edges, int64_t size)
{
    int64_t bad = 0;
    for (int64_t e = 0; e < edges; e++) bad |= (uint64_t)index[e] >= (uint64_t)size;
    return bad;
}

/* indptr of the rows that the edges belong to; counts long rows and their segments. */
static void count_rows(struct build *p, const int64_t *row_of, int64_t rows, int32_t *indptr,
                       int64_t *longs, int64_t *segments)
{
    memset(indptr, 0, (rows + 1) * sizeof *indptr);
    for (int64_t e = 0; e < p->num_edges; e++) indptr[row_of[e] + 1]++;
    *longs = *segments = 0;
    for (int64_t r = 0; r < rows; r++) {
        int32_t length = indptr[r + 1];
        if (length > p->segment) {
            ++*longs;
            *segments += (length + p->segment - 1) / p->segment;
        }
        indptr[r + 1] += indptr[r];
    }
}

void pna_count(struct build *p)
{
    p->is_bad = is_bad(p->senders, p->num_edges, p->num_senders) |
                is_bad(p->receivers, p->num_edges, p->num_receivers);
    if (p->is_bad) return;
    count_rows(p, p->receivers, p->num_receivers, p->incoming.indptr, &p->longs[0],
               &p->segments[0]);
    count_rows(p, p->senders, p->num_senders, p->outgoing.indptr, &p->longs[1], &p->segments[1]);
}

/* Rows sorted by length, at most `most`, in a stable order. */
static void sort_by_length(const int32_t *indptr, int64_t first, int64_t end, int32_t most,
                           int32_t *starts, int32_t *order)
{
    memset(starts, 0, (most + 2) * sizeof *starts);
    for (int64_t r = first; r < end; r++) {
        int32_t length = indptr[r + 1] - indptr[r];
        starts[(length < most ? length : most) + 1]++;
    }
    for (int32_t length = 0; length < most; length++) starts[length + 1] += starts[length];
    for (int64_t r = first; r < end; r++) {
        int32_t length = indptr[r + 1] - indptr[r];
        order[first + starts[length < most ? length : most]++] = (int32_t)r;
    }
}

static void cut_rows(const struct rows *rows, int64_t count, int32_t segment, int32_t *starts)
{
    int32_t longs = 0, segments = 0;
    rows->long_indptr[0] = 0;
    for (int64_t r = 0; r < count; r++) {
        int32_t length = rows->indptr[r + 1] - rows->indptr[r];
        rows->long_rank[r] = length > segment ? longs : -1;
        if (length <= segment) continue;
        rows->long_rows[longs] = (int32_t)r;
        for (int32_t done = 0; done < length; done += segment)
            rows->segment_owner[segments++] = longs;
        rows->long_indptr[++longs] = segments;
    }
    for (int64_t first = 0; first < count; first += 1 << WINDOW_BITS) {
        int64_t end = first + (1 << WINDOW_BITS);
        sort_by_length(rows->indptr, first, end < count ? end : count, segment + 1, starts,
                       rows->order);
    }
}

/* Returns 0, or 1 without memory. */
int64_t pna_fill(const struct build *p)
{
    const struct rows *in = &p->incoming, *out = &p->outgoing;
    int64_t nodes = p->num_senders > p->num_receivers ? p->num_senders : p->num_receivers;
    int32_t segment = (int32_t)p->segment, longest = segment + 1;
    for (int64_t r = 0; r < p->num_receivers; r++) {
        int32_t degree = in->indptr[r + 1] - in->indptr[r];
        p->degree[r] = degree;
        if (degree > longest) longest = degree;
    }
    int64_t size = nodes > longest + 2 ? nodes : longest + 2;
    int32_t *next = malloc(size * sizeof *next);
    if (next == NULL) return 1;
    memcpy(next, in->indptr, p->num_receivers * sizeof *next);
    for (int64_t e = 0; e < p->num_edges; e++) {
        int32_t slot = next[p->receivers[e]]++;
        p->edge_ids[slot] = (int32_t)e;
        in->neighbours[slot] = (int32_t)p->senders[e];
    }
    memcpy(next, out->indptr, p->num_senders * sizeof *next);
    for (int64_t r = 0; r < p->num_receivers; r++)
        for (int32_t slot = in->indptr[r]; slot < in->indptr[r + 1]; slot++) {
            int32_t place = next[in->neighbours[slot]]++;
            out->neighbours[place] = (int32_t)r;
            p->out_ranks[place] = slot - in->indptr[r];
        }
    cut_rows(in, p->num_receivers, segment, next);
    cut_rows(out, p->num_senders, segment, next);
    sort_by_length(in->indptr, 0, p->num_receivers, longest, next, p->by_degree);
    free(next);
    return 0;
}

/* For the caller to compare with its own idea of the struct. */
int64_t pna_build_size(void) { return sizeof(struct build); }
