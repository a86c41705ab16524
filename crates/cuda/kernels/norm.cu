// RMSNorm and LayerNorm over rows, forward and backward.
//
// A warp works on a row of up to 1,024 elements, a block on a longer one. Gradients of weights are sums over rows: in
// blocks of 32 rows, whose partial sums `sum_rows` joins in a pairwise tree.
#include "words.h"

namespace {

const u32 ROW_BLOCK = 32;

DEVICE f32 plus_offset(f32 w, f32 offset) { return offset == 0.f ? w : offset + w; }

// Runs of eight elements of a row that a thread keeps in registers, where they move as packs.
const u32 HELD = 4;

// Calls f(k, c) for the runs of a thread, which begin at column c: k is a constant below KEPT for those that it keeps, and KEPT
// for the others, which are read again each time.
template <u32 TEAM, u32 KEPT, class F> DEVICE void each_run(u32 dim, F f) {
  const bool ALL = TEAM == 32 && KEPT * TEAM * 8 >= WARP_ROW;
  u32 lane = team_lane<TEAM>();
  UNROLL for (u32 k = 0; k < KEPT; k++)
    if ((k * TEAM + lane) * 8 < dim) f(k, (k * TEAM + lane) * 8);
  if (!ALL)
    for (u32 c = (KEPT * TEAM + lane) * 8; c < dim; c += TEAM * 8) f(KEPT, c);
}

// Runs `f` for the team that a row of this length is the work of, and the number of runs that it keeps. Rows that are not packs
// are rare: all of them are the work of blocks, as each case takes time to compile.
template <u32 TEAM, u32 KEPT> struct Team {
  static const u32 SIZE = TEAM, RUNS = KEPT;
};
template <class F> DEVICE void with_team(u32 dim, bool packed, F f) {
  if (!packed) f(Team<THREADS, 0>());
  else if (dim <= WARP_ROW) f(Team<32, HELD>());
  else f(Team<THREADS, HELD>());
}

// ---- Forward

// Where the tensors of an RMSNorm are. With a `part` the rows are x + part, which go to `sum`.
template <class X, class W, class Y> struct RmsNorm {
  const X* x;
  const Y* part;
  X* sum;
  const W* weight;
  f32 offset, eps;
  Y* y;
  f32* rstd;
  u32 rows, dim;
};

template <u32 TEAM, u32 KEPT, class X, class W, class Y> DEVICE void rms_norm_rows(RmsNorm<X, W, Y> n) {
  const bool PACKED = KEPT > 0;
  u32 lane = team_lane<TEAM>(), dim = n.dim;
  for (u32 row = team_index<TEAM>(); row < n.rows; row += n_teams<TEAM>()) {
    u64 first = (u64)row * dim;
    f32 v[KEPT + 1][8], w[8], part[8], squares = 0;
    auto left = [&](u32 c) { return PACKED ? PACK : dim - c; };
    each_run<TEAM, KEPT>(dim, [&](u32 k, u32 c) {
      load8(v[k], n.x + first + c, left(c), PACKED);
      if (n.part) {
        load8(part, n.part + first + c, left(c), PACKED);
        UNROLL for (u32 i = 0; i < 8; i++) v[k][i] += part[i];
        store8(n.sum + first + c, v[k], left(c), PACKED, 0);
      }
      UNROLL for (u32 i = 0; i < 8; i++) squares += v[k][i] * v[k][i];
    });
    f32 r = 1.f / sqrtf(team_sum<TEAM>(squares) / (f32)dim + n.eps);
    if (lane == 0) n.rstd[row] = r;
    each_run<TEAM, KEPT>(dim, [&](u32 k, u32 c) {
      if (k == KEPT) load8(v[k], (n.part ? n.sum : n.x) + first + c, left(c), PACKED);
      load8(w, n.weight + c, left(c), PACKED);
      UNROLL for (u32 i = 0; i < 8; i++) v[k][i] = v[k][i] * r * plus_offset(w[i], n.offset);
      store8(n.y + first + c, v[k], left(c), PACKED, 0);
    });
  }
}

template <class X, class W, class Y> DEVICE void rms_norm(RmsNorm<X, W, Y> n) {
  bool packed = packs(n.x, n.dim) && packs(n.part) && packs(n.sum) && packs(n.weight) && packs(n.y);
  with_team(n.dim, packed, [&](auto team) { rms_norm_rows<team.SIZE, team.RUNS>(n); });
}

// The output of rows whose statistics are known.
template <class X, class W, class Y>
DEVICE void rms_norm_apply(const X* x, const W* weight, f32 offset, const f32* rstd, Y* y, u32 rows, u32 dim) {
  bool packed = packs(x, dim) && packs(weight) && packs(y);
  for (u32 row = team_index<32>(); row < rows; row += n_teams<32>()) {
    f32 v[8], w[8], r = rstd[row];
    for (u32 c = team_lane<32>() * 8; c < dim; c += 32 * 8) {
      load8(v, x + (u64)row * dim + c, dim - c, packed);
      load8(w, weight + c, dim - c, packed);
      UNROLL for (u32 i = 0; i < 8; i++) v[i] = v[i] * r * plus_offset(w[i], offset);
      store8(y + (u64)row * dim + c, v, dim - c, packed, 0);
    }
  }
}

template <u32 TEAM, class T>
DEVICE void layer_norm_rows(const T* x, const T* weight, const T* bias, f32 eps, T* y, f32* mean, f32* rstd,
                            u32 rows, u32 dim) {
  bool packed = packs(x, dim) && packs(weight, dim) && packs(y, dim) && (!bias || packs(bias, dim));
  u32 lane = team_lane<TEAM>();
  for (u32 row = team_index<TEAM>(); row < rows; row += n_teams<TEAM>()) {
    const T* xr = x + (u64)row * dim;
    f32 v[8], w[8], b[8] = {};
    f32 sum = 0, squares = 0;
    for (u32 c = lane * 8; c < dim; c += TEAM * 8) {
      load8(v, xr + c, dim - c, packed);
      UNROLL for (int i = 0; i < 8; i++) sum += v[i];
    }
    f32 m = team_sum<TEAM>(sum) / (f32)dim;
    for (u32 c = lane * 8; c < dim; c += TEAM * 8) {
      load8(v, xr + c, dim - c, packed);
      UNROLL for (int i = 0; i < 8; i++) squares += c + i < dim ? (v[i] - m) * (v[i] - m) : 0.f;
    }
    f32 r = 1.f / sqrtf(team_sum<TEAM>(squares) / (f32)dim + eps);
    if (lane == 0) {
      mean[row] = m;
      rstd[row] = r;
    }
    for (u32 c = lane * 8; c < dim; c += TEAM * 8) {
      load8(v, xr + c, dim - c, packed);
      load8(w, weight + c, dim - c, packed);
      if (bias) load8(b, bias + c, dim - c, packed);
      UNROLL for (int i = 0; i < 8; i++) v[i] = (v[i] - m) * r * w[i] + b[i];
      store8(y + (u64)row * dim + c, v, dim - c, packed, 0);
    }
  }
}

template <class T>
DEVICE void layer_norm(const T* x, const T* weight, const T* bias, f32 eps, T* y, f32* mean, f32* rstd,
                       u32 rows, u32 dim) {
  if (dim <= WARP_ROW) layer_norm_rows<32>(x, weight, bias, eps, y, mean, rstd, rows, dim);
  else layer_norm_rows<THREADS>(x, weight, bias, eps, y, mean, rstd, rows, dim);
}

// ---- Backward

// Where the tensors of a backward pass are; `mean` and `d_bias` only of a LayerNorm, `rounded` if dx is wanted in the type of
// the output as well, and `y` if the output is wanted once more.
template <class X, class W, class Y> struct NormGrad {
  const X* x;
  const W* weight;
  f32 offset;
  const f32 *mean, *rstd;
  const Y* dy;
  X* dx;
  Y *rounded, *y;
  f32 *d_weight, *d_bias;
  u32 add, rows, dim;
};

struct alignas(16) Four {
  f32 of[4];
};
// Where the sum of a column is in shared memory. Eight lanes access a run of eight sums each, four by four: so they meet
// different banks.
DEVICE u32 place(u32 c) { return c ^ (c >> 5 & 1) << 2; }
DEVICE void add_to(f32* sums, u32 c, const f32 (&v)[8]) {
  UNROLL for (u32 half = 0; half < 8; half += 4) {
    Four* to = (Four*)(sums + place(c + half));
    Four sum = *to;
    UNROLL for (u32 i = 0; i < 4; i++) sum.of[i] += v[half + i];
    *to = sum;
  }
}

// A block takes 32 rows. Sums for the weights are in shared memory, one row of them for each team.
template <u32 TEAM, u32 KEPT, bool CENTRED, class X, class W, class Y>
DEVICE void norm_grad_rows(NormGrad<X, W, Y> g) {
  DYNAMIC_SHARED(memory);
  const bool PACKED = KEPT > 0;
  const u32 N_TEAMS = THREADS / TEAM;
  u32 team = threadIdx.x / TEAM, dim = g.dim, width = (dim + 7) / 8 * 8;
  f32* weight_sums = (f32*)memory + team * width;
  f32* bias_sums = (f32*)memory + (N_TEAMS + team) * width;
  for (u32 c = team_lane<TEAM>(); c < width; c += TEAM) {
    weight_sums[c] = 0;
    if (CENTRED) bias_sums[c] = 0;
  }
  if (TEAM == 32) sync_warp();
  else sync_block();
  u32 end = min(g.rows, (blockIdx.x + 1) * ROW_BLOCK);
  for (u32 row = blockIdx.x * ROW_BLOCK + team; row < end; row += N_TEAMS) {
    u64 first = (u64)row * dim;
    f32 r = g.rstd[row], m = CENTRED ? g.mean[row] : 0.f;
    f32 x[KEPT + 1][8], dy[KEPT + 1][8], w[8], projection = 0, sum = 0;
    auto left = [&](u32 c) { return PACKED ? PACK : dim - c; };
    auto read = [&](u32 k, u32 c) {
      load8(x[k], g.x + first + c, left(c), PACKED);
      load8(dy[k], g.dy + first + c, left(c), PACKED);
    };
    each_run<TEAM, KEPT>(dim, [&](u32 k, u32 c) {
      read(k, c);
      load8(w, g.weight + c, left(c), PACKED);
      UNROLL for (u32 i = 0; i < 8; i++) {
        f32 t = dy[k][i] * plus_offset(w[i], g.offset);
        projection += (x[k][i] - m) * r * t;
        sum += t;
      }
    });
    f32 slope = team_sum<TEAM>(projection) / (f32)dim;
    f32 offset = CENTRED ? team_sum<TEAM>(sum) / (f32)dim : 0.f;
    each_run<TEAM, KEPT>(dim, [&](u32 k, u32 c) {
      if (k == KEPT) read(k, c);
      load8(w, g.weight + c, left(c), PACKED);
      f32 dx[8], of_weight[8], before[8], y[8];
      UNROLL for (u32 i = 0; i < 8; i++) {
        f32 x_hat = (x[k][i] - m) * r, factor = plus_offset(w[i], g.offset);
        dx[i] = r * (dy[k][i] * factor - offset - x_hat * slope);
        of_weight[i] = dy[k][i] * x_hat;
        y[i] = x_hat * factor;
      }
      if (g.y) store8(g.y + first + c, y, left(c), PACKED, 0);
      add_to(weight_sums, c, of_weight);
      if (CENTRED) add_to(bias_sums, c, dy[k]);
      if (g.add) {
        load8(before, g.dx + first + c, left(c), PACKED);
        UNROLL for (u32 i = 0; i < 8; i++) dx[i] += before[i];
      }
      store8(g.dx + first + c, dx, left(c), PACKED, 0);
      if (g.rounded) store8(g.rounded + first + c, dx, left(c), PACKED, 0);
    });
  }
  sync_block();
  f32* sums = (f32*)memory;
  for (u32 c = threadIdx.x; c < dim; c += THREADS) {
    f32 weight_sum = sums[place(c)], bias_sum = CENTRED ? sums[N_TEAMS * width + place(c)] : 0.f;
    for (u32 t = 1; t < N_TEAMS; t++) {
      weight_sum += sums[t * width + place(c)];
      if (CENTRED) bias_sum += sums[(N_TEAMS + t) * width + place(c)];
    }
    g.d_weight[(u64)blockIdx.x * dim + c] = weight_sum;
    if (CENTRED) g.d_bias[(u64)blockIdx.x * dim + c] = bias_sum;
  }
}

template <bool CENTRED, class X, class W, class Y> DEVICE void norm_grad(NormGrad<X, W, Y> g) {
  bool packed = packs(g.x, g.dim) && packs(g.weight) && packs(g.dy) && packs(g.dx) && packs(g.rounded) &&
                packs(g.y);
  with_team(g.dim, packed, [&](auto team) { norm_grad_rows<team.SIZE, team.RUNS, CENTRED>(g); });
}

}  // namespace

// ---- Instances

#define RMS_NORM(X, W, Y) \
  KERNEL(rms_norm_forward_##X##_##W##_##Y, THREADS, \
         (const X* x, const W* weight, f32 offset, f32 eps, Y* y, f32* rstd, u32 rows, u32 dim), \
         rms_norm(RmsNorm<X, W, Y>{x, nullptr, nullptr, weight, offset, eps, y, rstd, rows, dim})) \
  KERNEL(rms_norm_apply_##X##_##W##_##Y, THREADS, \
         (const X* x, const W* weight, f32 offset, const f32* rstd, Y* y, u32 rows, u32 dim), \
         rms_norm_apply(x, weight, offset, rstd, y, rows, dim)) \
  KERNEL(rms_norm_backward_##X##_##W##_##Y, THREADS, \
         (const X* x, const W* weight, f32 offset, const f32* rstd, const Y* dy, X* dx, Y* rounded, Y* y, u32 add, \
          f32* partials, u32 rows, u32 dim), \
         norm_grad<false>(NormGrad<X, W, Y>{x, weight, offset, nullptr, rstd, dy, dx, rounded, y, partials, nullptr, \
                                            add, rows, dim}))

#define ADD_RMS_NORM(X, W, Y) \
  KERNEL(add_rms_norm_forward_##X##_##W##_##Y, THREADS, \
         (const X* x, const Y* part, X* sum, const W* weight, f32 offset, f32 eps, Y* y, f32* rstd, u32 rows, u32 dim), \
         rms_norm(RmsNorm<X, W, Y>{x, part, sum, weight, offset, eps, y, rstd, rows, dim}))

#define LAYER_NORM(T) \
  KERNEL(layer_norm_forward_##T, THREADS, \
         (const T* x, const T* weight, const T* bias, f32 eps, T* y, f32* mean, f32* rstd, u32 rows, u32 dim), \
         layer_norm<T>(x, weight, bias, eps, y, mean, rstd, rows, dim)) \
  KERNEL(layer_norm_backward_##T, THREADS, \
         (const T* x, const T* weight, const f32* mean, const f32* rstd, const T* dy, T* dx, u32 add, \
          f32* weight_partials, f32* bias_partials, u32 rows, u32 dim), \
         norm_grad<true>(NormGrad<T, T, T>{x, weight, 0.f, mean, rstd, dy, dx, nullptr, nullptr, weight_partials, \
                                           bias_partials, add, rows, dim}))

RMS_NORM(f32, f32, f32)
RMS_NORM(bf16, bf16, bf16)
RMS_NORM(f16, f16, f16)
RMS_NORM(f32, f32, bf16)
RMS_NORM(f32, f32, f16)
RMS_NORM(bf16, f32, bf16)
RMS_NORM(f16, f32, f16)
ADD_RMS_NORM(f32, f32, f32)
ADD_RMS_NORM(f32, f32, bf16)
ADD_RMS_NORM(f32, f32, f16)
LAYER_NORM(f32)
LAYER_NORM(bf16)
LAYER_NORM(f16)
