// libnvrtc for tests: compiles nothing, and makes a text that names the unit, which the fake driver knows.
#include <atomic>
#include <cstring>
#include <string>
#include <vector>

struct Program {
  std::string source, name, log, code;
};
static std::atomic<int> n_alive{0}, n_compiled{0};
static std::string fails;
// Another copy of this file can be of another version.
static int version = 1300;

// The architectures that compilers of a version know.
static std::vector<int> archs() {
  std::vector<int> known = {80, 86, 87, 89, 90};
  if (version >= 1208) known.insert(known.end(), {100, 101, 120});
  if (version >= 1209) known.insert(known.end(), {103, 121});
  return known;
}
static bool knows(const std::string& arch) {
  for (int number : archs()) {
    std::string own = "sm_" + std::to_string(number);
    if (arch == own || (number >= 90 && arch == own + "a")) return true;
  }
  return false;
}

extern "C" {

int nvrtcVersion(int* major, int* minor) {
  *major = version / 100, *minor = version % 100;
  return 0;
}
int nvrtcGetNumSupportedArchs(int* n) {
  *n = (int)archs().size();
  return 0;
}
int nvrtcGetSupportedArchs(int* numbers) {
  for (int number : archs()) *numbers++ = number;
  return 0;
}
const char* nvrtcGetErrorString(int code) {
  return code == 5 ? "NVRTC_ERROR_INVALID_OPTION" : code == 6 ? "NVRTC_ERROR_COMPILATION" : "NVRTC_ERROR_FAKE";
}
int nvrtcCreateProgram(Program** program, const char* source, const char* name, int n, const char* const* texts,
                       const char* const* names) {
  if (fails == "create") return 1;
  // Every header that is included must be there.
  for (const char* at = source; (at = strstr(at, "#include \"")); at++) {
    std::string header(at + 10, strcspn(at + 10, "\""));
    bool found = false;
    for (int i = 0; i < n; i++) found = found || (header == names[i] && *texts[i]);
    if (!found) return 3;
  }
  *program = new Program{source, name, "", ""};
  n_alive++;
  return 0;
}
int nvrtcCompileProgram(Program* program, int n, const char* const* options) {
  std::string arch, element, head_dim, rows, walked, wgmma;
  auto value = [](const char* option, const char* key, std::string& to) {
    if (!strncmp(option, key, strlen(key))) to = option + strlen(key);
  };
  for (int i = 0; i < n; i++) {
    value(options[i], "--gpu-architecture=", arch);
    value(options[i], "--define-macro=ELEMENT=", element);
    value(options[i], "--define-macro=HEAD_DIM=", head_dim);
    value(options[i], "--define-macro=OF_ROWS=", rows);
    value(options[i], "--define-macro=OF_WALKED=", walked);
    value(options[i], "--define-macro=WGMMA=", wgmma);
  }
  if (!knows(arch)) {
    program->log = "nvrtc: error: invalid value for --gpu-architecture (-arch)\n";
    return 5;
  }
  if (program->source.find("KERNEL") == std::string::npos) {
    program->log = program->name + "(1): error: there is no kernel";
    return 6;
  }
  n_compiled++;
  program->code = "fake cubin " + std::to_string(version / 100) + "\n" + arch + "\n" + program->name + "\n";
  std::string tile = rows.empty() ? "" : "_" + rows + "_" + walked + (wgmma.empty() ? "" : "_wgmma");
  if (!head_dim.empty()) program->code += "_" + element + "_" + head_dim + tile + "\n";
  return fails == "compile" ? 7 : 0;
}
int nvrtcDestroyProgram(Program** program) {
  delete *program;
  n_alive--;
  return 0;
}
int nvrtcGetProgramLogSize(Program* program, size_t* n) {
  *n = program->log.size() + 1;
  return 0;
}
int nvrtcGetProgramLog(Program* program, char* log) {
  strcpy(log, program->log.c_str());
  return 0;
}
int nvrtcGetCUBINSize(Program* program, size_t* n) {
  *n = fails == "no code" ? 0 : program->code.size() + 1;
  return fails == "cubin" ? 1 : 0;
}
int nvrtcGetCUBIN(Program* program, char* code) {
  if (fails != "no code") strcpy(code, program->code.c_str());
  return 0;
}

// What tests ask and plan.
int fake_programs() { return n_alive; }
int fake_compiled() { return n_compiled; }
void fake_nvrtc_fails(const char* what) { fails = what; }
void fake_nvrtc_version(int number) { version = number; }

}  // extern "C"
