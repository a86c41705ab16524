// Of libcuda.so.1 for tests: modules that the fake compiler made, and launches in the emulator.
#include <cstdio>
#include <cstring>

#include "state.h"

extern "C" int emulator_launch(const char* name, const unsigned grid[3], unsigned threads, size_t shared_bytes,
                               void* const* args, size_t n_args, unsigned n_workers, unsigned order, char* error,
                               size_t error_bytes);

using namespace fake;

extern "C" int cuCtxGetCurrent(void** handle);

// Bytes of shared memory that the code of a kernel takes by itself, where there are any: of arrays whose size is known when it
// is compiled. These are those of the GPU's compiler, which a test compares.
static const std::map<std::string, size_t> static_shared = {
#include "static_shared.h"
};

// As the macros of driver.cpp.
#define CALL(name) \
  std::lock_guard<std::recursive_mutex> held(state.lock); \
  if (Code code = planned(name)) return code; \
  Context* current = nullptr; \
  if (Code code = cuCtxGetCurrent((void**)&current)) return code; \
  if (!state.initialized) return NOT_INITIALIZED; \
  if (!current) return INVALID_CONTEXT; \
  if (!current->alive) return DESTROYED
#define CALL_IN_CONTEXT(name) \
  CALL(name); \
  if (current->sticky) return current->sticky

template <class T> static T* live(const std::map<T*, std::unique_ptr<T>>& all, void* handle) {
  auto found = all.find((T*)handle);
  return found == all.end() ? nullptr : found->second.get();
}

extern "C" {

// What the fake compiler makes: lines of magic and the compiler's major version, architecture, file, and what the names of its
// kernels end with.
Code cuModuleLoadData(void** handle, const char* image) {
  CALL_IN_CONTEXT("cuModuleLoadData");
  char arch[32], file[128], suffix[128] = "", variant = 0;
  int compiler = 0, number = 0;
  if (sscanf(image, "fake cubin %d\n%31s\n%127s\n%127s", &compiler, arch, file, suffix) < 3) return INVALID_IMAGE;
  if (compiler > state.version / 1000) return INVALID_IMAGE;
  if (sscanf(arch, "sm_%d%c", &number, &variant) < 1) return INVALID_IMAGE;
  // Code runs on devices of the same major version and the same minor one or a later one; that of a variant on its own device.
  const Model& model = devices[current->device].model;
  int minor = number % 10;
  if (number / 10 != model.major || minor > model.minor || (variant && minor != model.minor)) return NO_BINARY;
  auto module = std::make_unique<Module>(Module{current, file, suffix});
  *handle = module.get();
  state.modules[module.get()] = std::move(module);
  return 0;
}
Code cuModuleUnload(void* handle) {
  CALL("cuModuleUnload");
  Module* module = live(state.modules, handle);
  if (!module) return INVALID_HANDLE;
  drain(current);
  std::erase_if(state.functions, [&](auto& entry) { return entry.second->module == module; });
  state.modules.erase(module);
  return 0;
}
Code cuModuleGetFunction(void** handle, void* from, const char* name) {
  CALL_IN_CONTEXT("cuModuleGetFunction");
  Module* module = live(state.modules, from);
  if (!module) return INVALID_HANDLE;
  if (module->context != current) return INVALID_CONTEXT;
  const emulator::Kernel* kernel = emulator::find(name);
  if (!kernel || !std::string(kernel->file).ends_with("/" + module->file)) return NOT_FOUND;
  if (!std::string(name).ends_with(module->suffix)) return NOT_FOUND;
  auto own = static_shared.find(name);
  size_t bytes = own == static_shared.end() ? 0 : own->second;
  auto function = std::make_unique<Function>(Function{current, module, name, kernel, bytes, USUAL_SHARED - bytes});
  *handle = function.get();
  state.functions[function.get()] = std::move(function);
  return 0;
}
Code cuFuncSetAttribute(void* handle, int attribute, int value) {
  CALL_IN_CONTEXT("cuFuncSetAttribute");
  Function* function = live(state.functions, handle);
  if (!function) return INVALID_HANDLE;
  if (function->context != current) return INVALID_CONTEXT;
  int most = devices[current->device].model.shared_bytes - (int)function->static_bytes;
  if (attribute != 8 || value < 0 || value > most) return INVALID_VALUE;
  function->shared_bytes = value;
  return 0;
}
Code cuFuncGetAttribute(int* value, int attribute, void* handle) {
  CALL_IN_CONTEXT("cuFuncGetAttribute");
  Function* function = live(state.functions, handle);
  if (!function) return INVALID_HANDLE;
  if (function->context != current) return INVALID_CONTEXT;
  switch (attribute) {
    // The bound that its code was compiled with.
    case 0: *value = function->kernel->threads; return 0;
    case 1: *value = (int)function->static_bytes; return 0;
    case 3: *value = 0; return 0;
    case 4: *value = function->registers(); return 0;
    case 8: *value = (int)function->shared_bytes; return 0;
  }
  return INVALID_VALUE;
}

Code cuLaunchKernel(void* handle, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned threads, unsigned threads_y,
                    unsigned threads_z, unsigned shared_bytes, void* on, void** args, void** extra) {
  CALL_IN_CONTEXT("cuLaunchKernel");
  Function* function = live(state.functions, handle);
  auto found = state.streams.find((Stream*)on);
  if (!function || found == state.streams.end()) return INVALID_HANDLE;
  if (found->second->context != current || function->context != current) return INVALID_HANDLE;
  const emulator::Kernel& kernel = *function->kernel;
  if (!args || extra || threads_y != 1 || threads_z != 1) return INVALID_VALUE;
  if (!grid_x || !grid_y || !grid_z || grid_x > 0x7fffffff || grid_y > 65535 || grid_z > 65535) return INVALID_VALUE;
  if (threads > MOST_THREADS) return INVALID_VALUE;
  // A warp's registers are given out in parts of 256.
  int of_warp = (function->registers() * 32 + 255) / 256 * 256;
  if (threads > kernel.threads || (int)(threads + 31) / 32 * of_warp > REGISTERS) return OUT_OF_RESOURCES;
  // A GPU takes fewer threads as well; no kernel means that.
  if (threads != kernel.threads) return INVALID_VALUE;
  if (shared_bytes > function->shared_bytes) return INVALID_VALUE;
  std::vector<std::vector<char>> copied;
  for (size_t i = 0; i < kernel.n_args; i++) {
    if (!args[i]) return INVALID_VALUE;
    copied.emplace_back((char*)args[i], (char*)args[i] + kernel.sizes[i]);
    char* at = nullptr;
    if (!kernel.types[i].pointer) continue;
    memcpy(&at, args[i], sizeof at);
    if (at && !find_device(at, 0)) return say(INVALID_VALUE, "an argument is not device memory");
  }
  if (state.dry) return 0;
  // The order of threads is another one at each launch.
  unsigned order = state.launches++ % 4;
  enqueue(*found->second, [=, name = function->name, bytes = function->static_bytes] {
    note_run(name);
    unsigned grid[3] = {grid_x, grid_y, grid_z};
    std::vector<void*> params;
    for (const std::vector<char>& arg : copied) params.push_back((void*)arg.data());
    char error[1024] = "";
    int failed = 0;
    const emulator::Kernel& kernel = *emulator::find(name);
    Code code = opened_by_kernels(current, [&] {
      failed = emulator_launch(name.c_str(), grid, threads, shared_bytes, params.data(), params.size(), 1, order, error,
                               sizeof error);
    });
    if (kernel.static_bytes > bytes)
      return say(LAUNCH_FAILED, name + " uses " + std::to_string(kernel.static_bytes) + " bytes of arrays in shared memory, and "
                 "fakes/static_shared.h says " + std::to_string(bytes));
    if (!failed) return code;
    bool is_address = strstr(error, "out of bounds") || strstr(error, "no memory of the device");
    return say(is_address ? ILLEGAL_ADDRESS : LAUNCH_FAILED, error);
  });
  return 0;
}

}  // extern "C"
