// The parts of the emulator: a block of fibers, its warps, its shared memory.
#pragma once
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "fiber.h"
#include "words.h"
#undef sync_block
#undef sync_warp

namespace emulator {

// A copy to shared memory that was not waited for yet.
struct Copy {
  void* to;
  const void* from;
  bool valid;
};

// A product of a warpgroup that was not waited for yet: what a thread has a part of.
struct Product {
  f32* c;
  u32 n;
  // Rows of the left operand that its warp holds in registers; the matrix in shared memory where that has a place.
  u32 a[32][4];
  TileDescriptor of_a, b;
  bool down, add;
  // Sums so far; none where another product under way has the same.
  std::vector<f32> before;
  f32 (*to_f32)(u16);
};

enum class Op { shuffle, mma, ldmatrix, ldmatrix_trans, sync_warp, wgmma };
const char* name(Op op);

// The meeting of the lanes of a warp: the operands of each, and the results.
struct Warp {
  u32 arrived = 0;
  u64 meetings = 0;
  Op op = Op::shuffle;
  int argument = 0;
  f32 (*to_f32)(u16) = nullptr;
  u32 a[32][4], b[32][2], words[32], results[32][4], all_of_a[32][4];
  f32 c[32][4];
  const void* rows[32];
};

// The meeting of the threads of four warps.
struct Warpgroup {
  u32 arrived = 0;
  u64 meetings = 0;
};

struct Fiber {
  Ids ids;
  Strand strand;
  Warp* warp;
  Warpgroup* group;
  u32 index, lane;
  bool done;
  u64 barrier;  // The number of the barrier that it waits at, or did last.
  u64 meeting;  // The same of the meetings of its warpgroup.
  const char* waits;
  const char* file;
  int line;
  std::vector<Copy> open;
  std::vector<std::vector<Copy>> groups;
  std::vector<Product> products;
  std::vector<std::vector<Product>> product_groups;
  bool has_fenced;   // Since products were waited for.
  bool has_copied;   // And not fenced that for products.
};

// Memory that ends at a page nobody may touch. What alignment leaves free before and behind it holds a pattern.
class Guarded {
 public:
  // At a multiple of `align`; an odd one where no more than that is promised.
  Guarded(size_t bytes, size_t align, std::string name, bool odd = false);
  ~Guarded();
  Guarded(const Guarded&) = delete;
  char* data() const { return at; }
  size_t bytes() const { return size; }
  const std::string& name() const { return label; }
  bool contains(const void* p, size_t n) const { return (char*)p >= at && (char*)p + n <= at + size; }
  bool maps(const void* p) const { return (char*)p >= pages && (char*)p < pages + mapped; }
  // Whether nobody wrote beside it while it was open.
  bool intact() const;
  // Opens or closes it to everybody.
  void protect(bool reachable);
  // Opens what is around an address; false where that is open already.
  bool open_around(const void* p);
  // The end of its content. Its addresses stay taken, so that a later use is an error.
  void retire();

  // Not by memset, which a sanitizer would take for an access of the kernel.
  static void fill(char* to, size_t n) {
    size_t i = 0;
    for (; i + 8 <= n; i += 8) *(volatile u64*)(to + i) = ~0ull;
    for (; i < n; i++) *(volatile char*)(to + i) = (char)0xff;
  }
  // Every byte becomes 0xff: a NaN in every float type.
  void poison() { fill(at, size); }

 private:
  char* inside() const;
  size_t n_inside() const;

  char *pages, *at;
  size_t mapped, size;
  std::string label;
  // For each stretch whether it is open. The system visits every page that it opens or closes, and those of one memory are as many
  // as all tensors of a model have.
  std::vector<bool> is_open;
};

// Opens closed memory at the first access of the work of a stream to it. To open and to close all memory of a device for each
// launch takes several times as long as the launch.
struct Opener {
  // False where that work may not touch the address.
  virtual bool open(const void* address) = 0;

 protected:
  ~Opener() = default;
};
// That of this OS thread, while it works.
extern thread_local Opener* opener;

struct SharedArray {
  const void* site;
  Guarded* memory;
};

// What a launch says. Orders are 0, the ring; 1, the ring backwards; 2 and 3, the same with greedy warps. Each is an order
// that a GPU may take, so a result that depends on it is a race.
struct Launch {
  const char* name;
  const Kernel* kernel;
  Dim grid;
  size_t shared_bytes;
  void* const* args;
  u32 order;
};

// The tiles of scores that blocks have told of, and those among them whose masks were looked at.
struct Tiles {
  u64 all = 0, masked = 0;
};

// A kernel of this library; null where there is none of this name.
const Kernel* find(const std::string& name);

// One OS thread that runs blocks, one after the other.
class Machine {
 public:
  explicit Machine(const Launch& launch);
  ~Machine();
  // Runs a block; false where it failed, with `error`.
  bool run(Dim block);
  std::string error;
  Tiles tiles;

  void sync_block(const char* file, int line);
  template <class Put, class Work> void meet(Op op, const char* file, int line, int argument, Put put, Work work);
  void meet_group();
  void check_copies();
  void* shared_array(const void* site, const char* name, size_t bytes, size_t align);
  void* dynamic_shared();
  bool is_shared(const void* p, size_t n) const;
  [[noreturn]] void fail(const std::string& what);
  [[noreturn]] void fault(const void* address);
  Fiber& now() { return fibers[current]; }

 private:
  static void entry();
  void resume(u32 to, bool for_good);
  bool is_blocked(const Fiber& fiber) const;
  u32 next() const;
  void pass_on();

  const Launch& launch;
  u32 n, step, current = 0, alive = 0, arrived = 0;
  u64 barriers = 0, idle = 0;
  const char* barrier_file = nullptr;
  int barrier_line = 0;
  bool failed = false;
  std::vector<Fiber> fibers;
  std::vector<Warp> warps;
  std::vector<Warpgroup> warpgroups;
  std::vector<SharedArray> shared;
  Guarded* dynamic = nullptr;
  char* stacks = nullptr;
  Strand main;
};

// The machine of this OS thread, while it runs a block.
extern thread_local Machine* machine;
// Catches accesses to guard pages and to closed memory.
void watch_faults();

}  // namespace emulator
