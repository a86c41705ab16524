// libcublasLt for tests: products by three loops, with sums in f32, on the streams of the fake driver beside it.
#include <dlfcn.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "words.h"

typedef int Status;
static const Status NOT_INITIALIZED = 1, INVALID_VALUE = 7, INTERNAL_ERROR = 14, NOT_SUPPORTED = 15;

struct Desc {
  int compute, scale;
  int trans_a = 0, trans_b = 0;
  u32 epilogue = 1;
  u64 bias = 0;
};
struct Layout {
  int type;
  u64 rows, cols;
  long long ld;
  int batch = 1;
  long long stride = 0;
};
struct Preference {
  u64 workspace = 0;
  u32 reductions = 7;
  u32 alignment[4] = {256, 256, 256, 256};
};
struct Algo {
  // 0 for one that fits every shape, as those have that were made from an id.
  u64 shape;
  u32 attributes[9];
  u32 alignment[4], bias_alignment;
};
static_assert(sizeof(Algo) == 64);
const u64 ALGO_WORKSPACE = 65536;
// Ids of algorithms from 10 on, of which each has a tile of its own; split sums need two splits.
const u32 FIRST_ID = 10, N_ALGOS = 3;
struct Result {
  Algo algo;
  size_t workspace;
  Status state;
  float waves;
  int reserved[4];
};

// Another copy of this file can be of another version.
static int version = 130100;
static std::atomic<int> n_alive{0}, n_choices{0}, last_id{0}, is_new{0};
// What success comes with where the library has nothing for a shape: proposals, none, or some that say that they cannot run.
static std::atomic<int> proposals{0};
const int NONE = 1, UNUSABLE = 2;

// The fake driver in the folder of this file.
static void* driver(const char* symbol) {
  Dl_info info;
  dladdr((void*)&driver, &info);
  std::string file = info.dli_fname;
  file = file.substr(0, file.rfind('/') + 1) + "libcuda.so.1";
  void* library = dlopen(file.c_str(), RTLD_NOW);
  return library ? dlsym(library, symbol) : nullptr;
}
typedef int Enqueue(void*, void* const*, const size_t*, size_t, void (*)(void*), void (*)(void*), void*);

static Status planned(const char* call) { return ((int (*)(const char*))driver("fake_planned"))(call); }
#define CALL(name) \
  if (Status status = planned(name)) return status

static int size_of(int type) { return type == 0 ? 4 : 2; }
static f32 load(u64 at, int type, u64 i) {
  if (type == 0) return ((const f32*)at)[i];
  return type == 14 ? to_f32(((const bf16*)at)[i]) : to_f32(((const f16*)at)[i]);
}
static void save(u64 at, int type, u64 i, f32 v) {
  if (type == 0) ((f32*)at)[i] = v;
  else if (type == 14) put(((bf16*)at)[i], v);
  else put(((f16*)at)[i], v);
}
// The bits that tensor cores multiply, rounded to the nearest.
static f32 to_tf32(f32 v) { return as_f32((as_u32(v) + 0x1000) & ~0x1fffu); }

struct Product {
  Desc desc;
  Layout a, b, c, d;
  u64 at_a, at_b, at_c, at_d, workspace;
  size_t workspace_bytes;
  f32 alpha, beta;

  // A matrix as rows of values along the inner dimension: row x of A, or column x of B, at each k.
  std::vector<f32> unpacked(const Layout& m, u64 at, bool along_rows, int n) const {
    u64 outer = along_rows ? m.cols : m.rows, inner = along_rows ? m.rows : m.cols;
    std::vector<f32> values(outer * inner);
    for (u64 k = 0; k < inner; k++)
      for (u64 x = 0; x < outer; x++) {
        f32 v = load(at, m.type, (u64)(n * m.stride) + (along_rows ? k + x * m.ld : x + k * m.ld));
        values[k * outer + x] = desc.compute == 77 ? to_tf32(v) : v;
      }
    return values;
  }
  void run() const {
    u64 inner = desc.trans_a ? a.rows : a.cols;
    // An algorithm may write anything there; both ends are enough to find out whoever else has it.
    size_t end = std::min<size_t>(workspace_bytes, 1 << 16);
    memset((void*)workspace, 0xff, end);
    memset((char*)workspace + workspace_bytes - end, 0xff, end);
    std::vector<f32> sums(d.rows);
    for (int n = 0; n < d.batch; n++) {
      std::vector<f32> rows = unpacked(a, at_a, desc.trans_a, n), cols = unpacked(b, at_b, !desc.trans_b, n);
      for (u64 col = 0; col < d.cols; col++) {
        std::fill(sums.begin(), sums.end(), 0.f);
        for (u64 k = 0; k < inner; k++)
          for (u64 row = 0; row < d.rows; row++) sums[row] += rows[k * d.rows + row] * cols[k * d.cols + col];
        for (u64 row = 0; row < d.rows; row++) {
          f32 v = alpha * sums[row];
          if (beta != 0) v += beta * load(at_c, c.type, (u64)(n * c.stride) + row + col * c.ld);
          if (desc.epilogue & 4) v += load(desc.bias, d.type, row);
          save(at_d, d.type, (u64)(n * d.stride) + row + col * d.ld, v);
        }
      }
    }
  }
};

static u64 hash_of(const Desc& desc, const Layout* const* layouts) {
  u64 hash = desc.compute * 31 + desc.trans_a * 2 + desc.trans_b + desc.epilogue * 1001;
  for (int i = 0; i < 4; i++)
    for (u64 v : {(u64)layouts[i]->type, layouts[i]->rows, layouts[i]->cols, (u64)layouts[i]->ld, (u64)layouts[i]->batch,
                  (u64)layouts[i]->stride})
      hash = hash * 6364136223846793005ull + v + 1;
  return hash;
}
static u64 alignment_of(u64 address) { return address ? address & -address : 0; }
static bool fits(const Desc& desc, const Layout& a, const Layout& b, const Layout& c, const Layout& d) {
  u64 m = desc.trans_a ? a.cols : a.rows, k = desc.trans_a ? a.rows : a.cols;
  u64 n = desc.trans_b ? b.rows : b.cols, inner = desc.trans_b ? b.cols : b.rows;
  bool sizes = m == d.rows && n == d.cols && k == inner && c.rows == d.rows && c.cols == d.cols;
  bool batches = a.batch == d.batch && b.batch == d.batch && c.batch == d.batch;
  return sizes && batches && a.type == b.type && c.type == d.type && (d.type == a.type || d.type == 0);
}

extern "C" {

size_t cublasLtGetVersion() { return version; }
void fake_blas_version(int number) { version = number; }
const char* cublasLtGetStatusName(Status status) {
  switch (status) {
    case NOT_INITIALIZED: return "CUBLAS_STATUS_NOT_INITIALIZED";
    case INVALID_VALUE: return "CUBLAS_STATUS_INVALID_VALUE";
    case INTERNAL_ERROR: return "CUBLAS_STATUS_INTERNAL_ERROR";
    case NOT_SUPPORTED: return "CUBLAS_STATUS_NOT_SUPPORTED";
  }
  return nullptr;
}
const char* cublasLtGetStatusString(Status) { return "what the fake library says of it"; }

Status cublasLtCreate(void** handle) {
  CALL("cublasLtCreate");
  // As where the driver is too old for it.
  int supported = 0;
  ((int (*)(int*))driver("cuDriverGetVersion"))(&supported);
  if (version / 10000 > supported / 1000) return NOT_INITIALIZED;
  *handle = new int(0);
  n_alive++;
  return 0;
}
Status cublasLtDestroy(void* handle) {
  delete (int*)handle;
  n_alive--;
  return 0;
}
Status cublasLtMatmulDescCreate(Desc** desc, int compute, int scale) {
  CALL("cublasLtMatmulDescCreate");
  if ((compute != 68 && compute != 77) || scale != 0) return NOT_SUPPORTED;
  *desc = new Desc{compute, scale};
  n_alive++;
  return 0;
}
Status cublasLtMatmulDescDestroy(Desc* desc) {
  delete desc;
  n_alive--;
  return 0;
}
Status cublasLtMatmulDescSetAttribute(Desc* desc, int attribute, const void* value, size_t n) {
  CALL("cublasLtMatmulDescSetAttribute");
  void* to = attribute == 3   ? (void*)&desc->trans_a
             : attribute == 4 ? (void*)&desc->trans_b
             : attribute == 7 ? (void*)&desc->epilogue
             : attribute == 8 ? (void*)&desc->bias
                              : nullptr;
  if (!to || n != (attribute == 8 ? 8 : 4)) return INVALID_VALUE;
  memcpy(to, value, n);
  return 0;
}
Status cublasLtMatrixLayoutCreate(Layout** layout, int type, u64 rows, u64 cols, long long ld) {
  CALL("cublasLtMatrixLayoutCreate");
  if ((type != 0 && type != 2 && type != 14) || !rows || !cols || ld < (long long)rows) return INVALID_VALUE;
  *layout = new Layout{type, rows, cols, ld};
  n_alive++;
  return 0;
}
Status cublasLtMatrixLayoutDestroy(Layout* layout) {
  delete layout;
  n_alive--;
  return 0;
}
Status cublasLtMatrixLayoutSetAttribute(Layout* layout, int attribute, const void* value, size_t n) {
  CALL("cublasLtMatrixLayoutSetAttribute");
  if (attribute == 5 && n == 4) memcpy(&layout->batch, value, n);
  else if (attribute == 6 && n == 8) memcpy(&layout->stride, value, n);
  else return INVALID_VALUE;
  return 0;
}
Status cublasLtMatmulPreferenceCreate(Preference** preference) {
  CALL("cublasLtMatmulPreferenceCreate");
  *preference = new Preference;
  n_alive++;
  return 0;
}
Status cublasLtMatmulPreferenceDestroy(Preference* preference) {
  delete preference;
  n_alive--;
  return 0;
}
Status cublasLtMatmulPreferenceSetAttribute(Preference* preference, int attribute, const void* value, size_t n) {
  CALL("cublasLtMatmulPreferenceSetAttribute");
  if (attribute == 1 && n == 8) memcpy(&preference->workspace, value, n);
  else if (attribute == 3 && n == 4) memcpy(&preference->reductions, value, n);
  else if (attribute >= 5 && attribute <= 8 && n == 4) memcpy(&preference->alignment[attribute - 5], value, n);
  else return INVALID_VALUE;
  return 0;
}

// An algorithm is for one shape, and for no less alignment than it was asked for. It needs a workspace of 64 KiB.
Status cublasLtMatmulAlgoGetHeuristic(void*, const Desc* desc, const Layout* a, const Layout* b, const Layout* c,
                                      const Layout* d, const Preference* preference, int wanted, Result* results, int* n) {
  CALL("cublasLtMatmulAlgoGetHeuristic");
  *n = 0;
  if (wanted < 1 || !fits(*desc, *a, *b, *c, *d)) return INVALID_VALUE;
  if (preference->workspace < ALGO_WORKSPACE) return NOT_SUPPORTED;
  const Layout* layouts[] = {a, b, c, d};
  for (u32 i = 0; i < N_ALGOS && *n < wanted && proposals != NONE; i++) {
    // The last one splits its sums, and adds the parts in the output.
    u32 reduction = i == N_ALGOS - 1 ? 4 : 0;
    if ((preference->reductions & reduction) != reduction) continue;
    Result& result = results[(*n)++] = {};
    result.algo = {hash_of(*desc, layouts), {FIRST_ID + i, 100 + i, 1 + reduction / 4, reduction, 0, 0, i, i, i}};
    result.workspace = ALGO_WORKSPACE;
    result.state = proposals == UNUSABLE ? NOT_SUPPORTED : 0;
    for (int j = 0; j < 4; j++) result.algo.alignment[j] = preference->alignment[j];
    u64 bias = alignment_of(desc->bias);
    result.algo.bias_alignment = bias > 256 ? 256 : bias;
  }
  n_choices++;
  return 0;
}

// An algorithm of this id, whose other attributes are still those that no algorithm has.
Status cublasLtMatmulAlgoInit(void*, int compute, int scale, int, int, int, int, int id, Algo* algo) {
  CALL("cublasLtMatmulAlgoInit");
  if ((compute != 68 && compute != 77) || scale != 0) return INVALID_VALUE;
  // A newer library may have lost one.
  if (id < (int)FIRST_ID || id >= (int)(FIRST_ID + N_ALGOS) || (is_new && id == (int)FIRST_ID + 1)) return NOT_SUPPORTED;
  *algo = {0, {(u32)id}, {16, 16, 16, 16}, 16};
  return 0;
}
static size_t size_of_attribute(int attribute) { return attribute >= 7 ? 2 : 4; }
Status cublasLtMatmulAlgoConfigSetAttribute(Algo* algo, int attribute, const void* value, size_t n) {
  CALL("cublasLtMatmulAlgoConfigSetAttribute");
  if (attribute < 1 || attribute > 8 || n != size_of_attribute(attribute)) return INVALID_VALUE;
  memcpy(&algo->attributes[attribute], value, n);
  return 0;
}
Status cublasLtMatmulAlgoConfigGetAttribute(const Algo* algo, int attribute, void* value, size_t n, size_t* written) {
  CALL("cublasLtMatmulAlgoConfigGetAttribute");
  if (attribute < 0 || attribute > 8 || n != size_of_attribute(attribute)) return INVALID_VALUE;
  memcpy(value, &algo->attributes[attribute], n);
  *written = n;
  return 0;
}
Status cublasLtMatmulAlgoCheck(void*, const Desc* desc, const Layout* a, const Layout* b, const Layout* c,
                               const Layout* d, const Algo* algo, Result* result) {
  CALL("cublasLtMatmulAlgoCheck");
  if (!fits(*desc, *a, *b, *c, *d)) return INVALID_VALUE;
  u32 i = algo->attributes[0] - FIRST_ID;
  for (int other : {1, 6, 7, 8})
    if (algo->attributes[other] != i + (other == 1 ? 100 : 0)) return NOT_SUPPORTED;
  *result = {*algo, ALGO_WORKSPACE, proposals == UNUSABLE ? NOT_SUPPORTED : 0, 1.f, {}};
  return 0;
}

Status cublasLtMatmul(void* handle, const Desc* desc, const f32* alpha, u64 at_a, const Layout* a, u64 at_b,
                      const Layout* b, const f32* beta, u64 at_c, const Layout* c, u64 at_d, const Layout* d,
                      const Algo* algo, u64 workspace, size_t workspace_bytes, void* stream) {
  CALL("cublasLtMatmul");
  const Layout* layouts[] = {a, b, c, d};
  if (!handle) return NOT_INITIALIZED;
  if (algo->shape && algo->shape != hash_of(*desc, layouts)) return INVALID_VALUE;
  if (workspace_bytes < ALGO_WORKSPACE) return INVALID_VALUE;
  u64 addresses[] = {at_a, at_b, at_c, at_d};
  for (int i = 0; i < 4; i++)
    if (addresses[i] % algo->alignment[i]) return INVALID_VALUE;
  bool has_bias = desc->epilogue & 4;
  if (has_bias && (!desc->bias || desc->bias % algo->bias_alignment)) return INVALID_VALUE;
  last_id = algo->attributes[0];
  auto* product = new Product{*desc, *a, *b, *c, *d, at_a, at_b, at_c, at_d, workspace, workspace_bytes, *alpha, *beta};
  std::vector<void*> starts = {(void*)workspace};
  std::vector<size_t> bytes = {workspace_bytes};
  auto touches = [&](u64 at, size_t n) { starts.push_back((void*)at), bytes.push_back(n); };
  for (int i = 0; i < 4; i++) {
    const Layout& m = *layouts[i];
    if (i == 2 && *beta == 0) continue;
    touches(addresses[i], ((m.batch - 1) * m.stride + (m.cols - 1) * m.ld + m.rows) * size_of(m.type));
  }
  if (has_bias) touches(desc->bias, d->rows * size_of(d->type));
  auto run = [](void* p) { ((Product*)p)->run(); };
  auto end = [](void* p) { delete (Product*)p; };
  auto* enqueue = (Enqueue*)driver("fake_enqueue");
  return enqueue(stream, starts.data(), bytes.data(), starts.size(), run, end, product) ? INTERNAL_ERROR : 0;
}

// What tests ask.
int fake_blas_alive() { return n_alive; }
int fake_choices() { return n_choices; }
int fake_algorithm() { return last_id; }
// What the library proposes from now on, as above.
void fake_proposals(int which) { proposals = which; }
// From now on the library lacks its second algorithm, as another version might. The number of the ids.
int fake_new_version() {
  is_new = 1;
  return N_ALGOS;
}

}  // extern "C"
