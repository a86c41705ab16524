// What kernels over rows of numbers share: the maximum of a row and the sum of exponentials below it.
#pragma once
#include "functions.h"

// Below every number, and a number itself, so that differences are none of infinities.
const f32 LEAST = -3.4028234e38f;

struct RowStatistics {
  f32 max, sum;
};

// In one pass: each thread keeps a running maximum, and its sum relative to it.
template <u32 TEAM, class T> DEVICE RowStatistics row_statistics(const T* row, u32 dim, bool packed) {
  f32 top = LEAST, sum = 0, v[8];
  for (u32 c = team_lane<TEAM>() * 8; c < dim; c += TEAM * 8) {
    load8(v, row + c, dim - c, packed);
    f32 here = top;
    UNROLL for (u32 i = 0; i < 8; i++)
      if (c + i < dim) here = max(here, v[i]);
    sum *= expf(top - here);
    top = here;
    UNROLL for (u32 i = 0; i < 8; i++)
      if (c + i < dim) sum += expf(v[i] - top);
  }
  f32 all = team_max<TEAM>(top);
  return {all, team_sum<TEAM>(sum * expf(top - all))};
}
