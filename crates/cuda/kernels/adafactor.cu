// Adafactor: the second moment of a matrix is kept as the means of its rows and columns. Each launch works on many parameters,
// each of which is matrices of its own sides; a vector is a row, and the means of its columns are all of its second moments.
#include "optim.h"

namespace {

// Rows of which the squares of columns are summed at a time, an eighth of them by each warp.
const u32 COLUMN_RUN = 512;

// What the launches of a step leave each other for a parameter: the length of the step and the sides, the squared norms of the
// tiles of the weights and of the direction, the sums of columns over each run of rows, and the factor of each row.
struct Head {
  f32 alpha;
  u32 rows, cols, unused;
};
struct Scratch {
  Head* head;
  f64 *of_weights, *of_direction, *of_columns;
  f32* factors;
};
DEVICE u32 runs_of(u32 rows) { return (rows + COLUMN_RUN - 1) / COLUMN_RUN; }
DEVICE Scratch scratch_of(void* at, u64 n, u32 rows, u32 cols) {
  u64 tiles = (n + PIECE_TILE - 1) / PIECE_TILE;
  f64* sums = (f64*)((Head*)at + 1);
  f64* of_columns = sums + 2 * tiles;
  return {(Head*)at, sums, sums + tiles, of_columns, (f32*)(of_columns + n / ((u64)rows * cols) * runs_of(rows) * cols)};
}

// The estimated second moment of an element: its row's factor times its column's.
struct Estimate {
  const f32 *factors, *col_var;
  f32 grad_scale, floor;
  u32 rows, cols;
};

// The directions of eight elements from number `at` on; 0 behind the last one.
DEVICE void directions(f32 (&u)[8], const Estimate& e, const f32* grad, u64 at, u64 left) {
  u64 row = at / e.cols;
  u32 col = (u32)(at % e.cols);
  load8(u, grad + at, left, packs(grad));
  f32 factor = e.factors[row];
  UNROLL for (u32 k = 0; k < 8; k++) {
    if (k >= left) continue;
    f32 var = factor * e.col_var[row / e.rows * e.cols + col];
    u[k] = u[k] * e.grad_scale / sqrtf(max(var, e.floor));
    if (++col == e.cols) {
      col = 0;
      row++;
      if (k + 1 < left) factor = e.factors[row];
    }
  }
}

// The mean squares of a row, blended into `row_var`.
template <u32 TEAM>
DEVICE void row_of(const f32* grad, f32* row_var, f32 grad_scale, f32 weight, u64 row, u64 rows, u32 cols) {
  if (row >= rows) return;
  f64 scale = (f64)grad_scale * (f64)grad_scale / cols, sum = 0;
  bool packed = packs(grad, cols);
  f32 g[8];
  for (u32 c = team_lane<TEAM>() * 8; c < cols; c += TEAM * 8) {
    load8(g, grad + row * cols + c, cols - c, packed);
    sum += squares(g);
  }
  sum = team_sum<TEAM>(sum);
  if (team_lane<TEAM>() == 0) row_var[row] = interpolate(row_var[row], (f32)(sum * scale), weight);
}

// The squares of a run of rows of 32 columns: each warp adds its part, eight rows on their way at a time, and the parts are
// joined in order.
DEVICE void columns_of(const f32* grad, f64* out, u32 first, u32 rows, u32 cols, u32 col) {
  SHARED(f64, parts, THREADS);
  const u32 PART = COLUMN_RUN / 8, AT_ONCE = 8;
  u32 begin = first + threadIdx.x / 32 * PART, end = min(rows, begin + PART);
  f64 sum = 0;
  for (u32 row = begin; col < cols && row < end; row += AT_ONCE) {
    f32 g[AT_ONCE];
    UNROLL for (u32 k = 0; k < AT_ONCE; k++) g[k] = row + k < end ? grad[(u64)(row + k) * cols + col] : 0.f;
    UNROLL for (u32 k = 0; k < AT_ONCE; k++) sum += (f64)g[k] * (f64)g[k];
  }
  sync_block();
  parts[threadIdx.x] = sum;
  sync_block();
  if (threadIdx.x >= 32 || col >= cols) return;
  sum = 0;
  for (u32 w = 0; w < 8; w++) sum += parts[w * 32 + threadIdx.x];
  out[col] = sum;
}

template <class T> DEVICE void apply(const pieces& all, f32 grad_scale, f32 floor, f32 keep) {
  each_tile(all, [&](u32 piece, u64 start, u64 end) {
    f32* weights = operand<f32>(all, 0, piece);
    const f32* grad = operand<f32>(all, 1, piece);
    T* working = operand<T>(all, 4, piece);
    Head head = *operand<Head>(all, 3, piece);
    Scratch scratch = scratch_of(operand<void>(all, 3, piece), all.sizes[piece], head.rows, head.cols);
    Estimate e = {scratch.factors, operand<f32>(all, 2, piece), grad_scale, floor, head.rows, head.cols};
    bool packed = packs(weights) && packs(working);
    for (u64 i = start + threadIdx.x * 8; i < end; i += THREADS * 8) {
      u64 left = end - i;
      f32 w[8], u[8];
      load8(w, weights + i, left, packed);
      directions(u, e, grad, i, left);
      UNROLL for (u32 k = 0; k < 8; k++) w[k] = w[k] * keep - head.alpha * u[k];
      store8(weights + i, w, left, packed, 0);
      if (working) store8(working + i, w, left, packed, 0);
    }
  });
}

}  // namespace

// Of those that keep the means of rows: the gradient, these means, and the sides. A task is a row, or eight short ones.
KERNEL(adafactor_rows, THREADS, (const IN_PLACE pieces all, f32 grad_scale, f32 weight),
       each_task(all, [&](u32 piece, u32 task) {
         const f32* grad = operand<f32>(all, 0, piece);
         f32* row_var = operand<f32>(all, 1, piece);
         u32 cols = sides_of(all, piece).cols;
         u64 rows = all.sizes[piece] / cols;
         if (cols <= WARP_ROW) row_of<32>(grad, row_var, grad_scale, weight, (u64)task * 8 + threadIdx.x / 32, rows, cols);
         else row_of<THREADS>(grad, row_var, grad_scale, weight, task, rows, cols);
       }))
// The gradient, the scratch and the sides. A task is 32 columns of a run of rows of a matrix.
KERNEL(adafactor_columns, THREADS, (const IN_PLACE pieces all),
       each_task(all, [&](u32 piece, u32 task) {
         Sides sides = sides_of(all, piece);
         Scratch scratch = scratch_of(operand<void>(all, 1, piece), all.sizes[piece], sides.rows, sides.cols);
         u32 tiles = (sides.cols + 31) / 32, runs = runs_of(sides.rows), run = task / tiles;
         u32 col = task % tiles * 32 + threadIdx.x % 32;
         const f32* grad = operand<f32>(all, 0, piece) + (u64)(run / runs) * sides.rows * sides.cols;
         columns_of(grad, scratch.of_columns + (u64)run * sides.cols, run % runs * COLUMN_RUN, sides.rows, sides.cols, col);
       }))
// The mean squares of columns, blended into `col_var`: the scratch, these means, and the sides. A thread takes a column.
KERNEL(adafactor_moments, THREADS, (const IN_PLACE pieces all, f32 grad_scale, f32 weight),
       each_task(all, [&](u32 piece, u32 task) {
         Sides sides = sides_of(all, piece);
         u64 n = all.sizes[piece], at = (u64)task * THREADS + threadIdx.x;
         if (at >= n / sides.rows) return;
         u32 runs = runs_of(sides.rows);
         const f64* of_columns = scratch_of(operand<void>(all, 0, piece), n, sides.rows, sides.cols).of_columns;
         of_columns += at / sides.cols * runs * sides.cols + at % sides.cols;
         f64 sum = 0;
         for (u32 run = 0; run < runs; run++) sum += of_columns[(u64)run * sides.cols];
         f32& var = operand<f32>(all, 1, piece)[at];
         var = interpolate(var, (f32)(sum * ((f64)grad_scale * (f64)grad_scale / sides.rows)), weight);
       }))
// The factor of each row, which is its mean by that of its matrix: the means of rows, which a vector has not, the scratch, and
// the sides. A task is a matrix.
KERNEL(adafactor_factors, THREADS, (const IN_PLACE pieces all, f32 eps),
       each_task(all, [&](u32 piece, u32 matrix) {
         Sides sides = sides_of(all, piece);
         const f32* row_var = operand<f32>(all, 0, piece);
         f32* factors = scratch_of(operand<void>(all, 1, piece), all.sizes[piece], sides.rows, sides.cols).factors;
         u64 first = (u64)matrix * sides.rows;
         f64 sum = 0;
         for (u32 row = threadIdx.x; row_var && row < sides.rows; row += THREADS) sum += row_var[first + row];
         f32 mean = max((f32)(team_sum<THREADS>(sum) / sides.rows), eps);
         for (u32 row = threadIdx.x; row < sides.rows; row += THREADS)
           factors[first + row] = row_var ? row_var[first + row] / mean : 1.f;
       }))
// The squared norms of the tiles of the direction, and of the weights where they are given: the gradient, the means of columns,
// the scratch, the weights, and the sides.
KERNEL(adafactor_squares, THREADS, (const IN_PLACE pieces all, f32 grad_scale, f32 floor),
       each_tile(all, [&](u32 piece, u64 start, u64 end) {
         Sides sides = sides_of(all, piece);
         const f32 *grad = operand<f32>(all, 0, piece), *weights = operand<f32>(all, 3, piece);
         Scratch scratch = scratch_of(operand<void>(all, 2, piece), all.sizes[piece], sides.rows, sides.cols);
         Estimate e = {scratch.factors, operand<f32>(all, 1, piece), grad_scale, floor, sides.rows, sides.cols};
         f64 of_weights = 0, of_direction = 0;
         for (u64 i = start + threadIdx.x * 8; i < end; i += THREADS * 8) {
           f32 w[8] = {}, u[8];
           if (weights) load8(w, weights + i, end - i, packs(weights));
           directions(u, e, grad, i, end - i);
           of_weights += squares(w);
           of_direction += squares(u);
         }
         of_weights = team_sum<THREADS>(of_weights);
         of_direction = team_sum<THREADS>(of_direction);
         if (threadIdx.x == 0) {
           scratch.of_weights[start / PIECE_TILE] = of_weights;
           scratch.of_direction[start / PIECE_TILE] = of_direction;
         }
       }))
// The length of the step of each parameter, by a block: perhaps relative to the size of the parameter, and shorter where the
// direction is long. The scratch, in which the sides are left as well since the last launch has no room for them, and the sides.
KERNEL(adafactor_alpha, THREADS, (const IN_PLACE pieces all, f32 rate, f32 eps2, f32 d, u32 relative),
       each_task(all, [&](u32 piece, u32) {
         Sides sides = sides_of(all, piece);
         u64 n = all.sizes[piece], tiles = tiles_of(all, piece);
         Scratch scratch = scratch_of(operand<void>(all, 0, piece), n, sides.rows, sides.cols);
         f64 size = sqrt(sum_of(scratch.of_weights, tiles) / (f64)n);
         f64 length = sqrt(sum_of(scratch.of_direction, tiles) / (f64)n);
         f32 alpha = (f32)((relative ? max((f64)eps2, size) : 1.) * (f64)rate / max(length / (f64)d, 1.));
         if (threadIdx.x == 0) *scratch.head = {alpha, sides.rows, sides.cols, 0};
       }))

// The weights, the gradient, the means of columns, the scratch and the working copy.
#define APPLY(T) \
  KERNEL(adafactor_apply_##T, THREADS, (const IN_PLACE pieces all, f32 grad_scale, f32 floor, f32 keep), \
         apply<T>(all, grad_scale, floor, keep))

APPLY(f32)
APPLY(bf16)
APPLY(f16)
