// RMSNorm and LayerNorm over rows, forward and backward.
//
// A warp works on a row of up to 1,024 elements, a block on a longer one. Gradients of weights are sums over rows: in
// blocks of 32 rows, whose partial sums `sum_rows` joins in a pairwise tree.
#include "words.h"

namespace {

const u32 ROW_BLOCK = 32;

DEVICE f32 plus_offset(f32 w, f32 offset) { return offset == 0.f ? w : offset + w; }

// ---- Forward

template <u32 TEAM, class X, class W, class Y>
DEVICE void rms_norm_rows(const X* x, const W* weight, f32 offset, f32 eps, Y* y, f32* rstd, u32 rows, u32 dim,
                          bool known) {
  bool packed = packs(x, dim) && packs(weight, dim) && packs(y, dim);
  u32 lane = team_lane<TEAM>();
  for (u32 row = team_index<TEAM>(); row < rows; row += n_teams<TEAM>()) {
    const X* xr = x + (u64)row * dim;
    f32 v[8], w[8], r;
    if (known) r = rstd[row];
    else {
      f32 squares = 0;
      for (u32 c = lane * 8; c < dim; c += TEAM * 8) {
        load8(v, xr + c, dim - c, packed);
        UNROLL for (int i = 0; i < 8; i++) squares += v[i] * v[i];
      }
      r = 1.f / sqrtf(team_sum<TEAM>(squares) / (f32)dim + eps);
      if (lane == 0) rstd[row] = r;
    }
    for (u32 c = lane * 8; c < dim; c += TEAM * 8) {
      load8(v, xr + c, dim - c, packed);
      load8(w, weight + c, dim - c, packed);
      UNROLL for (int i = 0; i < 8; i++) v[i] = v[i] * r * plus_offset(w[i], offset);
      store8(y + (u64)row * dim + c, v, dim - c, packed, 0);
    }
  }
}

template <class X, class W, class Y>
DEVICE void rms_norm(const X* x, const W* weight, f32 offset, f32 eps, Y* y, f32* rstd, u32 rows, u32 dim,
                     bool known) {
  if (dim <= WARP_ROW) rms_norm_rows<32>(x, weight, offset, eps, y, rstd, rows, dim, known);
  else rms_norm_rows<THREADS>(x, weight, offset, eps, y, rstd, rows, dim, known);
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

// Where the tensors of a backward pass are; `mean` and `d_bias` only of a LayerNorm.
template <class X, class W, class Y> struct NormGrad {
  const X* x;
  const W* weight;
  f32 offset;
  const f32 *mean, *rstd;
  const Y* dy;
  X* dx;
  f32 *d_weight, *d_bias;
  u32 add, rows, dim;
};

// A block takes 32 rows. Sums for the weights are in shared memory, one row of them for each team.
template <u32 TEAM, bool CENTRED, class X, class W, class Y> DEVICE void norm_grad_rows(NormGrad<X, W, Y> g) {
  DYNAMIC_SHARED(memory);
  const u32 N_TEAMS = THREADS / TEAM;
  u32 lane = team_lane<TEAM>(), team = threadIdx.x / TEAM, dim = g.dim;
  f32* weight_sums = (f32*)memory + team * dim;
  f32* bias_sums = (f32*)memory + (N_TEAMS + team) * dim;
  bool packed = packs(g.x, dim) && packs(g.weight, dim) && packs(g.dy, dim) && packs(g.dx, dim);
  for (u32 c = lane * 8; c < dim; c += TEAM * 8)
    for (u32 i = c; i < min(c + 8, dim); i++) {
      weight_sums[i] = 0;
      if (CENTRED) bias_sums[i] = 0;
    }
  u32 end = min(g.rows, (blockIdx.x + 1) * ROW_BLOCK);
  for (u32 row = blockIdx.x * ROW_BLOCK + team; row < end; row += N_TEAMS) {
    const X* xr = g.x + (u64)row * dim;
    const Y* dyr = g.dy + (u64)row * dim;
    f32 r = g.rstd[row], m = CENTRED ? g.mean[row] : 0.f;
    f32 x[8], dy[8], w[8], projection = 0, sum = 0;
    for (u32 c = lane * 8; c < dim; c += TEAM * 8) {
      load8(x, xr + c, dim - c, packed);
      load8(dy, dyr + c, dim - c, packed);
      load8(w, g.weight + c, dim - c, packed);
      UNROLL for (int i = 0; i < 8; i++) {
        f32 t = dy[i] * plus_offset(w[i], g.offset);
        projection += (x[i] - m) * r * t;
        sum += t;
      }
    }
    f32 slope = team_sum<TEAM>(projection) / (f32)dim;
    f32 offset = CENTRED ? team_sum<TEAM>(sum) / (f32)dim : 0.f;
    for (u32 c = lane * 8; c < dim; c += TEAM * 8) {
      load8(x, xr + c, dim - c, packed);
      load8(dy, dyr + c, dim - c, packed);
      load8(w, g.weight + c, dim - c, packed);
      f32 dx[8];
      UNROLL for (int i = 0; i < 8; i++) {
        f32 x_hat = (x[i] - m) * r;
        dx[i] = r * (dy[i] * plus_offset(w[i], g.offset) - offset - x_hat * slope);
        if (c + i < dim) {
          weight_sums[c + i] += dy[i] * x_hat;
          if (CENTRED) bias_sums[c + i] += dy[i];
        }
      }
      store8(g.dx + (u64)row * dim + c, dx, dim - c, packed, g.add);
    }
  }
  sync_block();
  f32* sums = (f32*)memory;
  for (u32 c = threadIdx.x; c < dim; c += THREADS) {
    f32 weight_sum = sums[c], bias_sum = CENTRED ? sums[N_TEAMS * dim + c] : 0.f;
    for (u32 t = 1; t < N_TEAMS; t++) {
      weight_sum += sums[t * dim + c];
      if (CENTRED) bias_sum += sums[(N_TEAMS + t) * dim + c];
    }
    g.d_weight[(u64)blockIdx.x * dim + c] = weight_sum;
    if (CENTRED) g.d_bias[(u64)blockIdx.x * dim + c] = bias_sum;
  }
}

template <bool CENTRED, class X, class W, class Y> DEVICE void norm_grad(NormGrad<X, W, Y> g) {
  if (g.dim <= WARP_ROW) norm_grad_rows<32, CENTRED>(g);
  else norm_grad_rows<THREADS, CENTRED>(g);
}

}  // namespace

// ---- Instances

#define RMS_NORM(X, W, Y) \
  KERNEL(rms_norm_forward_##X##_##W##_##Y, THREADS, \
         (const X* x, const W* weight, f32 offset, f32 eps, Y* y, f32* rstd, u32 rows, u32 dim), \
         rms_norm<X, W, Y>(x, weight, offset, eps, y, rstd, rows, dim, false)) \
  KERNEL(rms_norm_apply_##X##_##W##_##Y, THREADS, \
         (const X* x, const W* weight, f32 offset, const f32* rstd, Y* y, u32 rows, u32 dim), \
         rms_norm<X, W, Y>(x, weight, offset, 0.f, y, (f32*)rstd, rows, dim, true)) \
  KERNEL(rms_norm_backward_##X##_##W##_##Y, THREADS, \
         (const X* x, const W* weight, f32 offset, const f32* rstd, const Y* dy, X* dx, u32 add, f32* partials, \
          u32 rows, u32 dim), \
         norm_grad<false>(NormGrad<X, W, Y>{x, weight, offset, nullptr, rstd, dy, dx, partials, nullptr, add, rows, dim}))

#define LAYER_NORM(T) \
  KERNEL(layer_norm_forward_##T, THREADS, \
         (const T* x, const T* weight, const T* bias, f32 eps, T* y, f32* mean, f32* rstd, u32 rows, u32 dim), \
         layer_norm<T>(x, weight, bias, eps, y, mean, rstd, rows, dim)) \
  KERNEL(layer_norm_backward_##T, THREADS, \
         (const T* x, const T* weight, const f32* mean, const f32* rstd, const T* dy, T* dx, u32 add, \
          f32* weight_partials, f32* bias_partials, u32 rows, u32 dim), \
         norm_grad<true>(NormGrad<T, T, T>{x, weight, 0.f, mean, rstd, dy, dx, weight_partials, bias_partials, add, \
                                           rows, dim}))

RMS_NORM(f32, f32, f32)
RMS_NORM(bf16, bf16, bf16)
RMS_NORM(f16, f16, f16)
RMS_NORM(f32, f32, bf16)
RMS_NORM(f32, f32, f16)
RMS_NORM(bf16, f32, bf16)
RMS_NORM(f16, f32, f16)
LAYER_NORM(f32)
LAYER_NORM(bf16)
LAYER_NORM(f16)
