// libnccl.so.2 for tests: ranks are threads or processes, and their work is in the streams of the fake driver beside it.
//
// A rank's part of an operation is in its stream as other work is: nobody runs it before somebody needs it. That may be
// another rank: it says how far it needs a rank to go, and the rank's thread here then runs as much as that, no more.
// Only nonblocking communicators are known. As NCCL, a call returns before its work is in the stream, which it is when
// ncclCommGetAsyncError says success.
#include <dlfcn.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <memory>

#include "nccl.h"

using namespace fake;

namespace fake {

static std::string last_error;
Result say(Result result, const std::string& text) {
  last_error = text;
  return result;
}
void* driver_symbol(const char* name) {
  static void* const library = [] {
    Dl_info info;
    dladdr((void*)&driver_symbol, &info);
    std::string file = info.dli_fname;
    return dlopen((file.substr(0, file.rfind('/') + 1) + "libcuda.so.1").c_str(), RTLD_NOW);
  }();
  return library ? dlsym(library, name) : nullptr;
}

}  // namespace fake

static int planned(const char* call) { return driver<int(const char*)>("fake_planned")(call); }
static void* context_of(void* stream, const void* at, size_t bytes) {
  return driver<void*(void*, const void*, size_t)>("fake_context_of")(stream, at, bytes);
}

// All that is here is under the driver's lock.
struct Held {
  Held() { driver<void()>("fake_lock")(); }
  ~Held() { driver<void()>("fake_unlock")(); }
};
#define CALL(name) \
  Held held; \
  if (Result result = planned(name)) return result


// Never removed: threads of what tests leave behind may be here when the process ends.
static auto& all = *new std::map<Comm*, std::shared_ptr<Comm>>;


static void launch(const std::shared_ptr<Comm>& comm) {
  auto* work = new Work{comm, std::move(comm->launching)};
  comm->launching.clear();
  auto run = [](void* work) { return ((Work*)work)->run(); };
  auto end = [](void* work) { delete (Work*)work; };
  typedef bool Enqueue(void*, Mark*, int (*)(void*), void (*)(void*), void*);
  bool is_in = driver<Enqueue>("fake_enqueue_waiting")(comm->stream, &comm->latest, run, end, work);
  if (is_in) comm->marks.push_back(comm->latest);
  else comm->error = say(INVALID_ARGUMENT, "the stream has ended");
}

static std::shared_ptr<Comm> join(const Id& id, int world, int rank, void* context, Result* result);

// What a communicator does by itself.
static void progress(Comm& comm) {
  fake::Shared& shared = *comm.segment->shared;
  int n_here = 0, n_ending = 0;
  for (int r = 0; r < comm.world; r++) {
    int presence = shared.ranks[r].presence;
    n_here += presence != fake::ABSENT;
    n_ending += presence >= fake::FINALIZING;
    if (r != comm.rank && !comm.error && comm.segment->is_dead(r))
      comm.error = say(REMOTE, "rank " + std::to_string(r) + " ended");
  }
  if (comm.error) return;
  if (!comm.ready && n_here == comm.world) {
    for (int r = 0; r < comm.world; r++)
      if (r != comm.rank && !strcmp(shared.ranks[r].bus, shared.ranks[comm.rank].bus))
        comm.error = say(INVALID_USAGE, "two ranks use the GPU " + std::string(shared.ranks[r].bus));
    comm.ready = true;
    Segment::forget(comm.id);
  }
  if (Splitting* split = comm.splitting.get()) {
    fake::Choice* choices = shared.choices[split->number % 2];
    std::vector<int> members;
    bool complete = true;
    for (int r = 0; r < comm.world; r++) {
      complete = complete && choices[r].number >= split->number;
      if (choices[r].color == split->color) members.push_back(r);
    }
    std::stable_sort(members.begin(), members.end(), [&](int a, int b) { return choices[a].key < choices[b].key; });
    if (complete && split->color >= 0 && !split->child) {
      fake::Choice& first = choices[members[0]];
      if (members[0] == comm.rank && first.made < split->number) {
        Segment::make(&first.id);
        first.made = split->number;
      }
      int rank = (int)(std::find(members.begin(), members.end(), comm.rank) - members.begin());
      if (first.made >= split->number)
        split->child = join(first.id, (int)members.size(), rank, comm.context, &comm.error);
    }
    if (complete && (split->color < 0 || (split->child && split->child->ready))) {
      *(Comm* volatile*)split->slot = split->child.get();
      comm.splitting.reset();
    }
  }
  bool needed = comm.finalizing;
  for (int r = 0; r < comm.world; r++) {
    Ring &out = comm.ring(comm.rank, r), &in = comm.ring(r, comm.rank);
    needed = needed || out.want_written > out.written || in.want_read > in.read;
  }
  if (needed && !comm.marks.empty()) driver<bool(Mark)>("fake_advance")(comm.marks.front());
  if (comm.finalizing && comm.marks.empty() && n_ending == comm.world) shared.ranks[comm.rank].presence = fake::LEFT;
}

static void serve(Comm* comm) {
  for (;; std::this_thread::sleep_for(std::chrono::microseconds(100))) {
    Held held;
    if (comm->stop) return;
    progress(*comm);
  }
}

static std::shared_ptr<Comm> join(const Id& id, int world, int rank, void* context, Result* result) {
  auto comm = std::make_shared<Comm>();
  comm->segment = Segment::open(id);
  if (!comm->segment) return *result = say(SYSTEM, "the process that made the id is gone"), nullptr;
  fake::Shared& shared = *comm->segment->shared;
  int expected = 0;
  bool fits = shared.world.compare_exchange_strong(expected, world) || expected == world;
  if (!fits) return *result = say(INVALID_ARGUMENT, "another rank says another number of ranks"), nullptr;
  if (!comm->segment->become(rank)) return *result = say(INVALID_USAGE, "somebody else is this rank"), nullptr;
  comm->id = id, comm->rank = rank, comm->world = world, comm->context = context;
  strncpy(shared.ranks[rank].bus, driver<const char*(void*)>("fake_bus_of")(context), sizeof shared.ranks[rank].bus - 1);
  shared.ranks[rank].presence = fake::HERE;
  all[comm.get()] = comm;
  comm->service = std::thread(serve, comm.get());
  return comm;
}

static std::shared_ptr<Comm> find(void* handle) {
  auto found = all.find((Comm*)handle);
  return found == all.end() ? nullptr : found->second;
}

static Result state_of(const Comm& comm) {
  if (comm.error) return comm.error;
  bool is_ending = comm.finalizing && comm.segment->shared->ranks[comm.rank].presence != fake::LEFT;
  return !comm.ready || comm.splitting || !comm.launching.empty() || is_ending ? IN_PROGRESS : 0;
}

// Ends what the library has of it. The lock must be free: its thread takes it.
static void end(std::shared_ptr<Comm> comm) {
  std::shared_ptr<Comm> child;
  {
    Held held;
    comm->stop = comm->aborted = true;
    comm->launching.clear();
    if (comm->splitting) child = comm->splitting->child;
    all.erase(comm.get());
  }
  if (child) end(child);
  comm->service.join();
  // The real one frees memory of the device, which waits for the stream: for all that was put there, by whomever.
  Mark last;
  {
    Held held;
    last = driver<Mark(Mark)>("fake_end_of")(comm->latest);
  }
  for (bool done = false; !done; std::this_thread::sleep_for(std::chrono::microseconds(100))) {
    Held held;
    done = driver<bool(Mark)>("fake_advance")(last);
  }
  Held held;
  Segment::forget(comm->id);
  comm->segment.reset();
}

// The group of a thread.
struct Member {
  std::shared_ptr<Comm> comm;
  Part part;
  void* stream;
};
static thread_local int depth = 0;
static thread_local Result group_error = 0;
static thread_local std::vector<Member> members;

static Result end_group() {
  std::vector<Member> ended = std::move(members);
  members.clear();
  Result failed = group_error;
  group_error = 0;
  if (failed) return failed;
  for (Member& member : ended) {
    Comm& comm = *member.comm;
    if (!comm.launching.empty() && comm.stream != member.stream) return say(INVALID_USAGE, "a group on two streams");
    comm.launching.push_back(std::move(member.part));
    comm.stream = member.stream;
    comm.polls = 0;
  }
  return ended.empty() ? 0 : IN_PROGRESS;
}

static Result check(const Comm* comm, const Part& part, void* stream) {
  if (!comm) return say(INVALID_ARGUMENT, "no communicator");
  // One that failed says so again, as NCCL's does.
  if (comm->error) return comm->error;
  if (state_of(*comm)) return say(INVALID_ARGUMENT, "the communicator has something else to do");
  auto is_in = [&](int i, int end) { return i >= 0 && i < end; };
  if (!is_in(part.type, 10) || !is_in(part.reduction, 5) || !is_in(part.peer, comm->world))
    return say(INVALID_ARGUMENT, "a type, a reduction or a rank that is not there");
  auto is_of = [&](const void* at, size_t bytes) { return !bytes || context_of(nullptr, at, bytes) == comm->context; };
  if (context_of(stream, nullptr, 0) != comm->context) return say(INVALID_ARGUMENT, "a stream of another device");
  if (!is_of(part.from, comm->bytes_in(part)) || !is_of(part.to, comm->bytes_out(part)))
    return say(INVALID_ARGUMENT, "memory of another device");
  return 0;
}
static Result add(const char* call, Kind kind, const void* from, void* to, size_t count, int type, int reduction, int peer,
                  void* handle, void* stream) {
  Held held;
  std::shared_ptr<Comm> comm = find(handle);
  Part part = {kind, (char*)from, (char*)to, count, type, reduction, peer, {}, {}, {}};
  Result failed = planned(call);
  if (!failed) failed = check(comm.get(), part, stream);
  // The end of the group says it, too.
  if (failed) return depth ? group_error = failed : failed;
  members.push_back({comm, std::move(part), stream});
  return depth ? 0 : end_group();
}

struct UniqueId {
  char bytes[128];
};
struct Config {
  size_t size;
  unsigned magic, version;
  int blocking;
};

extern "C" {

Result ncclGetVersion(int* version) {
  CALL("ncclGetVersion");
  *version = 22907;
  return 0;
}
const char* ncclGetErrorString(Result) { return "what the fake library says of it"; }
const char* ncclGetLastError(void*) {
  static thread_local std::string text;
  Held held;
  text = last_error;
  return text.c_str();
}
Result ncclGetUniqueId(UniqueId* id) {
  CALL("ncclGetUniqueId");
  Id made;
  if (!Segment::make(&made)) return SYSTEM;
  *id = {};
  memcpy(id, &made, sizeof made);
  return 0;
}

Result ncclCommInitRankConfig(void** handle, int world, UniqueId unique, int rank, Config* config) {
  CALL("ncclCommInitRankConfig");
  void* context = nullptr;
  if (driver<int(void**)>("cuCtxGetCurrent")(&context) || !context) return UNHANDLED_CUDA;
  if (config->magic != 0xcafebeef || config->size != sizeof(Config) || config->version != 21400) return INVALID_ARGUMENT;
  if (config->blocking != 0) return say(INVALID_USAGE, "only nonblocking communicators are known here");
  if (world < 1 || world > fake::MOST_RANKS || rank < 0 || rank >= world) return INVALID_ARGUMENT;
  Id id;
  memcpy(&id, &unique, sizeof id);
  Result result = IN_PROGRESS;
  *handle = join(id, world, rank, context, &result).get();
  return result;
}
Result ncclCommSplit(void* handle, int color, int key, Comm** child, void* config) {
  CALL("ncclCommSplit");
  std::shared_ptr<Comm> comm = find(handle);
  if (!comm || state_of(*comm) || color < -1 || config) return INVALID_ARGUMENT;
  *child = nullptr;
  comm->splitting.reset(new Splitting{++comm->n_splits, color, child, nullptr});
  fake::Choice& choice = comm->segment->shared->choices[comm->n_splits % 2][comm->rank];
  choice.color = color, choice.key = key;
  choice.number = comm->n_splits;
  return IN_PROGRESS;
}
Result ncclCommCount(void* handle, int* count) {
  CALL("ncclCommCount");
  std::shared_ptr<Comm> comm = find(handle);
  if (!comm) return INVALID_ARGUMENT;
  *count = comm->world;
  return 0;
}
Result ncclCommUserRank(void* handle, int* rank) {
  CALL("ncclCommUserRank");
  std::shared_ptr<Comm> comm = find(handle);
  if (!comm) return INVALID_ARGUMENT;
  *rank = comm->rank;
  return 0;
}
Result ncclCommGetAsyncError(void* handle, Result* error) {
  CALL("ncclCommGetAsyncError");
  std::shared_ptr<Comm> comm = find(handle);
  if (!comm) return INVALID_ARGUMENT;
  progress(*comm);
  // For tests: an error that comes by itself, or work that never gets to its stream.
  if (Result error = planned("the communicator")) comm->error = error;
  if (!comm->error && !comm->launching.empty() && ++comm->polls > 1) launch(comm);
  *error = state_of(*comm);
  return 0;
}
Result ncclCommFinalize(void* handle) {
  CALL("ncclCommFinalize");
  std::shared_ptr<Comm> comm = find(handle);
  if (!comm || state_of(*comm) || comm->finalizing) return INVALID_ARGUMENT;
  comm->finalizing = true;
  comm->segment->shared->ranks[comm->rank].presence = fake::FINALIZING;
  return IN_PROGRESS;
}
Result ncclCommDestroy(void* handle) {
  std::shared_ptr<Comm> comm;
  {
    Held held;
    comm = find(handle);
    if (!comm) return INVALID_ARGUMENT;
    Result result = planned("ncclCommDestroy");
    if (result && result != IN_PROGRESS) return comm->stop = true, result;
    if (!comm->finalizing || state_of(*comm)) return say(INVALID_USAGE, "a communicator that has not finished");
    // For tests: as a nonblocking communicator may, it ends later, by itself.
    if (result) return std::thread(end, comm).detach(), result;
  }
  end(comm);
  return 0;
}
Result ncclCommAbort(void* handle) {
  std::shared_ptr<Comm> comm;
  {
    Held held;
    comm = find(handle);
    if (!comm) return INVALID_ARGUMENT;
    // For tests: the GPU gives nothing up.
    for (bool hangs = planned("an abort"); hangs;) {
      driver<void()>("fake_unlock")();
      std::this_thread::sleep_for(std::chrono::seconds(1));
      driver<void()>("fake_lock")();
    }
    if (Result result = planned("ncclCommAbort")) {
      comm->stop = true;
      // For tests: as a nonblocking communicator may, it ends later, by itself.
      if (result != IN_PROGRESS) return result;
      return std::thread(end, comm).detach(), result;
    }
  }
  end(comm);
  return 0;
}

Result ncclAllReduce(const void* from, void* to, size_t count, int type, int reduction, void* comm, void* stream) {
  return add("ncclAllReduce", ALL_REDUCE, from, to, count, type, reduction, 0, comm, stream);
}
Result ncclReduceScatter(const void* from, void* to, size_t count, int type, int reduction, void* comm, void* stream) {
  return add("ncclReduceScatter", REDUCE_SCATTER, from, to, count, type, reduction, 0, comm, stream);
}
Result ncclAllGather(const void* from, void* to, size_t count, int type, void* comm, void* stream) {
  return add("ncclAllGather", ALL_GATHER, from, to, count, type, 0, 0, comm, stream);
}
Result ncclBroadcast(const void* from, void* to, size_t count, int type, int root, void* comm, void* stream) {
  return add("ncclBroadcast", BROADCAST, from, to, count, type, 0, root, comm, stream);
}
Result ncclReduce(const void* from, void* to, size_t count, int type, int reduction, int root, void* comm, void* stream) {
  return add("ncclReduce", REDUCE, from, to, count, type, reduction, root, comm, stream);
}
Result ncclSend(const void* from, size_t count, int type, int peer, void* comm, void* stream) {
  return add("ncclSend", SEND, from, nullptr, count, type, 0, peer, comm, stream);
}
Result ncclRecv(void* to, size_t count, int type, int peer, void* comm, void* stream) {
  return add("ncclRecv", RECV, nullptr, to, count, type, 0, peer, comm, stream);
}
Result ncclGroupStart() {
  CALL("ncclGroupStart");
  depth++;
  return 0;
}
Result ncclGroupEnd() {
  Held held;
  Result failed = planned("ncclGroupEnd");
  if (!depth) return INVALID_USAGE;
  if (failed) group_error = failed;
  return --depth ? 0 : end_group();
}

// What tests ask: communicators, and pieces of shared memory.
int fake_nccl_alive() {
  Held held;
  return (int)all.size();
}
int fake_nccl_segments() {
  Held held;
  return Segment::alive();
}

}  // extern "C"
