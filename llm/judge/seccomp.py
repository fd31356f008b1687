"""A filter of system calls for bwrap --seccomp: what a test program never needs and what reaches past a namespace.

A deny list on top of namespaces and a uid of its own, not instead of them: it closes nested user namespaces,
sockets that no network namespace holds (vsock), memory that no limit counts (memfd, System V), and
corners of the kernel that keep having faults (io_uring, bpf, keyrings). Numbers: Linux's syscall tables.
"""

import platform
import struct

# name -> (x86_64, aarch64); None: does not exist there
_DENIED = {
    "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "kcmp": (312, 272),
    "unshare": (272, 97), "setns": (308, 268), "mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41),
    "chroot": (161, 51), "open_tree": (428, 428), "move_mount": (429, 429), "fsopen": (430, 430),
    "fsconfig": (431, 431), "fsmount": (432, 432), "fspick": (433, 433), "mount_setattr": (442, 442),
    "add_key": (248, 217), "request_key": (249, 218), "keyctl": (250, 219), "bpf": (321, 280),
    "perf_event_open": (298, 241), "io_uring_setup": (425, 425), "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427), "userfaultfd": (323, 282), "memfd_create": (319, 279),
    "memfd_secret": (447, 447), "shmget": (29, 194), "msgget": (68, 186), "semget": (64, 190), "mq_open": (240, 180),
    "kexec_load": (246, 104), "kexec_file_load": (320, 294), "init_module": (175, 105), "finit_module": (313, 273),
    "delete_module": (176, 106), "swapon": (167, 224), "swapoff": (168, 225), "reboot": (169, 142),
    "syslog": (103, 116), "acct": (163, 89), "quotactl": (179, 60), "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265), "fanotify_init": (300, 262), "vmsplice": (278, 75), "iopl": (172, None),
    "ioperm": (173, None), "sethostname": (170, 161), "setdomainname": (171, 162), "settimeofday": (164, 170),
    "clock_settime": (227, 112), "adjtimex": (159, 171), "clock_adjtime": (305, 266), "personality": (135, 92),
}
_CLONE, _CLONE3, _SOCKET = (56, 220), (435, 435), (41, 198)
_NEW_NAMESPACE = 0x7E020000  # CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET
_FAMILIES = (1, 2, 10)  # AF_UNIX, AF_INET, AF_INET6
_AUDIT_ARCH = (0xC000003E, 0xC00000B7)
_MACHINES = {"x86_64": 0, "aarch64": 1}

_LOAD, _JEQ, _JGE, _JSET, _RET = 0x20, 0x15, 0x35, 0x45, 0x06  # classic BPF
_ALLOW, _KILL, _ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
_EPERM, _ENOSYS, _EAFNOSUPPORT = 1, 38, 97


def supported() -> bool:
    return platform.machine() in _MACHINES


def program() -> bytes:
    """The filter for this machine, as an array of struct sock_filter."""
    at = _MACHINES[platform.machine()]
    code = [(_LOAD, 0, 0, 4), (_JEQ, 1, 0, _AUDIT_ARCH[at]), (_RET, 0, 0, _KILL), (_LOAD, 0, 0, 0)]
    if at == 0:  # the x32 table would be a second way to every call
        code += [(_JGE, 0, 1, 0x40000000), (_RET, 0, 0, _KILL)]
    for number in (numbers[at] for numbers in _DENIED.values()):
        if number is not None:
            code += [(_JEQ, 0, 1, number), (_RET, 0, 0, _ERRNO | _EPERM)]
    code += [(_JEQ, 0, 1, _CLONE3[at]), (_RET, 0, 0, _ERRNO | _ENOSYS)]  # its flags are in memory; libc falls back
    code += [(_JEQ, 0, 4, _CLONE[at]), (_LOAD, 0, 0, 16), (_JSET, 0, 1, _NEW_NAMESPACE), (_RET, 0, 0, _ERRNO | _EPERM),
             (_RET, 0, 0, _ALLOW)]
    code += [(_JEQ, 0, 2 + len(_FAMILIES), _SOCKET[at]), (_LOAD, 0, 0, 16)]
    code += [(_JEQ, len(_FAMILIES) - i, 0, family) for i, family in enumerate(_FAMILIES)]
    code += [(_RET, 0, 0, _ERRNO | _EAFNOSUPPORT), (_RET, 0, 0, _ALLOW)]
    return b"".join(struct.pack("<HBBI", *line) for line in code)
