#include "places.hpp"

#include <dlfcn.h>

#include <cstdint>
#include <cstdio>
#include <map>

namespace emulator {
namespace {

// What is left of addr2line's lines "function at file:line" and " (inlined by) ...": the header's name and the line.
std::string shorten(const std::string& line) {
    const size_t at = line.rfind(" at "), slash = line.rfind('/');
    if (at == std::string::npos || slash == std::string::npos || slash < at) return {};
    size_t begin = line.find("(inlined by) ");
    begin = begin == std::string::npos ? 0 : begin + 13;
    std::string function = line.substr(begin, at - begin);
    function = function.substr(0, function.find('<'));
    return "    " + function + " (" + line.substr(slash + 1) + ")\n";
}

std::string ask(const char* library, uintptr_t offset) {
    char command[1024], line[4096];
    std::snprintf(command, sizeof command, "addr2line -i -f -C -p -e '%s' %#zx 2>/dev/null", library, size_t(offset));
    FILE* pipe = popen(command, "r");
    if (pipe == nullptr) return {};
    std::string text;
    while (std::fgets(line, sizeof line, pipe) != nullptr) {
        std::string read = line;
        while (!read.empty() && read.back() == '\n') read.pop_back();
        text += shorten(read);
    }
    pclose(pipe);
    return text;
}

}  // namespace

std::string describe_place(void* address) {
    static std::map<void*, std::string> known;
    const auto found = known.find(address);
    if (found != known.end()) return found->second;
    Dl_info info{};
    if (address == nullptr || dladdr(address, &info) == 0) return "    (not started)\n";
    // The address is that of the return: one byte before lies in the call.
    return known[address] = ask(info.dli_fname, uintptr_t(address) - 1 - uintptr_t(info.dli_fbase));
}

}  // namespace emulator
