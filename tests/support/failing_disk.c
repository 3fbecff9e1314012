/* Preloaded into a process: the n-th call to the system that could change what lies below a folder fails.
 *
 * Which calls those are is what the system sees, not what the library is known to call: also those of Python's own
 * buffers and of other packages. A failed call has done nothing, but close, which ends the descriptor anyway. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

static char folder[4096];
static long left = -1, calls;
static int code;
static const char *failed = "";

/* Of all calls below a folder, whose path has no links, from now on the n-th, counted from 0; -1: none. */
void fail_at(const char *below, long number, int with) {
  snprintf(folder, sizeof(folder), "%s/", below);
  left = number, code = with, failed = "", calls = 0;
}

/* Which function did. */
const char *failed_call(void) { return failed; }
long count_calls(void) { return calls; }

static int is_below(const char *path) { return folder[0] && strncmp(path, folder, strlen(folder)) == 0; }

static int fails(const char *name) {
  __atomic_add_fetch(&calls, 1, __ATOMIC_RELAXED);
  if (left < 0 || __atomic_fetch_sub(&left, 1, __ATOMIC_RELAXED) != 0) return 0;
  failed = name;
  errno = code;
  return 1;
}

static int is_open_below(int descriptor) {
  char link[64], path[4200];
  const int kept = errno;
  snprintf(link, sizeof(link), "/proc/self/fd/%d", descriptor);
  const ssize_t length = readlink(link, path, sizeof(path) - 2);
  errno = kept;
  if (length < 0) return 0;
  memcpy(path + length, "/", 2); /* the folder itself, which is synced, too */
  return is_below(path);
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))
#define FAIL_IF(below, name) \
  if ((below) && fails(#name)) return -1

ssize_t write(int fd, const void *bytes, size_t size) {
  FAIL_IF(is_open_below(fd), write);
  return REAL(write)(fd, bytes, size);
}

ssize_t pwrite64(int fd, const void *bytes, size_t size, off64_t place) {
  FAIL_IF(is_open_below(fd), pwrite64);
  return REAL(pwrite64)(fd, bytes, size, place);
}

ssize_t pwrite(int fd, const void *bytes, size_t size, off_t place) { return pwrite64(fd, bytes, size, place); }

int ftruncate64(int fd, off64_t size) {
  FAIL_IF(is_open_below(fd), ftruncate64);
  return REAL(ftruncate64)(fd, size);
}

int fsync(int fd) {
  FAIL_IF(is_open_below(fd), fsync);
  return REAL(fsync)(fd);
}

int fdatasync(int fd) {
  FAIL_IF(is_open_below(fd), fdatasync);
  return REAL(fdatasync)(fd);
}

int fchmod(int fd, mode_t mode) {
  FAIL_IF(is_open_below(fd), fchmod);
  return REAL(fchmod)(fd, mode);
}

int close(int fd) {
  const int is_below = is_open_below(fd) && (fcntl(fd, F_GETFL) & O_ACCMODE) != O_RDONLY;
  const int result = REAL(close)(fd);
  FAIL_IF(is_below, close);
  return result;
}

int linkat(int from_folder, const char *from, int to_folder, const char *to, int flags) {
  FAIL_IF(is_open_below(to_folder), linkat);
  return REAL(linkat)(from_folder, from, to_folder, to, flags);
}

int rename(const char *from, const char *to) {
  FAIL_IF(is_below(to), rename);
  return REAL(rename)(from, to);
}

int mkdir(const char *path, mode_t mode) {
  FAIL_IF(is_below(path), mkdir);
  return REAL(mkdir)(path, mode);
}

int chmod(const char *path, mode_t mode) {
  FAIL_IF(is_below(path), chmod);
  return REAL(chmod)(path, mode);
}

int open64(const char *path, int flags, ...) {
  va_list rest;
  va_start(rest, flags);
  const mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(rest, mode_t) : 0;
  va_end(rest);
  char under[4200];
  snprintf(under, sizeof(under), "%s/", path); /* O_TMPFILE names the folder */
  FAIL_IF(flags & (O_CREAT | (O_TMPFILE & ~O_DIRECTORY)) && is_below(under), open64);
  return REAL(open64)(path, flags, mode);
}
