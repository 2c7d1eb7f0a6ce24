/* Counts the file-system calls of a process that touch a folder, and lets the n-th of them fail, or be its last.
 *
 * Loaded with LD_PRELOAD; armed from Python through ctypes. A write that is the last may leave half of its bytes.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

static char folder[4096];
static long seen, chosen = -1;
static int error; /* what the chosen call fails with; 0 kills the process instead */

void torture_arm(const char *under, long call, int with)
{
    snprintf(folder, sizeof folder, "%s", under);
    seen = 0;
    chosen = call;
    error = with;
}

long torture_seen(void) { return seen; }

static int touches(const char *path) { return folder[0] && path && strncmp(path, folder, strlen(folder)) == 0; }

static int touches_open(int file)
{
    char link[64], path[4096];
    ssize_t length;
    if (!folder[0])
        return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    length = readlink(link, path, sizeof path - 1);
    if (length < 0)
        return 0;
    path[length] = 0;
    return touches(path);
}

/* Whether this call is to fail; does not return where it is to be the last. */
static int fails(int touched)
{
    if (!touched || seen++ != chosen)
        return 0;
    if (!error)
        raise(SIGKILL);
    errno = error;
    return 1;
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

#define OPENING(name)                                                                                                  \
    int name(const char *path, int flags, ...)                                                                         \
    {                                                                                                                  \
        va_list rest;                                                                                                  \
        mode_t mode;                                                                                                   \
        va_start(rest, flags);                                                                                         \
        mode = va_arg(rest, mode_t);                                                                                   \
        va_end(rest);                                                                                                  \
        return fails(touches(path)) ? -1 : REAL(name)(path, flags, mode);                                              \
    }
OPENING(open)
OPENING(open64)

#define OPENING_AT(name)                                                                                               \
    int name(int from, const char *path, int flags, ...)                                                               \
    {                                                                                                                  \
        va_list rest;                                                                                                  \
        mode_t mode;                                                                                                   \
        va_start(rest, flags);                                                                                         \
        mode = va_arg(rest, mode_t);                                                                                   \
        va_end(rest);                                                                                                  \
        return fails(touches(path)) ? -1 : REAL(name)(from, path, flags, mode);                                        \
    }
OPENING_AT(openat)
OPENING_AT(openat64)

ssize_t write(int file, const void *bytes, size_t count)
{
    int touched = touches_open(file);
    if (touched && seen == chosen && !error && count > 1)
        REAL(write)(file, bytes, count / 2);
    return fails(touched) ? -1 : REAL(write)(file, bytes, count);
}

int fsync(int file) { return fails(touches_open(file)) ? -1 : REAL(fsync)(file); }
int fdatasync(int file) { return fails(touches_open(file)) ? -1 : REAL(fdatasync)(file); }
int ftruncate(int file, off_t size) { return fails(touches_open(file)) ? -1 : REAL(ftruncate)(file, size); }
int rename(const char *from, const char *to) { return fails(touches(to)) ? -1 : REAL(rename)(from, to); }
int renameat(int f, const char *from, int t, const char *to) { return fails(touches(to)) ? -1 : REAL(renameat)(f, from, t, to); }
int link(const char *from, const char *to) { return fails(touches(to)) ? -1 : REAL(link)(from, to); }
int unlink(const char *path) { return fails(touches(path)) ? -1 : REAL(unlink)(path); }
int unlinkat(int from, const char *path, int flags) { return fails(touches(path)) ? -1 : REAL(unlinkat)(from, path, flags); }
int mkdir(const char *path, mode_t mode) { return fails(touches(path)) ? -1 : REAL(mkdir)(path, mode); }
int rmdir(const char *path) { return fails(touches(path)) ? -1 : REAL(rmdir)(path); }
