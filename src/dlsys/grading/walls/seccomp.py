"""Which system calls the learner's code may make: a filter for the kernel (seccomp BPF).

A denied call returns an error, so that honest code sees an exception and not a crash.
Calls that are newer than this list answer "not implemented". Numbers: the kernel's
arch/x86/entry/syscalls/syscall_64.tbl and include/uapi/asm-generic/unistd.h.
"""

from __future__ import annotations

import ctypes
import errno
import platform
import struct

# name: (x86-64, arm64); None if an architecture does not have the call.
DENIED: dict[str, tuple[int | None, int | None]] = {
    "execve": (59, 221), "execveat": (322, 281),
    # a way into other processes, namespaces, mounts
    "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271),
    "pidfd_getfd": (438, 438), "process_madvise": (440, 440), "process_mrelease": (448, 448),
    "kcmp": (312, 272), "unshare": (272, 97), "setns": (308, 268), "mount": (165, 40),
    "umount2": (166, 39), "pivot_root": (155, 41), "chroot": (161, 51), "move_mount": (429, 429),
    "open_tree": (428, 428), "fsopen": (430, 430), "fsconfig": (431, 431), "fsmount": (432, 432),
    "fspick": (433, 433), "mount_setattr": (442, 442), "open_by_handle_at": (304, 265),
    "name_to_handle_at": (303, 264), "mknod": (133, None), "mknodat": (259, 33),
    # memory that counts for no process, so that the supervisor would not see it
    "memfd_create": (319, 279), "memfd_secret": (447, 447), "shmget": (29, 194),
    "msgget": (68, 186), "semget": (64, 190), "mq_open": (240, 180), "vmsplice": (278, 75),
    "landlock_create_ruleset": (444, 444), "landlock_add_rule": (445, 445),
    "landlock_restrict_self": (446, 446),
    # large or rarely used parts of the kernel
    "bpf": (321, 280), "perf_event_open": (298, 241), "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425), "io_uring_enter": (426, 426), "io_uring_register": (427, 427),
    "io_setup": (206, 0), "keyctl": (250, 219), "add_key": (248, 217), "request_key": (249, 218),
    "fanotify_init": (300, 262), "remap_file_pages": (216, 234), "lookup_dcookie": (212, 18),
    "personality": (135, 92), "modify_ldt": (154, None), "uselib": (134, None),
    "ustat": (136, None), "sysfs": (139, None), "_sysctl": (156, None),
    "move_pages": (279, 239), "migrate_pages": (256, 238), "ioprio_set": (251, 30),
    # two sandboxes that watch one file of the view have a covert channel
    "inotify_init": (253, None), "inotify_init1": (294, 26), "inotify_add_watch": (254, 27),
    # the machine as a whole
    "kexec_load": (246, 104), "kexec_file_load": (320, 294), "init_module": (175, 105),
    "finit_module": (313, 273), "delete_module": (176, 106), "reboot": (169, 142),
    "swapon": (167, 224), "swapoff": (168, 225), "sethostname": (170, 161),
    "setdomainname": (171, 162), "quotactl": (179, 60), "quotactl_fd": (443, 443),
    "acct": (163, 89), "syslog": (103, 116), "iopl": (172, None), "ioperm": (173, None),
    "settimeofday": (164, 170), "clock_settime": (227, 112), "clock_adjtime": (305, 266),
    "adjtimex": (159, 171), "vhangup": (153, 58), "sync": (162, 81), "syncfs": (306, 267),
}
SOCKET, SOCKETPAIR = (41, 198), (53, 199)
CLONE, CLONE3, PRLIMIT = (56, 220), (435, 435), (302, 261)
MMAP, SETSOCKOPT, FCNTL, FLOCK, IOCTL = (9, 222), (54, 208), (72, 25), (73, 32), (16, 29)
# Calls that send, each with the position of its flags; calls that slow a process, given its id.
SENDS = {"sendto": ((44, 206), 3), "sendmsg": ((46, 211), 2), "sendmmsg": ((307, 269), 3)}
SLOWS = {"sched_setparam": (142, 118), "sched_setscheduler": (144, 119),
         "sched_setaffinity": (203, 122), "sched_setattr": (314, 274)}
SETPRIORITY = (141, 140)
NEWEST_KNOWN = 450
ARCHITECTURES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}

AF_UNIX = 1
OUT_OF_BAND = 1  # MSG_OOB
PRIO_USER = 2    # setpriority: all processes of a user
INIT = 1         # the sandbox's first process, which has the same user
SHARED, ANONYMOUS, HUGE_PAGES = 0x01, 0x20, 0x40000  # mmap
SOL_SOCKET = 1
LOCKS = (6, 7, 37, 38)  # fcntl: F_SETLK, F_SETLKW, and both of open file descriptions
LAST_PLAIN = 5  # fcntl: up to F_GETLK; descriptors and their flags
PLAIN = (1030, 1032)  # fcntl: F_DUPFD_CLOEXEC, F_GETPIPE_SZ
TERMINALS, BEYOND_TERMINALS, CLONE_FILE = 0x5400, 0x5500, 0x40049409  # ioctl
BUFFER_SIZES = (7, 8, 32, 33)  # SO_SNDBUF, SO_RCVBUF, and both with FORCE
# Every CLONE_NEW* flag that clone takes, and CLONE_PARENT: a child of the zygote, which waits only
# for its own, would keep the sandbox from ending.
CLONE_FLAGS = 0x7E020000 | 0x8000
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _KILL, _ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
_NUMBER, _ARCH, _ARGUMENTS = 0, 4, 16  # offsets in struct seccomp_data


def _step(code: int, value: int, yes: int = 0, no: int = 0) -> bytes:
    return struct.pack("HBBI", code, yes, no, value)


def _deny(number: int, error: int = errno.EPERM) -> list[bytes]:
    return [_step(_EQUAL, number, 0, 1), _step(_RETURN, _ERRNO | error)]


def _call(number: int, *steps: bytes) -> list[bytes]:
    """The filter's steps for one call; the call is allowed when no step returns a verdict."""
    return [_step(_EQUAL, number, 0, len(steps) + 1), *steps, _step(_RETURN, _ALLOW)]


def _argument(index: int) -> bytes:
    """Load the lower half of an argument; the kernel reads no more of an int."""
    return _step(_LOAD, _ARGUMENTS + 8 * index)


def _first_argument(number: int, test: int, value: int, deny_if: bool) -> list[bytes]:
    """Deny the call when its first argument passes the test, or when it does not."""
    skip = (0, 1) if deny_if else (1, 0)
    return _call(number, _argument(0), _step(test, value, *skip),
                 _step(_RETURN, _ERRNO | errno.EPERM))


def _memory(column: int) -> list[bytes]:
    """Deny memory that outlives its mapping or that the kernel counts for no process.

    Shared memory without a file is of that kind: a process can unmap all of it but one page.
    """
    return _call(MMAP[column], _argument(3), _step(_ANY_BIT, HUGE_PAGES, 2, 0),
                 _step(_ANY_BIT, ANONYMOUS, 0, 2), _step(_ANY_BIT, SHARED, 0, 1),
                 _step(_RETURN, _ERRNO | errno.EPERM))


def _sockets(column: int) -> list[bytes]:
    """Deny changes of a socket's buffer sizes: the kernel counts the buffers for no process."""
    sizes = [step for name in BUFFER_SIZES for step in _deny(name)]
    return _call(SETSOCKOPT[column], _argument(1), _step(_EQUAL, SOL_SOCKET, 0, 1 + len(sizes)),
                 _argument(2), *sizes)


def _urgent(column: int) -> list[bytes]:
    """Deny out-of-band data, a part of unix sockets that is rarely used and that had holes."""
    return [step for numbers, flags in SENDS.values() for step in _call(
        numbers[column], _argument(flags), _step(_ANY_BIT, OUT_OF_BAND, 0, 1),
        _step(_RETURN, _ERRNO | errno.EPERM))]


def _init(column: int) -> list[bytes]:
    """Deny a change of the init's priority or processors. A process may change its own."""
    slows = [step for numbers in SLOWS.values()
             for step in _first_argument(numbers[column], _EQUAL, INIT, deny_if=True)]
    return [*slows, *_call(SETPRIORITY[column], _argument(0), *_deny(PRIO_USER), _argument(1),
                           *_deny(INIT))]


def _files(column: int) -> list[bytes]:
    """Deny traces that one sandbox could leave on a file of the view for another one to find.

    A lock call succeeds and does nothing: sqlite and shelve need one, and a sandbox is alone.
    Leases, notes and hints are denied; so are larger pipes, whose content counts for no process.
    """
    locks = [step for name in LOCKS for step in _deny(name, 0)]
    plain = [step for name in PLAIN
             for step in (_step(_EQUAL, name, 0, 1), _step(_RETURN, _ALLOW))]
    rest = [*locks, *plain, _step(_RETURN, _ERRNO | errno.EPERM)]
    return [*_deny(FLOCK[column], 0),
            *_call(FCNTL[column], _argument(1), _step(_AT_LEAST, LAST_PLAIN + 1, 0, len(rest)),
                   *rest),
            # Requests to sockets have numbers in the range of the terminals'. All others get the
            # error that a file system without ioctls returns.
            *_call(IOCTL[column], _argument(1), _step(_EQUAL, CLONE_FILE, 3, 0),
                   _step(_AT_LEAST, BEYOND_TERMINALS, 1, 0),
                   _step(_AT_LEAST, TERMINALS, 1, 0),
                   _step(_RETURN, _ERRNO | errno.EOPNOTSUPP))]


def program(machine: str = "") -> bytes:
    """The filter for this machine's architecture. Raises ValueError for an unknown one."""
    machine = machine or platform.machine()
    if machine not in ARCHITECTURES:
        raise ValueError(f"architecture: got {machine}, expected x86_64 or aarch64.")
    column, arch = ARCHITECTURES[machine]
    steps = [_step(_LOAD, _ARCH), _step(_EQUAL, arch, 1, 0), _step(_RETURN, _KILL),
             _step(_LOAD, _NUMBER)]
    # glibc falls back from clone3, whose flags a filter cannot read, to clone.
    steps += _deny(CLONE3[column], errno.ENOSYS)
    # The second numbering of x86-64 (x32) starts at 2**30, so this refuses it as well.
    steps += [_step(_AT_LEAST, NEWEST_KNOWN + 1, 0, 1), _step(_RETURN, _ERRNO | errno.ENOSYS)]
    for numbers in DENIED.values():
        if (number := numbers[column]) is not None:
            steps += _deny(number)
    # Worker processes of a DataLoader talk through unix sockets; nothing else is a socket here.
    for call in (SOCKET, SOCKETPAIR):
        steps += _first_argument(call[column], _EQUAL, AF_UNIX, deny_if=False)
    steps += _first_argument(CLONE[column], _ANY_BIT, CLONE_FLAGS, deny_if=True)
    steps += _memory(column) + _sockets(column) + _files(column) + _urgent(column) + _init(column)
    # A process may set only its own limits, because the init has the same user.
    steps += _first_argument(PRLIMIT[column], _EQUAL, 0, deny_if=False)
    return b"".join([*steps, _step(_RETURN, _ALLOW)])


def install(libc: ctypes.CDLL) -> None:
    """Put the filter on this process and all its children, for good. Raises OSError."""
    code = program()
    buffer = ctypes.create_string_buffer(code)
    head = struct.pack("HxxxxxxQ", len(code) // 8, ctypes.addressof(buffer))
    no_new_privs, set_seccomp, filter_mode = 38, 22, 2
    zero = ctypes.c_ulong(0)
    if libc.prctl(no_new_privs, ctypes.c_ulong(1), zero, zero, zero) or libc.prctl(
            set_seccomp, ctypes.c_ulong(filter_mode), ctypes.create_string_buffer(head), 0, 0):
        raise OSError(ctypes.get_errno(), "seccomp")
