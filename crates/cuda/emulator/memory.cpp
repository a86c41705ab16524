// Guarded memory, and the accesses outside of it that the CPU reports.
#include <algorithm>
#include <csignal>
#include <mutex>
#include <sys/mman.h>

#include "machine.h"

namespace emulator {

static const size_t PAGE = 4096;
// As many bytes as are opened in the time of an access that opens them.
static const size_t STRETCH = 64 * PAGE;
static const char PATTERN = (char)0xff;

// All guarded memory, to name what an address was near to.
static std::mutex lock;
static std::vector<Guarded*>& all() {
  static std::vector<Guarded*> list;
  return list;
}

Guarded::Guarded(size_t bytes, size_t align, std::string name, bool odd) : size(bytes), label(std::move(name)) {
  size_t inside = (bytes + 2 * align + PAGE - 1) / PAGE * PAGE;
  mapped = inside + 2 * PAGE;
  pages = (char*)mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  mprotect(pages, PAGE, PROT_NONE);
  mprotect(pages + PAGE + inside, PAGE, PROT_NONE);
  fill(pages + PAGE, inside);
  size_t steps = (inside - bytes) / align;
  if (odd && steps % 2 == 0) steps--;
  at = pages + PAGE + steps * align;
  is_open.assign((inside + STRETCH - 1) / STRETCH, true);
  std::lock_guard<std::mutex> held(lock);
  all().push_back(this);
}

Guarded::~Guarded() {
  {
    std::lock_guard<std::mutex> held(lock);
    std::erase(all(), this);
  }
  munmap(pages, mapped);
}

char* Guarded::inside() const { return pages + PAGE; }
size_t Guarded::n_inside() const { return mapped - 2 * PAGE; }

bool Guarded::intact() const {
  // What is closed nobody could write.
  auto holds_pattern = [&](const char* from, const char* to) {
    for (const char* end; from < to; from = end) {
      size_t stretch = (from - inside()) / STRETCH;
      end = std::min<const char*>(to, inside() + (stretch + 1) * STRETCH);
      for (; is_open[stretch] && from < end; from++)
        if (*from != PATTERN) return false;
    }
    return true;
  };
  return holds_pattern(inside(), at) && holds_pattern(at + size, inside() + n_inside());
}

void Guarded::protect(bool reachable) {
  mprotect(inside(), n_inside(), reachable ? PROT_READ | PROT_WRITE : PROT_NONE);
  is_open.assign(is_open.size(), reachable);
}

bool Guarded::open_around(const void* p) {
  size_t stretch = ((const char*)p - inside()) / STRETCH, from = stretch * STRETCH;
  if (is_open[stretch]) return false;
  mprotect(inside() + from, std::min(STRETCH, n_inside() - from), PROT_READ | PROT_WRITE);
  is_open[stretch] = true;
  return true;
}

void Guarded::retire() {
  label = "freed " + label;
  madvise(pages + PAGE, mapped - 2 * PAGE, MADV_DONTNEED);
  protect(false);
}

thread_local Opener* opener;

void Machine::fault(const void* address) {
  std::string what = "an access to an address that is no memory of the device";
  for (Guarded* memory : all()) {
    if (!memory->maps(address)) continue;
    long offset = (const char*)address - memory->data();
    what = "out of bounds: byte " + std::to_string(offset) + " of " + memory->name() + ", which has " +
           std::to_string(memory->bytes()) + " bytes";
  }
  fail(what);
}

static const int SIGNALS[] = {SIGSEGV, SIGBUS, SIGILL};
static struct sigaction before[3];

static void on_fault(int signal, siginfo_t* info, void* context) {
  // What the compiler puts where an address does not fit its type. A GPU refuses it, and this CPU does not.
  if (signal == SIGILL && machine) machine->fail("an address that is not a multiple of what its type needs");
  if (opener && opener->open(info->si_addr)) return;
  if (machine) machine->fault(info->si_addr);
  // Not a kernel's, or that of another copy of this library: for whoever was here before.
  struct sigaction& other = before[signal == SIGILL ? 2 : signal == SIGBUS];
  if (other.sa_flags & SA_SIGINFO) other.sa_sigaction(signal, info, context);
  else sigaction(signal, &other, nullptr);
}

void watch_faults() {
  static std::once_flag once;
  std::call_once(once, [] {
    struct sigaction action = {};
    action.sa_sigaction = on_fault;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
    for (int i = 0; i < 3; i++) sigaction(SIGNALS[i], &action, &before[i]);
  });
}

}  // namespace emulator

// Memory of the device.
extern "C" void* emulator_alloc(size_t bytes, size_t align) {
  return new emulator::Guarded(bytes, align, "device memory");
}
extern "C" void* emulator_data(void* memory) { return ((emulator::Guarded*)memory)->data(); }
// Frees it; 0 where somebody wrote beside it.
extern "C" int emulator_free(void* memory) {
  auto* guarded = (emulator::Guarded*)memory;
  bool intact = guarded->intact();
  delete guarded;
  return intact;
}
