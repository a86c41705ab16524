// The table of kernels, and launches: what the host calls.
#include <atomic>
#include <map>
#include <mutex>
#include <thread>

#include "machine.h"

namespace emulator {

// A kernel, and its parameters as C declares them.
struct Entry {
  Kernel kernel;
  std::string signature;
};
static std::map<std::string, Entry>& table() {
  static std::map<std::string, Entry> kernels;
  return kernels;
}
void enter(const char* name, const Kernel& kernel) {
  std::string signature;
  for (size_t i = 0; i < kernel.n_args; i++) {
    const Type& type = kernel.types[i];
    signature += std::string(i ? ", " : "") + (type.constant ? "const " : "") + type.name + (type.pointer ? "*" : "");
  }
  table()[name] = {kernel, signature};
}

const Kernel* find(const std::string& name) {
  auto found = table().find(name);
  return found == table().end() ? nullptr : &found->second.kernel;
}

// Those of the last launch of this OS thread.
static thread_local Tiles told;

static std::string run(const Launch& launch, u32 n_workers) {
  u64 n_blocks = (u64)launch.grid.x * launch.grid.y * launch.grid.z;
  std::atomic<u64> next{0};
  std::atomic<bool> stopped{false};
  std::mutex lock;
  std::string error;
  Tiles tiles;
  auto worker = [&] {
    Machine here(launch);
    for (u64 i; !stopped && (i = next++) < n_blocks;) {
      // Blocks have no order either.
      u64 at = launch.order % 2 ? n_blocks - 1 - i : i;
      Dim grid = launch.grid;
      Dim block = {(u32)(at % grid.x), (u32)(at / grid.x % grid.y), (u32)(at / grid.x / grid.y)};
      if (here.run(block)) continue;
      stopped = true;
      std::lock_guard<std::mutex> held(lock);
      if (error.empty()) error = here.error;
    }
    std::lock_guard<std::mutex> held(lock);
    tiles.all += here.tiles.all;
    tiles.masked += here.tiles.masked;
  };
  std::vector<std::thread> others;
  for (u32 i = 1; i < n_workers; i++) others.emplace_back(worker);
  worker();
  for (std::thread& other : others) other.join();
  told = tiles;
  return error;
}

static std::string check(const char* name, const unsigned* grid, unsigned threads, size_t n_args, Launch& launch) {
  auto found = table().find(name);
  if (found == table().end()) return std::string("there is no kernel ") + name;
  const Kernel& kernel = found->second.kernel;
  if (threads != kernel.threads)
    return std::string(name) + " has blocks of " + std::to_string(kernel.threads) + " threads, not " + std::to_string(threads);
  if (n_args != kernel.n_args) return std::string(name) + " takes (" + found->second.signature + ")";
  if (!grid[0] || !grid[1] || !grid[2] || grid[1] > 65535 || grid[2] > 65535)
    return std::string(name) + ": a grid that no GPU takes";
  launch.kernel = &kernel;
  return "";
}

}  // namespace emulator

// cuLaunchKernel, in effect. Returns 0, or 1 with a message in `error`.
extern "C" int emulator_launch(const char* name, const unsigned grid[3], unsigned threads, size_t shared_bytes,
                               void* const* args, size_t n_args, unsigned n_workers, unsigned order, char* error,
                               size_t error_bytes) {
  using namespace emulator;
  watch_faults();
  Launch launch = {name, nullptr, {grid[0], grid[1], grid[2]}, shared_bytes, args, order};
  std::string message = check(name, grid, threads, n_args, launch);
  if (message.empty()) message = run(launch, n_workers);
  if (message.empty()) return 0;
  size_t n = std::min(message.size(), error_bytes - 1);
  memcpy(error, message.data(), n);
  error[n] = 0;
  return 1;
}

// The tiles of scores that the last launch of this OS thread told of, and those whose masks were looked at.
extern "C" void emulator_tiles(u64 tiles[2]) {
  tiles[0] = emulator::told.all;
  tiles[1] = emulator::told.masked;
}

// The parameters of a kernel as C declares them; null where there is none of this name.
extern "C" const char* emulator_signature(const char* name) {
  auto found = emulator::table().find(name);
  return found == emulator::table().end() ? nullptr : found->second.signature.c_str();
}

// The name of a kernel of this library; null behind the last one.
extern "C" const char* emulator_kernel(size_t index) {
  auto at = emulator::table().begin();
  for (; index && at != emulator::table().end(); index--) ++at;
  return at == emulator::table().end() ? nullptr : at->first.c_str();
}
