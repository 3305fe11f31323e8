/* Make the n-th read, write, sync or truncation of a session database fail: LD_PRELOAD this, then call arm(). */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

static char armed_kind;      /* 'r', 'w', 's', 't' */
static int countdown, armed_errno, lasting, hits;

void arm(char kind, int n, int error, int from_then_on) {
    armed_kind = kind; countdown = n; armed_errno = error; lasting = from_then_on; hits = 0;
}
int fired(void) { return hits; }

static int fails(char kind, int fd) {
    char link[64], path[4096];
    ssize_t length;
    if (kind != armed_kind) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    length = readlink(link, path, sizeof path - 1);
    if (length < 0) return 0;
    path[length] = 0;
    if (!strstr(path, "sessions.db")) return 0;
    if (--countdown > 0 || (countdown < 0 && !lasting)) return 0;
    hits++;
    errno = armed_errno;
    return 1;
}

#define REAL(name) static __typeof__(&name) real; if (!real) real = (__typeof__(&name))dlsym(RTLD_NEXT, #name)

ssize_t pread(int fd, void *b, size_t n, off_t o) { REAL(pread); return fails('r', fd) ? -1 : real(fd, b, n, o); }
ssize_t pread64(int fd, void *b, size_t n, off64_t o) { REAL(pread64); return fails('r', fd) ? -1 : real(fd, b, n, o); }
ssize_t read(int fd, void *b, size_t n) { REAL(read); return fails('r', fd) ? -1 : real(fd, b, n); }
ssize_t pwrite(int fd, const void *b, size_t n, off_t o) { REAL(pwrite); return fails('w', fd) ? -1 : real(fd, b, n, o); }
ssize_t pwrite64(int fd, const void *b, size_t n, off64_t o) { REAL(pwrite64); return fails('w', fd) ? -1 : real(fd, b, n, o); }
ssize_t write(int fd, const void *b, size_t n) { REAL(write); return fails('w', fd) ? -1 : real(fd, b, n); }
int fsync(int fd) { REAL(fsync); return fails('s', fd) ? -1 : real(fd); }
int fdatasync(int fd) { REAL(fdatasync); return fails('s', fd) ? -1 : real(fd); }
int ftruncate(int fd, off_t n) { REAL(ftruncate); return fails('t', fd) ? -1 : real(fd, n); }
int ftruncate64(int fd, off64_t n) { REAL(ftruncate64); return fails('t', fd) ? -1 : real(fd, n); }
