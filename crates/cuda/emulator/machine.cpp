// Runs a block: its threads are fibers in a ring, which goes on where one of them waits.
#define EMULATOR_DEFINES_SWITCH
#include "machine.h"

#include <sys/mman.h>

#include <algorithm>
#include <mutex>

namespace emulator {

thread_local const Ids* ids;
thread_local Machine* machine;

static const size_t STACK = 256 << 10;
static const size_t MOST_STATIC = 48 << 10, MOST_SHARED = 227 << 10;

const char* name(Op op) {
  const char* names[] = {"a shuffle", "mma", "ldmatrix", "ldmatrix.trans", "sync_warp", "wgmma"};
  return names[(int)op];
}

// The stacks of an OS thread's launches, whose pages are there from the second launch on. Sanitizers remember what lay on a
// stack, so they get new ones each time.
static thread_local struct Stacks {
  char* at = nullptr;
  size_t bytes = 0;
  ~Stacks() { clear(); }
  void clear() {
    if (at) munmap(at, bytes);
    at = nullptr, bytes = 0;
  }
  char* of(size_t needed) {
    if (needed > bytes || __sanitizer_start_switch_fiber || __tsan_create_fiber) {
      clear();
      bytes = needed;
      at = (char*)mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    }
    return at;
  }
} kept;

Machine::Machine(const Launch& launch)
    : launch(launch), n(launch.kernel->threads), fibers(n), warps(n / 32), warpgroups(n / 128 + 1) {
  step = launch.order % 2 ? n - 1 : 1;
  stacks = kept.of(n * STACK);
  if (launch.shared_bytes) dynamic = new Guarded(launch.shared_bytes, 128, "dynamic shared memory", true);
  for (u32 i = 0; i < n; i++) {
    fibers[i].strand.bottom = stacks + i * STACK;
    fibers[i].strand.bytes = STACK;
    if (__tsan_create_fiber) fibers[i].strand.tsan = __tsan_create_fiber(0);
  }
}

Machine::~Machine() {
  if (__tsan_destroy_fiber)
    for (Fiber& fiber : fibers) __tsan_destroy_fiber(fiber.strand.tsan);
  for (SharedArray& array : shared) delete array.memory;
  delete dynamic;
}

bool Machine::run(Dim block) {
  alive = n;
  arrived = 0;
  idle = 0;
  failed = false;
  warps.assign(n / 32, Warp{});
  warpgroups.assign(n / 128 + 1, Warpgroup{});
  for (SharedArray& array : shared) array.memory->poison();
  if (dynamic) dynamic->poison();
  for (u32 i = 0; i < n; i++) {
    Fiber& fiber = fibers[i];
    fiber.ids = {{i, 0, 0}, block, {n, 1, 1}, launch.grid};
    fiber.index = i;
    fiber.lane = i % 32;
    fiber.warp = &warps[i / 32];
    fiber.group = &warpgroups[i / 128];
    fiber.done = false;
    fiber.barrier = ~0ull;
    fiber.meeting = ~0ull;
    fiber.waits = "its beginning";
    fiber.file = nullptr;
    fiber.open.clear();
    fiber.groups.clear();
    fiber.products.clear();
    fiber.product_groups.clear();
    fiber.has_fenced = fiber.has_copied = false;
    fiber.strand.context.prepare(stacks + i * STACK, STACK, entry);
  }
  current = launch.order % 2 ? n - 1 : 0;
  ids = &fibers[current].ids;
  machine = this;
  if (__tsan_get_current_fiber) main.tsan = __tsan_get_current_fiber();
  release(this);
  go(main, fibers[current].strand, false);
  acquire(this);
  machine = nullptr;
  if (failed) return false;
  for (SharedArray& array : shared) {
    if (array.memory->intact()) continue;
    error = std::string(launch.name) + ": somebody wrote beside " + array.memory->name();
    return false;
  }
  if (dynamic && !dynamic->intact()) {
    error = std::string(launch.name) + ": somebody wrote beside the dynamic shared memory";
    return false;
  }
  return true;
}

void Machine::entry() {
  Machine* m = machine;
  if (__sanitizer_finish_switch_fiber) {
    const void* bottom;
    size_t bytes;
    __sanitizer_finish_switch_fiber(nullptr, &bottom, &bytes);
    // The first fiber of a block comes from the OS thread.
    if (m->alive == m->n && !m->main.bottom) m->main.bottom = bottom, m->main.bytes = bytes;
  }
  acquire(m);
  m->launch.kernel->call(m->launch.kernel->function, m->launch.args);
  Fiber& me = m->now();
  if (!me.open.empty() || !me.groups.empty()) m->fail("cp.async is never waited for");
  if (!me.products.empty() || !me.product_groups.empty()) m->fail("a product of a warpgroup is never waited for");
  if (m->arrived) m->fail("this thread has returned, and others wait at a barrier");
  if (me.warp->arrived || me.group->arrived) m->fail("this thread has returned, and others of its warp wait at an operation");
  me.done = true;
  m->idle = 0;
  release(m);
  if (--m->alive == 0) go(me.strand, m->main, true);
  m->resume(m->next(), true);
  std::abort();
}

void Machine::resume(u32 to, bool for_good) {
  Fiber& from = now();
  current = to;
  ids = &fibers[to].ids;
  go(from.strand, fibers[to].strand, for_good);
}

bool Machine::is_blocked(const Fiber& fiber) const {
  return fiber.done || fiber.barrier == barriers || fiber.meeting == fiber.group->meetings;
}

// Who goes on. In the ring, whoever is next, so that all warps advance together. With greedy warps, the lanes of the same
// warp as long as one of them is not at a barrier, so that a warp runs as far ahead of the others as barriers let it.
u32 Machine::next() const {
  u32 to = current;
  if (launch.order >= 2) {
    u32 warp = current / 32 * 32;
    for (u32 k = 1; k < 32; k++) {
      u32 at = warp + (current + k * step) % 32;
      if (!is_blocked(fibers[at])) return at;
    }
    for (u32 k = 1; k < n; k++) {
      u32 at = (warp + k * step) % n;
      if (!is_blocked(fibers[at])) return at;
    }
  }
  do to = (to + step) % n;
  while (fibers[to].done);
  return to;
}

// Another fiber goes on. If all of them look in vain for what they wait for, none ever finds it.
void Machine::pass_on() {
  if (++idle > 2 * (u64)n + 2) fail("a deadlock: not all threads come to the same meeting");
  u32 to = next();
  if (to != current) resume(to, false);
}

static std::string place(const Fiber& fiber) {
  std::string text = fiber.waits;
  if (fiber.file) text += std::string(" in ") + fiber.file + ":" + std::to_string(fiber.line);
  return text;
}

void Machine::fail(const std::string& what) {
  Fiber& me = now();
  auto number = [](u32 x) { return std::to_string(x); };
  Dim b = me.ids.block;
  error = std::string(launch.name) + ", block (" + number(b.x) + ", " + number(b.y) + ", " + number(b.z) + "), thread " +
          number(me.index) + ": " + what;
  u32 shown = 0;
  for (Fiber& fiber : fibers)
    if (!fiber.done && fiber.file && fiber.index % 32 == 0 && shown++ < 4)
      error += "; thread " + number(fiber.index) + " was last at " + place(fiber);
  failed = true;
  go(me.strand, main, true);
  std::abort();
}

void Machine::sync_block(const char* file, int line) {
  Fiber& me = now();
  me.waits = "sync_block", me.file = file, me.line = line;
  release(this);
  if (arrived == 0) barrier_file = file, barrier_line = line;
  if (barrier_line != line || strcmp(barrier_file, file) != 0) fail("threads meet at different barriers");
  if (alive != n) fail("a barrier that not all threads come to: some have returned");
  me.barrier = barriers;
  idle = 0;
  if (++arrived == n) arrived = 0, barriers++;
  while (barriers == me.barrier) pass_on();
  idle = 0;
  acquire(this);
}

// All lanes put their operands, the last one works for all, each takes its result.
template <class Put, class Work>
void Machine::meet(Op op, const char* file, int line, int argument, Put put, Work work) {
  Fiber& me = now();
  Warp& warp = *me.warp;
  me.waits = name(op), me.file = file, me.line = line;
  if (warp.arrived == 0) warp.op = op, warp.argument = argument;
  if (warp.op != op || warp.argument != argument) fail("lanes of a warp are at different operations");
  put(warp, me.lane);
  u64 mine = warp.meetings;
  idle = 0;
  if (++warp.arrived == 32) {
    work(warp);
    warp.arrived = 0;
    warp.meetings++;
  }
  while (warp.meetings == mine) pass_on();
  idle = 0;
}

// The threads of four warps come to the same product.
void Machine::meet_group() {
  Fiber& me = now();
  if (me.index / 128 * 128 + 128 > n) fail("a product of a warpgroup by fewer than four warps");
  me.meeting = me.group->meetings;
  idle = 0;
  if (++me.group->arrived == 128) me.group->arrived = 0, me.group->meetings++;
  while (me.group->meetings == me.meeting) pass_on();
  idle = 0;
}

// Products read shared memory by another way than threads do.
void Machine::check_copies() {
  for (const Fiber& fiber : fibers)
    if (fiber.has_copied) fail("a product of a warpgroup before thread " + std::to_string(fiber.index) + " has fenced its copies");
}

void* Machine::shared_array(const void* site, const char* name, size_t bytes, size_t align) {
  size_t sum = bytes;
  for (SharedArray& array : shared) {
    if (array.site == site) return array.memory->data();
    sum += array.memory->bytes();
  }
  if (sum > MOST_STATIC) fail("more than 48 KiB of shared arrays");
  if (sum + launch.shared_bytes > MOST_SHARED) fail("more than 227 KiB of shared memory");
  shared.push_back({site, new Guarded(bytes, align, std::string("the shared array ") + name, true)});
  shared.back().memory->poison();
  static std::mutex lock;
  std::lock_guard<std::mutex> held(lock);
  launch.kernel->static_bytes = std::max(launch.kernel->static_bytes, sum);
  return shared.back().memory->data();
}

void* Machine::dynamic_shared() {
  if (launch.shared_bytes > MOST_SHARED) fail("more than 227 KiB of shared memory");
  return dynamic ? dynamic->data() : nullptr;
}

bool Machine::is_shared(const void* p, size_t bytes) const {
  if (dynamic && dynamic->contains(p, bytes)) return true;
  for (const SharedArray& array : shared)
    if (array.memory->contains(p, bytes)) return true;
  return false;
}

// The operations that kernels call.

void sync_block(const char* file, int line) { machine->sync_block(file, line); }

void sync_warp(const char* file, int line) {
  Warp* warp = machine->now().warp;
  release(warp);
  machine->meet(Op::sync_warp, file, line, 0, [](Warp&, u32) {}, [](Warp&) {});
  acquire(warp);
}

void* shared_array(const void* site, const char* name, size_t bytes, size_t align) {
  return machine->shared_array(site, name, bytes, align);
}
void* dynamic_shared() { return machine->dynamic_shared(); }
void out_of_bounds(const char* name, u64 index, u64 n) {
  machine->fail("out of bounds: element " + std::to_string(index) + " of the shared array " + name + ", which has " +
                std::to_string(n));
}

void tell_tile(bool masked) {
  if (ids->thread.x) return;
  machine->tiles.all++;
  machine->tiles.masked += masked;
}

u32 shuffle_xor(u32 v, int mask) {
  Machine* m = machine;
  // Results have an array of their own: lanes that take them late must not find the operands of the next meeting.
  m->meet(
      Op::shuffle, nullptr, 0, mask, [&](Warp& w, u32 lane) { w.words[lane] = v; },
      [&](Warp& w) {
        for (u32 lane = 0; lane < 32; lane++) w.results[lane][0] = w.words[lane ^ mask];
      });
  return m->now().warp->results[m->now().lane][0];
}

static void mma_warp(Warp& w) {
  f32 a[16][16], b[16][8], c[16][8];
  auto low = [&](u32 word) { return w.to_f32((u16)word); };
  auto high = [&](u32 word) { return w.to_f32((u16)(word >> 16)); };
  for (u32 lane = 0; lane < 32; lane++) {
    u32 g = lane / 4, t = lane % 4;
    for (u32 i = 0; i < 4; i++) {
      u32 row = g + i % 2 * 8, col = 2 * t + i / 2 * 8;
      a[row][col] = low(w.a[lane][i]);
      a[row][col + 1] = high(w.a[lane][i]);
      c[g + i / 2 * 8][2 * t + i % 2] = w.c[lane][i];
    }
    for (u32 i = 0; i < 2; i++) {
      b[2 * t + 8 * i][g] = low(w.b[lane][i]);
      b[2 * t + 8 * i + 1][g] = high(w.b[lane][i]);
    }
  }
  for (u32 i = 0; i < 16; i++)
    for (u32 k = 0; k < 16; k++)
      for (u32 j = 0; j < 8; j++) c[i][j] += a[i][k] * b[k][j];
  for (u32 lane = 0; lane < 32; lane++)
    for (u32 i = 0; i < 4; i++) w.c[lane][i] = c[lane / 4 + i / 2 * 8][2 * (lane % 4) + i % 2];
}

void mma(f32* c, const u32* a, u32 b0, u32 b1, f32 (*to_f32)(u16)) {
  Machine* m = machine;
  m->meet(
      Op::mma, nullptr, 0, 0,
      [&](Warp& w, u32 lane) {
        memcpy(w.a[lane], a, 16);
        memcpy(w.c[lane], c, 16);
        w.b[lane][0] = b0, w.b[lane][1] = b1;
        w.to_f32 = to_f32;
      },
      mma_warp);
  memcpy(c, m->now().warp->c[m->now().lane], 16);
}

void ldmatrix(u32* r, const void* row, bool trans) {
  Machine* m = machine;
  if ((uintptr_t)row % 16) m->fail("ldmatrix of an address that is not a multiple of 16");
  if (!m->is_shared(row, 16)) m->fail("out of bounds: ldmatrix of a row outside of shared memory");
  if (__tsan_read16) __tsan_read16((void*)row);
  m->meet(
      trans ? Op::ldmatrix_trans : Op::ldmatrix, nullptr, 0, 0, [&](Warp& w, u32 lane) { w.rows[lane] = row; },
      [&](Warp& w) {
        for (u32 lane = 0; lane < 32; lane++)
          for (u32 matrix = 0; matrix < 4; matrix++) {
            u16 element[2];
            for (u32 i = 0; i < 2; i++) {
              u32 row = trans ? 2 * (lane % 4) + i : lane / 4, col = trans ? lane / 4 : 2 * (lane % 4) + i;
              memcpy(&element[i], (const char*)w.rows[8 * matrix + row] + 2 * col, 2);
            }
            w.results[lane][matrix] = element[0] | (u32)element[1] << 16;
          }
      });
  memcpy(r, m->now().warp->results[m->now().lane], 16);
}

void check_words(const void* to) {
  if ((uintptr_t)to % 16) machine->fail("a store of 16 bytes to an address that is not a multiple of 16");
  if (machine->is_shared(to, 1)) machine->fail("a store to global memory of an address in shared memory");
}

void cp_async(void* to, const void* from, bool valid) {
  Machine* m = machine;
  if ((uintptr_t)to % 16 || (uintptr_t)from % 16)
    m->fail("cp.async with an address that is not a multiple of 16");
  if (!m->is_shared(to, 16)) m->fail("out of bounds: cp.async to an address outside of shared memory");
  if (__tsan_write16) __tsan_write16(to);
  // Whoever reads before the wait reads NaN.
  memset(to, 0xff, 16);
  m->now().open.push_back({to, from, valid});
}

void cp_async_commit() {
  Fiber& me = machine->now();
  me.groups.emplace_back();
  me.groups.back().swap(me.open);
}

void cp_async_wait(int most) {
  Fiber& me = machine->now();
  while ((int)me.groups.size() > most) {
    for (const Copy& copy : me.groups.front()) {
      if (copy.valid) memcpy(copy.to, copy.from, 16);
      else memset(copy.to, 0, 16);
    }
    me.has_copied = me.has_copied || !me.groups.front().empty();
    me.groups.erase(me.groups.begin());
  }
}

// Where an element is: along the sum of a product in a row of the matrix, or down its rows.
static const char* place(const TileDescriptor& m, u32 along, u32 across, bool down) {
  u32 n = m.row_bytes / 2;
  u64 at = down ? across / n * m.leading + across % n * 2 + along / 8 * m.stride + along % 8 * m.row_bytes
                : across / 8 * m.stride + across % 8 * m.row_bytes + along * 2;
  uintptr_t address = (uintptr_t)m.at + at;
  return (const char*)(address ^ (address >> 7 & (m.row_bytes == 128 ? 7 : 3)) << 4);
}

// The part of a thread, at the last moment at which a GPU may compute it.
static void compute(const Product& p) {
  Machine* m = machine;
  u32 thread = m->now().index % 128, lane = thread % 32;
  auto element = [&](const TileDescriptor& of, u32 along, u32 across, bool down) {
    const char* at = place(of, along, across, down);
    if (!m->is_shared(at, 2)) m->fail("out of bounds: a product of a warpgroup reads outside of shared memory");
    u16 bits;
    memcpy(&bits, at, 2);
    return p.to_f32(bits);
  };
  if (!p.before.empty()) memcpy(p.c, p.before.data(), p.before.size() * 4);
  else if (!p.add) memset(p.c, 0, p.n / 8 * 16);
  f32 a[2][16];
  for (u32 half = 0; half < 2; half++)
    for (u32 k = 0; k < 16; k++) {
      u32 word = p.a[lane / 4 * 4 + k % 8 / 2][half + k / 8 * 2];
      a[half][k] = p.of_a.at ? element(p.of_a, k, thread / 32 * 16 + lane / 4 + 8 * half, false)
                             : p.to_f32((u16)(word >> k % 2 * 16));
    }
  for (u32 j = 0; j < p.n / 8; j++)
    for (u32 i = 0; i < 2; i++)
      for (u32 k = 0; k < 16; k++) {
        f32 b = element(p.b, k, 8 * j + 2 * (lane % 4) + i, p.down);
        for (u32 half = 0; half < 2; half++) p.c[4 * j + 2 * half + i] += a[half][k] * b;
      }
}

void wgmma(f32* c, u32 n, const u32* a, const TileDescriptor* of_a, const TileDescriptor& b, bool down, bool add, f32 (*to_f32)(u16)) {
  Machine* m = machine;
  Fiber& me = m->now();
  if (!me.has_fenced) m->fail("a product of a warpgroup without a fence");
  for (const TileDescriptor* matrix : {&b, of_a})
    if (matrix && (matrix->stride % 16 || matrix->leading % 16 || (uintptr_t)matrix->at % 16))
      m->fail("a matrix of a warpgroup that does not lie at multiples of 16 bytes");
  m->meet(
      Op::wgmma, nullptr, 0, (int)(4 * n + 2 * down + add), [&](Warp& w, u32 lane) { a ? memcpy(w.a[lane], a, 16) : nullptr; },
      [](Warp& w) { memcpy(w.all_of_a, w.a, sizeof w.a); });
  Product product = {c, n, {}, of_a ? *of_a : TileDescriptor{}, b, down, add, {}, to_f32};
  memcpy(product.a, me.warp->all_of_a, sizeof product.a);
  m->meet_group();
  m->check_copies();
  bool goes_on = false;
  for (const std::vector<Product>& group : me.product_groups)
    for (const Product& other : group) goes_on = goes_on || other.c == c;
  for (const Product& other : me.products) goes_on = goes_on || other.c == c;
  if (add && !goes_on) product.before.assign(c, c + n / 2);
  // Whoever reads them before the wait reads NaN.
  memset(c, 0xff, n / 2 * 4);
  me.products.push_back(std::move(product));
}

void wgmma_fence() { machine->now().has_fenced = true; }
void fence_for_wgmma() { machine->now().has_copied = false; }

void wgmma_commit() {
  Fiber& me = machine->now();
  me.product_groups.emplace_back();
  me.product_groups.back().swap(me.products);
}

void wgmma_wait(int most) {
  Fiber& me = machine->now();
  while ((int)me.product_groups.size() > most) {
    for (const Product& product : me.product_groups.front()) compute(product);
    me.product_groups.erase(me.product_groups.begin());
  }
  if (me.product_groups.empty()) me.has_fenced = false;
}

}  // namespace emulator
