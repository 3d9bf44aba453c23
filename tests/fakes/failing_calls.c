// Fails the n-th system call that touches a folder, for tests: preload it (LD_PRELOAD) and call fail_calls.
//
// Counted are the calls that open, create, write, flush, rename and make folders, on paths or descriptors below the
// folder. What removes files is never failed: a test can then ask that nothing is left over.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

static char folder[4096];  // "": count nothing
static long fatal, count;
static int failure, is_for_ever, num_failed;

// Fail call `number` (from 1; 0: none) below `path` with `error`, and with `for_ever` all calls after it.
void fail_calls(const char* path, long number, int error, int for_ever) {
    snprintf(folder, sizeof folder, "%s", path);
    fatal = number, failure = error, is_for_ever = for_ever;
    count = num_failed = 0;
}

long count_calls(void) { return count; }
int count_failed(void) { return num_failed; }

static int is_below(const char* path) { return strncmp(path, folder, strlen(folder)) == 0; }

static int is_ours(int descriptor) {
    char link[64], path[4096];
    if (!folder[0] || descriptor < 0) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
    const ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 0) return 0;
    path[length] = 0;
    return is_below(path);
}

static int is_our_path(int directory, const char* path) {
    return folder[0] && (path[0] == '/' ? is_below(path) : is_ours(directory));
}

static int must_fail(int is_counted) {
    if (!is_counted) return 0;
    ++count;
    if (!fatal || (is_for_ever ? count < fatal : count != fatal)) return 0;
    ++num_failed;
    errno = failure;
    return 1;
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

static int mode_of(int flags, va_list arguments) { return flags & (O_CREAT | __O_TMPFILE) ? va_arg(arguments, int) : 0; }

#define DEFINE_OPEN(name)                                                   \
    int name(const char* path, int flags, ...) {                            \
        va_list arguments;                                                  \
        va_start(arguments, flags);                                         \
        const int mode = mode_of(flags, arguments);                         \
        va_end(arguments);                                                  \
        if (must_fail(is_our_path(-1, path))) return -1;                    \
        return REAL(name)(path, flags, mode);                               \
    }
#define DEFINE_OPENAT(name)                                                 \
    int name(int directory, const char* path, int flags, ...) {             \
        va_list arguments;                                                  \
        va_start(arguments, flags);                                         \
        const int mode = mode_of(flags, arguments);                         \
        va_end(arguments);                                                  \
        if (must_fail(is_our_path(directory, path))) return -1;             \
        return REAL(name)(directory, path, flags, mode);                    \
    }
#define DEFINE_ON_DESCRIPTOR(type, name, parameters, arguments)             \
    type name parameters { return must_fail(is_ours(descriptor)) ? -1 : REAL(name) arguments; }

DEFINE_OPEN(open)
DEFINE_OPEN(open64)
DEFINE_OPENAT(openat)
DEFINE_OPENAT(openat64)
DEFINE_ON_DESCRIPTOR(ssize_t, write, (int descriptor, const void* data, size_t size), (descriptor, data, size))
DEFINE_ON_DESCRIPTOR(ssize_t, pwrite, (int descriptor, const void* data, size_t size, off_t at), (descriptor, data, size, at))
DEFINE_ON_DESCRIPTOR(ssize_t, pwrite64, (int descriptor, const void* data, size_t size, off64_t at), (descriptor, data, size, at))
DEFINE_ON_DESCRIPTOR(int, ftruncate, (int descriptor, off_t size), (descriptor, size))
DEFINE_ON_DESCRIPTOR(int, ftruncate64, (int descriptor, off64_t size), (descriptor, size))
DEFINE_ON_DESCRIPTOR(int, fsync, (int descriptor), (descriptor))
DEFINE_ON_DESCRIPTOR(int, fdatasync, (int descriptor), (descriptor))

int rename(const char* from, const char* to) { return must_fail(is_our_path(-1, to)) ? -1 : REAL(rename)(from, to); }

int renameat(int old_directory, const char* from, int directory, const char* to) {
    return must_fail(is_our_path(directory, to)) ? -1 : REAL(renameat)(old_directory, from, directory, to);
}

int mkdir(const char* path, mode_t mode) { return must_fail(is_our_path(-1, path)) ? -1 : REAL(mkdir)(path, mode); }

int mkdirat(int directory, const char* path, mode_t mode) {
    return must_fail(is_our_path(directory, path)) ? -1 : REAL(mkdirat)(directory, path, mode);
}
