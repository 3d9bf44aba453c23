// A fiber: a function on a stack of its own that gives control back where it wants to.
#pragma once

#include <setjmp.h>
#include <sys/mman.h>
#include <ucontext.h>

#include <cstddef>
#include <new>

namespace emulator {

class Fiber {
 public:
    using Function = void (*)(void*);

    Fiber() = default;
    Fiber(const Fiber&) = delete;
    Fiber& operator=(const Fiber&) = delete;
    ~Fiber() {
        if (stack_ != nullptr) munmap(stack_, kStackBytes);
    }

    // Let the next resume() begin `function(argument)`, which must not return: its last deed is leave().
    void prepare(Function function, void* argument) {
        if (stack_ == nullptr) stack_ = map_stack();
        function_ = function, argument_ = argument, is_new_ = true;
    }

    // Run the fiber until it calls leave().
    void resume() {
        if (_setjmp(caller_) != 0) return;
        if (is_new_) start();
        _longjmp(own_, 1);
    }

    // By the fiber: go back to who resumed it; returns with the next resume().
    void leave() {
        if (_setjmp(own_) == 0) _longjmp(caller_, 1);
    }

 private:
    static constexpr size_t kStackBytes = 256 * 1024, kGuardBytes = 4096;

    static void* map_stack() {
        void* stack =
            mmap(nullptr, kStackBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (stack == MAP_FAILED || mprotect(stack, kGuardBytes, PROT_NONE) != 0) throw std::bad_alloc();
        return stack;
    }

    // setjmp cannot change stacks: the first turn goes through a context.
    [[noreturn]] void start() {
        is_new_ = false;
        ucontext_t context;
        getcontext(&context);
        context.uc_stack.ss_sp = stack_;
        context.uc_stack.ss_size = kStackBytes;
        context.uc_link = nullptr;
        starting_ = this;
        makecontext(&context, &Fiber::enter, 0);
        setcontext(&context);
        __builtin_unreachable();
    }

    static void enter() {
        Fiber* self = starting_;
        self->function_(self->argument_);
        __builtin_trap();
    }

    static inline Fiber* starting_;
    jmp_buf own_, caller_;
    void* stack_ = nullptr;
    Function function_ = nullptr;
    void* argument_ = nullptr;
    bool is_new_ = false;
};

}  // namespace emulator
