// What the fake driver knows: contexts, memory, streams with their work, events, modules.
//
// Work waits in its stream until somebody needs it, and then no more of it runs than that demands, so an order that was
// not asked for is not there: where an event is missing, work runs too early or too late. The memory of the device is out
// of everybody's reach but while a kernel or a copy runs that may touch it.
#pragma once
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "machine.h"

namespace fake {

typedef int Code;
const Code INVALID_VALUE = 1, OUT_OF_MEMORY = 2, NOT_INITIALIZED = 3, NO_DEVICE = 100, INVALID_DEVICE = 101, INVALID_IMAGE = 200,
           INVALID_CONTEXT = 201, NO_BINARY = 209, INVALID_HANDLE = 400, NOT_FOUND = 500, NOT_READY = 600,
           ILLEGAL_ADDRESS = 700, OUT_OF_RESOURCES = 701, DESTROYED = 709, LAUNCH_FAILED = 719;

// What a model of GPUs gives to kernels, by the table of compute capabilities in the CUDA C++ Programming Guide: shared memory
// of a block that asks for it and of a multiprocessor, and threads of a multiprocessor.
struct Model {
  const char* name;
  int major, minor, multiprocessors, shared_bytes, multiprocessor_shared_bytes, multiprocessor_threads;
};
// The same for all of them: shared memory of a block that does not ask, registers of a block, threads of a block.
const int USUAL_SHARED = 48 << 10, REGISTERS = 64 << 10, MOST_THREADS = 1024;

struct Device {
  Model model;
  const char* bus;
  size_t memory_bytes;
};
extern Device devices[3];

// Made anew for each life of a device's primary context, and never removed.
struct Context {
  int device;
  bool alive = true;
  int users = 0;
  Code sticky = 0;
  size_t used_bytes = 0;
};

// What work says that waits for another GPU: it is asked again later.
const Code PENDING = -1;

struct Stream;
struct Op {
  u64 number;
  // What must have run before.
  std::shared_ptr<Stream> other;
  u64 other_number;
  std::function<Code()> run;
};
struct Stream {
  Context* context;
  std::deque<Op> queue;
  u64 last = 0;
  // Never that of another one, as the address may be.
  u64 serial = 0;
  // Below 0 for what goes first.
  int priority = 0;
};
struct Event {
  Context* context;
  bool timing;
  std::shared_ptr<Stream> stream;
  u64 number = 0;
  int polls = 0;
  std::shared_ptr<double> milliseconds = std::make_shared<double>(-1);
};
struct Memory {
  Context* context;
  emulator::Guarded* pages;
  bool pinned;
};
struct Module {
  Context* context;
  std::string file, suffix;
};
struct Function {
  Context* context;
  Module* module;
  std::string name;
  const emulator::Kernel* kernel;
  // What its code takes of shared memory, and how much more a launch may have now.
  size_t static_bytes, shared_bytes;
  // The most that the bound of its threads lets the compiler use.
  int registers() const;
};

// All that lives; handles are the addresses of these.
struct State {
  std::recursive_mutex lock;
  bool initialized = false;
  // As cuDriverGetVersion tells it.
  int version = 13010;
  // Launches are checked, and nothing runs.
  bool dry = false;
  Context* primary[3] = {};
  std::map<Stream*, std::shared_ptr<Stream>> streams;
  // In the order of their creation.
  std::vector<std::shared_ptr<Stream>> order;
  std::map<Event*, std::unique_ptr<Event>> events;
  std::map<Module*, std::unique_ptr<Module>> modules;
  std::map<Function*, std::unique_ptr<Function>> functions;
  // By the first address.
  std::map<char*, Memory> memory;
  size_t leaked = 0;
  // The most bytes of each device's memory that were in use at one time.
  size_t peak_bytes[3] = {};
  std::map<std::string, std::pair<int, Code>> planned;
  std::string message;
  u64 launches = 0, n_streams = 0;
  // Milliseconds by which the clock of the devices is ahead: what OARLOCK_FAKE_SLOW says that work has taken.
  double ahead = 0;
  std::map<std::string, u64> n_runs;
};
extern State state;

// The error that a test has planned for this call; 0 for none.
Code planned(const char* call);
// Work of this name runs: kernels have theirs, and that of other libraries is `library`.
void note_run(const std::string& name);
// Puts work into a stream.
void enqueue(Stream& stream, std::function<Code()> run);
// Runs what the work of this number needs, and that; whether all of it is done. It never waits.
bool advance(Stream& stream, u64 number);
// The same until it is done. Others have the lock while it waits.
void finish(std::shared_ptr<Stream> stream, u64 number);
// All work of a context, that of the latest stream first.
void drain(Context* context);
// Ends everything of a context.
void destroy(Context* context);

// The live memory that has all these bytes; null where there is none.
const Memory* find(const void* p, size_t bytes);
const Memory* find_device(const void* p, size_t bytes);
// Opens memory while `work` runs.
Code opened(const std::vector<const Memory*>& memory, const std::function<void()>& work);
// As opened, for kernels of a context: they open what they touch of its memory.
Code opened_by_kernels(Context* context, const std::function<void()>& work);
Code say(Code code, const std::string& message);

}  // namespace fake
