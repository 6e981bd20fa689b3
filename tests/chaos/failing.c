/* Makes one system call of a process fail: see `failing`. Preloaded into the attacked program, and inherited. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

static char failing[16];
static int left, number;

/* Makes the call `name` fail with errno `code` after `spared` more of it have gone well; "" ends that. */
void chaos_fail(const char *name, int spared, int code) {
    left = spared;
    number = code;
    strncpy(failing, name, sizeof failing - 1);
}

static int fails(const char *name) {
    if (strcmp(failing, name) || __atomic_fetch_sub(&left, 1, __ATOMIC_SEQ_CST)) return 0;
    errno = number;
    return 1;
}

/* A socket, pipe or memory file; other files are those of the tests and of Python's imports. */
static int is_ours(int descriptor) {
    int before = errno;
    struct stat found;
    char path[32], name[16] = "";
    int ours = descriptor > 2 && !fstat(descriptor, &found) && !S_ISREG(found.st_mode);
    if (descriptor > 2 && !ours) {
        sprintf(path, "/proc/self/fd/%d", descriptor);
        ours = readlink(path, name, 15) > 0 && !strncmp(name, "/memfd:gpu", 10);
    }
    errno = before;
    return ours;
}

#define CALL(type, name, parameters, arguments, condition, first)            \
    type name parameters {                                                   \
        static type (*real) parameters;                                      \
        if (!real) real = dlsym(RTLD_NEXT, #name);                           \
        if ((condition) && fails(#name)) {                                   \
            int code = errno;                                                \
            first;                                                           \
            errno = code;                                                    \
            return (type)-1;                                                 \
        }                                                                    \
        return real arguments;                                               \
    }

CALL(int, poll, (struct pollfd *fds, nfds_t count, int wait), (fds, count, wait), 1, )
CALL(ssize_t, recvmsg, (int fd, struct msghdr *m, int flags), (fd, m, flags), is_ours(fd), )
CALL(ssize_t, sendmsg, (int fd, const struct msghdr *m, int flags), (fd, m, flags), is_ours(fd), )
CALL(ssize_t, send, (int fd, const void *data, size_t n, int flags), (fd, data, n, flags), is_ours(fd), )
CALL(ssize_t, recv, (int fd, void *data, size_t n, int flags), (fd, data, n, flags), is_ours(fd), )
CALL(ssize_t, read, (int fd, void *data, size_t n), (fd, data, n), is_ours(fd), )
CALL(ssize_t, write, (int fd, const void *data, size_t n), (fd, data, n), is_ours(fd), )
CALL(ssize_t, pwrite64, (int fd, const void *data, size_t n, off64_t at), (fd, data, n, at), is_ours(fd), )
/* What Linux does if closing is interrupted: the descriptor is gone. */
CALL(int, close, (int fd), (fd), is_ours(fd), real(fd))
CALL(int, ftruncate64, (int fd, off64_t size), (fd, size), is_ours(fd), )
CALL(int, memfd_create, (const char *name, unsigned flags), (name, flags), 1, )
CALL(int, socketpair, (int domain, int type, int protocol, int pair[2]), (domain, type, protocol, pair), 1, )
CALL(int, pipe2, (int pair[2], int flags), (pair, flags), 1, )
CALL(int, madvise, (void *start, size_t n, int advice), (start, n, advice), 1, )
CALL(int, fork, (void), (), 1, )
CALL(void *, mmap64, (void *start, size_t n, int protection, int flags, int fd, off64_t at),
     (start, n, protection, flags, fd, at), is_ours(fd), )
