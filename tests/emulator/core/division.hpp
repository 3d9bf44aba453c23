// A GPU divides integers by zero without a trap, and kernels do so in values that they never use. While this lives, the
// host does, too.
#pragma once

#include <signal.h>
#include <ucontext.h>

#include "types.hpp"

namespace emulator {

class DivisionGuard {
 public:
    DivisionGuard() {
        struct sigaction action{};
        action.sa_sigaction = &DivisionGuard::skip;
        action.sa_flags = SA_SIGINFO | SA_NODEFER;
        sigaction(SIGFPE, &action, &before_);
    }
    ~DivisionGuard() { sigaction(SIGFPE, &before_, nullptr); }
    DivisionGuard(const DivisionGuard&) = delete;
    DivisionGuard& operator=(const DivisionGuard&) = delete;

 private:
    struct sigaction before_{};

    static void skip([[maybe_unused]] int signal, siginfo_t*, [[maybe_unused]] void* context) {
#if defined(__x86_64__)  // other machines do not trap
        greg_t* registers = static_cast<ucontext_t*>(context)->uc_mcontext.gregs;
        const u8* code = reinterpret_cast<const u8*>(registers[REG_RIP]);
        const u32 length = length_of_division(code);
        if (length == 0) __builtin_trap();
        registers[REG_RDX] = registers[REG_RAX];  // the remainder
        registers[REG_RAX] = ~0u;
        registers[REG_RIP] += length;
#endif
    }

    // Bytes of the DIV or IDIV at `code`, or 0 (Intel's manual, "Instruction format").
    static u32 length_of_division(const u8* code) {
        u32 length = 0;
        while (code[length] == 0x66 || (code[length] & 0xf0) == 0x40) ++length;
        if (code[length] != 0xf7 || (code[length + 1] >> 4 & 3) != 3) return 0;
        const u32 mode = code[length + 1] >> 6, base = code[length + 1] & 7;
        length += 2;
        if (mode == 3) return length;
        const bool has_sib = base == 4, has_no_base = has_sib ? (code[length] & 7) == 5 : base == 5;
        length += has_sib ? 1 : 0;
        return length + (mode == 1 ? 1 : mode == 2 || has_no_base ? 4 : 0);
    }
};

}  // namespace emulator
