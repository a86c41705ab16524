// Of libnccl.so.2 for tests: what a collective or a message reads, exchanges with other ranks, and writes.
#include <cstring>

#include "nccl.h"
#include "words.h"

namespace fake {

// What a part reads and writes of its own GPU.
size_t Comm::bytes_in(const Part& part) const {
  bool reads = part.kind != RECV && (part.kind != BROADCAST || part.peer == rank);
  return reads ? part.count * SIZES[part.type] * (part.kind == REDUCE_SCATTER ? world : 1) : 0;
}
size_t Comm::bytes_out(const Part& part) const {
  bool writes = part.kind != SEND && (part.kind != REDUCE || part.peer == rank);
  return !writes ? 0 : part.count * SIZES[part.type] * (part.kind == ALL_GATHER ? world : 1);
}

template <class T> static T combined(T a, T b, int reduction) {
  switch (reduction) {
    case 1: return (T)(a * b);
    case 2: return a > b ? a : b;
    case 3: return a < b ? a : b;
  }
  return (T)(a + b);
}
// Ranks are combined in their order, and the result is rounded once.
template <class T, class Sum, class Load, class Save>
static void reduce(char* to, const std::vector<const char*>& from, size_t n, int reduction, Load load, Save save) {
  for (size_t i = 0; i < n; i++) {
    Sum sum = load(((const T*)from[0])[i]);
    for (size_t r = 1; r < from.size(); r++) sum = combined<Sum>(sum, load(((const T*)from[r])[i]), reduction);
    if (reduction == 4) sum = (Sum)(sum / (Sum)from.size());
    save(((T*)to)[i], sum);
  }
}
template <class T> static void reduce_plain(char* to, const std::vector<const char*>& from, size_t n, int reduction) {
  reduce<T, T>(to, from, n, reduction, [](T v) { return v; }, [](T& at, T v) { at = v; });
}
template <class T> static void reduce_half(char* to, const std::vector<const char*>& from, size_t n, int reduction) {
  reduce<T, f32>(to, from, n, reduction, [](T v) { return to_f32(v); }, [](T& at, f32 v) { put(at, v); });
}
static void reduce_any(int type, char* to, const std::vector<const char*>& from, size_t n, int reduction) {
  switch (type) {
    case 0: return reduce_plain<signed char>(to, from, n, reduction);
    case 1: return reduce_plain<unsigned char>(to, from, n, reduction);
    case 2: return reduce_plain<int>(to, from, n, reduction);
    case 3: return reduce_plain<unsigned>(to, from, n, reduction);
    case 4: return reduce_plain<long long>(to, from, n, reduction);
    case 5: return reduce_plain<u64>(to, from, n, reduction);
    case 7: return reduce_plain<f32>(to, from, n, reduction);
    case 8: return reduce_plain<double>(to, from, n, reduction);
    case 6: return reduce_half<f16>(to, from, n, reduction);
    case 9: return reduce_half<bf16>(to, from, n, reduction);
  }
}

void Work::read() {
  for (Part& part : parts) {
    part.own.assign(part.from, part.from + comm->bytes_in(part));
    Header header = part.header();
    size_t bytes = part.count * SIZES[part.type];
    for (int peer = 0; peer < comm->world; peer++) {
      bool is_peer = part.is_message() ? peer == part.peer : peer != comm->rank;
      bool gives = part.kind != RECV && (part.kind != BROADCAST || comm->rank == part.peer) &&
                   (part.kind != REDUCE || peer == part.peer);
      bool takes = part.kind != SEND && (part.kind != BROADCAST || peer == part.peer) &&
                   (part.kind != REDUCE || comm->rank == part.peer);
      if (is_peer && gives) {
        const char* from = part.own.data() + (part.kind == REDUCE_SCATTER ? bytes * peer : 0);
        part.out[peer].bytes.assign((char*)&header, (char*)(&header + 1));
        part.out[peer].bytes.insert(part.out[peer].bytes.end(), from, from + bytes);
      }
      if (is_peer && takes) part.in[peer].bytes.resize(sizeof header + bytes);
    }
  }
}

void Work::write() {
  for (Part& part : parts) {
    size_t bytes = part.count * SIZES[part.type];
    // The part of the result that is in this place comes from this rank.
    std::vector<const char*> from;
    for (int peer = 0; peer < comm->world; peer++) {
      const char* own = part.own.data() + (part.kind == REDUCE_SCATTER ? bytes * peer : 0);
      const Flow& in = part.in[peer];
      from.push_back(in.bytes.empty() ? own : in.bytes.data() + sizeof(Header));
    }
    switch (part.kind) {
      case ALL_REDUCE:
      case REDUCE_SCATTER: reduce_any(part.type, part.to, from, part.count, part.reduction); break;
      case REDUCE:
        if (comm->rank == part.peer) reduce_any(part.type, part.to, from, part.count, part.reduction);
        break;
      case ALL_GATHER:
        for (int peer = 0; peer < comm->world; peer++) memcpy(part.to + bytes * peer, from[peer], bytes);
        break;
      case BROADCAST:
      case RECV: memcpy(part.to, from[part.peer], bytes); break;
      case SEND: break;
    }
  }
}

static void raise(fake::Counter& want, u64 to) {
  if (want < to) want = to;
}

static std::string text_of(const Header& header) {
  const char* const names[] = {"all-reduce", "reduce-scatter", "all-gather", "broadcast", "reduce", "message"};
  return std::string(names[header.kind]) + " of " + std::to_string(header.count) + " elements";
}

// Sends and takes what goes now; whether that was all. Says how far others have to go for the rest.
bool Work::exchange() {
  bool all_done = true;
  for (int peer = 0; peer < comm->world; peer++) {
    Ring &to = comm->ring(comm->rank, peer), &from = comm->ring(peer, comm->rank);
    // What goes to one rank goes in the order of the parts, as what comes from it.
    for (Part& part : parts) {
      Flow& out = part.out[peer];
      if (!out.finished()) {
        out.done += to.push(out.bytes.data() + out.done, out.bytes.size() - out.done);
        out.end = to.written;
      }
      if (!out.finished()) {
        raise(to.want_read, to.read + 1);
        all_done = false;
        break;
      }
    }
    for (Part& part : parts) {
      Flow& in = part.in[peer];
      if (!in.finished()) in.done += from.pull(in.bytes.data() + in.done, in.bytes.size() - in.done);
      if (in.done >= sizeof(Header)) {
        Header want = part.header(), got;
        memcpy(&got, in.bytes.data(), sizeof got);
        if (memcmp(&got, &want, sizeof got)) {
          comm->error = say(INVALID_USAGE, "rank " + std::to_string(peer) + " is in " + text_of(got) + ", rank " +
                                               std::to_string(comm->rank) + " in " + text_of(want));
          return false;
        }
      }
      if (!in.finished()) {
        raise(from.want_written, from.read + 1);
        all_done = false;
        break;
      }
    }
    // A message ends when it was taken: nobody may count on memory in between.
    for (Part& part : parts) {
      if (part.kind != SEND || part.peer != peer || !part.out[peer].finished() || to.read >= part.out[peer].end) continue;
      raise(to.want_read, part.out[peer].end);
      all_done = false;
    }
  }
  return all_done;
}

int Work::open(bool inputs, void (*work)(void*)) {
  std::vector<void*> starts;
  std::vector<size_t> bytes;
  for (Part& part : parts) {
    size_t n = inputs ? comm->bytes_in(part) : comm->bytes_out(part);
    if (!n) continue;
    starts.push_back(inputs ? part.from : part.to);
    bytes.push_back(n);
  }
  typedef int Open(void*, void* const*, const size_t*, size_t, void (*)(void*), void*);
  return driver<Open>("fake_open")(comm->context, starts.data(), bytes.data(), starts.size(), work, this);
}

int Work::run() {
  int code = 0;
  if (!comm->aborted) {
    if (!begun) code = open(true, [](void* work) { ((Work*)work)->read(); });
    begun = true;
    if (code) return code;
    // What cannot go on stays until it is aborted.
    if (!exchange()) return PENDING;
    code = open(false, [](void* work) { ((Work*)work)->write(); });
  } else {
    // Nobody knows what an aborted operation leaves.
    code = open(false, [](void* self) {
      Work& work = *(Work*)self;
      for (Part& part : work.parts) memset(part.to, 0xff, work.comm->bytes_out(part));
    });
  }
  comm->marks.pop_front();
  return code;
}

}  // namespace fake
