// The order of work, memory and its protection.
#include "state.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <sstream>
#include <thread>

namespace fake {

static const Model models[] = {{"Emulated H100", 9, 0, 132, 227 << 10, 228 << 10, 2048},
                               {"Emulated A100", 8, 0, 108, 163 << 10, 164 << 10, 2048},
                               {"Emulated V100", 7, 0, 80, 96 << 10, 96 << 10, 2048},
                               {"Emulated A100 MIG 1g.10gb", 8, 0, 14, 163 << 10, 164 << 10, 2048},
                               {"Emulated RTX 3090", 8, 6, 82, 99 << 10, 100 << 10, 1536},
                               {"Emulated L4", 8, 9, 58, 99 << 10, 100 << 10, 1536},
                               {"Emulated B200", 10, 0, 148, 227 << 10, 228 << 10, 2048},
                               {"Emulated B300", 10, 3, 148, 227 << 10, 228 << 10, 2048},
                               {"Emulated RTX 5090", 12, 0, 170, 99 << 10, 100 << 10, 1536},
                               {"Emulated GB10", 12, 1, 48, 99 << 10, 100 << 10, 1536}};

Device devices[3] = {{models[0], "0000:1b:00.0", 256u << 20},
                     {models[1], "0000:1c:00.0", 128u << 20},
                     {models[2], "0000:1d:00.0", 64u << 20}};
State state;

// The device becomes one of the model whose name ends with this; whether there is one.
static bool becomes(int device, const std::string& name) {
  for (const Model& model : models)
    if (std::string(model.name) == "Emulated " + name) {
      devices[device].model = model;
      return true;
    }
  return false;
}

// For programs: the models of the devices, as `L4,B200,L4`, what the driver supports, as `12040`, and a call that fails once,
// as `cudnnBackendExecute=5000`.
static struct Chosen {
  Chosen() {
    const char* list = getenv("OARLOCK_FAKE_GPUS");
    std::stringstream words(list ? list : "");
    int device = 0;
    for (std::string word; device < 3 && std::getline(words, word, ','); device++) becomes(device, word);
    if (const char* version = getenv("OARLOCK_FAKE_CUDA")) state.version = atoi(version);
    std::string fails = getenv("OARLOCK_FAKE_FAILS") ? getenv("OARLOCK_FAKE_FAILS") : "";
    if (size_t at = fails.find('='); at != std::string::npos)
      state.planned[fails.substr(0, at)] = {0, atoi(fails.c_str() + at + 1)};
  }
} from_environment;

int Function::registers() const { return std::min(255, REGISTERS / (int)kernel->threads); }

Code say(Code code, const std::string& message) {
  state.message = message;
  return code;
}

Code planned(const char* call) {
  auto found = state.planned.find(call);
  if (found == state.planned.end() || found->second.first-- > 0) return 0;
  Code code = found->second.second;
  state.planned.erase(found);
  return code;
}

void note_run(const std::string& name) {
  state.n_runs[name]++;
  // As `name=milliseconds name=milliseconds`.
  static const std::map<std::string, double> slow = [] {
    std::map<std::string, double> all;
    const char* text = getenv("OARLOCK_FAKE_SLOW");
    std::stringstream words(text ? text : "");
    for (std::string word; words >> word;)
      if (size_t at = word.find('='); at != std::string::npos) all[word.substr(0, at)] = atof(word.c_str() + at + 1);
    return all;
  }();
  auto found = slow.find(name);
  if (found != slow.end()) state.ahead += found->second;
}

void enqueue(Stream& stream, std::function<Code()> run) {
  stream.queue.push_back({++stream.last, nullptr, 0, std::move(run)});
}

bool advance(Stream& stream, u64 number) {
  while (!stream.queue.empty() && stream.queue.front().number <= number) {
    // It stays there meanwhile: what it needs was in its stream before it, and needs nothing from here on.
    Op& op = stream.queue.front();
    if (op.other && !advance(*op.other, op.other_number)) return false;
    // After an error of the device nothing runs any more.
    if (op.run && !stream.context->sticky) {
      Code code = op.run();
      if (code == PENDING) return false;
      stream.context->sticky = code;
    }
    Op done = std::move(op);
    stream.queue.pop_front();
  }
  return true;
}

// Lets others go on. Every call of the driver holds the lock once.
static void pause() {
  state.lock.unlock();
  std::this_thread::sleep_for(std::chrono::microseconds(100));
  state.lock.lock();
}

void finish(std::shared_ptr<Stream> stream, u64 number) {
  while (!advance(*stream, number) && stream->context->alive) pause();
}

void drain(Context* context) {
  for (bool done = false; !done && context->alive;) {
    done = true;
    for (size_t i = state.order.size(); i--;) {
      std::shared_ptr<Stream> stream = state.order[i];
      if (stream->context == context) done = advance(*stream, ~0ull) && done;
    }
    if (!done) pause();
  }
  std::erase_if(state.order, [](auto& stream) { return stream->queue.empty() && !state.streams.count(stream.get()); });
}

static void release(const Memory& memory) {
  if (!memory.pinned) memory.context->used_bytes -= memory.pages->bytes();
  memory.pages->retire();
}

void destroy(Context* context) {
  auto is_of = [&](auto& entry) { return entry.second->context == context; };
  std::erase_if(state.streams, is_of);
  std::erase_if(state.events, is_of);
  std::erase_if(state.functions, is_of);
  std::erase_if(state.modules, is_of);
  std::erase_if(state.order, [&](auto& stream) { return stream->context == context; });
  std::erase_if(state.memory, [&](auto& entry) {
    if (entry.second.context == context) release(entry.second);
    return entry.second.context == context;
  });
  context->alive = false;
  state.primary[context->device] = nullptr;
}

const Memory* find(const void* p, size_t bytes) {
  auto after = state.memory.upper_bound((char*)p);
  if (after == state.memory.begin()) return nullptr;
  const Memory& memory = std::prev(after)->second;
  return memory.pages->contains(p, bytes) ? &memory : nullptr;
}

const Memory* find_device(const void* p, size_t bytes) {
  const Memory* memory = find(p, bytes);
  return memory && !memory->pinned ? memory : nullptr;
}

static Code close(const std::vector<const Memory*>& all) {
  bool intact = true;
  for (const Memory* memory : all) intact = intact && memory->pages->intact();
  for (const Memory* memory : all)
    if (!memory->pinned) memory->pages->protect(false);
  return intact ? 0 : say(ILLEGAL_ADDRESS, "somebody wrote beside device memory");
}

// Device memory is opened where it is touched.
struct Touched : emulator::Opener {
  const std::function<bool(const Memory&)>& may_touch;
  std::vector<const Memory*> all;
  explicit Touched(const std::function<bool(const Memory&)>& may_touch) : may_touch(may_touch) {}
  bool open(const void* address) override {
    const Memory* memory = find_device(address, 1);
    if (!memory || !may_touch(*memory) || !memory->pages->open_around(address)) return false;
    if (std::find(all.begin(), all.end(), memory) == all.end()) all.push_back(memory);
    return true;
  }
};

static Code opened_where(const std::function<bool(const Memory&)>& may_touch, const std::function<void()>& work) {
  Touched touched(may_touch);
  emulator::watch_faults();
  emulator::opener = &touched;
  work();
  emulator::opener = nullptr;
  // Pinned memory is always open.
  for (auto& entry : state.memory)
    if (entry.second.pinned && may_touch(entry.second)) touched.all.push_back(&entry.second);
  return close(touched.all);
}

Code opened(const std::vector<const Memory*>& all, const std::function<void()>& work) {
  return opened_where([&](const Memory& memory) { return std::find(all.begin(), all.end(), &memory) != all.end(); }, work);
}

Code opened_by_kernels(Context* context, const std::function<void()>& work) {
  return opened_where([&](const Memory& memory) { return memory.context == context; }, work);
}

// Tells a test what has run, and how much memory of each device the process has used.
static struct Peaks {
  ~Peaks() {
    const char* runs = getenv("OARLOCK_FAKE_RUNS");
    if (FILE* file = runs ? fopen(runs, "a") : nullptr) {
      for (auto& [name, n] : state.n_runs) fprintf(file, "%s %llu\n", name.c_str(), (unsigned long long)n);
      fclose(file);
    }
    const char* path = getenv("OARLOCK_FAKE_PEAKS");
    if (FILE* file = path ? fopen(path, "a") : nullptr) {
      for (int i = 0; i < 3; i++)
        if (state.peak_bytes[i]) fprintf(file, "%d %zu\n", i, state.peak_bytes[i]);
      fclose(file);
    }
  }
} peaks;

}  // namespace fake

using namespace fake;

// What tests ask. A text of all that is alive; empty where nothing is.
extern "C" const char* fake_alive() {
  static thread_local std::string text;
  std::lock_guard<std::recursive_mutex> held(state.lock);
  text.clear();
  auto count = [&](size_t n, const char* what) {
    if (n) text += std::to_string(n) + " " + what + "; ";
  };
  count(state.memory.size(), "memory");
  count(state.streams.size(), "streams");
  count(state.events.size(), "events");
  count(state.modules.size(), "modules");
  size_t contexts = 0;
  for (Context* primary : state.primary) contexts += primary != nullptr;
  count(contexts, "contexts");
  count(state.leaked, "left behind in a context");
  return text.c_str();
}

// The call of this name fails once, after `skip` calls that do not.
extern "C" void fake_fail(const char* call, int skip, int code) {
  std::lock_guard<std::recursive_mutex> held(state.lock);
  state.planned[call] = {skip, code};
}

// What tests choose: a model for a device, what the driver supports, and whether launches are only checked.
extern "C" int fake_model(int device, const char* name) { return becomes(device, name); }
extern "C" void fake_version(int version) { state.version = version; }
extern "C" void fake_dry(int dry) { state.dry = dry; }

// What the last error of the device was.
extern "C" const char* fake_message() {
  static thread_local std::string text;
  std::lock_guard<std::recursive_mutex> held(state.lock);
  text = state.message;
  return text.c_str();
}

// For the other fakes: work on a stream that touches these stretches of device memory.
extern "C" int fake_enqueue(void* handle, void* const* starts, const size_t* bytes, size_t n, void (*work)(void*),
                            void (*end)(void*), void* argument) {
  std::lock_guard<std::recursive_mutex> held(state.lock);
  std::shared_ptr<void> owned(argument, end);
  auto stream = state.streams.find((Stream*)handle);
  if (stream == state.streams.end()) return INVALID_HANDLE;
  std::vector<std::pair<void*, size_t>> ranges;
  for (size_t i = 0; i < n; i++) ranges.push_back({starts[i], bytes[i]});
  enqueue(*stream->second, [=] {
    note_run("library");
    std::vector<const Memory*> touched;
    for (auto [start, size] : ranges) {
      const Memory* memory = find_device(start, size);
      if (!memory) return say(ILLEGAL_ADDRESS, "a product touches what is not device memory");
      touched.push_back(memory);
    }
    return opened(touched, [=] { work(owned.get()); });
  });
  return 0;
}
extern "C" int fake_planned(const char* call) {
  std::lock_guard<std::recursive_mutex> held(state.lock);
  return planned(call);
}

// For the fake of NCCL, which keeps what it knows under the same lock.
extern "C" void fake_lock() { state.lock.lock(); }
extern "C" void fake_unlock() { state.lock.unlock(); }
// A place in the work of a stream.
struct Mark {
  u64 stream, number;
};
// Work that may be PENDING, behind that of a mark, which becomes its own; false where there is no such stream.
extern "C" bool fake_enqueue_waiting(void* handle, Mark* mark, int (*work)(void*), void (*end)(void*), void* argument) {
  std::lock_guard<std::recursive_mutex> held(state.lock);
  std::shared_ptr<void> owned(argument, end);
  auto found = state.streams.find((Stream*)handle);
  if (found == state.streams.end()) return false;
  Stream& stream = *found->second;
  for (auto& other : state.order)
    if (other->serial == mark->stream && other->serial != stream.serial)
      stream.queue.push_back({++stream.last, other, mark->number, nullptr});
  enqueue(stream, [=] { return work(owned.get()); });
  *mark = {stream.serial, stream.last};
  return true;
}
// Runs work up to a mark as far as it goes now; whether all of it is done.
extern "C" bool fake_advance(Mark mark) {
  std::lock_guard<std::recursive_mutex> held(state.lock);
  auto is_it = [&](auto& stream) { return stream->serial == mark.stream; };
  auto found = std::find_if(state.order.begin(), state.order.end(), is_it);
  if (found == state.order.end()) return true;
  std::shared_ptr<Stream> stream = *found;
  return advance(*stream, mark.number);
}
// The end of what the stream of a mark was given so far.
extern "C" Mark fake_end_of(Mark mark) {
  std::lock_guard<std::recursive_mutex> held(state.lock);
  for (auto& stream : state.order)
    if (stream->serial == mark.stream) return {mark.stream, stream->last};
  return mark;
}
// Opens stretches of device memory of the context while `work` runs, in what fake_enqueue_waiting runs.
extern "C" int fake_open(void* context, void* const* starts, const size_t* bytes, size_t n, void (*work)(void*),
                         void* argument) {
  std::vector<const Memory*> touched;
  for (size_t i = 0; i < n; i++) {
    const Memory* memory = find_device(starts[i], bytes[i]);
    if (!memory || memory->context != context) return say(ILLEGAL_ADDRESS, "NCCL touches what is not memory of its device");
    touched.push_back(memory);
  }
  return opened(touched, [=] { work(argument); });
}
// The context of a stream, or of memory with these bytes; null where there is none.
extern "C" void* fake_context_of(void* handle, const void* at, size_t bytes) {
  std::lock_guard<std::recursive_mutex> held(state.lock);
  auto stream = state.streams.find((Stream*)handle);
  if (handle) return stream == state.streams.end() ? nullptr : stream->second->context;
  const Memory* memory = find_device(at, bytes);
  return memory ? memory->context : nullptr;
}
// What identifies the GPU of a context in a machine.
extern "C" const char* fake_bus_of(void* context) { return devices[((Context*)context)->device].bus; }
