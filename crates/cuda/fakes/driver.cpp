// libcuda.so.1 for tests: devices, contexts, streams, events, modules and launches over the emulator.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <sstream>

#include "state.h"

using namespace fake;

static thread_local Context* current = nullptr;

// What every call begins with: a planned error, and for those in a context its own.
#define CALL(name) \
  std::lock_guard<std::recursive_mutex> held(state.lock); \
  if (Code code = planned(name)) return code
#define CALL_IN_CONTEXT(name) \
  CALL(name); \
  if (!state.initialized) return NOT_INITIALIZED; \
  if (!current) return INVALID_CONTEXT; \
  if (!current->alive) return DESTROYED; \
  if (current->sticky) return current->sticky

static double now() {
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now().time_since_epoch()).count() + state.ahead;
}
template <class T> static T* live(const std::map<T*, std::unique_ptr<T>>& all, void* handle) {
  auto found = all.find((T*)handle);
  return found == all.end() ? nullptr : found->second.get();
}
static std::shared_ptr<Stream> stream_of(void* handle) {
  auto found = state.streams.find((Stream*)handle);
  return found == state.streams.end() ? nullptr : found->second;
}
// Work is put into a stream of the current context.
static std::shared_ptr<Stream> own_stream(void* handle) {
  std::shared_ptr<Stream> stream = stream_of(handle);
  return stream && stream->context == current ? stream : nullptr;
}

// Checks that a copy is inside of memory, now and when it runs.
static Code copy_later(void* stream, void* to, const void* from, size_t n) {
  std::shared_ptr<Stream> s = own_stream(stream);
  if (!s) return INVALID_HANDLE;
  enqueue(*s, [=] {
    const Memory *a = find(to, n), *b = find(from, n);
    if (!a || !b) return say(ILLEGAL_ADDRESS, "a copy of memory that is freed");
    return opened({a, b}, [=] { memmove(to, from, n); });
  });
  return 0;
}

template <class T> static Code set_later(T* to, T value, size_t n, void* stream) {
  std::shared_ptr<Stream> s = own_stream(stream);
  if (!s) return INVALID_HANDLE;
  if (!find_device(to, n * sizeof(T)) || (u64)to % sizeof(T)) return INVALID_VALUE;
  enqueue(*s, [=] {
    const Memory* memory = find_device(to, n * sizeof(T));
    if (!memory) return say(ILLEGAL_ADDRESS, "memory that is freed is filled");
    return opened({memory}, [=] { std::fill(to, to + n, value); });
  });
  return 0;
}

static const int DEVICES = 3;
static void uuid_of(int device, unsigned char* bytes) {
  for (int i = 0; i < 16; i++) bytes[i] = (unsigned char)((device + 40) * i);
}
static std::string uuid_text(int device) {
  unsigned char bytes[16];
  char hex[40], *p = hex;
  uuid_of(device, bytes);
  for (int i = 0; i < 16; i++) p += sprintf(p, "%s%02x", i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "", bytes[i]);
  return (strstr(devices[device].model.name, " MIG ") ? "MIG-" : "GPU-") + std::string(hex);
}
// The devices of CUDA_VISIBLE_DEVICES, numbers or beginnings of UUIDs; the first word that names none ends the list, and a
// device named twice leaves none.
static std::vector<int> chosen() {
  std::vector<int> found;
  const char* list = getenv("CUDA_VISIBLE_DEVICES");
  std::stringstream words(list ? list : "0,1,2");
  for (std::string word; std::getline(words, word, ',');) {
    word.erase(0, word.find_first_not_of(' '));
    word.erase(word.find_last_not_of(' ') + 1);
    int device = -1;
    if (word.compare(0, 4, "GPU-") == 0 || word.compare(0, 4, "MIG-") == 0) {
      for (int i = 0; i < DEVICES; i++)
        if (uuid_text(i).compare(0, word.size(), word) == 0) device = device < 0 ? i : DEVICES;
    } else if (!word.empty() && word.find_first_not_of("0123456789") == std::string::npos) {
      device = atoi(word.c_str());
    }
    if (device < 0 || device >= DEVICES) break;
    for (int other : found)
      if (other == device) return {};
    found.push_back(device);
  }
  return found;
}
// As they were when the driver was initialized.
static std::vector<int> visible;

extern "C" {

Code cuInit(unsigned flags) {
  CALL("cuInit");
  if (flags) return INVALID_VALUE;
  if (!state.initialized) visible = chosen();
  if (visible.empty()) return NO_DEVICE;
  state.initialized = true;
  return 0;
}
Code cuGetErrorName(Code code, const char** text) {
  static const std::map<Code, const char*> names = {
      {1, "CUDA_ERROR_INVALID_VALUE"},     {2, "CUDA_ERROR_OUT_OF_MEMORY"},   {3, "CUDA_ERROR_NOT_INITIALIZED"},
      {4, "CUDA_ERROR_DEINITIALIZED"},     {100, "CUDA_ERROR_NO_DEVICE"},     {101, "CUDA_ERROR_INVALID_DEVICE"},
      {200, "CUDA_ERROR_INVALID_IMAGE"},   {201, "CUDA_ERROR_INVALID_CONTEXT"}, {209, "CUDA_ERROR_NO_BINARY_FOR_GPU"},
      {400, "CUDA_ERROR_INVALID_HANDLE"},  {500, "CUDA_ERROR_NOT_FOUND"},     {600, "CUDA_ERROR_NOT_READY"},
      {700, "CUDA_ERROR_ILLEGAL_ADDRESS"}, {701, "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES"}, {709, "CUDA_ERROR_CONTEXT_IS_DESTROYED"}, {719, "CUDA_ERROR_LAUNCH_FAILED"}};
  auto found = names.find(code);
  *text = found == names.end() ? nullptr : found->second;
  return found == names.end() ? INVALID_VALUE : 0;
}
Code cuGetErrorString(Code code, const char** text) {
  const char* name;
  *text = "what the fake driver says of it";
  return cuGetErrorName(code, &name);
}
Code cuDriverGetVersion(int* version) {
  CALL("cuDriverGetVersion");
  *version = state.version;
  return 0;
}
Code cuDeviceGetCount(int* n) {
  CALL("cuDeviceGetCount");
  *n = (int)visible.size();
  return state.initialized ? 0 : NOT_INITIALIZED;
}
Code cuDeviceGet(int* device, int ordinal) {
  CALL("cuDeviceGet");
  if (!state.initialized) return NOT_INITIALIZED;
  // Not the ordinal itself, which a caller could mix up with the handle.
  if (ordinal < 0 || ordinal >= (int)visible.size()) return INVALID_DEVICE;
  *device = visible[ordinal] + 40;
  return 0;
}
static const Device* device_of(int handle) { return handle >= 40 && handle <= 42 ? &devices[handle - 40] : nullptr; }
Code cuDeviceGetName(char* text, int n, int device) {
  CALL("cuDeviceGetName");
  if (!device_of(device)) return INVALID_DEVICE;
  snprintf(text, n, "%s", device_of(device)->model.name);
  return 0;
}
Code cuDeviceGetPCIBusId(char* text, int n, int device) {
  CALL("cuDeviceGetPCIBusId");
  if (!device_of(device)) return INVALID_DEVICE;
  snprintf(text, n, "%s", device_of(device)->bus);
  return 0;
}
Code cuDeviceGetUuid_v2(unsigned char* bytes, int device) {
  CALL("cuDeviceGetUuid_v2");
  if (!device_of(device)) return INVALID_DEVICE;
  uuid_of(device - 40, bytes);
  return 0;
}
Code cuDeviceTotalMem_v2(size_t* bytes, int device) {
  CALL("cuDeviceTotalMem_v2");
  if (!device_of(device)) return INVALID_DEVICE;
  *bytes = device_of(device)->memory_bytes;
  return 0;
}
Code cuDeviceGetAttribute(int* value, int attribute, int device) {
  CALL("cuDeviceGetAttribute");
  const Device* d = device_of(device);
  if (!d) return INVALID_DEVICE;
  switch (attribute) {
    case 1: *value = MOST_THREADS; return 0;
    case 5: *value = 0x7fffffff; return 0;
    case 6: case 7: *value = 65535; return 0;
    case 8: *value = USUAL_SHARED; return 0;
    case 12: case 82: *value = REGISTERS; return 0;
    case 16: *value = d->model.multiprocessors; return 0;
    case 39: *value = d->model.multiprocessor_threads; return 0;
    case 75: *value = d->model.major; return 0;
    case 76: *value = d->model.minor; return 0;
    case 81: *value = d->model.multiprocessor_shared_bytes; return 0;
    case 97: *value = d->model.shared_bytes; return 0;
  }
  return INVALID_VALUE;
}

Code cuDevicePrimaryCtxRetain(void** handle, int device) {
  CALL("cuDevicePrimaryCtxRetain");
  if (!device_of(device)) return INVALID_DEVICE;
  Context*& primary = state.primary[device - 40];
  if (!primary) primary = new Context{device - 40};
  primary->users++;
  *handle = primary;
  return 0;
}
Code cuDevicePrimaryCtxRelease_v2(int device) {
  CALL("cuDevicePrimaryCtxRelease_v2");
  if (!device_of(device)) return INVALID_DEVICE;
  Context* primary = state.primary[device - 40];
  if (!primary) return INVALID_CONTEXT;
  if (--primary->users) return 0;
  auto count = [&](auto& all) {
    for (auto& entry : all) state.leaked += entry.second->context == primary;
  };
  count(state.streams), count(state.events), count(state.modules);
  for (auto& entry : state.memory) state.leaked += entry.second.context == primary;
  drain(primary);
  destroy(primary);
  return 0;
}
// For tests: what somebody else in the process may do.
Code cuDevicePrimaryCtxReset_v2(int device) {
  CALL("cuDevicePrimaryCtxReset_v2");
  if (!device_of(device) || !state.primary[device - 40]) return INVALID_DEVICE;
  destroy(state.primary[device - 40]);
  return 0;
}
Code cuCtxGetCurrent(void** handle) {
  CALL("cuCtxGetCurrent");
  *handle = current;
  return 0;
}
Code cuCtxSetCurrent(void* handle) {
  CALL("cuCtxSetCurrent");
  current = (Context*)handle;
  return !current || current->alive ? 0 : DESTROYED;
}
Code cuCtxSynchronize() {
  CALL_IN_CONTEXT("cuCtxSynchronize");
  drain(current);
  return current->sticky;
}

static Code allocate(char** to, size_t bytes, bool pinned) {
  if (!bytes) return INVALID_VALUE;
  size_t most = devices[current->device].memory_bytes;
  if (!pinned && (bytes > most || current->used_bytes + bytes > most)) return OUT_OF_MEMORY;
  auto* pages = new emulator::Guarded(bytes, pinned ? 4096 : 256, pinned ? "pinned memory" : "device memory");
  if (!pinned) {
    pages->protect(false);
    current->used_bytes += bytes;
    size_t& peak = state.peak_bytes[current->device];
    peak = std::max(peak, current->used_bytes);
  }
  state.memory[pages->data()] = {current, pages, pinned};
  *to = pages->data();
  return 0;
}
static Code free_memory(char* at, bool pinned) {
  auto found = state.memory.find(at);
  if (found == state.memory.end() || found->second.pinned != pinned) return INVALID_VALUE;
  drain(found->second.context);
  // Somebody else may have been here meanwhile.
  found = state.memory.find(at);
  if (found == state.memory.end()) return DESTROYED;
  if (!pinned) found->second.context->used_bytes -= found->second.pages->bytes();
  found->second.pages->retire();
  state.memory.erase(found);
  return current->sticky;
}
Code cuMemGetInfo_v2(size_t* free_bytes, size_t* total) {
  CALL_IN_CONTEXT("cuMemGetInfo_v2");
  *total = devices[current->device].memory_bytes;
  *free_bytes = *total - current->used_bytes;
  return 0;
}
Code cuMemAlloc_v2(char** address, size_t bytes) {
  CALL_IN_CONTEXT("cuMemAlloc_v2");
  return allocate(address, bytes, false);
}
Code cuMemFree_v2(char* address) {
  CALL("cuMemFree_v2");
  return !current || !current->alive ? DESTROYED : free_memory(address, false);
}
Code cuMemHostAlloc(char** at, size_t bytes, unsigned flags) {
  CALL_IN_CONTEXT("cuMemHostAlloc");
  // Portable, mapped, write-combined.
  if (flags & ~7u) return INVALID_VALUE;
  return allocate(at, bytes, true);
}
Code cuMemFreeHost(char* at) {
  CALL("cuMemFreeHost");
  return !current || !current->alive ? DESTROYED : free_memory(at, true);
}

Code cuMemcpyHtoDAsync_v2(char* to, const char* from, size_t n, void* stream) {
  CALL_IN_CONTEXT("cuMemcpyHtoDAsync_v2");
  if (!find_device(to, n)) return INVALID_VALUE;
  if (find(from, n)) return copy_later(stream, to, from, n);
  // Of other host memory the driver makes a copy first.
  std::shared_ptr<Stream> s = own_stream(stream);
  if (!s) return INVALID_HANDLE;
  enqueue(*s, [to, bytes = std::vector<char>(from, from + n)] {
    const Memory* memory = find_device(to, bytes.size());
    if (!memory) return say(ILLEGAL_ADDRESS, "a copy to memory that is freed");
    return opened({memory}, [&] { memcpy(to, bytes.data(), bytes.size()); });
  });
  return 0;
}
Code cuMemcpyDtoHAsync_v2(char* to, const char* from, size_t n, void* stream) {
  CALL_IN_CONTEXT("cuMemcpyDtoHAsync_v2");
  if (!find_device(from, n)) return INVALID_VALUE;
  if (find(to, n)) return copy_later(stream, to, from, n);
  std::shared_ptr<Stream> s = own_stream(stream);
  if (!s) return INVALID_HANDLE;
  note_run("host_wait");
  finish(s, s->last);
  if (current->sticky) return current->sticky;
  const Memory* memory = find_device(from, n);
  return memory ? opened({memory}, [=] { memcpy(to, from, n); }) : INVALID_VALUE;
}
Code cuMemcpyDtoDAsync_v2(char* to, const char* from, size_t n, void* stream) {
  CALL_IN_CONTEXT("cuMemcpyDtoDAsync_v2");
  if (!find_device(to, n) || !find_device(from, n)) return INVALID_VALUE;
  return copy_later(stream, to, from, n);
}
Code cuMemcpyPeerAsync(char* to, void* to_context, const char* from, void* from_context, size_t n, void* stream) {
  CALL_IN_CONTEXT("cuMemcpyPeerAsync");
  const Memory *a = find_device(to, n), *b = find_device(from, n);
  if (!a || !b) return INVALID_VALUE;
  if (a->context != to_context || b->context != from_context) return INVALID_CONTEXT;
  return copy_later(stream, to, from, n);
}
Code cuMemsetD8Async(unsigned char* to, unsigned char value, size_t n, void* stream) {
  CALL_IN_CONTEXT("cuMemsetD8Async");
  return set_later(to, value, n, stream);
}
Code cuMemsetD32Async(unsigned* to, unsigned value, size_t n, void* stream) {
  CALL_IN_CONTEXT("cuMemsetD32Async");
  return set_later(to, value, n, stream);
}

static const int GREATEST_PRIORITY = -5;
static Code create(void** handle, unsigned flags, int priority) {
  // A stream that waits for the default stream is none that these tests mean.
  if (flags != 1) return INVALID_VALUE;
  // As the driver says, a priority beyond the range becomes the nearest one in it.
  priority = std::max(GREATEST_PRIORITY, std::min(priority, 0));
  auto stream = std::make_shared<Stream>(Stream{current, {}, 0, ++state.n_streams, priority});
  state.streams[stream.get()] = stream;
  state.order.push_back(stream);
  *handle = stream.get();
  return 0;
}
Code cuCtxGetStreamPriorityRange(int* least, int* greatest) {
  CALL_IN_CONTEXT("cuCtxGetStreamPriorityRange");
  *least = 0, *greatest = GREATEST_PRIORITY;
  return 0;
}
Code cuStreamCreate(void** handle, unsigned flags) {
  CALL_IN_CONTEXT("cuStreamCreate");
  return create(handle, flags, 0);
}
Code cuStreamCreateWithPriority(void** handle, unsigned flags, int priority) {
  CALL_IN_CONTEXT("cuStreamCreateWithPriority");
  return create(handle, flags, priority);
}
Code cuStreamDestroy_v2(void* handle) {
  CALL("cuStreamDestroy_v2");
  return state.streams.erase((Stream*)handle) ? 0 : INVALID_HANDLE;
}
Code cuStreamSynchronize(void* handle) {
  CALL_IN_CONTEXT("cuStreamSynchronize");
  std::shared_ptr<Stream> stream = stream_of(handle);
  if (!stream) return INVALID_HANDLE;
  if (!stream->queue.empty()) note_run("host_wait");
  finish(stream, stream->last);
  return stream->context->sticky;
}
Code cuStreamWaitEvent(void* handle, void* event, unsigned) {
  CALL_IN_CONTEXT("cuStreamWaitEvent");
  std::shared_ptr<Stream> stream = stream_of(handle);
  Event* e = live(state.events, event);
  if (!stream || !e) return INVALID_HANDLE;
  if (e->stream) stream->queue.push_back({++stream->last, e->stream, e->number, nullptr});
  return 0;
}
Code cuEventCreate(void** handle, unsigned flags) {
  CALL_IN_CONTEXT("cuEventCreate");
  // One that other processes see has no timing.
  if (flags & ~7u || (flags & 6) == 4) return INVALID_VALUE;
  auto event = std::make_unique<Event>(Event{current, (flags & 2) == 0, nullptr});
  *handle = event.get();
  state.events[event.get()] = std::move(event);
  return 0;
}
Code cuEventDestroy_v2(void* handle) {
  CALL("cuEventDestroy_v2");
  return state.events.erase((Event*)handle) ? 0 : INVALID_HANDLE;
}
Code cuEventRecord(void* event, void* handle) {
  CALL_IN_CONTEXT("cuEventRecord");
  std::shared_ptr<Stream> stream = stream_of(handle);
  Event* e = live(state.events, event);
  if (!stream || !e || stream->context != e->context) return INVALID_HANDLE;
  e->milliseconds = std::make_shared<double>(-1);
  enqueue(*stream, [at = e->milliseconds] {
    *at = now();
    return 0;
  });
  e->stream = stream;
  e->number = stream->last;
  e->polls = 0;
  return 0;
}
static bool is_done(const Event& event) { return !event.stream || *event.milliseconds >= 0; }
Code cuEventQuery(void* event) {
  CALL_IN_CONTEXT("cuEventQuery");
  Event* e = live(state.events, event);
  if (!e) return INVALID_HANDLE;
  // Whoever asks often enough sees that the device works by itself.
  if (!is_done(*e) && ++e->polls > 2) advance(*e->stream, e->number);
  if (e->context->sticky) return e->context->sticky;
  return is_done(*e) ? 0 : NOT_READY;
}
Code cuEventSynchronize(void* event) {
  CALL_IN_CONTEXT("cuEventSynchronize");
  Event* e = live(state.events, event);
  if (!e) return INVALID_HANDLE;
  Context* context = e->context;
  if (!is_done(*e)) note_run("host_wait");
  if (e->stream) finish(e->stream, e->number);
  return context->sticky;
}
Code cuEventElapsedTime(float* milliseconds, void* start, void* end) {
  CALL_IN_CONTEXT("cuEventElapsedTime");
  Event *a = live(state.events, start), *b = live(state.events, end);
  if (!a || !b || !a->timing || !b->timing || !a->stream || !b->stream) return INVALID_HANDLE;
  if (!is_done(*a) || !is_done(*b)) return NOT_READY;
  *milliseconds = (float)(*b->milliseconds - *a->milliseconds);
  return 0;
}

// What tests ask: the streams of the greatest priority.
int fake_first_streams() {
  std::lock_guard<std::recursive_mutex> held(state.lock);
  return (int)std::count_if(state.streams.begin(), state.streams.end(),
                            [](auto& entry) { return entry.second->priority == GREATEST_PRIORITY; });
}

}  // extern "C"
