// Cross-entropy of rows of logits against labels: the loss, and with it the gradient, of a chunk of rows.
//
// A block works on a row. Rows whose label is IGNORE have loss and gradient 0.
#include "rows.h"

namespace {

const i32 IGNORE = -100;

enum TokenLoss : u32 { CROSS_ENTROPY, SMOOTHED, BY_PROBABILITY };

// What a row comes to; all threads have it.
struct RowLoss {
  RowStatistics s;
  f32 at_label, weight, loss;
};

template <class T> DEVICE RowLoss row_loss(const T* row, u32 label, u32 vocab, u32 kind, f32 smoothing, bool packed) {
  RowLoss r;
  // Read before anybody may overwrite the logits with their gradient: barriers follow.
  r.at_label = to_f32(row[label]);
  r.s = row_statistics<THREADS>(row, vocab, packed);
  f32 plain = (f32)(log((f64)r.s.sum) + ((f64)r.s.max - (f64)r.at_label));
  r.weight = 1.f;
  r.loss = plain;
  if (kind == SMOOTHED) {
    // The log-probability of a token is its logit less one number, the same for all of them.
    f32 sum = 0, v[8];
    for (u32 c = threadIdx.x * 8; c < vocab; c += THREADS * 8) {
      load8(v, row + c, vocab - c, packed);
      UNROLL for (u32 i = 0; i < 8; i++)
        if (c + i < vocab) sum += v[i] - r.s.max;
    }
    r.loss = plain + smoothing * ((r.at_label - r.s.max) - team_sum<THREADS>(sum) / (f32)vocab);
  }
  if (kind == BY_PROBABILITY) {
    r.weight = expf(-plain);
    r.loss = r.weight * plain;
  }
  return r;
}

// Losses, or with `negative` log-probabilities of labels.
template <class T>
DEVICE void losses_of(const T* logits, const i32* labels, u32 kind, f32 smoothing, f32* losses, u32 rows,
                      u32 vocab, bool negative) {
  bool packed = packs(logits, vocab);
  for (u32 row = blockIdx.x; row < rows; row += gridDim.x) {
    i32 label = labels[row];
    f32 loss = 0;
    if (label != IGNORE) loss = row_loss(logits + (u64)row * vocab, (u32)label, vocab, kind, smoothing, packed).loss;
    if (threadIdx.x == 0) losses[row] = negative && label != IGNORE ? -loss : loss;
  }
}

// d_logits = scale (softmax - onehot), of a row's own scale where there are such. `cap` is that of a soft cap whose
// output the logits are, or 0. The gradient may overwrite the logits.
template <class T, class D>
DEVICE void loss_grads(const T* logits, const i32* labels, u32 kind, f32 smoothing, f32 scale, const f32* row_scales,
                       f32 cap, f32* losses, D* d_logits, u32 rows, u32 vocab) {
  bool packed = packs(logits, vocab) && packs(d_logits, vocab);
  for (u32 row = blockIdx.x; row < rows; row += gridDim.x) {
    const T* from = logits + (u64)row * vocab;
    D* to = d_logits + (u64)row * vocab;
    bool counts = labels[row] != IGNORE;
    u32 label = counts ? (u32)labels[row] : 0;
    RowLoss r = {{0.f, 1.f}, 0.f, 0.f, 0.f};
    if (counts) r = row_loss(from, label, vocab, kind, smoothing, packed);
    f32 own = (row_scales ? row_scales[row] : scale) * r.weight;
    f32 factor = own / r.s.sum, even = own * smoothing / (f32)vocab, hard = own * (1.f - smoothing), v[8];
    for (u32 c = threadIdx.x * 8; c < vocab; c += THREADS * 8) {
      if (counts) load8(v, from + c, vocab - c, packed);
      UNROLL for (u32 i = 0; i < 8; i++) {
        f32 t = v[i] / cap, slope = cap == 0.f ? 1.f : 1.f - t * t;
        f32 d = expf(v[i] - r.s.max) * factor - even - (c + i == label ? hard : 0.f);
        v[i] = counts ? d * slope : 0.f;
      }
      store8(to + c, v, vocab - c, packed, 0);
    }
    if (threadIdx.x == 0) losses[row] = r.loss;
  }
}

}  // namespace

#define LOSS(T) \
  KERNEL(token_loss_##T, THREADS, \
         (const T* logits, const i32* labels, u32 kind, f32 smoothing, f32* losses, u32 rows, u32 vocab), \
         losses_of<T>(logits, labels, kind, smoothing, losses, rows, vocab, false)) \
  KERNEL(label_log_probs_##T, THREADS, (const T* logits, const i32* labels, f32* log_probs, u32 rows, u32 vocab), \
         losses_of<T>(logits, labels, CROSS_ENTROPY, 0.f, log_probs, rows, vocab, true))
#define GRAD(T, D) \
  KERNEL(token_loss_grad_##T##_##D, THREADS, \
         (const T* logits, const i32* labels, u32 kind, f32 smoothing, f32 scale, const f32* row_scales, f32 cap, \
          f32* losses, D* d_logits, u32 rows, u32 vocab), \
         loss_grads<T, D>(logits, labels, kind, smoothing, scale, row_scales, cap, losses, d_logits, rows, vocab))

LOSS(f32)
LOSS(bf16)
LOSS(f16)
GRAD(f32, f32)
GRAD(f32, bf16)
GRAD(f32, f16)
GRAD(bf16, bf16)
GRAD(f16, f16)

// The sum of the losses of rows in f64, or with labels the mean over those that are not IGNORE: exactly, rounded, and what the
// sum was multiplied with. The first and the last may be absent. By one block.
KERNEL(total_loss, THREADS, (const f32* losses, const i32* labels, f64* exact, f32* loss, f32* scale, u32 n),
       f64 sum = 0, count = 0;
       for (u32 i = threadIdx.x; i < n; i += THREADS) {
         sum += losses[i];
         if (labels && labels[i] != IGNORE) count += 1;
       }
       sum = team_sum<THREADS>(sum);
       count = team_sum<THREADS>(count);
       f64 factor = labels ? 1. / max(count, 1.) : 1.;
       if (threadIdx.x == 0) {
         if (exact) *exact = sum * factor;
         *loss = (f32)(sum * factor);
         if (scale) *scale = (f32)factor;
       })
