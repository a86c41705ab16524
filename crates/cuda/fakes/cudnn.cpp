// libcudnn for tests: it runs any graph of the operations below, one after the other in f32, on the streams of the fake driver
// beside it. What it computes is what the graph says, so a wrong graph gives a wrong result.
#include <dlfcn.h>

#include <atomic>
#include <cmath>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "words.h"

typedef int Status;
typedef long long i64;
static const Status BAD_PARAM = 2000, NOT_SUPPORTED = 3000, EXECUTION_FAILED = 5000;
enum Kind { ENGINE = 2, CONFIG = 3, HEURISTIC = 4, PLAN = 5, POINTWISE_OP = 13, GRAPH = 15,
            TENSOR = 17, MATMUL_OP = 19, REDUCTION_OP = 22, RESHAPE_OP = 31 };
enum Type { HANDLE = 0, BOOLEAN = 2, INT64 = 3, POINTER = 6, DESCRIPTOR = 15, CHAR = 24 };
enum { F32 = 0, F16 = 2, I32 = 4, BF16 = 9, BOOL = 11 };
// Of the engine that gives bitwise identical results every time; the other one does not, which nobody should take.
static const i64 DETERMINISTIC = 1;
static const size_t WORKSPACE_BYTES = 65536;

static std::atomic<int> n_alive{0}, n_plans{0}, n_runs{0};
// Configurations that a heuristic proposes.
static std::atomic<int> n_proposals{2};

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
#define CALL(name) \
  if (Status status = ((int (*)(const char*))driver("fake_planned"))(name)) return status

struct Data;
typedef std::shared_ptr<Data> Ref;
struct Data {
  int kind;
  bool final = false;
  std::map<int, std::vector<char>> plain;
  std::map<int, std::vector<Ref>> refs;
  // Of an engine or a configuration.
  i64 engine = 0;

  template <class T>
  std::vector<T> all(int name) const {
    auto found = plain.find(name);
    if (found == plain.end()) return {};
    std::vector<T> out(found->second.size() / sizeof(T));
    if (!out.empty()) memcpy(out.data(), found->second.data(), out.size() * sizeof(T));
    return out;
  }
  template <class T>
  T one(int name, T otherwise) const {
    auto found = all<T>(name);
    return found.size() == 1 ? found[0] : otherwise;
  }
  Ref ref(int name) const {
    auto found = refs.find(name);
    return found != refs.end() && found->second.size() == 1 ? found->second[0] : nullptr;
  }
};
struct Descriptor {
  Ref data;
};
struct Library {
  void* stream = nullptr;
};

static size_t size_of(int type) {
  if (type == BOOLEAN || type == CHAR) return 1;
  return type == HANDLE || type == INT64 || type == POINTER || type == DESCRIPTOR ? 8 : 4;
}

// What a tensor descriptor says.
struct Tensor {
  int type;
  i64 id, dims[4], strides[4];
  bool is_virtual, is_value;

  explicit Tensor(const Data& data)
      : type(data.one<int>(901, -1)), id(data.one<i64>(906, -1)), is_virtual(data.one<char>(907, 0)),
        is_value(data.one<char>(908, 0)) {
    std::vector<i64> sizes = data.all<i64>(902), steps = data.all<i64>(903);
    sizes.resize(4), steps.resize(4);
    for (int i = 0; i < 4; i++) dims[i] = sizes[i], strides[i] = steps[i];
  }
  i64 count() const { return dims[0] * dims[1] * dims[2] * dims[3]; }
  i64 extent() const {
    i64 last = 0;
    for (int i = 0; i < 4; i++) last += (dims[i] - 1) * strides[i];
    return last + 1;
  }
  size_t bytes() const { return (size_t)extent() * (type == F32 || type == I32 ? 4 : type == BOOL ? 1 : 2); }
  template <class F>
  void each(F f) const {
    i64 at[4], n = 0;
    for (at[0] = 0; at[0] < dims[0]; at[0]++)
      for (at[1] = 0; at[1] < dims[1]; at[1]++)
        for (at[2] = 0; at[2] < dims[2]; at[2]++)
          for (at[3] = 0; at[3] < dims[3]; at[3]++) f(at, n++);
  }
  i64 offset(const i64* at) const {
    return at[0] * strides[0] + at[1] * strides[1] + at[2] * strides[2] + at[3] * strides[3];
  }
  // Where the element for another tensor's place is: in a dim of fewer elements, each is for several in a row.
  i64 place(const i64* at, const i64* of) const {
    i64 n = 0;
    for (int i = 0; i < 4; i++) n = n * dims[i] + at[i] / (of[i] / dims[i]);
    return n;
  }
};

static f32 rounded(int type, f32 v) {
  if (type == BF16) {
    bf16 r;
    put(r, v);
    return to_f32(r);
  }
  if (type == F16) {
    f16 r;
    put(r, v);
    return to_f32(r);
  }
  return v;
}

// An execution: what the stream does later.
struct Run {
  Ref graph;
  i64 engine;
  std::map<i64, char*> memory;
  std::map<i64, std::vector<f32>> values;
  char* workspace;

  const std::vector<f32>& read(const Tensor& t) {
    auto found = values.find(t.id);
    if (found != values.end()) return found->second;
    std::vector<f32> all((size_t)t.count());
    const char* from = memory.at(t.id);
    t.each([&](const i64* at, i64 n) {
      i64 i = t.offset(at);
      all[n] = t.type == F32    ? ((const f32*)from)[i]
               : t.type == BF16 ? to_f32(((const bf16*)from)[i])
                                : to_f32(((const f16*)from)[i]);
    });
    return values[t.id] = all;
  }
  void write(const Tensor& t, std::vector<f32> all) {
    for (f32& v : all) v = rounded(t.type, v);
    if (!t.is_virtual) {
      char* to = memory.at(t.id);
      t.each([&](const i64* at, i64 n) {
        i64 i = t.offset(at);
        // The engine that nobody should take.
        f32 v = engine == DETERMINISTIC ? all[n] : NAN;
        if (t.type == F32) ((f32*)to)[i] = v;
        else if (t.type == BF16) put(((bf16*)to)[i], v);
        else put(((f16*)to)[i], v);
      });
    }
    values[t.id] = std::move(all);
  }

  void pointwise(const Data& op) {
    Tensor x(*op.ref(751)), y(*op.ref(753));
    int mode = op.ref(750)->one<int>(0, -1);
    i64 axis = op.ref(750)->one<i64>(9, 0);
    Ref second = op.ref(752), third = op.ref(758);
    Tensor other = second ? Tensor(*second) : x, condition = third ? Tensor(*third) : x;
    const std::vector<f32> none, a = mode == 501 ? none : read(x), b = second ? read(other) : none,
                           c = third ? read(condition) : none;
    std::vector<f32> out((size_t)y.count());
    y.each([&](const i64* at, i64 n) {
      f32 v = mode == 501 ? (f32)at[axis] : a[x.place(at, y.dims)], w = second ? b[other.place(at, y.dims)] : 0;
      switch (mode) {
        case 0: v += w; break;
        case 1: v *= w; break;
        case 6: v /= w; break;
        case 9: v -= w; break;
        case 13: v = expf(v); break;
        case 15: v = logf(v); break;
        case 302: v = v > w; break;
        case 303: v = v >= w; break;
        case 601: v = c[condition.place(at, y.dims)] != 0 ? v : w; break;
      }
      out[n] = v;
    });
    write(y, out);
  }
  void matmul(const Data& op) {
    Tensor a(*op.ref(1520)), b(*op.ref(1521)), c(*op.ref(1522));
    const std::vector<f32> x = read(a), y = read(b);
    std::vector<f32> out((size_t)c.count());
    i64 inner = a.dims[3];
    c.each([&](const i64* at, i64 n) {
      i64 row[4] = {at[0], at[1], at[2], 0}, column[4] = {at[0], at[1], 0, at[3]};
      i64 rows[4] = {c.dims[0], c.dims[1], c.dims[2], inner}, columns[4] = {c.dims[0], c.dims[1], inner, c.dims[3]};
      f32 sum = 0;
      for (i64 k = 0; k < inner; k++) {
        row[3] = column[2] = k;
        sum += x[a.place(row, rows)] * y[b.place(column, columns)];
      }
      out[n] = sum;
    });
    write(c, out);
  }
  void reduce(const Data& op) {
    Tensor x(*op.ref(1610)), y(*op.ref(1611));
    bool is_max = op.ref(1612)->one<int>(1600, -1) == 3;
    const std::vector<f32> from = read(x);
    std::vector<f32> out((size_t)y.count(), is_max ? -INFINITY : 0);
    x.each([&](const i64* at, i64 n) {
      f32& to = out[y.place(at, x.dims)];
      to = is_max ? fmaxf(to, from[n]) : to + from[n];
    });
    write(y, out);
  }
  // The same memory with other sizes and strides.
  void reshape(const Data& op) {
    Tensor x(*op.ref(2200)), y(*op.ref(2201));
    const std::vector<f32> from = read(x);
    std::vector<f32> lying((size_t)x.extent(), NAN), out((size_t)y.count());
    x.each([&](const i64* at, i64 n) { lying[x.offset(at)] = from[n]; });
    y.each([&](const i64* at, i64 n) { out[n] = lying[y.offset(at)]; });
    write(y, out);
  }
  void run() {
    // A plan may write anything there.
    if (engine == DETERMINISTIC) memset(workspace, 0xff, WORKSPACE_BYTES);
    for (const Ref& op : graph->refs.at(801)) {
      if (op->kind == POINTWISE_OP) pointwise(*op);
      if (op->kind == MATMUL_OP) matmul(*op);
      if (op->kind == REDUCTION_OP) reduce(*op);
      if (op->kind == RESHAPE_OP) reshape(*op);
    }
  }
};

static bool divides(const Tensor& small, const i64* dims) {
  for (int i = 0; i < 4; i++)
    if (small.dims[i] < 1 || dims[i] % small.dims[i]) return false;
  return true;
}
// The tensors that an operation reads, and behind them the one that it writes; none where one is missing.
static std::vector<Ref> tensors_of(const Data& op) {
  std::vector<int> names = op.kind == POINTWISE_OP ? std::vector<int>{751, 752, 758, 753}
                           : op.kind == MATMUL_OP  ? std::vector<int>{1520, 1521, 1522}
                           : op.kind == RESHAPE_OP ? std::vector<int>{2200, 2201}
                                                   : std::vector<int>{1610, 1611};
  std::vector<Ref> all;
  for (int name : names) {
    Ref ref = op.ref(name);
    if (!ref && (name == 752 || name == 758)) continue;
    if (!ref || ref->kind != TENSOR || !ref->final) return {};
    all.push_back(ref);
  }
  return all;
}
static bool fits(const Data& op) {
  std::vector<Ref> all = tensors_of(op);
  if (all.empty()) return false;
  Tensor y(*all.back()), x(*all[0]);
  if (op.kind == MATMUL_OP) {
    Tensor b(*all[1]);
    i64 rows[4] = {y.dims[0], y.dims[1], y.dims[2], b.dims[2]}, columns[4] = {y.dims[0], y.dims[1], x.dims[3], y.dims[3]};
    return x.dims[3] == b.dims[2] && divides(x, rows) && divides(b, columns) && x.type == b.type && x.type != F32;
  }
  if (op.kind == REDUCTION_OP) return divides(y, x.dims);
  if (op.kind == RESHAPE_OP) return x.count() == y.count() && x.extent() == y.extent();
  int mode = op.ref(750) ? op.ref(750)->one<int>(0, -1) : -1;
  size_t operands = mode == 601 ? 3 : mode == 13 || mode == 15 || mode == 501 ? 1 : 2;
  bool known = false;
  for (int one : {0, 1, 6, 9, 13, 15, 302, 303, 501, 601}) known = known || mode == one;
  for (const Ref& one : all) known = known && divides(Tensor(*one), y.dims);
  return known && all.size() == operands + 1;
}
// Whether everything is written before it is read, and once.
static bool is_ordered(const Data& graph) {
  std::map<i64, bool> written;
  auto ops = graph.refs.find(801);
  if (ops == graph.refs.end()) return false;
  for (const Ref& op : ops->second) {
    std::vector<Ref> all = tensors_of(*op);
    if (!op->final || all.empty()) return false;
    for (size_t i = 0; i + 1 < all.size(); i++)
      if (Tensor(*all[i]).is_virtual && !written[Tensor(*all[i]).id]) return false;
    bool& is_written = written[Tensor(*all.back()).id];
    if (is_written) return false;
    is_written = true;
  }
  return true;
}

extern "C" {

size_t cudnnGetVersion() { return 92801; }
size_t cudnnGetCudartVersion() { return 13000; }
const char* cudnnGetErrorString(Status status) {
  switch (status) {
    case BAD_PARAM: return "CUDNN_STATUS_BAD_PARAM";
    case NOT_SUPPORTED: return "CUDNN_STATUS_NOT_SUPPORTED";
    case EXECUTION_FAILED: return "CUDNN_STATUS_EXECUTION_FAILED";
  }
  return nullptr;
}
void cudnnGetLastErrorString(char* text, size_t bytes) { strncpy(text, "what the fake library says of it", bytes); }

Status cudnnCreate(Library** handle) {
  CALL("cudnnCreate");
  *handle = new Library;
  n_alive++;
  return 0;
}
Status cudnnDestroy(Library* handle) {
  delete handle;
  n_alive--;
  return 0;
}
Status cudnnSetStream(Library* handle, void* stream) {
  CALL("cudnnSetStream");
  handle->stream = stream;
  return 0;
}
Status cudnnBackendCreateDescriptor(int kind, Descriptor** out) {
  CALL("cudnnBackendCreateDescriptor");
  *out = new Descriptor{std::make_shared<Data>()};
  (*out)->data->kind = kind;
  n_alive++;
  return 0;
}
Status cudnnBackendDestroyDescriptor(Descriptor* descriptor) {
  delete descriptor;
  n_alive--;
  return 0;
}
Status cudnnBackendSetAttribute(Descriptor* descriptor, int name, int type, i64 n, const void* elements) {
  CALL("cudnnBackendSetAttribute");
  Data& data = *descriptor->data;
  if (data.final || n < 1) return BAD_PARAM;
  if (type == DESCRIPTOR) {
    std::vector<Ref> refs;
    for (i64 i = 0; i < n; i++) refs.push_back(((Descriptor* const*)elements)[i]->data);
    data.refs[name] = refs;
  } else {
    data.plain[name].assign((const char*)elements, (const char*)elements + (size_t)n * size_of(type));
  }
  return 0;
}

// There are two engines for each graph; the better one is not deterministic.
Status cudnnBackendGetAttribute(Descriptor* descriptor, int name, int, i64 wanted, i64* n, void* elements) {
  CALL("cudnnBackendGetAttribute");
  Data& data = *descriptor->data;
  *n = 1;
  if (data.kind == HEURISTIC && name == 202) {
    *n = n_proposals;
    for (i64 i = 0; i < wanted && i < *n; i++) {
      Data& config = *((Descriptor* const*)elements)[i]->data;
      config.engine = i;
      config.refs[-1] = {data.ref(201)};
      config.final = true;
    }
  } else if (data.kind == CONFIG && name == 300) {
    ((Descriptor* const*)elements)[0]->data->engine = data.engine;
  } else if (data.kind == ENGINE && name == 1303) {
    int notes[] = {0, 4};
    *n = data.engine == DETERMINISTIC ? 1 : 2;
    memcpy(elements, notes, (size_t)*n * 4);
  } else if (data.kind == ENGINE && name == 1301) {
    *(i64*)elements = data.engine;
  } else if (data.kind == PLAN && name == 402 && data.final) {
    *(i64*)elements = data.engine == DETERMINISTIC ? (i64)WORKSPACE_BYTES : 0;
  } else {
    return NOT_SUPPORTED;
  }
  return 0;
}

Status cudnnBackendFinalize(Descriptor* descriptor) {
  CALL("cudnnBackendFinalize");
  Data& data = *descriptor->data;
  switch (data.kind) {
    case TENSOR: {
      Tensor t(data);
      bool known = t.type == F32 || t.type == F16 || t.type == BF16 || (t.is_virtual && (t.type == I32 || t.type == BOOL));
      if (!known || t.count() < 1 || t.id < 0 || (t.is_virtual && t.is_value)) return BAD_PARAM;
      break;
    }
    case POINTWISE_OP:
    case MATMUL_OP:
    case REDUCTION_OP:
    case RESHAPE_OP:
      if (!fits(data)) return BAD_PARAM;
      break;
    case GRAPH:
      if (!is_ordered(data) || !data.one<void*>(800, nullptr)) return BAD_PARAM;
      break;
    case HEURISTIC:
      if (!data.ref(201) || !data.ref(201)->final) return BAD_PARAM;
      break;
    case PLAN:
      if (!data.ref(401) || !data.one<void*>(400, nullptr)) return BAD_PARAM;
      data.engine = data.ref(401)->engine;
      n_plans++;
      break;
  }
  data.final = true;
  return 0;
}

Status cudnnBackendExecute(Library* handle, Descriptor* plan, Descriptor* pack) {
  CALL("cudnnBackendExecute");
  if (!plan->data->final || !pack->data->final || plan->data->one<void*>(400, nullptr) != handle) return BAD_PARAM;
  std::vector<i64> ids = pack->data->all<i64>(1000);
  std::vector<char*> pointers = pack->data->all<char*>(1001);
  if (ids.size() != pointers.size()) return BAD_PARAM;
  auto run = std::make_unique<Run>();
  run->graph = plan->data->ref(401)->ref(-1);
  run->engine = plan->data->engine;
  run->workspace = pack->data->one<char*>(1003, nullptr);
  std::vector<void*> starts;
  std::vector<size_t> bytes;
  if (run->engine == DETERMINISTIC) starts.push_back(run->workspace), bytes.push_back(WORKSPACE_BYTES);
  for (const Ref& op : run->graph->refs.at(801))
    for (const Ref& ref : tensors_of(*op)) {
      Tensor t(*ref);
      if (t.is_virtual || run->memory.count(t.id) || run->values.count(t.id)) continue;
      size_t i = 0;
      while (i < ids.size() && ids[i] != t.id) i++;
      if (i == ids.size()) return BAD_PARAM;
      // A number is read before the call returns, memory when the work runs.
      if (t.is_value) {
        run->values[t.id] = {*(const f32*)pointers[i]};
        continue;
      }
      if ((u64)pointers[i] % 16) return BAD_PARAM;
      run->memory[t.id] = pointers[i];
      starts.push_back(pointers[i]), bytes.push_back(t.bytes());
    }
  n_runs++;
  auto work = [](void* p) { ((Run*)p)->run(); };
  auto end = [](void* p) { delete (Run*)p; };
  auto* enqueue = (Enqueue*)driver("fake_enqueue");
  return enqueue(handle->stream, starts.data(), bytes.data(), starts.size(), work, end, run.release()) ? EXECUTION_FAILED : 0;
}

// What tests ask.
int fake_cudnn_alive() { return n_alive; }
int fake_cudnn_plans() { return n_plans; }
int fake_cudnn_runs() { return n_runs; }
void fake_cudnn_proposals(int n) { n_proposals = n; }

}  // extern "C"
