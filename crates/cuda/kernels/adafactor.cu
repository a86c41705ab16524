// Adafactor: the second moment of a matrix is kept as the means of its rows and columns.
#include "optim.h"

namespace {

// The estimated second moment of an element of matrices [rows, cols]: its row's factor times its column's. Without
// `row_var` there is one row, and `col_var` has all second moments.
struct Estimate {
  const f32 *row_var, *row_means, *col_var;
  f32 grad_scale, floor;
  u32 rows, cols;
  DEVICE f32 factor(u64 row) const { return row_var ? row_var[row] / row_means[row / rows] : 1.f; }
};

// The directions of eight elements from number `at` on; 0 behind the last one.
DEVICE void directions(f32 (&u)[8], const Estimate& e, const f32* grad, u64 at, u64 left) {
  u64 row = at / e.cols;
  u32 col = (u32)(at % e.cols);
  load8(u, grad + at, left, packs(grad));
  f32 factor = e.factor(row);
  UNROLL for (u32 k = 0; k < 8; k++) {
    if (k >= left) continue;
    f32 var = factor * e.col_var[row / e.rows * e.cols + col];
    u[k] = u[k] * e.grad_scale / sqrtf(max(var, e.floor));
    if (++col == e.cols) {
      col = 0;
      row++;
      if (k + 1 < left) factor = e.factor(row);
    }
  }
}

// The mean squares of rows, blended into `row_var`.
template <u32 TEAM>
DEVICE void rows_of(const f32* grad, f32* row_var, f32 grad_scale, f32 weight, u32 rows, u32 cols) {
  f64 scale = (f64)grad_scale * (f64)grad_scale / cols;
  bool packed = packs(grad, cols);
  for (u32 row = team_index<TEAM>(); row < rows; row += n_teams<TEAM>()) {
    f64 sum = 0;
    f32 g[8];
    for (u32 c = team_lane<TEAM>() * 8; c < cols; c += TEAM * 8) {
      load8(g, grad + (u64)row * cols + c, cols - c, packed);
      sum += squares(g);
    }
    sum = team_sum<TEAM>(sum);
    if (team_lane<TEAM>() == 0) row_var[row] = interpolate(row_var[row], (f32)(sum * scale), weight);
  }
}

// The mean squares of columns: a warp for 32 columns adds a run of rows, and the eight runs of a block are joined in order.
DEVICE void columns_of(const f32* grad, f32* col_var, f32 grad_scale, f32 weight, u32 batch, u32 rows, u32 cols) {
  SHARED(f64, runs, THREADS);
  f64 scale = (f64)grad_scale * (f64)grad_scale / rows;
  u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32, run = (rows + 7) / 8, per_matrix = (cols + 31) / 32;
  for (u64 task = blockIdx.x; task < (u64)batch * per_matrix; task += gridDim.x) {
    u64 matrix = task / per_matrix;
    u32 col = (u32)(task % per_matrix) * 32 + lane;
    f64 sum = 0;
    if (col < cols)
      for (u32 row = warp * run; row < min(rows, (warp + 1) * run); row++) {
        f64 g = grad[(matrix * rows + row) * cols + col];
        sum += g * g;
      }
    sync_block();
    runs[threadIdx.x] = sum;
    sync_block();
    if (warp != 0 || col >= cols) continue;
    sum = 0;
    for (u32 w = 0; w < 8; w++) sum += runs[w * 32 + lane];
    f32& var = col_var[matrix * cols + col];
    var = interpolate(var, (f32)(sum * scale), weight);
  }
}

// The mean of `row_var` in each matrix.
template <u32 TEAM> DEVICE void means_of(const f32* row_var, f32* means, f32 eps, u32 batch, u32 rows) {
  for (u32 i = team_index<TEAM>(); i < batch; i += n_teams<TEAM>()) {
    f64 sum = 0;
    for (u32 row = team_lane<TEAM>(); row < rows; row += TEAM) sum += row_var[(u64)i * rows + row];
    sum = team_sum<TEAM>(sum);
    if (team_lane<TEAM>() == 0) means[i] = max((f32)(sum / rows), eps);
  }
}

template <class T>
DEVICE void apply(f32* weights, const f32* grad, const Estimate& e, f32 alpha, T* working, f32 keep, u64 n) {
  bool packed = packs(weights) && packs(working);
  each8(n, [&](u64 i, u64 left) {
    f32 w[8], u[8];
    load8(w, weights + i, left, packed);
    directions(u, e, grad, i, left);
    UNROLL for (u32 k = 0; k < 8; k++) w[k] = w[k] * keep - alpha * u[k];
    store8(weights + i, w, left, packed, 0);
    if (working) store8(working + i, w, left, packed, 0);
  });
}

}  // namespace

KERNEL(adafactor_rows, THREADS, (const f32* grad, f32* row_var, f32 grad_scale, f32 weight, u32 rows, u32 cols),
       if (cols <= WARP_ROW) rows_of<32>(grad, row_var, grad_scale, weight, rows, cols);
       else rows_of<THREADS>(grad, row_var, grad_scale, weight, rows, cols))
KERNEL(adafactor_columns, THREADS,
       (const f32* grad, f32* col_var, f32 grad_scale, f32 weight, u32 batch, u32 rows, u32 cols),
       columns_of(grad, col_var, grad_scale, weight, batch, rows, cols))
KERNEL(adafactor_means, THREADS, (const f32* row_var, f32* means, f32 eps, u32 batch, u32 rows),
       if (rows <= WARP_ROW) means_of<32>(row_var, means, eps, batch, rows);
       else means_of<THREADS>(row_var, means, eps, batch, rows))
// The second moments of what is not factored.
KERNEL(adafactor_variance, THREADS, (f32* variance, const f32* grad, f32 grad_scale, f32 weight, u64 n),
       each(n, [&](u64 i) {
         f32 g = grad[i] * grad_scale;
         variance[i] = interpolate(variance[i], g * g, weight);
       }))
// The squared norm of the direction of each block of 4,096 elements.
KERNEL(adafactor_squares, THREADS,
       (const f32* grad, const f32* row_var, const f32* row_means, const f32* col_var, f64* direction_squares,
        f32 grad_scale, f32 floor, u32 rows, u32 cols, u64 n),
       sum_blocks(n, direction_squares, [&](u64 i, u64 left) {
         f32 u[8];
         directions(u, {row_var, row_means, col_var, grad_scale, floor, rows, cols}, grad, i, left);
         return squares(u);
       }))
// The length of the step: perhaps relative to the size of the parameter, and shorter where the direction is long. By one
// block.
KERNEL(adafactor_alpha, THREADS,
       (const f64* weight_squares, const f64* direction_squares, u64 n_blocks, f32 rate, f32 eps2, f32 d, u32 relative,
        f32* alpha, u64 n),
       f64 size = sqrt(sum_of(weight_squares, n_blocks) / (f64)n);
       f64 length = sqrt(sum_of(direction_squares, n_blocks) / (f64)n);
       if (threadIdx.x == 0) *alpha = (f32)((relative ? max((f64)eps2, size) : 1.) * (f64)rate / max(length / (f64)d, 1.)))

#define APPLY(T) \
  KERNEL(adafactor_apply_##T, THREADS, \
         (f32* weights, const f32* grad, const f32* row_var, const f32* row_means, const f32* col_var, const f32* alpha, \
          T* working, f32 grad_scale, f32 floor, f32 keep, u32 rows, u32 cols, u64 n), \
         apply(weights, grad, {row_var, row_means, col_var, grad_scale, floor, rows, cols}, *alpha, working, keep, n))

APPLY(f32)
APPLY(bf16)
APPLY(f16)
