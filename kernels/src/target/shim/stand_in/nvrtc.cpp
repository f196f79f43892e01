/* A run-time compiler for the cores of this machine, for tests: what libnvrtc.so does for Memlet, with the system's compiler and the
 * header and the library of the shim. MEMLET_STAND_IN is the folder of both, and of what is made. */
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <unistd.h>

namespace {
enum { SUCCESS = 0, INVALID_INPUT = 3, COMPILATION = 6 };
struct Program { std::string text, log, code; };

std::string folder() {
    const char *set = getenv("MEMLET_STAND_IN");
    return std::filesystem::absolute(set && *set ? set : ".");
}
std::string read(const std::string &path) {
    std::stringstream text;
    text << std::ifstream(path).rdbuf();
    return text.str();
}
int capabilities[] = {80, 90};
} // namespace

extern "C" {

int nvrtcVersion(int *major, int *minor) { *major = 13; *minor = 0; return SUCCESS; }
int nvrtcGetNumSupportedArchs(int *count) { *count = 2; return SUCCESS; }
int nvrtcGetSupportedArchs(int *list) { memcpy(list, capabilities, sizeof capabilities); return SUCCESS; }
const char *nvrtcGetErrorString(int) { return "NVRTC_ERROR"; }
int nvrtcCreateProgram(void **program, const char *text, const char *, int, const char *const *, const char *const *) {
    *program = new Program{text, "", ""};
    return SUCCESS;
}
int nvrtcDestroyProgram(void **program) {
    delete (Program *)*program;
    *program = nullptr;
    return SUCCESS;
}
int nvrtcCompileProgram(void *program, int count, const char *const *options) {
    Program &made = *(Program *)program;
    bool known = false;
    for (int n = 0; n < count; ++n) known = known || !strcmp(options[n], "--gpu-architecture=sm_90");
    if (!known) {
        made.log = "this compiler makes code for sm_90 alone";
        return INVALID_INPUT;
    }
    const bool finishes = made.text.find("(memlet_finish,") != std::string::npos;
    std::string text = made.text + R"(
static void kernel_(const void *a) { memlet_kernel(*(const Arguments *)a); }
)";
    if (finishes) text += "static void finish_(const void *a) { memlet_finish(*(const Arguments *)a); }\n";
    text += "extern \"C\" size_t memlet_stand_in_arguments() { return sizeof(Arguments); }\n";
    text += "extern \"C\" int memlet_stand_in_which(const char *name) {\n    if (!strcmp(name, \"memlet_kernel\")) return 0;\n";
    if (finishes) text += "    if (!strcmp(name, \"memlet_finish\")) return 1;\n";
    text += "    return -1;\n}\n";
    text += R"(extern "C" int memlet_stand_in_run(int which, const void *arguments, int64_t grid, int64_t threads, int64_t (*room)(const void *),
                                   uint64_t seed, char *message, int64_t length) {
    shim::room = room;
    shim::Launch launch{grid, threads, 0, 0, arguments, nullptr, 0, (int64_t)seed, message, length};
    return shim::launch()";
    text += finishes ? "which ? finish_ : kernel_" : "kernel_";
    text += ", nullptr, &launch);\n}\n";
    uint64_t hash = 0xcbf29ce484222325ull;
    for (unsigned char c : text) hash = (hash ^ c) * 0x100000001b3ull;
    char name[32];
    snprintf(name, sizeof name, "%016llx", (unsigned long long)hash);
    const std::string library = folder() + "/made/" + name + ".so", aside = library + "." + std::to_string(getpid()) + "." + std::to_string((uintptr_t)&made);
    if (access(library.c_str(), R_OK) != 0) {
        std::ofstream(aside + ".cpp") << text;
        const char *set = getenv("CXX");
        const std::string compiler = set && *set ? set : "c++";
        const auto quoted = [&](const char *end) { return "'" + aside + end + "'"; };
        const std::string command = compiler + " " FLAGS " -o " + quoted("") + " " + quoted(".cpp") + " " LINKED " 2>" + quoted(".log");
        if (system(("cd '" + folder() + "' && " + command).c_str()) != 0) {
            made.log = read(aside + ".log");
            return COMPILATION;
        }
        rename(aside.c_str(), library.c_str());
        remove((aside + ".log").c_str());
        remove((aside + ".cpp").c_str());
    }
    made.code = library;
    made.log = "ptxas info    : Compiling entry function 'memlet_kernel' for 'sm_90'\nptxas info    : Used 32 registers\n";
    return SUCCESS;
}
int nvrtcGetProgramLogSize(void *program, size_t *size) { *size = ((Program *)program)->log.size() + 1; return SUCCESS; }
int nvrtcGetProgramLog(void *program, char *log) { strcpy(log, ((Program *)program)->log.c_str()); return SUCCESS; }
int nvrtcGetCUBINSize(void *program, size_t *size) { *size = ((Program *)program)->code.size() + 1; return SUCCESS; }
int nvrtcGetCUBIN(void *program, char *code) { strcpy(code, ((Program *)program)->code.c_str()); return SUCCESS; }

} // extern "C"
