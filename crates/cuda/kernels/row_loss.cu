// Cross-entropy of each row for itself, with weights of classes and smoothed labels.
//
// A block works on a row of f32: logits, or log-probabilities already. Rows whose label is IGNORE have loss, weight and
// gradient 0.
#include "rows.h"

namespace {

const i32 IGNORE = -100;

// What the log-probability of the label and the weighted one of every class count, with the sum of the latter.
struct Shares {
  f32 hard, soft, all;
};

struct Loss {
  const i32* labels;
  const f32* weight;  // Of classes; may be absent.
  f32 smoothing;
  u32 log_probs, n_classes;

  DEVICE f32 weight_of(u32 c) const { return weight ? weight[c] : 1.f; }
  // The sum of the weights of all classes, which all threads get.
  DEVICE f32 total() const {
    if (!weight) return (f32)n_classes;
    f64 sum = 0;
    for (u32 c = threadIdx.x; c < n_classes; c += THREADS) sum += weight[c];
    return (f32)team_sum<THREADS>(sum);
  }
  DEVICE Shares shares(u32 label, f32 total) const {
    f32 hard = (1.f - smoothing) * weight_of(label), soft = smoothing / (f32)n_classes;
    return {hard, soft, hard + soft * total};
  }
};

DEVICE void forward(const Loss& loss, const f32* x, f32* losses, f32* weights, u32 rows) {
  bool packed = packs(x, loss.n_classes);
  f32 total = loss.total();
  for (u32 row = blockIdx.x; row < rows; row += gridDim.x) {
    i32 label = loss.labels[row];
    f32 sum = 0;
    if (label != IGNORE) {
      const f32* from = x + (u64)row * loss.n_classes;
      Shares shares = loss.shares((u32)label, total);
      f64 log_sum = 0;
      if (!loss.log_probs) {
        RowStatistics s = row_statistics<THREADS>(from, loss.n_classes, packed);
        log_sum = log((f64)s.sum) + (f64)s.max;
      }
      sum = (f32)((f64)shares.hard * (log_sum - (f64)from[label]));
      if (shares.soft != 0.f) {
        f32 soft = 0;
        for (u32 c = threadIdx.x; c < loss.n_classes; c += THREADS) soft += loss.weight_of(c) * ((f32)log_sum - from[c]);
        sum += shares.soft * team_sum<THREADS>(soft);
      }
    }
    if (threadIdx.x == 0) {
      losses[row] = sum;
      weights[row] = label != IGNORE ? loss.weight_of((u32)label) : 0.f;
    }
  }
}

// The gradient for x, from those of the losses.
template <class T> DEVICE void backward(const Loss& loss, const f32* x, const f32* dy, T* dx, u32 rows) {
  bool packed = packs(x, loss.n_classes);
  f32 total = loss.total();
  for (u32 row = blockIdx.x; row < rows; row += gridDim.x) {
    i32 label = loss.labels[row];
    const f32* from = x + (u64)row * loss.n_classes;
    T* to = dx + (u64)row * loss.n_classes;
    Shares shares = {};
    RowStatistics s = {0.f, 1.f};
    if (label != IGNORE) {
      shares = loss.shares((u32)label, total);
      if (!loss.log_probs) s = row_statistics<THREADS>(from, loss.n_classes, packed);
    }
    f32 factor = dy[row] * shares.all / s.sum, soft = dy[row] * shares.soft, hard = dy[row] * shares.hard;
    for (u32 c = threadIdx.x; c < loss.n_classes; c += THREADS) {
      f32 prob = loss.log_probs ? 0.f : expf(from[c] - s.max) * factor;
      f32 d = prob - soft * loss.weight_of(c) - ((i32)c == label ? hard : 0.f);
      put(to[c], label != IGNORE ? d : 0.f);
    }
  }
}

}  // namespace

KERNEL(row_loss, THREADS,
       (const f32* x, const i32* labels, const f32* weight, f32 smoothing, u32 log_probs, f32* losses, f32* weights,
        u32 rows, u32 n_classes),
       forward({labels, weight, smoothing, log_probs, n_classes}, x, losses, weights, rows))

#define BACKWARD(T) \
  KERNEL(row_loss_grad_##T, THREADS, \
         (const f32* x, const i32* labels, const f32* weight, f32 smoothing, u32 log_probs, const f32* dy, T* dx, u32 rows, \
          u32 n_classes), \
         backward({labels, weight, smoothing, log_probs, n_classes}, x, dy, dx, rows))

BACKWARD(f32)
BACKWARD(bf16)
BACKWARD(f16)
