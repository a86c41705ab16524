// What the fake NCCL knows of a communicator, and the work that it gives to streams.
#pragma once
#include <algorithm>
#include <deque>
#include <string>
#include <thread>
#include <vector>

#include "segment.h"

namespace fake {

typedef int Result;
const Result UNHANDLED_CUDA = 1, SYSTEM = 2, INVALID_ARGUMENT = 4, INVALID_USAGE = 5, REMOTE = 6, IN_PROGRESS = 7;
const int PENDING = -1;
enum Kind { ALL_REDUCE, REDUCE_SCATTER, ALL_GATHER, BROADCAST, REDUCE, SEND, RECV };
// Bytes of the elements of each type.
const size_t SIZES[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2};

// The fake driver in the folder of this library.
void* driver_symbol(const char* name);
template <class F> F* driver(const char* name) { return (F*)driver_symbol(name); }
// Keeps a text for ncclGetLastError.
Result say(Result result, const std::string& text);

// What both sides of a message must mean alike.
struct Header {
  int kind, type, reduction, root;
  u64 count;
};

// Bytes to or from one rank.
struct Flow {
  std::vector<char> bytes;
  u64 done = 0, end = 0;
  bool finished() const { return done == bytes.size(); }
};

// A collective, or one side of a message.
struct Part {
  Kind kind;
  char *from, *to;
  size_t count;
  int type, reduction, peer;
  std::vector<char> own;
  Flow out[MOST_RANKS], in[MOST_RANKS];

  bool is_message() const { return kind == SEND || kind == RECV; }
  Header header() const { return {std::min<int>(kind, SEND), type, reduction, is_message() ? -1 : peer, count}; }
};

// A place in the work of a stream.
struct Mark {
  u64 stream, number;
};

struct Comm;
struct Splitting {
  u64 number;
  int color;
  Comm** slot;
  std::shared_ptr<Comm> child;
};
struct Comm {
  std::unique_ptr<Segment> segment;
  Id id;
  int rank, world;
  void* context;
  Result error = 0;
  bool ready = false, aborted = false, finalizing = false;
  // Given in, and not in the stream yet.
  std::vector<Part> launching;
  void* stream = nullptr;
  int polls = 0;
  // In streams and not done, in their order; and the latest one.
  std::deque<Mark> marks;
  Mark latest = {};
  u64 n_splits = 0;
  std::unique_ptr<Splitting> splitting;
  std::thread service;
  bool stop = false;

  Ring& ring(int from, int to) { return segment->shared->rings[from][to]; }
  size_t bytes_in(const Part& part) const;
  size_t bytes_out(const Part& part) const;
};

// One or more parts that go on together, as work of a stream.
struct Work {
  std::shared_ptr<Comm> comm;
  std::vector<Part> parts;
  bool begun = false;

  void read();
  void write();
  bool exchange();
  int open(bool inputs, void (*work)(void*));
  int run();
};

}  // namespace fake
