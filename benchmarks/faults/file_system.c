/* Loaded in front of libc: counts what a process changes below one folder, and at one of these changes kills the
   process or fails. Python, pyarrow, onnxruntime, torch and safetensors all change files through these functions.

       cc -shared -fPIC -O1 -o file_system.so file_system.c -ldl

   Nothing happens until arm() is called. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

enum { CREATE = 1, WRITE = 2, SIZE = 4, SYNC = 8, RENAME = 16, MKDIR = 32, REMOVE = 64 };
enum { COUNT, KILL_BEFORE, KILL_AFTER, FAIL_ONCE, FAIL_FROM };

static char folder[PATH_MAX];
static size_t folder_length;
static atomic_long counted;
static long wanted;
static int counted_kinds, action, failure;

/* Changes of these kinds below a folder are counted from 1; the one with that number meets what `what` says. */
void arm(const char *below, int kinds, int what, long number, int error)
{
    strncpy(folder, below, sizeof folder - 1);
    folder_length = strlen(folder);
    counted_kinds = kinds, action = what, wanted = number, failure = error;
    atomic_store(&counted, 0);
}

long changes(void) { return atomic_load(&counted); }

static int inside(const char *path)
{
    return folder_length && path && strncmp(path, folder, folder_length) == 0
        && (path[folder_length] == '/' || path[folder_length] == 0);
}

static const char *path_of(int descriptor, char *space)
{
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
    ssize_t length = readlink(link, space, PATH_MAX - 1);
    if (length < 0)
        return NULL;
    space[length] = 0;
    return space;
}

/* 0: go on; 1: go on and die; -1: fail. */
static int verdict(int kind, const char *path)
{
    if (!inside(path) || !(kind & counted_kinds))
        return 0;
    long number = atomic_fetch_add(&counted, 1) + 1;
    if (number == wanted && action == KILL_BEFORE)
        kill(getpid(), SIGKILL);
    if (number == wanted && action == KILL_AFTER)
        return 1;
    if ((number == wanted && action == FAIL_ONCE) || (number >= wanted && action == FAIL_FROM)) {
        errno = failure;
        return -1;
    }
    return 0;
}

static int verdict_at(int kind, int descriptor)
{
    char space[PATH_MAX];
    if (!folder_length)
        return 0;
    return verdict(kind, path_of(descriptor, space));
}

#define REAL(name) \
    static __typeof__(name) *real; \
    if (!real) \
        real = dlsym(RTLD_NEXT, #name)

/* `call` is made unless the verdict is to fail, which `refused` stands for. */
#define JUDGED(type, judged, refused, call) \
    int judgement = judged; \
    if (judgement < 0) \
        return refused; \
    type result = call; \
    if (judgement > 0) \
        kill(getpid(), SIGKILL); \
    return result

static int changes_files(int flags) { return flags & (O_CREAT | O_TRUNC); }

#define OPEN(name) \
    int name(const char *path, int flags, ...) \
    { \
        REAL(name); \
        va_list more; \
        va_start(more, flags); \
        mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(more, mode_t) : 0; \
        va_end(more); \
        JUDGED(int, changes_files(flags) ? verdict(CREATE, path) : 0, -1, real(path, flags, mode)); \
    }
OPEN(open)
OPEN(open64)

#define OPENAT(name) \
    int name(int at, const char *path, int flags, ...) \
    { \
        REAL(name); \
        va_list more; \
        va_start(more, flags); \
        mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(more, mode_t) : 0; \
        va_end(more); \
        JUDGED(int, changes_files(flags) ? verdict(CREATE, path) : 0, -1, real(at, path, flags, mode)); \
    }
OPENAT(openat)
OPENAT(openat64)

#define FOPEN(name) \
    FILE *name(const char *path, const char *mode) \
    { \
        REAL(name); \
        JUDGED(FILE *, strpbrk(mode, "wa") ? verdict(CREATE, path) : 0, NULL, real(path, mode)); \
    }
FOPEN(fopen)
FOPEN(fopen64)

ssize_t write(int descriptor, const void *bytes, size_t size)
{
    REAL(write);
    JUDGED(ssize_t, verdict_at(WRITE, descriptor), -1, real(descriptor, bytes, size));
}

ssize_t pwrite(int descriptor, const void *bytes, size_t size, off_t place)
{
    REAL(pwrite);
    JUDGED(ssize_t, verdict_at(WRITE, descriptor), -1, real(descriptor, bytes, size, place));
}

ssize_t pwrite64(int descriptor, const void *bytes, size_t size, off64_t place)
{
    REAL(pwrite64);
    JUDGED(ssize_t, verdict_at(WRITE, descriptor), -1, real(descriptor, bytes, size, place));
}

ssize_t writev(int descriptor, const struct iovec *parts, int count)
{
    REAL(writev);
    JUDGED(ssize_t, verdict_at(WRITE, descriptor), -1, real(descriptor, parts, count));
}

size_t fwrite(const void *bytes, size_t size, size_t count, FILE *stream)
{
    REAL(fwrite);
    JUDGED(size_t, verdict_at(WRITE, fileno(stream)), 0, real(bytes, size, count, stream));
}

ssize_t sendfile(int out, int in, off_t *place, size_t count)
{
    REAL(sendfile);
    JUDGED(ssize_t, verdict_at(WRITE, out), -1, real(out, in, place, count));
}

ssize_t sendfile64(int out, int in, off64_t *place, size_t count)
{
    REAL(sendfile64);
    JUDGED(ssize_t, verdict_at(WRITE, out), -1, real(out, in, place, count));
}

int ftruncate(int descriptor, off_t size)
{
    REAL(ftruncate);
    JUDGED(int, verdict_at(SIZE, descriptor), -1, real(descriptor, size));
}

int ftruncate64(int descriptor, off64_t size)
{
    REAL(ftruncate64);
    JUDGED(int, verdict_at(SIZE, descriptor), -1, real(descriptor, size));
}

int truncate(const char *path, off_t size)
{
    REAL(truncate);
    JUDGED(int, verdict(SIZE, path), -1, real(path, size));
}

int truncate64(const char *path, off64_t size)
{
    REAL(truncate64);
    JUDGED(int, verdict(SIZE, path), -1, real(path, size));
}

int posix_fallocate(int descriptor, off_t place, off_t size)
{
    REAL(posix_fallocate);
    JUDGED(int, verdict_at(SIZE, descriptor), failure, real(descriptor, place, size));
}

int posix_fallocate64(int descriptor, off64_t place, off64_t size)
{
    REAL(posix_fallocate64);
    JUDGED(int, verdict_at(SIZE, descriptor), failure, real(descriptor, place, size));
}

int fsync(int descriptor)
{
    REAL(fsync);
    JUDGED(int, verdict_at(SYNC, descriptor), -1, real(descriptor));
}

int fdatasync(int descriptor)
{
    REAL(fdatasync);
    JUDGED(int, verdict_at(SYNC, descriptor), -1, real(descriptor));
}

int rename(const char *from, const char *to)
{
    REAL(rename);
    JUDGED(int, verdict(RENAME, to), -1, real(from, to));
}

int renameat(int from_at, const char *from, int to_at, const char *to)
{
    REAL(renameat);
    JUDGED(int, verdict(RENAME, to), -1, real(from_at, from, to_at, to));
}

int mkdir(const char *path, mode_t mode)
{
    REAL(mkdir);
    JUDGED(int, verdict(MKDIR, path), -1, real(path, mode));
}

int unlink(const char *path)
{
    REAL(unlink);
    JUDGED(int, verdict(REMOVE, path), -1, real(path));
}

int rmdir(const char *path)
{
    REAL(rmdir);
    JUDGED(int, verdict(REMOVE, path), -1, real(path));
}

int unlinkat(int at, const char *path, int flags)
{
    char space[PATH_MAX];
    REAL(unlinkat);
    const char *where = path[0] == '/' ? path : at == AT_FDCWD ? NULL : path_of(at, space);
    JUDGED(int, verdict(REMOVE, where), -1, real(at, path, flags));
}
