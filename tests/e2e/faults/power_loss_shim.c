/* A disk that can lose its power: an LD_PRELOAD shim that writes a journal of the changes that a process makes to files.
 *
 * All changes go to the real file system, so this process and all others see them at once, as they see the page
 * cache. Each change below POWER_LOSS_ROOT is also written, with its data, to a journal of this process in
 * POWER_LOSS_JOURNALS, and so is each fsync. From the journals, tests/e2e/faults/fragile_disk.py computes the content
 * of a disk that has kept only what was synced.
 *
 * A change and its entry in the journal are made under one lock, so the journal has the order of the changes. The
 * entry of a sync is written before the sync begins, and covers all earlier entries. Later changes do not count as
 * synced, because no caller can know whether the sync covered them.
 *
 * POWER_LOSS_BOOT_ID   file that is read instead of the kernel's boot id, because a machine that lost power boots again
 * POWER_LOSS_SYNC_MS   the shortest duration of each sync (simulates a slow disk)
 * POWER_LOSS_LIES      files whose names end in this text are never synced, although fsync succeeds (a disk that lies)
 * POWER_LOSS_STOPS     a directory in which each process has a file, named by its pid, with a number of four bytes:
 *                      0, or n if the process is to be killed within its n-th change from now. A part of a write may
 *                      be done by then. A sync may have covered everything, but does not return. A name may be
 *                      changed, but its directory is not synced.
 *
 * The journal identifies files by inode, so a rename does not affect later entries. Any operation that could change a
 * file without the shim's knowledge (a shared writable mapping, copy_file_range, a rename between directories, ...)
 * ends the process with an error message.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#define DESCRIPTORS_MAX 65536
#define BOOT_ID "/proc/sys/kernel/random/boot_id"

enum { CREATE = 'C', MAKE_DIRECTORY = 'D', WRITE = 'W', TRUNCATE = 'T', SYNC = 'S', RENAME = 'R', REMOVE = 'U' };

struct entry { /* packed by hand: 48 bytes, then the names, then the data */
    uint32_t magic;
    uint8_t kind;
    uint8_t reserved;
    uint16_t name_bytes;
    uint16_t target_bytes;
    uint16_t reserved2;
    uint32_t data_bytes;
    uint64_t inode; /* of the file; for RENAME and REMOVE, of the directory */
    uint64_t parent; /* for CREATE and MAKE_DIRECTORY, the inode of the directory; otherwise 0 */
    uint64_t offset; /* of a WRITE; for TRUNCATE, the new size */
    uint64_t time_ns; /* before a RENAME or REMOVE, after any other change, because a removed file's inode is reused */
};
_Static_assert(sizeof(struct entry) == 48, "fragile_disk.py reads 48 bytes");

static pthread_mutex_t order = PTHREAD_MUTEX_INITIALIZER;
static unsigned char tracked[DESCRIPTORS_MAX]; /* by descriptor; 1: a file below the root; 2: a directory; 4: added for a file that POWER_LOSS_LIES names */
static const char *root, *boot_id, *lies;
static size_t root_bytes;
static struct timespec sync_takes;
static int journal = -1;
static volatile uint32_t *stops_in; /* the number of changes until this process is killed; 0: it is not killed */

#define REAL(name) __typeof__(&name) real_##name
static REAL(open);
static REAL(openat);
static REAL(close);
static REAL(write);
static REAL(pwrite);
static REAL(writev);
static REAL(pwritev);
static REAL(ftruncate);
static REAL(truncate);
static REAL(fsync);
static REAL(fdatasync);
static REAL(rename);
static REAL(renameat);
static REAL(renameat2);
static REAL(unlink);
static REAL(unlinkat);
static REAL(rmdir);
static REAL(mkdir);
static REAL(mkdirat);
static REAL(link);
static REAL(symlink);
static REAL(dup);
static REAL(dup2);
static REAL(dup3);
static REAL(fcntl);
static REAL(mmap);
static REAL(fallocate);
static REAL(posix_fallocate);
static REAL(copy_file_range);
static REAL(pwritev2);

static void map_stops(const char *stops) {
    char path[PATH_MAX];
    uint32_t none = 0;
    snprintf(path, sizeof path, "%s/%d", stops, getpid());
    int fd = real_open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    if (fd < 0 || real_pwrite(fd, &none, sizeof none, 0) != sizeof none) _exit(99);
    stops_in = (uint32_t *)syscall(SYS_mmap, NULL, sizeof none, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (stops_in == MAP_FAILED) _exit(99);
    real_close(fd);
}

/* Return whether the process is to be killed within this change. The caller holds the lock `order`. */
static int ends_here(void) { return stops_in && *stops_in && --*stops_in == 0; }

static void end(void) {
    for (;;) kill(getpid(), SIGKILL);
}

static unsigned chance(unsigned below) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (unsigned)(now.tv_nsec / 128) % below;
}

static void die(const char *what, const char *about) {
    dprintf(2, "power_loss_shim: %s: %s: this operation is not supported, so the journal would be wrong\n", what, about);
    _exit(99);
}

__attribute__((constructor)) static void begin(void) {
#define FIND(name) real_##name = (__typeof__(real_##name))dlsym(RTLD_NEXT, #name)
    FIND(open); FIND(openat); FIND(close); FIND(write); FIND(pwrite); FIND(writev); FIND(pwritev); FIND(ftruncate);
    FIND(truncate); FIND(fsync); FIND(fdatasync); FIND(rename); FIND(renameat); FIND(renameat2); FIND(unlink);
    FIND(unlinkat); FIND(rmdir); FIND(mkdir); FIND(mkdirat); FIND(link); FIND(symlink); FIND(dup); FIND(dup2);
    FIND(dup3); FIND(fcntl); FIND(mmap); FIND(fallocate); FIND(posix_fallocate); FIND(copy_file_range); FIND(pwritev2);
    const char *journals = getenv("POWER_LOSS_JOURNALS");
    const char *wanted = getenv("POWER_LOSS_ROOT");
    if (!journals || !wanted) return;
    struct timespec now;
    char path[PATH_MAX];
    clock_gettime(CLOCK_MONOTONIC, &now);
    snprintf(path, sizeof path, "%s/%020lld-%d", journals, (long long)now.tv_sec * 1000000000LL + now.tv_nsec, getpid());
    journal = real_open(path, O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC, 0644);
    if (journal < 0) die("open", path);
    boot_id = getenv("POWER_LOSS_BOOT_ID");
    lies = getenv("POWER_LOSS_LIES");
    const char *sync_ms = getenv("POWER_LOSS_SYNC_MS");
    if (sync_ms) sync_takes = (struct timespec){atol(sync_ms) / 1000, atol(sync_ms) % 1000 * 1000000};
    const char *stops = getenv("POWER_LOSS_STOPS");
    if (stops) map_stops(stops);
    root_bytes = strlen(wanted);
    root = wanted;
}

/* --- the journal ------------------------------------------------------------------------------------------- */

static uint64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000ULL + (uint64_t)now.tv_nsec;
}

static void note(struct entry entry, const char *name, const char *target, const struct iovec *data, int pieces) {
    struct iovec parts[3 + 64];
    if (pieces > 64) die("writev", "more than 64 pieces");
    size_t name_bytes = name ? strlen(name) : 0, target_bytes = target ? strlen(target) : 0;
    entry.magic = 0x0ff0ff01;
    if (!entry.time_ns) entry.time_ns = now_ns();
    entry.name_bytes = (uint16_t)name_bytes;
    entry.target_bytes = (uint16_t)target_bytes;
    parts[0] = (struct iovec){&entry, sizeof entry};
    parts[1] = (struct iovec){(void *)name, name_bytes};
    parts[2] = (struct iovec){(void *)target, target_bytes};
    size_t left = entry.data_bytes, total = sizeof entry + name_bytes + target_bytes + left;
    int count = 3;
    for (int i = 0; i < pieces && left; i++) { /* only the data that was written */
        size_t take = data[i].iov_len < left ? data[i].iov_len : left;
        parts[count++] = (struct iovec){data[i].iov_base, take};
        left -= take;
    }
    int before = errno;
    if (real_writev(journal, parts, count) != (ssize_t)total) die("writev", "the journal is full");
    errno = before;
}

static uint64_t inode_of(int fd) {
    struct stat found;
    if (fstat(fd, &found)) die("fstat", strerror(errno));
    return found.st_ino;
}

static int is_tracked(int fd) { return journal >= 0 && fd >= 0 && fd < DESCRIPTORS_MAX && tracked[fd]; }

/* Return whether a path is below the root. A relative path is if its directory is. */
static int is_below(int directory, const char *path) {
    char here[PATH_MAX];
    if (journal < 0 || !path) return 0;
    if (path[0] == '/') return !strncmp(path, root, root_bytes) && (path[root_bytes] == '/' || !path[root_bytes]);
    if (directory != AT_FDCWD) return is_tracked(directory);
    return getcwd(here, sizeof here) && !strncmp(here, root, root_bytes);
}

/* Return the inode of the directory of a path, and set `name` to the last part of the path. */
static uint64_t parent_of(int directory, const char *path, const char **name) {
    char parent[PATH_MAX];
    struct stat found;
    const char *slash = strrchr(path, '/');
    *name = slash ? slash + 1 : path;
    if (!**name || strlen(path) >= sizeof parent) die("path", path);
    if (slash) snprintf(parent, sizeof parent, "%.*s", (int)(slash - path), path);
    else strcpy(parent, ".");
    if (fstatat(directory, parent, &found, 0)) return 0;
    return found.st_ino;
}

static int ends_in(const char *name, const char *suffix) {
    size_t name_bytes = strlen(name), bytes = strlen(suffix);
    return bytes && bytes <= name_bytes && !strcmp(name + name_bytes - bytes, suffix);
}

/* --- opening and closing ----------------------------------------------------------------------------------- */

static int open_tracked(int directory, const char *path, int flags, mode_t mode) {
    const char *name;
    if (flags & (O_SYNC | O_DSYNC)) die("open with O_SYNC", path);
    if ((flags & O_TMPFILE) == O_TMPFILE) die("open with O_TMPFILE", path);
    pthread_mutex_lock(&order);
    uint64_t parent = parent_of(directory, path, &name);
    int is_new = 0, fd = -1;
    if (!(flags & O_CREAT)) fd = real_openat(directory, path, flags, mode);
    else { /* O_CREAT does not say whether it created the file, so try to open an existing file first */
        if (!(flags & O_EXCL)) fd = real_openat(directory, path, flags & ~O_CREAT, mode);
        if (fd < 0 && ((flags & O_EXCL) || errno == ENOENT)) {
            fd = real_openat(directory, path, flags | O_EXCL, mode);
            is_new = fd >= 0;
        }
    }
    if (fd >= 0 && fd < DESCRIPTORS_MAX) {
        struct stat found;
        if (fstat(fd, &found)) die("fstat", path);
        if (is_new) {
            note((struct entry){.kind = CREATE, .inode = found.st_ino, .parent = parent}, name, NULL, NULL, 0);
            if (ends_here()) end();
        } else if ((flags & O_TRUNC) && S_ISREG(found.st_mode))
            note((struct entry){.kind = TRUNCATE, .inode = found.st_ino}, NULL, NULL, NULL, 0);
        tracked[fd] = S_ISDIR(found.st_mode) ? 2 : S_ISREG(found.st_mode) ? 1 : 0;
        if (tracked[fd] && lies && ends_in(name, lies)) tracked[fd] |= 4;
    }
    pthread_mutex_unlock(&order);
    return fd;
}

static int open_any(int directory, const char *path, int flags, mode_t mode) {
    if (journal >= 0 && boot_id && !strcmp(path, BOOT_ID)) path = boot_id;
    if (is_below(directory, path)) return open_tracked(directory, path, flags, mode);
    return real_openat(directory, path, flags, mode);
}

#define MODE_OF(flags) ({ mode_t mode = 0; \
    if ((flags) & (O_CREAT | __O_TMPFILE)) { va_list more; va_start(more, flags); mode = va_arg(more, int); va_end(more); } mode; })

int open(const char *path, int flags, ...) { mode_t mode = MODE_OF(flags); return open_any(AT_FDCWD, path, flags, mode); }
int open64(const char *path, int flags, ...) { mode_t mode = MODE_OF(flags); return open_any(AT_FDCWD, path, flags, mode); }
int openat(int at, const char *path, int flags, ...) { mode_t mode = MODE_OF(flags); return open_any(at, path, flags, mode); }
int openat64(int at, const char *path, int flags, ...) { mode_t mode = MODE_OF(flags); return open_any(at, path, flags, mode); }
int creat(const char *path, mode_t mode) { return open_any(AT_FDCWD, path, O_WRONLY | O_CREAT | O_TRUNC, mode); }

int close(int fd) {
    if (is_tracked(fd)) tracked[fd] = 0;
    return real_close(fd);
}

static int copied(int from, int to) {
    if (journal >= 0 && from >= 0 && from < DESCRIPTORS_MAX && to >= 0 && to < DESCRIPTORS_MAX) tracked[to] = tracked[from];
    return to;
}

int dup(int fd) { return copied(fd, real_dup(fd)); }
int dup2(int fd, int to) { return copied(fd, real_dup2(fd, to)); }
int dup3(int fd, int to, int flags) { return copied(fd, real_dup3(fd, to, flags)); }

int fcntl(int fd, int command, ...) {
    va_list more;
    va_start(more, command);
    void *argument = va_arg(more, void *);
    va_end(more);
    int result = real_fcntl(fd, command, argument);
    return command == F_DUPFD || command == F_DUPFD_CLOEXEC ? copied(fd, result) : result;
}
int fcntl64(int fd, int command, ...) {
    va_list more;
    va_start(more, command);
    void *argument = va_arg(more, void *);
    va_end(more);
    return fcntl(fd, command, argument);
}

/* --- bytes ------------------------------------------------------------------------------------------------- */

static ssize_t written(int fd, const struct iovec *data, int pieces, off_t offset) {
    struct iovec part;
    pthread_mutex_lock(&order);
    int ends = ends_here();
    if (ends) {
        part = (struct iovec){data[0].iov_base, data[0].iov_len * chance(9) / 8};
        data = &part;
        pieces = 1;
        if (!part.iov_len) end();
    }
    ssize_t taken = offset < 0 ? real_writev(fd, data, pieces) : real_pwritev(fd, data, pieces, offset);
    if (taken > 0) {
        off_t at = offset < 0 ? lseek(fd, 0, SEEK_CUR) - taken : offset;
        note((struct entry){.kind = WRITE, .inode = inode_of(fd), .offset = (uint64_t)at, .data_bytes = (uint32_t)taken},
             NULL, NULL, data, pieces);
    }
    if (ends) end();
    pthread_mutex_unlock(&order);
    return taken;
}

ssize_t write(int fd, const void *data, size_t bytes) {
    if (!is_tracked(fd)) return real_write(fd, data, bytes);
    return written(fd, &(struct iovec){(void *)data, bytes}, 1, -1);
}
ssize_t pwrite(int fd, const void *data, size_t bytes, off_t offset) {
    if (!is_tracked(fd)) return real_pwrite(fd, data, bytes, offset);
    return written(fd, &(struct iovec){(void *)data, bytes}, 1, offset);
}
ssize_t pwrite64(int fd, const void *data, size_t bytes, off_t offset) { return pwrite(fd, data, bytes, offset); }
ssize_t writev(int fd, const struct iovec *data, int pieces) {
    return is_tracked(fd) ? written(fd, data, pieces, -1) : real_writev(fd, data, pieces);
}
ssize_t pwritev(int fd, const struct iovec *data, int pieces, off_t offset) {
    return is_tracked(fd) ? written(fd, data, pieces, offset) : real_pwritev(fd, data, pieces, offset);
}
ssize_t pwritev64(int fd, const struct iovec *data, int pieces, off_t offset) { return pwritev(fd, data, pieces, offset); }
ssize_t pwritev2(int fd, const struct iovec *data, int pieces, off_t offset, int flags) {
    if (!is_tracked(fd)) return real_pwritev2(fd, data, pieces, offset, flags);
    if (flags) die("pwritev2", "flags");
    return written(fd, data, pieces, offset);
}
ssize_t pwritev64v2(int fd, const struct iovec *data, int pieces, off_t offset, int flags) {
    return pwritev2(fd, data, pieces, offset, flags);
}

int ftruncate(int fd, off_t size) {
    if (!is_tracked(fd)) return real_ftruncate(fd, size);
    pthread_mutex_lock(&order);
    int result = real_ftruncate(fd, size);
    if (!result) note((struct entry){.kind = TRUNCATE, .inode = inode_of(fd), .offset = (uint64_t)size}, NULL, NULL, NULL, 0);
    if (ends_here()) end();
    pthread_mutex_unlock(&order);
    return result;
}
int ftruncate64(int fd, off_t size) { return ftruncate(fd, size); }

static void note_sync(int fd) {
    if (!is_tracked(fd)) return;
    if (sync_takes.tv_sec || sync_takes.tv_nsec) nanosleep(&sync_takes, NULL);
    if (tracked[fd] & 4) return;
    pthread_mutex_lock(&order);
    int ends = ends_here();
    if (ends && chance(3)) end(); /* in two of three cases, the sync covers nothing */
    note((struct entry){.kind = SYNC, .inode = inode_of(fd)}, NULL, NULL, NULL, 0);
    if (ends) end();
    pthread_mutex_unlock(&order);
}
int fsync(int fd) { note_sync(fd); return real_fsync(fd); }
int fdatasync(int fd) { note_sync(fd); return real_fdatasync(fd); }

/* --- names ------------------------------------------------------------------------------------------------- */

static int renamed(int from, const char *source, int to, const char *target) {
    const char *name, *target_name;
    pthread_mutex_lock(&order);
    uint64_t parent = parent_of(from, source, &name), target_parent = parent_of(to, target, &target_name);
    uint64_t time_ns = now_ns();
    int result = real_renameat(from, source, to, target);
    if (!result) {
        if (parent != target_parent) die("rename between directories", source);
        note((struct entry){.kind = RENAME, .inode = parent, .time_ns = time_ns}, name, target_name, NULL, 0);
    }
    if (ends_here()) end();
    pthread_mutex_unlock(&order);
    return result;
}
int renameat(int from, const char *source, int to, const char *target) {
    int source_below = is_below(from, source), target_below = is_below(to, target);
    if (source_below != target_below) die("rename into or out of the root", source);
    return source_below ? renamed(from, source, to, target) : real_renameat(from, source, to, target);
}
int rename(const char *source, const char *target) { return renameat(AT_FDCWD, source, AT_FDCWD, target); }
int renameat2(int from, const char *source, int to, const char *target, unsigned flags) {
    if (flags && is_below(from, source)) die("renameat2 with flags", source);
    return flags ? real_renameat2(from, source, to, target, flags) : renameat(from, source, to, target);
}

int unlinkat(int at, const char *path, int flags) {
    const char *name;
    if (!is_below(at, path)) return real_unlinkat(at, path, flags);
    pthread_mutex_lock(&order);
    uint64_t parent = parent_of(at, path, &name);
    uint64_t time_ns = now_ns();
    int result = real_unlinkat(at, path, flags);
    if (!result) note((struct entry){.kind = REMOVE, .inode = parent, .time_ns = time_ns}, name, NULL, NULL, 0);
    if (ends_here()) end();
    pthread_mutex_unlock(&order);
    return result;
}
int unlink(const char *path) { return unlinkat(AT_FDCWD, path, 0); }
int rmdir(const char *path) { return unlinkat(AT_FDCWD, path, AT_REMOVEDIR); }

int mkdirat(int at, const char *path, mode_t mode) {
    const char *name;
    struct stat made;
    if (!is_below(at, path)) return real_mkdirat(at, path, mode);
    pthread_mutex_lock(&order);
    uint64_t parent = parent_of(at, path, &name);
    int result = real_mkdirat(at, path, mode);
    if (!result) {
        if (fstatat(at, path, &made, 0)) die("stat", path);
        note((struct entry){.kind = MAKE_DIRECTORY, .inode = made.st_ino, .parent = parent}, name, NULL, NULL, 0);
    }
    pthread_mutex_unlock(&order);
    return result;
}
int mkdir(const char *path, mode_t mode) { return mkdirat(AT_FDCWD, path, mode); }

/* --- operations that the journal cannot represent ------------------------------------------------------------ */

void *mmap(void *at, size_t bytes, int protection, int flags, int fd, off_t offset) {
    if (fd >= 0 && is_tracked(fd) && (flags & MAP_SHARED) && (protection & PROT_WRITE)) die("mmap", "shared and writable");
    if (real_mmap) return real_mmap(at, bytes, protection, flags, fd, offset);
    return (void *)syscall(SYS_mmap, at, bytes, protection, flags, fd, offset); /* `begin` has not run yet */
}
void *mmap64(void *at, size_t bytes, int protection, int flags, int fd, off_t offset) {
    return mmap(at, bytes, protection, flags, fd, offset);
}
int truncate(const char *path, off_t size) {
    if (is_below(AT_FDCWD, path)) die("truncate", path);
    return real_truncate(path, size);
}
int truncate64(const char *path, off_t size) { return truncate(path, size); }
int link(const char *path, const char *target) {
    if (is_below(AT_FDCWD, path) || is_below(AT_FDCWD, target)) die("link", path);
    return real_link(path, target);
}
int symlink(const char *content, const char *path) {
    if (is_below(AT_FDCWD, path)) die("symlink", path);
    return real_symlink(content, path);
}
int fallocate(int fd, int mode, off_t offset, off_t bytes) {
    if (is_tracked(fd)) die("fallocate", "a file below the root");
    return real_fallocate(fd, mode, offset, bytes);
}
int fallocate64(int fd, int mode, off_t offset, off_t bytes) { return fallocate(fd, mode, offset, bytes); }
int posix_fallocate(int fd, off_t offset, off_t bytes) {
    if (is_tracked(fd)) die("posix_fallocate", "a file below the root");
    return real_posix_fallocate(fd, offset, bytes);
}
int posix_fallocate64(int fd, off_t offset, off_t bytes) { return posix_fallocate(fd, offset, bytes); }
ssize_t copy_file_range(int in, off_t *in_at, int out, off_t *out_at, size_t bytes, unsigned flags) {
    if (is_tracked(out)) die("copy_file_range", "into a file below the root");
    return real_copy_file_range(in, in_at, out, out_at, bytes, flags);
}
