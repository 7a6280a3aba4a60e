/* Included by set2set.c: products of narrow matrices, and the functions of gates.
 *
 * Included once for each number type and vector width (REAL, WHOLE, WIDTH, TARGET). Columns are
 * written in whole vectors, so narrow arrays are padded to a multiple of the vector length.
 */
#if !defined(NAME)

#define STEP ((int)(WIDTH / sizeof(REAL))) /* elements in a vector */
#define TALL 4                             /* rows in a tile of a product */
#define BROAD (64 / WIDTH)                 /* vectors in each of its rows */

#define PASTE(a, b, c) a##_##b##_##c
#define EXPAND(a, b, c) PASTE(a, b, c)
#define NAME(name) EXPAND(name, REAL, WIDTH)
#define INLINE static inline __attribute__((always_inline)) TARGET
#define OUTLINE static __attribute__((noinline, unused)) TARGET

#define vec NAME(vec)
#define loose NAME(loose)
#define mask NAME(mask)
#define matrix NAME(matrix)

#endif

typedef REAL vec __attribute__((vector_size(WIDTH)));
typedef REAL loose __attribute__((vector_size(WIDTH), aligned(sizeof(REAL)), may_alias));
typedef WHOLE mask __attribute__((vector_size(WIDTH)));

/* A matrix with a stride between rows (down) and between columns (across). */
struct matrix {
    const REAL *at;
    int64_t down, across;
};

INLINE vec NAME(load)(const REAL *from) { return *(const loose *)from; }

INLINE void NAME(store)(REAL *to, vec value) { *(loose *)to = value; }

/* The vector at a column of a row of `numbers` elements, padded with 0. */
INLINE vec NAME(load_of)(const REAL *row, int64_t column, int64_t numbers)
{
    vec some = {0};
    if (column + STEP <= numbers) return NAME(load)(row + column);
    for (int64_t i = column; i < numbers; i++) some[i - column] = row[i];
    return some;
}

INLINE void NAME(store_of)(REAL *row, int64_t column, int64_t numbers, vec value)
{
    if (column + STEP <= numbers) NAME(store)(row + column, value);
    else
        for (int64_t i = column; i < numbers; i++) row[i] = value[i - column];
}

INLINE REAL NAME(sum_of)(vec value)
{
    REAL sum = 0;
    for (int lane = 0; lane < STEP; lane++) sum += value[lane];
    return sum;
}

/* A tile of out = start + a b, whose numbers of rows and vectors are compile-time constants. start
 * is added last: sums of fewer terms lose fewer digits. */
INLINE void NAME(tile)(struct matrix start, struct matrix a, const REAL *b, int64_t b_down,
                       int64_t depth, REAL *out, int64_t out_down, int rows, int vectors)
{
    vec sum[TALL][BROAD];
    for (int i = 0; i < rows; i++)
        for (int v = 0; v < vectors; v++) sum[i][v] = (vec){0};
    for (int64_t k = 0; k < depth; k++) {
        vec row[BROAD];
        for (int v = 0; v < vectors; v++) row[v] = NAME(load)(b + k * b_down + v * STEP);
        for (int i = 0; i < rows; i++) {
            REAL value = a.at[i * a.down + k * a.across];
            for (int v = 0; v < vectors; v++) sum[i][v] += value * row[v];
        }
    }
    for (int i = 0; i < rows; i++)
        for (int v = 0; v < vectors; v++) {
            if (start.at) sum[i][v] += NAME(load)(start.at + i * start.down + v * STEP);
            NAME(store)(out + i * out_down + v * STEP, sum[i][v]);
        }
}

/* out = start + a b, where out is (rows, columns) and columns is a multiple of the vector length.
 * start may be out, one row for all rows (down = 0), or absent. */
OUTLINE void NAME(product)(struct matrix start, struct matrix a, const REAL *b, int64_t b_down,
                           REAL *out, int64_t out_down, int64_t rows, int64_t depth,
                           int64_t columns)
{
    int64_t column = 0;
    while (column < columns) {
        int broad = column + BROAD * STEP <= columns;
        for (int64_t row = 0; row < rows;) {
            int tall = row + TALL <= rows;
            struct matrix from = start, of = {a.at + row * a.down, a.down, a.across};
            if (start.at) from.at += row * start.down + column;
            REAL *to = out + row * out_down + column;
            if (tall && broad)
                NAME(tile)(from, of, b + column, b_down, depth, to, out_down, TALL, BROAD);
            else if (tall)
                NAME(tile)(from, of, b + column, b_down, depth, to, out_down, TALL, 1);
            else if (broad)
                NAME(tile)(from, of, b + column, b_down, depth, to, out_down, 1, BROAD);
            else NAME(tile)(from, of, b + column, b_down, depth, to, out_down, 1, 1);
            row += tall ? TALL : 1;
        }
        column += broad ? BROAD * STEP : STEP;
    }
}

#if defined(IS_DOUBLE)

INLINE vec NAME(exponential)(vec x)
{
    for (int lane = 0; lane < STEP; lane++) x[lane] = exp(x[lane]);
    return x;
}

INLINE vec NAME(sigmoid)(vec x) { return 1 / (1 + NAME(exponential)(-x)); }

INLINE vec NAME(tangent)(vec x)
{
    for (int lane = 0; lane < STEP; lane++) x[lane] = tanh(x[lane]);
    return x;
}

#else

/* x clamped to low..high; NaN stays NaN. */
INLINE vec NAME(between)(float low, vec x, float high)
{
    vec least = low - (vec){0}, most = high - (vec){0};
    mask below = x < least, above = x > most;
    mask bits = ((mask)least & below) | ((mask)most & above) | ((mask)x & ~(below | above));
    return (vec)bits;
}

/* 2ⁿ and eʳ − 1, where x = n log 2 + r is between −87 and 88; the error is at most 1 ulp. */
INLINE vec NAME(split_exponential)(vec x, vec *less_one)
{
    const float round = 12582912; /* 1.5 · 2²³: adding it leaves n in the last bits */
    vec power = x * 1.44269504f + round;
    vec n = power - round;
    vec r = (x - n * 0.693359375f) - n * -2.12194440e-4f;
    vec square = r * r;
    vec high = (r * 1.9875691500e-4f + 1.3981999507e-3f) * square;
    vec middle = r * 8.3334519073e-3f + 4.1665795894e-2f;
    vec low = r * 1.6666665459e-1f + 5.0000001201e-1f;
    *less_one = ((high + middle) * square + low) * square + r;
    return (vec)(((mask)power << 23) + (127 << 23));
}

INLINE vec NAME(exponential)(vec x)
{
    vec less_one, scale = NAME(split_exponential)(NAME(between)(-87, x, 88), &less_one);
    return scale * less_one + scale;
}

INLINE vec NAME(sigmoid)(vec x) { return 1 / (1 + NAME(exponential)(-x)); }

/* tanh x = (e²ˣ − 1) / (e²ˣ + 1), which loses no digits for small x. */
INLINE vec NAME(tangent)(vec x)
{
    vec less_one, scale = NAME(split_exponential)(NAME(between)(-40, 2 * x, 40), &less_one);
    vec e = scale * less_one + (scale - 1);
    return e / (e + 2);
}

#endif
