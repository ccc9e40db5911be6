/* Counts a process's system calls that change what lies under one folder, and kills it or fails at one of them.
 *
 * Preloaded, it does nothing until the environment has FAULTS_UNDER (a forked trainer gets its own after the fork):
 *
 *   FAULTS_UNDER  the folder; calls elsewhere are not counted
 *   FAULTS_KINDS  which calls count: a sum of the kinds below
 *   FAULTS_AT     the number of the first call that is hit, from 1; 0 hits none
 *   FAULTS_FOR    how many calls in a row are hit; 0 is all from then on
 *   FAULTS_ERRNO  what a hit call fails with; 0: the process is killed before the call is made
 *   FAULTS_TRACE  a file that is told each counted call, if it is set
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

enum { WRITE = 1, SYNC = 2, RENAME = 4, MKDIR = 8, OPEN_TO_WRITE = 16, OTHER = 32, OPEN_TO_READ = 64 };

static char under[PATH_MAX];
static size_t under_length;
static long kinds, at, how_many, error_number, counted;
static int trace = -1;
static int state; /* 0: asleep, 1: being set up, 2: awake */
static __thread int exempt;

/* While it is on, calls of this thread are neither counted nor hit: those of a person's own process. */
void faults_exempt(int on) { exempt = on; }

static long number(const char *name) {
    const char *text = getenv(name);
    return text ? strtol(text, NULL, 10) : 0;
}

static int awake(void) {
    if (state == 2) return 1;
    const char *folder = getenv("FAULTS_UNDER");
    int asleep = 0;
    if (!folder || !__atomic_compare_exchange_n(&state, &asleep, 1, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) return 0;
    snprintf(under, sizeof under, "%s", folder);
    under_length = strlen(under);
    kinds = number("FAULTS_KINDS");
    at = number("FAULTS_AT");
    how_many = number("FAULTS_FOR");
    error_number = number("FAULTS_ERRNO");
    const char *file = getenv("FAULTS_TRACE");
    if (file) trace = (int)syscall(SYS_openat, AT_FDCWD, file, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    __atomic_store_n(&state, 2, __ATOMIC_SEQ_CST);
    return 1;
}

static int lies_there(const char *path) {
    return strncmp(path, under, under_length) == 0 && (path[under_length] == '/' || path[under_length] == 0);
}

static void path_of(int descriptor, char *into) {
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
    ssize_t length = readlink(link, into, PATH_MAX - 1);
    into[length > 0 ? length : 0] = 0;
}

/* Whether a call is to fail, with errno set; does not come back when it kills. */
static int hit(int kind, const char *path) {
    if (!(kinds & kind) || exempt || !lies_there(path)) return 0;
    long count = __atomic_add_fetch(&counted, 1, __ATOMIC_SEQ_CST);
    if (trace >= 0) {
        char line[PATH_MAX + 64];
        int length = snprintf(line, sizeof line, "%ld %d %s\n", count, kind, path);
        syscall(SYS_write, trace, line, (size_t)length);
    }
    if (!at || count < at || (how_many && count >= at + how_many)) return 0;
    if (!error_number) {
        syscall(SYS_kill, (pid_t)syscall(SYS_getpid), SIGKILL);
        for (;;) pause();
    }
    errno = (int)error_number;
    return 1;
}

static int hit_file(int kind, int descriptor) {
    if (!awake() || exempt || !(kinds & kind)) return 0;
    char path[PATH_MAX];
    int before = errno;
    path_of(descriptor, path);
    errno = before;
    return hit(kind, path);
}

static int hit_path(int kind, int folder, const char *name) {
    if (!awake() || exempt || !(kinds & kind) || !name) return 0;
    char path[2 * PATH_MAX];
    int before = errno;
    if (name[0] == '/') {
        snprintf(path, sizeof path, "%s", name);
    } else {
        if (folder == AT_FDCWD) {
            if (syscall(SYS_getcwd, path, (size_t)PATH_MAX) < 0) return 0;
        } else {
            path_of(folder, path);
        }
        size_t length = strlen(path);
        snprintf(path + length, sizeof path - length, "/%s", name);
    }
    errno = before;
    return hit(kind, path);
}

#define ON_FILE(type, name, kind, declared, ...)                     \
    type name declared {                                             \
        static type(*real) declared;                                 \
        if (!real) *(void **)&real = dlsym(RTLD_NEXT, #name);        \
        return hit_file(kind, descriptor) ? -1 : real(__VA_ARGS__);  \
    }

ON_FILE(ssize_t, write, WRITE, (int descriptor, const void *data, size_t size), descriptor, data, size)
ON_FILE(ssize_t, pwrite, WRITE, (int descriptor, const void *data, size_t size, off_t place), descriptor, data, size, place)
ON_FILE(ssize_t, pwrite64, WRITE, (int descriptor, const void *data, size_t size, off64_t place), descriptor, data, size, place)
ON_FILE(ssize_t, writev, WRITE, (int descriptor, const struct iovec *data, int count), descriptor, data, count)
ON_FILE(int, fsync, SYNC, (int descriptor), descriptor)
ON_FILE(int, fdatasync, SYNC, (int descriptor), descriptor)
ON_FILE(int, ftruncate, OTHER, (int descriptor, off_t size), descriptor, size)
ON_FILE(int, ftruncate64, OTHER, (int descriptor, off64_t size), descriptor, size)
ON_FILE(int, fchmod, OTHER, (int descriptor, mode_t mode), descriptor, mode)

#define ON_PATH(name, kind, folder, path, declared, ...)             \
    int name declared {                                              \
        static int(*real) declared;                                  \
        if (!real) *(void **)&real = dlsym(RTLD_NEXT, #name);        \
        return hit_path(kind, folder, path) ? -1 : real(__VA_ARGS__); \
    }

ON_PATH(rename, RENAME, AT_FDCWD, to, (const char *from, const char *to), from, to)
ON_PATH(renameat, RENAME, there, to, (int here, const char *from, int there, const char *to), here, from, there, to)
ON_PATH(renameat2, RENAME, there, to, (int here, const char *from, int there, const char *to, unsigned int flags), here, from, there, to, flags)
ON_PATH(mkdir, MKDIR, AT_FDCWD, path, (const char *path, mode_t mode), path, mode)
ON_PATH(mkdirat, MKDIR, folder, path, (int folder, const char *path, mode_t mode), folder, path, mode)
ON_PATH(unlink, OTHER, AT_FDCWD, path, (const char *path), path)
ON_PATH(unlinkat, OTHER, folder, path, (int folder, const char *path, int flags), folder, path, flags)
ON_PATH(rmdir, OTHER, AT_FDCWD, path, (const char *path), path)
ON_PATH(chmod, OTHER, AT_FDCWD, path, (const char *path, mode_t mode), path, mode)
ON_PATH(fchmodat, OTHER, folder, path, (int folder, const char *path, mode_t mode, int flags), folder, path, mode, flags)
ON_PATH(link, OTHER, AT_FDCWD, to, (const char *from, const char *to), from, to)

static int kind_of_open(int flags) {
    return (flags & O_ACCMODE) != O_RDONLY || (flags & (O_CREAT | O_TRUNC)) ? OPEN_TO_WRITE : OPEN_TO_READ;
}

#define MODE_OF(flags, mode)                                         \
    mode_t mode = 0;                                                 \
    if ((flags) & O_CREAT) {                                         \
        va_list rest;                                                \
        va_start(rest, flags);                                       \
        mode = (mode_t)va_arg(rest, int);                            \
        va_end(rest);                                                \
    }

#define OPEN(name)                                                   \
    int name(const char *path, int flags, ...) {                     \
        static int (*real)(const char *, int, ...);                  \
        if (!real) *(void **)&real = dlsym(RTLD_NEXT, #name);        \
        MODE_OF(flags, mode)                                         \
        return hit_path(kind_of_open(flags), AT_FDCWD, path) ? -1 : real(path, flags, mode); \
    }

#define OPEN_AT(name)                                                \
    int name(int folder, const char *path, int flags, ...) {         \
        static int (*real)(int, const char *, int, ...);             \
        if (!real) *(void **)&real = dlsym(RTLD_NEXT, #name);        \
        MODE_OF(flags, mode)                                         \
        return hit_path(kind_of_open(flags), folder, path) ? -1 : real(folder, path, flags, mode); \
    }

OPEN(open)
OPEN(open64)
OPEN_AT(openat)
OPEN_AT(openat64)
